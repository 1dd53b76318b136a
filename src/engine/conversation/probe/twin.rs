//! The twin of a conversation: a sequence without eviction that is fed the same tokens. It shows
//! where eviction changes the model's expectation.
//!
//! The twin has its own steps, some tokens behind the answer. The answer's steps, and so the
//! answer, are the same with and without it, on every backend. If its pages are needed, the twin is
//! released.

use crate::backend::Backend;
use crate::cache::SeqId;
use crate::engine::chain::Generation;
use crate::engine::loaded::Loaded;
use crate::engine::reply::{Reply, Vocabulary, flat_of};
use crate::engine::think::Said;
use crate::protocol::{TextKind, Token, TwinDifference, TwinReport};
use crate::sampler::{divergence, log_softmax, sample};
use crate::unicode::end_of;
use std::collections::{BTreeSet, VecDeque};

/// Tokens of the answer that are compared in one step.
pub(super) const ROWS: usize = 16;
/// Bytes of the answer that a report quotes before a difference.
pub(super) const QUOTED: usize = 40;

pub(in crate::engine) struct Twin {
    /// `None` once it was released in the middle of an answer, whose report quotes the comparison
    /// so far.
    pub seq: Option<SeqId>,
    pub(super) fed: Vec<Token>,
    /// Logits of the answer whose tokens the twin was not fed yet, in order.
    pub(super) waiting: VecDeque<Row>,
    /// Index of the next token to compare.
    pub(super) next: usize,
    /// Where the twin first chose another token, and which.
    pub(super) first: Option<(usize, Token)>,
    pub(super) report: TwinReport,
}

/// Prediction of the conversation after a token.
pub(super) struct Row {
    /// Position of the token that was fed.
    pub(super) position: usize,
    pub(super) logits: Vec<f32>,
}

impl Twin {
    /// Compares the conversation's expectation with the twin's, for the token sampled after
    /// `row.position`.
    pub(super) fn compare(&mut self, row: &Row, twin: &[f32], generation: &Generation) {
        let Some(&said) = generation.generated.get(self.next) else { return };
        let kl = divergence(&log_softmax(twin), &log_softmax(&row.logits));
        // Rounding may leave a tiny negative sum; five digits are more than a bar shows.
        self.report.kl.push((kl.clamp(0.0, f32::MAX.into()) * 1e5).round() as f32 / 1e5);
        let params = &generation.sampling;
        let penalised = params.repetition_penalty != 1.0;
        let fed: BTreeSet<Token> = self.fed[..if penalised { row.position + 1 } else { 0 }].iter().copied().collect();
        let choice = sample(&mut twin.to_vec(), params, fed, generation.seed, row.position as u64 + 1);
        if choice != said {
            self.report.differences += 1;
            self.first.get_or_insert((self.next, choice));
        }
        self.next += 1;
    }

    pub(super) fn begin_answer(&mut self) {
        self.waiting.clear();
        (self.next, self.first, self.report) = (0, None, TwinReport::default());
    }

    /// The report of the answer `generated`.
    pub(super) fn finish<B: Backend>(&mut self, m: &Loaded<B>, generated: &[Token]) -> TwinReport {
        let mut report = std::mem::take(&mut self.report);
        let geometry = m.runner.cache.geometry();
        let pages = self.seq.map_or(0, |_| geometry.dense_pages(self.fed.len()));
        report.bytes = pages as u64 * geometry.page_bytes() as u64;
        let first = self.first.filter(|(at, _)| *at < generated.len());
        report.first = first.map(|(at, choice)| difference(&m.vocabulary, generated, at, choice));
        report
    }
}

pub(super) fn difference(vocabulary: &Vocabulary, generated: &[Token], at: usize, choice: Token) -> TwinDifference {
    let tokenizer = &vocabulary.tokenizer;
    let before = flat_of(tokenizer, generated[..at].iter().copied()).0;
    let text = |token: Token| flat_of(tokenizer, [token]).0;
    let answer_bytes = answer_bytes(vocabulary, generated, at);
    TwinDifference {
        at,
        answer_bytes,
        after: end_of(&before, QUOTED).to_owned(),
        said: text(generated[at]),
        instead: text(choice),
    }
}

/// Bytes of the answer that the first `n` tokens spell; `None` if they end in a think block.
pub(super) fn answer_bytes(vocabulary: &Vocabulary, generated: &[Token], n: usize) -> Option<usize> {
    // The prompt may have opened a block that the answer closes.
    let thinks = match vocabulary.think.tokens {
        Some((open, close)) => {
            let first = |tag: Token| generated.iter().position(|token| *token == tag).unwrap_or(usize::MAX);
            first(close) < first(open)
        }
        None => {
            let text = flat_of(&vocabulary.tokenizer, generated.iter().copied()).0;
            let first = |tag: &str| text.find(tag).unwrap_or(usize::MAX);
            first(&vocabulary.think.close) < first(&vocabulary.think.open)
        }
    };
    let (mut reply, mut bytes) = (Reply::new(vocabulary, thinks), 0);
    for &token in &generated[..n] {
        for said in reply.push(token, vocabulary).said {
            match said {
                Said::Text(TextKind::Answer, text) => bytes += text.len(),
                Said::Text(TextKind::Reasoning, _) => {}
                Said::WasThought => bytes = 0,
            }
        }
    }
    (!reply.is_thinking()).then_some(bytes)
}
