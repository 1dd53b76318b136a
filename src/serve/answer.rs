//! An answer that is being generated: what its client is sent.
//!
//! A task of its own receives the engine's events, so that a client that reads slowly holds no
//! slot. Dropping the [`Answer`] ends the work within a step.

use super::admission::Permit;
use super::board::Entry;
use super::metrics::seconds;
use super::shared::Shared;
use crate::protocol::{
    Ask, ChainEvent, ChainReport, ChainsRequest, EngineHandle, Event, Phase, TextKind, TokenChoice, TurnReport, count,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A part of an answer, in order.
#[derive(Debug)]
pub enum Part {
    /// The prompt fits, and its reading begins: its tokens, and those that are in the slot.
    Started {
        prompt_tokens: usize,
        cached: usize,
    },
    /// So many tokens of the prompt were read, beside those that were in the slot.
    Read(usize),
    /// What follows is of this one of several answers.
    Choice(usize),
    /// Tokens that begin in the next text, with their log-probabilities, each with the byte of the
    /// text at which it begins.
    Likely(Vec<(usize, TokenChoice)>),
    Text(TextKind, String),
    /// The answer so far was a thought.
    WasThought,
    /// One of several answers has ended.
    Ended(Box<ChainReport>),
    /// More answers were asked for than memory holds, which are these.
    TooMany(usize),
    Done(Box<TurnReport>),
    /// The engine has failed.
    Failed(String),
}

/// An answer's parts. The channel is unbounded; an answer is bounded by its tokens.
pub struct Answer {
    pub parts: UnboundedReceiver<Part>,
}

/// A slot with its right, which is given back after the slot is free.
struct Slot {
    handle: EngineHandle,
    #[expect(dead_code, reason = "held for its drop")]
    permit: Permit,
    entry: Entry,
}

/// An answer in one line of the log.
fn line(report: &TurnReport) -> String {
    let (prompt, generated) = seconds(report);
    let cached = match report.reused_tokens {
        0 => String::new(),
        n => format!(" ({} cached)", count(n)),
    };
    let ratio = report.kv.ratio.filter(|ratio| *ratio >= 1.05).map(|ratio| format!(", cache {ratio:.1}x smaller"));
    let why = report.detail.as_ref().map(|why| format!(": {why}"));
    format!(
        "{}{}: {}{cached} + {} tokens in {prompt:.1} + {generated:.1} s{}",
        report.stop_reason.name(),
        why.unwrap_or_default(),
        count(report.prompt_tokens),
        count(report.generated.len()),
        ratio.unwrap_or_default()
    )
}

/// Several answers to one prompt.
struct Several {
    n: usize,
    /// The one that the last part was of.
    current: usize,
    begun: bool,
}

impl Several {
    /// The parts that an event is, if it is about one of them.
    fn parts(&mut self, event: &Event) -> Option<Vec<Part>> {
        let before = self.current;
        let mut of = |choice: usize, part: Part| {
            self.current = choice;
            let changes = choice != before;
            Some(changes.then_some(Part::Choice(choice)).into_iter().chain([part]).collect())
        };
        match event {
            Event::Chain { event: ChainEvent::Started(n), .. } => {
                self.begun = true;
                Some((*n < self.n).then_some(Part::TooMany(*n)).into_iter().collect())
            }
            Event::Chain { event: ChainEvent::Text { chain, kind, text }, .. } => {
                of(*chain, Part::Text(*kind, text.clone()))
            }
            Event::Chain { event: ChainEvent::WasThought { chain }, .. } => of(*chain, Part::WasThought),
            Event::Chain { event: ChainEvent::Ended { chain, report, .. }, .. } => {
                of(*chain, Part::Ended(report.clone()))
            }
            Event::Likely { chain: Some(chain), tokens, .. } => of(*chain, Part::Likely(tokens.clone())),
            // The reply of the one that goes on the conversation was sent.
            Event::Text { .. } | Event::WasThought { .. } if self.begun => Some(Vec::new()),
            Event::Text { .. } | Event::WasThought { .. } => Some(vec![Part::TooMany(1)]),
            _ => None,
        }
    }
}

impl Answer {
    /// Asks the engine for `n` answers. `progress`: how much of the prompt was read is a part, too.
    pub fn begin(shared: &Arc<Shared>, permit: Permit, entry: Entry, ask: Ask, n: usize, progress: bool) -> Self {
        let chains = ChainsRequest { width: Some(n), early_stop: false, checked: false, may_equal: true };
        let slot = Slot { handle: shared.commands().ask(ask, (n > 1).then_some(chains)), permit, entry };
        let mut watched = true;
        let mut several = (n > 1).then_some(Several { n, current: 0, begun: false });
        let (send, parts) = unbounded_channel();
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            // Moves all of it into the task, not the handle alone.
            let mut slot = slot;
            loop {
                let event = tokio::select! {
                    () = send.closed() => {
                        shared.metrics.abandoned.fetch_add(1, Relaxed);
                        (shared.log)(&format!("#{}: the client hung up", slot.entry.number()));
                        return;
                    }
                    response = slot.handle.events.recv() => response.map(|response| response.event),
                    changed = slot.handle.snapshot.changed(), if watched => {
                        watched = changed.is_ok();
                        let now = slot.handle.snapshot.borrow_and_update().clone();
                        now.iter().for_each(|now| slot.entry.sees(now));
                        if let Some(Phase::Prefill { done, .. }) = now.map(|now| now.phase.clone()).filter(|_| progress) {
                            let _ = send.send(Part::Read(done));
                        }
                        continue;
                    }
                };
                if let (Some(several), Some(event)) = (&mut several, &event)
                    && let Some(parts) = several.parts(event)
                {
                    let fails = parts.iter().any(|part| matches!(part, Part::TooMany(_)));
                    if parts.into_iter().map(|part| send.send(part)).any(|sent| sent.is_err()) || fails {
                        return;
                    }
                    continue;
                }
                let part = match event {
                    Some(Event::TurnStarted { prompt_tokens, reused, .. }) => {
                        slot.entry.begins(prompt_tokens, reused);
                        Part::Started { prompt_tokens, cached: reused }
                    }
                    Some(Event::Likely { tokens, .. }) => Part::Likely(tokens),
                    Some(Event::Text { kind, text, .. }) => Part::Text(kind, text),
                    Some(Event::WasThought { .. }) => Part::WasThought,
                    Some(Event::TurnDone(report)) => Part::Done(report),
                    Some(Event::Failed(why)) => Part::Failed(why),
                    Some(Event::Notice(line)) => {
                        (shared.log)(&line);
                        continue;
                    }
                    Some(_) => continue,
                    None => Part::Failed("the engine has ended".to_owned()),
                };
                let is_last = matches!(part, Part::Done(_) | Part::Failed(_));
                if let Part::Done(report) = &part {
                    shared.metrics.answered(report);
                    (shared.log)(&format!("#{} {}", slot.entry.number(), line(report)));
                }
                if send.send(part).is_err() || is_last {
                    return;
                }
            }
        });
        Self { parts }
    }

    /// The next part. After the last one the answer failed.
    pub async fn next(&mut self) -> Part {
        self.parts.recv().await.unwrap_or_else(|| Part::Failed("the answer ended unexpectedly".to_owned()))
    }
}
