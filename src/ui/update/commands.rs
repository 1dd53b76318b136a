//! Carries out slash commands.

use super::texts::NO_MODEL;
use super::{Effect, Store, chains, compact, compare, files, find, models, recall, result, texts, turns, twin};
use crate::chat::Role;
use crate::config::{ByteSize, Width};
use crate::protocol::{Command, Keep, Thinking};
use crate::ui::action::Action;
use crate::ui::commands::{SETTINGS, nearest};
use crate::ui::editor::Editor;
use crate::ui::feed::LocalKind;
use crate::ui::state::{App, Confirmed, Level, Overlay};
use crate::ui::text::{clean_line, plural, truncate};
use crate::ui::{markdown, numbers};

/// Runs a command that [`crate::ui::commands::spec`] knows.
pub fn run(app: &mut App, name: &str, argument: &str) -> Vec<Effect> {
    match name {
        "help" => help(app, argument),
        "new" => return files::new_conversation(app),
        "compact" => return compact::begin(app, argument),
        "model" => return model(app, argument),
        "models" => return models::open(app),
        "find" => find::open(app, argument),
        "eviction" => return eviction(app, argument),
        "forget" => return forget(app, argument),
        "pin" => return pin(app, argument),
        "unpin" => return unpin(app, argument),
        "parallel" => return chains::parallel(app, argument),
        "chains" => return chains::show(app, argument),
        "rebuild" => return rebuild(app),
        "compare" => return compare::begin(app),
        "twin" if argument.is_empty() => return twin::set(app, None),
        "twin" => return on_off(app, name, argument).map_or_else(Vec::new, |on| twin::set(app, Some(on))),
        "recall" => return recall::ask(app, argument),
        "think" => return think(app, argument),
        "keep-thinking" => return keep_thinking(app, argument),
        "set" => return set(app, argument),
        "system" => return system(app, argument),
        "regen" => return turns::regenerate(app),
        "edit" => return turns::edit(app),
        "undo" => return turns::undo(app),
        "copy" => return copy(app, argument),
        "panel" => toggle_panel(app),
        "stats" => {
            let text = numbers::stats_note(app);
            return result(app, LocalKind::Table, text);
        }
        "save" => return files::save(app, argument),
        "export" => return files::export(app, argument),
        "sessions" => return files::list(app, argument),
        "resume" => return files::resume(app, argument),
        "rename" => return files::rename(app, argument),
        "delete" => ask_delete(app),
        "theme" => return theme(app, argument),
        "quit" => return vec![Effect::Quit],
        _ => {}
    }
    Vec::new()
}

fn info(app: &mut App, text: impl Into<String>) -> Vec<Effect> {
    app.say(Level::Info, text);
    Vec::new()
}

fn error(app: &mut App, text: impl Into<String>) -> Vec<Effect> {
    app.say(Level::Error, text);
    Vec::new()
}

/// Says why a command is not carried out.
fn refuse(app: &mut App, name: &str, why: impl std::fmt::Display) -> Vec<Effect> {
    error(app, format!("/{name}: {why}"))
}

/// Shows the help, of the rows that contain these words.
fn help(app: &mut App, words: &str) {
    let mut query = Editor::default();
    query.set(words);
    app.overlays.push(Overlay::Help { query, scroll: 0 });
}

/// Parses `on` or `off`; an error is shown.
fn on_off(app: &mut App, name: &str, argument: &str) -> Option<bool> {
    match argument {
        "on" => Some(true),
        "off" => Some(false),
        other => {
            error(app, format!("/{name} takes on or off, not {:?}", clean_line(other)));
            None
        }
    }
}

/// /model [NAME]
fn model(app: &mut App, name: &str) -> Vec<Effect> {
    if name.is_empty() {
        let text = match &app.engine.info {
            Some(i) => format!("{}, {}; /model NAME loads another: demo, a folder, or ORG/NAME", i.name, i.device),
            None => format!("{NO_MODEL}: demo, a folder, or ORG/NAME"),
        };
        return info(app, text);
    }
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    models::load(app, name)
}

