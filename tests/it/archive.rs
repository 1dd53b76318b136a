//! Saved conversations: words in all of them, tags, exports of all, and what an answer's Markdown
//! shows and copies.

use crate::pty::Chat;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

fn dmschat(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dmschat"));
    command.args(args).env("HOME", home).env("DMSCHAT_DATA_DIR", home.join("data"));
    command.env("DMSCHAT_CONFIG_DIR", home.join("config")).output().unwrap()
}

fn json(home: &Path, args: &[&str]) -> Value {
    let run = dmschat(home, args);
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

/// The files of the sessions that begin with these questions. Names of those of one second have no
/// order.
fn sessions(home: &Path, questions: [&str; 2]) -> [PathBuf; 2] {
    let files = fs::read_dir(home.join("data/sessions")).unwrap().map(|e| e.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
    let asks = |path: &Path, question: &str| {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.into_iter().any(|line| line["user"]["text"] == question)
    };
    questions.map(|question| files.iter().find(|path| asks(path, question)).unwrap().clone())
}

/// Puts texts into the last turn of a session file.
fn rewrite(path: &Path, question: &str, answer: &str) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let turn = lines.iter_mut().rfind(|line| line["type"] == "turn").unwrap();
    turn["user"]["text"] = question.into();
    turn["text"] = answer.into();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, lines).unwrap();
}

#[test]
fn words_of_all_conversations_are_found_and_open_where_they_are() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &[]);
    chat.until_shows("F1 help");
    chat.say("2+2");
    chat.until_shows(" tokens \u{b7} ");
    chat.say("/tag sums");
    chat.until_shows("tags: #sums");
    chat.say("/new");
    chat.until_shows("a new conversation");
    chat.say("5+5");
    chat.until_shows(" tokens \u{b7} ");
    chat.say("/quit");
    assert_eq!(chat.end(), 0);
    let files = sessions(home.path(), ["2+2", "5+5"]);
    let answer = "Here is a na\u{ef}ve $\\alpha_1 \\leq 2^{10}$ answer for $5.\n\n- [x] done\n- [ ] open\n\n\
                  ```rust\nlet a = 1;\n```\n\n```\nlast\n```\n";
    rewrite(&files[0], "Where is the BLUE whale?", answer);
    // As a program before tags renames it: the tags stay.
    let renamed = fs::read_to_string(&files[0]).unwrap();
    let title = "{\"type\":\"title\",\"id\":999,\"parent\":null,\"title\":\"Of whales\"}\n";
    fs::write(&files[0], renamed + title).unwrap();
    let damaged = fs::read_to_string(&files[1]).unwrap() + "{\"type\":\"turn\",\"te\n\u{0}\n";
    fs::write(&files[1], damaged).unwrap();
    fs::write(home.path().join("data/sessions/20200101-000000-0000.jsonl"), [0xff, 0xfe, b'\n', b'{']).unwrap();

    let found = json(home.path(), &["sessions", "search", "blue", "WHALE", "--json"]);
    let id = files[0].file_stem().unwrap().to_str().unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!((&found[0]["id"], &found[0]["passages"][0]["part"]), (&id.into(), &"user".into()));
    let found = json(home.path(), &["sessions", "search", "naive", "--json"]);
    assert_eq!(found[0]["passages"][0]["part"], "assistant", "{found}");
    assert_eq!(json(home.path(), &["sessions", "search", "\"whale blue\"", "--json"]), Value::Array(Vec::new()));
    let said = dmschat(home.path(), &["sessions", "search", "naive"]);
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(out.contains(id) && out.contains("assistant: Here is a na\u{ef}ve"), "{out}");
    assert!(err.contains("could not be read"), "{err}");
    assert_eq!(dmschat(home.path(), &["sessions", "search", " "]).status.code(), Some(2));
    let listed = json(home.path(), &["sessions", "list", "--json"]);
    let tags = |id: &str| listed.as_array().unwrap().iter().find(|e| e["id"] == id).unwrap()["tags"].clone();
    assert_eq!(tags(id), serde_json::json!(["sums"]));
    assert!(listed.to_string().contains("Of whales"), "{listed}");

    let mut chat = Chat::start(home.path(), 100, 40, &[], &[]);
    chat.until_shows("F1 help");
    chat.say("/search blue whale");
    chat.until_shows("with blue whale");
    chat.until_shows("Enter opens the conversation there");
    chat.keys("\r");
    // The chosen message, and the answer as it is shown.
    chat.until_shows("message 1 of 2 chosen");
    let screen = chat.until_shows("rust 1");
    for part in ["na\u{ef}ve \u{3b1}\u{2081} \u{2264} 2\u{b9}\u{2070} answer for $5.", "[x] done", "[ ] open", "code 2"]
    {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    chat.keys("\x1b");
    chat.say("/copy 1");
    chat.until_shows("code block 1:");
    // OSC 52: `let a = 1;` and its newline in Base64.
    assert!(String::from_utf8_lossy(&chat.written()).contains("bGV0IGEgPSAxOwo="));
    chat.say("/sessions");
    chat.until_shows("#sums");
    chat.keys("#nope");
    chat.until_shows("nothing fits");
    chat.keys("\x15");
    chat.keys("#su");
    let screen = chat.until_shows("#sums");
    assert!(!screen.contains("5+5"), "{screen}");
    chat.keys("\x1b");
    chat.say("/quit");
    assert_eq!(chat.end(), 0);
}

