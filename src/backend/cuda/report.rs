//! Reports of the GPU about itself and its work: names, notices, timings, memory.

use super::super::measure::median;
use super::super::{
    About, Device, KvGeometry, KvTables, Measure, MemoryUse, QkvRopeArgs, Queries, Report, TIMED_ROUNDS,
};
use super::abi::{Arg, ImportanceParams};
use super::cublaslt::CublasLt;
use super::kernels::Kernel;
use super::memory::{Acts, Buf};
use super::{Cuda, kv, merge};
use crate::protocol::MAX_DRAFTS;
use std::ops::Range;

/// Maximum and minimum tokens of a prefill chunk. Longer chunks fill the GPU better and share the
/// cost of unpacking weights, but need more scratch.
const MAX_CHUNK: usize = 4096;
const MIN_CHUNK: usize = 128;
/// Warps of a block of `importance.cu`, and queries of its tiles.
const IMPORTANCE_WARPS: usize = 8;
const IMPORTANCE_TILE: usize = 32;

impl Report for Cuda {
    fn about(&self) -> About {
        // About a tenth of a second of an 8B model. The size is fixed because a kernel of another
        // tile size sums in another order.
        let of_an_sm = if self.driver.capability.0 >= 9 { 32 } else { 16 };
        let chunk = (of_an_sm * self.driver.sm_count).next_power_of_two().clamp(MIN_CHUNK, MAX_CHUNK);
        About {
            name: self.driver.name.clone(),
            library: self.cublaslt.as_ref().map(CublasLt::describe),
            step_tokens: MIN_CHUNK..=MAX_CHUNK,
            chunk_tokens: Some(chunk),
            staged_rows: 1 + MAX_DRAFTS,
            codes_of_experts: Some(super::experts::CODES),
        }
    }

    fn notice(&self) -> Option<String> {
        self.graphs.notice().or_else(|| self.driver.notice.take().map(str::to_owned))
    }

    fn device_bytes(&self) -> Option<u64> {
        Some(self.driver.taken_bytes())
    }

    fn energy_mj(&self) -> Option<u64> {
        self.energy.as_ref()?.millijoules()
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
        // Those of the page tables: near rows hold pages too.
        let refs = kv.pool.refs();
        let holds = kv.pool.far.as_ref().map(|far| far.holds(refs.len())).unwrap_or_else(|| vec![0; refs.len()]);
        refs.iter().zip(holds).map(|(refs, holds)| refs - holds).collect()
    }

    fn importance(
        &self,
        out: &mut [f32],
        qkv: &mut Acts,
        geometry: &KvGeometry,
        rope: &QkvRopeArgs<'_, Self>,
        queries: &Queries<'_>,
    ) {
        let (g, Range { start, end }) = (geometry, queries.rows.clone());
        qkv.holds_f32(end);
        let buffer = |len| self.alloc::<f32>(len).expect("memory for the importance of tokens");
        let (mut factors, most) = (buffer(queries.factors.len()), buffer(out.len()));
        self.write(&mut factors, 0, queries.factors);
        let params = ImportanceParams {
            heads: merge::head_params(qkv, rope),
            qkv: qkv.ptr(),
            factors: factors.ptr(),
            out: most.ptr(),
            n_q_heads: g.n_q_heads as i32,
            n_kv_heads: g.n_kv_heads as i32,
            head_dim: g.head_dim as i32,
            first: start as i32,
            end: end as i32,
            tokens: (out.len() / g.n_q_heads) as i32,
            sinks: kv::sinks(rope),
            growth: merge::growth(rope),
        };
        let args = [Arg::of(&params)];
        let heads = (g.n_q_heads + g.n_kv_heads).div_ceil(IMPORTANCE_WARPS);
        self.driver.launch(Kernel::ImportanceRows, [heads, end, 1], 32 * IMPORTANCE_WARPS, &args);
        let tiles = (end - start).div_ceil(IMPORTANCE_TILE);
        self.driver.launch(Kernel::Importance, [tiles, g.n_q_heads, 1], 32 * IMPORTANCE_WARPS, &args);
        self.read(&most, 0, out);
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
