//! Answers as JSON: whole, and the lines of a stream.

use super::form::{LINES, error};
use crate::protocol::{TextKind, TokenChoice, TurnReport};
use crate::serve::answering::{End, Event, Form, Progress};
use crate::serve::choice::Choice;
use crate::serve::logprobs;
use crate::serve::metrics::seconds;
use crate::serve::refusal::Refusal;
use crate::serve::tools::Sent;
use serde_json::{Value, json};
use std::time::Instant;

/// Where the text of an answer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// In `message`: a chat.
    Message,
    /// In `response`: a prompt.
    Response,
}

pub struct Reply {
    said: Said,
    model: String,
    began: Instant,
    /// Whether a text is continued: all of it is the answer.
    pub raw: bool,
    /// Tokens that are named beside each one, if log-probabilities were asked for.
    logprobs: Option<usize>,
}

impl Reply {
    pub fn new(said: Said, model: &str, logprobs: Option<usize>) -> Self {
        Self { said, model: model.to_owned(), began: Instant::now(), raw: false, logprobs }
    }

    /// An object with these texts. `tokens`: of the answer's.
    fn object(&self, thought: Option<&str>, text: &str, tokens: &[TokenChoice]) -> Value {
        let mut object = json!({ "model": self.model, "created_at": jiff::Timestamp::now().to_string() });
        match self.said {
            Said::Message => {
                object["message"] = json!({ "role": "assistant", "content": text });
                if let Some(thought) = thought {
                    object["message"]["thinking"] = json!(thought);
                }
            }
            Said::Response => {
                object["response"] = json!(text);
                if let Some(thought) = thought {
                    object["thinking"] = json!(thought);
                }
            }
        }
        if let Some(k) = self.logprobs.filter(|_| !tokens.is_empty()) {
            object["logprobs"] = json!(logprobs::entries(tokens, k));
        }
        object["done"] = json!(false);
        object
    }

    /// Sets how an answer ended, and its counts and times in nanoseconds.
    fn finish(&self, mut object: Value, end: End, report: &TurnReport) -> Value {
        let (prompt, generated) = seconds(report);
        let nanoseconds = |seconds: f64| json!((seconds * 1e9) as u64);
        object["done"] = json!(true);
        object["done_reason"] = json!(if end == End::Length { "length" } else { "stop" });
        object["total_duration"] = nanoseconds(self.began.elapsed().as_secs_f64());
        object["load_duration"] = json!(0);
        object["prompt_eval_count"] = json!(report.prompt_tokens);
        object["prompt_eval_duration"] = nanoseconds(prompt);
        object["eval_count"] = json!(report.generated.len());
        object["eval_duration"] = nanoseconds(generated);
        object
    }

    /// The answer to a request without a prompt.
    pub fn without_prompt(&self, reason: &str) -> Value {
        let mut object = self.object(None, "", &[]);
        (object["done"], object["done_reason"]) = (json!(true), json!(reason));
        object
    }
}

/// Returns a call. In this API its arguments are an object.
fn call(index: usize, Sent { id, call }: &Sent) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    json!({ "id": id, "function": { "index": index, "name": call.name, "arguments": arguments } })
}

impl Form for Reply {
    const STREAM: &'static str = LINES;
    /// Arguments are an object.
    const STREAMS_CALLS: bool = false;

    fn name(&self) -> &'static str {
        match self.said {
            Said::Message => "api/chat",
            Said::Response => "api/generate",
        }
    }

    fn trims(&self) -> bool {
        !self.raw
    }

    /// White space before the next line's JSON: an empty line is none.
    fn keep_alive(&self) -> Event {
        Event::space()
    }

    fn begin(&mut self, _prompt_tokens: usize, _cached: usize) -> Vec<Event> {
        Vec::new()
    }

    fn progress(&mut self, _: &Progress) -> Vec<Event> {
        Vec::new()
    }

    fn text(&mut self, kind: TextKind, text: &str, tokens: &[TokenChoice]) -> Vec<Event> {
        vec![Event::line(&match kind {
            TextKind::Reasoning => self.object(Some(text), "", &[]),
            TextKind::Answer => self.object(None, text, tokens),
        })]
    }

    fn call(&mut self, index: usize, sent: &Sent) -> Vec<Event> {
        let mut object = self.object(None, "", &[]);
        object["message"]["tool_calls"] = json!([call(index, sent)]);
        vec![Event::line(&object)]
    }

    fn end(&mut self, end: End, report: &TurnReport) -> Vec<Event> {
        vec![Event::line(&self.finish(self.object(None, "", &[]), end, report))]
    }

    fn failed(&mut self, refusal: &Refusal) -> Event {
        Event::line(&error(refusal))
    }

    fn whole(&mut self, choices: &[Choice], report: &TurnReport) -> Value {
        let Some(Choice { thought, text, calls, end, tokens }) = choices.first() else { return Value::Null };
        let mut object = self.object(thought.as_deref(), text, tokens);
        if !calls.is_empty() {
            object["message"]["tool_calls"] = calls.iter().enumerate().map(|(index, sent)| call(index, sent)).collect();
        }
        self.finish(object, *end, report)
    }
}
