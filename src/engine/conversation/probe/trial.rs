//! The trial of the dial: a prefill without eviction, whose decisions show what share of its tokens
//! a model keeps at each setting. It runs once for each model; a file stores the table.

use super::Running;
use super::work::{Owner, ProbeWork};
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::conversation::halt::Halt;
use crate::engine::conversation::state::Conversation;
use crate::engine::dials::{TOO_SHORT, sample, table_of};
use crate::engine::loaded::Loaded;
use crate::protocol::{Command, Dial, Event, EventSender, Phase};

/// A trial that runs, for these requests.
struct Trial(Vec<(EventSender, Dial)>);

impl<B: Backend> ProbeWork<B> for Trial {
    /// Serves the requests that waited.
    fn end(
        self: Box<Self>,
        of: &mut dyn Owner<B>,
        m: &mut Loaded<B>,
        _: &EventSender,
        chain: Chain,
        halt: Option<Halt>,
    ) {
        let table = match halt {
            None => table_of(&m.runner, chain.context.seq).ok_or_else(|| TOO_SHORT.to_owned()),
            Some(halt) => Err(halt.without_answer("it cannot be measured now")),
        };
        of.leave(m, chain);
        let not_kept = table.map(|table| m.keep_table(table));
        for (events, to) in self.0 {
            match &not_kept {
                Err(why) => events.refuse("forget", why.as_str()),
                Ok(notice) => {
                    notice.iter().for_each(|text| events.notice(text.clone()));
                    of.receive(m, events, Command::SetDial(to));
                }
            }
        }
    }

    fn phase(&self, _: &Chain, _: usize) -> Option<Phase> {
        None
    }

    fn is_queued(&self) -> bool {
        false
    }

    fn serves(&mut self, events: &EventSender, to: Dial) -> bool {
        self.0.push((events.clone(), to));
        true
    }
}

impl<B: Backend> Conversation<B> {
    /// Begins the trial that a request needs, which is served when that has ended.
    pub fn measure_first(&mut self, m: &mut Loaded<B>, events: &EventSender, to: Dial) {
        if self.probes.iter_mut().any(|probe| probe.work.serves(events, to)) {
            return;
        }
        events.event(Event::Info("measuring what each setting keeps (once per model)".into()));
        match m.with_sequence(|runner| Context::new(runner, false)) {
            Ok(context) => {
                let mut chain = Chain::idle(context);
                chain.prefill(sample(&m.runner, &m.vocabulary.tokenizer));
                let work = Box::new(Trial(vec![(events.clone(), to)]));
                self.probes.push(Running { events: events.clone(), cancelled: false, chain, work });
            }
            Err(error) => events.refuse("forget", format!("it cannot be measured now: {error}")),
        }
    }
}
