//! Marks of a model's thoughts: tokens where the vocabulary has them, else the same tags in
//! ordinary text. [`Splitter`] separates thoughts from answers in streamed text.

use super::channels::Channels;
use crate::protocol::{Event, Piece, TextKind, Token, thought_header};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::begun;

/// Tags in ordinary text, if the model's template names them: the tags of models that have tokens
/// for them, and Granite's.
const NAMED: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
    ("Here is my thought process:", "Here is my response:"),
];

/// How a model marks a thought.
#[derive(Clone, Debug)]
pub struct ThinkTags {
    pub open: String,
    pub close: String,
    /// `None`: the model writes the tags in ordinary tokens.
    pub tokens: Option<(Token, Token)>,
    /// The vocabulary or the template has them. Else a reply that begins with `<think>` is split,
    /// and nothing else changes.
    pub named: bool,
    /// Set if replies are in channels. Tags then have no meaning.
    pub channels: Option<Channels>,
}

impl ThinkTags {
    pub fn of(tokenizer: &Tokenizer, template: Option<&str>) -> Self {
        let tokens = tokenizer.think_tags();
        if let Some((open, close)) = tokens {
            let [open, close] = [open, close].map(|tag| tokenizer.literal(tag));
            return Self { open, close, tokens, named: true, channels: None };
        }
        let channels = Channels::of(tokenizer);
        let named = NAMED.iter().find(|(_, close)| template.is_some_and(|source| source.contains(close)));
        let (open, close) = named.unwrap_or(&NAMED[0]);
        Self { open: (*open).to_owned(), close: (*close).to_owned(), tokens, named: named.is_some(), channels }
    }

    /// The literals for the template, if the model is known to think.
    pub fn literals(&self) -> Option<(String, String)> {
        self.named.then(|| (self.open.clone(), self.close.clone()))
    }

    /// The piece of a prompt that closes a thought.
    pub fn closing(&self) -> Piece {
        let close = self.close.clone();
        if self.tokens.is_some() { Piece::Control(close) } else { Piece::Text(close) }
    }

    /// The token that may begin a thought after a prompt, if the prompt has not ended one.
    pub fn may_open(&self, prompt: &[Piece]) -> Option<Token> {
        let last = prompt.iter().rev().find(|piece| !matches!(piece, Piece::Text(_)));
        let is_over = matches!(last, Some(Piece::Control(literal)) if *literal == self.close);
        self.tokens.map(|(open, _)| open).filter(|_| !is_over)
    }

    /// What ends a thought and begins the answer. `by_grammar`: a grammar says how the answer
    /// begins.
    pub fn end_of_thought(&self, by_grammar: bool) -> Vec<Piece> {
        if self.channels.is_none() {
            return vec![self.closing()];
        }
        let control = |literal: &str| Piece::Control(literal.to_owned());
        let text = |text: &str| Piece::Text(text.to_owned());
        let [end, start, channel, message] = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>"].map(control);
        match by_grammar {
            true => vec![end, start],
            false => vec![end, start, text("assistant"), channel, text("final"), message],
        }
    }

    /// Whether a prompt ends in an open thought.
    pub fn end(&self, prompt: &[Piece]) -> bool {
        let opens = |piece: &Piece| match piece {
            Piece::Control(literal) => Some(*literal == self.open),
            Piece::Reply { .. } => Some(false),
            Piece::Text(text) => Some(true).filter(|_| self.tokens.is_none() && text.trim_end().ends_with(&self.open)),
        };
        prompt.iter().rev().find_map(opens) == Some(true)
    }
}

/// A text of a reply, or a change of what was said before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(TextKind, String),
    /// The answer so far was a thought: its end came without a beginning.
    WasThought,
}

