//! Keys while something lies over the chat: help, the large panel, the list of conversations, the
//! history search, questions.

use super::{Effect, Store, Which, engine, files, find, keys, models, turns};
use crate::ui::action::Action;
use crate::ui::keymap::Key;
use crate::ui::state::{App, Confirmed, Inspect, Level, Overlay, Picker, SessionEntry};
use crate::ui::text::clean_line;
use crossterm::event::KeyCode;
use std::path::PathBuf;

pub(super) const PAGE: usize = 10;

/// A key for the topmost overlay.
pub fn key(app: &mut App, key: Key) -> Vec<Effect> {
    let action = app.keymap_action(key);
    app.notice = None;
    match action {
        Some(Action::Stop | Action::Interrupt | Action::QuitWhenEmpty) => return close(app),
        Some(Action::Suspend) => return vec![Effect::Suspend],
        Some(Action::Redraw) => return vec![Effect::Redraw],
        _ => {}
    }
    match app.overlays.last_mut() {
        Some(Overlay::Help { .. }) => match (key.code, action) {
            (KeyCode::Char('q') | KeyCode::Enter, _) | (_, Some(Action::Help)) => return close(app),
            _ => scroll_key(app, key.code),
        },
        Some(Overlay::Inspect(_)) => return inspect_key(app, key.code, action),
        Some(Overlay::Sessions(_)) => return picker_key(app, key, action),
        Some(Overlay::Find(_)) => return find::key(app, key, action),
        Some(Overlay::Models(_)) => return models::key(app, key, action),
        Some(Overlay::HistorySearch { .. }) => return history_key(app, key, action),
        Some(Overlay::Confirm(_)) => return confirm_key(app, key),
        None => {}
    }
    Vec::new()
}

fn close(app: &mut App) -> Vec<Effect> {
    if let Some(Overlay::Sessions(picker)) = app.overlays.last_mut()
        && picker.renaming.take().is_some()
    {
        return Vec::new();
    }
    app.overlays.pop();
    Vec::new()
}

/// The wheel over an overlay.
pub fn scroll(app: &mut App, down: bool) -> Vec<Effect> {
    match app.overlays.last_mut() {
        Some(Overlay::Help { scroll }) => *scroll = if down { *scroll + 3 } else { scroll.saturating_sub(3) },
        Some(Overlay::Sessions(picker)) => move_selected(&mut picker.selected, picker.entries.len(), down, 1),
        Some(Overlay::Find(_)) => app.feed.scroll(if down { 3 } else { -3 }),
        Some(Overlay::Models(picker)) => {
            let count = picker.matching().len();
            move_selected(&mut picker.selected, count, down, 1);
        }
        _ => {}
    }
    Vec::new()
}

/// Pasted text goes to a field of the overlay. True when an overlay took it.
pub fn paste(app: &mut App, text: &str) -> bool {
    let line = text.replace(['\r', '\n'], " ");
    match app.overlays.last_mut() {
        Some(Overlay::Sessions(Picker { renaming: Some((_, title)), .. })) => title.insert(&line),
        Some(Overlay::Sessions(picker)) => picker.query.insert(&line),
        Some(Overlay::Models(picker)) => picker.query.insert(&line),
        Some(Overlay::Find(bar)) => {
            bar.query.insert(&line);
            find::changed(app);
        }
        Some(Overlay::HistorySearch { query, .. }) => query.insert(&line),
        None => return false,
        Some(_) => {}
    }
    true
}

fn scroll_key(app: &mut App, code: KeyCode) {
    let Some(Overlay::Help { scroll }) = app.overlays.last_mut() else { return };
    match code {
        KeyCode::Up => *scroll = scroll.saturating_sub(1),
        KeyCode::Down => *scroll += 1,
        KeyCode::PageUp => *scroll = scroll.saturating_sub(PAGE),
        KeyCode::PageDown | KeyCode::Char(' ') => *scroll += PAGE,
        KeyCode::Home => *scroll = 0,
        KeyCode::End => *scroll = usize::MAX / 2,
        _ => {}
    }
}

/// Shows or hides the panel.
pub fn toggle_panel(app: &mut App) {
    app.panel.hidden = !app.panel.hidden;
    if !app.panel.hidden && crate::ui::widgets::layout(app).panel.is_none() {
        let key = app.setup.keymap.key_of(Action::Inspect);
        app.say(Level::Info, format!("the screen is too small for the panel; {key} shows the cache on all of it"));
    }
}

