//! A chain: one sequence, the log entries to feed to it, and the answer to generate after them.
//!
//! [`Chain::feed`] runs a prefill chunk of one chain, [`decode`] a decode step of several. The
//! scheduler chooses which.

use super::adjust::Adjust;
use super::constrain::{Constrained, Thought};
use super::context::Context;
use super::draft::{Drafting, Drafts, Price};
use super::likely;
use super::repetition::Repetition;
use super::reply::{Reply, Spoken, Vocabulary};
use super::runner::{Decode, NonFinite, Runner, StepError, Verify};
use super::scheduler::Stage;
use super::think::Said;
use crate::backend::Backend;
use crate::cache::SeqStats;
use crate::grammar::{Constraint, Mask};
use crate::policy::Far;
use crate::protocol::{Adjustment, Ask, LogEntry, SamplingParams, StopReason, Token};
use crate::system;
use std::collections::VecDeque;
use std::time::Instant;

pub(super) struct Chain {
    pub context: Context,
    /// Entries to feed, in order. An entry that is not a token takes effect when it reaches the
    /// front.
    todo: VecDeque<LogEntry>,
    /// Number of entries at the front of `todo` that are being replayed: they are in the log
    /// already.
    known: usize,
    /// Number of fed tokens at which the state is to be kept for other conversations: no chunk
    /// crosses it.
    pub share_at: Option<usize>,
    /// The answer. Its decode steps begin when `todo` is empty.
    pub generation: Option<Generation>,
    counters: Counters,
}

/// Reads and peak of an answer, over all sequences that it was generated in.
#[derive(Clone, Copy, Default)]
struct Counters {
    /// Counted in sequences that were released.
    reads_before: u64,
    peak_before: u64,
    /// Counters of the sequence when the answer's steps began in it: prefill chunks of one token
    /// count too.
    reads_at_start: u64,
}

/// An answer that is being generated.
pub(super) struct Generation {
    pub sampling: SamplingParams,
    pub seed: u64,
    pub max_tokens: usize,
    /// Tokens after which a thought is closed.
    pub max_think: Option<usize>,
    pub reply: Reply,
    /// Tokens that replace the next sampled ones: the rest of a closing tag.
    forced: VecDeque<Token>,
    /// All sampled tokens. The last one is not fed yet.
    pub generated: Vec<Token>,
    pub stop: Option<StopReason>,
    pub timings: Timings,
    repetition: Repetition,
    adjust: Option<Adjust>,
    constrained: Option<Constrained>,
    /// Why no token continues an answer under its grammar.
    pub dead_end: Option<String>,
    /// Where log-probabilities are reported.
    pub likely: Option<likely::Waiting>,
    /// `None` where none are wanted.
    pub drafting: Option<Drafting>,
    /// [`crate::protocol::TurnReport::repeats_at`] and
    /// [`crate::protocol::TurnReport::thought_closed_at`]
    pub repeats_at: Option<usize>,
    pub thought_closed_at: Option<usize>,
}

/// A prefill chunk that was fed.
pub(super) struct Fed {
    pub tokens: usize,
    /// Whether far pages are to be chosen after it: [`Chain::end_chunk`].
    pub chooses: bool,
}

/// Text and events that a sampled token adds to a reply.
pub(super) struct Pushed {
    pub said: Vec<Said>,
    /// The reply has begun to repeat itself.
    pub repeats: bool,
}

/// Times of an answer's first and last token and of the end of its first think block.
#[derive(Default)]
pub(super) struct Timings {
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    pub reasoning_end: Option<Instant>,
}

impl Generation {
    pub fn new(ask: &Ask, drafts: &Drafts, seed: u64, reply: Reply, head: bool) -> Self {
        Self {
            sampling: ask.sampling.clone(),
            seed,
            max_tokens: ask.max_tokens.unwrap_or(usize::MAX),
            max_think: ask.max_think,
            reply,
            forced: VecDeque::new(),
            generated: Vec::new(),
            stop: None,
            timings: Timings::default(),
            repetition: Repetition::default(),
            adjust: Adjust::of(ask),
            constrained: None,
            dead_end: None,
            likely: ask.logprobs.map(likely::Waiting::new),
            drafting: (ask.drafts > 0).then(|| Drafting::new(drafts, ask.drafts, head)),
            repeats_at: None,
            thought_closed_at: None,
        }
    }

    /// Puts the answer under a grammar.
    pub fn constrain(&mut self, constraint: Constraint, thought: Thought) {
        match Constrained::new(constraint, thought, self.reply.is_free()) {
            Ok(constrained) => self.constrained = Some(constrained),
            Err(why) => self.end_dead(&why),
        }
    }

