//! The answers of one request: one, or several that differ by their seed.

use super::tools::{Call, Heard, Offered, Parser, Said, Sent};
use crate::chat::shown::Shown;
use crate::protocol::{ChainReport, StopReason, TextKind, TokenChoice};
use std::collections::VecDeque;

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
    /// A call of which only the id and the name are known.
    Begun(usize, Sent),
    /// A fragment of the arguments of the call that has begun.
    Arguments(usize, String),
    /// The call that has begun is complete.
    Complete(usize),
}

/// One answer while it is generated. It collects what a stream shows, so that a whole answer is a
/// stream that nobody watched.
#[derive(Default)]
pub struct Growing {
    thought: String,
    /// The answer as it was sampled, with the text of its calls.
    sampled: String,
    /// The answer as it is shown: its text, and the tokens of it.
    text: String,
    tokens: Vec<TokenChoice>,
    calls: Vec<Sent>,
    /// Whether the last one is incomplete.
    incomplete: bool,
    /// Whether a stream shows calls from their names on.
    streams: bool,
    /// Calls that were shown before they turned out to be part of a thought.
    withdrawn: usize,
    tools: Option<Offered>,
    /// Finds the calls, if there are tools.
    parser: Option<Parser>,
    /// Bytes of `sampled` that were heard as text or calls.
    heard: usize,
    /// Something behind the only allowed call was left out.
    cut: bool,
    /// Tokens of text that was not heard yet, each with the byte of `sampled` at which it begins,
    /// and tokens of newlines that are held back.
    waiting: VecDeque<(usize, TokenChoice)>,
    held: Vec<TokenChoice>,
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
    /// `streams`: a call is shown from its name on.
    pub fn new(n: usize, tools: Option<&Offered>, streams: bool) -> Self {
        Self { all: (0..n.max(1)).map(|_| Growing::new(tools, streams)).collect(), current: 0 }
    }

    /// What follows is of this one.
    pub fn choose(&mut self, choice: usize) {
        self.current = choice.min(self.all.len() - 1);
    }

    pub fn current(&mut self) -> &mut Growing {
        &mut self.all[self.current]
    }

    /// All of them, which are finished. `end`: of the only one.
    pub fn whole(self, end: End) -> Vec<Choice> {
        self.all.into_iter().map(|one| one.whole(end)).collect()
    }
}

impl Growing {
    fn new(tools: Option<&Offered>, streams: bool) -> Self {
        let parser = tools.map(|tools| tools.parser(streams));
        Self { tools: tools.cloned(), parser, streams, ..Self::default() }
    }

    /// Tokens that begin in the next text, each with the byte of it at which it begins.
    pub fn likely(&mut self, tokens: Vec<(usize, TokenChoice)>) {
        let begin = self.sampled.len();
        self.waiting.extend(tokens.into_iter().map(|(at, token)| (begin + at, token)));
    }

    /// Takes the next text and returns what a stream shows of it.
    pub fn push(&mut self, kind: TextKind, text: &str, trims: bool) -> Vec<Next> {
        if kind == TextKind::Reasoning {
            self.thought += text;
            let text = if trims { self.shown.0.push(text) } else { text.to_owned() };
            return if text.is_empty() { Vec::new() } else { vec![Next::Text(text, Vec::new())] };
        }
        self.sampled += text;
        let Some(parser) = &mut self.parser else { return self.hear(vec![Heard::Text(text.to_owned())], trims) };
        let mut heard = Vec::new();
        parser.push(text, &mut heard);
        self.hear(heard, trims)
    }

    /// Returns what a stream shows at the end of the answer, and keeps its sampled text.
    pub fn finish(&mut self, trims: bool, said: &Said) -> Vec<Next> {
        // An answer ends once, and so does the request, after the last answer.
        let Some(mut parser) = self.parser.take() else { return Vec::new() };
        let mut heard = Vec::new();
        parser.finish(&mut heard);
        let next = self.hear(heard, trims);
        if !self.cut && !self.incomplete {
            said.keep(&self.calls, &self.sampled, &self.text);
        }
        next
    }

