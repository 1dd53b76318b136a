//! Log-probabilities of an answer. Its log is fed once more from the last kept state before it. The
//! logits before each token give its probability, and the tokens that were likelier.

use super::work::{Begun, Owner, ProbeWork};
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::conversation::halt::Halt;
use crate::engine::conversation::state::Conversation;
use crate::engine::likely::{choice, shown, weigh};
use crate::engine::loaded::Loaded;
use crate::engine::reply::flat_of;
use crate::engine::runner::Runner;
use crate::protocol::{EventSender, Finding, LogEntry, Token, TokenChoice};
use crate::tokenizer::Tokenizer;

/// Other tokens that are named beside each one.
const OTHERS: usize = 3;

/// An answer that is fed again.
pub(super) struct Logprobs {
    answer: Vec<Token>,
    /// Position of its first token.
    start: usize,
    /// Log-probabilities of each token and of the most probable others.
    found: Vec<Vec<(Token, f64)>>,
}

impl Logprobs {
    fn result<B: Backend>(self, m: &Loaded<B>, halt: Option<Halt>) -> Result<Vec<TokenChoice>, String> {
        match halt {
            None => Ok(self.report(&m.vocabulary.tokenizer)),
            Some(halt) => Err(halt.without_answer("no room to read it again")),
        }
    }

    fn report(self, tokenizer: &Tokenizer) -> Vec<TokenChoice> {
        let (text, ends) = flat_of(tokenizer, self.answer.iter().copied());
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let texts = starts.zip(&ends).map(|(start, &end)| shown(&text[start..end]));
        texts.zip(self.found).map(|(said, found)| choice(tokenizer, found, said)).collect()
    }
}

impl<B: Backend> ProbeWork<B> for Logprobs {
    /// Scores the answer's tokens that follow the `n` just fed.
    fn fed(&mut self, runner: &mut Runner<B>, context: &Context, n: usize) -> Result<(), Halt> {
        let end = context.len(runner);
        let (first, last) = ((end - n).max(self.start - 1), end.min(self.start + self.answer.len() - 1));
        if first >= last {
            return Ok(());
        }
        let Self { answer, start, found } = self;
        let fed = end - n;
        let score = |row: usize, logits: &[f32]| found.push(weigh(logits, answer[fed + row + 1 - *start], OTHERS));
        Ok(runner.logits(first - fed..last - fed, score)?)
    }

    fn end(
        self: Box<Self>,
        of: &mut dyn Owner<B>,
        m: &mut Loaded<B>,
        events: &EventSender,
        chain: Chain,
        halt: Option<Halt>,
    ) {
        of.end_with(Finding::Logprobs(self.result(m, halt)), m, events, chain);
    }
}

/// Where the log has an answer last: the entry before its first token, and that token's position.
fn find(log: &[LogEntry], pending: Option<Token>, answer: &[Token]) -> Option<(usize, usize)> {
    let fed = log.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.token()?)));
    let (entries, tokens): (Vec<usize>, Vec<Token>) = fed.chain(pending.map(|token| (log.len(), token))).unzip();
    let at = (1..tokens.len()).rev().find(|&at| tokens[at..].starts_with(answer))?;
    Some((entries[at - 1], at))
}

impl<B: Backend> Conversation<B> {
    pub(super) fn begin_logprobs(&mut self, m: &mut Loaded<B>, answer: Vec<Token>) -> Result<Begun<B>, String> {
        let Context { log, pending, .. } = &self.chain.context;
        let found = find(log, *pending, &answer).filter(|_| !answer.is_empty());
        let (before, start) = found.ok_or("the answer is not in the cache; your next message loads it again")?;
        // The token before the answer has to be fed here.
        let log = log.clone();
        let kept = m.snapshots.longest_log(&log[..before]);
        let from = kept.map_or(0, |context| context.log.len());
        let fork = match kept {
            Some(context) => context.fork(&mut m.runner),
            None => Context::new(&mut m.runner, true),
        };
        let mut chain = Chain::idle(fork.map_err(|error| format!("no room to read it again: {error}"))?);
        chain.replay(&log[from..]);
        Ok((chain, Box::new(Logprobs { answer, start, found: Vec::new() })))
    }
}
