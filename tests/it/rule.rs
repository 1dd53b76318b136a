//! The engine against the tests' own form of the rule: every form of DMS, both families, random
//! toggles, random splits into prefills and decodes.

use crate::reference::{self, Outcome, Rounding};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::Backend;
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::codec::csr::Dictionary;
use dmschat::codec::{Codec, DataFile};
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind, SlotMeta, strength};
use dmschat::protocol::LogEntry;

const MAX_STEP: usize = 64;

fn runner(tiny: &Tiny, codec: Codec) -> Runner<Cpu> {
    runner_on(1, tiny, codec)
}

fn runner_on(threads: usize, tiny: &Tiny, codec: Codec) -> Runner<Cpu> {
    runner_with(threads, tiny, EngineOptions::new(codec))
}

pub fn runner_with(threads: usize, tiny: &Tiny, options: EngineOptions) -> Runner<Cpu> {
    let codec_data = options.codec_data.clone().or_else(|| codec_data(options.codec, tiny));
    let options = EngineOptions { max_step: Some(MAX_STEP), codec_data, ..options };
    Runner::new(Cpu::new(threads), &tiny.checkpoint(), &options, |_, _| true).expect("it loads")
}

/// A dictionary of random atoms, for a codec that needs one.
pub fn codec_data(codec: Codec, tiny: &Tiny) -> Option<DataFile> {
    let layers = (0..tiny.spec.n_layers).filter(|&layer| tiny.spec.has_attention(layer)).count();
    let dictionary = Dictionary::random(tiny.spec.head_dim, layers, 50, 4);
    let bytes = dictionary.to_bytes().expect("it is written").into();
    codec.needs_data().then(|| DataFile { name: "random atoms".to_owned(), bytes })
}

/// A sequence fed with `log` in steps whose lengths `step` draws; logits of every token.
pub fn feed(runner: &mut Runner<Cpu>, log: &[LogEntry], step: impl FnMut() -> usize) -> (SeqId, Vec<Vec<f32>>) {
    let seq = runner.create(true).expect("a free row");
    (seq, feed_on(runner, seq, log, step))
}

/// Goes on with a sequence: as [`feed`].
pub fn feed_on(
    runner: &mut Runner<Cpu>,
    seq: SeqId,
    log: &[LogEntry],
    mut step: impl FnMut() -> usize,
) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for part in log.chunk_by(|a, b| matches!((a, b), (LogEntry::Token(_), LogEntry::Token(_)))) {
        match part[0] {
            LogEntry::Token(_) => {}
            LogEntry::Toggle { eviction } => drop(runner.set_eviction(seq, eviction).expect("room")),
            LogEntry::Dial { dial } => drop(runner.set_dial(seq, dial)),
            LogEntry::Forget { forget } => drop(runner.forget(seq, forget).expect("room")),
            LogEntry::Pin { pin: [a, b] } => runner.pin(seq, a as usize..b as usize).expect("room"),
            LogEntry::Unpin { unpin: [a, b] } => drop(runner.unpin(seq, a as usize..b as usize).expect("room")),
            LogEntry::Drop { drop: [a, b] } => drop(runner.drop_positions(seq, a as usize..b as usize).expect("room")),
            LogEntry::Choose { choose } => drop(runner.choose(seq, choose.into()).expect("far rows are kept")),
            LogEntry::DropFar { drop_far } => drop(runner.drop_far(seq, drop_far as usize)),
        }
        let tokens: Vec<u32> =
            part.iter().filter_map(|e| if let LogEntry::Token(t) = e { Some(*t) } else { None }).collect();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let n = step().clamp(1, runner.max_step()).min(rest.len());
            runner.feed(seq, &rest[..n]).expect("room");
            runner.logits(0..n, |_, row| logits.push(row.to_vec())).unwrap();
            rest = &rest[n..];
        }
    }
    logits
}

