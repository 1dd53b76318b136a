//! Checks of decode steps: replayed CUDA graphs against single launches, and several sequences per
//! step against one, while sequences are forked, released and toggled between the steps. Tokens and
//! slots must be equal. GEMV and small-batch GEMM sum in different orders, which would show with
//! bf16 activations, so that this check has f32 weights.

use super::{CODECS, Finding, Report, slots_of, widen};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::cache::SeqId;
use dmschat::checkpoint::Checkpoint;
use dmschat::codec::Codec;
use dmschat::engine::{Decode, EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind, PolicyRequest, SlotMeta};
use dmschat::protocol::{SamplingParams, Token};
use std::time::Instant;

const STEPS: usize = 24;
const PROMPTS: [usize; 3] = [1, 12, 30];
/// A small window, so that short sequences evict tokens.
const WINDOW: usize = 8;
/// A small budget for the same.
const BUDGET: Budget = Budget::Slots(18);

/// The results of a run.
#[derive(PartialEq)]
struct Trace {
    tokens: Vec<Vec<Token>>,
    slots: Vec<Vec<SlotMeta>>,
}

/// Runs the checks. `open` opens a backend with or without CUDA graphs.
pub fn run_all<B: Measure, E: std::error::Error + Send + Sync + 'static>(
    open: impl Fn(bool) -> Result<B, E>,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut checkpoint = Checkpoint::random("demo")?;
    checkpoint.config.n_layers = 2;
    if let Some(dms) = &mut checkpoint.config.dms {
        dms.rule.window = WINDOW;
    }
    for (what, alone) in [("in one step", false), ("each by itself", true)] {
        if alone {
            widen(&mut checkpoint);
        }
        for (policy, codec) in cases() {
            if !report.takes() {
                continue;
            }
            let case = Case { checkpoint: &checkpoint, policy, codec };
            let (plain, ..) = trace(open(false)?, &case, false)?;
            let started = Instant::now();
            let (got, recorded, notice) = trace(open(true)?, &case, alone)?;
            let name = format!("steps {}: {} sequences {what}, {recorded} recorded", case.name(), PROMPTS.len());
            report.add(finding(name, &got, &plain, notice, started));
        }
    }
    Ok(())
}

/// A model, and how its cache stores what.
struct Case<'a> {
    checkpoint: &'a Checkpoint,
    policy: PolicyRequest,
    codec: Codec,
}

/// The model's own policy with every codec, then policies with scores, and one that merges.
fn cases() -> impl Iterator<Item = (PolicyRequest, Codec)> {
    let own = CODECS.iter().map(|&codec| (PolicyRequest::default(), codec));
    let [tova, h2o] = [PolicyKind::Tova, PolicyKind::H2o].map(|kind| kind.with(BUDGET));
    let pool = PolicyKind::Pool.with(Budget::of_ratio(3.0));
    own.chain([(tova, Codec::Bf16), (h2o, Codec::Int8), (pool, Codec::Fp8)])
}

impl Case<'_> {
    fn name(&self) -> String {
        let own = self.policy == PolicyRequest::default();
        let policy = if own { String::new() } else { format!("{} ", self.policy.kind) };
        format!("{policy}{}", self.codec.name())
    }
}

/// Decodes three sequences, sometimes two; `alone`: one per step. Returns the trace, the number of
/// captured graphs, and the backend's notice.
fn trace<B: Measure>(b: B, case: &Case<'_>, alone: bool) -> Result<(Trace, usize, Option<String>)> {
    let &Case { checkpoint, policy, codec } = case;
    let options = EngineOptions { context: Some(64), max_step: Some(64), policy, ..EngineOptions::new(codec) };
    let mut runner = Runner::new(b, checkpoint, &options, |_, _| true)?;
    let vocab = checkpoint.config.vocab;
    let samplings = [
        SamplingParams::default(),
        SamplingParams { temperature: 1.1, top_k: 40, repetition_penalty: 1.2, ..SamplingParams::default() },
        SamplingParams { temperature: 0.9, top_p: 0.95, min_p: 0.01, ..SamplingParams::default() },
    ];
    let mut seqs: Vec<SeqId> = Vec::new();
    for (i, n) in PROMPTS.into_iter().enumerate() {
        let seq = runner.create(i != 1)?;
        let prompt: Vec<Token> = (0..n).map(|at| ((at + i) * 7919 % vocab) as Token).collect();
        prompt.chunks(runner.max_step()).try_for_each(|part| runner.feed(seq, part))?;
        seqs.push(seq);
    }
    let mut trace = Trace { tokens: vec![vec![3]; PROMPTS.len()], slots: Vec::new() };
    let mut kept = None;
    for step in 0..STEPS {
        match step {
            4 => kept = Some(runner.fork(seqs[2])?),
            8 => drop(runner.set_eviction(seqs[0], false)?),
            12 => drop(runner.set_eviction(seqs[1], true)?),
            16 => drop(runner.set_eviction(seqs[0], true)?),
            18 => kept.take().into_iter().for_each(|seq| runner.release(seq)),
            20 => runner.trim(),
            _ => {}
        }
        let decode = |i: usize| {
            let (seq, token) = (seqs[i], *trace.tokens[i].last().expect("it begins with one"));
            Decode { seq, token, sampling: &samplings[i], seed: 40 + i as u64 }
        };
        // Every third step leaves out one sequence.
        let some = seqs.len() - usize::from(step % 3 == 2);
        let batch: Vec<Decode<'_>> = (0..some).map(decode).collect();
        let size = if alone { 1 } else { batch.len() };
        let mut next = Vec::new();
        for part in batch.chunks(size) {
            next.extend(runner.decode(part)?);
        }
        trace.tokens.iter_mut().zip(next).for_each(|(tokens, next)| tokens.push(next));
    }
    trace.slots = seqs.iter().flat_map(|&seq| slots_of(&runner, seq)).collect();
    Ok((trace, runner.backend().captured_steps(), runner.backend().notice()))
}

fn finding(name: String, got: &Trace, plain: &Trace, notice: Option<String>, started: Instant) -> Finding {
    let differs = (0..PROMPTS.len()).find_map(|i| {
        let (got, plain) = (&got.tokens[i], &plain.tokens[i]);
        let at = (0..plain.len()).find(|&at| got[at] != plain[at])?;
        Some(format!("sequence {i} generates {} instead of {} at {at}", got[at], plain[at]))
    });
    let slots = (got.slots != plain.slots).then(|| "other slots are in use".to_owned());
    Finding { name, error: 0.0, limit: 0.0, broken: notice.or(differs).or(slots), time: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::super::tests::all_fine;
    use super::*;
    use dmschat::backend::cpu::Cpu;

    #[test]
    fn sequences_in_one_step_are_as_each_by_itself() {
        let open = |_| Ok::<_, std::fmt::Error>(Cpu::new(2));
        assert_eq!(all_fine(Part::ALL, |report| run_all(open, report).unwrap()), [2 * cases().count(); 2]);
    }
}
