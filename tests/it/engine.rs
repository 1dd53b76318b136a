//! Turns of a running engine: which tokens are reused and which are prefilled, and that logits,
//! live slots and bytes match the token log after every turn.

use crate::harness::{Exchange, STEP, Session, control, prompt_of, spelled, text};
use crate::tiny::{END, Form, Spec, Tiny};
use dmschat::protocol::{
    Command, Event, LaneFilter, LaneState, LogEntry, Phase, Piece, PresenceRequest, SamplingParams, StopReason,
    TextKind, Token,
};

fn talker(form: Form, seed: u64) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, form) }, seed)
}

const QUESTION: &str = "a question of some forty characters or so";

#[test]
fn six_turns_with_toggles_are_one_prefill_of_their_log() {
    let predictor = Form::Predictor { linear: true, units: 8 };
    let forms = [Form::Borrowed, Form::Metadata, Form::Adapter, Form::Sidecar { shift: 1 }, Form::Plain, predictor];
    for (i, form) in forms.into_iter().enumerate() {
        // Seeds whose decisions are not near a threshold.
        let tiny = talker(form, 200 + i as u64 + u64::from(form == predictor));
        let mut s = Session::new(&tiny);
        s.max_tokens = 40;
        let mut fed = 0;
        for turn in 0..6 {
            let told = s.log.len();
            match turn {
                // Toggles between turns, twice in an answer, and in a prefill.
                1 => s.after_steps(6, Command::SetEviction(false)),
                2 => s.send(Command::SetEviction(true)),
                3 => {
                    s.after_steps(5, Command::SetEviction(false));
                    s.after_steps(9, Command::SetEviction(true));
                }
                4 => s.after_steps(2, Command::SetEviction(false)),
                _ => {}
            }
            let report = s.ask(QUESTION);
            assert!(matches!(report.stop_reason, StopReason::End | StopReason::MaxTokens), "{form:?} turn {turn}");
            assert_eq!(report.reused_tokens, fed, "{form:?} turn {turn}: only the new tokens are prefilled");
            fed = report.prompt_tokens + report.generated.len() - 1;
            // A change between turns is reported before the turn's report.
            let toggles = s.log[told..].iter().filter(|e| matches!(e, LogEntry::Toggle { .. })).count();
            let wanted = if form == Form::Plain { 0 } else { [0, 1, 1, 2, 1, 0][turn] };
            assert_eq!(toggles, wanted, "{form:?} turn {turn}");
        }
        assert_eq!(s.exchanges.len(), 6);
        assert_eq!(s.notices(), [""; 0]);
        assert!(form == Form::Plain || s.wanted().hidden_pairs > 1000);
    }
}

/// The memory view gets the text as it was fed, the second time only the new part, and counts that
/// match the slots.
#[test]
fn presence_counts_the_heads_that_store_each_token() {
    let tiny = talker(Form::Borrowed, 205);
    let mut s = Session::new(&tiny);
    s.max_tokens = 40;
    let first = s.ask(QUESTION).presence.expect("a turn reports what is kept");
    let literal = |pieces: Vec<Piece>| -> String {
        pieces.iter().map(|p| if let Piece::Text(t) | Piece::Control(t) = p { t.as_str() } else { "" }).collect()
    };
    assert_eq!((&first.text, first.from), (&literal(spelled(&s.tokens())), 0));
    s.ask(QUESTION);
    let filter = LaneFilter { layer: Some(0), head: None };
    let position = 3;
    let known = first.ends.len();
    s.send(Command::Presence(PresenceRequest { filter, position, revision: first.revision, known }));
    let second = s.wait(|e| if let Event::Presence(presence) = e { Some(presence.clone()) } else { None });
    assert_eq!(first.text.clone() + &second.text, literal(spelled(&s.tokens())));
    assert_eq!((second.from, second.ends.len()), (known, s.tokens().len() - known));
    let stored = s.stored();
    let in_layer = |n: usize| stored[0].iter().filter(|head| head.iter().any(|slot| slot.0 == n)).count() as u16;
    assert_eq!(second.kept, (0..s.tokens().len()).map(in_layer).collect::<Vec<_>>());
    assert!(second.kept.iter().any(|&n| usize::from(n) < second.lanes), "something was evicted");
    let held = |slots: &Vec<(usize, bool)>| slots.iter().any(|slot| slot.0 == position);
    let kept = stored.iter().map(|layer| layer.iter().map(held).collect::<Vec<_>>());
    assert!(kept.eq(second.of_position.iter().map(|l| l.iter().map(|s| *s != LaneState::Dropped).collect::<Vec<_>>())));
    // Another conversation's text is sent whole.
    s.send(Command::Clear);
    s.send(Command::Presence(PresenceRequest { revision: second.revision, known, ..PresenceRequest::default() }));
    let empty = s.wait(|e| if let Event::Presence(presence) = e { Some(presence.clone()) } else { None });
    assert_eq!((empty.from, empty.kept.len(), &*empty.text), (0, 0, ""));
    assert_ne!(empty.revision, second.revision);
}

