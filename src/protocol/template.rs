//! The chat template of a model, and how long a prompt may be.

use super::count;
use std::collections::BTreeMap;

/// The chat template and what rendering it needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateSpec {
    /// Jinja source. `None`: the checkpoint has none, and ChatML or plain lines are used.
    pub source: Option<String>,
    pub bos_token: String,
    /// Whether a prompt begins with the BOS even where the template does not write it.
    pub prompt_bos: bool,
    pub eos_token: String,
    /// Further special tokens by the names that templates have for them, such as `pad_token`.
    pub special_tokens: BTreeMap<String, String>,
    /// Literals of all control tokens, longest first. Text of the template may become these tokens.
    pub control: Vec<String>,
    /// Whether the template needs no sandbox (the built-in model).
    pub trusted: bool,
    /// `None`: any length.
    pub limit: Option<TextLimit>,
}

impl TemplateSpec {
    pub fn has_control(&self, literal: &str) -> bool {
        self.control.iter().any(|c| c == literal)
    }

    /// Whether the checkpoint has no template and no tokens of ChatML: a model that continues text,
    /// which is asked in plain lines.
    pub fn is_plain(&self) -> bool {
        self.source.is_none() && !(self.has_control("<|im_start|>") && self.has_control("<|im_end|>"))
    }
}

/// The maximum length of a prompt. A longer text is refused before it is rendered or encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimit {
    /// Tokens of the context.
    pub context: usize,
    /// Bytes of the longest token.
    pub token_bytes: usize,
}

impl TextLimit {
    /// Maximum bytes of text in a full context.
    pub fn bytes(self) -> usize {
        self.context.saturating_mul(self.token_bytes)
    }

    /// Returns why a text of `bytes` is refused, or `None` if it is not.
    pub fn refusal(self, what: &str, bytes: usize) -> Option<String> {
        let Self { context, token_bytes } = self;
        (bytes > self.bytes()).then(|| {
            format!(
                "{what} has at least {} tokens ({} bytes), and the context holds {}; shorten it",
                count(bytes.div_ceil(token_bytes.max(1))),
                count(bytes),
                count(context)
            )
        })
    }
}
