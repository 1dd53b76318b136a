//! The CPU backend with instrumentation: counts memory calls, keeps the logits that were sampled
//! from, compares the pool's count with the tables, and sends commands after chosen steps, so that
//! a toggle or a cancel happens at a known token.

use dmschat::backend::cpu::Cpu;
use dmschat::backend::{
    About, AttentionArgs, Beside, DeltaNetArgs, Device, DeviceLost, ExpertRows, ExpertsArgs, FarCounts, FarLane,
    FarPages, FarSizes, KvGeometry, KvTables, Lane, Linear, Mlp, Norm, Ops, OutOfMemory, Pages, Plain, PoolStats,
    Predictor, PresenceCounts, QkvRopeArgs, Report, SampleArgs, Span, StepKind, StepResult, Use,
};
use dmschat::policy::SlotMeta;
use dmschat::protocol::{Command, CommandSender, EngineHandle, LaneFilter, Token};
use dmschat::tensor::Tensor;
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Observations and instructions, shared with the test's thread.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
pub struct Seen {
    /// Calls by name; those made inside a step are named `step/...`.
    pub calls: BTreeMap<String, usize>,
    /// Buffers that were read since the last step.
    pub reads_since_step: usize,
    /// What the backend says of its chunks.
    pub chunk_tokens: Option<usize>,
    /// Tokens of every step.
    pub steps: Vec<usize>,
    /// Most sequences in a step.
    pub most_sequences: usize,
    /// The logits that each token was sampled from, before sampling.
    pub logits: Vec<Vec<f32>>,
    /// Pages in use by the pool's count, and distinct pages in the tables at the same time.
    pub pages: (usize, usize),
    pub commands: Option<CommandSender>,
    /// Commands to send after this number of steps.
    pub after_step: BTreeMap<usize, Vec<Command>>,
    /// Conversations to close after this number of steps.
    pub close_at: BTreeMap<usize, EngineHandle>,
    /// Maximum pages in use after a step.
    pub peak_pages: usize,
    /// Maximum pages, as if memory ended there.
    pub room_pages: Option<usize>,
    /// Number of the step that panics.
    pub panic_at: Option<usize>,
    /// Live slots of each sequence of each decode step, summed.
    pub decode_reads: u64,
    decodes: bool,
    /// The device is lost at this call, after the given number of calls of that name.
    pub lose_at: Option<(&'static str, usize)>,
    /// Whether the backend was dropped, and with it the engine.
    pub ended: bool,
    /// Decisions of every row that attention has had, layer after layer, where a test wants them.
    pub decisions: Option<Vec<f32>>,
    inside: bool,
}

impl Watch {
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no test fails while it looks")
    }

    fn count(&self, call: &str) {
        let mut seen = self.seen();
        let name = if seen.inside { format!("step/{call}") } else { call.to_owned() };
        *seen.calls.entry(name).or_default() += 1;
        let lost = match &mut seen.lose_at {
            Some((name, left)) if *name == call => left.checked_sub(1).map(|less| *left = less).is_none(),
            _ => false,
        };
        drop(seen);
        if lost {
            std::panic::resume_unwind(Box::new(DeviceLost("the GPU failed: as the test wants it".into())));
        }
    }
}

pub struct Spy {
    cpu: Cpu,
    watch: Watch,
}

impl Spy {
    pub fn new(watch: &Watch) -> Self {
        Self { cpu: Cpu::new(1), watch: watch.clone() }
    }

    /// Lends the tables to the CPU's op as tables of its own.
    fn lent<R>(&self, kv: &KvTables<Self>, op: impl FnOnce(&mut KvTables<Cpu>) -> R) -> R {
        let mut own: KvTables<Cpu> = KvTables {
            geometry: kv.geometry,
            coder: kv.coder.clone(),
            pool: kv.pool.borrow_mut().take().expect("one op at a time"),
            page_table: kv.page_table.take(),
            live: kv.live.take(),
            ring: kv.ring.take(),
            score: kv.score.take(),
            sums: kv.sums.take(),
            delta_inputs: kv.delta_inputs.take(),
            delta_state: kv.delta_state.take(),
            seq_len: kv.seq_len.take(),
            seen: kv.seen.take(),
            eviction: kv.eviction.take(),
            dial: kv.dial.take(),
            pinned: kv.pinned.take(),
            slots: kv.slots.take(),
            reads: kv.reads.take(),
            peak: kv.peak.take(),
        };
        let result = op(&mut own);
        kv.pool.replace(Some(own.pool));
        kv.page_table.replace(own.page_table);
        kv.live.replace(own.live);
        kv.ring.replace(own.ring);
        kv.score.replace(own.score);
        kv.sums.replace(own.sums);
        kv.delta_inputs.replace(own.delta_inputs);
        kv.delta_state.replace(own.delta_state);
        kv.seq_len.replace(own.seq_len);
        kv.seen.replace(own.seen);
        kv.eviction.replace(own.eviction);
        kv.dial.replace(own.dial);
        kv.pinned.replace(own.pinned);
        kv.slots.replace(own.slots);
        kv.reads.replace(own.reads);
        kv.peak.replace(own.peak);
        result
    }
}

