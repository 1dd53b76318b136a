//! What clients of Anthropic's API rely on.

use super::{QUESTION, Server, asked, long_answer, with};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn question(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    with(json!({ "model": "demo", "max_tokens": 3000, "messages": messages, "temperature": 0, "seed": 1 }), more)
}

/// The events of a stream. Each has its name in its data, too.
fn events(server: &Server, body: &Value) -> Vec<Value> {
    let (status, head, text) =
        server.call("POST", PATH, &[], &with(body.clone(), json!({ "stream": true })).to_string());
    assert!(status == 200 && head.contains("text/event-stream"), "{head}{text}");
    let events = text.trim_end().split("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

/// Follows a stream as a client does: the message it makes, and the names of its events in order,
/// each once for as long as it repeats.
fn assembled(events: &[Value]) -> (Value, Vec<&str>) {
    let (mut message, mut names) = (Value::Null, Vec::new());
    for event in events {
        let name = event["type"].as_str().unwrap();
        if names.last() != Some(&name) {
            names.push(name);
        }
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match name {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let block = &mut message["content"][index];
                let field = match event["delta"]["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    other => panic!("{other}"),
                };
                let text = block[field].as_str().unwrap().to_owned() + event["delta"][field].as_str().unwrap();
                block[field] = json!(text);
            }
            "message_delta" => {
                message = with(message, event["delta"].clone());
                message["usage"] = event["usage"].clone();
            }
            "content_block_stop" | "message_stop" | "ping" => {}
            other => panic!("{other}: {event}"),
        }
    }
    (message, names)
}

#[test]
fn a_message_is_the_answer_of_chat_completions_whole_and_in_a_stream_and_turn_two_reads_what_is_new() {
    let server = Server::start(&[]);
    let (_, chat) = server.post("/v1/chat/completions", &asked(QUESTION));
    let said = &chat["choices"][0]["message"];
    let wanted = json!([
        { "type": "thinking", "thinking": said["reasoning_content"], "signature": "" },
        { "type": "text", "text": said["content"], "citations": null },
    ]);

    let (status, whole) = server.post(PATH, &question(json!({})));
    assert_eq!((status, &whole["content"]), (200, &wanted), "{whole}");
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!("demo"))
    );
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap();
    let usage = |name: &str| whole["usage"][name].clone();
    assert_eq!((usage("input_tokens"), usage("cache_read_input_tokens")), (json!(1), json!(prompt - 1)));
    assert_eq!(usage("output_tokens"), chat["usage"]["completion_tokens"]);
    let thinking = &chat["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert_eq!(&usage("output_tokens_details")["thinking_tokens"], thinking);
    let (_, counted) = server.post("/v1/messages/count_tokens", &question(json!({ "max_tokens": null })));
    assert_eq!(counted, json!({ "input_tokens": prompt }));

    let events = events(&server, &question(json!({})));
    let (streamed, names) = assembled(&events);
    assert_eq!(with(streamed, json!({ "id": whole["id"] })), whole);
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let order = [&["message_start", "ping"], &block[..], &block, &["message_delta", "message_stop"]].concat();
    assert_eq!(names, order);

    let turn = json!([
        { "role": "user", "content": [{ "type": "text", "text": QUESTION, "cache_control": { "type": "ephemeral" } }] },
        { "role": "assistant", "content": whole["content"] },
        { "role": "user", "content": "Solve 3*y - 6 = 9 for y." },
    ]);
    let (_, second) = server.post(PATH, &question(json!({ "messages": turn })));
    assert!(second["usage"]["cache_read_input_tokens"].as_u64().unwrap() + 1 >= prompt, "{second}");
    // A thought reaches the template as that of a chat does.
    let chat = json!([
        { "role": "user", "content": QUESTION },
        said,
        { "role": "user", "content": "Solve 3*y - 6 = 9 for y." },
    ]);
    let (_, same) = server.post("/tokenize", &json!({ "messages": chat }));
    let (_, counted) = server.post("/v1/messages/count_tokens", &question(json!({ "messages": turn })));
    assert_eq!(counted["input_tokens"], same["count"]);
}

#[test]
fn the_billing_line_does_not_part_two_prompts() {
    let server = Server::start(&[]);
    let read = |line: &str| {
        let system = json!([{ "type": "text", "text": line }, { "type": "text", "text": "Answer in short words." }]);
        let (_, message) = server.post("/messages", &question(json!({ "system": system, "max_tokens": 1 })));
        let usage = &message["usage"];
        (usage["input_tokens"].as_u64().unwrap(), usage["cache_read_input_tokens"].as_u64().unwrap())
    };
    let (all, _) = read("x-anthropic-billing-header: cc_version=2.1; cch=00001;");
    assert_eq!(read("x-anthropic-billing-header: cc_version=2.1; cch=fffff;"), (1, all - 1));
}

