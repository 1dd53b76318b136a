//! The answers of one request: one, or several that differ by their seed.

use super::tools::{Call, Heard, Offered, Parser, Said, Sent, whole};
use crate::chat::shown::Shown;
use crate::protocol::{ChainReport, StopReason, TextKind, TokenChoice};

/// Why an answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it, or a stop text did.
    Stop,
    /// The model ended it, or a stop text did, and it has tool calls.
    Calls,
    /// A limit of tokens did.
    Length,
}

/// One answer, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The thought before it, if there was one.
    pub thought: Option<String>,
    pub text: String,
    pub calls: Vec<Sent>,
    pub end: End,
    /// The tokens of the text, where log-probabilities were asked for.
    pub tokens: Vec<TokenChoice>,
}

/// The next part of an answer in a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A text with its tokens.
    Text(String, Vec<TokenChoice>),
    /// A call, with its number.
    Call(usize, Sent),
}

/// One answer while it is generated.
#[derive(Default)]
pub struct Growing {
    thought: String,
    /// The answer as it was sampled, with the text of its calls.
    text: String,
    tools: Option<Offered>,
    /// Finds the calls, if there are tools. A whole answer is parsed at its end instead.
    parser: Option<Parser>,
    calls: Vec<Sent>,
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
    pub fn new(n: usize, tools: Option<&Offered>) -> Self {
        Self { all: (0..n.max(1)).map(|_| Growing::new(tools)).collect(), current: 0 }
    }

    /// What follows is of this one.
    pub fn choose(&mut self, choice: usize) {
        self.current = choice.min(self.all.len() - 1);
    }

    pub fn current(&mut self) -> &mut Growing {
        &mut self.all[self.current]
    }

    /// All of them. `end`: of the only one.
    pub fn whole(self, end: End, trims: bool, said: &Said) -> Vec<Choice> {
        self.all.into_iter().map(|one| one.whole(end, trims, said)).collect()
    }
}

impl Growing {
    fn new(tools: Option<&Offered>) -> Self {
        let parser = tools.map(Offered::parser);
        Self { tools: tools.cloned(), parser, ..Self::default() }
    }

    /// Tokens that begin in the next text.
    pub fn likely(&mut self, tokens: Vec<TokenChoice>) {
        self.waiting.extend(tokens);
    }

    /// Returns what a stream shows of the next text.
    pub fn shown(&mut self, kind: TextKind, text: String, trims: bool) -> Vec<Next> {
        if kind == TextKind::Reasoning {
            let text = if trims { self.shown.0.push(&text) } else { text };
            return if text.is_empty() { Vec::new() } else { vec![Next::Text(text, Vec::new())] };
        }
        let Some(parser) = &mut self.parser else { return self.heard(vec![Heard::Text(text)], trims) };
        self.text += &text;
        let mut heard = Vec::new();
        parser.push(&text, &mut heard);
        self.heard(heard, trims)
    }

    /// Returns what a stream shows at the end of the answer, and keeps its sampled text.
    pub fn finish(&mut self, trims: bool, said: &Said) -> Vec<Next> {
        // An answer ends once, and so does the request, after the last answer.
        let Some(mut parser) = self.parser.take() else { return Vec::new() };
        let mut heard = Vec::new();
        parser.finish(&mut heard);
        let next = self.heard(heard, trims);
        said.keep(&self.calls, &self.text);
        next
    }

    fn heard(&mut self, heard: Vec<Heard>, trims: bool) -> Vec<Next> {
        let mut next = Vec::new();
        for one in heard {
            match one {
                Heard::Text(text) => {
                    let text = if trims { self.shown.1.push(&text) } else { text };
                    if !text.is_empty() && !self.is_over() {
                        next.push(Next::Text(text, std::mem::take(&mut self.waiting)));
                    }
                }
                Heard::Call(call) => {
                    // A call has no log-probabilities.
                    self.waiting.clear();
                    if !self.is_over() {
                        let sent = self.sent(call);
                        next.push(Next::Call(self.calls.len(), sent.clone()));
                        self.calls.push(sent);
                    }
                }
            }
        }
        next
    }

