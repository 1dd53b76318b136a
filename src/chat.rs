//! The conversation as people see it: a tree of messages, the template that turns its active path
//! into pieces for the engine, and the files it is kept in.
//!
//! Knows texts and reports, never token ids beyond what a report carries, and nothing of models,
//! caches or widgets.

pub mod conversation;
pub mod session;
pub mod template;

pub use conversation::{Change, ChangeKind, Conversation, Mark, Message, MessageId, Role, line_after};
pub use session::{Session, Store};
pub use template::{RenderOptions, render};
