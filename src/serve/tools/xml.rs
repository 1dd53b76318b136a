//! Tags for each parameter: `<tool_call><function=f><parameter=p>value</parameter></function>
//! </tool_call>`. Qwen3-Coder and Qwen 3.5.
//!
//! A value may itself contain such tags. A closing tag ends a value only if another tag of the call
//! follows it.

use super::format::{At, Call, Format, Step, Tool};
use super::json::spaces;
use super::parser::{before_mark, closed_by};
use super::schema;
use crate::protocol::GrammarPart;
use serde_json::{Map, Value, json};

pub struct Xml;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

/// Maximum bytes of the name of a tool or a parameter.
const NAME_BYTES: usize = 256;

impl Format for Xml {
    fn name(&self) -> &'static str {
        "xml"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains(FUNCTION)
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        let text = |text: String| GrammarPart::Text(text);
        let end = format!("\n{END_PARAMETER}\n");
        let one = |tool: &&Tool| {
            let mut parts = vec![text(format!("\n{FUNCTION}{}>\n", tool.name))];
            for (name, schema) in tool.parameters["properties"].as_object().into_iter().flatten() {
                let mut value = vec![text(format!("{PARAMETER}{name}>\n"))];
                match schema::is_text(tool, name) {
                    true => value.push(GrammarPart::Until(end.clone())),
                    false => value.extend([GrammarPart::Json(schema::within(tool, schema)), text(end.clone())]),
                }
                let is_required = tool.parameters["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
                match is_required {
                    true => parts.extend(value),
                    false => parts.push(GrammarPart::Either(vec![value, Vec::new()])),
                }
            }
            parts.push(text(format!("{END_FUNCTION}\n")));
            parts
        };
        let [open, close] = [OPEN, CLOSE].map(|mark| GrammarPart::Mark(mark.to_owned()));
        Some(vec![open, GrammarPart::Either(tools.iter().map(one).collect()), close])
    }

    fn step(&self, text: &str, at: At, tools: &[Tool]) -> Step {
        let mark = match text.starts_with(OPEN) {
            true => OPEN.len(),
            false if text.starts_with(FUNCTION) => 0,
            false => return before_mark(text, &[OPEN, FUNCTION], at),
        };
        let start = mark + spaces(&text[mark..]);
        let not = Step::Text(mark.max(1));
        match function(&text[start..], at.ended, tools) {
            Found::Open => Step::Open(start),
            Found::Not => not,
            Found::Is(end, call) => closed_by(text, start + end, CLOSE, at, vec![call]),
        }
    }
}

enum Found<T> {
    Is(usize, T),
    Open,
    Not,
}

/// Whether a text begins with a literal. `None`: undecided until more text arrives.
fn begins(text: &str, literal: &str) -> Option<bool> {
    match text.len() < literal.len() && literal.starts_with(text) {
        true => None,
        false => Some(text.starts_with(literal)),
    }
}

/// Reads the name in a tag such as `<function=NAME>` at the start of a text, and finds the end of
/// the tag.
fn named<'a>(text: &'a str, tag: &str) -> Found<&'a str> {
    match begins(text, tag) {
        None => return Found::Open,
        Some(false) => return Found::Not,
        Some(true) => {}
    }
    let rest = &text[tag.len()..];
    let end = rest.find(['>', '<', '\n']);
    match end {
        Some(end) if rest[end..].starts_with('>') && end > 0 && end <= NAME_BYTES => {
            match rest[..end].trim().trim_matches('"') {
                "" => Found::Not,
                name => Found::Is(tag.len() + end + 1, name),
            }
        }
        None if rest.len() <= NAME_BYTES => Found::Open,
        _ => Found::Not,
    }
}

/// Reads a function with its parameters. `ended`: no text follows.
fn function(text: &str, ended: bool, tools: &[Tool]) -> Found<Call> {
    let (mut at, name) = match named(text, FUNCTION) {
        Found::Is(end, name) => (end, name),
        Found::Open => return Found::Open,
        Found::Not => return Found::Not,
    };
    let tool = tools.iter().find(|tool| tool.name == name);
    let mut arguments = Map::new();
    loop {
        at += spaces(&text[at..]);
        let rest = &text[at..];
        if rest.starts_with(END_FUNCTION) {
            let arguments = Value::Object(arguments).to_string();
            return Found::Is(at + END_FUNCTION.len(), Call { name: name.to_owned(), arguments });
        }
        match named(rest, PARAMETER) {
            Found::Is(end, parameter) => {
                let is_next = |name: &str| {
                    let known = tool.is_some_and(|tool| tool.parameters["properties"].get(name).is_some());
                    known && name != parameter && !arguments.contains_key(name)
                };
                let (length, next) = match value(&rest[end..], ended, is_next) {
                    Found::Is(length, next) => (length, next),
                    _ => return Found::Open,
                };
                let text = &rest[end..end + length];
                let text = text.strip_prefix('\n').unwrap_or(text);
                let text = text.strip_suffix('\n').unwrap_or(text);
                arguments.insert(parameter.to_owned(), schema::value(tool, parameter, text));
                at += end + next;
            }
            Found::Open => return Found::Open,
            Found::Not if begins(rest, END_FUNCTION).is_none() => return Found::Open,
            Found::Not => return Found::Not,
        }
    }
}

/// Finds the end of a value at the start of a text, and where the call continues. `is_next`:
/// whether a parameter of this name may follow; its tag then ends a value that was not closed.
fn value(text: &str, ended: bool, is_next: impl Fn(&str) -> bool) -> Found<usize> {
    for (at, _) in text.match_indices('<') {
        let (tag, starts_line) = (&text[at..], text[..at].ends_with('\n'));
        match begins(tag, END_PARAMETER) {
            None => return Found::Open,
            Some(true) => {
                let next = &tag[END_PARAMETER.len()..].trim_start();
                let follows = [PARAMETER, END_FUNCTION, CLOSE].map(|tag| begins(next, tag));
                if follows.contains(&Some(true)) {
                    return Found::Is(at, at + END_PARAMETER.len());
                }
                if follows.contains(&None) {
                    return Found::Open;
                }
            }
            Some(false) => {}
        }
        if !starts_line {
            continue;
        }
        match named(tag, PARAMETER) {
            Found::Is(_, name) if is_next(name) => return Found::Is(at, at),
            Found::Open => return Found::Open,
            _ => {}
        }
        match begins(tag, END_FUNCTION) {
            None => return Found::Open,
            Some(true) => {
                let next = tag[END_FUNCTION.len()..].trim_start();
                match begins(next, CLOSE) {
                    Some(true) => return Found::Is(at, at),
                    None if ended && next.is_empty() => return Found::Is(at, at),
                    None => return Found::Open,
                    Some(false) => {}
                }
            }
            Some(false) => {}
        }
    }
    Found::Open
}
