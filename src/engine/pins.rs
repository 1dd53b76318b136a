//! Pins: messages whose tokens are never marked.

use super::context::Context;
use super::conversation::Conversation;
use super::loaded::Loaded;
use super::presence::lanes_with;
use super::reply::flat_of;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::{Event, EventSender, LogEntry, Pinned, Token, bytes, count};
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

/// Share of the slots at these positions, over all heads, that are still stored.
fn stored<B: Backend>(runner: &Runner<B>, seq: SeqId, positions: &Range<usize>) -> f64 {
    let lanes = lanes_with(runner, seq, positions.clone());
    let all = lanes.len() * runner.config().n_layers * runner.config().n_kv_heads;
    if all == 0 { 1.0 } else { lanes.iter().map(|&n| n as usize).sum::<usize>() as f64 / all as f64 }
}

/// Applies an entry that pins or takes a pin back to a checkpoint that holds the positions. One that cannot be changed is
/// released.
fn pinned<B: Backend>(runner: &mut Runner<B>, mut checkpoint: Context, entry: LogEntry) -> Option<Context> {
    let end = match entry {
        LogEntry::Pin { pin: [_, end] } => end as usize,
        LogEntry::Unpin { unpin: [start, _] } => start as usize + 1,
        _ => 0,
    };
    if checkpoint.len(runner) < end || checkpoint.apply(runner, entry).is_ok() {
        return Some(checkpoint);
    }
    runner.release(checkpoint.seq);
    None
}

