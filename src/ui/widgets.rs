//! The widgets of the screen and their layout. Widgets draw from the state and change only the
//! conversation's cached rows.

pub mod chains;
pub mod columns;
pub mod conversation;
pub mod frame;
pub mod heatmap;
pub mod input;
mod layout;
pub mod memory;
pub mod message;
pub mod panel;
mod prelude;
pub mod recall;
pub mod status;
#[cfg(test)]
mod tests;
pub mod twin;
pub mod welcome;

use columns::chat_width;
pub use layout::{Layout, layout};
