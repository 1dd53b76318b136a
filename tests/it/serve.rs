//! `dmschat serve` over loopback, with the built-in model: what clients of OpenAI's API rely on.

mod channels;
mod choices;
mod devices;
mod kept;
mod messages;
mod ollama;
mod remote;
mod responses;
mod screen;
mod tools;

use crate::program::{program, said};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const QUESTION: &str = "Solve 2*x + 3 = 11 for x.";

/// A server of its own, which is killed at the end of a test.
struct Server {
    child: Child,
    address: String,
    home: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        Self::start_on("cpu", None, flags)
    }

    /// A server on the software GPU, where that can be built.
    #[cfg(feature = "gpu-emulator")]
    fn on_gpu(flags: &[&str]) -> Option<Self> {
        Some(Self::start_on("cuda", Some(crate::emulator::software_gpu()?), flags))
    }

    /// `libraries`: where the device's driver is.
    fn start_on(device: &str, libraries: Option<&Path>, flags: &[&str]) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), device, libraries, flags)
    }

    fn start_at(home: TempDir, device: &str, libraries: Option<&Path>, flags: &[&str]) -> Self {
        let mut command = program(env!("CARGO_BIN_EXE_dmschat"), &home);
        command.envs(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
        command.args(["serve", "--port", "0", "--device", device]).args(flags).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the server ended before it listened");
        }
        // The rest goes on being read, so that the server can write it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let (_, after) = line.split_once("http://").unwrap();
        let address = after.split('/').next().unwrap().to_owned();
        Self { child, address, home }
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        request(&self.address, method, path, headers, body)
    }

    /// Status, head and body.
    fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        read_answer(self.request(method, path, headers, body))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.call("POST", path, &[], &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}")))
    }

    /// A stream's chunks; the last event is the mark of the end.
    fn chunks(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, head, body) = self.call("POST", path, &[], &body.to_string());
        assert!(status == 200 && head.contains("text/event-stream"), "{head}{body}");
        let mut data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{body}");
        data.into_iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }
}

fn request(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in [("Host", address), ("Content-Length", &body.len().to_string())] {
        if !headers.iter().any(|(given, _)| *given == name) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    write!(stream, "{head}\r\n{body}").unwrap();
    stream
}

/// Reads an answer to its end, and undoes chunked encoding.
fn read_answer(mut stream: TcpStream) -> (u16, String, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, mut rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return (status, head.to_owned(), rest.to_owned());
    }
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        body += &after[..size];
        rest = &after[size + 2..];
    }
    (status, head.to_owned(), body)
}

/// A connection is closed behind a body that nobody has read, and a client that still writes then
/// finds a broken pipe.
#[test]
fn a_refusal_arrives_although_its_body_comes_late() {
    let server = Server::start(&[]);
    let cases = [
        ("POST", "/v1/responses/compact", server.address.clone(), 404),
        ("PUT", "/v1/chat/completions", server.address.clone(), 405),
        ("POST", "/v1/chat/completions", "evil.example".to_owned(), 403),
    ];
    for (method, path, host, status) in cases {
        let (length, half) = (200_000, "x".repeat(100_000));
        let headers = [("Host", &*host), ("Content-Length", &*length.to_string())];
        let mut stream = server.request(method, path, &headers, &half);
        std::thread::sleep(Duration::from_millis(200));
        stream.write_all(half.as_bytes()).unwrap();
        assert_eq!(read_answer(stream).0, status, "{path}");
    }
}

fn chat(messages: Value) -> Value {
    json!({ "model": "demo", "messages": messages, "temperature": 0, "seed": 1 })
}

