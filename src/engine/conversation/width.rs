//! Several chains that answer one question: how many fit, their steps, and the vote.

use super::super::chain::{Chain, Pushed};
use super::super::context::Context;
use super::super::loaded::Loaded;
use super::super::report::Figures;
use super::super::runner::NonFinite;
use super::super::scheduler::Stage;
use super::super::snapshots::Worth;
use super::chains::{Chains, Ended, OneOfMany};
use super::halt::Halt;
use super::job::{Job, Work};
use super::said;
use super::state::Conversation;
use super::turn::Turn;
use crate::backend::{Backend, KvGeometry};
use crate::cache::{CacheError, SeqStats};
use crate::protocol::{
    ChainEvent, ChainFigures, ChainState, ChainsReport, ChainsRequest, Event, EventSender, LogEntry, MAX_AUTO_WIDTH,
    MAX_WIDTH, StopReason, TextKind, Token, WhenFull,
};
use crate::sampler::chain_seed;

/// Expected tokens of an answer, used when the engine chooses the number of chains.
const USUAL_ANSWER: usize = 2048;

/// Maximum rounds in which chains answer if they do not all fit in memory. More rounds take too
/// long.
const MAX_ROUNDS: usize = 4;

/// Temperature of the chains if the answer would otherwise be greedy.
const CHAINS_TEMPERATURE: f32 = 1.0;

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
        if ask.sampling.temperature <= 0.0 && !request.may_equal {
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
    pub fn chain_sampled(&mut self, m: &mut Loaded<B>, number: usize, token: Token, row: usize) {
        let (Some(chains), Some(Job { events, work: Work::Answer(turn), .. })) = (&mut self.chains, &self.job) else {
            return;
        };
        let Some(chain) = chains.chain_mut(number) else { return };
        let Pushed { said, repeats } = match chain.push(token, row, &mut m.runner, &m.vocabulary) {
            Ok(pushed) => pushed,
            Err(error) => return self.end_chain(m, number, error),
        };
        if repeats && !std::mem::replace(&mut chains.repeats, true) {
            events.event(Event::Repeats { turn: turn.id, chain: Some(number) });
        }
        said.iter().for_each(|one| chains.chains[number].push(one));
        let likely = chains.chain_mut(number).and_then(Chain::likely_mut);
        said::send(events, turn.id, Some(number), likely, said);
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
            let rest = chains.end(m, owner, number, why);
            if let Some(ended) = &mut chains.chains[number].ended {
                said::send(events, turn, Some(number), ended.generation.likely.as_mut(), rest);
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
