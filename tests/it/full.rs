//! A full context in the chat: the way out of it, and what the new conversation knows.

use crate::pty::Chat;
use std::time::Duration;

/// A stated fact, the question for it, and the answer.
const TOLD: [(&str, &str, &str); 10] = [
    ("Remember: my name is Ada.", "What is my name?", "Ada"),
    ("My favourite number is 77.", "What is my favourite number?", "77"),
    ("The access code is 48213.", "What is the access code?", "48213"),
    ("My dog is called Rex.", "What is my dog called?", "Rex"),
    ("The room number is 512.", "What is the room number?", "512"),
    ("I live in Lyon.", "Where do I live?", "Lyon"),
    ("My phone number is 90125.", "What is my phone number?", "90125"),
    ("My sister is called Mia.", "What is my sister called?", "Mia"),
    ("The locker number is 346.", "What is the locker number?", "346"),
    ("My favourite colour is green.", "What is my favourite colour?", "green"),
];

#[test]
fn ten_facts_come_along_from_a_full_context() {
    let home = tempfile::tempdir().unwrap();
    let args = ["--ctx-size", "1500", "--max-think", "0", "--temperature", "0"];
    let mut chat = Chat::start(home.path(), 120, 40, &[], &args);
    chat.until_shows("demo");
    for (said, _, _) in TOLD {
        chat.say(said);
        chat.until_quiet(Duration::from_millis(1500));
    }
    // It goes round in circles, which is said in one line, and fills the context.
    chat.say("Reach 24 with three of 3, 5, 7, 9.");
    let shown = chat.until_shows("context full: /undo takes the last turn");
    assert_eq!(shown.matches("it repeats itself; Esc stops it").count(), 1, "{shown}");
    for question in ["What is my name?", "And the access code?"] {
        chat.say(question);
        chat.until_shows("not sent (Up recalls it): context full: ");
    }
    assert!(!chat.screen().contains("name?And"), "{}", chat.screen());
    chat.say("/compact");
    let shown = chat.until_shows("a new conversation continues with your messages");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    let sessions = std::fs::read_dir(home.path().join("data/sessions")).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = sessions
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let (new, old): (Vec<&String>, Vec<&String>) = texts.iter().partition(|text| text.contains("\"continues\""));
    assert_eq!((new.len(), old.len()), (1, 1));
    for (_, question, fact) in TOLD {
        assert!(new[0].contains(fact) && old[0].contains(fact), "{question} {fact}: {shown}");
    }
}
