//! Keys of overlays: help, the large panel, the list of conversations, the history search, questions.

use super::completion::input_changed;
use super::field::{PAGE, edit_line, move_selected};
use super::{find, inspect, models};
use crate::ui::action::Action;
use crate::ui::effect::Which;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::state::{App, Confirmed, Overlay, Picker};
use crate::ui::text::clean_line;
use crossterm::event::KeyCode;

/// Handles a key of the topmost overlay.
pub fn key(app: &mut App, key: Key) -> Option<Intent> {
    let action = app.keymap_action(key);
    app.notice = None;
    match action {
        Some(Action::Stop | Action::Interrupt | Action::QuitWhenEmpty) => return close(app),
        Some(action @ (Action::Suspend | Action::Redraw)) => return Some(Intent::Act(action)),
        _ => {}
    }
    match app.overlays.last_mut() {
        Some(Overlay::Help { .. }) => match (key.code, action) {
            (KeyCode::Char('q') | KeyCode::Enter, _) | (_, Some(Action::Help)) => return close(app),
            _ => scroll_key(app, key.code),
        },
        Some(Overlay::Inspect(_)) => return inspect::key(app, key, action),
        Some(Overlay::Sessions(_)) => return picker_key(app, key, action),
        Some(Overlay::Find(_)) => find::key(app, key, action),
        Some(Overlay::Models(_)) => return models::key(app, key, action),
        Some(Overlay::HistorySearch { .. }) => return history_key(app, key, action),
        Some(Overlay::Confirm(_)) => return confirm_key(app, key),
        None => {}
    }
    None
}

/// Closes the field open in the topmost overlay, else the overlay.
fn close(app: &mut App) -> Option<Intent> {
    if let Some(Overlay::Sessions(picker)) = app.overlays.last_mut()
        && picker.renaming.take().is_some()
    {
        return None;
    }
    app.overlays.pop();
    None
}

/// Scrolls the topmost overlay by the wheel.
pub fn scroll(app: &mut App, down: bool) {
    match app.overlays.last_mut() {
        Some(Overlay::Help { scroll }) => *scroll = if down { *scroll + 3 } else { scroll.saturating_sub(3) },
        Some(Overlay::Sessions(picker)) => {
            let count = picker.matching().len();
            move_selected(&mut picker.selected, count, down, 1);
        }
        Some(Overlay::Inspect(_)) => inspect::scroll(app, down),
        Some(Overlay::Find(_)) => app.feed.scroll(if down { 3 } else { -3 }),
        Some(Overlay::Models(picker)) => {
            let count = picker.matching().len();
            move_selected(&mut picker.selected, count, down, 1);
        }
        _ => {}
    }
}

/// Inserts pasted text into the field of an overlay. True if an overlay is open.
pub fn paste(app: &mut App, text: &str) -> bool {
    let line = text.replace(['\r', '\n'], " ");
    match app.overlays.last_mut() {
        Some(Overlay::Sessions(Picker { renaming: Some((_, title)), .. })) => title.insert(&line),
        Some(Overlay::Sessions(picker)) => {
            picker.query.insert(&line);
            picker.clamp_selection();
        }
        Some(Overlay::Models(picker)) => {
            picker.query.insert(&line);
            picker.clamp_selection();
        }
        Some(Overlay::Find(bar)) => {
            bar.query.insert(&line);
            find::changed(app);
        }
        Some(Overlay::HistorySearch { query, selected }) => {
            query.insert(&line);
            *selected = 0;
        }
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

fn picker_key(app: &mut App, key: Key, action: Option<Action>) -> Option<Intent> {
    let Some(Overlay::Sessions(picker)) = app.overlays.last_mut() else { return None };
    if let Some((id, title)) = &mut picker.renaming {
        if key.code == KeyCode::Enter {
            let (id, title) = (id.clone(), title.text().trim().to_owned());
            picker.renaming = None;
            if title.is_empty() {
                return None;
            }
            return Some(Intent::Rename { id, title });
        }
        edit_line(title, key, action);
        return None;
    }
    let chosen = picker.matching().get(picker.selected).map(|e| (e.id.clone(), e.title.clone()));
    let count = picker.matching().len();
    match (key.code, action) {
        (KeyCode::Up, _) => move_selected(&mut picker.selected, count, false, 1),
        (KeyCode::Down, _) => move_selected(&mut picker.selected, count, true, 1),
        (KeyCode::PageUp, _) => move_selected(&mut picker.selected, count, false, PAGE),
        (KeyCode::PageDown, _) => move_selected(&mut picker.selected, count, true, PAGE),
        (KeyCode::Enter, _) => {
            let (id, _) = chosen?;
            return Some(Intent::Open(Which::Id(id)));
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
            picker.clamp_selection();
        }
    }
    None
}

fn history_key(app: &mut App, key: Key, action: Option<Action>) -> Option<Intent> {
    let Some(Overlay::HistorySearch { query, selected }) = app.overlays.last_mut() else { return None };
    let found: Vec<String> = app.history.search(query.text()).into_iter().map(str::to_owned).collect();
    match (key.code, action) {
        (KeyCode::Enter | KeyCode::Tab, _) => {
            let chosen = found.get(*selected).cloned();
            app.overlays.pop();
            if let Some(text) = chosen {
                app.input.set(&text);
                input_changed(app);
            }
        }
        (KeyCode::Down, _) | (_, Some(Action::SearchHistory)) => move_selected(selected, found.len(), true, 1),
        (KeyCode::Up, _) => move_selected(selected, found.len(), false, 1),
        _ => {
            edit_line(query, key, action);
            *selected = 0;
        }
    }
    None
}

/// Letters typed this soon after a question belong to the draft it interrupted.
const TYPED_MS: u64 = 400;

fn confirm_key(app: &mut App, key: Key) -> Option<Intent> {
    let Some(Overlay::Confirm(question)) = app.overlays.last() else { return None };
    if !app.input.is_empty() && app.now_ms < question.asked_ms + TYPED_MS {
        if let (KeyCode::Char(c), true) = (key.code, key.modifiers.is_empty()) {
            app.input.insert(&c.to_string());
        }
        return None;
    }
    match key.code {
        KeyCode::Char('y' | 'Y') | KeyCode::Enter => {}
        KeyCode::Char('n' | 'N') => return close(app),
        _ => return None,
    }
    let Some(Overlay::Confirm(question)) = app.overlays.pop() else { return None };
    Some(Intent::Confirmed(question.then))
}
