//! Texts that a predictor is fitted to, and others that it is measured on.

use crate::protocol::Token;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Tokens of a text that is fitted: with its repetition it fills a context of 2,048.
const FITTED_TOKENS: usize = 900;
/// Tokens of a text that is measured.
pub const MEASURED_TOKENS: usize = 2048;
/// Texts that are fitted at most.
const FITTED: usize = 64;
/// One in this many of the user's texts is measured.
const MEASURED_EACH: usize = 8;

/// Texts that this project's authors wrote, and texts in the public domain: a JSON object a line.
const BUILT_IN: &[u8] = include_bytes!("../../assets/predictor_texts.jsonl.lzma");

/// A text of some kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Text {
    /// `prose`, `code`, ...
    pub kind: String,
    pub text: String,
    /// Whether it is measured and not fitted.
    pub held_out: bool,
}

/// The built-in texts.
pub fn built_in() -> Result<Vec<Text>> {
    let reader = lzma_rust2::LzmaReader::new_mem_limit(BUILT_IN, u32::MAX, None)?;
    let lines = std::io::BufRead::lines(std::io::BufReader::new(reader));
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_>>().context("the built-in texts are broken")
}

/// A tokenized text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub kind: String,
    pub tokens: Vec<Token>,
}

/// Texts in pieces of the lengths that are fitted and measured.
pub struct Pieces {
    pub fitted: Vec<Piece>,
    pub measured: Vec<Piece>,
}

impl Pieces {
    /// Cuts texts into pieces for a model of that context. `frame`: tokens of the template around a
    /// text.
    pub fn new(texts: &[Text], tokenizer: &Tokenizer, context: usize, frame: usize) -> Result<Self> {
        let fitted_tokens = FITTED_TOKENS.min(context.saturating_sub(frame) / 2);
        ensure!(fitted_tokens >= 64, "a context of {context} tokens is too short to repeat a text in");
        let (mut fitted, mut measured) = (Vec::new(), Vec::new());
        for text in texts {
            let tokens = tokenizer.encode_text(&text.text)?;
            let most = if text.held_out { MEASURED_TOKENS.min(context) } else { fitted_tokens };
            let pieces = tokens.chunks(most).filter(|piece| 2 * piece.len() >= most);
            let pieces = pieces.map(|tokens| Piece { kind: text.kind.clone(), tokens: tokens.to_vec() });
            if text.held_out { measured.extend(pieces) } else { fitted.extend(pieces) }
        }
        let all = fitted.len();
        if all > FITTED {
            fitted = (0..FITTED).map(|i| fitted[i * all / FITTED].clone()).collect();
        }
        Ok(Self { fitted, measured })
    }
}

/// Splits a text of the user's into parts of about [`MEASURED_TOKENS`]: at lines, and a line that
/// is longer at its words, or else anywhere.
pub fn of_user(kind: &str, text: &str) -> Vec<Text> {
    // About 4 bytes a token.
    const PART: usize = 4 * MEASURED_TOKENS;
    let mut parts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while !rest.is_empty() {
            if parts.last().is_some_and(|part| part.len() > PART) {
                parts.push(String::new());
            }
            let (piece, after) = rest.split_at(cut(rest, PART));
            parts.last_mut().into_iter().for_each(|part| part.push_str(piece));
            rest = after;
        }
    }
    parts.into_iter().map(|text| Text { kind: kind.to_owned(), text, held_out: false }).collect()
}

/// Where to cut a line of more than `most` bytes: before the first word or character after that.
fn cut(line: &str, most: usize) -> usize {
    let ends = || line.char_indices().skip_while(|(at, _)| *at <= most);
    let word = ends().take_while(|(at, _)| *at <= most + most / 8).find(|(_, c)| c.is_whitespace());
    word.or_else(|| ends().next()).map_or(line.len(), |(at, _)| at)
}

/// Chooses the user's texts that are measured and not fitted: every eighth of the long ones, and at
/// least one of two. Returns whether there are enough.
pub fn hold_out(texts: &mut [Text]) -> bool {
    let long: Vec<&mut Text> = texts.iter_mut().filter(|text| text.text.len() > 3 * MEASURED_TOKENS).collect();
    let (n, first) = (long.len(), long.len().saturating_sub(1).min(MEASURED_EACH / 2));
    long.into_iter().enumerate().for_each(|(i, text)| text.held_out = n > 1 && i % MEASURED_EACH == first);
    n > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_users_long_texts_are_held_out() {
        let line = "a line of a text that is long enough to be cut into parts\n";
        let held = |files: &[usize]| -> Option<Vec<usize>> {
            let texts = files.iter().flat_map(|bytes| of_user("x", &line.repeat(bytes / line.len() + 1)));
            let mut texts: Vec<Text> = texts.collect();
            let enough = hold_out(&mut texts);
            enough.then(|| (0..texts.len()).filter(|&i| texts[i].held_out).collect())
        };
        assert_eq!((held(&[9_000]), held(&[1_000, 2_000])), (None, None));
        // Two files of one part each, and short ones between them.
        assert_eq!(held(&[8_000, 1_000, 8_000]), Some(vec![2]));
        assert_eq!(held(&[150_000]), Some(vec![4, 12]));
    }

    #[test]
    fn a_text_of_one_long_line_is_cut_at_its_words() {
        for (line, at_words) in [("word ".repeat(8_000), true), ("語".repeat(13_000), false)] {
            let mut parts = of_user("x", &line);
            assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), line);
            assert!(hold_out(&mut parts) && parts.len() == 5, "{}", parts.len());
            assert!(parts.iter().all(|part| !at_words || part.text.trim().split(' ').all(|word| word == "word")));
        }
    }
}
