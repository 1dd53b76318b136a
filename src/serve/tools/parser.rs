//! Finds the calls in the text of an answer while it arrives.

use super::format::{At, Call, Format, Step, Tool};
use crate::tokenizer::begun;
use std::sync::Arc;

/// Maximum calls of an answer: once reached, the rest is text. One array is not cut and may exceed
/// it.
const MOST_CALLS: usize = 128;
/// Maximum bytes of an incomplete call. A longer one is text.
const CALL_BYTES: usize = 1 << 20;
/// A call is read again once the held text has grown by 1 / `AGAIN`, so that total work stays
/// linear; a bracket that may end the call also triggers it.
const AGAIN: usize = 64;

/// A part of an answer, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Text(String),
    /// So many bytes of the text are these calls.
    Calls(usize, Vec<Call>),
}

/// Finds the calls in a text that comes in parts.
pub struct Parser {
    format: &'static dyn Format,
    tools: Arc<[Tool]>,
    /// Text that may be a call.
    held: String,
    /// Number of held bytes at which they are read again.
    next: usize,
    /// Whether there is nothing but white space and calls so far.
    first: bool,
    n_calls: usize,
}

impl Parser {
    pub fn new(format: &'static dyn Format, tools: Arc<[Tool]>) -> Self {
        Self { format, tools, held: String::new(), next: 0, first: true, n_calls: 0 }
    }

    /// Takes the next part of the text and appends what is decided to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Heard>) {
        self.held += text;
        if self.held.len() >= self.next || text.contains(['}', ']', '>']) {
            self.read(false, out);
        }
    }

    /// Ends the text. An incomplete call becomes text, or is dropped if complete ones precede it.
    pub fn finish(&mut self, out: &mut Vec<Heard>) {
        self.read(true, out);
        let rest = std::mem::take(&mut self.held);
        self.text(rest, out);
    }

    fn read(&mut self, ended: bool, out: &mut Vec<Heard>) {
        self.next = 0;
        while !self.held.is_empty() && self.n_calls < MOST_CALLS {
            let at = At { first: self.first, ended };
            match self.format.step(&self.held, at, &self.tools) {
                Step::Text(0) => break,
                Step::Text(n) => {
                    let rest = self.held.split_off(self.char_end(n));
                    let text = std::mem::replace(&mut self.held, rest);
                    self.text(text, out);
                }
                Step::Calls(n, mut calls) => {
                    self.held.drain(..n);
                    calls.truncate(MOST_CALLS - self.n_calls);
                    self.n_calls += calls.len();
                    out.push(Heard::Calls(n, calls));
                }
                Step::Open(marks) if ended => {
                    let is_empty = self.held[marks.min(self.held.len())..].trim().is_empty();
                    if self.n_calls > 0 || (is_empty && marks > 0) {
                        self.held.clear();
                    }
                    break;
                }
                Step::Open(_) if self.held.len() > CALL_BYTES => {
                    let rest = self.held.split_off(self.char_end(1));
                    let text = std::mem::replace(&mut self.held, rest);
                    self.text(text, out);
                }
                Step::Open(_) => {
                    self.next = self.held.len() + self.held.len() / AGAIN;
                    break;
                }
            }
        }
        if self.n_calls >= MOST_CALLS {
            let rest = std::mem::take(&mut self.held);
            self.text(rest, out);
        }
    }

    /// Returns the first character boundary at or after byte `n`.
    fn char_end(&self, n: usize) -> usize {
        (n..=self.held.len()).find(|&end| self.held.is_char_boundary(end)).unwrap_or(self.held.len())
    }

    fn text(&mut self, text: String, out: &mut Vec<Heard>) {
        if text.is_empty() {
            return;
        }
        self.first &= text.trim().is_empty();
        match out.last_mut() {
            Some(Heard::Text(before)) => *before += &text,
            _ => out.push(Heard::Text(text)),
        }
    }
}

/// Text up to the first of `marks`, or up to an end that may begin one.
pub fn before_mark(text: &str, marks: &[&str], at: At) -> Step {
    if let Some(first) = marks.iter().filter_map(|mark| text.find(mark)).min() {
        return Step::Text(first);
    }
    let held = marks.iter().map(|mark| begun(text, mark)).max().filter(|_| !at.ended);
    Step::Text(text.len() - held.unwrap_or(0))
}

