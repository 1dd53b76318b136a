//! Encodes pieces to tokens, with the two instances of the tokenizer ([`super`]).

use super::content;
use super::content::Content;
use super::flat;
use super::flat::flatten;
use super::guard::guarded;
use super::parts;
use super::stages;
use crate::protocol::{Piece, Token};
use crate::unicode::one_line_error;
use anyhow::{Context, Result, anyhow, bail, ensure};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokenizers::{AddedToken, ModelWrapper};

/// Maximum bytes of a token, which bounds the bytes of a prompt. Known tokens have up to 512.
pub(super) const LONGEST_TOKEN_BYTES: usize = 4096;

/// Long texts are encoded in slices of about this size if that gives the same tokens.
pub(super) const SLICE_BYTES: usize = 64 << 10;

/// Time limit of unknown patterns for [`probe_text`]. A pattern with quadratic time would need
/// minutes.
pub(super) const PROBE_TIME: Duration = Duration::from_secs(5);

/// A loaded `tokenizer.json`. Clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) whole: tokenizers::Tokenizer,
    /// Encodes prompts.
    pub(super) content: Content,
    /// Encodes text that follows other tokens, without the prefix that the normalizer prepends to a
    /// text. `None` if it prepends none.
    pub(super) behind: Option<Content>,
    /// Control tokens: literal to id.
    pub(super) control: HashMap<String, Token>,
    /// All added tokens of the model's vocabulary.
    pub(super) added: HashMap<Token, AddedToken>,
    /// The tokens that open and close a thought.
    pub(super) think: Option<(Token, Token)>,
    /// See [`parts::Checked::spellings`].
    pub(super) spellings: HashMap<Token, String>,
    pub(super) vocab: usize,
    /// Bytes of the longest token.
    pub(super) longest: usize,
    /// See [`parts::Checked::splits_at_spaces`].
    pub(super) splits_at_spaces: bool,
    /// Stages of the decoder, in their initial state.
    pub(super) stages: Vec<stages::Stage>,
    pub(super) fingerprint: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json` for a model of `vocab` embeddings. Refuses unknown or unbounded parts
    /// ([`parts`]), ordinary tokens at or above `vocab`, and added tokens that the tokenizers crate
    /// would give another id. Added tokens at or above `vocab` are left out: no text becomes one.
    pub fn new(json: &[u8], vocab: usize) -> Result<Self> {
        Self::read(json, vocab).map_err(one_line_error)
    }

    pub(super) fn read(json: &[u8], vocab: usize) -> Result<Self> {
        ensure!(!json.is_empty(), "the model has no tokenizer.json, so it can neither read nor write text");
        let checked = parts::check(json, vocab)?;
        // The tokenizers crate rejects keys that it does not know.
        let without = (!checked.spellings.is_empty()).then(|| parts::without_spellings(json)).transpose()?;
        let known = without.as_deref().unwrap_or(json);
        let mut whole = guarded("reading tokenizer.json", || tokenizers::Tokenizer::from_bytes(known))?;
        whole.with_padding(None);
        whole.with_truncation(None).map_err(|e| anyhow!("tokenizer.json: {e}"))?;
        ensure!(
            matches!(whole.get_model(), ModelWrapper::BPE(_)),
            "tokenizer.json: its model type is not supported (BPE is)"
        );
        let tokens = whole.get_vocab(false);
        let longest = check_tokens(&whole, &tokens, &checked.added, vocab)?;
        let stages = stages::stages(&serde_json::to_value(whole.get_decoder())?)?;

        let mut added: HashMap<Token, AddedToken> = whole.get_added_tokens_decoder().into_iter().collect();
        added.retain(|&id, _| (id as usize) < vocab);
        let control: HashMap<String, Token> =
            added.iter().filter(|(_, t)| content::is_control(t)).map(|(&id, t)| (t.content.clone(), id)).collect();
        let think = THINK_TAGS.iter().find_map(|(open, close)| control.get(*open).zip(control.get(*close)));
        let think = think.map(|(&open, &close)| (open, close));
        let last = tokens.iter().max_by_key(|(_, id)| **id).map(|(token, id)| (token.as_str(), *id));
        let last = last.filter(|l| l.1 as usize >= tokens.len());
        let content = guarded("reading tokenizer.json", || Content::new(&whole, &added, last))?;
        let behind = content::without_prefix(&whole)?;
        let behind =
            behind.map(|bare| guarded("reading tokenizer.json", || Content::new(&bare, &added, last))).transpose()?;
        let fingerprint = Sha256::digest(json).iter().map(|b| format!("{b:02x}")).collect();
        let splits_at_spaces = checked.splits_at_spaces && !added.values().any(|t| t.content.contains(' '));
        let spellings = checked.spellings;
        let inner = Inner {
            whole,
            content,
            behind,
            control,
            added,
            think,
            spellings,
            vocab,
            longest,
            splits_at_spaces,
            stages,
            fingerprint,
        };
        let out = Self { inner: Arc::new(inner) };
        if !checked.patterns.iter().all(|p| parts::is_known_pattern(p)) {
            out.probe(PROBE_TIME)?;
        }
        Ok(out)
    }

    /// Encodes a rendered conversation as the tokenizers crate would encode the whole text, except
    /// that only control pieces become control tokens. An unknown control literal is an error.
    pub fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<Token>> {
        Ok(self.encode_unless(pieces, false, &AtomicBool::new(false))?.unwrap_or_default())
    }

    /// Like [`Self::encode_pieces`], but returns `None` if `stop` is set meanwhile. `stop` is
    /// checked between slices of long texts. `continues`: whether the pieces follow other tokens.
    pub fn encode_unless(&self, pieces: &[Piece], continues: bool, stop: &AtomicBool) -> Result<Option<Vec<Token>>> {
        let pieces = flat::normalise(pieces);
        for piece in &pieces {
            if let Piece::Control(literal) = piece {
                self.token_for(literal).with_context(|| {
                    format!("the template writes {literal:?}, which is not an added token of tokenizer.json")
                })?;
            }
        }
        let flat = |pieces: &[Piece]| if continues { content::CUT } else { "" }.to_owned() + &flatten(pieces);
        let mut out = Vec::new();
        let (behind, rest) = match (&pieces[..], &self.inner.behind) {
            ([text @ Piece::Text(_), rest @ ..], Some(behind)) if continues => {
                self.encode_flat(behind, &mut out, &flat(std::slice::from_ref(text)))?;
                (true, rest)
            }
            (pieces, _) => (false, pieces),
        };
        let flat = if behind && rest.is_empty() { String::new() } else { flat(rest) };
        let mut rest = flat.as_str();
        while !rest.is_empty() && !stop.load(Ordering::Relaxed) {
            let (slice, after) = rest.split_at(if self.inner.splits_at_spaces { slice_end(rest) } else { rest.len() });
            self.encode_flat(&self.inner.content, &mut out, slice)?;
            rest = after;
        }
        Ok((!stop.load(Ordering::Relaxed)).then_some(out))
    }

    /// Encodes canonical text. The ordinary vocabulary may spell control tokens too (byte-level
    /// vocabularies with `ignore_merges`): such a match is split after its first character.
    pub(super) fn encode_flat(&self, content: &Content, out: &mut Vec<Token>, text: &str) -> Result<()> {
        let mut text = Cow::Borrowed(text);
        let mut retries = content.retries;
        for _ in 0..1000 {
            let fast = guarded("encoding text", || content.tokenizer.encode_fast(&*text, false))?;
            let marks = fast.get_ids().iter().filter(|id| self.is_mark(**id)).count();
            let missed = marks < text.matches(flat::CLOSE).count();
            if std::mem::take(&mut retries) && missed {
                text = text.replace(flat::OPEN, content::SECOND).into();
                continue;
            }
            if missed {
                text = self.without_missed_marks(content, &text)?.into();
                continue;
            }
            let bad =
                |id: &Token| content.added(*id).is_none() && (self.is_control(*id) || *id as usize >= self.vocab());
            let cut = if fast.get_ids().iter().any(bad) { self.cut_at(content, &text, bad)? } else { None };
            let Some(cut) = cut else {
                out.extend(fast.get_ids().iter().filter_map(|&id| content.added(id).unwrap_or(Some(id))));
                return Ok(());
            };
            text = cut.into();
        }
        bail!("the text spells control tokens in too many ways to encode all of them as text")
    }

    /// Returns the text with a [`content::CUT`] in each spelling of a `bad` token; `None` if it
    /// spells none. The token for unknown characters is bad only where its literal is spelled out.
    pub(super) fn cut_at(&self, content: &Content, text: &str, bad: impl Fn(&Token) -> bool) -> Result<Option<String>> {
        // `encode_fast` returns no offsets.
        let slow = guarded("encoding text", || content.tokenizer.encode(text, false))?;
        let (mut cut, mut at) = (String::with_capacity(text.len() + 8), 0);
        for (&id, &(start, end)) in slow.get_ids().iter().zip(slow.get_offsets()).filter(|(id, _)| bad(id)) {
            let spelling = text.get(start..end).unwrap_or_default();
            if content.unknown == Some(id) && !content.normalized(spelling)?.contains(&self.literal(id)) {
                continue;
            }
            let first = spelling.chars().next().map_or(0, char::len_utf8);
            let to = start + first;
            ensure!(
                first > 0 && to < end,
                "the text spells the control token {:?}, and tokenizer.json has no other way to write it",
                self.literal(id)
            );
            cut += &text[at..to];
            cut += content::CUT;
            at = to;
        }
        cut += &text[at..];
        Ok((at > 0).then_some(cut))
    }

    /// Turns control literals that the crate does not match into ordinary text, such as a token
    /// that must be a whole word (`single_word`) beside a letter.
    pub(super) fn without_missed_marks(&self, content: &Content, text: &str) -> Result<String> {
        let slow = guarded("encoding text", || content.tokenizer.encode(text, false))?;
        let tokens = slow.get_ids().iter().zip(slow.get_offsets());
        let mut seen = tokens.filter(|(id, _)| self.is_mark(**id)).map(|(_, span)| *span).peekable();
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            while seen.next_if(|(_, end)| *end <= at).is_some() {}
            let within = seen.peek().is_some_and(|(start, _)| *start <= at);
            if within || !matches!(c, flat::OPEN | flat::CLOSE) {
                out.push(c);
            }
        }
        Ok(out)
    }

    /// Whether `number`, an id of [`Content`]'s tokenizer, is a control literal or a cut.
    pub(super) fn is_mark(&self, number: Token) -> bool {
        self.inner.content.added(number).is_some_and(|id| id.is_none_or(|id| self.is_control(id)))
    }

    /// Encodes a text with the post-processor of tokenizer.json, which may add a BOS. Literals of
    /// added tokens become the tokens, so this is for measurements of files, never for a chat.
    pub fn encode_text(&self, text: &str) -> Result<Vec<Token>> {
        let encoding = guarded("encoding text", || self.inner.whole.encode_fast(text, true))?;
        let ids = encoding.get_ids();
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab()) {
            bail!(
                "the text has the token {:?} (id {id}), beyond the model's vocabulary of {}",
                self.literal(*id),
                self.vocab()
            );
        }
        Ok(ids.to_vec())
    }

    /// Decodes `tokens`, with control tokens as their literals. Unknown ids give no text, invalid
    /// UTF-8 gives U+FFFD.
    pub fn decode(&self, tokens: &[Token]) -> Result<String> {
        guarded("decoding tokens", || self.inner.whole.decode(tokens, false))
    }

    /// Literals of all control tokens, longest first, so that the first match is the longest.
    pub fn control_literals(&self) -> Vec<String> {
        let mut all: Vec<String> = self.inner.control.keys().cloned().collect();
        all.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        all
    }

    /// The id of a control token, by its literal.
    pub fn token_for(&self, literal: &str) -> Option<Token> {
        self.inner.control.get(literal).copied()
    }

    /// Whether `token` is a control token: one that only a template or the model may write.
    pub fn is_control(&self, token: Token) -> bool {
        self.inner.added.get(&token).is_some_and(content::is_control)
    }

    /// Whether the text of an answer leaves `token` out, because it is special or a think tag.
    pub fn is_hidden(&self, token: Token) -> bool {
        let is_tag = self.inner.think.is_some_and(|(open, close)| token == open || token == close);
        is_tag || self.inner.added.get(&token).is_some_and(|t| t.special)
    }

    /// The tokens that open and close a thought, if the vocabulary has them.
    pub fn think_tags(&self) -> Option<(Token, Token)> {
        self.inner.think
    }

    /// The spelling of a token in tokenizer.json (byte-level for ordinary tokens); empty for an
    /// unknown id.
    pub fn literal(&self, token: Token) -> String {
        match self.inner.added.get(&token) {
            Some(t) => t.content.clone(),
            None => self.spelling(token).unwrap_or_default(),
        }
    }

    /// Rows of the embedding table. Every id is smaller.
    pub fn vocab(&self) -> usize {
        self.inner.vocab
    }

    /// Bytes of text in the longest token.
    pub fn longest_token_bytes(&self) -> usize {
        self.inner.longest
    }

    /// Fails if the patterns take longer than `limit` for [`probe_text`]. They run on a thread of
    /// their own, because a running pattern cannot be stopped.
    pub(super) fn probe(&self, limit: Duration) -> Result<()> {
        let (send, receive) = mpsc::channel();
        let plain = self.clone();
        let encode = move || drop(send.send(plain.encode_pieces(&[Piece::Text(probe_text())]).map(drop)));
        std::thread::Builder::new().name("probe".into()).spawn(encode).context("cannot test tokenizer.json")?;
        match receive.recv_timeout(limit) {
            Ok(result) => result,
            Err(_) => bail!(
                "tokenizer.json: its patterns take more than {} s for a text of {} bytes",
                limit.as_secs(),
                probe_text().len()
            ),
        }
    }

    /// SHA-256 of tokenizer.json in hex. Equal fingerprints mean equal token ids.
    pub fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    /// Returns the bytes of a token inside a text. `None` for control and hidden tokens, and for
    /// ids without a token.
    pub fn bytes_of(&self, token: Token) -> Option<Vec<u8>> {
        if self.is_control(token) || self.is_hidden(token) {
            return None;
        }
        let spelling = self.spelling(token)?;
        let as_is = self.inner.added.get(&token).is_some_and(|added| added.content == spelling);
        Some(stages::bytes_of(&self.inner.stages, spelling, as_is))
    }

    /// The spelling that the decoder of tokenizer.json reads.
    pub(super) fn spelling(&self, token: Token) -> Option<String> {
        let added = self.inner.whole.get_added_vocabulary().simple_id_to_token(token);
        let known = added.or_else(|| tokenizers::Model::id_to_token(self.inner.whole.get_model(), token));
        known.or_else(|| self.inner.spellings.get(&token).cloned())
    }
}

/// A text with a run of each kind of character, and a run that mixes them.
pub(super) fn probe_text() -> String {
    let runs = ["a", "A", " ", "1", "!", "\n", "é", "世", "'", "aA1 !\n"];
    runs.map(|run| run.repeat(6400)).concat()
}

/// The end of the first slice of a canonical text: before a space between two ASCII letters outside
/// of control literals, or at the end of the text.
pub(super) fn slice_end(text: &str) -> usize {
    let at_space = |w: &[u8]| w[0].is_ascii_alphabetic() && w[1] == b' ' && w[2].is_ascii_alphabetic();
    let Some(rest) = text.as_bytes().get(SLICE_BYTES..) else { return text.len() };
    let mut spaces = rest.windows(3).enumerate().filter(|(_, w)| at_space(w)).map(|(at, _)| SLICE_BYTES + at + 1);
    spaces.find(|&at| text[..at].rfind(flat::OPEN) <= text[..at].rfind(flat::CLOSE)).unwrap_or(text.len())
}

/// Spellings of the tokens that open and close a thought: of Qwen3 and DeepSeek R1, Magistral,
/// Seed-OSS, Gemma 4, and fine-tunes.
pub(super) const THINK_TAGS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>", "<channel|>"),
    ("<thinking>", "</thinking>"),
];

/// Fails on ordinary ids outside the vocabulary, ids that the crate would assign differently, and
/// oversized tokens. Returns the bytes of the longest token. `tokens`: the ordinary tokens.
/// `listed`: the added tokens, as the file lists them.
pub(super) fn check_tokens(
    whole: &tokenizers::Tokenizer,
    tokens: &HashMap<String, Token>,
    listed: &[parts::Added],
    vocab: usize,
) -> Result<usize> {
    for token in listed {
        // The crate numbers added tokens itself and ignores the ids in the file.
        let given = whole.token_to_id(&token.content);
        ensure!(
            given == Some(token.id) || (token.id as usize) >= vocab,
            "tokenizer.json: added token {:?} has id {}, but its place in the list gives {}",
            token.content,
            token.id,
            given.map_or("none".to_owned(), |id| id.to_string())
        );
    }
    let is_added = |token: &str| listed.iter().any(|t| t.content == token);
    let beyond = tokens.iter().filter(|(token, id)| **id as usize >= vocab && !is_added(token));
    if let Some((token, id)) = beyond.min_by_key(|(_, id)| **id) {
        bail!("tokenizer.json: token {token:?} has id {id}, beyond the model's vocabulary of {vocab}");
    }
    let spellings = tokens.keys().chain(listed.iter().map(|t| &t.content));
    let longest = spellings.map(|token| stages::spelt_bytes(token)).max().unwrap_or(0);
    ensure!(
        longest <= LONGEST_TOKEN_BYTES,
        "tokenizer.json: a token has {longest} bytes, expected at most {LONGEST_TOKEN_BYTES}"
    );
    Ok(longest)
}

#[cfg(test)]
mod tests;
