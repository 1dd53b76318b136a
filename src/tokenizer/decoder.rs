//! Decodes a stream of tokens. Emits whole characters only and buffers incomplete ones. The emitted
//! text equals the decoding of all tokens at once.

use super::Tokenizer;
use crate::protocol::Token;
use std::collections::HashMap;
use std::sync::LazyLock;
use tokenizers::DecoderWrapper;

/// Longest window, in tokens, of decoders that are not byte-level.
const LONGEST_WINDOW: usize = 32;

/// The state of one stream. A token costs O(bytes of the token) for byte-level tokenizers; others
/// decode a bounded window again.
pub struct Decoder {
    tokenizer: Tokenizer,
    byte_level: bool,
    /// Byte-level: bytes of an incomplete character, at most three.
    pending: Vec<u8>,
    /// Others: the tokens of the window, and how many of them are emitted.
    window: Vec<Token>,
    emitted: usize,
}

impl Decoder {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let byte_level = matches!(tokenizer.inner.whole.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        Self { tokenizer: tokenizer.clone(), byte_level, pending: Vec::new(), window: Vec::new(), emitted: 0 }
    }

    /// Returns the characters that `token` completes: often none, sometimes several. Control tokens
    /// give their literal; callers that hide them must not push them.
    pub fn push(&mut self, token: Token) -> String {
        if !self.byte_level {
            return self.push_window(token);
        }
        let Some(spelling) = self.tokenizer.spelling(token) else { return String::new() };
        extend_bytes(&mut self.pending, &spelling);
        self.take_complete()
    }

    /// Ends the stream: returns U+FFFD for an incomplete character, else nothing. Resets the
    /// decoder.
    pub fn flush(&mut self) -> String {
        if self.byte_level {
            let left = String::from_utf8_lossy(&self.pending).into_owned();
            self.pending.clear();
            return left;
        }
        let left = self.window_rest().unwrap_or_default();
        self.window.clear();
        self.emitted = 0;
        left
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Emits the decided prefix of `pending`, as `String::from_utf8_lossy` would.
    fn take_complete(&mut self) -> String {
        let mut out = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(text) => {
                    out.push_str(text);
                    self.pending.clear();
                    return out;
                }
                Err(e) => {
                    let (valid, rest) = self.pending.split_at(e.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = e.error_len() else {
                        self.pending = rest.to_vec();
                        return out;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.pending = rest[bad..].to_vec();
                }
            }
        }
    }

    /// For decoders that join or strip across tokens (SentencePiece-like): the text of the window
    /// with the token minus the text without it, buffered while it ends inside a character.
    fn push_window(&mut self, token: Token) -> String {
        self.window.push(token);
        let text = self.window_rest();
        let Some(text) = text.filter(|t| !t.is_empty()) else { return String::new() };
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.window.len() - self.emitted < LONGEST_WINDOW {
            return String::new();
        }
        // The emitted tokens stay as context for the next ones.
        self.window.drain(..self.emitted);
        self.emitted = self.window.len();
        text
    }

    fn window_rest(&self) -> Option<String> {
        let before = self.tokenizer.decode(&self.window[..self.emitted]).ok()?;
        let all = self.tokenizer.decode(&self.window).ok()?;
        all.get(before.len()..).map(str::to_owned)
    }
}

/// Appends the bytes of a byte-level spelling. A spelling with other characters (the literal of an
/// added token) is appended as it is.
fn extend_bytes(out: &mut Vec<u8>, spelling: &str) {
    let start = out.len();
    for c in spelling.chars() {
        match BYTE_OF.get(&c) {
            Some(&byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(spelling.as_bytes());
                return;
            }
        }
    }
}

/// Upper bound on the bytes of a token's spelling: a byte-level spelling has one character per
/// byte.
pub(super) fn spelt_bytes(spelling: &str) -> usize {
    let mut bytes = Vec::new();
    extend_bytes(&mut bytes, spelling);
    bytes.len()
}

/// GPT-2's reversible byte alphabet: printable Latin-1 bytes map to themselves, the others to
/// U+0100 and up.
static BYTE_OF: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let c = if printable {
                byte as u32
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(c).expect("below the surrogates"), byte)
        })
        .collect()
});
