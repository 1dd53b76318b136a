//! Keys, pastes and the mouse, while the chat itself has them.

use super::{Effect, commands, files, find, overlay, turns};
use crate::ui::action::Action;
use crate::ui::attach::Attachment;
use crate::ui::burst::Enter;
use crate::ui::commands as slash;
use crate::ui::examples::offered;
use crate::ui::feed::ItemKey;
use crate::ui::keymap::Key;
use crate::ui::state::{About, App, Level, Loading, MIN_SIZE, Overlay};
use crate::ui::text::clean_line;
use crate::ui::widgets;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

const WHEEL_ROWS: isize = 3;

/// A key was pressed.
pub fn key(app: &mut App, event: KeyEvent) -> Vec<Effect> {
    if event.kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key = Key::of(&event);
    let mut effects = Vec::new();
    if app.size.0 < MIN_SIZE.0 || app.size.1 < MIN_SIZE.1 {
        // Nothing can be seen: keys that leave or stop, and no others.
        return match app.keymap_action(key) {
            Some(a @ (Action::Interrupt | Action::QuitWhenEmpty | Action::Stop | Action::Suspend)) => act(app, a),
            _ => effects,
        };
    }
    if !app.overlays.is_empty() {
        return overlay::key(app, key);
    }
    if let Some(text) = typed(key) {
        let pasted = app.burst.is_fast(app.now_ms);
        if app.burst.typed(app.now_ms) {
            app.input.insert("\n");
        }
        if text == "/" && !pasted {
            set_aside(app);
        }
        type_text(app, &text);
        return effects;
    }
    let action = app.keymap_action(key);
    if app.burst.hold_ms().is_some() && app.burst.typed(app.now_ms) {
        match action {
            Some(Action::Send) => app.input.insert("\n"),
            _ => effects.append(&mut submit(app)),
        }
    }
    if app.asked() == About::Quit && action != Some(Action::Interrupt) {
        app.notice = None;
    }
    match action {
        Some(action) => effects.append(&mut act(app, action)),
        None if key.code == KeyCode::Char('1') || key.code == KeyCode::Char('2') || key.code == KeyCode::Char('3') => {
            effects.append(&mut example_key(app, key));
        }
        None => {}
    }
    effects
}

/// The text that a key types, if it types any.
fn typed(key: Key) -> Option<String> {
    match key.code {
        KeyCode::Char(c) if key.modifiers.is_empty() => Some(c.to_string()),
        _ => None,
    }
}

/// A slash that begins a command sets the draft aside: before its first character, and behind a
/// text that the program itself put into the input.
fn set_aside(app: &mut App) {
    let input = &app.input;
    let before = input.caret() == 0 && !input.text().starts_with('/');
    let given = app.given_back.as_deref() == Some(&*input.expanded());
    if !input.is_empty() && app.editing.is_none() && (before || given) {
        app.aside = Some(app.input.take());
    }
}

fn type_text(app: &mut App, text: &str) {
    app.notice = None;
    app.input.insert(text);
    input_changed(app);
}

fn example_key(app: &mut App, key: Key) -> Vec<Effect> {
    if let (KeyCode::Char(c), KeyModifiers::ALT) = (key.code, key.modifiers)
        && let Some(example) = c.to_digit(10).and_then(|n| offered(&app.engine).get((n as usize).wrapping_sub(1)))
    {
        app.input.set(example);
        input_changed(app);
    }
    Vec::new()
}

/// A bracketed paste: never sends.
pub fn paste(app: &mut App, text: &str) -> Vec<Effect> {
    if overlay::paste(app, text) {
        return Vec::new();
    }
    app.notice = None;
    if app.input.paste(text) {
        let key = app.setup.keymap.key_of(Action::Fold);
        app.say(Level::Info, format!("the paste is folded and sent whole; {key} beside it opens it"));
    }
    input_changed(app);
    app.completion = None;
    Vec::new()
}

