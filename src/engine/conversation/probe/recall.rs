//! The recall test: whether the model still knows a text of the conversation.
//!
//! A fork of the conversation is asked to repeat the text from its first words on. The tokens after
//! them are fed as the answer, with the far pages that the question chose and those that the answer
//! chooses, and each is compared with the model's own choice at its position.
//! The question names only the first words, but the tokens before a token help to guess it, so the
//! same question is asked once more without the conversation. Neither changes the conversation: its
//! log, pages and snapshots stay.

use super::work::{Begun, Owner, ProbeWork};
use crate::backend::Backend;
use crate::engine::chain::Chain;
use crate::engine::context::Context;
use crate::engine::conversation::halt::Halt;
use crate::engine::conversation::state::Conversation;
use crate::engine::loaded::Loaded;
use crate::engine::presence::{counted, evidence};
use crate::engine::prompt::{Encoding, stretches};
use crate::engine::reply::flat_of;
use crate::engine::runner::Runner;
use crate::protocol::{
    EventSender, Evidence, Finding, Guess, Piece, RecallRequest, Recalled, RecalledToken, Token, count,
};
use crate::sampler::{argmax, log_softmax_at};
use crate::tokenizer::flat::{CLOSE, OPEN};
use crate::tokenizer::{Tokenizer, flatten};
use std::collections::HashMap;
use std::ops::Range;

/// Longer texts are refused: the answer is shown token by token.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// A recall test that runs.
pub(super) struct Recall {
    passage: Passage,
    /// The question without the conversation.
    alone: Vec<Token>,
    /// Position of the answer's first token in the sequence that is being asked.
    start: usize,
    known: Vec<Guess>,
    /// Where each scored token was when the answer began; empty if the text was never said.
    evidence: Vec<Evidence>,
    /// The answer's tokens are fed, or being fed.
    answers: bool,
    /// Without the conversation; `None` until that is asked.
    guessed: Option<Vec<Guess>>,
    /// The conversation's, for the question without it.
    eviction: bool,
    dial: f32,
}

impl Recall {
    /// The tokens to feed after a question. Nothing follows the answer's last token.
    fn to_feed(&self) -> &[Token] {
        self.passage.answer.split_last().map_or(&[], |(_, rest)| rest)
    }

    /// Finding so far, once the question was asked with the conversation, even if not without.
    fn result<B: Backend>(self, m: &Loaded<B>, halt: Option<Halt>) -> Result<Box<Recalled>, String> {
        match halt {
            Some(Halt::Cancelled) => Err("stopped".to_owned()),
            Some(Halt::CacheFull(why)) if self.guessed.is_none() => Err(format!("no room to ask: {why}")),
            Some(Halt::ContextFull(why) | Halt::Error(why)) if self.guessed.is_none() => Err(why),
            _ => Ok(Box::new(self.report(&m.vocabulary.tokenizer, counted(&m.runner)))),
        }
    }

    fn report(self, tokenizer: &Tokenizer, lanes: usize) -> Recalled {
        let Passage { answer, given, times, .. } = self.passage;
        let (text, ends) = flat_of(tokenizer, answer.iter().copied());
        let from = if given == 0 { 0 } else { ends[given - 1] };
        let texts = (given..answer.len()).map(|i| &text[if i == 0 { 0 } else { ends[i - 1] }..ends[i]]);
        let guessed = self.guessed.filter(|guessed| guessed.len() == self.known.len());
        let tokens = texts.zip(&self.known).enumerate().map(|(i, (text, &known))| RecalledToken {
            text: text.replace([OPEN, CLOSE], ""),
            known,
            guessed: guessed.as_ref().map(|guessed| guessed[i]),
            evidence: self.evidence.get(i).copied(),
        });
        Recalled { times, cue: text[..from].replace([OPEN, CLOSE], ""), lanes: lanes as u32, tokens: tokens.collect() }
    }
}

impl<B: Backend> ProbeWork<B> for Recall {
    /// Scores the answer's tokens that follow the `n` just fed.
    fn fed(&mut self, runner: &mut Runner<B>, context: &Context, n: usize) -> Result<(), Halt> {
        let end = context.len(runner);
        let fed = end - n..end;
        let scored = self.start + self.passage.given..self.start + self.passage.answer.len();
        let first = fed.start.max(scored.start.saturating_sub(1));
        let last = fed.end.min(scored.end - 1);
        if first >= last {
            return Ok(());
        }
        let Self { passage, start, known, guessed, .. } = self;
        let guesses = guessed.as_mut().unwrap_or(known);
        let scored = runner.logits(first - fed.start..last - fed.start, |row, logits| {
            let at = fed.start + row + 1 - *start;
            let token = passage.answer[at];
            guesses.push(Guess { logprob: log_softmax_at(logits, token), is_choice: argmax(logits) == token });
        });
        Ok(scored?)
    }

