//! Checks of steps that try drafts: whatever is tried, tokens, slots and counters equal the ones of
//! single steps on the same device. A step of several rows sums in another order than single steps,
//! which would show with bf16 activations, so the weights are f32.

use super::models::{mix, vary};
use super::{CODECS, Finding, Report, slots_of, widen};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::cache::{SeqId, SeqStats};
use dmschat::checkpoint::{Checkpoint, ModelConfig};
use dmschat::codec::Codec;
use dmschat::engine::{Decode, Drafts, EngineOptions, FarOptions, Runner, Verify};
use dmschat::policy::{Budget, Far, PolicyKind, PolicyRequest, SlotMeta};
use dmschat::protocol::{MAX_DRAFTS, SamplingParams, Token};
use std::time::Instant;

/// Drafts of each round, those that are right, and rows that are accepted.
const ROUNDS: [[usize; 3]; 10] = [
    [3, 3, 4],
    [7, 2, 3],
    [1, 0, 1],
    [MAX_DRAFTS, 5, 6],
    [2, 2, 1],
    [4, 4, 5],
    [MAX_DRAFTS, MAX_DRAFTS, 16],
    [1, 1, 2],
    [5, 0, 1],
    [3, 1, 2],
];
/// Rounds before which eviction is switched off, a fork is made, eviction is switched on again, and
/// the fork is released.
const OFF: usize = 2;
const FORK: usize = 3;
const ON: usize = 5;
const RELEASE: usize = 8;
/// Rounds before which far pages are chosen, where rows that leave are kept.
const CHOOSE: [usize; 3] = [1, 4, 7];
const PROMPT: usize = 30;
/// Tokens of a prompt some of whose far pages are full.
const FAR_PROMPT: usize = 180;
/// Most tokens of a step.
const CHUNK: usize = 64;
/// Tokens beside those of the prompt.
const ROOM: usize = 66;
/// A small window, so that short sequences evict tokens.
const WINDOW: usize = 8;

/// The results of a run.
#[derive(PartialEq)]
struct Trace {
    tokens: Vec<Token>,
    slots: Vec<Vec<SlotMeta>>,
    stats: SeqStats,
}

/// Runs the checks. `open` opens a backend for each run.
pub fn run_all<B: Measure, E: std::error::Error + Send + Sync + 'static>(
    open: impl Fn() -> Result<B, E>,
    report: &mut Report<'_>,
) -> Result<()> {
    let window = PolicyKind::Window.with(Budget::Slots(18));
    let (own, dense): (PolicyRequest, _) = (PolicyRequest::default(), PolicyKind::Dense.into());
    let plain: fn(&mut ModelConfig) = |_| {};
    let usual = CODECS.iter().map(|&codec| (own, codec)).chain([(window, Codec::Bf16), (dense, Codec::Int8)]);
    let others: [(_, _, _, fn(&mut ModelConfig)); 4] = [
        (own, Codec::Bf16, " of a hybrid", mix),
        (own, Codec::Bf16, " of local layers", vary),
        (dense, Codec::Bf16, " of short windows", short_windows),
        (own, Codec::Fp8, FAR, plain),
    ];
    for (policy, codec, kind, adapt) in usual.map(|(policy, codec)| (policy, codec, "", plain)).chain(others) {
        if !report.takes() {
            continue;
        }
        let mut config = Checkpoint::shape("demo")?;
        config.n_layers = 2;
        adapt(&mut config);
        let mut checkpoint = Checkpoint::random_of("demo", config)?;
        if let Some(dms) = &mut checkpoint.config.dms {
            dms.rule.window = WINDOW;
        }
        widen(&mut checkpoint);
        let far = (kind == FAR).then_some(FarOptions { rule: Far { pages: 1 }, limit_bytes: u64::MAX });
        let room = ROOM + if far.is_some() { FAR_PROMPT } else { PROMPT };
        let drafts = Drafts { rows: 1 + MAX_DRAFTS, ..Drafts::default() };
        let (context, max_step) = (Some(room), Some(CHUNK));
        let options = EngineOptions { context, max_step, policy, drafts, far, ..EngineOptions::new(codec) };
        let plain = trace(open()?, &checkpoint, &options, None)?;
        let started = Instant::now();
        let got = trace(open()?, &checkpoint, &options, Some(&plain.tokens))?;
        let name = format!("drafts{kind}, {} {}", policy.kind, codec.name());
        report.add(finding(name, &got, &plain, started));
    }
    Ok(())
}

