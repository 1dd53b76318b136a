//! The chat in a real terminal beside other programs, and after it was suspended: tests that do not
//! fit into `pty`.

use crate::pty::{Chat, PATIENCE, answer};
use std::path::Path;
use std::time::{Duration, Instant};

const CPU: &[&str] = &["--device", "cpu", "--temperature", "0", "--max-tokens", "24"];

/// An editor that says in files of `folder` when it has the terminal and which signals arrive, and
/// ends after a line is typed. It starts no process, which a signal could stop half begun. Returns
/// its path.
#[cfg(unix)]
fn editor(folder: &Path, traps: &str) -> String {
    let path = folder.join("editor");
    let lines = format!(
        "#!/bin/sh\ncd '{}'\n{traps}\n: > ready\nn=0\n\
         until [ -e done ] || [ $n -ge 1000 ]; do n=$((n+1)); read -r line && : > done; done\n\
         echo \"changed outside\" > \"$1\"\n",
        folder.display()
    );
    // A child process writes it, because a file that is open for writing cannot be run.
    let script = "printf '%s' \"$1\" > \"$0\" && chmod +x \"$0\"";
    assert!(std::process::Command::new("sh").args(["-c", script]).arg(&path).arg(lines).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

#[cfg(unix)]
fn wait_for(chat: &Chat, file: &Path) {
    let begin = Instant::now();
    while !file.exists() {
        let name = file.display();
        assert!(begin.elapsed() < Duration::from_secs(60), "{name} is not there:\n{}", chat.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As for system(3): Ctrl+C and Ctrl+\ in an editor are the editor's, which handles them or ends by
/// them. The chat goes on.
#[cfg(unix)]
#[test]
fn keys_that_are_signals_belong_to_the_editor_that_has_the_terminal() {
    let traps = "trap ': > int' INT\ntrap ': > quit' QUIT";
    for (traps, shown) in [(traps, "changed outside"), ("", "the editor \"")] {
        let home = tempfile::tempdir().unwrap();
        let env = [("EDITOR", &*editor(home.path(), traps))];
        let mut chat = Chat::start(home.path(), 100, 30, &env, CPU);
        chat.until_shows("Try one of these");
        chat.keys("unsent");
        chat.keys("\x07");
        wait_for(&chat, &home.path().join("ready"));
        chat.keys("\x03");
        if !traps.is_empty() {
            wait_for(&chat, &home.path().join("int"));
            chat.keys("\x1c");
            wait_for(&chat, &home.path().join("quit"));
            chat.say("go on");
        }
        chat.until_shows(shown);
        // A signal that was read late would end the chat now.
        chat.until_quiet(Duration::from_millis(300));
        assert_eq!(chat.screen().contains("unsent"), traps.is_empty(), "{}", chat.screen());
        chat.keys("\x15");
        chat.say("/quit");
        assert_eq!(chat.end(), 0, "{shown}");
    }
}

/// Ctrl+Z in an editor stops the chat with it, and both go on together.
#[cfg(unix)]
#[test]
fn an_editor_that_is_stopped_stops_the_chat_and_both_go_on() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let editor = editor(home.path(), "");
    let mut chat = Chat::shell(home.path(), 100, 30, &[("EDITOR", &editor), ("PS1", "shell> ")]);
    chat.until_shows("shell> ");
    chat.say(&format!("{} {}", env!("CARGO_BIN_EXE_dmschat"), CPU.join(" ")));
    chat.until_shows("Try one of these");
    chat.keys("unsent");
    chat.keys("\x07");
    wait_for(&chat, &at("ready"));
    chat.keys("\x1a");
    chat.until_shows("Stopped");
    chat.say(": > asked");
    wait_for(&chat, &at("asked"));
    chat.say("fg");
    chat.say("go on");
    chat.until_shows("changed outside");
    chat.until_quiet(Duration::from_millis(300));
    chat.keys("\x15");
    chat.say("/quit");
    // On the screen that the chat leaves; the shell has its modes once it has written its prompt.
    chat.until_shows("shell> ");
    chat.until_quiet(Duration::from_millis(500));
    chat.say("exit");
    assert_eq!(chat.end(), 0);
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
            assert!(begin.elapsed() < PATIENCE, "{}", chat.screen());
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

#[test]
fn the_terminals_background_is_asked_for_and_never_typed() {
    const WHITE: &str = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\";
    for late in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let mut chat = Chat::start(home.path(), 100, 30, &[], &["--no-session"]);
        let asked = |chat: &Chat| chat.written().windows(5).any(|w| w == b"\x1b]11;");
        let begin = Instant::now();
        while !asked(&chat) {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        if late {
            chat.until_shows("Try one of these");
            std::thread::sleep(Duration::from_millis(100));
        }
        chat.keys(&format!("ab{WHITE}c"));
        chat.until_shows("› abc");
        // Quiet text has its own grey in each theme.
        let grey = b"38;2;95;95;95";
        chat.until("the light theme", |_| chat.written().windows(grey.len()).any(|w| w == grey));
        assert!(!chat.screen().contains("rgb:") && !chat.screen().contains("ffff"), "{}", chat.screen());
        chat.keys("\x15\x04");
        assert_eq!(chat.end(), 0);
    }
    // An old console and a plain locale get ASCII, and are not asked.
    for env in [("TERM", "vt100"), ("LANG", "C")] {
        let home = tempfile::tempdir().unwrap();
        let mut chat = Chat::start(home.path(), 100, 30, &[env], &["--no-session", "--theme", "dark"]);
        chat.until_shows("F1 help");
        assert!(chat.screen().is_ascii(), "{env:?}: {}", chat.screen());
        assert!(!chat.written().windows(5).any(|w| w == b"\x1b]11;"));
        chat.keys("\x04");
        assert_eq!(chat.end(), 0);
    }
}
