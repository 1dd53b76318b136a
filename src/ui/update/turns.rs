//! Turns: send, regenerate, undo, edit, and switch branches.

use crate::chat::MessageId;
use crate::chat::summary::WAY_OUT;
use crate::config::Width;
use crate::protocol::StopReason;
use crate::ui::action::Action;
use crate::ui::attach::unattached;
use crate::ui::effect::{Effect, Store};
use crate::ui::feed::LocalKind;
use crate::ui::refusal::Refusal;
use crate::ui::spelling::message;
use crate::ui::state::{About, ActiveTurn, App, Level, Loading, MAX_QUEUE, Queued};
use crate::ui::text::{FULL, clean_line, truncate};

/// Queues the input as a message, or in place of the message being edited, and sends the queue if
/// possible.
pub fn ask(app: &mut App) {
    if app.queue.len() >= MAX_QUEUE {
        return queue_is_full(app);
    }
    let named = unattached(app.input.text()).map(|name| clean_line(&truncate(name, 60)));
    let text = app.input.take();
    app.history.push(&text);
    app.given_back = None;
    if let Some(name) = named {
        let key = app.key(Action::Complete);
        let why = match name.contains("://") {
            true => "only http:// and https:// pages can be".to_owned(),
            false => format!("there is no such file; {key} completes names"),
        };
        app.info(format!("{name} was not attached: {why}"));
    }
    app.queue.push_back(Queued { text, replaces: app.editing.take(), width: None });
    send_next(app);
}

fn queue_is_full(app: &mut App) {
    let stop = app.key(Action::Stop);
    app.error(format!("{MAX_QUEUE} messages wait already; {stop} takes the newest back"));
}

/// Queues a text as a message. False if too many wait.
pub fn ask_text(app: &mut App, text: String) -> bool {
    if app.queue.len() >= MAX_QUEUE {
        queue_is_full(app);
        return false;
    }
    app.queue.push_back(Queued { text, replaces: None, width: None });
    send_next(app);
    true
}

/// Queues a question that this many chains answer.
pub fn ask_chains(app: &mut App, question: &str, width: Width) {
    if app.queue.len() >= MAX_QUEUE {
        return queue_is_full(app);
    }
    app.queue.push_back(Queued { text: question.to_owned(), replaces: None, width: Some(width) });
    send_next(app);
}

/// Sends the oldest queued message if the engine is idle. Without a model, loads the one chosen
/// last first.
pub fn send_next(app: &mut App) {
    if app.queue.is_empty() || app.is_busy() || app.engine.loading.is_some() {
        return;
    }
    if app.engine.info.is_none() {
        let name = app.engine.chosen.clone();
        return load(app, &name);
    }
    app.resuming = false;
    let Some(Queued { text, replaces, width }) = app.queue.pop_front() else { return };
    let said = message(&text).trim_matches('\n').to_owned();
    match replaces {
        Some(id) if app.chat.edit(id, said.clone()).is_some() => {}
        _ => {
            app.chat.push_user(said);
        }
    }
    begin(app, width);
}

/// Moves the newest queued message back into the empty input; false if there is none.
pub fn unqueue(app: &mut App) -> bool {
    if !app.input.is_empty() {
        return false;
    }
    let Some(Queued { text, replaces, width }) = app.queue.pop_back() else { return false };
    let text = match width {
        Some(Width::Chains(n)) => format!("/parallel {n} {text}"),
        Some(Width::Auto) => format!("/parallel auto {text}"),
        None => text,
    };
    app.input.set(&text);
    app.editing = replaces;
    app.given_back = Some(text);
    true
}

/// Starts loading a model; the one in use stays until it is ready.
pub fn load(app: &mut App, name: &str) {
    app.engine.loading = Some(Loading::new(name));
    name.clone_into(&mut app.engine.chosen);
    app.emit(Effect::Load(name.to_owned()));
}

/// Begins the reply to the head and requests it.
pub fn begin(app: &mut App, width: Option<Width>) {
    let turn = app.chat.begin_reply(app.options.think, app.options.keep_thinking);
    let Some(message) = app.chat.head() else { return };
    let asked = app.chat.get(message).and_then(|m| app.chat.get(m.parent?));
    if let Some((id, folds)) = asked.map(|m| (m.id, app.input.folds(&m.text))).filter(|(_, folds)| !folds.is_empty()) {
        app.feed.folds.insert(id, folds);
    }
    app.turn = Some(ActiveTurn {
        turn,
        message,
        started_ms: app.now_ms,
        prompt_tokens: None,
        answering: false,
        thinking_since_ms: None,
        thought: None,
        stopping: false,
        width: width.unwrap_or(app.options.width),
        chains: None,
    });
    app.feed.selected = None;
    app.feed.follow();
    app.feed.arrange(&app.chat);
    app.emit(Effect::Generate { turn });
}

