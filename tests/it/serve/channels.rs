//! Demanded calls and answers by a schema of a model that replies in channels: the tiny gpt-oss of
//! the goldens, under its published template, with a vocabulary of letters.

use super::{Server, with};
use crate::folder::{Folder, merged};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const PATH: &str = "/v1/chat/completions";
/// The control tokens of Harmony, behind the letters.
const CONTROL: [&str; 8] = [
    "<|startoftext|>",
    "<|return|>",
    "<|call|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|constrain|>",
];

const LETTERS: usize = 96;

fn golden(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

/// Printable ASCII and the end of a line.
fn tokenizer() -> Value {
    let letters = ('!'..='~').chain(['\u{120}', '\u{10a}']).enumerate();
    let vocab = letters.map(|(i, c)| (c.to_string(), json!(i))).collect::<serde_json::Map<_, _>>();
    let added = |(i, content): (usize, &&str)| {
        json!({ "id": LETTERS + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    };
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": CONTROL.iter().enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [] }
    })
}

fn server() -> (Folder, Server) {
    let folder = Folder::healthy();
    folder.write("model.safetensors", &golden("gpt_oss/model.safetensors"));
    let config = serde_json::from_slice(&golden("gpt_oss/config.json")).unwrap();
    let ends = [LETTERS + 1, LETTERS + 2];
    folder.json("config.json", &merged(config, json!({ "max_position_embeddings": 8192, "eos_token_id": ends })));
    folder.json("tokenizer.json", &tokenizer());
    folder.write("chat_template.jinja", &golden("templates/openai-gpt-oss-120b.jinja"));
    let server = Server::start(&["-m", folder.path().to_str().unwrap(), "--slots", "1"]);
    (folder, server)
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Bern", "<|call|>"] }, "n": { "type": "integer", "minimum": 3, "maximum": 42 } },
        "required": ["city", "n"],
        "additionalProperties": false,
    })
}

fn check(text: &Value) {
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap_or_else(|why| panic!("{text}: {why}"));
    assert!(["Bern", "<|call|>"].contains(&value["city"].as_str().unwrap()), "{value}");
    assert!((3..=42).contains(&value["n"].as_i64().unwrap()) && value.as_object().unwrap().len() == 2, "{value}");
}

fn body(seed: u64, more: Value) -> Value {
    let question = json!([{ "role": "user", "content": "hi" }]);
    with(json!({ "model": "default", "messages": question, "temperature": 5, "seed": seed, "max_tokens": 1500 }), more)
}

#[test]
fn calls_and_schemas_hold_in_channels_with_and_without_a_thought() {
    let (folder, server) = server();
    let without = Server::start(&["-m", folder.path().to_str().unwrap(), "--slots", "1", "--draft", "off"]);
    let function = |name: &str| json!({ "name": name, "description": "x", "parameters": schema() });
    let tools = json!(["f", "g"].map(|name| json!({ "type": "function", "function": function(name) })));
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema() } });
    let (mut thoughts, mut names) = ([0; 2], Vec::new());
    for seed in 0..12 {
        let (status, whole) = server.post(PATH, &body(seed, json!({ "tools": tools, "tool_choice": "required" })));
        assert_eq!(status, 200, "{whole}");
        let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
        assert_eq!((&choice["finish_reason"], &message["content"]), (&json!("tool_calls"), &Value::Null), "{whole}");
        check(&message["tool_calls"][0]["function"]["arguments"]);
        names.push(message["tool_calls"][0]["function"]["name"].as_str().unwrap().to_owned());
        thoughts[0] += usize::from(message["reasoning_content"].is_string());

        let asked = body(seed, json!({ "response_format": format }));
        let (_, whole) = server.post(PATH, &asked);
        // Drafts change nothing.
        assert_eq!(without.post(PATH, &asked).1["choices"], whole["choices"]);
        let (choice, message) = (&whole["choices"][0], &whole["choices"][0]["message"]);
        assert_eq!(choice["finish_reason"], "stop", "{whole}");
        check(&message["content"]);
        thoughts[1] += usize::from(message["reasoning_content"].is_string());
    }
    assert!(thoughts.iter().all(|&n| n > 0 && n < 12), "{thoughts:?}");
    assert!(names.contains(&"f".to_owned()) && names.contains(&"g".to_owned()), "{names:?}");
    // One function of two, and the same in a stream.
    let named = json!({ "type": "function", "function": { "name": "g" } });
    let asked = body(1, json!({ "tools": tools, "tool_choice": named, "stream": true }));
    let chunks = server.chunks(PATH, &asked);
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"].get("tool_calls"));
    let functions: Vec<&Value> = deltas.map(|delta| &delta[0]["function"]).collect();
    assert_eq!(functions[0]["name"], "g");
    check(&json!(functions.iter().map(|of| of["arguments"].as_str().unwrap()).collect::<String>()));
    // A call and its result are in the next prompt.
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "g", "arguments": "{}" } });
    let messages = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "20 degrees" },
    ]);
    let (status, whole) =
        server.post(PATH, &body(2, json!({ "messages": messages, "tools": tools, "tool_choice": "required" })));
    assert_eq!(status, 200, "{whole}");
    check(&whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]);
    // A schema that cannot be followed is refused by its field.
    let bad = json!({ "type": "json_schema", "json_schema": { "schema": { "type": 7 } } });
    let (status, refused) = server.post(PATH, &body(1, json!({ "response_format": bad })));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("response_format")), "{refused}");
}

/// A thought that is closed at its limit.
#[test]
fn a_thought_that_is_cut_goes_on_with_the_answer() {
    let (folder, _server) = server();
    let server = Server::start(&["-m", folder.path().to_str().unwrap(), "--slots", "1", "--max-think", "20"]);
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema() } });
    let tools =
        json!([{ "type": "function", "function": { "name": "f", "description": "x", "parameters": schema() } }]);
    for seed in 0..4 {
        let (_, whole) = server.post(PATH, &body(seed, json!({ "response_format": format })));
        check(&whole["choices"][0]["message"]["content"]);
        let (_, whole) = server.post(PATH, &body(seed, json!({ "tools": tools, "tool_choice": "required" })));
        check(&whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]);
    }
}