impl Conversation {
    /// Pins a message by its text, or tells what that would cost.
    pub(super) fn pin<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, text: &str, ask: bool) {
        match self.try_pin(m, text, ask) {
            Ok(pinned) => {
                let done = pinned.done;
                events.event(Event::Pinned(Box::new(pinned)));
                if done {
                    self.tell_log(events);
                }
            }
            Err(why) => events.refuse("pin", why),
        }
    }

    /// Pins the tokens at these positions, or takes their pins back.
    pub(super) fn pin_tokens<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        tokens: Range<usize>,
        pin: bool,
    ) {
        let within = tokens.start.min(self.context().len(&m.runner))..tokens.end.min(self.context().len(&m.runner));
        let done = match (within.is_empty(), pin) {
            (true, _) => Err("these tokens are not in the cache".to_owned()),
            (_, true) => self.try_pin_at(m, "", within, false).map(|pinned| Event::Pinned(Box::new(pinned))),
            (_, false) => {
                self.try_unpin_at(m, within).map(|(tokens, dropped_slots)| Event::Unpinned { tokens, dropped_slots })
            }
        };
        match done {
            Ok(event) => {
                events.event(event);
                self.tell_log(events);
            }
            Err(why) => events.refuse(if pin { "pin" } else { "unpin" }, why),
        }
    }

    /// Takes back the pins of a message, or all.
    pub(super) fn unpin<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, text: Option<&str>) {
        match self.try_unpin(m, text) {
            Ok((tokens, dropped_slots)) => {
                events.event(Event::Unpinned { tokens, dropped_slots });
                self.tell_log(events);
            }
            Err(why) => events.refuse("unpin", why),
        }
    }

    fn try_unpin<B: Backend>(&mut self, m: &mut Loaded<B>, text: Option<&str>) -> Result<(usize, u64), String> {
        let context = self.context();
        let pins = m.runner.cache.pins(context.seq);
        let positions = match (text, pins) {
            (_, []) => return Err("nothing is pinned".into()),
            (None, [first, ..]) => first.start..pins.last().map_or(first.end, |last| last.end),
            (Some(text), _) => {
                let told = context.tokens().chain(context.pending);
                positions(&m.vocabulary.tokenizer, told, text, Occurrence::Last)
                    .filter(|found| pins.iter().any(|pin| pin.start < found.end && found.start < pin.end))
                    .ok_or("that message is not pinned; /unpin all takes every pin back")?
            }
        };
        self.try_unpin_at(m, positions)
    }

    fn try_unpin_at<B: Backend>(&mut self, m: &mut Loaded<B>, positions: Range<usize>) -> Result<(usize, u64), String> {
        if self.job.is_some() {
            return Err("no pin is taken back while the model works; try again after the answer".into());
        }
        let unpin = [positions.start as u32, positions.end as u32];
        let changed = self.chain.context.unpin(&mut m.runner, unpin);
        let changed = changed.map_err(|error| format!("the pin stays: {error}"))?;
        self.follow_pins(m, LogEntry::Unpin { unpin });
        Ok(changed)
    }

    /// Why nothing can be pinned, if so.
    fn pin_refusal<B: Backend>(&self, m: &Loaded<B>) -> Option<String> {
        if !m.has_policy() {
            return Some("this cache keeps everything: there is nothing to pin".into());
        }
        let policy = m.runner.cache.geometry().policy;
        if policy.dropping().is_none() {
            let how = if policy.merging().is_some() { "merges tokens" } else { "drops tokens by their attention" };
            return Some(format!("policy {} {how}: it has no pins", policy.name()));
        }
        let working = "nothing is pinned while the model works; try again after the answer";
        self.job.is_some().then(|| working.to_owned())
    }

    fn try_pin<B: Backend>(&mut self, m: &mut Loaded<B>, text: &str, ask: bool) -> Result<Pinned, String> {
        self.pin_refusal(m).map_or(Ok(()), Err)?;
        let context = self.context();
        let told = context.tokens().chain(context.pending);
        let positions = positions(&m.vocabulary.tokenizer, told, text, Occurrence::Last)
            .ok_or("that message is not in the cache yet; it can be pinned after the next answer")?;
        self.try_pin_at(m, text, positions, ask)
    }

    /// Pins the text at these positions, or tells what that would cost.
    fn try_pin_at<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        text: &str,
        positions: Range<usize>,
        ask: bool,
    ) -> Result<Pinned, String> {
        self.pin_refusal(m).map_or(Ok(()), Err)?;
        let context = &self.chain.context;
        let is_pinned = |pin: &Range<usize>| pin.start <= positions.start && positions.end <= pin.end;
        if m.runner.cache.pins(context.seq).iter().any(is_pinned) {
            return Err("that message is pinned already; /unpin takes the pin back".into());
        }
        let g = m.runner.cache.geometry();
        let token_bytes = (g.n_layers * g.n_kv_heads * g.slot_bytes()) as u64;
        let before: usize = m.runner.cache.pins(context.seq).iter().map(ExactSizeIterator::len).sum();
        let needed = (before + positions.len()) as u64 * token_bytes;
        if let Some(limit) = m.runner.cache.limit_bytes().filter(|limit| needed > *limit) {
            let n = count(before + positions.len());
            return Err(format!("{n} pinned tokens need {}, and the cache has {}", bytes(needed), bytes(limit)));
        }
        let pinned = Pinned {
            text: text.to_owned(),
            tokens: positions.len(),
            bytes: positions.len() as u64 * token_bytes,
            stored: stored(&m.runner, context.seq, &positions),
            done: !ask,
        };
        if !ask {
            self.pin_at(m, positions).map_err(|error| format!("nothing is pinned: {error}"))?;
        }
        Ok(pinned)
    }

    /// Pins positions here and in the checkpoints that hold them.
    fn pin_at<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        positions: Range<usize>,
    ) -> Result<(), crate::cache::CacheError> {
        let pin = [positions.start as u32, positions.end as u32];
        self.chain.context.pin(&mut m.runner, pin)?;
        self.follow_pins(m, LogEntry::Pin { pin });
        Ok(())
    }

    /// Applies a change of the pins to the checkpoints too.
    fn follow_pins<B: Backend>(&mut self, m: &mut Loaded<B>, entry: LogEntry) {
        let runner = &mut m.runner;
        for checkpoint in [&mut self.before, &mut self.prompt_end] {
            *checkpoint = checkpoint.take().and_then(|context| pinned(runner, context, entry));
        }
        let older = std::mem::take(&mut self.older);
        self.older = older.into_iter().filter_map(|context| pinned(runner, context, entry)).collect();
        self.publish(m);
    }

    /// Pins a text of a prompt whose tokens `todo` are about to be fed, unless a message was pinned before.
    pub(super) fn pin_prompt<B: Backend>(&mut self, m: &mut Loaded<B>, todo: &[Token], text: &str) {
        let context = &mut self.chain.context;
        if m.runner.cache.geometry().policy.dropping().is_none() || context.pins().next().is_some() {
            return;
        }
        let told = context.tokens().chain(todo.iter().copied());
        if let Some(positions) = positions(&m.vocabulary.tokenizer, told, text, Occurrence::First) {
            // Tokens that were fed before are in shared pages: without room for copies they stay as they are.
            let _ = context.pin(&mut m.runner, [positions.start as u32, positions.end as u32]);
        }
    }
}
