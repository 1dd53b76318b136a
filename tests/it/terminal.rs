//! The chat in a real terminal beside other programs, and after it was suspended: tests that do not
//! fit into `pty`.

use crate::pty::{Chat, answer};
use std::time::{Duration, Instant};

const CPU: &[&str] = &["--device", "cpu", "--temperature", "0", "--max-tokens", "24"];

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
