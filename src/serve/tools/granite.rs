//! A JSON array after a mark: `<|tool_call|>[{"name": "f", "arguments": {}}]`. Granite 3.

use super::arguments;
use super::format::{At, Begun, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::before_mark;
use super::schema;
use crate::protocol::GrammarPart;

pub struct Granite;

const OPEN: &str = "<|tool_call|>";

impl Format for Granite {
    fn name(&self) -> &'static str {
        "granite"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains(OPEN)
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        Some(vec![GrammarPart::Mark(OPEN.to_owned()), GrammarPart::Json(schema::of_list(tools).to_string())])
    }

    fn step(&self, text: &str, at: At, _: &[Tool]) -> Step {
        if !text.starts_with(OPEN) {
            return before_mark(text, &[OPEN], at);
        }
        let start = OPEN.len() + spaces(&text[OPEN.len()..]);
        match json::array(&text[start..]) {
            Scan::Open => Step::Open(start),
            Scan::Not => Step::Text(OPEN.len()),
            Scan::Ends(end) => match json::calls(&text[start..start + end]) {
                Some(calls) => Step::Calls(start + end, calls),
                None => Step::Text(OPEN.len()),
            },
        }
    }

    fn begun(&self, text: &str, _: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        let start = text.len() - text.strip_prefix(OPEN)?.trim_start().len();
        arguments::of_element(text, start, tools, nth)
    }
}
