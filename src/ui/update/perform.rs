//! Carries out intents: the one place where keys, commands and lists come together.

use super::completion::{accept_partial_command, attach_mentions, chooses_file, complete, input_changed};
use super::texts::NO_MODEL;
use super::{Effect, Store, commands, engine, files, find, keys, models, recall, stop, turns};
use crate::protocol::Command;
use crate::ui::action::Action;
use crate::ui::burst::Enter;
use crate::ui::commands as slash;
use crate::ui::intent::Intent;
use crate::ui::state::{App, Confirmed, Inspect, Level, Overlay};
use crate::ui::text::clean_line;
use crate::ui::widgets;

pub fn perform(app: &mut App, intent: Intent) -> Vec<Effect> {
    match intent {
        Intent::Act(action) => act(app, action),
        Intent::Submit => submit(app),
        Intent::Open(which) => files::open(app, which),
        Intent::Rename { id, title } => files::rename_saved(app, id, title),
        Intent::Load(_) if turns::refuse_busy(app) => Vec::new(),
        Intent::Load(name) => models::load(app, &name),
        Intent::Inspect => engine::inspect_again(app),
        Intent::Recall { text, tokens } => recall::ask_on_page(app, text, tokens),
        Intent::PinTokens { .. } if turns::refuse_busy(app) => Vec::new(),
        Intent::PinTokens { tokens, pin } => vec![Effect::Engine(Command::PinTokens { tokens, pin })],
        Intent::Confirmed(confirmed) => confirm(app, confirmed),
    }
}

fn confirm(app: &mut App, confirmed: Confirmed) -> Vec<Effect> {
    let store = match confirmed {
        Confirmed::Pin(text) => return vec![Effect::Engine(Command::Pin { text, ask: false })],
        Confirmed::Unpin(text) => return vec![Effect::Engine(Command::Unpin(text))],
        Confirmed::DeleteSession(id) => {
            return vec![Effect::Store(Store::Delete { id }), Effect::Store(Store::List)];
        }
        Confirmed::DeleteCurrent if turns::refuse_busy(app) => return Vec::new(),
        // Its cache is not written once more.
        Confirmed::DeleteCurrent => {
            return vec![Effect::Engine(Command::KeepCache(None)), Effect::Store(Store::DeleteCurrent)];
        }
        Confirmed::Leave(then) => Store::Leave(Box::new(then)),
        Confirmed::OpenWithCurrent(which) => return files::open_with_current(app, which),
        Confirmed::OverwriteFile { path, export: false } => Store::Save { path: Some(path), overwrite: true },
        Confirmed::OverwriteFile { path, export: true } => Store::Export { path, overwrite: true },
    };
    vec![Effect::Store(store)]
}

/// Carries out an action of the keymap.
fn act(app: &mut App, action: Action) -> Vec<Effect> {
    match action {
        Action::Send => return send(app),
        Action::Newline => {
            app.input.insert("\n");
            input_changed(app);
        }
        Action::Stop => return stop::stop_or_close(app),
        Action::Interrupt => return stop::interrupt(app),
        Action::QuitWhenEmpty if app.input.is_empty() => return vec![Effect::Quit],
        Action::QuitWhenEmpty => return edit(app, Action::Delete),
        Action::Complete => return complete(app),
        Action::HistoryOlder | Action::HistoryNewer => vertical(app, action == Action::HistoryNewer),
        Action::SearchHistory => {
            app.overlays.push(Overlay::HistorySearch { query: Default::default(), selected: 0 });
        }
        // With text in the input, Ctrl+F moves right as in Emacs.
        Action::Find if !app.input.is_empty() && app.feed.selected.is_none() => return edit(app, Action::Right),
        Action::Find => find::open(app, ""),
        Action::ExternalEditor => return vec![Effect::ExternalEditor(app.input.expanded().into_owned())],
        Action::PageUp => app.feed.scroll(-(app.feed.height.saturating_sub(2).max(1) as isize)),
        Action::PageDown => app.feed.scroll(app.feed.height.saturating_sub(2).max(1) as isize),
        Action::LineUp => app.feed.scroll(-1),
        Action::LineDown => app.feed.scroll(1),
        Action::ToStart => app.feed.go_to(0),
        Action::ToEnd => app.feed.follow(),
        Action::SelectOlder => app.feed.select(false),
        Action::SelectNewer => app.feed.select(true),
        Action::BranchOlder => return turns::switch_branch(app, false),
        Action::BranchNewer => return turns::switch_branch(app, true),
        Action::Help => return commands::run(app, "help", ""),
        Action::Panel => commands::toggle_panel(app),
        Action::Inspect => return open_inspect(app),
        Action::Eviction => return commands::set_eviction(app, !app.engine.eviction),
        Action::Fold if app.input.open_part() => input_changed(app),
        Action::Fold => fold(app),
        Action::FoldAll => app.feed.toggle_all(),
        Action::Sessions => return commands::run(app, "sessions", ""),
        Action::Copy => return commands::copy(app, ""),
        Action::Mouse => return commands::set_mouse(app, !app.mouse),
        Action::Redraw => return vec![Effect::Redraw],
        Action::Suspend => return vec![Effect::Suspend],
        other => return edit(app, other),
    }
    Vec::new()
}

