//! Keys of the large panel: the memory page and the page of heads.

use super::field::PAGE;
use crate::ui::action::Action;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::state::{App, Inspect, InspectPage, Overlay};
use crate::ui::widgets::memory as widget;
use crossterm::event::{KeyCode, KeyModifiers};
use ratatui::layout::Rect;
use std::ops::Range;

const WHEEL_ROWS: usize = 3;

pub fn key(app: &mut App, key: Key, action: Option<Action>) -> Option<Intent> {
    let page = open(app)?.page;
    match (key.code, action) {
        (KeyCode::Tab, _) | (_, Some(Action::Inspect)) => {
            open(app)?.page = match page {
                InspectPage::Memory => InspectPage::Heads,
                InspectPage::Heads => InspectPage::Memory,
            };
            return Some(Intent::Inspect);
        }
        (KeyCode::Char('q') | KeyCode::Enter, _) | (_, Some(Action::Panel)) => {
            app.overlays.pop();
            return None;
        }
        (_, Some(action @ (Action::Eviction | Action::Help))) => return Some(Intent::Act(action)),
        _ => {}
    }
    match page {
        InspectPage::Heads => heads_key(app, key.code),
        InspectPage::Memory if key.code == KeyCode::Char('r') => recall(app),
        InspectPage::Memory if key.code == KeyCode::Char('p') => pin(app),
        InspectPage::Memory => {
            memory_key(app, key);
            None
        }
    }
}

fn open(app: &mut App) -> Option<&mut Inspect> {
    match app.overlays.last_mut() {
        Some(Overlay::Inspect(inspect)) => Some(inspect),
        _ => None,
    }
}

/// Number of layers and KV heads, at least 1 each.
fn shape(app: &App) -> (usize, usize) {
    app.engine.info.as_ref().map_or((1, 1), |i| (i.n_layers.max(1), i.n_kv_heads.max(1)))
}

fn heads_key(app: &mut App, code: KeyCode) -> Option<Intent> {
    let (layers, heads) = shape(app);
    let inspect = open(app)?;
    match code {
        KeyCode::Up => inspect.layer = inspect.layer.saturating_sub(1),
        KeyCode::Down => inspect.layer = (inspect.layer + 1).min(layers - 1),
        KeyCode::Left => inspect.head = inspect.head.saturating_sub(1),
        KeyCode::Right => inspect.head = (inspect.head + 1).min(heads - 1),
        KeyCode::PageUp => inspect.layer = inspect.layer.saturating_sub(PAGE),
        KeyCode::PageDown => inspect.layer = (inspect.layer + PAGE).min(layers - 1),
        KeyCode::Home => (inspect.layer, inspect.head) = (0, 0),
        KeyCode::End => (inspect.layer, inspect.head) = (layers - 1, heads - 1),
        _ => return None,
    }
    Some(Intent::Inspect)
}

/// The chosen passage, or the sentence under the cursor, without control tokens at its ends; `None` after a notice.
fn passage(app: &mut App) -> Option<Range<usize>> {
    let cursor = cursor(app)?;
    let anchor = open(app)?.memory.anchor;
    let passage = app.memory.without_edges(app.memory.passage(cursor, anchor));
    if passage.is_empty() {
        app.info("there is no text under the cursor");
        return None;
    }
    Some(passage)
}

/// Asks for the chosen passage, or for the sentence under the cursor.
fn recall(app: &mut App) -> Option<Intent> {
    let tokens = passage(app)?;
    Some(Intent::Recall { text: app.memory.text_of(tokens.clone()).trim().to_owned(), tokens })
}

/// Pins the chosen passage or the sentence under the cursor, or takes the pin under the cursor back.
fn pin(app: &mut App) -> Option<Intent> {
    let cursor = cursor(app)?;
    if app.engine.info.as_ref().is_some_and(|info| info.policy.keeps_all()) {
        app.info("this cache keeps everything: there is nothing to pin");
        return None;
    }
    let pinned = app.memory.presence().pins.iter().find(|pin| pin.contains(&cursor)).cloned();
    match pinned {
        Some(tokens) => Some(Intent::PinTokens { tokens, pin: false }),
        None => Some(Intent::PinTokens { tokens: passage(app)?, pin: true }),
    }
}

/// Begins to choose a passage at the cursor, or gives the choice up.
fn choose(app: &mut App) {
    let cursor = cursor(app);
    if let Some(inspect) = open(app) {
        inspect.memory.anchor = if inspect.memory.anchor.is_some() { None } else { cursor };
    }
}

