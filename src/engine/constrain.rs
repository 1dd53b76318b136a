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

/// The grammar of one answer while it is generated.
pub(super) struct Constrained {
    constraint: Constraint,
    /// The token that may begin a thought before the answer.
    opens: Option<Token>,
    /// The token that ends a thought, where it is one.
    closes: Option<Token>,
    /// The tokens that may be next; `None`: any, as in a thought.
    mask: Option<Mask>,
    /// Drafts of the next step, each with the tokens that may follow it.
    ahead: VecDeque<(Token, Mask)>,
}

impl Constrained {
    /// `thinks`: the prompt ends in an open thought. Fails if no token may begin the answer.
    pub fn new(
        constraint: Constraint,
        opens: Option<Token>,
        closes: Option<Token>,
        thinks: bool,
    ) -> Result<Self, String> {
        let mut new = Self { constraint, opens, closes, mask: None, ahead: VecDeque::new() };
        new.prepare(thinks)?;
        Ok(new)
    }

    /// Appends a token. `is_thought`: it belongs to the thought. `thinks`: so does the next one.
    /// Fails if the grammar does not allow the token, or lets none follow.
    pub fn push(&mut self, token: Token, is_thought: bool, thinks: bool) -> Result<(), String> {
        // A thought may only come first.
        self.opens = None;
        if is_thought {
            return self.prepare(thinks);
        }
        self.constraint.push(token)?;
        match self.ahead.pop_front() {
            // It was a draft.
            Some((draft, mask)) if draft == token && !thinks => self.mask = Some(mask),
            _ => self.prepare(thinks)?,
        }
        Ok(())
    }

    /// Returns drafts that the grammar demands.
    pub fn forced(&self) -> Vec<Token> {
        self.mask.as_ref().map_or_else(Vec::new, |mask| self.constraint.forced(mask))
    }

    /// Cuts drafts of the next step before the first that may not follow, or that begins or ends a
    /// thought.
    pub fn cut(&mut self, drafts: &mut Vec<Token>) {
        self.ahead.clear();
        let Some(mask) = &self.mask else {
            let end = self.closes.map(|closes| drafts.iter().position(|draft| *draft == closes));
            return drafts.truncate(end.map_or(0, |end| end.unwrap_or(drafts.len())));
        };
        let end = drafts.iter().position(|draft| Some(*draft) == self.opens).unwrap_or(drafts.len());
        let masks = self.constraint.ahead(mask, &drafts[..end]);
        drafts.truncate(masks.len());
        self.ahead = drafts.iter().copied().zip(masks).collect();
    }

    fn prepare(&mut self, thinks: bool) -> Result<(), String> {
        self.mask = None;
        self.ahead.clear();
        if !thinks {
            let mut mask = self.constraint.allowed()?;
            self.opens.into_iter().for_each(|token| mask.set(token, true));
            self.mask = Some(mask);
        }
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
