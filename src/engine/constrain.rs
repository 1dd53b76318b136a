//! An answer under a grammar: compiles the grammar, and masks the logits of tokens that may not
//! follow. The grammar applies to the answer and not to its thought.

use crate::grammar::{Compiler, Constraint, Mask};
use crate::protocol::{Grammar, GrammarError, Token};
use crate::tokenizer::Tokenizer;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, OnceLock};

/// The compiler of a vocabulary, created by the first grammar.
pub(super) type Compilers = Arc<OnceLock<Result<Compiler, String>>>;

/// A grammar that is compiled on its own thread.
pub(super) struct Compiling(Receiver<Result<Constraint, GrammarError>>);

/// Most grammars that are compiled at once. Those of clients that have hung up count.
const MOST_COMPILING: usize = 4;

/// A compilation that runs.
struct Running;

impl Running {
    fn count() -> &'static AtomicUsize {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        &COUNT
    }

    /// `None` if too many run.
    fn start() -> Option<Self> {
        let more = |running| (running < MOST_COMPILING).then_some(running + 1);
        Self::count().fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        Self::count().fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compiling {
    /// Starts the thread. `vocab`: number of logits. `eos`: tokens that end an answer.
    pub fn start(
        grammar: Grammar,
        compilers: Compilers,
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        eos: Vec<Token>,
    ) -> Self {
        let (send, result) = channel();
        let Some(running) = Running::start() else {
            let _ = send.send(Err(GrammarError::Busy));
            return Self(result);
        };
        let compile = move || {
            let _running = running;
            let compiler = compilers.get_or_init(|| Compiler::new(tokenizer, vocab, &eos));
            let compiler = compiler.as_ref().map_err(|why| grammar.refused(why.clone()));
            let _ = send.send(compiler.and_then(|compiler| compiler.compile(&grammar)));
        };
        // If no thread starts, the sender is dropped, and `poll` returns an error.
        let _ = std::thread::Builder::new().name("grammar".into()).spawn(compile);
        Self(result)
    }

    /// Returns the constraint once it is available.
    pub fn poll(&self) -> Option<Result<Constraint, GrammarError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(GrammarError::Failed)),
        }
    }
}

/// The tokens of a thought, to which the grammar does not apply.
#[derive(Clone, Debug, Default)]
pub(super) struct Thought {
    /// The token that may begin a thought before the answer, beside those that the grammar allows.
    pub opens: Option<Token>,
    /// The token after which a thought may begin.
    pub begins: Option<Token>,
    /// The token that ends a thought, where it is one.
    pub closes: Option<Token>,
    /// The tokens that it may have, `closes` among them; `None`: any. If some are named, the token
    /// after `closes` is under the grammar.
    pub within: Option<Mask>,
}

/// The grammar of one answer while it is generated.
pub(super) struct Constrained {
    constraint: Constraint,
    thought: Thought,
    /// Whether the next token is one of a thought.
    thinks: bool,
    /// The tokens that may be next; `None`: any, as in most thoughts.
    mask: Option<Mask>,
    /// Drafts of the next step, each with the tokens that may follow it.
    ahead: VecDeque<(Token, Mask)>,
}

impl Constrained {
    /// `thinks`: the prompt ends in an open thought. Fails if no token may begin the answer.
    pub fn new(constraint: Constraint, thought: Thought, thinks: bool) -> Result<Self, String> {
        let mut new = Self { constraint, thought, thinks, mask: None, ahead: VecDeque::new() };
        new.prepare(thinks)?;
        Ok(new)
    }

    /// Appends a token. `is_thought`: it belongs to the thought. `thinks`: so does the next one.
    /// Fails if the grammar does not allow the token, or lets none follow.
    pub fn push(&mut self, token: Token, is_thought: bool, thinks: bool) -> Result<(), String> {
        // A thought may only come first.
        self.thought.opens = None;
        self.thought.begins = self.thought.begins.filter(|_| self.thought.within.is_some());
        if is_thought {
            let ends = self.thought.within.is_some() && self.thought.closes == Some(token);
            return self.prepare(thinks && !ends);
        }
        self.constraint.push(token)?;
        match self.ahead.pop_front() {
            // It was a draft.
            Some((draft, mask)) if draft == token && !thinks && !self.thinks => self.mask = Some(mask),
            _ => self.prepare(thinks)?,
        }
        Ok(())
    }

    /// Returns drafts that the grammar demands.
    pub fn forced(&self) -> Vec<Token> {
        self.mask.as_ref().filter(|_| !self.thinks).map_or_else(Vec::new, |mask| self.constraint.forced(mask))
    }

    /// Cuts drafts of the next step before the first that may not follow, or that begins or ends a
    /// thought.
    pub fn cut(&mut self, drafts: &mut Vec<Token>) {
        self.ahead.clear();
        let Thought { begins, closes, within, .. } = &self.thought;
        let Some(mask) = self.mask.as_ref().filter(|_| !self.thinks) else {
            let is_end =
                |draft: &Token| Some(*draft) == *closes || within.as_ref().is_some_and(|mask| !mask.has(*draft));
            let end = closes.map(|_| drafts.iter().position(is_end));
            drafts.truncate(end.map_or(0, |end| end.unwrap_or(drafts.len())));
            self.ahead.extend(within.iter().flat_map(|mask| drafts.iter().map(|draft| (*draft, mask.clone()))));
            return;
        };
        let end = drafts.iter().position(|draft| Some(*draft) == *begins).unwrap_or(drafts.len());
        let masks = self.constraint.ahead(mask, &drafts[..end]);
        drafts.truncate(masks.len());
        self.ahead = drafts.iter().copied().zip(masks).collect();
    }

