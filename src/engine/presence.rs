//! The text of a conversation as it was fed, token by token, and how many lanes still store each
//! token.

use super::context::Context;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::policy::Shift;
use crate::protocol::{Evidence, LaneFilter, Presence, PresenceRequest, Token};
use crate::tokenizer::{Decoder, Tokenizer};
use std::ops::Range;

/// Where each of these positions is, out of [`counted`] lanes; positions that were not fed are left
/// out. Waits for the device.
pub(super) fn evidence<B: Backend>(runner: &Runner<B>, seq: SeqId, positions: Range<usize>) -> Vec<Evidence> {
    let counts = runner.cache.presence(runner.backend(), seq, LaneFilter::default(), positions.start);
    let [far, near] = runner.cache.far_presence(runner.backend(), seq, LaneFilter::default());
    let of = |lanes: &[u16], position: usize| lanes.get(position).map_or(0, |&lanes| u32::from(lanes));
    let fed = positions.start..positions.end.min(counts.kept.len());
    let evidence = |position| Evidence {
        stored: of(&counts.kept, position),
        read: of(&near, position),
        unread: of(&far, position) - of(&near, position),
    };
    fed.map(evidence).collect()
}

/// Number of lanes of a sequence whose tokens the policy chooses.
pub(super) fn counted<B: Backend>(runner: &Runner<B>) -> usize {
    runner.cache.counted_lanes(LaneFilter::default())
}

/// The decoded token log. Only tokens that are new since the last call are decoded.
pub(super) struct FedText {
    decoder: Decoder,
    tokens: Vec<Token>,
    text: String,
    /// End in `text` of each token.
    ends: Vec<usize>,
    /// See [`Presence::revision`].
    revision: u64,
}

impl FedText {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { decoder: tokenizer.decoder(), tokens: Vec::new(), text: String::new(), ends: Vec::new(), revision: 1 }
    }

    /// Reads how many lanes store each token of `context`. Waits for the device.
    pub fn presence<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        tokenizer: &Tokenizer,
        context: &Context,
        request: &PresenceRequest,
    ) -> Presence {
        let counts = runner.cache.presence(runner.backend(), context.seq, request.filter, request.position);
        let [far, near] = runner.cache.far_presence(runner.backend(), context.seq, request.filter);
        let geometry = runner.cache.geometry();
        let layers = counts.of_position.chunks(geometry.n_kv_heads).zip(geometry.layers());
        let layers = layers.map(|(heads, layer)| heads[..layer.heads.count].to_vec());
        self.follow(tokenizer, context, counts.kept.len());
        let known = request.revision == self.revision && request.known <= self.tokens.len();
        let from = if known { request.known } else { 0 };
        let start = from.checked_sub(1).map_or(0, |last| self.ends[last]);
        Presence {
            text: self.text[start..].to_owned(),
            ends: self.ends[from..].iter().map(|end| (end - start) as u32).collect(),
            from,
            revision: self.revision,
            filter: request.filter,
            lanes: runner.cache.counted_lanes(request.filter),
            position: request.position,
            pins: runner.cache.pins(context.seq).to_vec(),
            forgot: context.forgot(),
            decided_after: usize::from(geometry.policy.dropping().is_some_and(|rule| rule.shift == Shift::Previous)),
            of_position: layers.collect(),
            kept: counts.kept,
            marked: counts.marked,
            far,
            near,
        }
    }

    /// Decodes the first `n` tokens of the log.
    fn follow(&mut self, tokenizer: &Tokenizer, context: &Context, n: usize) {
        if !self.tokens.iter().copied().eq(context.tokens().take(n.min(self.tokens.len()))) {
            *self = Self { revision: self.revision + 1, ..Self::new(tokenizer) };
        }
        for token in context.tokens().take(n).skip(self.tokens.len()).collect::<Vec<_>>() {
            if tokenizer.is_control(token) {
                self.text += &self.decoder.flush();
                self.text += &tokenizer.literal(token);
            } else {
                self.text += &self.decoder.push(token);
            }
            self.tokens.push(token);
            self.ends.push(self.text.len());
        }
    }
}
