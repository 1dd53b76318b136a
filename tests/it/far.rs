//! Far pages against the tests' own form of the rule, and against a cache that drops nothing.

use crate::far_reference::{self, Outcome};
use crate::rule::{feed, feed_on, max_difference, random_log, runner_with, step_lengths, stored};
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
    let g = runner.cache.geometry();
    let rows = |layer, head| runner.cache.far_rows(runner.backend(), seq, layer, head);
    let lane = |layer, head| rows(layer, head).iter().map(|(meta, near)| (meta.position(), *near)).collect();
    (0..g.n_layers).map(|layer| (0..g.n_kv_heads).map(|head| lane(layer, head)).collect()).collect()
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
    let is_clear = |(outcome, _): &(Outcome, _)| outcome.margin > 5e-4 && outcome.hidden_pairs > 500;
    let (outcome, log) = cases.find(is_clear).expect("a log whose choices are all clear and that hides rows");
    (log, outcome)
}

#[test]
fn what_left_is_found_again_by_the_rule_in_any_chunks() {
    let off = LogEntry::Toggle { eviction: false };
    let on = LogEntry::Toggle { eviction: true };
    let forget = LogEntry::Forget { forget: strength(-3.0) as u16 };
    let predictor = Form::Predictor { linear: true, units: 0 };
    let pins = [LogEntry::Pin { pin: [30, 55] }, LogEntry::Unpin { unpin: [40, 60] }];
    let cases: [(Form, Option<usize>, usize, &[LogEntry]); 10] = [
        (Form::Borrowed, None, 2, &[]),
        (Form::Adapter, None, 1, &[forget]),
        (Form::Metadata, None, 3, &[LogEntry::DropFar { drop_far: 90 }]),
        (predictor, None, 2, &[LogEntry::Drop { drop: [20, 44] }]),
        (Form::Plain, Some(24), 2, &[]),
        (Form::Borrowed, None, 0, &[off, on]),
        (Form::Metadata, None, 1, &pins),
        (Form::Borrowed, None, 0, &[off]),
        (Form::Predictor { linear: true, units: 8 }, None, 1, &[forget]),
        (Form::Predictor { linear: false, units: 8 }, None, 2, &pins),
    ];
    for (i, (form, budget, k, others)) in cases.into_iter().enumerate() {
        let tiny = Tiny::new(Spec { n_q_heads: 4, ..Spec::new(i % 2 == 0, form) }, 400 + i as u64);
        let log = |rng: &mut Rng| {
            // The last of two, and a switch, come late, so that rows are hidden before.
            let (early, late) = others.split_at(usize::from(!others.is_empty() && *others != [off]));
            let mut log = random_choices(rng, 300, early);
            late.iter().for_each(|&entry| log.insert(log.len() - 60, entry));
            log
        };
        let (log, wanted) = clear_case(&tiny, log, k, budget);
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
            assert_eq!(runner.cache.far_fetched(seq), wanted.fetched, "{form:?}");
        }
    }
}

/// Models whose rows leave by other decisions, and with layers of other kinds: a predictor alone,
/// beside gated delta nets and beside local layers, from which nothing becomes far.
fn models() -> [Spec; 4] {
    let predicted = Spec::new(true, Form::Predictor { linear: true, units: 8 });
    [
        Spec::new(true, Form::Borrowed),
        predicted.clone(),
        Spec { hybrid: true, n_layers: 4, ..predicted.clone() },
        Spec { local: 40, n_layers: 3, ..predicted },
    ]
}

/// With room near for all pages a cache reads what a dense one reads, in the same order: the same
/// bits, for every codec. Without far pages it does not.
#[test]
fn where_all_pages_are_near_nothing_is_lost() {
    for (spec, codec) in models().into_iter().flat_map(|spec| Codec::ALL.map(|codec| (spec.clone(), codec))) {
        let tiny = Tiny::new(spec, 410);
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
        let about = format!("{:?}, {codec:?}: {live} of {dense_slots} slots", tiny.spec);
        assert!(all == of_dense && 10 * live < 9 * dense_slots && gone != of_dense, "{about}");
    }
}

/// Forks share far pages, and what one of them does changes nothing of the other.
#[test]
fn forks_share_far_pages() {
    models().into_iter().for_each(forks_share_pages);
}

