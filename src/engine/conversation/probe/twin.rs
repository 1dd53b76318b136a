//! The twin of a conversation: a sequence without eviction that is fed the same tokens. It shows
//! where eviction changes the model's expectation.
//!
//! The twin has its own steps, some tokens behind the answer. The answer's steps, and so the
//! answer, are the same with and without it, on every backend. If its pages are needed, the twin is
//! released.

use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::engine::chain::Generation;
use crate::engine::conversation::{Conversation, Work};
use crate::engine::loaded::Loaded;
use crate::engine::reply::{Reply, Vocabulary, flat_of};
use crate::engine::runner::{NonFinite, Runner, StepError};
use crate::engine::scheduler::Stage;
use crate::engine::think::Said;
use crate::protocol::{Event, EventSender, TextKind, Token, TwinDifference, TwinReport, bytes};
use crate::sampler::{divergence, log_softmax, sample};
use crate::unicode::end_of;
use std::collections::{BTreeSet, VecDeque};

/// Tokens of the answer that are compared in one step.
const ROWS: usize = 16;
/// Bytes of the answer that a report quotes before a difference.
const QUOTED: usize = 40;

pub(in crate::engine) struct Twin {
    /// `None` once it was released in the middle of an answer, whose report quotes the comparison
    /// so far.
    pub seq: Option<SeqId>,
    fed: Vec<Token>,
    /// Logits of the answer whose tokens the twin was not fed yet, in order.
    waiting: VecDeque<Row>,
    /// Index of the next token to compare.
    next: usize,
    /// Where the twin first chose another token, and which.
    first: Option<(usize, Token)>,
    report: TwinReport,
}

/// Prediction of the conversation after a token.
struct Row {
    /// Position of the token that was fed.
    position: usize,
    logits: Vec<f32>,
}