/// Opens the cache panel on the whole screen.
fn open_inspect(app: &mut App) -> Vec<Effect> {
    if app.engine.info.is_none() {
        app.say(Level::Info, NO_MODEL);
        return Vec::new();
    }
    app.overlays.push(Overlay::Inspect(Inspect::default()));
    if app.session.unrestored && app.has_to_refill() && !app.is_busy() {
        app.engine.restoring = true;
        return vec![Effect::Restore];
    }
    engine::inspect_again(app)
}

fn fold(app: &mut App) {
    match app.feed.fold_target() {
        Some(id) => app.feed.toggle_fold(id),
        None => app.say(Level::Info, "no thoughts in view"),
    }
}

fn edit(app: &mut App, action: Action) -> Vec<Effect> {
    let input = &mut app.input;
    match action {
        Action::LineStart if input.is_empty() => app.feed.go_to(0),
        Action::LineEnd if input.is_empty() || !app.feed.is_following() => app.feed.follow(),
        Action::Left => input.left(),
        Action::Right => input.right(),
        Action::WordLeft => input.word_left(),
        Action::WordRight => input.word_right(),
        Action::LineStart => input.to_line_start(),
        Action::LineEnd => input.to_line_end(),
        Action::Backspace => input.backspace(),
        Action::Delete => input.delete_forward(),
        Action::DeleteWord => input.delete_word(),
        Action::DeleteWordForward => input.delete_word_forward(),
        Action::KillToStart => input.kill_to_line_start(),
        Action::KillToEnd => input.kill_to_line_end(),
        Action::Yank => input.yank(),
        Action::Undo => input.undo(),
        Action::Redo => input.redo(),
        _ => {}
    }
    input_changed(app);
    Vec::new()
}

fn send(app: &mut App) -> Vec<Effect> {
    match app.burst.enter(app.now_ms) {
        Enter::Send => submit(app),
        Enter::Wait => Vec::new(),
        Enter::Newline => {
            keys::type_fast(app, "\n");
            Vec::new()
        }
    }
}

/// Sends the input as a command or a message.
fn submit(app: &mut App) -> Vec<Effect> {
    if chooses_file(app) {
        return complete(app);
    }
    if app.input.text()[..app.input.caret()].ends_with('\\') {
        app.input.backspace();
        app.input.insert("\n");
        return Vec::new();
    }
    if !accept_partial_command(app) {
        return Vec::new();
    }
    let text = app.input.expanded().into_owned();
    if text.trim().is_empty() {
        return turns::send_next(app);
    }
    app.notice = None;
    app.completion = None;
    let files = attach_mentions(app);
    if !files.is_empty() {
        return files;
    }
    if app.editing.is_none()
        && let Some((name, argument)) = slash::parse(text.trim())
    {
        let Some(spec) = slash::spec(name) else {
            let names = slash::SPECS.iter().map(|s| s.name).chain(slash::ALIASES.iter().map(|(alias, _)| *alias));
            let near = slash::nearest(name, names).map(slash::canonical);
            let hint = near.map_or_else(|| "/help lists them".to_owned(), |n| format!("did you mean /{n}?"));
            app.say(Level::Error, format!("no command /{name}; {hint}"));
            return Vec::new();
        };
        if spec.argument == slash::Argument::None && !argument.is_empty() {
            let text = format!("/{name} takes nothing behind it, not {:?}; nothing was done", clean_line(argument));
            app.say(Level::Error, text);
            return Vec::new();
        }
        let (name, argument) = (spec.name, argument.to_owned());
        app.history.push(&text);
        app.input.take();
        return commands::run(app, name, &argument);
    }
    turns::ask(app)
}

fn vertical(app: &mut App, down: bool) {
    if let Some(completion) = &mut app.completion {
        let n = completion.candidates.len();
        completion.selected = (completion.selected + if down { 1 } else { n - 1 }) % n;
        return;
    }
    let width = widgets::layout(app).input_width();
    let moved = if down { app.input.down(width) } else { app.input.up(width) };
    if moved {
        return;
    }
    let recalled = if down { app.history.newer() } else { app.history.older(&app.input.expanded()) };
    match recalled {
        Some(text) => app.input.set(&text),
        None if down => app.input.to_line_end(),
        None => app.input.to_line_start(),
    }
}
