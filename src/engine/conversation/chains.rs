//! Several chains that answer one question, and their vote.
//!
//! The prompt is prefilled once, in the conversation's own sequence, which then stays unchanged:
//! each chain is a fork of it with its own seed. The chains decode in the same steps. A chain that
//! ends frees its pages, unless it would win now, because the winner's fork becomes the
//! conversation's sequence. A chain whose pages are needed elsewhere is replayed from the end of
//! the prompt. So is the winner's reply if its fork is gone.

use super::super::chain::{Chain, Generation, Pushed};
use super::super::context::Context;
use super::super::loaded::Loaded;
use super::super::report::Figures;
use super::super::runner::{NonFinite, Runner};
use super::super::scheduler::Stage;
use super::super::snapshots::Worth;
use super::super::think::Said;
use super::turn::Turn;
use super::{Conversation, Halt, Job, Work};
use crate::backend::{Backend, KvGeometry};
use crate::cache::{CacheError, SeqId, SeqStats};
use crate::protocol::{
    ChainEvent, ChainFigures, ChainReport, ChainState, ChainsReport, ChainsRequest, ConversationId, Event, EventSender,
    LogEntry, MAX_AUTO_WIDTH, MAX_WIDTH, StopReason, TextKind, Token, VoteCount, WhenFull,
};
use crate::sampler::chain_seed;
use crate::vote::{self, Vote};

/// Expected tokens of an answer, used when the engine chooses the number of chains.
const USUAL_ANSWER: usize = 2048;
/// Maximum rounds in which chains answer if they do not all fit in memory. More rounds take too
/// long.
const MAX_ROUNDS: usize = 4;
/// Temperature of the chains if the answer would otherwise be greedy.
const CHAINS_TEMPERATURE: f32 = 1.0;

/// The chains that answer a turn.
pub(in crate::engine) struct Chains {
    /// Indexed by the chain's number.
    chains: Vec<OneOfMany>,
    request: ChainsRequest,
    /// Choice of a front end that checks answers; the inner `None` means that it chose no chain.
    elected: Option<Option<usize>>,
    /// Length of the prompt.
    prompt_tokens: usize,
    /// Error that ended the latest chain that ran out of memory.
    no_room: Option<String>,
    /// Maximum number of distinct pages that the chains and the prompt held.
    shared_pages: usize,
    /// Whether a chain that repeats itself has been reported.
    repeats: bool,
    /// Pages held only by snapshots when the chains were forked.
    kept_pages: usize,
}

struct OneOfMany {
    /// `None` once it has ended.
    chain: Option<Chain>,
    answer: String,
    reasoning: String,
    ended: Option<Ended>,
}

/// A chain that has ended.
struct Ended {
    generation: Generation,
    /// Canonical text of the prompt and the reply.
    flat: String,
    counted: (u64, u64),
    report: ChainReport,
}

/// Slots per KV head and layer that the decode steps of a dense cache would attend to, for the
/// tokens after the prompt.
fn dense_reads(geometry: &KvGeometry, prompt_tokens: usize, generated: usize) -> f64 {
    let (first, last) = (prompt_tokens.saturating_sub(1), (prompt_tokens + generated).saturating_sub(1));
    let layers = geometry.layers().map(|layer| layer.dense_reads(last) - layer.dense_reads(first));
    layers.sum::<u64>() as f64 / geometry.n_layers.max(1) as f64
}

/// Refuses more chains than fit in memory in [`MAX_ROUNDS`] rounds of `fit` chains.
fn check_width(wanted: usize, fit: usize) -> Result<(), Halt> {
    if wanted <= fit * MAX_ROUNDS {
        return Ok(());
    }
    Err(Halt::CacheFull(format!(
        "memory holds at most {fit} of {wanted} chains at a time, and the others would wait too long; ask for at most {} chains",
        fit * MAX_ROUNDS
    )))
}