fn eviction(app: &mut App, argument: &str) -> Vec<Effect> {
    if argument.is_empty() {
        let state = on_or_off(app.engine.eviction);
        return info(app, format!("eviction is {state}; /eviction on or /eviction off"));
    }
    on_off(app, "eviction", argument).map_or_else(Vec::new, |on| set_eviction(app, on))
}

/// Switches eviction. The engine reports where the switch acted.
pub fn set_eviction(app: &mut App, on: bool) -> Vec<Effect> {
    let Some(model) = &app.engine.info else { return refuse(app, "eviction", NO_MODEL) };
    if model.policy.keeps_all() {
        let text = format!("the cache keeps everything: its policy is {}", model.policy);
        return info(app, text);
    }
    if on == app.engine.eviction {
        return info(app, format!("eviction is {} already", on_or_off(on)));
    }
    vec![Effect::Engine(Command::SetEviction(on))]
}

/// /pin [system]: asks the engine what it would cost.
fn pin(app: &mut App, argument: &str) -> Vec<Effect> {
    match pinnable(app, "pin", argument) {
        Ok(text) => vec![Effect::Engine(Command::Pin { text, ask: true })],
        Err(effects) => effects,
    }
}

/// /unpin: asks whether one pin or all are meant. `system` and `all` need no question.
fn unpin(app: &mut App, argument: &str) -> Vec<Effect> {
    let text = match pinnable(app, "unpin", if argument == "all" { "" } else { argument }) {
        Ok(text) => text,
        Err(effects) => return effects,
    };
    match (argument, app.engine.snapshot.as_ref().map_or(0, |s| s.pinned)) {
        ("all", _) => vec![Effect::Engine(Command::Unpin(None))],
        ("system", _) => vec![Effect::Engine(Command::Unpin(Some(text)))],
        // A conversation that is not in the cache yet may have pins.
        (_, 0) if !app.session.unrestored => info(app, "/unpin: nothing is pinned"),
        (_, tokens) => {
            let shown = truncate(&clean_line(&text), 60);
            let all = match tokens {
                0 => String::new(),
                n => format!(" In all {} are pinned.", plural(n as u64, "token")),
            };
            app.ask(format!("Take back the pin of {shown:?}?{all}"), Confirmed::Unpin(Some(text)));
            if let Some(Overlay::Confirm(question)) = app.overlays.last_mut() {
                question.other = Some(('a', "all pins", Confirmed::Unpin(None)));
            }
            Vec::new()
        }
    }
}

/// The text that /pin and /unpin are about: the chosen message, else the last one of the user, or the system prompt.
fn pinnable(app: &mut App, name: &str, argument: &str) -> Result<String, Vec<Effect>> {
    if app.engine.info.is_none() {
        return Err(refuse(app, name, NO_MODEL));
    }
    if turns::refuse_busy(app) {
        return Err(Vec::new());
    }
    let text = match argument {
        "" => {
            let selected = app.feed.selected.and_then(|id| app.chat.get(id));
            let path = app.chat.path();
            let last = path.iter().rev().find(|m| m.role == Role::User);
            selected.or(last.copied()).map(|m| m.shown().to_owned())
        }
        "system" => app.chat.system().map(str::to_owned),
        other => {
            let (words, key) = (if name == "pin" { "system" } else { "system or all" }, app.key(Action::SelectOlder));
            let text = format!(
                "/{name} takes {words}, not {:?}; without a word it is about your last message, or the one chosen with {key}",
                clean_line(other)
            );
            return Err(error(app, text));
        }
    };
    match text.filter(|text| !text.trim().is_empty()) {
        Some(text) => Ok(text),
        None if argument == "system" => Err(refuse(app, name, "there is no system prompt; /system TEXT sets one")),
        None => Err(refuse(app, name, "nothing was said yet")),
    }
}

