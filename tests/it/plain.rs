//! A base model without a chat template, which continues text: its answer ends where it writes the
//! user's next line.

use crate::cli::{dmschat, said};
use crate::pty::{Chat, answer};
use crate::tiny::{CONTROL, Form, Spec, Tiny, bf16_word};
use serde_json::Value;
use std::fs;

/// After each of these characters the model says the next one, and after the last the first: for
/// ever.
const SAYS: &[u8] = b": a\nUser";

fn model() -> Tiny {
    let spec = Spec { tied: false, ..Spec::new(false, Form::Borrowed) };
    let (hidden, place) = (spec.hidden, |id: usize| SAYS.iter().position(|&byte| usize::from(byte) == id));
    let tiny = Tiny::edited(spec, 5, |block| {
        if block.name.ends_with("o_proj.weight") || block.name.ends_with("down_proj.weight") {
            block.words.fill(0);
        }
        let is_head = block.name == "lm_head.weight";
        if is_head || block.name == "model.embed_tokens.weight" {
            for (id, row) in block.words.chunks_mut(hidden).enumerate() {
                row.fill(0);
                let at = place(id).map(|at| if is_head { (at + SAYS.len() - 1) % SAYS.len() } else { at });
                row[at.unwrap_or(hidden - 1)] = bf16_word(if is_head && at.is_none() { 0.0 } else { 8.0 });
            }
        }
    });
    let tokenizer = fs::read_to_string(tiny.folder.file("tokenizer.json")).unwrap();
    let without = CONTROL.iter().fold(tokenizer, |text, token| text.replace(token, &format!("<|{}|>", token.len())));
    fs::write(tiny.folder.file("tokenizer.json"), without).unwrap();
    tiny
}

#[test]
fn an_answer_ends_before_the_users_next_line() {
    let (tiny, home) = (model(), tempfile::tempdir().unwrap());
    let folder = tiny.folder.path().to_str().unwrap();
    let fixed = ["--device", "cpu", "-m", folder, "--temperature", "0", "--max-tokens", "60"];
    let drafted: &[&str] = &["--draft", "lookup"];
    for more in [&["--draft", "off"][..], drafted, &["--width", "3", "--early-stop", "off"]] {
        let args = [&fixed[..], &["-p", "a\nUser: a\nUser: a", "--json"], more].concat();
        let (code, stdout, stderr) = said(&dmschat(&home).args(args).output().unwrap());
        let json: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
        let text = json["answer"].as_str().unwrap().trim();
        assert_eq!((code, text, &json["stop_reason"]), (0, "a", &"end".into()), "{more:?}: {json}{stderr}");
        for chain in json["chains"].as_array().into_iter().flatten() {
            assert_eq!((chain["answer"].as_str().unwrap().trim(), &chain["stop_reason"]), ("a", &"end".into()));
        }
    }
    let (code, stdout, _) = said(&dmschat(&home).args(fixed).args(["-p", "hi"]).output().unwrap());
    assert_eq!((code, stdout.trim()), (0, "a"));
    // In a chat, where a second turn follows the text that is left.
    let mut chat = Chat::start(home.path(), 100, 30, &[], &fixed);
    chat.until_shows("no chat template");
    for n in 1..=2 {
        chat.say("hello");
        let screen = answer(&chat, n);
        assert!(!screen.contains("User:"), "{screen}");
    }
    chat.say("/quit");
    assert_eq!(chat.end(), 0);
}
