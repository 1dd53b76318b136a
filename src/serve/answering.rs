//! Sends an answer to its client: a refusal with a status, a stream of events, or the whole answer
//! in one body. A [`Form`] writes it in the format of an API.

use super::answer::{Answer, Part};
pub use super::choice::End;
use super::choice::{Choice, Choices, Next};
use super::prompt::{Prompt, check_fits, rendered};
use super::refusal::Refusal;
use super::request::Asked;
use super::shared::Shared;
use super::tools::{Sent, fragments};
use crate::protocol::{GrammarError, StopReason, TextKind, TokenChoice, TurnReport};
use crate::tokenizer::flatten;
use anyhow::Result as Anyhow;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use serde_json::Value;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::time::timeout;

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

/// The bytes of one event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event(String);

impl Event {
    /// A server-sent event.
    pub fn data(data: impl std::fmt::Display) -> Self {
        Self(format!("data: {data}\n\n"))
    }

    /// A server-sent event with a name.
    pub fn named(name: &str, data: &Value) -> Self {
        Self(format!("event: {name}\ndata: {data}\n\n"))
    }

    /// A line of JSON.
    pub fn line(data: &Value) -> Self {
        Self(format!("{data}\n"))
    }

    /// White space, which has no meaning before JSON.
    pub fn space() -> Self {
        Self(" ".to_owned())
    }

    /// A server-sent event without a meaning.
    pub fn comment() -> Self {
        Self(":\n\n".to_owned())
    }
}

/// Format of one answer in an API: the events of a stream, or the whole body.
pub trait Form: Send + 'static {
    /// The type of a stream.
    const STREAM: &'static str = "text/event-stream";

    /// Whether a stream has fragments of a call's arguments.
    const STREAMS_CALLS: bool = true;

    /// The API, for the server's screen.
    fn name(&self) -> &'static str;

    /// Whether newlines around an answer, and around a streamed thought, are left out. In a
    /// whole answer, the thought never has them.
    fn trims(&self) -> bool;

    /// Message that keeps a stream alive while there is nothing else to send.
    fn keep_alive(&self) -> Event {
        Event::comment()
    }

    /// First events, sent once the prompt is known to fit. `cached`: tokens of the prompt that are
    /// in the slot's cache.
    fn begin(&mut self, prompt_tokens: usize, cached: usize) -> Vec<Event>;

    fn progress(&mut self, progress: &Progress) -> Vec<Event>;

    /// What follows is of this answer of several.
    fn choose(&mut self, _choice: usize) {}

    /// Events for the next text of the thought or of the answer. `tokens`: those that begin in it,
    /// where log-probabilities were asked for.
    fn text(&mut self, kind: TextKind, text: &str, tokens: &[TokenChoice]) -> Vec<Event>;

    /// Events for a tool call, the answer's `index`th, of which the id and the name are known.
    fn begin_call(&mut self, _index: usize, _id: &str, _name: &str) -> Vec<Event> {
        Vec::new()
    }

    /// Events for a fragment of its arguments.
    fn arguments(&mut self, _index: usize, _fragment: &str) -> Vec<Event> {
        Vec::new()
    }

    /// Events for its end. There is none if the answer ends before its arguments are complete.
    fn end_call(&mut self, _index: usize) -> Vec<Event> {
        Vec::new()
    }

    /// Events for a complete call.
    fn call(&mut self, index: usize, Sent { id, call }: &Sent) -> Vec<Event> {
        let mut events = self.begin_call(index, id, &call.name);
        fragments(&call.arguments).for_each(|fragment| events.extend(self.arguments(index, fragment)));
        events.extend(self.end_call(index));
        events
    }

    /// The end of one answer of several.
    fn ended(&mut self, _end: End) -> Vec<Event> {
        Vec::new()
    }

    /// The end of the only answer, or the end after those of several.
    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event>;

    /// Last event of an answer that fails.
    fn failed(&mut self, refusal: &Refusal) -> Event;

    /// The whole answer, of which there may be several.
    fn whole(&mut self, choices: &[Choice], report: &TurnReport) -> Value;
}

