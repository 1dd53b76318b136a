//! Carries out actions of the keymap, and sends the input.

use super::completion::{accept_partial_command, attach_mentions, chooses_file, complete, input_changed, type_fast};
use super::{files, shell, stop, turns};
use crate::ui::action::Action;
use crate::ui::burst::Enter;
use crate::ui::commands::{self, set};
use crate::ui::effect::Effect;
use crate::ui::numbers::NOT_REPORTED;
use crate::ui::overlay::{history::HistorySearch, inspect::Inspect};
use crate::ui::prompts;
use crate::ui::shell::parse as is_shell;
use crate::ui::spelling::{glued, parse};
use crate::ui::state::{App, EngineView, NO_MODEL};
use crate::ui::text::on_or_off;
use crate::ui::widgets::{self, welcome};

/// Carries out an action of the keymap.
pub fn act(app: &mut App, action: Action) {
    let page = app.feed.height.saturating_sub(2).max(1) as isize;
    match action {
        Action::Send => send(app),
        Action::Newline => {
            app.by_hand(|app| app.input.insert("\n"));
            input_changed(app);
        }
        Action::Stop => stop::stop_or_close(app),
        Action::Interrupt => stop::interrupt(app),
        Action::QuitWhenEmpty if app.input.is_empty() => app.emit(Effect::Quit),
        Action::QuitWhenEmpty => edit(app, Action::Delete),
        Action::Complete => complete(app),
        Action::HistoryOlder | Action::HistoryNewer => vertical(app, action == Action::HistoryNewer),
        Action::SearchHistory => app.open(HistorySearch::new(app)),
        // With text in the input, Ctrl+F moves right as in Emacs.
        Action::Find if !app.input.is_empty() && app.feed.selected.is_none() => edit(app, Action::Right),
        Action::Find | Action::Help | Action::Models | Action::Panel | Action::Sessions | Action::Copy => {
            commands::run_named(app, action.name(), "");
        }
        Action::Eviction => {
            let EngineView { eviction, eviction_asked, eviction_later, .. } = app.engine;
            let now = eviction_later.or(eviction_asked).unwrap_or(eviction);
            commands::run_named(app, "eviction", on_or_off(!now));
        }
        Action::ExternalEditor => app.emit(Effect::ExternalEditor(app.input.expanded().into_owned())),
        Action::PageUp => app.feed.scroll(-page),
        Action::PageDown => app.feed.scroll(page),
        Action::LineUp => app.feed.scroll(-1),
        Action::LineDown => app.feed.scroll(1),
        Action::ToStart => app.feed.go_to(0),
        Action::ToEnd => app.feed.follow(),
        Action::SelectOlder | Action::SelectNewer => app.feed.select(action == Action::SelectNewer),
        Action::BranchOlder | Action::BranchNewer => turns::switch_branch(app, action == Action::BranchNewer),
        Action::Inspect => open_inspect(app),
        Action::Fold if app.input.open_part() => input_changed(app),
        Action::Fold => match app.feed.fold_target() {
            Some(id) => app.feed.toggle_fold(id),
            None => app.info("no thoughts in view"),
        },
        Action::FoldAll => app.feed.toggle_all(),
        Action::Mouse => drop(set::mouse(app, on_or_off(!app.mouse))),
        Action::Redraw => app.emit(Effect::Redraw),
        Action::Suspend => app.emit(Effect::Suspend),
        other => edit(app, other),
    }
}

/// Opens the cache panel on the whole screen.
fn open_inspect(app: &mut App) {
    if app.engine.info.is_none() {
        return app.info(NO_MODEL);
    }
    if app.engine.info.as_ref().is_some_and(|info| info.is_remote && !info.has_memory) {
        return app.info(format!("which tokens are in the cache is {NOT_REPORTED}"));
    }
    app.open(Inspect::default());
    if app.has_to_refill() && !app.is_busy() {
        files::load_cache(app);
    }
}

fn edit(app: &mut App, action: Action) {
    match action {
        Action::LineStart if app.input.is_empty() => app.feed.go_to(0),
        Action::LineEnd if app.input.is_empty() || !app.feed.is_following() => app.feed.follow(),
        // They bring back text of another time.
        Action::Yank | Action::Undo | Action::Redo => app.input.edit(action),
        _ => app.by_hand(|app| app.input.edit(action)),
    }
    input_changed(app);
}

fn send(app: &mut App) {
    match app.burst.enter(app.now_ms) {
        Enter::Send => submit(app),
        Enter::Wait => {}
        Enter::Newline => type_fast(app, "\n"),
    }
}

/// Sends the input as a command or a message. The next text begins in insert mode.
pub fn submit(app: &mut App) {
    submit_input(app);
    if app.input.is_empty() {
        app.vim.insert();
    }
}

fn submit_input(app: &mut App) {
    if chooses_file(app) {
        return complete(app);
    }
    if app.input.text()[..app.input.caret()].ends_with('\\') {
        app.input.edit(Action::Backspace);
        return app.input.insert("\n");
    }
    if !accept_partial_command(app) {
        return;
    }
    let text = app.input.expanded().into_owned();
    if text.trim().is_empty() {
        if welcome::leads_to_models(app) {
            return commands::run_named(app, Action::Models.name(), "");
        }
        return turns::send_next(app);
    }
    (app.notice, app.ran) = (None, None);
    app.completion = None;
    if app.editing.is_none() && is_shell(&text).is_some() {
        return shell::submit(app);
    }
    if attach_mentions(app) {
        return;
    }
    match parse(text.trim()).filter(|_| app.editing.is_none()) {
        // A refused command stays in the input, and another one was typed behind it.
        None if glued(text.trim()).is_some_and(|name| commands::read(name, "").is_ok()) => {
            let word = text.split_whitespace().next().unwrap_or_default().to_owned();
            app.error(format!("no command {word}; /{word} sends it as a message"));
        }
        None => turns::ask(app),
        Some((name, argument)) if commands::find(name).is_none() && prompts::exists(app, name) => {
            app.history.push(&text);
            let line = app.input.take();
            if !prompts::send(app, name, argument) {
                app.input.set(&line);
            }
        }
        Some((name, argument)) => match commands::read(name, argument) {
            Ok(command) => {
                prompts::say_hidden(app, name);
                app.history.push(&text);
                let line = app.input.take();
                app.paid = app.priced.take().as_ref() == Some(&line);
                app.ran = Some((command.name, line.clone()));
                if !commands::run(app, command, argument) {
                    // To be corrected, or confirmed.
                    app.ran = None;
                    app.input.set(&line);
                    // The next slash begins another command.
                    app.given_back = Some(line.clone());
                    app.priced = Some(line);
                }
            }
            // It stays in the input to be corrected.
            Err(mistake) => app.error(mistake),
        },
    }
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
        None if down => app.input.edit(Action::LineEnd),
        None => app.input.edit(Action::LineStart),
    }
}
