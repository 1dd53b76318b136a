//! Exit: writes pending records in bounded time, or copies them to the folder for temporary files.

use super::Sessions;
use crate::chat::session::Session;
use crate::ui::text::clean_line;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Longest time for the writes, and for the copies.
const LEAVE: Duration = Duration::from_millis(1500);
const RESCUE: Duration = Duration::from_secs(1);

impl Sessions {
    /// Writes pending records in bounded time. Sessions that cannot be written are copied to the folder for
    /// temporary files; the returned line names the copies.
    pub async fn leave(&mut self) -> Option<String> {
        let until = Instant::now() + LEAVE;
        // Running writes first; then every session is tried once.
        let mut why = self.come_back(until).await;
        for session in std::iter::once(&mut self.session).chain(&mut self.left) {
            if let Some(write) = session.begin_write() {
                let _ = self.writer.write(write);
            }
        }
        why = self.come_back(until).await.or(why);
        self.saved = self.session.is_saved().then(|| self.session.id().to_owned());
        let current = std::mem::replace(&mut self.session, Session::unsaved());
        let behind: Vec<Session> =
            std::iter::once(current).chain(self.left.drain(..)).filter(Session::is_behind).collect();
        let lines = rescue(behind).await;
        self.writer.end(LEAVE).await;
        let why = why.map_or_else(String::new, |why| format!("{why}; "));
        (!lines.is_empty()).then(|| clean_line(&format!("{why}{}", lines.join("; "))))
    }

    /// Waits until no write is running. Returns the error of a failed write.
    async fn come_back(&mut self, until: Instant) -> Option<String> {
        let mut why = None;
        while self.session.is_writing() || self.left.iter().any(Session::is_writing) {
            match self.writer.next(until).await {
                Some(written) => why = self.take_outcome(written).err().map(|e| format!("{e:#}")).or(why),
                None => return Some("the disk does not answer".to_owned()),
            }
        }
        why
    }
}

/// Copies sessions to the folder for temporary files in bounded time. Returns one line for each.
async fn rescue(sessions: Vec<Session>) -> Vec<String> {
    if sessions.is_empty() {
        return Vec::new();
    }
    let ids: Vec<String> = sessions.iter().map(|s| s.id().to_owned()).collect();
    let (send, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let work = move || {
        for session in &sessions {
            let _ = send.send((session.id().to_owned(), session.rescue()));
        }
    };
    let _ = std::thread::Builder::new().name("rescue".into()).spawn(work);
    let until = Instant::now() + RESCUE;
    let (mut lines, mut told) = (Vec::new(), HashSet::new());
    while let Ok(Some((id, result))) = tokio::time::timeout_at(until, kept.recv()).await {
        lines.push(match result {
            Ok(path) => {
                let path = path.display();
                format!("conversation {id} is kept in {path}; dmschat --resume {path} goes on with it")
            }
            Err(error) => format!("conversation {id} is lost: {error:#}"),
        });
        told.insert(id);
    }
    let folder = std::env::temp_dir();
    let lost = ids.into_iter().filter(|id| !told.contains(id));
    lines.extend(lost.map(|id| format!("conversation {id} may be lost: {} does not answer either", folder.display())));
    lines
}
