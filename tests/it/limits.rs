//! Turns that fail: cancelled, out of cache, out of context, out of numbers. After each of them
//! cache and log match the report, and the next turn continues from there.

use crate::harness::{STEP, Session, prompt_of};
use crate::spy::{Spy, Watch};
use crate::steering::ask;
use crate::tiny::{Form, Spec, Tiny, bf16_word, tokenizer_json};
use dmschat::backend::cpu::Cpu;
use dmschat::codec::Codec;
use dmschat::engine::{self, Decode, EngineOptions, Runner, StepError};
use dmschat::protocol::{
    Command, Dial, Event, LogEntry, Piece, RestoreRequest, SamplingParams, StopReason, TurnReport, WhenFull,
};
use dmschat::tokenizer::Tokenizer;
use std::time::{Duration, Instant};

fn talker(seed: u64) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, Form::Borrowed) }, seed)
}

const QUESTION: &str = "a question of some forty characters or so";

fn long_question() -> String {
    "a long story, ".repeat(40)
}

/// A report that says: it is as if nothing had been asked.
fn assert_undone(s: &Session, report: &TurnReport, stop: StopReason, log: &[LogEntry]) {
    assert_eq!((report.stop_reason, report.in_context), (stop, false), "{:?}", report.detail);
    assert_eq!(s.log, log);
}

#[test]
fn cancelled_prefills_leave_no_trace() {
    let tiny = talker(300);
    let mut s = Session::new(&tiny);
    // The first of all turns.
    s.after_steps(1, Command::Cancel);
    let report = s.ask(&long_question());
    assert_undone(&s, &report, StopReason::Cancelled, &[]);

    s.ask(QUESTION);
    let log = s.log.clone();
    let fed = s.tokens().len();
    for steps in [1, 7] {
        s.after_steps(steps, Command::Cancel);
        let report = s.ask(&long_question());
        assert_undone(&s, &report, StopReason::Cancelled, &log);
        assert!(report.generated.is_empty());
    }
    // A toggle in the prefill that was then cancelled stays in force.
    s.after_steps(2, Command::SetEviction(false));
    s.after_steps(4, Command::Cancel);
    let report = s.ask(&long_question());
    let toggled = [&log[..], &[LogEntry::Toggle { eviction: false }]].concat();
    assert_undone(&s, &report, StopReason::Cancelled, &toggled);
    assert_eq!(s.ask(QUESTION).reused_tokens, fed);
}

#[test]
fn a_cancelled_answer_stays_as_far_as_it_went() {
    let tiny = talker(310);
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    let fed = s.tokens().len();
    let prompt_steps = (s.prompt(QUESTION).len() + QUESTION.len()).div_ceil(STEP) + 1;
    s.after_steps(prompt_steps + 8, Command::Cancel);
    let report = s.ask(QUESTION);
    assert_eq!((report.stop_reason, report.in_context, report.reused_tokens), (StopReason::Cancelled, true, fed));
    assert!((2..20).contains(&report.generated.len()));
    let fed = s.tokens().len();
    assert_eq!(s.ask("and then").reused_tokens, fed);
}

#[test]
fn a_cancel_after_the_checkpoint_was_given_up_feeds_the_log_again() {
    let tiny = talker(320);
    // Wherever the cancel falls, the log is what it was; somewhere, the checkpoint has just gone.
    let mut fed_again = 0;
    for steps in 4..40 {
        let mut s = Session::new(&tiny);
        s.ask(QUESTION);
        s.ask(QUESTION);
        let (log, fed) = (s.log.clone(), s.tokens().len());
        let own: usize = s.stored().iter().flatten().map(|h| h.len().div_ceil(s.info.page_slots)).sum();
        let page_bytes = (s.info.page_slots * s.info.slot_bytes) as u64;
        s.after_steps(3, Command::SetKvLimit(Some((own as u64 + 16) * page_bytes)));
        s.after_steps(steps, Command::Cancel);
        let report = s.ask(&long_question());
        if report.stop_reason == StopReason::CacheFull {
            break;
        }
        assert_undone(&s, &report, StopReason::Cancelled, &log);
        fed_again += usize::from(s.events.iter().any(|e| matches!(e, Event::Rebuilding { .. })));
        s.send(Command::SetKvLimit(None));
        assert_eq!(s.ask(QUESTION).reused_tokens, fed);
    }
    assert!(fed_again > 0);
}

