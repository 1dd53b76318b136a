//! A conversation as a slot: it changes its front end between two prompts, and keeps its cache.

use super::state::Conversation;
use crate::backend::Backend;
use crate::engine::disk::begin_slot;
use crate::engine::far_load::FarLoad;
use crate::engine::loaded::Loaded;
use crate::engine::reply::flat_of;
use crate::protocol::{Outlet, Token};
use std::path::Path;

impl<B: Backend> Conversation<B> {
    /// Sets whether the next turn evicts: see [`Ask::eviction`](crate::protocol::Ask::eviction).
    pub fn set_eviction(&mut self, m: &Loaded<B>, eviction: Option<bool>) {
        (self.eviction, self.unswitched) = (eviction.unwrap_or(m.eviction), eviction.is_none());
    }

    /// Bytes of a prompt's canonical text that the conversation holds for a turn with this
    /// eviction.
    pub fn held(&self, m: &Loaded<B>, flat: &str, eviction: Option<bool>) -> usize {
        let base = self.longest_base(m, flat, eviction.is_none());
        self.context_of(m, base).map_or(0, |context| context.flat.len())
    }

    /// Gives the conversation, which has no work, to another front end, as if it were new to it.
    pub fn hand_to(&mut self, m: &mut Loaded<B>, outlet: Outlet) {
        m.snapshots.give(self.id(), outlet.conversation());
        self.outlet = outlet;
        (self.dial, self.decode_tok_s) = (m.dial, None);
        self.reported.clear();
        self.replies.clear();
    }

    /// Ends all work without a report. The cache keeps what was computed: the part of a prompt that
    /// was read, or an answer up to its last token.
    pub fn leave_slot(&mut self, m: &mut Loaded<B>) {
        self.queue.clear();
        self.late.clear();
        self.release_chains(m);
        let runner = &mut m.runner;
        self.release_probes(runner);
        self.release_twin(runner);
        self.give_up_old_cache(runner);
        (self.job, self.twin_wanted) = (None, false);
        if self.chain.tokens_left() > 0 || self.chain.is_replaying() {
            self.become_text(m, None, true);
        } else {
            self.chain.finish_text();
        }
        self.chain.stop();
        self.disk.changed();
    }

    /// Sets the text to that of the tokens in the cache and of `pending`.
    fn become_text(&mut self, m: &Loaded<B>, pending: Option<Token>, is_cut: bool) {
        let context = &mut self.chain.context;
        let (flat, _) = flat_of(&m.vocabulary.tokenizer, context.tokens().chain(pending));
        // The last token may end inside a character.
        context.flat = if is_cut { flat.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned() } else { flat };
        (context.pending, context.is_cut) = (pending, is_cut);
    }

    /// Loads the cache of a slot, which has had no prompt, from its file. Returns its tokens. Fails
    /// with the reason, and the slot is empty then.
    pub fn load_slot(&mut self, m: &mut Loaded<B>, path: &Path) -> Result<usize, String> {
        let (mut load, slot) = begin_slot(m, path)?;
        self.reset_context(&mut m.runner, true);
        loop {
            match load.go_on(m, &mut self.chain.context, &mut self.far_load) {
                Ok(true) => break,
                Ok(false) => {}
                Err(why) => {
                    self.far_load = FarLoad::default();
                    self.reset_context(&mut m.runner, true);
                    return Err(why);
                }
            }
        }
        self.chain.count_from(&m.runner, (0, 0));
        self.become_text(m, slot.pending, slot.is_cut);
        self.publish(m);
        Ok(load.total())
    }
}
