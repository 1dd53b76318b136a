//! A prompt that is being answered: its encoding, and the numbers that are reported of it.

use super::halt::Halt;
use crate::backend::Backend;
use crate::engine::chain::{Chain, Generation};
use crate::engine::channels::reply_of;
use crate::engine::constrain::{Compiling, Thought};
use crate::engine::loaded::Loaded;
use crate::engine::prompt::{Encoding, stretches};
use crate::engine::reply::{Reply, Vocabulary};
use crate::engine::report::Figures;
use crate::engine::runner::Runner;
use crate::grammar::{Constraint, Mask};
use crate::protocol::{Ask, Phase, StopReason, Token, TurnReport, count};
use crate::random::fresh_seed;
use crate::system;
use crate::tokenizer::flat::{CLOSE, OPEN};
use crate::tokenizer::flatten;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(in crate::engine) struct Asked {
    pub ask: Ask,
    pub seed: u64,
    /// Canonical text of the prompt.
    pub flat: String,
    encoding: Option<Encoding>,
    compiling: Option<Compiling>,
    constraint: Option<Constraint>,
    /// Tokens that the answer replaces ([`Drafter::replaces`](crate::engine::Drafter::replaces)).
    pub replaced: Vec<Token>,
    pub prompt_tokens: usize,
    pub reused: usize,
    /// Tokens of the prompt that are prefilled.
    pub prefilled: usize,
    started: Instant,
    prefill_started: Option<Instant>,
    /// Energy counter of the device when the prompt was begun.
    energy_mj: Option<u64>,
    /// The answer, once it has ended.
    pub generation: Option<Generation>,
}

impl Asked {
    pub fn new(ask: Ask) -> Self {
        Self {
            seed: ask.seed.unwrap_or_else(fresh_seed),
            flat: flatten(&ask.prompt),
            ask,
            encoding: None,
            compiling: None,
            constraint: None,
            replaced: Vec::new(),
            prompt_tokens: 0,
            reused: 0,
            prefilled: 0,
            started: system::now(),
            prefill_started: None,
            energy_mj: None,
            generation: None,
        }
    }

    /// Refuses a text that no context holds.
    pub fn check_length<B: Backend>(&self, m: &Loaded<B>) -> Result<(), Halt> {
        // Do not count the marks around control tokens.
        let marks = (OPEN.len_utf8() + CLOSE.len_utf8()) * self.flat.matches(OPEN).count();
        let limit = m.info.template.limit;
        let refusal = limit.and_then(|limit| limit.refusal("the prompt", self.flat.len() - marks));
        refusal.map_or(Ok(()), |why| Err(Halt::ContextFull(why)))
    }

    /// Refuses tokens that the model does not have.
    pub fn check_options<B: Backend>(&self, m: &Loaded<B>) -> Result<(), Halt> {
        match self.ask.logit_bias.iter().find(|(token, _)| *token as usize >= m.info.vocab) {
            Some((token, _)) => Err(Halt::Error(format!("logit_bias: {token} is not a token of the model"))),
            None => Ok(()),
        }
    }

    /// Starts to encode the prompt after the first `skip` bytes of its text.
    pub fn encode<B: Backend>(&mut self, m: &Loaded<B>, skip: usize, replies: &HashMap<u64, Vec<Token>>) {
        let tokenizer = &m.vocabulary.tokenizer;
        let stretches = stretches(tokenizer, &self.ask.prompt, skip, replies);
        self.encoding = Some(Encoding::start(tokenizer, stretches));
        if let Some(grammar) = self.ask.grammar.as_ref().filter(|_| self.constraint.is_none()) {
            let Vocabulary { tokenizer, eos, compiler, .. } = &m.vocabulary;
            let (compilers, tokenizer) = (Arc::clone(compiler), Arc::clone(tokenizer));
            let grammar = match m.vocabulary.think.channels.filter(|_| !self.ask.raw) {
                Some(_) => reply_of(grammar, &self.ask.prompt),
                None => grammar.clone(),
            };
            self.compiling = Some(Compiling::start(grammar, compilers, tokenizer, m.info.vocab, eos.clone()));
        }
    }

    /// Whether it waits for the tokens of its prompt.
    pub fn is_encoding(&self) -> bool {
        self.encoding.is_some() || self.compiling.is_some()
    }

    /// Returns the tokens once they are available.
    pub fn encoded(&mut self) -> Result<Option<Vec<Token>>, Halt> {
        if let Some(compiling) = &self.compiling {
            let Some(compiled) = compiling.poll() else { return Ok(None) };
            self.compiling = None;
            self.constraint = Some(compiled.map_err(Halt::Grammar)?);
        }
        let tokens = self.encoding.as_ref().and_then(Encoding::poll);
        self.encoding.take_if(|_| tokens.is_some());
        tokens.transpose().map_err(|error| Halt::Error(format!("{error:#}")))
    }

    /// Drops the encoding.
    pub fn stop_encoding(&mut self) {
        (self.encoding, self.compiling) = (None, None);
    }

    /// Records the lengths of a prompt in which `todo` follows `reused` tokens, and removes its
    /// last token, which is decoded.
    pub fn measure<B: Backend>(
        &mut self,
        runner: &Runner<B>,
        reused: usize,
        todo: &mut Vec<Token>,
    ) -> Result<Token, Halt> {
        (self.reused, self.prefilled, self.prompt_tokens) = (reused, todo.len(), reused + todo.len());
        if self.prompt_tokens >= runner.context() {
            return Err(Halt::ContextFull(format!(
                "the prompt has {} tokens, and the context holds {} with the answer",
                count(self.prompt_tokens),
                count(runner.context())
            )));
        }
        todo.pop().ok_or_else(|| Halt::Error("the prompt is empty".into()))
    }

