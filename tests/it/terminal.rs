//! The chat in a real terminal beside other programs, and after it was suspended: tests that do not
//! fit into `pty`.

use crate::pty::{Chat, answer};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CPU: &[&str] = &["--device", "cpu", "--temperature", "0", "--max-tokens", "24"];

/// Writes a program by a child process, because a file that is open for writing cannot be run.
#[cfg(unix)]
fn program(folder: &Path, lines: &str) -> PathBuf {
    let path = folder.join("editor");
    let script = "printf '%s' \"$1\" > \"$0\" && chmod +x \"$0\"";
    let text = format!("#!/bin/sh\n{lines}\n");
    assert!(std::process::Command::new("sh").args(["-c", script]).arg(&path).arg(text).status().unwrap().success());
    path
}

#[cfg(unix)]
fn wait_for(file: &Path) {
    let begin = Instant::now();
    while !file.exists() {
        assert!(begin.elapsed() < crate::pty::PATIENCE, "{} is not there", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As for system(3): Ctrl+C and Ctrl+\ in an editor are the editor's, which has the default
/// dispositions, and the chat goes on.
#[cfg(unix)]
#[test]
fn keys_that_are_signals_belong_to_the_editor_that_has_the_terminal() {
    for (signals, shown) in [("trap true INT QUIT", "changed outside"), ("", "the editor \"")] {
        let home = tempfile::tempdir().unwrap();
        let ready = home.path().join("ready");
        let lines = format!("{signals}\n: > {}\nsleep 30\nsleep 30\necho changed outside > \"$1\"", ready.display());
        let editor = program(home.path(), &lines);
        let mut chat = Chat::start(home.path(), 100, 30, &[("EDITOR", editor.to_str().unwrap())], CPU);
        chat.until_shows("Try one of these");
        chat.keys("unsent");
        chat.keys("\x07");
        wait_for(&ready);
        // Each ends a sleep.
        for key in ["\x03", "\x1c"] {
            std::thread::sleep(Duration::from_millis(300));
            chat.keys(key);
        }
        chat.until_shows(shown);
        chat.until_quiet(Duration::from_millis(300));
        chat.keys("\x15");
        chat.say("/quit");
        assert_eq!(chat.end(), 0, "{shown}");
    }
}

/// What was undone is not what a resumed conversation remembers, on the screen or in the cache.
#[test]
fn an_undone_turn_stays_undone_when_the_conversation_is_resumed() {
    for context in ["2000", "400"] {
        let home = tempfile::tempdir().unwrap();
        let args = [CPU, &["--ctx-size", context]].concat();
        let mut chat = Chat::start(home.path(), 100, 30, &[], &args);
        chat.until_shows("Try one of these");
        chat.say("Remember: my name is Ada.");
        answer(&chat, 1);
        chat.say("Solve 5*b - 2355 = -50*b - 2740 for b.");
        answer(&chat, 2);
        chat.say("/undo");
        let status = |screen: &str| screen.trim_end().lines().last().unwrap_or_default().to_owned();
        let tokens = |screen: &str| {
            let after = status(screen).split_once("context ")?.1.split('/').next()?.to_owned();
            after.parse::<usize>().ok()
        };
        let begin = Instant::now();
        let before = loop {
            if let Some(n) = tokens(&chat.screen()).filter(|n| (20..100).contains(n)) {
                break n;
            }
            assert!(begin.elapsed() < crate::pty::PATIENCE, "{}", chat.screen());
            std::thread::sleep(Duration::from_millis(20));
        };
        chat.keys("\x03");
        chat.keys("\x04");
        assert_eq!(chat.end(), 0);

        let args = [CPU, &["--ctx-size", context, "--continue"]].concat();
        let mut chat = Chat::start(home.path(), 100, 30, &[], &args);
        let screen = chat.until_shows("cache loaded: ");
        assert!(!screen.contains("Solve 5*b"), "{screen}");
        chat.until_shows(&format!("context {before}/"));
        chat.keys("\x1bOR"); // F3
        let screen = chat.until_shows(&format!("memory: {before} tokens"));
        assert!(!screen.contains("2355"), "{screen}");
    }
}
