//! Several answers of one request, and the log-probabilities of their tokens.

use super::{QUESTION, Server, asked, with};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn text_of(entries: &Value) -> String {
    entries.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap()).collect()
}

#[test]
fn tokens_have_their_log_probabilities_whole_and_in_a_stream_and_with_drafts() {
    let server = Server::start(&["--draft", "off"]);
    let drafted = Server::start(&[]);
    let body = with(asked(QUESTION), json!({ "logprobs": true, "top_logprobs": 4, "thinking_budget": 20 }));
    let (status, whole) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{whole}");
    let (choice, entries) = (&whole["choices"][0], &whole["choices"][0]["logprobs"]["content"]);
    // The tokens spell the answer, and not its thought.
    assert_eq!(text_of(entries).trim_matches('\n'), choice["message"]["content"]);
    for entry in entries.as_array().unwrap() {
        let top = entry["top_logprobs"].as_array().unwrap();
        // The answer is greedy: each token is the most probable one.
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (4, &entry["token"], &entry["logprob"]));
        assert!(top.is_sorted_by(|a, b| a["logprob"].as_f64() >= b["logprob"].as_f64()), "{entry}");
        let sum: f64 = top.iter().map(|one| one["logprob"].as_f64().unwrap().exp()).sum();
        assert!(sum <= 1.0 + 1e-6, "{entry}");
        assert_eq!(entry["bytes"], json!(entry["token"].as_str().unwrap().as_bytes()));
    }
    let (_, with_drafts) = drafted.post(CHAT, &body);
    assert_eq!(with_drafts["choices"], whole["choices"]);
    let chunks = server.chunks(CHAT, &with(body.clone(), json!({ "stream": true })));
    let streamed = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(json!(streamed.flatten().collect::<Vec<_>>()), *entries);

    // A stop text is no part of them.
    let content = choice["message"]["content"].as_str().unwrap();
    let stop = &content[content.len() / 2..content.len() / 2 + 3];
    let (_, stopped) = server.post(CHAT, &with(body, json!({ "stop": stop })));
    let stopped = &stopped["choices"][0];
    let said = text_of(&stopped["logprobs"]["content"]);
    assert!(said.contains(stopped["message"]["content"].as_str().unwrap()), "{said}");
    assert!(said.len() < text_of(entries).len(), "{said}");
    let text = json!({ "model": "demo", "prompt": "1 + 1 = ", "temperature": 0, "max_tokens": 5, "logprobs": 2 });
    let (_, text) = server.post("/v1/completions", &text);
    let logprobs = &text["choices"][0]["logprobs"];
    let tokens: String = logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens, text["choices"][0]["text"]);
    let (tokens, tops) = (&logprobs["tokens"][0], &logprobs["top_logprobs"][0]);
    assert_eq!(tops[tokens.as_str().unwrap()], logprobs["token_logprobs"][0]);
}

#[test]
fn several_answers_are_those_of_their_seeds_whole_and_in_a_stream() {
    let server = Server::start(&[]);
    let body = with(
        asked(QUESTION),
        json!({ "n": 3, "temperature": 1, "logprobs": true, "max_tokens": 60, "thinking_budget": 20 }),
    );
    let (status, whole) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{whole}");
    let choices = whole["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2]);
    // The first is the answer that is alone.
    let (_, alone) = server.post(CHAT, &with(body.clone(), json!({ "n": 1 })));
    assert_eq!(alone["choices"][0], choices[0]);
    let tokens = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(tokens(&whole) > tokens(&alone), "{whole}");

    let stream = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let chunks = server.chunks(CHAT, &with(body.clone(), stream));
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    for (index, choice) in choices.iter().enumerate() {
        let own: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index).collect();
        let text = |name: &str| own.iter().filter_map(|c| c["delta"][name].as_str()).collect::<String>();
        assert_eq!(text("content"), choice["message"]["content"]);
        assert_eq!(text("reasoning_content"), choice["message"]["reasoning_content"].as_str().unwrap_or(""));
        let entries = own.iter().filter_map(|c| c["logprobs"]["content"].as_array()).flatten().collect::<Vec<_>>();
        assert_eq!(json!(entries), choice["logprobs"]["content"]);
        assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
    }
    // Greedy answers are equal.
    let (_, greedy) = server.post(CHAT, &with(asked(QUESTION), json!({ "n": 2, "max_tokens": 30 })));
    assert_eq!(greedy["choices"][0]["message"], greedy["choices"][1]["message"]);
}
