//! JSON as the whole answer, or after a mark: `{"name": "f", "parameters": {}}`,
//! `<|python_tag|>{...}`. Several are separated by semicolons. Llama 3.
//!
//! An answer may be JSON without being a call, so without the mark the name must be a tool's.

use super::format::{At, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::before_mark;
use super::schema;
use crate::protocol::GrammarPart;

pub struct Llama;

const OPEN: &str = "<|python_tag|>";

impl Format for Llama {
    fn name(&self) -> &'static str {
        "llama3"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains("<|start_header_id|>") && template.contains("\"parameters\": ")
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        Some(vec![GrammarPart::Json(schema::of_calls(tools, "parameters").to_string())])
    }

    fn step(&self, text: &str, at: At, tools: &[Tool]) -> Step {
        let has_mark = text.starts_with(OPEN);
        let mut start = if has_mark { OPEN.len() } else { 0 };
        start += spaces(&text[start..]);
        // Between two calls.
        if at.first && !has_mark && text[start..].starts_with(';') {
            start += 1 + spaces(&text[start + 1..]);
        }
        let has_object = at.first && text[start..].starts_with('{');
        if !has_mark && !has_object {
            return match at.first && !at.ended && start == text.len() {
                true => Step::Text(0),
                false => before_mark(text, &[OPEN], at),
            };
        }
        let not = Step::Text(if has_mark { OPEN.len() } else { start + 1 });
        match json::object(&text[start..]) {
            Scan::Open if has_mark => Step::Open(start),
            // Without a mark, all of it is text if it does not become a call.
            Scan::Open => Step::Open(0),
            Scan::Not => not,
            Scan::Ends(end) => match json::call(&text[start..start + end], true) {
                Some(call) if has_mark || tools.iter().any(|tool| tool.name == call.name) => {
                    Step::Calls(start + end, vec![call])
                }
                _ => not,
            },
        }
    }
}
