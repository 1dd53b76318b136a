//! Calls after a mark: `[TOOL_CALLS][{"name": "f", "arguments": {}}]` up to the third version of
//! Mistral's tokenizers, and `[TOOL_CALLS]f[ARGS]{}` from the eleventh on, with `[CALL_ID]id` in
//! some models.

use super::arguments;
use super::format::{At, Begun, Call, Format, Step, Tool};
use super::json::{self, Scan, spaces};
use super::parser::before_mark;
use super::schema;
use crate::protocol::GrammarPart;
use crate::serve::stamp::random_digits;

pub struct Mistral;

const OPEN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

/// Length of an id in letters and digits. Templates reject others.
const ID_CHARS: usize = 9;

/// Maximum bytes between the mark and the arguments: a name, and perhaps an id.
const NAME_BYTES: usize = 512;

impl Format for Mistral {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains(OPEN)
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, ID, ARGS]
    }

    fn new_id(&self) -> String {
        random_digits()[..ID_CHARS].to_owned()
    }

    fn id_for_template(&self, id: &str) -> String {
        if id.len() == ID_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return id.to_owned();
        }
        // FNV-1a, so that a call and its result keep equal ids if another server made them.
        let hash = id
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("{hash:016x}")[..ID_CHARS].to_owned()
    }

    fn grammar(&self, tools: &[&Tool], template: &str) -> Option<Vec<GrammarPart>> {
        let mark = |mark: &str| GrammarPart::Mark(mark.to_owned());
        if !template.contains(ARGS) {
            return Some(vec![mark(OPEN), GrammarPart::Json(schema::of_list(tools).to_string())]);
        }
        let one = |tool: &&Tool| {
            let arguments = GrammarPart::Json(schema::of_arguments(tool).to_string());
            vec![GrammarPart::Text(tool.name.clone()), mark(ARGS), arguments]
        };
        Some(vec![mark(OPEN), GrammarPart::Either(tools.iter().map(one).collect())])
    }

    fn step(&self, text: &str, at: At, _: &[Tool]) -> Step {
        if !text.starts_with(OPEN) {
            return before_mark(text, &[OPEN], at);
        }
        let start = OPEN.len() + spaces(&text[OPEN.len()..]);
        let not = Step::Text(OPEN.len());
        if text[start..].starts_with('[') {
            return match json::array(&text[start..]) {
                Scan::Open => Step::Open(start),
                Scan::Not => not,
                Scan::Ends(end) => match json::calls(&text[start..start + end]) {
                    Some(calls) => Step::Calls(start + end, calls),
                    None => not,
                },
            };
        }
        if !text[start..].contains('{') {
            // Characters that no name has.
            let is_name = |c: char| !c.is_whitespace() && !matches!(c, '"' | '}' | '(');
            return match text[start..].trim_end().chars().all(is_name) && text.len() - start <= NAME_BYTES {
                true => Step::Open(start),
                false => not,
            };
        }
        let Some((name, brace)) = named(text, start) else { return not };
        match json::object(&text[brace..]) {
            Scan::Open => Step::Open(start),
            Scan::Not => not,
            Scan::Ends(end) => match json::arguments(&text[brace..brace + end]) {
                Some(arguments) => Step::Calls(brace + end, vec![Call { name: name.to_owned(), arguments }]),
                None => not,
            },
        }
    }

    fn begun(&self, text: &str, _: At, tools: &[Tool], nth: usize) -> Option<Begun> {
        let start = text.len() - text.strip_prefix(OPEN)?.trim_start().len();
        if text[start..].starts_with('[') {
            return arguments::of_element(text, start, tools, nth);
        }
        let (name, brace) = named(text, start)?;
        arguments::of_call(name, text, brace, tools).filter(|_| nth == 0)
    }
}

/// Reads the name of a call at byte `start`, and finds the brace of its arguments.
fn named(text: &str, start: usize) -> Option<(&str, usize)> {
    let brace = start + text[start..].find('{')?;
    let head = text[start..brace].trim_end();
    let head = head.strip_suffix(ARGS).unwrap_or(head);
    let name = head.split_once(ID).map_or(head, |(name, _)| name).trim();
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace) && brace - start <= NAME_BYTES;
    is_name.then_some((name, brace))
}
