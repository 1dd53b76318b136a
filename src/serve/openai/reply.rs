//! Answers as JSON: whole, in chunks, their usage and timings.

use super::request::Common;
use crate::protocol::{TextKind, TokenChoice, TurnReport};
use crate::serve::answering::{End, Event, Form, Progress};
use crate::serve::choice::Choice;
use crate::serve::logprobs;
use crate::serve::metrics::{generated, seconds};
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::serve::stamp::{now, random_digits};
use crate::serve::tools::Sent;
use serde_json::{Value, json};
use std::sync::Arc;

/// What an answer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A chat: `chat.completion`.
    Chat,
    /// A text that is continued: `text_completion`.
    Text,
}

/// Members that every object of one answer has.
pub struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// The client asked for usage in its stream, where it is null until the end.
    has_usage: bool,
    /// Where what the cache holds is kept, if its figures were asked for.
    cache: Option<Arc<Shared>>,
    /// Number of choices, and the one that is written.
    n: usize,
    choice: usize,
    /// Tokens that are named beside each one, if log-probabilities were asked for.
    logprobs: Option<usize>,
}

impl Reply {
    pub fn new(kind: Kind, shared: &Arc<Shared>, asked: &Common) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", random_digits());
        let Common { include_usage: has_usage, return_cache, asked } = asked;
        let (n, logprobs, has_usage) = (asked.n, asked.ask.logprobs, *has_usage);
        let cache = return_cache.then(|| Arc::clone(shared));
        let model = shared.info.identity.name.clone();
        Self { kind, id, created: now(), model, has_usage, cache, n, choice: 0, logprobs }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// Adds the figures of the cache, if they were asked for, and keeps which tokens it holds.
    fn add_cache(&self, last: &mut Value, report: &TurnReport) {
        let Some(shared) = &self.cache else { return };
        last["cache"] = json!(report.kv);
        last["cache"]["eviction"] = json!(report.eviction);
        if let Some(presence) = &report.presence {
            last["cache"]["tokens"] = json!(presence.kept.len());
            shared.memories.keep(&self.id, presence);
        }
    }

    /// A chunk with these choices.
    fn chunk(&self, choices: Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk = self.object(object, choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The choices of a chunk: one, of which `value` is the member `name`.
    fn choice(&self, name: &str, value: Value, tokens: &[TokenChoice], end: Option<End>) -> Value {
        json!([{
            "index": self.choice,
            name: value,
            "logprobs": self.logprobs.map(|k| match self.kind {
                Kind::Chat => json!({ "content": logprobs::entries(tokens, k), "refusal": null }),
                Kind::Text => logprobs::of_text(tokens, k),
            }),
            "finish_reason": end.map(finish_reason),
        }])
    }

    /// A chunk of an answer's text.
    fn delta(&self, text: &str, tokens: &[TokenChoice]) -> Value {
        self.chunk(match self.kind {
            Kind::Chat => self.choice("delta", json!({ "content": text }), tokens, None),
            Kind::Text => self.choice("text", json!(text), tokens, None),
        })
    }

    /// A chunk of a call.
    fn call_chunk(&self, delta: Value) -> Event {
        let delta = json!({ "tool_calls": [delta] });
        event(&self.chunk(self.choice("delta", delta, &[], None)))
    }

    /// The last chunk of a choice.
    fn last(&self, end: End) -> Value {
        self.chunk(match self.kind {
            Kind::Chat => self.choice("delta", json!({}), &[], Some(end)),
            Kind::Text => self.choice("text", json!(""), &[], Some(end)),
        })
    }
}

/// An event of a stream.
fn event(chunk: &Value) -> Event {
    Event::data(chunk)
}

/// Returns a call of a whole answer.
fn call(Sent { id, call }: &Sent) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } })
}

fn finish_reason(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Calls => "tool_calls",
        End::Length => "length",
    }
}

