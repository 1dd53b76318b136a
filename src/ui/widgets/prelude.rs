//! Imports of most widgets.

pub use crate::ui::depth::Depth;
pub use crate::ui::state::App;
pub use crate::ui::theme::{Role, Theme};
pub use ratatui::Frame;
pub use ratatui::buffer::Buffer;
pub use ratatui::layout::Rect;
pub use ratatui::style::{Color, Modifier, Style};
pub use ratatui::text::{Line, Span};
