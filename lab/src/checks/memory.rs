//! Checks of GPU memory: defragmentation moves pages out of the last mapping granules of the pool,
//! sequences read the same values, and the driver reports less memory in use.

use super::{Finding, Random, Report, attend, geometry};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::cache::{KvCache, SeqId};
use dmschat::checkpoint::Checkpoint;
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner, workspace_bytes};
use dmschat::policy::Policy;
use std::time::Instant;

/// Many heads, so that few tokens fill many pages.
const HEADS: usize = 64;
const HEAD_DIM: usize = 128;
const CHUNK: usize = 120;
const CHUNKS: usize = 8;
/// Memory that the driver may report beyond the pages in use: one mapping granule, and 3 %.
const STEP_BYTES: u64 = 16 << 20;
/// Memory beyond the plan, and 2 %: room for unpacked weights, and a block of the driver that small
/// allocations share with earlier checks.
const PIECES_BYTES: u64 = (16 << 20) + (2 << 20);

/// Two sequences grow alternately over several mapping granules; then one is released.
pub fn run_all<B: Measure>(b: &B, report: &mut Report<'_>) {
    let Some(before) = b.device_bytes().filter(|_| report.takes()) else { return };
    let started = Instant::now();
    let geometry = geometry(Policy::Dense, Codec::Bf16, [HEAD_DIM, HEADS, 1], [1, 2]);
    let page_bytes = geometry.page_bytes() as u64;
    let mut cache = KvCache::new(b, geometry, CHUNK * (CHUNKS + 1), CHUNK).expect("memory for a check");
    let tables = b.device_bytes().unwrap_or(0).saturating_sub(before);
    let seqs = [0, 1].map(|_| cache.create(b, true).expect("a free row"));
    let mut random = Random::new(77);
    for _ in 0..CHUNKS {
        for seq in seqs {
            attend(b, &mut cache, seq, &random.floats(CHUNK * 3 * HEADS * HEAD_DIM), &[0.0; CHUNK * HEADS]);
        }
    }
    cache.release(b, seqs[0]);
    let query: Vec<f32> = random.floats(3 * HEADS * HEAD_DIM);
    let seen = look(b, &mut cache, seqs[1], &query);
    cache.trim(b);
    let stats = cache.pool_stats(b);
    let taken = b.device_bytes().unwrap_or(0).saturating_sub(before + tables);
    let used = stats.used_pages as u64 * page_bytes;
    let broken = if look(b, &mut cache, seqs[1], &query) != seen {
        Some("a sequence reads other values after its pages moved".to_owned())
    } else if let Err(why) = cache.audit(b) {
        Some(why)
    } else {
        let most = used + used * 3 / 100 + STEP_BYTES;
        (taken > most).then(|| format!("the driver reports {taken} bytes for {used} in use"))
    };
    let name = format!("memory: {} MiB of pages, {} MiB taken", used >> 20, taken >> 20);
    report.add(Finding { name, error: 0.0, limit: 0.0, broken, time: started.elapsed() });
}

/// Compares the planner's estimate before loading a model with the driver's figure after it.
pub fn run_plan<B: Measure>(b: B, report: &mut Report<'_>) -> Result<()> {
    let Some(before) = b.device_bytes().filter(|_| report.takes()) else { return Ok(()) };
    let started = Instant::now();
    let checkpoint = Checkpoint::random("demo")?;
    let options = EngineOptions::new(Codec::Bf16);
    let workspace = workspace_bytes(&b, &checkpoint, &options).unwrap_or(0);
    let planned = checkpoint.weight_bytes + workspace;
    let runner = Runner::new(b, &checkpoint, &options, |_, _| true)?;
    let taken = runner.backend().device_bytes().unwrap_or(0).saturating_sub(before);
    let broken = (taken.abs_diff(planned) > planned * 2 / 100 + PIECES_BYTES)
        .then(|| "the plan and the driver differ".to_owned());
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let name = format!("memory: {:.1} MB planned for a model, {:.1} MB taken", mb(planned), mb(taken));
    report.add(Finding { name, error: 0.0, limit: 0.0, broken, time: started.elapsed() });
    Ok(())
}

/// The attention output of one more token, which is fed to a fork and dropped.
fn look<B: Measure>(b: &B, cache: &mut KvCache<B>, seq: SeqId, row: &[f32]) -> Vec<f32> {
    let copy = cache.fork(b, seq).expect("a free row");
    let seen = attend(b, cache, copy, row, &[0.0; HEADS]);
    cache.release(b, copy);
    seen
}
