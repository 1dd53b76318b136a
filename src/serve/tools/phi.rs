//! A JSON array between marks, `<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>`, or
//! after the word `functools`. Phi-4-mini.

use super::format::{At, Format, Step, Tool};
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
        let lead = spaces(text);
        let (mark, start) = match text[lead..].starts_with(WORD) && at.first {
            true => (lead + WORD.len(), lead + WORD.len() - 1),
            false if text.starts_with(OPEN) => (OPEN.len(), OPEN.len() + spaces(&text[OPEN.len()..])),
            false if at.first && !at.ended && WORD.starts_with(&text[lead..]) => return Step::Text(0),
            false => return before_mark(text, &[OPEN], at),
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
}
