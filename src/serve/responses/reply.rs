//! Answers as JSON: whole, and the events of a stream. A thought and an answer are an item each. A
//! whole answer is what the last event of its stream has.

use crate::protocol::{TextKind, TokenChoice, TurnReport};
use crate::serve::answering::{End, Event, Form, Progress};
use crate::serve::choice::Choice;
use crate::serve::logprobs;
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use crate::serve::stamp::{now, random_digits};
use crate::serve::stored::Stored;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What an answer is stored with.
pub struct Kept {
    pub shared: Arc<Shared>,
    /// Items of the answers before it, and of its input.
    pub before: Vec<Arc<Value>>,
    pub new: Vec<Value>,
}

/// A call that is being written.
struct OpenCall {
    id: String,
    call_id: String,
    name: String,
    arguments: String,
}

impl OpenCall {
    fn item(&self, status: &str) -> Value {
        json!({
            "id": self.id, "type": "function_call", "call_id": self.call_id, "name": self.name,
            "arguments": self.arguments, "status": status,
        })
    }
}

/// An item that is being written.
struct Open {
    kind: TextKind,
    id: String,
    text: String,
    tokens: Vec<Value>,
}

pub struct Reply {
    /// The answer as it is now, without its items.
    response: Map<String, Value>,
    /// `None` if it is not stored.
    kept: Option<Kept>,
    /// Whether thoughts are also sent where clients expect what only the server reads.
    repeats_thought: bool,
    /// Tokens that are named beside each one, if log-probabilities were asked for.
    logprobs: Option<usize>,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Open>,
    call: Option<OpenCall>,
    /// Events that were made.
    n_events: usize,
}

impl Reply {
    /// `echoed`: members that stand in the request, too.
    pub fn new(echoed: Map<String, Value>, kept: Option<Kept>, repeats_thought: bool, logprobs: Option<usize>) -> Self {
        let mut response = json!({
            "id": format!("resp_{}", random_digits()),
            "object": "response",
            "created_at": now(),
            "completed_at": null,
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "output": [],
            "max_tool_calls": null,
            "metadata": {},
            "parallel_tool_calls": true,
            "prompt_cache_key": null,
            "safety_identifier": null,
            "service_tier": "default",
            "store": kept.is_some(),
            "text": { "format": { "type": "text" }, "verbosity": "medium" },
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "usage": null,
            "user": null,
        });
        echoed.into_iter().for_each(|(name, value)| response[name] = value);
        let Value::Object(response) = response else { unreachable!("it was made above") };
        Self { response, kept, repeats_thought, logprobs, output: Vec::new(), open: None, call: None, n_events: 0 }
    }

    /// An event, which has its name and its number in its data.
    fn event(&mut self, name: &str, mut data: Value) -> Event {
        (data["type"], data["sequence_number"]) = (json!(name), json!(self.n_events));
        self.n_events += 1;
        Event::named(name, &data)
    }

    /// An event about the text of the item that is open.
    fn part_event(&mut self, name: &str, mut data: Value) -> Event {
        let id = self.open.as_ref().map_or("", |open| &open.id);
        (data["item_id"], data["output_index"], data["content_index"]) =
            (json!(id), json!(self.output.len()), json!(0));
        self.event(name, data)
    }

    fn set(&mut self, name: &str, value: Value) {
        self.response.insert(name.to_owned(), value);
    }

    fn response(&self) -> Value {
        Value::Object(self.response.clone())
    }

    /// Begins an item unless one of this kind is open.
    fn begin_item(&mut self, kind: TextKind, events: &mut Vec<Event>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        self.end_item(events, "completed");
        let prefix = if kind == TextKind::Reasoning { "rs" } else { "msg" };
        let open = Open { kind, id: format!("{prefix}_{}", random_digits()), text: String::new(), tokens: Vec::new() };
        let (mut item, part) = (self.item(&open, "in_progress"), part(&open));
        item["content"] = json!([]);
        self.open = Some(open);
        let added = json!({ "output_index": self.output.len(), "item": item });
        events.push(self.event("response.output_item.added", added));
        events.push(self.part_event("response.content_part.added", json!({ "part": part })));
    }

    /// Ends the item that is open. A call that is open is incomplete.
    fn end_item(&mut self, events: &mut Vec<Event>, status: &str) {
        if let Some(call) = self.call.take() {
            self.done(call.item("incomplete"), events);
        }
        let Some(open) = &self.open else { return };
        let (mut item, part, text) = (self.item(open, status), part(open), json!(open.text));
        let done = match open.kind {
            TextKind::Reasoning => ("response.reasoning_text.done", json!({ "text": text })),
            TextKind::Answer => ("response.output_text.done", json!({ "text": text, "logprobs": open.tokens })),
        };
        if open.kind == TextKind::Reasoning && self.repeats_thought {
            item["encrypted_content"] = text;
        }
        events.push(self.part_event(done.0, done.1));
        events.push(self.part_event("response.content_part.done", json!({ "part": part })));
        self.done(item, events);
        self.open = None;
    }

    /// Adds an item that is complete.
    fn done(&mut self, item: Value, events: &mut Vec<Event>) {
        let done = json!({ "output_index": self.output.len(), "item": item });
        events.push(self.event("response.output_item.done", done));
        self.output.push(item);
    }