#[test]
fn an_answer_is_streamed_and_counted() {
    // Its second answer ends by itself after 41 tokens.
    let tiny = Tiny::new(Spec { ends: true, ..talker(Form::Borrowed, 208).spec }, 208);
    let mut s = Session::new(&tiny);
    for stop in [StopReason::MaxTokens, StopReason::End] {
        s.max_tokens = if stop == StopReason::MaxTokens { 2 } else { 400 };
        let report = s.ask(QUESTION);
        assert_eq!((report.stop_reason, report.answer_tokens), (stop, report.generated.len()));
        assert_eq!(report.generated.last() == Some(&(END as Token)), stop == StopReason::End);
        assert!(if stop == StopReason::End { report.generated.len() > 20 } else { report.generated.len() == 2 });
        let mut streamed = String::new();
        for event in &s.events {
            if let Event::Text { kind, text, .. } = event {
                assert_eq!(*kind, TextKind::Answer);
                streamed += text;
            }
        }
        let said: Vec<u8> = report.generated.iter().filter(|&&t| t < 256).map(|&t| t as u8).collect();
        assert_eq!(streamed.as_bytes(), said);
        let started = s.events.iter().find_map(|e| match e {
            Event::TurnStarted { prompt_tokens, reused, todo, .. } => Some((*prompt_tokens, *reused, *todo)),
            _ => None,
        });
        let todo = report.prompt_tokens - report.reused_tokens;
        assert_eq!(started, Some((report.prompt_tokens, report.reused_tokens, todo)));
    }
    let snapshot = s.snapshot();
    assert_eq!((snapshot.phase.clone(), snapshot.tokens), (Phase::Idle, s.tokens().len()));
    assert!(snapshot.checkpoint_bytes > 0 && snapshot.checkpoint_bytes < snapshot.kv.bytes);
    assert!(snapshot.mapped_bytes >= snapshot.kv.bytes);
}

#[test]
fn seeds_decide_and_greedy_needs_none() {
    let tiny = talker(Form::Borrowed, 220);
    let answer = |temperature: f32, seed: Option<u64>| {
        let mut s = Session::new(&tiny);
        s.sampling = SamplingParams { temperature, top_k: 5, ..Default::default() };
        let prompt = s.prompt(QUESTION);
        let mut request = s.request(prompt);
        request.ask.seed = seed;
        s.send(Command::Generate(Box::new(request)));
        let report = s.finish(0);
        (report.generated, report.seed)
    };
    let (first, again, other) = (answer(1.0, Some(7)), answer(1.0, Some(7)), answer(1.0, Some(8)));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    let drawn = answer(1.0, None);
    assert_eq!(answer(1.0, Some(drawn.1)), drawn, "the seed that was drawn is reported");
    assert_eq!(answer(0.0, Some(1)).0, answer(0.0, Some(2)).0);
}

#[test]
fn regenerate_undo_and_edit_go_back_to_checkpoints() {
    let tiny = talker(Form::Borrowed, 230);
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    let before = s.tokens().len();
    let first = s.ask("and another one");
    let rendered = prompt_of(&s.exchanges[..1], "and another one");

    // Regenerate twice: only the prompt's last token is fed again.
    for _ in 0..2 {
        let report = s.generate(rendered.clone());
        assert_eq!((report.prompt_tokens, report.reused_tokens), (first.prompt_tokens, first.prompt_tokens - 1));
        assert!(report.log_base >= before && report.in_context);
        assert_ne!(report.generated, first.generated);
        s.exchanges[1] = Exchange { turn: report.turn, question: "and another one".into(), reply: report.generated };
    }
    // The next turn continues the last answer.
    let fed = s.tokens().len();
    assert_eq!(s.ask("a third").reused_tokens, fed);

    // Edit the last question: back to where it was asked.
    s.exchanges.pop();
    let report = s.ask("a third, put differently");
    assert_eq!(report.reused_tokens, fed);

    // Undo after a toggle: the checkpoint follows it.
    s.toggle(false);
    s.exchanges.pop();
    let rewind = prompt_of(&s.exchanges, "");
    let keep = rewind.len() - 7;
    s.send(Command::Rewind(rewind[..keep].to_vec()));
    let report = s.ask("a fourth");
    assert!(!report.eviction);
    assert_eq!(report.reused_tokens, fed);
    // It was reported with the rewind, and the report continues from there.
    assert_eq!((s.log.len() - s.tokens().len(), report.log_base), (1, fed + 1));
    assert_eq!(s.log[fed], LogEntry::Toggle { eviction: false });

    // Edit the first question: no checkpoint is left, and all is prefilled.
    s.exchanges.clear();
    let report = s.ask("something else");
    assert_eq!((report.reused_tokens, report.log_base), (0, 0));
}

