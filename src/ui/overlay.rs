//! Overlays: lists, pages, bars and questions that are drawn over the conversation and receive the
//! keys. Each is one file that implements [`Overlay`], with its command or, if no command opens it,
//! here.

pub mod history;
pub mod inspect;
mod page;
pub mod prelude;
pub mod question;

pub use page::{
    After, Field, Overlay, WHEEL_ROWS, below, draw_lines, edit_line, field, inside, row, rule, scrolled, wheeled,
};
