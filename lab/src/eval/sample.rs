//! Samples the chains of a group of problems: each prompt is fed once and forked, and all chains of
//! the group decode in one step. All begin at the same step, so that what a step holds is what
//! parallel chains hold.
//!
//! The engine's scheduler is not used: it admits a prompt while others decode and preempts chains
//! that it replays later, so that the chains of a problem would not be in step, and their peak
//! would depend on the other problems. Here all chains of a group fit by the choice of the group,
//! and the loop that is left is shorter than the log and the replay that it needs.

use anyhow::{Context, Result};
use dmschat::backend::Measure;
use dmschat::cache::SeqId;
use dmschat::engine::{Decode, Runner};
use dmschat::policy::Far;
use dmschat::protocol::{SamplingParams, Token};
use dmschat::sampler::chain_seed;
use std::time::Instant;

/// Decode steps between two readings of the counters.
pub const STRIDE: usize = 16;

/// How the chains of a run are sampled.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    pub width: usize,
    /// Most tokens of a chain.
    pub max_tokens: usize,
    /// Numbers of tokens after which the reads are kept, and numbers of chains whose pages are
    /// counted; in rising order.
    pub lengths: &'a [usize],
    pub widths: &'a [usize],
    pub sampling: &'a SamplingParams,
    pub eos: &'a [Token],
    /// Whether tokens leave the cache.
    pub eviction: bool,
    /// Threshold of decisions: 0 as trained.
    pub dial: f32,
}

/// One sampled chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// Sampled tokens, including the token that ends them.
    pub tokens: Vec<Token>,
    /// Whether it ended by itself.
    pub ended: bool,
    /// Keys that were attended to until it had each of [`Options::lengths`] tokens, or ended;
    /// summed over the lanes.
    pub reads: Vec<u64>,
    /// Most slots stored until the end of each [`STRIDE`] tokens; summed over the lanes.
    pub stored: Vec<u32>,
}

/// All chains of a problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub chains: Vec<Chain>,
    /// Maximum distinct pages that the first chains held until they reached a length, or ended: for
    /// each of [`Options::lengths`], and in it for each of [`Options::widths`].
    pub shared: Vec<Vec<usize>>,
    /// Live slots `[n_layers][n_kv_heads]` at the end of chain 0, and the tokens fed to it.
    pub live: Vec<Vec<u32>>,
    pub fed: usize,
}

/// The problems of a group, and the time that their decode steps took until the chains had each of
/// [`Options::lengths`] tokens.
pub struct Group {
    pub problems: Vec<Sampled>,
    pub seconds: Vec<f64>,
}

/// A chain that is sampled.
struct Running {
    problem: usize,
    number: usize,
    seq: SeqId,
    seed: u64,
    /// The token to feed.
    next: Token,
    /// Reads of the prompt, which do not count.
    before: u64,
    done: bool,
    chain: Chain,
}

/// Samples `options.width` chains of each problem of (prompt, seed). `on_step` receives the number
/// of chains that decode.
pub fn sample<B: Measure>(
    runner: &mut Runner<B>,
    problems: &[(&[Token], u64)],
    options: &Options<'_>,
    mut on_step: impl FnMut(usize),
) -> Result<Group> {
    let shared = vec![vec![0; options.widths.len()]; options.lengths.len()];
    let none = Sampled { chains: vec![Chain::default(); options.width], shared, live: Vec::new(), fed: 0 };
    let out = Group { problems: vec![none; problems.len()], seconds: Vec::new() };
    let mut sampling = Sampling { runner, options, open: Vec::new(), out };
    let done = sampling.begin(problems).and_then(|()| sampling.decode(&mut on_step));
    for running in sampling.open {
        sampling.runner.release(running.seq);
    }
    done.map(|()| sampling.out)
}

/// A group that is sampled.
struct Sampling<'a, B: Measure> {
    runner: &'a mut Runner<B>,
    options: &'a Options<'a>,
    /// The chains whose sequences are not released.
    open: Vec<Running>,
    out: Group,
}

