//! The CPU backend with instrumentation: counts memory calls, keeps the logits that were sampled from, compares the pool's
//! count with the tables, and sends commands after chosen steps, so that a toggle or a cancel happens at a known token.

use dmschat::backend::cpu::Cpu;
use dmschat::backend::{
    AdapterHead, Backend, DeviceLost, KvGeometry, KvTables, Memory, Norm, OutOfMemory, Plain, PoolStats,
    PresenceCounts, Profile, QkvRopeArgs, SampleArgs, Span, StepKind, StepResult,
};
use dmschat::policy::SlotMeta;
use dmschat::protocol::{Command, CommandSender, LaneFilter, Token};
use dmschat::tensor::Tensor;
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Maximum pages in use after a step.
    pub peak_pages: usize,
    /// Maximum pages, as if memory ended there.
    pub room_pages: Option<usize>,
    /// Number of the step that panics.
    pub panic_at: Option<usize>,
    /// Live slots of each sequence of each decode step, summed.
    pub decode_reads: u64,
    decodes: bool,
    /// The device is lost at this call, after so many of that name.
    pub lose_at: Option<(&'static str, usize)>,
    /// Whether the backend was dropped, and with it the engine.
    pub ended: bool,
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
            pool: kv.pool.borrow_mut().take().expect("one op at a time"),
            page_table: kv.page_table.take(),
            live: kv.live.take(),
            ring: kv.ring.take(),
            score: kv.score.take(),
            sums: kv.sums.take(),
            seq_len: kv.seq_len.take(),
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
        kv.seq_len.replace(own.seq_len);
        kv.eviction.replace(own.eviction);
        kv.dial.replace(own.dial);
        kv.pinned.replace(own.pinned);
        kv.slots.replace(own.slots);
        kv.reads.replace(own.reads);
        kv.peak.replace(own.peak);
        result
    }

    fn with_norm<R>(&self, norm: &Norm<'_, Self>, op: impl FnOnce(&Norm<'_, Cpu>) -> R) -> R {
        op(&Norm { weight: &norm.weight.borrow(), eps: norm.eps, layer: norm.layer })
    }
}

impl Drop for Spy {
    fn drop(&mut self) {
        self.watch.seen().ended = true;
    }
}

type Acts = <Cpu as Memory>::Acts;
type Weight = <Cpu as Memory>::Weight;
type Buf<T> = RefCell<Vec<T>>;

fn changed<T>(buf: &Buf<T>) -> RefMut<'_, Vec<T>> {
    buf.borrow_mut()
}

impl Profile for Spy {
    fn describe(&self) -> String {
        self.cpu.describe()
    }

    fn copy_bytes_per_s(&self) -> anyhow::Result<f64> {
        self.cpu.copy_bytes_per_s()
    }
}

impl Memory for Spy {
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

    fn copy<T: Plain>(&self, buf: &mut Buf<T>, from: usize, to: usize, len: usize) {
        self.watch.count("copy");
        self.cpu.copy(&mut changed(buf), from, to, len);
    }

    fn acts(&self, rows: usize, width: usize) -> Result<Acts, OutOfMemory> {
        self.watch.count("acts");
        self.cpu.acts(rows, width)
    }

