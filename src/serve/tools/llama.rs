//! JSON as the whole answer, or after a mark: `{"name": "f", "parameters": {}}`,
//! `<|python_tag|>{...}`. Several are separated by semicolons. Llama 3.
//!
//! An answer may be JSON without being a call, so without the mark the name must be a tool's.

use super::arguments;
use super::format::{At, Begun, Format, Step, Tool};
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
        let start = start(text, at);
        if !(has_mark || at.first && text[start..].starts_with('{')) {
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

    fn begun(&self, text: &str, at: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        let may_begin = nth == 0 && (at.first || text.starts_with(OPEN));
        may_begin.then(|| arguments::of_object(text, start(text, at), tools))?
    }
}

/// Where the object of a call may begin.
fn start(text: &str, at: At) -> usize {
    let mark = if text.starts_with(OPEN) { OPEN.len() } else { 0 };
    let start = mark + spaces(&text[mark..]);
    // Between two calls.
    match at.first && mark == 0 && text[start..].starts_with(';') {
        true => start + 1 + spaces(&text[start + 1..]),
        false => start,
    }
}
