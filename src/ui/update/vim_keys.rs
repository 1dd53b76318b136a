//! Vim's keys in the chat: modes of the input, and moves by letters in pages and lists.

use super::completion::{input_changed, set_aside, type_text};
use super::perform::{act, submit};
use crate::ui::keymap::Key;
use crate::ui::overlay::Field;
use crate::ui::state::App;
use crate::ui::vim::{After, Mode};
use crossterm::event::{KeyCode, KeyModifiers};

/// Handles a key of the input. False if it does what it does in every keymap.
pub fn in_input(app: &mut App, key: Key) -> bool {
    if !app.setup.keymap.is_vim() {
        return false;
    }
    app.vim.field_of = 0;
    let inserts = app.vim.mode == Mode::Insert && matches!(key.code, KeyCode::Char(_));
    if !inserts && app.burst.hold_ms().is_some() && app.burst.typed(app.now_ms) {
        // The Enter that is held was the last key of the message.
        submit(app);
    }
    let (revision, bound) = (app.input.revision(), app.setup.keymap.action(key).is_some());
    let after = app.vim.key(&mut app.input, key, bound);
    if after != After::Pass {
        app.notice = None;
    }
    match after {
        After::Pass => return false,
        After::Done => {}
        After::Act(action, times) => {
            for _ in 0..times {
                let before = (app.input.revision(), app.input.caret(), app.feed.top());
                act(app, action);
                if before == (app.input.revision(), app.input.caret(), app.feed.top()) {
                    break;
                }
            }
        }
        After::HalfPage { down } => {
            let rows = (app.feed.height / 2).max(1) as isize;
            app.feed.scroll(if down { rows } else { -rows });
        }
        After::Command => {
            app.input.go(0);
            set_aside(app);
            type_text(app, "/");
            return true;
        }
    }
    if app.input.revision() != revision {
        input_changed(app);
    }
    app.vim.rest(&mut app.input);
    app.completion = None;
    true
}

/// Whether letters are keys and no text.
pub fn takes_letters(app: &App) -> bool {
    let listed = app.overlays.last().is_some_and(|top| top.field() != Field::Text);
    app.setup.keymap.is_vim() && if app.overlays.is_empty() { app.vim.mode == Mode::Normal } else { listed }
}

/// Translates a key of the topmost overlay into the arrows and pages that it knows. `None` if that
/// is all that it does.
pub fn in_overlay(app: &mut App, key: Key) -> Option<Key> {
    let field = app.overlays.last().map_or(Field::Text, |top| top.field());
    if !app.setup.keymap.is_vim() || field == Field::Text {
        return Some(key);
    }
    if field == Field::Filter && app.vim.field_of == app.overlays.len() {
        if key.code != KeyCode::Esc {
            return Some(key);
        }
        app.vim.field_of = 0;
        return None;
    }
    let first_g = std::mem::take(&mut app.vim.page_g);
    let to = |code, modifiers| Some(Key { code, modifiers });
    let (plain, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
    match (key.code, key.modifiers) {
        (KeyCode::Char('j'), KeyModifiers::NONE) => to(KeyCode::Down, plain),
        (KeyCode::Char('k'), KeyModifiers::NONE) => to(KeyCode::Up, plain),
        (KeyCode::Char('d' | 'f'), KeyModifiers::CONTROL) => to(KeyCode::PageDown, plain),
        (KeyCode::Char('u' | 'b'), KeyModifiers::CONTROL) => to(KeyCode::PageUp, plain),
        (KeyCode::Char('G'), KeyModifiers::NONE) => to(KeyCode::End, control),
        (KeyCode::Char('g'), KeyModifiers::NONE) if first_g => to(KeyCode::Home, control),
        (KeyCode::Char('g'), KeyModifiers::NONE) => {
            app.vim.page_g = true;
            None
        }
        (KeyCode::Char('/' | 'i'), KeyModifiers::NONE) if field == Field::Filter => {
            app.vim.field_of = app.overlays.len();
            None
        }
        (KeyCode::Char('q'), KeyModifiers::NONE) if field == Field::Filter => to(KeyCode::Esc, plain),
        (KeyCode::Char(_), KeyModifiers::NONE) if field == Field::Filter => {
            app.info("/ first: then letters filter the list");
            None
        }
        _ => Some(key),
    }
}
