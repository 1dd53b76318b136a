//! `/find`: the bar that finds text in the conversation, and moving between hits.

use super::prelude::*;
use crate::ui::editor::Editor;
use crate::ui::find::{count_in, hits};
use crate::ui::folded;
use crate::ui::overlay::prelude::*;

/// Opens the bar with a query, which may be empty.
pub fn run(app: &mut App, text: &str) -> Done {
    if app.chat.path().is_empty() && app.feed.locals.is_empty() {
        return Err("there is nothing to search yet".into());
    }
    let mut find = Find { query: text.into(), ..Find::default() };
    find.changed(app);
    app.open(find);
    Ok(())
}

/// The bar over the input.
#[derive(Default)]
pub struct Find {
    pub query: Editor,
    /// Hits in all, and the one shown.
    count: usize,
    current: usize,
    /// Hits in thoughts and pastes that are folded.
    hidden: usize,
}

impl Find {
    /// Goes to the first hit in view or below after the query changed, else to the last one above.
    fn changed(&mut self, app: &mut App) {
        let found = hits(&app.feed, self.query.text());
        let top = app.feed.top();
        let at = found.iter().position(|hit| app.feed.row_of(hit.item, hit.cells[0].0) >= top);
        self.go(app, at.unwrap_or(found.len().saturating_sub(1)));
    }

    /// Goes to the next or previous hit, wrapping around.
    fn step(&mut self, app: &mut App, on: bool) {
        let count = self.count.max(1);
        self.go(app, if on { self.current + 1 } else { self.current + count - 1 } % count);
    }

    /// Scrolls to a hit and shows it in the upper third of the pane.
    fn go(&mut self, app: &mut App, at: usize) {
        let found = hits(&app.feed, self.query.text());
        let at = at.min(found.len().saturating_sub(1));
        if let Some(hit) = found.get(at) {
            let row = app.feed.row_of(hit.item, hit.cells[0].0);
            app.feed.go_to(row.saturating_sub(app.feed.height / 3));
        }
        (self.count, self.current, self.hidden) = (found.len(), at, hidden(app, self.query.text()));
    }
}

impl Overlay<App> for Find {
    fn rows(&self) -> u16 {
        2
    }

    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        rule(frame.buffer_mut(), area, &app.theme);
        let found = match (self.query.text().trim().is_empty(), self.count) {
            (true, _) => format!("Enter next, Up previous, {} closes", app.key(Action::Stop)),
            (false, 0) => "not found".to_owned(),
            (false, n) => format!("{} of {n}", self.current + 1),
        };
        let key = app.key(Action::FoldAll);
        let hidden = match self.hidden {
            0 => String::new(),
            n => format!("; {n} more in folded parts ({key} opens them)"),
        };
        let said = truncate(&format!("  {found}{hidden}"), usize::from(area.width) * 2 / 3);
        let line = row(area, -1);
        let line = Rect { x: line.x + 1, width: area.width.saturating_sub(width(&said) as u16 + 2), ..line };
        field(frame, line, &app.theme, "find:", &self.query);
        frame.buffer_mut().set_string(line.right(), line.y, said, app.theme.style(Role::Dim));
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        match (key.code, action) {
            (KeyCode::Enter | KeyCode::Down, _) | (_, Some(Action::Find)) => self.step(app, true),
            (KeyCode::Up, _) => self.step(app, false),
            (KeyCode::PageUp, _) => app.feed.scroll(-(app.feed.height as isize)),
            (KeyCode::PageDown, _) => app.feed.scroll(app.feed.height as isize),
            (_, Some(Action::FoldAll)) => app.feed.toggle_all(),
            _ => {
                edit_line(&mut self.query, key, action);
                self.changed(app);
            }
        }
        After::Stay
    }

    fn field(&self) -> Field {
        Field::Text
    }

    fn paste(&mut self, app: &mut App, line: &str) {
        self.query.insert(line);
        self.changed(app);
    }

    fn scroll(&mut self, app: &mut App, down: bool) {
        app.feed.scroll(if down { WHEEL_ROWS } else { -WHEEL_ROWS });
    }

    fn plain_lines(&self, _: &App, _: usize) -> Option<Vec<String>> {
        Some(vec![format!("{} found", plural(self.count as u64, "row"))])
    }
}

/// Counts hits in folded thoughts, pastes and files.
fn hidden(app: &App, query: &str) -> usize {
    let path = app.chat.path();
    let folded = path.iter().filter(|m| !app.feed.is_open(m.id));
    let counts = folded.map(|m| {
        let stored = app.feed.folds.get(&m.id).cloned();
        let user = m.role == crate::chat::Role::User;
        let folds = stored.unwrap_or_else(|| folded::middle(m.shown()).filter(|_| user).into_iter().collect());
        let parts = folds.iter().filter_map(|fold| m.shown().get(fold.range.clone()));
        parts.chain(m.shown_reasoning()).map(|text| count_in(text, query)).sum::<usize>()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::*;

    #[test]
    fn hits_are_gone_through_and_folded_ones_counted() {
        let mut app = app(80, 24, 8, 4);
        for n in 0..20 {
            turn(&mut app, &format!("question {n}"), "a hidden needle", &format!("answer {n}, not yet"));
        }
        turn(&mut app, "where?", "thought", "A Needle is here.");
        turn(&mut app, "again?", "thought", "The needle\n\nonce more.");
        screen(&mut app);
        let bar = |app: &mut App| screen(app).lines().rev().find(|l| l.contains("find:")).unwrap_or("").to_owned();
        ctrl(&mut app, 'f');
        type_in(&mut app, "nEEdle");
        assert!(bar(&mut app).contains("20 more"), "{}", bar(&mut app));
        assert!(bar(&mut app).contains("1 of 2") || bar(&mut app).contains("2 of 2"));
        // The thoughts open: all 22, and around the end to the first.
        press(&mut app, KeyCode::F(6));
        screen(&mut app);
        for _ in 0..22 {
            press(&mut app, KeyCode::Down);
        }
        assert!(bar(&mut app).contains("of 22"), "{}", bar(&mut app));
        while !bar(&mut app).contains("1 of 22") || bar(&mut app).contains("21 of 22") {
            press(&mut app, KeyCode::Up);
        }
        assert!(screen(&mut app).contains("question 0"));
        press(&mut app, KeyCode::Esc);
        assert!(app.overlays.is_empty() && screen(&mut app).contains("question 0"));
        // With a text in the input the key moves in it; the command opens the bar too.
        press(&mut app, KeyCode::Char('x'));
        ctrl(&mut app, 'f');
        assert!(app.overlays.is_empty());
        app.input.set("");
        say(&mut app, "/find once more");
        assert!(bar(&mut app).contains("1 of 1"), "{}", bar(&mut app));
    }
}
