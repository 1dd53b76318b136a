//! Prompts that belong to no conversation: which slot answers one, and what a slot keeps.

use crate::harness::{STEP, control, text};
use crate::spy::{Spy, Watch};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::codec::Codec;
use dmschat::engine::{self, EngineOptions};
use dmschat::protocol::{
    Ask, Command, EngineHandle, Event, GenerateRequest, Piece, SamplingParams, StopReason, Token, TurnReport,
};
use dmschat::tokenizer::flatten;
use std::time::{Duration, Instant};

fn talker() -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) }, 210)
}

/// An engine with slots, and the handle that keeps it.
struct Server {
    watch: Watch,
    handle: EngineHandle,
}

impl Server {
    fn new(tiny: &Tiny, slots: usize) -> Self {
        Self::with(tiny, slots, |_| {})
    }

    fn with(tiny: &Tiny, slots: usize, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let (watch, max_seqs) = (Watch::default(), 4 * (slots + 1));
        let mut options =
            EngineOptions { max_step: Some(STEP), slots, max_seqs, max_older: 2, ..EngineOptions::new(Codec::F32) };
        change(&mut options);
        let seen = watch.clone();
        let handle = engine::spawn(tiny.opener(), move || Ok(Spy::new(&seen)), options).unwrap();
        Self { watch, handle }
    }

    fn ask(&self, ask: Ask) -> EngineHandle {
        self.handle.commands.ask(ask, None)
    }

