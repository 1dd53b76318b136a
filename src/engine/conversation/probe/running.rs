//! A probe that runs.

use super::work::ProbeWork;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::engine::chain::{self, Chain, Pushed};
use crate::engine::conversation::Halt;
use crate::engine::loaded::Loaded;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Stage;
use crate::engine::think::Said;
use crate::protocol::{Event, EventSender, Phase};

/// A probe that runs.
pub(in crate::engine) struct Running<B: Backend> {
    pub(in crate::engine::conversation) events: EventSender,
    pub cancelled: bool,
    pub(in crate::engine::conversation) chain: Chain,
    pub(in crate::engine::conversation) work: Box<dyn ProbeWork<B>>,
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
    pub(in crate::engine::conversation) fn step(
        &mut self,
        m: &mut Loaded<B>,
        size: usize,
    ) -> Result<Option<usize>, Halt> {
        let Self { chain, work, events, .. } = self;
        match chain.stage() {
            Stage::Prefill => {
                let n = chain.feed(&mut m.runner, size)?;
                m.runner.check_finite()?;
                work.fed(&mut m.runner, &chain.context, n)?;
                Ok(Some(n))
            }
            Stage::Decode => {
                chain.choose_if_due(&mut m.runner);
                // Without drafts, so that each chain has one token.
                for sampled in chain::decode(&mut m.runner, &[&mut *chain])?.into_iter().flatten() {
                    chain.accept(&mut m.runner);
                    let Pushed { said, .. } = chain.push(sampled?, 0, &mut m.runner, &m.vocabulary)?;
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
