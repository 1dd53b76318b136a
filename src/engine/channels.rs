//! Replies in channels, as gpt-oss writes them (Harmony): a message is
//! `<|channel|>NAME<|message|>TEXT`, and `<|end|><|start|>ROLE` comes before the next one. The text
//! of the channel `final` is the answer, that of others is a thought.

use crate::protocol::Token;
use crate::tokenizer::Tokenizer;

/// Channels for the reader of an answer. A message in `commentary` with a recipient is a call.
const ANSWERS: [&str; 2] = ["final", "commentary"];

/// Tokens around the header of a message.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    start: Token,
    channel: Token,
    message: Token,
}

impl Channels {
    /// `None` where the vocabulary lacks one of them.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let [start, channel, message] = ["<|start|>", "<|channel|>", "<|message|>"].map(|t| tokenizer.token_for(t));
        Some(Self { start: start?, channel: channel?, message: message? })
    }

    /// Whether a token is one of them.
    pub fn has(&self, token: Token) -> bool {
        [self.start, self.channel, self.message].contains(&token)
    }
}

/// The header of a message while it comes.
#[derive(Debug, Default)]
pub struct Header {
    open: bool,
    /// The channel so far; `None` before its token.
    channel: Option<String>,
    /// Tokens of the header.
    tokens: usize,
}

impl Header {
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Text of the header.
    pub fn push(&mut self, text: &str) {
        self.tokens += 1;
        if let Some(channel) = &mut self.channel {
            *channel += text;
        }
    }

    /// Takes one of the tokens, before which `text` came. If the text of the message begins then,
    /// returns whether it is a thought.
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

    /// Tokens of headers that were not counted yet.
    pub fn take_tokens(&mut self) -> usize {
        std::mem::take(&mut self.tokens)
    }
}