    fn item(&self, open: &Open, status: &str) -> Value {
        let content = json!([part(open)]);
        match open.kind {
            TextKind::Reasoning => {
                json!({ "id": open.id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            TextKind::Answer => {
                json!({ "id": open.id, "type": "message", "role": "assistant", "content": content, "status": status })
            }
        }
    }

    /// Stores the complete answer.
    fn store(&mut self) {
        let Some(Kept { shared, mut before, new }) = self.kept.take() else { return };
        let n_new = new.len();
        before.extend(new.into_iter().map(Arc::new));
        shared.responses.insert(Stored { response: self.response(), before, n_new });
    }
}

/// The content of an item.
fn part(open: &Open) -> Value {
    match open.kind {
        TextKind::Reasoning => json!({ "type": "reasoning_text", "text": open.text }),
        TextKind::Answer => {
            json!({ "type": "output_text", "text": open.text, "annotations": [], "logprobs": open.tokens })
        }
    }
}

fn usage(report: &TurnReport) -> Value {
    let generated = report.generated.len();
    json!({
        "input_tokens": report.prompt_tokens,
        "input_tokens_details": { "cached_tokens": report.reused_tokens },
        "output_tokens": generated,
        "output_tokens_details": { "reasoning_tokens": report.reasoning_tokens },
        "total_tokens": report.prompt_tokens + generated,
    })
}

impl Form for Reply {
    fn name(&self) -> &'static str {
        "responses"
    }

    fn trims(&self) -> bool {
        true
    }

    fn begin(&mut self, _prompt_tokens: usize, _cached: usize) -> Vec<Event> {
        let response = json!({ "response": self.response() });
        vec![self.event("response.created", response.clone()), self.event("response.in_progress", response)]
    }

    fn progress(&mut self, _: &Progress) -> Vec<Event> {
        Vec::new()
    }

    fn text(&mut self, kind: TextKind, text: &str, tokens: &[TokenChoice]) -> Vec<Event> {
        let mut events = Vec::new();
        self.begin_item(kind, &mut events);
        let tokens = self.logprobs.map_or_else(Vec::new, |k| logprobs::entries(tokens, k));
        let delta = match kind {
            TextKind::Reasoning => ("response.reasoning_text.delta", json!({ "delta": text })),
            TextKind::Answer => ("response.output_text.delta", json!({ "delta": text, "logprobs": tokens })),
        };
        if let Some(open) = &mut self.open {
            open.text += text;
            open.tokens.extend(tokens);
        }
        events.push(self.part_event(delta.0, delta.1));
        events
    }

    fn begin_call(&mut self, _: usize, id: &str, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        self.end_item(&mut events, "completed");
        let (call_id, name) = (id.to_owned(), name.to_owned());
        let call = OpenCall { id: format!("fc_{}", random_digits()), call_id, name, arguments: String::new() };
        let added = json!({ "output_index": self.output.len(), "item": call.item("in_progress") });
        self.call = Some(call);
        events.push(self.event("response.output_item.added", added));
        events
    }

    fn arguments(&mut self, _: usize, fragment: &str) -> Vec<Event> {
        let Some(call) = &mut self.call else { return Vec::new() };
        call.arguments += fragment;
        let delta = json!({ "item_id": call.id, "output_index": self.output.len(), "delta": fragment });
        vec![self.event("response.function_call_arguments.delta", delta)]
    }

    fn end_call(&mut self, _: usize) -> Vec<Event> {
        let Some(call) = self.call.take() else { return Vec::new() };
        let done = json!({
            "item_id": call.id, "output_index": self.output.len(), "name": call.name, "arguments": call.arguments,
        });
        let mut events = vec![self.event("response.function_call_arguments.done", done)];
        self.done(call.item("completed"), &mut events);
        events
    }

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event> {
        let mut events = Vec::new();
        let (status, name) = match end {
            End::Stop | End::Calls => ("completed", "response.completed"),
            End::Length => ("incomplete", "response.incomplete"),
        };
        if end == End::Stop && self.call.is_none() {
            // An answer without a text has one that is empty.
            self.begin_item(TextKind::Answer, &mut events);
        }
        self.end_item(&mut events, status);
        let output = json!(self.output);
        for (name, value) in [("output", output), ("status", json!(status)), ("usage", usage(report))] {
            self.set(name, value);
        }
        match end {
            End::Stop | End::Calls => self.set("completed_at", json!(now())),
            End::Length => self.set("incomplete_details", json!({ "reason": "max_output_tokens" })),
        }
        self.store();
        let response = json!({ "response": self.response() });
        events.push(self.event(name, response));
        events
    }

    fn failed(&mut self, refusal: &Refusal) -> Event {
        let code = refusal.code.unwrap_or("server_error");
        self.set("status", json!("failed"));
        self.set("error", json!({ "code": code, "message": refusal.message }));
        let response = json!({ "response": self.response() });
        self.event("response.failed", response)
    }

    fn whole(&mut self, choices: &[Choice], report: &TurnReport) -> Value {
        let Some(Choice { thought, text, calls, end, tokens }) = choices.first() else { return Value::Null };
        for (kind, text) in [(TextKind::Reasoning, thought.as_deref()), (TextKind::Answer, Some(&**text))] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                self.text(kind, text, tokens);
            }
        }
        calls.iter().enumerate().for_each(|(index, sent)| drop(self.call(index, sent)));
        self.end(*end, report);
        self.response()
    }
}