/// Where rows that leave are kept.
const FAR: &str = " with far pages";

/// Local layers that do not see all rows of a step.
fn short_windows(config: &mut ModelConfig) {
    vary(config);
    config.spec.local.iter_mut().for_each(|local| local.window = WINDOW);
}

/// Decodes from a prompt: in rounds with drafts if the next tokens are `known`, else in single
/// steps.
fn trace<B: Measure>(b: B, checkpoint: &Checkpoint, options: &EngineOptions, known: Option<&[Token]>) -> Result<Trace> {
    let mut runner = Runner::new(b, checkpoint, options, |_, _| true)?;
    let vocab = checkpoint.config.vocab;
    let sampling = SamplingParams { temperature: 1.0, top_k: 40, repetition_penalty: 1.2, ..SamplingParams::default() };
    let seq = runner.create(true)?;
    let n = options.context.unwrap_or_default() - ROOM;
    let prompt: Vec<Token> = (0..n).map(|at| (at * 7919 % vocab) as Token).collect();
    for chunk in prompt.chunks(CHUNK) {
        runner.feed(seq, chunk)?;
    }
    let (mut tokens, mut fork): (Vec<Token>, Option<SeqId>) = (vec![3], None);
    for (round, [tried, right, taken]) in ROUNDS.into_iter().enumerate() {
        match round {
            OFF => drop(runner.set_eviction(seq, false)?),
            FORK => fork = Some(runner.fork(seq)?),
            ON => drop(runner.set_eviction(seq, true)?),
            RELEASE => fork.take().into_iter().for_each(|fork| runner.release(fork)),
            _ => {}
        }
        if CHOOSE.contains(&round) {
            let _ = runner.choose(seq, Far::QUERIES);
        }
        let last = tokens.last().copied().unwrap_or_default();
        let decode = Decode { seq, token: last, sampling: &sampling, seed: 40 };
        let Some(known) = known else {
            for _ in 0..taken {
                let token = tokens.last().copied().unwrap_or_default();
                tokens.extend(runner.decode(&[Decode { token, ..decode }])?);
            }
            continue;
        };
        let next = &known[tokens.len()..];
        let draft = |i: usize| if i < right { next[i] } else { (next[i.min(taken - 1)] + 1) % vocab as Token };
        let drafts: Vec<Token> = (0..tried).map(draft).collect();
        let rows = runner.verify(&[Verify { decode, drafts: &drafts }])?.remove(0);
        (0..taken).for_each(|_| runner.accept(seq));
        runner.commit();
        for row in &rows[..taken] {
            tokens.push((*row)?);
        }
    }
    let slots = slots_of(&runner, seq);
    Ok(Trace { tokens, slots, stats: runner.cache.stats(runner.backend(), seq) })
}

fn finding(name: String, got: &Trace, plain: &Trace, started: Instant) -> Finding {
    let at = (0..plain.tokens.len()).find(|&at| got.tokens[at] != plain.tokens[at]);
    let differs = at.map(|at| format!("token {at} is {} instead of {}", got.tokens[at], plain.tokens[at]));
    // With far pages a step of several rows attends in tiles, whose operands are bf16: decisions
    // may have other strengths.
    let strengths = !name.contains(FAR);
    let key = |meta: &SlotMeta| (meta.position(), meta.marked(), if strengths { meta.strength() } else { 0 });
    let of = |trace: &Trace| trace.slots.iter().map(|lane| lane.iter().map(key).collect()).collect::<Vec<Vec<_>>>();
    let same = of(got) == of(plain);
    let slots = (!same).then(|| "other slots are in use".to_owned());
    let counted = (got.stats != plain.stats).then(|| format!("{:?} instead of {:?}", got.stats, plain.stats));
    Finding { name, error: 0.0, limit: 0.0, broken: differs.or(slots).or(counted), time: started.elapsed() }
}

#[cfg(test)]
mod tests {
    use super::super::Part;
    use super::super::tests::all_fine;
    use super::*;
    use dmschat::backend::cpu::Cpu;

    #[test]
    fn drafts_change_nothing() {
        let open = || Ok::<_, std::fmt::Error>(Cpu::new(2));
        assert_eq!(all_fine(Part::ALL, |report| run_all(open, report).unwrap()), [CODECS.len() + 6; 2]);
    }
}