fn asked(question: &str) -> Value {
    chat(json!([{ "role": "user", "content": question }]))
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The texts of a kind in the deltas.
fn streamed(chunks: &[Value], name: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
}

#[test]
fn an_answer_is_that_of_p_whole_and_in_a_stream_and_the_next_turn_reads_what_is_new() {
    let server = Server::start(&[]);
    let mut alone = program(env!("CARGO_BIN_EXE_dmschat"), &server.home);
    alone.args(["-p", QUESTION, "--json", "--temperature", "0", "--seed", "1", "--device", "cpu"]);
    let (code, alone, stderr) = said(&alone.output().unwrap());
    assert_eq!(code, 0, "{stderr}");
    let alone: Value = serde_json::from_str(&alone).unwrap();

    let (status, whole) = server.post("/v1/chat/completions", &asked(QUESTION));
    assert_eq!(status, 200, "{whole}");
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&alone["answer"], &alone["reasoning"]));
    assert_eq!((&whole["object"], &message["role"]), (&json!("chat.completion"), &json!("assistant")));
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let usage = &whole["usage"];
    let generated = alone["answer_tokens"].as_u64().unwrap() + alone["reasoning_tokens"].as_u64().unwrap();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&alone["prompt_tokens"], &json!(generated)));
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], alone["reasoning_tokens"]);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);

    let stream = with(asked(QUESTION), json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let chunks = server.chunks("/v1/chat/completions", &stream);
    assert_eq!(streamed(&chunks, "content"), alone["answer"]);
    assert_eq!(streamed(&chunks, "reasoning_content"), alone["reasoning"]);
    let (last, before) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(generated)));
    // The same prompt again: all but its last token is in the slot.
    let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached.as_u64().unwrap() + 1, alone["prompt_tokens"].as_u64().unwrap());
    assert!(before.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == chunks[0]["id"]));
    let reasons: Vec<&Value> = before.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(
        (reasons.iter().filter(|reason| !reason.is_null()).count(), *reasons.last().unwrap()),
        (1, &json!("stop"))
    );
    assert!(before.last().unwrap()["timings"]["predicted_n"] == json!(generated));

    let progress = json!({ "stream": true, "return_progress": true, "max_tokens": 1 });
    let chunks = server.chunks("/v1/chat/completions", &with(asked(&QUESTION.repeat(200)), progress));
    let read: Vec<&Value> = chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|p| p.is_object()).collect();
    let processed: Vec<u64> = read.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
    assert!(!processed.is_empty() && processed.is_sorted(), "{processed:?}");
    assert!(read.iter().all(|p| p["processed"].as_u64() < p["total"].as_u64()), "{read:?}");

    let turn = json!([
        { "role": "user", "content": QUESTION },
        { "role": "assistant", "content": message["content"], "reasoning_content": message["reasoning_content"] },
        { "role": "user", "content": "Solve 3*y - 6 = 9 for y." },
    ]);
    let (_, second) = server.post("/v1/chat/completions", &chat(turn));
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 1 >= alone["prompt_tokens"].as_u64().unwrap(), "{second}");
}

#[test]
fn facts_are_in_the_form_of_other_servers() {
    let server = Server::start(&["--slots", "3"]);
    let get = |path: &str| {
        let (status, _, body) = server.call("GET", path, &[], "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let models = get("/v1/models");
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("demo")));
    assert_eq!(
        get("/v1/models/demo"),
        with(models["data"][0].clone(), json!({ "created": get("/v1/models/demo")["created"] }))
    );
    let props = get("/props");
    let context = &models["data"][0]["context_length"];
    assert_eq!((&props["default_generation_settings"]["n_ctx"], &props["total_slots"]), (context, &json!(3)));
    assert_eq!(get("/health"), json!({ "status": "ok" }));
    let (_, tokens) = server.post("/tokenize", &json!({ "content": "one two", "parse_special": false }));
    assert!(tokens["count"].as_u64().unwrap() > 1 && tokens["tokens"].as_array().unwrap().iter().all(Value::is_u64));
    // The tokens of a chat are those of its answer's prompt.
    let (_, whole) = server.post("/v1/chat/completions", &with(asked(QUESTION), json!({ "max_tokens": 1 })));
    let (_, tokens) = server.post("/tokenize", &json!({ "messages": [{ "role": "user", "content": QUESTION }] }));
    assert_eq!(tokens["count"], whole["usage"]["prompt_tokens"]);
    let (_, _, metrics) = server.call("GET", "/metrics", &[], "");
    assert!(
        metrics.contains("\ndmschat_requests_total 1\n") && metrics.contains("\ndmschat_slots_busy 0\n"),
        "{metrics}"
    );
    for (method, path, status) in
        [("GET", "/v2", 404), ("GET", "/v1/models/other", 404), ("GET", "/v1/chat/completions", 405)]
    {
        let (is, _, body) = server.call(method, path, &[], "");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(is == status && body["error"]["message"].is_string(), "{path}: {is} {body}");
    }
    let (_, _, metrics) = server.call("GET", "/metrics", &[], "");
    assert!(metrics.contains("\ndmschat_requests_refused_total 3\n"), "{metrics}");
}

