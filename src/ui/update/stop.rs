//! Esc and Ctrl+C.

use super::{files, shell, turns};
use crate::protocol::{Command, Event};
use crate::ui::action::Action;
use crate::ui::effect::Effect;
use crate::ui::state::{About, App, Level};
use crate::ui::text::clean_line;

/// Closes the completion list, takes back a queued message, stops what runs, or closes an overlay,
/// in this order.
pub fn stop_or_close(app: &mut App) {
    let asked = app.asked();
    app.notice = None;
    if app.completion.take().is_some() {
    } else if app.aside.is_some() {
        // The unsent text set aside returns.
        app.input.take();
    } else if shell::stop(app) || turns::unqueue(app) {
    } else if app.is_busy() {
        stop(app);
    } else if app.overlays.pop().is_some() {
    } else if app.engine.loading.is_some() {
        stop_loading(app, asked, Action::Stop);
    } else if app.editing.take().is_some() {
        app.input.take();
    } else if app.feed.selected.take().is_none() {
        app.feed.follow();
    }
}

/// Stops what runs, else clears the unsent text, else stops loading or quits at the second press.
pub fn interrupt(app: &mut App) {
    let asked = app.asked();
    if shell::stop(app) {
    } else if app.is_busy() {
        stop(app);
    } else if !app.input.is_empty() {
        let unsent = app.input.take();
        app.history.push(&unsent);
        app.editing = None;
        app.completion = None;
        app.info(format!("cleared; {} brings it back", app.key(Action::Undo)));
    } else if app.engine.loading.is_some() {
        stop_loading(app, asked, Action::Interrupt);
    } else if asked == About::Quit {
        app.emit(Effect::Quit);
    } else {
        let key = app.key(Action::Interrupt);
        app.say_about(About::Quit, Level::Info, format!("press {key} again to quit"));
    }
}

/// Stops the running answer or rebuild, or cancels opening a conversation.
fn stop(app: &mut App) {
    if app.opening {
        return files::stop_opening(app);
    }
    if let Some(turn) = &mut app.turn {
        turn.stopping = true;
    }
    app.send(Command::Cancel);
}

/// Stops the loading of a model at the second press.
fn stop_loading(app: &mut App, asked: About, key: Action) {
    let Some(loading) = &app.engine.loading else { return };
    let name = clean_line(&loading.name);
    if asked != About::StopLoading {
        let key = app.key(key);
        return app.say_about(About::StopLoading, Level::Info, format!("press {key} again to stop loading {name}"));
    }
    let text = match &loading.progress {
        Some(Event::Downloading(_)) => {
            format!("the download of {name} stopped; the partial file is kept, and /model {name} resumes it")
        }
        _ if app.engine.info.is_some() => format!("loading {name} stopped"),
        _ => format!("loading {name} stopped; a message loads it again, /model NAME another"),
    };
    app.resuming &= loading.then_open.is_none();
    app.engine.loading = None;
    if app.engine.info.is_some() {
        app.engine.chosen.clone_from(&app.engine.loaded);
    }
    app.info(text);
    app.emit(Effect::CancelLoad);
}
