//! Fields that both endpoints of OpenAI's form have: the model, sampling, limits, stop texts, and
//! fields with an effect that this server does not have.

use crate::protocol::{Ask, SamplingOverrides, Token};
use crate::serve::fields::Fields;
use crate::serve::refusal::Refusal;
use crate::serve::shared::Shared;
use axum::http::StatusCode;
use serde_json::Value;

/// Most stop texts, and most bytes of one.
const MOST_STOPS: usize = 16;
const STOP_BYTES: usize = 1024;

/// Most tokens with a bias, and the largest bias.
const MOST_BIASES: usize = 1024;
const MOST_BIAS: f64 = 100.0;

type IsNeutral = fn(&Value) -> bool;

/// Fields with an effect that is not built, and the values that have none.
const UNSUPPORTED: [(&str, IsNeutral); 36] = [
    ("tools", is_empty),
    ("tool_choice", |value| value == "none" || value == "auto"),
    ("functions", is_empty),
    ("function_call", |value| value == "none" || value == "auto"),
    ("response_format", |value| value["type"] == "text"),
    ("logprobs", is_false),
    ("top_logprobs", is_zero),
    ("n_probs", is_zero),
    ("n", is_one),
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

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// How a request is answered, beside its prompt.
#[derive(Debug)]
pub struct Common {
    pub stream: bool,
    /// A stream ends with its usage.
    pub include_usage: bool,
    /// A stream says how much of its prompt was read.
    pub return_progress: bool,
    /// Without the prompt.
    pub ask: Ask,
}

impl Common {
    /// Takes the common fields.
    pub fn take(fields: &mut Fields, shared: &Shared) -> Result<Self, Refusal> {
        check_model(fields, shared)?;
        for (name, is_neutral) in UNSUPPORTED {
            if fields.take(name).is_some_and(|value| !is_neutral(&value)) {
                return Err(Refusal::unsupported(name, format!("{name} is not supported by this server")));
            }
        }
        let stream = fields.bool("stream")?.unwrap_or(false);
        let mut options = fields.object("stream_options")?.unwrap_or_default();
        let include_usage = options.bool("include_usage")?.unwrap_or(false);
        let return_progress = fields.bool("return_progress")?.unwrap_or(false);
        let defaults = &shared.defaults;
        let sampling = sampling(fields)?.over(&defaults.sampling);
        let logit_bias = logit_bias(fields, shared.info.vocab)?;
        let adjusts = [
            ("presence_penalty", sampling.presence_penalty != 0.0),
            ("frequency_penalty", sampling.frequency_penalty != 0.0),
            ("logit_bias", !logit_bias.is_empty()),
        ];
        if let Some((name, _)) = adjusts.iter().find(|(_, is_set)| *is_set && !shared.info.adjusts_logits) {
            let message = format!("{name} is not available on {}", shared.info.identity.device);
            return Err(Refusal::unsupported(*name, message));
        }
        Ok(Self {
            stream,
            include_usage,
            return_progress,
            ask: Ask {
                sampling,
                logit_bias,
                seed: seed(fields)?.or(defaults.seed),
                max_tokens: max_tokens(fields)?.unwrap_or(defaults.max_tokens),
                drafts: defaults.drafts,
                stop: stops(fields)?,
                ..Ask::default()
            },
        })
    }
}

/// Fails without a model, and for another one than that which is loaded.
fn check_model(fields: &mut Fields, shared: &Shared) -> Result<(), Refusal> {
    let id = &shared.info.identity.name;
    let short = id.rsplit('/').next().unwrap_or(id);
    let Some(name) = fields.text("model")? else {
        return Err(Refusal::field("model", format!("model is missing; this server has {id:?}")));
    };
    if ["default", id, short].iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Ok(());
    }
    let message = format!("the model {name:?} is not served here; this server has {id:?}");
    let refusal = Refusal::new(StatusCode::NOT_FOUND, message).code("model_not_found");
    Err(Refusal { param: Some("model".to_owned()), ..refusal })
}

/// The options of sampling, by their names and those of other servers.
fn sampling(fields: &mut Fields) -> Result<SamplingOverrides, Refusal> {
    let mut overrides = SamplingOverrides::default();
    for option in SamplingOverrides::options() {
        let alias = if option.name == "repetition_penalty" { "repeat_penalty" } else { option.name };
        let given = fields.number(option.name)?.or(fields.number(alias)?);
        // -1 is off, too.
        let given = given.map(|value| if option.name == "top_k" && value == -1.0 { 0.0 } else { value });
        let Some(value) = given else { continue };
        overrides = overrides.with(option.name, Some(value)).ok_or_else(|| {
            let (least, most) = (option.range.start(), option.range.end());
            Refusal::field(option.name, format!("{} is {value}, expected {least} to {most}", option.name))
        })?;
    }
    Ok(overrides)
}

/// Biases by token id.
fn logit_bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(Token, f32)>, Refusal> {
    let Some(given) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let wrong = |message: String| Refusal::field("logit_bias", format!("logit_bias: {message}"));
    let mut biases = Vec::new();
    for (name, value) in given.iter() {
        let token = name.parse().ok().filter(|token: &Token| (*token as usize) < vocab);
        let token = token.ok_or_else(|| wrong(format!("{name:?} is not a token id below {vocab}")))?;
        let bias = value.as_f64().filter(|bias| bias.abs() <= MOST_BIAS);
        let bias = bias.ok_or_else(|| wrong(format!("{name} has {value}, expected -{MOST_BIAS} to {MOST_BIAS}")))?;
        biases.push((token, bias as f32));
    }
    match biases.len() > MOST_BIASES {
        true => Err(wrong(format!("it has {} tokens, and may have {MOST_BIASES}", biases.len()))),
        false => Ok(biases),
    }
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, Refusal> {
    match fields.whole("seed")? {
        None | Some(-1) => Ok(None),
        Some(seed) => u64::try_from(seed).map(Some).map_err(|_| {
            Refusal::field("seed", format!("seed is {seed}, expected a whole number from 0, or -1 for a random one"))
        }),
    }
}

/// The limit of the answer: `Some(None)` is as long as the context.
fn max_tokens(fields: &mut Fields) -> Result<Option<Option<usize>>, Refusal> {
    let (old, new) = (fields.whole("max_tokens")?, fields.whole("max_completion_tokens")?);
    let name = if new.is_some() { "max_completion_tokens" } else { "max_tokens" };
    match new.or(old) {
        None => Ok(None),
        Some(-1) => Ok(Some(None)),
        Some(n) if n >= 1 => Ok(Some(usize::try_from(n).ok())),
        Some(n) => Err(Refusal::field(name, format!("{name} is {n}, expected a whole number from 1"))),
    }
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let given = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::Array(all)) => all,
        Some(one) => vec![one],
    };
    if given.len() > MOST_STOPS {
        return Err(Refusal::field("stop", format!("stop has {} texts, and may have {MOST_STOPS}", given.len())));
    }
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES => Ok(text),
        Value::String(text) if text.is_empty() => Err(Refusal::field("stop", "stop has an empty text")),
        Value::String(_) => Err(Refusal::field("stop", format!("stop has a text of more than {STOP_BYTES} bytes"))),
        _ => Err(Refusal::field("stop", "stop is not a string or an array of strings")),
    };
    given.into_iter().map(text).collect()
}
