//! Slots that outlive their server.

use super::{QUESTION, Server, asked, chat};
use serde_json::{Value, json};
use std::fs;
use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

impl Server {
    /// The files of slots, by their names.
    fn kept(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.home.path().join("data/slots")).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.retain(|path| path.extension().is_some_and(|e| e == "slot"));
        files.sort();
        files
    }

    /// The server killed, and another one in its place.
    fn again(mut self, flags: &[&str]) -> Self {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let home = mem::replace(&mut self.home, tempfile::tempdir().unwrap());
        Server::start_at(home, "cpu", None, flags)
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let until = Instant::now() + super::PATIENCE;
    while !what() {
        assert!(Instant::now() < until, "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_conversation_goes_on_after_its_server_was_killed() {
    const FLAGS: [&str; 3] = ["--keep-slots", "--slots", "2"];
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let server = Server::start(&FLAGS);
    let (_, first) = server.post("/v1/chat/completions", &asked(QUESTION));
    let (_, other) = server.post("/v1/chat/completions", &asked("Sort 7, 3, 9."));
    assert!(!text(&other).is_empty());
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let next = chat(json!([
        { "role": "user", "content": QUESTION },
        { "role": "assistant", "content": text(&first) },
        { "role": "user", "content": "And for 13?" },
    ]));
    // What the second turn is without a restart, in a server that keeps nothing.
    let plain = Server::start(&[]);
    assert_eq!(text(&plain.post("/v1/chat/completions", &asked(QUESTION)).1), text(&first));
    let (_, wanted) = plain.post("/v1/chat/completions", &next);
    assert!(plain.kept().is_empty());
    wait_for(|| server.kept().len() == 2);
    let server = server.again(&FLAGS);
    let (_, second) = server.post("/v1/chat/completions", &next);
    assert_eq!((text(&second), cached(&second)), (text(&wanted), cached(&wanted)));
    assert_eq!(cached(&second) + 1, prompt_tokens);
    // A file that is damaged is not used, and nothing else suffers.
    wait_for(|| fs::read(&server.kept()[0]).is_ok());
    for path in server.kept() {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let server = server.again(&FLAGS);
    let (_, anew) = server.post("/v1/chat/completions", &next);
    assert_eq!((text(&anew), cached(&anew)), (text(&wanted), 0));
}
