//! Where the memory of a model at work goes: rows that sum to what the device reports, from
//! readings between the stages of loading and from the backend's own counts.

use crate::backend::{Measure, MemoryUse};
use crate::checkpoint::Checkpoint;
use crate::cli::machine::Resident;
use crate::engine::{Decode, EngineOptions, Runner};
use crate::protocol::{SamplingParams, Token};
use anyhow::Result;

/// Largest difference between the sum of the rows and the device's figure.
const UNEXPLAINED_BYTES: u64 = 16 << 20;
/// Decode steps: one that is launched, one that is captured, one that is replayed.
const DECODES: usize = 3;

/// Bytes of one purpose. Negative where memory was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub what: String,
    pub bytes: i64,
}

/// Where the memory goes after a prompt of one step and a few tokens of answer.
pub struct Usage {
    pub rows: Vec<Row>,
    /// Memory that the device reports.
    pub taken_bytes: u64,
    /// Weights and workspace as planned before loading, and as loaded. Without plan on a host.
    pub planned_bytes: Option<[u64; 2]>,
}

impl Usage {
    pub fn sum_bytes(&self) -> i64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// Whether the rows sum to the device's figure.
    pub fn adds_up(&self) -> bool {
        self.sum_bytes().abs_diff(self.taken_bytes as i64) <= UNEXPLAINED_BYTES
    }
}

/// Loads a model, feeds it a prompt of one step and decodes some tokens. `resident` reads this
/// process's memory; `before` is its value before the checkpoint was opened.
pub fn measure<B: Measure>(
    b: B,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    before: Resident,
    resident: impl Fn() -> Resident,
) -> Result<Usage> {
    let (open, opened) = (b.memory_use(), resident());
    let mut runner = Runner::new(b, checkpoint, options, |_, _| true)?;
    let (loaded, at_load) = (runner.backend().memory_use(), resident());
    let vocab = checkpoint.config.vocab;
    let prompt = runner.max_step().min(runner.context().saturating_sub(DECODES)).max(1);
    let tokens: Vec<Token> = (0..prompt).map(|i| (i * 7919 % vocab) as Token).collect();
    let seq = runner.create(true)?;
    runner.feed(seq, &tokens)?;
    runner.backend().synchronize();
    let fed = runner.backend().memory_use();
    let sampling = SamplingParams::default();
    let mut token = tokens[0];
    for _ in 0..DECODES.min(runner.context().saturating_sub(prompt)) {
        token = runner.decode(&[Decode { seq, token, sampling: &sampling, seed: 1 }])?[0];
    }
    let (ended, at_end) = (runner.backend().memory_use(), resident());
    if let (Some(open), Some(loaded), Some(fed), Some(ended)) = (open, loaded, fed, ended) {
        let planned = checkpoint.weight_bytes + options.workspace_bytes;
        let taken = loaded.taken_bytes.saturating_sub(open.taken_bytes);
        return Ok(Usage {
            rows: device_rows(&open, &loaded, &fed, &ended),
            taken_bytes: ended.taken_bytes,
            planned_bytes: Some([planned, taken]),
        });
    }
    let pages = runner.cache.pool_stats(runner.backend()).mapped_pages * runner.cache.geometry().page_bytes();
    Ok(Usage {
        rows: host_rows([before, opened, at_load, at_end], pages as i64),
        taken_bytes: at_end.anonymous + at_end.mapped,
        planned_bytes: None,
    })
}

fn row(what: &str, bytes: i64) -> Row {
    Row { what: what.to_owned(), bytes }
}

/// Rows of a device: what was there before, its driver's share of each stage, and the allocations
/// by purpose.
fn device_rows(open: &MemoryUse, loaded: &MemoryUse, fed: &MemoryUse, ended: &MemoryUse) -> Vec<Row> {
    let allocated = |m: &MemoryUse| m.allocated.iter().map(|(_, bytes)| *bytes as i64).sum::<i64>();
    // Memory of a stage beside its allocations.
    let beside = |from: &MemoryUse, to: &MemoryUse| {
        (to.taken_bytes as i64 - from.taken_bytes as i64) - (allocated(to) - allocated(from))
    };
    let opening = open.taken_bytes as i64 - (open.before_bytes + open.kernel_bytes) as i64 - allocated(open);
    let mut rows = vec![
        row("the driver's context, and other programs", open.before_bytes as i64),
        row("kernels at the start", open.kernel_bytes as i64),
        row("streams, host mailbox, libraries", opening),
    ];
    rows.extend(ended.allocated.iter().map(|(what, bytes)| row(what, *bytes as i64)));
    rows.push(row("kernels used by a prompt", beside(loaded, fed)));
    rows.push(row("kernels used by an answer, captured graphs", beside(fed, ended)));
    rows
}

/// Rows of a host. `pages`: bytes of the cache's pages.
fn host_rows([before, opened, loaded, ended]: [Resident; 4], pages: i64) -> Vec<Row> {
    let anonymous = |from: Resident, to: Resident| to.anonymous as i64 - from.anonymous as i64;
    vec![
        row("the program before a model is opened", (before.anonymous + before.mapped) as i64),
        row("model files and the program's code, mapped and read since", ended.mapped as i64 - before.mapped as i64),
        row("checkpoint: what is not mapped", anonymous(before, opened)),
        row("activations, logits, page tables", anonymous(opened, loaded)),
        row("cache pages", pages),
        row("scratch of a prompt and an answer", anonymous(loaded, ended) - pages),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::codec::Codec;
    use std::cell::Cell;

    #[test]
    fn rows_sum_to_the_figure_of_the_device() {
        let used = |taken_bytes, allocated: &[(&'static str, u64)]| MemoryUse {
            before_bytes: 100,
            kernel_bytes: 20,
            taken_bytes,
            allocated: allocated.to_vec(),
        };
        let (open, loaded) = (used(125, &[]), used(1000, &[("weights", 800), ("pages", 0)]));
        let (fed, ended) =
            (used(1150, &[("weights", 800), ("pages", 100)]), used(1160, &[("weights", 800), ("pages", 100)]));
        let rows = device_rows(&open, &loaded, &fed, &ended);
        let bytes = |what: &str| rows.iter().find(|row| row.what.contains(what)).map(|row| row.bytes);
        assert_eq!(
            [bytes("context"), bytes("libraries"), bytes("a prompt"), bytes("an answer")],
            [Some(100), Some(5), Some(50), Some(10)]
        );
        // Loading took 75 bytes beyond the allocations, which is not explained.
        let usage = Usage { rows, taken_bytes: 1160, planned_bytes: None };
        assert_eq!(usage.taken_bytes as i64 - usage.sum_bytes(), 75);
        assert!(usage.adds_up() && !Usage { taken_bytes: 17 << 20, ..usage }.adds_up());
    }

    #[test]
    fn on_a_host_every_stage_has_its_row() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions { context: Some(64), ..EngineOptions::new(Codec::K8V4) };
        let at = Cell::new(0);
        let resident = || {
            at.set(at.get() + (1 << 30));
            Resident { anonymous: at.get(), mapped: 1000 }
        };
        let usage = measure(Cpu::new(1), &checkpoint, &options, Resident::default(), resident).unwrap();
        assert_eq!((usage.sum_bytes(), usage.taken_bytes), ((3 << 30) + 1000, (3 << 30) + 1000));
        assert!(usage.rows.iter().any(|row| row.what == "cache pages" && row.bytes > 0));
    }
}