/// The cache on the whole screen, or back.
pub fn open_inspect(app: &mut App) -> Vec<Effect> {
    if app.engine.info.is_none() {
        app.say(Level::Info, "no model is loaded yet");
        return Vec::new();
    }
    app.overlays.push(Overlay::Inspect(Inspect::default()));
    engine::inspect_again(app)
}

fn inspect_key(app: &mut App, code: KeyCode, action: Option<Action>) -> Vec<Effect> {
    let (layers, heads) = app.engine.info.as_ref().map_or((1, 1), |i| (i.n_layers.max(1), i.n_kv_heads.max(1)));
    let Some(Overlay::Inspect(inspect)) = app.overlays.last_mut() else { return Vec::new() };
    match code {
        KeyCode::Up => inspect.layer = inspect.layer.saturating_sub(1),
        KeyCode::Down => inspect.layer = (inspect.layer + 1).min(layers - 1),
        KeyCode::Left => inspect.head = inspect.head.saturating_sub(1),
        KeyCode::Right => inspect.head = (inspect.head + 1).min(heads - 1),
        KeyCode::PageUp => inspect.layer = inspect.layer.saturating_sub(PAGE),
        KeyCode::PageDown => inspect.layer = (inspect.layer + PAGE).min(layers - 1),
        KeyCode::Home => (inspect.layer, inspect.head) = (0, 0),
        KeyCode::End => (inspect.layer, inspect.head) = (layers - 1, heads - 1),
        KeyCode::Char('q') | KeyCode::Enter => return close(app),
        _ => match action {
            Some(Action::Inspect | Action::Panel) => return close(app),
            Some(action @ (Action::Eviction | Action::Help)) => return keys::act(app, action),
            _ => return Vec::new(),
        },
    }
    engine::inspect_again(app)
}

/// The list of saved conversations has been read.
pub fn sessions(app: &mut App, entries: Vec<SessionEntry>) -> Vec<Effect> {
    if let Some(Overlay::Sessions(picker)) = app.overlays.last_mut() {
        picker.entries = entries;
        picker.selected = picker.selected.min(picker.matching().len().saturating_sub(1));
    } else if entries.is_empty() {
        app.say(Level::Info, "no conversation is saved yet");
    } else {
        app.overlays.push(Overlay::Sessions(Picker { entries, ..Picker::default() }));
    }
    Vec::new()
}

fn picker_key(app: &mut App, key: Key, action: Option<Action>) -> Vec<Effect> {
    let Some(Overlay::Sessions(picker)) = app.overlays.last_mut() else { return Vec::new() };
    if let Some((id, title)) = &mut picker.renaming {
        if key.code == KeyCode::Enter {
            let (id, title) = (id.clone(), title.text().trim().to_owned());
            picker.renaming = None;
            if title.is_empty() {
                return Vec::new();
            }
            let rename = if app.session.id.as_ref() == Some(&id) {
                app.chat.rename(&title);
                Store::Sync
            } else {
                Store::Rename { id, title }
            };
            return vec![Effect::Store(rename), Effect::Store(Store::List)];
        }
        edit_line(title, key, action);
        return Vec::new();
    }
    let chosen = picker.matching().get(picker.selected).map(|e| (e.id.clone(), e.title.clone()));
    let count = picker.matching().len();
    match (key.code, action) {
        (KeyCode::Up, _) => move_selected(&mut picker.selected, count, false, 1),
        (KeyCode::Down, _) => move_selected(&mut picker.selected, count, true, 1),
        (KeyCode::PageUp, _) => move_selected(&mut picker.selected, count, false, PAGE),
        (KeyCode::PageDown, _) => move_selected(&mut picker.selected, count, true, PAGE),
        (KeyCode::Enter, _) => {
            let Some((id, _)) = chosen else { return Vec::new() };
            return files::open(app, Which::Id(id));
        }
        (KeyCode::F(2), _) | (_, Some(Action::SearchHistory)) => {
            if let Some((id, title)) = chosen {
                let mut editor = crate::ui::editor::Editor::default();
                editor.set(&title);
                picker.renaming = Some((id, editor));
            }
        }
        (KeyCode::Delete, _) => {
            if let Some((id, title)) = chosen {
                let question = format!("Delete {:?}? Its file is removed.", clean_line(&title));
                app.ask(question, Confirmed::DeleteSession(id));
            }
        }
        (_, Some(Action::Sessions)) => return close(app),
        _ => {
            edit_line(&mut picker.query, key, action);
            picker.selected = picker.selected.min(picker.matching().len().saturating_sub(1));
        }
    }
    Vec::new()
}

