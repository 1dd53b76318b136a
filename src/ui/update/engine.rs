//! Handles events of the engine: streamed text, reports, toggles, progress, snapshots.

use super::{files, texts, turns};
use crate::chat::{Message, MessageId};
use crate::protocol::{Command, Event, Finding, ModelInfo, Phase, Pinned, Snapshot, StopReason, TextKind, TurnReport};
use crate::ui::commands::{cache, command, compact, compare, logprobs, train, twin};
use crate::ui::effect::Store;
use crate::ui::feed::{Local, LocalKind};
use crate::ui::numbers;
use crate::ui::overlay::inspect::{self, Inspect, Page};
use crate::ui::state::{App, Loading, Restore};
use crate::ui::text::{bytes, plural};
use crate::ui::widgets::message::advice;
use std::collections::HashSet;
use std::sync::Arc;

/// Answers that took at least this long end with a bell, if configured.
const BELL_MS: u64 = 10_000;

/// Ratios larger than the trained one by this factor are warned of: KL grows several times there
/// (docs/fidelity.md).
const BEYOND_TRAINING: f64 = 1.1;

/// Part of an error that says that the hub was not reached.
const NO_CONNECTION: &str = "cannot be reached";

/// Handles an event of the engine in use.
pub fn event(app: &mut App, event: Event) {
    match event {
        // They come from the engine that is being loaded.
        Event::Downloading(_)
        | Event::Loading { .. }
        | Event::Quantizing { .. }
        | Event::CompilingKernels { .. }
        | Event::Ready(_)
        | Event::LoadFailed(_)
        // That of a server.
        | Event::SlotsLoaded { .. } => {}
        Event::Planned(plan) => {
            if let Some(info) = &mut app.engine.info {
                Arc::make_mut(info).plan = *plan;
            }
        }
        Event::TurnStarted { turn, prompt_tokens, .. } => {
            app.engine.rebuilding = None;
            if let Some(active) = app.turn.as_mut().filter(|t| t.turn == turn) {
                active.prompt_tokens = Some(prompt_tokens);
            }
        }
        Event::Text { turn, kind, text } => streamed(app, turn, kind, &text),
        Event::WasThought { turn } => app.chat.was_thought(turn),
        Event::TurnDone(report) => done(app, *report),
        Event::EvictionSet { on, at_token, dropped_slots } => {
            toggled(app, on, at_token, dropped_slots);
            switch_now(app);
        }
        Event::TwinSet { on, why } => twin::was_set(app, on, why),
        Event::Pinned(pinned) => pinned_message(app, *pinned),
        Event::Unpinned { tokens, dropped_slots } => unpinned_message(app, tokens, dropped_slots),
        Event::LogChanged(change) => {
            app.chat.log_changed(*change);
            app.store(Store::Sync);
        }
        Event::DialSet { ratio, trained, .. } => dial_set(app, ratio, trained),
        Event::Rebuilding { done, total } => app.engine.rebuilding = Some((done, total)),
        Event::RebuildDone { cancelled, tokens } => rebuilt(app, cancelled, tokens),
        Event::HeadPositions { layer, head, slots } => inspect::was_read(app, layer, head, slots),
        Event::Presence(presence) => {
            app.memory.update(&presence);
            app.feed.pinned = pinned_messages(app);
        }
        Event::TokensCounted { id, tokens } => app.unsent_count.counted(id, tokens),
        Event::Found(Finding::Recalled(result)) => inspect::recalled(app, result),
        Event::Found(Finding::Logprobs(found)) => logprobs::found(app, found),
        Event::Found(Finding::Text { dense, kind, text }) => {
            let streamed = if dense { compare::streamed } else { compact::streamed };
            streamed(app, kind, &text);
        }
        Event::Found(Finding::Said { dense: false, report }) => compact::done(app, *report),
        Event::Found(Finding::Said { report, .. }) => compare::done(app, &report),
        Event::Chain { turn, event } => {
            if let Some(active) = app.turn.as_mut().filter(|t| t.turn == turn) {
                active.answering = true;
                active.follow(event);
            }
        }
        Event::Refused { command, why } => refused(app, command, &why),
        Event::Repeats { turn, chain } if app.turn.as_ref().is_some_and(|t| t.turn == turn) => {
            let text = texts::repeats(app, chain);
            app.note(LocalKind::Note, text);
        }
        Event::Repeats { .. } | Event::Encoded(_) | Event::Likely { .. } => {}
        Event::Notice(text) => {
            // A switch that was refused is answered by a notice.
            app.engine.eviction_asked = None;
            app.note(LocalKind::Warning, text);
            switch_now(app);
        }
        Event::Info(text) => informed(app, text),
        Event::Failed(error) => failed(app, &error),
    }
}

