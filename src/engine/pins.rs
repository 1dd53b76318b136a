//! Pins: messages whose tokens are never marked.

use super::conversation::Conversation;
use super::loaded::Loaded;
use super::presence::{counted, evidence};
use super::reply::flat_of;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::{Command, Event, EventSender, Evidence, LogEntry, Pinned, Token, bytes, count};
use crate::tokenizer::Tokenizer;
use std::ops::Range;

/// Which occurrence of a text is meant.
enum Occurrence {
    First,
    Last,
}

/// Positions of the tokens that spell a text, in a sequence of these tokens.
fn positions(
    tokenizer: &Tokenizer,
    tokens: impl Iterator<Item = Token>,
    text: &str,
    which: Occurrence,
) -> Option<Range<usize>> {
    let text = text.trim();
    let (flat, ends) = flat_of(tokenizer, tokens);
    let found = match which {
        Occurrence::First => flat.find(text),
        Occurrence::Last => flat.rfind(text),
    };
    let from = found.filter(|_| !text.is_empty())?;
    let first = ends.partition_point(|&end| end <= from);
    let last = ends.partition_point(|&end| end < from + text.len());
    Some(first..(last + 1).min(ends.len()))
}

/// Shares of the slots at these positions, over all heads, that are still stored and that are in
/// far pages.
fn shares<B: Backend>(runner: &Runner<B>, seq: SeqId, positions: &Range<usize>) -> [f64; 2] {
    let tokens = evidence(runner, seq, positions.clone());
    let share = |of: fn(&Evidence) -> u32| {
        let lanes: u64 = tokens.iter().map(|token| u64::from(of(token))).sum();
        lanes as f64 / (tokens.len() * counted(runner)) as f64
    };
    match tokens.len() {
        0 => [1.0, 0.0],
        _ => [share(|token| token.stored), share(|token| token.read + token.unread)],
    }
}

impl<B: Backend> Conversation<B> {
    /// Serves a command that pins tokens, asks what that would cost, or takes pins back.
    pub fn change_pins(&mut self, m: &mut Loaded<B>, events: &EventSender, command: Command) {
        let (name, done) = match command {
            Command::Pin { text, ask } => {
                let found = self.pin_refusal(m).map_or_else(|| self.message(m, &text), Err);
                ("pin", found.and_then(|positions| self.try_pin(m, text, positions, ask)))
            }
            Command::Unpin(text) => {
                let found = self.pinned(m, text.as_deref());
                ("unpin", found.and_then(|positions| self.try_unpin(m, positions)))
            }
            Command::PinTokens { tokens, pin } => {
                let fed = self.chain.context.len(&m.runner);
                let positions = tokens.start.min(fed)..tokens.end.min(fed);
                let done = match (self.pin_refusal(m).filter(|_| pin), pin) {
                    _ if positions.is_empty() => Err("these tokens are not in the cache".to_owned()),
                    (Some(why), _) => Err(why),
                    (None, true) => self.try_pin(m, String::new(), positions, false),
                    (None, false) => self.try_unpin(m, positions),
                };
                (if pin { "pin" } else { "unpin" }, done)
            }
            _ => return,
        };
        match done {
            Ok(event) => {
                events.event(event);
                self.tell_log(events);
            }
            Err(why) => events.refuse(name, why),
        }
    }

    /// Positions of the last message with this text.
    fn message(&self, m: &Loaded<B>, text: &str) -> Result<Range<usize>, String> {
        let context = &self.chain.context;
        let told = context.tokens().chain(context.pending);
        positions(&m.vocabulary.tokenizer, told, text, Occurrence::Last)
            .ok_or_else(|| "that message is not in the cache yet; it can be pinned after the next answer".into())
    }

    /// Positions of the pinned message with this text, or from the first pin to the last.
    fn pinned(&self, m: &Loaded<B>, text: Option<&str>) -> Result<Range<usize>, String> {
        let pins = m.runner.cache.pins(self.chain.context.seq);
        let is_pinned = |found: &Range<usize>| pins.iter().any(|pin| pin.start < found.end && found.start < pin.end);
        match (text, pins) {
            (_, []) => Err("nothing is pinned".into()),
            (None, [first, ..]) => Ok(first.start..pins.last().map_or(first.end, |last| last.end)),
            (Some(text), _) => {
                let found = self.message(m, text).ok().filter(is_pinned);
                found.ok_or_else(|| "that message is not pinned; /unpin all takes every pin back".into())
            }
        }
    }

