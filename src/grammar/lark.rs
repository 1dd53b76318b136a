//! A grammar as a text that llguidance reads: Lark with JSON schemas.

use crate::protocol::{Grammar, GrammarPart};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Most bytes of a schema.
const MOST_BYTES: usize = 256 << 10;
/// Deepest schema.
const DEPTH: usize = 64;
/// White space between parts of JSON. Without a bound, a model may write nothing else for ever.
const SPACE: &str = r"[ \n\t]{0,40}";

/// The text of a grammar. Fails if it is too large or too deep.
pub fn written(grammar: &Grammar, tokenizer: &Tokenizer) -> Result<String, String> {
    let mut writer = Writer { tokenizer, rules: String::new(), n: 0 };
    let start = writer.sequence(&grammar.0)?;
    Ok(format!("start: {start}\n{}", writer.rules))
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    /// Number of rules.
    n: usize,
}

impl Writer<'_> {
    fn sequence(&mut self, parts: &[GrammarPart]) -> Result<String, String> {
        let parts: Vec<String> = parts.iter().map(|part| self.part(part)).collect::<Result<_, _>>()?;
        if self.rules.len() > 4 * MOST_BYTES {
            return Err(format!("it has more than {MOST_BYTES} bytes"));
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    fn part(&mut self, part: &GrammarPart) -> Result<String, String> {
        Ok(match part {
            GrammarPart::Mark(literal) => match self.tokenizer.token_for(literal) {
                Some(token) => format!("<[{token}]>"),
                None => json!(literal).to_string(),
            },
            GrammarPart::Text(text) => json!(text).to_string(),
            GrammarPart::Json(schema) => {
                let schema = checked(schema)?;
                self.rule("", &format!("%json {schema}"))
            }
            GrammarPart::Until(end) => {
                let attribute = format!("[suffix={}]", json!(end));
                self.rule(&attribute, r"/(?s:.*)/")
            }
            GrammarPart::Either(all) => {
                let all: Vec<String> = all.iter().map(|one| self.sequence(one)).collect::<Result<_, _>>()?;
                format!("({})", all.join(" | "))
            }
        })
    }

    /// Adds a rule and returns its name.
    fn rule(&mut self, attribute: &str, body: &str) -> String {
        let name = format!("r{}", self.n);
        self.n += 1;
        let _ = writeln!(self.rules, "{name}{attribute}: {body}");
        name
    }
}

/// A schema within its bounds, with bounded white space in what it describes.
fn checked(schema: &str) -> Result<Value, String> {
    if schema.len() > MOST_BYTES {
        return Err(format!("it has {} bytes, and may have {MOST_BYTES}", schema.len()));
    }
    let schema: Value = serde_json::from_str(schema).map_err(|error| format!("it is not JSON: {error}"))?;
    if depth(&schema) > DEPTH {
        return Err(format!("it is nested deeper than {DEPTH}"));
    }
    let mut members = match schema {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        other => return Err(format!("it is {other}, expected an object")),
    };
    members.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACE, "lenient": false }));
    Ok(Value::Object(members))
}

fn depth(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => all.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
