//! Answers as JSON: whole, in chunks, their usage and timings.

use crate::protocol::TurnReport;
use crate::serve::metrics::seconds;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What an answer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A chat: `chat.completion`.
    Chat,
    /// A text that is continued: `text_completion`.
    Text,
}

/// Members that every object of one answer has.
#[derive(Clone, Debug)]
pub struct Reply {
    form: Form,
    id: String,
    created: u64,
    model: String,
    /// The client asked for usage, which is null until the end.
    has_usage: bool,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Random hex digits.
fn random_digits() -> String {
    let mut bytes = [0; 12];
    // Without randomness the time serves: ids only tell answers apart.
    if getrandom::fill(&mut bytes).is_err() {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        bytes.copy_from_slice(&nanos.to_le_bytes()[..12]);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Reply {
    pub fn new(form: Form, model: &str, has_usage: bool) -> Self {
        let prefix = if form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let id = format!("{prefix}-{}", random_digits());
        Self { form, id, created: now(), model: model.to_owned(), has_usage }
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
        let object = if self.form == Form::Chat { "chat.completion.chunk" } else { "text_completion" };
        let mut chunk = self.object(object, choices);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The chunk before any text, in a chat.
    pub fn first(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null }]);
        (self.form == Form::Chat).then(|| self.chunk(choice))
    }

    /// A chunk of the answer.
    pub fn text(&self, text: &str) -> Value {
        self.chunk(match self.form {
            Form::Chat => {
                json!([{ "index": 0, "delta": { "content": text }, "logprobs": null, "finish_reason": null }])
            }
            Form::Text => json!([{ "index": 0, "text": text, "logprobs": null, "finish_reason": null }]),
        })
    }

    /// A chunk of the thought before the answer.
    pub fn reasoning(&self, text: &str) -> Value {
        self.chunk(json!([{
            "index": 0, "delta": { "reasoning_content": text }, "logprobs": null, "finish_reason": null
        }]))
    }

    /// A chunk that says how much of the prompt was read, as llama.cpp's server does.
    pub fn progress(&self, total: usize, cached: usize, processed: usize, time: Duration) -> Value {
        let mut chunk = self.text("");
        let time_ms = time.as_millis() as u64;
        chunk["prompt_progress"] =
            json!({ "total": total, "cache": cached, "processed": processed, "time_ms": time_ms });
        chunk
    }

    /// The last chunk of the answer.
    pub fn last(&self, finish_reason: &str, report: &TurnReport) -> Value {
        let mut chunk = self.chunk(match self.form {
            Form::Chat => json!([{ "index": 0, "delta": {}, "logprobs": null, "finish_reason": finish_reason }]),
            Form::Text => json!([{ "index": 0, "text": "", "logprobs": null, "finish_reason": finish_reason }]),
        });
        chunk["timings"] = timings(report);
        chunk
    }

    /// The chunk behind the last one, if usage was asked for.
    pub fn usage(&self, report: &TurnReport) -> Option<Value> {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage(report);
        self.has_usage.then_some(chunk)
    }

    /// The whole answer. `reasoning` is the thought before it, if there was one.
    pub fn whole(&self, reasoning: Option<&str>, text: &str, finish_reason: &str, report: &TurnReport) -> Value {
        let mut whole = match self.form {
            Form::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null, "annotations": [] });
                if let Some(reasoning) = reasoning {
                    message["reasoning_content"] = json!(reasoning);
                }
                let choice =
                    json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason });
                self.object("chat.completion", json!([choice]))
            }
            Form::Text => {
                let choice = json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish_reason });
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
