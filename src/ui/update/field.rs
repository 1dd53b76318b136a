//! Keys of one-line fields and of lists.

use crate::ui::action::Action;
use crate::ui::editor::Editor;
use crate::ui::keymap::Key;
use crossterm::event::KeyCode;

/// Rows of a page key.
pub const PAGE: usize = 10;

/// Moves the selection of a list, within its ends.
pub fn move_selected(selected: &mut usize, count: usize, down: bool, by: usize) {
    let last = count.saturating_sub(1);
    *selected = if down { (*selected + by).min(last) } else { selected.saturating_sub(by) };
}

/// Handles a key of a one-line field.
pub fn edit_line(line: &mut Editor, key: Key, action: Option<Action>) {
    match (key.code, action) {
        (KeyCode::Char(c), None) if key.modifiers.is_empty() => line.insert(&c.to_string()),
        (_, Some(Action::Backspace)) => line.backspace(),
        (_, Some(Action::Delete)) => line.delete_forward(),
        (_, Some(Action::DeleteWord)) => line.delete_word(),
        (_, Some(Action::KillToStart)) => line.kill_to_line_start(),
        (_, Some(Action::Left)) => line.left(),
        (_, Some(Action::Right)) => line.right(),
        (_, Some(Action::LineStart)) => line.to_line_start(),
        (_, Some(Action::LineEnd)) => line.to_line_end(),
        _ => {}
    }
}
