//! Conversation, template, session and engine together, with the built-in model.

use dmschat::chat::session::{Session, Store, load};
use dmschat::chat::{Conversation, RenderOptions, render};
use dmschat::cli::client::{Client, Sampling};
use dmschat::cli::spawn;
use dmschat::config::{Dirs, Layer, Settings};
use dmschat::protocol::{
    Ask, Command, EngineHandle, Event, GenerateRequest, ModelInfo, Piece, SamplingParams, TurnReport,
};
use std::sync::Arc;

fn engine() -> Client {
    let dirs = Dirs { config: "/nonexistent".into(), data: "/nonexistent".into(), cache: "/nonexistent".into() };
    Client::start(&Settings::from_layer(dirs, Layer::default()).unwrap()).unwrap()
}

/// Another process continues a saved session under `-p` and does not write its file.
#[test]
fn one_answer_continues_a_saved_session_without_writing_it() {
    let home = tempfile::tempdir().unwrap();
    let mut first = engine();
    let mut chat = Conversation::new(None);
    let report = ask(&mut first, &mut chat, "Solve 2*x + 3 = 11 for x.");
    let mut session = Store::new(home.path().join("sessions")).create();
    let info = first.info.clone();
    session.sync(&mut chat, &info).unwrap();
    let before = std::fs::read(session.path().unwrap()).unwrap();
    let mut answers = Vec::new();
    for flags in [&["--continue"][..], &["--resume", session.id()]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"))
            .args(["-p", "Solve 3*y - 6 = 9 for y.", "--json", "--temperature", "0"])
            .args(flags)
            .env("DMSCHAT_DATA_DIR", home.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["prompt_tokens"].as_u64().unwrap() as usize > report.prompt_tokens + report.generated.len());
        answers.push(json["answer"].clone());
    }
    let here = ask(&mut first, &mut chat, "Solve 3*y - 6 = 9 for y.");
    let text = chat.reply(here.turn).unwrap().shown();
    assert_eq!(answers, [text, text]);
    assert_eq!(std::fs::read(session.path().unwrap()).unwrap(), before);
    assert_eq!(std::fs::read_dir(home.path().join("sessions")).unwrap().count(), 1);
}

fn ask(engine: &mut Client, chat: &mut Conversation, question: &str) -> TurnReport {
    ask_with(engine, chat, question, None)
}

/// Like [`ask`], with a limit to the thought.
fn ask_with(engine: &mut Client, chat: &mut Conversation, question: &str, max_think: Option<usize>) -> TurnReport {
    let (params, seed, max_tokens) = (SamplingParams::default(), Some(1), Some(400));
    let sampling = Sampling { params, seed, max_tokens, max_think, drafts: 0, chains: None, check: None };
    chat.push_user(question);
    engine.answer(chat, &sampling, |_, _| Ok(())).unwrap()
}

#[test]
fn a_turn_prefills_only_what_is_new_also_after_a_resume() {
    let mut first = engine();
    let mut chat = Conversation::new(None);
    let mut session = Session::unsaved();
    let mut log_len = 0;
    for question in ["Solve 2*x + 3 = 11 for x.", "Solve 3*y - 6 = 9 for y."] {
        let report = ask(&mut first, &mut chat, question);
        let info = first.info.clone();
        session.sync(&mut chat, &info).unwrap();
        assert_eq!((report.log_base, report.reused_tokens), (log_len, log_len), "turn {}", report.turn);
        log_len += report.log.len();
    }
    // The same third turn, once in the running engine and once after a resume.
    let mut again = engine();
    let loaded = load(session.jsonl().as_bytes(), "s").unwrap();
    let mut restored = again.restore(loaded).unwrap();
    let question = "Solve 4*z + 1 = 13 for z.";
    let (one, two) = (ask(&mut first, &mut chat, question), ask(&mut again, &mut restored, question));
    assert_eq!((one.reused_tokens, two.reused_tokens), (log_len, log_len));
    // Bytes count checkpoints, which the resumed conversation has fewer of.
    assert_eq!((&one.generated, &one.kv.live), (&two.generated, &two.kv.live));
    assert_eq!(chat.reply(one.turn).unwrap().text, restored.reply(two.turn).unwrap().text);
}