impl Drop for Spy {
    fn drop(&mut self) {
        self.watch.seen().ended = true;
    }
}

type Acts = <Cpu as Device>::Acts;
type Weight = <Cpu as Device>::Weight;
type Buf<T> = RefCell<Vec<T>>;

fn changed<T>(buf: &Buf<T>) -> RefMut<'_, Vec<T>> {
    buf.borrow_mut()
}

impl Report for Spy {
    fn about(&self) -> About {
        let chunk_tokens = self.watch.seen().chunk_tokens;
        About { chunk_tokens, ..self.cpu.about() }
    }
}

impl Device for Spy {
    type Buf<T: Plain> = Buf<T>;
    type Acts = Acts;
    type Weight = Weight;

    fn alloc<T: Plain>(&self, len: usize) -> Result<Buf<T>, OutOfMemory> {
        self.watch.count("alloc");
        self.cpu.alloc(len).map(RefCell::new)
    }

    fn write<T: Plain>(&self, dst: &mut Buf<T>, at: usize, src: &[T]) {
        self.watch.count("write");
        self.cpu.write(&mut changed(dst), at, src);
    }

    fn read<T: Plain>(&self, src: &Buf<T>, at: usize, dst: &mut [T]) {
        self.watch.count("read");
        self.watch.seen().reads_since_step += 1;
        self.cpu.read(&src.borrow(), at, dst);
    }

    fn acts(&self, rows: usize, width: usize, used: Use<'_, Weight>) -> Result<Acts, OutOfMemory> {
        self.watch.count("acts");
        self.cpu.acts(rows, width, used)
    }

    fn read_acts(&self, src: &Acts, rows: &mut [f32]) {
        self.watch.count("read");
        self.cpu.read_acts(src, rows);
    }

    fn weight(&self, parts: &[Tensor]) -> Result<Weight, OutOfMemory> {
        self.watch.count("weight");
        self.cpu.weight(parts)
    }
}

impl Pages for Spy {
    type Pool = RefCell<Option<<Cpu as Pages>::Pool>>;

    fn pool(&self, geometry: &KvGeometry, max_pages: usize, max_step: usize) -> Result<Self::Pool, OutOfMemory> {
        self.cpu.pool(geometry, max_pages, max_step).map(|pool| RefCell::new(Some(pool)))
    }

    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory> {
        let room = self.watch.seen().room_pages;
        self.lent(kv, |kv| {
            let used = self.cpu.pool_stats(kv).used_pages;
            if room.is_some_and(|room| pages > 0 && used + pages > room) {
                return Err(OutOfMemory { what: "test", needed_bytes: 1 });
            }
            self.cpu.reserve(kv, pages)
        })
    }