#[test]
fn a_full_cache_ends_the_turn_before_the_step() {
    let tiny = talker(330);
    let pages = 60;
    for memory in [false, true] {
        let page_bytes = 16 * 260u64;
        let mut s = Session::with(&tiny, |o| o.kv_limit = (!memory).then_some(pages * page_bytes));
        s.watch.seen().room_pages = memory.then_some(pages as usize);
        s.ask(QUESTION);
        let (log, fed) = (s.log.clone(), s.tokens().len());
        // In the prompt.
        let report = s.ask(&long_question().repeat(3));
        assert_undone(&s, &report, StopReason::CacheFull, &log);
        let detail = report.detail.expect("it says why");
        let why = if memory { "out of test memory" } else { "the KV cache is full" };
        assert!(detail.starts_with(why), "{detail}");
        // In the answer: the text so far was streamed, and is not part of the context.
        s.max_tokens = 2000;
        let report = s.ask(QUESTION);
        assert_undone(&s, &report, StopReason::CacheFull, &log);
        assert!(report.generated.len() > 100);
        assert!(s.events.iter().any(|e| matches!(e, Event::Text { .. })));
        // A shorter one goes through.
        s.max_tokens = 20;
        let report = s.ask("short");
        assert_eq!((report.stop_reason, report.reused_tokens), (StopReason::MaxTokens, fed));
        assert!(s.watch.seen().peak_pages <= pages as usize);
    }
    // A limit that no token fits in is named as it was given.
    let mut s = Session::with(&tiny, |o| o.kv_limit = Some(1));
    let report = s.ask("short");
    let least = dmschat::protocol::bytes((s.info.n_layers * s.info.n_kv_heads) as u64 * 16 * 260);
    let why = format!("the KV cache's limit of 1 B is too small: one token takes {least}");
    assert_eq!((report.stop_reason, report.detail), (StopReason::CacheFull, Some(why)));
}

#[test]
fn checkpoints_are_given_up_before_a_turn_is() {
    let tiny = talker(340);
    let mut free = Session::new(&tiny);
    free.ask(QUESTION);
    free.max_tokens = 100;
    let report = free.ask(&long_question());
    let own: usize = report.kv.live.iter().flatten().map(|&n| (n as usize).div_ceil(16)).sum();
    let page_bytes = (16 * free.info.slot_bytes) as u64;
    let limit = (own as u64 + 8) * page_bytes;
    assert!(report.kv.bytes > limit, "with its checkpoints it takes more");

    let mut s = Session::with(&tiny, |o| o.kv_limit = Some(limit));
    s.ask(QUESTION);
    s.max_tokens = 100;
    let tight = s.ask(&long_question());
    assert_eq!((tight.stop_reason, &tight.generated), (StopReason::MaxTokens, &report.generated));
    assert!(tight.kv.bytes <= limit);
    assert_eq!(s.snapshot().checkpoint_bytes, 0);
    // Regenerating then costs a prefill from the first token, and is possible.
    s.send(Command::SetKvLimit(None));
    let again = s.generate(prompt_of(&s.exchanges[..1], &long_question()));
    assert_eq!((again.reused_tokens, again.in_context), (0, true));
}

#[test]
fn a_rebuild_without_room_beside_gives_the_old_cache_up_and_says_so() {
    let tiny = talker(345);
    let mut steps = 0;
    for cancelled in [false, true] {
        let mut s = Session::new(&tiny);
        s.ask(&long_question());
        s.ask(QUESTION);
        let fed = s.tokens().len();
        let own: usize = s.stored().iter().flatten().map(|h| h.len().div_ceil(s.info.page_slots)).sum();
        let page_bytes = (s.info.page_slots * s.info.slot_bytes) as u64;
        s.send(Command::SetKvLimit(Some((own as u64 + own as u64 / 2) * page_bytes)));
        let before = s.watch.seen().steps.len();
        if cancelled {
            // As late as can be: the old cache is gone by then.
            s.after_steps(steps - 2, Command::Cancel);
        }
        s.send(Command::Rebuild);
        let done =
            s.wait(
                |e| if let Event::RebuildDone { cancelled, tokens } = e { Some((*cancelled, *tokens)) } else { None },
            );
        steps = s.watch.seen().steps.len() - before;
        assert!(s.notices()[0].starts_with("the old cache is given up"), "{:?}", s.notices());
        assert_eq!(done, if cancelled { (true, 0) } else { (false, fed) });
        assert!(s.watch.seen().pages.0 <= own + own / 2);
        s.send(Command::SetKvLimit(None));
        if cancelled {
            let report = s.ask(QUESTION);
            // Fed again, the log is unchanged.
            assert_eq!((report.reused_tokens, report.log_base), (0, fed));
        } else {
            s.check_stored();
            assert_eq!(s.ask(QUESTION).reused_tokens, fed);
        }
    }
}