#[test]
fn what_is_not_answered_says_so_with_its_field_and_status() {
    let server = Server::start(&["--ctx-size", "300"]);
    let question = || asked(QUESTION);
    for (body, status, param, part) in [
        (json!({ "model": "demo" }), 400, "messages", "missing"),
        (with(question(), json!({ "model": null })), 400, "model", "missing"),
        (with(question(), json!({ "model": "gpt-4o" })), 404, "model", "\"demo\""),
        (with(question(), json!({ "tools": [{ "type": "function" }] })), 400, "tools[0]", "no other tools"),
        (
            with(question(), json!({ "response_format": { "type": "json_schema" } })),
            400,
            "response_format.schema",
            "no schema",
        ),
        (with(question(), json!({ "logprobs": 1 })), 400, "logprobs", "true or false"),
        (with(question(), json!({ "top_logprobs": 1 })), 400, "top_logprobs", "logprobs is not"),
        (with(question(), json!({ "logprobs": true, "top_logprobs": 21 })), 400, "top_logprobs", "0 to 20"),
        (with(question(), json!({ "n": 9 })), 400, "n", "may be 8"),
        (with(question(), json!({ "n": 0 })), 400, "n", "from 1"),
        (with(question(), json!({ "temperature": 200 })), 400, "temperature", "expected 0 to 100"),
        (with(question(), json!({ "temperature": "hot" })), 400, "temperature", "expected a number"),
        (with(question(), json!({ "max_tokens": 0 })), 400, "max_tokens", "from 1"),
        (with(question(), json!({ "max_completion_tokens": -7 })), 400, "max_completion_tokens", "from 1"),
        (with(question(), json!({ "stop": ["a", ""] })), 400, "stop", "empty"),
        (with(question(), json!({ "seed": 1.5 })), 400, "seed", "whole number"),
        (with(question(), json!({ "logit_bias": { "999999": 1 } })), 400, "logit_bias", "not a token"),
        (with(question(), json!({ "reasoning_effort": "huge" })), 400, "reasoning_effort", "huge"),
        (with(question(), json!({ "chat_template_kwargs": { "x": 1 } })), 400, "chat_template_kwargs", "not supported"),
        (asked(&"word ".repeat(400)), 400, "messages", "the context holds 300"),
    ] {
        let (is, answer) = server.post("/v1/chat/completions", &body);
        let error = &answer["error"];
        assert_eq!((is, error["param"].as_str()), (status, Some(param)), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(part), "{answer}");
        // A stream that is refused has the status too.
        let (is, _) = server.post("/v1/chat/completions", &with(body, json!({ "stream": true })));
        assert_eq!(is, status);
    }
    let (_, full) = server.post("/v1/chat/completions", &asked(&"word ".repeat(400)));
    assert_eq!((&full["error"]["code"], &full["error"]["n_ctx"]), (&json!("context_length_exceeded"), &json!(300)));
    assert!(full["error"]["n_prompt_tokens"].as_u64().unwrap() > 300);
    // Neutral values and unknown fields pass.
    let neutral = json!({
        "tools": [], "tool_choice": "auto", "response_format": { "type": "text" }, "logprobs": false, "n": 1,
        "presence_penalty": 0, "stop": null, "user": "eve", "store": true, "never_heard_of": { "x": 1 }, "top_k": -1,
        "logit_bias": {}, "max_tokens": 5,
    });
    let (status, answer) = server.post("/v1/chat/completions", &with(question(), neutral));
    assert_eq!((status, &answer["choices"][0]["finish_reason"]), (200, &json!("length")), "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    // A noncharacter is no text.
    for prompt in ["", "\u{fdd0}"] {
        let (status, answer) = server.post("/v1/completions", &json!({ "model": "demo", "prompt": prompt }));
        assert!(status == 400 && answer["error"]["message"] == "the prompt is empty", "{answer}");
    }
    let (status, _, body) = server.call("POST", "/v1/chat/completions", &[], "{\"model\":");
    assert!(status == 400 && body.contains("not JSON"), "{body}");
}

#[test]
fn sampling_fields_have_their_effect() {
    let server = Server::start(&["--think", "off"]);
    let answer = |more: Value| {
        let (status, answer) = server.post("/v1/chat/completions", &with(asked(QUESTION), more));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let plain = answer(json!({}));
    let content = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let (first, _) = content.split_at(content.len() / 2);
    let stop = &content[first.len()..first.len() + 2];
    let stopped = answer(json!({ "stop": [stop] }));
    let until = content.split(stop).next().unwrap().trim_end_matches('\n');
    assert_eq!(stopped["choices"][0]["message"]["content"], until);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    // The first token of the text is forbidden.
    let raw = json!({ "model": "demo", "prompt": "1 + 1 = 2\n1 + 2 = ", "temperature": 0, "max_tokens": 4 });
    let (status, text) = server.post("/v1/completions", &raw);
    assert_eq!((status, &text["object"]), (200, &json!("text_completion")), "{text}");
    let text = text["choices"][0]["text"].as_str().unwrap();
    let (_, tokens) = server.post("/tokenize", &json!({ "content": text, "parse_special": false }));
    let token = tokens["tokens"][0].to_string();
    let (_, other) = server.post("/v1/completions", &with(raw.clone(), json!({ "logit_bias": { token: -100 } })));
    assert_ne!(other["choices"][0]["text"], text, "token {tokens} was forbidden");
    let chunks = server.chunks("/v1/completions", &with(raw, json!({ "stream": true })));
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
}

#[test]
fn only_who_may_ask_is_answered() {
    let server = Server::start(&[]);
    let host = |host| server.call("GET", "/v1/models", &[("Host", host)], "").0;
    assert_eq!((host("evil.example"), host("localhost:1"), host("[::1]")), (403, 200, 200));
    let origin = |origin| server.call("GET", "/v1/models", &[("Origin", origin)], "");
    assert_eq!((origin("https://evil.example").0, origin("http://localhost:3000").0), (403, 200));
    assert!(origin("http://localhost:3000").1.contains("access-control-allow-origin: http://localhost:3000"));

    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# mine\nsecret\n").unwrap();
    let server = Server::start(&["--api-key-file", keys.to_str().unwrap()]);
    let key = |key| server.call("GET", "/v1/models", &[("Authorization", key)], "");
    assert_eq!((key("Bearer secret").0, key("Bearer secre").0, key("Bearer # mine").0), (200, 401, 401));
    assert!(key("Bearer x").2.contains("invalid_api_key"));

    let home = tempfile::tempdir().unwrap();
    let refused = |flags: &[&str]| {
        let mut command = program(env!("CARGO_BIN_EXE_dmschat"), &home);
        said(&command.arg("serve").args(flags).output().unwrap())
    };
    crate::program::refused(refused(&["--host", "0.0.0.0", "--port", "0"]), &["--api-key-file", "--no-key"]);
    crate::program::refused(refused(&["--api-key-file", "/nowhere"]), &["/nowhere"]);
    crate::program::refused(refused(&["--slots", "0"]), &["--slots 0", "1 to"]);
}

/// A request for a long answer, of which the first chunk has arrived.
fn long_answer(server: &Server) -> BufReader<TcpStream> {
    let body = with(asked("Count from 1 to 500."), json!({ "stream": true, "temperature": 1, "stop": null }));
    let mut stream = BufReader::new(server.request("POST", "/v1/chat/completions", &[], &body.to_string()));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "a stream");
    }
    stream
}

