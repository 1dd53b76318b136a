//! The conversation pane: keeps the rows of every item up to date, and draws those in view.

use super::message;
use crate::ui::links;
use crate::ui::state::App;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Brings the cached rows up to the state, for a pane of this size.
pub fn prepare(app: &mut App, area: Rect) {
    let width = usize::from(area.width);
    let new_width = app.feed.width != width;
    let keys = app.feed.items.clone();
    for (n, key) in keys.iter().enumerate() {
        let fingerprint = message::fingerprint(app, *key, width, n == 0);
        if app.feed.rows.get(key).is_some_and(|r| r.fingerprint == fingerprint) {
            continue;
        }
        let old = app.feed.rows.remove(key);
        let old_height = old.as_ref().map_or(0, |r| r.lines.len());
        let rows = message::rows(app, *key, width, n == 0, old);
        let height = rows.lines.len();
        app.feed.rows.insert(*key, rows);
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
}

/// Draws the rows in view.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let feed = &app.feed;
    let linked = app.setup.links && !app.theme.ascii;
    let top = feed.top();
    let total = feed.total();
    // A short conversation stands at the bottom, above the input.
    let mut y = area.y + (usize::from(area.height).saturating_sub(total)) as u16;
    let mut row = 0;
    for key in &feed.items {
        let Some(rows) = feed.rows.get(key) else { continue };
        let height = rows.lines.len();
        if row + height <= top {
            row += height;
            continue;
        }
        for line in rows.lines.iter().skip(top.saturating_sub(row)) {
            if y >= area.bottom() {
                return;
            }
            buffer.set_line(area.x, y, line, area.width);
            links::draw(buffer, Rect { y, height: 1, ..area }, &rows.links, linked);
            y += 1;
        }
        row += height;
    }
}
