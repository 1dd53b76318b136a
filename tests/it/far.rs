//! Far pages against the tests' own form of the rule, and against a cache that drops nothing.

use crate::far_reference::{self, Outcome};
use crate::rule::{feed, max_difference, random_log, runner_with, step_lengths, stored};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, FarOptions, Runner};
use dmschat::policy::{Budget, Far, PolicyKind, strength};
use dmschat::protocol::LogEntry;

fn options(codec: Codec, pages: usize) -> EngineOptions {
    let far = FarOptions { rule: Far { pages }, limit_bytes: u64::MAX };
    EngineOptions { far: Some(far), ..EngineOptions::new(codec) }
}

/// `[n_layers][n_kv_heads]` far positions in the order in which they left, and whether they are
/// read.
fn far(runner: &Runner<Cpu>, seq: SeqId) -> Vec<Vec<Vec<(usize, bool)>>> {
    let c = runner.config();
    let rows = |layer, head| runner.cache.far_rows(runner.backend(), seq, layer, head);
    let lane = |layer, head| rows(layer, head).iter().map(|(meta, near)| (meta.position(), *near)).collect();
    (0..c.n_layers).map(|layer| (0..c.n_kv_heads).map(|head| lane(layer, head)).collect()).collect()
}

fn positions(runner: &Runner<Cpu>, seq: SeqId) -> Vec<Vec<Vec<usize>>> {
    let lane = |slots: Vec<(usize, bool)>| slots.into_iter().map(|(position, _)| position).collect();
    stored(runner, seq).into_iter().map(|layer| layer.into_iter().map(lane).collect()).collect()
}

/// A random log with a choice after every 1 to 40 tokens, and `others` at random places.
fn random_choices(rng: &mut Rng, n: usize, others: &[LogEntry]) -> Vec<LogEntry> {
    let mut log = Vec::new();
    for entry in random_log(rng, n, 0) {
        log.push(entry);
        if rng.chance(20) {
            log.push(LogEntry::Choose { choose: 1 + rng.below(32) as u16 });
        }
    }
    for &other in others {
        log.insert(n / 3 + rng.below(n / 2), other);
    }
    log
}

/// A log of which the rule leaves no doubt, and what it gives.
fn clear_case(
    tiny: &Tiny,
    log: impl Fn(&mut Rng) -> Vec<LogEntry>,
    k: usize,
    budget: Option<usize>,
) -> (Vec<LogEntry>, Outcome) {
    let mut rng = Rng(9400);
    let mut cases = (0..60).map(|_| log(&mut rng)).map(|log| (far_reference::run(tiny, &log, k, budget), log));
    let (outcome, log) = cases.find(|(outcome, _)| outcome.margin > 5e-4).expect("a log whose choices are all clear");
    (log, outcome)
}

#[test]
fn what_left_is_found_again_by_the_rule_in_any_chunks() {
    let off = LogEntry::Toggle { eviction: false };
    let on = LogEntry::Toggle { eviction: true };
    let forget = LogEntry::Forget { forget: strength(-3.0) as u16 };
    let predictor = Form::Predictor { linear: true, units: 0 };
    let cases: [(Form, Option<usize>, usize, &[LogEntry]); 6] = [
        (Form::Borrowed, None, 2, &[]),
        (Form::Adapter, None, 1, &[forget]),
        (Form::Metadata, None, 3, &[LogEntry::DropFar { drop_far: 90 }]),
        (predictor, None, 2, &[LogEntry::Drop { drop: [20, 44] }]),
        (Form::Plain, Some(24), 2, &[]),
        (Form::Borrowed, None, 0, &[off, on]),
    ];
    for (i, (form, budget, k, others)) in cases.into_iter().enumerate() {
        let tiny = Tiny::new(Spec { n_q_heads: 4, ..Spec::new(i % 2 == 0, form) }, 400 + i as u64);
        let log = |rng: &mut Rng| {
            let mut log = random_choices(rng, 300, &others[..others.len().min(1)]);
            if let [_, on] = others {
                log.insert(log.len() - 30, *on);
            }
            log
        };
        let (log, wanted) = clear_case(&tiny, log, k, budget);
        assert!(wanted.hidden_pairs > 500, "{form:?}: {} pairs are hidden", wanted.hidden_pairs);
        let policy = budget.map_or(PolicyKind::Auto.into(), |budget| PolicyKind::Window.with(Budget::Slots(budget)));
        let mut first: Option<Vec<Vec<f32>>> = None;
        for (threads, seed) in [(1, 0), (1, 1), (1, 2), (3, 3)] {
            let mut runner = runner_with(threads, &tiny, EngineOptions { policy, ..options(Codec::F32, k) });
            let mut steps = step_lengths(seed);
            let (seq, logits) = feed(&mut runner, &log, || if seed == 0 { 1 } else { steps() });
            assert_eq!(positions(&runner, seq), wanted.stored, "{form:?}");
            assert_eq!(far(&runner, seq), wanted.far, "{form:?}");
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "{form:?}: logits differ by {worst}");
            let first = first.get_or_insert_with(|| logits.clone());
            assert_eq!(&logits, first, "{form:?}: single steps give the same bits");
            let counts = runner.cache.far_counts(runner.backend(), seq);
            let rows = wanted.far.iter().flatten().flatten();
            assert_eq!(counts.rows, rows.clone().count() as u64);
            assert_eq!(counts.near, rows.filter(|(_, near)| *near).count() as u64);
        }
    }
}

