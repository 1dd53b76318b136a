//! Reports of the GPU about itself and its work: names, notices, timings, memory.

use super::super::cpu::{self, Cpu};
use super::super::report::median;
use super::super::{
    About, Device, KvGeometry, KvTables, Measure, MemoryUse, QkvRopeArgs, Queries, Report, TIMED_ROUNDS,
};
use super::Cuda;
use super::cublaslt::CublasLt;
use super::memory::{Acts, Buf};

/// Most and fewest tokens of a prefill chunk: longer chunks fill the GPU better and share what packed weights take to unpack, and need
/// more scratch.
const MAX_CHUNK: usize = 4096;
const MIN_CHUNK: usize = 128;

impl Report for Cuda {
    fn about(&self) -> About {
        // About a tenth of a second of an 8B model: a kernel of another tile size sums in another order.
        let of_an_sm = if self.driver.capability.0 >= 9 { 32 } else { 16 };
        let chunk = (of_an_sm * self.driver.sm_count).next_power_of_two().clamp(MIN_CHUNK, MAX_CHUNK);
        About {
            name: self.driver.name.clone(),
            library: self.cublaslt.as_ref().map(CublasLt::describe),
            step_tokens: MIN_CHUNK..=MAX_CHUNK,
            chunk_tokens: Some(chunk),
        }
    }

    fn notice(&self) -> Option<String> {
        self.graphs.notice()
    }

    fn device_bytes(&self) -> Option<u64> {
        Some(self.driver.taken_bytes())
    }
}

impl Measure for Cuda {
    fn copy_bytes_per_s(&self) -> anyhow::Result<f64> {
        const BYTES: usize = 512 << 20;
        let (from, to) = (Buf::<u8>::new(&self.driver, BYTES)?, Buf::<u8>::new(&self.driver, BYTES)?);
        let ms = (0..5).map(|_| self.time_ms(|| self.driver.copy_within(to.ptr(), from.ptr(), BYTES)));
        Ok(2.0 * BYTES as f64 / (ms.fold(f32::INFINITY, f32::min) as f64 / 1e3))
    }

    fn captured_steps(&self) -> usize {
        self.graphs.count()
    }

    fn write_acts(&self, dst: &mut Acts, rows: &[f32]) {
        self.settle();
        dst.write(rows);
    }

    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32> {
        kv.pool.refs()
    }

    /// Composed on the host: only the regression of a predictor needs it, and the copies take less time than the forward pass.
    fn importance(
        &self,
        out: &mut [f32],
        qkv: &mut Acts,
        geometry: &KvGeometry,
        rope: &QkvRopeArgs<'_, Self>,
        queries: &Queries<'_>,
    ) {
        let g = geometry;
        let copy = |values: &Buf<f32>, len: usize| {
            let mut copy = vec![0.0; len];
            self.read(values, 0, &mut copy);
            copy
        };
        let norms = rope.qk_norm.map(|norms| norms.map(|norm| copy(norm, g.head_dim)));
        let inv_freq = copy(rope.inv_freq, g.head_dim / 2);
        let on_host = QkvRopeArgs {
            qk_norm: norms.as_ref().map(|[q, k]| [q, k]),
            rms_eps: rope.rms_eps,
            rope_scale: rope.rope_scale,
            borrowed: rope.borrowed,
            ..QkvRopeArgs::plain(&inv_freq)
        };
        let width = (g.n_q_heads + 2 * g.n_kv_heads) * g.head_dim;
        let mut rows = vec![0.0; queries.rows.end * width];
        self.read_acts(qkv, &mut rows);
        let cpu = Cpu::new(0);
        cpu.importance(out, &mut cpu::Acts::from_rows(rows, width), g, &on_host, queries);
    }

    fn synchronize(&self) {
        self.driver.wait();
    }

    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let round = |state: &mut S| {
            (0..calls).for_each(|i| op(state, i));
            self.settle();
        };
        before(state);
        // Copies the spans to the GPU: a capture forbids copies from the host.
        round(state);
        let spans = self.spans.borrow().current().to_vec();
        let captured = self.graphs.capture(&self.driver, || round(state));
        let timed = (0..TIMED_ROUNDS).map(|_| {
            before(state);
            if !spans.is_empty() {
                self.send(&spans);
            }
            let ms = self.driver.time_ms(|| match &captured {
                Some(graph) => graph.launch_once(),
                None => round(state),
            });
            ms as f64 * 1e3 / calls as f64
        });
        median(timed.collect())
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        Some(self.driver.memory_use())
    }
}
