//! The screen of a server in a terminal, and its lines where there is none.

use super::{QUESTION, asked, read_answer, request, with};
use crate::pty::Chat;
use serde_json::{Value, json};
use std::io::Read;

const FLAGS: [&str; 5] = ["serve", "--port", "0", "--device", "cpu"];
const PATH: &str = "/v1/chat/completions";

#[test]
fn requests_are_lines_of_the_screen_until_q_ends_the_server() {
    let home = tempfile::tempdir().unwrap();
    let mut screen = Chat::start(home.path(), 80, 24, &[], &[&FLAGS[..], &["--slots", "2"]].concat());
    let shown = screen.until("the screen", |shown| shown.contains("q ends") && shown.contains("2    free"));
    let (_, after) = shown.split_once("http://").unwrap();
    let address = after.split('/').next().unwrap().to_owned();
    let ask = |more| request(&address, "POST", PATH, &[], &with(asked("Count from 1 to 500."), more).to_string());
    let json = |stream| serde_json::from_str::<Value>(&read_answer(stream).2).unwrap();

    // An answer that does not end by itself.
    let eos =
        json!({ "content": json(request(&address, "GET", "/props", &[], ""))["eos_token"], "parse_special": true });
    let eos = json(request(&address, "POST", "/tokenize", &[], &eos.to_string()))["tokens"][0].to_string();
    let mut long = ask(json!({ "stream": true, "temperature": 1, "logit_bias": { eos: -100 } }));
    assert!(long.read(&mut [0; 64]).unwrap() > 0);
    let shown = screen.until("an answer", |shown| shown.contains("#1 chat/completions") && shown.contains("answers"));
    assert!(shown.contains("1 of 2 slots, 0 waiting"), "{shown}");
    drop(long);
    screen.until("its end", |shown| shown.contains("#1: the client hung up") && shown.contains("0 of 2 slots"));
    let (status, _, _) = read_answer(ask(json!({ "max_tokens": 3 })));
    assert_eq!(status, 200);
    let shown = screen.until_shows("#2 max_tokens: ");
    assert!(shown.lines().all(|row| row.chars().count() <= 80), "{shown}");

    screen.keys("q");
    assert_eq!(screen.end(), 0);
    let left = screen.screen();
    assert!(left.contains("Ctrl+C ends it") && !left.contains("q ends"), "the terminal is as before: {left}");
}

#[test]
fn a_dumb_terminal_has_lines() {
    let home = tempfile::tempdir().unwrap();
    let mut lines = Chat::start(home.path(), 80, 24, &[("TERM", "dumb")], &FLAGS);
    let shown = lines.until_shows("Ctrl+C ends it");
    let (_, after) = shown.split_once("http://").unwrap();
    let address = after.split('/').next().unwrap().to_owned();
    let body = with(asked(QUESTION), json!({ "max_tokens": 3 })).to_string();
    assert_eq!(read_answer(request(&address, "POST", PATH, &[], &body)).0, 200);
    let shown = lines.until_shows("#1 max_tokens: ");
    assert!(!shown.contains("q ends"), "{shown}");
    lines.keys("\x03");
    assert_eq!(lines.end(), 0);
}
