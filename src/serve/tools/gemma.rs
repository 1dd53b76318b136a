//! Named arguments in braces between marks:
//! `<|tool_call>call:f{key:<|"|>text<|"|>,n:1}<tool_call|>`. Gemma 4.
//!
//! A text is between two marks `<|"|>` and has no escapes. Other values are as in JSON, but for the
//! keys of objects, which need no quotes. JSON's own quotes are read too.

use super::format::{At, Call, Format, Step, Tool};
use super::json::{Scan, scan_as, spaces};
use super::parser::{before_mark, closed_by};
use super::schema;
use crate::protocol::GrammarPart;
use serde_json::{Map, Value};

pub struct Gemma;

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
const CALL: &str = "call:";
const QUOTE: &str = "<|\"|>";
/// Maximum bytes of the name of a tool or of a bare word.
const NAME_BYTES: usize = 256;
/// Most values that one value is in.
const MOST_DEPTH: usize = 64;

impl Format for Gemma {
    fn name(&self) -> &'static str {
        "gemma"
    }

    fn is_of(&self, template: &str) -> bool {
        template.contains(&format!("{OPEN}{CALL}"))
    }

    fn marks(&self) -> &'static [&'static str] {
        &[OPEN, CLOSE, QUOTE]
    }

    /// A call whose arguments are JSON, which is read like the model's own form.
    fn grammar(&self, tools: &[&Tool], _: &str) -> Option<Vec<GrammarPart>> {
        let one = |tool: &&Tool| {
            let arguments = schema::of_arguments(tool).to_string();
            vec![GrammarPart::Text(format!("{CALL}{}", tool.name)), GrammarPart::Json(arguments)]
        };
        let [open, close] = [OPEN, CLOSE].map(|mark| GrammarPart::Mark(mark.to_owned()));
        Some(vec![open, GrammarPart::Either(tools.iter().map(one).collect()), close])
    }

    fn step(&self, text: &str, at: At, tools: &[Tool]) -> Step {
        let Some(rest) = text.strip_prefix(OPEN) else { return before_mark(text, &[OPEN], at) };
        match call(rest, tools) {
            Found::Open => Step::Open(OPEN.len()),
            Found::Not => Step::Text(OPEN.len()),
            Found::Is(end, call) => closed_by(text, OPEN.len() + end, CLOSE, at, vec![call]),
        }
    }

    /// A template renders calls from the conversation's own form, and results after them.
    fn repeats_sampled(&self) -> bool {
        false
    }
}

enum Found<T> {
    /// So many bytes are this.
    Is(usize, T),
    /// More text may make it one.
    Open,
    Not,
}

/// Reads a text from its start.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Why reading ended early.
enum Halt {
    Open,
    Not,
}

type Read<T> = Result<T, Halt>;

