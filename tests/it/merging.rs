//! Policies that merge tokens, against the tests' own form of them.

use crate::merge_reference::{Merged, run_merged};
use crate::reference::Rounding;
use crate::rule::{codec_data, feed, max_difference, random_log, runner_with, slots, step_lengths};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::PageLayout;
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::codec::{Codec, Place, rotate};
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind};
use dmschat::protocol::LogEntry;

/// Decisions nearer to 0 than this could flip by the order of a sum.
const MARGIN: f64 = 5e-3;

struct Case {
    tiny: Tiny,
    every: Option<usize>,
}

impl Case {
    fn new(spec: Spec, seed: u64, every: Option<usize>) -> Self {
        Self { tiny: Tiny::new(spec, seed), every }
    }

    fn all() -> Vec<Self> {
        let dmc = |qwen| Spec { window: 3, ..Spec::new(qwen, Form::Dmc) };
        let pooled = [
            (Spec::new(true, Form::Plain), 2),
            (Spec { bias: true, ..Spec::new(false, Form::Plain) }, 5),
            // Its borrowed channel is zero under any policy, and its own tensors are not asked.
            (Spec { n_kv_heads: 1, ..Spec::new(true, Form::Borrowed) }, 3),
            (Spec::new(false, Form::Adapter), 40),
        ];
        let pooled = pooled.into_iter().map(|(spec, every)| (spec, Some(every)));
        let learned = [dmc(true), dmc(false), Spec { n_q_heads: 6, window: 64, offset: -150.0, ..dmc(true) }];
        let all = pooled.chain(learned.into_iter().map(|spec| (spec, None)));
        all.enumerate().map(|(i, (spec, every))| Self::new(spec, 500 + i as u64, every)).collect()
    }

    fn runner(&self, codec: Codec) -> Runner<Cpu> {
        // A DMC model merges unasked.
        let policy = match self.every {
            Some(every) => PolicyKind::Pool.with(Budget::of_ratio(every as f32)),
            None => PolicyKind::Auto.into(),
        };
        runner_with(2, &self.tiny, EngineOptions { policy, max_seqs: 4, ..EngineOptions::new(codec) })
    }

    /// A random log whose decisions leave no doubt.
    fn clear_log(&self, rng: &mut Rng, n: usize, toggles: usize, rounding: Rounding) -> (Vec<LogEntry>, Merged) {
        let clear = (0..100).find_map(|_| {
            let log = random_log(rng, n, toggles);
            let merged = run_merged(&self.tiny, &log, self.every, rounding);
            (merged.margin > MARGIN).then_some((log, merged))
        });
        clear.expect("a log whose decisions are all clear")
    }
}

fn feed_to(runner: &mut Runner<Cpu>, seq: SeqId, log: &[LogEntry], size: usize) {
    tokens_of(log).chunks(size).for_each(|tokens| runner.feed(seq, tokens).unwrap());
}

#[test]
fn slots_are_means_of_segments_under_any_split_and_toggle() {
    for (i, case) in Case::all().into_iter().enumerate() {
        let mut runner = case.runner(Codec::F32);
        let mut rng = Rng(510 + i as u64);
        // Token by token, then in chunks between toggles.
        for (toggles, whole) in [(0, false), (4, true)] {
            let (log, wanted) = case.clear_log(&mut rng, 85, toggles, Rounding::None);
            let most = case.every.unwrap_or(case.tiny.spec.window);
            assert!(toggles > 0 || wanted.longest == most, "case {i}: {} tokens a segment", wanted.longest);
            let (ends, mut steps, mut fed, mut reads) = (ends_of_runs(&log), step_lengths(i as u64), 0, 0);
            let (seq, logits) = feed(&mut runner, &log, || {
                let end = ends.iter().find(|&&end| end > fed).expect("tokens are left");
                let len = if whole { steps() } else { 1 }.min(end - fed);
                reads += if len == 1 { wanted.reads[fed] as u64 } else { 0 };
                fed += len;
                len
            });
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "case {i}: logits differ by {worst}");
            assert_eq!(slots(&runner, seq), wanted.stored, "case {i}");
            let stats = runner.cache.stats(runner.backend(), seq);
            // No slot ever leaves: the last query saw all of them.
            let peak = *wanted.reads.last().unwrap();
            assert_eq!((stats.reads, stats.peak as usize), (reads, peak), "case {i}");
            assert_eq!(runner.cache.audit(runner.backend()), Ok(stats.pages), "case {i}");
            runner.release(seq);
        }
    }
}

