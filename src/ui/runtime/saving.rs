//! Saves records of the conversation and the input history, and everything that is left at exit.

use super::{Runtime, receive};
use crate::chat::session::Written;
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
            self.sessions.writer.remember(entry);
        }
    }

    /// Handles the result of a write to a session file.
    pub(in crate::ui) fn written(&mut self, written: Written) {
        for event in self.sessions.written(&self.app, written) {
            self.handle(event);
        }
    }

    /// Stops and saves the running turn, and keeps the draft in the history.
    pub(in crate::ui) async fn leave(&mut self) {
        if self.app.turn.is_some() {
            for event in self.send(Command::Cancel) {
                self.handle(event);
            }
            let until = tokio::time::Instant::now() + LEAVE;
            while self.app.turn.is_some() {
                let events = self.current.as_mut().map(|e| &mut e.events);
                match tokio::time::timeout_at(until, receive(events)).await {
                    Ok(Some(event)) => self.handle(AppEvent::Engine(event)),
                    _ => break,
                }
            }
        }
        self.handle(AppEvent::Leaving);
        let changes = self.app.chat.take_changes();
        self.sessions.record(&self.app.chat, changes);
        if let Some(line) = self.sessions.leave().await {
            self.exit = Some(ExitKind::NotSaved(line));
        }
        (self.current, self.next) = (None, None);
    }
}
