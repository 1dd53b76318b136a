//! The turn being answered, and its chains if several answer.

use crate::chat::MessageId;
use crate::config::Width;
use crate::protocol::{ChainEvent, ChainReport, VoteCount};
use crate::unicode::end_of;

/// Bytes of a chain's text that are kept to show its last words.
const TAIL_BYTES: usize = 400;

/// The turn being answered.
#[derive(Clone, Debug)]
pub struct ActiveTurn {
    pub turn: u64,
    pub message: MessageId,
    pub started_ms: u64,
    /// Tokens of the prompt, once encoded.
    pub prompt_tokens: Option<usize>,
    /// Text has arrived.
    pub answering: bool,
    pub thinking_since_ms: Option<u64>,
    /// Milliseconds and tokens of the think block, once the answer began.
    pub thought: Option<(u64, usize)>,
    pub stopping: bool,
    /// How many chains are to answer.
    pub width: Width,
    /// The chains, while several answer.
    pub chains: Option<Chains>,
}

impl ActiveTurn {
    /// Delay before the preparation of the prompt is shown.
    const PREPARING_MS: u64 = 300;

    /// Returns when the preparation of the prompt is shown; `None` once it is encoded.
    pub fn shows_preparing_at(&self) -> Option<u64> {
        (self.prompt_tokens.is_none() && !self.answering).then_some(self.started_ms + Self::PREPARING_MS)
    }

    pub fn is_preparing(&self, now_ms: u64) -> bool {
        self.shows_preparing_at().is_some_and(|at| now_ms >= at)
    }

    /// Follows the chains.
    pub fn follow(&mut self, event: ChainEvent) {
        if let ChainEvent::Started(n) = event {
            self.chains = Some(Chains { each: vec![Chain::default(); n], ..Chains::default() });
        }
        let Some(chains) = &mut self.chains else { return };
        chains.revision += 1;
        match event {
            // The text of a chain is told apart at its end.
            ChainEvent::Started(_) | ChainEvent::WasThought { .. } => {}
            ChainEvent::Text { chain, text, .. } => {
                if let Some(chain) = chains.each.get_mut(chain) {
                    chain.tail += &text;
                    let rest = chain.tail.len() - end_of(&chain.tail, TAIL_BYTES).len();
                    chain.tail.drain(..rest);
                }
            }
            ChainEvent::Ended { chain, report, votes } => {
                chains.votes = votes;
                if let Some(chain) = chains.each.get_mut(chain) {
                    chain.report = Some(report);
                }
            }
            // The winner's text is the message's from here on.
            ChainEvent::Elected(_) => self.chains = None,
        }
    }
}

/// The chains of a turn as the screen shows them.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    pub each: Vec<Chain>,
    pub votes: Vec<VoteCount>,
    /// Changes with everything that is shown.
    pub revision: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// The end of its text.
    pub tail: String,
    /// Once it has ended.
    pub report: Option<Box<ChainReport>>,
}