/// A limit below what the cache holds is said at once. Neither a rebuild that cannot fit nor the
/// next message loses the conversation.
#[test]
fn a_limit_below_the_cache_is_said_and_the_conversation_stays_usable() {
    let tiny = talker(345);
    for (when, then) in [(WhenFull::Forget, "your next message drops"), (WhenFull::Stop, "no message fits")] {
        let mut s = Session::with(&tiny, |o| o.when_full = when);
        s.ask(&long_question());
        s.toggle(false);
        let (fed, page_bytes) = (s.tokens().len(), (s.info.page_slots * s.info.slot_bytes) as u64);
        let own: usize = s.stored().iter().flatten().map(|h| h.len().div_ceil(s.info.page_slots)).sum();
        let limit = own as u64 * 3 / 4 * page_bytes;
        s.send(Command::SetKvLimit(Some(limit)));
        let plan = s.wait(|e| if let Event::Planned(plan) = e { Some((**plan).clone()) } else { None });
        let lanes = s.info.n_layers * s.info.n_kv_heads;
        let fits = limit as usize / (lanes * page_bytes as usize) * s.info.page_slots;
        assert_eq!((plan.kv_budget_bytes, plan.certain_context), (Some(limit), fits));
        assert_eq!(s.snapshot().tokens, fed);
        assert!(s.notices().iter().any(|n| n.contains("and the limit is") && n.contains(then)), "{:?}", s.notices());
        // All tokens need more: refused, and the cache is what it was.
        s.send(Command::Rebuild);
        let why = s.wait(|e| if let Event::Refused { command: "rebuild", why } = e { Some(why.clone()) } else { None });
        assert!(why.starts_with(&format!("all {fed} tokens need ")), "{why}");
        assert_eq!(s.snapshot().tokens, fed);
        let report = ask(&mut s, QUESTION);
        assert_eq!(report.in_context, when == WhenFull::Forget, "{report:?}");
        assert!(report.kv.bytes <= limit || when == WhenFull::Stop);
        s.send(Command::SetKvLimit(None));
        assert!(ask(&mut s, QUESTION).in_context && s.tokens().len() > fed);
    }
}

/// A rebuild that finds no room, after it has given the old cache up, brings that back.
#[test]
fn a_rebuild_that_does_not_fit_brings_the_old_cache_back() {
    let tiny = talker(345);
    let mut s = Session::with(&tiny, |o| o.when_full = WhenFull::Stop);
    s.ask(&long_question());
    let (fed, page_slots) = (s.tokens().len(), s.info.page_slots);
    let own: usize = s.stored().iter().flatten().map(|h| h.len().div_ceil(page_slots)).sum();
    let all = fed.div_ceil(page_slots) * s.info.n_layers * s.info.n_kv_heads;
    s.send(Command::SetDial(Dial::Ratio(1.0)));
    s.wait(|e| matches!(e, Event::DialSet { .. }).then_some(()));
    let before = s.stored();
    s.send(Command::SetKvLimit(Some(((own + all) / 2 * page_slots * s.info.slot_bytes) as u64)));
    s.send(Command::Rebuild);
    let done =
        s.wait(|e| if let Event::RebuildDone { cancelled, tokens } = e { Some((*cancelled, *tokens)) } else { None });
    assert!(s.notices().iter().any(|n| n.ends_with("the cache becomes what it was")), "{:?}", s.notices());
    assert_eq!(done, (false, fed));
    assert_eq!(s.stored(), before);
    s.send(Command::SetKvLimit(None));
    assert_eq!(ask(&mut s, QUESTION).reused_tokens, fed);
}

