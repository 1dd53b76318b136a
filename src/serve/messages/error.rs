//! Refusals in Anthropic's form.

use crate::serve::refusal::Refusal;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

/// The status of a server that is busy.
const OVERLOADED: u16 = 529;

/// The body of a refusal; also an event of a stream that has begun.
pub fn json(refusal: &Refusal) -> Value {
    let kind = match refusal.status {
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => refusal.kind(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message(refusal) }, "request_id": null })
}

/// Clients know a prompt that is too long by the first words of Anthropic's message.
fn message(refusal: &Refusal) -> String {
    let number = |name| refusal.more.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    match (refusal.code, number("n_prompt_tokens"), number("n_ctx")) {
        (Some("context_length_exceeded"), Some(tokens), Some(context)) => {
            format!("prompt is too long: {tokens} tokens > {context} maximum ({})", refusal.message)
        }
        _ => refusal.message.clone(),
    }
}

pub fn refused(refusal: Refusal) -> Response {
    let busy = StatusCode::from_u16(OVERLOADED).ok();
    let status = busy.filter(|_| refusal.status == StatusCode::SERVICE_UNAVAILABLE).unwrap_or(refusal.status);
    let body = json(&refusal);
    refusal.response(status, body)
}
