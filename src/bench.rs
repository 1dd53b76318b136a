//! Benchmarks of prefill and decode, generic over the backend.
//!
//! A real prefill fills the cache, tokens are sampled from real logits and no layer is skipped. The
//! weights may be random: speed does not depend on their values.

mod calibrate;
mod measure;
mod prompts;
mod resume;

use prompts::{SEED, prompt};
pub use prompts::{read_by_token, weight_bytes};

pub use calibrate::{set_kept_share, set_offset};
pub use measure::{Case, HEADER, Line};
pub use resume::Resume;

use crate::backend::{About, Measure};
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::engine::{Drafts, EngineOptions, FarOptions, Runner};
use crate::policy::PolicyRequest;
use anyhow::{Result, bail};

/// Measurements to run: every case with every codec.
pub struct Bench<'a> {
    pub checkpoint: &'a Checkpoint,
    pub codecs: Vec<Codec>,
    pub policy: PolicyRequest,
    /// How rows that leave the cache are kept.
    pub far: Option<FarOptions>,
    pub cases: Vec<Case>,
    /// Measured runs of each case, after one run that warms up.
    pub runs: usize,
    /// Tokens that the longest sequence of any case has at its end.
    pub context: usize,
}

/// The device that a benchmark ran on.
pub struct Device {
    pub name: String,
    /// The GEMM library in use, if any.
    pub library: Option<String>,
    /// Bytes read and written per second by a copy within the device's memory.
    pub copy_bytes_per_s: f64,
}