#[test]
fn an_answer_says_why_it_ended_and_thinks_as_it_is_told() {
    let server = Server::start(&[]);
    let answer = |more: Value| {
        let (status, whole) = server.post(PATH, &question(more));
        assert_eq!(status, 200, "{whole}");
        whole
    };
    let streamed = |more: Value| assembled(&events(&server, &question(more))).0;
    let kinds = |message: &Value| -> Vec<String> {
        let blocks = message["content"].as_array().unwrap();
        blocks.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    let plain = answer(json!({ "thinking": { "type": "disabled" } }));
    assert_eq!(kinds(&plain), ["text"]);
    let text = plain["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(2).take(2).collect();
    let stops = json!({ "thinking": { "type": "disabled" }, "stop_sequences": ["never said", stop] });
    let stopped = answer(stops.clone());
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let before = text.split(&stop).next().unwrap();
    assert_eq!(stopped["content"], json!([{ "type": "text", "text": before, "citations": null }]));
    assert_eq!(with(streamed(stops), json!({ "id": stopped["id"], "usage": stopped["usage"] })), stopped);
    let short = answer(json!({ "thinking": { "type": "disabled" }, "max_tokens": 3 }));
    assert_eq!((&short["stop_reason"], &short["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(3)));

    let budget = answer(json!({ "thinking": { "type": "enabled", "budget_tokens": 20 } }));
    let long = answer(json!({ "thinking": { "type": "adaptive" } }));
    let thought = |message: &Value| message["content"][0]["thinking"].as_str().unwrap().len();
    assert!(thought(&budget) < thought(&long), "{budget} {long}");
    let hidden = streamed(json!({ "thinking": { "type": "adaptive", "display": "omitted" } }));
    assert_eq!(hidden["content"], json!([long["content"][1]]));
}

#[test]
fn errors_have_the_form_of_this_api_wherever_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "secret\n").unwrap();
    let flags = ["--ctx-size", "300", "--slots", "1", "--queue", "0", "--api-key-file", keys.to_str().unwrap()];
    let server = Server::start(&flags);
    let key = ("x-api-key", "secret");
    let wrong = |method, path, headers: &[(&str, &str)], body: &str| {
        let (status, head, text) = server.call(method, path, headers, body);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["type"], "error", "{text}");
        let text = |name| answer["error"][name].as_str().unwrap().to_owned();
        ((status, text("type")), text("message"), head.to_lowercase())
    };
    let is = |status: u16, kind: &str| (status, kind.to_owned());
    let body = question(json!({})).to_string();
    assert_eq!(wrong("POST", PATH, &[], &body).0, is(401, "authentication_error"));
    let foreign = [key, ("Origin", "https://evil.example")];
    assert_eq!(wrong("POST", PATH, &foreign, &body).0, is(403, "permission_error"));
    assert_eq!(wrong("GET", "/v1/messages/batches", &[key], "").0, is(404, "not_found_error"));
    assert_eq!(wrong("GET", PATH, &[key], "").0, is(405, "invalid_request_error"));
    assert_eq!(wrong("POST", PATH, &[key], "{").0, is(400, "invalid_request_error"));
    let huge = [key, ("Content-Length", "99999999")];
    assert_eq!(wrong("POST", PATH, &huge, "").0, is(413, "request_too_large"));
    // Other paths keep the form of theirs.
    let (_, _, other) = server.call("POST", "/v1/messages2", &[key], "");
    assert!(other.contains("unknown_url"), "{other}");

    let tool = json!([{ "name": "f", "input_schema": {} }]);
    let image = json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]);
    for (more, status, part) in [
        (json!({ "model": "claude-opus-4-6" }), 404, "\"demo\""),
        (json!({ "max_tokens": null }), 400, "max_tokens is missing"),
        (json!({ "max_tokens": 0 }), 400, "from 1"),
        (json!({ "tools": tool }), 400, "has no tools"),
        (json!({ "tool_choice": { "type": "any" } }), 400, "there are no tools"),
        (json!({ "output_config": { "format": { "type": "json_schema" } } }), 400, "output_config.format"),
        (json!({ "output_config": { "effort": 7 } }), 400, "output_config: effort is a number"),
        (json!({ "thinking": { "type": "on" } }), 400, "\"on\" is not a type of thinking"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 0 } }), 400, "thinking.budget_tokens is 0"),
        (json!({ "stop_sequences": "x" }), 400, "stop_sequences is a string"),
        (json!({ "system": 7 }), 400, "system is a number"),
        (json!({ "messages": image }), 400, "\"image\""),
        (json!({ "messages": [{ "role": "user", "content": "word ".repeat(400) }] }), 400, "prompt is too long: "),
    ] {
        let body = question(more);
        let (kind, message, _) = wrong("POST", PATH, &[key], &body.to_string());
        assert!(kind.0 == status && message.contains(part), "{kind:?} {message}");
        let stream = with(body, json!({ "stream": true })).to_string();
        assert_eq!(wrong("POST", PATH, &[key], &stream).0, kind);
    }
    let neutral = json!({
        "tools": [], "tool_choice": { "type": "auto" }, "metadata": { "user_id": "eve" }, "service_tier": "auto",
        "cache_control": { "type": "ephemeral" }, "max_tokens": 1, "context_management": { "edits": [] },
    });
    let (status, _, text) =
        server.call("POST", PATH, &[("Authorization", "Bearer secret")], &question(neutral).to_string());
    assert_eq!(status, 200, "{text}");

    let server = Server::start(&["--slots", "1", "--queue", "0"]);
    let busy = long_answer(&server);
    let (status, head, text) = server.call("POST", PATH, &[], &body);
    assert!(status == 529 && text.contains("overloaded_error"), "{status} {text}");
    assert!(head.to_lowercase().contains("retry-after: "), "{head}");
    drop(busy);
}
