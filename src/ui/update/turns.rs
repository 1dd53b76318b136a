//! Asking, answering again, taking back, editing, and moving between branches.

use super::{Effect, Store, note};
use crate::chat::{MessageId, Role};
use crate::ui::commands as slash;
use crate::ui::feed::LocalKind;
use crate::ui::state::{ActiveTurn, App, Level};

/// Sends the input as a message, or in the place of the message being edited.
pub fn ask(app: &mut App) -> Vec<Effect> {
    if refuse_busy(app) {
        return Vec::new();
    }
    if app.engine.info.is_none() {
        match (&app.engine.failed, &app.engine.loading) {
            (None, Some(loading)) => {
                let text = format!("{} is still loading; this is sent when it is ready", loading.name);
                app.send_when_ready = true;
                app.say(Level::Info, text);
            }
            _ => app.say(Level::Error, "no model is loaded; /model NAME loads one"),
        }
        return Vec::new();
    }
    let text = app.input.take();
    app.history.push(&text);
    let said = slash::message(&text).trim_matches('\n').to_owned();
    match app.editing.take() {
        Some(id) if app.chat.edit(id, said.clone()).is_some() => {}
        _ => {
            app.chat.push_user(said);
        }
    }
    begin(app)
}

/// Opens the reply to the head and has it generated.
fn begin(app: &mut App) -> Vec<Effect> {
    let turn = app.chat.begin_reply(app.options.think, app.options.keep_thinking);
    let Some(message) = app.chat.head() else { return Vec::new() };
    app.turn = Some(ActiveTurn {
        turn,
        message,
        started_ms: app.now_ms,
        prompt_tokens: None,
        answering: false,
        thinking_since_ms: None,
        thought: None,
        stopping: false,
    });
    app.feed.selected = None;
    app.feed.follow();
    app.feed.arrange(&app.chat);
    vec![Effect::Generate { turn }]
}

/// /regen: another answer beside the one there is.
pub fn regenerate(app: &mut App) -> Vec<Effect> {
    if refuse_busy(app) {
        return Vec::new();
    }
    if app.engine.info.is_none() {
        app.say(Level::Error, "no model is loaded; /model NAME loads one");
        return Vec::new();
    }
    if app.chat.regenerate().is_none() {
        app.say(Level::Info, "nothing was asked yet");
        return Vec::new();
    }
    begin(app)
}

/// /undo: the last message and its answer leave the path; the text returns to the input.
pub fn undo(app: &mut App) -> Vec<Effect> {
    if refuse_busy(app) {
        return Vec::new();
    }
    let Some(text) = app.chat.undo() else {
        app.say(Level::Info, "nothing to take back");
        return Vec::new();
    };
    if app.input.is_empty() {
        app.input.set(&text);
    }
    app.say(Level::Info, "taken back; it stays in the file as a branch");
    moved(app)
}

/// The active path changed: the screen, the cache and the file follow.
pub fn moved(app: &mut App) -> Vec<Effect> {
    app.feed.arrange(&app.chat);
    app.feed.follow();
    let mut effects = vec![Effect::Store(Store::Sync)];
    if !app.session.unrestored {
        effects.insert(0, Effect::Rewind);
    }
    effects
}

/// /edit: the chosen or last message of the user goes into the input.
pub fn edit(app: &mut App) -> Vec<Effect> {
    if refuse_busy(app) {
        return Vec::new();
    }
    let path = app.chat.path();
    let chosen = app.feed.selected.and_then(|id| {
        let at = path.iter().position(|m| m.id == id)?;
        path[..=at].iter().rev().find(|m| m.role == Role::User)
    });
    let Some(message) = chosen.or_else(|| path.iter().rev().find(|m| m.role == Role::User)) else {
        app.say(Level::Info, "nothing was asked yet");
        return Vec::new();
    };
    let (id, text) = (message.id, message.text.clone());
    app.editing = Some(id);
    app.input.set(&text);
    Vec::new()
}

/// Goes to the version before or after of the chosen turn, or of the last one that has several.
pub fn switch_branch(app: &mut App, newer: bool) -> Vec<Effect> {
    if refuse_busy(app) {
        return Vec::new();
    }
    let path: Vec<MessageId> = app.chat.path().iter().map(|m| m.id).collect();
    let upto = app.feed.selected.and_then(|id| path.iter().position(|m| *m == id)).map_or(path.len(), |i| i + 1);
    let branching = path[..upto].iter().rev().find_map(|id| {
        let siblings = app.chat.siblings(*id);
        let at = siblings.iter().position(|s| s == id)?;
        let next = if newer { siblings.get(at + 1) } else { at.checked_sub(1).and_then(|i| siblings.get(i)) };
        (siblings.len() > 1).then_some((next.copied(), at, siblings.len()))
    });
    match branching {
        None => app.say(Level::Info, "no other version here; /edit and /regen make them"),
        Some((None, at, n)) => app.say(Level::Info, format!("this is version {} of {n}", at + 1)),
        Some((Some(id), _, _)) => {
            app.chat.switch_to(id);
            app.feed.selected = None;
            return moved(app);
        }
    }
    Vec::new()
}

/// The turn could not be begun.
pub fn failed(app: &mut App, turn: u64, error: &str) -> Vec<Effect> {
    if app.turn.as_ref().is_some_and(|t| t.turn == turn) {
        app.turn = None;
    }
    take_back(app, error)
}

/// The turn was stopped before the engine saw it.
pub fn withdrawn(app: &mut App, turn: u64) -> Vec<Effect> {
    if app.turn.as_ref().is_some_and(|t| t.turn == turn) {
        app.turn = None;
    }
    take_back(app, "stopped while the prompt was being prepared")
}

/// What was asked returns to the input, with the reason in the conversation.
pub fn take_back(app: &mut App, why: &str) -> Vec<Effect> {
    if let Some(text) = app.chat.undo()
        && app.input.is_empty()
    {
        app.input.set(&text);
    }
    app.feed.arrange(&app.chat);
    note(app, LocalKind::Error, format!("not sent: {why}"))
}

/// True, with a word about it, while an answer or a rebuild runs.
pub fn refuse_busy(app: &mut App) -> bool {
    if app.turn.is_some() {
        app.say(Level::Info, "the answer is still running; Esc stops it");
    } else if app.engine.rebuilding.is_some() {
        app.say(Level::Info, "the cache is being filled; Esc stops that");
    }
    app.is_busy()
}