    /// Ends an answer that no token continues.
    fn end_dead(&mut self, why: &str) {
        self.dead_end = Some(format!("the grammar lets no token follow: {why}"));
        self.stop = Some(StopReason::Error);
    }

    /// Returns the token that takes the place of the sampled one: the end of a thought that has
    /// reached its limit.
    fn closing(&mut self, vocabulary: &Vocabulary) -> Option<Token> {
        let tags = &vocabulary.think;
        let is_due = self.max_think.is_some_and(|limit| self.reply.reasoning_tokens >= limit);
        if is_due && self.reply.is_free() && self.forced.is_empty() {
            let end = tags.end_of_thought(self.constrained.is_some());
            self.forced = vocabulary.tokenizer.encode_pieces(&end).unwrap_or_default().into();
        }
        self.forced.pop_front()
    }

    pub fn decode_tok_s(&self) -> Option<f64> {
        let (first, last) = self.timings.first_token.zip(self.timings.last_token)?;
        let seconds = (last - first).as_secs_f64();
        (seconds > 0.0).then(|| (self.generated.len() - 1) as f64 / seconds)
    }
}

impl Chain {
    /// Creates a chain without work.
    pub fn idle(context: Context) -> Self {
        let (todo, counters) = (VecDeque::new(), Counters::default());
        Self { context, todo, known: 0, share_at: None, generation: None, counters }
    }

    pub fn stage(&self) -> Stage {
        match &self.generation {
            _ if !self.todo.is_empty() => Stage::Prefill,
            Some(generation) if generation.stop.is_none() => Stage::Decode,
            _ => Stage::Done,
        }
    }

    /// Whether log entries are being replayed, so that the context is an earlier one than the
    /// conversation's.
    pub fn is_replaying(&self) -> bool {
        self.known > 0
    }

    /// Number of tokens left to feed.
    pub fn tokens_left(&self) -> usize {
        self.todo.iter().filter_map(LogEntry::token).count()
    }

    /// Sets the answer to generate, once everything is fed.
    pub fn begin_answer<B: Backend>(&mut self, runner: &Runner<B>, generation: Generation) {
        self.count_from(runner, (0, 0));
        self.generation = Some(generation);
    }

    /// Counts reads and peak from these on.
    pub fn count_from<B: Backend>(&mut self, runner: &Runner<B>, (reads_before, peak_before): (u64, u64)) {
        let reads_at_start = runner.cache.stats(runner.backend(), self.context.seq).reads;
        self.counters = Counters { reads_before, peak_before, reads_at_start };
    }

    /// Slots that the answer's steps attended to and the most that were stored, summed over lanes.
    /// `stats`: of its sequence.
    pub fn counted(&self, stats: &SeqStats) -> (u64, u64) {
        let Counters { reads_before, peak_before, reads_at_start } = self.counters;
        let reads = if self.todo.is_empty() { stats.reads.saturating_sub(reads_at_start) } else { 0 };
        (reads_before + reads, peak_before.max(stats.peak.into()))
    }

    pub fn decode_tok_s(&self) -> Option<f64> {
        self.generation.as_ref()?.decode_tok_s()
    }

    /// Number of tokens left to generate.
    pub fn tokens_to_go(&self) -> usize {
        self.generation.as_ref().map_or(0, |g| g.max_tokens - g.generated.len())
    }

    /// Sets the tokens to feed.
    pub fn prefill(&mut self, tokens: impl IntoIterator<Item = Token>) {
        self.todo = tokens.into_iter().map(LogEntry::Token).collect();
        self.known = 0;
    }

    /// Sets the tokens of an answer to feed: with a choice of far pages after each block, as where
    /// the answer is generated.
    pub fn prefill_answer<B: Backend>(&mut self, runner: &Runner<B>, tokens: &[Token]) {
        self.todo = runner.with_choices(tokens, Far::ANSWER_BLOCK, Far::ANSWER_BLOCK).collect();
        self.known = 0;
    }

    /// Sets a log to replay under its toggles.
    pub fn replay(&mut self, log: &[LogEntry]) {
        self.todo = log.iter().copied().collect();
        self.known = log.len();
    }

