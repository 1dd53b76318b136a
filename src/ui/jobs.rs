//! Background threads for work that may wait for a disk. Each job sends back one answer.

use super::event::AppEvent;
use super::state::Level;
use std::io;
use std::sync::mpsc::{Sender, channel};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Job<A> = Box<dyn FnOnce() -> A + Send>;

/// A handle that starts jobs.
#[derive(Debug)]
pub struct Jobs<A> {
    inbox: Sender<Job<A>>,
    answers: UnboundedSender<A>,
}

impl<A> Clone for Jobs<A> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), answers: self.answers.clone() }
    }
}

impl<A: From<AppEvent> + Send + 'static> Jobs<A> {
    /// Starts the thread. Answers come in the order in which jobs end.
    pub fn start() -> io::Result<(Self, UnboundedReceiver<A>)> {
        let (inbox, jobs) = channel::<Job<A>>();
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
    pub fn in_order(&self, job: impl FnOnce() -> A + Send + 'static) {
        if self.inbox.send(Box::new(job)).is_err() {
            self.failed("the thread that reads and writes files has ended");
        }
    }

    /// Runs `job` on a thread of its own.
    pub fn beside(&self, job: impl FnOnce() -> AppEvent + Send + 'static) {
        let answers = self.answers.clone();
        let work = move || drop(answers.send(job().into()));
        if let Err(error) = std::thread::Builder::new().name("look up".into()).spawn(work) {
            self.failed(&format!("no thread could be started: {error}"));
        }
    }

    fn failed(&self, why: &str) {
        let _ = self.answers.send(AppEvent::Said(Level::Error, why.to_owned()).into());
    }
}
