//! Work that may wait for a disk or a template, off the UI thread. Each piece sends back one typed
//! outcome.

use super::effect::Which;
use super::event::AppEvent;
use super::state::Level;
use crate::chat::session::{Loaded, Session, Written};
use crate::protocol::{ModelReference, Piece};
use anyhow::Result;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

/// The result of a piece of work.
#[derive(Debug)]
pub enum Outcome {
    Events(Vec<AppEvent>),
    /// A saved conversation was read, or could not be.
    Read(Box<Read>),
    /// Records were written to a session's file, or could not be.
    Written(Written),
    Rendered(Rendered),
    /// A session of this id that cannot be written was copied elsewhere.
    Rescued(String, Result<PathBuf>),
    /// All writes before this one are done.
    Ended,
}

/// A saved conversation that was read, or why it could not be.
#[derive(Debug)]
pub struct Read {
    /// The number of the job that read it.
    pub id: u64,
    pub which: Which,
    /// Open it with the loaded model, even if another model held the conversation.
    pub with_current: bool,
    pub result: Result<(Session, Loaded), String>,
    /// A reference to the conversation's model, or why it cannot be loaded.
    pub model: Option<Result<ModelReference, String>>,
    /// Whether there is a file of its cache.
    pub cached: bool,
}

impl Read {
    /// Returns a reference to the conversation's model, if it can be loaded.
    pub fn model(&self) -> Option<&ModelReference> {
        self.model.as_ref()?.as_ref().ok()
    }
}

/// A finished rendering. `id` tells whether it is still wanted.
#[derive(Debug)]
pub struct Rendered {
    pub id: u64,
    pub result: Result<Vec<Piece>>,
    /// The last message by itself, if that was wanted.
    pub alone: Vec<Piece>,
}

/// Outcomes, in the order in which the work ends.
pub type Outcomes = UnboundedReceiver<Outcome>;
type Job = Box<dyn FnOnce() -> Option<Outcome> + Send>;

/// A handle that hands over work.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Lists, reads and exports, in order.
    files: Sender<Job>,
    /// Records and what was typed, in order. They do not wait for `files`.
    writes: Sender<Job>,
    outcomes: UnboundedSender<Outcome>,
}

impl Worker {
    pub fn start() -> io::Result<(Self, Outcomes)> {
        let (outcomes, receiver) = unbounded_channel();
        let lane = |name: &str| {
            let (sender, jobs) = channel::<Job>();
            let outcomes = outcomes.clone();
            let work = move || jobs.into_iter().filter_map(|job| job()).for_each(|o| drop(outcomes.send(o)));
            std::thread::Builder::new().name(name.into()).spawn(work).map(|_| sender)
        };
        let (files, writes) = (lane("files")?, lane("writer")?);
        Ok((Self { files, writes, outcomes }, receiver))
    }

    /// Runs `job` after those handed over before it.
    pub fn in_order(&self, job: impl FnOnce() -> Outcome + Send + 'static) {
        self.push(&self.files, Box::new(move || Some(job())));
    }

    /// Writes after what was to be written before.
    pub fn write(&self, job: impl FnOnce() -> Option<Outcome> + Send + 'static) {
        self.push(&self.writes, Box::new(job));
    }

    /// Where the lane's thread has ended, the job runs on this one.
    fn push(&self, lane: &Sender<Job>, job: Job) {
        if let Err(job) = lane.send(job)
            && let Some(outcome) = job.0()
        {
            self.send(outcome);
        }
    }

    /// Runs `job` on a thread of its own.
    pub fn spawn(&self, name: &str, job: impl FnOnce() -> Outcome + Send + 'static) -> io::Result<()> {
        let outcomes = self.outcomes.clone();
        let work = move || drop(outcomes.send(job()));
        std::thread::Builder::new().name(name.into()).spawn(work).map(|_| ())
    }

    /// Looks something up on a thread of its own.
    pub fn beside(&self, job: impl FnOnce() -> AppEvent + Send + 'static) {
        if let Err(error) = self.spawn("look up", || Outcome::Events(vec![job()])) {
            self.send(Outcome::Events(vec![AppEvent::Said(
                Level::Error,
                format!("no thread could be started: {error}"),
            )]));
        }
    }

    pub fn send(&self, outcome: Outcome) {
        let _ = self.outcomes.send(outcome);
    }

    /// Waits until all queued writes are done, for at most `limit`.
    pub async fn end(&self, outcomes: &mut Outcomes, limit: Duration) {
        self.write(|| Some(Outcome::Ended));
        let until = Instant::now() + limit;
        while !matches!(timeout_at(until, outcomes.recv()).await, Ok(Some(Outcome::Ended) | None) | Err(_)) {}
    }
}