fn forks_share_pages(spec: Spec) {
    let tiny = Tiny::new(spec, 420);
    let log = random_choices(&mut Rng(9420), 250, &[]);
    let mut runner = runner_with(1, &tiny, options(Codec::F32, 1));
    let (seq, _) = feed(&mut runner, &log[..150], step_lengths(1));
    let bytes = |runner: &Runner<Cpu>| runner.cache.far_counts(runner.backend(), seq).all_bytes;
    let (before, alone) = (far(&runner, seq), bytes(&runner));
    let fork = runner.fork(seq).expect("a free row");
    let fetched = runner.cache.far_fetched(seq).to_vec();
    assert!(runner.cache.far_fetched(fork) == fetched && fetched.len() == runner.cache.geometry().far_lanes().count());
    assert_eq!((far(&runner, fork), bytes(&runner)), (before.clone(), alone), "nothing is copied");
    let rest: Vec<u32> = log[150..].iter().filter_map(LogEntry::token).collect();
    let of = |runner: &mut Runner<Cpu>, seq| {
        runner.feed(seq, &rest[..40]).expect("room");
        let before: u32 = runner.cache.far_fetched(seq).iter().sum();
        let fetched = runner.choose(seq, 16).expect("far pages are kept");
        let after: u32 = runner.cache.far_fetched(seq).iter().sum();
        assert_eq!(fetched, u64::from(after - before), "the sum over lanes");
        runner.feed(seq, &rest[40..60]).expect("room");
        let mut last = Vec::new();
        runner.logits([19], |_, row| last = row.to_vec()).expect("finite");
        last
    };
    let first = of(&mut runner, fork);
    assert_eq!(far(&runner, seq), before);
    assert_eq!(runner.cache.far_fetched(seq), fetched);
    let of_fork = runner.cache.far_fetched(fork).to_vec();
    assert!(runner.drop_far(seq, 110) > 0);
    let after = far(&runner, fork);
    runner.release(seq);
    assert_eq!(far(&runner, fork), after, "the fork keeps what it shares");
    let (again, _) = feed(&mut runner, &log[..150], || 7);
    assert_eq!(of(&mut runner, again), first, "a fork goes on as the sequence would");
    assert_eq!(far(&runner, again), after);
    assert_eq!(runner.cache.far_fetched(again), of_fork);
    runner.release(fork);
    runner.release(again);
    assert_eq!(bytes(&runner), 0);
}

/// All images of a sequence.
fn images(runner: &mut Runner<Cpu>, seq: SeqId) -> Vec<Vec<u8>> {
    let (head, sizes) = runner.head(seq);
    assert_eq!(sizes.len(), runner.cache.n_images());
    let image = |(number, size)| {
        let mut image = vec![7; 9];
        runner.export_layer(seq, number, &mut image);
        assert_eq!(image.len() as u64, size, "image {number}");
        assert!(size <= runner.cache.max_layer_bytes(head.len));
        image
    };
    sizes.into_iter().enumerate().map(image).collect()
}

/// Far rows leave the cache and come back: a copy made of images goes on to the same bits as the
/// sequence, through choices of every page. So does a replay in single steps.
#[test]
fn images_have_the_far_rows() {
    for (spec, codec) in models().into_iter().flat_map(|spec| Codec::ALL.map(|codec| (spec.clone(), codec))) {
        let tiny = Tiny::new(spec, 430);
        let mut log = random_choices(&mut Rng(9430), 420, &[LogEntry::Forget { forget: strength(-3.0) as u16 }]);
        log.insert(log.len() - 80, LogEntry::DropFar { drop_far: 150 });
        let (before, after) = log.split_at(log.len() - 60);
        let mut runner = runner_with(2, &tiny, options(codec, 1));
        let (seq, logits) = feed(&mut runner, before, step_lengths(1));
        let (single, of_single) = feed(&mut runner, before, || 1);
        assert!(logits == of_single && far(&runner, single) == far(&runner, seq), "{:?}, {codec:?}", tiny.spec);
        runner.release(single);
        let newest: Vec<LogEntry> = (30..60).map(LogEntry::Token).collect();
        let tokens: Vec<u32> = before.iter().filter_map(LogEntry::token).collect();
        let images = images(&mut runner, seq);
        let (head, _) = runner.head(seq);
        let copy = runner.create(false).expect("a free row");
        let check = runner.cache.layer_check(head.len);
        let checked = |number: usize| check.check(number, images[number].clone()).expect("an image that was just made");
        // Layers come in any order.
        let (firsts, mut rests) = (0..runner.cache.first_rest(), Vec::new());
        for number in firsts.rev() {
            rests.extend(runner.import_layer(copy, &checked(number)).expect("room"));
        }
        runner.end_import(copy, &head, tokens.into_iter()).expect("images of one sequence");
        // Steps need no other far rows, nor do forks, nor does who wants to know what is far.
        let fork = runner.fork(copy).expect("a free row");
        assert!(feed_on(&mut runner, copy, &newest, || 3) == feed_on(&mut runner, seq, &newest, || 5), "{codec:?}");
        assert_eq!(far(&runner, copy), far(&runner, seq), "{codec:?}");
        assert_eq!(runner.drop_far(seq, 170), runner.drop_far(copy, 170));
        for number in runner.cache.first_rest()..runner.cache.n_images() {
            runner.import_rest(&mut rests, &checked(number)).expect("rows of the lane");
        }
        assert!(rests.is_empty(), "{codec:?}");
        let (wanted, found) = (far(&runner, seq), far(&runner, copy));
        assert_eq!(found, wanted, "{codec:?}");
        let hidden = wanted.iter().flatten().flatten().filter(|(_, near)| !near).count();
        assert!(hidden > 60, "{:?}, {codec:?}: {hidden} rows are not read", tiny.spec);
        let counts = |seq| runner.cache.far_counts(runner.backend(), seq);
        assert!(counts(seq) == counts(copy) && counts(seq).dropped > 0, "{codec:?}: {:?}", counts(copy));
        let go_on = |runner: &mut Runner<Cpu>, seq, seed| feed_on(runner, seq, after, step_lengths(seed));
        let (a, b) = (go_on(&mut runner, seq, 2), go_on(&mut runner, copy, 3));
        assert!(a == b && far(&runner, seq) == far(&runner, copy), "{codec:?}");
        feed_on(&mut runner, fork, &newest, || 4);
        runner.drop_far(fork, 170);
        assert!(go_on(&mut runner, fork, 4) == a, "{codec:?}: the fork has the rows too");
    }
}

