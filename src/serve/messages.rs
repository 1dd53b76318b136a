//! Endpoints in Anthropic's form: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod content;
mod error;
mod reply;
mod tools;

pub use error::refused;

use crate::protocol::{Ask, Grammar};
use crate::serve::answering::answer;
use crate::serve::fields::{self, Fields, from_one};
use crate::serve::prompt::Chat;
use crate::serve::refusal::Refusal;
use crate::serve::request::{Asked, Unsupported, check_model, is_empty, refuse, stops};
use crate::serve::shared::Shared;
use crate::serve::structured;
use crate::serve::thought::Thought;
use crate::serve::tools::Offered;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use reply::Reply;
use serde_json::{Value, json};
use std::sync::Arc;

/// Fields with an effect that is not built, and the values that have none.
const UNSUPPORTED: [Unsupported; 5] = [
    ("mcp_servers", is_empty),
    ("container", is_empty),
    ("output_format", is_empty),
    ("context_management", |value| value.get("edits").is_none_or(is_empty)),
    ("speed", |value| value == "standard"),
];

/// Whether a path belongs to this API, so that errors have its form.
pub fn owns(path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    path.strip_prefix("/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `POST /v1/messages`
pub async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let Conversation { chat, thought, shows_thought, tools, grammar } = Conversation::take(&mut fields, &shared)?;
    let asked = Asked::take(&mut fields, &shared)?;
    let max_tokens = match fields.whole("max_tokens")? {
        Some(n) => Some(from_one("max_tokens", n)?),
        None => return Err(Refusal::field("max_tokens", "max_tokens is missing")),
    };
    let stop = stops("stop_sequences", fields.array("stop_sequences")?.map(Value::Array))?;
    let asked = Asked { ask: Ask { max_tokens, max_think: thought.most, stop, grammar, ..asked.ask }, ..asked };
    let asked = asked.with_tools(tools)?;
    let form = Reply::new(&shared.info.identity.name, shows_thought);
    answer(&shared, form, asked, move |shared| chat.render(shared)).await
}

/// `POST /v1/messages/count_tokens`
pub async fn count_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, Refusal> {
    let mut fields = fields::read(request).await?;
    let tokens = Conversation::take(&mut fields, &shared)?.chat.tokens(&shared).await?;
    Ok(Json(json!({ "input_tokens": tokens.len() })))
}

/// What both endpoints are asked about.
struct Conversation {
    chat: Chat,
    thought: Thought,
    /// Whether the thought is sent.
    shows_thought: bool,
    tools: Option<Offered>,
    grammar: Option<Grammar>,
}

impl Conversation {
    fn take(fields: &mut Fields, shared: &Shared) -> Result<Self, Refusal> {
        check_model(fields, shared)?;
        refuse(fields, &UNSUPPORTED)?;
        let messages = content::messages(fields)?;
        let (thought, shows_thought, grammar) = thought(fields, shared)?;
        let tools = tools::take(fields, shared)?;
        let chat = Chat::new(messages, thought.think, shared)?.with_tools(tools.as_ref(), shared);
        Ok(Self { chat, thought, shows_thought, tools, grammar })
    }
}

/// Whether and how long the model thinks, whether its thought is sent, and the grammar of the
/// answer.
fn thought(fields: &mut Fields, shared: &Shared) -> Result<(Thought, bool, Option<Grammar>), Refusal> {
    let (mut thought, mut grammar) = (Thought::default_of(shared), None);
    if let Some(mut output) = fields.object("output_config")? {
        if let Some(effort) = output.text("effort").map_err(|refusal| refusal.within("output_config"))? {
            thought.set_effort("output_config.effort", &effort)?;
        }
        grammar = structured::take("output_config.format", &mut output)?;
    }
    let Some(mut thinking) = fields.object("thinking")? else { return Ok((thought, true, grammar)) };
    let within = |refusal: Refusal| refusal.within("thinking");
    let kind = thinking.text("type").map_err(within)?;
    let budget = thinking.whole("budget_tokens").map_err(within)?;
    let display = thinking.text("display").map_err(within)?;
    match kind.as_deref() {
        Some("enabled") => {
            thought.switch("thinking", true, shared)?;
            if let Some(n) = budget {
                thought.most = Some(from_one("thinking.budget_tokens", n)?);
            }
        }
        Some("adaptive") => thought.switch("thinking", true, shared)?,
        Some("disabled") => thought.switch("thinking", false, shared)?,
        Some(kind) => {
            let message = format!("{kind:?} is not a type of thinking (expected enabled, disabled or adaptive)");
            return Err(Refusal::field("thinking.type", message));
        }
        None => return Err(Refusal::field("thinking.type", "thinking has no type")),
    }
    match display.as_deref() {
        None | Some("summarized") => Ok((thought, true, grammar)),
        Some("omitted") => Ok((thought, false, grammar)),
        Some(other) => {
            let message = format!("thinking.display is {other:?}, expected summarized or omitted");
            Err(Refusal::field("thinking.display", message))
        }
    }
}
