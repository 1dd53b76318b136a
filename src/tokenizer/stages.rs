//! The stages of a decoder, as tokenizer.json lists them: how spellings become bytes.

use anyhow::{Result, anyhow};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One step of a tokenizer's decoder, and its state.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    kind: Kind,
    /// An earlier step has joined all tokens, so that this one sees a single text in parts.
    fused: bool,
    /// Bytes that wait for what follows.
    pub(super) held: Vec<u8>,
    /// Characters that may still be removed from the beginning.
    strip: usize,
    first: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Without a decoder, tokens are joined by spaces.
    Spaces,
    ByteLevel,
    Replace {
        pattern: String,
        content: String,
    },
    ByteFallback,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// `drops`: the first token loses its spaces.
    Metaspace {
        replacement: char,
        drops: bool,
    },
    /// The end of a word, which is a space unless it ends the text.
    Suffix(String),
}

impl Stage {
    pub(super) fn new(kind: Kind, fused: bool) -> Self {
        let strip = if let Kind::Strip { start, .. } = kind { start } else { 0 };
        Self { kind, fused, held: Vec::new(), strip, first: true }
    }

    /// Takes pieces of text, one or more of which are a token, and returns those that are decided.
    /// `as_is`: they are not spelled in the byte alphabet.
    pub(super) fn push(&mut self, pieces: Vec<String>, as_is: bool) -> Vec<String> {
        let mut out = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let text = self.one(piece, as_is);
            // An empty token still counts as the first one; held-back bytes do not.
            if !text.is_empty() || !self.may_hold() {
                out.push(text);
            }
            self.first = false;
        }
        out
    }

    pub(super) fn may_hold(&self) -> bool {
        match self.kind {
            Kind::Spaces | Kind::Metaspace { .. } => false,
            Kind::Replace { .. } | Kind::Strip { .. } => self.fused,
            Kind::ByteLevel | Kind::ByteFallback | Kind::Suffix(_) => true,
        }
    }

    pub(super) fn one(&mut self, piece: String, as_is: bool) -> String {
        match &self.kind {
            Kind::Spaces if self.first => piece,
            Kind::Spaces => format!(" {piece}"),
            Kind::ByteLevel => {
                match as_is {
                    true => self.held.extend_from_slice(piece.as_bytes()),
                    false => extend_bytes(&mut self.held, &piece),
                }
                self.take_characters(|_| 1)
            }
            Kind::Replace { pattern, content } if !self.fused => piece.replace(pattern, content),
            Kind::Replace { pattern, content } => {
                let text = text_of(std::mem::take(&mut self.held)) + &piece;
                let (mut out, mut rest) = (String::new(), text.as_str());
                while let Some((before, after)) = rest.split_once(pattern.as_str()) {
                    out += before;
                    out += content;
                    rest = after;
                }
                let (decided, held) = rest.split_at(rest.len() - begun(rest, pattern));
                self.held = held.into();
                out + decided
            }
            Kind::ByteFallback => match byte_of(&piece).filter(|_| !self.fused) {
                Some(byte) => {
                    self.held.push(byte);
                    self.take_characters(|bad| bad)
                }
                None => self.finish_bytes(|bad| bad) + &piece,
            },
            Kind::Strip { content, start, stop } if !self.fused => stripped(&piece, *content, *start, *stop).to_owned(),
            Kind::Strip { content, stop, .. } => {
                let (content, stop) = (*content, *stop);
                let text = text_of(std::mem::take(&mut self.held)) + &piece;
                let rest = stripped(&text, content, self.strip, 0);
                let removed = text[..text.len() - rest.len()].chars().count();
                self.strip = if rest.is_empty() { self.strip - removed } else { 0 };
                let (decided, held) = rest.split_at(stripped(rest, content, 0, stop).len());
                self.held = held.into();
                decided.to_owned()
            }
            Kind::Metaspace { replacement, drops } => {
                let space = if *drops && (self.first || self.fused) { "" } else { " " };
                piece.replace(*replacement, space)
            }
            Kind::Suffix(suffix) => {
                let text = text_of(std::mem::take(&mut self.held)).replace(suffix, " ");
                self.held = piece.into_bytes();
                text
            }
        }
    }

    /// Returns the rest at the end of the stream.
    pub(super) fn finish(&mut self) -> Option<String> {
        let text = match &self.kind {
            Kind::ByteLevel => self.finish_bytes(|_| 1),
            Kind::ByteFallback => self.finish_bytes(|bad| bad),
            Kind::Strip { stop: 1.., .. } => String::new(),
            Kind::Suffix(suffix) => text_of(std::mem::take(&mut self.held)).replace(suffix, ""),
            _ => text_of(std::mem::take(&mut self.held)),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Takes the whole characters out of the held bytes. `marks`: the number of U+FFFD for so many
    /// bytes that are no character.
    pub(super) fn take_characters(&mut self, marks: fn(usize) -> usize) -> String {
        let mut out = String::new();
        let mut rest = self.held.as_slice();
        while let Err(e) = std::str::from_utf8(rest) {
            let (valid, after) = rest.split_at(e.valid_up_to());
            out.push_str(&String::from_utf8_lossy(valid));
            rest = after;
            let Some(bad) = e.error_len() else {
                self.held = rest.to_vec();
                return out;
            };
            out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks(bad)));
            rest = &rest[bad..];
        }
        out.push_str(&String::from_utf8_lossy(rest));
        self.held.clear();
        out
    }

    pub(super) fn finish_bytes(&mut self, marks: fn(usize) -> usize) -> String {
        let mut out = self.take_characters(marks);
        if !self.held.is_empty() {
            out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks(self.held.len())));
            self.held.clear();
        }
        out
    }
}

