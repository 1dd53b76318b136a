//! The answers of one request: one, or several that differ by their seed.

use crate::chat::shown::Shown;
use crate::protocol::{ChainReport, StopReason, TextKind, TokenChoice};

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it, or a stop text did.
    Stop,
    /// A limit of tokens did.
    Length,
}

/// One answer, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The thought before it, if there was one.
    pub thought: Option<String>,
    pub text: String,
    pub end: End,
    /// The tokens of the text, where log-probabilities were asked for.
    pub tokens: Vec<TokenChoice>,
}

/// One answer while it is generated.
#[derive(Default)]
pub struct Growing {
    thought: String,
    text: String,
    tokens: Vec<TokenChoice>,
    /// Tokens of a text that is not shown yet.
    waiting: Vec<TokenChoice>,
    /// What a stream shows of the thought and of the answer.
    shown: (Shown, Shown),
    end: Option<End>,
}

#[derive(Default)]
pub struct Choices {
    all: Vec<Growing>,
    current: usize,
}

impl Choices {
    pub fn new(n: usize) -> Self {
        Self { all: (0..n.max(1)).map(|_| Growing::default()).collect(), current: 0 }
    }

    /// What follows is of this one.
    pub fn choose(&mut self, choice: usize) {
        self.current = choice.min(self.all.len() - 1);
    }

    pub fn current(&mut self) -> &mut Growing {
        &mut self.all[self.current]
    }

    /// All of them. `end`: of the only one.
    pub fn whole(self, end: End, trims: bool) -> Vec<Choice> {
        self.all.into_iter().map(|one| one.whole(end, trims)).collect()
    }
}

impl Growing {
    /// Tokens that begin in the next text.
    pub fn likely(&mut self, tokens: Vec<TokenChoice>) {
        self.waiting.extend(tokens);
    }

    /// Text of a stream as it is shown, with its tokens.
    pub fn shown(&mut self, kind: TextKind, text: String, trims: bool) -> (String, Vec<TokenChoice>) {
        let shown = match kind {
            TextKind::Reasoning => &mut self.shown.0,
            TextKind::Answer => &mut self.shown.1,
        };
        let text = if trims { shown.push(&text) } else { text };
        let is_answer = kind == TextKind::Answer && !text.is_empty();
        (text, if is_answer { std::mem::take(&mut self.waiting) } else { Vec::new() })
    }

    /// More of a text that is sent as a whole.
    pub fn push(&mut self, kind: TextKind, text: &str) {
        match kind {
            TextKind::Reasoning => self.thought += text,
            TextKind::Answer => {
                self.text += text;
                // Those of newlines at the end are left out, as they are.
                if !text.trim_matches('\n').is_empty() {
                    self.tokens.append(&mut self.waiting);
                }
            }
        }
    }

    /// The answer so far was a thought.
    pub fn was_thought(&mut self) {
        self.thought += &std::mem::take(&mut self.text);
        (self.tokens, self.waiting) = (Vec::new(), Vec::new());
    }

    /// The end of one of several.
    pub fn ended(&mut self, report: &ChainReport) -> End {
        (self.thought, self.text) = (report.reasoning.clone(), report.answer.clone());
        let end = match report.stop_reason {
            StopReason::End | StopReason::Cancelled => End::Stop,
            _ => End::Length,
        };
        *self.end.insert(end)
    }

    fn whole(mut self, end: End, trims: bool) -> Choice {
        if !trims {
            self.tokens.append(&mut self.waiting);
        }
        let text = if trims { self.text.trim_matches('\n').to_owned() } else { self.text };
        let thought = self.thought.trim_matches('\n').to_owned();
        Choice {
            thought: Some(thought).filter(|thought| !thought.trim().is_empty()),
            text,
            end: self.end.unwrap_or(end),
            tokens: self.tokens,
        }
    }
}
