//! From generated tokens to streamed text: whole characters, thoughts apart from the answer, and
//! the canonical text that the next rendering is compared with.

use super::channels::{Header, Message};
use super::constrain::Compilers;
use super::think::{Said, Splitter, Stop, ThinkTags};
use crate::protocol::{Ask, Piece, Token};
use crate::tokenizer::{Decoder, Tokenizer, flatten, unflatten};
use std::sync::Arc;

/// Meaning of a model's tokens.
pub(super) struct Vocabulary {
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end an answer.
    pub eos: Vec<Token>,
    pub think: ThinkTags,
    /// Text that ends an answer: a model that only continues text would answer as the user next.
    pub stop: Option<&'static str>,
    /// Compiles grammars for these tokens.
    pub compiler: Compilers,
}

/// Bytes of a draft that are encoded to count its tokens: some tens of milliseconds.
const MAX_COUNTED: usize = 128 << 10;

impl Vocabulary {
    /// Counts the tokens of a text. A long one is counted in part and the rest estimated. `None`
    /// where it cannot be encoded.
    pub fn count_tokens(&self, text: &str) -> Option<usize> {
        self.count(text, |part| vec![Piece::Text(part.to_owned())])
    }

    /// The same of a canonical text.
    pub fn count_flat(&self, flat: &str) -> usize {
        self.count(flat, unflatten).unwrap_or(0)
    }

    fn count(&self, text: &str, pieces: impl Fn(&str) -> Vec<Piece>) -> Option<usize> {
        let mut part = text.len().min(MAX_COUNTED);
        while !text.is_char_boundary(part) {
            part -= 1;
        }
        let ids = self.tokenizer.encode_pieces(&pieces(&text[..part])).ok()?;
        Some(ids.len() * text.len() / part.max(1))
    }
}

/// The canonical text of tokens, one by one.
struct FlatText {
    decoder: Decoder,
    /// Whether this is a reply, whose text becomes a message: what it shows is text there.
    of_reply: bool,
}

impl FlatText {
    /// `is_mark`: a control token in the next prompt, although the reply shows it.
    fn push(&mut self, token: Token, tokenizer: &Tokenizer, is_end: bool, is_mark: bool) -> String {
        let is_text = match self.of_reply {
            _ if is_mark => false,
            true => !is_end && !tokenizer.is_hidden(token),
            false => !tokenizer.is_control(token),
        };
        if is_text {
            return self.decoder.push(token);
        }
        self.decoder.flush() + &flatten(&[Piece::Control(tokenizer.literal(token))])
    }
}

/// The text of one answer while it is generated.
pub(super) struct Reply {
    decoder: Decoder,
    flat: FlatText,
    splitter: Splitter,
    /// Header of the current message, in a reply in channels.
    header: Header,
    /// Whether it has no thoughts: tags are text.
    raw: bool,
    /// Control tokens that the reply shows: marks of calls.
    marks: Vec<Token>,
    /// Whether it shows calls of a reply in channels, which are thoughts otherwise.
    shows_calls: bool,
    /// Tokens of each kind, tags and end token included.
    pub reasoning_tokens: usize,
    pub answer_tokens: usize,
}

/// Effect of a token on a reply.
pub(super) struct Spoken {
    pub said: Vec<Said>,
    /// Canonical text.
    pub flat: String,
    /// The answer is complete, by its text.
    pub stops: bool,
    /// Bytes of text that the token spells; `None` if it is a tag, hidden, or an end.
    pub spelled: Option<usize>,
    /// Whether it belongs to a thought.
    pub thinks: bool,
    /// Whether a grammar does not apply to it: it is in a thought, and not in the header of one.
    pub is_free: bool,
    /// The answer so far was a thought.
    pub was_thought: bool,
}

impl Reply {
    /// `thinks`: the prompt ends in an open thought.
    pub fn new(vocabulary: &Vocabulary, thinks: bool) -> Self {
        let stops = vocabulary.stop.map(Stop::of_template).into_iter().collect();
        Self::split_by(Splitter::new(&vocabulary.think, thinks, stops), vocabulary)
    }

