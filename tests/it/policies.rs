//! TOVA, H2O and Quest against the tests' own forms of them.

use crate::policy_reference::{H2oRule, Margin, Slots, TovaRule};
use crate::reference::{Seen, run_by_weights};
use crate::rule::{codec_data, feed, max_difference, random_log, runner_with, slots, step_lengths};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::KvGeometry;
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind, PolicyRequest};
use dmschat::protocol::LogEntry;
use dmschat::quant::Weights;
use dmschat::quantize::convert::{Importance, convert};

/// Scores nearer to each other than this could change their order by the order of a sum.
const MARGIN: f64 = 3e-4;

fn runner(tiny: &Tiny, policy: PolicyRequest, codec: Codec) -> Runner<Cpu> {
    runner_with(2, tiny, EngineOptions { policy, max_seqs: 4, ..EngineOptions::new(codec) })
}

/// A policy with the tests' form of it.
#[derive(Clone, Copy)]
struct Case {
    tova: bool,
    budget: Budget,
    slots: Slots,
}

impl Case {
    fn choice(self) -> PolicyRequest {
        let budget = self.budget;
        if self.tova { PolicyKind::Tova } else { PolicyKind::H2o }.with(budget)
    }

    /// Result of a log, and the margin of its victims.
    fn reference(self, tiny: &Tiny, log: &[LogEntry]) -> (Seen, f64) {
        let (slots, margin) = (self.slots, Margin::new());
        let of = || margin.clone();
        let seen = if self.tova {
            run_by_weights(tiny, log, || TovaRule { slots, margin: of(), last: Vec::new() })
        } else {
            run_by_weights(tiny, log, || H2oRule { slots, margin: of(), sums: Vec::new() })
        };
        (seen, margin.get())
    }

    /// A random log whose victims leave no doubt.
    fn clear_log(self, tiny: &Tiny, rng: &mut Rng, n: usize, toggles: usize) -> (Vec<LogEntry>, Seen) {
        let clear = (0..300).find_map(|_| {
            let log = random_log(rng, n, toggles);
            let (seen, margin) = self.reference(tiny, &log);
            (margin > MARGIN).then_some((log, seen))
        });
        clear.expect("a log whose victims are all clear")
    }
}

const CASES: [Case; 4] = [
    Case { tova: true, budget: Budget::Slots(20), slots: |_| 20 },
    Case { tova: false, budget: Budget::Slots(21), slots: |_| 21 },
    // A ratio of 2 with a floor of 64.
    Case { tova: true, budget: Budget::Ratio(512), slots: |n| n.div_ceil(2).max(64) },
    Case { tova: false, budget: Budget::Ratio(512), slots: |n| n.div_ceil(2).max(64) },
];

fn in_order(mut slots: Vec<Vec<Vec<usize>>>) -> Vec<Vec<Vec<usize>>> {
    slots.iter_mut().flatten().for_each(|lane| lane.sort_unstable());
    slots
}

#[test]
fn weights_choose_the_same_victims_under_any_split_and_toggle() {
    let specs = [
        Spec { n_layers: 3, ..Spec::new(true, Form::Borrowed) },
        Spec { n_q_heads: 6, n_kv_heads: 3, ..Spec::new(false, Form::Adapter) },
    ];
    for (i, case) in CASES.into_iter().enumerate() {
        let tiny = Tiny::new(specs[i % 2].clone(), 300 + i as u64);
        let long = matches!(case.budget, Budget::Ratio(_));
        let (log, wanted) = case.clear_log(&tiny, &mut Rng(301), if long { 140 } else { 60 }, if long { 0 } else { 3 });
        let mut runner = runner(&tiny, case.choice(), Codec::F32);
        let mut of_ones = None;
        for seed in 0..3 {
            let (mut steps, mut fed, mut reads) = (step_lengths(seed), 0, 0u64);
            let toggles_at = |fed: usize| {
                let tokens = log.iter().scan(0, |n, e| {
                    *n += usize::from(matches!(e, LogEntry::Token(_)));
                    Some((*n, matches!(e, LogEntry::Toggle { .. })))
                });
                tokens.filter(|(_, toggle)| *toggle).map(|(n, _)| n).find(|&n| n > fed).unwrap_or(wanted.reads.len())
            };
            let (seq, logits) = feed(&mut runner, &log, || {
                let len = if seed == 0 { 1 } else { steps() }.min(64).min(toggles_at(fed) - fed);
                reads += if len == 1 { wanted.reads[fed] as u64 } else { 0 };
                fed += len;
                len
            });
            let worst = max_difference(&logits, &wanted.logits);
            assert!(worst < 1e-4, "case {i}: logits differ by {worst}");
            let got = slots(&runner, seq);
            assert_eq!(*of_ones.get_or_insert_with(|| got.clone()), got, "case {i}: slots of another split");
            assert_eq!(in_order(got), wanted.stored, "case {i}");
            let stats = runner.cache.stats(runner.backend(), seq);
            assert_eq!((stats.reads, stats.peak as usize), (reads, *wanted.live.iter().max().unwrap()), "case {i}");
            runner.cache.audit(runner.backend()).unwrap();
            runner.release(seq);
        }
    }
}