#[test]
fn all_conversations_are_exported_once_and_no_other_file_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    for sum in ["2+2", "3+3"] {
        let mut chat = Chat::start(home.path(), 80, 24, &[], &[]);
        chat.until_shows("F1 help");
        chat.say(sum);
        chat.until_shows(" tokens \u{b7} ");
        chat.say("/quit");
        assert_eq!(chat.end(), 0);
    }
    let files = sessions(home.path(), ["2+2", "3+3"]);
    let out = home.path().join("out");
    let export = |more: &[&str]| {
        let args = [&["sessions", "export", "--all", "--json", out.to_str().unwrap()], more].concat();
        let run = dmschat(home.path(), &args);
        (run.status.code(), serde_json::from_slice::<Value>(&run.stdout).unwrap_or_default())
    };
    let counts = |report: &Value| (report["written"].as_u64().unwrap(), report["unchanged"].as_u64().unwrap());
    let (code, report) = export(&[]);
    assert_eq!((code, counts(&report)), (Some(0), (2, 0)), "{report}");
    let copy = out.join(files[0].file_name().unwrap());
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&files[0]).unwrap());
    assert_eq!(counts(&export(&[]).1), (0, 2));
    // Interrupted: one is missing. Changed: one is older than its conversation.
    fs::remove_file(&copy).unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    fs::File::options().append(true).open(&files[1]).unwrap().set_modified(later).unwrap();
    assert_eq!(counts(&export(&[]).1), (2, 0));
    // A file that is another's stays, and the others are written.
    fs::write(&copy, "a letter").unwrap();
    let (code, report) = export(&[]);
    assert_eq!((code, report["refused"].as_array().unwrap().len()), (Some(1), 1), "{report}");
    assert_eq!(fs::read(&copy).unwrap(), b"a letter");
    let (code, report) = export(&["--format", "md"]);
    assert_eq!((code, counts(&report)), (Some(0), (2, 0)), "{report}");
    assert_eq!(counts(&export(&["--format", "md"]).1).0, 1, "the changed one is newer than its export");
    let text = fs::read_to_string(copy.with_extension("md")).unwrap();
    assert!(text.contains("## User\n\n2+2"), "{text}");
    let within =
        dmschat(home.path(), &["sessions", "export", "--all", home.path().join("data/sessions").to_str().unwrap()]);
    assert_eq!(within.status.code(), Some(2));
    assert_eq!(dmschat(home.path(), &["sessions", "export", out.to_str().unwrap()]).status.code(), Some(2));
}