    /// Whether the only allowed call was found. A stream leaves out the rest.
    fn is_over(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| !tools.parallel) && !self.calls.is_empty()
    }

    fn sent(&self, call: Call) -> Sent {
        Sent { id: self.tools.as_ref().map_or_else(String::new, |tools| tools.format.new_id()), call }
    }

    /// Returns `end`, or [`End::Calls`] if the answer has calls and no limit ended it.
    pub fn end(&self, end: End) -> End {
        if end == End::Stop && !self.calls.is_empty() { End::Calls } else { end }
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
        self.parser = self.tools.as_ref().map(Offered::parser);
    }

    /// The end of one of several.
    pub fn ended(&mut self, report: &ChainReport) -> End {
        (self.thought, self.text) = (report.reasoning.clone(), report.answer.clone());
        let end = match report.stop_reason {
            StopReason::End | StopReason::Cancelled => End::Stop,
            _ => End::Length,
        };
        self.end = Some(end);
        self.end(end)
    }

    fn whole(mut self, end: End, trims: bool, said: &Said) -> Choice {
        if !trims {
            self.tokens.append(&mut self.waiting);
        }
        if let Some(tools) = &self.tools {
            let (text, mut calls) = whole(tools.format, &tools.tools, &self.text);
            if !tools.parallel {
                calls.truncate(1);
            }
            self.calls = calls.into_iter().map(|call| self.sent(call)).collect();
            said.keep(&self.calls, &self.text);
            self.text = text;
        }
        let end = self.end(self.end.unwrap_or(end));
        let text = if trims { self.text.trim_matches('\n').to_owned() } else { self.text };
        let thought = self.thought.trim_matches('\n').to_owned();
        Choice {
            thought: Some(thought).filter(|thought| !thought.trim().is_empty()),
            text,
            calls: self.calls,
            end,
            tokens: self.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::template::GivenCall;
    use crate::serve::tools::{FORMATS, Tool};
    use serde_json::{Value, json};

    const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":  1}}</tool_call>";

    fn offered(parallel: bool) -> Offered {
        let format = FORMATS.into_iter().find(|format| format.name() == "hermes").unwrap();
        let tools = [Tool { name: "f".to_owned(), parameters: Value::Null }].into();
        Offered { format, tools, json: Value::Null, parallel, forced: None }
    }

    /// The text and the calls of an answer as a stream shows it, and as a whole.
    fn both(text: &str, parallel: bool, said: &Said) -> [(String, Vec<Sent>, End); 2] {
        let offered = offered(parallel);
        let mut streamed = Choices::new(1, Some(&offered));
        let mut next = Vec::new();
        for part in text.split_inclusive(' ') {
            next.extend(streamed.current().shown(TextKind::Answer, part.to_owned(), true));
        }
        next.extend(streamed.current().finish(true, said));
        let (mut shown, mut calls) = (String::new(), Vec::new());
        for one in next {
            match one {
                Next::Text(more, _) => shown += &more,
                Next::Call(index, call) => {
                    assert_eq!(index, calls.len());
                    calls.push(call);
                }
            }
        }
        let mut whole = Choices::new(1, Some(&offered));
        whole.current().push(TextKind::Answer, text);
        let Choice { text, calls: of_whole, end, .. } = whole.whole(End::Stop, true, said).remove(0);
        [(shown, calls, streamed.current().end(End::Stop)), (text, of_whole, end)]
    }

    #[test]
    fn a_stream_and_a_whole_answer_have_the_same_calls_each_with_an_id() {
        for (text, parallel, shown, n) in [
            (format!("Wait.\n{CALL}\n{CALL}\n"), true, "Wait.", 2),
            (format!("Wait.\n{CALL}\n{CALL} more"), false, "Wait.", 1),
            ("a < b <tool_call>{\"name\"".to_owned(), true, "a < b <tool_call>{\"name\"", 0),
        ] {
            for (said, calls, end) in both(&text, parallel, &Said::default()) {
                assert!(said.trim_end().starts_with(shown) && calls.len() == n, "{text}: {said:?} {calls:?}");
                assert_eq!(end, if n > 0 { End::Calls } else { End::Stop });
                assert!(calls.iter().all(|sent| sent.id.starts_with("call_") && sent.call.name == "f"));
                assert!(calls.len() < 2 || calls[0].id != calls[1].id);
            }
        }
    }

    #[test]
    fn calls_that_come_back_unchanged_are_known_as_they_were_sampled() {
        let (said, text) = (Said::default(), format!("Wait.\n{CALL}"));
        let [(_, calls, _), _] = both(&text, true, &said);
        let given = |arguments: Value| GivenCall { id: calls[0].id.clone(), name: "f".to_owned(), arguments };
        let find =
            |content: &str, calls: &[GivenCall]| said.find(offered(true).format, &offered(true).tools, content, calls);
        assert_eq!(find("Wait.", &[given(json!({ "n": 1 }))]).as_deref(), Some(&*text));
        for (content, calls) in [
            ("Wait!", vec![given(json!({ "n": 1 }))]),
            ("Wait.", vec![given(json!({ "n": 2 }))]),
            ("Wait.", vec![given(json!({ "n": 1 })), given(json!({}))]),
            ("Wait.", vec![GivenCall { id: "other".to_owned(), ..given(json!({ "n": 1 })) }]),
            ("Wait.", Vec::new()),
        ] {
            assert_eq!(find(content, &calls), None, "{content} {calls:?}");
        }
    }
}
