//! Messages to tools: `<|channel|>commentary to=functions.f<|message|>{}`. gpt-oss.
//!
//! The engine reads the headers of messages, and writes those of calls in this spelling into the
//! text of the answer.

use super::arguments;
use super::format::{At, Begun, Call, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::before_mark;
use super::schema;
use crate::protocol::GrammarPart;

pub struct Harmony;

const OPEN: &str = "<|channel|>commentary to=functions.";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";

impl Format for Harmony {
    fn name(&self) -> &'static str {
        "harmony"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains("<|channel|>commentary")
    }

    fn marks(&self) -> &'static [&'static str] {
        &[CHANNEL, MESSAGE]
    }

    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        let mark = |mark: &str| GrammarPart::Mark(mark.to_owned());
        let text = |text: &str| GrammarPart::Text(text.to_owned());
        let one = |tool: &&Tool| {
            let arguments = GrammarPart::Json(schema::of_arguments(tool).to_string());
            vec![text(&format!("{} ", tool.name)), mark("<|constrain|>"), text("json"), mark(MESSAGE), arguments]
        };
        let all = GrammarPart::Either(tools.iter().map(one).collect());
        Some(vec![mark(CHANNEL), text("commentary to=functions."), all])
    }

    /// The template writes the headers of calls itself.
    fn repeats_sampled(&self) -> bool {
        false
    }

    fn step(&self, text: &str, at: At, _: &[Tool]) -> Step {
        let Some(rest) = text.strip_prefix(OPEN) else { return before_mark(text, &[OPEN], at) };
        let Some((name, arguments)) = rest.split_once(MESSAGE) else { return Step::Open(text.len()) };
        let lead = spaces(arguments);
        let start = text.len() - arguments.len() + lead;
        match json::object(&arguments[lead..]) {
            Scan::Open => Step::Open(start),
            Scan::Not => Step::Text(OPEN.len()),
            Scan::Ends(end) => match json::arguments(&text[start..start + end]) {
                Some(arguments) => Step::Calls(start + end, vec![Call { name: name.to_owned(), arguments }]),
                None => Step::Text(OPEN.len()),
            },
        }
    }

    fn begun(&self, text: &str, _: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        let (name, arguments) = text.strip_prefix(OPEN)?.split_once(MESSAGE)?;
        arguments::of_call(name, text, text.len() - arguments.len(), tools).filter(|_| nth == 0)
    }
}
