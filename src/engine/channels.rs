//! Replies in channels, as gpt-oss writes them (Harmony): a message is
//! `<|channel|>NAME<|message|>TEXT`, and `<|end|><|start|>ROLE` comes before the next one. The text
//! of the channels `final` and `commentary` is the answer, that of others is a thought. A recipient
//! `to=functions.NAME` in the role or the channel makes the message a tool call, whose text is
//! arguments.

use crate::protocol::Token;
use crate::tokenizer::Tokenizer;

/// Channels whose text is the answer.
const ANSWERS: [&str; 2] = ["final", "commentary"];

/// The recipients of tool calls, before a tool's name.
const RECIPIENT: &str = "to=functions.";

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
        format!("<|channel|>commentary {RECIPIENT}{name}<|message|>")
    }
}

/// Control tokens of a message's header.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    start: Token,
    channel: Token,
    message: Token,
}

impl Channels {
    /// Returns `None` if the vocabulary lacks one of them.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let [start, channel, message] = ["<|start|>", "<|channel|>", "<|message|>"].map(|t| tokenizer.token_for(t));
        Some(Self { start: start?, channel: channel?, message: message? })
    }

    /// Whether a token is one of them.
    pub fn has(&self, token: Token) -> bool {
        [self.start, self.channel, self.message].contains(&token)
    }
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
        let recipient = [&role, &channel].into_iter().find_map(|text| text.split_once(RECIPIENT));
        // What follows the name is the type of the arguments.
        let name = recipient.and_then(|(_, rest)| rest.split(|c: char| c.is_whitespace() || c == '<').next());
        match name.filter(|name| !name.is_empty()) {
            Some(name) => Message::Call(name.to_owned()),
            None if channel.is_empty() || ANSWERS.contains(&channel.trim()) => Message::Answer,
            None => Message::Thought,
        }
    }

    /// Returns the number of header tokens since the last call.
    pub fn take_tokens(&mut self) -> usize {
        std::mem::take(&mut self.tokens)
    }
}
