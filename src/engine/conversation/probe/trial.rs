//! The trial of the dial: a prefill without eviction, whose decisions say what share of its tokens a model keeps at each setting.
//! It is done once for each model; a file holds the table.

use super::{Kind, Running};
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::conversation::{Conversation, Halt};
use crate::engine::dials::{TOO_SHORT, sample, table_of};
use crate::engine::loaded::Loaded;
use crate::protocol::{Command, Dial, Event, EventSender};

impl<B: Backend> Conversation<B> {
    /// Begins the trial that a request needs, which is served when that has ended.
    pub fn measure_first(&mut self, m: &mut Loaded<B>, events: &EventSender, to: Dial) {
        for probe in &mut self.probes {
            if let Kind::Trial(waiting) = &mut probe.kind {
                return waiting.push((events.clone(), to));
            }
        }
        events.event(Event::Info("measuring what each setting keeps (once per model)".into()));
        match m.with_sequence(|runner| Context::new(runner, false)) {
            Ok(context) => {
                let mut chain = Chain::idle(context);
                chain.prefill(sample(&m.runner, &m.vocabulary.tokenizer));
                let kind = Kind::Trial(vec![(events.clone(), to)]);
                self.probes.push(Running { events: events.clone(), cancelled: false, chain, kind });
            }
            Err(error) => events.refuse("forget", format!("it cannot be measured now: {error}")),
        }
    }

    /// Serves the requests that waited.
    pub fn end_trial(
        &mut self,
        m: &mut Loaded<B>,
        chain: Chain,
        waiting: Vec<(EventSender, Dial)>,
        halt: Option<Halt>,
    ) {
        let table = match halt {
            None => table_of(&m.runner, chain.context.seq).ok_or_else(|| TOO_SHORT.to_owned()),
            Some(halt) => Err(halt.without_answer("it cannot be measured now")),
        };
        self.leave(m, chain);
        let not_kept = table.map(|table| m.keep_table(table));
        for (events, to) in waiting {
            match &not_kept {
                Err(why) => events.refuse("forget", why.as_str()),
                Ok(notice) => {
                    notice.iter().for_each(|text| events.notice(text.clone()));
                    self.receive(m, events, Command::SetDial(to));
                }
            }
        }
    }
}