    fn prepare(&mut self, thinks: bool) -> Result<(), String> {
        self.ahead.clear();
        self.thinks = thinks;
        self.mask = match thinks {
            true => self.thought.within.clone(),
            false => {
                let mut mask = self.constraint.allowed()?;
                self.thought.opens.into_iter().for_each(|token| mask.set(token, true));
                Some(mask)
            }
        };
        Ok(())
    }

    /// The tokens that may be next, and after each of `drafts`; `None`: any.
    pub fn masks(&self, drafts: usize) -> Vec<Option<Mask>> {
        match &self.mask {
            None => vec![None; 1 + drafts],
            Some(mask) => [mask]
                .into_iter()
                .chain(self.ahead.iter().map(|(_, mask)| mask))
                .take(1 + drafts)
                .cloned()
                .map(Some)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::channels::reply_of;
    use super::super::reply::tests::vocabulary_of_harmony;
    use super::super::reply::{Reply, Vocabulary};
    use super::*;
    use crate::protocol::{Ask, GrammarPart};
    use serde_json::json;

    const VOCAB: usize = 405;

    fn grammar(parts: Vec<GrammarPart>) -> Grammar {
        Grammar { parts, field: "x".to_owned(), schemas: Vec::new() }
    }

    fn json_part() -> GrammarPart {
        let number = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
        GrammarPart::Json(number.to_string())
    }

    /// Whether a reply of these tokens is one of the grammar, each token drafted before it is said.
    fn takes(v: &Vocabulary, grammar: &Grammar, text: &str) -> bool {
        let compiler = Compiler::new(Arc::clone(&v.tokenizer), VOCAB, &v.eos).unwrap();
        let constraint = compiler.compile(&reply_of(grammar, &[])).unwrap();
        let end = v.think.channels.unwrap().end;
        let message = v.tokenizer.token_for("<|message|>");
        let within = Mask::of(VOCAB, |token| token == end || v.tokenizer.bytes_of(token).is_some());
        let thought = Thought { opens: None, begins: message, closes: Some(end), within: Some(within) };
        let ask = Ask { marks: vec!["<|channel|>".to_owned()], ..Ask::default() };
        let mut reply = Reply::to(&ask, v);
        let mut constrained = Constrained::new(constraint, thought, reply.is_free()).unwrap();
        v.tokenizer.encode_text(text).unwrap().into_iter().all(|token| {
            let mut drafts = vec![token];
            constrained.cut(&mut drafts);
            let masks = constrained.masks(drafts.len());
            let allowed = masks[0].as_ref().is_some_and(|mask| mask.has(token));
            assert!(masks.len() == 1 + drafts.len() && (allowed || drafts.is_empty()), "{text}");
            // What follows the header of a message is not known before it.
            assert!(drafts.is_empty() || Some(token) != message, "{text}");
            let spoken = reply.push(token, v);
            allowed && (v.eos.contains(&token) || constrained.push(token, spoken.is_free, reply.is_free()).is_ok())
        })
    }

    #[test]
    fn a_reply_in_channels_has_a_thought_or_none_and_then_what_the_grammar_says() {
        let v = vocabulary_of_harmony();
        let answer = grammar(vec![json_part()]);
        let mark = |mark: &str| GrammarPart::Mark(mark.to_owned());
        let text = |text: &str| GrammarPart::Text(text.to_owned());
        let call = [mark("<|channel|>"), text("commentary to=functions."), text("f"), mark("<|message|>"), json_part()];
        let call = grammar(call.into());
        let thought = "<|channel|>analysis<|message|>a { \"fox\n<|end|><|start|>assistant";
        let (json, last) = ("{\"n\": 12}<|return|>", "<|channel|>final<|message|>");
        let called = "<|channel|>commentary to=functions.f<|message|>";
        for (of, reply, good) in [
            (&answer, format!("{last}{json}"), true),
            (&answer, format!("{thought}{last}{json}"), true),
            (&answer, format!("{last}<|return|>"), false),
            (&answer, format!("{last}No{json}"), false),
            (&answer, json.to_owned(), false),
            (&answer, format!("{called}{json}"), false),
            (&answer, format!("{thought}{thought}{last}{json}"), false),
            (&answer, "<|channel|>analysis<|message|>a fox<|return|>".to_owned(), false),
            (&answer, "<|channel|>analysis<|message|>a <|channel|>".to_owned(), false),
            (&answer, "<|channel|>analysis<|message|>a <|end|>fox".to_owned(), false),
            (&answer, "<|channel|>the fox<|message|>".to_owned(), false),
            (&call, format!("{called}{json}"), true),
            (&call, format!("{thought}{called}{json}"), true),
            (&call, format!("{last}{json}"), false),
            (&call, format!("{thought}{last}{json}"), false),
        ] {
            assert_eq!(takes(&v, of, &reply), good, "{reply}");
        }
    }

    #[test]
    fn a_prompt_that_has_the_header_leaves_the_answer() {
        use crate::protocol::Piece;
        let grammar = grammar(vec![json_part()]);
        let open = [Piece::Control("<|message|>".to_owned()), Piece::Text(" ".to_owned())];
        assert_eq!(reply_of(&grammar, &open), grammar);
        let start = [Piece::Control("<|start|>".to_owned()), Piece::Text("assistant".to_owned())];
        assert!(reply_of(&grammar, &start).parts.len() > 4);
    }
}