/// `[n_layers][n_kv_heads]` of a sequence: what `of` makes of a lane's slots.
fn by_lane<B: Backend, T>(runner: &Runner<B>, seq: SeqId, of: impl Fn(Vec<SlotMeta>) -> T) -> Vec<Vec<T>> {
    let c = runner.config();
    let lane = |layer, head| of(runner.cache.slot_metas(runner.backend(), seq, layer, head));
    (0..c.n_layers).map(|layer| (0..c.n_kv_heads).map(|head| lane(layer, head)).collect()).collect()
}

/// `[n_layers][n_kv_heads]` positions in order of slots.
pub fn slots(runner: &Runner<Cpu>, seq: SeqId) -> Vec<Vec<Vec<usize>>> {
    by_lane(runner, seq, |metas| metas.iter().map(|meta| meta.position()).collect())
}

/// `[n_layers][n_kv_heads]` positions and marks, in order of position.
pub fn stored<B: Backend>(runner: &Runner<B>, seq: SeqId) -> Vec<Vec<Vec<(usize, bool)>>> {
    by_lane(runner, seq, |metas| {
        let mut slots: Vec<_> = metas.iter().map(|m| (m.position(), m.marked())).collect();
        slots.sort_unstable();
        slots
    })
}

/// Random tokens with `toggles` switches among them, the first one off.
pub fn random_log(rng: &mut Rng, n: usize, toggles: usize) -> Vec<LogEntry> {
    let mut log: Vec<LogEntry> = (0..n).map(|_| LogEntry::Token(rng.below(256) as u32)).collect();
    let mut at: Vec<usize> = (0..toggles).map(|_| rng.below(n + 1)).collect();
    at.sort_unstable();
    for (i, at) in at.into_iter().enumerate() {
        log.insert(at + i, LogEntry::Toggle { eviction: i % 2 == 1 });
    }
    log
}

pub fn step_lengths(seed: u64) -> impl FnMut() -> usize {
    let mut rng = Rng(seed);
    move || if rng.chance(2) { 1 } else { 1 + rng.below(MAX_STEP) }
}

/// Decisions nearer to 0 than this could flip by the order of a sum.
const MARGIN: f64 = 5e-3;

/// A random log of which the rule leaves no doubt, and what it gives.
fn clear_case(tiny: &Tiny, rng: &mut Rng, n: usize, toggles: usize, rounding: Rounding) -> (Vec<LogEntry>, Outcome) {
    for _ in 0..20 {
        let log = random_log(rng, n, toggles);
        let outcome = reference::run(tiny, &log, rounding);
        if outcome.margin > MARGIN {
            return (log, outcome);
        }
    }
    panic!("{:?}: no log whose decisions are all clear", tiny.spec);
}

pub fn max_difference(ours: &[Vec<f32>], theirs: &[Vec<f64>]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    pairs.map(|(&a, b)| (a as f64 - b).abs()).fold(0.0, f64::max)
}

fn mean_difference<A: Copy + Into<f64>>(ours: &[Vec<A>], theirs: &[Vec<f64>]) -> f64 {
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    pairs.map(|(&a, b)| (a.into() - b).abs()).sum::<f64>() / (theirs.len() * theirs[0].len()) as f64
}

fn forms() -> Vec<Spec> {
    let mut out = Vec::new();
    for qwen in [true, false] {
        for form in [Form::Plain, Form::Borrowed, Form::Adapter, Form::Metadata, Form::Sidecar { shift: 1 }] {
            out.push(Spec::new(qwen, form));
        }
    }
    let base = |qwen, form| Spec::new(qwen, form);
    for (qwen, linear, units) in [(true, true, 0), (false, false, 40), (true, true, 24)] {
        out.push(Spec { bias: units == 24, ..Spec::new(qwen, Form::Predictor { linear, units }) });
    }
    // Biases, also of the decision; one decision a layer; other groups; no window; a wide window.
    out.push(Spec { bias: true, window: 5, ..base(true, Form::Adapter) });
    out.push(Spec { per_layer: true, n_q_heads: 6, ..base(true, Form::Borrowed) });
    out.push(Spec { per_layer: true, tied: false, bias: true, ..base(false, Form::Sidecar { shift: 0 }) });
    out.push(Spec { n_kv_heads: 1, window: 0, tied: true, ..base(true, Form::Borrowed) });
    out.push(Spec { n_kv_heads: 4, window: 0, ..base(false, Form::Metadata) });
    out.push(Spec { window: 70, ..base(false, Form::Borrowed) });
    out
}