    /// Releases the sequence and starts over in a fork of `from`, whose log its own begins with, or
    /// in an empty one. Everything fed since is to be replayed (preemption).
    pub fn restart<B: Backend>(&mut self, runner: &mut Runner<B>, from: Option<&Context>) {
        let counted = self.counted(&runner.cache.stats(runner.backend(), self.context.seq));
        runner.release(self.context.seq);
        let fresh = match from {
            Some(context) => context.fork(runner),
            None => Context::new(runner, true),
        };
        let old = std::mem::replace(&mut self.context, fresh.expect("a sequence was just released"));
        self.count_from(runner, counted);
        (self.context.pending, self.context.flat) = (old.pending, old.flat);
        let known = from.map_or(0, |context| context.log.len());
        self.known += old.log.len() - known;
        self.todo = old.log.into_iter().skip(known).chain(self.todo.drain(..)).collect();
    }

    /// Sets how many entries at the front are being replayed, at most as many as there are.
    pub fn replays_only(&mut self, entries: usize) {
        self.known = self.known.min(entries);
    }

    /// Drops the remaining work and returns the generation.
    pub fn stop(&mut self) -> Option<Generation> {
        self.todo.clear();
        (self.known, self.share_at) = (0, None);
        self.generation.take()
    }

    fn fed(&mut self, n: usize) {
        drop(self.todo.drain(..n));
        self.known = self.known.saturating_sub(n);
    }

    /// Feeds the next chunk of at most `size` tokens, with the choice of far pages that is due
    /// after it, and returns its length. On an error no token was fed.
    pub fn feed<B: Backend>(&mut self, runner: &mut Runner<B>, size: usize) -> Result<usize, StepError> {
        let Fed { tokens, chooses } = self.feed_chunk(runner, size)?;
        if chooses {
            self.end_chunk(runner);
        }
        Ok(tokens)
    }

    /// [`Self::feed`] without the choice. Where the cache is nearly full, chunks shrink to one
    /// token, whose need is known exactly.
    pub fn feed_chunk<B: Backend>(&mut self, runner: &mut Runner<B>, size: usize) -> Result<Fed, StepError> {
        while let Some(&entry) = self.todo.front().filter(|entry| entry.token().is_none()) {
            self.context.apply(runner, entry)?;
            self.fed(1);
        }
        // Choices of a log that is replayed are in it.
        let chooses = self.known == 0 && runner.keeps_far();
        let block = runner.prompt_block();
        let size = match self.known {
            0 if chooses => size.min(block - self.context.since_choice(block - 1)),
            0 => size,
            known => size.min(known),
        };
        let fed = self.context.len(runner);
        let size = self.share_at.filter(|at| *at > fed).map_or(size, |at| size.min(at - fed));
        let tokens: Vec<Token> = self.todo.iter().map_while(LogEntry::token).take(size).collect();
        let mut n = tokens.len();
        while n > 0 {
            match self.context.feed(runner, &tokens[..n]) {
                Err(StepError::Cache(_)) if n > 1 => n /= 2,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.fed(n);
                    break;
                }
            }
        }
        let is_due = || self.todo.is_empty() || self.context.since_choice(block) == block;
        let chooses = chooses && n > 0 && is_due();
        if self.todo.is_empty() && self.generation.is_some() {
            let Counters { reads_before, peak_before, .. } = self.counters;
            self.count_from(runner, (reads_before, peak_before));
        }
        Ok(Fed { tokens: n, chooses })
    }

    /// Chooses far pages after a chunk.
    pub fn end_chunk<B: Backend>(&mut self, runner: &mut Runner<B>) {
        self.context.choose(runner, Far::QUERIES);
    }

    /// Appends a sampled token to the answer, or the end of a thought that has reached its limit,
    /// and makes it the pending one. Sets `stop` if the answer ends with it. `row`: its row of the
    /// step that ran.
    pub fn push<B: Backend>(
        &mut self,
        sampled: Token,
        row: usize,
        runner: &mut Runner<B>,
        vocabulary: &Vocabulary,
    ) -> Result<Pushed, NonFinite> {
        let now = system::now();
        let generation = self.generation.as_mut().expect("a chain is sampled from for its answer");
        let closing = generation.closing(vocabulary);
        if closing.is_some_and(|close| close != sampled) {
            generation.thought_closed_at.get_or_insert(generation.generated.len());
        }
        let token = closing.unwrap_or(sampled);
        let Generation { reply, generated, timings, likely, .. } = generation;
        timings.first_token.get_or_insert(now);
        timings.last_token = Some(now);
        generated.push(token);
        generation.adjust.iter_mut().for_each(|adjust| adjust.push(token));
        let repeats = generation.repetition.push(token);
        if repeats {
            generation.repeats_at = Some(generated.len());
        }
        let was_thinking = reply.is_thinking();
        let spoken = reply.push(token, vocabulary);
        match (likely, spoken.spelled) {
            (Some(likely), _) if spoken.thinks => likely.drop_thought(&spoken),
            (Some(likely), Some(spelled)) => runner.logits([row], |_, logits| {
                likely.push(logits, token, spelled, &vocabulary.tokenizer);
            })?,
            _ => {}
        }
        let Spoken { said, flat, stops, is_free, .. } = spoken;
        if was_thinking && !reply.is_thinking() {
            timings.reasoning_end = Some(now);
        }
        self.context.flat += &flat;
        self.context.pending = Some(token);
        generation.stop = if stops || vocabulary.eos.contains(&token) {
            Some(StopReason::End)
        } else if generation.generated.len() >= generation.max_tokens {
            Some(StopReason::MaxTokens)
        } else if self.context.len(runner) >= runner.context() {
            Some(StopReason::ContextFull)
        } else {
            None
        };
        if let Some(constrained) = generation.constrained.as_mut().filter(|_| generation.stop.is_none())
            && let Err(why) = constrained.push(token, is_free, generation.reply.is_free())
        {
            generation.end_dead(&why);
        }
        Ok(Pushed { said, repeats })
    }

    /// The tokens of the answer whose log-probabilities are reported with its text.
    pub fn likely_mut(&mut self) -> Option<&mut likely::Waiting> {
        self.generation.as_mut()?.likely.as_mut()
    }

    /// Ends the answer's text and returns the rest of it.
    pub fn finish_text(&mut self) -> Vec<Said> {
        let Some(generation) = &mut self.generation else { return Vec::new() };
        let (said, flat) = generation.reply.finish();
        self.context.flat += &flat;
        said
    }
}