/// Says how much is kept from now on.
fn dial_set(app: &mut App, ratio: f64, trained: f64) {
    app.engine.dial = Some((ratio, trained));
    let when = if app.engine.eviction { "from now on" } else { "once eviction is on," };
    app.info(match numbers::short(ratio) == numbers::short(trained) {
        true if app.engine.eviction => format!("back to the default: about 1 token in {}", numbers::short(trained)),
        _ => format!("{when} keeps {}", numbers::kept((ratio, trained))),
    });
    if ratio > trained * BEYOND_TRAINING {
        let text = "this is far beyond the default: it will lose facts; /forget less keeps more";
        app.result(LocalKind::Warning, text);
    }
}

/// Says why the engine did not carry out a command.
fn refused(app: &mut App, command: &str, why: &str) {
    command::give_line_back(app, command);
    app.error(format!("/{command}: {why}"));
}

/// Adds what the engine says of the model. Where a message has waited for the model, above that
/// message.
fn informed(app: &mut App, text: String) {
    let waits = app.chat.turns() == 0 && app.turn.as_ref().is_some_and(|turn| !turn.answering);
    match waits {
        true => app.feed.push(&app.chat, Local::new(None, LocalKind::Note, text)),
        false => app.note(LocalKind::Note, text),
    }
}

/// Reports the end of a rebuild, or of loading a saved conversation.
pub fn rebuilt(app: &mut App, cancelled: bool, tokens: usize) {
    // A cache from disk comes without progress of tokens.
    let fed = app.engine.rebuilding.take().is_some();
    let restored = app.session.loaded(cancelled);
    // Nothing was fed: another model encodes the texts with the next message.
    if tokens == 0 && !cancelled {
        return switch_now(app);
    }
    app.info(match cancelled {
        true if restored => "stopped; the conversation loads with your next message".to_owned(),
        true if tokens == 0 => "stopped; the cache is empty".to_owned(),
        true => format!("stopped; the cache holds {}", plural(tokens as u64, "token")),
        false if restored || !fed => format!("cache loaded: {}", plural(tokens as u64, "token")),
        false => format!("cache rebuilt: {}", plural(tokens as u64, "token")),
    });
    switch_now(app);
    if !cancelled {
        turns::send_next(app);
    }
}

/// Switches eviction as was asked for while the engine put switches off.
fn switch_now(app: &mut App) {
    if app.defers_switches() {
        return;
    }
    if let Some(on) = app.engine.eviction_later.take().filter(|on| *on != app.engine.eviction) {
        cache::switch(app, on);
    }
}