#[test]
fn dials_pins_and_full_memory_act_between_chunks_as_between_tokens() {
    let predictor = Form::Predictor { linear: true, units: 8 };
    let forms = [(true, Form::Borrowed), (false, Form::Adapter), (true, Form::Metadata), (false, predictor)];
    for (i, (qwen, form)) in forms.into_iter().enumerate() {
        let tiny = Tiny::new(Spec { window: 6, ..Spec::new(qwen, form) }, 160 + i as u64);
        let mut rng = Rng(9100 + i as u64);
        let entries = |rng: &mut Rng| {
            let mut log = random_log(rng, 70, 0);
            let decision = |rng: &mut Rng| (rng.below(200) as f32 - 100.0) / 50.0;
            for at in [60, 45, 30] {
                log.insert(at, LogEntry::Dial { dial: decision(rng) });
            }
            log.insert(50, LogEntry::Forget { forget: strength(-0.5 + decision(rng) / 4.0) as u16 });
            log.insert(0, LogEntry::Pin { pin: [3, 9] });
            log.insert(20, LogEntry::Pin { pin: [17, 44] });
            // Some of its tokens are decided about, others are not fed yet.
            log.insert(40, LogEntry::Unpin { unpin: [30, 60] });
            log
        };
        let clear = (0..400).find_map(|_| {
            let log = entries(&mut rng);
            let outcome = reference::run(&tiny, &log, Rounding::None);
            (outcome.margin > 1e-3).then_some((log, outcome))
        });
        let (log, wanted) = clear.expect("a log whose decisions are all clear");
        let plain: Vec<LogEntry> = log.iter().copied().filter(|e| matches!(e, LogEntry::Token(_))).collect();
        assert_ne!(reference::run(&tiny, &plain, Rounding::None).stored, wanted.stored);
        let mut runner = runner(&tiny, Codec::F32);
        for seed in [1, 2, 3] {
            let (seq, logits) = feed(&mut runner, &log, step_lengths(seed));
            assert_eq!(stored(&runner, seq), wanted.stored, "{:?}", tiny.spec);
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "{:?}: logits differ by {worst}", tiny.spec);
            // Pins hold: every head stores all pinned tokens, unmarked.
            for slots in stored(&runner, seq).iter().flatten() {
                let kept = |p: usize| slots.contains(&(p, false));
                assert!((3..9).chain(17..30).all(kept));
            }
            runner.release(seq);
        }
    }
}

#[test]
fn a_cache_without_decisions_goes_on_without_the_tokens_it_dropped() {
    let tiny = Tiny::new(Spec::new(true, Form::Plain), 170);
    let mut log = random_log(&mut Rng(9200), 120, 0);
    for (at, drop) in [(100, [31, 60]), (70, [20, 31]), (40, [4, 20])] {
        log.insert(at, LogEntry::Drop { drop });
    }
    let wanted = reference::run(&tiny, &log, Rounding::None);
    let mut runner = runner(&tiny, Codec::F32);
    for seed in [1, 2] {
        let (seq, logits) = feed(&mut runner, &log, step_lengths(seed));
        assert_eq!(stored(&runner, seq), wanted.stored);
        let worst = max_difference(&logits, &wanted.logits);
        assert!(worst < 1e-4, "logits differ by {worst}");
        let stats = runner.cache.stats(runner.backend(), seq);
        assert_eq!(stats.live_slots as usize, 64 * tiny.spec.n_layers * tiny.spec.n_kv_heads);
        assert_eq!(runner.cache.audit(runner.backend()), Ok(stats.pages));
        runner.release(seq);
    }
}

