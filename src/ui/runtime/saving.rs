//! Saves records of the conversation and the input history, and everything that is left at exit.

use super::Runtime;
use crate::protocol::Command;
use crate::ui::ExitKind;
use crate::ui::event::AppEvent;
use std::time::Duration;

/// Longest wait at exit for the running answer to stop.
const LEAVE: Duration = Duration::from_millis(1500);

impl Runtime {
    /// Appends what was typed to the history's file.
    pub(super) fn remember(&mut self) {
        for entry in self.app.history.take_new() {
            let history = self.history.clone();
            self.sessions.worker.write(move || {
                history.append(&entry);
                None
            });
        }
    }

    /// Stops and saves the running turn, and keeps the unsent text in the history.
    pub(in crate::ui) async fn leave(&mut self) {
        if self.app.turn.is_some() {
            for event in self.send(Command::Cancel) {
                self.handle(event);
            }
            let until = tokio::time::Instant::now() + LEAVE;
            while self.app.turn.is_some()
                && let Some(engine) = &mut self.current
                && let Ok(Some(response)) = tokio::time::timeout_at(until, engine.events.recv()).await
            {
                self.handle(AppEvent::Engine(response.event));
            }
        }
        self.handle(AppEvent::Leaving);
        let changes = self.app.chat.take_changes();
        self.sessions.record(&self.app.chat, changes);
        let history = self.history.clone();
        self.sessions.worker.write(move || {
            history.shorten();
            None
        });
        if let Some(line) = self.sessions.leave(&mut self.outcomes).await {
            self.exit = Some(ExitKind::NotSaved(line));
        }
        (self.current, self.next, self.training) = (None, None, None);
    }
}
