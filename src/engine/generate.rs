//! One turn: find what the cache already holds of the prompt, prefill the rest, answer.

use super::context::Context;
use super::reply::{Reply, ids_that_spell};
use super::report::kv_stats;
use super::worker::{Halt, Worker, text_limit};
use crate::backend::Backend;
use crate::protocol::{Event, GenerateRequest, LogEntry, Phase, Piece, StopReason, Token, TurnReport, count};
use crate::tokenizer::flat::{CLOSE, OPEN};
use crate::tokenizer::{Tokenizer, flatten, unflatten};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Texts longer than this are encoded on a thread of their own.
const LONG_TEXT_BYTES: usize = 64 << 10;
/// How long a cancel waits for being seen while a prompt is encoded.
const CANCEL_WAIT: Duration = Duration::from_millis(10);

/// Which state a turn starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// The conversation as it stands: the prompt continues it.
    Active,
    /// The last turn's prompt: regenerate, or a template that drops what was thought since.
    PromptEnd,
    /// Before the last turn's user message: undo, edit.
    Before,
    Nothing,
}

/// Part of a prompt: what is to be encoded, or the ids that it has already.
enum Stretch {
    Plain(Vec<Piece>),
    Known(Vec<Token>),
}

impl Stretch {
    fn text_bytes(&self) -> usize {
        let text = |piece: &Piece| if let Piece::Text(text) = piece { text.len() } else { 0 };
        if let Self::Plain(pieces) = self { pieces.iter().map(text).sum() } else { 0 }
    }
}

/// The tokens of a prompt, or as many as were found until `stop` was set.
fn encode_all(tokenizer: &Tokenizer, stretches: &[Stretch], stop: &AtomicBool) -> anyhow::Result<Vec<Token>> {
    let mut out = Vec::new();
    for stretch in stretches {
        match stretch {
            Stretch::Known(ids) => out.extend(ids),
            Stretch::Plain(pieces) => out.extend(tokenizer.encode_unless(pieces, stop)?.unwrap_or_default()),
        }
    }
    Ok(out)
}

/// Figures of a turn as they come in.
struct Turn {
    request: GenerateRequest,
    seed: u64,
    started: Instant,
    /// The log at the turn's start, once the turn has begun to change it.
    start_log: Option<Vec<LogEntry>>,
    prompt_tokens: usize,
    reused: usize,
    prefilled: usize,
    prefill_time: Duration,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    reasoning_end: Option<Instant>,
    generated: Vec<Token>,
    reasoning_tokens: usize,
    answer_tokens: usize,
}

