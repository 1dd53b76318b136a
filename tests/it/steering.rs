//! Steering of what a conversation keeps: pins, the dial, the valve. Each is an entry of the log,
//! reported at once and replayed.

use crate::harness::{Exchange, Session};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::engine::EngineOptions;
use dmschat::protocol::{
    Command, Dial, Event, GenerateRequest, LogEntry, RestoreRequest, StopReason, TurnReport, WhenFull,
};

fn talker(seed: u64) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, Form::Borrowed) }, seed)
}

const QUESTION: &str = "a question of some forty characters or so";

fn long_question() -> String {
    "a long story, ".repeat(40)
}

/// Runs a turn without comparing it with the reference: some decision is always near a threshold
/// found by the engine.
pub fn ask(s: &mut Session, question: &str) -> TurnReport {
    ask_with(s, question, None)
}

/// Like [`ask`], with a text to pin.
fn ask_with(s: &mut Session, question: &str, pin: Option<&str>) -> TurnReport {
    let prompt = s.prompt(question);
    let request = GenerateRequest { pin: pin.map(str::to_owned), ..s.request(prompt) };
    s.send(Command::Generate(Box::new(request)));
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    s.log.truncate(report.log_base);
    s.log.extend_from_slice(&report.log);
    let (turn, reply) = (report.turn, report.generated.clone());
    if report.in_context {
        s.exchanges.push(Exchange { turn, question: question.to_owned(), reply });
    }
    report
}

#[test]
fn a_turn_goes_on_one_page_short_and_is_resumed_as_it_was() {
    let question = long_question();
    let predictor = Form::Predictor { linear: true, units: 8 };
    for (form, when) in
        [(Form::Borrowed, WhenFull::Forget), (Form::Plain, WhenFull::Window), (predictor, WhenFull::Forget)]
    {
        let tiny = Tiny::new(Spec { tied: false, speaks: true, context: 2048, ..Spec::new(true, form) }, 340);
        let mut roomy = Session::new(&tiny);
        assert_eq!(ask(&mut roomy, &question).forgotten_slots, 0);
        let pages: usize = roomy.stored().iter().flatten().map(|head| head.len().div_ceil(16)).sum();
        let went = |e: &&LogEntry| matches!(e, LogEntry::Forget { .. } | LogEntry::Drop { .. });
        assert_eq!(roomy.log.iter().filter(went).count(), 0);
        for memory in [false, true] {
            let short = pages - 1;
            let mut s = Session::with(&tiny, |o| {
                o.when_full = when;
                o.kv_limit = (!memory).then_some(short as u64 * 16 * 260);
            });
            s.watch.seen().room_pages = memory.then_some(short);
            let report = ask(&mut s, &question);
            assert!(report.in_context && report.stop_reason != StopReason::CacheFull, "{:?}", report.detail);
            assert!(report.forgotten_slots > 0);
            let times = s.log.iter().filter(went).count();
            let notices = s.notices();
            assert!(notices[0].starts_with("the cache is full: dropped"), "{notices:?}");
            assert_eq!(
                (times > 0, notices.len()),
                (true, times.min(2)),
                "one when it begins, one with the sum: {notices:?}"
            );
            if when == WhenFull::Window {
                s.check_stored();
                let first: Vec<usize> = s.stored()[0][0].iter().take(5).map(|(position, _)| *position).collect();
                assert!(first[..4] == [0, 1, 2, 3] && first[4] > 4, "{first:?}");
            }
            let mut again = Session::new(&tiny);
            again.send(Command::Restore(Box::new(RestoreRequest { log: s.log.clone(), ..Default::default() })));
            again.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
            assert_eq!(again.stored(), s.stored());
        }
    }
    // Without being asked for, a dense conversation drops nothing.
    let tiny = Tiny::new(Spec { tied: false, context: 2048, ..Spec::new(true, Form::Plain) }, 341);
    let mut s = Session::with(&tiny, |o| (o.when_full, o.kv_limit) = (WhenFull::Forget, Some(60 * 16 * 260)));
    assert_eq!(ask(&mut s, &question).stop_reason, StopReason::CacheFull);
}

