//! The twin of an answer: when it begins, its steps, and what it shows.

use super::twin::{ROWS, Row, Twin};
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::engine::conversation::{Conversation, Work};
use crate::engine::loaded::Loaded;
use crate::engine::runner::{NonFinite, Runner, StepError};
use crate::engine::scheduler::Stage;
use crate::protocol::{Event, EventSender, Token, TwinReport, bytes};
use std::collections::VecDeque;

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
