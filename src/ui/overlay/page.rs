//! What pages over the chat share: the trait, and how their parts are drawn.

use super::super::action::Action;
use super::super::editor::Editor;
use super::super::keymap::Key;
use super::super::text::{clean_line, width};
use super::super::theme::{Role, Theme};
use crossterm::event::KeyCode;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::Line;
use std::any::Any;

/// Rows that the wheel moves a page by.
pub const WHEEL_ROWS: isize = 3;

/// Result of a key in an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Stay,
    /// It has no meaning here.
    Ignored,
    Close,
    /// It stays, and the action is carried out as without it.
    Act(Action),
}

/// The field of an overlay that text is typed into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    None,
    /// It filters a list or a page, which has keys of its own in a keymap with modes.
    Filter,
    /// All that is typed belongs there.
    Text,
}

/// An area drawn over the conversation. `A` is the application. While the overlay handles a key it
/// is not among the overlays that the application has open.
pub trait Overlay<A>: Any {
    /// Lowest rows of the screen that it needs.
    fn rows(&self) -> u16 {
        u16::MAX
    }

    /// False if a notice stays visible in the banner over the input.
    fn hides_banner(&self) -> bool {
        true
    }

    fn draw(&self, frame: &mut Frame, area: Rect, app: &A);

    /// Handles a key that is not one of those that close, suspend or redraw.
    fn key(&mut self, app: &mut A, key: Key, action: Option<Action>) -> After;

    /// Handles Esc: closes an open part of it, else itself.
    fn escape(&mut self, _app: &mut A) -> After {
        After::Close
    }

    /// Whether letters are keys of the page: text for the input needs Esc first.
    fn has_letter_keys(&self) -> bool {
        false
    }

    fn field(&self) -> Field {
        Field::None
    }

    /// Inserts pasted text, as one line.
    fn paste(&mut self, _app: &mut A, _line: &str) {}

    /// Moves by the wheel.
    fn scroll(&mut self, _app: &mut A, _down: bool) {}

    /// Text that line mode prints instead, wrapped at so many columns; `None` while there is
    /// nothing to print yet.
    fn plain_lines(&self, _app: &A, _columns: usize) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}

/// Where a key moves the first row of a page that ends at `last`; `None` if it does not scroll.
pub fn scrolled(top: usize, key: KeyCode, page: usize, last: usize) -> Option<usize> {
    let to = match key {
        KeyCode::Up => top.saturating_sub(1),
        KeyCode::Down => top + 1,
        KeyCode::PageUp => top.saturating_sub(page),
        KeyCode::PageDown => top + page,
        KeyCode::Home => 0,
        KeyCode::End => last,
        _ => return None,
    };
    Some(to.min(last))
}

/// Where the wheel moves it.
pub fn wheeled(top: usize, down: bool, last: usize) -> usize {
    top.saturating_add_signed(if down { WHEEL_ROWS } else { -WHEEL_ROWS }).min(last)
}

/// An area without its first and last column.
pub fn inside(area: Rect) -> Rect {
    Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }
}

/// Row `n` of an area, from the end if it is negative.
pub fn row(area: Rect, n: i16) -> Rect {
    let y = if n < 0 { area.bottom().saturating_sub(n.unsigned_abs()) } else { area.y + n as u16 };
    Rect { y, height: 1, ..area }
}

/// Rest of an area below its first rows.
pub fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// Draws as many rows as an area has, and returns the rest of it.
pub fn draw_lines(buffer: &mut Buffer, area: Rect, lines: &[Line]) -> Rect {
    for (n, line) in lines.iter().take(usize::from(area.height)).enumerate() {
        buffer.set_line(area.x, area.y + n as u16, line, area.width);
    }
    below(area, lines.len().min(usize::from(u16::MAX)) as u16)
}

/// The line that parts an overlay from the conversation above it.
pub fn rule(buffer: &mut Buffer, area: Rect, theme: &Theme) {
    let line = theme.glyphs().horizontal.repeat(usize::from(area.width));
    buffer.set_string(area.x, area.y, line, theme.style(Role::Border));
}

/// Draws a one-line field with its name; puts the cursor into it.
pub fn field(frame: &mut Frame, area: Rect, theme: &Theme, name: &str, value: &Editor) {
    let label = format!("{name} ");
    frame.buffer_mut().set_string(area.x, area.y, &label, theme.style(Role::Prompt));
    let room = usize::from(area.width).saturating_sub(width(&label) + 1);
    let before = clean_line(&value.text()[..value.caret()]);
    let shown = clean_line(value.text());
    let skip = width(&before).saturating_sub(room);
    let mut columns = 0;
    let visible: String = unicode_segmentation::UnicodeSegmentation::graphemes(shown.as_str(), true)
        .skip_while(|g| {
            columns += width(g);
            columns <= skip
        })
        .collect();
    let x = area.x + width(&label) as u16;
    frame.buffer_mut().set_stringn(x, area.y, visible, room, theme.style(Role::Input));
    frame.set_cursor_position(Position { x: x + (width(&before) - skip).min(room) as u16, y: area.y });
}

/// Handles a key of a one-line field.
pub fn edit_line(line: &mut Editor, key: Key, action: Option<Action>) {
    match (key.code, action) {
        (KeyCode::Char(c), None) if key.modifiers.is_empty() => line.insert(&c.to_string()),
        (_, Some(action)) => line.edit(action),
        _ => {}
    }
}