/// With room near for all pages a cache reads what a dense one reads, in the same order: the same
/// bits, for every codec. Without far pages it does not.
#[test]
fn where_all_pages_are_near_nothing_is_lost() {
    for codec in Codec::ALL {
        let tiny = Tiny::new(Spec::new(true, Form::Borrowed), 410);
        let log = random_choices(&mut Rng(9410), 200, &[]);
        let plain: Vec<LogEntry> = log.iter().copied().filter(|entry| entry.token().is_some()).collect();
        let dense = [&[LogEntry::Toggle { eviction: false }], &plain[..]].concat();
        let of = |options: EngineOptions, log: &[LogEntry], seed| {
            let mut runner = runner_with(2, &tiny, options);
            let (seq, logits) = feed(&mut runner, log, step_lengths(seed));
            (logits, runner.cache.stats(runner.backend(), seq).live_slots)
        };
        let (all, live) = of(options(codec, 1000), &log, 1);
        let (of_dense, dense_slots) = of(EngineOptions::new(codec), &dense, 2);
        let (gone, _) = of(EngineOptions::new(codec), &plain, 3);
        assert!(all == of_dense && 3 * live < 2 * dense_slots, "{codec:?}: {live} of {dense_slots} slots");
        assert!(gone != of_dense, "{codec:?}");
    }
}

/// Forks share far pages, and what one of them does changes nothing of the other.
#[test]
fn forks_share_far_pages() {
    let tiny = Tiny::new(Spec::new(true, Form::Borrowed), 420);
    let log = random_choices(&mut Rng(9420), 250, &[]);
    let mut runner = runner_with(1, &tiny, options(Codec::F32, 1));
    let (seq, _) = feed(&mut runner, &log[..150], step_lengths(1));
    let bytes = |runner: &Runner<Cpu>| runner.cache.far_counts(runner.backend(), seq).all_bytes;
    let (before, alone) = (far(&runner, seq), bytes(&runner));
    let fork = runner.fork(seq).expect("a free row");
    assert_eq!((far(&runner, fork), bytes(&runner)), (before.clone(), alone), "nothing is copied");
    let rest: Vec<u32> = log[150..].iter().filter_map(LogEntry::token).collect();
    let of = |runner: &mut Runner<Cpu>, seq| {
        runner.feed(seq, &rest[..40]).expect("room");
        runner.choose(seq, 16);
        runner.feed(seq, &rest[40..60]).expect("room");
        let mut last = Vec::new();
        runner.logits([19], |_, row| last = row.to_vec()).expect("finite");
        last
    };
    let first = of(&mut runner, fork);
    assert_eq!(far(&runner, seq), before);
    assert!(runner.drop_far(seq, 60) > 0);
    let after = far(&runner, fork);
    runner.release(seq);
    assert_eq!(far(&runner, fork), after, "the fork keeps what it shares");
    let (again, _) = feed(&mut runner, &log[..150], || 7);
    assert_eq!(of(&mut runner, again), first, "a fork goes on as the sequence would");
    assert_eq!(far(&runner, again), after);
    runner.release(fork);
    runner.release(again);
    assert_eq!(bytes(&runner), 0);
}