/// A drop between tokens acts alike whether chunks or single tokens follow, also where it names the
/// newest token, about which the next one may decide.
#[test]
fn a_drop_leaves_the_newest_token_to_its_decision() {
    for (i, form) in [Form::Borrowed, Form::Adapter, Form::Metadata].into_iter().enumerate() {
        let tiny = Tiny::new(Spec { window: 3, ..Spec::new(true, form) }, 180 + i as u64);
        let mut log = random_log(&mut Rng(9300 + i as u64), 60, 0);
        log.insert(40, LogEntry::Drop { drop: [30, 50] });
        let mut runner = runner(&tiny, Codec::F32);
        let (single, wanted) = feed(&mut runner, &log, || 1);
        let wanted: Vec<Vec<f64>> = wanted.iter().map(|row| row.iter().map(|&x| x.into()).collect()).collect();
        let (chunks, logits) = feed(&mut runner, &log, || MAX_STEP);
        let worst = max_difference(&logits, &wanted);
        assert!(worst < 1e-4, "{:?}: logits differ by {worst}", tiny.spec);
        assert_eq!(stored(&runner, chunks), stored(&runner, single), "{:?}", tiny.spec);
    }
}

#[test]
fn a_pin_taken_back_gives_no_strength_to_a_cache_without_decisions() {
    let tiny = Tiny::new(Spec::new(true, Form::Plain), 171);
    let mut log = random_log(&mut Rng(9201), 30, 0);
    log.push(LogEntry::Pin { pin: [3, 20] });
    log.push(LogEntry::Unpin { unpin: [0, 30] });
    let mut runner = runner(&tiny, Codec::F32);
    let (seq, _) = feed(&mut runner, &log, || MAX_STEP);
    let metas = runner.cache.slot_metas(runner.backend(), seq, 0, 0);
    assert_eq!(metas.len(), 30);
    assert!(metas.iter().all(|meta| meta.strength() == 0 && !meta.marked()));
}

#[test]
fn every_form_follows_the_rule_under_any_split_and_toggle() {
    for (i, spec) in forms().into_iter().enumerate() {
        let tiny = Tiny::new(spec.clone(), 100 + i as u64);
        let mut rng = Rng(7000 + i as u64);
        for (round, (n, toggles)) in [(40, 0), (130, 1), (150, 3), (170, 6)].into_iter().enumerate() {
            let (log, wanted) = clear_case(&tiny, &mut rng, n, toggles, Rounding::None);
            let mut runner = runner(&tiny, Codec::F32);
            let (seq, logits) = feed(&mut runner, &log, step_lengths(rng.next()));
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "{spec:?} round {round}: logits differ by {worst}");
            assert_eq!(stored(&runner, seq), wanted.stored, "{spec:?} round {round}");
            let stats = runner.cache.stats(runner.backend(), seq);
            let ratio = (stats.len * spec.n_layers * spec.n_kv_heads) as f64 / stats.live_slots as f64;
            assert_eq!(ratio, wanted.ratio());
            assert_eq!(runner.cache.audit(runner.backend()), Ok(stats.pages), "{spec:?}");
            // Live sets as they stood at every toggle, from a fresh feed up to there.
            for at in (0..log.len()).filter(|&i| matches!(log[i], LogEntry::Toggle { .. }) && i > 0) {
                for end in [at, at + 1] {
                    let (part, _) = feed(&mut runner, &log[..end], step_lengths(rng.next()));
                    let wanted = reference::run(&tiny, &log[..end], Rounding::None);
                    assert_eq!(stored(&runner, part), wanted.stored, "{spec:?} round {round}, {end} entries");
                    runner.release(part);
                }
            }
        }
    }
}