/// The call at the start of a text.
fn call(text: &str, tools: &[Tool]) -> Found<Call> {
    let mut reader = Reader { text, at: spaces(text) };
    let read = |reader: &mut Reader<'_>| {
        reader.literal(CALL)?;
        let name = reader.word(|c| c == '{')?.trim().to_owned();
        let tool = tools.iter().find(|tool| tool.name == name);
        let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '<');
        if !is_name {
            return Err(Halt::Not);
        }
        let Value::Object(arguments) = reader.object(0, tool)? else { return Err(Halt::Not) };
        Ok(Call { name, arguments: Value::Object(arguments).to_string() })
    };
    match read(&mut reader) {
        Ok(call) => Found::Is(reader.at, call),
        Err(Halt::Open) => Found::Open,
        Err(Halt::Not) => Found::Not,
    }
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip(&mut self) {
        self.at += spaces(self.rest());
    }

    /// Takes a literal if it is next.
    fn takes(&mut self, literal: &str) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(true);
        }
        // `<` may begin the literal, and bare words do not have it.
        if literal.starts_with(rest) { Err(Halt::Open) } else { Ok(false) }
    }

    fn literal(&mut self, literal: &str) -> Read<()> {
        if self.takes(literal)? { Ok(()) } else { Err(Halt::Not) }
    }

    /// The text up to a character at which a word ends.
    fn word(&mut self, ends: impl Fn(char) -> bool) -> Read<&'a str> {
        let rest = self.rest();
        match rest.find(ends) {
            Some(end) if end <= NAME_BYTES => {
                self.at += end;
                Ok(&rest[..end])
            }
            None if rest.len() <= NAME_BYTES => Err(Halt::Open),
            _ => Err(Halt::Not),
        }
    }

    /// A text between quotes, of either kind; `None` if there is no quote.
    fn quoted(&mut self) -> Read<Option<String>> {
        if self.takes(QUOTE)? {
            let rest = self.rest();
            let end = rest.find(QUOTE).ok_or(Halt::Open)?;
            self.at += end + QUOTE.len();
            return Ok(Some(rest[..end].to_owned()));
        }
        if !self.rest().starts_with('"') {
            return Ok(None);
        }
        match scan_as::<String>(self.rest()) {
            (Scan::Ends(end), Some(text)) => {
                self.at += end;
                Ok(Some(text))
            }
            (Scan::Open, _) => Err(Halt::Open),
            _ => Err(Halt::Not),
        }
    }

    /// An object. `tool`: its members are arguments of this tool.
    fn object(&mut self, depth: usize, tool: Option<&Tool>) -> Read<Value> {
        let mut members = Map::new();
        self.listed(["{", "}"], |reader| {
            let key = match reader.quoted()? {
                Some(key) => key,
                None => reader.word(|c| matches!(c, ':' | ',' | '{' | '}' | '[' | ']' | '<'))?.trim().to_owned(),
            };
            reader.skip();
            reader.literal(":")?;
            if key.is_empty() {
                return Err(Halt::Not);
            }
            let is_text = tool.is_some_and(|tool| schema::is_text(tool, &key));
            let value = reader.value(depth + 1, is_text)?;
            members.insert(key, value);
            Ok(())
        })?;
        Ok(Value::Object(members))
    }

    fn array(&mut self, depth: usize) -> Read<Value> {
        let mut elements = Vec::new();
        self.listed(["[", "]"], |reader| {
            elements.push(reader.value(depth + 1, false)?);
            Ok(())
        })?;
        Ok(Value::Array(elements))
    }

    /// Reads what is between two brackets, one by one, with commas between them.
    fn listed(&mut self, [open, close]: [&str; 2], mut one: impl FnMut(&mut Self) -> Read<()>) -> Read<()> {
        self.literal(open)?;
        let mut is_first = true;
        loop {
            self.skip();
            if self.takes(close)? {
                return Ok(());
            }
            if !std::mem::take(&mut is_first) {
                self.literal(",")?;
                self.skip();
            }
            one(self)?;
        }
    }

    /// A value. A bare word is a number or another word of JSON, or else a text, and where a text
    /// is wanted always one but for `null`.
    fn value(&mut self, depth: usize, is_text: bool) -> Read<Value> {
        self.skip();
        if depth > MOST_DEPTH {
            return Err(Halt::Not);
        }
        if let Some(text) = self.quoted()? {
            return Ok(Value::String(text));
        }
        match self.rest().chars().next() {
            None => Err(Halt::Open),
            Some('{') => self.object(depth, None),
            Some('[') => self.array(depth),
            Some(_) => {
                let word = self.word(|c| matches!(c, ',' | '}' | ']' | '<'))?.trim();
                match serde_json::from_str(word) {
                    _ if word.is_empty() => Err(Halt::Not),
                    _ if matches!(word, "null" | "None") => Ok(Value::Null),
                    Ok(value) if !is_text => Ok(value),
                    _ => Ok(Value::String(word.to_owned())),
                }
            }
        }
    }
}
