//! Finds the calls in the text of an answer while it arrives.

use super::arguments::Object;
use super::format::{At, Call, Format, Step, Tool};
use super::json::Scan;
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
    /// So many bytes of the text are calls: these, behind those that have begun.
    Calls(usize, Vec<Call>),
    /// A call of this tool begins, whatever follows.
    Begun(String),
    /// A fragment of its arguments.
    Arguments(String),
    /// Its arguments are complete. Without this they are not, and are the rest of the answer.
    Complete,
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
    /// Whether a call is heard from its name on.
    streams: bool,
    /// Calls of the held text that were heard, and the byte of it behind their arguments.
    begun: usize,
    sent: usize,
    /// Arguments that are not complete.
    open: Option<Object>,
    /// The arguments are not JSON: all that follows is heard as they are.
    broken: bool,
}

impl Parser {
    /// `streams`: a call is heard from its name on, and its arguments while they arrive. Otherwise
    /// it is heard when it is complete and valid.
    pub fn new(format: &'static dyn Format, tools: Arc<[Tool]>, streams: bool) -> Self {
        let (held, open) = (String::new(), None);
        Self { format, tools, held, next: 0, first: true, n_calls: 0, streams, begun: 0, sent: 0, open, broken: false }
    }

    /// Takes the next part of the text and appends what is decided to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Heard>) {
        self.held += text;
        if self.open.is_some() || self.held.len() >= self.next || text.contains(['}', ']', '>']) {
            self.read(false, out);
        }
    }

    /// Ends the text. An incomplete call that has not begun becomes text, or is dropped if complete
    /// ones precede it.
    pub fn finish(&mut self, out: &mut Vec<Heard>) {
        self.read(true, out);
        let rest = std::mem::take(&mut self.held);
        if self.open.is_none() {
            self.text(rest, out);
        }
    }

    /// Hears the calls that have begun. Returns false while arguments are incomplete.
    fn stream(&mut self, out: &mut Vec<Heard>) -> bool {
        loop {
            if let Some(open) = &mut self.open {
                let rest = &self.held[self.sent..];
                let scan = if self.broken { Scan::Not } else { open.push(rest) };
                let end = if let Scan::Ends(end) = scan { end } else { rest.len() };
                if end > 0 {
                    out.push(Heard::Arguments(rest[..end].to_owned()));
                }
                self.sent += end;
                if let Scan::Ends(_) = scan {
                    out.push(Heard::Complete);
                    (self.open, self.begun) = (None, self.begun + 1);
                } else {
                    self.broken |= scan == Scan::Not || self.held.len() > CALL_BYTES;
                    if self.broken {
                        self.held.clear();
                        self.sent = 0;
                    }
                    return false;
                }
            }
            let at = At { first: self.first, ended: false };
            if self.n_calls + self.begun >= MOST_CALLS {
                return true;
            }
            let Some(begun) = self.format.begun(&self.held, at, &self.tools, self.begun) else { return true };
            self.sent = begun.start;
            self.open = Some(Object::new());
            out.push(Heard::Begun(begun.name));
        }
    }

    /// Takes the first `n` held bytes off, with the calls in them.
    fn take(&mut self, n: usize, calls: Vec<Call>, out: &mut Vec<Heard>) {
        self.held.drain(..n);
        self.n_calls += self.begun + calls.len();
        (self.begun, self.sent) = (0, 0);
        out.push(Heard::Calls(n, calls));
    }

    fn read(&mut self, ended: bool, out: &mut Vec<Heard>) {
        self.next = 0;
        while !self.held.is_empty() && self.n_calls < MOST_CALLS {
            if self.streams && !self.stream(out) {
                break;
            }
            let at = At { first: self.first, ended };
            match self.format.step(&self.held, at, &self.tools) {
                Step::Text(0) => break,
                // Calls that have begun stay calls.
                Step::Text(_) if self.begun > 0 => self.take(self.sent, Vec::new(), out),
                Step::Text(n) => {
                    let rest = self.held.split_off(self.char_end(n));
                    let text = std::mem::replace(&mut self.held, rest);
                    self.text(text, out);
                }
                Step::Calls(n, mut calls) => {
                    calls.truncate(MOST_CALLS - self.n_calls);
                    let calls = calls.split_off(self.begun.min(calls.len()));
                    self.take(n, calls, out);
                }
                Step::Open(_) if self.begun > 0 && (ended || self.held.len() > CALL_BYTES) => {
                    let end = if ended { self.held.len() } else { self.sent };
                    self.take(end, Vec::new(), out);
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
    match close.starts_with(rest) {
        // The mark may still arrive.
        true if !at.ended => Step::Open(0),
        // It was cut off.
        true if !rest.is_empty() => Step::Calls(text.len(), calls),
        _ => Step::Calls(end, calls),
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

    /// The text of an answer, its calls, and whether they are complete.
    fn in_parts(name: &str, parts: &[&str], streams: bool) -> (String, Vec<Call>, bool) {
        let (mut parser, mut heard) = (Parser::new(format(name), tools(), streams), Vec::new());
        parts.iter().for_each(|part| parser.push(part, &mut heard));
        parser.finish(&mut heard);
        let (mut text, mut calls, mut complete) = (String::new(), Vec::<Call>::new(), true);
        for one in heard {
            // Nothing but arguments follows a call's name until they are complete.
            assert!(complete || matches!(one, Heard::Arguments(_) | Heard::Complete), "{name}: {one:?}");
            match one {
                Heard::Text(more) => text += &more,
                Heard::Calls(_, more) => calls.extend(more),
                Heard::Begun(name) => {
                    calls.push(Call { name, arguments: String::new() });
                    complete = false;
                }
                Heard::Arguments(more) => calls.last_mut().unwrap().arguments += &more,
                Heard::Complete => complete = true,
            }
        }
        (text, calls, complete)
    }

    /// Reads a text whole. Checks that every cut, and single characters, give the same.
    fn wherever(name: &str, text: &str, streams: bool) -> (String, Vec<Call>, bool) {
        let whole = in_parts(name, &[text], streams);
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(in_parts(name, &[a, b], streams), whole, "{name}: {a:?} | {b:?}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        assert_eq!(in_parts(name, &chars, streams), whole, "{name}: {text:?}");
        whole
    }

    /// Returns the text and the calls that are heard when they are complete.
    fn read(name: &str, text: &str) -> (String, Vec<(String, Value)>) {
        let (text, calls, _) = wherever(name, text, false);
        let call = |call: Call| (call.name, serde_json::from_str(&call.arguments).unwrap());
        (text, calls.into_iter().map(call).collect())
    }

    /// Checks that calls are the same, byte by byte, if they are heard from their names on.
    fn check_streamed(name: &str, text: &str) {
        assert_eq!(wherever(name, text, true), wherever(name, text, false), "{name}: {text}");
    }

    #[test]
    fn each_format_is_read_whereever_it_is_cut() {
        let one = vec![("f".to_owned(), json!({ "city": "Zürich }]", "n": 1.5 }))];
        let json = r#"{"name": "f", "arguments": {"city": "Zürich }]", "n": 1.5}}"#;
        let parameters = json.replace("arguments", "parameters");
        for (name, text) in [
            ("hermes", format!("<tool_call>\n{json}\n</tool_call>")),
            ("hermes", format!("<tool_call>{json}")),
            ("hermes", format!("<tool_call>{json}\n</tool_c")),
            ("granite", format!("<|tool_call|>[{json}]")),
            ("phi", format!("<|tool_call|>[{json}]<|/tool_call|>")),
            ("phi", format!("functools[{json}]")),
            ("mistral", format!("[TOOL_CALLS] [{json}]")),
            ("mistral", "[TOOL_CALLS]f[ARGS]{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            ("mistral", "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            ("llama3", parameters.clone()),
            ("llama3", format!("<|python_tag|>{parameters}")),
            ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"city\": \"Zürich }]\", \"n\": 1.5}".to_owned()),
            ("gemma", "<|tool_call>call:f{city:<|\"|>Zürich }]<|\"|>,n:1.5}<tool_call|>".to_owned()),
            ("gemma", "<|tool_call>call:f{city:<|\"|>Zürich }]<|\"|>,n:1.5}".to_owned()),
            ("gemma", "<|tool_call>call:f{\"city\": \"Zürich }]\", \"n\": 1.5}<tool_call|>".to_owned()),
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
            let two = format!("{text}{}{text}", if name == "llama3" { "; " } else { "" });
            assert_eq!(read(name, &two).1.len(), 2, "{text}");
            for text in [&text, &format!("Let me <see>: {text}"), &two, &format!("{two}\nDone <to")] {
                check_streamed(name, text);
            }
        }
    }

    #[test]
    fn a_call_is_heard_from_its_name_on_and_its_arguments_as_they_arrive() {
        let object = r#"{"city": "Bern", "n": 1}"#;
        let json = |name: &str| format!(r#"{{"name": "{name}", "arguments": {object}}}"#);
        let (f, g) = (json("f"), json("g"));
        for (name, text) in [
            ("hermes", format!("<tool_call>\n{f}\n</tool_call>")),
            ("granite", format!("<|tool_call|>[{f}]")),
            ("phi", format!("<|tool_call|>[{f}]<|/tool_call|>")),
            ("phi", format!("functools[{f}]")),
            ("mistral", format!("[TOOL_CALLS][{f}]")),
            ("mistral", format!("[TOOL_CALLS]f[ARGS]{object}")),
            ("mistral", format!("[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{object}")),
            ("llama3", f.clone()),
            ("llama3", format!("<|python_tag|>{f}")),
            ("harmony", format!("<|channel|>commentary to=functions.f<|message|>{object}")),
        ] {
            let (mut parser, mut heard) = (Parser::new(format(name), tools(), true), Vec::new());
            let begins = text.find(object).unwrap() + 1;
            for (at, _) in text[..begins + object.len() - 1].char_indices().skip(1) {
                parser.push(&text[at - 1..at], &mut heard);
                let n_sent = heard.len();
                assert_eq!(n_sent, if at < begins { 0 } else { 2 + at - begins }, "{name}: {}", &text[..at]);
            }
            assert_eq!(heard[..2], [Heard::Begun("f".into()), Heard::Arguments("{".into())], "{name}");
        }
        // An array whose calls of an unknown tool, and those behind them, are heard at its end.
        for (name, open, close) in
            [("granite", "<|tool_call|>[", "]"), ("phi", "functools[", "]"), ("mistral", "[TOOL_CALLS] [", "]")]
        {
            for calls in [[&f, &f, &g], [&f, &g, &f], [&g, &f, &f]] {
                let text = format!("{open}{}, {} ,{}{close}", calls[0], calls[1], calls[2]);
                assert_eq!(read(name, &text).1.len(), 3);
                check_streamed(name, &text);
            }
        }
        let early = r#"<tool_call>{"arguments": {"n": 1}, "name": "f"}</tool_call>"#;
        let inner = r#"<tool_call>{"name": "f", "arguments": "{\"n\": 1}"}</tool_call>"#;
        for text in [early, inner] {
            assert_eq!(read("hermes", text).1.len(), 1);
            check_streamed("hermes", text);
        }
    }

    #[test]
    fn a_call_that_has_begun_stays_one_and_what_breaks_it_off_is_part_of_it() {
        let broken =
            |arguments: &str| (String::new(), vec![Call { name: "f".into(), arguments: arguments.into() }], false);
        for (name, text, arguments) in [
            ("hermes", r#"<tool_call>{"name": "f", "arguments": {"city": "Par"#, r#"{"city": "Par"#),
            ("hermes", r#"<tool_call>{"name": "f", "arguments": {"#, "{"),
            ("hermes", r#"<tool_call>{"name": "f", "arguments": {'n': 1}}</tool_call> x"#, "{'n': 1}}</tool_call> x"),
            ("mistral", "[TOOL_CALLS]f[ARGS]{\"city\": \"a\nb\"}", "{\"city\": \"a\nb\"}"),
            ("mistral", r#"[TOOL_CALLS][{"name": "f", "arguments": {"n": ]"#, r#"{"n": ]"#),
            ("llama3", r#"{"name": "f", "parameters": {"n": 1"#, r#"{"n": 1"#),
            ("harmony", r#"<|channel|>commentary to=functions.f<|message|>{"n": "#, r#"{"n": "#),
        ] {
            assert_eq!(wherever(name, text, true), broken(arguments), "{name}: {text}");
        }
        // Its arguments are complete, and the rest is text, or nothing at the end.
        let call = || vec![Call { name: "f".into(), arguments: "{}".into() }];
        for (name, text, rest) in [
            ("hermes", r#"<tool_call>{"name": "f", "arguments": {}"#, ""),
            ("hermes", r#"<tool_call>{"name": "f", "arguments": {}, 7}"#, ", 7}"),
            ("granite", r#"<|tool_call|>[{"name": "f", "arguments": {}}, {"name": "#, ""),
            ("granite", r#"<|tool_call|>[{"name": "f", "arguments": {}}, x]"#, "}, x]"),
        ] {
            assert_eq!(wherever(name, text, true), (rest.to_owned(), call(), true), "{name}: {text}");
        }
        // What does not begin a call of a tool is what it is without a stream.
        for (name, text) in [
            ("hermes", "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"city\": \"Par"),
            ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
            ("hermes", "<tool_call>{\"name\":\u{a0}\"f\", \"arguments\": {}}</tool_call>"),
            ("llama3", "{\"name\": \"g\", \"parameters\": {}} is JSON"),
            ("mistral", "[TOOL_CALLS]g[ARGS]{\"city\": "),
            ("xml", "<tool_call>\n<function=f>\n<parameter=city>\nPar"),
            ("xml", "<tool_call><function=f>\n<parameter=n>\n1\n</parameter>\n</function></tool_call>"),
        ] {
            check_streamed(name, text);
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
        for streams in [false, true] {
            let (text, calls, _) = in_parts("hermes", &[&call.repeat(MOST_CALLS + 2)], streams);
            assert_eq!((text, calls.len()), (call.repeat(2), MOST_CALLS));
        }
        let long = format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"city\": \"{}",
            "x".repeat(CALL_BYTES + CALL_BYTES / 8)
        );
        let (text, calls, complete) = in_parts("hermes", &[&long], true);
        assert!(text.is_empty() && !complete && long.ends_with(&calls[0].arguments));
        let (mut parser, mut heard) = (Parser::new(format("hermes"), tools(), false), Vec::new());
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