impl Twin {
    /// Compares the conversation's expectation with the twin's, for the token sampled after
    /// `row.position`.
    fn compare(&mut self, row: &Row, twin: &[f32], generation: &Generation) {
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

    fn begin_answer(&mut self) {
        self.waiting.clear();
        (self.next, self.first, self.report) = (0, None, TwinReport::default());
    }

    /// The report of the answer `generated`.
    fn finish<B: Backend>(&mut self, m: &Loaded<B>, generated: &[Token]) -> TwinReport {
        let mut report = std::mem::take(&mut self.report);
        let geometry = m.runner.cache.geometry();
        let pages = self.seq.map_or(0, |_| geometry.dense_pages(self.fed.len()));
        report.bytes = pages as u64 * geometry.page_bytes() as u64;
        let first = self.first.filter(|(at, _)| *at < generated.len());
        report.first = first.map(|(at, choice)| difference(&m.vocabulary, generated, at, choice));
        report
    }
}

fn difference(vocabulary: &Vocabulary, generated: &[Token], at: usize, choice: Token) -> TwinDifference {
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
fn answer_bytes(vocabulary: &Vocabulary, generated: &[Token], n: usize) -> Option<usize> {
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

impl<B: Backend> Conversation<B> {
    /// Switches the twin on for the next answers, or off.
    pub fn set_twin(&mut self, m: &mut Loaded<B>, events: &EventSender, on: bool) {
        let why = on.then(|| self.twin_refusal(m)).flatten();
        self.twin_wanted = on && why.is_none();
        if !self.twin_wanted {
            self.release_twin(&mut m.runner);
            m.trim();
        }
        self.publish(m);
        events.event(Event::TwinSet { on: self.twin_wanted, why });
    }

    fn twin_refusal(&self, m: &Loaded<B>) -> Option<String> {
        if !m.has_policy() {
            return Some(format!("{} keeps everything: a twin would be the same", m.info.identity.name));
        }
        let free = m.runner.cache.free_pages(m.runner.backend())?;
        let tokens = self.chain.context.len(&m.runner);
        let need = m.runner.cache.geometry().dense_pages(tokens);
        let in_bytes = |pages: usize| bytes((pages * m.runner.cache.geometry().page_bytes()) as u64);
        (need > free).then(|| {
            format!(
                "no room for a twin: a dense cache of {tokens} tokens takes {}, and {} are free",
                in_bytes(need),
                in_bytes(free)
            )
        })
    }

    pub fn release_twin(&mut self, runner: &mut Runner<B>) {
        self.twin.take().and_then(|twin| twin.seq).into_iter().for_each(|seq| runner.release(seq));
    }

    /// Releases the twin because its memory is needed or its step failed. Returns false if there is
    /// none.
    pub fn give_up_twin(&mut self, runner: &mut Runner<B>, why: &str) -> bool {
        let Some(seq) = self.twin.as_mut().and_then(|twin| twin.seq.take()) else { return false };
        runner.release(seq);
        self.twin.iter_mut().for_each(|twin| twin.waiting.clear());
        self.twin_wanted = false;
        self.outlet.event(Event::TwinSet { on: false, why: Some(why.to_owned()) });
        true
    }

    /// Prepares the twin for an answer whose context is set. Makes another if it was fed other
    /// tokens.
    pub fn begin_twin(&mut self, m: &mut Loaded<B>) {
        let (runner, context) = (&mut m.runner, &self.chain.context);
        let follows = |twin: &Twin| {
            let n = twin.fed.len();
            twin.seq.is_some() && n <= context.len(runner) && context.tokens().take(n).eq(twin.fed.iter().copied())
        };
        if !self.twin.as_ref().is_some_and(follows) {
            self.release_twin(runner);
        }
        if !self.twin_wanted {
            return;
        }
        if self.twin.is_none() {
            let seq = loop {
                match m.runner.create(false) {
                    Ok(seq) => break seq,
                    Err(CacheError::Sequences(_)) if m.give_up_snapshot() => {}
                    Err(error) => {
                        self.twin_wanted = false;
                        let why = Some(format!("no room for a twin: {error}"));
                        return self.outlet.event(Event::TwinSet { on: false, why });
                    }
                }
            };
            let (fed, waiting, report) = (Vec::new(), VecDeque::new(), TwinReport::default());
            self.twin = Some(Twin { seq: Some(seq), fed, waiting, next: 0, first: None, report });
        }
        if let Some(twin) = &mut self.twin {
            twin.begin_answer();
        }
    }

    /// Keeps the logits of row `row` of the decode step that just ran, for the twin.
    pub fn keep_logits(&mut self, runner: &mut Runner<B>, row: usize) -> Result<(), NonFinite> {
        let Some(twin) = self.twin.as_mut().filter(|twin| twin.seq.is_some()) else { return Ok(()) };
        let position = self.chain.context.len(runner) - 1;
        runner.logits(row..row + 1, |_, logits| twin.waiting.push_back(Row { position, logits: logits.to_vec() }))
    }

    /// Whether the report of the answer waits for the twin.
    pub fn waits_for_twin(&self) -> bool {
        let answers = matches!(self.job.as_ref().map(|job| &job.work), Some(Work::Answer(_)));
        answers && self.twin.as_ref().is_some_and(|twin| !twin.waiting.is_empty())
    }

    /// Runs a step of the twin if it is due: while it lacks tokens of the prompt, and for some
    /// tokens of the answer at a time. `size`: maximum tokens of the step.
    pub fn step_twin(&mut self, m: &mut Loaded<B>, size: usize) {
        let runner = &mut m.runner;
        let Some(twin) = self.twin.as_ref().filter(|twin| twin.seq.is_some()) else { return };
        let answers = matches!(self.job.as_ref().map(|job| &job.work), Some(Work::Answer(_)));
        let behind = self.chain.context.len(runner).saturating_sub(twin.fed.len());
        let rows = twin.waiting.len();
        let due = behind > rows || rows >= ROWS || (rows > 0 && self.chain.stage() == Stage::Done);
        if !answers || behind == 0 || !due {
            return;
        }
        if let Err(error) = self.feed_twin(runner, behind.min(size)) {
            self.give_up_twin(runner, &format!("the twin stopped: {error}"));
        }
    }

    fn feed_twin(&mut self, runner: &mut Runner<B>, n: usize) -> Result<(), StepError> {
        let (Some(twin), Some(generation)) = (&mut self.twin, &self.chain.generation) else { return Ok(()) };
        let Some(seq) = twin.seq else { return Ok(()) };
        let from = twin.fed.len();
        let tokens: Vec<Token> = self.chain.context.tokens().skip(from).take(n).collect();
        runner.feed(seq, &tokens)?;
        runner.check_finite()?;
        twin.fed.extend(&tokens);
        let fed = twin.waiting.iter().take_while(|row| row.position < from + tokens.len()).count();
        let rows: Vec<Row> = twin.waiting.drain(..fed).collect();
        for row in rows {
            let Some(at) = row.position.checked_sub(from) else { continue };
            let mut logits = Vec::new();
            runner.logits(at..at + 1, |_, row| logits.extend_from_slice(row))?;
            twin.compare(&row, &logits, generation);
        }
        Ok(())
    }

    /// Ends the comparison of an answer. `None` if there was no twin.
    pub fn twin_report(&mut self, m: &Loaded<B>, generated: &[Token]) -> Option<TwinReport> {
        let mut report = self.twin.as_mut()?.finish(m, generated);
        report.kl.truncate(generated.len());
        (!report.kl.is_empty()).then_some(report)
    }
}
