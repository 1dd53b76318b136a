//! Probes: work beside a conversation's answers, on a sequence of its own, that does not change the
//! conversation.
//!
//! A probe is a chain, and a [`ProbeWork`] that receives the tokens which the chain feeds and
//! samples. Its steps run between the steps of the scheduler. A probe is the first to release its
//! memory, and a cancel drops it. The twin, whose steps follow the answer's, lives beside the
//! probes.

mod aside;
mod compare;
mod logprobs;
mod recall;
pub(super) mod running;
mod trial;
pub(super) mod twin;
mod work;

use super::{Base, Conversation, Halt};
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::loaded::Loaded;
use crate::engine::report::Figures;
use crate::engine::runner::Runner;
use crate::protocol::{Command, Event, EventSender, Finding, Probe};
use running::Running;
use work::Owner;

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

    /// Drops all probes.
    pub fn release_probes(&mut self, runner: &mut Runner<B>) {
        self.probes.drain(..).for_each(|probe| runner.release(probe.chain.context.seq));
    }
}

impl<B: Backend> Owner<B> for Conversation<B> {
    fn leave(&mut self, m: &mut Loaded<B>, chain: Chain) {
        m.runner.release(chain.context.seq);
        m.trim();
        self.publish(m);
    }

    fn figures(&self, m: &Loaded<B>) -> Figures {
        Self::figures(self, m)
    }

    fn evicts(&self) -> bool {
        self.eviction
    }

    fn receive(&mut self, m: &mut Loaded<B>, events: EventSender, command: Command) {
        Self::receive(self, m, events, command);
    }
}
