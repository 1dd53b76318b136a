//! What a GPU does as the CPU does: grammars, with drafts and without, and beginnings that prompts
//! share.

use super::tools::{TEMPLATE, check, schema};
use super::{Server, with};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

/// A random model with a template that has tools.
fn model() -> Tiny {
    let model = Tiny::new(Spec { context: 2048, ..Spec::new(true, Form::Plain) }, 7);
    model.folder.json("tokenizer_config.json", &json!({ "chat_template": TEMPLATE }));
    model
}

/// A server of this model on the CPU and, where there is one, on the software GPU.
fn servers(model: &Tiny, flags: &[&str]) -> Vec<Server> {
    let flags = [&["-m", model.folder.path().to_str().unwrap(), "--kv", "bf16"], flags].concat();
    let cpu = Server::start(&flags);
    #[cfg(feature = "gpu-emulator")]
    let gpu = Server::on_gpu(&flags);
    #[cfg(not(feature = "gpu-emulator"))]
    let gpu = None;
    [cpu].into_iter().chain(gpu).collect()
}

fn said(server: &Server, body: &Value) -> (Value, u64) {
    let (status, whole) = server.post(CHAT, body);
    assert_eq!(status, 200, "{whole}");
    let cached = whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (whole["choices"][0]["message"]["content"].clone(), cached)
}

#[test]
fn a_schema_holds_on_every_device_with_drafts_and_without() {
    let model = model();
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema() } });
    let body = |seed| {
        let question = json!([{ "role": "user", "content": "hi, hi, hi" }]);
        json!({
            "model": "default", "messages": question, "seed": seed, "temperature": 1, "max_tokens": 900,
            "response_format": format,
        })
    };
    let plain = servers(&model, &["--slots", "1", "--draft", "off"]);
    let drafting = servers(&model, &["--slots", "1", "--draft", "lookup"]);
    for seed in 1..5 {
        let answers = |servers: &[Server]| -> Vec<Value> {
            let answers = servers.iter().map(|server| said(server, &body(seed)).0);
            answers.inspect(|answer| check(&serde_json::from_str(answer.as_str().unwrap()).unwrap())).collect()
        };
        let (plain, drafted) = (answers(&plain), answers(&drafting));
        // On a GPU, drafts may decide a near tie.
        assert!(plain.iter().chain(&drafted[..1]).all(|answer| *answer == plain[0]), "{plain:?} {drafted:?}");
    }
    // Rows without a mask are as they were, beside one that has one.
    let free = |seed| with(body(seed), json!({ "response_format": null, "max_tokens": 40 }));
    for server in &plain {
        assert_eq!(said(server, &free(1)), said(server, &free(1)));
    }
}

#[test]
fn a_system_prompt_is_read_once_for_all_clients_and_the_answers_are_the_same() {
    let model = model();
    let system = "Be helpful, and be brief. ".repeat(20);
    let body = |question: &str| {
        json!({
            "model": "default", "seed": 3, "temperature": 1, "max_tokens": 30,
            "messages": [{ "role": "system", "content": system }, { "role": "user", "content": question }],
        })
    };
    let alone = servers(&model, &["--slots", "3", "--draft", "off"]);
    for (server, alone) in servers(&model, &["--slots", "3", "--draft", "off"]).iter().zip(&alone) {
        let (wanted, cached) = said(alone, &body("What is this?"));
        assert_eq!(cached, 0);
        let (first, cached) = said(server, &body("Who are you?"));
        assert_eq!(cached, 0);
        let (second, cached) = said(server, &body("What is this?"));
        assert_eq!(second, wanted);
        // On a GPU, whole chunks of 128 tokens.
        assert!(cached as usize > system.len() - 128, "{cached}");
        // The first client's cache is still there.
        let (again, cached) = said(server, &body("Who are you?"));
        assert_eq!(again, first, "{cached}");
        assert!(cached as usize > system.len(), "{cached}");
    }
}
