//! The thread that appends to session files and to the input history, so that the UI does not wait for the disk.

use super::history::HistoryFile;
use crate::chat::session::{Write, Written};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

#[derive(Debug)]
enum Job {
    Session(Write),
    History(String),
    ShortenHistory,
}

pub struct Writer {
    /// `None` once the thread was told to end.
    jobs: Option<Sender<Job>>,
    /// The result of each session's write, in order.
    pub written: UnboundedReceiver<Written>,
}

impl Writer {
    pub fn start(history: HistoryFile) -> std::io::Result<Self> {
        let (jobs, inbox) = channel();
        let (outcomes, written) = unbounded_channel();
        std::thread::Builder::new().name("writer".into()).spawn(move || {
            for job in inbox {
                match job {
                    Job::Session(write) => drop(outcomes.send(write.run())),
                    Job::History(entry) => history.append(&entry),
                    Job::ShortenHistory => history.shorten(),
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), written })
    }

    /// Queues a write. Returns it if the thread has ended.
    pub fn write(&self, write: Write) -> Result<(), Box<Write>> {
        match self.send(Job::Session(write)) {
            Some(Job::Session(write)) => Err(Box::new(write)),
            _ => Ok(()),
        }
    }

    pub fn remember(&self, entry: String) {
        self.send(Job::History(entry));
    }

    fn send(&self, job: Job) -> Option<Job> {
        match &self.jobs {
            Some(jobs) => jobs.send(job).err().map(|e| e.0),
            None => Some(job),
        }
    }

    /// Returns the next result, or `None` after `until`.
    pub async fn next(&mut self, until: Instant) -> Option<Written> {
        tokio::time::timeout_at(until, self.written.recv()).await.ok().flatten()
    }

    /// Waits until all queued work is done, for at most `limit`.
    pub async fn end(&mut self, limit: Duration) {
        self.send(Job::ShortenHistory);
        self.jobs = None;
        let until = Instant::now() + limit;
        while self.next(until).await.is_some() {}
    }
}
