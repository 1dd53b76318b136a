//! Pins: messages whose tokens are never marked.

use super::context::Context;
use super::conversation::Conversation;
use super::loaded::Loaded;
use super::presence::lanes_with;
use super::reply::flat_of;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::{Event, EventSender, Pinned, Token, bytes, count};
use crate::tokenizer::Tokenizer;
use std::ops::Range;

/// Positions of the tokens that spell a text, of its last occurrence, in a sequence of these tokens.
fn positions(tokenizer: &Tokenizer, tokens: impl Iterator<Item = Token>, text: &str) -> Option<Range<usize>> {
    let text = text.trim();
    let (flat, ends) = flat_of(tokenizer, tokens);
    let from = flat.rfind(text).filter(|_| !text.is_empty())?;
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

/// Pins positions in a checkpoint, if it holds them. One that cannot be changed is released.
fn pinned<B: Backend>(runner: &mut Runner<B>, mut checkpoint: Context, pin: [u32; 2]) -> Option<Context> {
    if checkpoint.len(runner) < pin[1] as usize || checkpoint.pin(runner, pin).is_ok() {
        return Some(checkpoint);
    }
    runner.release(checkpoint.seq);
    None
}

impl Conversation {
    /// Pins a message by its text, or tells what that would cost.
    pub(super) fn pin<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, text: &str, ask: bool) {
        match self.try_pin(m, text, ask) {
            Ok(pinned) => events.event(Event::Pinned(Box::new(pinned))),
            Err(why) => events.notice(why),
        }
    }

    fn try_pin<B: Backend>(&mut self, m: &mut Loaded<B>, text: &str, ask: bool) -> Result<Pinned, String> {
        if !m.has_policy() {
            return Err("this cache keeps everything: there is nothing to pin".into());
        }
        if self.job.is_some() {
            return Err("nothing is pinned while the model works; try again after the answer".into());
        }
        let context = &self.chain.context;
        let told = context.tokens().chain(context.pending);
        let positions = positions(&m.vocabulary.tokenizer, told, text)
            .ok_or("that message is not in the cache yet; it can be pinned after the next answer")?;
        let is_pinned = |pin: &Range<usize>| pin.start <= positions.start && positions.end <= pin.end;
        if m.runner.cache.pins(context.seq).iter().any(is_pinned) {
            return Err("that message is pinned already".into());
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
        let (runner, pin) = (&mut m.runner, [positions.start as u32, positions.end as u32]);
        self.chain.context.pin(runner, pin)?;
        for checkpoint in [&mut self.before, &mut self.prompt_end] {
            *checkpoint = checkpoint.take().and_then(|context| pinned(runner, context, pin));
        }
        let older = std::mem::take(&mut self.older);
        self.older = older.into_iter().filter_map(|context| pinned(runner, context, pin)).collect();
        self.publish(m);
        Ok(())
    }

    /// Pins a text of a prompt whose tokens `todo` are about to be fed, unless something is pinned already.
    pub(super) fn pin_prompt<B: Backend>(&mut self, m: &mut Loaded<B>, todo: &[Token], text: &str) {
        let context = &mut self.chain.context;
        if !m.has_policy() || !context.pins().is_empty() {
            return;
        }
        let told = context.tokens().chain(todo.iter().copied());
        if let Some(positions) = positions(&m.vocabulary.tokenizer, told, text) {
            // Tokens that were fed before are in shared pages: without room for copies they stay as they are.
            let _ = context.pin(&mut m.runner, [positions.start as u32, positions.end as u32]);
        }
    }
}