/// Puts a text of the user back into the input if that is empty, else into the history. Returns
/// words that say where the text is if it is not in the input.
pub fn give_back(app: &mut App, text: &str) -> String {
    app.history.push(text);
    if app.input.is_empty() && (app.aside.is_none() || app.aside == app.given_back) {
        app.aside = None;
        app.input.set(text);
        app.given_back = Some(text.to_owned());
        return String::new();
    }
    format!(" ({} recalls it)", app.key(Action::HistoryOlder))
}

/// Moves the unsent text set aside back into the input once that is empty.
pub fn return_unsent(app: &mut App) {
    if app.input.is_empty()
        && app.editing.is_none()
        && let Some(unsent) = app.aside.take()
    {
        app.input.set(&unsent);
        app.completion = None;
        app.given_back = Some(unsent);
    }
}

/// Updates the screen, the cache and the file after the active path changed.
pub fn moved(app: &mut App) {
    app.feed.arrange(&app.chat);
    app.feed.follow();
    if app.session.is_restored() || app.session.is_restoring() {
        app.emit(Effect::Rewind);
    }
    app.store(Store::Sync);
}

/// Switches to the previous or next version of the chosen turn, or of the last turn that has
/// several.
pub fn switch_branch(app: &mut App, newer: bool) {
    if idle(app).is_err() {
        return;
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
        None => app.info("there is no other version here; /edit and /regen make one"),
        Some((None, at, n)) => app.info(format!("this is branch {} of {n}", at + 1)),
        Some((Some(id), _, _)) => {
            app.chat.switch_to(id);
            app.feed.selected = None;
            moved(app);
        }
    }
}

/// Handles a turn that could not begin, or was cancelled before the engine received it.
pub fn failed(app: &mut App, turn: u64, error: &str) {
    app.turn.take_if(|t| t.turn == turn);
    take_back(app, turn, error);
}

/// Returns the question to the input and shows the reason. A question that already has an answer
/// (/regen) stays.
pub fn take_back(app: &mut App, turn: u64, why: &str) {
    let question = app.chat.reply(turn).and_then(|reply| reply.parent);
    let text = app.chat.retract(turn);
    let stays = question.is_some_and(|id| app.chat.get(id).is_some());
    let what = match text.filter(|_| !stays) {
        Some(text) => format!("not sent{}", give_back(app, &text)),
        None => "not answered again".to_owned(),
    };
    app.feed.reattach(&app.chat);
    app.note(LocalKind::Error, format!("{what}: {why}"));
}

/// Takes back a question for which context or cache have no room, and suggests what to do. A
/// question too long for the context returns to the input to be shortened. Others can be recalled,
/// so that the next question is not typed after them.
pub fn no_room(app: &mut App, turn: u64, what: StopReason, why: &str) {
    let question = app.chat.reply(turn).and_then(|reply| reply.parent);
    let text = app.chat.retract(turn).filter(|_| question.is_some_and(|id| app.chat.get(id).is_none()));
    app.feed.reattach(&app.chat);
    let context = app.engine.info.as_ref().map_or(0, |info| info.context);
    let recalls = |app: &mut App, text: &str| {
        app.history.push(text);
        format!("not sent ({} recalls it)", app.key(Action::HistoryOlder))
    };
    let line = match text {
        Some(text) if what == StopReason::CacheFull => format!("{}: {why}", recalls(app, &text)),
        None if what == StopReason::CacheFull => format!("not answered again: {why}"),
        Some(text) if app.chat.path().is_empty() || text.len() > context => {
            let place = give_back(app, &text);
            format!(
                "not sent{place}: {why}; shorten the message, or start with a larger --ctx-size if the model allows it"
            )
        }
        Some(text) => format!("{}: {FULL}: {WAY_OUT}", recalls(app, &text)),
        None => format!("not answered again: {FULL}: {WAY_OUT}"),
    };
    app.say(Level::Warning, line);
}

/// Refuses, with a notice, while the engine is busy or a conversation is being opened.
pub fn idle(app: &mut App) -> Result<(), Refusal> {
    let what = if app.turn.is_some() {
        "the answer is still running"
    } else if app.session.is_restoring() {
        "the conversation is being loaded"
    } else if app.engine.rebuilding.is_some() {
        "the cache is being rebuilt"
    } else if app.engine.recalling {
        "a recall test is running"
    } else if app.engine.compacting.is_some() {
        "a summary is being written"
    } else if app.engine.comparing.is_some() {
        "the answer without eviction is being written"
    } else if app.opening {
        "a conversation is being opened"
    } else {
        return Ok(());
    };
    let stop = app.key(Action::Stop);
    app.say_about(About::Busy, Level::Info, format!("{what}; {stop} stops it"));
    Err(Refusal::Said)
}
