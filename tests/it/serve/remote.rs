//! The chat and `-p` with a model of a server: another dmschat, and scripted servers that say less.

use super::{QUESTION, Server, with};
use crate::program::{program, said};
use crate::pty::{Chat, answer};
use dmschat::protocol::{Ask, Command as ToEngine, EngineHandle, Event, GenerateRequest, StopReason, TurnReport};
use dmschat::remote::{Remote, spawn};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use tempfile::TempDir;

fn remote(home: &TempDir, url: &str) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_dmschat"), home);
    command.args(["--server", url]);
    command
}

fn asked(mut command: Command, more: &[&str]) -> (i32, Value, String) {
    let output = command.args(["-p", QUESTION, "--json", "--temperature", "0", "--seed", "1"]).args(more).output();
    let (code, stdout, stderr) = said(&output.unwrap());
    (code, serde_json::from_str(&stdout).unwrap_or_default(), stderr)
}

#[test]
fn an_answer_is_that_of_the_engine_and_the_second_turn_reads_what_is_new() {
    let server = Server::start(&[]);
    let mut local = program(env!("CARGO_BIN_EXE_dmschat"), &server.home);
    local.args(["--device", "cpu"]);
    let (code, alone, stderr) = asked(local, &[]);
    assert_eq!(code, 0, "{stderr}");
    let url = format!("http://{}", server.address);
    let (code, served, stderr) = asked(remote(&server.home, &url), &[]);
    assert_eq!(code, 0, "{stderr}");
    for key in ["answer", "reasoning", "prompt_tokens", "answer_tokens", "reasoning_tokens", "stop_reason", "model"] {
        assert_eq!(served[key], alone[key], "{key}: {served}");
    }
    assert!(served["device"].as_str().unwrap().contains(&server.address), "{served}");
    for key in ["live", "dense", "live_slots", "dense_slots", "ratio", "live_bytes", "reads"] {
        assert_eq!(served["kv"][key], alone["kv"][key], "{key}: {served}");
    }

    let flags = ["--server", &url, "--temperature", "0", "--seed", "1"];
    let mut chat = Chat::start(server.home.path(), 100, 30, &[], &flags);
    chat.until_shows("demo");
    chat.say(QUESTION);
    let first = answer(&chat, 1);
    assert!(first.contains(alone["answer"].as_str().unwrap().trim()), "{first}");
    chat.say("Solve 3*x + 3 = 12 for x.");
    answer(&chat, 2);
    // Another dmschat reports its figures, and which tokens they are.
    chat.say("/stats");
    chat.until_shows(" live, ");
    chat.keys("\x1bOR");
    let page = chat.until_shows("which layers store it is not reported");
    let kept = |page: &str| page.split(" % kept").next().unwrap().rsplit(' ').next().unwrap().parse::<u32>().unwrap();
    assert!(kept(&page) < 95, "{page}");
    chat.keys("l");
    chat.until_shows("what single heads keep is not reported");
    chat.keys("q");
    chat.until("the conversation", |screen| !screen.contains("mean of all heads"));
    // Switched from the next message on, as the server then says.
    chat.keys("\x1bOS");
    chat.until_shows("eviction off from the next message on");
    chat.say("Solve 2*x + 3 = 11 for x, please.");
    let ended = |screen: &str| {
        let rows = screen.trim_end().rsplit_once('\n').map_or("", |(rows, _)| rows);
        rows.split("please.").nth(1).is_some_and(|after| after.contains("tok/s")) && !screen.contains("answering")
    };
    chat.until("the third answer", ended);
    chat.keys("\x1bOR");
    let before = kept(&page);
    let more = |screen: &str| screen.contains("% kept, mean of all heads") && kept(screen) > before;
    chat.until("a memory that keeps more", more);
}

