//! Sends an answer to its client: a refusal with a status, a stream of events, or the whole answer
//! in one body. A [`Form`] writes it in the format of an API.

use super::answer::{Answer, Part};
use super::prompt::rendered;
use super::refusal::Refusal;
use super::request::Asked;
use super::shared::Shared;
use crate::chat::shown::Shown;
use crate::protocol::{Piece, StopReason, TextKind, TurnReport};
use crate::tokenizer::flatten;
use anyhow::Result as Anyhow;
use axum::http::HeaderValue;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A stream sends its client something at least this often.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model or a stop text ended it ([`TurnReport::stop_text`]), or it was stopped.
    Stop,
    /// A limit on tokens or a full cache ended it.
    Length,
}

/// How much of a prompt has been read.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub total: usize,
    /// Tokens that were in the slot's cache before.
    pub cached: usize,
    /// Tokens that were in the slot's cache or have been read.
    pub processed: usize,
    pub time: Duration,
}

/// Format of one answer in an API: the events of a stream, or the whole body.
pub trait Form: Send + 'static {
    /// Whether newlines around an answer, and around a streamed thought, are left out. In a
    /// whole answer, the thought never has them.
    fn trims(&self) -> bool;

    /// Message that keeps a stream alive while there is nothing else to send.
    fn keep_alive(&self) -> KeepAlive;

    /// First events, sent once the prompt is known to fit. `cached`: tokens of the prompt that are
    /// in the slot's cache.
    fn begin(&mut self, prompt_tokens: usize, cached: usize) -> Vec<Event>;

    fn progress(&mut self, progress: &Progress) -> Vec<Event>;

    /// Events for the next text of the thought or of the answer.
    fn text(&mut self, kind: TextKind, text: &str) -> Vec<Event>;

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event>;

    /// Last event of an answer that fails.
    fn failed(&mut self, refusal: &Refusal) -> Event;

    /// The whole answer as one body. `thought`: the thought before it, if there was one.
    fn whole(&self, thought: Option<&str>, text: &str, end: End, report: &TurnReport) -> Value;
}

