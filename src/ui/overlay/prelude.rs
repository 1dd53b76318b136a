//! Parts of an overlay: its keys, its places on the screen, and the roles of its text.

pub use super::{After, Field, Overlay, WHEEL_ROWS, below, draw_lines, edit_line, field, inside, row, rule};
pub use super::{scrolled, wheeled};
pub use crate::ui::action::Action;
pub use crate::ui::keymap::Key;
pub use crate::ui::theme::Role;
pub use crossterm::event::{KeyCode, KeyModifiers};
pub use ratatui::Frame;
pub use ratatui::buffer::Buffer;
pub use ratatui::layout::Rect;