    /// The reply to a request, with its stop texts.
    pub fn to(ask: &Ask, vocabulary: &Vocabulary) -> Self {
        let asked = ask.stop.iter().map(|text| Stop { text: text.clone(), of_template: false });
        if ask.raw {
            return Self { raw: true, ..Self::split_by(Splitter::plain(asked.collect()), vocabulary) };
        }
        let stops = asked.chain(vocabulary.stop.map(Stop::of_template)).collect();
        let splitter = Splitter::new(&vocabulary.think, vocabulary.think.end(&ask.prompt), stops);
        let token = |mark: &String| vocabulary.tokenizer.token_for(mark);
        let channels = vocabulary.think.channels;
        let is_shown = |token: &Token| !vocabulary.eos.contains(token) && !channels.is_some_and(|c| c.has(*token));
        let marks = ask.marks.iter().filter_map(token).filter(is_shown).collect();
        let shows_calls = channels.is_some() && !ask.marks.is_empty();
        Self { marks, shows_calls, ..Self::split_by(splitter, vocabulary) }
    }

    fn split_by(splitter: Splitter, vocabulary: &Vocabulary) -> Self {
        let decoder = || vocabulary.tokenizer.decoder();
        Self {
            decoder: decoder(),
            flat: FlatText { decoder: decoder(), of_reply: true },
            splitter,
            header: Header::default(),
            raw: false,
            marks: Vec::new(),
            shows_calls: false,
            reasoning_tokens: 0,
            answer_tokens: 0,
        }
    }

    pub fn push(&mut self, token: Token, vocabulary: &Vocabulary) -> Spoken {
        let tokenizer = &vocabulary.tokenizer;
        let is_end = vocabulary.eos.contains(&token);
        let is_mark = self.marks.contains(&token);
        let flat = self.flat.push(token, tokenizer, is_end, is_mark);
        let (was_open, was_undecided) = (self.splitter.is_thinking(), self.splitter.is_undecided());
        let was_free = self.is_free();
        let had_thought = self.splitter.thought;
        let (mut said, mut spelled) = (Vec::new(), None);
        let (opens, closes) = vocabulary.think.tokens.map_or((false, false), |(o, c)| (o == token, c == token));
        if is_mark || (self.raw && (opens || closes)) {
            let text = self.decoder.flush() + &tokenizer.literal(token);
            spelled = Some(text.len());
            self.splitter.push(&text, &mut said);
        } else if opens || closes {
            self.splitter.push(&self.decoder.flush(), &mut said);
            if opens { self.splitter.open(&mut said) } else { self.splitter.close(&mut said) }
        } else if let Some(channels) = vocabulary.think.channels.filter(|c| !self.raw && c.has(token)) {
            let text = self.decoder.flush();
            let before = if self.header.is_open() { "" } else { &*text };
            self.splitter.push(before, &mut said);
            match self.header.take(&channels, token, &text) {
                None => {}
                Some(Message::Call(name)) if self.shows_calls => {
                    self.answer(&mut said);
                    let text = Message::call(&name);
                    spelled = Some(text.len());
                    self.splitter.push(&text, &mut said);
                }
                Some(Message::Thought | Message::Call(_)) => self.splitter.open(&mut said),
                Some(Message::Answer) => self.answer(&mut said),
            }
        } else if self.header.is_open() && !is_end {
            self.header.push(&self.decoder.push(token));
        } else if !is_end && !tokenizer.is_hidden(token) {
            let text = self.decoder.push(token);
            spelled = Some(text.len());
            self.splitter.push(&text, &mut said);
        }
        // A token that ends a thought is a part of it.
        let thinks = was_open || self.splitter.is_thinking() || self.splitter.thought != had_thought;
        let was_thought = thinks && (was_undecided || said.contains(&Said::WasThought));
        if was_thought {
            self.reasoning_tokens += std::mem::take(&mut self.answer_tokens);
        }
        // The tokens of a header count for its message.
        let of_header = self.header.is_open();
        let tokens = if of_header { 0 } else { self.header.take_tokens().max(1) };
        *(if thinks { &mut self.reasoning_tokens } else { &mut self.answer_tokens }) += tokens;
        let is_free = if vocabulary.think.channels.is_some() { was_free && self.is_free() } else { thinks };
        Spoken { said, flat, stops: self.splitter.stop().is_some(), spelled, thinks, is_free, was_thought }
    }