/// Calls that end at `end`, or after the closing mark if it follows.
pub fn closed_by(text: &str, end: usize, close: &str, at: At, calls: Vec<Call>) -> Step {
    let rest = text[end..].trim_start();
    if rest.starts_with(close) {
        return Step::Calls(text.len() - rest.len() + close.len(), calls);
    }
    // The mark may still arrive.
    match close.starts_with(rest) && !at.ended {
        true => Step::Open(0),
        false => Step::Calls(end, calls),
    }
}

#[cfg(test)]
mod tests {
    use super::super::known::{FORMATS, format_of};
    use super::*;
    use crate::protocol::TemplateSpec;
    use serde_json::{Value, json};

    fn tools() -> Arc<[Tool]> {
        let properties = json!({ "city": { "type": "string" }, "n": { "type": "integer" } });
        Arc::new([Tool { name: "f".into(), parameters: json!({ "type": "object", "properties": properties }) }])
    }

    fn format(name: &str) -> &'static dyn Format {
        FORMATS.into_iter().find(|format| format.name() == name).unwrap()
    }

    fn in_parts(name: &str, parts: &[&str]) -> (String, Vec<Call>) {
        let (mut parser, mut heard) = (Parser::new(format(name), tools()), Vec::new());
        parts.iter().for_each(|part| parser.push(part, &mut heard));
        parser.finish(&mut heard);
        let (mut text, mut calls) = (String::new(), Vec::new());
        for one in heard {
            match one {
                Heard::Text(more) => text += &more,
                Heard::Calls(_, more) => calls.extend(more),
            }
        }
        (text, calls)
    }

    /// Returns the text and the calls. Checks that every cut, and single characters, give the same.
    fn read(name: &str, text: &str) -> (String, Vec<(String, Value)>) {
        let whole = in_parts(name, &[text]);
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(in_parts(name, &[a, b]), whole, "{name}: {a:?} | {b:?}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(in_parts(name, &chars.iter().map(String::as_str).collect::<Vec<_>>()), whole, "{text:?}");
        let call = |call: Call| (call.name, serde_json::from_str(&call.arguments).unwrap());
        (whole.0, whole.1.into_iter().map(call).collect())
    }

    #[test]
    fn each_format_is_read_whereever_it_is_cut() {
        let one = vec![("f".to_owned(), json!({ "city": "Zürich }]", "n": 1.5 }))];
        let json = r#"{"name": "f", "arguments": {"city": "Zürich }]", "n": 1.5}}"#;
        let parameters = json.replace("arguments", "parameters");
        for (name, text) in [
            ("hermes", format!("<tool_call>\n{json}\n</tool_call>")),
            ("hermes", format!("<tool_call>{json}")),
            ("granite", format!("<|tool_call|>[{json}]")),
            ("phi", format!("<|tool_call|>[{json}]<|/tool_call|>")),
            ("phi", format!("functools[{json}]")),
            ("mistral", format!("[TOOL_CALLS] [{json}]")),
            ("mistral", "[TOOL_CALLS]f[ARGS]{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            ("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            ("llama3", parameters.clone()),
            ("llama3", format!("<|python_tag|>{parameters}")),
            ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            (
                "xml",
                "<tool_call>\n<function=f>\n<parameter=city>\nZürich }]\n</parameter>\n<parameter=n>\n1.5\n</parameter>\n\
                 </function>\n</tool_call>"
                    .to_owned(),
            ),
        ] {
            assert_eq!(read(name, &text), (String::new(), one.clone()), "{text}");
            if name != "llama3" && !text.starts_with("functools") {
                assert_eq!(read(name, &format!("Let me <see>: {text}")), ("Let me <see>: ".to_owned(), one.clone()));
            }
            let two = read(name, &format!("{text}{}{text}", if name == "llama3" { "; " } else { "" }));
            assert_eq!(two.1.len(), 2, "{text}");
        }
    }

    #[test]
    fn what_is_no_call_stays_text_to_the_last_character() {
        for (name, text) in [
            ("hermes", "2 < 3 <tool_cal"),
            ("hermes", "<tool_call>\n{'name': 'f'}\n</tool_call> after"),
            ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Par"),
            ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
            ("granite", "<|tool_call|>[{\"name\": 7}] x"),
            ("phi", "functools are functions"),
            ("mistral", "[TOOL_CALLS] not json at all"),
            ("mistral", "[TOOL_CALLS]f[ARGS]{\"city\": "),
            ("llama3", "{\"capital\": \"Paris\"}"),
            ("llama3", "{\"name\": \"g\", \"parameters\": {}} is JSON"),
            ("llama3", "  {\"name\": \"f\", \"parameters\": {\"n\": 1}"),
            ("harmony", "<|channel|>commentary to=functions.f<|message|>[1]"),
            ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"city\": "),
            ("xml", "<tool_call>\n<function=f>\n<parameter=city>\nPar"),
            ("xml", "a <function=f b"),
            ("xml", "<tool_call>\nfunction f\n</tool_call>"),
        ] {
            assert_eq!(read(name, text), (text.to_owned(), Vec::new()), "{name}");
        }
        // An incomplete call after a complete one is dropped.
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let (text, calls) = read("hermes", &format!("{call}<tool_call>{{\"name\": \"f\", \"argu"));
        assert_eq!((&*text, calls.len()), ("", 1));
    }

    #[test]
    fn calls_and_their_bytes_are_bounded() {
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let (text, calls) = in_parts("hermes", &[&call.repeat(MOST_CALLS + 2)]);
        assert_eq!((text, calls.len()), (call.repeat(2), MOST_CALLS));
        let long = format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"city\": \"{}",
            "x".repeat(CALL_BYTES + CALL_BYTES / 8)
        );
        let (mut parser, mut heard) = (Parser::new(format("hermes"), tools()), Vec::new());
        long.as_bytes().chunks(4096).for_each(|part| parser.push(std::str::from_utf8(part).unwrap(), &mut heard));
        assert!(parser.held.len() < 64, "it is text once it is too long");
        parser.finish(&mut heard);
        assert_eq!(heard, [Heard::Text(long)]);
    }

    #[test]
    fn values_between_tags_have_the_types_of_the_schema_and_may_have_tags() {
        let text = "<tool_call>\n<function=f>\n<parameter=city>\nUse </parameter> and </function>, or <parameter=n>.\n\
                    </parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>";
        let city = "Use </parameter> and </function>, or <parameter=n>.";
        assert_eq!(read("xml", text).1, [("f".to_owned(), json!({ "city": city, "n": 7 }))]);
        // Closing tags that were left out.
        let text = "<function=f>\n<parameter=city>\n8\n<parameter=n>\n7\n</function>\n</tool_call>";
        assert_eq!(read("xml", text).1, [("f".to_owned(), json!({ "city": "8", "n": 7 }))]);
    }

    #[test]
    fn a_template_says_which_format_its_model_writes() {
        let of = |source: &str| {
            let spec = TemplateSpec { source: Some(source.to_owned()), ..TemplateSpec::default() };
            format_of(&spec).map(|format| format.name())
        };
        let file = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/templates");
            of(&std::fs::read_to_string(format!("{folder}/{name}.jinja")).unwrap())
        };
        assert_eq!(file("Qwen-Qwen2.5-7B-Instruct"), Some("hermes"));
        assert_eq!(file("Qwen3.5-4B"), Some("xml"));
        assert_eq!(file("ibm-granite-granite-3.3-2B-Instruct"), Some("granite"));
        for mistral in [
            "mistralai-Mistral-Nemo-Instruct-2407",
            "Mistral-Small-3.2-24B-Instruct-2506",
            "mistralai-Ministral-3-14B-Reasoning-2512",
        ] {
            assert_eq!(file(mistral), Some("mistral"));
        }
        assert_eq!(of("{% if xml_tools %}<tool_call>{% endif %}"), Some("hermes"), "SmolLM3's name");
        assert_eq!(of("{% if tools %}<|channel|>commentary json<|message|>{% endif %}"), Some("harmony"));
        for none in ["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "gemma_turns", "microsoft-Phi-3.5-mini-instruct"] {
            assert_eq!(file(none), None, "{none}");
        }
    }
}