/// A file was read: it takes the place of its name in the input.
pub fn attached(app: &mut App, typed: &str, read: Result<Attachment, String>) -> Vec<Effect> {
    match read {
        Err(why) => app.say(Level::Error, why),
        Ok(Attachment { label, text }) if app.input.attach(typed, &text, label.clone()) => {
            app.say(Level::Info, format!("attached {label}"));
            input_changed(app);
        }
        Ok(_) => app.say(Level::Info, format!("not attached: {} left the input", clean_line(typed))),
    }
    Vec::new()
}

/// Offers completions for what now stands in the input.
pub fn input_changed(app: &mut App) {
    let themes = app.setup.themes.clone();
    let sources =
        slash::Sources { themes: &|| themes.names(), models: &app.cached_models, paths: &crate::ui::paths::complete };
    app.completion = slash::complete(app.input.text(), app.input.caret(), &sources);
}

/// Time has passed: a held Enter was the last key after all.
pub fn tick(app: &mut App) -> Vec<Effect> {
    if app.burst.due(app.now_ms) { submit(app) } else { Vec::new() }
}

/// The mouse: the wheel scrolls, a click on a thought's line opens or folds it.
pub fn mouse(app: &mut App, event: MouseEvent) -> Vec<Effect> {
    if !app.overlays.is_empty() {
        match event.kind {
            MouseEventKind::ScrollUp => return overlay::scroll(app, false),
            MouseEventKind::ScrollDown => return overlay::scroll(app, true),
            _ => return Vec::new(),
        }
    }
    match event.kind {
        MouseEventKind::ScrollUp => app.feed.scroll(-WHEEL_ROWS),
        MouseEventKind::ScrollDown => app.feed.scroll(WHEEL_ROWS),
        MouseEventKind::Down(MouseButton::Left) => {
            if let Some(ItemKey::Message(id)) = fold_line_at(app, event.column, event.row) {
                app.feed.toggle_fold(id);
            }
        }
        _ => {}
    }
    Vec::new()
}

/// The item whose thoughts a click at this cell opens or folds.
fn fold_line_at(app: &App, column: u16, row: u16) -> Option<ItemKey> {
    let pane = widgets::layout(app).conversation;
    if !pane.contains(ratatui::layout::Position { x: column, y: row }) {
        return None;
    }
    // A short conversation stands at the bottom of the pane.
    let above = usize::from(pane.height).saturating_sub(app.feed.total());
    let at = app.feed.locate(app.feed.top() + usize::from(row - pane.y).checked_sub(above)?);
    let key = *app.feed.items.get(at.item)?;
    (app.feed.rows.get(&key)?.fold_row == Some(at.row)).then_some(key)
}

/// Does what a key means in the chat.
pub fn act(app: &mut App, action: Action) -> Vec<Effect> {
    match action {
        Action::Send => return send(app),
        Action::Newline => {
            app.input.insert("\n");
            input_changed(app);
        }
        Action::Stop => return stop_or_close(app),
        Action::Interrupt => return interrupt(app),
        Action::QuitWhenEmpty if app.input.is_empty() => return vec![Effect::Quit],
        Action::QuitWhenEmpty => return edit(app, Action::Delete),
        Action::Complete => return complete(app),
        Action::HistoryOlder | Action::HistoryNewer => vertical(app, action == Action::HistoryNewer),
        Action::SearchHistory => {
            app.overlays.push(Overlay::HistorySearch { query: Default::default(), selected: 0 });
        }
        // What Ctrl+F means to emacs, while there is a text to move in.
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
        Action::Help => app.overlays.push(Overlay::Help { scroll: 0 }),
        Action::Panel => overlay::toggle_panel(app),
        Action::Inspect => return overlay::open_inspect(app),
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
            app.input.insert("\n");
            input_changed(app);
            Vec::new()
        }
    }
}