    fn try_unpin(&mut self, m: &mut Loaded<B>, positions: Range<usize>) -> Result<Event, String> {
        if self.job.is_some() {
            return Err("pins cannot be taken back while the model works; try again after the answer".into());
        }
        let unpin = [positions.start as u32, positions.end as u32];
        let changed = self.chain.context.apply(&mut m.runner, LogEntry::Unpin { unpin });
        let (tokens, dropped_slots) = changed.map_err(|error| format!("the pin stays: {error}"))?;
        self.follow_pins(m, LogEntry::Unpin { unpin });
        Ok(Event::Unpinned { tokens, dropped_slots })
    }

    /// Why nothing can be pinned, if so.
    fn pin_refusal(&self, m: &Loaded<B>) -> Option<String> {
        if !m.has_policy() {
            return Some("this cache keeps everything: there is nothing to pin".into());
        }
        let policy = m.runner.cache.geometry().policy;
        if policy.dropping().is_none() {
            let how = match policy.models_window() {
                Some(_) => "is the model's own attention",
                None if policy.merging().is_some() => "merges tokens",
                None => "drops tokens by their attention",
            };
            return Some(format!("policy {} {how}: it has no pins", policy.name()));
        }
        let working = "tokens cannot be pinned while the model works; try again after the answer";
        self.job.is_some().then(|| working.to_owned())
    }

    /// Pins the message at these positions here and in the snapshots that hold them, or reports
    /// what that would cost.
    fn try_pin(
        &mut self,
        m: &mut Loaded<B>,
        text: String,
        positions: Range<usize>,
        ask: bool,
    ) -> Result<Event, String> {
        let (g, pins) = (m.runner.cache.geometry(), m.runner.cache.pins(self.chain.context.seq));
        if pins.iter().any(|pin| pin.start <= positions.start && positions.end <= pin.end) {
            return Err("that message is pinned already; /unpin takes the pin back".into());
        }
        let deciding = g.deciding_lanes().next().map_or(0, |lane| lane.layer);
        let token_bytes = (counted(&m.runner) * g.of_layer(deciding).slot_bytes()) as u64;
        let n = pins.iter().map(ExactSizeIterator::len).sum::<usize>() + positions.len();
        let needed = n as u64 * token_bytes;
        if let Some(limit) = m.runner.cache.limit_bytes().filter(|limit| needed > *limit) {
            return Err(format!(
                "{} pinned tokens need {}, and the cache has {}",
                count(n),
                bytes(needed),
                bytes(limit)
            ));
        }
        let [stored, far] = shares(&m.runner, self.chain.context.seq, &positions);
        let pinned = Pinned {
            text,
            tokens: positions.len(),
            bytes: positions.len() as u64 * token_bytes,
            stored,
            far,
            done: !ask,
        };
        if !ask {
            let pin = [positions.start as u32, positions.end as u32];
            let done = self.chain.context.apply(&mut m.runner, LogEntry::Pin { pin });
            done.map_err(|error| format!("nothing is pinned: {error}"))?;
            self.follow_pins(m, LogEntry::Pin { pin });
        }
        Ok(Event::Pinned(Box::new(pinned)))
    }

    /// Applies a change of the pins to the snapshots too.
    fn follow_pins(&mut self, m: &mut Loaded<B>, entry: LogEntry) {
        m.snapshots.apply(&mut m.runner, self.id(), entry);
        self.publish(m);
    }

    /// Pins a text of a prompt whose tokens `todo` are about to be fed, unless a message was pinned
    /// before.
    pub fn pin_prompt(&mut self, m: &mut Loaded<B>, todo: &[Token], text: &str) {
        let context = &mut self.chain.context;
        if m.runner.cache.geometry().policy.dropping().is_none() || context.pins().next().is_some() {
            return;
        }
        let told = context.tokens().chain(todo.iter().copied());
        if let Some(positions) = positions(&m.vocabulary.tokenizer, told, text, Occurrence::First) {
            // Tokens fed earlier are in shared pages: without room for copies they stay unpinned.
            let pin = [positions.start as u32, positions.end as u32];
            let _ = context.apply(&mut m.runner, LogEntry::Pin { pin });
        }
    }
}