#[test]
fn a_busy_server_sends_others_away_until_a_client_hangs_up() {
    let server = Server::start(&["--slots", "1", "--queue", "0"]);
    let busy = long_answer(&server);
    let (status, head, body) = server.call("POST", "/v1/chat/completions", &[], &asked(QUESTION).to_string());
    assert_eq!(status, 503, "{body}");
    assert!(head.to_lowercase().contains("retry-after: ") && body.contains("overloaded"), "{head}{body}");
    drop(busy);
    let until = Instant::now() + PATIENCE;
    let short = with(asked(QUESTION), json!({ "max_tokens": 1 }));
    while server.post("/v1/chat/completions", &short).0 != 200 {
        assert!(Instant::now() < until, "the slot is not free again");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (_, _, metrics) = server.call("GET", "/metrics", &[], "");
    assert!(metrics.contains("\ndmschat_requests_abandoned_total 1\n"), "{metrics}");
}

#[cfg(unix)]
#[test]
fn an_answer_goes_on_to_its_end_after_the_server_is_told_to_end() {
    use rustix::process::{Pid, Signal, kill_process};
    let mut server = Server::start(&[]);
    let body = with(asked(QUESTION), json!({ "stream": true, "max_tokens": 30 }));
    let stream = server.request("POST", "/v1/chat/completions", &[], &body.to_string());
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    assert!(stream.read_line(&mut line).unwrap() > 0 && line.contains("200"), "{line}");
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_model_without_tools_refuses_them_by_name() {
    let server = Server::start(&[]);
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let (status, refused) = server.post("/v1/chat/completions", &with(asked(QUESTION), json!({ "tools": [tool] })));
    assert_eq!(
        (status, &refused["error"]["param"], &refused["error"]["code"]),
        (400, &json!("tools"), &json!("unsupported_parameter"))
    );
    let (status, _) = server.post(
        "/v1/chat/completions",
        &with(asked(QUESTION), json!({ "tools": [tool], "tool_choice": "none", "max_tokens": 1 })),
    );
    assert_eq!(status, 200, "without a choice, there are none");
    let (_, _, props) = server.call("GET", "/props", &[], "");
    assert_eq!(serde_json::from_str::<Value>(&props).unwrap()["chat_template_caps"]["supports_tools"], json!(false));
}
