//! `POST /v1/chat/completions`.

use super::messages;
use super::reply::{Kind, Reply};
use super::request::Common;
use crate::protocol::Ask;
use crate::serve::answering::answer;
use crate::serve::fields::{self, Fields};
use crate::serve::prompt::Chat;
use crate::serve::refusal::Refusal;
use crate::serve::request::Asked;
use crate::serve::shared::Shared;
use crate::serve::thought::Thought;
use crate::serve::tools::read_tools;
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;

pub async fn complete(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let given = fields.array("messages")?.ok_or_else(|| Refusal::field("messages", "messages is missing"))?;
    let messages = messages::read(given)?;
    let tools = read_tools(&mut fields, &shared)?;
    let thought = thought(&mut fields, &shared)?;
    let common = Common::take(&mut fields, &shared, false)?;
    let chat = Chat::new(messages, thought.think, &shared)?.with_tools(tools.as_ref(), &shared);
    let form = Reply::new(Kind::Chat, &shared, &common);
    let Common { asked, .. } = common;
    let asked = Asked { ask: Ask { max_think: thought.most, ..asked.ask }, ..asked }.with_tools(tools)?;
    answer(&shared, form, asked, move |shared| chat.render(shared)).await
}

/// Whether and how long the model thinks.
fn thought(fields: &mut Fields, shared: &Shared) -> Result<Thought, Refusal> {
    let mut thought = Thought::default_of(shared);
    let mut asked = fields.bool("enable_thinking")?.map(|on| ("enable_thinking", on));
    if let Some(mut options) = fields.object("chat_template_kwargs")? {
        for name in ["enable_thinking", "thinking"] {
            asked = options.bool(name)?.map(|on| ("chat_template_kwargs", on)).or(asked);
        }
        if let Some(name) = options.names().next() {
            let message = format!("chat_template_kwargs.{name} is not supported by this server");
            return Err(Refusal::unsupported("chat_template_kwargs", message));
        }
    }
    match fields.text("reasoning_effort")?.as_deref() {
        None => {}
        Some("none") => asked = Some(("reasoning_effort", false)),
        Some(effort) => thought.set_effort("reasoning_effort", effort)?,
    }
    for name in ["thinking_budget", "thinking_budget_tokens", "thinking_token_budget"] {
        match fields.whole(name)? {
            None => {}
            Some(-1) => thought.most = None,
            Some(n) => match usize::try_from(n) {
                Ok(n) => thought.most = Some(n),
                Err(_) => return Err(Refusal::field(name, format!("{name} is {n}, expected 0 or more, or -1"))),
            },
        }
    }
    if let Some((name, think)) = asked {
        thought.switch(name, think, shared)?;
    }
    Ok(thought)
}
