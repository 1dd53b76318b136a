//! Endpoints in ollama's form: `POST /api/chat`, `POST /api/generate`, and facts about the model.

mod facts;
mod form;
mod reply;

pub use facts::{ps, show, tags, version};
pub use form::refused;

use crate::chat::template::{Author, Given};
use crate::protocol::{Ask, Grammar};
use crate::serve::answering::answer;
use crate::serve::fields::{self, Fields, from_one};
use crate::serve::logprobs;
use crate::serve::openai::{join_systems, read_message};
use crate::serve::prompt::{Chat, Prompt, check_count};
use crate::serve::refusal::Refusal;
use crate::serve::request::{Asked, Unsupported, is_empty, is_one, is_zero, refuse, stops};
use crate::serve::shared::Shared;
use crate::serve::structured::{any_object, by_schema};
use crate::serve::thought::Thought;
use crate::serve::tools::read_tools;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use form::{LINES, check_model};
use reply::{Reply, Said};
use serde_json::Value;
use std::sync::Arc;

/// Fields with an effect that is not built, and the values that have none.
const UNSUPPORTED: [Unsupported; 5] =
    [("suffix", is_empty), ("template", is_empty), ("context", is_empty), ("images", is_empty), ("steps", is_zero)];

/// The same of `options`. What is about memory and speed has no effect on an answer.
const UNSUPPORTED_OPTIONS: [Unsupported; 3] = [("mirostat", is_zero), ("tfs_z", is_one), ("typical_p", is_one)];

/// Whether a path belongs to this API, so that errors have its form.
pub fn owns(path: &str) -> bool {
    path.starts_with("/api/")
}

/// `GET /`, by which clients find out whether a server is there.
pub async fn root() -> &'static str {
    "dmschat is running"
}

/// What both endpoints are asked beside their prompt.
struct Common {
    asked: Asked,
    thought: Thought,
    unloads: bool,
}

impl Common {
    fn take(fields: &mut Fields, shared: &Shared) -> Result<Self, Refusal> {
        check_model(fields, shared)?;
        refuse(fields, &UNSUPPORTED)?;
        let stream = fields.bool("stream")?.unwrap_or(true);
        let mut options = fields.object("options")?.unwrap_or_default();
        let within = |refusal: Refusal| refusal.within("options");
        refuse(&mut options, &UNSUPPORTED_OPTIONS).map_err(within)?;
        let asked = Asked::take(&mut options, shared).map_err(within)?;
        let max_tokens = match options.whole("num_predict").map_err(within)? {
            None => shared.defaults.max_tokens,
            // Until the model ends it, and until the context is full.
            Some(-1 | -2) => None,
            Some(n) => Some(from_one("num_predict", n).map_err(within)?),
        };
        let stop = stops("options.stop", options.take("stop"))?;
        let thought = thought(fields, shared)?;
        let logprobs = logprobs::take(fields, false)?;
        let unloads = fields.take("keep_alive").is_some_and(|time| is_zero(&time) || time == "0");
        let grammar = format(fields)?;
        let ask = Ask { max_tokens, max_think: thought.most, stop, logprobs, grammar, ..asked.ask };
        Ok(Self { asked: Asked { stream, ask, ..asked }, thought, unloads })
    }

    /// The answer to a request without a prompt, which loads a model or gives it up. Here it stays.
    fn without_prompt(&self, form: &Reply) -> Response {
        let line = form.without_prompt(if self.unloads { "unload" } else { "load" });
        let kind = if self.asked.stream { LINES } else { "application/json" };
        ([(header::CONTENT_TYPE, kind)], format!("{line}\n")).into_response()
    }
}

/// Takes `format`: `"json"`, or a schema.
fn format(fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    match fields.take("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => by_schema("format", &any_object()).map(Some),
        Some(schema @ Value::Object(_)) => by_schema("format", &schema).map(Some),
        Some(_) => Err(Refusal::field("format", "format is neither \"json\" nor a schema")),
    }
}

/// `think`: whether the model thinks, or how long.
fn thought(fields: &mut Fields, shared: &Shared) -> Result<Thought, Refusal> {
    let mut thought = Thought::default_of(shared);
    match fields.take("think") {
        None => {}
        Some(Value::Bool(think)) => thought.switch("think", think, shared)?,
        Some(Value::String(effort)) => thought.set_effort("think", &effort)?,
        Some(_) => return Err(Refusal::field("think", "think is neither true, false nor a level")),
    }
    Ok(thought)
}

/// Reads a message. Its thought is called `thinking` in this API, and a tool's name `tool_name`.
fn message(at: &str, mut value: Value) -> Result<Given, Refusal> {
    if let Some(fields) = value.as_object_mut() {
        if fields.get("images").is_some_and(|images| !images.is_null() && !is_empty(images)) {
            let message = format!("{at}.images is not supported by this server, which reads text");
            return Err(Refusal::unsupported(format!("{at}.images"), message));
        }
        if let Some(thinking) = fields.remove("thinking") {
            fields.insert("reasoning_content".to_owned(), thinking);
        }
    }
    if let Some(name) = value.as_object_mut().and_then(|fields| fields.remove("tool_name")) {
        value["name"] = name;
    }
    read_message(at, value)
}

/// `POST /api/chat`
pub async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let mut common = Common::take(&mut fields, &shared)?;
    let tools = read_tools(&mut fields, &shared)?;
    let form = Reply::new(Said::Message, &shared.info.identity.name, common.asked.ask.logprobs);
    let given = fields.array("messages")?.unwrap_or_default();
    if given.is_empty() {
        return Ok(common.without_prompt(&form));
    }
    check_count(given.len())?;
    let read = |(index, value)| message(&format!("messages[{index}]"), value);
    let messages = given.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    let chat = Chat::new(join_systems(messages), common.thought.think, &shared)?.with_tools(tools.as_ref(), &shared);
    common.asked = common.asked.with_tools(tools)?;
    answer(&shared, form, common.asked, move |shared| chat.render(shared)).await
}

/// `POST /api/generate`
pub async fn generate(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let mut common = Common::take(&mut fields, &shared)?;
    let mut form = Reply::new(Said::Response, &shared.info.identity.name, common.asked.ask.logprobs);
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(common.without_prompt(&form));
    }
    shared.check_length("prompt", prompt.len())?;
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    if fields.bool("raw")? == Some(true) {
        common.asked.ask.raw = true;
        form.raw = true;
        return answer(&shared, form, common.asked, move |shared| Ok(Prompt::raw(&prompt, shared))).await;
    }
    let given = |author, text: String| Given::new(author, text);
    let system = system.map(|text| given(Author::System, text));
    let messages = system.into_iter().chain([given(Author::User, prompt)]).collect();
    let chat = Chat::new(messages, common.thought.think, &shared)?;
    answer(&shared, form, common.asked, move |shared| chat.render(shared)).await
}