    fn write_acts(&self, dst: &mut Acts, rows: &[f32]) {
        self.watch.count("write");
        self.cpu.write_acts(dst, rows);
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

impl Backend for Spy {
    type Pool = RefCell<Option<<Cpu as Backend>::Pool>>;

    fn mark_seen(&self, seen: &mut Buf<u32>, vocab: usize, tokens: &Buf<Token>, spans: &[Span]) {
        self.cpu.mark_seen(&mut changed(seen), vocab, &tokens.borrow(), spans);
    }

    fn embed(&self, out: &mut Acts, table: &Weight, tokens: &Buf<Token>, n: usize) {
        self.cpu.embed(out, table, &tokens.borrow(), n);
    }

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: &Norm<'_, Self>, non_finite: &mut Buf<i32>, n: usize) {
        self.with_norm(norm, |norm| self.cpu.rms_norm(out, x, norm, &mut changed(non_finite), n));
    }

    fn add(&self, acc: &mut Acts, x: &Acts, n: usize) {
        self.cpu.add(acc, x, n);
    }

    fn add_rms_norm(
        &self,
        out: &mut Acts,
        residual: &mut Acts,
        x: &Acts,
        norm: &Norm<'_, Self>,
        non_finite: &mut Buf<i32>,
        n: usize,
    ) {
        self.with_norm(norm, |norm| self.cpu.add_rms_norm(out, residual, x, norm, &mut changed(non_finite), n));
    }

    fn linear(&self, out: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, n: usize) {
        let bias = bias.map(|b| b.borrow());
        self.cpu.linear(out, x, weight, bias.as_deref(), n);
    }

    fn swiglu(&self, out: &mut Acts, gate_up: &Acts, n: usize) {
        self.cpu.swiglu(out, gate_up, n);
    }

    fn adapter_decisions(
        &self,
        decisions: &mut Buf<f32>,
        x: &Acts,
        scratch: &mut Acts,
        raw: &mut Acts,
        head: &AdapterHead<'_, Self>,
        n: usize,
    ) {
        let norm = head.norm.borrow();
        let bias = head.bias.map(|b| b.borrow());
        let head = AdapterHead {
            norm: &*norm,
            proj: head.proj,
            bias: bias.as_deref(),
            rms_eps: head.rms_eps,
            alpha: head.alpha,
        };
        self.cpu.adapter_decisions(&mut changed(decisions), x, scratch, raw, &head, n);
    }

    fn qkv_rope(
        &self,
        qkv: &mut Acts,
        decisions: &mut Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRopeArgs<'_, Self>,
    ) {
        let inv_freq = rope.inv_freq.borrow();
        let norms = rope.qk_norm.map(|[q, k]| [q.borrow(), k.borrow()]);
        let rope = QkvRopeArgs {
            qk_norm: norms.as_ref().map(|[q, k]| [&**q, &**k]),
            rms_eps: rope.rms_eps,
            inv_freq: &*inv_freq,
            rope_scale: rope.rope_scale,
            borrowed: rope.borrowed,
        };
        self.lent(kv, |kv| self.cpu.qkv_rope(qkv, &mut changed(decisions), kv, layer, spans, &rope));
    }

    fn attend(
        &self,
        out: &mut Acts,
        qkv: &Acts,
        decisions: &Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
    ) {
        self.lent(kv, |kv| self.cpu.attend(out, qkv, &decisions.borrow(), kv, layer, spans));
    }

    fn attend_in_order(&self, out: &mut Acts, qkv: &Acts, kv: &mut KvTables<Self>, layer: usize, spans: &[Span]) {
        self.lent(kv, |kv| self.cpu.attend_in_order(out, qkv, kv, layer, spans));
    }

    fn place(&self, kv: &mut KvTables<Self>, decisions: &Buf<f32>, layer: usize, spans: &[Span]) {
        self.lent(kv, |kv| self.cpu.place(kv, &decisions.borrow(), layer, spans));
    }

    fn store(&self, kv: &mut KvTables<Self>, qkv: &Acts, layer: usize, spans: &[Span]) {
        self.lent(kv, |kv| self.cpu.store(kv, qkv, layer, spans));
    }

    fn advance(&self, kv: &mut KvTables<Self>, spans: &[Span]) {
        self.lent(kv, |kv| {
            let used = self.cpu.pool_stats(kv).used_pages;
            let mut seen = self.watch.seen();
            seen.peak_pages = seen.peak_pages.max(used);
            self.cpu.advance(kv, spans);
            let g = kv.geometry;
            let rows =
                |seq: usize| (0..g.n_layers * g.n_kv_heads).map(move |i| (i / g.n_kv_heads, seq, i % g.n_kv_heads));
            let live = |(layer, seq, head)| kv.live[g.row(layer, seq, head)] as u64;
            if seen.decodes {
                seen.decode_reads += spans.iter().flat_map(|span| rows(span.seq)).map(live).sum::<u64>();
            }
        });
    }

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

    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32> {
        self.lent(kv, |kv| self.cpu.page_refs(kv))
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

    fn rate_slots(
        &self,
        kv: &mut KvTables<Self>,
        seq: usize,
        positions: std::ops::Range<usize>,
        strength: usize,
        marked: bool,
    ) {
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

    fn select_rows(&self, out: &mut Acts, x: &Acts, rows: &[usize]) {
        self.cpu.select_rows(out, x, rows);
    }

    fn logits(&self, out: &mut Buf<f32>, x: &Acts, head: &Weight, n: usize) {
        self.cpu.logits(&mut changed(out), x, head, n);
    }

    fn sample(
        &self,
        sampled: &mut Buf<Token>,
        logits: &mut Buf<f32>,
        vocab: usize,
        args: &SampleArgs<'_, Self>,
        n: usize,
    ) {
        self.watch.seen().logits.extend(logits.borrow()[..n * vocab].chunks(vocab).map(<[f32]>::to_vec));
        let (draws, seen, seq_len) = (args.draws.borrow(), args.seen.borrow(), args.seq_len.borrow());
        let args = SampleArgs { draws: &*draws, seen: &*seen, seq_len: &*seq_len, greedy: args.greedy };
        self.cpu.sample(&mut changed(sampled), &mut changed(logits), vocab, &args, n);
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
        for command in seen.after_step.remove(&n).unwrap_or_default() {
            assert!(seen.commands.as_ref().is_some_and(|c| c.send(command)), "the engine listens");
        }
    }
}
