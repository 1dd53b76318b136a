//! `/sessions`: the list of saved conversations, and the search in it.

use super::prelude::*;
use crate::ui::editor::Editor;
use crate::ui::event::SessionEntry;
use crate::ui::overlay::prelude::*;
use crate::ui::picker::{NOTHING, Picker, Row, fuzzy};
use crate::ui::text::ratio;
use crate::ui::update::files;

/// Has the list read, which is searched for these words then.
pub fn open(app: &mut App, words: &str) -> Done {
    app.session.search = Some(words.to_owned());
    app.store(Store::List);
    Ok(())
}

/// Most columns of a model's name.
const MAX_NAME: usize = 24;

/// The list on the screen.
pub struct Sessions {
    list: Picker<SessionEntry>,
    /// The entry being renamed, and its new title.
    renaming: Option<(String, Editor)>,
}

impl Sessions {
    pub fn new(entries: Vec<SessionEntry>, query: &str) -> Self {
        Self { list: Picker::new(entries, query, fitting), renaming: None }
    }
}

/// Conversations that have a tag for every `#NAME` of the query, or its beginning, and the other
/// words, best first.
fn fitting<'a>(entries: &'a [SessionEntry], query: &str) -> Vec<&'a SessionEntry> {
    let (tags, words): (Vec<&str>, Vec<&str>) = query.split_whitespace().partition(|word| word.starts_with('#'));
    let tags: Vec<String> = tags.iter().map(|tag| tag[1..].to_lowercase()).collect();
    let mut found = fuzzy(entries, &words.join(" "));
    let tagged =
        |entry: &SessionEntry, tag: &str| entry.tags.names().iter().any(|name| name.to_lowercase().starts_with(tag));
    found.retain(|entry| tags.iter().all(|tag| tagged(entry, tag)));
    found
}

/// Shows the saved conversations.
pub fn listed(app: &mut App, entries: Vec<SessionEntry>) {
    if let Some(open) = app.overlay_mut::<Sessions>() {
        open.list.fill(entries);
    } else if entries.is_empty() {
        app.info("no conversation is saved yet");
    } else {
        let query = app.session.search.take().unwrap_or_default();
        app.open(Sessions::new(entries, &query));
    }
}

impl Overlay<App> for Sessions {
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let inside = inside(area);
        // The bottom shows what was said last in the chosen one, where there is room.
        let preview_rows = if area.height >= 12 { 3 } else { 0 };
        let list = Rect { y: area.y + 2, height: area.height.saturating_sub(3 + preview_rows), ..inside };
        let names = self.list.matching().iter().map(|entry| width(&clean_line(&entry.model))).max().unwrap_or(0);
        let shown = |entry: &SessionEntry| Row {
            text: clean_line(&entry.title),
            // Equal questions differ in their answers.
            more: entry.tags.shown()
                + &entry.preview.lines().nth(1).map(|line| format!("  {}", clean_line(line))).unwrap_or_default(),
            facts: facts(entry, names.min(MAX_NAME), usize::from(list.width) * 2 / 3),
            warns: false,
        };
        match &self.renaming {
            Some((_, title)) => field(frame, row(inside, 0), &app.theme, "new title:", title),
            None => field(frame, row(inside, 0), &app.theme, "conversations:", &self.list.query),
        }
        self.list.draw(frame.buffer_mut(), list, &app.theme, NOTHING, shown);
        let (buffer, room, dim) = (frame.buffer_mut(), usize::from(inside.width), app.theme.style(Role::Dim));
        let chosen = self.list.chosen();
        if let Some(entry) = chosen.filter(|_| preview_rows > 0) {
            let signs = [app.theme.glyphs().prompt, " "];
            for ((n, line), sign) in entry.preview.lines().take(2).enumerate().zip(signs) {
                let line = truncate(&format!("{sign} {}", clean_line(line)), room);
                buffer.set_string(inside.x, area.bottom() - 3 + n as u16, line, dim);
            }
        }
        let (rename, close) = (app.key(Action::SearchHistory), app.key(Action::Stop));
        let old = chosen.and_then(|entry| entry.continues.as_deref());
        let old = old.map_or_else(String::new, |id| format!("continues {}; ", clean_line(id)));
        let keys = format!("{old}Enter opens, {rename} renames, Delete deletes, {close} closes");
        buffer.set_stringn(inside.x, area.bottom() - 1, keys, room, dim);
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        if let Some((id, title)) = &mut self.renaming {
            if key.code != KeyCode::Enter {
                edit_line(title, key, action);
                return After::Stay;
            }
            let (id, title) = (id.clone(), title.text().trim().to_owned());
            self.renaming = None;
            if !title.is_empty() {
                files::rename_saved(app, id, title);
            }
            return After::Stay;
        }
        let chosen = self.list.chosen().map(|entry| (entry.id.clone(), entry.title.clone()));
        match (key.code, action, chosen) {
            (KeyCode::Enter, _, Some((id, _))) => {
                if turns::idle(app).is_ok() {
                    files::open(app, Which::Id(id));
                }
            }
            (KeyCode::F(2), _, Some((id, title))) | (_, Some(Action::SearchHistory), Some((id, title))) => {
                self.renaming = Some((id, title.as_str().into()));
            }
            (KeyCode::Delete, _, Some((id, title))) => {
                let question = format!("Delete {:?}? This removes its file.", clean_line(&title));
                app.ask(question, |app| {
                    app.store(Store::Delete { id });
                    app.store(Store::List);
                });
            }
            (KeyCode::Enter | KeyCode::F(2) | KeyCode::Delete, ..) | (_, Some(Action::SearchHistory), _) => {}
            (_, Some(Action::Sessions), _) => return After::Close,
            _ => self.list.key(key, action),
        }
        After::Stay
    }

    fn escape(&mut self, _: &mut App) -> After {
        if self.renaming.take().is_some() { After::Stay } else { After::Close }
    }

    fn field(&self) -> Field {
        if self.renaming.is_some() { Field::Text } else { Field::Filter }
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        match &mut self.renaming {
            Some((_, title)) => title.insert(line),
            None => self.list.paste(line),
        }
    }

    fn scroll(&mut self, _: &mut App, down: bool) {
        self.list.scroll(down);
    }

    fn plain_lines(&self, _: &App, _: usize) -> Option<Vec<String>> {
        let line = |entry: &SessionEntry| format!("{}  {}  {}", entry.id, entry.when, clean_line(&entry.title));
        Some(self.list.items.iter().map(line).chain(["/resume ID opens one".to_owned()]).collect())
    }
}

/// The columns of a conversation, equally wide in all rows: `names` columns for the model's name.
/// Where they are wider than `room`, sizes leave first, then ratios and numbers of turns.
fn facts(entry: &SessionEntry, names: usize, room: usize) -> String {
    let name = truncate(&clean_line(&entry.model), names);
    let mut columns = vec![
        format!("{:>9}", plural(entry.turns as u64, "turn")),
        format!("{:>6}", entry.ratio.map_or_else(String::new, |r| ratio(Some(r)))),
        format!("{:>7}", bytes(entry.bytes)),
    ];
    let (when, gap) = (clean_line(&entry.when), " ".repeat(names.saturating_sub(width(&name))));
    loop {
        let row = format!("{when}  {}{name}{gap}", columns.iter().map(|c| format!("{c}  ")).collect::<String>());
        if width(&row) <= room || columns.pop().is_none() {
            return row;
        }
    }
}
