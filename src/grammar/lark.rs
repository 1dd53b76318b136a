//! Writes a grammar in llguidance's dialect of Lark, with JSON schemas in it.

use crate::protocol::GrammarPart;
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Maximum bytes of a schema; all rules of a grammar have four times as many.
const MOST_BYTES: usize = 256 << 10;
/// Maximum nesting of a schema.
const DEPTH: usize = 64;
/// White space between parts of JSON. Without a bound, a model may write nothing else.
const SPACE: &str = r"[ \n\t]{0,40}";

/// Returns the text of a grammar. Fails if it is too large or too deep.
pub fn written(parts: &[GrammarPart], tokenizer: &Tokenizer) -> Result<String, String> {
    let mut writer = Writer { tokenizer, rules: String::new(), n: 0 };
    let start = writer.sequence(parts)?;
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
            return Err(format!("all of it has more than {} bytes", 4 * MOST_BYTES));
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

/// Parses a schema, checks its bounds, and bounds the white space of the JSON that it describes.
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
        Value::Bool(false) => return Err("nothing fits it".to_owned()),
        Value::Array(_) => return Err("it is an array, expected an object".to_owned()),
        _ => return Err("it is neither an object nor true".to_owned()),
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
