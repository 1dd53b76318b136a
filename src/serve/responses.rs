//! Endpoints of OpenAI's Responses: `POST /v1/responses`, and what was stored of an answer.

mod input;
mod reply;
mod tools;

use crate::protocol::{Ask, Grammar};
use crate::serve::answering::answer;
use crate::serve::fields::{self, Fields, from_one};
use crate::serve::logprobs;
use crate::serve::prompt::Chat;
use crate::serve::refusal::Refusal;
use crate::serve::request::{Asked, Unsupported, check_model, is_empty, is_false, refuse};
use crate::serve::shared::Shared;
use crate::serve::structured;
use crate::serve::thought::Thought;
use axum::Json;
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use reply::{Kept, Reply};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Fields with an effect that is not built, and the values that have none.
const UNSUPPORTED: [Unsupported; 8] = [
    ("background", is_false),
    ("truncation", |value| value == "disabled"),
    ("conversation", is_empty),
    ("prompt", is_empty),
    ("context_management", is_empty),
    ("max_tool_calls", |_| true),
    ("verbosity", |value| value == "medium"),
    ("moderation", is_empty),
];

/// Fields without an effect here that an answer has again.
const ECHOED: [&str; 5] = ["metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier"];

/// Most items of one page of a list, and their number where a request does not say.
const MOST_LISTED: usize = 100;
const LISTED: usize = 20;

/// `POST /v1/responses`
pub async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    check_model(&mut fields, &shared)?;
    refuse(&mut fields, &UNSUPPORTED)?;
    let mut response = Map::new();
    let grammar = text(&mut fields, &mut response)?;
    let tools = tools::take(&mut fields, &shared, &mut response)?;
    for name in ECHOED {
        response.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    let instructions = fields.text("instructions")?;
    let previous = fields.text("previous_response_id")?;
    let new = input::items(&mut fields)?;
    let before = previous.as_ref().map(|id| shared.responses.conversation(id)).transpose()?.unwrap_or_default();
    let messages = input::messages(instructions.as_deref(), before.iter().map(|item| &**item).chain(&new))?;
    let (thought, reasoning) = thought(&mut fields, &shared)?;
    let chat = Chat::new(messages, thought.think, &shared)?.with_tools(tools.as_ref(), &shared);
    let included = fields.array("include")?.unwrap_or_default();
    let includes = |name: &str| included.iter().any(|value| value == name);
    let top = logprobs::top(&mut fields)?;
    let asked = Asked::take(&mut fields, &shared)?;
    let limit = fields.whole("max_output_tokens")?;
    let limit = limit.map(|n| from_one("max_output_tokens", n)).transpose()?;
    let ask = Ask {
        max_tokens: limit.or(shared.defaults.max_tokens),
        max_think: thought.most,
        grammar,
        logprobs: includes("message.output_text.logprobs").then_some(top),
        ..asked.ask
    };
    for (name, value) in [
        ("instructions", json!(instructions)),
        ("previous_response_id", json!(previous)),
        ("reasoning", reasoning),
        ("max_output_tokens", json!(limit)),
        ("top_logprobs", json!(top)),
        ("temperature", json!(ask.sampling.temperature)),
        ("top_p", json!(ask.sampling.top_p)),
        ("presence_penalty", json!(ask.sampling.presence_penalty)),
        ("frequency_penalty", json!(ask.sampling.frequency_penalty)),
        ("model", json!(shared.info.identity.name)),
    ] {
        response.insert(name.to_owned(), value);
    }
    let store = fields.bool("store")?.unwrap_or(true);
    let kept = store.then(|| Kept { shared: Arc::clone(&shared), before, new });
    let form = Reply::new(response, kept, includes("reasoning.encrypted_content"), ask.logprobs);
    let asked = Asked { ask, ..asked }.with_tools(tools)?;
    answer(&shared, form, asked, move |shared| chat.render(shared)).await
}

/// Takes `text`, returns the grammar of its format, and copies it to the response.
fn text(fields: &mut Fields, response: &mut Map<String, Value>) -> Result<Option<Grammar>, Refusal> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    if text.take("verbosity").is_some_and(|verbosity| verbosity != "medium") {
        return Err(Refusal::unsupported("text.verbosity", "text.verbosity is not supported by this server"));
    }
    let format = text.iter().find(|(name, _)| *name == "format").map(|(_, format)| format.clone());
    let grammar = structured::take("text.format", &mut text)?;
    if let Some(format) = format {
        response.insert("text".to_owned(), json!({ "format": format, "verbosity": "medium" }));
    }
    Ok(grammar)
}

/// Whether and how long the model thinks, and the member `reasoning` of the answer.
fn thought(fields: &mut Fields, shared: &Shared) -> Result<(Thought, Value), Refusal> {
    let mut thought = Thought::default_of(shared);
    let Some(mut asked) = fields.object("reasoning")? else {
        return Ok((thought, json!({ "effort": null, "summary": null })));
    };
    let effort = asked.text("effort").map_err(|refusal| refusal.within("reasoning"))?;
    match effort.as_deref() {
        None => {}
        Some("none") => thought.switch("reasoning.effort", false, shared)?,
        Some(effort) => thought.set_effort("reasoning.effort", effort)?,
    }
    // Thoughts are sent as they are.
    Ok((thought, json!({ "effort": effort, "summary": asked.take("summary") })))
}

/// `GET /v1/responses/ID`
pub async fn retrieve(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, Refusal> {
    if query.get("stream").is_some_and(|stream| stream == "true") {
        return Err(Refusal::unsupported("stream", "stream is not supported by this server for a stored response"));
    }
    shared.responses.get(&id).map(Json)
}

/// `DELETE /v1/responses/ID`
pub async fn delete(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    shared.responses.delete(&id)?;
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// `GET /v1/responses/ID/input_items`
pub async fn input_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Value>, Refusal> {
    let limit = match query.get("limit").map(|limit| limit.parse::<usize>()) {
        None => LISTED,
        Some(Ok(n)) if (1..=MOST_LISTED).contains(&n) => n,
        Some(_) => return Err(Refusal::field("limit", format!("limit is not a number from 1 to {MOST_LISTED}"))),
    };
    let mut items = shared.responses.input(&id)?;
    match query.get("order").map(String::as_str) {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(other) => return Err(Refusal::field("order", format!("order is {other:?}, expected asc or desc"))),
    }
    if let Some(after) = query.get("after") {
        let at = items.iter().position(|item| item["id"] == **after);
        let at = at.ok_or_else(|| Refusal::field("after", format!("after: {id} has no item {after:?}")))?;
        drop(items.drain(..=at));
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Arc<Value>>| item.map(|item| item["id"].clone());
    let (first, last) = (id_of(items.first()), id_of(items.last()));
    let data: Vec<&Value> = items.iter().map(|item| &**item).collect();
    Ok(Json(json!({ "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more })))
}
