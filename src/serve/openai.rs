//! Endpoints in OpenAI's form.

pub mod chat;
pub mod completions;
mod messages;
mod reply;
mod request;

pub use messages::{join_systems, read as read_messages, read_one as read_message};