impl Bench<'_> {
    /// Sequences that decode together, at most.
    pub fn max_seqs(&self) -> usize {
        self.cases.iter().map(|case| case.parallel).max().unwrap_or(1)
    }

    /// Measures all cases and passes each result to `report`. `open` opens the backend (once per
    /// codec).
    pub fn run<B: Measure>(
        &self,
        open: impl Fn() -> Result<B>,
        mut report: impl FnMut(Codec, &Line) -> Result<()>,
    ) -> Result<Device> {
        let b = open()?;
        let About { name, library, .. } = b.about();
        let device = Device { name, library, copy_bytes_per_s: b.copy_bytes_per_s()? };
        drop(b);
        for &codec in &self.codecs {
            let (context, max_seqs) = (Some(self.context), self.max_seqs());
            let drafts =
                Drafts { rows: self.cases.iter().map(Case::draft_rows).max().unwrap_or(0), ..Drafts::default() };
            let (policy, far) = (self.policy, self.far);
            let options = EngineOptions { context, max_seqs, policy, far, drafts, ..EngineOptions::new(codec) };
            let mut runner = Runner::new(open()?, self.checkpoint, &options, |_, _| true)?;
            if runner.most_rows() < drafts.rows {
                let most = runner.most_rows();
                bail!(
                    "steps of {} rows are more than there are with this device and policy: at most {most}",
                    drafts.rows
                );
            }
            let mut lines: Vec<Line> = Vec::new();
            for case in &self.cases {
                let mut line = Line::measure(&mut runner, self.checkpoint, case, self.runs, device.copy_bytes_per_s)?;
                line.compare_with_one(&lines);
                report(codec, &line)?;
                lines.push(line);
            }
        }
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::measure::Spread;
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::policy::Far;
    use crate::protocol::SamplingParams;

    #[test]
    fn figures_of_a_small_run_agree() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions { context: Some(64), ..EngineOptions::new(Codec::Bf16) };
        let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap();
        for (parallel, ctx, forks) in [(1, 40, false), (3, 40, false), (2, 0, false), (3, 40, true)] {
            let sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
            let case =
                Case { ctx, n: 4, parallel, forks, eviction: false, sampling, presence: false, drafts: 0, accept: 0.0 };
            let line = Line::measure(&mut runner, &checkpoint, &case, 2, 1e9).unwrap();
            let c = &checkpoint.config;
            assert_eq!(line.live_slots, (parallel * (ctx.max(1) + 4) * c.n_layers * c.n_kv_heads) as u64);
            assert_eq!((line.dense_slots, line.ratio()), (line.live_slots, 1.0));
            assert_eq!(line.prefill_tok_s.is_some(), ctx > 1);
            assert!(line.decode_tok_s.min > 0.0 && line.decode_tok_s.min <= line.decode_tok_s.max);
            let slots = line.live_slots as f64 * runner.cache.geometry().slot_bytes() as f64;
            let weights = weight_bytes(&checkpoint) as f64 / parallel as f64;
            // Forks share the two full pages of the prompt in each lane.
            let shared = if forks { 2.0 * (2 * 16 * c.n_layers * c.n_kv_heads) as f64 } else { 0.0 };
            let page_slots = slots - shared * runner.cache.geometry().slot_bytes() as f64;
            assert_eq!(forks, (line.kv_bytes as f64) < slots);
            assert!(line.kv_bytes as f64 >= page_slots && line.bytes_per_token > weights);
        }
        assert_eq!(runner.cache.pool_stats(runner.backend()).used_pages, 0, "a run releases its pages");
    }

    #[test]
    fn far_rows_are_counted_and_chosen_among() {
        let mut checkpoint = Checkpoint::random("demo").unwrap();
        set_kept_share(&mut checkpoint, 0.3, || Cpu::new(2)).unwrap();
        let far = Some(FarOptions { rule: Far { pages: 2 }, limit_bytes: u64::MAX });
        let drafts = Drafts { rows: 4, ..Drafts::default() };
        let options = EngineOptions { context: Some(900), far, drafts, ..EngineOptions::new(Codec::Bf16) };
        let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap();
        let (sampling, n) = (SamplingParams { temperature: 1.0, ..SamplingParams::default() }, 33);
        let case = |eviction, drafts| {
            let sampling = sampling.clone();
            Case { ctx: 800, n, parallel: 1, forks: false, eviction, sampling, presence: false, drafts, accept: 0.7 }
        };
        for drafts in [0, 3] {
            let line = Line::measure(&mut runner, &checkpoint, &case(true, drafts), 1, 1e9)
                .unwrap()
                .json(&crate::engine::weights_info(&checkpoint), Codec::Bf16);
            let figure = |name: &str| line["far"][name].as_f64().unwrap();
            let lanes = (checkpoint.config.n_layers * checkpoint.config.n_kv_heads) as f64;
            let stored = line["live_slots"].as_f64().unwrap() / lanes;
            // The prompt's last token is fed by the first step, whose sampled token is not yet.
            assert_eq!((figure("rows") + stored).round(), (800 + n) as f64, "{line}");
            // Two whole pages, what has left since the choice and the page that is filling.
            assert!((64.0..64.0 + 32.0 + 16.0).contains(&figure("near")), "{line}");
            assert!(figure("fetched") > 0.0 && figure("fetched") <= 2.0, "{line}");
        }
        let line = Line::measure(&mut runner, &checkpoint, &case(false, 0), 1, 1e9).unwrap();
        let line = line.json(&crate::engine::weights_info(&checkpoint), Codec::Bf16);
        assert_eq!((line["far"]["rows"].as_f64(), line["far"]["bytes"].as_u64()), (Some(0.0), Some(0)));
    }

    #[test]
    fn a_cache_is_loaded_as_it_was_written() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions { context: Some(64), max_seqs: 2, ..EngineOptions::new(Codec::Bf16) };
        let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let resume = Resume::measure(&mut runner, 40, true, &folder.path().join("a.cache")).unwrap();
        assert!(resume.equal && resume.bytes > 0 && resume.load_s > 0.0, "{resume:?}");
        assert_eq!(runner.cache.pool_stats(runner.backend()).used_pages, 0);
    }

    #[test]
    fn the_offset_leaves_the_share_that_was_asked_for() {
        let mut checkpoint = Checkpoint::random("demo").unwrap();
        let open = || Cpu::new(2);
        set_kept_share(&mut checkpoint, 0.3, open).unwrap();
        let kept = calibrate::kept(&checkpoint, open()).unwrap();
        assert!((kept - 0.3).abs() < 0.05, "{kept} kept");
        assert!(set_kept_share(&mut checkpoint, 0.0, open).is_err());
    }

    #[test]
    fn spreads_are_medians_and_ranges() {
        let s = Spread::of([3.0, 1.0, 2.0, 10.0].into_iter());
        assert_eq!((s.median, s.min, s.max), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of(std::iter::once(4.0)).median, 4.0);
    }
}
