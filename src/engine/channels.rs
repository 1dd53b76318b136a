//! Replies in channels, as gpt-oss writes them (Harmony): a message is
//! `<|channel|>NAME<|message|>TEXT`, and `<|end|><|start|>ROLE` comes before the next one. The text
//! of the channels `final` and `commentary` is the answer, that of others is a thought.

use crate::protocol::Token;
use crate::tokenizer::Tokenizer;

/// Channels whose text is the answer. `commentary` with a recipient in its header is a tool call,
/// does not match, and counts as a thought.
const ANSWERS: [&str; 2] = ["final", "commentary"];

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
    /// The channel so far; `None` before its token.
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
        if let Some(channel) = &mut self.channel {
            *channel += text;
        }
    }

    /// Takes a control token and the `text` before it. If the message's text begins after it,
    /// returns whether that is a thought.
    pub fn take(&mut self, channels: &Channels, token: Token, text: &str) -> Option<bool> {
        if let Some(channel) = self.channel.as_mut().filter(|_| self.open) {
            *channel += text;
        }
        self.tokens += 1;
        self.open = token != channels.message;
        if self.open {
            self.channel = (token == channels.channel).then(String::new);
            return None;
        }
        let channel = self.channel.take();
        Some(channel.is_some_and(|channel| !ANSWERS.contains(&channel.trim())))
    }

    /// Returns the number of header tokens since the last call.
    pub fn take_tokens(&mut self) -> usize {
        std::mem::take(&mut self.tokens)
    }
}
