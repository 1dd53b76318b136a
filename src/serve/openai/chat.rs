//! `POST /v1/chat/completions`.

use super::answering::answer;
use super::messages;
use super::reply::Form;
use super::request::Common;
use crate::chat::template::{Author, Given, RenderOptions, render_given};
use crate::protocol::{Ask, Piece, Thinking};
use crate::serve::fields::{self, Fields};
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;

/// Tokens of a thought by `reasoning_effort`: most, or without a limit. `none` does not think.
const EFFORTS: [(&str, Option<usize>); 5] =
    [("minimal", Some(512)), ("low", Some(2048)), ("medium", Some(8192)), ("high", None), ("xhigh", None)];

pub async fn complete(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let given = fields.array("messages")?.ok_or_else(|| Refusal::field("messages", "messages is missing"))?;
    let messages = with_system(messages::read(given)?, shared.defaults.system.as_deref());
    let Thought { think, max_think } = Thought::take(&mut fields, &shared)?;
    let common = Common::take(&mut fields, &shared)?;
    shared.check_length("messages", messages.iter().map(|message| message.text.len()).sum())?;
    let common = Common { ask: Ask { max_think, ..common.ask }, ..common };
    answer(&shared, Form::Chat, common, move |shared| render(&messages, think, shared)).await
}

/// The pieces of a prompt.
pub fn render(messages: &[Given], think: bool, shared: &Shared) -> anyhow::Result<Vec<Piece>> {
    let opts = RenderOptions { think, think_tags: shared.info.think_tags.clone(), ..RenderOptions::default() };
    render_given(messages, &shared.info.template, &opts)
}

/// The messages, after the server's own system prompt if they have none.
fn with_system(mut messages: Vec<Given>, system: Option<&str>) -> Vec<Given> {
    if let Some(system) = system.filter(|_| messages.first().is_none_or(|first| first.author != Author::System)) {
        messages.insert(0, Given { author: Author::System, text: system.to_owned(), reasoning: None });
    }
    messages
}

/// Whether and how long the model thinks.
struct Thought {
    think: bool,
    max_think: Option<usize>,
}

impl Thought {
    fn take(fields: &mut Fields, shared: &Shared) -> Result<Self, Refusal> {
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
        let mut max_think = shared.defaults.max_think;
        match fields.text("reasoning_effort")?.as_deref() {
            None => {}
            Some("none") => asked = Some(("reasoning_effort", false)),
            Some(effort) => {
                let Some((_, most)) = EFFORTS.iter().find(|(name, _)| *name == effort) else {
                    let message = format!(
                        "{effort:?} is not a reasoning_effort (expected none, minimal, low, medium, high or xhigh)"
                    );
                    return Err(Refusal::field("reasoning_effort", message));
                };
                max_think = most.or(max_think);
            }
        }
        for name in ["thinking_budget", "thinking_budget_tokens", "thinking_token_budget"] {
            match fields.whole(name)? {
                None => {}
                Some(-1) => max_think = None,
                Some(n) => match usize::try_from(n) {
                    Ok(n) => max_think = Some(n),
                    Err(_) => return Err(Refusal::field(name, format!("{name} is {n}, expected 0 or more, or -1"))),
                },
            }
        }
        if let (Thinking::Fixed, Some((name, false))) = (shared.info.thinking(), asked) {
            let message = format!("{name}: {} cannot be told not to think", shared.info.identity.name);
            return Err(Refusal::unsupported(name, message));
        }
        Ok(Self { think: asked.map_or(shared.defaults.think, |(_, on)| on), max_think })
    }
}
