//! Encoding of prompts. Replies keep the ids that they were generated with. A long text is encoded
//! on its own thread, so that a cancel takes effect at once.

use super::reply::ids_that_spell;
use crate::protocol::{Event, EventSender, Piece, Token};
use crate::tokenizer::{Tokenizer, flatten, unflatten};
use anyhow::{Result, anyhow};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Texts longer than this are encoded on their own thread.
const LONG_TEXT_BYTES: usize = 64 << 10;

/// A part of a prompt: text to encode, or known token ids.
pub(super) enum Stretch {
    /// `continues`: tokens stand before it, so that it is not the beginning of a text.
    Plain {
        pieces: Vec<Piece>,
        continues: bool,
    },
    Known(Vec<Token>),
}

impl Stretch {
    fn text_bytes(&self) -> usize {
        let text = |piece: &Piece| if let Piece::Text(text) = piece { text.len() } else { 0 };
        if let Self::Plain { pieces, .. } = self { pieces.iter().map(text).sum() } else { 0 }
    }
}

/// Splits a prompt into stretches, beginning at byte `skip` of its canonical text. `replies`:
/// generated ids by turn.
pub(super) fn stretches(
    tokenizer: &Tokenizer,
    prompt: &[Piece],
    skip: usize,
    replies: &HashMap<u64, Vec<Token>>,
) -> Vec<Stretch> {
    let (mut out, mut plain, mut at) = (Vec::new(), Vec::new(), 0);
    for piece in prompt {
        let flat = flatten(std::slice::from_ref(piece));
        let from = skip.saturating_sub(at).min(flat.len());
        at += flat.len();
        let known = match piece {
            Piece::Reply { turn, .. } if from == 0 => {
                replies.get(turn).and_then(|ids| ids_that_spell(tokenizer, ids, &flat))
            }
            _ => None,
        };
        match known {
            Some(ids) => {
                let pieces = std::mem::take(&mut plain);
                let continues = skip > 0 || !out.is_empty();
                out.extend([Stretch::Plain { pieces, continues }, Stretch::Known(ids)]);
            }
            None => plain.extend(unflatten(&flat[from..])),
        }
    }
    let continues = skip > 0 || !out.is_empty();
    out.push(Stretch::Plain { pieces: plain, continues });
    out
}

/// Encodes a text and sends its tokens. A long text is encoded on its own thread.
pub(super) fn send_tokens(tokenizer: &Arc<Tokenizer>, pieces: Vec<Piece>, events: EventSender) {
    let (tokenizer, failed) = (Arc::clone(tokenizer), events.clone());
    let stretch = Stretch::Plain { pieces, continues: false };
    let is_long = stretch.text_bytes() > LONG_TEXT_BYTES;
    let encode = move || {
        let tokens = encode_all(&tokenizer, &[stretch], &AtomicBool::new(false));
        events.event(Event::Encoded(tokens.map_err(|error| format!("{error:#}"))));
    };
    if !is_long {
        encode();
    } else if let Err(error) = std::thread::Builder::new().name("encode".into()).spawn(encode) {
        failed.event(Event::Encoded(Err(error.to_string())));
    }
}

/// The encoding of a prompt. Dropping it stops its thread.
pub(super) struct Encoding {
    result: Receiver<Result<Vec<Token>>>,
    stop: Arc<AtomicBool>,
}

impl Encoding {
    /// Encodes a short prompt, or starts a thread that encodes a long one.
    pub fn start(tokenizer: &Arc<Tokenizer>, stretches: Vec<Stretch>) -> Self {
        let (send, result) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (tokenizer, stopped, failed) = (Arc::clone(tokenizer), Arc::clone(&stop), send.clone());
        let is_long = stretches.iter().map(Stretch::text_bytes).sum::<usize>() > LONG_TEXT_BYTES;
        let encode = move || drop(send.send(encode_all(&tokenizer, &stretches, &stopped)));
        if !is_long {
            encode();
        } else if let Err(error) = std::thread::Builder::new().name("encode".into()).spawn(encode) {
            let _ = failed.send(Err(error.into()));
        }
        Self { result, stop }
    }

    /// Waits for the tokens.
    pub fn wait(self) -> Result<Vec<Token>> {
        self.result.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Returns the tokens once they are available.
    pub fn poll(&self) -> Option<Result<Vec<Token>>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ended())),
        }
    }
}

fn ended() -> anyhow::Error {
    anyhow!("the thread that encodes the prompt has ended")
}

impl Drop for Encoding {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Encodes a prompt. Returns early with some of the tokens if `stop` is set.
fn encode_all(tokenizer: &Tokenizer, stretches: &[Stretch], stop: &AtomicBool) -> Result<Vec<Token>> {
    let mut out = Vec::new();
    for stretch in stretches {
        match stretch {
            Stretch::Known(ids) => out.extend(ids),
            Stretch::Plain { pieces, continues } => {
                out.extend(tokenizer.encode_unless(pieces, *continues, stop)?.unwrap_or_default());
            }
        }
    }
    Ok(out)
}
