//! Conversations with a model whose layers differ: two of three are local (Gemma 3). The dial, the
//! valve, the twin, pins and chains act on the layers whose tokens the policy chooses, and every
//! figure counts a local layer with its window.

use crate::harness::Session;
use crate::tiny::{Form, Spec, Tiny};
use dmschat::engine::EngineOptions;
use dmschat::protocol::{
    Command, Dial, Event, LogEntry, PresenceRequest, RestoreRequest, SamplingParams, StopReason, WhenFull,
};

const LAYERS: usize = 6;
const GLOBAL: usize = 2;
const LOCAL: usize = 20;
const PAGE_BYTES: u64 = 16 * 260;
const QUESTION: &str = "a question of some forty characters or so";

fn ragged(form: Form) -> Tiny {
    let spec =
        Spec { tied: false, speaks: true, context: 2048, local: LOCAL, n_layers: LAYERS, ..Spec::new(true, form) };
    Tiny::new(spec, 900)
}

fn predicted() -> Tiny {
    ragged(Form::Predictor { linear: true, units: 8 })
}

fn long_question() -> String {
    "a long story, ".repeat(40)
}

fn restored<'a>(tiny: &'a Tiny, log: &[LogEntry], change: impl FnOnce(&mut EngineOptions)) -> Session<'a> {
    let mut s = Session::with(tiny, change);
    s.send(Command::Restore(Box::new(RestoreRequest { log: log.to_vec(), ..Default::default() })));
    s.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
    s
}

/// Ten turns with everything that changes the cache between them; [`Session::ask`] checks the
/// figures of each.
#[test]
fn a_conversation_has_true_figures_and_its_log_makes_the_same_cache() {
    let tiny = predicted();
    let mut s = Session::new(&tiny);
    for (n, then) in [
        None,
        Some(Command::SetEviction(false)),
        Some(Command::SetTwin(true)),
        Some(Command::SetEviction(true)),
        Some(Command::SetDial(Dial::Ratio(2.0))),
        Some(Command::Pin { text: QUESTION.to_owned(), ask: false }),
        Some(Command::SetTwin(false)),
        Some(Command::Unpin(None)),
        Some(Command::Rebuild),
        None,
    ]
    .into_iter()
    .enumerate()
    {
        if let Some(command) = then {
            let rebuilds = matches!(command, Command::Rebuild);
            s.send(command);
            if rebuilds {
                s.wait(|e| matches!(e, Event::RebuildDone { cancelled: false, .. }).then_some(()));
            }
        }
        let report = s.ask(if n == 0 { QUESTION } else { "and then" });
        assert!(report.in_context, "{:?}", report.detail);
    }
    let (stored, log) = (s.stored(), s.log.clone());
    let mut again = restored(&tiny, &log, |_| {});
    assert_eq!(again.stored(), stored);
    let snapshot = again.snapshot();
    again.check_figures(&snapshot.kv, snapshot.tokens);
}

/// The ratio counts the layers that decide, at every setting.
#[test]
fn the_dial_steers_the_layers_that_decide() {
    let tiny = predicted();
    let mut lives = Vec::new();
    for keep in [1.2, 1.5, 2.0, 3.0] {
        let mut s = Session::new(&tiny);
        s.send(Command::SetDial(Dial::Ratio(keep)));
        let (ratio, _) = s.wait(|e| match e {
            Event::DialSet { ratio, trained, .. } => Some((*ratio, *trained)),
            Event::Refused { why, .. } => panic!("{why}"),
            _ => None,
        });
        assert!((ratio / f64::from(keep) - 1.0).abs() < 0.1, "{keep} became {ratio}");
        let report = s.ask(&long_question());
        let decided = (0..LAYERS).filter(|&layer| !tiny.spec.is_local(layer));
        lives.push(decided.map(|layer| report.kv.live[layer].iter().sum::<u32>()).sum::<u32>());
    }
    assert!(lives.windows(2).all(|pair| pair[0] > pair[1] + 20), "each keeps less: {lives:?}");
}