impl<B: Backend> Worker<'_, B> {
    pub(super) fn generate(&mut self, request: GenerateRequest) {
        let seed = request.seed.unwrap_or_else(random_seed);
        let mut turn = Turn {
            request,
            seed,
            started: Instant::now(),
            start_log: None,
            prompt_tokens: 0,
            reused: 0,
            prefilled: 0,
            prefill_time: Duration::ZERO,
            first_token: None,
            last_token: None,
            reasoning_end: None,
            generated: Vec::new(),
            reasoning_tokens: 0,
            answer_tokens: 0,
        };
        let outcome = self.take_turn(&mut turn);
        self.end_turn(turn, outcome);
    }

    fn take_turn(&mut self, turn: &mut Turn) -> Result<StopReason, Halt> {
        let flat = flatten(&turn.request.prompt);
        let limit = text_limit(self.runner.context(), &self.tokenizer);
        // The marks around control tokens are no text.
        let marks = (OPEN.len_utf8() + CLOSE.len_utf8()) * flat.matches(OPEN).count();
        if let Some(why) = limit.refusal("the prompt", flat.len() - marks) {
            return Err(Halt::ContextFull(why));
        }
        let base = self.choose_base(&flat);
        // A cancel that came while the prompt was rendered or encoded acts before anything changes.
        self.poll()?;
        let (reused, mut todo) = self.what_is_left(base, &turn.request.prompt)?;
        self.poll()?;
        turn.reused = reused;
        turn.prompt_tokens = reused + todo.len();
        let context = self.runner.context();
        if turn.prompt_tokens >= context {
            return Err(Halt::ContextFull(format!(
                "the prompt has {} tokens, and the context holds {} with the answer",
                count(turn.prompt_tokens),
                count(context)
            )));
        }
        let start = self.context_of(base).unwrap_or(&self.active);
        turn.start_log = Some(start.log.clone());
        self.start_from(base, todo.len() > 1)?;
        self.runner.forget_fault();
        self.outlet.event(Event::TurnStarted {
            turn: turn.request.turn,
            prompt_tokens: turn.prompt_tokens,
            reused,
            todo: todo.len(),
        });
        self.follow_eviction_here().map_err(|e| Halt::CacheFull(e.to_string()))?;
        let last = todo.pop().expect("a prompt leaves at least one token to feed");
        turn.prefilled = todo.len() + 1;
        let prefill = Instant::now();
        self.active.pending = None;
        self.feed_all(&todo, |done| Phase::Prefill { done, total: todo.len() + 1 })?;
        self.active.flat = flat;
        if self.prompt_end.is_none() {
            self.active.pending = Some(last);
            self.prompt_end = self.active.fork(&mut self.runner).ok();
            self.active.pending = None;
        }
        let first = self.decode(last, &turn.request.sampling, turn.seed)?;
        turn.prefill_time = prefill.elapsed();
        self.answer(turn, first)
    }

    /// The newest state whose text begins the prompt's.
    fn choose_base(&self, flat: &str) -> Base {
        let begins = |context: &Context| !context.flat.is_empty() && flat.starts_with(&context.flat);
        if begins(&self.active) && (flat.len() > self.active.flat.len() || self.active.pending.is_some()) {
            Base::Active
        } else if self.prompt_end.as_ref().is_some_and(begins) {
            Base::PromptEnd
        } else if self.before.as_ref().is_some_and(begins) {
            Base::Before
        } else {
            Base::Nothing
        }
    }

    fn context_of(&self, base: Base) -> Option<&Context> {
        match base {
            Base::Active => Some(&self.active),
            Base::PromptEnd => self.prompt_end.as_ref(),
            Base::Before => self.before.as_ref(),
            Base::Nothing => None,
        }
    }

    /// How many tokens the base holds, and the tokens that complete the prompt from there.
    fn what_is_left(&mut self, base: Base, prompt: &[Piece]) -> Result<(usize, Vec<Token>), Halt> {
        let context = self.context_of(base);
        let (reused, pending, skip) = context.map_or((0, None, 0), |c| (c.len(&self.runner), c.pending, c.flat.len()));
        let mut todo: Vec<Token> = pending.into_iter().collect();
        let stretches = self.stretches_from(prompt, skip);
        todo.extend(self.encode(stretches)?);
        if todo.is_empty() {
            return Err(Halt::Error("the prompt is empty".into()));
        }
        Ok((reused, todo))
    }

    /// The rendering from byte `skip` of its flat text on. Replies keep the ids they were generated with.
    fn stretches_from(&self, prompt: &[Piece], skip: usize) -> Vec<Stretch> {
        let (mut out, mut plain, mut at) = (Vec::new(), Vec::new(), 0);
        for piece in prompt {
            let flat = flatten(std::slice::from_ref(piece));
            let from = skip.saturating_sub(at).min(flat.len());
            at += flat.len();
            let known = match piece {
                Piece::Reply { turn, .. } if from == 0 => {
                    self.replies.get(turn).and_then(|ids| ids_that_spell(&self.tokenizer, ids, &flat))
                }
                _ => None,
            };
            match known {
                Some(ids) => out.extend([Stretch::Plain(std::mem::take(&mut plain)), Stretch::Known(ids)]),
                None => plain.extend(unflatten(&flat[from..])),
            }
        }
        out.push(Stretch::Plain(plain));
        out
    }

    /// Encodes a prompt. A long one is encoded on a thread of its own, so that a cancel ends the wait at once.
    fn encode(&mut self, stretches: Vec<Stretch>) -> Result<Vec<Token>, Halt> {
        let failed = |e: anyhow::Error| Halt::Error(format!("{e:#}"));
        let tokenizer = Arc::clone(&self.tokenizer);
        if stretches.iter().map(Stretch::text_bytes).sum::<usize>() <= LONG_TEXT_BYTES {
            return encode_all(&tokenizer, &stretches, &AtomicBool::new(false)).map_err(failed);
        }
        let (send, receive) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let encode = move || drop(send.send(encode_all(&tokenizer, &stretches, &stopped)));
        std::thread::Builder::new().name("encode".into()).spawn(encode).map_err(|e| failed(e.into()))?;
        loop {
            match receive.recv_timeout(CANCEL_WAIT) {
                Ok(tokens) => return tokens.map_err(failed),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Halt::Error("the thread that encodes the prompt has ended".into()));
                }
                // The thread ends by itself; nobody waits for what it still finds.
                Err(RecvTimeoutError::Timeout) => self.poll().inspect_err(|_| stop.store(true, Ordering::Relaxed))?,
            }
        }
    }

    /// Makes `base` the active context and lays down the checkpoint before this turn.
    /// `adds`: the prompt says more than the base, so that the base itself is worth keeping.
    fn start_from(&mut self, base: Base, adds: bool) -> Result<(), Halt> {
        let full = |e: crate::cache::CacheError| Halt::CacheFull(e.to_string());
        match base {
            Base::Active => {
                self.release_checkpoints();
                self.before = Some(self.active.fork(&mut self.runner).map_err(full)?);
            }
            Base::PromptEnd => {
                let end = self.prompt_end.take().expect("chosen because it exists");
                let copy = end.fork(&mut self.runner).map_err(full)?;
                self.replace_active(copy);
                if adds {
                    if let Some(before) = self.before.replace(end) {
                        self.runner.release(before.seq);
                    }
                } else {
                    self.prompt_end = Some(end);
                }
            }
            Base::Before => {
                if let Some(end) = self.prompt_end.take() {
                    self.runner.release(end.seq);
                }
                let before = self.before.as_ref().expect("chosen because it exists");
                let copy = before.fork(&mut self.runner).map_err(full)?;
                self.replace_active(copy);
            }
            Base::Nothing => {
                self.release_checkpoints();
                let fresh = Context::new(&mut self.runner, self.eviction).map_err(full)?;
                self.before = Some(std::mem::replace(&mut self.active, fresh));
            }
        }
        Ok(())
    }

    fn answer(&mut self, turn: &mut Turn, first: Token) -> Result<StopReason, Halt> {
        let mut token = first;
        let tokenizer = Arc::clone(&self.tokenizer);
        let mut reply = Reply::new(&tokenizer, self.think, prompt_is_thinking(&turn.request.prompt));
        let max_tokens = turn.request.max_tokens.unwrap_or(usize::MAX);
        self.phase = Phase::Decode;
        let stop = loop {
            let now = Instant::now();
            turn.first_token.get_or_insert(now);
            turn.last_token = Some(now);
            turn.generated.push(token);
            let was_thinking = reply.is_thinking();
            let (kind, text, flat) = reply.push(token);
            if was_thinking && !reply.is_thinking() {
                turn.reasoning_end = Some(now);
            }
            self.active.flat += &flat;
            self.active.pending = Some(token);
            (turn.reasoning_tokens, turn.answer_tokens) = (reply.reasoning_tokens, reply.answer_tokens);
            if !text.is_empty() {
                self.outlet.event(Event::Text { turn: turn.request.turn, kind, text });
            }
            self.decode_tok_s = turn.decode_tok_s();
            if self.eos.contains(&token) {
                break StopReason::End;
            } else if turn.generated.len() >= max_tokens {
                break StopReason::MaxTokens;
            } else if self.active.len(&self.runner) >= self.runner.context() {
                break StopReason::ContextFull;
            } else if self.poll().is_err() {
                break StopReason::Cancelled;
            }
            self.publish_if_due();
            token = self.decode(token, &turn.request.sampling, turn.seed)?;
            self.active.pending = None;
        };
        let (kind, rest) = reply.finish();
        if !rest.is_empty() {
            self.active.flat += &rest;
            self.outlet.event(Event::Text { turn: turn.request.turn, kind, text: rest });
        }
        Ok(stop)
    }

    /// Reports the turn. What could not be answered in full leaves cache and log as they were at
    /// the turn's start, but for a cancel in the middle of an answer, which keeps what was said.
    fn end_turn(&mut self, mut turn: Turn, outcome: Result<StopReason, Halt>) {
        let (stop_reason, detail, in_context) = match outcome {
            Ok(stop) => (stop, None, true),
            Err(Halt::Cancelled) => (StopReason::Cancelled, None, false),
            Err(Halt::CacheFull(why)) => (StopReason::CacheFull, Some(why), false),
            Err(Halt::ContextFull(why)) => (StopReason::ContextFull, Some(why), false),
            Err(Halt::Error(why)) => (StopReason::Error, Some(why), false),
        };
        if in_context {
            self.replies.insert(turn.request.turn, turn.generated.clone());
        } else if let Some(log) = turn.start_log.take() {
            self.go_back(&log);
        }
        self.phase = Phase::Idle;
        let log_base = self.active.log.iter().zip(&self.reported).take_while(|(a, b)| a == b).count();
        self.reported.clone_from(&self.active.log);
        let report = TurnReport {
            turn: turn.request.turn,
            stop_reason,
            detail,
            prompt_tokens: turn.prompt_tokens,
            reused_tokens: turn.reused,
            answer_tokens: turn.answer_tokens,
            reasoning_tokens: turn.reasoning_tokens,
            ttft_ms: turn.first_token.map(|t| ms(t - turn.started)),
            prefill_tok_s: turn.prefill_tok_s(),
            decode_tok_s: turn.decode_tok_s(),
            reasoning_ms: turn.reasoning_end.zip(turn.first_token).map(|(end, first)| ms(end - first)),
            seed: turn.seed,
            sampling: turn.request.sampling,
            eviction: self.eviction,
            kv: kv_stats(&self.runner, &self.active),
            log_base,
            log: self.active.log[log_base..].to_vec(),
            generated: turn.generated,
            pending: Some(self.active.pending),
            in_context,
        };
        self.publish();
        self.outlet.event(Event::TurnDone(Box::new(report)));
    }

    /// Back to the state before the turn: the checkpoint, or where it had to be given up, the log
    /// of the turn's start fed again.
    fn go_back(&mut self, start_log: &[LogEntry]) {
        if let Some(end) = self.prompt_end.take() {
            self.runner.release(end.seq);
        }
        match self.before.take() {
            Some(before) => self.replace_active(before),
            None if self.active.log == start_log => {}
            None => {
                // The cancel that may have ended the turn is not meant for this.
                self.cancel = false;
                self.feed_again(start_log);
            }
        }
        if let Err(error) = self.follow_eviction() {
            self.outlet.notice(format!("eviction stays as it was: {error}"));
        }
    }
}

impl Turn {
    fn prefill_tok_s(&self) -> Option<f64> {
        let seconds = self.prefill_time.as_secs_f64();
        (seconds > 0.0).then(|| self.prefilled as f64 / seconds)
    }

    fn decode_tok_s(&self) -> Option<f64> {
        let (first, last) = self.first_token.zip(self.last_token)?;
        let seconds = (last - first).as_secs_f64();
        (seconds > 0.0).then(|| (self.generated.len() - 1) as f64 / seconds)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Whether the generation prompt has opened a think block and left it open.
fn prompt_is_thinking(prompt: &[Piece]) -> bool {
    prompt.iter().rev().find_map(|piece| match piece {
        Piece::Control(literal) if literal == "<think>" => Some(true),
        Piece::Control(literal) if literal == "</think>" => Some(false),
        Piece::Control(_) | Piece::Reply { .. } => Some(false),
        Piece::Text(_) => None,
    }) == Some(true)
}

/// 32 bits: easy to type again, and exact in JSON.
fn random_seed() -> u64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) as u64,
        Err(_) => std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u32 as u64),
    }
}