/// A turn that ends although something was dropped leaves the cache as it was, and says so.
#[test]
fn what_a_turn_that_ends_has_dropped_is_back() {
    let tiny = talker(340);
    let mut seen = [0; 2];
    for pages in 4..40 {
        let mut s = Session::with(&tiny, |o| {
            (o.when_full, o.kv_limit) = (WhenFull::Forget, Some(pages * 16 * 260));
        });
        let report = ask(&mut s, &long_question());
        let ended = report.stop_reason == StopReason::CacheFull;
        let notices = s.notices();
        let told = notices.iter().any(|text| text.starts_with("the cache is full: dropped"));
        let back = notices.last().is_some_and(|text| text.ends_with("slots that this turn dropped are back"));
        assert_eq!(back, ended && told, "{pages} pages: {notices:?}");
        assert!(!ended || report.forgotten_slots == 0 && s.snapshot().tokens == 0, "{pages} pages");
        seen[usize::from(ended)] += usize::from(told);
    }
    assert!(seen.iter().all(|&n| n > 0), "turns that went on and that ended: {seen:?}");
}

#[test]
fn an_unpinned_message_may_go_again_and_is_not_pinned_by_itself() {
    let tiny = talker(360);
    let mut s = Session::with(&tiny, |o| o.when_full = WhenFull::Forget);
    ask_with(&mut s, QUESTION, Some(QUESTION));
    ask(&mut s, &long_question());
    let LogEntry::Pin { pin: [from, to] } = s.log[0] else { panic!("{:?}", s.log[0]) };
    let held = |s: &mut Session| -> usize {
        let stored = s.stored();
        let of_pin = |head: &Vec<(usize, bool)>| head.iter().filter(|(p, _)| (from..to).contains(&(*p as u32))).count();
        stored.iter().flatten().map(of_pin).sum()
    };
    let all = held(&mut s);
    assert_eq!(all, QUESTION.len() * s.info.n_layers * s.info.n_kv_heads);
    let unpin = |s: &mut Session, text: Option<&str>| {
        s.send(Command::Unpin(text.map(str::to_owned)));
        s.wait(|e| match e {
            Event::Unpinned { tokens, dropped_slots } => Some(Ok((*tokens, *dropped_slots))),
            Event::Refused { why, .. } => Some(Err(why.clone())),
            _ => None,
        })
    };
    assert!(unpin(&mut s, Some("a long story")).unwrap_err().contains("not pinned"));
    assert_eq!(unpin(&mut s, Some(QUESTION)), Ok((QUESTION.len(), 0)));
    assert!(unpin(&mut s, None).unwrap_err().contains("nothing is pinned"));
    assert_eq!(held(&mut s), all, "nothing goes at once");
    assert_eq!(s.log.last(), Some(&LogEntry::Unpin { unpin: [from, to] }), "told at once");
    // The setting that pinned it does not pin it again.
    ask_with(&mut s, "and so on", Some(QUESTION));
    assert_eq!(s.log.iter().filter(|e| e.is_pin()).count(), 2);
    // Resumed, it is the same; where memory runs out, its tokens go.
    let mut again = Session::with(&tiny, |o| o.when_full = WhenFull::Forget);
    again.send(Command::Restore(Box::new(RestoreRequest { log: s.log.clone(), ..Default::default() })));
    again.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    assert_eq!(again.stored(), s.stored());
    let bytes = s.snapshot().kv.live_bytes;
    s.send(Command::SetKvLimit(Some(bytes)));
    assert!(ask(&mut s, &long_question()).forgotten_slots > 0);
    assert!(held(&mut s) < all);
    s.send(Command::SetKvLimit(None));
    s.send(Command::Rebuild);
    s.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    let left = held(&mut s);
    let pins: Vec<_> = s.log.iter().filter(|e| e.is_pin()).collect();
    assert!(left < all && pins.len() == 2, "{left} of {all}, {pins:?}");
}