/// Numbers of tokens fed at each toggle and at the end.
fn ends_of_runs(log: &[LogEntry]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut n = 0;
    for entry in log {
        match entry {
            LogEntry::Token(_) => n += 1,
            _ => ends.push(n),
        }
    }
    ends.push(n);
    ends
}

/// However often a slot was encoded, it is what encoding its means in f32 once gives.
#[test]
fn a_slot_is_encoded_from_its_sums_and_not_from_its_codes() {
    let specs = [(Form::Plain, Some(7)), (Form::Dmc, None)];
    for (form, every) in specs {
        // The rows of the only layer do not depend on the cache.
        let case = Case::new(Spec { n_layers: 1, window: 7, ..Spec::new(true, form) }, 530, every);
        let log = random_log(&mut Rng(531), 75, 0);
        let rows = |codec, size| {
            let mut runner = case.runner(codec);
            let seq = runner.create(true).unwrap();
            feed_to(&mut runner, seq, &log, size);
            let mut image = Vec::new();
            runner.export_layer(seq, 0, &mut image);
            let g = *runner.cache.geometry();
            let live = runner.cache.stats(runner.backend(), seq).live[0].clone();
            let pages: usize = live.iter().map(|&live| (live as usize).div_ceil(g.page_slots)).sum();
            let (layout, bytes): (PageLayout, usize) = (g.page(), g.page_bytes());
            let pages = image.split_off(image.len() - pages * bytes);
            let mut rows = Vec::new();
            let mut first = 0;
            for live in live {
                for slot in 0..live as usize {
                    let (page, row) = (&pages[(first + slot / g.page_slots) * bytes..], slot % g.page_slots);
                    let codes = (page[layout.k(row)].to_vec(), page[layout.v(row)].to_vec(), layout.sides(page, row));
                    rows.push((codes, layout.meta(page, row).position()));
                }
                first += (live as usize).div_ceil(g.page_slots);
            }
            let options = EngineOptions { codec_data: codec_data(codec, &case.tiny), ..EngineOptions::new(codec) };
            let coder = options.coder(runner.config()).unwrap();
            (rows, g, coder)
        };
        let (means, ..) = rows(Codec::F32, 1);
        for codec in Codec::ALL {
            let (codes, g, coder) = rows(codec, 1);
            assert_eq!(codes.len(), means.len());
            let d = g.head_dim;
            for (slot, (k, v, sides)) in means.iter().enumerate().map(|(i, ((k, v, _), position))| {
                let floats = |bytes: &[u8]| -> Vec<f32> {
                    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
                };
                let (mut k, mut v) = (floats(k), floats(v));
                if let Some(coder) = &coder {
                    let place = Place { layer: 0, position: *position };
                    coder.code_k(place, &mut k);
                    coder.code_v(place, &mut v);
                }
                if codec.rotates_values() {
                    rotate(&mut v);
                }
                let layout = codec.slot(d);
                let (mut of_k, mut of_v) = (vec![0; layout.k_bytes], vec![0; layout.v_bytes]);
                let sides = [codec.encode_k(&k, &mut of_k), codec.encode_v(&v, &mut of_v)];
                (i, (of_k, of_v, sides))
            }) {
                assert!(codes[slot].0 == (k, v, sides), "{form:?} {codec:?}: slot {slot}");
            }
        }
    }
}