impl Form for Reply {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat/completions",
            Kind::Text => "completions",
        }
    }

    fn trims(&self) -> bool {
        self.kind == Kind::Chat
    }

    fn begin(&mut self, _prompt_tokens: usize, _cached: usize) -> Vec<Event> {
        if self.kind == Kind::Text {
            return Vec::new();
        }
        let mut events = Vec::with_capacity(self.n);
        for choice in 0..self.n {
            self.choice = choice;
            let delta = json!({ "role": "assistant", "content": "" });
            events.push(event(&self.chunk(self.choice("delta", delta, &[], None))));
        }
        self.choice = 0;
        events
    }

    fn choose(&mut self, choice: usize) {
        self.choice = choice;
    }

    /// As llama.cpp's server does.
    fn progress(&mut self, progress: &Progress) -> Vec<Event> {
        let mut chunk = self.delta("", &[]);
        chunk["prompt_progress"] = json!({
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.time.as_millis() as u64,
        });
        vec![event(&chunk)]
    }

    fn text(&mut self, kind: TextKind, text: &str, tokens: &[TokenChoice]) -> Vec<Event> {
        vec![event(&match kind {
            TextKind::Answer => self.delta(text, tokens),
            TextKind::Reasoning => self.chunk(self.choice("delta", json!({ "reasoning_content": text }), &[], None)),
        })]
    }

    fn begin_call(&mut self, index: usize, id: &str, name: &str) -> Vec<Event> {
        let function = json!({ "name": name, "arguments": "" });
        vec![self.call_chunk(json!({ "index": index, "id": id, "type": "function", "function": function }))]
    }

    fn arguments(&mut self, index: usize, fragment: &str) -> Vec<Event> {
        vec![self.call_chunk(json!({ "index": index, "function": { "arguments": fragment } }))]
    }

    fn ended(&mut self, end: End) -> Vec<Event> {
        vec![event(&self.last(end))]
    }

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event> {
        let mut events = Vec::new();
        if self.n == 1 {
            let mut last = self.last(end);
            last["timings"] = timings(report);
            self.add_cache(&mut last, report);
            events.push(event(&last));
        }
        if self.has_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(report);
            events.push(event(&chunk));
        }
        events.push(Event::data("[DONE]"));
        events
    }

    fn failed(&mut self, refusal: &Refusal) -> Event {
        event(&refusal.json())
    }

    fn whole(&mut self, choices: &[Choice], report: &TurnReport) -> Value {
        let mut all = Vec::new();
        for (index, Choice { thought, text, calls, end, tokens }) in choices.iter().enumerate() {
            self.choice = index;
            let choice = match self.kind {
                Kind::Chat => {
                    let mut message =
                        json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
                    if !calls.is_empty() {
                        message["tool_calls"] = calls.iter().map(call).collect();
                        if text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    if let Some(thought) = thought {
                        message["reasoning_content"] = json!(thought);
                    }
                    self.choice("message", message, tokens, Some(*end))
                }
                Kind::Text => self.choice("text", json!(text), tokens, Some(*end)),
            };
            all.push(choice[0].clone());
        }
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let mut whole = self.object(object, json!(all));
        whole["usage"] = usage(report);
        whole["timings"] = timings(report);
        self.add_cache(&mut whole, report);
        whole
    }
}

fn usage(report: &TurnReport) -> Value {
    let (generated, thought) = generated(report);
    json!({
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": report.prompt_tokens + generated,
        "prompt_tokens_details": { "cached_tokens": report.reused_tokens },
        "completion_tokens_details": { "reasoning_tokens": thought },
    })
}

/// As llama.cpp's server names them.
fn timings(report: &TurnReport) -> Value {
    let (prompt, generated) = seconds(report);
    let (prompt_n, predicted_n) = (report.prompt_tokens.saturating_sub(report.reused_tokens), report.generated.len());
    let each = |seconds: f64, n: usize| if n > 0 { seconds * 1e3 / n as f64 } else { 0.0 };
    let mut timings = json!({
        "cache_n": report.reused_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": each(prompt, prompt_n),
        "prompt_per_second": report.prefill_tok_s.unwrap_or(0.0),
        "predicted_n": predicted_n,
        "predicted_ms": generated * 1e3,
        "predicted_per_token_ms": each(generated, predicted_n.saturating_sub(1)),
        "predicted_per_second": report.decode_tok_s.unwrap_or(0.0),
    });
    if let Some(draft) = &report.draft {
        timings["draft_n"] = json!(draft.drafted);
        timings["draft_n_accepted"] = json!(draft.accepted);
    }
    timings
}
