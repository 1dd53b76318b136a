//! Exit: writes pending records in bounded time, or copies them to the folder for temporary files.

use super::Sessions;
use crate::chat::session::Session;
use crate::ui::text::clean_line;
use crate::ui::worker::{Outcome, Outcomes, Worker};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Longest time for the writes, and for the copies.
const LEAVE: Duration = Duration::from_millis(1500);
const RESCUE: Duration = Duration::from_secs(1);

impl Sessions {
    /// Writes pending records in bounded time. Sessions that cannot be written are copied to the
    /// folder for temporary files; the returned line names the copies.
    pub async fn leave(&mut self, outcomes: &mut Outcomes) -> Option<String> {
        let until = Instant::now() + LEAVE;
        // Running writes first; then every session is tried once.
        let mut why = self.come_back(outcomes, until).await;
        for write in std::iter::once(&mut self.session).chain(&mut self.left).filter_map(Session::begin_write) {
            self.worker.write(move || Some(Outcome::Written(write.run())));
        }
        why = self.come_back(outcomes, until).await.or(why);
        self.saved = self.session.is_saved().then(|| self.session.id().to_owned());
        let current = std::mem::replace(&mut self.session, Session::unsaved());
        let behind = std::iter::once(current).chain(self.left.drain(..)).filter(Session::is_behind).collect();
        let lines = rescue(&self.worker, outcomes, behind).await;
        self.worker.end(outcomes, LEAVE).await;
        let why = why.map_or_else(String::new, |why| format!("{why}; "));
        (!lines.is_empty()).then(|| clean_line(&format!("{why}{}", lines.join("; "))))
    }

    /// Waits until no write is running. Returns the error of a failed write.
    async fn come_back(&mut self, outcomes: &mut Outcomes, until: Instant) -> Option<String> {
        let mut why = None;
        while self.session.is_writing() || self.left.iter().any(Session::is_writing) {
            match timeout_at(until, outcomes.recv()).await {
                Ok(Some(Outcome::Written(written))) => {
                    why = self.take_outcome(written).err().map(|e| format!("{e:#}")).or(why);
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Some("the disk does not answer".to_owned()),
            }
        }
        why
    }
}

/// Copies sessions to the folder for temporary files in bounded time. Returns one line for each.
async fn rescue(worker: &Worker, outcomes: &mut Outcomes, sessions: Vec<Session>) -> Vec<String> {
    let mut waiting: Vec<String> = sessions.iter().map(|s| s.id().to_owned()).collect();
    for session in sessions {
        let _ = worker.spawn("rescue", move || Outcome::Rescued(session.id().to_owned(), session.rescue()));
    }
    let until = Instant::now() + RESCUE;
    let mut lines = Vec::new();
    while !waiting.is_empty()
        && let Ok(Some(outcome)) = timeout_at(until, outcomes.recv()).await
    {
        let Outcome::Rescued(id, result) = outcome else { continue };
        lines.push(match result {
            Ok(path) => {
                let path = path.display();
                format!("conversation {id} is kept in {path}; dmschat --resume {path} continues it")
            }
            Err(error) => format!("conversation {id} is lost: {error:#}"),
        });
        waiting.retain(|other| *other != id);
    }
    let folder = std::env::temp_dir();
    let lost = |id| format!("conversation {id} may be lost: {} does not answer either", folder.display());
    lines.extend(waiting.into_iter().map(lost));
    lines
}