#[test]
fn every_format_reads_the_means_that_it_stores() {
    let roundings = [Rounding::None, Rounding::Bf16, Rounding::Fp8, Rounding::Int8, Rounding::K8V4];
    for (codec, rounding) in Codec::ALL.into_iter().zip(roundings) {
        for (form, every) in [(Form::Plain, Some(4)), (Form::Dmc, None)] {
            let case = Case::new(Spec { window: 5, ..Spec::new(true, form) }, 540, every);
            let (log, wanted) = case.clear_log(&mut Rng(541), 60, 1, rounding);
            let exact = run_merged(&case.tiny, &log, every, Rounding::None);
            let mut runner = case.runner(codec);
            let (seq, logits) = feed(&mut runner, &log, step_lengths(542));
            assert_eq!(slots(&runner, seq), wanted.stored, "{codec:?} {form:?}");
            let mean = |theirs: &[Vec<f64>]| {
                let pairs = logits.iter().flatten().zip(theirs.iter().flatten());
                pairs.map(|(&a, b)| (a as f64 - b).abs()).sum::<f64>() / (theirs.len() * theirs[0].len()) as f64
            };
            let (rounded, unrounded) = (mean(&wanted.logits), mean(&exact.logits));
            // A code at a tie may fall to either side.
            assert!(rounded < 1e-5 || rounded < unrounded / 4.0, "{codec:?} {form:?}: {rounded} of {unrounded}");
        }
    }
}

#[test]
fn forks_and_images_in_the_middle_of_a_segment_take_its_sums_along() {
    for (i, case) in Case::all().into_iter().enumerate() {
        let mut rng = Rng(551);
        let (log, wanted) = case.clear_log(&mut rng, 90, 0, Rounding::None);
        let mut runner = case.runner(Codec::F32);
        let (seq, _) = feed(&mut runner, &log[..51], || 17);
        let fork = runner.fork(seq).unwrap();
        // The original continues elsewhere, over the page that both hold.
        feed_to(&mut runner, seq, &random_log(&mut rng, 30, 0), 1);
        let (head, bytes) = runner.head(fork);
        let copy = runner.create(true).unwrap();
        for (layer, bytes) in bytes.into_iter().enumerate() {
            let mut image = Vec::new();
            runner.export_layer(fork, layer, &mut image);
            assert_eq!(image.len() as u64, bytes);
            let check = runner.cache.layer_check(head.len);
            // No slot has so many tokens: the last float of the tables.
            let g = runner.cache.geometry();
            let tables = 4 + g.n_kv_heads * 4 * (2 + g.sums_len());
            let mut bad = image.clone();
            bad[tables - 4..tables].copy_from_slice(&65f32.to_ne_bytes());
            assert!(check.check(layer, bad).is_err_and(|e| e.to_string().contains("sums that are not")));
            runner.import_layer(copy, &check.check(layer, image).unwrap()).unwrap();
        }
        runner.end_import(copy, &head, std::iter::empty()).unwrap();
        for (seq, size) in [(fork, 1), (copy, 64)] {
            feed_to(&mut runner, seq, &log[51..89], size);
            runner.feed(seq, &[tokens_of(&log)[89]]).unwrap();
            let mut logits = Vec::new();
            runner.logits(0..1, |_, row| logits.push(row.to_vec())).unwrap();
            let worst = max_difference(&logits, &wanted.logits[89..]);
            assert!(worst < 1e-4, "case {i}: logits differ by {worst}");
            assert_eq!(slots(&runner, seq), wanted.stored, "case {i}");
            runner.release(seq);
        }
        runner.release(seq);
        assert_eq!(runner.cache.audit(runner.backend()), Ok(0));
    }
}

fn tokens_of(log: &[LogEntry]) -> Vec<u32> {
    log.iter().filter_map(|entry| if let LogEntry::Token(token) = entry { Some(*token) } else { None }).collect()
}