fn memory_key(app: &mut App, key: Key) {
    let (layers, heads) = shape(app);
    let rows = page_rows(app);
    let Some(inspect) = open(app) else { return };
    let filter = &mut inspect.memory.filter;
    match key.code {
        KeyCode::Char('l') => filter.layer = next(filter.layer, layers),
        KeyCode::Char('L') => filter.layer = previous(filter.layer, layers),
        KeyCode::Char('h') => filter.head = next(filter.head, heads),
        KeyCode::Char('H') => filter.head = previous(filter.head, heads),
        KeyCode::Char(' ') => choose(app),
        KeyCode::Char('a') => *filter = Default::default(),
        KeyCode::Char('+' | '=') => jump(app, true),
        KeyCode::Char('-' | '_') => jump(app, false),
        KeyCode::Left => step(app, false),
        KeyCode::Right => step(app, true),
        KeyCode::Up => rows_away(app, false, 1),
        KeyCode::Down => rows_away(app, true, 1),
        KeyCode::PageUp => rows_away(app, false, rows),
        KeyCode::PageDown => rows_away(app, true, rows),
        KeyCode::Home if key.modifiers == KeyModifiers::NONE => inspect.memory.cursor = Some(0),
        KeyCode::End => inspect.memory.cursor = None,
        _ => {}
    }
}

/// All, then one after the other, then all again.
fn next(chosen: Option<usize>, n: usize) -> Option<usize> {
    Some(chosen.map_or(0, |at| at + 1)).filter(|&at| at < n)
}

fn previous(chosen: Option<usize>, n: usize) -> Option<usize> {
    chosen.map_or(Some(n - 1), |at| at.checked_sub(1))
}

/// Rows of text on the screen, but one.
fn page_rows(app: &App) -> usize {
    let area = Rect::new(0, 0, app.size.0, app.size.1.saturating_sub(1));
    widget::text_rows(app, widget::places(area, widget::result_rows(app)).text).saturating_sub(1).max(1)
}

/// The token under the cursor; `None` before the first answer.
fn cursor(app: &App) -> Option<usize> {
    let Some(Overlay::Inspect(inspect)) = app.overlays.last() else { return None };
    let last = app.memory.len().checked_sub(1)?;
    Some(inspect.memory.cursor.unwrap_or(last).min(last))
}

/// Moves the cursor; at the last token it follows the newest.
fn set_cursor(app: &mut App, token: usize) {
    let n = app.memory.len();
    if let Some(inspect) = open(app) {
        inspect.memory.cursor = Some(token).filter(|&token| token + 1 < n);
    }
}

fn step(app: &mut App, forward: bool) {
    let Some(cursor) = cursor(app) else { return };
    let tokens = app.memory.spelled(cursor).tokens;
    let to = if forward { tokens.end } else { tokens.start.saturating_sub(1) };
    let to = app.memory.spelled(to).tokens.end - 1;
    set_cursor(app, to);
}

fn rows_away(app: &mut App, down: bool, rows: usize) {
    let Some(cursor) = cursor(app) else { return };
    let (row, last) = (app.memory.row_of(cursor), app.memory.rows().saturating_sub(1));
    let to = if down { row + rows } else { row.saturating_sub(rows) };
    let token = match to {
        to if down && to > last => app.memory.len() - 1,
        to if to == row => 0,
        to => app.memory.in_row(cursor, to),
    };
    set_cursor(app, token);
}

fn jump(app: &mut App, best: bool) {
    let Some(cursor) = cursor(app) else { return };
    let evicting = app.engine.info.as_ref().filter(|info| !info.policy.keeps_all());
    let window = evicting.map(|info| info.window.unwrap_or(0));
    match window.and_then(|window| app.memory.next_passage(cursor, best, window)) {
        // The passage is chosen, so that it can be seen.
        Some(passage) => {
            set_cursor(app, passage.end - 1);
            if let Some(inspect) = open(app) {
                inspect.memory.anchor = Some(passage.start);
            }
        }
        None if window.is_none() => app.info("a dense cache keeps every token"),
        None => app.info("all tokens are inside the window so far"),
    }
}

/// Moves by the wheel.
pub fn scroll(app: &mut App, down: bool) {
    if open(app).is_some_and(|inspect| inspect.page == InspectPage::Memory) {
        rows_away(app, down, WHEEL_ROWS);
    }
}
