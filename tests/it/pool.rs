//! The cache under random operations, against lists of tokens: which slots there are and in which
//! order, what attention reads from them, and who holds which page.

use crate::tiny::Rng;
use dmschat::backend::cpu::Cpu;
use dmschat::backend::{Device, KvGeometry, Ops, QkvRopeArgs, Span, Use};
use dmschat::cache::{CacheError, KvCache, SeqId};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Dms, H2o, Policy, Pool, Shift};
use dmschat::protocol::{LaneFilter, LaneState};
use dmschat::tensor::Tensor;

const HEADS: usize = 2;
const DIM: usize = 8;
/// `[q heads | k heads | v heads]`
const WIDTH: usize = 3 * HEADS * DIM;
const LAYERS: usize = 2;
const CONTEXT: usize = 40;
const N_SEQS: usize = 5;
const MAX_STEP: usize = 24;
/// Rows that tokens bring: query, key and value of each head.
const ROWS: usize = 97;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    position: usize,
    row: usize,
    marked: bool,
}

/// A sequence as a list of slots for every lane, `[layer * HEADS + head]`.
#[derive(Clone)]
struct Sequence {
    id: SeqId,
    len: usize,
    eviction: bool,
    dial: f32,
    lanes: Vec<Vec<Slot>>,
}

struct Bench {
    b: Cpu,
    cache: KvCache<Cpu>,
    policy: Policy,
    /// Contents of each row, also as an embedding table.
    rows: Vec<Vec<f32>>,
    table: <Cpu as Device>::Weight,
    qkv: <Cpu as Device>::Acts,
    out: <Cpu as Device>::Acts,
    live: Vec<Sequence>,
    rng: Rng,
    refused: usize,
}