/// Answers a request. `render` makes the prompt on a thread of its own.
pub async fn answer<F: Form>(
    shared: &Arc<Shared>,
    form: F,
    mut asked: Asked,
    render: impl FnOnce(&Shared) -> Anyhow<Prompt> + Send + 'static,
) -> Result<Response, Refusal> {
    shared.metrics.requests.fetch_add(1, Relaxed);
    let place = shared.admission.enter()?;
    let entry = shared.board.enter(form.name());
    let prompt = rendered(shared, render).await?;
    (asked.ask.prompt, asked.ask.shared) = (prompt.pieces, prompt.shared);
    // Texts lose the sentinels of control literals, so a prompt of nothing else is empty.
    if flatten(&asked.ask.prompt).is_empty() {
        return Err(Refusal::wrong("the prompt is empty"));
    }
    if let super::admission::Place::Queue(_) = place {
        // While it waits, it may be sent a status. A prompt that is too long has another one.
        check_fits(shared, asked.ask.prompt.clone()).await?;
    }
    let Asked { stream, return_progress, n, ask, tools } = asked;
    let of = Arc::clone(shared);
    let beginning = async move {
        let permit = place.slot().await?;
        Ok(Answer::begin(&of, permit, entry, ask, n, stream && return_progress))
    };
    let mut sending = Sending {
        shared: Arc::clone(shared),
        stage: Stage::Waits(Box::pin(beginning)),
        form,
        stream,
        sent: false,
        choices: Choices::new(n, tools.as_ref(), stream && F::STREAMS_CALLS),
        ready: VecDeque::new(),
        prompt: (0, 0, Instant::now()),
    };
    let first = match timeout(shared.keep_alive, sending.next()).await {
        Ok(Some(Ok(event))) if !stream => {
            let json = HeaderValue::from_static("application/json");
            return Ok(([(header::CONTENT_TYPE, json)], event.0).into_response());
        }
        Ok(Some(event)) => event?,
        Ok(None) => return Err(Refusal::failed("the answer ended before it began")),
        Err(_) => sending.keep_alive(),
    };
    sending.sent = true;
    Ok(sending.response(first))
}

fn failed(shared: &Shared, why: &str) -> Refusal {
    shared.metrics.failed.fetch_add(1, Relaxed);
    Refusal::failed(why)
}

/// The end of an answer, or why there is none.
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
        StopReason::Error => Err(match &report.grammar_error {
            Some(error @ GrammarError::Schema { field, .. }) => Refusal::field(field, error.to_string()),
            Some(error @ GrammarError::Busy) => Refusal::busy(error.to_string()),
            Some(GrammarError::Failed) | None => failed(shared, detail.unwrap_or("the answer failed")),
        }),
    }
}

