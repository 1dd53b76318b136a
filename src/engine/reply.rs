//! From generated tokens to streamed text: whole characters, think blocks apart from the answer,
//! and the canonical text that the next rendering is compared with.

use crate::protocol::{Piece, TextKind, Token};
use crate::tokenizer::{Decoder, Tokenizer, flatten};
use std::sync::Arc;

/// Ids of the tokens that open and close a think block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinkTags {
    pub open: Token,
    pub close: Token,
}

/// Meaning of a model's tokens.
pub(super) struct Vocabulary {
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end an answer.
    pub eos: Vec<Token>,
    pub think: Option<ThinkTags>,
}

/// Bytes of a draft that are encoded to count its tokens: some tens of milliseconds.
const MAX_COUNTED: usize = 128 << 10;

impl Vocabulary {
    /// Counts the tokens of a text. A long one is counted in part and the rest estimated. `None`
    /// where it cannot be encoded.
    pub fn count_tokens(&self, text: &str) -> Option<usize> {
        let mut part = text.len().min(MAX_COUNTED);
        while !text.is_char_boundary(part) {
            part -= 1;
        }
        let ids = self.tokenizer.encode_pieces(&[Piece::Text(text[..part].to_owned())]).ok()?;
        Some(ids.len() * text.len() / part.max(1))
    }
}

/// The text of one answer while it is generated.
pub(super) struct Reply {
    decoder: Decoder,
    kind: TextKind,
    /// Tokens of each kind, tags and end token included.
    pub reasoning_tokens: usize,
    pub answer_tokens: usize,
}

impl Reply {
    /// `thinks`: the prompt ends in an open think block.
    pub fn new(tokenizer: &Tokenizer, thinks: bool) -> Self {
        let kind = if thinks { TextKind::Reasoning } else { TextKind::Answer };
        Self { decoder: tokenizer.decoder(), kind, reasoning_tokens: 0, answer_tokens: 0 }
    }

    /// Appends a token. Returns the text to stream and the canonical text that it adds.
    pub fn push(
        &mut self,
        token: Token,
        tokenizer: &Tokenizer,
        think: Option<ThinkTags>,
    ) -> (TextKind, String, String) {
        let opens = think.is_some_and(|t| t.open == token);
        let closes = think.is_some_and(|t| t.close == token);
        if opens {
            self.kind = TextKind::Reasoning;
        }
        match self.kind {
            TextKind::Reasoning => self.reasoning_tokens += 1,
            TextKind::Answer => self.answer_tokens += 1,
        }
        if tokenizer.is_control(token) {
            let (kind, text) = (self.kind, self.decoder.flush());
            let flat = text.clone() + &flatten(&[Piece::Control(tokenizer.literal(token))]);
            if closes {
                self.kind = TextKind::Answer;
            }
            return (kind, text, flat);
        }
        let text = self.decoder.push(token);
        (self.kind, text.clone(), text)
    }

    pub fn is_thinking(&self) -> bool {
        self.kind == TextKind::Reasoning
    }

    /// Ends the reply and returns what is left of an incomplete character.
    pub fn finish(&mut self) -> (TextKind, String) {
        (self.kind, self.decoder.flush())
    }
}

/// Returns the canonical text of `tokens` and its length in bytes after each of them.
pub(super) fn flat_of(tokenizer: &Tokenizer, tokens: impl IntoIterator<Item = Token>) -> (String, Vec<usize>) {
    let mut reply = Reply::new(tokenizer, false);
    let (mut flat, mut ends) = (String::new(), Vec::new());
    for token in tokens {
        flat += &reply.push(token, tokenizer, None).2;
        ends.push(flat.len());
    }
    flat += &reply.finish().1;
    if let Some(end) = ends.last_mut() {
        *end = flat.len();
    }
    (flat, ends)
}

/// Returns the generated ids that spell exactly `flat`: all of them, or those after the think
/// block, with or without the end token.
pub(super) fn ids_that_spell(tokenizer: &Tokenizer, generated: &[Token], flat: &str) -> Option<Vec<Token>> {
    let (whole, ends) = flat_of(tokenizer, generated.iter().copied());
    let n_without_end = generated.len().saturating_sub(1);
    for n in [generated.len(), n_without_end] {
        let end = if n == 0 { 0 } else { ends[n - 1] };
        let Some(start) = end.checked_sub(flat.len()) else { continue };
        if !whole.is_char_boundary(start) || &whole[start..end] != flat {
            continue;
        }
        if start == 0 {
            return Some(generated[..n].to_vec());
        }
        if let Some(k) = ends[..n].iter().position(|&e| e == start) {
            return Some(generated[k + 1..n].to_vec());
        }
    }
    None
}
