//! The conversation pane: keeps the rows of every item up to date, and draws those in view.

use super::message;
use super::prelude::*;
use crate::chat::retention::Retention;
use crate::ui::commands::find::Find;
use crate::ui::feed::{ItemKey, Rows};
use crate::ui::find::{Hit, hits_in};
use crate::ui::links;
use std::collections::HashMap;

/// Bytes of new messages whose rows are made in one frame, so that a long conversation shows its
/// end at once.
const FRAME_BYTES: usize = 256 << 10;

/// Updates the cached rows for a pane of this size.
pub fn prepare(app: &mut App, area: Rect) {
    let shown = (!app.panel.hidden).then(|| (app.chat.head(), app.chat.turns()));
    if app.feed.remembered_at != shown {
        app.feed.remembered_at = shown;
        app.feed.remembered = match shown {
            None => HashMap::new(),
            Some(_) => {
                let percent = |r: &Retention| Some((r.message?, (100.0 * r.share) as u8));
                app.chat.retention().into_iter().filter_map(percent).collect()
            }
        };
    }
    let width = usize::from(area.width);
    let new_width = app.feed.width != width;
    let keys = app.feed.items.clone();
    let (mut left, was_behind) = (FRAME_BYTES, std::mem::take(&mut app.feed.behind));
    let refolded = std::mem::take(&mut app.feed.refolded);
    for (n, key) in keys.iter().enumerate().rev() {
        let is_new = !app.feed.rows.contains_key(key);
        if is_new && left == 0 {
            app.feed.behind = true;
            continue;
        }
        let fingerprint = message::fingerprint(app, *key, width, n == 0);
        if app.feed.rows.get(key).is_some_and(|r| r.fingerprint == fingerprint) {
            continue;
        }
        let old = app.feed.rows.remove(key);
        let old_height = old.as_ref().map_or(0, |r| r.lines.len());
        let rows = message::rows(app, *key, width, n == 0, fingerprint, old);
        let height = rows.lines.len();
        app.feed.rows.insert(*key, rows);
        if is_new {
            left = left.saturating_sub(bytes_of(app, *key));
            // Lines that were there already are nothing new to a user who has scrolled back.
            app.feed.add_seen(if was_behind { height as isize } else { 0 });
        } else if refolded {
            app.feed.add_seen(height as isize - old_height as isize);
        }
        if new_width {
            app.feed.rescale(n, old_height, height);
        }
    }
    if app.feed.rows.len() > keys.len() + 64 {
        app.feed.rows.retain(|key, _| keys.contains(key));
    }
    app.feed.width = width;
    app.feed.height = usize::from(area.height);
    if new_width && !app.feed.is_following() {
        app.feed.reset_seen();
    }
    app.feed.reveal();
}

fn bytes_of(app: &App, key: ItemKey) -> usize {
    match key {
        ItemKey::Message(id) => {
            app.chat.get(id).map_or(0, |m| m.text.len() + m.reasoning.as_ref().map_or(0, String::len))
        }
        ItemKey::Local(_) => 0,
    }
}

/// Draws the rows in view.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let feed = &app.feed;
    let linked = app.setup.links && !app.theme.ascii;
    let top = feed.top();
    let total = feed.total();
    // A short conversation is at the bottom, above the input.
    let mut y = area.y + (usize::from(area.height).saturating_sub(total)) as u16;
    let mut row = 0;
    let mut marks = Vec::new();
    let find = app.overlay::<Find>();
    for (item, key) in feed.items.iter().enumerate() {
        let Some(rows) = feed.rows.get(key) else { continue };
        let height = rows.lines.len();
        if row + height <= top {
            row += height;
            continue;
        }
        let first_y = y;
        let skipped = top.saturating_sub(row);
        if let Some(find) = find {
            let origin = (area.x, i32::from(first_y) - skipped as i32);
            marks.extend(hits_in(item, rows, find.query.text()).into_iter().map(|hit| (origin, hit)));
        }
        let chosen = chosen_row(app, *key, rows);
        for (n, line) in rows.lines.iter().enumerate().skip(skipped) {
            if y >= area.bottom() {
                return mark_hits(buffer, area, app, &marks);
            }
            buffer.set_line(area.x, y, line, area.width);
            if chosen == Some(n) {
                buffer.set_style(Rect { y, height: 1, ..area }, app.theme.style(Role::Selected));
            }
            links::draw(buffer, Rect { y, height: 1, ..area }, &rows.links, linked);
            y += 1;
        }
        row += height;
    }
    mark_hits(buffer, area, app, &marks);
}

/// The row of the chosen message that is drawn in the colours of a selection: its first one that is
/// not empty.
fn chosen_row(app: &App, key: ItemKey, rows: &Rows) -> Option<usize> {
    let is_text = |line: &Line| line.spans.iter().skip(1).any(|span| !span.content.trim().is_empty());
    match key {
        ItemKey::Message(id) if app.feed.selected == Some(id) => rows.lines.iter().position(is_text),
        _ => None,
    }
}

/// Draws what was found in the colours of a selection. Each hit comes with the cell of its item's
/// first row, which may lie above the pane.
fn mark_hits(buffer: &mut Buffer, area: Rect, app: &App, marks: &[((u16, i32), Hit)]) {
    for ((x, first), hit) in marks {
        for (row, column, columns) in &hit.cells {
            let y = u16::try_from(first + *row as i32).ok().filter(|y| (area.y..area.bottom()).contains(y));
            let Some(y) = y else { continue };
            let at = Rect { x: x + column, y, width: *columns, height: 1 }.intersection(area);
            buffer.set_style(at, app.theme.style(Role::Selected));
        }
    }
}
