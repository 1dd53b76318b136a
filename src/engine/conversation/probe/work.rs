//! Work of a probe on its chain: one implementation in each of the files beside this one.

use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::conversation::halt::Halt;
use crate::engine::loaded::Loaded;
use crate::engine::report::Figures;
use crate::engine::runner::Runner;
use crate::protocol::{Command, Dial, Event, EventSender, Finding, Phase, TextKind};

/// The conversation that a probe works for.
pub(in crate::engine::conversation) trait Owner<B: Backend> {
    /// Releases what the probe worked on.
    fn leave(&mut self, m: &mut Loaded<B>, chain: Chain);

    fn figures(&self, m: &Loaded<B>) -> Figures;

    /// Whether the user wants tokens evicted.
    fn evicts(&self) -> bool;

    /// Serves a request that waited for the probe.
    fn receive(&mut self, m: &mut Loaded<B>, events: EventSender, command: Command);

    /// Reports what was found, once the memory of its chain is free.
    fn end_with(&mut self, finding: Finding, m: &mut Loaded<B>, events: &EventSender, chain: Chain) {
        self.leave(m, chain);
        events.event(Event::Found(finding));
    }
}

pub(in crate::engine::conversation) trait ProbeWork<B: Backend> {
    /// Takes up the `n` tokens that a step of prefill has just fed.
    fn fed(&mut self, _: &mut Runner<B>, _: &Context, _n: usize) -> Result<(), Halt> {
        Ok(())
    }

    /// Report of text that the chain has sampled.
    fn said(&self, _: TextKind, _: String) -> Option<Finding> {
        None
    }

    /// Gives a chain without work its next one. Returns false if there is none.
    fn go_on(&mut self, _: &mut Loaded<B>, _: &mut Chain) -> Result<bool, Halt> {
        Ok(false)
    }

    /// Releases the chain and reports what was found, or why nothing was.
    fn end(
        self: Box<Self>,
        of: &mut dyn Owner<B>,
        m: &mut Loaded<B>,
        events: &EventSender,
        chain: Chain,
        halt: Option<Halt>,
    );

    /// Activity of the conversation while it runs. `done`: tokens in its sequence.
    fn phase(&self, chain: &Chain, done: usize) -> Option<Phase> {
        Some(Phase::Prefill { done, total: done + chain.tokens_left() })
    }

    /// Whether later requests wait for it.
    fn is_queued(&self) -> bool {
        true
    }

    /// Whether it waits for the tokens of its prompt.
    fn is_encoding(&self) -> bool {
        false
    }

    /// Whether its sequence drops nothing.
    fn is_dense(&self) -> bool {
        false
    }

    /// Takes a waiting request for the same measurement. Returns false if it is for another one.
    fn serves(&mut self, _: &EventSender, _: Dial) -> bool {
        false
    }
}

/// A chain and the work on it.
pub(super) type Begun<B> = (Chain, Box<dyn ProbeWork<B>>);