impl Chains {
    pub fn running(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter_map(|one| one.chain.as_ref())
    }

    fn votes(&self) -> Vec<Vote> {
        let answer = |one: &OneOfMany| one.ended.as_ref().and_then(|ended| ended.report.extracted.clone());
        let answers: Vec<Option<String>> = self.chains.iter().map(answer).collect();
        vote::tally(answers.iter().map(Option::as_deref).enumerate())
    }

    /// Number of the chain that wins now, if the vote is decided. With `at_once` the vote ends
    /// here, whatever the running chains would answer.
    fn winner(&self, at_once: bool) -> Option<usize> {
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
    fn note_pages<B: Backend>(&mut self, m: &Loaded<B>, owner: ConversationId, prompt: &Context) {
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
    fn end<B: Backend>(
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

    fn vote_counts(&self) -> Vec<VoteCount> {
        let count = |vote: Vote| VoteCount { count: vote.chains.len(), answer: vote.answer };
        self.votes().into_iter().map(count).collect()
    }
}

impl OneOfMany {
    fn push(&mut self, said: &Said) {
        match said {
            Said::Text(TextKind::Answer, text) => self.answer += text,
            Said::Text(TextKind::Reasoning, text) => self.reasoning += text,
            Said::WasThought => self.reasoning += &std::mem::take(&mut self.answer),
        }
    }

    fn generated(&self) -> usize {
        let running = self.chain.as_ref().and_then(|chain| chain.generation.as_ref());
        running.or(self.ended.as_ref().map(|ended| &ended.generation)).map_or(0, |g| g.generated.len())
    }
}

impl<B: Backend> Conversation<B> {
    /// Forks the chains of a turn once its prompt is prefilled.
    pub fn begin_chains(&mut self, m: &mut Loaded<B>) {
        let at_prompt_end = self.chain.generation.as_ref().is_some_and(|g| g.generated.is_empty());
        if !at_prompt_end || self.chain.stage() != Stage::Decode {
            return;
        }
        let Some(mut job) = self.job.take_if(|job| job.waits_for_chains()) else { return };
        if let Work::Answer(turn) = &mut job.work
            && let Some(request) = turn.wanted.take()
        {
            job.halt = self.fork_chains(m, &job.events, turn, request).err();
        }
        self.job = Some(job);
    }

    fn fork_chains(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        turn: &mut Turn,
        request: ChainsRequest,
    ) -> Result<(), Halt> {
        let wanted = request.width.unwrap_or_else(|| self.width_that_fits(m, turn)).min(MAX_WIDTH);
        let fit = m.runner.cache.most_sequences(m.runner.backend()).map(|fit| fit.max(1)).filter(|&fit| fit < wanted);
        fit.map_or(Ok(()), |fit| check_width(wanted, fit))?;
        let mut forks: Vec<Context> = Vec::new();
        let mut refusal = None;
        while wanted > 1 && forks.len() < wanted && refusal.is_none() {
            match m.with_sequence(|runner| self.chain.context.fork(runner)) {
                Ok(fork) => forks.push(fork),
                Err(CacheError::Sequences(_)) => refusal = Some("--width at the start makes room for more".to_owned()),
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        if let Some(why) = refusal {
            events.notice(format!("{} of {wanted} chains answer: {why}", forks.len().max(1)));
        }
        let Some(first) = self.chain.generation.take_if(|_| forks.len() > 1) else {
            forks.into_iter().for_each(|fork| m.runner.release(fork.seq));
            return Ok(());
        };
        let ask = &mut turn.asked.ask;
        if ask.sampling.temperature <= 0.0 {
            if !std::mem::replace(&mut m.said_that_chains_sample, true) {
                events.event(Event::Info(format!(
                    "sampling at temperature {CHAINS_TEMPERATURE} (greedy chains would be identical)"
                )));
            }
            ask.sampling.temperature = CHAINS_TEMPERATURE;
        }
        let turn_id = turn.id;
        events.event(Event::Chain { turn: turn_id, event: ChainEvent::Started(forks.len()) });
        if let Some(fit) = fit.filter(|&fit| fit < forks.len()) {
            events.notice(format!(
                "memory holds at most {fit} of {} chains at a time: the others wait; give a smaller --width, or raise \
                 --kv-limit",
                forks.len()
            ));
        }
        let fork = |(number, context)| {
            let mut chain = Chain::idle(context);
            turn.asked.begin_answer(m, &mut chain, chain_seed(first.seed, number));
            OneOfMany { chain: Some(chain), answer: String::new(), reasoning: String::new(), ended: None }
        };
        let chains = forks.into_iter().enumerate().map(fork).collect();
        // The last token of the prompt is pending and is not counted yet.
        let prompt_tokens = self.chain.context.len(&m.runner) + 1;
        let kept_pages = self.figures(m).other_pages();
        self.chains = Some(Chains {
            chains,
            request,
            elected: None,
            prompt_tokens,
            no_room: None,
            shared_pages: 0,
            repeats: false,
            kept_pages,
        });
        Ok(())
    }

    /// Number of chains for which there are free sequences and, at the expected compression, enough
    /// memory.
    fn width_that_fits(&self, m: &Loaded<B>, turn: &Turn) -> usize {
        let runner = &m.runner;
        let rows = (runner.cache.free_rows() + m.snapshots.count(Worth::Earlier)).clamp(1, MAX_AUTO_WIDTH);
        let Some(free) = runner.cache.free_pages(runner.backend()) else { return rows };
        let left = runner.context().saturating_sub(self.chain.context.len(runner));
        let tokens = turn.asked.ask.max_tokens.unwrap_or(usize::MAX).min(left).min(USUAL_ANSWER);
        let dense = runner.cache.pages_for(runner.backend(), self.chain.context.seq, tokens) as u64;
        let plan = &m.info.plan;
        let pages = dense * plan.expected_kv_bytes / plan.dense_kv_bytes.max(1);
        (free as u64 / pages.max(1)).clamp(1, rows as u64) as usize
    }

    /// Stores the choice of a front end that checks answers.
    pub fn elect(&mut self, choice: Option<usize>) {
        if let Some(chains) = &mut self.chains {
            chains.elected.get_or_insert(choice);
        }
    }

    /// Adds a token that was sampled for a chain.
    pub fn chain_sampled(&mut self, m: &mut Loaded<B>, number: usize, token: Token) {
        let (Some(chains), Some(Job { events, work: Work::Answer(turn), .. })) = (&mut self.chains, &self.job) else {
            return;
        };
        let Some(chain) = chains.chain_mut(number) else { return };
        let Pushed { said, repeats } = chain.push(token, &m.runner, &m.vocabulary);
        if repeats && !std::mem::replace(&mut chains.repeats, true) {
            events.event(Event::Repeats { turn: turn.id, chain: Some(number) });
        }
        for one in said {
            chains.chains[number].push(&one);
            if let Said::Text(kind, text) = one {
                let event = ChainEvent::Text { chain: number, kind, text };
                events.event(Event::Chain { turn: turn.id, event });
            }
        }
        self.decode_tok_s = self.chains.as_ref().and_then(Chains::decode_tok_s);
    }

    /// Ends a chain whose step failed.
    pub fn end_chain(&mut self, m: &mut Loaded<B>, number: usize, error: NonFinite) {
        if let Some(Job { events, .. }) = &self.job {
            events.notice(format!("chain {} ended: {error}", number + 1));
        }
        self.end_chains(m, &[number], StopReason::Error);
    }

    /// Ends chains and reports them.
    fn end_chains(&mut self, m: &mut Loaded<B>, numbers: &[usize], why: StopReason) {
        let (Some(chains), Some(Job { events, work: Work::Answer(turn), .. }), false) =
            (&mut self.chains, &self.job, numbers.is_empty())
        else {
            return;
        };
        let (turn, owner) = (turn.id, self.outlet.conversation());
        chains.note_pages(m, owner, &self.chain.context);
        for &number in numbers {
            for said in chains.end(m, owner, number, why) {
                if let Said::Text(kind, text) = said {
                    events.event(Event::Chain { turn, event: ChainEvent::Text { chain: number, kind, text } });
                }
            }
            if let Some(ended) = &chains.chains[number].ended {
                let (report, votes) = (Box::new(ended.report.clone()), chains.vote_counts());
                events.event(Event::Chain { turn, event: ChainEvent::Ended { chain: number, report, votes } });
            }
        }
    }

    /// Ends a chain that runs alone and has no memory to continue.
    pub fn no_room_for_chain(&mut self, m: &mut Loaded<B>, number: usize, error: &CacheError) {
        if let (Some(chains), Some(job)) = (&mut self.chains, &self.job) {
            if chains.no_room.is_none() && m.when_full != WhenFull::Stop {
                job.events.notice(format!(
                    "chain {} ended: the cache is full, and chains that share a prompt drop nothing of it; give a smaller \
                     --width, or raise --kv-limit",
                    number + 1
                ));
            }
            chains.no_room = Some(error.to_string());
        }
        self.end_chains(m, &[number], StopReason::CacheFull);
    }

    /// Ends the chains that are done. If the vote is decided or the turn was cancelled, ends all
    /// chains and makes the winner's reply the conversation's.
    pub fn finish_chains(&mut self, m: &mut Loaded<B>) {
        let Some(chains) = &self.chains else { return };
        let done: Vec<usize> =
            chains.numbers().filter(|&n| chains.chain(n).is_some_and(|c| c.stage() == Stage::Done)).collect();
        self.end_chains(m, &done, StopReason::End);
        let (Some(chains), Some(job)) = (&self.chains, &self.job) else { return };
        let all_ended = chains.running().next().is_none();
        let failed = job.halt.is_some() || (all_ended && chains.chains.iter().all(|one| one.generated() == 0));
        let winner = chains.winner(job.cancelled).filter(|_| !failed);
        if winner.is_none() && !failed && !job.cancelled {
            return;
        }
        let stopped = job.cancelled && chains.winner(false).is_none();
        self.end_chains(m, &chains.numbers().collect::<Vec<_>>(), StopReason::Cancelled);
        let Some(winner) = winner else {
            let no_room = self.chains.as_mut().and_then(|chains| chains.no_room.take());
            self.release_chains(m);
            if let Some(job) = self.job.as_mut().filter(|job| !job.cancelled) {
                let failed = || Halt::Error("no chain could answer".into());
                job.halt.get_or_insert_with(|| no_room.map_or_else(failed, Halt::CacheFull));
            }
            return;
        };
        if let Some(chains) = self.chains.take() {
            self.take_reply(m, chains, winner, stopped);
        }
    }

    /// Makes the winner's reply the conversation's. `stopped`: the vote was not decided.
    fn take_reply(&mut self, m: &mut Loaded<B>, chains: Chains, winner: usize, stopped: bool) {
        let Some(Job { events, cancelled, work: Work::Answer(turn), .. }) = &mut self.job else { return };
        // Choosing the winner has completed the cancellation.
        *cancelled = false;
        let (checked, prompt_tokens) = (chains.elected.flatten() == Some(winner), chains.prompt_tokens);
        let (votes, geometry) = (chains.vote_counts(), m.runner.cache.geometry());
        let mut ended: Vec<Ended> = chains.chains.into_iter().filter_map(|one| one.ended).collect();
        let sum = |of: fn(&Ended) -> u64| ended.iter().map(of).sum::<u64>();
        let counted = (sum(|e| e.counted.0), sum(|e| e.counted.1));
        let report = ChainsReport {
            chains: ended.iter().map(|e| e.report.clone()).collect(),
            votes,
            winner,
            checked,
            stopped,
            // The last token of a reply is not fed.
            dense_reads: ended.iter().map(|e| dense_reads(geometry, prompt_tokens, e.generation.generated.len())).sum(),
        };
        let Ended { mut generation, flat, report: chosen, .. } = ended.swap_remove(winner);
        if stopped {
            generation.stop = Some(StopReason::Cancelled);
        }
        let id = turn.id;
        events.event(Event::Chain { turn: id, event: ChainEvent::Elected(winner) });
        for (kind, text) in [(TextKind::Reasoning, chosen.reasoning), (TextKind::Answer, chosen.answer)] {
            if !text.is_empty() {
                events.event(Event::Text { turn: id, kind, text });
            }
        }
        (turn.chains, turn.shared_pages) = (Some(Box::new(report)), Some(chains.shared_pages));
        let context = &self.chain.context;
        let fed = generation.generated.len() - 1;
        let tokens = context.pending.iter().chain(&generation.generated[..fed]);
        let said: Vec<LogEntry> = tokens.map(|&token| LogEntry::Token(token)).collect();
        let fork = m.snapshots.take_equal(self.id(), &[&context.log[..], &said].concat(), &flat);
        if let Some(fork) = fork {
            self.replace_context(&mut m.runner, fork);
        } else {
            (self.chain.context.pending, self.chain.context.flat) = (generation.generated.last().copied(), flat);
            self.chain.replay(&said);
        }
        m.snapshots.release_of(&mut m.runner, self.id(), Worth::Chain);
        self.chain.count_from(&m.runner, counted);
        self.chain.generation = Some(generation);
    }

    /// Releases all chains and their forks.
    pub fn release_chains(&mut self, m: &mut Loaded<B>) {
        m.snapshots.release_of(&mut m.runner, self.id(), Worth::Chain);
        let chains = self.chains.take().into_iter().flat_map(|chains| chains.chains);
        chains.filter_map(|one| one.chain).for_each(|chain| m.runner.release(chain.context.seq));
    }

    /// Records the pages that the chains hold, before some chains are released.
    pub fn note_pages(&mut self, m: &Loaded<B>) {
        let owner = self.id();
        if let Some(chains) = &mut self.chains {
            chains.note_pages(m, owner, &self.chain.context);
        }
    }

    /// Adds the numbers of the chains to the figures.
    pub fn add_chains(&self, m: &Loaded<B>, figures: &mut Figures) {
        let Some(chains) = &self.chains else { return };
        let runner = &m.runner;
        let geometry = runner.cache.geometry();
        let mut running = Vec::new();
        let mut total = (0, 0);
        for one in &chains.chains {
            let stats: Option<SeqStats> =
                one.chain.as_ref().map(|chain| runner.cache.stats(runner.backend(), chain.context.seq));
            let counted = match (&one.chain, &stats, &one.ended) {
                (Some(chain), Some(stats), _) => chain.counted(stats),
                (_, _, Some(ended)) => ended.counted,
                _ => (0, 0),
            };
            total = (total.0 + counted.0, total.1 + counted.1);
            figures.chains.push(ChainFigures {
                state: match &one.chain {
                    Some(chain) if chain.stage() == Stage::Decode => ChainState::Running,
                    Some(_) => ChainState::Waiting,
                    None => ChainState::Ended,
                },
                tokens: one.generated(),
                live_slots: stats.as_ref().map_or(0, |stats| stats.live_slots),
                reads: Figures::per_lane(geometry, counted.0),
                dense_reads: dense_reads(geometry, chains.prompt_tokens, one.generated()),
            });
            running.extend(stats);
        }
        figures.counted = total;
        let has_snapshot = m.snapshots.of(self.id()).any(|one| one.worth > Worth::Chain);
        figures.show_mean(&running, if has_snapshot { chains.kept_pages } else { 0 });
    }
}