/// The cases above would notice: the rule hides much, keeps much, and each of its parts matters.
#[test]
fn the_cases_tell_right_from_wrong() {
    for (i, spec) in forms().into_iter().enumerate().filter(|(_, s)| s.form != Form::Plain) {
        let tiny = Tiny::new(spec.clone(), 100 + i as u64);
        let mut rng = Rng(7000 + i as u64);
        let (log, wanted) = clear_case(&tiny, &mut rng, 150, 0, Rounding::None);
        assert!((0.15..0.85).contains(&wanted.marked), "{spec:?}: {} of the decisions mark", wanted.marked);
        assert!(wanted.hidden_pairs > 500, "{spec:?}: {} pairs are hidden", wanted.hidden_pairs);
        let mut lanes = wanted.stored.iter().flatten();
        assert!(lanes.all(|l| l.len() > spec.window + 5), "{spec:?}: a head keeps nothing");
        let far = |other: &Outcome| max_difference_f64(&other.logits, &wanted.logits) > 0.01;
        let mut off = log.clone();
        off.insert(0, LogEntry::Toggle { eviction: false });
        assert!(far(&reference::run(&tiny, &off, Rounding::None)), "{spec:?}: eviction changes little");
        let changed = |change: fn(&mut Spec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            let other = Tiny { spec, folder: crate::folder::Folder::healthy(), weights: tiny.weights.clone() };
            reference::run(&other, &log, Rounding::None)
        };
        assert!(far(&changed(|s| s.window += 1)), "{spec:?}");
        // Another shift, or another map.
        let shifted = changed(|s| {
            s.form = match s.form {
                Form::Borrowed => Form::Metadata,
                Form::Metadata => Form::Borrowed,
                Form::Predictor { linear, units: 0 } => Form::Predictor { linear: !linear, units: 0 },
                Form::Predictor { linear, .. } => Form::Predictor { linear, units: 0 },
                _ => Form::Sidecar { shift: 1 - s.shift() },
            }
        });
        assert!(shifted.stored != wanted.stored && far(&shifted), "{spec:?}");
        if spec.n_kv_heads > 1 {
            assert_ne!(changed(|s| s.per_layer = !s.per_layer).stored, wanted.stored, "{spec:?}");
        }
    }
}

fn max_difference_f64(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Which slot a token lands in depends on the order of tokens and toggles alone.
#[test]
fn splits_give_the_same_slots_and_pages() {
    for form in [Form::Plain, Form::Borrowed, Form::Metadata] {
        let tiny = Tiny::new(Spec { window: 13, ..Spec::new(true, form) }, 31);
        let mut rng = Rng(32);
        let (log, _) = clear_case(&tiny, &mut rng, 200, 4, Rounding::None);
        let mut runner = runner(&tiny, Codec::F32);
        let (ones, one_logits) = feed(&mut runner, &log, || 1);
        let pages = runner.cache.pool_stats(runner.backend()).used_pages;
        for round in 0..6 {
            let mut steps = step_lengths(round);
            let (seq, logits) = feed(&mut runner, &log, || if round == 0 { MAX_STEP } else { steps() });
            for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let slots = |seq| runner.cache.slot_metas(runner.backend(), seq, layer, head);
                assert_eq!(slots(seq), slots(ones), "{form:?} layer {layer} head {head}");
            }
            assert_eq!(runner.cache.audit(runner.backend()), Ok(2 * pages));
            let ones: Vec<Vec<f64>> = one_logits.iter().map(|r| r.iter().map(|&x| x as f64).collect()).collect();
            assert!(max_difference(&logits, &ones) < 1e-4);
            runner.release(seq);
        }
    }
}