#[test]
fn dropped_think_text_falls_back_to_the_end_of_the_prompt() {
    let tiny = talker(Form::Borrowed, 240);
    let mut s = Session::new(&tiny);
    s.max_tokens = 100;
    let mut opened = s.prompt(QUESTION);
    opened.extend([control("<think>"), text("\n")]);
    let first = s.generate(opened);
    assert_eq!((first.reasoning_tokens, first.answer_tokens), (first.generated.len(), 0), "it never closes the block");

    // The template drops the block: everything after the prompt's plain end is new.
    let mut next = s.prompt(QUESTION);
    let plain_end = next.len();
    next.extend([Piece::Reply { turn: first.turn, pieces: vec![text("so be it")] }, control("<|im_end|>"), text("\n")]);
    next.extend(prompt_of(&[], "and now"));
    let report = s.generate(next.clone());
    assert_eq!(report.reused_tokens, 0, "the prompt's end has <think> in it, and before it there is nothing");

    // If the model opens the block itself, its prompt ends before it.
    let second = report;
    let mut third = next.clone();
    third.extend([Piece::Reply { turn: second.turn, pieces: spelled(&second.generated[3..]) }, control("<|im_end|>")]);
    third.extend(prompt_of(&[], "go on"));
    let report = s.generate(third);
    assert_eq!(report.reused_tokens, second.prompt_tokens - 1);
    assert_eq!(plain_end, 7);
    // The part of the reply that stayed keeps its ids.
    let kept = second.generated[3..].to_vec();
    assert!(s.tokens().windows(kept.len()).any(|w| w == kept));
    let letters: Vec<u8> = kept.iter().map(|&t| t as u8).collect();
    assert!([b"hh", b"ef", b"fe", b"ag"].iter().any(|pair| letters.windows(2).any(|w| w == **pair)), "{letters:?}");
}

#[test]
fn rebuild_is_a_fresh_prefill_and_a_cancelled_one_changes_nothing() {
    let tiny = talker(Form::Borrowed, 250);
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    s.toggle(false);
    s.ask(QUESTION);
    let (fed, books) = (s.tokens().len(), s.log.clone());
    assert!(fed > 6 * STEP);

    let (stored, bytes) = (s.stored(), s.snapshot().kv.bytes);
    s.after_steps(3, Command::Cancel);
    s.send(Command::Rebuild);
    let done =
        s.wait(|e| if let Event::RebuildDone { cancelled, tokens } = e { Some((*cancelled, *tokens)) } else { None });
    assert_eq!(done, (true, fed));
    assert!(s.events.iter().any(|e| matches!(e, Event::Rebuilding { done, .. } if *done > 0)));
    assert_eq!((s.stored(), s.snapshot().kv.bytes), (stored, bytes));
    s.check_stored();

    let toggle = books.iter().position(|e| matches!(e, LogEntry::Toggle { .. })).expect("one was made");
    for (on, log_base) in [(true, toggle), (false, 0), (true, 0)] {
        s.toggle(on);
        s.send(Command::Rebuild);
        let done = s.wait(|e| if let Event::RebuildDone { cancelled, .. } = e { Some(*cancelled) } else { None });
        assert!(!done);
        // The new log is reported from where it differs: at the toggle that was dropped, or at the
        // one that precedes all.
        let change = s.wait(|e| if let Event::LogChanged(change) = e { Some(change.clone()) } else { None });
        let mut log: Vec<LogEntry> = books.iter().filter(|e| matches!(e, LogEntry::Token(_))).copied().collect();
        if !on {
            log.insert(0, LogEntry::Toggle { eviction: false });
        }
        assert_eq!((change.log_base, &s.log), (log_base, &log));
        s.check_stored();
        assert_eq!(s.snapshot().checkpoint_bytes, 0);
    }
    // The next turn continues there.
    let report = s.ask("one more");
    assert_eq!((report.reused_tokens, report.log_base), (fed, fed));
}

#[test]
fn a_log_that_begins_without_eviction_says_so_first() {
    let tiny = talker(Form::Borrowed, 260);
    let off = LogEntry::Toggle { eviction: false };
    let mut s = Session::with(&tiny, |o| o.eviction = Some(false));
    let report = s.ask(QUESTION);
    assert!(!report.eviction && s.log[0] == off && report.kv.ratio == Some(1.0));
    // A new conversation keeps the eviction state.
    s.send(Command::Clear);
    (s.log, s.exchanges) = (Vec::new(), Vec::new());
    let report = s.ask(QUESTION);
    assert_eq!((report.log_base, report.reused_tokens, s.log[0]), (0, 0, off));
    assert!(s.toggle(true) > 0);
    assert!(s.ask(QUESTION).kv.ratio > Some(1.0));
}