impl Said {
    /// The event of a turn.
    pub fn event(self, turn: u64) -> Event {
        match self {
            Self::Text(kind, text) => Event::Text { turn, kind, text },
            Self::WasThought => Event::WasThought { turn },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space, or a part of the opening tag, has come.
    Start,
    /// Likewise, and the prompt has the opening tag, which the model may write once more.
    Opened,
    /// An opening token came, whose header may follow.
    Headed,
    Thought,
    Answer,
}

/// A text that ends an answer and is not part of it.
#[derive(Clone, Debug)]
pub struct Stop {
    pub text: String,
    /// A template writes it after an answer, of which white space before it is no part either.
    pub of_template: bool,
}

impl Stop {
    pub fn of_template(text: &str) -> Self {
        Self { text: text.to_owned(), of_template: true }
    }
}

/// Splits streamed text at tags in ordinary text, and ends it at the first stop text. Holds back
/// what may become one of them.
#[derive(Clone, Debug)]
pub struct Splitter {
    state: State,
    /// Tags in text. `None` where they are tokens.
    tags: Option<(String, String)>,
    /// See [`thought_header`].
    header: &'static str,
    /// A closing tag without an opening one makes the answer so far a thought.
    closes_alone: bool,
    stops: Vec<Stop>,
    held: String,
    /// A thought has ended.
    pub thought: bool,
    /// Index of the stop text that has ended the answer.
    pub stopped: Option<usize>,
}

impl Splitter {
    /// Of an answer without thoughts.
    pub fn plain(stops: Vec<Stop>) -> Self {
        let state = State::Answer;
        Self {
            state,
            tags: None,
            header: "",
            closes_alone: false,
            stops,
            held: String::new(),
            thought: false,
            stopped: None,
        }
    }

    /// `thinks`: the prompt ends in an open thought. `stops`: texts that end the answer.
    pub fn new(tags: &ThinkTags, thinks: bool, stops: Vec<Stop>) -> Self {
        let in_text = tags.tokens.is_none() && tags.channels.is_none();
        Self {
            state: match thinks {
                true if in_text => State::Opened,
                true => State::Thought,
                false if in_text => State::Start,
                false => State::Answer,
            },
            tags: in_text.then(|| (tags.open.clone(), tags.close.clone())),
            header: thought_header(&tags.open),
            closes_alone: tags.named,
            stops,
            held: String::new(),
            thought: false,
            stopped: None,
        }
    }

    /// The stop text that has ended the answer.
    pub fn stop(&self) -> Option<&Stop> {
        self.stops.get(self.stopped?)
    }

    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opened | State::Headed | State::Thought)
    }

    /// Whether it is open if the reply begins with a thought.
    pub fn is_undecided(&self) -> bool {
        self.state == State::Start
    }

    /// An opening token came.
    pub fn open(&mut self, out: &mut Vec<Said>) {
        self.release(out);
        self.state = if self.header.is_empty() { State::Thought } else { State::Headed };
    }

    /// A closing token came.
    pub fn close(&mut self, out: &mut Vec<Said>) {
        self.release(out);
        if self.state == State::Answer && self.closes_alone && !self.thought {
            out.push(Said::WasThought);
        }
        (self.state, self.thought) = (State::Answer, true);
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Said>) {
        if self.stopped.is_none() && !text.is_empty() {
            self.held += text;
            while self.step(out) {}
        }
    }

    /// Releases what was held back, at the end of the reply.
    pub fn finish(&mut self, out: &mut Vec<Said>) {
        self.release(out);
    }

    fn release(&mut self, out: &mut Vec<Said>) {
        if self.state == State::Headed && self.held == self.header.trim_end() {
            self.held.clear();
        }
        let kind = if self.is_thinking() { TextKind::Reasoning } else { TextKind::Answer };
        say(out, kind, std::mem::take(&mut self.held));
    }

