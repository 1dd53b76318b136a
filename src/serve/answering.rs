//! The way of an answer to its client: refused with a status, streamed, or whole.

use super::reply::{Form, Reply};
use super::request::Common;
use crate::chat::shown::Shown;
use crate::protocol::{Piece, StopReason, TextKind, TurnReport};
use crate::serve::answer::{Answer, Part};
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::tokenizer::flatten;
use anyhow::Result as Anyhow;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A client is sent something at least this often while its answer is worked on.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Answers a request. `render` makes the prompt on a thread of its own, once there is a slot.
pub async fn answer(
    shared: &Arc<Shared>,
    form: Form,
    mut common: Common,
    render: impl FnOnce(&Shared) -> Anyhow<Vec<Piece>> + Send + 'static,
) -> Result<Response, Refusal> {
    shared.metrics.requests.fetch_add(1, Relaxed);
    let permit = shared.admission.enter().await?;
    let renderer = Arc::clone(shared);
    let rendered = tokio::task::spawn_blocking(move || render(&renderer)).await;
    let prompt = rendered.map_err(|_| Refusal::failed("the prompt could not be rendered"))?;
    common.ask.prompt = prompt.map_err(|error| Refusal::wrong(format!("{error:#}")))?;
    // Characters that no text may have were left out.
    if flatten(&common.ask.prompt).is_empty() {
        return Err(Refusal::wrong("the prompt is empty"));
    }
    let Common { stream, include_usage, return_progress, ask } = common;
    let mut answer = Answer::begin(shared, permit, ask, stream && return_progress);
    // The status is known once the prompt is known to fit.
    let first = answer.next().await;
    match first {
        Part::Done(report) => {
            finish_reason(shared, &report)?;
            return Err(Refusal::failed("the answer ended before it began"));
        }
        Part::Failed(why) => return Err(failed(shared, &why)),
        Part::Started { .. } | Part::Read(_) | Part::Text(..) | Part::WasThought => {}
    }
    let reply = Reply::new(form, &shared.info.identity.name, stream && include_usage);
    if stream {
        let ready = reply.first().map(|chunk| chunk.to_string());
        let mut state = Streaming {
            shared: Arc::clone(shared),
            answer,
            reply,
            shown: Default::default(),
            trims: form == Form::Chat,
            ready: ready.into_iter().collect(),
            prompt: (0, 0, Instant::now()),
            ended: false,
        };
        state.take(first);
        let events = futures_util::stream::unfold(state, |mut state| async move {
            let data = state.next().await?;
            Some((Ok::<_, Infallible>(Event::default().data(data)), state))
        });
        let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
        // Proxies in front pass it on at once.
        response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
        return Ok(response);
    }
    whole(shared, form, &reply, answer).await.map(|whole| axum::Json(whole).into_response())
}

async fn whole(shared: &Shared, form: Form, reply: &Reply, mut answer: Answer) -> Result<Value, Refusal> {
    let (mut reasoning, mut text) = (String::new(), String::new());
    loop {
        match answer.next().await {
            Part::Started { .. } | Part::Read(_) => {}
            Part::Text(TextKind::Reasoning, more) => reasoning += &more,
            Part::Text(TextKind::Answer, more) => text += &more,
            Part::WasThought => reasoning += &std::mem::take(&mut text),
            Part::Failed(why) => return Err(failed(shared, &why)),
            Part::Done(report) => {
                let reason = finish_reason(shared, &report)?;
                let trims = form == Form::Chat;
                let shown = if trims { text.trim_matches('\n') } else { &text };
                let thought = reasoning.trim_matches('\n');
                let thought = Some(thought).filter(|thought| !thought.trim().is_empty());
                return Ok(reply.whole(thought, shown, reason, &report));
            }
        }
    }
}

fn failed(shared: &Shared, why: &str) -> Refusal {
    shared.metrics.failed.fetch_add(1, Relaxed);
    Refusal::failed(why)
}

/// OpenAI's name for the end of an answer, or why there is none.
fn finish_reason(shared: &Shared, report: &TurnReport) -> Result<&'static str, Refusal> {
    let detail = report.detail.as_deref();
    let answered = !report.generated.is_empty() && report.in_context;
    match report.stop_reason {
        StopReason::End | StopReason::Cancelled => Ok("stop"),
        StopReason::MaxTokens => Ok("length"),
        StopReason::ContextFull | StopReason::CacheFull if answered => Ok("length"),
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
struct Streaming {
    shared: Arc<Shared>,
    answer: Answer,
    reply: Reply,
    /// Of the thought and of the answer.
    shown: (Shown, Shown),
    /// Newlines around both are left out.
    trims: bool,
    ready: VecDeque<String>,
    /// Tokens of the prompt, those of them that were in the slot, and when its reading began.
    prompt: (usize, usize, Instant),
    ended: bool,
}

impl Streaming {
    /// The data of the next event; `None` after the last.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.ended {
                return None;
            }
            let part = self.answer.next().await;
            self.take(part);
        }
    }

    fn take(&mut self, part: Part) {
        match part {
            Part::WasThought => {}
            Part::Started { prompt_tokens, cached } => self.prompt = (prompt_tokens, cached, Instant::now()),
            Part::Read(tokens) => {
                let (total, cached, began) = self.prompt;
                let chunk = self.reply.progress(total, cached, cached + tokens, began.elapsed());
                self.ready.push_back(chunk.to_string());
            }
            Part::Text(kind, text) => self.text(kind, text),
            Part::Failed(why) => self.end(Err(failed(&self.shared, &why))),
            Part::Done(report) => {
                let end = finish_reason(&self.shared, &report).map(|reason| (reason, report));
                self.end(end);
            }
        }
    }

    fn text(&mut self, kind: TextKind, text: String) {
        let shown = match kind {
            TextKind::Reasoning => &mut self.shown.0,
            TextKind::Answer => &mut self.shown.1,
        };
        let text = if self.trims { shown.push(&text) } else { text };
        if !text.is_empty() {
            let chunk = match kind {
                TextKind::Reasoning => self.reply.reasoning(&text),
                TextKind::Answer => self.reply.text(&text),
            };
            self.ready.push_back(chunk.to_string());
        }
    }

    fn end(&mut self, end: Result<(&'static str, Box<TurnReport>), Refusal>) {
        self.ended = true;
        match end {
            Ok((reason, report)) => {
                self.ready.push_back(self.reply.last(reason, &report).to_string());
                self.ready.extend(self.reply.usage(&report).map(|chunk| chunk.to_string()));
                self.ready.push_back("[DONE]".to_owned());
            }
            // Without the mark of the end: the answer is not complete.
            Err(refusal) => self.ready.push_back(refusal.json().to_string()),
        }
    }
}
