//! A turn: finds the longest kept prefix of the prompt, prepares the chain to prefill the rest and
//! generate the answer, and reports the result.

use super::super::chain::Chain;
use super::super::context::Context;
use super::super::draft::MAX_MATCH;
use super::asked::Asked;
use crate::protocol::{ChainsReport, ChainsRequest, GenerateRequest, LogEntry, Phase, Token};

/// The state that a turn starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Base {
    /// The current context, which the prompt continues.
    Current,
    /// The snapshot of this index.
    Kept(usize),
    Nothing,
}

/// The state to return to if the turn fails.
pub(super) struct Start {
    pub(super) log: Vec<LogEntry>,
    pub(super) flat: String,
    pub(super) pending: Option<Token>,
    pub(super) is_cut: bool,
}

impl Start {
    pub(super) fn of(context: &Context) -> Self {
        let Context { log, flat, pending, is_cut, .. } = context;
        Self { log: log.clone(), flat: flat.clone(), pending: *pending, is_cut: *is_cut }
    }
}

pub(in crate::engine) struct Turn {
    /// The number of the turn in the conversation.
    pub id: u64,
    pub asked: Asked,
    /// A text of the prompt whose tokens are pinned.
    pub(super) pin: Option<String>,
    /// Several chains are to answer and were not forked yet.
    pub wanted: Option<ChainsRequest>,
    /// Bytes of the prompt's text that the state held for which the rest was encoded.
    pub(super) skip: usize,
    /// `None` until the turn changes the conversation.
    pub(super) start: Option<Start>,
    /// The chains that answered, once one has won.
    pub chains: Option<Box<ChainsReport>>,
    /// Most distinct pages that they and the prompt held.
    pub shared_pages: Option<usize>,
}

impl Turn {
    pub(super) fn new(request: GenerateRequest) -> Self {
        let GenerateRequest { turn: id, ask, pin, chains: wanted } = request;
        Self { id, asked: Asked::new(ask), pin, wanted, skip: 0, start: None, chains: None, shared_pages: None }
    }

    /// Whether it waits for the tokens of its prompt.
    pub fn is_encoding(&self) -> bool {
        self.asked.is_encoding()
    }

    /// Work of the chain. If a reply of several chains was chosen, it is replayed.
    pub fn phase(&self, chain: &Chain) -> Phase {
        if self.chains.is_some() { Phase::Decode } else { self.asked.phase(chain) }
    }
}

/// The tokens of an abandoned state from the first that differs from the prompt, after up to
/// [`MAX_MATCH`] equal ones.
pub(super) fn replaced(left: &Context, prompt: impl Iterator<Item = Token>) -> Vec<Token> {
    let left: Vec<Token> = left.tokens().chain(left.pending).collect();
    let same = left.iter().zip(prompt).take_while(|(a, b)| *a == b).count();
    if same == left.len() { Vec::new() } else { left[same.saturating_sub(MAX_MATCH)..].to_vec() }
}