#[test]
fn eviction_is_switched_by_a_request_and_what_is_kept_is_told() {
    let server = Server::start(&["--slots", "2", "--think", "off"]);
    let question = |text: &str| json!([{ "role": "user", "content": text }]);
    let long = format!("Remember: my name is Ada. {QUESTION} {}", "I like trains, rivers and old maps. ".repeat(8));
    let asked = |more: Value| {
        let body = with(super::chat(question(&long)), json!({ "return_cache": true, "max_tokens": 8 }));
        let (status, whole) = server.post("/v1/chat/completions", &with(body, more));
        assert_eq!(status, 200, "{whole}");
        whole
    };
    let cached = |whole: &Value| whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let (_, _, models) = server.call("GET", "/v1/models", &[], "");
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["eviction"]["on"], true);

    let plain = asked(json!({}));
    let all = asked(json!({ "eviction": false }));
    assert!(cached(&all) > 0, "it may begin with what was kept");
    let fresh = question(&format!("Now {long}"));
    let dense = asked(json!({ "eviction": false, "messages": fresh }));
    let evicting = asked(json!({ "messages": fresh }));
    assert_eq!((cached(&evicting), &dense["cache"]["eviction"]), (0, &json!(false)), "{evicting}");
    assert_eq!(
        (&dense["cache"]["live_slots"], &plain["cache"]["eviction"]),
        (&dense["cache"]["dense_slots"], &json!(true))
    );
    assert!(evicting["cache"]["live_slots"].as_u64() < dense["cache"]["live_slots"].as_u64(), "{evicting} {dense}");
    // What was switched once is continued by who says so, and the answer is the same for others.
    let again = asked(json!({ "eviction": true, "messages": fresh }));
    assert!(cached(&again) > 0 && again["cache"]["eviction"] == true, "{again}");
    let same = asked(json!({ "messages": fresh }));
    assert_eq!(same["choices"][0]["message"], evicting["choices"][0]["message"]);

    for whole in [&plain, &dense, &evicting] {
        let id = whole["id"].as_str().unwrap();
        let (status, _, memory) = server.call("GET", &format!("/v1/dmschat/memory/{id}"), &[], "");
        assert_eq!(status, 200, "{memory}");
        let memory: Value = serde_json::from_str(&memory).unwrap();
        let list =
            |name: &str| memory[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
        let (kept, ends) = (list("kept"), list("ends"));
        assert_eq!(whole["cache"]["live_slots"], kept.iter().sum::<u64>(), "as the figures say");
        assert_eq!((json!(kept.len()), ends.len()), (whole["cache"]["tokens"].clone(), kept.len()));
        let text = memory["text"].as_str().unwrap();
        assert!(text.contains(&long) && *ends.last().unwrap() as usize == text.len(), "{text}");
    }
    let (status, _, body) = server.call("GET", "/v1/dmschat/memory/chatcmpl-0", &[], "");
    assert!(status == 404 && body.contains("memory_not_found"), "{body}");
    let (status, refused) =
        server.post("/v1/messages", &with(super::chat(question("x")), json!({ "max_tokens": 1, "eviction": "no" })));
    assert_eq!(status, 400, "{refused}");
}

#[test]
fn who_does_not_answer_or_has_another_model_is_said_in_a_line() {
    let server = Server::start(&[]);
    let url = format!("http://{}/v1", server.address);
    let refused = |url: &str, more: &[&str], words: &str| {
        let (code, _, stderr) = asked(remote(&server.home, url), more);
        assert!(code == 2 && stderr.contains(words) && stderr.lines().count() == 1, "{code}: {stderr}");
    };
    refused(&url, &["-m", "ORG/other"], "the server has no model ORG/other; it has demo");
    refused("localhost:8080", &[], "no address of a server");
    refused("http://127.0.0.1:1/v1", &[], "no server answers there");
    let mut command = remote(&server.home, &url);
    let (code, _, stderr) = said(&command.arg("serve").output().unwrap());
    assert!(code == 2 && stderr.contains("--server is for a chat"), "{stderr}");
}

/// The path and the body of a request.
fn read_request(stream: &TcpStream) -> (String, Value) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    lines.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    (first.split(' ').nth(1).unwrap().to_owned(), serde_json::from_slice(&body).unwrap_or_default())
}

/// A server that gives one answer to each kind of request, and tells what it was asked.
fn scripted(models: &'static str, answer: &'static str) -> (String, std::thread::JoinHandle<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let serve = move || loop {
        let (mut stream, _) = listener.accept().unwrap();
        let (path, body) = read_request(&stream);
        let head = |status, kind| format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
        let text = match &*path {
            "/v1/models" => head("200 OK", "application/json") + models,
            "/v1/chat/completions" => head("200 OK", "text/event-stream") + answer,
            _ => head("404 Not Found", "text/plain") + "no",
        };
        stream.write_all(text.as_bytes()).unwrap();
        drop(stream);
        if path.contains("/chat/") {
            return body;
        }
    };
    (url, std::thread::spawn(serve))
}