enum Stage {
    /// For a slot.
    Waits(BoxFuture<'static, Result<Answer, Refusal>>),
    Answers(Answer),
    Ended,
}

/// What is sent for a request, from its place in the queue to its last event.
struct Sending<F> {
    shared: Arc<Shared>,
    stage: Stage,
    form: F,
    stream: bool,
    /// Whether the status was sent.
    sent: bool,
    choices: Choices,
    ready: VecDeque<Event>,
    /// Tokens of the prompt, those of them that were in the slot, and when its reading began.
    prompt: (usize, usize, Instant),
}

impl<F: Form> Sending<F> {
    /// The next event, of which a whole answer has one; `None` after the last. An error is the
    /// last.
    async fn next(&mut self) -> Option<Result<Event, Refusal>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            let part = match &mut self.stage {
                Stage::Ended => return None,
                Stage::Answers(answer) => answer.next().await,
                Stage::Waits(beginning) => match beginning.await {
                    Ok(answer) => {
                        self.stage = Stage::Answers(answer);
                        continue;
                    }
                    Err(refusal) => return Some(self.refuse(refusal)),
                },
            };
            if let Err(refusal) = self.take(part) {
                return Some(self.refuse(refusal));
            }
        }
    }

    /// Ends an answer that is not complete. A stream says so in its form.
    fn refuse(&mut self, refusal: Refusal) -> Result<Event, Refusal> {
        self.stage = Stage::Ended;
        if self.stream && self.sent { Ok(self.form.failed(&refusal)) } else { Err(refusal) }
    }

    fn take(&mut self, part: Part) -> Result<(), Refusal> {
        match part {
            Part::Started { prompt_tokens, cached } => {
                self.prompt = (prompt_tokens, cached, Instant::now());
                if self.stream {
                    self.ready.extend(self.form.begin(prompt_tokens, cached));
                }
            }
            Part::Read(tokens) => {
                let (total, cached, began) = self.prompt;
                let progress = Progress { total, cached, processed: cached + tokens, time: began.elapsed() };
                self.ready.extend(self.form.progress(&progress));
            }
            Part::Choice(choice) => {
                self.choices.choose(choice);
                self.form.choose(choice);
            }
            Part::Likely(tokens) => self.choices.current().likely(tokens),
            Part::Text(kind, text) => {
                let next = self.choices.current().push(kind, &text, self.form.trims());
                self.show(kind, next);
            }
            Part::WasThought => self.choices.current().was_thought(),
            // A choice has no place for an error, so it is the request's.
            Part::Ended(report) if report.stop_reason == StopReason::Error => {
                return Err(failed(&self.shared, "one of the answers failed"));
            }
            Part::Ended(report) => {
                self.finish();
                let end = self.choices.current().ended(&report);
                if self.stream {
                    self.ready.extend(self.form.ended(end));
                }
            }
            Part::TooMany(n) => return Err(too_many(n)),
            Part::Failed(why) => return Err(failed(&self.shared, &why)),
            Part::Done(report) => self.done(&report)?,
        }
        Ok(())
    }

    /// Queues the next parts of a stream. Those of a whole answer are collected by its choice.
    fn show(&mut self, kind: TextKind, next: Vec<Next>) {
        for one in next.into_iter().filter(|_| self.stream) {
            self.ready.extend(match one {
                Next::Text(text, tokens) => self.form.text(kind, &text, &tokens),
                Next::Call(index, call) => self.form.call(index, &call),
                Next::Begun(index, Sent { id, call }) => self.form.begin_call(index, &id, &call.name),
                Next::Arguments(index, fragment) => self.form.arguments(index, &fragment),
                Next::Complete(index) => self.form.end_call(index),
            });
        }
    }

    /// Queues the text that was held back as a possible call.
    fn finish(&mut self) {
        let next = self.choices.current().finish(self.form.trims(), &self.shared.said);
        self.show(TextKind::Answer, next);
    }

    fn done(&mut self, report: &TurnReport) -> Result<(), Refusal> {
        let end = end_of(&self.shared, report)?;
        self.stage = Stage::Ended;
        self.finish();
        if self.stream {
            let end = self.choices.current().end(end);
            self.ready.extend(self.form.end(end, report));
            return Ok(());
        }
        let choices = std::mem::take(&mut self.choices).whole(end);
        self.ready.push_back(Event(self.form.whole(&choices, report).to_string()));
        Ok(())
    }

    fn keep_alive(&self) -> Event {
        if self.stream { self.form.keep_alive() } else { Event::space() }
    }

    /// The response that begins with `first`.
    fn response(self, first: Event) -> Response {
        let kind = if self.stream { F::STREAM } else { "application/json" };
        let events = futures_util::stream::unfold((Some(first), self), |(first, mut sending)| async move {
            let event = match first {
                Some(event) => Ok(event),
                None => match timeout(sending.shared.keep_alive, sending.next()).await {
                    Ok(event) => event?,
                    Err(_) => Ok(sending.keep_alive()),
                },
            };
            // Without its end, an answer that is to be whole is not taken for one.
            let bytes = event.map(|event| event.0).map_err(|refusal| io::Error::other(refusal.message));
            Some((bytes, (None, sending)))
        });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            // Keeps proxies from buffering the stream.
            (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        (headers, Body::from_stream(events)).into_response()
    }
}