#[test]
fn a_thought_that_reaches_its_limit_is_closed_and_every_token_is_counted() {
    const SEARCH: &str = "Reach 24 with three of 3, 5, 7, 9.";
    let mut first = engine();
    let (mut chat, mut session) = (Conversation::new(None), Session::unsaved());
    let report = ask_with(&mut first, &mut chat, SEARCH, Some(100));
    assert_eq!((report.thought_closed_at, report.reasoning_tokens), (Some(100), 101));
    assert_eq!(report.answer_tokens + report.reasoning_tokens, report.generated.len());
    let reply = chat.reply(report.turn).unwrap();
    assert!(reply.reasoning_closed && !reply.shown().is_empty(), "{reply:?}");
    assert_eq!(report.log.len() + 1, report.prompt_tokens + report.generated.len());
    session.sync(&mut chat, &first.info.clone()).unwrap();
    // The tokens that were set are replayed like the others, and a text that spells them is not
    // encoded again.
    let mut again = engine();
    let mut restored = again.restore(load(session.jsonl().as_bytes(), "s").unwrap()).unwrap();
    let (one, two) = (ask(&mut first, &mut chat, SEARCH), ask(&mut again, &mut restored, SEARCH));
    assert_eq!((one.reused_tokens, &one.generated), (two.reused_tokens, &two.generated));
    assert_eq!((one.reused_tokens, &one.kv.live), (report.log.len(), &two.kv.live));
    // Without a limit the thought of a greedy answer goes round in circles, which is noticed.
    assert_eq!(one.thought_closed_at, None);
    assert!(one.repeats_at.is_some(), "{one:?}");
}

/// An engine with a conversation and a session that follow its events as the chat does.
struct Driven {
    handle: EngineHandle,
    info: Arc<ModelInfo>,
    chat: Conversation,
    session: Session,
}

impl Driven {
    fn new() -> Self {
        let dirs = Dirs { config: "/nonexistent".into(), data: "/nonexistent".into(), cache: "/nonexistent".into() };
        let mut handle =
            spawn::engine(&Settings::from_layer(dirs, Layer::default()).unwrap(), 0, std::sync::Arc::default())
                .unwrap();
        let info = loop {
            if let Event::Ready(info) = handle.events.blocking_recv().unwrap().event {
                break info;
            }
        };
        Self { handle, info, chat: Conversation::new(None), session: Session::unsaved() }
    }

    fn opts(&self) -> RenderOptions {
        RenderOptions { think_tags: self.info.think_tags.clone(), ..RenderOptions::default() }
    }

    fn prompt(&self) -> Vec<Piece> {
        render(self.chat.system(), &self.chat.context_path(), &self.info.template, &self.opts()).unwrap()
    }

    /// Receives events until `last` returns true.
    fn hear(&mut self, mut last: impl FnMut(&Event) -> bool) {
        loop {
            let event = self.handle.events.blocking_recv().unwrap().event;
            match &event {
                Event::Text { turn, kind, text } => drop(self.chat.append(*turn, *kind, text)),
                Event::WasThought { turn } => self.chat.was_thought(*turn),
                Event::TurnDone(report) => drop(self.chat.finish((**report).clone())),
                Event::EvictionSet { on, at_token, dropped_slots } => {
                    self.chat.mark_toggle(*on, *at_token, *dropped_slots);
                }
                _ => {}
            }
            let info = Arc::clone(&self.info);
            self.session.sync(&mut self.chat, &info).unwrap();
            if last(&event) {
                return;
            }
        }
    }

    fn toggle(&mut self, on: bool) {
        self.handle.send(Command::SetEviction(on));
        self.hear(|e| matches!(e, Event::EvictionSet { .. }));
    }

    /// Generates a reply to the head. `toggle`: switches eviction during the answer.
    fn answer(&mut self, toggle: Option<bool>) -> TurnReport {
        let prompt = self.prompt();
        let turn = self.chat.begin_reply(true, None);
        let sampling = SamplingParams::default();
        let request = GenerateRequest {
            turn,
            ask: Ask { prompt, sampling, seed: Some(1), max_tokens: Some(90), ..Ask::default() },
            pin: None,
            chains: None,
        };
        self.handle.send(Command::Generate(Box::new(request)));
        if let Some(on) = toggle {
            self.hear(|e| matches!(e, Event::Text { .. }));
            self.handle.send(Command::SetEviction(on));
        }
        self.hear(|e| matches!(e, Event::TurnDone(_)));
        (**self.chat.reply(turn).unwrap().report.as_ref().unwrap()).clone()
    }