#[test]
fn forks_and_images_take_the_scores_along_and_release_forgets_them() {
    for (i, case) in CASES.into_iter().take(2).enumerate() {
        let tiny = Tiny::new(Spec::new(i == 0, Form::Plain), 320 + i as u64);
        let mut rng = Rng(321);
        let (log, wanted) = case.clear_log(&tiny, &mut rng, 90, 0);
        let mut runner = runner(&tiny, case.choice(), Codec::F32);
        let (seq, _) = feed(&mut runner, &log[..50], || 17);
        let fork = runner.fork(seq).unwrap();
        // The original continues elsewhere, over the pages that both hold.
        feed_to(&mut runner, seq, &random_log(&mut rng, 40, 0));
        let (head, _) = runner.head(fork);
        let images: Vec<Vec<u8>> = (0..runner.config().n_layers)
            .map(|layer| {
                let mut image = Vec::new();
                runner.export_layer(fork, layer, &mut image);
                image
            })
            .collect();
        runner.release(seq);
        let copy = runner.create(true).unwrap();
        for (layer, image) in images.iter().enumerate() {
            let check = runner.cache.layer_check(head.len);
            let of_others = check.check(layer, with_slots_swapped_in_the_last_head(&runner, image));
            assert_eq!(of_others.err().map(|e| e.to_string().contains("different tokens")), case.tova.then_some(true));
            let cut = check.check(layer, image[..image.len() - 4].to_vec());
            assert!(cut.is_err_and(|e| e.to_string().contains("another size")));
            runner.import_layer(copy, &check.check(layer, image.clone()).unwrap()).unwrap();
        }
        runner.end_import(copy, &head, std::iter::empty()).unwrap();
        for seq in [fork, copy] {
            feed_to(&mut runner, seq, &log[50..]);
            assert_eq!(in_order(slots(&runner, seq)), wanted.stored, "case {i}");
            runner.release(seq);
        }
        assert_eq!(runner.cache.audit(runner.backend()), Ok(0));
    }
}

/// The image of a layer in which the first two slots of the last page have changed their positions:
/// still a lane of the sequence, but not in the order of the other lanes.
fn with_slots_swapped_in_the_last_head(runner: &Runner<Cpu>, image: &[u8]) -> Vec<u8> {
    let (g, mut image) = (runner.cache.geometry(), image.to_vec());
    let last_page = image.len() - scores_bytes(g, &image) - g.page_bytes();
    let (layout, page) = (g.page(), &mut image[last_page..][..g.page_bytes()]);
    let [first, second] = [0, 1].map(|row| layout.meta(page, row));
    layout.set_meta(page, 0, second);
    layout.set_meta(page, 1, first);
    image
}

/// Bytes of the scores at the end of a layer's image: one for each slot of its pages.
fn scores_bytes(g: &KvGeometry, image: &[u8]) -> usize {
    let tables = (1 + g.n_kv_heads) * size_of::<i32>();
    let score_bytes = g.page_slots * size_of::<f32>();
    (image.len() - tables) / (g.page_bytes() + score_bytes) * score_bytes
}