    fn trim(&self, kv: &mut KvTables<Self>) {
        self.lent(kv, |kv| self.cpu.trim(kv));
    }

    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats {
        self.lent(kv, |kv| {
            let stats = self.cpu.pool_stats(kv);
            let named: BTreeSet<i32> = kv.page_table.iter().copied().filter(|&page| page >= 0).collect();
            self.watch.seen().pages = (stats.used_pages, named.len());
            stats
        })
    }

    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize) {
        self.lent(kv, |kv| self.cpu.fork(kv, from, to));
    }

    fn release(&self, kv: &mut KvTables<Self>, seq: usize) {
        self.lent(kv, |kv| self.cpu.release(kv, seq));
    }

    fn compact(&self, kv: &mut KvTables<Self>, seq: usize, threshold: usize) {
        self.watch.count("compact");
        self.lent(kv, |kv| self.cpu.compact(kv, seq, threshold));
    }

    fn rate_slots(&self, kv: &mut KvTables<Self>, seq: usize, positions: Range<usize>, strength: usize, marked: bool) {
        self.lent(kv, |kv| self.cpu.rate_slots(kv, seq, positions, strength, marked));
    }

    fn presence(&self, kv: &KvTables<Self>, seq: usize, n: usize, filter: LaneFilter, at: usize) -> PresenceCounts {
        self.watch.count("presence");
        self.lent(kv, |kv| self.cpu.presence(kv, seq, n, filter, at))
    }

    fn export_pages(&self, kv: &mut KvTables<Self>, pages: &[i32], bytes: &mut [u8]) {
        self.watch.count("export_pages");
        self.lent(kv, |kv| self.cpu.export_pages(kv, pages, bytes));
    }

    fn import_pages(&self, kv: &mut KvTables<Self>, bytes: &[u8]) -> Vec<i32> {
        self.watch.count("import_pages");
        self.lent(kv, |kv| self.cpu.import_pages(kv, bytes))
    }

    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
        self.lent(kv, |kv| self.cpu.slot_metas(kv, layer, seq, head))
    }
}

impl FarPages for Spy {
    type Awaited = <Cpu as FarPages>::Awaited;

    fn choose(&self, kv: &mut KvTables<Self>, seq: usize, queries: usize, held: &[Range<usize>]) -> Vec<u32> {
        self.watch.count("choose");
        self.lent(kv, |kv| self.cpu.choose(kv, seq, queries, held))
    }

    fn bring(&self, kv: &mut KvTables<Self>, seq: usize, held: &[Range<usize>]) -> u64 {
        self.lent(kv, |kv| self.cpu.bring(kv, seq, held))
    }

    fn drop_far(&self, kv: &mut KvTables<Self>, seq: usize, before: usize) -> u64 {
        self.lent(kv, |kv| self.cpu.drop_far(kv, seq, before))
    }

    fn far_counts(&self, kv: &KvTables<Self>, seq: usize) -> FarCounts {
        self.lent(kv, |kv| self.cpu.far_counts(kv, seq))
    }

    fn far_rows(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<(SlotMeta, bool)> {
        self.lent(kv, |kv| self.cpu.far_rows(kv, layer, seq, head))
    }

    fn export_far(&self, kv: &mut KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) -> FarLane {
        self.lent(kv, |kv| self.cpu.export_far(kv, seq, lane, blocks))
    }

    fn far_sizes(&self, kv: &KvTables<Self>, seq: usize, lane: Lane) -> FarSizes {
        self.lent(kv, |kv| self.cpu.far_sizes(kv, seq, lane))
    }

    fn import_far(
        &self,
        kv: &mut KvTables<Self>,
        seq: usize,
        lane: Lane,
        tokens: usize,
        far: &FarLane,
        blocks: &[u8],
    ) -> Result<Self::Awaited, OutOfMemory> {
        self.lent(kv, |kv| self.cpu.import_far(kv, seq, lane, tokens, far, blocks))
    }

    fn export_far_rest(&self, kv: &KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) {
        self.lent(kv, |kv| self.cpu.export_far_rest(kv, seq, lane, blocks));
    }

    fn fill_far(&self, kv: &mut KvTables<Self>, awaited: Self::Awaited, blocks: &[u8]) -> Result<(), OutOfMemory> {
        self.lent(kv, |kv| self.cpu.fill_far(kv, awaited, blocks))
    }
}

impl Ops for Spy {
    fn embed(&self, out: &mut Acts, table: &Weight, tokens: &Buf<Token>, scale: f32, n: usize) {
        self.cpu.embed(out, table, &tokens.borrow(), scale, n);
    }

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: Norm<'_, Self>, add: Option<f32>, n: usize) {
        let (weight, mut non_finite) = (norm.weight.borrow(), changed(norm.non_finite));
        let norm = Norm { weight: &*weight, eps: norm.eps, layer: norm.layer, non_finite: &mut *non_finite };
        self.cpu.rms_norm(out, x, norm, add, n);
    }

    fn copy(&self, out: &mut Acts, x: &Acts, n: usize) {
        self.cpu.copy(out, x, n);
    }

