//! JSON between tags: `<tool_call>{"name": "f", "arguments": {}}</tool_call>`. Qwen 2.5, Qwen 3 and
//! SmolLM3.

use super::arguments;
use super::format::{At, Begun, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::{before_mark, closed_by};
use super::schema;
use crate::protocol::GrammarPart;

pub struct Hermes;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

impl Format for Hermes {
    fn name(&self) -> &'static str {
        "hermes"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains(OPEN)
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE]
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        let [open, close] = [OPEN, CLOSE].map(|mark| GrammarPart::Mark(mark.to_owned()));
        let line = || GrammarPart::Text("\n".to_owned());
        let call = GrammarPart::Json(schema::of_calls(tools, "arguments").to_string());
        Some(vec![open, line(), call, line(), close])
    }

    fn step(&self, text: &str, at: At, _: &[Tool]) -> Step {
        if !text.starts_with(OPEN) {
            return before_mark(text, &[OPEN], at);
        }
        let start = OPEN.len() + spaces(&text[OPEN.len()..]);
        match json::object(&text[start..]) {
            Scan::Open => Step::Open(start),
            Scan::Not => Step::Text(OPEN.len()),
            Scan::Ends(end) => match json::call(&text[start..start + end], false) {
                Some(call) => closed_by(text, start + end, CLOSE, at, vec![call]),
                None => Step::Text(OPEN.len()),
            },
        }
    }

    fn begun(&self, text: &str, _: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        let start = text.len() - text.strip_prefix(OPEN)?.trim_start().len();
        arguments::of_object(text, start, tools).filter(|_| nth == 0)
    }
}