/// Asks whether a message is to be pinned at its cost, or says that it is.
fn pinned_message(app: &mut App, pinned: Pinned) {
    let gone = match 100.0 * (1.0 - pinned.stored - pinned.far) {
        gone if gone < 0.5 => String::new(),
        gone => format!("; heads have already dropped {gone:.0} % of it, /rebuild restores it"),
    };
    let far = match (100.0 * pinned.far, pinned.done) {
        (far, _) if far < 0.5 => String::new(),
        (far, true) => format!("; {far:.0} % of it was far and is read again"),
        (far, false) => format!("; {far:.0} % of it is far and would be read again"),
    };
    let gone = far + &gone;
    let tokens = plural(pinned.tokens as u64, "token");
    if pinned.done {
        app.memory.mark_stale();
        app.info(format!("pinned: {tokens}{gone}"));
    } else {
        let question = format!("Never forget this message? {tokens}, at most {}{gone}.", bytes(pinned.bytes));
        app.ask(question, |app| app.send(Command::Pin { text: pinned.text, ask: false }));
    }
}

fn unpinned_message(app: &mut App, tokens: usize, dropped_slots: u64) {
    app.memory.mark_stale();
    let then = match dropped_slots {
        0 => "they stay for now, /rebuild re-evaluates them".to_owned(),
        slots => format!("{} dropped", plural(slots, "slot")),
    };
    app.info(format!("unpinned {}; {then}", plural(tokens as u64, "token")));
}

fn streamed(app: &mut App, turn: u64, kind: TextKind, text: &str) {
    app.chat.append(turn, kind, text);
    let (now, tokens) = (app.now_ms, app.tokens());
    let Some(active) = app.turn.as_mut().filter(|t| t.turn == turn) else { return };
    active.answering = true;
    match kind {
        TextKind::Reasoning => {
            active.thinking_since_ms.get_or_insert(now);
        }
        TextKind::Answer => {
            if let (Some(since), None) = (active.thinking_since_ms, active.thought) {
                let thought = tokens.saturating_sub(active.prompt_tokens.unwrap_or(tokens));
                active.thought = Some((now.saturating_sub(since), thought));
            }
        }
    }
}

fn done(app: &mut App, report: TurnReport) {
    let turn = report.turn;
    // Nothing was answered: the message returns to the input.
    let refused = !report.in_context && report.generated.is_empty();
    let why = match (report.stop_reason, &report.detail) {
        (StopReason::Cancelled, _) => "stopped before the answer began".to_owned(),
        (StopReason::ContextFull, _) => report.detail.clone().unwrap_or_default(),
        (_, Some(detail)) => format!("{detail}{}", advice(&report)),
        (reason, None) => reason.name().to_owned(),
    };
    let no_room = matches!(report.stop_reason, StopReason::ContextFull | StopReason::CacheFull);
    let long = app.turn.as_ref().is_some_and(|t| t.turn == turn && app.now_ms >= t.started_ms + BELL_MS);
    // After a stop or a failure the queue waits for the user.
    let ended_well = matches!(report.stop_reason, StopReason::End | StopReason::MaxTokens);
    app.panel.ratios.push(app.engine.snapshot.as_ref().map_or(0, |s| s.tokens), report.kv.ratio);
    app.turn.take_if(|t| t.turn == turn);
    app.engine.rebuilding = None;
    if long && app.setup.settings.bell {
        app.emit(crate::ui::effect::Effect::Bell);
    }
    if refused && no_room {
        turns::no_room(app, turn, report.stop_reason, &why);
    } else if refused {
        // Not a turn: nothing is written.
        turns::take_back(app, turn, &why);
    } else {
        app.chat.finish(report);
        app.session.answered = true;
    }
    app.store(Store::Sync);
    inspect::read_again(app);
    switch_now(app);
    if ended_well {
        turns::send_next(app);
    }
}

