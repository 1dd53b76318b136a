//! Keys of overlays: help, the large panel, the list of conversations, the history search, questions.

use super::completion::input_changed;
use super::field::{PAGE, edit_line, move_selected};
use super::inspect;
use crate::ui::action::Action;
use crate::ui::commands::{find, model};
use crate::ui::effect::Which;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::state::{App, Confirmed, Inspect, InspectPage, Overlay, Picker};
use crate::ui::text::clean_line;
use crate::ui::widgets::help;
use crossterm::event::KeyCode;

/// Handles a key of the topmost overlay.
pub fn key(app: &mut App, key: Key) -> Option<Intent> {
    let action = app.keymap_action(key);
    app.notice = None;
    match action {
        Some(action @ Action::QuitWhenEmpty) if app.input.is_empty() => return Some(Intent::Act(action)),
        Some(Action::Stop | Action::Interrupt | Action::QuitWhenEmpty) => return close(app),
        Some(action @ (Action::Suspend | Action::Redraw)) => return Some(Intent::Act(action)),
        _ => {}
    }
    match app.overlays.last_mut() {
        Some(Overlay::Help { .. }) => match (key.code, action) {
            (KeyCode::Enter, _) | (_, Some(Action::Help)) => return close(app),
            _ => help_key(app, key, action),
        },
        Some(Overlay::Inspect(_)) => return inspect::key(app, key, action),
        Some(Overlay::Sessions(_)) => return picker_key(app, key, action),
        Some(Overlay::Find(_)) => find::key(app, key, action),
        Some(Overlay::Models(_)) => return model::key(app, key, action),
        Some(Overlay::HistorySearch { .. }) => return history_key(app, key, action),
        Some(Overlay::Confirm(_)) => return confirm_key(app, key),
        None => {}
    }
    None
}

/// Closes the field open in the topmost overlay or the result below its text, else the overlay. Stops a recall test.
fn close(app: &mut App) -> Option<Intent> {
    if let Some(Overlay::Sessions(picker)) = app.overlays.last_mut()
        && picker.renaming.take().is_some()
    {
        return None;
    }
    if let Some(Overlay::Inspect(Inspect { recalled, page: InspectPage::Memory, .. })) = app.overlays.last_mut() {
        if app.engine.recalling {
            return Some(Intent::Act(Action::Stop));
        }
        if recalled.take().is_some() {
            return None;
        }
    }
    app.overlays.pop();
    None
}

/// Scrolls the topmost overlay by the wheel.
pub fn scroll(app: &mut App, down: bool) {
    match app.overlays.last_mut() {
        Some(Overlay::Help { scroll, .. }) => *scroll = if down { *scroll + 3 } else { scroll.saturating_sub(3) },
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
        Some(Overlay::Help { query, scroll }) => {
            query.insert(&line);
            *scroll = 0;
        }
        None => return false,
        Some(_) => {}
    }
    true
}

/// Scrolls the help; any other key edits what its rows are filtered by.
fn help_key(app: &mut App, key: Key, action: Option<Action>) {
    let Some(Overlay::Help { query, scroll }) = app.overlays.last() else { return };
    let (page, last) = (help::page_rows(app), help::max_scroll(app, query.text()));
    let to = match key.code {
        KeyCode::Up => scroll.saturating_sub(1),
        KeyCode::Down => scroll + 1,
        KeyCode::PageUp => scroll.saturating_sub(page),
        KeyCode::PageDown => scroll + page,
        KeyCode::Home => 0,
        KeyCode::End => last,
        _ => {
            if let Some(Overlay::Help { query, scroll }) = app.overlays.last_mut() {
                edit_line(query, key, action);
                *scroll = 0;
            }
            return;
        }
    };
    if let Some(Overlay::Help { scroll, .. }) = app.overlays.last_mut() {
        *scroll = to.min(last);
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
                let question = format!("Delete {:?}? This removes its file.", clean_line(&title));
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

/// Keys this soon after a question, or after a key that was not an answer to it, belong to the draft that it interrupted.
const TYPED_MS: u64 = 400;

/// Answers a question. What is typed without a pause goes into the input, as it would have without the question.
fn confirm_key(app: &mut App, key: Key) -> Option<Intent> {
    let now = app.now_ms;
    let Some(Overlay::Confirm(question)) = app.overlays.last_mut() else { return None };
    if now < question.asked_ms + TYPED_MS {
        question.asked_ms = now;
        if let (KeyCode::Char(c), true) = (key.code, key.modifiers.is_empty()) {
            app.input.insert(&c.to_string());
        }
        return None;
    }
    let other = question.other.as_ref().filter(|(c, ..)| key.code == KeyCode::Char(*c)).map(|(.., then)| then.clone());
    let (then, rest) = match key.code {
        _ if other.is_some() => (other, ""),
        KeyCode::Char('y' | 'Y') => (Some(question.then.clone()), "es"),
        KeyCode::Enter => (Some(question.then.clone()), ""),
        KeyCode::Char('n' | 'N') => (None, "o"),
        _ => return None,
    };
    app.overlays.pop();
    app.answered = Some((now, rest));
    then.map(Intent::Confirmed)
}

/// Drops the rest of `yes` or `no` and the Enter behind it, which answer a question that is gone.
pub fn ends_an_answer(app: &mut App, key: Key) -> bool {
    const PAUSE_MS: u64 = 1_000;
    let answered = app.answered.take().filter(|(at, _)| app.now_ms < at + PAUSE_MS);
    let Some((_, rest)) = answered else { return false };
    match key.code {
        KeyCode::Char(c) if rest.starts_with(c) => app.answered = Some((app.now_ms, &rest[1..])),
        KeyCode::Enter => {}
        _ => return false,
    }
    true
}
