//! `update` takes an event, changes the state and returns effects. Pure; the time is part of the state. Keys and lists
//! ([`keys`], [`overlay`]) return intents; [`perform`] carries them out, with a file for each topic: [`commands`],
//! [`turns`], [`files`], [`models`], [`stop`].

mod chains;
mod commands;
mod compact;
mod compare;
mod completion;
mod count;
mod engine;
mod field;
mod files;
mod find;
mod inspect;
mod keys;
mod models;
mod overlay;
mod perform;
mod recall;
mod stop;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_commands;
#[cfg(test)]
mod tests_texts;
#[cfg(test)]
mod tests_waiting;
mod texts;
mod turns;
mod twin;

pub use compact::{QUESTION, max_tokens};
pub use recall::{cue_bytes, question};

use super::effect::{Effect, Store, Which};
use super::event::{AppEvent, Opened};
use super::feed::{Local, LocalKind};
use super::intent::Intent;
use super::state::{App, Level, Loading, Overlay, SPINNER_MS};
use super::theme::{AUTO, Background};
use crate::chat::Change;
use crate::protocol::{DENSE_TURN, FORK_TURN};

/// Handles an event that came in at `now_ms` on the clock of [`App::now_ms`].
pub fn update_at(app: &mut App, now_ms: u64, event: AppEvent) -> Vec<Effect> {
    app.now_ms = now_ms;
    update(app, event)
}

/// Returns the history entries added since the last call, to be written to its file.
pub fn take_typed(app: &mut App) -> Vec<String> {
    app.history.take_new()
}

/// Returns the changes of the conversation since the last call, to be written to its file.
pub fn take_changes(app: &mut App) -> Vec<Change> {
    app.chat.take_changes()
}

/// Handles one event.
pub fn update(app: &mut App, event: AppEvent) -> Vec<Effect> {
    let mut effects = handle(app, event);
    app.expire_notice();
    turns::return_draft(app);
    effects.extend(count::draft(app));
    effects.extend(engine::ask_presence(app));
    effects
}

/// Reads intents and carries them out in order.
fn perform_all(app: &mut App, read: impl FnOnce(&mut App) -> Vec<Intent>) -> Vec<Effect> {
    let intents = read(app);
    intents.into_iter().flat_map(|intent| perform::perform(app, intent)).collect()
}

