//! `POST /tokenize`: the tokens of a text (`content`, `prompt`) or of a chat (`messages`).

use super::fields;
use super::openai::{chat, read_messages};
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
    let pieces = match (text, fields.array("messages")?) {
        (Some(text), None) if controls => with_controls(&text, &shared.info.template),
        (Some(text), None) => vec![Piece::Text(text)],
        (None, Some(given)) => {
            let (messages, renderer) = (read_messages(given)?, Arc::clone(&shared));
            shared.check_length("messages", messages.iter().map(|message| message.text.len()).sum())?;
            let think = shared.defaults.think;
            let rendered = tokio::task::spawn_blocking(move || chat::render(&messages, think, &renderer)).await;
            let rendered = rendered.map_err(|_| Refusal::failed("the prompt could not be rendered"))?;
            rendered.map_err(|error| Refusal::wrong(format!("{error:#}")))?
        }
        (Some(_), Some(_)) => return Err(Refusal::wrong("give either content or messages")),
        (None, None) => return Err(Refusal::field("content", "content is missing")),
    };
    let tokens = shared.encode(pieces).await.map_err(Refusal::failed)?;
    Ok(Json(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": shared.info.context })))
}