    /// Takes the decided text from `held`. Returns whether more of it may be decided now.
    fn step(&mut self, out: &mut Vec<Said>) -> bool {
        let held = std::mem::take(&mut self.held);
        match (self.state, self.tags.as_ref()) {
            (State::Start | State::Opened, Some((open, _))) => {
                let begun = held.trim_start();
                if let Some(thought) = begun.strip_prefix(open.as_str()) {
                    (self.held, self.state) = (thought.to_owned(), State::Thought);
                    return true;
                }
                let undecided = open.starts_with(begun);
                self.held = held;
                if !undecided {
                    self.state = if self.state == State::Opened { State::Thought } else { State::Answer };
                }
                !undecided
            }
            (State::Headed, _) => {
                let is_part = self.header.starts_with(&held);
                let thought = held.strip_prefix(self.header).map(str::to_owned);
                let undecided = is_part && thought.is_none();
                self.held = thought.unwrap_or(held);
                if !undecided {
                    self.state = State::Thought;
                }
                !undecided
            }
            (State::Thought, Some((_, close))) => match held.split_once(close.as_str()) {
                Some((thought, answer)) => {
                    say(out, TextKind::Reasoning, thought.to_owned());
                    (self.held, self.state, self.thought) = (answer.to_owned(), State::Answer, true);
                    true
                }
                None => self.keep(out, TextKind::Reasoning, &held, begun(&held, close)),
            },
            (State::Thought | State::Opened, None) => self.keep(out, TextKind::Reasoning, &held, 0),
            (_, tags) => {
                let close = tags.map(|tags| tags.1.clone()).filter(|_| self.closes_alone && !self.thought);
                let closes = close.as_ref().and_then(|close| held.find(close.as_str()).map(|at| (at, close.len())));
                let stops = self.stops.iter().enumerate();
                let found = stops.filter_map(|(index, stop)| held.find(&stop.text).map(|at| (at, index)));
                match (closes, found.min()) {
                    (Some((at, length)), stops) if stops.is_none_or(|(stop, _)| at < stop) => {
                        say(out, TextKind::Answer, held[..at].to_owned());
                        out.push(Said::WasThought);
                        (self.held, self.thought) = (held[at + length..].to_owned(), true);
                        true
                    }
                    (_, Some((at, index))) => {
                        let answer = &held[..at];
                        say(
                            out,
                            TextKind::Answer,
                            if self.stops[index].of_template { answer.trim_end() } else { answer }.to_owned(),
                        );
                        self.stopped = Some(index);
                        false
                    }
                    _ => {
                        let marks = close.as_deref().into_iter().chain(self.stops.iter().map(|stop| &*stop.text));
                        let most = marks.map(|mark| begun(&held, mark)).max().unwrap_or(0);
                        self.keep(out, TextKind::Answer, &held, most)
                    }
                }
            }
        }
    }

    /// Says all of `held` but its last `n` bytes, which are kept.
    fn keep(&mut self, out: &mut Vec<Said>, kind: TextKind, held: &str, n: usize) -> bool {
        let (decided, kept) = held.split_at(held.len() - n);
        say(out, kind, decided.to_owned());
        self.held = kept.to_owned();
        false
    }
}

fn say(out: &mut Vec<Said>, kind: TextKind, text: String) {
    if !text.is_empty() {
        out.push(Said::Text(kind, text));
    }
}

