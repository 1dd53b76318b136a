//! Decodes a stream of tokens. Emits whole characters only and buffers incomplete ones. Emitted
//! text is final, and equals the decoding of all tokens at once, with one exception. If one of a
//! run of byte tokens is not a character, `ByteFallback` would replace the whole run; here only the
//! invalid bytes are replaced.

use super::Tokenizer;
use super::stages::Stage;
use crate::protocol::Token;

/// The state of one stream. A token costs time in proportion to its own bytes.
#[derive(Clone)]
pub struct Decoder {
    tokenizer: Tokenizer,
    stages: Vec<Stage>,
}

impl Tokenizer {
    /// Returns a decoder for one stream of tokens.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self)
    }
}

impl Decoder {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), stages: tokenizer.inner.stages.clone() }
    }

    /// Returns the characters that `token` completes: often none, sometimes several. Control tokens
    /// give their literal; callers that hide them must not push them.
    pub fn push(&mut self, token: Token) -> String {
        let Some(spelling) = self.tokenizer.spelling(token) else { return String::new() };
        // An added token that no normalizer changes is spelled as it is, not in bytes.
        let as_is = self.tokenizer.inner.added.get(&token).is_some_and(|added| added.content == spelling);
        let mut text = vec![spelling];
        for stage in &mut self.stages {
            text = stage.push(text, as_is);
        }
        text.concat()
    }

    /// Ends the stream: returns U+FFFD for an incomplete character, else nothing. Resets the
    /// decoder.
    pub fn flush(&mut self) -> String {
        let mut text = Vec::new();
        for stage in &mut self.stages {
            text = stage.push(text, true);
            text.extend(stage.finish());
        }
        self.stages.clone_from(&self.tokenizer.inner.stages);
        text.concat()
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.stages.iter().map(|stage| stage.held.len()).sum()
    }
}