/// Policy window keeps four sinks and the newest tokens of any model, and its counters are those of
/// such a cache.
#[test]
fn a_window_keeps_the_first_tokens_and_the_newest_of_any_model() {
    for (i, form) in [Form::Plain, Form::Borrowed, Form::Adapter].into_iter().enumerate() {
        let tiny = Tiny::new(Spec::new(i != 1, form), 60 + i as u64);
        for (budget, n, toggles) in [(8, 60, 0), (24, 120, 3)] {
            let log = random_log(&mut Rng(61 + i as u64), n, toggles);
            let wanted = reference::run_under(&tiny, &log, Rounding::None, Some(budget));
            assert!(wanted.hidden_pairs > 500);
            let policy = PolicyKind::Window.with(Budget::Slots(budget));
            let mut runner = runner_with(1, &tiny, EngineOptions { policy, ..EngineOptions::new(Codec::F32) });
            let mut decoded = Vec::new();
            let (mut steps, mut fed) = (step_lengths(62), 0);
            let (seq, logits) = feed(&mut runner, &log, || {
                // The first half is prefilled, the rest is decoded.
                let len = if toggles > 0 {
                    steps()
                } else if fed == 0 {
                    n / 2
                } else {
                    1
                };
                fed += len;
                if len == 1 {
                    decoded.push(fed);
                }
                len
            });
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "{form:?} {budget}: logits differ by {worst}");
            assert_eq!(stored(&runner, seq), wanted.stored, "{form:?} {budget}");
            if toggles == 0 {
                let stats = runner.cache.stats(runner.backend(), seq);
                let lanes = runner.config().n_layers * runner.config().n_kv_heads;
                let reads: usize = decoded.iter().map(|n| n.min(&budget)).sum();
                assert_eq!((stats.reads, stats.peak as usize), ((reads * lanes) as u64, budget * lanes));
            }
        }
    }
}

/// Lanes long enough to be split among threads, whose parts are put together again.
#[test]
fn long_lanes_over_three_threads_follow_the_rule_too() {
    for (form, toggles) in [(Form::Plain, 0), (Form::Borrowed, 3)] {
        let tiny = Tiny::new(Spec { context: 1024, window: 300, ..Spec::new(true, form) }, 40);
        let (log, wanted) = clear_case(&tiny, &mut Rng(41), 800, toggles, Rounding::None);
        assert!(wanted.stored.iter().flatten().all(|lane| lane.len() > 300));
        let mut runner = runner_on(3, &tiny, Codec::F32);
        let (seq, logits) = feed(&mut runner, &log, step_lengths(42));
        let worst = max_difference(&logits, &wanted.logits);
        assert!(worst < 1e-4, "{form:?}: logits differ by {worst}");
        assert_eq!(stored(&runner, seq), wanted.stored);
    }
}

/// K and V are what storing makes of them, in the cache and inside a prefill alike. A rounding
/// that falls the other way in f32 moves a number a little; not rounding at all moves all of them.
#[test]
fn codecs_round_what_is_stored() {
    let codecs = [
        (Codec::Bf16, Rounding::Bf16),
        (Codec::Fp8, Rounding::Fp8),
        (Codec::Int8, Rounding::Int8),
        (Codec::K8V4, Rounding::K8V4),
    ];
    for (codec, rounding) in codecs {
        for (i, form) in [Form::Plain, Form::Borrowed, Form::Adapter].into_iter().enumerate() {
            let tiny = Tiny::new(Spec::new(i != 1, form), 50 + i as u64);
            let (log, wanted) = clear_case(&tiny, &mut Rng(51), 120, 2, rounding);
            let exact = reference::run(&tiny, &log, Rounding::None);
            let apart = mean_difference(&exact.logits, &wanted.logits);
            for seed in 0..2 {
                let mut runner = runner(&tiny, codec);
                let (seq, logits) = feed(&mut runner, &log, step_lengths(seed));
                let off = mean_difference(&logits, &wanted.logits);
                assert!(
                    off < 0.1 * apart,
                    "{codec:?} {form:?}: {off} from the rounded, which is {apart} from the exact"
                );
                assert_eq!(stored(&runner, seq), wanted.stored);
            }
        }
    }
}
