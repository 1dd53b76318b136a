//! Several chains that answer one question, and their vote.
//!
//! The prompt is prefilled once, in the conversation's own sequence, which then stays unchanged:
//! each chain is a fork of it with its own seed. The chains decode in the same steps. A chain that
//! ends frees its pages, unless it would win now, because the winner's fork becomes the
//! conversation's sequence. A chain whose pages are needed elsewhere is replayed from the end of
//! the prompt. So is the winner's reply if its fork is gone.

use super::super::chain::{Chain, Generation};
use super::super::context::Context;
use super::super::loaded::Loaded;
use super::super::report::Figures;
use super::super::runner::Runner;
use super::super::scheduler::Stage;
use super::super::snapshots::Worth;
use super::super::think::Said;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::{ChainReport, ChainsRequest, ConversationId, StopReason, TextKind, VoteCount};
use crate::vote::{self, Vote};

/// The chains that answer a turn.
pub(in crate::engine) struct Chains {
    /// Indexed by the chain's number.
    pub(super) chains: Vec<OneOfMany>,
    pub(super) request: ChainsRequest,
    /// Choice of a front end that checks answers; the inner `None` means that it chose no chain.
    pub(super) elected: Option<Option<usize>>,
    /// Length of the prompt.
    pub(super) prompt_tokens: usize,
    /// Error that ended the latest chain that ran out of memory.
    pub(super) no_room: Option<String>,
    /// Maximum number of distinct pages that the chains and the prompt held.
    pub(super) shared_pages: usize,
    /// Whether a chain that repeats itself has been reported.
    pub(super) repeats: bool,
    /// Pages held only by snapshots when the chains were forked.
    pub(super) kept_pages: usize,
}

pub(super) struct OneOfMany {
    /// `None` once it has ended.
    pub(super) chain: Option<Chain>,
    pub(super) answer: String,
    pub(super) reasoning: String,
    pub(super) ended: Option<Ended>,
}

/// A chain that has ended.
pub(super) struct Ended {
    pub(super) generation: Generation,
    /// Canonical text of the prompt and the reply.
    pub(super) flat: String,
    pub(super) counted: (u64, u64),
    pub(super) report: ChainReport,
}

impl Chains {
    pub fn running(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter_map(|one| one.chain.as_ref())
    }

    pub(super) fn votes(&self) -> Vec<Vote> {
        let answer = |one: &OneOfMany| one.ended.as_ref().and_then(|ended| ended.report.extracted.clone());
        let answers: Vec<Option<String>> = self.chains.iter().map(answer).collect();
        vote::tally(answers.iter().map(Option::as_deref).enumerate())
    }

    /// Number of the chain that wins now, if the vote is decided. With `at_once` the vote ends
    /// here, whatever the running chains would answer.
    pub(super) fn winner(&self, at_once: bool) -> Option<usize> {
        let running = self.running().count();
        let votes = self.votes();
        let decided = running == 0 || (self.request.early_stop && vote::is_decided(&votes, running));
        match self.elected {
            Some(Some(chain)) if self.chains.get(chain).is_some_and(|one| one.generated() > 0) => return Some(chain),
            Some(_) => {}
            None if at_once || (decided && !self.request.checked) => {}
            None => return None,
        }
        let ended = |one: &OneOfMany| one.ended.as_ref().is_some_and(|e| e.report.stop_reason == StopReason::End);
        let has_text = |one: &OneOfMany| one.generated() > 0;
        let voted = votes.first().and_then(|vote| vote.chains.first().copied());
        voted.or_else(|| self.chains.iter().position(ended)).or_else(|| self.chains.iter().position(has_text))
    }

    pub fn chain(&self, number: usize) -> Option<&Chain> {
        self.chains.get(number)?.chain.as_ref()
    }

    pub fn chain_mut(&mut self, number: usize) -> Option<&mut Chain> {
        self.chains.get_mut(number)?.chain.as_mut()
    }

