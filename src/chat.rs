//! Conversations: the tree of messages, the chat template that renders its active path for the
//! engine, and session files.
//!
//! Works on texts and reports. Knows no token ids except those in reports, and nothing of models,
//! caches or widgets.

mod branches;
pub mod conversation;
mod places;
pub mod retention;
pub mod session;
pub mod shown;
pub mod summary;
pub mod tags;
pub mod template;

pub use conversation::{Change, Conversation, Mark, Message, MessageId, Role};
pub use places::line_after;
pub use session::{Session, Store};
pub use tags::Tags;
pub use template::{RenderOptions, render};
