//! Answers as JSON: whole, and the events of a stream. A thought and an answer are a block of
//! content each, and there is no block without a text.

use super::error;
use crate::protocol::{TextKind, TokenChoice, TurnReport};
use crate::serve::answering::{End, Event, Form, Progress};
use crate::serve::choice::Choice;
use crate::serve::refusal::Refusal;
use crate::serve::stamp::random_digits;
use crate::serve::tools::Sent;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Text(TextKind),
    Call,
}

pub struct Reply {
    id: String,
    model: String,
    shows_thought: bool,
    /// The kind of the block that is open.
    open: Option<Block>,
    /// Blocks that were ended.
    n_ended: usize,
}

/// An event, which has its name in its data, too.
fn event(name: &'static str, mut data: Value) -> Event {
    data["type"] = json!(name);
    Event::named(name, &data)
}

fn block(kind: TextKind, text: &str) -> Value {
    match kind {
        TextKind::Reasoning => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        TextKind::Answer => json!({ "type": "text", "text": text, "citations": null }),
    }
}

/// Tokens of the cache are not part of `input_tokens`. Members without a meaning here are null.
fn usage(prompt_tokens: usize, cached: usize, generated: usize, thinking: usize) -> Value {
    json!({
        "input_tokens": prompt_tokens.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "cache_creation": null,
        "output_tokens": generated,
        "output_tokens_details": { "thinking_tokens": thinking },
        "server_tool_use": null,
        "service_tier": null,
        "inference_geo": null,
    })
}

fn usage_of(report: &TurnReport) -> Value {
    usage(report.prompt_tokens, report.reused_tokens, report.generated.len(), report.reasoning_tokens)
}

/// The members `stop_reason` and `stop_sequence`.
fn stop(end: End, report: &TurnReport) -> (&'static str, Option<&str>) {
    match (end, report.stop_text.as_deref()) {
        (End::Stop, Some(text)) => ("stop_sequence", Some(text)),
        (End::Stop, None) => ("end_turn", None),
        (End::Calls, _) => ("tool_use", None),
        (End::Length, _) => ("max_tokens", None),
    }
}

impl Reply {
    pub fn new(model: &str, shows_thought: bool) -> Self {
        let id = format!("msg_{}", random_digits());
        Self { id, model: model.to_owned(), shows_thought, open: None, n_ended: 0 }
    }

    fn message(&self, content: Value, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "stop_details": null,
            "container": null,
            "usage": usage,
        })
    }

    /// Begins a block, which ends the one before it.
    fn start(&mut self, open: Block, content: &Value, events: &mut Vec<Event>) {
        self.close(events);
        self.open = Some(open);
        let start = json!({ "index": self.n_ended, "content_block": content });
        events.push(event("content_block_start", start));
    }

    /// An event for the block that is open.
    fn delta(&self, delta: &Value) -> Event {
        event("content_block_delta", json!({ "index": self.n_ended, "delta": delta }))
    }

    /// Ends the block that is open.
    fn close(&mut self, events: &mut Vec<Event>) {
        let Some(open) = self.open.take() else { return };
        let index = self.n_ended;
        if open == Block::Text(TextKind::Reasoning) {
            let delta = json!({ "type": "signature_delta", "signature": "" });
            events.push(event("content_block_delta", json!({ "index": index, "delta": delta })));
        }
        events.push(event("content_block_stop", json!({ "index": index })));
        self.n_ended += 1;
    }
}

impl Form for Reply {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn trims(&self) -> bool {
        true
    }

    fn keep_alive(&self) -> Event {
        event("ping", json!({}))
    }

    fn begin(&mut self, prompt_tokens: usize, cached: usize) -> Vec<Event> {
        let message = self.message(json!([]), usage(prompt_tokens, cached, 0, 0));
        vec![event("message_start", json!({ "message": message })), event("ping", json!({}))]
    }

    fn progress(&mut self, _: &Progress) -> Vec<Event> {
        vec![event("ping", json!({}))]
    }

    fn text(&mut self, kind: TextKind, text: &str, _: &[TokenChoice]) -> Vec<Event> {
        let mut events = Vec::new();
        if kind == TextKind::Reasoning && !self.shows_thought {
            return events;
        }
        if self.open != Some(Block::Text(kind)) {
            self.start(Block::Text(kind), &block(kind, ""), &mut events);
        }
        let delta = match kind {
            TextKind::Reasoning => json!({ "type": "thinking_delta", "thinking": text }),
            TextKind::Answer => json!({ "type": "text_delta", "text": text }),
        };
        events.push(self.delta(&delta));
        events
    }

    fn begin_call(&mut self, _: usize, id: &str, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {}, "caller": null });
        self.start(Block::Call, &block, &mut events);
        events.extend(self.arguments(0, ""));
        events
    }

    fn arguments(&mut self, _: usize, fragment: &str) -> Vec<Event> {
        vec![self.delta(&json!({ "type": "input_json_delta", "partial_json": fragment }))]
    }

    fn end_call(&mut self, _: usize) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(&mut events);
        events
    }

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(&mut events);
        let (reason, sequence) = stop(end, report);
        let delta = json!({
            "stop_reason": reason, "stop_sequence": sequence, "stop_details": null, "container": null
        });
        events.push(event("message_delta", json!({ "delta": delta, "usage": usage_of(report) })));
        events.push(event("message_stop", json!({})));
        events
    }

    fn failed(&mut self, refusal: &Refusal) -> Event {
        event("error", error::json(refusal))
    }

    fn whole(&mut self, choices: &[Choice], report: &TurnReport) -> Value {
        let Some(Choice { thought, text, calls, end, .. }) = choices.first() else { return Value::Null };
        let thought = thought.as_deref().filter(|_| self.shows_thought);
        let thought = thought.map(|thought| block(TextKind::Reasoning, thought));
        let text = Some(text).filter(|text| !text.is_empty()).map(|text| block(TextKind::Answer, text));
        let calls = calls.iter().map(|Sent { id, call }| {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({ "type": "tool_use", "id": id, "name": call.name, "input": input, "caller": null })
        });
        let content: Vec<Value> = thought.into_iter().chain(text).chain(calls).collect();
        let mut message = self.message(json!(content), usage_of(report));
        let (reason, sequence) = stop(*end, report);
        (message["stop_reason"], message["stop_sequence"]) = (json!(reason), json!(sequence));
        message
    }
}