fn toggled(app: &mut App, on: bool, at_token: usize, dropped_slots: u64) {
    app.engine.eviction = on;
    app.engine.eviction_asked.take_if(|asked| *asked == on);
    app.memory.mark_stale();
    let text = match app.engine.info.as_ref().is_some_and(|info| info.is_remote) {
        true => texts::mark_on_server(on).to_owned(),
        false => texts::mark(texts::keeps_far(app), on, at_token, dropped_slots),
    };
    if !app.session.is_restored() {
        // The empty cache was switched. The saved conversation continues it, and reports it then.
        return app.note(LocalKind::Note, text);
    }
    let shown = app.chat.shown_marks().len();
    let mark = match app.engine.rebuilding {
        Some(_) => app.chat.mark_toggle_in_rebuild(on, at_token, dropped_slots),
        None => app.chat.mark_toggle(on, at_token, dropped_slots),
    };
    let taken_back = app.chat.shown_marks().len() < shown;
    if !(taken_back && app.feed.take_mark_back(&app.chat)) {
        app.feed.push(&app.chat, Local::of_mark(&mark, text));
    }
    app.feed.follow();
    app.store(Store::Sync);
    inspect::read_again(app);
}

pub fn failed(app: &mut App, error: &str) {
    app.engine.failed = Some(error.to_owned());
    app.engine.info = None;
    app.engine.rebuilding = None;
    app.engine.recalling = false;
    app.session.loaded(false);
    (app.engine.compacting, app.engine.comparing) = (None, None);
    (app.engine.eviction_asked, app.engine.eviction_later) = (None, None);
    if app.turn.take().is_some() {
        // The turn gets no report; its text stays on the screen.
        app.store(Store::Sync);
    }
    let text = format!("the engine failed: {error}; the conversation is kept, /model NAME starts it again");
    app.note(LocalKind::Error, text);
}

/// Stores the figures of a step, which also show when a rebuild has ended.
pub fn snapshot(app: &mut App, snapshot: Arc<Snapshot>) {
    app.panel.ratios.push(snapshot.tokens, snapshot.kv.ratio);
    app.engine.eviction = snapshot.eviction;
    let moved = app.engine.snapshot.as_ref().is_none_or(|s| s.tokens.abs_diff(snapshot.tokens) >= 16);
    let idle = snapshot.phase == Phase::Idle;
    // A rebuild empties the cache first, and one that is stopped gives the old cache back.
    let emptied = idle && app.turn.is_none() && app.engine.rebuilding.is_none();
    if idle && app.turn.is_none() {
        // Also if a rebuild could not begin.
        app.engine.rebuilding = None;
    }
    let had = app.tokens();
    let before = app.engine.snapshot.replace(snapshot);
    if let Some(chains) = app.turn.as_mut().and_then(|turn| turn.chains.as_mut()) {
        chains.revision += 1;
    }
    if had > 0 && emptied && app.has_to_refill() && app.session.is_restored() {
        app.note(LocalKind::Note, format!("the cache is empty; {}", texts::refill(before.as_deref())));
    }
    if idle {
        app.memory.mark_stale();
    }
    if moved || idle {
        inspect::read_again(app);
    }
    if idle {
        ask_pins(app);
    }
}

/// Asks which tokens are pinned when their number has changed.
fn ask_pins(app: &mut App) {
    let pinned = app.engine.snapshot.as_ref().map_or(0, |s| s.pinned);
    if std::mem::replace(&mut app.feed.pinned_tokens, pinned) == pinned {
        return;
    }
    let (page, tokens, now) = (open_inspect(app).map(|i| i.memory).unwrap_or_default(), app.tokens(), app.now_ms);
    let request = app.memory.request_now(&page, tokens, now);
    app.send(Command::Presence(request));
}

/// Messages that hold a pinned passage, or are in one. Of several with the same text the last one.
fn pinned_messages(app: &App) -> HashSet<MessageId> {
    let path = app.chat.path();
    let texts: Vec<&str> =
        app.memory.presence().pins.iter().map(|pin| app.memory.text_of(pin.clone()).trim()).collect();
    let holds = |text: &&str| {
        let within = |m: &&&Message| m.shown().contains(text) || m.text.contains(text);
        let around = |m: &&&Message| !m.shown().trim().is_empty() && text.contains(m.shown().trim());
        path.iter().rev().find(within).or_else(|| path.iter().rev().find(around)).map(|m| m.id)
    };
    texts.iter().filter(|text| !text.is_empty()).filter_map(holds).collect()
}