/// After a way back the snapshot counts what the conversation has beyond the cache.
#[test]
fn what_a_way_back_leaves_to_read_is_counted() {
    let tiny = talker(345);
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    s.ask(QUESTION);
    assert_eq!(s.snapshot().unread, 0);
    // The first turn as it was, and then as it never was.
    let rendering = prompt_of(&s.exchanges[..1], "another question");
    s.send(Command::Rewind(rendering.clone()));
    let back = s.snapshot();
    assert!(back.tokens > 0 && back.unread > "another question".len(), "{back:?}");
    let report = s.generate(rendering);
    // The last token of the first answer was not fed.
    assert_eq!(report.prompt_tokens, back.tokens + 1 + back.unread);
    assert_eq!(s.snapshot().unread, 0);
}

#[test]
fn the_context_is_checked_before_a_turn_and_ends_an_answer() {
    let tiny = talker(350);
    let mut s = Session::with(&tiny, |o| o.context = Some(200));
    s.ask(QUESTION);
    let (log, fed, steps) = (s.log.clone(), s.tokens().len(), s.watch.seen().steps.len());
    let report = s.ask(&long_question());
    assert_undone(&s, &report, StopReason::ContextFull, &log);
    let detail = report.detail.expect("it says why");
    assert!(
        detail.contains(&format!(" {} tokens", dmschat::protocol::count(report.prompt_tokens)))
            && detail.contains(" 200 "),
        "{detail}"
    );
    assert!(report.prompt_tokens > 600 && report.reused_tokens == fed);
    assert_eq!(s.watch.seen().steps.len(), steps, "no step was run");
    s.max_tokens = 1000;
    let report = s.ask("go on");
    assert_eq!((report.stop_reason, report.in_context), (StopReason::ContextFull, true));
    assert_eq!(s.tokens().len(), 200);
}

#[test]
fn numbers_that_are_not_finite_end_the_turn_and_name_the_layer() {
    for (tensor, place) in [
        ("model.layers.0.mlp.down_proj.weight", "in layer 1"),
        ("model.layers.1.self_attn.o_proj.weight", "in layer 1"),
        ("model.layers.1.mlp.down_proj.weight", "before the output head"),
    ] {
        let spec = talker(360).spec;
        let tiny = Tiny::edited(spec, 360, |block| {
            if block.name == tensor {
                block.words.fill(bf16_word(3e38));
            }
        });
        let mut s = Session::new(&tiny);
        let report = s.ask(QUESTION);
        assert_undone(&s, &report, StopReason::Error, &[]);
        let wanted = format!("the model's numbers are no longer finite, first {place}");
        assert_eq!(report.detail.as_deref(), Some(&*wanted));
    }
}

#[test]
fn one_broken_token_does_not_spoil_the_turns_after_it() {
    let spec = talker(370).spec;
    let tiny = Tiny::edited(spec.clone(), 370, |block| {
        if block.name == "model.embed_tokens.weight" {
            block.words[b'Z' as usize * spec.hidden..][..spec.hidden].fill(bf16_word(3e38));
        }
    });
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    let log = s.log.clone();
    let report = s.ask(&format!("Z {QUESTION}"));
    assert_undone(&s, &report, StopReason::Error, &log);
    assert!(report.detail.is_some_and(|d| d.ends_with("in layer 0")));
    // The turn ends with the chunk that the token is in, not with the prompt.
    let steps = s.watch.seen().steps.len();
    let report = s.ask(&format!("Z {}", long_question()));
    assert_undone(&s, &report, StopReason::Error, &log);
    assert_eq!(s.watch.seen().steps.len(), steps + 1);
    assert!(s.ask(QUESTION).in_context);
}

/// What a session file hands back: the log and the replies.
fn saved(s: &Session) -> RestoreRequest {
    let replies: Vec<_> = s.exchanges.iter().map(|e| (e.turn, e.reply.clone())).collect();
    let pending = replies.last().and_then(|(_, ids)| ids.last().copied());
    RestoreRequest { log: s.log.clone(), replies, pending, cache: None }
}