/// Answers a request. `render` makes the prompt, on a thread of its own, once a slot is free.
pub async fn answer(
    shared: &Arc<Shared>,
    mut form: impl Form,
    mut asked: Asked,
    render: impl FnOnce(&Shared) -> Anyhow<Vec<Piece>> + Send + 'static,
) -> Result<Response, Refusal> {
    shared.metrics.requests.fetch_add(1, Relaxed);
    let permit = shared.admission.enter().await?;
    asked.ask.prompt = rendered(shared, render).await?;
    // Texts lose the sentinels of control literals, so a prompt of nothing else is empty.
    if flatten(&asked.ask.prompt).is_empty() {
        return Err(Refusal::wrong("the prompt is empty"));
    }
    let Asked { stream, return_progress, ask } = asked;
    let mut answer = Answer::begin(shared, permit, ask, stream && return_progress);
    // The HTTP status depends on whether the prompt fits, so wait for that.
    let (total, cached) = loop {
        match answer.next().await {
            Part::Started { prompt_tokens, cached } => break (prompt_tokens, cached),
            Part::Done(report) => {
                end_of(shared, &report)?;
                return Err(Refusal::failed("the answer ended before it began"));
            }
            Part::Failed(why) => return Err(failed(shared, &why)),
            // Text comes after `Started`.
            Part::Read(_) | Part::Text(..) | Part::WasThought => {}
        }
    };
    if !stream {
        return whole(shared, &form, answer).await.map(|whole| axum::Json(whole).into_response());
    }
    let keep_alive = form.keep_alive().interval(KEEP_ALIVE);
    let state = Streaming {
        ready: form.begin(total, cached).into(),
        shared: Arc::clone(shared),
        answer,
        form,
        shown: Default::default(),
        prompt: (total, cached, Instant::now()),
        ended: false,
    };
    let events = futures_util::stream::unfold(state, |mut state| async move {
        let event = state.next().await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // Keeps proxies from buffering the stream.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

async fn whole(shared: &Shared, form: &impl Form, mut answer: Answer) -> Result<Value, Refusal> {
    let (mut reasoning, mut text) = (String::new(), String::new());
    loop {
        match answer.next().await {
            Part::Started { .. } | Part::Read(_) => {}
            Part::Text(TextKind::Reasoning, more) => reasoning += &more,
            Part::Text(TextKind::Answer, more) => text += &more,
            Part::WasThought => reasoning += &std::mem::take(&mut text),
            Part::Failed(why) => return Err(failed(shared, &why)),
            Part::Done(report) => {
                let end = end_of(shared, &report)?;
                let shown = if form.trims() { text.trim_matches('\n') } else { &text };
                let thought = reasoning.trim_matches('\n');
                let thought = Some(thought).filter(|thought| !thought.trim().is_empty());
                return Ok(form.whole(thought, shown, end, &report));
            }
        }
    }
}

fn failed(shared: &Shared, why: &str) -> Refusal {
    shared.metrics.failed.fetch_add(1, Relaxed);
    Refusal::failed(why)
}

/// How an answer ended, or the refusal of one that failed.
fn end_of(shared: &Shared, report: &TurnReport) -> Result<End, Refusal> {
    let detail = report.detail.as_deref();
    let answered = !report.generated.is_empty() && report.in_context;
    match report.stop_reason {
        StopReason::End | StopReason::Cancelled => Ok(End::Stop),
        StopReason::MaxTokens => Ok(End::Length),
        StopReason::ContextFull | StopReason::CacheFull if answered => Ok(End::Length),
        StopReason::ContextFull => {
            let message = detail.unwrap_or("the prompt is longer than the context");
            Err(Refusal::too_long(message, "messages", report.prompt_tokens, shared.info.context))
        }
        StopReason::CacheFull => {
            let why = detail.unwrap_or("the cache is full");
            Err(Refusal::wrong(format!("the prompt does not fit into the cache's memory: {why}")).code("cache_full"))
        }
        StopReason::Error => Err(failed(shared, detail.unwrap_or("the answer failed"))),
    }
}

/// A stream's state between two events.
struct Streaming<F> {
    shared: Arc<Shared>,
    answer: Answer,
    form: F,
    /// Remove the newlines around the thought and around the answer.
    shown: (Shown, Shown),
    ready: VecDeque<Event>,
    /// Tokens of the prompt, how many of them were in the slot's cache, and when prefill began.
    prompt: (usize, usize, Instant),
    ended: bool,
}

impl<F: Form> Streaming<F> {
    /// The next event; `None` after the last.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            let part = self.answer.next().await;
            self.receive(part);
        }
    }

    /// Queues the events of a part of the answer.
    fn receive(&mut self, part: Part) {
        match part {
            Part::WasThought | Part::Started { .. } => {}
            Part::Read(tokens) => {
                let (total, cached, began) = self.prompt;
                let progress = Progress { total, cached, processed: cached + tokens, time: began.elapsed() };
                self.ready.extend(self.form.progress(&progress));
            }
            Part::Text(kind, text) => self.text(kind, text),
            Part::Failed(why) => self.end(Err(failed(&self.shared, &why))),
            Part::Done(report) => {
                let end = end_of(&self.shared, &report).map(|end| (end, report));
                self.end(end);
            }
        }
    }

    fn text(&mut self, kind: TextKind, text: String) {
        let shown = match kind {
            TextKind::Reasoning => &mut self.shown.0,
            TextKind::Answer => &mut self.shown.1,
        };
        let text = if self.form.trims() { shown.push(&text) } else { text };
        if !text.is_empty() {
            self.ready.extend(self.form.text(kind, &text));
        }
    }

    fn end(&mut self, end: Result<(End, Box<TurnReport>), Refusal>) {
        self.ended = true;
        match end {
            Ok((end, report)) => self.ready.extend(self.form.end(end, &report)),
            // No event marks the end, because the answer is not complete.
            Err(refusal) => self.ready.push_back(self.form.failed(&refusal)),
        }
    }
}
