//! Fields that requests of every form have: the model, sampling, stop texts, and fields with an
//! effect that this server does not have.

use super::fields::Fields;
use super::refusal::Refusal;
use super::shared::Shared;
use super::tools::Offered;
use crate::protocol::{Ask, SamplingOverrides, Token};
use axum::http::StatusCode;
use serde_json::Value;

/// Most stop texts, and most bytes of one.
const MOST_STOPS: usize = 16;
const STOP_BYTES: usize = 1024;

/// Most tokens with a bias, and the largest bias.
const MOST_BIASES: usize = 1024;
const MOST_BIAS: f64 = 100.0;

/// A field with an effect that is not built, and which values have none.
pub type Unsupported = (&'static str, fn(&Value) -> bool);

pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

pub fn is_false(value: &Value) -> bool {
    *value == false
}

pub fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

pub fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// Takes fields with an effect that is not built, and refuses the first that has it.
pub fn refuse(fields: &mut Fields, unsupported: &[Unsupported]) -> Result<(), Refusal> {
    for (name, is_neutral) in unsupported {
        if fields.take(name).is_some_and(|value| !is_neutral(&value)) {
            return Err(Refusal::unsupported(*name, format!("{name} is not supported by this server")));
        }
    }
    Ok(())
}

/// How a request is answered.
pub struct Asked {
    pub stream: bool,
    /// A stream says how much of its prompt was read.
    pub return_progress: bool,
    /// Number of answers.
    pub n: usize,
    /// Without the prompt.
    pub ask: Ask,
    /// The tools that the model may call.
    pub tools: Option<Offered>,
}

impl Asked {
    /// Takes the fields that all forms have alike; limits and stop texts are of each.
    pub fn take(fields: &mut Fields, shared: &Shared) -> Result<Self, Refusal> {
        let stream = fields.bool("stream")?.unwrap_or(false);
        let return_progress = fields.bool("return_progress")?.unwrap_or(false);
        let defaults = &shared.defaults;
        let sampling = sampling(fields)?.over(&defaults.sampling);
        let logit_bias = logit_bias(fields, shared.info.vocab)?;
        let eviction = eviction(fields, shared)?;
        let ask = Ask { sampling, logit_bias, eviction, drafts: defaults.drafts, ..Ask::default() };
        let ask = Ask { seed: seed(fields)?.or(defaults.seed), ..ask };
        Ok(Self { stream, return_progress, n: 1, ask, tools: None })
    }

    /// Adds tools. The marks of their calls become a part of the answer's text. Fails if the
    /// request also has a format of the answer.
    pub fn with_tools(self, tools: Option<Offered>) -> Result<Self, Refusal> {
        if tools.is_some() && self.ask.grammar.is_some() {
            let message = "tools and a format of the answer exclude each other on this server; leave out one of them";
            return Err(Refusal::unsupported("tools", message));
        }
        let grammar = tools.as_ref().and_then(|tools| tools.forced.clone()).or(self.ask.grammar);
        let marks = tools.iter().flat_map(|tools| tools.format.marks()).map(|mark| (*mark).to_owned()).collect();
        Ok(Self { tools, ask: Ask { marks, grammar, ..self.ask }, ..self })
    }
}

/// Whether the cache evicts from this prompt on; `None` if the request does not say.
fn eviction(fields: &mut Fields, shared: &Shared) -> Result<Option<bool>, Refusal> {
    let (asked, policy) = (fields.bool("eviction")?, shared.info.policy);
    match (asked, shared.info.eviction) {
        (asked, Some(_)) => Ok(asked),
        (Some(on), None) if on == policy.keeps_all() => {
            let message = format!("eviction: this cache cannot switch it: its policy is {}", policy.name());
            Err(Refusal::unsupported("eviction", message))
        }
        (_, None) => Ok(None),
    }
}

/// Fails without a model, and for another one than that which is loaded.
pub fn check_model(fields: &mut Fields, shared: &Shared) -> Result<(), Refusal> {
    let name = fields.text("model")?.ok_or_else(|| {
        let message = format!("model is missing; this server has {:?}", shared.info.identity.name);
        Refusal::field("model", message)
    })?;
    check_name(&name, shared)
}

/// Fails for another model than that which is loaded.
pub fn check_name(name: &str, shared: &Shared) -> Result<(), Refusal> {
    let id = &shared.info.identity.name;
    let short = id.rsplit('/').next().unwrap_or(id);
    if ["default", id, short].iter().any(|own| name.eq_ignore_ascii_case(own)) {
        return Ok(());
    }
    Err(Refusal { param: Some("model".to_owned()), ..not_served(name, shared) })
}

/// There is no model of that name.
pub fn not_served(name: &str, shared: &Shared) -> Refusal {
    let message = format!("the model {name:?} is not served here; this server has {:?}", shared.info.identity.name);
    Refusal::new(StatusCode::NOT_FOUND, message).code("model_not_found")
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

/// The stop texts in the field `name`.
pub fn stops(name: &str, given: Option<Value>) -> Result<Vec<String>, Refusal> {
    let given = match given {
        None => Vec::new(),
        Some(Value::Array(all)) => all,
        Some(one) => vec![one],
    };
    if given.len() > MOST_STOPS {
        return Err(Refusal::field(name, format!("{name} has {} texts, and may have {MOST_STOPS}", given.len())));
    }
    let text = |value: Value| match value {
        Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES => Ok(text),
        Value::String(text) if text.is_empty() => Err(Refusal::field(name, format!("{name} has an empty text"))),
        Value::String(_) => Err(Refusal::field(name, format!("{name} has a text of more than {STOP_BYTES} bytes"))),
        _ => Err(Refusal::field(name, format!("{name} has something else than texts"))),
    };
    given.into_iter().map(text).collect()
}