fn feed_to(runner: &mut Runner<Cpu>, seq: SeqId, log: &[LogEntry]) {
    for entry in log {
        let LogEntry::Token(token) = entry else { continue };
        runner.feed(seq, &[*token]).unwrap();
    }
}

/// Where a query may read all pages, Quest is what it stands on, bit for bit and in every format;
/// with fewer it is not.
#[test]
fn quest_with_all_pages_is_the_cache_that_it_reads() {
    for (form, plain, over) in
        [(Form::Plain, PolicyKind::Dense, PolicyKind::Quest), (Form::Metadata, PolicyKind::Dms, PolicyKind::DmsQuest)]
    {
        let tiny = Tiny::new(Spec { n_layers: 3, ..Spec::new(true, form) }, 340);
        let log = random_log(&mut Rng(341), 84, 2);
        for codec in [Codec::F32, Codec::Fp8, Codec::K8V4, Codec::Csr8] {
            let run = |policy| {
                let mut runner = runner(&tiny, policy, codec);
                let (seq, logits) = feed(&mut runner, &log, || 1);
                let stats = runner.cache.stats(runner.backend(), seq);
                let bits: Vec<u32> = logits.iter().flatten().map(|x| x.to_bits()).collect();
                (bits, stats.reads, stats.peak, slots(&runner, seq))
            };
            let (wanted, all, few) =
                (run(plain.into()), run(over.with(Budget::Slots(128))), run(over.with(Budget::Slots(48))));
            assert!(all == wanted, "{codec:?}");
            assert!(few.0 != wanted.0 && few.1 < wanted.1, "{codec:?}: {} reads of {}", few.1, wanted.1);
        }
    }
}

/// A log gives one state and the same bits, whatever its steps and the number of threads.
#[test]
fn a_log_has_the_same_bits_in_any_steps_on_any_threads() {
    let spec = |form| Spec { n_layers: 3, hidden: 64, ffn: 128, ..Spec::new(true, form) };
    let of_forms = [Form::Borrowed, Form::Adapter, Form::Plain, Form::Dmc].map(|form| (form, PolicyRequest::default()));
    let chosen = [
        PolicyKind::Window.with(Budget::Slots(24)),
        PolicyKind::Tova.with(Budget::Slots(40)),
        PolicyKind::H2o.with(Budget::Slots(40)),
        PolicyKind::Pool.with(Budget::of_ratio(3.0)),
    ];
    let cases = of_forms.into_iter().chain(chosen.map(|policy| (Form::Plain, policy)));
    for (form, policy) in cases {
        let tiny = Tiny::new(spec(form), 350);
        let log = random_log(&mut Rng(351), 150, if form == Form::Plain { 0 } else { 2 });
        for (codec, weights) in [
            (Codec::F32, Weights::Bf16),
            (Codec::Bf16, Weights::Int8),
            (Codec::Fp8, Weights::Bf16),
            (Codec::Int8, Weights::Int4),
            (Codec::K8V4, Weights::Bf16),
            (Codec::Csr4, Weights::Bf16),
        ] {
            let run = |threads: usize, seed: u64| {
                let codec_data = codec_data(codec, &tiny);
                let options = EngineOptions { policy, max_step: Some(100), codec_data, ..EngineOptions::new(codec) };
                let source = convert(tiny.checkpoint(), weights, &Importance::new(), 1, |_, _| true).unwrap();
                let mut runner = Runner::new(Cpu::new(threads), &source, &options, |_, _| true).unwrap();
                let mut steps = step_lengths(seed);
                let (seq, logits) = feed(&mut runner, &log, || match seed {
                    0 => 1,
                    1 => 100,
                    _ => steps(),
                });
                let bits: Vec<u32> = logits.iter().flatten().map(|x| x.to_bits()).collect();
                let stats = runner.cache.stats(runner.backend(), seq);
                (bits, stats.peak, slots(&runner, seq))
            };
            let wanted = run(1, 0);
            for (threads, seed) in [(2, 1), (3, 2), (2, 3)] {
                assert!(run(threads, seed) == wanted, "{form:?} {policy:?} {codec:?} {weights:?}, {threads} threads");
            }
        }
    }
}
