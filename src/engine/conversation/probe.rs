//! Probes: work beside a conversation's answers, on a sequence of its own, that does not change the
//! conversation.
//!
//! A probe is a chain, and a [`ProbeWork`] that receives the tokens which the chain feeds and
//! samples. Its steps run between the steps of the scheduler. A probe is the first to release its
//! memory, and a cancel drops it. The twin, whose steps follow the answer's, lives beside the
//! probes.

mod aside;
mod logprobs;
mod recall;
mod trial;
mod twin;
mod work;

pub(super) use twin::Twin;

use super::{Base, Conversation, Halt};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::engine::chain::{self, Chain, Pushed};
use crate::engine::context::Context;
use crate::engine::loaded::Loaded;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Stage;
use crate::engine::think::Said;
use crate::protocol::{Event, EventSender, Finding, Phase, Probe};
use work::ProbeWork;

/// A probe that runs.
pub(in crate::engine) struct Running<B: Backend> {
    events: EventSender,
    pub cancelled: bool,
    chain: Chain,
    work: Box<dyn ProbeWork<B>>,
}

impl<B: Backend> Running<B> {
    /// Whether later requests wait for it.
    pub fn is_queued(&self) -> bool {
        self.work.is_queued()
    }

    /// Whether it waits for the tokens of its prompt.
    pub fn is_encoding(&self) -> bool {
        self.work.is_encoding()
    }

    /// The sequence, if it drops nothing: a twin of the conversation.
    pub fn dense(&self) -> Option<SeqId> {
        self.work.is_dense().then_some(self.chain.context.seq)
    }

    /// Activity of the conversation while it runs.
    pub fn phase(&self, runner: &Runner<B>) -> Option<Phase> {
        self.work.phase(&self.chain, self.chain.context.len(runner))
    }

    /// Runs a step of at most `size` tokens. Returns the number of tokens fed; `None` after the
    /// last step.
    fn step(&mut self, m: &mut Loaded<B>, size: usize) -> Result<Option<usize>, Halt> {
        let Self { chain, work, events, .. } = self;
        match chain.stage() {
            Stage::Prefill => {
                let n = chain.feed(&mut m.runner, size)?;
                m.runner.check_finite()?;
                work.fed(&mut m.runner, &chain.context, n)?;
                Ok(Some(n))
            }
            Stage::Decode => {
                // Without drafts, so that each chain has one token.
                for sampled in chain::decode(&mut m.runner, &[&mut *chain])?.into_iter().flatten() {
                    chain.accept(&mut m.runner);
                    let Pushed { said, .. } = chain.push(sampled?, &m.runner, &m.vocabulary);
                    for one in said {
                        let found = if let Said::Text(kind, text) = one { work.said(kind, text) } else { None };
                        found.into_iter().for_each(|found| events.event(Event::Found(found)));
                    }
                }
                Ok(Some(1))
            }
            Stage::Done => Ok(work.go_on(m, chain)?.then_some(0)),
        }
    }
}

impl<B: Backend> Conversation<B> {
    /// Begins what was asked, or says why not. Then nothing has changed.
    pub fn begin_probe(&mut self, m: &mut Loaded<B>, events: EventSender, probe: Probe) {
        let begun = match probe {
            Probe::Recall(request) => self.begin_recall(m, *request).map_err(|why| Finding::Recalled(Err(why))),
            Probe::Aside { ask, dense } => self.begin_aside(m, *ask, dense),
            Probe::Logprobs(answer) => self.begin_logprobs(m, answer).map_err(|why| Finding::Logprobs(Err(why))),
        };
        match begun {
            Ok((chain, work)) => self.probes.push(Running { events, cancelled: false, chain, work }),
            Err(finding) => events.event(Event::Found(finding)),
        }
    }

    /// A chain on a fork of `base`.
    fn fork_for_probe(&mut self, m: &mut Loaded<B>, base: Base, eviction: bool) -> Result<Chain, CacheError> {
        // Its sequence may be needed; the next answer makes it again.
        self.release_twin(&mut m.runner);
        let Loaded { runner, snapshots, .. } = m;
        let mut fork = match base {
            Base::Current => self.chain.context.fork(runner),
            Base::Kept(i) => snapshots.get(i).context.fork(runner),
            Base::Nothing => Context::new(runner, eviction),
        }?;
        fork.set_dial(runner, self.dial);
        if let Err(error) = fork.set_eviction(runner, eviction) {
            runner.release(fork.seq);
            return Err(error);
        }
        Ok(Chain::idle(fork))
    }

    /// Runs a step of each probe, of at most `size` tokens. Returns the maximum number of tokens
    /// that one has fed.
    pub fn step_probes(&mut self, m: &mut Loaded<B>, size: usize) -> usize {
        let mut most = 0;
        for mut probe in std::mem::take(&mut self.probes) {
            let step = if probe.cancelled { Err(Halt::Cancelled) } else { probe.step(m, size) };
            match step {
                Ok(Some(n)) => {
                    most = most.max(n);
                    self.decode_tok_s = probe.chain.decode_tok_s().or(self.decode_tok_s);
                    self.probes.push(probe);
                }
                Ok(None) => self.end_probe(m, probe, None),
                Err(halt) => self.end_probe(m, probe, Some(halt)),
            }
        }
        most
    }

    /// Ends a probe, whose memory is needed. Returns false if none runs.
    pub fn give_up_probe(&mut self, m: &mut Loaded<B>) -> bool {
        let Some(probe) = self.probes.pop() else { return false };
        self.end_probe(m, probe, Some(Halt::CacheFull("the conversation needs the memory".into())));
        true
    }

    fn end_probe(&mut self, m: &mut Loaded<B>, probe: Running<B>, halt: Option<Halt>) {
        let Running { events, chain, work, .. } = probe;
        work.end(self, m, &events, chain, halt);
        self.serve_next(m);
    }

    /// Reports what was found, once the memory of its chain is free.
    fn end_with(&mut self, finding: Finding, m: &mut Loaded<B>, events: &EventSender, chain: Chain) {
        self.leave(m, chain);
        events.event(Event::Found(finding));
    }

    /// Drops all probes.
    pub fn release_probes(&mut self, runner: &mut Runner<B>) {
        self.probes.drain(..).for_each(|probe| runner.release(probe.chain.context.seq));
    }

    /// Releases what a probe worked on.
    fn leave(&mut self, m: &mut Loaded<B>, chain: Chain) {
        m.runner.release(chain.context.seq);
        m.trim();
        self.publish(m);
    }
}