    fn linear(&self, out: &mut Acts, x: &Acts, layer: Linear<'_, Self>, n: usize) {
        let bias = layer.bias.map(|b| b.borrow());
        let mut before = layer
            .before
            .map(|(norm, normed)| (norm.weight.borrow(), norm.eps, norm.layer, changed(norm.non_finite), normed));
        let before = before.as_mut().map(|(weight, eps, layer, non_finite, normed)| {
            let norm = Norm { weight: &**weight, eps: *eps, layer: *layer, non_finite: &mut **non_finite };
            (norm, &mut **normed)
        });
        self.cpu.linear(out, x, Linear { weight: layer.weight, bias: bias.as_deref(), before, after: layer.after }, n);
    }

    fn attention(&self, out: &mut Acts, args: AttentionArgs<'_, Self>) {
        let AttentionArgs { qkv, decisions, kv, layer, spans, rope } = args;
        let inv_freq = rope.inv_freq.borrow();
        let norms = rope.qk_norm.map(|[q, k]| [q.borrow(), k.borrow()]);
        let predictor = rope.predictor.as_ref();
        let mlp = predictor.and_then(|p| p.mlp.as_ref());
        let middle = mlp.and_then(|mlp| mlp.middle).map(|tensors| tensors.map(|tensor| tensor.borrow()));
        let middle = middle.as_ref().map(|[weight, bias]| [&**weight, &**bias]);
        let mlp = mlp.map(|mlp| (mlp.silu, mlp.weight.borrow(), mlp.bias.borrow()));
        let mlp =
            mlp.as_ref().map(|(silu, weight, bias)| Mlp { silu: *silu, middle, weight: &**weight, bias: &**bias });
        let sinks = rope.sinks.map(|sinks| sinks.borrow());
        let predictor = predictor.map(|p| Predictor { own: p.own, columns: p.columns, mlp, alpha: p.alpha });
        let rope = QkvRopeArgs {
            qk_norm: norms.as_ref().map(|[q, k]| [&**q, &**k]),
            rms_eps: rope.rms_eps,
            inv_freq: &*inv_freq,
            rope_scale: rope.rope_scale,
            growth: rope.growth,
            v_norm: rope.v_norm,
            keys_of: rope.keys_of,
            lends: rope.lends,
            borrowed: rope.borrowed,
            predictor,
            gated: rope.gated,
            sinks: sinks.as_deref(),
            staged: rope.staged,
        };
        self.lent(kv, |kv| {
            let decisions = &mut changed(decisions);
            self.cpu.attention(out, AttentionArgs { qkv, decisions, kv, layer, spans, rope: &rope })
        });
        if let Some(all) = &mut self.watch.seen().decisions {
            let n: usize = spans.iter().map(|span| span.len).sum();
            all.extend(&decisions.borrow()[..n * kv.geometry.of_layer(layer).n_kv_heads]);
        }
    }

    fn commit(
        &self,
        rows: &Acts,
        decisions: &Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        drafts: bool,
    ) {
        self.lent(kv, |kv| self.cpu.commit(rows, &decisions.borrow(), kv, layer, spans, drafts));
    }

    fn delta_net(
        &self,
        out: &mut Acts,
        rows: &mut Acts,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        args: &DeltaNetArgs<'_, Self>,
    ) {
        let [conv, decay, dt_bias, norm] = [args.conv, args.decay, args.dt_bias, args.norm].map(|buf| buf.borrow());
        let DeltaNetArgs { gates, rms_eps, staged, .. } = *args;
        let args =
            DeltaNetArgs { gates, conv: &*conv, decay: &*decay, dt_bias: &*dt_bias, norm: &*norm, rms_eps, staged };
        self.lent(kv, |kv| self.cpu.delta_net(out, rows, kv, layer, spans, &args));
    }

