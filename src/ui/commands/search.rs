//! `/search`: words in all saved conversations, and the page of what was found.

use super::prelude::*;
use crate::chat::session::Query;
use crate::ui::event::{SearchHit, SearchResult};
use crate::ui::overlay::prelude::*;
use crate::ui::picker::{NOTHING, Picker, Row, fuzzy};
use crate::ui::text::wrap_plain;
use crate::ui::update::files;

/// Rows at the bottom that show the chosen passage, where there is room.
const PREVIEW: u16 = 3;

/// Looks for words in all conversations; phrases are in double quotes.
pub fn run(app: &mut App, words: &str) -> Done {
    if Query::new(words).is_none() {
        return Err(Refusal::Takes);
    }
    app.info("searching the saved conversations");
    app.session.searches = Some(words.to_owned());
    app.store(Store::Search(words.to_owned()));
    Ok(())
}

/// Shows what was found, unless another search was begun since.
pub fn found(app: &mut App, result: SearchResult) {
    if app.session.searches.take_if(|words| *words == result.words).is_none() {
        return;
    }
    app.notice = None;
    let unread = match result.unread {
        0 => String::new(),
        n => format!("; {} could not be read", plural(n as u64, "line")),
    };
    let words = clean_line(&result.words);
    if result.hits.is_empty() {
        return app.info(format!("no saved conversation has {words}{unread}"));
    }
    let all = count((result.hits.len() + result.more) as u64);
    let more = if result.more > 0 { format!(" of {all}") } else { String::new() };
    let title = format!("{}{more} with {words}{unread}; filter:", plural(result.hits.len() as u64, "passage"));
    app.open(Search { title, list: Picker::new(result.hits, "", fuzzy) });
}

/// The page.
pub struct Search {
    title: String,
    list: Picker<SearchHit>,
}

impl Overlay<App> for Search {
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let inside = inside(area);
        let preview = if area.height >= 12 { PREVIEW + 1 } else { 0 };
        let list = Rect { y: area.y + 2, height: area.height.saturating_sub(3 + preview), ..inside };
        let titles = usize::from(list.width) / 3;
        let shown = |hit: &SearchHit| Row {
            text: format!("{:<9} ", hit.passage.part.name()),
            more: clean_line(&hit.passage.text),
            facts: format!("{}  {}", truncate(&clean_line(&hit.title), titles), clean_line(&hit.when)),
            warns: false,
        };
        field(frame, row(inside, 0), &app.theme, &self.title, &self.list.query);
        self.list.draw(frame.buffer_mut(), list, &app.theme, NOTHING, shown);
        let (buffer, room) = (frame.buffer_mut(), usize::from(inside.width));
        if let Some(hit) = self.list.chosen().filter(|_| preview > 0) {
            let text = clean_line(&hit.passage.text);
            let rows = wrap_plain(&text, app.theme.style(Role::Text), room, &[]);
            let at = Rect { y: area.bottom() - 1 - PREVIEW, height: PREVIEW, ..inside };
            draw_lines(buffer, at, &rows);
        }
        let keys = format!("Enter opens the conversation there, {} closes", app.key(Action::Stop));
        buffer.set_stringn(inside.x, area.bottom() - 1, keys, room, app.theme.style(Role::Dim));
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        if key.code != KeyCode::Enter {
            self.list.key(key, action);
            return After::Stay;
        }
        let Some(SearchHit { session, passage, .. }) = self.list.chosen() else { return After::Stay };
        if app.session.id.as_ref() == Some(session) {
            app.overlays.clear();
            if let Some(message) = passage.message {
                files::show_message(app, message);
            }
            return After::Close;
        }
        if turns::idle(app).is_ok() {
            files::open(app, Which::Id(session.clone()));
            app.session.wanted = passage.message;
        }
        After::Stay
    }

    fn field(&self) -> Field {
        Field::Filter
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        self.list.paste(line);
    }

    fn scroll(&mut self, _: &mut App, down: bool) {
        self.list.scroll(down);
    }

    fn plain_lines(&self, _: &App, _: usize) -> Option<Vec<String>> {
        let line = |hit: &SearchHit| {
            let SearchHit { session, title, passage, .. } = hit;
            format!("{session}  {}  {}: {}", clean_line(title), passage.part.name(), clean_line(&passage.text))
        };
        Some(self.list.items.iter().map(line).chain(["/resume ID opens one".to_owned()]).collect())
    }
}
