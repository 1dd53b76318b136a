//! Replies in channels, as gpt-oss writes them (Harmony): a message is
//! `<|channel|>NAME<|message|>TEXT`, and `<|end|><|start|>ROLE` comes before the next one. The text
//! of the channels `final` and `commentary` is the answer, that of others is a thought. A recipient
//! `to=functions.NAME` in the role or the channel makes the message a tool call, whose text is
//! arguments.

use crate::protocol::{Grammar, GrammarPart, Piece, Token};
use crate::tokenizer::Tokenizer;

/// Channels whose text is the answer.
const ANSWERS: [&str; 2] = ["final", "commentary"];

/// Marks a recipient, and one that is a tool of the request.
const TO: &str = "to=";
const FUNCTION: &str = "functions.";

/// Meaning of a message's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Thought,
    Answer,
    /// Arguments of a call of the tool with this name.
    Call(String),
}

impl Message {
    /// How a call begins in the text of an answer, in one spelling: models put the recipient into
    /// the role or into the channel.
    pub fn call(name: &str) -> String {
        format!("<|channel|>commentary {TO}{FUNCTION}{name}<|message|>")
    }
}

/// Control tokens around a message.
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";

/// Control tokens of a message's header, and the one that ends a message before another.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    start: Token,
    channel: Token,
    pub message: Token,
    pub end: Token,
}

impl Channels {
    /// Returns `None` if the vocabulary lacks one of them.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let [start, channel, message, end] = [START, CHANNEL, MESSAGE, END].map(|t| tokenizer.token_for(t));
        Some(Self { start: start?, channel: channel?, message: message?, end: end? })
    }

    /// Whether a token is one of a header.
    pub fn has(&self, token: Token) -> bool {
        [self.start, self.channel, self.message].contains(&token)
    }
}

/// The messages of a reply whose answer has this grammar: a thought or none, whose text is under no
/// grammar, and the answer. A grammar that begins with a channel has the header of its message;
/// others are of a message in the channel `final`.
pub fn reply_of(grammar: &Grammar, prompt: &[Piece]) -> Grammar {
    let mark = |literal: &str| GrammarPart::Mark(literal.to_owned());
    let text = |text: &str| GrammarPart::Text(text.to_owned());
    let next = || vec![mark(START), text("assistant")];
    let has_header = grammar.parts.first() == Some(&mark(CHANNEL));
    let open = prompt.iter().rev().find(|piece| !matches!(piece, Piece::Text(_)));
    let in_message = matches!(open, Some(Piece::Control(literal)) if literal == MESSAGE);
    let mut parts = match (in_message, has_header) {
        (true, false) => Vec::new(),
        (true, true) => [vec![mark(END)], next()].concat(),
        (false, _) => {
            let thought = [vec![mark(CHANNEL), text("analysis"), mark(MESSAGE)], next()].concat();
            vec![GrammarPart::Either(vec![Vec::new(), thought])]
        }
    };
    if !in_message && !has_header {
        let json = vec![text(" "), mark("<|constrain|>"), text("json")];
        parts.extend([mark(CHANNEL), text("final"), GrammarPart::Either(vec![Vec::new(), json]), mark(MESSAGE)]);
    }
    parts.extend_from_slice(&grammar.parts);
    Grammar { parts, ..grammar.clone() }
}

/// The header of a message while it is generated.
#[derive(Debug, Default)]
pub struct Header {
    open: bool,
    /// The role, and the channel so far; `None` before its token.
    role: String,
    channel: Option<String>,
    /// Tokens of headers that were not counted yet.
    tokens: usize,
}

impl Header {
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Appends the text of a token inside the header.
    pub fn push(&mut self, text: &str) {
        self.tokens += 1;
        self.add(text);
    }

    fn add(&mut self, text: &str) {
        *self.channel.as_mut().unwrap_or(&mut self.role) += text;
    }

    /// Takes a control token and the `text` before it. If the message's text begins after it,
    /// returns its meaning.
    pub fn take(&mut self, channels: &Channels, token: Token, text: &str) -> Option<Message> {
        if self.open {
            self.add(text);
        }
        self.tokens += 1;
        self.open = token != channels.message;
        if token == channels.start {
            (self.role, self.channel) = (String::new(), None);
        } else if token == channels.channel {
            self.channel = Some(String::new());
        }
        (!self.open).then(|| self.message())
    }

    /// Ends the header.
    fn message(&mut self) -> Message {
        let (role, channel) = (std::mem::take(&mut self.role), self.channel.take());
        let channel = channel.unwrap_or_default();
        // The type of the text may follow, as in `final <|constrain|>json`.
        let word =
            |text: &str| text.trim_start().split(|c: char| c.is_whitespace() || c == '<').next().map(str::to_owned);
        let recipient = [&role, &channel].into_iter().find_map(|text| word(text.split_once(TO)?.1));
        let channel = word(&channel).unwrap_or_default();
        match recipient.as_deref().map(|to| to.strip_prefix(FUNCTION).filter(|name| !name.is_empty())) {
            Some(Some(name)) => Message::Call(name.to_owned()),
            // To a tool that the request does not have.
            Some(None) => Message::Thought,
            None if channel.is_empty() || ANSWERS.contains(&&*channel) => Message::Answer,
            None => Message::Thought,
        }
    }

    /// Returns the number of header tokens since the last call.
    pub fn take_tokens(&mut self) -> usize {
        std::mem::take(&mut self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const CHANNELS: Channels = Channels { start: 0, channel: 1, message: 2, end: 3 };
    const MARKS: [&str; 3] = [START, CHANNEL, MESSAGE];

    /// The meanings of the messages of an answer.
    fn read(mut text: &str) -> Vec<Message> {
        let (mut header, mut found) = (Header::default(), Vec::new());
        while !text.is_empty() {
            if let Some(mark) = MARKS.iter().position(|mark| text.starts_with(mark)) {
                found.extend(header.take(&CHANNELS, mark as Token, ""));
                text = &text[MARKS[mark].len()..];
                continue;
            }
            let end = MARKS.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
            if header.is_open() {
                header.push(&text[..end]);
            }
            text = &text[end..];
        }
        found
    }

    /// tests/golden/harmony/make_answers.py asks OpenAI's own package.
    #[test]
    fn headers_are_read_as_by_openais_package() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/harmony/answers.json");
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let meaning = |message: &Value| {
                // The package calls the type of a text its recipient where there is no other.
                let recipient = message["recipient"].as_str().filter(|to| text.contains(&format!("to={to}")));
                match (recipient.map(|to| to.strip_prefix("functions.")), message["channel"].as_str()) {
                    (Some(Some(name)), _) => Message::Call(name.to_owned()),
                    (None, None | Some("final" | "commentary")) => Message::Answer,
                    _ => Message::Thought,
                }
            };
            let wanted: Vec<Message> = case["messages"].as_array().unwrap().iter().map(meaning).collect();
            assert_eq!(read(text), wanted, "{text}");
        }
    }
}
