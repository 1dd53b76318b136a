//! Models, errors and streams as ollama has them.

use crate::serve::fields::Fields;
use crate::serve::refusal::Refusal;
use crate::serve::request::check_name;
use crate::serve::shared::Shared;
use axum::response::Response;
use serde_json::{Value, json};

/// The type of a stream: one JSON object a line.
pub const LINES: &str = "application/x-ndjson";

/// A refusal in this form; also a line of a stream that has begun.
pub fn error(refusal: &Refusal) -> Value {
    json!({ "error": refusal.message })
}

pub fn refused(refusal: Refusal) -> Response {
    let (status, body) = (refusal.status, error(&refusal));
    refusal.response(status, body)
}

/// Checks the field `model` (or `name`), which may have ollama's usual tag.
pub fn check_model(fields: &mut Fields, shared: &Shared) -> Result<(), Refusal> {
    let name = fields.text("model")?.or(fields.text("name")?);
    let name = name.ok_or_else(|| Refusal::field("model", "model is missing"))?;
    check_name(name.strip_suffix(":latest").unwrap_or(&name), shared)
}
