//! Work that may wait for a disk or a device, off the screen's thread: one [`Answer`] comes back for each job.

use super::sessions::Read;
use super::state::Level;
use super::update::AppEvent;
use std::io;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The result of a job.
#[derive(Debug)]
pub enum Answer {
    Events(Vec<AppEvent>),
    /// A saved conversation was read, or could not be.
    Read(Box<Read>),
}

/// Results, in the order in which the jobs end.
pub type Answers = UnboundedReceiver<Answer>;

type Job = Box<dyn FnOnce() -> Answer + Send>;

/// Where jobs are handed over.
#[derive(Clone, Debug)]
pub struct Jobs {
    inbox: Sender<Job>,
    answers: UnboundedSender<Answer>,
}

impl Jobs {
    pub fn start() -> io::Result<(Self, Answers)> {
        let (inbox, jobs) = channel::<Job>();
        let (answers, receiver) = unbounded_channel();
        let send = answers.clone();
        std::thread::Builder::new().name("files".into()).spawn(move || {
            for job in jobs {
                let _ = send.send(job());
            }
        })?;
        Ok((Self { inbox, answers }, receiver))
    }

    /// Runs `job` after those handed over before it.
    pub fn in_order(&self, job: impl FnOnce() -> Answer + Send + 'static) {
        if self.inbox.send(Box::new(job)).is_err() {
            self.failed("the thread that reads and writes files has ended");
        }
    }

    /// Runs `job` on a thread of its own.
    pub fn beside(&self, job: impl FnOnce() -> AppEvent + Send + 'static) {
        let answers = self.answers.clone();
        let work = move || drop(answers.send(Answer::Events(vec![job()])));
        if let Err(error) = std::thread::Builder::new().name("look up".into()).spawn(work) {
            self.failed(&format!("no thread could be started: {error}"));
        }
    }

    fn failed(&self, why: &str) {
        let _ = self.answers.send(Answer::Events(vec![AppEvent::Said(Level::Error, why.to_owned())]));
    }
}