/// Asks which tokens are kept while the memory page is open, a few times a second at most.
pub fn ask_presence(app: &mut App) {
    let Some(inspect) = open_inspect(app).filter(|i| i.page == Page::Memory) else { return };
    let (page, tokens, now) = (inspect.memory, app.tokens(), app.now_ms);
    if let Some(request) = app.memory.request(&page, tokens, now) {
        app.send(Command::Presence(request));
    }
}

/// Returns when the memory page asks again; `None` while it is closed or up to date.
pub fn presence_due_at(app: &App) -> Option<u64> {
    let inspect = open_inspect(app).filter(|i| i.page == Page::Memory)?;
    app.memory.due_at(&inspect.memory, app.tokens())
}

/// The large panel, if it is open and a model is loaded.
fn open_inspect(app: &App) -> Option<&Inspect> {
    app.engine.info.as_ref().and_then(|_| app.overlay())
}

/// Takes a loaded model into use.
pub fn ready(app: &mut App, info: Arc<ModelInfo>) {
    let changed = app.engine.info.is_some() || app.engine.failed.is_some() || !app.chat.is_empty();
    let (mut then_open, mut downloaded) = (None, false);
    if let Some(loading) = app.engine.loading.take() {
        downloaded = loading.downloaded;
        then_open = loading.then_open;
        app.engine.loaded.clone_from(&loading.name);
        app.engine.chosen = loading.name;
    }
    let held = app.engine.snapshot.as_deref();
    let again = if app.chat.is_empty() { String::new() } else { format!("; {}", texts::refill(held)) };
    let twin = if app.engine.twin { "; the twin is off" } else { "" };
    app.engine.failed = None;
    (app.engine.recalling, app.engine.twin, app.engine.compacting) = (false, false, None);
    (app.engine.comparing, app.engine.rebuilding) = (None, None);
    (app.engine.eviction_asked, app.engine.eviction_later) = (None, None);
    app.session.loaded(false);
    if let (Restore::Waiting(request), Some(_)) = (&mut app.session.restore, &app.engine.info) {
        // It was made for the model before.
        *request = None;
    }
    (app.engine.snapshot, app.session.answered) = (None, false);
    app.memory = Default::default();
    app.panel = crate::ui::state::Panel { hidden: app.panel.hidden, ..Default::default() };
    app.notice = None;
    if changed && app.session.is_restored() {
        app.chat.disown_replies();
        app.result(LocalKind::Note, format!("model {}, {}{again}{twin}", info.identity.name, info.identity.device));
    }
    if let Some(limit) = app.options.kv_limit.filter(|_| info.kv_limit.is_none()) {
        app.note(LocalKind::Note, format!("the cache is limited to {}", bytes(limit)));
    }
    app.engine.info = Some(info);
    app.engine.dial = None;
    if downloaded {
        train::downloaded(app);
    }
    match then_open {
        Some(which) => files::open_with_current(app, which),
        // Queued messages belong to the conversation that is still to be opened.
        None if app.resuming => {}
        None => turns::send_next(app),
    }
}

/// Reports a model that did not load; the previous one stays.
pub fn load_failed(app: &mut App, error: &str) {
    let loading = app.engine.loading.take();
    if let Some(Loading { name: model, then_open: Some(which), .. }) = loading {
        return files::open_lacks_model(app, which, &model, error);
    }
    let kept = match &app.engine.info {
        Some(info) => {
            app.engine.chosen.clone_from(&app.engine.loaded);
            format!("; {} stays loaded", info.identity.name)
        }
        None => "; /model NAME loads another".to_owned(),
    };
    let kept = kept + if error.contains(NO_CONNECTION) { texts::WITHOUT_NETWORK } else { "" };
    let what = if command::give_line_back(app, "model") { "/model" } else { "not loaded" };
    app.result(LocalKind::Error, format!("{what}: {error}{kept}"));
}