    /// Asks, and leaves after this number of steps of the engine.
    fn ask_and_leave(&self, ask: Ask, steps: usize) {
        // No step begins before the engine knows when to stop.
        let mut seen = self.watch.seen();
        let handle = self.ask(ask);
        seen.close_at.insert(steps, handle);
        drop(seen);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.watch.seen().close_at.is_empty() {
            assert!(Instant::now() < deadline, "there are fewer steps");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Asks, waits for the answer and frees the slot.
    fn answer(&self, ask: Ask) -> (TurnReport, String) {
        finish(self.ask(ask))
    }

    /// Tokens fed so far.
    fn fed(&self) -> usize {
        self.watch.seen().steps.iter().sum()
    }
}

fn next(handle: &mut EngineHandle) -> Event {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match handle.events.try_recv() {
            Ok(response) => return response.event,
            Err(_) => {
                assert!(Instant::now() < deadline, "the engine says nothing");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

fn finish(mut handle: EngineHandle) -> (TurnReport, String) {
    listen(&mut handle)
}

/// The next answer of a handle.
fn listen(handle: &mut EngineHandle) -> (TurnReport, String) {
    let mut said = String::new();
    loop {
        match next(handle) {
            Event::Text { text, .. } => said += &text,
            Event::TurnDone(report) => return (*report, said),
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
}

/// A chat whose last message is of the user.
fn chat(messages: &[&str]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        let role = if i % 2 == 0 { "user\n" } else { "assistant\n" };
        pieces.extend([control("<|im_start|>"), text(role), text(message), control("<|im_end|>"), text("\n")]);
    }
    pieces.extend([control("<|im_start|>"), text("assistant\n")]);
    pieces
}

fn ask(prompt: Vec<Piece>, max_tokens: usize) -> Ask {
    let sampling = SamplingParams { temperature: 1.0, top_k: 5, ..SamplingParams::default() };
    Ask { prompt, sampling, seed: Some(7), max_tokens: Some(max_tokens), ..Ask::default() }
}

const QUESTION: &str = "a question of some forty characters or so";
const OTHER: &str = "something else that has nothing to do with it";

#[test]
fn a_second_turn_is_answered_where_the_first_was_and_reads_only_what_is_new() {
    let tiny = talker();
    let server = Server::new(&tiny, 2);
    let (first, said) = server.answer(ask(chat(&[QUESTION]), 20));
    assert_eq!((first.reused_tokens, first.in_context), (0, true));
    // Another client has the other slot in the meantime.
    let (other, _) = server.answer(ask(chat(&[OTHER]), 20));
    assert_eq!(other.reused_tokens, 0);
    let before = server.fed();
    let turn = chat(&[QUESTION, &said, "and then?"]);
    let (second, _) = server.answer(ask(turn, 20));
    // The tokens of the answer are not encoded again. Its last one was not fed yet.
    assert_eq!(second.reused_tokens, first.prompt_tokens + first.generated.len() - 1);
    let fed = second.prompt_tokens - second.reused_tokens + second.generated.len() - 1;
    assert_eq!(server.fed() - before, fed, "nothing else is fed");
    // A conversation says the same.
    let mut owned = Server::new(&tiny, 0);
    let mut turn = chat(&[QUESTION, &said, "and then?"]);
    let reply = turn.iter().position(|piece| *piece == text(&said)).unwrap();
    turn[reply] = Piece::Reply { turn: 1, pieces: vec![text(&said)] };
    let [_, alone] = [(1, chat(&[QUESTION])), (2, turn)].map(|(turn, prompt)| {
        let request = GenerateRequest { turn, ask: ask(prompt, 20), pin: None, chains: None };
        owned.handle.send(Command::Generate(Box::new(request)));
        listen(&mut owned.handle).0
    });
    assert_eq!((&second.generated, second.kv.live), (&alone.generated, alone.kv.live));
}

#[test]
fn a_client_that_leaves_while_its_prompt_is_read_stops_that_and_the_slot_keeps_what_was_read() {
    let tiny = talker();
    let long = "a long story, ".repeat(40);
    for stop_at in [1, 7, 20] {
        let server = Server::new(&tiny, 1);
        server.ask_and_leave(ask(chat(&[&long]), 10), stop_at);
        // The same beginning with another end, as of a client that asks differently.
        let prompt = chat(&[&format!("{long}in short")]);
        let (report, _) = server.answer(ask(prompt.clone(), 10));
        // The step in which it left was the last one.
        assert_eq!(report.reused_tokens, stop_at * STEP);
        assert_eq!(server.fed(), report.prompt_tokens + report.generated.len() - 1, "nothing is read twice");
        let (alone, _) = Server::new(&tiny, 1).answer(ask(prompt, 10));
        assert_eq!((&report.generated, report.kv.live), (&alone.generated, alone.kv.live));
        // What another prompt shares by its text alone is not taken.
        let (other, _) = server.answer(ask(chat(&[OTHER]), 5));
        assert_eq!(other.reused_tokens, 0);
    }
}

#[test]
fn a_client_that_leaves_while_it_is_answered_stops_the_answer_within_a_step() {
    let tiny = talker();
    let server = Server::new(&tiny, 1);
    let prompt = chat(&[QUESTION]).iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 1 }).sum();
    let steps = usize::div_ceil(prompt - 1, STEP) + 5;
    server.ask_and_leave(ask(chat(&[QUESTION]), 900), steps);
    let (report, _) = server.answer(ask(chat(&[QUESTION]), 20));
    assert_eq!((report.reused_tokens, report.prompt_tokens), (prompt - 1, prompt), "the prompt is still there");
    assert_eq!(server.fed(), prompt - 1 + 5 + report.generated.len(), "five tokens were decoded for nobody");
}

#[test]
fn slots_that_are_taken_refuse_and_a_free_one_answers_again() {
    let tiny = talker();
    let server = Server::new(&tiny, 1);
    let held = server.ask(ask(chat(&[QUESTION]), 900));
    let mut refused = server.ask(ask(chat(&[OTHER]), 5));
    assert!(matches!(next(&mut refused), Event::Failed(why) if why.contains("taken")));
    drop((held, refused));
    assert_eq!(server.answer(ask(chat(&[OTHER]), 5)).0.stop_reason, StopReason::MaxTokens);
    assert!(matches!(next(&mut Server::new(&tiny, 0).ask(ask(chat(&[OTHER]), 5))), Event::Failed(_)));
}

#[test]
fn an_idle_slot_gives_way_to_an_answer_that_needs_its_memory() {
    let tiny = talker();
    let long = "a long story, ".repeat(50);
    let free = Server::new(&tiny, 1);
    let (alone, _) = free.answer(ask(chat(&[&long]), 60));
    let pages = free.watch.seen().peak_pages;
    // Room for one of them and a half.
    let page_bytes = alone.kv.live_bytes / alone.kv.live_slots * 16;
    let server = Server::with(&tiny, 2, |o| o.kv_limit = Some(pages as u64 * page_bytes * 3 / 2));
    let (first, _) = server.answer(ask(chat(&[&format!("first, {long}")]), 60));
    let (second, _) = server.answer(ask(chat(&[&long]), 60));
    assert!(first.in_context && second.in_context, "{:?}", second.detail);
    assert_eq!((&second.generated, second.kv.live), (&alone.generated, alone.kv.live));
}

/// A prompt of a client: a system prompt, and a question of its own.
fn with_system(system: &str, question: &str) -> Ask {
    let lead = [control("<|im_start|>"), text("system\n"), text(system), control("<|im_end|>"), text("\n")];
    let lead = [&lead[..], &[control("<|im_start|>"), text("user\n")]].concat();
    let rest = [text(question), control("<|im_end|>"), text("\n"), control("<|im_start|>"), text("assistant\n")];
    Ask { shared: flatten(&lead).len(), ..ask([&lead[..], &rest].concat(), 20) }
}

#[test]
fn a_system_prompt_that_clients_share_is_read_once() {
    let tiny = talker();
    let system = "You are helpful. ".repeat(12);
    // Tokens are single characters.
    let lead = 1 + "system\n".len() + system.len() + 1 + "\n".len() + 1 + "user\n".len();
    let server = Server::new(&tiny, 2);
    let questions = [QUESTION, OTHER, "and a third one", "the last of them"];
    for (n, question) in questions.into_iter().enumerate() {
        let before = server.fed();
        let (report, _) = server.answer(with_system(&system, question));
        // The third and the fourth take the slots of the first two.
        assert_eq!(report.reused_tokens, if n == 0 { 0 } else { lead }, "{question}");
        let fed = report.prompt_tokens - report.reused_tokens + report.generated.len() - 1;
        assert_eq!(server.fed() - before, fed, "nothing else is fed");
        let (alone, _) = Server::new(&tiny, 2).answer(Ask { shared: 0, ..with_system(&system, question) });
        assert_eq!((&report.generated, report.kv.live), (&alone.generated, alone.kv.live), "{question}");
    }
    // Another one is read. A few tokens are not worth a state.
    for system in ["You are grumpy. ".repeat(12), "x".to_owned()] {
        assert_eq!(server.answer(with_system(&system, QUESTION)).0.reused_tokens, 0);
    }
    assert_eq!(server.answer(with_system("x", OTHER)).0.reused_tokens, 0);
}

#[test]
fn a_stop_text_ends_an_answer_across_tokens_and_drafts() {
    let tiny = talker();
    let server = Server::new(&tiny, 1);
    let (whole, said) = server.answer(ask(chat(&[QUESTION]), 60));
    assert_eq!((whole.stop_reason, whole.generated.len()), (StopReason::MaxTokens, 60));
    // Tokens are single characters here: this text is three of them.
    let at = 20 + said[20..].char_indices().nth(1).unwrap().0;
    let stop: String = said[at..].chars().take(3).collect();
    let first = said.find(&stop).unwrap();
    let stops =
        |drafts| Ask { stop: vec!["never said".to_owned(), stop.clone()], drafts, ..ask(chat(&[QUESTION]), 60) };
    let (report, short) = server.answer(stops(0));
    assert_eq!((report.stop_reason, &*short), (StopReason::End, &said[..first]));
    assert_eq!(report.generated, whole.generated[..report.generated.len()], "and no token more");
    let drafting = Server::with(&tiny, 1, |o| o.drafts.rows = 8);
    let (with_drafts, same) = drafting.answer(stops(7));
    assert_eq!((&with_drafts.generated, same), (&report.generated, short));
}

#[test]
fn penalties_and_biases_change_what_is_sampled_and_drafts_do_not() {
    let tiny = talker();
    let greedy = |sampling| Ask { sampling, ..ask(chat(&[QUESTION]), 40) };
    let server = Server::with(&tiny, 1, |o| o.drafts.rows = 8);
    let (plain, _) = server.answer(greedy(SamplingParams::default()));
    let counts = |report: &TurnReport| {
        let mut counts = std::collections::BTreeMap::<Token, usize>::new();
        report.generated.iter().for_each(|&token| *counts.entry(token).or_default() += 1);
        counts
    };
    let most = |report: &TurnReport| counts(report).into_iter().max_by_key(|(_, n)| *n).unwrap();
    let (token, times) = most(&plain);
    assert!(times > 2, "a greedy answer repeats itself: {plain:?}");
    let frequency = SamplingParams { frequency_penalty: 2.0, ..SamplingParams::default() };
    let (spread, _) = server.answer(greedy(frequency.clone()));
    assert!(most(&spread).1 < times, "{:?}", counts(&spread));
    let (drafted, _) = server.answer(Ask { drafts: 7, ..greedy(frequency) });
    assert_eq!(drafted.generated, spread.generated);
    let forbidden = Ask { logit_bias: vec![(token, -100.0)], ..greedy(SamplingParams::default()) };
    let (other, _) = server.answer(forbidden.clone());
    assert!(!other.generated.contains(&token) && other.generated.len() > 1);
    let (drafted, _) = server.answer(Ask { drafts: 7, ..forbidden });
    assert_eq!(drafted.generated, other.generated);
    let (wrong, _) = server.answer(Ask { logit_bias: vec![(9_999_999, 1.0)], ..greedy(SamplingParams::default()) });
    assert!(wrong.stop_reason == StopReason::Error && wrong.detail.unwrap().contains("9999999"));
}