/// No image is believed that no lane could have.
#[test]
fn forged_far_rows_are_refused() {
    let tiny = Tiny::new(Spec::new(true, Form::Borrowed), 431);
    let mut runner = runner_with(1, &tiny, options(Codec::F32, 1));
    let (seq, _) = feed(&mut runner, &random_choices(&mut Rng(9431), 250, &[]), step_lengths(1));
    let (images, (head, _)) = (images(&mut runner, seq), runner.head(seq));
    let g = *runner.cache.geometry();
    let number = g.n_layers;
    let word = |at: usize| u32::from_ne_bytes(images[number][4 * at..4 * at + 4].try_into().expect("a word")) as usize;
    let [of, full, filling, near] = [0, 1, 2, 4].map(word);
    assert!(of == number && full > 2 && filling > 1 && near < full, "{full} pages, {near} near, {filling} rows more");
    let queries = 20 + 4 * near;
    let metas = queries + 4 * Far::QUERIES * g.n_q_heads / g.n_kv_heads * g.head_dim;
    let index = metas + 4 * full * Far::ROWS;
    let blocks = index + full * (4 + g.head_dim / 2);
    let hidden = (0..full).find(|&page| (0..near).all(|i| word(5 + i) != page)).expect("a page that is not near");
    let hidden = metas + 4 * hidden * Far::ROWS;
    let put = |at: usize, bytes: &[u8]| {
        let mut image = images[number].clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    };
    let words = |at: usize, value: u32| put(at, &value.to_ne_bytes());
    let second = &images[number][hidden + 4..hidden + 8];
    let cases: [(Vec<u8>, &str); 13] = [
        (images[number + 1].clone(), "the image of another layer"),
        (images[number][..19].to_vec(), "shorter than its head"),
        (images[number][..images[number].len() - 1].to_vec(), "another size"),
        (words(4, u32::MAX), "more far rows than tokens"),
        (words(8, 32), "more far rows than tokens"),
        (words(12, head.len as u32), "more far rows than tokens"),
        (words(16, u32::MAX), "more far rows than tokens"),
        (words(20, full as u32), "not a list of its pages"),
        (put(queries, &f32::NAN.to_ne_bytes()), "queries or an index"),
        (put(index, &f32::INFINITY.to_ne_bytes()), "queries or an index"),
        (put(hidden, second), "two far rows are of one token"),
        (put(blocks + g.page().meta_at, second), "near rows that are not those of their pages"),
        (put(blocks, &f32::NAN.to_ne_bytes()), "values that are not numbers"),
    ];
    let check = runner.cache.layer_check(head.len);
    for (image, why) in cases {
        let said = check.check(number, image).err().expect(why).to_string();
        assert!(said.contains(why), "{said}, not {why}");
    }
    assert!(check.check(images.len(), images[number].clone()).is_err(), "there is no such image");
    let rest = runner.cache.first_rest();
    let mut not_finite = images[rest].clone();
    not_finite[4..8].copy_from_slice(&f32::NAN.to_ne_bytes());
    let cut = images[rest][..images[rest].len() - 1].to_vec();
    let of_other = images[rest + 1].clone();
    for (image, why) in [(not_finite, "not numbers"), (cut, "another size"), (of_other, "of another layer")] {
        let said = check.check(rest, image).err().expect(why).to_string();
        assert!(said.contains(why), "{said}, not {why}");
    }
    // A lane that has its far rows and all tokens in slots too.
    let copy = runner.create(true).expect("a free row");
    let mut plain = runner_with(1, &tiny, options(Codec::F32, 1));
    let dense = plain.create(false).expect("a free row");
    for step in (0..head.len as u32).map(|i| i % 256).collect::<Vec<_>>().chunks(8) {
        plain.feed(dense, step).expect("room");
    }
    let mut rests = Vec::new();
    for (number, image) in images.iter().enumerate().take(rest) {
        let mut other = Vec::new();
        plain.export_layer(dense, number, &mut other);
        let image = if number < g.n_layers { other } else { image.clone() };
        rests.extend(runner.import_layer(copy, &check.check(number, image).expect("it could be")).expect("room"));
    }
    // Rows that could be far, of another lane.
    let mut changed = images[rest].clone();
    changed[4 + g.page().meta_at..][..4].copy_from_slice(second);
    let changed = check.check(rest, changed).expect("it could be");
    assert!(runner.import_rest(&mut rests, &changed).is_err());
    let ended = runner.end_import(copy, &head, std::iter::empty());
    assert_eq!(ended, Err("more far rows and slots than tokens"));
}