/// The steps of a tokenizer's decoder, as tokenizer.json has them.
pub(super) fn stages(decoder: &Value) -> Result<Vec<Stage>> {
    if decoder.is_null() {
        return Ok(vec![Stage::new(Kind::Spaces, false)]);
    }
    let one = [decoder.clone()];
    let parts = decoder["decoders"].as_array().map_or(&one[..], Vec::as_slice);
    let (mut out, mut fused) = (Vec::new(), false);
    for part in parts {
        let text = |key: &str| part[key].as_str();
        let sign = |key: &str| text(key).and_then(|text| text.chars().next());
        let size = |key: &str| part[key].as_u64().map(|n| n as usize);
        let known = match text("type") {
            Some("ByteLevel") => Some(Kind::ByteLevel),
            Some("Fuse") => None,
            Some("ByteFallback") => Some(Kind::ByteFallback),
            Some("Replace") => part["pattern"]["String"].as_str().zip(text("content")).map(|(pattern, content)| {
                let (pattern, content) = (pattern.to_owned(), content.to_owned());
                Kind::Replace { pattern, content }
            }),
            Some("Strip") => sign("content")
                .zip(size("start"))
                .zip(size("stop"))
                .map(|((content, start), stop)| Kind::Strip { content, start, stop }),
            Some("Metaspace") => sign("replacement").map(|replacement| {
                let drops = text("prepend_scheme") != Some("never");
                Kind::Metaspace { replacement, drops }
            }),
            Some("BPEDecoder") => text("suffix").map(|suffix| Kind::Suffix(suffix.to_owned())),
            _ => None,
        };
        let is_fuse = text("type") == Some("Fuse");
        let joins = is_fuse || matches!(known, Some(Kind::ByteLevel));
        if !is_fuse {
            let kind = known.ok_or_else(|| anyhow!("tokenizer.json: a decoder is not as it should be: {part}"))?;
            out.push(Stage::new(kind, fused));
        }
        fused |= joins;
    }
    Ok(out)
}

pub(super) fn text_of(held: Vec<u8>) -> String {
    String::from_utf8(held).unwrap_or_default()
}

/// The byte that a byte token (`<0x0A>`) stands for.
pub(super) fn byte_of(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// Text without up to `start` signs at its beginning and `stop` at its end.
pub(super) fn stripped(text: &str, sign: char, start: usize, stop: usize) -> &str {
    let mut rest = text;
    for _ in 0..start {
        let Some(shorter) = rest.strip_prefix(sign) else { break };
        rest = shorter;
    }
    for _ in 0..stop {
        let Some(shorter) = rest.strip_suffix(sign) else { break };
        rest = shorter;
    }
    rest
}

/// Returns the bytes of a token inside a text. `as_is`: the spelling is plain text, not the byte
/// alphabet.
pub(super) fn bytes_of(stages: &[Stage], spelling: String, as_is: bool) -> Vec<u8> {
    let mut text = spelling;
    for stage in stages {
        match &stage.kind {
            Kind::ByteLevel => {
                let mut bytes = Vec::new();
                match as_is {
                    true => bytes.extend_from_slice(text.as_bytes()),
                    false => extend_bytes(&mut bytes, &text),
                }
                return bytes;
            }
            Kind::ByteFallback => {
                if let Some(byte) = byte_of(&text) {
                    return vec![byte];
                }
            }
            Kind::Spaces => text.insert(0, ' '),
            Kind::Replace { pattern, content } => text = text.replace(pattern, content),
            Kind::Metaspace { replacement, .. } => text = text.replace(*replacement, " "),
            Kind::Suffix(end) => text = text.replace(end, " "),
            // Applies only to the ends of a text.
            Kind::Strip { .. } => {}
        }
    }
    text.into_bytes()
}

/// Bytes at the end of `text` that begin `pattern` without completing it.
pub fn begun(text: &str, pattern: &str) -> usize {
    let most = text.len().min(pattern.len().saturating_sub(1));
    let from = text.len() - most;
    (from..text.len())
        .find(|&at| pattern.as_bytes().starts_with(&text.as_bytes()[at..]))
        .map_or(0, |at| text.len() - at)
}

/// Appends the bytes of a byte-level spelling. A spelling with other characters (the literal of an
/// added token) is appended as it is.
pub(super) fn extend_bytes(out: &mut Vec<u8>, spelling: &str) {
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