/// The reasoning and the answer of a whole reply.
pub fn split(tags: &ThinkTags, thinks: bool, text: &str) -> (String, String) {
    let (mut splitter, mut said) = (Splitter::new(tags, thinks, Vec::new()), Vec::new());
    splitter.push(text, &mut said);
    splitter.finish(&mut said);
    let (mut reasoning, mut answer) = (String::new(), String::new());
    for one in said {
        match one {
            Said::Text(TextKind::Reasoning, text) => reasoning += &text,
            Said::Text(TextKind::Answer, text) => answer += &text,
            Said::WasThought => reasoning += &std::mem::take(&mut answer),
        }
    }
    (reasoning, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(named: bool) -> ThinkTags {
        ThinkTags { open: "<think>".into(), close: "</think>".into(), tokens: None, named, channels: None }
    }

    /// The parts of a reply that comes in pieces of every size.
    fn parts(text: &str, thinks: bool, named: bool, stops: &[(&str, bool)]) -> (String, String) {
        let stops: Vec<Stop> =
            stops.iter().map(|&(text, of_template)| Stop { text: text.to_owned(), of_template }).collect();
        let mut all: Vec<(String, String)> = Vec::new();
        for size in 1..=text.chars().count().max(1) {
            let (mut splitter, mut said) = (Splitter::new(&tags(named), thinks, stops.clone()), Vec::new());
            let chars: Vec<char> = text.chars().collect();
            for piece in chars.chunks(size) {
                splitter.push(&piece.iter().collect::<String>(), &mut said);
            }
            splitter.finish(&mut said);
            let (mut thought, mut answer) = (String::new(), String::new());
            for one in said {
                match one {
                    Said::Text(TextKind::Reasoning, text) => thought += &text,
                    Said::Text(TextKind::Answer, text) => answer += &text,
                    Said::WasThought => thought += &std::mem::take(&mut answer),
                }
            }
            all.push((thought, answer));
        }
        assert!(all.iter().all(|one| *one == all[0]), "{text:?}: {all:?}");
        all.swap_remove(0)
    }

    #[test]
    fn tags_in_text_split_a_reply_in_any_pieces() {
        let of = |text, thinks, named| parts(text, thinks, named, &[]);
        let two = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("<think>\nponder\n</think>\n\nDone", false, false), two("\nponder\n", "\n\nDone"));
        assert_eq!(of(" \n<think>a</think>b", false, false), two("a", "b"));
        assert_eq!(of("ponder</think>Done", true, false), two("ponder", "Done"));
        assert_eq!(of("2 < 3", false, false), two("", "2 < 3"));
        assert_eq!(of(" <thin", false, false), two("", " <thin"), "what was held back is said at the end");
        assert_eq!(of("use <think> and </think>", false, false), two("", "use <think> and </think>"));
        assert_eq!(of("a <b </thin", true, true), two("a <b </thin", ""));
        // The prompt has the opening tag, and the model repeats it.
        assert_eq!(of(" \n<think>\na <think></think>b", true, true), two("\na <think>", "b"));
        assert_eq!(of("</think>b", true, true), two("", "b"));
        assert_eq!(of(" <thin", true, true), two(" <thin", ""));
        // As the templates of Qwen3 and DeepSeek R1 read a reply.
        assert_eq!(of("ponder</think>Done </think>", false, true), two("ponder", "Done </think>"));
    }

    #[test]
    fn the_name_of_a_channel_is_no_part_of_its_thought() {
        let tokens = Some((7, 8));
        let tags = ThinkTags { open: "<|channel>".into(), close: "<channel|>".into(), tokens, ..tags(true) };
        let of = |thought: &str| {
            let (mut splitter, mut said) = (Splitter::new(&tags, false, Vec::new()), Vec::new());
            splitter.open(&mut said);
            thought.chars().for_each(|c| splitter.push(&c.to_string(), &mut said));
            splitter.close(&mut said);
            splitter.push("4", &mut said);
            let text = |of: TextKind| {
                let all = said.iter().filter_map(|said| match said {
                    Said::Text(kind, text) if *kind == of => Some(text.as_str()),
                    _ => None,
                });
                all.collect::<String>()
            };
            (text(TextKind::Reasoning), text(TextKind::Answer))
        };
        let parts = |thought: &str| (thought.to_owned(), "4".to_owned());
        assert_eq!(of("thought\n2+2"), parts("2+2"));
        assert_eq!(of("thought\n"), parts(""));
        assert_eq!(of("thought"), parts(""));
        assert_eq!(of("thoughts"), parts("thoughts"));
        assert_eq!(of("tho"), parts("tho"));
    }

    #[test]
    fn a_stop_text_ends_the_answer_and_is_no_part_of_it() {
        let of = |text, stop| parts(text, false, false, &[(stop, true)]).1;
        assert_eq!(of(" Hi.\nUser: and you?\nUser:", "\nUser:"), " Hi.");
        assert_eq!(of(" Hi.\nUse", "\nUser:"), " Hi.\nUse");
        assert_eq!(of("\nUser:", "\nUser:"), "");
    }
    #[test]
    fn of_several_stop_texts_the_first_in_the_text_ends_the_answer() {
        let of = |text, stops: &[&str]| {
            let stops: Vec<(&str, bool)> = stops.iter().map(|&stop| (stop, false)).collect();
            parts(text, false, true, &stops)
        };
        let answer = |text: &str| (String::new(), text.to_owned());
        assert_eq!(of("one two three", &["three", "two"]), answer("one "), "with the space before it");
        assert_eq!(of("abcd", &["bcd", "abc"]), answer(""));
        assert_eq!(of("aab", &["ab"]), answer("a"));
        assert_eq!(of("one tw", &["two", "twelve"]), answer("one tw"), "what was held back is said at the end");
        // A thought is not searched.
        let thought = ("a stop b".to_owned(), "c ".to_owned());
        assert_eq!(of("<think>a stop b</think>c stop d", &["stop"]), thought);
    }
}