fn handle(app: &mut App, event: AppEvent) -> Vec<Effect> {
    match event {
        AppEvent::Key(key) => perform_all(app, |app| keys::key(app, key)),
        AppEvent::Paste(text) => {
            keys::paste(app, &text);
            Vec::new()
        }
        AppEvent::Mouse(mouse) => {
            keys::mouse(app, mouse);
            Vec::new()
        }
        AppEvent::Resize(columns, rows) => {
            app.size = (columns, rows);
            Vec::new()
        }
        AppEvent::Tick => perform_all(app, |app| keys::tick(app).into_iter().collect()),
        AppEvent::Engine(event) => engine::event(app, event),
        AppEvent::Snapshot(snapshot) => engine::snapshot(app, snapshot),
        AppEvent::Progress(progress) => {
            if let Some(loading) = &mut app.engine.loading {
                loading.progress = Some(progress);
            }
            Vec::new()
        }
        AppEvent::LoadBegan(name) => {
            app.engine.loading = Some(Loading::new(&name));
            Vec::new()
        }
        AppEvent::ModelReady(info) => engine::ready(app, info),
        AppEvent::LoadFailed(error) => engine::load_failed(app, &error),
        AppEvent::GenerateFailed { turn: FORK_TURN, error } => compact::failed(app, &error),
        AppEvent::GenerateFailed { turn: DENSE_TURN, error } => compare::failed(app, &error),
        AppEvent::GenerateFailed { turn, error } => turns::failed(app, turn, &error),
        AppEvent::Withdrawn { turn: FORK_TURN } => compact::failed(app, "stopped"),
        AppEvent::Withdrawn { turn: DENSE_TURN } => compare::failed(app, "stopped"),
        AppEvent::Withdrawn { turn } => turns::withdrawn(app, turn),
        AppEvent::History(entries) => {
            app.history.add_before(entries);
            Vec::new()
        }
        AppEvent::Line(line) => perform_all(app, |app| keys::line(app, &line)),
        AppEvent::Printed => {
            app.notice = None;
            if !matches!(app.overlays.last(), Some(Overlay::Confirm(_))) {
                app.overlays.clear();
            }
            Vec::new()
        }
        AppEvent::Background(background) => {
            set_background(app, background);
            Vec::new()
        }
        AppEvent::Restored => {
            app.session.unrestored = false;
            Vec::new()
        }
        AppEvent::NotRestored => {
            (app.session.unrestored, app.engine.restoring) = (true, false);
            Vec::new()
        }
        AppEvent::Leaving => {
            let draft = app.input.take();
            for text in app.aside.take().into_iter().chain([draft]) {
                app.history.push(&text);
            }
            Vec::new()
        }
        AppEvent::Edited(Ok(text)) => {
            app.input.set(text.strip_suffix('\n').unwrap_or(&text));
            completion::input_changed(app);
            Vec::new()
        }
        AppEvent::Edited(Err(error)) => said(app, Level::Error, error),
        AppEvent::Copied { what, sent } => {
            let text =
                if sent { format!("{what}: sent to the terminal's clipboard") } else { format!("{what}: copied") };
            said(app, Level::Info, text)
        }
        AppEvent::Sessions(entries) => files::listed(app, entries),
        AppEvent::Attached { typed, read } => {
            perform_all(app, |app| keys::attached(app, &typed, read).into_iter().collect())
        }
        AppEvent::KnownModels { cached, used } => {
            (app.cached_models, app.used_models) = (cached, used);
            Vec::new()
        }
        AppEvent::Models(entries) => models::listed(app, entries),
        AppEvent::Opened(opened) => files::opened(app, *opened),
        AppEvent::OpenNeedsModel { which, reference } => files::open_needs_model(app, which, reference),
        AppEvent::OpenLacksModel { which, model, why } => files::open_lacks_model(app, which, &model, &why),
        AppEvent::SessionBegan { id, date } => {
            app.session.id = Some(id);
            app.date = date;
            Vec::new()
        }
        AppEvent::NewConversation { id, date } => files::began_new(app, id, date),
        AppEvent::Compacted { id, date, continues, summary } => compact::began(app, id, date, continues, *summary),
        AppEvent::SessionMoved { from, to } => files::moved(app, &from, to),
        AppEvent::Opening(reads) => {
            (app.opening, app.resuming) = (reads, true);
            Vec::new()
        }
        AppEvent::NotOpened(level, why) => files::not_opened(app, level, &why),
        AppEvent::NotSaved { why, then } => {
            (app.opening, app.resuming) = (false, false);
            files::ask_leave(app, &why, then)
        }
        AppEvent::Exists { path, export } => files::ask_overwrite(app, path, export),
        AppEvent::Said(level, text) => said(app, level, text),
    }
}

/// Applies the terminal's background. A theme chosen by the user stays.
fn set_background(app: &mut App, background: Background) {
    let themes = &mut app.setup.themes;
    themes.background = background;
    if Background::named(&app.theme.name).is_some_and(|now| now != background)
        && let Ok(theme) = themes.load(AUTO)
    {
        app.set_theme(theme);
    }
}

impl App {
    /// Returns when an [`AppEvent::Tick`] is needed, on the clock of [`App::now_ms`].
    pub fn wants_tick(&self) -> Option<u64> {
        let notice = self.notice.as_ref().and_then(|n| n.until_ms);
        let preparing = self.turn.as_ref().and_then(|t| t.shows_preparing_at()).filter(|at| *at > self.now_ms);
        let spinner = (self.is_busy() || self.engine.loading.is_some()).then_some(self.now_ms + SPINNER_MS);
        let rows = self.feed.behind.then_some(self.now_ms);
        [self.burst.due_at(), notice, preparing, spinner, rows, count::due_at(self), engine::presence_due_at(self)]
            .into_iter()
            .flatten()
            .min()
    }
}

fn said(app: &mut App, level: Level, text: String) -> Vec<Effect> {
    app.say(level, text);
    Vec::new()
}

/// Adds a line that the user asked for, and scrolls it into view.
fn result(app: &mut App, kind: LocalKind, text: impl Into<String>) -> Vec<Effect> {
    app.feed.push_result(&app.chat, Local::new(app.chat.head(), kind, text));
    Vec::new()
}

/// Adds a line of the program to the conversation.
fn note(app: &mut App, kind: LocalKind, text: impl Into<String>) -> Vec<Effect> {
    app.feed.push_local(&app.chat, kind, text);
    Vec::new()
}
