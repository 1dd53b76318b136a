//! Probes: what works beside a conversation's answers, on a sequence of its own, and changes nothing of it.
//!
//! A probe is a chain and what its file makes of the tokens that the chain feeds and samples. Its steps run between those of the
//! scheduler. It is the first to give its memory back, and a cancel drops it. The twin, whose steps follow the answer's, lives
//! beside them.

mod aside;
mod logprobs;
mod recall;
mod trial;
mod twin;

pub(super) use twin::Twin;

use super::asked::Asked;
use super::{Base, Conversation, Halt};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::engine::chain::{self, Chain, Pushed};
use crate::engine::context::Context;
use crate::engine::loaded::Loaded;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Stage;
use crate::engine::think::Said;
use crate::protocol::{Dial, Event, EventSender, Finding, Phase, Probe};
use logprobs::Logprobs;
use recall::Recall;

/// A probe that runs.
pub(in crate::engine) struct Running {
    events: EventSender,
    pub cancelled: bool,
    chain: Chain,
    kind: Kind,
}

enum Kind {
    Recall(Box<Recall>),
    Logprobs(Logprobs),
    /// `dense`: from a cache that drops nothing.
    Aside {
        asked: Box<Asked>,
        dense: bool,
    },
    /// Measures the dial for these requests.
    Trial(Vec<(EventSender, Dial)>),
}

impl Running {
    /// Whether later requests wait for it.
    pub fn is_queued(&self) -> bool {
        !matches!(self.kind, Kind::Trial(_))
    }

    /// Whether it waits for the tokens of its prompt.
    pub fn is_encoding(&self) -> bool {
        matches!(&self.kind, Kind::Aside { asked, .. } if asked.is_encoding())
    }

    /// The sequence, if it drops nothing: a twin of the conversation.
    pub fn dense(&self) -> Option<SeqId> {
        matches!(self.kind, Kind::Aside { dense: true, .. }).then_some(self.chain.context.seq)
    }

    /// Activity of the conversation while it runs.
    pub fn phase<B: Backend>(&self, runner: &Runner<B>) -> Option<Phase> {
        let done = self.chain.context.len(runner);
        match &self.kind {
            Kind::Recall(_) | Kind::Logprobs(_) => {
                Some(Phase::Prefill { done, total: done + self.chain.tokens_left() })
            }
            Kind::Aside { asked, .. } => Some(asked.phase(&self.chain)),
            Kind::Trial(_) => None,
        }
    }

    /// Runs a step of at most `size` tokens. Returns the number of tokens fed; `None` after the last step.
    fn step<B: Backend>(&mut self, m: &mut Loaded<B>, size: usize) -> Result<Option<usize>, Halt> {
        let Self { chain, kind, events, .. } = self;
        match (chain.stage(), kind) {
            (Stage::Prefill, kind) => {
                let n = chain.feed(&mut m.runner, size)?;
                m.runner.check_finite()?;
                match kind {
                    Kind::Recall(recall) => recall.score(&mut m.runner, &chain.context, n)?,
                    Kind::Logprobs(logprobs) => logprobs.score(&mut m.runner, &chain.context, n)?,
                    Kind::Aside { .. } | Kind::Trial(_) => {}
                }
                Ok(Some(n))
            }
            (Stage::Decode, kind) => {
                // Without drafts, so that each chain has one token.
                for sampled in chain::decode(&mut m.runner, &[&mut *chain])?.into_iter().flatten() {
                    chain.accept(&mut m.runner);
                    let Pushed { said, .. } = chain.push(sampled?, &m.runner, &m.vocabulary);
                    for one in said {
                        if let (Kind::Aside { dense, .. }, Said::Text(of, text)) = (&*kind, one) {
                            events.event(Event::Found(Finding::Text { dense: *dense, kind: of, text }));
                        }
                    }
                }
                Ok(Some(1))
            }
            (Stage::Done, Kind::Aside { asked, .. }) if asked.is_encoding() => aside::begin(m, chain, asked).map(Some),
            (Stage::Done, Kind::Recall(recall)) => Ok(recall.ask_alone(m, chain)?.then_some(0)),
            (Stage::Done, _) => Ok(None),
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
            Ok((chain, kind)) => self.probes.push(Running { events, cancelled: false, chain, kind }),
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

    /// Runs a step of each probe, of at most `size` tokens. Returns the most tokens that one has fed.
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

    fn end_probe(&mut self, m: &mut Loaded<B>, probe: Running, halt: Option<Halt>) {
        let Running { events, chain, kind, .. } = probe;
        match kind {
            Kind::Recall(recall) => self.end_with(Finding::Recalled(recall.result(m, halt)), m, &events, chain),
            Kind::Logprobs(logprobs) => self.end_with(Finding::Logprobs(logprobs.result(m, halt)), m, &events, chain),
            Kind::Aside { asked, dense } => self.end_aside(m, &events, chain, *asked, dense, halt),
            Kind::Trial(waiting) => self.end_trial(m, chain, waiting, halt),
        }
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