impl Bench {
    fn new(policy: Policy, codec: Codec, seed: u64) -> Self {
        let b = Cpu::new(1);
        let mut rng = Rng(seed);
        let geometry = KvGeometry {
            n_layers: LAYERS,
            n_q_heads: HEADS,
            n_kv_heads: HEADS,
            head_dim: DIM,
            heads: None,
            n_seqs: N_SEQS,
            page_slots: 4,
            same_slots: false,
            max_pages: 0,
            codec,
            policy,
            far: None,
            delta: None,
            vocab: 0,
            staged_rows: 0,
            local: Default::default(),
        };
        let cache = KvCache::new(&b, geometry, CONTEXT, MAX_STEP).unwrap();
        // Powers of two with a one in every head: no codec changes them.
        let mut value = |i: usize| {
            let size = if i.is_multiple_of(DIM) { 1.0 } else { 0.5f32.powi(rng.below(3) as i32) };
            if rng.chance(2) { size } else { -size }
        };
        let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| (0..WIDTH).map(&mut value).collect()).collect();
        let table = b.weight(&[Tensor::from_f32("rows", vec![ROWS, WIDTH], &rows.concat())]).unwrap();
        let acts = |width| b.acts(MAX_STEP, width, Use::Any).unwrap();
        let (qkv, out) = (acts(WIDTH), acts(HEADS * DIM));
        Self { b, cache, policy, rows, table, qkv, out, live: Vec::new(), rng, refused: 0 }
    }

    /// One random operation.
    fn operate(&mut self) {
        if self.live.is_empty() {
            return self.create();
        }
        let i = self.rng.below(self.live.len());
        match self.rng.below(20) {
            0 => self.create(),
            1..=2 => self.fork(i),
            3..=4 => self.release(i),
            5..=7 => self.toggle(i),
            8 => {
                let pages = 20 + self.rng.below(100);
                let bytes = (pages * self.cache.geometry().page_bytes()) as u64;
                let limit = self.rng.chance(2).then_some(bytes);
                self.cache.set_limit_bytes(limit);
            }
            9 => self.cache.trim(&self.b),
            10 => self.turn_dial(i),
            11 => self.copy_image(i),
            _ => self.feed(i),
        }
    }

    fn create(&mut self) {
        let eviction = self.rng.chance(2);
        match self.cache.create(&self.b, eviction) {
            Ok(id) => {
                self.live.push(Sequence { id, len: 0, eviction, dial: 0.0, lanes: vec![Vec::new(); LAYERS * HEADS] })
            }
            Err(error) => assert!(matches!(error, CacheError::Sequences(N_SEQS)) && self.live.len() == N_SEQS),
        }
    }

    fn fork(&mut self, i: usize) {
        match self.cache.fork(&self.b, self.live[i].id) {
            Ok(id) => self.live.push(Sequence { id, ..self.live[i].clone() }),
            Err(error) => assert!(matches!(error, CacheError::Sequences(N_SEQS)) && self.live.len() == N_SEQS),
        }
    }

    /// Builds a sequence from another's image; a damaged image is refused, or gives a sequence that
    /// can be released.
    fn copy_image(&mut self, i: usize) {
        let original = self.live[i].clone();
        let (head, sizes) = self.cache.head(&self.b, original.id);
        let mut images = vec![Vec::new(); LAYERS];
        for (layer, image) in images.iter_mut().enumerate() {
            self.cache.export_layer(&self.b, original.id, layer, image);
            assert_eq!(image.len() as u64, sizes[layer]);
            assert!(sizes[layer] <= self.cache.max_layer_bytes(original.len));
        }
        let Ok(id) = self.cache.create(&self.b, false) else { return };
        let whole = images.clone();
        let (layer, damaged) = (self.rng.below(LAYERS), self.rng.chance(2));
        if damaged {
            let image = &mut images[layer];
            match self.rng.below(3) {
                0 => image.truncate(self.rng.below(image.len())),
                1 => image.push(0),
                _ => {
                    let at = self.rng.below(image.len());
                    image[at] ^= 1 << self.rng.below(8);
                }
            }
        }
        let mut import = || {
            for (layer, image) in images.iter().enumerate() {
                let image = self.cache.layer_check(head.len).check(layer, image.clone())?;
                self.cache.import_layer(&self.b, id, &image)?;
            }
            self.cache.end_import(&self.b, id, &head, std::iter::empty()).map_err(anyhow::Error::msg)
        };
        let imported = import();
        if damaged || imported.is_err() {
            assert!(damaged || imported.as_ref().is_err_and(|e| e.is::<CacheError>()), "{imported:?}");
            assert!(images[layer].len() == whole[layer].len() || imported.is_err());
            self.cache.audit(&self.b).unwrap();
            return self.cache.release(&self.b, id);
        }
        let mut again = Vec::new();
        for (layer, image) in whole.iter().enumerate() {
            self.cache.export_layer(&self.b, id, layer, &mut again);
            assert!(again == *image, "layer {layer} of the copy");
        }
        assert_eq!(self.cache.head(&self.b, id).0, head);
        self.live.push(Sequence { id, ..original });
    }

    fn release(&mut self, i: usize) {
        let gone = self.live.swap_remove(i);
        self.cache.release(&self.b, gone.id);
    }

    fn toggle(&mut self, i: usize) {
        let seq = &mut self.live[i];
        let on = !seq.eviction;
        let Ok(dropped) = self.cache.set_eviction(&self.b, seq.id, on) else {
            self.refused += 1;
            return;
        };
        seq.eviction = on;
        let mut gone = 0;
        if let (true, Policy::Dms(dms)) = (on, self.policy) {
            for lane in &mut seq.lanes {
                let before = lane.len();
                lane.retain(|s| !s.marked || seq.len - 1 - s.position <= dms.window);
                gone += before - lane.len();
            }
        }
        assert_eq!(dropped, gone as u64);
    }

    fn turn_dial(&mut self, i: usize) {
        let seq = &mut self.live[i];
        seq.dial = [-1.5, 0.0, 1.5][self.rng.below(3)];
        self.cache.set_dial(&self.b, seq.id, seq.dial);
    }

    /// A step over one to three sequences; every token's attention is compared.
    fn feed(&mut self, first: usize) {
        let mut chosen = vec![first];
        while chosen.len() < self.live.len().min(3) && self.rng.chance(3) {
            let i = self.rng.below(self.live.len());
            if !chosen.contains(&i) {
                chosen.push(i);
            }
        }
        let (mut spans, mut start) = (Vec::new(), 0);
        for &i in &chosen {
            let len = if self.rng.chance(2) { 1 } else { 1 + self.rng.below(MAX_STEP / 3) };
            let len = len.min(CONTEXT - self.live[i].len);
            if len > 0 {
                spans.push((i, self.cache.span(self.live[i].id, start, len)));
                start += len;
            }
        }
        let steps: Vec<_> = spans.iter().map(|(_, span)| *span).collect();
        let bound = |(i, span): &(usize, Span)| self.cache.pages_for(&self.b, self.live[*i].id, span.len);
        let most_used = self.used_pages() + spans.iter().map(bound).sum::<usize>();
        if self.cache.reserve_step(&self.b, &steps).is_err() || start == 0 {
            self.refused += 1;
            return;
        }
        let rows: Vec<u32> = (0..start).map(|_| self.rng.below(ROWS) as u32).collect();
        for layer in 0..LAYERS {
            let decisions: Vec<f32> = (0..start * HEADS).map(|_| self.rng.below(4) as f32 - 1.5).collect();
            let got = self.attend(layer, &rows, &decisions, &steps);
            for (i, span) in &spans {
                for t in span.start..span.start + span.len {
                    for head in 0..HEADS {
                        let position = self.live[*i].len + t - span.start;
                        let marks = decisions[t * HEADS + head] > self.live[*i].dial;
                        let evicts = self.live[*i].eviction;
                        let lane = &mut self.live[*i].lanes[layer * HEADS + head];
                        take_in(lane, self.policy, evicts, Slot { position, row: rows[t] as usize, marked: marks });
                        let wanted = mixed(lane, &self.rows, rows[t] as usize, head);
                        let got = &got[(t * HEADS + head) * DIM..][..DIM];
                        let off = wanted.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                        assert!(off < 1e-4, "layer {layer} head {head} position {position}: off by {off}");
                    }
                }
            }
        }
        assert!(self.used_pages() <= most_used, "more pages were taken than the bound says");
        self.cache.finish(&self.b, &steps);
        spans.iter().for_each(|(i, span)| self.live[*i].len += span.len);
    }

    /// The attention op over a layer, `[n, HEADS, DIM]`.
    fn attend(&mut self, layer: usize, rows: &[u32], decisions: &[f32], spans: &[Span]) -> Vec<f32> {
        let Self { b, cache, qkv, out, .. } = self;
        b.embed(qkv, &self.table, &rows.to_vec(), 1.0, rows.len());
        let inv_freq = vec![0.0; DIM / 2];
        let rope = QkvRopeArgs::plain(&inv_freq);
        cache.attention(b, out, qkv, &mut decisions.to_vec(), layer, spans, &rope);
        let mut got = vec![0.0; rows.len() * HEADS * DIM];
        b.read_acts(out, &mut got);
        got
    }

    /// Slots in their order, counts, and who holds which page.
    fn check(&self) {
        let mut slots = 0;
        for seq in &self.live {
            assert_eq!((self.cache.len(seq.id), self.cache.eviction(seq.id)), (seq.len, seq.eviction));
            let stats = self.cache.stats(&self.b, seq.id);
            for (lane, wanted) in seq.lanes.iter().enumerate() {
                let metas = self.cache.slot_metas(&self.b, seq.id, lane / HEADS, lane % HEADS);
                assert_eq!(stats.live[lane / HEADS][lane % HEADS] as usize, wanted.len());
                assert!(
                    metas.iter().map(|m| (m.position(), m.marked())).eq(wanted.iter().map(|s| (s.position, s.marked)))
                );
                slots += wanted.len().div_ceil(4);
            }
            self.check_presence(seq);
        }
        let pages = self.cache.audit(&self.b).unwrap_or_else(|why| panic!("{why}"));
        let stats = self.cache.pool_stats(&self.b);
        assert!(stats.used_pages == pages && pages <= slots && pages <= stats.mapped_pages);
    }

    /// Counts lanes by position, of all lanes and of some, and the state of one position in each
    /// lane.
    fn check_presence(&self, seq: &Sequence) {
        let at = seq.len / 2;
        let filters = [(None, None), (Some(1), None), (None, Some(1)), (Some(0), Some(1))];
        let (layer, head) = filters[seq.len % filters.len()];
        let filter = LaneFilter { layer, head };
        let found = self.cache.presence(&self.b, seq.id, filter, at);
        let lanes = seq.lanes.iter().enumerate().filter(|(lane, _)| filter.selects(lane / HEADS, lane % HEADS));
        let (mut kept, mut marked) = (vec![0; seq.len], vec![0; seq.len]);
        for slot in lanes.flat_map(|(_, slots)| slots) {
            kept[slot.position] += 1;
            marked[slot.position] += u16::from(slot.marked);
        }
        assert_eq!((found.kept, found.marked), (kept, marked));
        let states = seq.lanes.iter().map(|slots| match slots.iter().find(|s| s.position == at) {
            None => LaneState::Dropped,
            Some(slot) if slot.marked => LaneState::Marked,
            Some(_) => LaneState::Kept,
        });
        assert_eq!(found.of_position, states.collect::<Vec<_>>());
    }

    fn used_pages(&self) -> usize {
        self.cache.pool_stats(&self.b).used_pages
    }
}