#[test]
fn steering_between_turns_is_told_at_once() {
    let tiny = talker(365);
    let mut s = Session::new(&tiny);
    ask(&mut s, QUESTION);
    s.send(Command::SetDial(Dial::Ratio(1.5)));
    s.wait(|e| matches!(e, Event::LogChanged(_)).then_some(()));
    s.send(Command::Pin { text: QUESTION.to_owned(), ask: false });
    s.wait(|e| matches!(e, Event::LogChanged(_)).then_some(()));
    s.toggle(false);
    s.wait(|e| matches!(e, Event::LogChanged(_)).then_some(()));
    let tail = &s.log[s.log.len() - 3..];
    assert!(
        matches!(tail, [LogEntry::Dial { .. }, LogEntry::Pin { .. }, LogEntry::Toggle { eviction: false }]),
        "{tail:?}"
    );
    // A conversation that ends here is resumed as it is.
    let mut again = Session::with(&tiny, |o| o.eviction = Some(false));
    again.log.clone_from(&s.log);
    again.send(Command::Restore(Box::new(RestoreRequest { log: s.log.clone(), ..Default::default() })));
    // Commands sent meanwhile act afterwards.
    assert!(again.handle.send(Command::SetDial(Dial::Trained)));
    again.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    again.wait(|e| matches!(e, Event::LogChanged(_)).then_some(()));
    assert_eq!(again.stored(), s.stored());
    assert_eq!(again.log, [&s.log[..], &[LogEntry::Dial { dial: 0.0 }]].concat());
}

#[test]
fn a_pinned_message_is_kept_in_every_head_and_a_late_pin_after_a_rebuild() {
    let tiny = talker(350);
    let mut s = Session::new(&tiny);
    let pin = |s: &mut Session, text: &str, ask| {
        s.send(Command::Pin { text: text.to_owned(), ask });
        s.wait(|e| match e {
            Event::Pinned(pinned) => Some(Ok((**pinned).clone())),
            Event::Refused { why, .. } => Some(Err(why.clone())),
            _ => None,
        })
    };
    // Whether every head stores the tokens of the question, which are its bytes.
    let kept = |s: &mut Session, from: usize| {
        let stored = s.stored();
        let holds = |head: &Vec<(usize, bool)>| (from..from + QUESTION.len()).all(|p| head.contains(&(p, false)));
        stored.iter().flatten().all(holds)
    };
    assert!(pin(&mut s, QUESTION, true).unwrap_err().contains("not in the cache yet"));
    ask(&mut s, QUESTION);
    ask(&mut s, &long_question());
    let first = pin(&mut s, QUESTION, true).unwrap();
    let slot_bytes = (s.info.n_layers * s.info.n_kv_heads * s.info.slot_bytes) as u64;
    assert_eq!((first.tokens, first.bytes), (QUESTION.len(), QUESTION.len() as u64 * slot_bytes));
    assert!(first.stored < 1.0 && !first.done);
    assert!(pin(&mut s, QUESTION, false).unwrap().done);
    assert!(pin(&mut s, QUESTION, true).unwrap_err().contains("pinned already"));
    assert_eq!(s.snapshot().pinned, QUESTION.len());
    s.send(Command::Rebuild);
    s.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    ask(&mut s, "and so on");
    let LogEntry::Pin { pin: [from, to] } = s.log[0] else { panic!("{:?}", s.log[0]) };
    assert_eq!((to - from) as usize, QUESTION.len());
    assert!(kept(&mut s, from as usize));

    // In the checkpoints of earlier turns too.
    let mut s = Session::with(&tiny, |o| (o.max_seqs, o.max_older, o.checkpoint_bytes) = (9, 5, 1 << 30));
    ["one", "two", "three"].into_iter().for_each(|question| drop(ask(&mut s, question)));
    assert!(pin(&mut s, "one", false).unwrap().done);
    s.exchanges.truncate(1);
    assert!(ask(&mut s, "another second question").reused_tokens > 0);
    assert!(s.log.iter().any(|entry| matches!(entry, LogEntry::Pin { .. })), "the pin was lost");

    // Pinned by the request that brings it, with a conversation that is resumed from the log.
    let mut s = Session::new(&tiny);
    let prompt = s.prompt(QUESTION);
    let mut request = s.request(prompt);
    request.pin = Some(QUESTION.to_owned());
    s.send(Command::Generate(Box::new(request)));
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    assert_eq!(report.log[0], LogEntry::Pin { pin: [from, to] });
    s.max_tokens = 100;
    assert!(kept(&mut s, from as usize));
    let mut again = Session::new(&tiny);
    again.send(Command::Restore(Box::new(RestoreRequest { log: report.log, ..Default::default() })));
    again.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    assert_eq!(again.stored(), s.stored());
}