fn restored(s: &mut Session, request: RestoreRequest) -> (bool, usize) {
    s.send(Command::Restore(Box::new(request)));
    s.wait(|e| if let Event::RebuildDone { cancelled, tokens } = e { Some((*cancelled, *tokens)) } else { None })
}

#[test]
fn a_saved_log_is_taken_up_under_its_toggles() {
    let tiny = talker(380);
    let mut first = Session::new(&tiny);
    first.ask(QUESTION);
    first.after_steps(9, Command::SetEviction(false));
    first.ask(QUESTION);
    first.toggle(true);
    first.ask(QUESTION);
    let (request, fed) = (saved(&first), first.tokens().len());
    let next = first.ask("and so on");

    let mut s = Session::new(&tiny);
    assert_eq!(restored(&mut s, request.clone()), (false, fed));
    (s.log, s.exchanges) = (request.log.clone(), first.exchanges[..3].to_vec());
    s.check_stored();
    let prompt = s.prompt("and so on");
    let mut again = s.request(prompt);
    again.ask.seed = Some(next.seed);
    s.send(Command::Generate(Box::new(again)));
    let report = s.finish(0);
    assert_eq!((report.reused_tokens, report.log_base), (fed, request.log.len()));
    assert_eq!((&report.generated, &report.log, &report.kv), (&next.generated, &next.log, &next.kv));

    // A toggle while it is being fed again waits until the log's own have been followed.
    s.after_steps(2, Command::SetEviction(false));
    restored(&mut s, request.clone());
    s.wait(|e| matches!(e, Event::EvictionSet { on: false, at_token, .. } if *at_token == fed).then_some(()));
    s.log = [&request.log[..], &[LogEntry::Toggle { eviction: false }]].concat();
    s.check_stored();

    // Many toggles at one place look for slots to drop once.
    let before = s.watch.seen().calls["compact"];
    let toggles = (0..4_000).map(|n| LogEntry::Toggle { eviction: n % 2 != 0 });
    let many = RestoreRequest { log: request.log.iter().copied().chain(toggles).collect(), ..request.clone() };
    assert_eq!(restored(&mut s, many.clone()), (false, fed));
    s.log = many.log;
    s.check_stored();
    assert!(s.watch.seen().calls["compact"] - before < 10, "{:?}", s.watch.seen().calls);

    // Cancelled, or not to be fed at all: an empty conversation, and the reports say so.
    s.after_steps(2, Command::Cancel);
    assert_eq!(restored(&mut s, request.clone()), (true, 0));
    let foreign = RestoreRequest { log: vec![LogEntry::Token(5000)], ..request };
    assert_eq!(restored(&mut s, foreign.clone()), (true, 0));
    assert!(s.notices()[0].contains("names tokens that this model does not have"));
    s.log = foreign.log;
    let report = s.ask(QUESTION);
    assert_eq!((report.reused_tokens, report.log_base), (0, 0));

    // The token that waits and the replies are checked too: neither reaches a step.
    let mut broken = saved(&first);
    broken.pending = Some(4_000_000_000);
    broken.replies.iter_mut().for_each(|(_, ids)| ids.push(4_000_000_000));
    s.exchanges = first.exchanges.clone();
    s.log.clone_from(&broken.log);
    assert!(!restored(&mut s, broken).0);
    assert!(s.ask("and so on").in_context);
}

#[test]
fn a_step_with_an_unknown_token_is_refused() {
    let tiny = talker(380);
    let options = EngineOptions::new(Codec::F32);
    let mut runner = Runner::new(Cpu::new(1), &tiny.checkpoint(), &options, |_, _| true).unwrap();
    let vocab = runner.config().vocab;
    let seq = runner.create(true).unwrap();
    let unknown =
        |e: StepError| matches!(e, StepError::UnknownToken { token, vocab: v } if token as usize == v && v == vocab);
    assert!(unknown(runner.feed(seq, &[1, vocab as u32]).unwrap_err()));
    let sampling = SamplingParams::default();
    let step = [Decode { seq, token: vocab as u32, sampling: &sampling, seed: 1 }];
    assert!(unknown(runner.decode(&step).unwrap_err()));
    assert_eq!(runner.cache.len(seq), 0);
}