/// The drafts of an answer, if it has any.
fn drafting(generation: &mut Option<Generation>) -> Option<&mut Drafting> {
    generation.as_mut()?.drafting.as_mut()
}

impl Chain {
    /// Lets the queries of the last block of the answer choose, if the block is complete. Returns
    /// whether they did. Called before each decode step.
    pub fn choose_if_due<B: Backend>(&mut self, runner: &mut Runner<B>) -> bool {
        let is_due = runner.keeps_far() && self.context.since_choice(Far::ANSWER_BLOCK) == Far::ANSWER_BLOCK;
        if is_due {
            self.context.choose(runner, Far::ANSWER_BLOCK);
        }
        is_due
    }
}

/// Runs one decode step: samples the token after the pending one of each chain, and after each of
/// its drafts. Returns the results for each chain, in order. The first is the answer's next token;
/// each further result counts if the token before it equals the draft. [`Chain::accept`] takes them
/// one by one. On an error nothing has changed.
pub(super) fn decode<B: Backend>(
    runner: &mut Runner<B>,
    chains: &[&mut Chain],
) -> Result<Vec<Vec<Result<Token, NonFinite>>>, StepError> {
    let batch: Vec<Verify<'_>> = chains.iter().filter_map(|chain| chain.next_decode()).collect();
    assert_eq!(batch.len(), chains.len(), "only decoding chains are in a batch");
    if chains.iter().any(|chain| chain.adjust().is_some()) {
        runner.draws.adjust_next(chains.iter().flat_map(|chain| chain.adjust_rows()).collect());
    }
    if chains.iter().any(|chain| chain.constrained().is_some()) {
        runner.draws.mask_next(chains.iter().flat_map(|chain| chain.masks()).collect());
    }
    if batch.iter().any(|row| !row.drafts.is_empty()) {
        return runner.verify(&batch);
    }
    let batch: Vec<Decode<'_>> = batch.iter().map(|row| row.decode).collect();
    Ok(runner.decode_each(&batch)?.into_iter().map(|result| vec![result]).collect())
}

