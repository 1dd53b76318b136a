//! The search in earlier messages and commands, over the input.

use super::prelude::*;
use crate::ui::editor::search;
use crate::ui::picker::{NOTHING, Picker, Row};
use crate::ui::state::App;
use crate::ui::text::clean_line;
use crate::ui::update::completion::input_changed;

const MAX_ROWS: usize = 10;

pub struct HistorySearch(Picker<String>);

impl HistorySearch {
    pub fn new(app: &App) -> Self {
        Self(Picker::new(app.history.entries().to_vec(), "", search))
    }
}

impl Overlay<App> for HistorySearch {
    fn rows(&self) -> u16 {
        self.0.matching().len().clamp(1, MAX_ROWS) as u16 + 2
    }

    fn hides_banner(&self) -> bool {
        false
    }

    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        rule(frame.buffer_mut(), area, &app.theme);
        let inside = inside(area);
        let list = Rect { y: area.y + 1, height: area.height.saturating_sub(2), ..inside };
        let shown = |text: &String| Row { text: clean_line(text), ..Row::default() };
        self.0.draw(frame.buffer_mut(), list, &app.theme, NOTHING, shown);
        field(frame, row(inside, -1), &app.theme, "search history:", &self.0.query);
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        match (key.code, action) {
            (KeyCode::Enter | KeyCode::Tab, _) => {
                if let Some(text) = self.0.chosen() {
                    app.input.set(text);
                    input_changed(app);
                }
                return After::Close;
            }
            (_, Some(Action::SearchHistory)) => self.0.move_by(1),
            _ => self.0.key(key, action),
        }
        After::Stay
    }

    fn field(&self) -> Field {
        Field::Text
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        self.0.paste(line);
    }

    fn scroll(&mut self, _: &mut App, down: bool) {
        self.0.scroll(down);
    }
}