    /// Ends a thought, if there is one.
    fn answer(&mut self, said: &mut Vec<Said>) {
        if self.splitter.is_thinking() {
            self.splitter.close(said);
        }
    }

    /// The text of the request that has ended it.
    pub fn stop_text(&self) -> Option<&str> {
        self.splitter.stop().filter(|stop| !stop.of_template).map(|stop| &*stop.text)
    }

    pub fn is_thinking(&self) -> bool {
        self.splitter.is_thinking()
    }

    /// Whether the next token is one of a thought, and not of a header.
    pub fn is_free(&self) -> bool {
        self.splitter.is_thinking() && !self.header.is_open()
    }

    /// Ends the reply. Returns the rest of its text, and of the canonical text.
    pub fn finish(&mut self) -> (Vec<Said>, String) {
        let mut said = Vec::new();
        self.splitter.push(&self.decoder.flush(), &mut said);
        self.splitter.finish(&mut said);
        let of_header = self.header.take_tokens();
        *(if self.is_thinking() { &mut self.reasoning_tokens } else { &mut self.answer_tokens }) += of_header;
        (said, self.flat.decoder.flush())
    }
}

/// Returns the canonical text of `tokens` and its length in bytes after each of them.
pub(super) fn flat_of(tokenizer: &Tokenizer, tokens: impl IntoIterator<Item = Token>) -> (String, Vec<usize>) {
    flat_text(tokenizer, tokens, false)
}

/// Returns how many of `tokens` lie within the first `bytes` of their canonical text.
pub(super) fn tokens_within(tokenizer: &Tokenizer, tokens: &[Token], bytes: usize) -> usize {
    let mut text = FlatText { decoder: tokenizer.decoder(), of_reply: false };
    let mut end = 0;
    let is_within = |token: &&Token| {
        end += text.push(**token, tokenizer, false, false).len();
        end <= bytes
    };
    tokens.iter().take_while(is_within).count()
}

fn flat_text(tokenizer: &Tokenizer, tokens: impl IntoIterator<Item = Token>, of_reply: bool) -> (String, Vec<usize>) {
    let mut text = FlatText { decoder: tokenizer.decoder(), of_reply };
    let (mut flat, mut ends) = (String::new(), Vec::new());
    for token in tokens {
        flat += &text.push(token, tokenizer, false, false);
        ends.push(flat.len());
    }
    flat += &text.decoder.flush();
    if let Some(end) = ends.last_mut() {
        *end = flat.len();
    }
    (flat, ends)
}

/// Maximum tokens at the end of a reply that are not part of its text: the end token, or the tokens
/// of the stop text.
const END_TOKENS: usize = 8;