/// /forget less|more|N|trained. The engine reports what is expected then.
fn forget(app: &mut App, argument: &str) -> Vec<Effect> {
    let Some(model) = &app.engine.info else { return refuse(app, "forget", NO_MODEL) };
    if !model.policy.is_steered() {
        let why = format!("{} keeps as its cache policy says; only models trained to evict can be steered", model.name);
        return refuse(app, "forget", why);
    }
    let keep = match argument {
        "" => {
            let now = app.engine.keep.map_or("as the model was trained".to_owned(), numbers::kept);
            return info(app, format!("keeps {now}; /forget less|more|N|trained changes it"));
        }
        "less" => Keep::More,
        "more" => Keep::Less,
        "trained" => Keep::Trained,
        n => match n.trim_end_matches('x').parse() {
            Ok(ratio) => Keep::Ratio(ratio),
            Err(_) => {
                return error(app, format!("/forget takes less, more, trained or a ratio, not {:?}", clean_line(n)));
            }
        },
    };
    vec![Effect::Engine(Command::SetKeep(keep))]
}

fn rebuild(app: &mut App) -> Vec<Effect> {
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    if app.tokens() == 0 {
        return refuse(app, "rebuild", "the cache is empty");
    }
    app.engine.rebuilding = Some((0, app.tokens()));
    vec![Effect::Engine(Command::Rebuild)]
}

fn think(app: &mut App, argument: &str) -> Vec<Effect> {
    if let Some(text) = unswitchable(app) {
        return info(app, text);
    }
    if argument.is_empty() {
        let state = on_or_off(app.options.think);
        return info(app, format!("thinking is {state}; /think on or /think off"));
    }
    let Some(on) = on_off(app, "think", argument) else { return Vec::new() };
    app.options.think = on;
    info(
        app,
        if on { "the model thinks before it answers" } else { "the model answers at once, from the next turn on" },
    )
}

/// Returns why /think has no effect on this model, if so.
fn unswitchable(app: &App) -> Option<String> {
    let model = app.engine.info.as_ref()?;
    match model.thinking() {
        Thinking::None => Some(format!("{} has no thinking to switch", model.name)),
        Thinking::Fixed => Some(format!("{} decides by itself whether it thinks", model.name)),
        Thinking::Switchable => None,
    }
}

fn keep_thinking(app: &mut App, argument: &str) -> Vec<Effect> {
    app.options.keep_thinking = match argument {
        "on" => Some(true),
        "off" => Some(false),
        "auto" => None,
        other => return error(app, format!("/keep-thinking takes on, off or auto, not {:?}", clean_line(other))),
    };
    info(
        app,
        match app.options.keep_thinking {
            Some(true) => "earlier thoughts stay in the context, from the next turn on",
            Some(false) => "earlier thoughts leave the context, from the next turn on",
            None => "the model's template decides whether earlier thoughts stay",
        },
    )
}

fn set(app: &mut App, argument: &str) -> Vec<Effect> {
    let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    if name.is_empty() {
        let text = settings_table(app);
        return result(app, LocalKind::Table, text);
    }
    let name = name.replace('-', "_");
    let Some(at) = SETTINGS.iter().position(|(n, _)| *n == name) else {
        let near = nearest(&name, SETTINGS.iter().map(|(n, _)| *n));
        let names: Vec<&str> = SETTINGS.iter().map(|(n, _)| *n).collect();
        let hint = near.map_or_else(|| format!("settings: {}", names.join(", ")), |n| format!("did you mean {n}?"));
        return error(app, format!("/set: no setting {:?}; {hint}", clean_line(&name)));
    };
    let expected = SETTINGS[at].1;
    if value.is_empty() {
        let now = &settings(app)[at];
        return info(app, format!("{name} is {now}; it takes {expected}"));
    }
    match set_value(app, &name, value.trim()) {
        Some(effects) => {
            if app.notice.is_none() {
                info(app, format!("{name} is {}", clean_line(value.trim())));
            }
            effects
        }
        None => {
            let expected = expected.split(';').next().unwrap_or_default();
            error(app, format!("/set {name} takes {expected}, not {:?}", clean_line(value)))
        }
    }
}