    fn hear(&mut self, heard: Vec<Heard>, trims: bool) -> Vec<Next> {
        let mut next = Vec::new();
        for one in heard {
            match one {
                Heard::Text(text) => {
                    self.heard += text.len();
                    let tokens = self.tokens_before(self.heard);
                    if self.is_over() {
                        self.cut |= !text.trim().is_empty();
                        continue;
                    }
                    self.held.extend(tokens);
                    let text = if trims { self.shown.1.push(&text) } else { text };
                    if !text.is_empty() {
                        let tokens = std::mem::take(&mut self.held);
                        self.text += &text;
                        self.tokens.extend_from_slice(&tokens);
                        next.push(Next::Text(text, tokens));
                    }
                }
                Heard::Calls(bytes, calls) => {
                    self.heard += bytes;
                    // Tokens of calls are not reported.
                    drop(self.tokens_before(self.heard));
                    for call in calls {
                        if self.is_over() {
                            self.cut = true;
                            break;
                        }
                        let sent = self.sent(call);
                        next.push(Next::Call(self.withdrawn + self.calls.len(), sent.clone()));
                        self.calls.push(sent);
                    }
                }
                Heard::Begun(_) if self.is_over() => self.cut = true,
                Heard::Begun(name) => {
                    let sent = self.sent(Call { name, arguments: String::new() });
                    next.push(Next::Begun(self.withdrawn + self.calls.len(), sent.clone()));
                    self.calls.push(sent);
                    self.incomplete = true;
                }
                Heard::Arguments(text) if self.incomplete => {
                    next.push(Next::Arguments(self.last(), text.clone()));
                    self.calls.last_mut().into_iter().for_each(|sent| sent.call.arguments += &text);
                }
                Heard::Complete if self.incomplete => {
                    next.push(Next::Complete(self.last()));
                    self.incomplete = false;
                }
                // Of a call that is left out.
                Heard::Arguments(_) | Heard::Complete => {}
            }
        }
        next
    }

    /// The number of the last call.
    fn last(&self) -> usize {
        self.withdrawn + self.calls.len() - 1
    }

    /// Takes the tokens that begin before byte `end` of the sampled text.
    fn tokens_before(&mut self, end: usize) -> Vec<TokenChoice> {
        let n = self.waiting.iter().take_while(|(begin, _)| *begin < end).count();
        self.waiting.drain(..n).map(|(_, token)| token).collect()
    }