#[test]
fn the_dial_is_set_by_an_expected_ratio_and_is_part_of_the_log() {
    dial(&talker(345));
    let spec = talker(345).spec;
    dial(&Tiny::new(
        Spec { form: Form::Predictor { linear: true, units: 8 }, scale: -1.0, offset: -0.25, ..spec },
        346,
    ));
}

fn dial(tiny: &Tiny) {
    let folder = tempfile::tempdir().unwrap();
    let dials = |o: &mut EngineOptions| o.dial_folder = Some(folder.path().to_owned());
    let mut s = Session::with(tiny, dials);
    let set = |s: &mut Session, keep| {
        s.send(Command::SetDial(keep));
        s.wait(|e| if let Event::DialSet { ratio, trained, .. } = e { Some((*ratio, *trained)) } else { None })
    };
    let (ratio, trained) = set(&mut s, Dial::Ratio(1.5));
    assert!((ratio - 1.5).abs() < 0.05 && trained > 1.0, "{ratio} {trained}");
    let kept = ask(&mut s, &long_question()).kv.ratio.unwrap();
    assert!(matches!(s.log[0], LogEntry::Dial { .. }));
    let log = s.log.clone();
    let (more, _) = set(&mut s, Dial::Less);
    assert!((more / ratio - 1.4).abs() < 0.1, "{more}");
    assert_eq!(set(&mut s, Dial::Trained).0, trained);
    // A conversation that is resumed keeps its dial, and measures nothing.
    let mut again = Session::with(tiny, dials);
    again.send(Command::Restore(Box::new(RestoreRequest { log, ..Default::default() })));
    let resumed = again.wait(|e| if let Event::DialSet { ratio, .. } = e { Some(*ratio) } else { None });
    assert!((resumed - ratio).abs() < 1e-6);
    // Without the dial the same question leaves less.
    let mut plain = Session::new(tiny);
    assert!(ask(&mut plain, &long_question()).kv.ratio.unwrap() > kept);
    s.send(Command::SetDial(Dial::Ratio(0.5)));
    s.wait(|e| matches!(e, Event::Refused { command: "forget", why } if why.contains("out of range")).then_some(()));
}

#[test]
fn the_dial_is_measured_between_the_steps_of_an_answer() {
    let tiny = talker(370);
    let mut s = Session::new(&tiny);
    ask(&mut s, QUESTION);
    s.max_tokens = 100;
    let prompt = s.prompt(&long_question());
    let request = s.request(prompt);
    let mut plain = Session::new(&tiny);
    ask(&mut plain, QUESTION);
    plain.max_tokens = 100;
    let wanted = ask(&mut plain, &long_question()).generated;
    // Twice: the second waits for the same trial. Its steps of 16 tokens are 40.
    s.after_steps(60, Command::SetDial(Dial::Ratio(1.5)));
    s.after_steps(62, Command::SetDial(Dial::Less));
    s.send(Command::Generate(Box::new(request)));
    let first = s.wait(|e| if let Event::DialSet { at_token, .. } = e { Some(*at_token) } else { None });
    let ratio = s.wait(|e| if let Event::DialSet { ratio, .. } = e { Some(*ratio) } else { None });
    assert!((ratio - 2.1).abs() < 0.1, "{ratio}");
    let report = s.wait(|e| if let Event::TurnDone(report) = e { Some((**report).clone()) } else { None });
    let begun = report.prompt_tokens;
    assert!(first > begun && first < begun + report.generated.len(), "the answer went on meanwhile: {first}");
    assert_eq!(report.generated[..first - begun], wanted[..first - begun], "and is the same up to there");
    let said = |e: &&Event| matches!(e, Event::Info(text) if text.starts_with("measuring what each setting keeps"));
    assert_eq!(s.events.iter().filter(said).count(), 1);
    // If its memory is needed, it is released.
    let mut s = Session::with(&tiny, |o| o.kv_limit = Some(4 * 30 * 16 * 260));
    s.send(Command::SetDial(Dial::Ratio(1.5)));
    let why =
        s.wait(
            |e| if let Event::Refused { why, .. } = e { Some(why.clone()).filter(|t| t.contains("now")) } else { None },
        );
    assert!(why.starts_with("it cannot be measured now"), "{why}");
    assert_eq!(s.snapshot().kv.bytes, 0, "its pages are free again");
}