fn history_key(app: &mut App, key: Key, action: Option<Action>) -> Vec<Effect> {
    let Some(Overlay::HistorySearch { query, selected }) = app.overlays.last_mut() else { return Vec::new() };
    let found: Vec<String> = app.history.search(query.text()).into_iter().map(str::to_owned).collect();
    match (key.code, action) {
        (KeyCode::Enter | KeyCode::Tab, _) => {
            let chosen = found.get(*selected).cloned();
            app.overlays.pop();
            if let Some(text) = chosen {
                app.input.set(&text);
                keys::input_changed(app);
            }
        }
        (KeyCode::Down, _) | (_, Some(Action::SearchHistory)) => move_selected(selected, found.len(), true, 1),
        (KeyCode::Up, _) => move_selected(selected, found.len(), false, 1),
        _ => {
            edit_line(query, key, action);
            *selected = 0;
        }
    }
    Vec::new()
}

pub(super) fn move_selected(selected: &mut usize, count: usize, down: bool, by: usize) {
    let last = count.saturating_sub(1);
    *selected = if down { (*selected + by).min(last) } else { selected.saturating_sub(by) };
}

/// Keys of a one-line field.
pub(super) fn edit_line(line: &mut crate::ui::editor::Editor, key: Key, action: Option<Action>) {
    match (key.code, action) {
        (KeyCode::Char(c), None) if key.modifiers.is_empty() => line.insert(&c.to_string()),
        (_, Some(Action::Backspace)) => line.backspace(),
        (_, Some(Action::Delete)) => line.delete_forward(),
        (_, Some(Action::DeleteWord)) => line.delete_word(),
        (_, Some(Action::KillToStart)) => line.kill_to_line_start(),
        (_, Some(Action::Left)) => line.left(),
        (_, Some(Action::Right)) => line.right(),
        (_, Some(Action::LineStart)) => line.to_line_start(),
        (_, Some(Action::LineEnd)) => line.to_line_end(),
        _ => {}
    }
}

/// /delete asks first.
pub fn ask_delete(app: &mut App) {
    if app.chat.turns() == 0 || app.setup.no_session {
        app.say(Level::Info, "this conversation has no file");
        return;
    }
    app.ask("Delete this conversation's file and begin a new one?", Confirmed::DeleteCurrent);
}

/// Leaving a conversation whose last records are in no file.
pub fn ask_leave(app: &mut App, why: &str, then: Store) -> Vec<Effect> {
    let question = format!(
        "{why}. Leave this conversation all the same? It is tried again with every answer; what is not saved when you \
         quit goes to a file in {}.",
        clean_line(&std::env::temp_dir().display().to_string())
    );
    app.ask(question, Confirmed::Leave(then));
    Vec::new()
}

/// A file is in the way.
pub fn ask_overwrite(app: &mut App, path: PathBuf, export: bool) -> Vec<Effect> {
    let question = format!("{} exists. Replace it?", clean_line(&path.display().to_string()));
    app.ask(question, Confirmed::OverwriteFile { path, export });
    Vec::new()
}

/// Letters this soon after a question are typed text that it interrupted, and no answer.
const TYPED_MS: u64 = 400;

fn confirm_key(app: &mut App, key: Key) -> Vec<Effect> {
    let Some(Overlay::Confirm(question)) = app.overlays.last() else { return Vec::new() };
    if app.now_ms < question.asked_ms + TYPED_MS {
        if let (KeyCode::Char(c), true) = (key.code, key.modifiers.is_empty()) {
            app.input.insert(&c.to_string());
        }
        return Vec::new();
    }
    match key.code {
        KeyCode::Char('y' | 'Y') | KeyCode::Enter => {}
        KeyCode::Char('n' | 'N') => return close(app),
        _ => return Vec::new(),
    }
    let Some(Overlay::Confirm(question)) = app.overlays.pop() else { return Vec::new() };
    match question.then {
        Confirmed::DeleteSession(id) => vec![Effect::Store(Store::Delete { id }), Effect::Store(Store::List)],
        Confirmed::DeleteCurrent if turns::refuse_busy(app) => Vec::new(),
        Confirmed::DeleteCurrent => vec![Effect::Store(Store::DeleteCurrent)],
        Confirmed::Leave(then) => vec![Effect::Store(Store::Leave(Box::new(then)))],
        Confirmed::OpenWithCurrent(which) => files::open_with_current(app, which),
        Confirmed::OverwriteFile { path, export: false } => {
            vec![Effect::Store(Store::Save { path: Some(path), overwrite: true })]
        }
        Confirmed::OverwriteFile { path, export: true } => {
            vec![Effect::Store(Store::Export { path, overwrite: true })]
        }
    }
}
