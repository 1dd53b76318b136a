//! `update` takes an event, changes the state and returns effects, which collect in
//! [`App::effects`] meanwhile. Pure; the time is part of the state. Keys ([`keys`]) become actions,
//! which [`perform`] carries out, with [`commands`](super::commands) and a file for each topic:
//! [`turns`], [`files`], [`stop`].

pub mod completion;
mod count;
mod engine;
pub mod files;
mod keys;
pub mod perform;
pub mod shell;
pub mod stop;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_commands;
#[cfg(test)]
mod tests_daily;
#[cfg(test)]
mod tests_texts;
#[cfg(test)]
mod tests_waiting;
pub mod texts;
pub mod turns;
mod vim_keys;

use super::commands::{command, compact, compare, models, search, sessions, train};
use super::effect::Effect;
use super::event::{AppEvent, Asked};
use super::overlay::{inspect, question::Question};
use super::state::{App, Loading, Restore, SPINNER_MS};
use super::theme::{AUTO, Background};
use crate::chat::session::Moved;
use crate::protocol::Event;

/// Handles an event that came in at `now_ms` on the clock of [`App::now_ms`].
pub fn update_at(app: &mut App, now_ms: u64, event: AppEvent) -> Vec<Effect> {
    app.now_ms = now_ms;
    update(app, event)
}

/// Handles one event.
pub fn update(app: &mut App, event: AppEvent) -> Vec<Effect> {
    handle(app, event);
    app.expire_notice();
    turns::return_unsent(app);
    count::unsent(app);
    engine::ask_presence(app);
    train::load_when_idle(app);
    std::mem::take(&mut app.effects)
}

fn handle(app: &mut App, event: AppEvent) {
    match event {
        AppEvent::Key(key) => keys::key(app, key),
        AppEvent::Paste(text) => keys::paste(app, &text),
        AppEvent::Burst(text) => keys::burst(app, &text),
        AppEvent::Mouse(mouse) => keys::mouse(app, mouse),
        AppEvent::Resize(columns, rows) => app.size = (columns, rows),
        AppEvent::Tick => keys::tick(app),
        AppEvent::Engine(event) => engine::event(app, event),
        AppEvent::Snapshot(snapshot) => engine::snapshot(app, snapshot),
        AppEvent::Progress(progress) => {
            if let Some(loading) = &mut app.engine.loading {
                loading.downloaded |= matches!(progress, Event::Downloading(_));
                loading.progress = Some(progress);
            }
        }
        AppEvent::LoadBegan(name) => app.engine.loading = Some(Loading::new(&name)),
        AppEvent::ModelReady(info) => engine::ready(app, info),
        AppEvent::LoadFailed(error) => engine::load_failed(app, &error),
        AppEvent::NotAsked { what, why } => not_asked(app, what, why.as_deref()),
        AppEvent::EngineEnded => engine::failed(app, "its thread has ended"),
        AppEvent::History(entries) => app.history.add_before(entries),
        AppEvent::Line(line) => keys::line(app, &line),
        AppEvent::Printed => {
            app.notice = None;
            if app.overlay::<Question>().is_none() {
                app.overlays.clear();
            }
        }
        AppEvent::Background(background) => set_background(app, background),
        AppEvent::Restored => app.session.restore = Restore::Done,
        AppEvent::Leaving => {
            let unsent = app.input.take();
            for text in app.aside.take().into_iter().chain([unsent]) {
                app.history.push(&text);
            }
        }
        AppEvent::Edited(Ok(text)) => {
            app.input.set(text.strip_suffix('\n').unwrap_or(&text));
            completion::input_changed(app);
        }
        AppEvent::Edited(Err(error)) => app.error(error),
        AppEvent::Copied { what, sent: true } => app.info(format!("{what}: sent to the terminal's clipboard")),
        AppEvent::Copied { what, sent: false } => app.info(format!("{what}: copied")),
        AppEvent::Sessions(entries) => sessions::listed(app, entries),
        AppEvent::Ran { id, result } => shell::ran(app, id, result),
        AppEvent::Searched(result) => search::found(app, *result),
        AppEvent::Attached { typed, read } => keys::attached(app, &typed, read),
        AppEvent::KnownModels { known, used } => (app.models, app.used_models) = (known, used),
        AppEvent::Trained(report) => train::reported(app, report),
        AppEvent::Models(entries) => models::listed(app, entries),
        AppEvent::Opened(opened) => files::opened(app, *opened),
        AppEvent::OpenNeedsModel { which, reference } => files::open_needs_model(app, which, reference),
        AppEvent::OpenLacksModel { which, model, why } => files::open_lacks_model(app, which, &model, &why),
        AppEvent::SessionBegan(session) => files::began(app, session),
        AppEvent::NewConversation(session) => files::began_new(app, session),
        AppEvent::Compacted { session, continues, summary } => compact::began(app, session, continues, *summary),
        AppEvent::SessionMoved(Moved { from, to }) => files::moved(app, &from, to),
        AppEvent::Opening(reads) => (app.opening, app.resuming) = (reads, true),
        AppEvent::NotOpened(level, why) => files::not_opened(app, level, &why),
        AppEvent::NotSaved { why, then } => {
            (app.opening, app.resuming) = (false, false);
            files::ask_leave(app, &why, then);
        }
        AppEvent::Exists { path, export } => files::ask_overwrite(app, path, export),
        AppEvent::Said(level, text) => app.say(level, text),
        AppEvent::CommandFailed(name, why) => command::failed(app, name, &why),
    }
}

/// Says why something did not reach the engine.
fn not_asked(app: &mut App, what: Asked, why: Option<&str>) {
    let stopped = why.unwrap_or("stopped");
    match what {
        Asked::Aside { dense: false } => compact::failed(app, stopped),
        Asked::Aside { dense: true } => compare::failed(app, stopped),
        Asked::Turn(turn) => turns::failed(app, turn, why.unwrap_or("stopped before the answer began")),
        Asked::Recall => inspect::recalled(app, Err(stopped.to_owned())),
        Asked::Rebuild => engine::rebuilt(app, true, app.tokens()),
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
        let works = self.is_busy() || self.engine.loading.is_some() || self.shell.running.is_some();
        let spinner = works.then_some(self.now_ms + SPINNER_MS);
        let rows = self.feed.behind.then_some(self.now_ms);
        [self.burst.due_at(), notice, preparing, spinner, rows, count::due_at(self), engine::presence_due_at(self)]
            .into_iter()
            .flatten()
            .min()
    }
}
