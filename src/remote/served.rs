//! What a server says about its models.

use super::chat;
use crate::policy::{KvHeads, LayerLanes, PolicyKind};
use crate::protocol::{MAX_CONTEXT, ModelIdentity, ModelInfo};
use serde_json::Value;

/// Most bytes of a model's name.
const MAX_NAME: usize = 1024;
/// Most layers, KV heads, and bytes of a slot that are believed.
const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;
const MAX_SLOT_BYTES: usize = 1 << 20;

/// The entry of the list of models that is meant: of that id, or whose last part it is; the first
/// one if none is named.
pub fn chosen(list: &Value, name: Option<&str>) -> Result<Value, String> {
    let entries = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |entry: &Value| entry["id"].as_str().filter(|id| id.len() <= MAX_NAME).map(str::to_owned);
    let named: Vec<(String, &Value)> = entries.iter().filter_map(|entry| Some((id(entry)?, entry))).collect();
    let found = match name {
        None => named.first(),
        Some(name) => {
            let is = |id: &str| id == name || id.rsplit('/').next() == Some(name);
            named.iter().find(|(id, _)| is(id))
        }
    };
    found.map(|(_, entry)| (*entry).clone()).ok_or_else(|| match (name, &named[..]) {
        (_, []) => "the server lists no model".to_owned(),
        (name, named) => {
            let ids: Vec<&str> = named.iter().take(5).map(|(id, _)| id.as_str()).collect();
            format!("the server has no model {}; it has {}", name.unwrap_or_default(), ids.join(", "))
        }
    })
}

/// The model of an entry, as far as the server says. `props`: of llama.cpp's server and of
/// dmschat.
pub fn info(entry: &Value, props: &Value, server: &str) -> ModelInfo {
    let name = entry["id"].as_str().unwrap_or_default().to_owned();
    let sizes = [
        &entry["context_length"],
        &entry["max_model_len"],
        &entry["meta"]["n_ctx"],
        &props["default_generation_settings"]["n_ctx"],
        &entry["meta"]["n_ctx_train"],
    ];
    let context = sizes.into_iter().filter_map(Value::as_u64).find(|n| *n > 0).unwrap_or(MAX_CONTEXT as u64);
    let (cache, rule) = (&entry["cache"], &entry["eviction"]);
    let size = |value: &Value, most: usize| value.as_u64().map_or(0, |n| usize::try_from(n).unwrap_or(0).min(most));
    let windows = cache["windows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tokens = |n: &Value| n.as_u64().map(|n| n.min(MAX_CONTEXT as u64) as usize);
    let n_kv_heads = size(&cache["kv_heads"], MAX_HEADS);
    // Where layers differ, a server lists their heads and channels.
    let lane = |at: usize, window| {
        let own = &cache["heads"][at];
        let count = if own.is_null() { n_kv_heads } else { size(&own[0], n_kv_heads) };
        LayerLanes { window, heads: KvHeads { count, dim: size(&own[1], MAX_SLOT_BYTES) } }
    };
    let head_dim = (0..windows.len().min(MAX_LAYERS)).map(|at| lane(at, None).heads.dim).max().unwrap_or(0);
    let lanes: Vec<LayerLanes> =
        windows.iter().take(MAX_LAYERS).enumerate().map(|(at, window)| lane(at, tokens(window))).collect();
    ModelInfo {
        is_remote: true,
        eviction: rule["on"].as_bool(),
        has_memory: cache["memory"].is_string(),
        n_layers: lanes.len(),
        n_kv_heads,
        head_dim,
        slot_bytes: size(&cache["slot_bytes"], MAX_SLOT_BYTES),
        page_slots: size(&cache["page_slots"], MAX_HEADS),
        lanes,
        codec: rule["kv"].as_str().and_then(|name| name.parse().ok()).unwrap_or_default(),
        window: tokens(&rule["window"]),
        identity: ModelIdentity {
            model_fingerprint: format!("{server} {name}"),
            name,
            device: server.to_owned(),
            ..ModelIdentity::default()
        },
        family: entry["family"].as_str().unwrap_or("a server's model").to_owned(),
        n_params: entry["meta"]["n_params"].as_u64().unwrap_or(0),
        context: context.min(MAX_CONTEXT as u64) as usize,
        policy: rule["policy"].as_str().and_then(|name| name.parse().ok()).unwrap_or(PolicyKind::Dense),
        dms: "none".to_owned(),
        template: chat::template(),
        ..ModelInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_model_is_found_by_its_name_or_the_server_says_what_it_has() {
        let list =
            json!({ "data": [{ "id": "ORG/a", "max_model_len": 4096 }, { "id": "b", "meta": { "n_ctx": 512 } }] });
        assert_eq!(chosen(&list, None).unwrap()["id"], "ORG/a");
        assert_eq!(chosen(&list, Some("a")).unwrap()["id"], "ORG/a");
        let b = chosen(&list, Some("b")).unwrap();
        assert_eq!(
            (info(&b, &Value::Null, "s").context, info(&json!({ "id": "c" }), &Value::Null, "s").context),
            (512, MAX_CONTEXT)
        );
        assert_eq!(chosen(&list, Some("c")).unwrap_err(), "the server has no model c; it has ORG/a, b");
        assert_eq!(chosen(&json!({}), None).unwrap_err(), "the server lists no model");
    }
}
