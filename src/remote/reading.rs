//! An answer that is being read from a server.

use super::http::Server;
use super::memory;
use crate::protocol::{
    Event, EventSender, GenerateRequest, KvStats, Outlet, SamplingParams, Snapshot, StopReason, TextKind, TurnReport,
};
use serde::Deserialize;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is known of an answer so far.
pub struct Reading {
    turn: u64,
    events: EventSender,
    sampling: SamplingParams,
    seed: u64,
    begun: Instant,
    /// When the first and the latest text came, and the first of the answer behind a thought.
    first: Option<Instant>,
    latest: Option<Instant>,
    answered: Option<Instant>,
    /// Chunks of text, which are mostly tokens, of the thought and of the answer.
    chunks: [usize; 2],
    started: bool,
    stop: Option<StopReason>,
    usage: Value,
    timings: Value,
    /// KV heads of each layer of the model's cache, and its figures if the server reports them.
    shape: Vec<usize>,
    kv: Option<KvStats>,
    /// Whether the server evicted, tokens that its cache holds, and the id of an answer whose
    /// tokens it reports.
    eviction: Option<bool>,
    tokens: Option<usize>,
    answer: Option<String>,
}

/// An answer that is being read. Whoever takes it reports its end.
pub type Running = Arc<Mutex<Option<Reading>>>;

/// A conversation with a server.
#[derive(Clone)]
pub struct Conversation {
    pub outlet: Arc<Outlet>,
    pub running: Running,
    /// Whether the server is to evict, once that was switched here. The thread that reads an
    /// answer sees it change.
    pub eviction: Arc<Mutex<Option<bool>>>,
    pub memory: Arc<memory::Shared>,
}

