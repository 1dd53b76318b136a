//! Fields that both endpoints of OpenAI's form have: limits, stop texts, what a stream says, and
//! fields with an effect that this server does not have.

use crate::protocol::Ask;
use crate::serve::fields::{Fields, from_one};
use crate::serve::logprobs;
use crate::serve::refusal::Refusal;
use crate::serve::request::{Asked, Unsupported, check_model, is_empty, is_false, is_one, is_zero, refuse, stops};
use crate::serve::shared::Shared;
use crate::serve::structured;

/// Most answers of one request.
const MOST_CHOICES: usize = 8;

/// Fields with an effect that is not built, and the values that have none.
const UNSUPPORTED: [Unsupported; 30] = [
    ("functions", is_empty),
    ("function_call", |value| value == "none" || value == "auto"),
    ("n_probs", is_zero),
    ("best_of", is_one),
    ("echo", is_false),
    ("suffix", is_empty),
    ("modalities", |value| *value == serde_json::json!(["text"])),
    ("audio", is_empty),
    ("prediction", is_empty),
    ("web_search_options", is_empty),
    ("verbosity", |value| value == "medium"),
    ("grammar", is_empty),
    ("json_schema", is_empty),
    ("structured_outputs", is_empty),
    ("guided_json", is_empty),
    ("guided_regex", is_empty),
    ("guided_choice", is_empty),
    ("guided_grammar", is_empty),
    ("min_tokens", is_zero),
    ("ignore_eos", is_false),
    ("use_beam_search", is_false),
    ("typical_p", is_one),
    ("mirostat", is_zero),
    ("xtc_probability", is_zero),
    ("dry_multiplier", is_zero),
    ("dynatemp_range", is_zero),
    ("continue_final_message", is_false),
    ("add_generation_prompt", |value| *value == true),
    ("bad_words", is_empty),
    ("lora", is_empty),
];

/// How a request is answered, beside its prompt.
pub struct Common {
    pub asked: Asked,
    /// A stream ends with its usage.
    pub include_usage: bool,
    /// An answer ends with the figures of its cache.
    pub return_cache: bool,
}

impl Common {
    /// Takes the common fields. `continues`: a text is continued.
    pub fn take(fields: &mut Fields, shared: &Shared, continues: bool) -> Result<Self, Refusal> {
        check_model(fields, shared)?;
        refuse(fields, &UNSUPPORTED)?;
        let asked = Asked::take(fields, shared)?;
        let mut options = fields.object("stream_options")?.unwrap_or_default();
        let include_usage = options.bool("include_usage")?.unwrap_or(false) && asked.stream;
        let max_tokens = max_tokens(fields)?.unwrap_or(shared.defaults.max_tokens);
        let stop = stops("stop", fields.take("stop"))?;
        let return_cache = fields.bool("return_cache")?.unwrap_or(false);
        let logprobs = logprobs::take(fields, continues)?;
        let grammar = structured::take("response_format", fields)?;
        let ask = Ask { max_tokens, stop, logprobs, grammar, ..asked.ask };
        Ok(Self { asked: Asked { ask, n: n(fields)?, ..asked }, include_usage, return_cache })
    }
}

/// Number of answers.
fn n(fields: &mut Fields) -> Result<usize, Refusal> {
    match from_one("n", fields.whole("n")?.unwrap_or(1))? {
        n if n > MOST_CHOICES => Err(Refusal::field("n", format!("n is {n}, and may be {MOST_CHOICES}"))),
        n => Ok(n),
    }
}

/// The limit of the answer: `Some(None)` is as long as the context.
fn max_tokens(fields: &mut Fields) -> Result<Option<Option<usize>>, Refusal> {
    let (old, new) = (fields.whole("max_tokens")?, fields.whole("max_completion_tokens")?);
    let name = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    match new.or(old) {
        None => Ok(None),
        Some(-1) => Ok(Some(None)),
        Some(n) => Ok(Some(Some(from_one(name, n)?))),
    }
}