#[test]
fn commands_queue_behind_a_turn_and_a_cancel_ends_only_what_runs() {
    let tiny = talker(390);
    let mut s = Session::new(&tiny);
    s.max_tokens = 400;
    let prompt = s.prompt("something else");
    let second = Box::new(s.request(prompt));
    for (steps, command) in [(1, Command::Generate(second)), (2, Command::Clear), (9, Command::Cancel)] {
        s.after_steps(steps, command);
    }
    let prompt = s.prompt(QUESTION);
    let first = Box::new(s.request(prompt));
    s.send(Command::Generate(first));
    let mut done = || s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    let (first, second) = (done(), done());
    assert_eq!((first.turn, first.stop_reason), (2, StopReason::Cancelled));
    assert_eq!((second.turn, second.stop_reason), (1, StopReason::MaxTokens));
    assert_eq!((second.reused_tokens, second.generated.len()), (0, 400));
    s.check_stored();
    assert_eq!(s.snapshot().tokens, 0, "cleared after the second turn");
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nobody_left_ends_the_engine_and_a_panic_is_told() {
    let tiny = talker(400);
    for running in [false, true] {
        let mut s = Session::new(&tiny);
        s.max_tokens = 100_000;
        let watch = s.watch.clone();
        if running {
            let prompt = s.prompt(QUESTION);
            let request = s.request(prompt);
            s.send(Command::Generate(Box::new(request)));
            wait_until(|| watch.seen().steps.len() > 5);
        }
        assert!(!watch.seen().ended && !engine::join_all(Duration::ZERO));
        drop(s);
        wait_until(|| watch.seen().ended);
    }
    let mut s = Session::new(&tiny);
    s.watch.seen().panic_at = Some(2);
    let prompt = s.prompt(QUESTION);
    let request = s.request(prompt);
    s.send(Command::Generate(Box::new(request)));
    let mut failure = None;
    wait_until(|| {
        if let Ok(Event::Failed(why)) = s.handle.events.try_recv().map(|r| r.event) {
            failure = Some(why);
        }
        failure.is_some()
    });
    assert_eq!(failure.as_deref(), Some("the engine stopped: as the test wants it"));
    wait_until(|| !s.handle.send(Command::Clear));
}

#[test]
fn a_model_that_nobody_waits_for_is_not_loaded() {
    let tiny = talker(401);
    let (watch, (dropped, until_dropped)) = (Watch::default(), std::sync::mpsc::channel());
    let backend = {
        let watch = watch.clone();
        move || {
            let _ = until_dropped.recv();
            Ok(Spy::new(&watch))
        }
    };
    drop(engine::spawn(tiny.opener(), backend, EngineOptions::new(Codec::F32)).unwrap());
    dropped.send(()).unwrap();
    wait_until(|| watch.seen().ended);
    assert_eq!(watch.seen().calls.get("weight"), None);
}

#[test]
fn a_cancel_ends_the_encoding_of_a_long_prompt() {
    let tiny = Tiny::new(Spec { context: 1 << 20, ..talker(410).spec }, 410);
    let mut s = Session::new(&tiny);
    // Without a space between letters, so that it is encoded in one piece.
    let question = "hé\n".repeat(400_000);
    let tokenizer = Tokenizer::new(tokenizer_json(tiny.spec.vocab).as_bytes(), tiny.spec.vocab).unwrap();
    let started = Instant::now();
    tokenizer.encode_pieces(&[Piece::Text(question.clone())]).unwrap();
    let whole = started.elapsed();
    let prompt = s.prompt(&question);
    let request = Box::new(s.request(prompt));
    s.send(Command::Generate(request));
    std::thread::sleep(whole / 8);
    let cancelled = Instant::now();
    s.handle.send(Command::Cancel);
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    assert_undone(&s, &report, StopReason::Cancelled, &[]);
    assert!(cancelled.elapsed() < whole / 2, "{:?} of {whole:?}", cancelled.elapsed());
    // Longer than any prompt of this context can be: refused without being encoded.
    let prompt = s.prompt(&"a".repeat((12 << 20) + 1));
    let report = s.generate(prompt);
    assert_undone(&s, &report, StopReason::ContextFull, &[]);
    let detail = report.detail.expect("it says why");
    assert!(detail.starts_with("the prompt has at least 1,048,58"), "{detail}");
    assert!(detail.contains(" (12,582,9") && detail.contains("holds 1,048,576;"), "{detail}");
}
