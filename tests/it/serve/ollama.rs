//! What clients of ollama's API rely on.

use super::{QUESTION, Server, asked, with};
use serde_json::{Value, json};

fn question(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    with(json!({ "model": "demo:latest", "messages": messages, "options": { "temperature": 0, "seed": 1 } }), more)
}

/// The lines of a stream.
fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, head, text) = server.call("POST", path, &[], &body.to_string());
    assert!(status == 200 && head.contains("application/x-ndjson"), "{head}{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_answer_is_that_of_chat_completions_whole_and_in_lines() {
    let server = Server::start(&["--max-think", "20"]);
    let (_, chat) = server.post("/v1/chat/completions", &asked(QUESTION));
    let said = &chat["choices"][0]["message"];
    let (status, whole) = server.post("/api/chat", &question(json!({ "stream": false, "keep_alive": "5m" })));
    assert_eq!(status, 200, "{whole}");
    let message = json!({ "role": "assistant", "content": said["content"], "thinking": said["reasoning_content"] });
    assert_eq!((&whole["message"], &whole["done"], &whole["done_reason"]), (&message, &json!(true), &json!("stop")));
    let usage = &chat["usage"];
    assert_eq!(
        (&whole["prompt_eval_count"], &whole["eval_count"]),
        (&usage["prompt_tokens"], &usage["completion_tokens"])
    );
    assert!(whole["total_duration"].as_u64() >= whole["eval_duration"].as_u64() && whole["eval_duration"] != 0);

    // A stream is what is not said otherwise.
    let lines_of = |path, body| lines(&server, path, &body);
    let streamed = lines_of("/api/chat", question(json!({})));
    let text = |name: &str| streamed.iter().filter_map(|line| line["message"][name].as_str()).collect::<String>();
    assert_eq!(
        (json!(text("content")), json!(text("thinking"))),
        (said["content"].clone(), said["reasoning_content"].clone())
    );
    let (last, before) = streamed.split_last().unwrap();
    assert!(before.iter().all(|line| line["done"] == false && line["done_reason"].is_null()));
    assert_eq!((&last["done_reason"], &last["eval_count"]), (&json!("stop"), &whole["eval_count"]));

    let prompt =
        json!({ "model": "demo", "prompt": QUESTION, "options": { "temperature": 0, "seed": 1 }, "think": false });
    let plain = lines_of("/api/generate", prompt.clone());
    let (_, alike) = server.post("/api/chat", &question(json!({ "stream": false, "think": false })));
    let text: String = plain.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!((json!(text), alike["message"]["thinking"].is_null()), (alike["message"]["content"].clone(), true));
    let raw = with(prompt, json!({ "prompt": "1 + 1 = ", "raw": true, "stream": false }));
    let raw = with(raw, json!({ "options": { "temperature": 0, "num_predict": 4 }, "logprobs": true }));
    let (_, raw) = server.post("/api/generate", &raw);
    assert_eq!((&raw["done_reason"], raw["logprobs"].as_array().unwrap().len()), (&json!("length"), 4));
    let text = json!({ "model": "demo", "prompt": "1 + 1 = ", "temperature": 0, "max_tokens": 4 });
    assert_eq!(raw["response"], server.post("/v1/completions", &text).1["choices"][0]["text"]);
    let load = lines_of("/api/chat", json!({ "model": "demo" }));
    assert_eq!((load.len(), &load[0]["done"], &load[0]["done_reason"]), (1, &json!(true), &json!("load")));
}

#[test]
fn facts_and_errors_have_the_form_of_this_api() {
    let server = Server::start(&["--max-think", "20"]);
    let get = |path: &str| {
        let (status, _, body) = server.call("GET", path, &[], "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let tags = get("/api/tags");
    let name = &tags["models"][0]["name"];
    assert_eq!((name, &get("/api/ps")["models"][0]["digest"]), (&json!("demo"), &tags["models"][0]["digest"]));
    let (_, show) = server.post("/api/show", &json!({ "model": name }));
    let family = show["details"]["family"].as_str().unwrap();
    let context = &get("/v1/models")["data"][0]["context_length"];
    assert_eq!(show["model_info"][format!("{family}.context_length")], *context);
    assert_eq!(show["capabilities"], json!(["completion", "thinking"]));
    assert!(get("/api/version")["version"].is_string());
    assert_eq!(server.call("HEAD", "/", &[], "").0, 200);

    let image = json!([{ "role": "user", "content": "x", "images": ["aGk="] }]);
    for (more, status, part) in [
        (json!({ "model": "llama3.2" }), 404, "\"demo\""),
        (json!({ "model": null }), 400, "model is missing"),
        (json!({ "tools": [{ "type": "function" }] }), 400, "tools[0] is not a function"),
        (json!({ "format": "xml" }), 400, "format is neither"),
        (json!({ "messages": image }), 400, "messages[0].images is not supported"),
        (json!({ "messages": [{ "role": "king", "content": "x" }] }), 400, "\"king\""),
        (json!({ "options": { "mirostat": 2 } }), 400, "options: mirostat"),
        (json!({ "options": { "temperature": "hot" } }), 400, "options: temperature"),
        (json!({ "think": 7 }), 400, "think is neither"),
    ] {
        let (is, answer) = server.post("/api/chat", &question(more));
        assert!(is == status && answer["error"].as_str().unwrap().contains(part), "{answer}");
    }
    let (status, _, body) = server.call("GET", "/api/pull", &[], "");
    assert!(status == 404 && serde_json::from_str::<Value>(&body).unwrap()["error"].is_string(), "{body}");
}