    fn ask(&mut self, question: &str, toggle: Option<bool>) -> TurnReport {
        self.chat.push_user(question);
        self.answer(toggle)
    }
}

#[test]
fn a_resume_after_toggles_undo_and_regenerate_ends_where_the_engine_was() {
    let mut first = Driven::new();
    first.ask("Solve 2*x + 3 = 11 for x.", None);
    first.toggle(false);
    first.ask("Solve 3*y - 6 = 9 for y.", None);
    first.ask("Solve 7*w - 6 = 8 for w.", Some(true));
    first.chat.undo();
    first.handle.send(Command::Rewind(first.prompt()));
    first.toggle(false);
    first.toggle(true);
    first.ask("Solve 5*k + 5 = 40 for k.", Some(false));
    first.chat.regenerate();
    first.answer(None);
    first.toggle(true);
    first.toggle(false);

    let mut again = Driven::new();
    let mut loaded = load(first.session.jsonl().as_bytes(), "s").unwrap();
    assert_eq!((loaded.problems.len(), loaded.eviction), (0, Some(false)));
    let (request, notice) = loaded.restore_for(&again.info);
    assert_eq!(notice, None);
    again.chat = loaded.conversation;
    again.toggle(false);
    again.handle.send(Command::Restore(Box::new(request)));
    again.hear(|e| matches!(e, Event::RebuildDone { .. }));
    let question = "Solve 4*z + 1 = 13 for z.";
    let (one, two) = (first.ask(question, None), again.ask(question, None));
    assert_eq!((one.prompt_tokens, one.reused_tokens), (two.prompt_tokens, two.reused_tokens));
    // A toggle before the turn is in its part of the log or before it: the whole log is the same.
    assert_eq!(one.log_base + one.log.len(), two.log_base + two.log.len());
    assert_eq!(one.generated, two.generated);
    assert_eq!((one.kv.live_slots, &one.kv.live), (two.kv.live_slots, &two.kv.live));
}

/// The switch outlives the turn in which it was used: taken back, that turn leaves a mark where the
/// switch acts now.
#[test]
fn a_toggle_outlives_the_turn_that_is_undone_and_is_marked_again() {
    let mut engine = Driven::new();
    engine.ask("Solve 2*x + 3 = 11 for x.", None);
    engine.ask("Solve 3*y - 6 = 9 for y.", Some(false));
    engine.chat.undo();
    engine.handle.send(Command::Rewind(engine.prompt()));
    engine.handle.send(Command::CountTokens { id: 1, text: "x".into() });
    engine.hear(|e| matches!(e, Event::TokensCounted { .. }));
    let (mark, head) = (*engine.chat.marks().last().unwrap(), engine.chat.head());
    assert_eq!((engine.chat.marks().len(), mark.after, mark.eviction), (2, head, false));
    let loaded = load(engine.session.jsonl().as_bytes(), "s").unwrap();
    assert_eq!((loaded.eviction, loaded.conversation.marks()), (Some(false), engine.chat.marks()));
}

/// A turn that was undone does not come back with the answer before it, also once it is read again.
#[test]
fn an_undone_turn_stays_behind_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = dmschat::chat::session::Store::new(dir.path()).create();
    let mut chat = Conversation::new(None);
    crate::session::turn(&mut chat, Some("one"), "a", 0);
    crate::session::turn(&mut chat, Some("two"), "b", 0);
    chat.undo();
    chat.regenerate();
    crate::session::turn(&mut chat, None, "c", 0);
    session.sync(&mut chat, &crate::session::info()).unwrap();
    let mut read = load(session.jsonl().as_bytes(), "x").unwrap().conversation;
    assert_eq!(read.path().last().unwrap().text, "c");
    let old = read.messages().iter().find(|m| m.text == "a").unwrap().id;
    assert!(read.switch_to(old));
    assert_eq!(read.path().iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), ["one", "a"]);
}