/// Sends what stands in the input, as a command or a message.
pub fn submit(app: &mut App) -> Vec<Effect> {
    if completes_file(app) {
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
    if app.editing.is_none()
        && let Some((name, argument)) = slash::parse(text.trim())
    {
        if slash::spec(name).is_none() {
            let near = slash::nearest(name, slash::SPECS.iter().map(|s| s.name));
            let hint = near.map_or_else(|| "/help lists them".to_owned(), |n| format!("did you mean /{n}?"));
            app.say(Level::Error, format!("no command /{name}; {hint}"));
            return Vec::new();
        }
        let argument = argument.to_owned();
        let name = slash::canonical(name).to_owned();
        app.history.push(&text);
        app.input.take();
        return commands::run(app, &name, &argument);
    }
    turns::ask(app)
}

/// Enter on a command that is not written out completes it. True when it can be run as it stands:
/// it was typed in full, or chosen in the list.
fn accept_partial_command(app: &mut App) -> bool {
    let Some(completion) = &app.completion else { return true };
    let known = slash::parse(app.input.text()).is_some_and(|(name, _)| slash::spec(name).is_some());
    if completion.start != 0 || known || !app.input.text().starts_with('/') {
        return true;
    }
    let chosen = completion.selected > 0;
    complete(app);
    let spec = slash::parse(app.input.text()).and_then(|(name, _)| slash::spec(name));
    chosen && spec.is_some_and(|s| s.usage.is_empty() || s.usage.starts_with('['))
}

/// The file whose name is typed out is the one that would be attached.
fn completes_file(app: &App) -> bool {
    let chosen = app.completion.as_ref().and_then(|c| Some((c.start, c.candidates.get(c.selected)?)));
    chosen.is_some_and(|(start, candidate)| {
        let typed = app.input.text().get(start..app.input.caret());
        slash::attachment(&candidate.insert).is_some() && typed == Some(&*candidate.insert)
    })
}

fn complete(app: &mut App) -> Vec<Effect> {
    if let Some(completion) = &app.completion
        && let Some(candidate) = completion.candidates.get(completion.selected)
    {
        let (start, insert) = (completion.start, candidate.insert.clone());
        app.input.replace_before_caret(start, &insert);
        if let Some(path) = slash::attachment(&insert) {
            app.completion = None;
            return vec![Effect::Attach { typed: insert.clone(), path: path.to_owned() }];
        }
        input_changed(app);
        return Vec::new();
    }
    if app.burst.is_fast(app.now_ms) && !app.input.is_empty() {
        // A pasted tab.
        app.burst.typed(app.now_ms);
        app.input.insert("\t");
    } else if app.chat.path().is_empty() {
        let examples = offered(&app.engine);
        let at = examples.iter().position(|e| *e == app.input.text());
        if app.input.is_empty() || at.is_some() {
            app.input.set(examples[at.map_or(0, |i| (i + 1) % examples.len())]);
        }
    }
    Vec::new()
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

fn stop_or_close(app: &mut App) -> Vec<Effect> {
    let asked = app.asked();
    app.notice = None;
    if app.completion.take().is_some() {
        return Vec::new();
    }
    if app.aside.is_some() {
        // The draft that was set aside returns.
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

/// Stops what runs; else clears the draft; else asks once more before it stops loading or quits.
fn interrupt(app: &mut App) -> Vec<Effect> {
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

/// Stops the answer or rebuild that runs, or the conversation that is being read.
fn stop(app: &mut App) -> Vec<Effect> {
    if app.opening {
        return files::stop_opening(app);
    }
    if let Some(turn) = &mut app.turn {
        turn.stopping = true;
    }
    vec![Effect::Engine(crate::protocol::Command::Cancel)]
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
        Loading { download: Some(_), .. } => {
            format!("the download of {name} stopped; what has come is kept, and /model {name} goes on with it")
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

impl App {
    pub fn keymap_action(&self, key: Key) -> Option<Action> {
        self.setup.keymap.action(key)
    }
}
