//! Answers that are not part of the conversation: a summary, and the last question answered without
//! eviction.

use super::work::{Begun, Owner, ProbeWork};
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::conversation::asked::Asked;
use crate::engine::conversation::halt::Halt;
use crate::engine::conversation::state::Conversation;
use crate::engine::conversation::turn::Base;
use crate::engine::loaded::Loaded;
use crate::engine::think::Said;
use crate::protocol::{Ask, Event, EventSender, Finding, Phase, TextKind, Token};

/// An answer aside that is given.
struct Aside {
    asked: Asked,
    /// Whether from a cache that drops nothing.
    dense: bool,
}

impl<B: Backend> ProbeWork<B> for Aside {
    fn said(&self, kind: TextKind, text: String) -> Option<Finding> {
        Some(Finding::Text { dense: self.dense, kind, text })
    }

    /// Gives the chain its work once the prompt is encoded.
    fn go_on(&mut self, m: &mut Loaded<B>, chain: &mut Chain) -> Result<bool, Halt> {
        let asked = &mut self.asked;
        if !asked.is_encoding() {
            return Ok(false);
        }
        if let Some(encoded) = asked.encoded()? {
            let mut todo: Vec<Token> = chain.context.pending.into_iter().chain(encoded).collect();
            let last = asked.measure(&m.runner, chain.context.len(&m.runner), &mut todo)?;
            asked.begin(m, chain, todo, last);
        }
        Ok(true)
    }

    fn end(
        self: Box<Self>,
        of: &mut dyn Owner<B>,
        m: &mut Loaded<B>,
        events: &EventSender,
        mut chain: Chain,
        halt: Option<Halt>,
    ) {
        let Self { mut asked, dense } = *self;
        for said in chain.finish_text() {
            if let Said::Text(kind, text) = said {
                events.event(Event::Found(Finding::Text { dense, kind, text }));
            }
        }
        asked.generation = chain.stop();
        let counted = chain.counted(&m.runner.cache.stats(m.runner.backend(), chain.context.seq));
        of.leave(m, chain);
        let mut figures = of.figures(m);
        figures.counted = counted;
        let report = Box::new(asked.report(of.evicts(), &figures, halt));
        events.event(Event::Found(Finding::Said { dense, report }));
    }

    fn phase(&self, chain: &Chain, _: usize) -> Option<Phase> {
        Some(self.asked.phase(chain))
    }

    fn is_encoding(&self) -> bool {
        self.asked.is_encoding()
    }

    fn is_dense(&self) -> bool {
        self.dense
    }
}

impl<B: Backend> Conversation<B> {
    pub(super) fn begin_aside(&mut self, m: &mut Loaded<B>, ask: Ask, dense: bool) -> Result<Begun<B>, Finding> {
        let mut asked = Asked::new(ask);
        // A cache that drops nothing has to be filled from the beginning.
        let base = if dense { Base::Nothing } else { self.base_of(m, &asked.flat) };
        let fork = asked.check_length(m).and_then(|()| Ok(self.fork_for_probe(m, base, self.eviction && !dense)?));
        match fork {
            Ok(chain) => {
                asked.encode(m, chain.context.flat.len(), &self.replies);
                Ok((chain, Box::new(Aside { asked, dense })))
            }
            Err(halt) => {
                let report = Box::new(asked.report(self.eviction, &self.figures(m), Some(halt)));
                Err(Finding::Said { dense, report })
            }
        }
    }
}
