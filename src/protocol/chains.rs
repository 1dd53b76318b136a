//! Several chains that answer one question, and their vote.

use super::number::or_zero;
use super::{StopReason, TextKind};
use serde::{Deserialize, Serialize};

/// Most chains of an answer.
pub const MAX_WIDTH: usize = 1024;
/// Most chains of a width that is chosen by itself.
pub const MAX_AUTO_WIDTH: usize = 32;

/// How many chains answer, and how one of them is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainsRequest {
    /// Number of chains; `None` is as many as fit. 1 is the ordinary answer.
    pub width: Option<usize>,
    /// End once the chains that still run cannot change the result.
    pub early_stop: bool,
    /// Whether the front end checks the answers: all chains end, and [`super::Command::Elect`] says
    /// which wins.
    pub checked: bool,
    /// Whether chains of a greedy answer are greedy, too, and so equal. Else they sample.
    pub may_equal: bool,
}

/// An answer and how many chains gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteCount {
    /// As the first of these chains wrote it.
    pub answer: String,
    pub count: usize,
}

/// Reply of one of several chains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainReport {
    /// The answer part, and the reasoning before it.
    pub answer: String,
    pub reasoning: String,
    /// The answer that it votes for, if it has one.
    pub extracted: Option<String>,
    /// `cancelled`: others decided before it had ended.
    pub stop_reason: StopReason,
    /// Number of generated tokens, and of those of thoughts. Files of older versions lack the
    /// second.
    pub tokens: usize,
    #[serde(default)]
    pub reasoning_tokens: usize,
    /// Slots that its steps attended to, per KV head and layer.
    #[serde(deserialize_with = "or_zero")]
    pub reads: f64,
    pub seed: u64,
}

impl ChainReport {
    /// The answer without the newlines around it, as a message shows it.
    pub fn shown(&self) -> &str {
        self.answer.trim_matches('\n')
    }

    /// The reasoning without the newlines around it; `None` if it is empty.
    pub fn shown_reasoning(&self) -> Option<&str> {
        Some(self.reasoning.trim_matches('\n')).filter(|text| !text.trim().is_empty())
    }
}

/// The chains of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainsReport {
    /// By number.
    pub chains: Vec<ChainReport>,
    /// Most votes first; among equal numbers, the lowest chain first.
    pub votes: Vec<VoteCount>,
    /// Number of the chain whose reply is the turn's.
    pub winner: usize,
    /// Whether a checker accepted the winner's answer.
    pub checked: bool,
    /// Whether the user ended the chains before the vote was decided. Missing in files of older
    /// versions.
    #[serde(default)]
    pub stopped: bool,
    /// Slots that the steps would have attended to without eviction, per KV head and layer.
    #[serde(deserialize_with = "or_zero")]
    pub dense_reads: f64,
}

impl ChainsReport {
    /// How the user ended the vote: `stopped, 1 vote`. `None` if it was decided.
    pub fn stop_in_words(&self) -> Option<String> {
        let votes: usize = self.votes.iter().map(|vote| vote.count).sum();
        self.stopped.then(|| format!("stopped, {votes} {}", if votes == 1 { "vote" } else { "votes" }))
    }

    /// The result of the vote: `8 chains: 5 x 42, 2 x 41`, with at most `most` answers, each as
    /// `show` shows it.
    pub fn votes_in_words(&self, most: usize, show: impl Fn(&str) -> String) -> String {
        let vote = |vote: &VoteCount| format!("{} x {}", vote.count, show(&vote.answer));
        let votes: Vec<String> = self.votes.iter().take(most).map(vote).collect();
        let more = if self.votes.len() > most { ", ..." } else { "" };
        let said = if votes.is_empty() { "none has an answer".to_owned() } else { votes.join(", ") };
        format!("{} chains: {said}{more}", self.chains.len())
    }
}

/// State of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    Running,
    /// Its pages were needed: it continues when there is room.
    Waiting,
    Ended,
}

/// Numbers of a chain, for the panels.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainFigures {
    pub state: ChainState,
    pub tokens: usize,
    pub live_slots: u64,
    /// Slots that its steps attended to, per KV head and layer, and would have without eviction.
    pub reads: f64,
    pub dense_reads: f64,
}

/// Events of the chains of a turn.
#[derive(Clone, Debug)]
pub enum ChainEvent {
    /// This many chains begin.
    Started(usize),
    /// Streamed text of a chain.
    Text { chain: usize, kind: TextKind, text: String },
    /// The answer of a chain so far was a thought: its end came without a beginning.
    WasThought { chain: usize },
    /// A chain has ended, and the votes so far.
    Ended { chain: usize, report: Box<ChainReport>, votes: Vec<VoteCount> },
    /// This chain's reply becomes the turn's.
    Elected(usize),
}