    /// Feeds the answer after a question. Then asks the question once more without the
    /// conversation, unless there is no room for it. Returns false after that.
    fn go_on(&mut self, m: &mut Loaded<B>, chain: &mut Chain) -> Result<bool, Halt> {
        let runner = &mut m.runner;
        if !std::mem::replace(&mut self.answers, true) {
            if let (Some(at), None) = (self.passage.said, &self.guessed) {
                let scored = at..at + self.passage.answer.len() - self.passage.given;
                self.evidence = evidence(runner, chain.context.seq, scored);
            }
            chain.prefill_answer(runner, self.to_feed());
            return Ok(true);
        }
        if self.guessed.is_some() {
            return Ok(false);
        }
        if self.alone.len() + self.to_feed().len() > runner.context() {
            return Ok(false);
        }
        (self.guessed, self.start, self.answers) = (Some(Vec::new()), self.alone.len(), false);
        runner.release(chain.context.seq);
        chain.context = Context::new(runner, self.eviction).expect("a sequence was just released");
        chain.context.set_dial(runner, self.dial);
        chain.prefill(self.alone.iter().copied());
        Ok(true)
    }

    fn end(
        self: Box<Self>,
        of: &mut dyn Owner<B>,
        m: &mut Loaded<B>,
        events: &EventSender,
        chain: Chain,
        halt: Option<Halt>,
    ) {
        of.end_with(Finding::Recalled(self.result(m, halt)), m, events, chain);
    }
}

/// A text as tokens of an answer.
struct Passage {
    answer: Vec<Token>,
    /// Number of tokens that are given.
    given: usize,
    /// Position of the first scored token where it was said first.
    said: Option<usize>,
    /// How often the text was said.
    times: usize,
}

impl Passage {
    /// Finds the tokens `chosen` in `told`: from position `at` on, or elsewhere, or not at all if a
    /// template omits text that it does not repeat. `None` if no token follows the first
    /// `cue_bytes`.
    fn of_tokens(
        tokenizer: &Tokenizer,
        told: &[Token],
        chosen: Vec<Token>,
        at: usize,
        cue_bytes: usize,
    ) -> Option<Self> {
        let begins = |at: &usize| !chosen.is_empty() && told.get(*at..).is_some_and(|rest| rest.starts_with(&chosen));
        let found = Some(at).filter(begins).or_else(|| (0..told.len()).find(begins));
        let (_, ends) = flat_of(tokenizer, chosen.iter().copied());
        let given = (1 + ends.partition_point(|&end| end < cue_bytes)).min(chosen.len());
        let (said, times) = (found.map(|at| at + given), usize::from(found.is_some()));
        (given < chosen.len()).then_some(Self { answer: chosen, given, said, times })
    }

    /// Finds a text among the tokens `told`, or encodes it. `None` if no token follows its first
    /// `cue_bytes`.
    fn find(tokenizer: &Tokenizer, told: &[Token], text: &str, cue_bytes: usize) -> anyhow::Result<Option<Self>> {
        let encode = |text: &str| tokenizer.encode_pieces(&[Piece::Text(text.to_owned())]);
        let (flat, ends) = flat_of(tokenizer, told.iter().copied());
        let mut found = occurrences(&flat, text, cue_bytes);
        let passage = match found.next() {
            Some(first) => {
                // Tokens that begin before these bytes.
                let before = |bytes: usize| if bytes == 0 { 0 } else { 1 + ends.partition_point(|&end| end < bytes) };
                let (from, to) = (before(first.cue_end), before(first.end).min(told.len()));
                let given_end = if from == 0 { 0 } else { ends[from.min(told.len()) - 1] };
                let mut answer = encode(&flat[first.start.min(given_end)..given_end])?;
                let given = answer.len();
                answer.extend(told.get(from..to).unwrap_or_default());
                Self { answer, given, said: Some(from), times: 1 + found.count() }
            }
            None => {
                let answer = encode(text)?;
                let (_, ends) = flat_of(tokenizer, answer.iter().copied());
                let given = (1 + ends.partition_point(|&end| end < cue_bytes)).min(answer.len());
                Self { answer, given, said: None, times: 0 }
            }
        };
        Ok((passage.given < passage.answer.len()).then_some(passage))
    }
}

/// Where a text is in another, in bytes.
struct Occurrence {
    start: usize,
    /// End of the part that is given.
    cue_end: usize,
    end: usize,
}