/// Returns the generated ids that spell exactly `flat`: all of them, or those after the think
/// block, with or without the end of the reply.
pub(super) fn ids_that_spell(tokenizer: &Tokenizer, generated: &[Token], flat: &str) -> Option<Vec<Token>> {
    let (whole, ends) = flat_text(tokenizer, generated.iter().copied(), true);
    for n in (generated.len().saturating_sub(END_TOKENS)..=generated.len()).rev() {
        let end = if n == 0 { 0 } else { ends[n - 1] };
        let Some(start) = end.checked_sub(flat.len()) else { continue };
        if !whole.is_char_boundary(start) || &whole[start..end] != flat {
            continue;
        }
        if start == 0 {
            return Some(generated[..n].to_vec());
        }
        if let Some(k) = ends[..n].iter().position(|&e| e == start) {
            return Some(generated[k + 1..n].to_vec());
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::protocol::TextKind;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tokenizer/tokenizer.json");

    /// The vocabulary of the goldens, with or without think tokens.
    fn vocabulary(think: bool, template: &str, stop: Option<&'static str>) -> Vocabulary {
        let file = std::fs::read_to_string(FILE).unwrap();
        let file = if think { file } else { file.replace("think>", "idle>") };
        let tokenizer = Tokenizer::new(file.as_bytes(), 1000).unwrap();
        let eos = tokenizer.token_for("<|im_end|>").into_iter().collect();
        Vocabulary {
            think: ThinkTags::of(&tokenizer, Some(template)),
            tokenizer: Arc::new(tokenizer),
            eos,
            stop,
            compiler: Default::default(),
        }
    }

    /// The vocabulary of the goldens with the control tokens of Harmony.
    pub fn vocabulary_of_harmony() -> Vocabulary {
        let file = std::fs::read_to_string(FILE).unwrap();
        let file = file.replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|return|>");
        let file = file.replace("<|endoftext|>", "<|end|>").replace("</think>", "<|message|>");
        let tokenizer = Tokenizer::new(file.replace("<think>", "<|channel|>").as_bytes(), 1000).unwrap();
        let eos = tokenizer.token_for("<|return|>").into_iter().collect();
        let think = ThinkTags::of(&tokenizer, None);
        Vocabulary { think, tokenizer: Arc::new(tokenizer), eos, stop: None, compiler: Default::default() }
    }

    /// Thought, answer and counts of both.
    fn read(v: &Vocabulary, tokens: &[Token]) -> (String, String, usize, usize) {
        let (mut reply, mut flat) = (Reply::new(v, false), String::new());
        let (mut thought, mut answer) = (String::new(), String::new());
        let mut hear = |said: Vec<Said>| {
            for one in said {
                match one {
                    Said::Text(TextKind::Reasoning, text) => thought += &text,
                    Said::Text(TextKind::Answer, text) => answer += &text,
                    Said::WasThought => thought += &std::mem::take(&mut answer),
                }
            }
        };
        for &token in tokens {
            let spoken = reply.push(token, v);
            flat += &spoken.flat;
            hear(spoken.said);
        }
        let (said, rest) = reply.finish();
        hear(said);
        assert_eq!(reply.reasoning_tokens + reply.answer_tokens, tokens.len());
        assert_eq!(ids_that_spell(&v.tokenizer, tokens, &(flat + &rest)).as_deref(), Some(tokens));
        (thought, answer, reply.reasoning_tokens, reply.answer_tokens)
    }

    #[test]
    fn thoughts_in_ordinary_tokens_are_apart_from_the_answer() {
        let v = vocabulary(false, "", None);
        let encode = |text: &str| v.tokenizer.encode_pieces(&[Piece::Text(text.to_owned())]).unwrap();
        let [thought, rest] = ["<think>\nponder</think>", "\n\nDone"].map(encode);
        let (reasoning, answer, n_thought, n_answer) = read(&v, &[&thought[..], &rest].concat());
        assert_eq!((&*reasoning, &*answer), ("\nponder", "\n\nDone"));
        assert_eq!((n_thought, n_answer), (thought.len(), rest.len()));
        let plain = encode("2 < 3 </think>");
        assert_eq!(read(&v, &plain), (String::new(), "2 < 3 </think>".into(), 0, plain.len()));
        // Where the template names the tag, an end alone makes what came before it a thought.
        let named = vocabulary(false, "{{ x.split('</think>') }}", None);
        let (reasoning, answer, n_thought, n_answer) = read(&named, &[encode("ponder</think>"), encode("!")].concat());
        assert_eq!((&*reasoning, &*answer, n_thought > 1, n_answer), ("ponder", "!", true, 1));
    }

    #[test]
    fn a_closing_token_alone_ends_a_thought() {
        let v = vocabulary(true, "", None);
        let close = v.think.tokens.unwrap().1;
        let encode = |text: &str| v.tokenizer.encode_pieces(&[Piece::Text(text.to_owned())]).unwrap();
        let tokens = [encode("ponder"), vec![close], encode("Done"), v.eos.clone()].concat();
        let (reasoning, answer, n_thought, _) = read(&v, &tokens);
        assert_eq!((&*reasoning, &*answer, n_thought), ("ponder", "Done", encode("ponder").len() + 1));
    }

    /// Forms of a reply in the documentation of Harmony; of its texts, white space is a part.
    #[test]
    fn channels_but_the_final_one_are_thoughts() {
        let v = vocabulary_of_harmony();
        assert!(v.think.channels.is_some() && v.think.literals().is_none());
        let read = |text: &str| {
            let tokens = v.tokenizer.encode_text(text).unwrap();
            let (thought, answer, n_thought, n_answer) = read(&v, &tokens);
            assert_eq!(n_thought + n_answer, tokens.len());
            (thought, answer, n_thought > 0, n_answer > 0)
        };
        let of = |thought: &str, answer: &str| (thought.into(), answer.into(), !thought.is_empty(), !answer.is_empty());
        let both = "<|channel|>analysis<|message|>It is 2 + 2.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>";
        assert_eq!(read(both), of("It is 2 + 2.", "2 + 2 = 4."));
        assert_eq!(read("<|channel|>final<|message|>the dog<|return|>"), of("", "the dog"));
        // A thought that is closed for the model.
        let end = v.tokenizer.encode_pieces(&v.think.end_of_thought(false)).unwrap();
        let thought = v.tokenizer.encode_text("<|channel|>analysis<|message|>It is").unwrap();
        let tokens = [thought, end, v.tokenizer.encode_text("4.<|return|>").unwrap()].concat();
        let (reasoning, answer, ..) = super::tests::read(&v, &tokens);
        assert_eq!((&*reasoning, &*answer), ("It is", "4."));
        let call = "<|channel|>analysis<|message|>a fox<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}";
        assert_eq!(read(call), of("a fox{}", ""));
        // Where the request has tools, calls are a part of the answer, in one spelling.
        let ask = Ask { marks: vec!["<|channel|>".to_owned()], ..Ask::default() };
        let in_channel = "<|channel|>commentary to=functions.f <idle>json<|message|>{}";
        let thought = "<|channel|>analysis<|message|>a fox<|end|>";
        let in_role = format!("{thought}<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{{}}");
        let other = "<|channel|>commentary to=python<|message|>{}";
        for (text, answer) in [(in_channel, Some("{}")), (&in_role, Some("{}")), (other, None)] {
            let (mut reply, mut shown) = (Reply::to(&ask, &v), String::new());
            for token in v.tokenizer.encode_text(text).unwrap() {
                for one in reply.push(token, &v).said {
                    if let Said::Text(TextKind::Answer, text) = one {
                        shown += &text;
                    }
                }
            }
            let wanted = answer.map(|arguments| format!("<|channel|>commentary to=functions.f<|message|>{arguments}"));
            assert_eq!(shown, wanted.unwrap_or_default(), "{text}");
        }
        assert_eq!(read("<|channel|>analysis<|message|>the fox runs"), of("the fox runs", ""));
        assert_eq!(read("plain"), of("", "plain"));
    }

    #[test]
    fn the_next_question_is_not_a_part_of_the_answer() {
        let v = vocabulary(false, "", Some("\nUser:"));
        let tokens = v.tokenizer.encode_pieces(&[Piece::Text(" Hi.\nUser:".to_owned())]).unwrap();
        assert_eq!(read(&v, &tokens).1, " Hi.");
        let mut reply = Reply::new(&v, false);
        assert!(tokens.iter().any(|&token| reply.push(token, &v).stops));
        assert_eq!(
            ids_that_spell(&v.tokenizer, &tokens, " Hi.").map(|ids| v.tokenizer.decode(&ids).unwrap()),
            Some(" Hi.".into())
        );
    }
}
