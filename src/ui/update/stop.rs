//! Esc and Ctrl+C.

use super::{Effect, files, turns};
use crate::protocol::Command;
use crate::ui::action::Action;
use crate::ui::state::{About, App, Level, Loading, Progress};
use crate::ui::text::clean_line;

/// Closes the completion list, takes back a queued message, stops what runs, or closes an overlay, in this order.
pub fn stop_or_close(app: &mut App) -> Vec<Effect> {
    let asked = app.asked();
    app.notice = None;
    if app.completion.take().is_some() {
        return Vec::new();
    }
    if app.aside.is_some() {
        // The draft set aside returns.
        app.input.take();
        return Vec::new();
    }
    if turns::unqueue(app) {
        return Vec::new();
    }
    if app.is_busy() {
        return stop(app);
    }
    if app.overlays.pop().is_some() {
        return Vec::new();
    }
    if app.engine.loading.is_some() {
        return stop_loading(app, asked, Action::Stop);
    }
    if app.editing.take().is_some() {
        app.input.take();
    } else if app.feed.selected.is_some() {
        app.feed.selected = None;
    } else {
        app.feed.follow();
    }
    Vec::new()
}

/// Stops what runs, else clears the draft, else stops loading or quits at the second press.
pub fn interrupt(app: &mut App) -> Vec<Effect> {
    if app.is_busy() {
        return stop(app);
    }
    if !app.input.is_empty() {
        let draft = app.input.take();
        app.history.push(&draft);
        app.editing = None;
        app.completion = None;
        let undo = app.setup.keymap.key_of(Action::Undo);
        app.say(Level::Info, format!("cleared; {undo} brings it back"));
        return Vec::new();
    }
    let asked = app.asked();
    if app.engine.loading.is_some() {
        return stop_loading(app, asked, Action::Interrupt);
    }
    if asked == About::Quit {
        return vec![Effect::Quit];
    }
    let key = app.setup.keymap.key_of(Action::Interrupt);
    app.say_about(About::Quit, Level::Info, format!("press {key} again to quit"));
    Vec::new()
}

/// Stops the running answer or rebuild, or cancels opening a conversation.
fn stop(app: &mut App) -> Vec<Effect> {
    if app.opening {
        return files::stop_opening(app);
    }
    if let Some(turn) = &mut app.turn {
        turn.stopping = true;
    }
    vec![Effect::Engine(Command::Cancel)]
}

/// Stops the loading of a model at the second press.
fn stop_loading(app: &mut App, asked: About, key: Action) -> Vec<Effect> {
    let Some(loading) = &app.engine.loading else { return Vec::new() };
    let name = clean_line(&loading.name);
    if asked != About::StopLoading {
        let key = app.setup.keymap.key_of(key);
        app.say_about(About::StopLoading, Level::Info, format!("press {key} again to stop loading {name}"));
        return Vec::new();
    }
    let text = match &loading {
        Loading { progress: Some(Progress::Download(_)), .. } => {
            format!("the download of {name} stopped; the partial file is kept, and /model {name} goes on with it")
        }
        _ if app.engine.info.is_some() => format!("loading {name} stopped"),
        _ => format!("loading {name} stopped; a message loads it again, /model NAME another"),
    };
    app.resuming &= loading.then_open.is_none();
    app.engine.loading = None;
    if app.engine.info.is_some() {
        app.engine.chosen.clone_from(&app.engine.loaded);
    }
    app.say(Level::Info, text);
    vec![Effect::CancelLoad]
}
