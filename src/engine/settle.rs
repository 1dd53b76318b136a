//! A conversation that goes on before the far rows of its saved cache are read.
//!
//! Threads read them from the file, and the worker takes an image between two of its steps. If one
//! cannot be used, the conversation's log is replayed, as where its file cannot be loaded at all.

use super::chain::Chain;
use super::conversation::{Conversation, Job, Work};
use super::disk::{Due, not_used};
use super::loaded::Loaded;
use super::runner::{Runner, StepError};
use crate::backend::Backend;
use crate::protocol::Command;
use std::time::Duration;

/// How often the worker looks for the next image.
const POLL: Duration = Duration::from_millis(1);

impl<B: Backend> Conversation<B> {
    /// Takes the next far rows from the file, if there are some.
    pub fn load_far(&mut self, m: &mut Loaded<B>) -> Due {
        if !self.far_load.is_pending() {
            return Due::Never;
        }
        self.far_load.go_on(&mut m.runner, Duration::ZERO);
        // A prompt that is read finds out what has failed at its choice.
        if !self.far_load.has_failed() || self.job.is_none() {
            self.end_far_load(m);
        }
        if self.far_load.is_pending() && !self.far_load.has_failed() { Due::In(POLL) } else { Due::Never }
    }

    /// Waits for the far rows of the file, before something chooses among far pages, brings them
    /// near or writes them to another file. Returns false if they cannot be used: then the log is
    /// replayed first.
    pub fn settle_far(&mut self, m: &mut Loaded<B>) -> bool {
        self.far_load.wait(&mut m.runner);
        self.end_far_load(m)
    }

    /// Ends a load of far rows that has read all of them or has failed. Returns false if the
    /// conversation is or will be replayed.
    fn end_far_load(&mut self, m: &mut Loaded<B>) -> bool {
        let encodes = matches!(&self.job, Some(Job { work: Work::Answer(turn), .. }) if turn.is_encoding());
        if encodes && self.far_load.has_failed() {
            // The turn would begin in what is being replayed.
            return false;
        }
        let Some((entries, failed)) = self.far_load.end() else { return true };
        let owner = self.id();
        let Some(why) = failed else {
            self.chain.context.awaits_far = false;
            m.snapshots.far_rows_came(owner);
            return true;
        };
        m.snapshots.release_awaiting(&mut m.runner, owner);
        if !self.chain.context.awaits_far {
            return true;
        }
        let events = self.outlet.sender(None);
        events.notice(not_used(&why, self.chain.context.len(&m.runner)));
        self.disk.changed();
        self.chain.read_again(&mut m.runner, entries);
        let pending = self.chain.context.pending;
        let restore = || Job { events, cancelled: false, halt: None, work: Work::Restore { pending, load: None } };
        match self.job.take() {
            None => self.job = Some(restore()),
            Some(Job { events, work: Work::New(command), .. }) => {
                self.queue.push_front((events, command));
                self.job = Some(restore());
            }
            job => self.job = job,
        }
        false
    }

    /// Settles what a job needs before its first step.
    pub(super) fn settle_for_job(&mut self, m: &mut Loaded<B>) {
        if !self.far_load.is_pending() {
            return;
        }
        let switches = self.eviction != m.runner.cache.eviction(self.chain.context.seq);
        let needed = match self.job.as_ref().map(|job| &job.work) {
            Some(Work::New(Command::Generate(request))) => switches || request.pin.is_some(),
            Some(Work::New(Command::Restore(_))) | None => false,
            Some(Work::New(_)) => true,
            Some(_) => false,
        };
        if needed {
            self.settle_far(m);
        }
    }

    /// Runs a prefill chunk of at most `size` tokens of one of its chains, and the choice of far
    /// pages that is due after it. Returns the length of the chunk.
    pub fn feed(&mut self, m: &mut Loaded<B>, number: Option<usize>, size: usize) -> Result<usize, StepError> {
        let Some(chain) = self.chain_mut(number) else { return Ok(0) };
        let fed = chain.feed_chunk(&mut m.runner, size)?;
        if fed.chooses {
            if chain.context.awaits_far && !self.settle_far(m) {
                return Ok(0);
            }
            self.chain_mut(number).into_iter().for_each(|chain| chain.end_chunk(&mut m.runner));
        }
        Ok(fed.tokens)
    }
}

impl Chain {
    /// Starts over in an empty sequence and feeds everything again: `entries` of the log as they
    /// were, and then what followed them.
    fn read_again<B: Backend>(&mut self, runner: &mut Runner<B>, entries: usize) {
        self.restart(runner, None);
        self.replays_only(entries);
    }
}
