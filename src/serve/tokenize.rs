//! `POST /tokenize`: the tokens of a text (`content`, `prompt`) or of a chat (`messages`).

use super::fields;
use super::openai::read_messages;
use super::prompt::Chat;
use super::refusal::Refusal;
use super::shared::Shared;
use crate::chat::template::with_controls;
use crate::protocol::Piece;
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, Refusal> {
    let mut fields = fields::read(request).await?;
    if fields.bool("with_pieces")? == Some(true) {
        return Err(Refusal::unsupported("with_pieces", "with_pieces is not supported by this server"));
    }
    let controls = fields.bool("parse_special")?.unwrap_or(true);
    let text = match fields.text("content")? {
        Some(text) => Some(text),
        None => fields.text("prompt")?,
    };
    shared.check_length("content", text.as_ref().map_or(0, String::len))?;
    let tokens = match (text, fields.array("messages")?) {
        (Some(text), None) if controls => {
            shared.encode(with_controls(&text, &shared.info.template)).await.map_err(Refusal::failed)?
        }
        (Some(text), None) => shared.encode(vec![Piece::Text(text)]).await.map_err(Refusal::failed)?,
        (None, Some(given)) => {
            Chat::new(read_messages(given)?, shared.defaults.think, &shared)?.tokens(&shared).await?
        }
        (Some(_), Some(_)) => return Err(Refusal::wrong("give either content or messages")),
        (None, None) => return Err(Refusal::field("content", "content is missing")),
    };
    Ok(Json(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": shared.info.context })))
}
