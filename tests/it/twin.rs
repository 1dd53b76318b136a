//! The twin: answers are the same with it, and its numbers match a sequence without eviction.

use crate::harness::Session;
use crate::reference::{self, Rounding};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::protocol::{
    Command, Event, Finding, LogEntry, Probe, RecallRequest, SamplingParams, StopReason, TurnReport,
};

fn talker() -> Tiny {
    talker_of(Form::Borrowed)
}

fn talker_of(form: Form) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, form) }, 230)
}

const QUESTION: &str = "a question of some forty characters or so";

fn set(s: &mut Session<'_>, on: bool) -> Option<String> {
    s.send(Command::SetTwin(on));
    let (now, why) = s.wait(|e| if let Event::TwinSet { on, why } = e { Some((*on, why.clone())) } else { None });
    assert_eq!(now, on && why.is_none());
    why
}

/// Three turns, greedy and sampled, with a toggle of eviction between them, and the last one
/// answered again.
fn conversation(tiny: &Tiny, twin: bool) -> (Vec<TurnReport>, Vec<Vec<u32>>) {
    let mut s = Session::new(tiny);
    let mut reports = vec![s.ask(QUESTION)];
    if twin {
        assert_eq!(set(&mut s, true), None);
    }
    s.sampling = SamplingParams::default();
    reports.push(s.ask("another question"));
    s.toggle(false);
    s.sampling = SamplingParams { temperature: 1.0, top_k: 9, repetition_penalty: 1.1, ..Default::default() };
    reports.push(s.ask("go on"));
    s.exchanges.pop();
    reports.push(s.ask("go on"));
    let logits = s.watch.seen().logits.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect();
    if twin {
        assert!(s.snapshot().twin_bytes > 0);
        set(&mut s, false);
        assert_eq!(s.snapshot().twin_bytes, 0);
    }
    assert_eq!(s.notices(), [""; 0]);
    (reports, logits)
}

#[test]
fn answers_and_logits_are_the_same_with_a_twin() {
    let tiny = talker();
    let (without, with) = (conversation(&tiny, false), conversation(&tiny, true));
    for (a, b) in without.0.iter().zip(&with.0) {
        assert_eq!((&a.generated, &a.kv.live, a.reused_tokens), (&b.generated, &b.kv.live, b.reused_tokens));
        assert!(a.twin.is_none());
    }
    assert!(without.1 == with.1, "every row of logits is the same, bit by bit");
    let compared: Vec<Option<usize>> = with.0.iter().map(|r| r.twin.as_ref().map(|t| t.kl.len())).collect();
    let generated = |i: usize| Some(with.0[i].generated.len());
    assert_eq!(compared, [None, generated(1), generated(2), generated(3)]);
}

/// KL and the first difference follow from the reference with eviction and without it.
#[test]
fn a_twin_measures_what_eviction_changes() {
    a_twin_measures_eviction(&talker());
    a_twin_measures_eviction(&talker_of(Form::Predictor { linear: true, units: 8 }));
}

fn a_twin_measures_eviction(tiny: &Tiny) {
    let mut s = Session::new(tiny);
    (s.max_tokens, s.sampling) = (60, SamplingParams::default());
    set(&mut s, true);
    for question in [QUESTION, "and another one"] {
        let report = s.ask(question);
        let with = s.wanted();
        let mut log = vec![LogEntry::Toggle { eviction: false }];
        log.extend(s.log.iter().filter(|e| matches!(e, LogEntry::Token(_))));
        let without = reference::run(tiny, &log, Rounding::None);
        let twin = report.twin.expect("compared");
        assert_eq!(twin.kl.len(), report.generated.len());
        assert_eq!(twin.bytes % 16, 0);
        let (mut first, mut differences) = (None, 0);
        for (i, &said) in report.generated.iter().enumerate() {
            let at = report.prompt_tokens - 1 + i;
            let (p, q) = (log_softmax(&without.logits[at]), log_softmax(&with.logits[at]));
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            assert!((kl - f64::from(twin.kl[i])).abs() < 1e-4 + kl * 1e-3, "token {i}: {kl} and {}", twin.kl[i]);
            let choice = (0..p.len()).max_by(|&a, &b| p[a].total_cmp(&p[b])).expect("a vocabulary");
            if choice != said as usize {
                differences += 1;
                first.get_or_insert(i);
            }
        }
        assert_eq!((twin.first.as_ref().map(|f| f.at), twin.differences), (first, differences));
        assert!(twin.mean_kl() > Some(1e-4), "something was dropped");
    }
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
    logits.iter().map(|l| l - sum).collect()
}

#[test]
fn a_twin_without_room_is_refused_or_given_up_and_the_answer_goes_on() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    s.max_tokens = 60;
    let first = s.ask(QUESTION);
    s.send(Command::SetKvLimit(Some(first.kv.bytes)));
    let why = set(&mut s, true).expect("refused");
    assert!(why.starts_with("no room for a twin: a dense cache of"), "{why}");
    // Room for a while, and then not.
    s.send(Command::SetKvLimit(Some(first.kv.bytes * 3)));
    assert_eq!(set(&mut s, true), None);
    s.max_tokens = 300;
    let report = s.ask("go on");
    assert!(matches!(report.stop_reason, StopReason::End | StopReason::MaxTokens), "{:?}", report.detail);
    let given_up =
        s.events.iter().find_map(|e| if let Event::TwinSet { on: false, why } = e { why.clone() } else { None });
    assert!(given_up.expect("its memory was needed").starts_with("the twin stopped"));
    assert!(report.twin.is_none_or(|t| t.kl.len() < report.generated.len()));
    assert_eq!(s.snapshot().twin_bytes, 0);

    // A dense model has no use for it.
    let plain = Tiny::new(Spec { speaks: true, ..Spec::new(true, Form::Plain) }, 231);
    let mut s = Session::new(&plain);
    assert!(set(&mut s, true).expect("refused").ends_with("keeps everything: a twin would be the same"));
}

/// All sequences are in use beside a twin: what needs one more gets it.
#[test]
fn a_rebuild_and_a_recall_have_room_beside_a_twin() {
    let tiny = talker();
    let mut s = Session::new(&tiny);
    set(&mut s, true);
    s.ask(QUESTION);
    s.ask("go on");
    let (prompt, alone) = (s.prompt("repeat \"a question\""), s.prompt("repeat \"a question\""));
    let request = RecallRequest { prompt, alone, text: QUESTION.to_owned(), cue_bytes: 10, tokens: None };
    s.send(Command::Probe(Probe::Recall(Box::new(request))));
    assert!(s.wait(|e| if let Event::Found(Finding::Recalled(result)) = e { Some(result.is_ok()) } else { None }));
    s.send(Command::Rebuild);
    assert!(!s.wait(|e| if let Event::RebuildDone { cancelled, .. } = e { Some(*cancelled) } else { None }));
    assert!(s.ask("and on").twin.is_some(), "it is made again");
}