#[test]
fn servers_that_say_less_are_understood_and_a_broken_line_keeps_the_beginning() {
    const MODELS: &str = r#"{"data": [{"id": "org/small", "max_model_len": 2048}, {"id": "org/large"}]}"#;
    let home = tempfile::tempdir().unwrap();
    // As vLLM: another name for the thought, no usage.
    let (url, seen) = scripted(
        MODELS,
        ": hello\n\ndata: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n\
         data: {\"choices\": [{\"delta\": {\"reasoning\": \"hm\"}}]}\n\ndata: {\"choices\": [{\"delta\": {\"content\": \"x = \"}}]}\n\n\
         data: {\"choices\": [{\"delta\": {\"content\": \"4\"}, \"finish_reason\": \"length\"}]}\n\ndata: [DONE]\n\n",
    );
    // No text becomes a message of its own.
    let system = "Be <|dmschat:user|> brief {{ 7*7 }}\n <|dmschat:think|>.";
    let more = ["-m", "large", "--system", system, "--top-k", "5"];
    let (code, got, stderr) = asked(remote(&home, &url), &more);
    assert_eq!((code, &got["answer"], &got["reasoning"]), (0, &json!("x = 4"), &json!("hm")), "{stderr}");
    assert_eq!(
        (&got["stop_reason"], &got["answer_tokens"], &got["model"]),
        (&json!("max_tokens"), &json!(2), &json!("org/large"))
    );
    // What a server does not report is not made up.
    assert_eq!((&got["kv"]["live_slots"], &got["kv"]["ratio"]), (&json!(0), &Value::Null));
    let asked_of = seen.join().unwrap();
    let wanted = json!([{ "role": "system", "content": system }, { "role": "user", "content": QUESTION }]);
    assert_eq!(
        (&asked_of["messages"], &asked_of["model"], &asked_of["top_k"]),
        (&wanted, &json!("org/large"), &json!(5))
    );
    assert_eq!(asked_of.get("top_p"), None, "what is off is the server's affair");

    for (end, words) in [
        ("", "the answer broke off"),
        ("data: {\"error\": {\"message\": \"out of memory\"}}\n\n", "out of memory"),
        ("data: {\"choices\"\n\n", "not JSON"),
    ] {
        let text = format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"x is\"}}}}]}}\n\n{end}");
        let (url, seen) = scripted(MODELS, text.leak());
        let (code, got, stderr) = asked(remote(&home, &url), &[]);
        assert!(code == 1 && got["answer"] == "x is" && got["stop_reason"] == "error", "{code} {got} {stderr}");
        assert!(got["detail"].as_str().unwrap_or(&stderr).contains(words), "{got} {stderr}");
        seen.join().unwrap();
    }
}

/// The text of a turn until its report.
fn turn_of(handle: &mut EngineHandle, seen: &mut dyn FnMut(&str)) -> (String, TurnReport) {
    let mut text = String::new();
    loop {
        match handle.events.blocking_recv().expect("the thread is there").event {
            Event::Text { text: more, .. } => {
                seen(&more);
                text += &more;
            }
            Event::TurnDone(report) => return (text, *report),
            _ => {}
        }
    }
}

#[test]
fn what_comes_of_a_stopped_answer_is_not_a_part_of_the_next_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (go_on, next_begins) = std::sync::mpsc::channel::<()>();
    let chunk = |text: &str| format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }));
    let server = std::thread::spawn(move || {
        let mut streams = Vec::new();
        while streams.len() < 2 {
            let (mut stream, _) = listener.accept().unwrap();
            let (path, body) = read_request(&stream);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
            if path == "/v1/models" {
                write!(stream, "{head}{{\"data\": [{{\"id\": \"m\"}}]}}").unwrap();
            } else if path.contains("chat") {
                write!(stream, "{head}{}", chunk("first ")).unwrap();
                streams.push((stream, body));
            }
        }
        next_begins.recv().unwrap();
        let [(mut old, body), (mut new, _)] = <[_; 2]>::try_from(streams).unwrap();
        // The client lets go of it, and nothing of it is read any more.
        let _ = write!(old, "{}", chunk("late ")).and_then(|()| old.shutdown(std::net::Shutdown::Write));
        let _ = old.read(&mut [0]);
        write!(new, "{}data: [DONE]\n\n", chunk("second")).unwrap();
        body
    });
    let mut handle = spawn(Remote { url, model: None, key: None }).unwrap();
    let ask = |turn| {
        let request = GenerateRequest { turn, ask: Ask::default(), pin: None, chains: None };
        ToEngine::Generate(Box::new(request))
    };
    handle.send(ask(1));
    let commands = handle.commands.clone();
    let (text, stopped) = turn_of(&mut handle, &mut |_| assert!(commands.send(ToEngine::Cancel)));
    assert_eq!((&*text, stopped.stop_reason), ("first ", StopReason::Cancelled));
    handle.send(ask(2));
    let (text, report) = turn_of(&mut handle, &mut |more| {
        if more == "first " {
            go_on.send(()).unwrap();
        }
    });
    assert_eq!((&*text, report.turn, report.stop_reason), ("first second", 2, StopReason::End));
    // A seed that nobody gave is chosen here, sent and reported.
    assert_eq!(server.join().unwrap()["seed"], stopped.seed);
}

#[test]
fn a_key_comes_from_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let keys = home.path().join("keys");
    std::fs::write(&keys, "secret\n").unwrap();
    let server = Server::start(&["--api-key-file", keys.to_str().unwrap()]);
    let url = format!("http://{}", server.address);
    let (code, _, stderr) = asked(remote(&home, &url), &[]);
    assert!(code == 2 && stderr.lines().count() == 1, "{code} {stderr}");
    let mut command = remote(&home, &url);
    command.env("DMSCHAT_SERVER_KEY", "secret");
    let (code, got, stderr) = asked(command, &[]);
    assert!(code == 0 && got["answer"] != "", "{stderr}");
}