/// The rule for one token of one lane, token after token.
fn take_in(lane: &mut Vec<Slot>, policy: Policy, evicts: bool, token: Slot) {
    let Policy::Dms(dms) = policy else {
        return lane.push(Slot { marked: false, ..token });
    };
    let n = token.position;
    if dms.shift == Shift::Previous && token.marked && n > 0 {
        lane.iter_mut().find(|s| s.position == n - 1).expect("the newest token is stored").marked = true;
    }
    let token = Slot { marked: token.marked && dms.shift == Shift::Same, ..token };
    let leaving = lane.iter_mut().find(|s| s.position + dms.window + 1 == n);
    match leaving {
        Some(slot) if slot.marked && evicts => *slot = token,
        _ => lane.push(token),
    }
}

/// Attention of a row's query over all slots of its lane.
fn mixed(lane: &[Slot], rows: &[Vec<f32>], row: usize, head: usize) -> Vec<f32> {
    let part = |row: usize, kind: usize| &rows[row][(kind * HEADS + head) * DIM..][..DIM];
    let score = |s: &Slot| {
        let dot: f32 = part(row, 0).iter().zip(part(s.row, 1)).map(|(a, b)| a * b).sum();
        (dot / (DIM as f32).sqrt()).exp()
    };
    let total: f32 = lane.iter().map(score).sum();
    let mut out = vec![0.0; DIM];
    for slot in lane {
        let share = score(slot) / total;
        out.iter_mut().zip(part(slot.row, 2)).for_each(|(o, v)| *o += share * v);
    }
    out
}

