//! Encodes pieces of a rendered conversation to token ids, and decodes ids to whole characters.
//! Owns the rule that content never becomes a control token. Knows nothing of models, templates or
//! files.
//!
//! It holds two instances of the tokenizer: the complete one, and one without added tokens.
//! Everything that a person wrote is encoded by the second, which does not know `<|im_start|>`.

pub mod decoder;
pub mod flat;
mod parts;

pub use decoder::Decoder;
pub use flat::{flatten, unflatten};

use crate::protocol::{Piece, Token};
use crate::unicode::{one_line, one_line_error};
use anyhow::{Context, Result, anyhow, bail, ensure};
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::time::Duration;
use tokenizers::{AddedToken, AddedVocabulary, ModelWrapper};

/// Longest token in bytes, which bounds the bytes of a prompt. Known tokenizers have up to 512.
const LONGEST_TOKEN_BYTES: usize = 4096;
/// Long texts are encoded in slices of about this size if that gives the same tokens.
const SLICE_BYTES: usize = 64 << 10;
/// Time limit of unknown patterns for [`probe_text`]. A pattern with quadratic time would need
/// minutes.
const PROBE_TIME: Duration = Duration::from_secs(5);

/// A loaded `tokenizer.json`. Clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    whole: tokenizers::Tokenizer,
    /// Without added tokens and post-processor: encodes content.
    plain: tokenizers::Tokenizer,
    /// Added tokens: literal to id.
    control: HashMap<String, Token>,
    added: HashMap<Token, AddedToken>,
    vocab: usize,
    /// Bytes of the longest token.
    longest: usize,
    /// See [`parts::Checked::splits_at_spaces`].
    splits_at_spaces: bool,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json` for a model of `vocab` embeddings. Refuses unknown or unbounded parts
    /// ([`parts`]), ids at or above `vocab`, and added tokens that the tokenizers crate would give
    /// another id.
    pub fn new(json: &[u8], vocab: usize) -> Result<Self> {
        Self::read(json, vocab).map_err(one_line_error)
    }

    fn read(json: &[u8], vocab: usize) -> Result<Self> {
        ensure!(!json.is_empty(), "the model has no tokenizer.json, so it can neither read nor write text");
        let mut checked = parts::check(json, vocab)?;
        let mut whole = guarded("reading tokenizer.json", || tokenizers::Tokenizer::from_bytes(json))?;
        // The model has no embedding for such a token (Gemma 3 1B has the tokenizer of those that see): text never becomes it,
        // and a template that writes it is refused.
        let is_unused = |id: Token| id as usize >= vocab;
        if checked.added.iter().any(|token| is_unused(token.id)) {
            checked.added.retain(|token| !is_unused(token.id));
            let mut added: Vec<(Token, AddedToken)> = whole.get_added_tokens_decoder().into_iter().collect();
            added.retain(|(id, _)| !is_unused(*id));
            added.sort_by_key(|(id, _)| *id);
            whole.with_added_vocabulary(AddedVocabulary::new());
            let added = added.into_iter().map(|(_, token)| token);
            guarded("reading tokenizer.json", || whole.add_tokens(added))?;
        }
        whole.with_padding(None);
        whole.with_truncation(None).map_err(|e| anyhow!("tokenizer.json: {e}"))?;
        ensure!(
            matches!(whole.get_model(), ModelWrapper::BPE(_)),
            "tokenizer.json: its model is not BPE, as is needed"
        );
        let longest = check_tokens(&whole, &checked.added, vocab)?;

        let mut plain = whole.clone();
        plain.with_added_vocabulary(AddedVocabulary::new());
        plain.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        // Gemma's has runs of line feeds and tabs, which are text.
        let is_text = |t: &AddedToken| !t.special && t.content.chars().all(|c| c.is_whitespace() || c == '\u{2581}');
        let added = whole.get_added_tokens_decoder().into_iter().filter(|(_, token)| !is_text(token));
        let added: HashMap<Token, AddedToken> = added.collect();
        let control = added.iter().map(|(&id, t)| (t.content.clone(), id)).collect();
        let fingerprint = Sha256::digest(json).iter().map(|b| format!("{b:02x}")).collect();
        let splits_at_spaces = checked.splits_at_spaces;
        let inner = Inner { whole, plain, control, added, vocab, longest, splits_at_spaces, fingerprint };
        let out = Self { inner: Arc::new(inner) };
        if !checked.patterns.iter().all(|p| parts::is_known_pattern(p)) {
            out.probe(PROBE_TIME)?;
        }
        Ok(out)
    }

    /// Encodes a rendered conversation. A control piece becomes its token; adjacent texts are
    /// encoded as one, without added tokens. An unknown control literal is an error.
    pub fn encode_pieces(&self, pieces: &[Piece]) -> Result<Vec<Token>> {
        Ok(self.encode_unless(pieces, &AtomicBool::new(false))?.unwrap_or_default())
    }

    /// Like [`Self::encode_pieces`], but returns `None` if `stop` is set meanwhile. `stop` is
    /// checked between pieces and between slices of long texts.
    pub fn encode_unless(&self, pieces: &[Piece], stop: &AtomicBool) -> Result<Option<Vec<Token>>> {
        let mut out = Vec::new();
        let mut text = String::new();
        let mut after: Option<&AddedToken> = None;
        for piece in flat::normalise(pieces) {
            match piece {
                Piece::Control(literal) => {
                    let id = self.token_for(&literal).with_context(|| {
                        format!("the template writes {literal:?}, which is not an added token of tokenizer.json")
                    })?;
                    let token = &self.inner.added[&id];
                    self.encode_between(&mut out, after, &text, Some(token), stop)?;
                    text.clear();
                    out.push(id);
                    after = Some(token);
                }
                Piece::Text(t) => text.push_str(&t),
                Piece::Reply { .. } => unreachable!("normalise flattens replies"),
            }
        }
        self.encode_between(&mut out, after, &text, None, stop)?;
        Ok((!stop.load(Ordering::Relaxed)).then_some(out))
    }

    /// Encodes the content between two control tokens, which may strip adjacent white space.
    fn encode_between(
        &self,
        out: &mut Vec<Token>,
        before: Option<&AddedToken>,
        text: &str,
        after: Option<&AddedToken>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let text = if before.is_some_and(|t| t.rstrip) { text.trim_start() } else { text };
        let text = if after.is_some_and(|t| t.lstrip) { text.trim_end() } else { text };
        let mut rest = text;
        while !rest.is_empty() && !stop.load(Ordering::Relaxed) {
            let (slice, after) = rest.split_at(if self.inner.splits_at_spaces { slice_end(rest) } else { rest.len() });
            self.encode_plain(out, slice, 0)?;
            rest = after;
        }
        Ok(())
    }

    /// The vocabulary itself may contain control tokens (byte-level vocabularies that ignore
    /// merges, unigram ones). Such a match is split after its first character.
    fn encode_plain(&self, out: &mut Vec<Token>, text: &str, depth: usize) -> Result<()> {
        let fast = guarded("encoding text", || self.inner.plain.encode_fast(text, false))?;
        let hit = fast.get_ids().iter().position(|&id| self.is_control(id));
        let Some(hit) = hit else {
            out.extend_from_slice(fast.get_ids());
            return Ok(());
        };
        // Only this case needs the offsets of tokens.
        let encoding = guarded("encoding text", || self.inner.plain.encode(text, false))?;
        let (start, end) = encoding.get_offsets()[hit];
        let first = text.get(start..end).and_then(|s| s.chars().next()).map_or(0, char::len_utf8);
        let cut = start + first;
        ensure!(
            first > 0 && cut < text.len() && cut < end && depth < 1000,
            "the text spells the control token {:?}, and tokenizer.json has no other way to write it",
            self.literal(encoding.get_ids()[hit])
        );
        self.encode_plain(out, &text[..cut], depth + 1)?;
        self.encode_plain(out, &text[cut..], depth + 1)
    }

    /// Encodes a text with the post-processor of tokenizer.json, which may add a BOS. Literals of
    /// added tokens become those tokens: for measurements of files, never for a chat.
    pub fn encode_text(&self, text: &str) -> Result<Vec<Token>> {
        let encoding = guarded("encoding text", || self.inner.whole.encode_fast(text, true))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes `tokens`, with control tokens as their literals. Unknown ids give no text, invalid
    /// UTF-8 gives U+FFFD.
    pub fn decode(&self, tokens: &[Token]) -> Result<String> {
        guarded("decoding tokens", || self.inner.whole.decode(tokens, false))
    }

    /// Returns a decoder for one stream of tokens.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self)
    }

    /// Literals of all added tokens, longest first, so that the first match is the longest.
    pub fn added_literals(&self) -> Vec<String> {
        let mut all: Vec<String> = self.inner.control.keys().cloned().collect();
        all.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        all
    }

    /// The id of an added token, by its literal.
    pub fn token_for(&self, literal: &str) -> Option<Token> {
        self.inner.control.get(literal).copied()
    }

    /// Whether `token` is one of the added tokens.
    pub fn is_control(&self, token: Token) -> bool {
        self.inner.added.contains_key(&token)
    }

    /// The spelling of a token in tokenizer.json (byte-level for ordinary tokens); empty for an
    /// unknown id.
    pub fn literal(&self, token: Token) -> String {
        match self.inner.added.get(&token) {
            Some(t) => t.content.clone(),
            None => self.inner.whole.id_to_token(token).unwrap_or_default(),
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

    /// Fails if the patterns need longer than `limit` for an ordinary text. They run on their own
    /// thread, because a running pattern cannot be stopped.
    fn probe(&self, limit: Duration) -> Result<()> {
        let (send, receive) = mpsc::channel();
        let plain = self.clone();
        let encode = move || drop(send.send(plain.encode_pieces(&[Piece::Text(probe_text())]).map(drop)));
        std::thread::Builder::new().name("probe".into()).spawn(encode).context("a thread to try tokenizer.json on")?;
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

    /// The spelling that the decoder of tokenizer.json reads.
    fn spelling(&self, token: Token) -> Option<String> {
        let added = self.inner.whole.get_added_vocabulary().simple_id_to_token(token);
        added.or_else(|| tokenizers::Model::id_to_token(self.inner.whole.get_model(), token))
    }
}

/// A text with runs of every kind of character and a mixture of them.
fn probe_text() -> String {
    let runs = ["a", "A", " ", "1", "!", "\n", "é", "世", "'", "aA1 !\n"];
    runs.map(|run| run.repeat(6400)).concat()
}

/// The end of the first slice of a text: before a space between two ASCII letters, or at the end of
/// the text.
fn slice_end(text: &str) -> usize {
    let at_space = |w: &[u8]| w[0].is_ascii_alphabetic() && w[1] == b' ' && w[2].is_ascii_alphabetic();
    let found = text.as_bytes().get(SLICE_BYTES..).and_then(|rest| rest.windows(3).position(at_space));
    found.map_or(text.len(), |at| SLICE_BYTES + at + 1)
}

/// Fails on ids outside the vocabulary, ids that the crate would assign differently, and oversized
/// tokens. Returns the bytes of the longest token.
fn check_tokens(whole: &tokenizers::Tokenizer, said: &[parts::Added], vocab: usize) -> Result<usize> {
    for token in said {
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
    let tokens = whole.get_vocab(true);
    let said_ids = said.iter().map(|t| (&t.content, &t.id));
    let beyond = tokens.iter().chain(said_ids).filter(|(_, id)| **id as usize >= vocab);
    if let Some((token, id)) = beyond.min_by_key(|(_, id)| **id) {
        bail!("tokenizer.json: token {token:?} has id {id}, beyond the model's vocabulary of {vocab}");
    }
    let longest = tokens.keys().map(|token| decoder::spelt_bytes(token)).max().unwrap_or(0);
    ensure!(
        longest <= LONGEST_TOKEN_BYTES,
        "tokenizer.json: a token has {longest} bytes, expected at most {LONGEST_TOKEN_BYTES}"
    );
    Ok(longest)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls the tokenizers crate and turns its errors and panics (a bad file makes it panic) into one
/// line. Suppresses the panic message.
fn guarded<T>(what: &str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let inherited = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.with(Cell::get) {
                inherited(info);
            }
        }));
    });
    let was = QUIET.with(|q| q.replace(true));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    QUIET.with(|q| q.set(was));
    match outcome {
        Ok(result) => result.map_err(|e| anyhow!("{what} failed: {}", one_line(&e.to_string()))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            bail!("{what} failed: the tokenizers crate panicked: {}", one_line(text))
        }
    }
}

#[cfg(test)]
mod tests;
