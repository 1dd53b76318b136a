//! `POST /v1/completions`: continues a text. The client is its own template, so that the literals
//! of control tokens in the text are these tokens.

use super::reply::{Kind, Reply};
use super::request::Common;
use crate::protocol::Ask;
use crate::serve::answering::answer;
use crate::serve::fields;
use crate::serve::prompt::Prompt;
use crate::serve::refusal::Refusal;
use crate::serve::request::{Asked, is_empty, refuse};
use crate::serve::shared::Shared;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use std::sync::Arc;

pub async fn complete(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let mut fields = fields::read(request).await?;
    let prompt = prompt(fields.take("prompt"))?;
    refuse(&mut fields, &[("tools", is_empty)])?;
    let common = Common::take(&mut fields, &shared, true)?;
    shared.check_length("prompt", prompt.len())?;
    let form = Reply::new(Kind::Text, &shared, &common);
    let Common { asked, .. } = common;
    let asked = Asked { ask: Ask { raw: true, ..asked.ask }, ..asked };
    answer(&shared, form, asked, move |shared| Ok(Prompt::raw(&prompt, shared))).await
}

/// The text of a prompt: a string, or an array of one string.
fn prompt(value: Option<Value>) -> Result<String, Refusal> {
    match value {
        None => Err(Refusal::field("prompt", "prompt is missing")),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(mut all)) if all.len() == 1 && all[0].is_string() => prompt(all.pop()),
        Some(Value::Array(all)) if all.iter().all(Value::is_string) => {
            let message = format!("prompt has {} texts, and this server continues one a request", all.len());
            Err(Refusal::unsupported("prompt", message))
        }
        Some(_) => Err(Refusal::unsupported("prompt", "prompt is not a string; token ids are not supported")),
    }
}
