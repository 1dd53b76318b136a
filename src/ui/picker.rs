//! A list with a field that filters it as one types: the saved conversations, the models, earlier
//! messages.

use super::action::Action;
use super::editor::Editor;
use super::keymap::Key;
use super::overlay::edit_line;
use super::text::{truncate, width};
use super::theme::{Role, Theme};
use crossterm::event::{KeyCode, KeyModifiers};
use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Rows of a page key.
pub const PAGE: usize = 10;

/// Which items fit a query, best first.
type Filter<T> = for<'a> fn(&'a [T], &str) -> Vec<&'a T>;

/// The items, those that fit what was typed, and the chosen one.
pub struct Picker<T> {
    pub query: Editor,
    pub items: Vec<T>,
    filter: Filter<T>,
    /// Among those that fit.
    selected: usize,
}

/// Drawing of an item: its text, more text after it, and facts at the right.
#[derive(Default)]
pub struct Row {
    pub text: String,
    pub more: String,
    pub facts: String,
    pub warns: bool,
}

impl<T> Picker<T> {
    pub fn new(items: Vec<T>, query: &str, filter: Filter<T>) -> Self {
        Self { query: query.into(), items, filter, selected: 0 }
    }

    pub fn matching(&self) -> Vec<&T> {
        (self.filter)(&self.items, self.query.text())
    }

    pub fn chosen(&self) -> Option<&T> {
        self.matching().get(self.selected).copied()
    }

    /// Replaces the items; the chosen place stays.
    pub fn fill(&mut self, items: Vec<T>) {
        self.items = items;
        self.move_by(0);
    }

    /// Chooses the first item of which `is` says so, if there is one.
    pub fn choose(&mut self, is: impl Fn(&T) -> bool) {
        self.selected = self.matching().into_iter().position(is).unwrap_or(0);
    }

    pub fn move_by(&mut self, rows: isize) {
        let last = self.matching().len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
    }

    /// Handles a key: arrows and pages move, any other edits the field.
    pub fn key(&mut self, key: Key, action: Option<Action>) {
        match key.code {
            KeyCode::Up => self.move_by(-1),
            KeyCode::Down => self.move_by(1),
            KeyCode::PageUp => self.move_by(-(PAGE as isize)),
            KeyCode::PageDown => self.move_by(PAGE as isize),
            KeyCode::Home if key.modifiers == KeyModifiers::CONTROL => self.selected = 0,
            KeyCode::End if key.modifiers == KeyModifiers::CONTROL => self.move_by(isize::MAX),
            _ => self.edit(|query| edit_line(query, key, action)),
        }
    }

    pub fn paste(&mut self, line: &str) {
        self.edit(|query| query.insert(line));
    }

    pub fn scroll(&mut self, down: bool) {
        self.move_by(if down { 1 } else { -1 });
    }

    /// Edits the field. Another query begins at the item that fits it best.
    fn edit(&mut self, edit: impl FnOnce(&mut Editor)) {
        let before = self.query.revision();
        edit(&mut self.query);
        if self.query.revision() != before {
            self.selected = 0;
        }
    }

    /// Draws the items that fit, as `row` says, or `empty`.
    pub fn draw(&self, buffer: &mut Buffer, list: Rect, theme: &Theme, empty: &str, row: impl Fn(&T) -> Row) {
        let (matching, rows) = (self.matching(), usize::from(list.height));
        let first = first_shown(self.selected, matching.len(), rows);
        for (n, item) in matching.iter().enumerate().skip(first).take(rows) {
            let line = Rect { y: list.y + (n - first) as u16, height: 1, ..list };
            draw_row(buffer, line, theme, &row(item), n == self.selected);
        }
        if matching.is_empty() {
            buffer.set_stringn(list.x, list.y, empty, usize::from(list.width), theme.style(Role::Dim));
        }
    }
}

/// Text of a list without an item for the query.
pub const NOTHING: &str = "nothing fits";

/// First of `count` items shown in `rows` rows, so that the selected one is in view.
pub fn first_shown(selected: usize, count: usize, rows: usize) -> usize {
    (selected + 1).saturating_sub(rows).min(count.saturating_sub(rows))
}

fn draw_row(buffer: &mut Buffer, line: Rect, theme: &Theme, row: &Row, chosen: bool) {
    let role = |usual| theme.style(if chosen { Role::Selected } else { usual });
    let room = usize::from(line.width);
    let facts = truncate(&row.facts, room * 2 / 3);
    let left = room.saturating_sub(if facts.is_empty() { 0 } else { width(&facts) + 2 });
    let text = truncate(&row.text, left);
    let more = truncate(&row.more, left.saturating_sub(width(&text)));
    buffer.set_string(line.x, line.y, " ".repeat(room), role(Role::Text));
    buffer.set_string(line.x, line.y, &text, role(Role::Text));
    buffer.set_string(line.x + width(&text) as u16, line.y, more, role(Role::Dim));
    let x = line.x + room.saturating_sub(width(&facts)) as u16;
    buffer.set_string(x, line.y, facts, role(if row.warns { Role::Warning } else { Role::Dim }));
}

/// Items whose text has the words of the query, each as letters in order, best first.
pub fn fuzzy<'a, T: AsRef<str>>(items: &'a [T], query: &str) -> Vec<&'a T> {
    let query = query.trim();
    if query.is_empty() {
        return items.iter().collect();
    }
    let pattern = Pattern::parse(query, CaseMatching::Ignore, Normalization::Smart);
    let matched = pattern.match_list(items.iter(), &mut Matcher::new(Config::DEFAULT));
    matched.into_iter().map(|(item, _)| item).collect()
}