    fn experts(&self, x: &mut Self::Acts, h: &Self::Acts, args: ExpertsArgs<'_, Self>, n: usize) {
        let ExpertsArgs { router, gate_up, down, per_token, normalized, shared, clamped, rows, .. } = args;
        let [router_bias, gate_up_bias, down_bias] =
            [args.router_bias, args.gate_up_bias, args.down_bias].map(|bias| bias.map(|bias| bias.borrow()));
        let beside = args.beside.map(|Beside { router_input, factors }| (router_input, factors.borrow()));
        let beside =
            beside.as_ref().map(|(router_input, factors)| Beside { router_input: *router_input, factors: &**factors });
        let take = |acts: &mut Self::Acts| std::mem::replace(acts, self.cpu.acts(0, 0, Use::Any).expect("nothing"));
        let mut own = ExpertRows {
            logits: take(&mut rows.logits),
            chosen: rows.chosen.take(),
            weights: rows.weights.take(),
            order: rows.order.take(),
            gate_up: take(&mut rows.gate_up),
            act: take(&mut rows.act),
            out: take(&mut rows.out),
        };
        let args = ExpertsArgs {
            router,
            router_bias: router_bias.as_deref(),
            gate_up,
            gate_up_bias: gate_up_bias.as_deref(),
            down,
            down_bias: down_bias.as_deref(),
            per_token,
            normalized,
            shared,
            clamped,
            beside,
            rows: &mut own,
        };
        self.cpu.experts(x, h, args, n);
        let ExpertRows { logits, chosen, weights, order, gate_up, act, out } = own;
        (rows.logits, rows.gate_up, rows.act, rows.out) = (logits, gate_up, act, out);
        rows.chosen.replace(chosen);
        rows.weights.replace(weights);
        rows.order.replace(order);
    }

    fn advance(&self, kv: &mut KvTables<Self>, tokens: Option<&Buf<Token>>, spans: &[Span]) {
        let tokens = tokens.map(|tokens| tokens.borrow());
        self.lent(kv, |kv| {
            let used = self.cpu.pool_stats(kv).used_pages;
            let mut seen = self.watch.seen();
            seen.peak_pages = seen.peak_pages.max(used);
            self.cpu.advance(kv, tokens.as_deref(), spans);
            let g = kv.geometry;
            let rows =
                |seq: usize| (0..g.n_layers * g.n_kv_heads).map(move |i| (i / g.n_kv_heads, seq, i % g.n_kv_heads));
            let live = |(layer, seq, head)| kv.live[g.row(layer, seq, head)] as u64;
            if seen.decodes {
                seen.decode_reads += spans.iter().flat_map(|span| rows(span.seq)).map(live).sum::<u64>();
            }
        });
    }

    fn select_rows(&self, out: &mut Acts, x: &Acts, rows: &[usize]) {
        self.cpu.select_rows(out, x, rows);
    }

    fn sample(&self, sampled: &mut Buf<Token>, logits: &mut Acts, args: &SampleArgs<'_, Self>, n: usize) {
        let mut rows = vec![0.0; n * logits.width];
        self.cpu.read_acts(logits, &mut rows);
        self.watch.seen().logits.extend(rows.chunks(logits.width).map(<[f32]>::to_vec));
        let (draws, non_finite) = (&*args.draws.borrow(), &*args.non_finite.borrow());
        let staged = args.staged.map(|tokens| tokens.borrow());
        let (staged, greedy) = (staged.as_deref(), args.greedy);
        let (adjusts, masks) = (args.adjusts.map(|all| all.borrow()), args.masks.map(|all| all.borrow()));
        let (adjusts, masks) = (adjusts.as_deref(), masks.as_deref());
        self.lent(args.kv, |kv| {
            self.cpu.sample(
                &mut changed(sampled),
                logits,
                &SampleArgs { draws, kv, non_finite, staged, greedy, adjusts, masks },
                n,
            );
        });
    }

    fn read_step(&self, sampled: &Buf<Token>, non_finite: &Buf<i32>, kv: &KvTables<Self>, n: usize) -> StepResult {
        self.watch.count("read_step");
        self.lent(kv, |kv| self.cpu.read_step(&sampled.borrow(), &non_finite.borrow(), kv, n))
    }

    fn step(&self, kind: StepKind, shape: &[Span], mut ops: impl FnMut(&Self)) {
        let panics = {
            let mut seen = self.watch.seen();
            seen.inside = true;
            seen.decodes = matches!(kind, StepKind::Decode { .. });
            seen.panic_at == Some(seen.steps.len())
        };
        assert!(!panics, "as the test wants it");
        ops(self);
        let mut seen = self.watch.seen();
        seen.inside = false;
        seen.reads_since_step = 0;
        seen.steps.push(shape.iter().map(|s| s.len).sum());
        seen.most_sequences = seen.most_sequences.max(shape.len());
        let n = seen.steps.len();
        drop(seen.close_at.remove(&n));
        for command in seen.after_step.remove(&n).unwrap_or_default() {
            assert!(seen.commands.as_ref().is_some_and(|c| c.send(command)), "the engine listens");
        }
    }
}
