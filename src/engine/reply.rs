//! From generated tokens to streamed text: whole characters, think blocks told apart, and the
//! flat form that the next rendering is compared with.

use crate::protocol::{Piece, TextKind, Token};
use crate::tokenizer::{Decoder, Tokenizer, flatten};

/// Ids of the tokens that open and close a think block.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinkTags {
    pub open: Token,
    pub close: Token,
}

/// The text side of one answer.
pub(super) struct Reply<'a> {
    tokenizer: &'a Tokenizer,
    decoder: Decoder,
    think: Option<ThinkTags>,
    kind: TextKind,
    /// Tokens of each kind, tags and end token included.
    pub reasoning_tokens: usize,
    pub answer_tokens: usize,
}

impl<'a> Reply<'a> {
    /// `prompt_ends_thinking`: the generation prompt has opened the think block itself.
    pub fn new(tokenizer: &'a Tokenizer, think: Option<ThinkTags>, prompt_ends_thinking: bool) -> Self {
        let kind = if prompt_ends_thinking { TextKind::Reasoning } else { TextKind::Answer };
        Self { tokenizer, decoder: tokenizer.decoder(), think, kind, reasoning_tokens: 0, answer_tokens: 0 }
    }

    /// The text to show, and the flat text to remember, for one more token.
    pub fn push(&mut self, token: Token) -> (TextKind, String, String) {
        let opens = self.think.is_some_and(|t| t.open == token);
        let closes = self.think.is_some_and(|t| t.close == token);
        if opens {
            self.kind = TextKind::Reasoning;
        }
        match self.kind {
            TextKind::Reasoning => self.reasoning_tokens += 1,
            TextKind::Answer => self.answer_tokens += 1,
        }
        if self.tokenizer.is_control(token) {
            let (kind, text) = (self.kind, self.decoder.flush());
            let flat = text.clone() + &flatten(&[Piece::Control(self.tokenizer.literal(token))]);
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

    /// What is left of an incomplete character.
    pub fn finish(&mut self) -> (TextKind, String) {
        (self.kind, self.decoder.flush())
    }
}

/// The flat text of `tokens`, and its length after each of them.
pub(super) fn flat_of(tokenizer: &Tokenizer, tokens: impl IntoIterator<Item = Token>) -> (String, Vec<usize>) {
    let mut reply = Reply::new(tokenizer, None, false);
    let (mut flat, mut ends) = (String::new(), Vec::new());
    for token in tokens {
        flat += &reply.push(token).2;
        ends.push(flat.len());
    }
    flat += &reply.finish().1;
    if let Some(end) = ends.last_mut() {
        *end = flat.len();
    }
    (flat, ends)
}

/// The generated ids that spell exactly `flat`: all of them, or those after the think block, with
/// or without the end token.
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