pub fn lock(running: &Running) -> MutexGuard<'_, Option<Reading>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the server is to evict, once that was switched.
pub fn wanted(eviction: &Mutex<Option<bool>>) -> Option<bool> {
    *eviction.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the answer to `body`, until its end or until another takes the reading.
pub fn read(server: &Server, body: &Value, Conversation { outlet, running, eviction, memory }: &Conversation) {
    let read = server.stream(body, |chunk| lock(running).as_mut().map(|reading| reading.take(chunk)).is_some());
    let Some(reading) = lock(running).take() else { return };
    let (events, answer, tokens) = (reading.events.clone(), reading.answer.clone(), reading.tokens);
    let report = match read {
        Ok(()) => reading.report(StopReason::End, None),
        // What came of the answer stays.
        Err(why) => reading.report(StopReason::Error, Some(format!("{}: {why}", server.name()))),
    };
    memory.lock().set(answer.as_deref());
    outlet.snapshot(Snapshot {
        tokens: tokens.unwrap_or(report.prompt_tokens + report.answer_tokens + report.reasoning_tokens),
        // It may have been switched for the next answer.
        eviction: wanted(eviction).unwrap_or(report.eviction),
        kv: report.kv.clone(),
        decode_tok_s: report.decode_tok_s,
        ..Snapshot::default()
    });
    events.event(Event::TurnDone(Box::new(report)));
}

impl Reading {
    pub fn new(request: &GenerateRequest, shape: Vec<usize>, events: EventSender) -> Self {
        Self {
            turn: request.turn,
            events,
            sampling: request.ask.sampling.clone(),
            seed: request.ask.seed.unwrap_or_default(),
            begun: Instant::now(),
            first: None,
            latest: None,
            answered: None,
            chunks: [0; 2],
            started: false,
            stop: None,
            usage: Value::Null,
            timings: Value::Null,
            shape,
            kv: None,
            eviction: None,
            tokens: None,
            answer: None,
        }
    }

    /// Takes the next object of the stream.
    fn take(&mut self, chunk: &Value) {
        let progress = &chunk["prompt_progress"];
        if !self.started {
            self.started = true;
            let [prompt_tokens, reused] = ["total", "cache"].map(|name| count(&progress[name]).unwrap_or(0));
            let todo = prompt_tokens.saturating_sub(reused);
            self.events.event(Event::TurnStarted { turn: self.turn, prompt_tokens, reused, todo });
        }
        for (field, to) in [("usage", &mut self.usage), ("timings", &mut self.timings)] {
            if chunk[field].is_object() {
                *to = chunk[field].clone();
            }
        }
        let cache = &chunk["cache"];
        if let Some(kv) = figures(cache, &self.shape) {
            (self.kv, self.eviction) = (Some(kv), cache["eviction"].as_bool());
            self.tokens = count(&cache["tokens"]);
            self.answer = chunk["id"].as_str().filter(|_| self.tokens.is_some()).map(str::to_owned);
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        let thought = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
        for (kind, text) in [(TextKind::Reasoning, thought), (TextKind::Answer, delta["content"].as_str())] {
            let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
            let now = Instant::now();
            self.first.get_or_insert(now);
            self.latest = Some(now);
            if kind == TextKind::Answer {
                self.answered.get_or_insert(now);
            }
            self.chunks[usize::from(kind == TextKind::Answer)] += 1;
            self.events.event(Event::Text { turn: self.turn, kind, text: text.to_owned() });
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.stop = Some(if reason == "length" { StopReason::MaxTokens } else { StopReason::End });
        }
    }

    /// The report of an answer that the person has stopped.
    pub fn cancelled(self) -> TurnReport {
        self.report(StopReason::Cancelled, None)
    }

    /// The report of the turn. `end`: why the reading ended; where the server has said why the
    /// answer did, that counts.
    fn report(self, end: StopReason, detail: Option<String>) -> TurnReport {
        let [thought, answer] = self.chunks;
        let all = count(&self.usage["completion_tokens"]).unwrap_or(thought + answer);
        let details = &self.usage["completion_tokens_details"]["reasoning_tokens"];
        let reasoning_tokens =
            count(details).filter(|n| *n <= all && (*n > 0 || thought == 0)).unwrap_or(thought.min(all));
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let seconds = self.first.zip(self.latest).map(|(first, latest)| (latest - first).as_secs_f64());
        let measured = seconds.filter(|s| *s > 0.0 && all > 1).map(|s| (all - 1) as f64 / s);
        let speed = |name: &str| self.timings[name].as_f64().filter(|speed| *speed > 0.0);
        TurnReport {
            stop_reason: if end == StopReason::End { self.stop.unwrap_or(end) } else { end },
            detail,
            prompt_tokens: count(&self.usage["prompt_tokens"]).unwrap_or(0),
            reused_tokens: count(&self.usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
            answer_tokens: all - reasoning_tokens,
            reasoning_tokens,
            ttft_ms: self.first.map(|first| ms(self.begun, first)),
            prefill_tok_s: speed("prompt_per_second"),
            decode_tok_s: speed("predicted_per_second").or(measured),
            reasoning_ms: self
                .first
                .filter(|_| thought > 0)
                .map(|first| ms(first, self.answered.or(self.latest).unwrap_or(first))),
            seed: self.seed,
            sampling: self.sampling,
            eviction: self.eviction.unwrap_or(self.kv.is_some()),
            kv: self.kv.unwrap_or_default(),
            ..TurnReport::empty(self.turn)
        }
    }
}

fn count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}

/// The figures of a cache, if they are of layers with these numbers of KV heads.
fn figures(value: &Value, shape: &[usize]) -> Option<KvStats> {
    let kv = KvStats::deserialize(value).ok()?;
    let has_shape = |rows: &[Vec<u32>]| rows.iter().map(Vec::len).eq(shape.iter().copied());
    let fetched = kv.far.as_ref().map_or(&[][..], |far| &far.fetched_by_head);
    let fits = !shape.is_empty() && has_shape(&kv.live) && (fetched.is_empty() || has_shape(fetched));
    (fits && kv.dense.len() == shape.len()).then_some(kv)
}
