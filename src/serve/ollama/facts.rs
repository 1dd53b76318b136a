//! Facts about the server and its one model.

use super::form::check_model;
use crate::protocol::{ModelInfo, Thinking};
use crate::serve::fields;
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::serve::tools::format_of;
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// The version of ollama's API that this is like. Some clients refuse a lower one than they know.
const VERSION: &str = "0.12.11";
/// Until when the model is loaded: it stays.
const FOREVER: &str = "9999-12-31T23:59:59Z";

/// A number of parameters, as `8.2B`.
fn size(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n => format!("{:.1}K", n / 1e3),
    }
}

fn details(info: &ModelInfo) -> Value {
    json!({
        "parent_model": "",
        "format": "",
        "family": info.family,
        "families": [info.family],
        "parameter_size": size(info.n_params),
        "quantization_level": info.weights.format,
    })
}

/// The model as an entry of a list.
fn entry(info: &ModelInfo) -> Value {
    json!({
        "name": info.identity.name,
        "model": info.identity.name,
        "size": info.weights.bytes,
        "digest": info.identity.model_fingerprint,
        "details": details(info),
    })
}

/// `GET /api/version`
pub async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

/// `GET /api/tags`
pub async fn tags(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let mut model = entry(&shared.info);
    model["modified_at"] = json!(jiff::Timestamp::now().to_string());
    Json(json!({ "models": [model] }))
}

/// `GET /api/ps`
pub async fn ps(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let info = &shared.info;
    let mut model = entry(info);
    let on_gpu = !info.identity.device.starts_with("cpu");
    model["size_vram"] = json!(if on_gpu { info.weights.bytes } else { 0 });
    model["context_length"] = json!(info.context);
    model["expires_at"] = json!(FOREVER);
    Json(json!({ "models": [model] }))
}

/// `POST /api/show`
pub async fn show(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, Refusal> {
    check_model(&mut fields::read(request).await?, &shared)?;
    let info = &shared.info;
    let parameters: Vec<String> =
        shared.defaults.sampling.values().map(|(name, value)| format!("{name} {value}")).collect();
    let thinks = (info.thinking() != Thinking::None).then_some("thinking");
    let tools = format_of(&info.template).map(|_| "tools");
    let capabilities: Vec<&str> = std::iter::once("completion").chain(thinks).chain(tools).collect();
    let mut facts = json!({
        "general.architecture": info.family,
        "general.parameter_count": info.n_params,
    });
    for (name, value) in [
        ("context_length", info.context),
        ("block_count", info.n_layers + info.state_layers),
        ("attention.head_count", info.n_q_heads),
        ("attention.head_count_kv", info.n_kv_heads),
        ("attention.key_length", info.head_dim),
        ("vocab_size", info.vocab),
    ] {
        facts[format!("{}.{name}", info.family)] = json!(value);
    }
    Ok(Json(json!({
        "modelfile": "",
        "parameters": parameters.join("\n"),
        "template": info.template.source,
        "details": details(info),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": jiff::Timestamp::now().to_string(),
    })))
}