    /// Whether the only allowed call was found. What follows it is left out.
    fn is_over(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| !tools.parallel) && !self.calls.is_empty()
    }

    fn sent(&self, call: Call) -> Sent {
        Sent { id: self.tools.as_ref().map_or_else(String::new, |tools| tools.format.new_id()), call }
    }

    /// Returns `end`, or [`End::Calls`] if the answer has calls, all complete, and no limit ended
    /// it.
    pub fn end(&self, end: End) -> End {
        if end == End::Stop && !self.calls.is_empty() && !self.incomplete { End::Calls } else { end }
    }

    /// The answer so far was a thought.
    pub fn was_thought(&mut self) {
        let thought = std::mem::take(&mut self.thought) + &self.sampled;
        let (withdrawn, tools) = (self.withdrawn + self.calls.len(), self.tools.take());
        let shown = (std::mem::take(&mut self.shown.0), Shown::default());
        *self = Self { thought, withdrawn, shown, ..Self::new(tools.as_ref(), self.streams) };
    }

    /// The end of one of several.
    pub fn ended(&mut self, report: &ChainReport) -> End {
        let end = match report.stop_reason {
            StopReason::End | StopReason::Cancelled => End::Stop,
            _ => End::Length,
        };
        self.end = Some(end);
        self.end(end)
    }

    fn whole(self, end: End) -> Choice {
        let end = self.end(self.end.unwrap_or(end));
        let thought = self.thought.trim_matches('\n').to_owned();
        Choice {
            thought: Some(thought).filter(|thought| !thought.trim().is_empty()),
            text: self.text,
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
    use crate::protocol::Likely;
    use crate::serve::tools::{FORMATS, Tool};
    use serde_json::{Value, json};

    const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":  1}}</tool_call>";

    fn offered(name: &str, parallel: bool) -> Offered {
        let format = FORMATS.into_iter().find(|format| format.name() == name).unwrap();
        let tools = [Tool { name: "f".to_owned(), parameters: Value::Null }].into();
        Offered { format, tools, json: Value::Null, parallel, forced: None }
    }

    /// An answer that comes in parts: its text, calls, and tokens as a stream shows them, and the
    /// whole answer. Each character is a token.
    fn both(
        parts: &[&str],
        offered: &Offered,
        trims: bool,
        streams: bool,
        said: &Said,
    ) -> (String, Vec<Sent>, Vec<TokenChoice>, Choice) {
        let mut choices = Choices::new(1, Some(offered), streams);
        let mut next = Vec::new();
        for part in parts {
            let token = |(at, c): (usize, char)| {
                (at, TokenChoice { said: Likely { text: c.into(), logprob: 0.0 }, others: Vec::new() })
            };
            choices.current().likely(part.char_indices().map(token).collect());
            next.extend(choices.current().push(TextKind::Answer, part, trims));
        }
        next.extend(choices.current().finish(trims, said));
        let (mut text, mut calls, mut tokens) = (String::new(), Vec::<Sent>::new(), Vec::new());
        for one in next {
            match one {
                Next::Text(more, own) => {
                    text += &more;
                    tokens.extend(own);
                }
                Next::Call(index, call) | Next::Begun(index, call) => {
                    assert_eq!(index, calls.len());
                    calls.push(call);
                }
                Next::Arguments(index, more) => calls[index].call.arguments += &more,
                Next::Complete(index) => assert_eq!(index, calls.len() - 1),
            }
        }
        (text, calls, tokens, choices.whole(End::Stop).remove(0))
    }

    fn names(calls: &[Sent]) -> Vec<&Call> {
        calls.iter().map(|sent| &sent.call).collect()
    }

    #[test]
    fn a_stream_is_the_whole_answer_in_every_format_wherever_it_is_cut() {
        let json = r#"{"name": "f", "arguments": {"n": 1}}"#;
        let of = |name, call: String, alone| (name, call, alone);
        let mut dice = 7u64;
        let mut roll = |n: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % n
        };
        for (name, call, alone) in [
            of("hermes", format!("<tool_call>\n{json}\n</tool_call>"), false),
            of("xml", "<tool_call><function=f>\n<parameter=n>\n1\n</parameter>\n</function></tool_call>".into(), false),
            of("llama3", format!("<|python_tag|>{json}"), false),
            // These calls begin an answer.
            of("llama3", json.to_owned(), true),
            of("phi", format!("functools[{json}]"), true),
            of("phi", format!("<|tool_call|>[{json}]<|/tool_call|>"), false),
            of("mistral", format!("[TOOL_CALLS][{json}]"), false),
            of("mistral", "[TOOL_CALLS]f[ARGS]{\"n\": 1}".into(), false),
            of("granite", format!("<|tool_call|>[{json}]"), false),
            of("harmony", "<|channel|>commentary to=functions.f<|message|>{\"n\": 1}".into(), false),
        ] {
            for (before, between, behind) in
                [("", "", ""), ("\nSo <é>:\n", "\n", "\n"), ("a < b", " and\n\n", "\nDone <to")]
            {
                let before = if alone { "" } else { before };
                let text = format!("{before}{call}{between}{call}{behind}");
                for which in 0..8 {
                    let [parallel, trims, streams] = [1, 2, 4].map(|bit| which & bit > 0);
                    let offered = offered(name, parallel);
                    let (_, _, _, uncut) = both(&[&text], &offered, trims, false, &Said::default());
                    // A second call may have to begin the answer, too.
                    assert!(!uncut.calls.is_empty() && (parallel || uncut.calls.len() == 1), "{text}: {uncut:?}");
                    assert!(alone || !parallel || uncut.calls.len() == 2, "{text}: {uncut:?}");
                    if !parallel {
                        let wanted = if trims { before.trim_matches('\n') } else { before };
                        assert_eq!(uncut.text, wanted, "what follows the only call is left out");
                    }
                    for size in [1, 3, 9, 40] {
                        let (mut parts, mut rest) = (Vec::new(), &*text);
                        while !rest.is_empty() {
                            let end = (1 + roll(size)..rest.len()).find(|&end| rest.is_char_boundary(end));
                            let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
                            parts.push(part);
                            rest = after;
                        }
                        let (shown, calls, tokens, whole) = both(&parts, &offered, trims, streams, &Said::default());
                        assert_eq!((&shown, &calls, &tokens), (&whole.text, &whole.calls, &whole.tokens));
                        assert_eq!((&whole.text, names(&calls)), (&uncut.text, names(&uncut.calls)), "{parts:?}");
                        assert_eq!((whole.end, uncut.end), (End::Calls, End::Calls));
                        // The tokens spell the text, and none is of a call.
                        let spelled: String = tokens.iter().map(|token| &*token.said.text).collect();
                        let spelled = if trims { spelled.trim_matches('\n') } else { &*spelled };
                        assert_eq!(spelled, shown, "{parts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn calls_have_different_ids_and_none_is_left_of_what_was_a_thought() {
        let (hermes, said) = (offered("hermes", true), Said::default());
        let (.., whole) = both(&["Wait.\n", CALL, "\n", CALL, "\n"], &hermes, true, false, &said);
        assert!(whole.calls.iter().all(|sent| sent.id.starts_with("call_")) && whole.calls[0].id != whole.calls[1].id);
        let (.., none) = both(&["a < b <tool_call>{\"name\""], &hermes, true, true, &said);
        assert_eq!((&*none.text, none.end), ("a < b <tool_call>{\"name\"", End::Stop));
        let mut choices = Choices::new(1, Some(&hermes), false);
        choices.current().push(TextKind::Answer, CALL, true);
        choices.current().was_thought();
        let next = choices.current().push(TextKind::Answer, &format!("\nNow {CALL}"), true);
        assert!(matches!(&next[..], [Next::Text(text, _), Next::Call(1, _)] if text == "Now "), "{next:?}");
        let whole = choices.whole(End::Stop).remove(0);
        assert_eq!((whole.thought.as_deref(), &*whole.text, whole.calls.len()), (Some(CALL), "Now ", 1));
        // One that has begun in the thought has a number, too.
        let mut choices = Choices::new(1, Some(&hermes), true);
        choices.current().push(TextKind::Answer, &CALL[..CALL.len() - 20], true);
        choices.current().was_thought();
        let next = choices.current().push(TextKind::Answer, CALL, true);
        assert!(matches!(&next[..], [Next::Begun(1, _), Next::Arguments(1, _), Next::Complete(1)]), "{next:?}");
    }

    #[test]
    fn an_incomplete_call_is_no_end_by_calls_and_is_not_repeated() {
        let (said, hermes) = (Said::default(), offered("hermes", true));
        let half = &CALL[..CALL.find("  1").unwrap()];
        for (parts, arguments) in [(vec![CALL, half], "{\"n\":"), (vec![CALL, half, "x", "}}"], "{\"n\":x}}")] {
            let (_, calls, _, whole) = both(&parts, &hermes, true, true, &said);
            assert_eq!((calls.len(), &*calls[1].call.arguments, whole.end), (2, arguments, End::Stop));
            let given =
                |sent: &Sent| GivenCall { id: sent.id.clone(), name: "f".to_owned(), arguments: json!({ "n": 1 }) };
            assert_eq!(said.find("", &calls.iter().map(given).collect::<Vec<_>>()), None);
        }
        // Of a stream that has one call at most, the second one is not shown.
        let (_, calls, ..) = both(&[CALL, half], &offered("hermes", false), true, true, &said);
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn calls_that_come_back_unchanged_are_known_as_they_were_sampled() {
        let (said, text) = (Said::default(), format!("Wait.\n{CALL}"));
        let (_, calls, ..) = both(&[&text], &offered("hermes", true), true, true, &said);
        let given = |arguments: Value| GivenCall { id: calls[0].id.clone(), name: "f".to_owned(), arguments };
        assert_eq!(said.find("Wait.", &[given(json!({ "n": 1 }))]).as_deref(), Some(&*text));
        for (content, calls) in [
            ("Wait!", vec![given(json!({ "n": 1 }))]),
            ("Wait.", vec![given(json!({ "n": 2 }))]),
            ("Wait.", vec![given(json!({ "n": 1 })), given(json!({}))]),
            ("Wait.", vec![GivenCall { id: "other".to_owned(), ..given(json!({ "n": 1 })) }]),
            ("Wait.", Vec::new()),
        ] {
            assert_eq!(said.find(content, &calls), None, "{content} {calls:?}");
        }
        // An answer of which the client has not seen all is not repeated.
        let (_, calls, ..) = both(&[&text, CALL], &offered("hermes", false), true, true, &said);
        assert_eq!(said.find("Wait.", &[GivenCall { id: calls[0].id.clone(), ..given(json!({ "n": 1 })) }]), None);
    }
}
