//! A JSON array between marks, `<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`, or
//! after the word `functools`. Phi-4-mini.

use super::arguments;
use super::format::{At, Begun, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::{before_mark, closed_by};
use super::schema;
use crate::protocol::GrammarPart;

pub struct Phi;

const OPEN: &str = "<|tool_call|>";
const CLOSE: &str = "<|/tool_call|>";
/// Starts an array of calls without marks, only at the start of an answer.
const WORD: &str = "functools[";

impl Format for Phi {
    fn name(&self) -> &'static str {
        "phi"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains("<|tool|>")
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }

    fn tools_in_system(&self) -> bool {
        true
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        let [open, close] = [OPEN, CLOSE].map(|mark| GrammarPart::Mark(mark.to_owned()));
        Some(vec![open, GrammarPart::Json(schema::of_list(tools).to_string()), close])
    }

    fn step(&self, text: &str, at: At, _: &[Tool]) -> Step {
        let Some((mark, start)) = array(text, at) else {
            return match at.first && !at.ended && WORD.starts_with(text.trim_start()) {
                true => Step::Text(0),
                false => before_mark(text, &[OPEN], at),
            };
        };
        match json::array(&text[start..]) {
            Scan::Open => Step::Open(start.max(mark)),
            Scan::Not => Step::Text(mark),
            Scan::Ends(end) => match json::calls(&text[start..start + end]) {
                Some(calls) => closed_by(text, start + end, CLOSE, at, calls),
                None => Step::Text(mark),
            },
        }
    }

    fn begun(&self, text: &str, at: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        arguments::of_element(text, array(text, at)?.1, tools, nth)
    }
}

/// Where the mark at the start of a text ends, and where the array of calls begins.
fn array(text: &str, at: At) -> Option<(usize, usize)> {
    let lead = spaces(text);
    if at.first && text[lead..].starts_with(WORD) {
        return Some((lead + WORD.len(), lead + WORD.len() - 1));
    }
    text.starts_with(OPEN).then(|| (OPEN.len(), OPEN.len() + spaces(&text[OPEN.len()..])))
}
