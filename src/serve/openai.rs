//! Endpoints in OpenAI's form.

pub mod chat;
pub mod completions;
mod messages;
mod reply;
mod request;

pub use messages::read as read_messages;
