//! Imports of most commands.

pub use crate::protocol::Command as Engine;
pub use crate::ui::action::Action;
pub use crate::ui::effect::{Effect, Store, Which};
pub use crate::ui::feed::{Local, LocalKind};
pub use crate::ui::refusal::{Done, Refusal};
pub use crate::ui::state::App;
pub use crate::ui::text::{bytes, clean_line, count, on_or_off, plural, truncate, width};
pub use crate::ui::update::turns;