/// Sets a value; `None` if it is invalid.
fn set_value(app: &mut App, name: &str, value: &str) -> Option<Vec<Effect>> {
    // `Some(None)`: the model's own.
    let number = |low: f32, high: f32| match value {
        "default" => Some(None),
        _ => value.parse::<f32>().ok().filter(|v| (low..=high).contains(v)).map(Some),
    };
    let none = matches!(value, "none" | "off" | "random");
    app.notice = None;
    let options = &mut app.options;
    match name {
        "temperature" => options.sampling.temperature = number(0.0, 100.0)?,
        "top_k" if value == "default" => options.sampling.top_k = None,
        "top_k" => options.sampling.top_k = Some(value.parse().ok()?),
        "top_p" => options.sampling.top_p = number(0.0, 1.0)?,
        "min_p" => options.sampling.min_p = number(0.0, 1.0)?,
        "repetition_penalty" => options.sampling.repetition_penalty = number(0.01, 100.0)?,
        "seed" if none => options.seed = None,
        "seed" => options.seed = Some(value.parse().ok()?),
        "max_tokens" if none => options.max_tokens = None,
        "max_tokens" => options.max_tokens = Some(value.parse().ok().filter(|n| *n > 0)?),
        "max_think" if value == "default" => options.max_think = None,
        "max_think" if none => options.max_think = Some(0),
        "max_think" => options.max_think = Some(value.parse().ok()?),
        "kv_limit" => {
            options.kv_limit = if none { None } else { Some(value.parse::<ByteSize>().ok()?.0) };
            return Some(vec![Effect::Engine(Command::SetKvLimit(options.kv_limit))]);
        }
        "mouse" => {
            let on = match value {
                "on" => true,
                "off" => false,
                _ => return None,
            };
            return Some(set_mouse(app, on));
        }
        "think" if matches!(value, "on" | "off") => return Some(think(app, value)),
        "keep_thinking" if matches!(value, "on" | "off" | "auto") => return Some(keep_thinking(app, value)),
        "width" if value.parse::<Width>().is_ok() => return Some(chains::parallel(app, value)),
        "theme" => return Some(theme(app, value)),
        "keep_ratio" if value == "trained" || value.parse::<f32>().is_ok() => return Some(forget(app, value)),
        _ => return None,
    }
    Some(Vec::new())
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn settings_table(app: &App) -> String {
    let rows = SETTINGS.iter().zip(settings(app)).map(|((name, help), value)| format!("{name:<20} {value:<12} {help}"));
    rows.collect::<Vec<_>>().join("\n")
}

/// The values of [`SETTINGS`].
fn settings(app: &App) -> [String; SETTINGS.len()] {
    let (o, sampling) = (&app.options, app.sampling());
    let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
    [
        sampling.temperature.to_string(),
        sampling.top_k.to_string(),
        sampling.top_p.to_string(),
        sampling.min_p.to_string(),
        sampling.repetition_penalty.to_string(),
        or(o.seed.map(|s| s.to_string()), "random"),
        or(o.max_tokens.map(|m| m.to_string()), "none"),
        or(app.engine.info.as_ref().and_then(|info| info.max_think(o.max_think)).map(|m| m.to_string()), "none"),
        or(o.kv_limit.map(|l| l.to_string()), "none"),
        on_or_off(app.mouse).to_owned(),
        on_or_off(o.think).to_owned(),
        o.keep_thinking.map_or("auto", on_or_off).to_owned(),
        match o.width {
            Width::Auto => "auto".to_owned(),
            Width::Chains(n) => n.to_string(),
        },
        app.theme.name.clone(),
        app.engine.keep.map_or("trained".to_owned(), |(ratio, _)| format!("{ratio:.1}")),
    ]
}

/// Captures the mouse, or releases it to the terminal.
pub fn set_mouse(app: &mut App, on: bool) -> Vec<Effect> {
    app.mouse = on;
    app.say(
        Level::Info,
        if on { "the wheel scrolls the conversation" } else { "mouse released: select text as usual" },
    );
    vec![Effect::Mouse(on)]
}

fn system(app: &mut App, argument: &str) -> Vec<Effect> {
    if argument.is_empty() {
        let text = match app.chat.system() {
            Some(system) => format!("system prompt: {}", clean_line(system)),
            None => "no system prompt; /system TEXT sets one".to_owned(),
        };
        return info(app, text);
    }
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    app.chat.set_system(if argument == "none" { "" } else { argument });
    let again =
        if app.tokens() > 0 { format!("; {}", texts::refill(app.engine.snapshot.as_deref())) } else { String::new() };
    info(app, format!("system prompt {}{again}", if argument == "none" { "removed" } else { "set" }));
    vec![Effect::Store(Store::Sync)]
}

/// Copies messages as their source text, byte for byte (/copy and the copy key).
pub fn copy(app: &mut App, argument: &str) -> Vec<Effect> {
    if argument == "all" {
        let text = whole(app);
        return vec![Effect::Copy { text, what: "conversation".into() }];
    }
    let answers: Vec<String> = {
        let path = app.chat.path();
        path.iter().rev().filter(|m| m.role == Role::Assistant).map(|m| m.shown().to_owned()).collect()
    };
    if argument == "code" {
        let code = answers.iter().find_map(|a| markdown::code_blocks(a).pop());
        return match code {
            Some(text) => vec![Effect::Copy { text, what: "code".into() }],
            None => refuse(app, "copy", "there is no code block in the answers"),
        };
    }
    if argument.is_empty() {
        let target = app.target().map(|m| (m.shown().to_owned(), m.role));
        return match target {
            Some((text, role)) if !text.is_empty() => {
                let what = if role == Role::User { "message" } else { "answer" };
                vec![Effect::Copy { text, what: what.into() }]
            }
            _ => refuse(app, "copy", "nothing was said yet"),
        };
    }
    match argument.parse::<usize>().ok().filter(|n| *n > 0) {
        Some(n) => match answers.get(n - 1) {
            Some(text) => vec![Effect::Copy { text: text.clone(), what: format!("answer {n} from the end") }],
            None => {
                let all = plural(answers.len() as u64, "answer");
                refuse(app, "copy", format!("no answer {n} from the end; this conversation has {all}"))
            }
        },
        None => error(app, format!("/copy takes a number, code or all, not {:?}", clean_line(argument))),
    }
}

/// Returns the whole conversation as source text.
fn whole(app: &App) -> String {
    let messages = app.chat.path().into_iter().map(|m| {
        let who = if m.role == Role::User { "User" } else { "Assistant" };
        format!("## {who}\n\n{}\n", m.shown())
    });
    messages.collect::<Vec<_>>().join("\n")
}

fn theme(app: &mut App, name: &str) -> Vec<Effect> {
    if name.is_empty() {
        let names = app.setup.themes.names().join(", ");
        return info(app, format!("theme {}; themes: {names}", app.theme.name));
    }
    match app.setup.themes.load(name) {
        Ok(theme) => {
            app.set_theme(theme);
            info(app, format!("theme {name}"))
        }
        Err(e) => refuse(app, "theme", format!("{e:#}")),
    }
}

/// Shows or hides the panel.
pub fn toggle_panel(app: &mut App) {
    app.panel.hidden = !app.panel.hidden;
    if app.tokens() == 0 && app.chat.path().is_empty() {
        let then = if app.panel.hidden { "stays hidden" } else { "opens with the first message" };
        return app.say(Level::Info, format!("the cache panel {then}"));
    }
    if !app.panel.hidden && crate::ui::widgets::layout(app).panel.is_none() {
        let key = app.setup.keymap.key_of(Action::Inspect);
        app.say(Level::Info, format!("the screen is too small for the panel; {key} shows the cache on all of it"));
    }
}

/// Asks before the open conversation is deleted.
fn ask_delete(app: &mut App) {
    if app.chat.turns() == 0 || app.setup.no_session {
        app.say(Level::Info, "/delete: this conversation has no file");
        return;
    }
    app.ask("Delete this conversation's file and begin a new one?", Confirmed::DeleteCurrent);
}