#[test]
fn a_hundred_thousand_operations_lose_no_slot_and_share_none() {
    let dms = |window, shift| Policy::Dms(Dms::new(window, shift));
    for (seed, (policy, codec)) in [
        (Policy::Dense, Codec::F32),
        (dms(3, Shift::Previous), Codec::F32),
        (dms(6, Shift::Same), Codec::Bf16),
        (dms(0, Shift::Previous), Codec::Fp8),
        (dms(11, Shift::Previous), Codec::F32),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bench = Bench::new(policy, codec, seed as u64);
        let page_bytes = bench.cache.geometry().page_bytes();
        for _ in 0..20_000 {
            let before = bench.used_pages();
            bench.operate();
            bench.check();
            // Nothing is taken that was not reserved, which the limit sees.
            let limit = bench.cache.limit_bytes().map_or(usize::MAX, |l| l as usize / page_bytes);
            assert!(bench.used_pages() <= before.max(limit));
        }
        assert!((100..10_000).contains(&bench.refused), "{} operations were refused", bench.refused);
        while !bench.live.is_empty() {
            bench.release(0);
        }
        bench.cache.trim(&bench.b);
        assert_eq!(bench.cache.pool_stats(&bench.b), Default::default(), "all pages are given back");
    }
}

/// Forks copy the page that they append to once, and need none of the prompt's pages for it again.
#[test]
fn forks_that_own_their_newest_page_reserve_no_copy_of_it() {
    let previous = Policy::Dms(Dms { window: 3, shift: Shift::Previous, sinks: 0, dial: 9.0 });
    let policies =
        [Policy::Dense, previous, Policy::Pool(Pool { every: 2 }), Policy::H2o(H2o { budget: Budget::Slots(30) })];
    for policy in policies {
        let mut bench = Bench::new(policy, Codec::F32, 7);
        let b = &bench.b;
        let prompt = bench.cache.create(b, true).unwrap();
        // Merged by two, 13 tokens are 7 slots of pages of 4.
        let tokens = if policy.merging().is_some() { 13 } else { 6 };
        let step = |bench: &mut Bench, seqs: &[SeqId], len: usize| {
            let spans: Vec<Span> = seqs.iter().enumerate().map(|(i, s)| bench.cache.span(*s, i * len, len)).collect();
            bench.cache.reserve_step(&bench.b, &spans)?;
            for layer in 0..LAYERS {
                bench.attend(layer, &vec![0; seqs.len() * len], &vec![0.0; seqs.len() * len * HEADS], &spans);
            }
            bench.cache.finish(&bench.b, &spans);
            Ok::<_, CacheError>(bench.used_pages())
        };
        let before = step(&mut bench, &[prompt], tokens).unwrap();
        let forks = [(); 3].map(|()| bench.cache.fork(&bench.b, prompt).unwrap());
        // Six slots are filled, and the seventh is stored in a copy of the second page.
        let copied = step(&mut bench, &forks, 1).unwrap();
        assert_eq!(copied - before, forks.len() * LAYERS * HEADS, "{policy:?}");
        let limit = |bench: &Bench, pages: usize| Some((pages * bench.cache.geometry().page_bytes()) as u64);
        let enough =
            copied + if policy.scored().is_some() || policy == previous { forks.len() * LAYERS * HEADS } else { 0 };
        bench.cache.set_limit_bytes(limit(&bench, enough));
        assert_eq!(step(&mut bench, &forks, 1).unwrap(), copied, "{policy:?}: the eighth slot needs no page");
    }
}