    /// Iterates over the running chains, with their numbers.
    pub fn each_mut(&mut self) -> impl Iterator<Item = (usize, &mut Chain)> {
        self.chains.iter_mut().enumerate().filter_map(|(number, one)| Some((number, one.chain.as_mut()?)))
    }

    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.chains.len()).filter(|&number| self.chain(number).is_some())
    }

    pub fn decode_tok_s(&self) -> Option<f64> {
        let rates = self.running().filter_map(|chain| chain.generation.as_ref()?.decode_tok_s());
        Some(rates.sum()).filter(|&sum: &f64| sum > 0.0)
    }

    /// Records the pages that the chains and the prompt hold. Their number only grows until a chain
    /// frees its pages, so this is called before that.
    pub(super) fn note_pages<B: Backend>(&mut self, m: &Loaded<B>, owner: ConversationId, prompt: &Context) {
        let ended = m.snapshots.of(owner).filter(|one| one.worth == Worth::Chain).map(|one| &one.context);
        let contexts = self.running().map(|chain| &chain.context).chain(ended).chain([prompt]);
        let all: Vec<SeqId> = contexts.map(|context| context.seq).collect();
        let runner = &m.runner;
        // When only a few chains are left, they cannot reach a new maximum.
        if runner.cache.held_pages(runner.backend(), &all) > self.shared_pages {
            let pages = runner.cache.distinct_pages(runner.backend(), &[all]).concat().pop();
            self.shared_pages = self.shared_pages.max(pages.unwrap_or(0));
        }
    }

    /// Frees the pages of a chain that has to wait.
    pub fn restart<B: Backend>(&mut self, runner: &mut Runner<B>, number: usize, from: &Context) {
        if let Some(chain) = self.chain_mut(number) {
            chain.restart(runner, Some(from));
        }
    }

    /// Ends a chain and returns its report. Keeps the chain's fork, and only this one, if it would
    /// win now.
    pub(super) fn end<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        owner: ConversationId,
        number: usize,
        why: StopReason,
    ) -> Vec<Said> {
        let one = &mut self.chains[number];
        let Some(mut chain) = one.chain.take() else { return Vec::new() };
        let rest = chain.finish_text();
        rest.iter().for_each(|said| one.push(said));
        let stats = m.runner.cache.stats(m.runner.backend(), chain.context.seq);
        let counted = chain.counted(&stats);
        let is_whole = chain.stage() != Stage::Prefill;
        let Some(mut generation) = chain.stop() else { return Vec::new() };
        let stop_reason = *generation.stop.get_or_insert(why);
        let may_vote = !matches!(stop_reason, StopReason::Cancelled | StopReason::Error);
        let complete = stop_reason == StopReason::End;
        let report = ChainReport {
            extracted: may_vote.then(|| vote::extract(&one.answer, &one.reasoning, complete)).flatten(),
            answer: std::mem::take(&mut one.answer),
            reasoning: std::mem::take(&mut one.reasoning),
            stop_reason,
            tokens: generation.generated.len(),
            reasoning_tokens: generation.reply.reasoning_tokens,
            reads: Figures::per_lane(m.runner.cache.geometry(), counted.0),
            seed: generation.seed,
        };
        one.ended = Some(Ended { generation, flat: chain.context.flat.clone(), counted, report });
        if is_whole && self.winner(true) == Some(number) {
            m.snapshots.release_of(&mut m.runner, owner, Worth::Chain);
            m.snapshots.insert(&mut m.runner, owner, Worth::Chain, chain.context);
        } else {
            m.runner.release(chain.context.seq);
        }
        rest
    }

    pub(super) fn vote_counts(&self) -> Vec<VoteCount> {
        let count = |vote: Vote| VoteCount { count: vote.chains.len(), answer: vote.answer };
        self.votes().into_iter().map(count).collect()
    }
}

impl OneOfMany {
    pub(super) fn push(&mut self, said: &Said) {
        match said {
            Said::Text(TextKind::Answer, text) => self.answer += text,
            Said::Text(TextKind::Reasoning, text) => self.reasoning += text,
            Said::WasThought => self.reasoning += &std::mem::take(&mut self.answer),
        }
    }

    pub(super) fn generated(&self) -> usize {
        let running = self.chain.as_ref().and_then(|chain| chain.generation.as_ref());
        running.or(self.ended.as_ref().map(|ended| &ended.generation)).map_or(0, |g| g.generated.len())
    }
}
