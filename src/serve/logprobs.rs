//! Log-probabilities: the fields that ask for them, and their form in an answer.

use super::fields::{Fields, kind};
use super::refusal::Refusal;
use crate::protocol::{Likely, TokenChoice};
use serde_json::{Map, Value, json};

/// Most tokens that are named beside each one.
const MOST: i64 = 20;
/// Stands for a probability of 0, which has no logarithm in JSON.
const LEAST: f64 = -9999.0;

/// Takes `logprobs` and `top_logprobs`: the tokens to name beside each one, if any are asked for.
/// Where a text is continued, `logprobs` is that number itself.
pub fn take(fields: &mut Fields, continues: bool) -> Result<Option<usize>, Refusal> {
    let top = fields.whole("top_logprobs")?;
    let (name, n) = match (fields.take("logprobs"), continues) {
        (None | Some(Value::Bool(false)), _) if top.unwrap_or(0) == 0 => return Ok(None),
        (None | Some(Value::Bool(false)), _) => {
            let message = "top_logprobs is set, and logprobs is not; set logprobs to true";
            return Err(Refusal::field("top_logprobs", message));
        }
        (Some(Value::Bool(true)), _) => ("top_logprobs", top.unwrap_or(0)),
        (Some(value), true) if value.is_i64() => ("logprobs", value.as_i64().unwrap_or(-1)),
        (Some(value), _) => {
            let wanted = if continues { "a whole number" } else { "true or false" };
            return Err(Refusal::field("logprobs", format!("logprobs is {}, expected {wanted}", kind(&value))));
        }
    };
    checked(name, n).map(Some)
}

/// Takes `top_logprobs`: the tokens to name beside each one.
pub fn top(fields: &mut Fields) -> Result<usize, Refusal> {
    checked("top_logprobs", fields.whole("top_logprobs")?.unwrap_or(0))
}

fn checked(name: &str, n: i64) -> Result<usize, Refusal> {
    let wrong = || Refusal::field(name, format!("{name} is {n}, expected 0 to {MOST}"));
    usize::try_from(n).ok().filter(|_| n <= MOST).ok_or_else(wrong)
}

/// Each token with the `k` most probable ones in its place.
pub fn entries(tokens: &[TokenChoice], k: usize) -> Vec<Value> {
    let entries = tokens.iter().map(|token| {
        let mut said = entry(&token.said);
        said["top_logprobs"] = likeliest(token, k).into_iter().map(entry).collect();
        said
    });
    entries.collect()
}

/// The `k` most probable tokens in the place of one, in order.
fn likeliest(token: &TokenChoice, k: usize) -> Vec<&Likely> {
    let mut all: Vec<&Likely> = std::iter::once(&token.said).chain(&token.others).collect();
    all.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    all.truncate(k);
    all
}

fn entry(Likely { text, logprob }: &Likely) -> Value {
    // A token may be a part of a character.
    let bytes = (!text.contains(char::REPLACEMENT_CHARACTER)).then_some(text.as_bytes());
    json!({ "token": text, "logprob": logprob.max(LEAST), "bytes": bytes })
}

/// The tokens of a text that is continued, each with the `k` most probable ones in its place.
pub fn of_text(tokens: &[TokenChoice], k: usize) -> Value {
    let each = |of: fn(&Likely) -> Value| tokens.iter().map(|token| of(&token.said)).collect::<Vec<_>>();
    let tops = tokens.iter().map(|token| {
        let named = |one: &Likely| (one.text.clone(), json!(one.logprob.max(LEAST)));
        // The token itself is there, too, as in OpenAI's answers.
        likeliest(token, k).into_iter().chain([&token.said]).map(named).collect::<Map<_, _>>()
    });
    json!({
        "tokens": each(|said| json!(said.text)),
        "token_logprobs": each(|said| json!(said.logprob.max(LEAST))),
        "top_logprobs": tops.collect::<Vec<_>>(),
    })
}
