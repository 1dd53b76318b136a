//! Facts about the server: its model, its properties, its health and its counters.

use super::refusal::Refusal;
use super::request::not_served;
use super::shared::Shared;
use super::stamp::now;
use super::tools::format_of;
use crate::protocol::ModelInfo;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// The model as an entry of a list, with the names that other servers have for its context.
fn model(info: &ModelInfo) -> Value {
    let differ = info.lanes.iter().any(|layer| layer.heads != info.lanes[0].heads);
    let heads = info.lanes.iter().filter(|_| differ).map(|layer| [layer.heads.count, layer.heads.dim]);
    let mut model = json!({
        "id": info.identity.name,
        "object": "model",
        "created": now(),
        "owned_by": "dmschat",
        "context_length": info.context,
        "max_model_len": info.context,
        "meta": {
            "n_ctx": info.context,
            "n_vocab": info.vocab,
            "n_params": info.n_params,
            "size": info.weights.bytes,
        },
        "cache": {
            "windows": info.lanes.iter().map(|layer| layer.window).collect::<Vec<_>>(),
            "kv_heads": info.n_kv_heads,
            "slot_bytes": info.slot_bytes,
            "page_slots": info.page_slots,
            "memory": "/v1/dmschat/memory",
        },
        "family": info.family,
        "weights": info.weights.format,
        "eviction": {
            "on": info.eviction,
            "policy": info.policy.name(),
            "decisions": info.dms,
            "by": info.evicts_by,
            "window": info.window,
            "kv": info.codec.name(),
        },
    });
    if differ {
        model["cache"]["heads"] = heads.collect::<Vec<_>>().into();
    }
    model
}

/// `GET /v1/models`
pub async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model(&shared.info)] }))
}

/// `GET /v1/models/ID`
pub async fn model_of(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    match id == shared.info.identity.name {
        true => Ok(Json(model(&shared.info))),
        false => Err(not_served(&id, &shared)),
    }
}

/// `GET /props`: fields of llama.cpp's server.
pub async fn props(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let (info, template) = (&shared.info, &shared.info.template);
    let params: serde_json::Map<String, Value> =
        shared.defaults.sampling.values().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let tools = format_of(template).is_some();
    Json(json!({
        "default_generation_settings": { "n_ctx": info.context, "params": params },
        "total_slots": shared.admission.n_slots(),
        "model_alias": info.identity.name,
        "model_path": info.identity.reference.as_ref().map(|reference| reference.model.as_str()),
        "chat_template": template.source,
        "bos_token": template.bos_token,
        "eos_token": template.eos_token,
        "modalities": { "vision": false, "audio": false },
        "chat_template_caps": { "supports_tools": tools, "supports_tool_calls": tools, "supports_parallel_tool_calls": tools },
        "build_info": concat!("dmschat ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /health`
pub async fn health(State(shared): State<Arc<Shared>>) -> Response {
    match shared.is_closed() {
        true => Refusal::busy("the server is ending").into_response(),
        false => Json(json!({ "status": "ok" })).into_response(),
    }
}

/// `GET /metrics`
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics.text(shared.admission.load(), shared.admission.n_slots());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// `GET /v1/dmschat/memory/ID`: which tokens of its conversation the slot held at the end of an
/// answer. Not a part of any other API: the chat on a server shows it.
pub async fn memory(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let Some(presence) = shared.memories.find(&id) else {
        let message = format!("what the cache held after {id:?} is not kept (any more); ask with return_cache: true");
        return Err(Refusal::new(StatusCode::NOT_FOUND, message).code("memory_not_found"));
    };
    let pins: Vec<[usize; 2]> = presence.pins.iter().map(|pin| [pin.start, pin.end]).collect();
    Ok(Json(json!({
        "id": id,
        "object": "dmschat.memory",
        "text": presence.text,
        "ends": presence.ends,
        "lanes": presence.lanes,
        "kept": presence.kept,
        "marked": presence.marked,
        "far": presence.far,
        "near": presence.near,
        "pins": pins,
        "decided_after": presence.decided_after,
        "forgot": presence.forgot,
    })))
}