impl Chain {
    fn next_decode(&self) -> Option<Verify<'_>> {
        let (generation, token) = self.generation.as_ref().zip(self.context.pending)?;
        let decode = Decode { seq: self.context.seq, token, sampling: &generation.sampling, seed: generation.seed };
        Some(Verify { decode, drafts: self.drafts() })
    }

    fn adjust(&self) -> Option<&Adjust> {
        self.generation.as_ref()?.adjust.as_ref()
    }

    fn constrained(&self) -> Option<&Constrained> {
        self.generation.as_ref()?.constrained.as_ref()
    }

    /// The tokens that the answer's grammar allows in each row of the next step.
    fn masks(&self) -> Vec<Option<Mask>> {
        let drafts = self.drafts().len();
        self.constrained().map_or_else(|| vec![None; 1 + drafts], |constrained| constrained.masks(drafts))
    }

    /// What is added to the logits of each row of the next step.
    fn adjust_rows(&self) -> impl Iterator<Item = Vec<Adjustment>> + '_ {
        let drafts = self.drafts();
        (0..=drafts.len()).map(move |n| self.adjust().map_or_else(Vec::new, |adjust| adjust.row(&drafts[..n])))
    }

    /// Maximum drafts of the next step, at most `max`. Every row is fed, but the last token of an
    /// answer is not.
    fn max_drafts<B: Backend>(&self, runner: &Runner<B>, max: usize) -> usize {
        let mut max = max.min(self.tokens_to_go().saturating_sub(1));
        if runner.keeps_far() {
            // A step does not cross the end of a block.
            let fed = self.context.since_choice(Far::ANSWER_BLOCK) % Far::ANSWER_BLOCK;
            max = max.min(Far::ANSWER_BLOCK - 1 - fed);
        }
        max.min(runner.context().saturating_sub(self.context.len(runner) + 1))
    }

    /// Chooses the drafts of the next step, at most `max`. `price`:
    /// [`Costs::price`](super::draft::Costs::price).
    pub fn choose_drafts<B: Backend>(&mut self, runner: &Runner<B>, max: usize, price: Option<Price<'_>>) {
        let max = self.max_drafts(runner, max);
        let (Some(generation), Some(pending)) = (&mut self.generation, self.context.pending) else { return };
        let Generation { drafting: Some(drafting), constrained, .. } = generation else { return };
        match constrained.as_ref().map(Constrained::forced).filter(|forced| !forced.is_empty()) {
            Some(forced) => drafting.force(forced, max, price),
            None => drafting.choose(&self.context.log, pending, max, price),
        }
        if let Some(constrained) = constrained {
            constrained.cut(&mut drafting.next.tokens);
        }
    }

    /// Number of drafts that the draft head should make for the next step; 0 if the chain has
    /// ended. `None`: the head need not be fed.
    pub fn head_drafts<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        max: usize,
        price: Option<Price<'_>>,
    ) -> Option<usize> {
        let (max, continues) = (self.max_drafts(runner, max), self.stage() == Stage::Decode);
        let drafting = drafting(&mut self.generation).filter(|_| continues);
        drafting.map_or(Some(0), |drafting| drafting.head_drafts(max, price))
    }

    /// Sets the drafts that the draft head made for the next step.
    pub fn set_head_drafts(&mut self, tokens: Vec<Token>) {
        if let Some(drafting) = drafting(&mut self.generation) {
            drafting.set_head_drafts(tokens);
        }
    }

    /// The tokens that follow each of the newest `n` fed tokens: the fed ones without the first,
    /// and the next token to feed.
    pub fn tokens_after(&self, n: usize) -> Vec<Token> {
        let next = self.todo.iter().find_map(LogEntry::token).or(self.context.pending);
        let Some(next) = next else { return Vec::new() };
        let fed = self.context.log.iter().rev().filter_map(LogEntry::token);
        let mut tokens: Vec<Token> = [next].into_iter().chain(fed.take(n - 1)).collect();
        tokens.reverse();
        tokens
    }

    /// The drafts of the next step.
    pub fn drafts(&self) -> &[Token] {
        let drafting = self.generation.as_ref().and_then(|generation| generation.drafting.as_ref());
        drafting.map_or(&[], |drafting| &drafting.next.tokens)
    }

    /// Drops the drafts of the next step. Returns false if there are none.
    pub fn drop_drafts(&mut self) -> bool {
        drafting(&mut self.generation).is_some_and(|drafting| !std::mem::take(&mut drafting.next).tokens.is_empty())
    }

    /// Whether the answer continues with draft `i` of the step that ran.
    pub fn follows(&self, i: usize) -> bool {
        self.stage() == Stage::Decode && self.context.pending == self.drafts().get(i).copied()
    }

    /// Enters the pending token in the log: it is fed.
    pub fn accept<B: Backend>(&mut self, runner: &mut Runner<B>) {
        runner.accept(self.context.seq);
        self.context.log.extend(self.context.pending.take().map(LogEntry::Token));
    }

    /// Records that the first `accepted` drafts of the last step were right. `cost`: cost of the
    /// step, in plain steps.
    pub fn drafts_ran(&mut self, accepted: usize, cost: f64) {
        if let Some(drafting) = drafting(&mut self.generation) {
            drafting.observe(accepted, cost);
        }
    }
}
