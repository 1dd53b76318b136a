//! Probes: questions beside a conversation that do not change it. They run on a sequence of their
//! own, one after another and after the requests before them;
//! [`Command::Cancel`](super::Command::Cancel) drops them.

use super::{Ask, Piece, RecallRequest, Recalled, StopReason, TextKind, Token, TurnReport};

/// The question.
#[derive(Clone, Debug)]
pub enum Probe {
    /// Whether the model still knows a text.
    Recall(Box<RecallRequest>),
    /// An answer that is not part of the conversation. `dense`: from its own cache, which drops
    /// nothing.
    Aside { ask: Box<Ask>, dense: bool },
    /// How probable each token of the last answer was. These are its tokens.
    Logprobs(Vec<Token>),
}

impl From<RecallRequest> for Probe {
    fn from(request: RecallRequest) -> Self {
        Self::Recall(Box::new(request))
    }
}

impl Ask {
    /// Asks it beside the conversation.
    pub fn aside(self, dense: bool) -> Probe {
        Probe::Aside { ask: Box::new(self), dense }
    }
}

impl Probe {
    /// What is found where it is not available.
    pub fn refused(self, why: &str) -> Finding {
        let why = why.to_owned();
        match self {
            Self::Recall(_) => Finding::Recalled(Err(why)),
            Self::Logprobs(_) => Finding::Logprobs(Err(why)),
            Self::Aside { dense, .. } => {
                let report = TurnReport { stop_reason: StopReason::Error, detail: Some(why), ..TurnReport::empty(0) };
                Finding::Said { dense, report: Box::new(report) }
            }
        }
    }

    /// Sets the prompts of the question, with and without the conversation, if they are needed.
    pub fn set_prompts(&mut self, prompt: Vec<Piece>, alone: Vec<Piece>) {
        match self {
            Self::Recall(request) => (request.prompt, request.alone) = (prompt, alone),
            Self::Aside { ask, .. } => ask.prompt = prompt,
            Self::Logprobs(_) => {}
        }
    }
}

/// The result.
#[derive(Clone, Debug)]
pub enum Finding {
    /// How much of a text the model knows, or why that was not asked.
    Recalled(Result<Box<Recalled>, String>),
    /// Streamed text of an answer aside.
    Text { dense: bool, kind: TextKind, text: String },
    /// The end of an answer aside. The report's turn is 0, and its log is empty.
    Said { dense: bool, report: Box<TurnReport> },
    /// The tokens of the answer, or why they were not read again.
    Logprobs(Result<Vec<TokenChoice>, String>),
}

impl Finding {
    /// Text to print as it comes. The text of a cache that drops nothing follows as a whole.
    pub fn streamed(&self) -> Option<(TextKind, &str)> {
        if let Self::Text { dense: false, kind, text } = self { Some((*kind, text)) } else { None }
    }
}

/// A token of an answer, and those that were most probable in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenChoice {
    pub said: Likely,
    /// The most probable others, in order.
    pub others: Vec<Likely>,
}

/// A token and its log-probability before temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    pub text: String,
    pub logprob: f64,
}