/// Slots are freed where the policy chooses, by need or by age, and the turn continues.
#[test]
fn a_full_cache_forgets_in_the_layers_that_decide() {
    for (tiny, when) in [(predicted(), WhenFull::Forget), (ragged(Form::Plain), WhenFull::Window)] {
        let question = long_question();
        let mut roomy = Session::new(&tiny);
        assert_eq!(roomy.ask(&question).forgotten_slots, 0);
        let pages: usize = roomy.stored().iter().flatten().map(|head| head.len().div_ceil(16)).sum();
        let mut s = Session::with(&tiny, |o| {
            (o.when_full, o.kv_limit) = (when, Some((pages - 1) as u64 * PAGE_BYTES));
        });
        let report = s.ask(&question);
        assert!(report.in_context && report.stop_reason != StopReason::CacheFull, "{:?}", report.detail);
        assert!(report.forgotten_slots > 0, "{:?}", s.notices());
        assert!(!s.notices()[0].contains("dropped the 0 %"), "{:?}", s.notices());
        let stored = s.stored();
        if when == WhenFull::Window {
            let global = (0..LAYERS).find(|&layer| !tiny.spec.is_local(layer)).unwrap();
            let first: Vec<usize> = stored[global][0].iter().take(5).map(|(position, _)| *position).collect();
            assert!(first[..4] == [0, 1, 2, 3] && first[4] > 4, "the oldest go, after the first: {first:?}");
        }
        let log = s.log.clone();
        assert_eq!(restored(&tiny, &log, |o| o.when_full = when).stored(), stored);
    }
}

/// A twin takes what a dense cache takes, whose local layers hold their windows.
#[test]
fn a_twin_is_refused_only_where_it_does_not_fit() {
    let tiny = predicted();
    let mut s = Session::new(&tiny);
    s.sampling = SamplingParams::default();
    let report = s.ask(&long_question());
    let n = s.tokens().len();
    let twin_pages = 2 * (GLOBAL * n.div_ceil(16) + (LAYERS - GLOBAL) * LOCAL.div_ceil(16));
    let mut with_free = |pages: usize| {
        s.send(Command::SetKvLimit(Some(report.kv.bytes + pages as u64 * PAGE_BYTES)));
        s.send(Command::SetTwin(true));
        s.wait(|e| if let Event::TwinSet { on, why } = e { Some((*on, why.clone())) } else { None })
    };
    let (on, why) = with_free(twin_pages - 1);
    assert!(!on && why.is_some_and(|why| why.starts_with("no room for a twin")));
    assert_eq!(with_free(twin_pages), (true, None));
    s.send(Command::SetKvLimit(None));
    let twin = s.ask("and then").twin.expect("compared");
    let n = s.tokens().len();
    let pages = 2 * (GLOBAL * n.div_ceil(16) + (LAYERS - GLOBAL) * LOCAL.div_ceil(16));
    assert_eq!(twin.bytes, pages as u64 * PAGE_BYTES);
    assert_eq!(s.snapshot().twin_bytes, twin.bytes, "what is said is what is held");
}

/// A token counts as kept by the heads that decide, and a pin costs slots in those alone.
#[test]
fn presence_and_pins_count_the_heads_that_decide() {
    let tiny = predicted();
    let mut s = Session::new(&tiny);
    s.ask(QUESTION);
    let stored = s.stored();
    let mut look = |layer: Option<usize>| {
        let mut request = PresenceRequest::default();
        request.filter.layer = layer;
        s.send(Command::Presence(request));
        s.wait(|e| if let Event::Presence(presence) = e { Some(presence.clone()) } else { None })
    };
    let of = |layers: &[usize], n: usize| -> Vec<u16> {
        let holds = |position: usize| {
            layers.iter().flat_map(|&l| &stored[l]).filter(move |head| head.iter().any(|(at, _)| *at == position))
        };
        (0..n).map(|position| holds(position).count() as u16).collect()
    };
    let all = look(None);
    assert_eq!((all.lanes, &all.kept), (2 * GLOBAL, &of(&[1, 4], all.kept.len())));
    for layer in [0, 1] {
        let one = look(Some(layer));
        assert_eq!((one.lanes, &one.kept), (2, &of(&[layer], one.kept.len())), "layer {layer}");
    }
    s.send(Command::Pin { text: QUESTION.to_owned(), ask: true });
    let pinned = s.wait(|e| if let Event::Pinned(pinned) = e { Some((**pinned).clone()) } else { None });
    assert_eq!(pinned.bytes, (pinned.tokens * 2 * GLOBAL) as u64 * s.info.slot_bytes as u64);
}