impl<B: Measure> Sampling<'_, B> {
    /// Feeds the prompts but for their last tokens, and forks them.
    fn begin(&mut self, problems: &[(&[Token], u64)]) -> Result<()> {
        let Self { runner, options, open, .. } = self;
        for (problem, &(prompt, seed)) in problems.iter().enumerate() {
            let (&next, before_it) = prompt.split_last().context("a prompt has no tokens")?;
            let seq = runner.create(options.eviction)?;
            let first = open.len();
            let running = |number, seq| {
                let seed = chain_seed(seed, number);
                Running { problem, number, seq, seed, next, before: 0, done: false, chain: Chain::default() }
            };
            open.push(running(0, seq));
            runner.set_dial(seq, options.dial);
            runner.feed_prompt(seq, before_it)?;
            runner.check_finite()?;
            for number in 1..options.width {
                let fork = runner.fork(seq)?;
                open.push(running(number, fork));
            }
            let (reads, _) = runner.cache.counters(runner.backend());
            open[first..].iter_mut().for_each(|running| running.before = reads[running.seq.row()]);
        }
        Ok(())
    }

    /// Decodes until every chain is done.
    fn decode(&mut self, on_step: &mut impl FnMut(usize)) -> Result<()> {
        let mut step = 0_usize;
        let started = Instant::now();
        while self.open.iter().any(|r| !r.done) {
            step += 1;
            let running = self.open.iter().filter(|r| !r.done);
            let one = |r: &Running| Decode { seq: r.seq, token: r.next, sampling: self.options.sampling, seed: r.seed };
            let batch: Vec<Decode<'_>> = running.map(one).collect();
            on_step(batch.len());
            let sampled = self.runner.decode_each(&batch)?;
            if step.is_multiple_of(Far::ANSWER_BLOCK) {
                for running in self.open.iter().filter(|r| !r.done) {
                    self.runner.choose(running.seq, Far::ANSWER_BLOCK);
                }
            }
            for (running, token) in self.open.iter_mut().filter(|r| !r.done).zip(sampled) {
                let token = token?;
                running.chain.tokens.push(token);
                running.next = token;
                running.chain.ended = self.options.eos.contains(&token);
                let full =
                    step >= self.options.max_tokens || self.runner.cache.len(running.seq) >= self.runner.context();
                running.done = running.chain.ended || full;
            }
            if step.is_multiple_of(STRIDE) || self.options.lengths.contains(&step) || self.open.iter().all(|r| r.done) {
                self.read_counters(step);
                if self.options.lengths.contains(&step) {
                    self.out.seconds.push(started.elapsed().as_secs_f64());
                }
                self.count_pages(step);
                self.collect();
            }
        }
        self.out.seconds.resize(self.options.lengths.len(), started.elapsed().as_secs_f64());
        Ok(())
    }

    /// Notes the distinct pages of the chains where some are released or a length is reached: until
    /// then they only grow.
    fn count_pages(&mut self, step: usize) {
        let Self { runner, options, open, out } = self;
        if !options.lengths.contains(&step) && !open.iter().any(|r| r.done) {
            return;
        }
        // The chains of a problem follow one another by number.
        let problems: Vec<&[Running]> = open.chunk_by(|a, b| a.problem == b.problem).collect();
        let seqs: Vec<Vec<SeqId>> = problems.iter().map(|chains| chains.iter().map(|r| r.seq).collect()).collect();
        for (chains, pages) in problems.iter().zip(runner.cache.distinct_pages(runner.backend(), &seqs)) {
            let reached = options.lengths.partition_point(|&length| length < step);
            for by_width in &mut out.problems[chains[0].problem].shared[reached..] {
                for (most, &width) in by_width.iter_mut().zip(options.widths) {
                    let first = chains.partition_point(|r| r.number < width);
                    *most = (*most).max(first.checked_sub(1).map_or(0, |last| pages[last]));
                }
            }
        }
    }

    /// Notes reads and stored slots of the chains.
    fn read_counters(&mut self, step: usize) {
        let Self { runner, options, open, .. } = self;
        let (reads, peak) = runner.cache.counters(runner.backend());
        for running in open.iter_mut() {
            let (chain, row) = (&mut running.chain, running.seq.row());
            let is_due = running.done || step.is_multiple_of(STRIDE);
            if is_due && chain.stored.len() * STRIDE < chain.tokens.len() {
                chain.stored.push(peak[row]);
            }
            let reached = |length: &usize| running.done || *length <= step;
            while options.lengths.get(chain.reads.len()).is_some_and(reached) {
                chain.reads.push(reads[row] - running.before);
            }
        }
    }

    /// Moves the chains that are done to their problems and releases their sequences.
    fn collect(&mut self) {
        let Self { runner, open, out, .. } = self;
        for running in open.extract_if(.., |r| r.done) {
            let problem = &mut out.problems[running.problem];
            if running.number == 0 {
                let stats = runner.cache.stats(runner.backend(), running.seq);
                (problem.live, problem.fed) = (stats.live, stats.len);
            }
            runner.release(running.seq);
            problem.chains[running.number] = running.chain;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmschat::backend::cpu::Cpu;
    use dmschat::checkpoint::{Checkpoint, ModelConfig};
    use dmschat::codec::Codec;
    use dmschat::engine::EngineOptions;
    use dmschat::policy::{Budget, Policy, PolicyKind, PolicyRequest, Quest, Tova, Window};

    /// A model of random weights.
    fn runner(seqs: usize, policy: PolicyRequest) -> Runner<Cpu> {
        let demo = Checkpoint::shape("demo").unwrap();
        let config = ModelConfig { n_layers: 2, hidden: 64, ffn: 128, vocab: 500, ..demo };
        let checkpoint = Checkpoint::random_of("random", config).unwrap();
        let options = EngineOptions { max_seqs: seqs, context: Some(256), policy, ..EngineOptions::new(Codec::F32) };
        Runner::new(Cpu::new(1), &checkpoint, &options, |_, _| true).unwrap()
    }

    /// Samples from random weights. With eviction every token is marked.
    fn sampled(prompts: &[&[Token]], width: usize, eviction: bool, lengths: &[usize]) -> Vec<Sampled> {
        let mut runner = runner((prompts.len() * width).max(1), PolicyRequest::default());
        sampled_by(&mut runner, prompts, width, eviction, lengths)
    }

    fn sampled_by(
        runner: &mut Runner<Cpu>,
        prompts: &[&[Token]],
        width: usize,
        eviction: bool,
        lengths: &[usize],
    ) -> Vec<Sampled> {
        let seqs = runner.cache.free_rows();
        let sampling = SamplingParams { temperature: 1.5, ..SamplingParams::default() };
        let (max_tokens, eos) = (*lengths.last().unwrap(), (0..12).collect::<Vec<Token>>());
        let widths = &[1, width][usize::from(width == 1)..];
        let sampling = &sampling;
        let options = Options { width, max_tokens, lengths, widths, sampling, eos: &eos, eviction, dial: -1e6 };
        let problems: Vec<_> = prompts.iter().enumerate().map(|(i, &prompt)| (prompt, 40 + i as u64)).collect();
        let out = sample(runner, &problems, &options, |_| ()).unwrap();
        assert_eq!((runner.cache.free_rows(), out.seconds.len()), (seqs, lengths.len()));
        out.problems
    }

    /// Dense reads and slots are known: step i reads the prompt and i tokens more, and stores them.
    #[test]
    fn dense_chains_read_and_store_all_tokens() {
        let prompts: [&[Token]; 2] = [&[50, 90, 300, 40, 77], &[400, 30]];
        let lanes = 2 * 4;
        for (problem, prompt) in sampled(&prompts, 3, false, &[7, 40]).iter().zip(prompts) {
            for chain in &problem.chains {
                let sum =
                    |n: usize| (0..n.min(chain.tokens.len())).map(|i| (prompt.len() + i) as u64).sum::<u64>() * lanes;
                assert_eq!(chain.reads, [sum(7), sum(40)]);
                assert_eq!(chain.stored.len(), chain.tokens.len().div_ceil(STRIDE));
                let at_end = (prompt.len() + chain.tokens.len() - 1) as u32 * lanes as u32;
                assert_eq!(chain.stored.last(), Some(&at_end));
                assert!(chain.ended || chain.tokens.len() == 40);
            }
            assert!(problem.chains[0] != problem.chains[1]);
            assert_eq!((problem.live.len(), problem.fed), (2, prompt.len() + problem.chains[0].tokens.len() - 1));
        }
    }

    #[test]
    fn a_chain_does_not_depend_on_those_beside_it() {
        let prompt: Vec<Token> = (0..100).map(|i| 30 + i * 7 % 450).collect();
        let both = sampled(&[&prompt, &[400, 30]], 3, true, &[48]);
        let alone = sampled(&[&prompt], 1, true, &[48]);
        assert_eq!(both[0].chains[0], alone[0].chains[0]);
        assert_eq!(both[0].live, alone[0].live);
        let chain = &both[0].chains[0];
        assert_eq!(chain.reads[0], 8 * 65 * chain.tokens.len() as u64, "a window of 64 and the token itself");
    }

    #[test]
    fn a_policy_does_the_same_in_a_model_that_had_others_before() {
        let prompt: Vec<Token> = (0..100).map(|i| 30 + i * 7 % 450).collect();
        let prompts: [&[Token]; 2] = [&prompt, &[400, 30]];
        let mut same = runner(6, PolicyRequest::default());
        let trained = same.cache.geometry().policy;
        let (budget, window) = (Budget::Slots(24), Window::new(32));
        for (choice, policy) in [
            (PolicyKind::Window.with(Budget::Slots(window.budget)), Policy::Window(window)),
            (PolicyRequest::default(), trained),
            (PolicyKind::Tova.with(budget), Policy::Tova(Tova { budget })),
            (PolicyKind::Quest.with(budget), Policy::Quest(Quest { budget, dms: None })),
            (PolicyKind::Window.with(Budget::Slots(window.budget)), Policy::Window(window)),
            (PolicyKind::Dense.into(), Policy::Dense),
        ] {
            same.set_policy(policy).unwrap();
            let fresh = sampled_by(&mut runner(6, choice), &prompts, 3, true, &[30]);
            assert_eq!(sampled_by(&mut same, &prompts, 3, true, &[30]), fresh, "{policy:?}");
        }
    }

    /// The host feeds the sampled tokens once more and counts all pages after each step.
    #[test]
    fn shared_pages_are_the_host_s_counts() {
        let prompt: Vec<Token> = (0..100).map(|i| 30 + i * 7 % 450).collect();
        for (choice, eviction) in [(PolicyKind::Dense.into(), false), (PolicyRequest::default(), true)] {
            let mut runner = runner(3, choice);
            let problem = sampled_by(&mut runner, &[&prompt], 3, eviction, &[32, 64]).remove(0);
            for (width, column) in [(1, 0), (3, 1)] {
                let (first, rest) = (runner.create(eviction).unwrap(), &prompt[..prompt.len() - 1]);
                runner.set_dial(first, -1e6);
                runner.feed(first, rest).unwrap();
                let mut seqs = vec![first];
                (1..width).for_each(|_| seqs.push(runner.fork(first).unwrap()));
                let mut most = [0, 0];
                for step in 1..=64 {
                    for (seq, chain) in seqs.iter().zip(&problem.chains).filter(|(_, c)| c.tokens.len() >= step) {
                        let fed = if step == 1 { prompt[prompt.len() - 1] } else { chain.tokens[step - 2] };
                        runner.feed(*seq, &[fed]).unwrap();
                    }
                    let pages = runner.cache.audit(runner.backend()).unwrap();
                    most = [if step <= 32 { most[0].max(pages) } else { most[0] }, most[1].max(pages)];
                    let ended = |n: usize| problem.chains[n].tokens.len().next_multiple_of(STRIDE) == step;
                    for n in (0..width).filter(|&n| ended(n)) {
                        runner.release(seqs[n]);
                    }
                }
                assert_eq!([problem.shared[0][column], problem.shared[1][column]], most, "{choice:?}, {width} chains");
            }
            assert!(problem.shared[1][1] > problem.shared[1][0]);
            assert!(problem.shared[1][1] < 3 * problem.shared[1][0], "the prompt is shared");
        }
    }
}