fn too_many(n: usize) -> Refusal {
    let message = format!("memory holds {n} answers at a time; ask for a smaller n, or start with more --slots");
    Refusal::field("n", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command, EngineHandle, EngineMessage, Event as Report, ModelInfo, Piece, Request};
    use crate::serve::admission::Admission;
    use crate::serve::shared::Defaults;
    use futures_util::StreamExt;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Plain;

    impl Form for Plain {
        fn name(&self) -> &'static str {
            "plain"
        }
        fn trims(&self) -> bool {
            true
        }
        fn begin(&mut self, _: usize, _: usize) -> Vec<Event> {
            Vec::new()
        }
        fn progress(&mut self, _: &Progress) -> Vec<Event> {
            Vec::new()
        }
        fn text(&mut self, _: TextKind, text: &str, _: &[TokenChoice]) -> Vec<Event> {
            vec![Event::data(text)]
        }
        fn end(&mut self, _: End, _: &TurnReport) -> Vec<Event> {
            Vec::new()
        }
        fn failed(&mut self, refusal: &Refusal) -> Event {
            Event::data(&refusal.message)
        }
        fn whole(&mut self, _: &[Choice], _: &TurnReport) -> Value {
            Value::Null
        }
    }

    /// A server of one slot over an engine that encodes a text as `n` tokens, and whose answers
    /// fail.
    fn server(n: usize, keep_alive: Duration) -> Arc<Shared> {
        let (handle, inbox, _) = EngineHandle::new();
        let info = ModelInfo { context: 10, ..ModelInfo::default() };
        let admission = Admission::new(1, 9);
        let log = Box::new(|_: &str| {});
        let (commands, defaults) = (handle.commands.clone(), Defaults::default());
        let mut shared = Shared::new(commands, Arc::new(info), defaults, admission, Arc::default(), log);
        shared.keep_alive = keep_alive;
        let shared = Arc::new(shared);
        let of = Arc::clone(&shared);
        std::thread::spawn(move || {
            let _handle = handle;
            for message in inbox {
                match message {
                    EngineMessage::Request(Request { id, command: Command::Encode(_), .. }) => {
                        of.on_event(Some(id), Report::Encoded(Ok(vec![0; n])));
                    }
                    EngineMessage::Ask { outlet, .. } => outlet.event(Report::Failed("lost".to_owned())),
                    _ => {}
                }
            }
        });
        shared
    }

    fn asked(stream: bool) -> Asked {
        Asked { stream, return_progress: false, n: 1, ask: Default::default(), tools: None }
    }

    async fn answered(shared: &Arc<Shared>, stream: bool) -> Result<Response, Refusal> {
        answer(shared, Plain, asked(stream), |_| Ok(Prompt { pieces: vec![Piece::Text("x".to_owned())], shared: 0 }))
            .await
    }

    #[tokio::test]
    async fn who_waits_is_sent_something_and_a_whole_answer_that_fails_has_no_end() {
        for (stream, while_waiting) in [(true, ":\n\n"), (false, " ")] {
            let shared = server(3, Duration::from_millis(1));
            let slot = shared.admission.enter().unwrap().slot().await.unwrap();
            let response = answered(&shared, stream).await.unwrap();
            assert_eq!(response.status(), 200);
            let mut body = response.into_body().into_data_stream();
            for _ in 0..3 {
                assert_eq!(body.next().await.unwrap().unwrap(), while_waiting);
            }
            drop(slot);
            let last = loop {
                match body.next().await.unwrap() {
                    Ok(bytes) if bytes == while_waiting => {}
                    last => break last,
                }
            };
            match stream {
                true => assert_eq!(last.unwrap(), "data: lost\n\n"),
                false => assert!(last.unwrap_err().to_string().contains("lost")),
            }
            assert!(body.next().await.is_none());
            // Before anything was sent, the status says it.
            let refused = answered(&server(3, PATIENCE), stream).await.unwrap_err();
            assert_eq!((refused.status.as_u16(), &*refused.message), (500, "lost"));
        }
    }

    #[tokio::test]
    async fn a_prompt_that_does_not_fit_is_refused_by_its_status_also_in_the_queue() {
        let shared = server(10, PATIENCE);
        let _slot = shared.admission.enter().unwrap().slot().await.unwrap();
        for stream in [true, false] {
            let refused = answered(&shared, stream).await.unwrap_err();
            assert_eq!((refused.status.as_u16(), refused.code), (400, Some("context_length_exceeded")));
        }
        assert_eq!(shared.admission.load(), (1, 0));
    }
}
