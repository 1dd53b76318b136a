//! One answer: what is asked for, and what its report says.

use super::chains::{ChainsReport, ChainsRequest};
use super::draft::DraftReport;
use super::grammar::{Grammar, GrammarError};
use super::kv_stats::KvStats;
use super::log::LogEntry;
use super::presence::Presence;
use super::sampling::SamplingParams;
use super::terms::{Piece, StopReason, Token};
use super::terms::{is_zero, present};
use super::twin::TwinReport;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A prompt, and how it is answered.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The whole conversation rendered by the template, including the generation prompt.
    pub prompt: Vec<Piece>,
    /// Bytes at the beginning of the prompt's canonical text that prompts of other conversations
    /// may have, too, such as the system prompt and tools. 0: none are known.
    pub shared: usize,
    pub sampling: SamplingParams,
    /// `None`: a random seed, which the report contains.
    pub seed: Option<u64>,
    /// `None`: the rest of the context.
    pub max_tokens: Option<usize>,
    /// Tokens after which a thought is closed, so that the model answers. `None`: never.
    pub max_think: Option<usize>,
    /// Most tokens that a step tries beside its own; 0: none. The answer is the same.
    pub drafts: usize,
    /// Texts that end the answer where the first of them begins. They are not part of it. A thought
    /// is not searched for them.
    pub stop: Vec<String>,
    /// Of a prompt that is answered in a slot: whether the cache evicts from what is read of it on.
    /// `None`: as the engine was started, after states alone that had it so from their beginning.
    pub eviction: Option<bool>,
    /// Whether the answer continues a text: all of it is the answer, with the tags of thoughts.
    pub raw: bool,
    /// Literals of control tokens that appear in the answer's text, such as the marks of calls.
    pub marks: Vec<String>,
    /// Grammar that the answer must follow, outside of its thought.
    pub grammar: Option<Grammar>,
    /// What is added to the logits of tokens before one is sampled.
    pub logit_bias: Vec<(Token, f32)>,
    /// Whether the log-probability of each token of the answer is reported, with those of so many
    /// others: [`Event::Likely`](super::Event::Likely).
    pub logprobs: Option<usize>,
}

impl Ask {
    /// Whether something is added to logits.
    pub fn adjusts(&self) -> bool {
        let SamplingParams { presence_penalty, frequency_penalty, .. } = self.sampling;
        presence_penalty != 0.0 || frequency_penalty != 0.0 || !self.logit_bias.is_empty()
    }
}

/// A turn to answer.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Number of the turn in the conversation, from 1 on; used in events, session files and
    /// [`Piece::Reply`].
    pub turn: u64,
    pub ask: Ask,
    /// A text of the prompt whose tokens are pinned.
    pub pin: Option<String>,
    /// Several chains answer, and a vote chooses one; `None` is one chain.
    pub chains: Option<ChainsRequest>,
}

/// The result of a turn: the numbers of `--json`, session files and the status line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    pub turn: u64,
    pub stop_reason: StopReason,
    /// Explains `error`, `cache_full` and `context_full`.
    pub detail: Option<String>,
    /// Tokens of the rendered prompt, including BOS.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    pub reused_tokens: usize,
    pub answer_tokens: usize,
    pub reasoning_tokens: usize,
    pub ttft_ms: Option<f64>,
    pub prefill_tok_s: Option<f64>,
    pub decode_tok_s: Option<f64>,
    pub reasoning_ms: Option<f64>,
    pub seed: u64,
    pub sampling: SamplingParams,
    pub eviction: bool,
    /// Slots dropped during the turn for want of memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forgotten_slots: u64,
    pub kv: KvStats,
    /// GPU memory of the process as the driver reports it; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// Energy that the GPU used during the turn, if it counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Statistics of drafts, if some were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftReport>,
    /// The comparison with a twin, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Box<TwinReport>>,
    /// The chains that answered, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chains: Option<Box<ChainsReport>>,
    /// The log after the turn: the first `log_base` entries of the log after the last report,
    /// [`LogChange`] or restore, then `log`.
    pub log_base: usize,
    pub log: Vec<LogEntry>,
    /// All generated ids, including the last one, which is not fed.
    pub generated: Vec<Token>,
    /// The text of [`Ask::stop`] that has ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_text: Option<String>,
    /// Index in `generated` of the first end of a thought that was not sampled but set, because of
    /// [`GenerateRequest::max_think`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_closed_at: Option<usize>,
    /// Number of generated tokens after which the reply was noticed to repeat itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_at: Option<usize>,
    /// The token after the log, which is not fed yet. The field is missing in files of older
    /// versions.
    #[serde(default, deserialize_with = "present")]
    pub pending: Option<Option<Token>>,
    /// False if cache and log went back to the start of the turn: the answer is on screen and in
    /// the file, but not part of the context.
    pub in_context: bool,
    /// Set if the turn was refused because of its grammar.
    #[serde(skip)]
    pub grammar_error: Option<GrammarError>,
    /// Contents of the cache at the end of the turn. Session files have the retention of each
    /// message instead.
    #[serde(skip)]
    pub presence: Option<Arc<Presence>>,
}

impl TurnReport {
    /// The report of a turn without tokens, and without a cache.
    pub fn empty(turn: u64) -> Self {
        Self {
            turn,
            stop_reason: StopReason::End,
            detail: None,
            prompt_tokens: 0,
            reused_tokens: 0,
            answer_tokens: 0,
            reasoning_tokens: 0,
            ttft_ms: None,
            prefill_tok_s: None,
            decode_tok_s: None,
            reasoning_ms: None,
            seed: 0,
            sampling: SamplingParams::default(),
            eviction: false,
            forgotten_slots: 0,
            kv: KvStats::default(),
            device_bytes: None,
            joules: None,
            draft: None,
            twin: None,
            chains: None,
            log_base: 0,
            log: Vec::new(),
            generated: Vec::new(),
            stop_text: None,
            thought_closed_at: None,
            repeats_at: None,
            pending: None,
            in_context: true,
            grammar_error: None,
            presence: None,
        }
    }
}
