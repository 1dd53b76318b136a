//! Answers as JSON: whole, in chunks, their usage and timings.

use crate::protocol::{TextKind, TurnReport};
use crate::serve::answering::{End, Form, Progress};
use crate::serve::metrics::seconds;
use crate::serve::refusal::Refusal;
use crate::serve::stamp::{now, random_digits};
use axum::response::sse::{Event, KeepAlive};
use serde_json::{Value, json};

/// What an answer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A chat: `chat.completion`.
    Chat,
    /// A text that is continued: `text_completion`.
    Text,
}

/// Members that every object of one answer has.
#[derive(Clone, Debug)]
pub struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    /// The client asked for usage in its stream, where it is null until the end.
    has_usage: bool,
}

impl Reply {
    pub fn new(kind: Kind, model: &str, has_usage: bool) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", random_digits());
        Self { kind, id, created: now(), model: model.to_owned(), has_usage }
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

    /// A chunk with these choices.
    fn chunk(&self, choices: Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk = self.object(object, choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// A chunk of an answer's text.
    fn delta(&self, text: &str) -> Value {
        self.chunk(match self.kind {
            Kind::Chat => {
                json!([{ "index": 0, "delta": { "content": text }, "logprobs": null, "finish_reason": null }])
            }
            Kind::Text => json!([{ "index": 0, "text": text, "logprobs": null, "finish_reason": null }]),
        })
    }
}

/// An event of a stream.
fn event(chunk: &Value) -> Event {
    Event::default().data(chunk.to_string())
}

fn finish_reason(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Length => "length",
    }
}

impl Form for Reply {
    fn trims(&self) -> bool {
        self.kind == Kind::Chat
    }

    fn keep_alive(&self) -> KeepAlive {
        KeepAlive::new()
    }

    fn begin(&mut self, _prompt_tokens: usize, _cached: usize) -> Vec<Event> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null }]);
        (self.kind == Kind::Chat).then(|| event(&self.chunk(choice))).into_iter().collect()
    }

    /// As llama.cpp's server does.
    fn progress(&mut self, progress: &Progress) -> Vec<Event> {
        let mut chunk = self.delta("");
        chunk["prompt_progress"] = json!({
            "total": progress.total,
            "cache": progress.cached,
            "processed": progress.processed,
            "time_ms": progress.time.as_millis() as u64,
        });
        vec![event(&chunk)]
    }

    fn text(&mut self, kind: TextKind, text: &str) -> Vec<Event> {
        vec![event(&match kind {
            TextKind::Answer => self.delta(text),
            TextKind::Reasoning => self.chunk(json!([{
                "index": 0, "delta": { "reasoning_content": text }, "logprobs": null, "finish_reason": null
            }])),
        })]
    }

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event> {
        let reason = finish_reason(end);
        let mut last = self.chunk(match self.kind {
            Kind::Chat => json!([{ "index": 0, "delta": {}, "logprobs": null, "finish_reason": reason }]),
            Kind::Text => json!([{ "index": 0, "text": "", "logprobs": null, "finish_reason": reason }]),
        });
        last["timings"] = timings(report);
        let mut events = vec![event(&last)];
        if self.has_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(report);
            events.push(event(&chunk));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    fn failed(&mut self, refusal: &Refusal) -> Event {
        event(&refusal.json())
    }

    fn whole(&self, thought: Option<&str>, text: &str, end: End, report: &TurnReport) -> Value {
        let reason = finish_reason(end);
        let mut whole = match self.kind {
            Kind::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
                if let Some(thought) = thought {
                    message["reasoning_content"] = json!(thought);
                }
                let choice = json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": reason });
                self.object("chat.completion", json!([choice]))
            }
            Kind::Text => {
                let choice = json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason });
                self.object("text_completion", json!([choice]))
            }
        };
        whole["usage"] = usage(report);
        whole["timings"] = timings(report);
        whole
    }
}

fn usage(report: &TurnReport) -> Value {
    let generated = report.generated.len();
    json!({
        "prompt_tokens": report.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": report.prompt_tokens + generated,
        "prompt_tokens_details": { "cached_tokens": report.reused_tokens },
        "completion_tokens_details": { "reasoning_tokens": report.reasoning_tokens },
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
