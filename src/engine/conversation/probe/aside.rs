//! Answers that are not part of the conversation: a summary, and the last question answered without eviction.

use super::Kind;
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::conversation::asked::Asked;
use crate::engine::conversation::{Base, Conversation, Halt};
use crate::engine::loaded::Loaded;
use crate::engine::think::Said;
use crate::protocol::{Ask, Event, EventSender, Finding, Token};

/// Gives the chain its work once the prompt is encoded. Returns the number of tokens fed, which is 0.
pub(super) fn begin<B: Backend>(m: &Loaded<B>, chain: &mut Chain, asked: &mut Asked) -> Result<usize, Halt> {
    if let Some(encoded) = asked.encoded()? {
        let mut todo: Vec<Token> = chain.context.pending.into_iter().chain(encoded).collect();
        let last = asked.measure(&m.runner, chain.context.len(&m.runner), &mut todo)?;
        asked.begin(m, chain, todo, last);
    }
    Ok(0)
}

impl<B: Backend> Conversation<B> {
    pub(super) fn begin_aside(&mut self, m: &mut Loaded<B>, ask: Ask, dense: bool) -> Result<(Chain, Kind), Finding> {
        let mut asked = Box::new(Asked::new(ask));
        // A cache that drops nothing has to be filled from the beginning.
        let base = if dense { Base::Nothing } else { self.base_of(m, &asked.flat) };
        let fork = asked.check_length(m).and_then(|()| Ok(self.fork_for_probe(m, base, self.eviction && !dense)?));
        match fork {
            Ok(chain) => {
                asked.encode(m, chain.context.flat.len(), &self.replies);
                Ok((chain, Kind::Aside { asked, dense }))
            }
            Err(halt) => {
                let report = Box::new(asked.report(self.eviction, &self.figures(m), Some(halt)));
                Err(Finding::Said { dense, report })
            }
        }
    }

    pub fn end_aside(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        mut chain: Chain,
        mut asked: Asked,
        dense: bool,
        halt: Option<Halt>,
    ) {
        for said in chain.finish_text() {
            if let Said::Text(kind, text) = said {
                events.event(Event::Found(Finding::Text { dense, kind, text }));
            }
        }
        asked.generation = chain.stop();
        let counted = chain.counted(&m.runner.cache.stats(m.runner.backend(), chain.context.seq));
        self.leave(m, chain);
        let mut figures = self.figures(m);
        figures.counted = counted;
        let report = Box::new(asked.report(self.eviction, &figures, halt));
        events.event(Event::Found(Finding::Said { dense, report }));
    }
}