    /// Gives the chain, which holds the reused tokens, the rest of the prompt and the answer.
    pub fn begin<B: Backend>(&mut self, m: &Loaded<B>, chain: &mut Chain, todo: Vec<Token>, last: Token) {
        self.prefill_started = Some(system::now());
        self.energy_mj = m.runner.backend().energy_mj();
        chain.context.flat.clone_from(&self.flat);
        chain.context.is_cut = false;
        chain.context.pending = Some(last);
        chain.prefill(todo);
        self.begin_answer(m, chain, self.seed);
    }

    /// Sets the answer that the chain generates after the prompt.
    pub fn begin_answer<B: Backend>(&self, m: &Loaded<B>, chain: &mut Chain, seed: u64) {
        let reply = Reply::to(&self.ask, &m.vocabulary);
        let mut answer = Generation::new(&self.ask, &m.drafts, seed, reply, m.runner.has_head());
        answer.drafting.iter_mut().for_each(|drafting| drafting.replaces(&self.replaced));
        if let Some(constraint) = &self.constraint {
            answer.constrain(constraint.clone(), self.thought(m));
        }
        chain.begin_answer(&m.runner, answer);
    }

    /// The tokens of a thought before an answer under a grammar.
    fn thought<B: Backend>(&self, m: &Loaded<B>) -> Thought {
        let Vocabulary { think, tokenizer, .. } = &m.vocabulary;
        if let Some(channels) = think.channels.filter(|_| !self.ask.raw) {
            let is_within = |token| token == channels.end || tokenizer.bytes_of(token).is_some();
            let within = Mask::of(m.info.vocab, is_within);
            let (begins, closes) = (Some(channels.message), Some(channels.end));
            return Thought { opens: None, begins, closes, within: Some(within) };
        }
        let opens = think.may_open(&self.ask.prompt).filter(|_| !self.ask.raw);
        Thought { opens, begins: opens, closes: think.tokens.map(|(_, closes)| closes), within: None }
    }

    /// Work of the chain that answers.
    pub fn phase(&self, chain: &Chain) -> Phase {
        let (left, total) = (chain.tokens_left(), self.prefilled);
        match left {
            _ if self.is_encoding() => Phase::Idle,
            0 => Phase::Decode,
            _ => Phase::Prefill { done: total.saturating_sub(left + 1), total },
        }
    }

    /// Joules that the device has used for the prompt and the answer, and for what ran beside it.
    pub fn joules<B: Backend>(&self, m: &Loaded<B>) -> Option<f64> {
        let (from, to) = self.energy_mj.zip(m.runner.backend().energy_mj())?;
        Some(to.checked_sub(from)? as f64 / 1e3)
    }

    /// The report of the answer, without what only a turn has.
    pub fn report(self, eviction: bool, figures: &Figures, halt: Option<Halt>) -> TurnReport {
        let g = self.generation.as_ref();
        let grammar_error = match &halt {
            Some(Halt::Grammar(error)) => Some(error.clone()),
            _ => None,
        };
        let (stop_reason, detail) = match halt {
            None => (g.and_then(|g| g.stop).unwrap_or(StopReason::End), g.and_then(|g| g.dead_end.clone())),
            Some(Halt::Cancelled) => (StopReason::Cancelled, None),
            Some(Halt::CacheFull(why)) => (StopReason::CacheFull, Some(why)),
            Some(Halt::ContextFull(why)) => (StopReason::ContextFull, Some(why)),
            Some(Halt::Error(why)) => (StopReason::Error, Some(why)),
            Some(Halt::Grammar(error)) => (StopReason::Error, Some(error.to_string())),
        };
        let first_token = g.and_then(|g| g.timings.first_token);
        let prefill = self.prefill_started.zip(first_token).map_or(0.0, |(from, to)| (to - from).as_secs_f64());
        TurnReport {
            turn: 0,
            stop_reason,
            detail,
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused,
            answer_tokens: g.map_or(0, |g| g.reply.answer_tokens),
            reasoning_tokens: g.map_or(0, |g| g.reply.reasoning_tokens),
            ttft_ms: first_token.map(|t| ms(t - self.started)),
            prefill_tok_s: (prefill > 0.0).then(|| self.prefilled as f64 / prefill),
            decode_tok_s: g.and_then(Generation::decode_tok_s),
            reasoning_ms: g.and_then(|g| g.timings.reasoning_end).zip(first_token).map(|(end, first)| ms(end - first)),
            seed: self.seed,
            sampling: self.ask.sampling,
            eviction,
            forgotten_slots: 0,
            draft: g.and_then(|g| Some(g.drafting.as_ref()?.report)).filter(|report| report.rounds > 0),
            kv: figures.kv(),
            device_bytes: figures.device_bytes,
            joules: None,
            twin: None,
            chains: None,
            log_base: 0,
            log: Vec::new(),
            stop_text: g.and_then(|g| g.reply.stop_text().map(str::to_owned)),
            thought_closed_at: g.and_then(|g| g.thought_closed_at),
            repeats_at: g.and_then(|g| g.repeats_at),
            generated: self.generation.map_or_else(Vec::new, |g| g.generated),
            pending: Some(None),
            in_context: false,
            grammar_error,
            presence: None,
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