/// Finds a text in another, from the left. White space of any length and kind is the same.
fn occurrences<'a>(flat: &'a str, text: &'a str, cue_bytes: usize) -> impl Iterator<Item = Occurrence> + 'a {
    let mut at = 0;
    let word = |word: &'a str| {
        let begin = at + text[at..].find(word).unwrap_or(0);
        at = begin + word.len();
        (begin, word)
    };
    let words: Vec<(usize, &str)> = text.split_whitespace().map(word).collect();
    let first = words.first().map_or("", |(_, word)| word);
    let starts = flat.match_indices(first).map(|(start, _)| start).filter(move |_| !first.is_empty());
    starts.filter_map(move |start| {
        let (mut end, mut cue_end) = (start, start);
        for (n, (begin, word)) in words.iter().enumerate() {
            let rest = &flat[end..];
            let trimmed = rest.trim_start();
            if !trimmed.starts_with(word) || (n > 0 && trimmed.len() == rest.len()) {
                return None;
            }
            let from = end + rest.len() - trimmed.len();
            end = from + word.len();
            if *begin < cue_bytes {
                cue_end = from + word.len().min(cue_bytes - begin);
            }
        }
        Some(Occurrence { start, cue_end, end })
    })
}

impl<B: Backend> Conversation<B> {
    pub(super) fn begin_recall(&mut self, m: &mut Loaded<B>, mut request: RecallRequest) -> Result<Begun<B>, String> {
        if request.text.len() > MAX_TEXT_BYTES {
            let (bytes, most) = (count(request.text.len()), count(MAX_TEXT_BYTES));
            return Err(format!("the text has {bytes} bytes, the limit is {most}"));
        }
        for prompt in [&mut request.prompt, &mut request.alone] {
            if m.vocabulary.think.end(prompt) {
                let lines = |n: usize| Piece::Text("\n".repeat(n));
                prompt.extend([lines(1), m.vocabulary.think.closing(), lines(2)]);
            }
        }
        let tokenizer = &m.vocabulary.tokenizer;
        let encode = |pieces: &[Piece], skip: usize, replies: &HashMap<u64, Vec<Token>>| {
            Encoding::start(tokenizer, stretches(tokenizer, pieces, skip, replies)).wait()
        };
        let one_line = |error: anyhow::Error| format!("{error:#}");
        let base = self.base_of(m, &flatten(&request.prompt));
        let kept = self.context_of(m, base);
        let asked = encode(&request.prompt, kept.map_or(0, |c| c.flat.len()), &self.replies).map_err(one_line)?;
        let alone = encode(&request.alone, 0, &HashMap::new()).map_err(one_line)?;
        let todo: Vec<Token> = kept.and_then(|c| c.pending).into_iter().chain(asked).collect();
        let mut told: Vec<Token> = kept.into_iter().flat_map(Context::tokens).collect();
        told.extend(&todo);
        let passage = match request.tokens {
            Some(Range { start, end }) => {
                let chosen = self.chain.context.tokens().take(end).skip(start).collect();
                Passage::of_tokens(tokenizer, &told, chosen, start, request.cue_bytes)
            }
            None => Passage::find(tokenizer, &told, &request.text, request.cue_bytes).map_err(one_line)?,
        };
        let passage = passage.ok_or("the text is too short: nothing is left of it after the first words")?;
        let (need, context) = (told.len() + passage.answer.len() - 1, m.runner.context());
        if need > context {
            let (need, context) = (count(need), count(context));
            return Err(format!("no room to ask: it takes {need} tokens, and the context holds {context}"));
        }
        let (eviction, dial) = (self.eviction, self.dial);
        let fork = self.fork_for_probe(m, base, eviction);
        let mut chain = fork.map_err(|error| format!("no room to ask: {error}"))?;
        let (start, known, evidence, guessed) = (told.len(), Vec::new(), Vec::new(), None);
        let recall = Recall { passage, alone, start, known, evidence, answers: false, guessed, eviction, dial };
        chain.prefill(todo);
        Ok((chain, Box::new(recall)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_across_any_white_space() {
        let flat = "the code is\n\n  seven, the  code is seven";
        let found: Vec<_> = occurrences(flat, "the code is seven", 8).map(|o| (o.start, o.cue_end, o.end)).collect();
        assert_eq!(found, [(0, 8, 20), (22, 31, 40)]);
        assert_eq!(&flat[22..31], "the  code");
        // A cue may end inside of a word, and a text inside of one.
        let found: Vec<_> = occurrences(flat, "seve", 2).map(|o| (o.start, o.cue_end, o.end)).collect();
        assert_eq!(found, [(15, 17, 19), (35, 37, 39)]);
        assert_eq!(occurrences(flat, "thecode", 2).count() + occurrences(flat, "  ", 1).count(), 0);
    }
}
