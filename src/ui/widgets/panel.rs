//! The cache panel: heatmap, scale, figures and the ratio's history, in a column beside the chat or
//! in two columns over it.

use super::heatmap::{Heatmap, SCALE_ROWS, draw_scale};
use crate::ui::heat;
use crate::ui::numbers;
use crate::ui::state::App;
use crate::ui::text::truncate;
use crate::ui::theme::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Columns of the figures' names.
const NAMES: usize = 16;

/// The heatmap of the last snapshot.
pub fn heatmap(app: &App, chosen: Option<(usize, usize)>) -> Heatmap<'_> {
    let retention = match &app.engine.snapshot {
        Some(s) => {
            let cells = s.kv.live.iter().enumerate();
            cells.map(|(l, row)| (0..row.len()).map(|h| numbers::retention(&s.kv, l, h)).collect()).collect()
        }
        None => Vec::new(),
    };
    Heatmap { theme: &app.theme, depth: app.depth(), retention, chosen }
}

/// Draws the panel in one column, or in two where there is width for it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    if inner.width < 10 || inner.height < 4 {
        return;
    }
    buffer.set_string(inner.x, inner.y, "cache", app.theme.style(Role::Title));
    let what = "slots kept in %, layer x head";
    let style = app.theme.style(Role::Dim);
    buffer.set_string(inner.x + 6, inner.y, truncate(what, usize::from(inner.width).saturating_sub(6)), style);
    let inner = Rect { y: inner.y + 1, height: inner.height - 1, ..inner };
    if inner.width >= 64 { two_columns(buffer, inner, app) } else { one_column(buffer, inner, app) }
}

fn one_column(buffer: &mut Buffer, area: Rect, app: &App) {
    let map = heatmap(app, None);
    let figures = numbers::figures(app).len();
    let columns = usize::from(area.width);
    // The figures come first where it is tight; of the map at least a few rows.
    let fixed = usize::from(SCALE_ROWS) + 1 + figures + 3;
    let room = usize::from(area.height).saturating_sub(fixed).max(6).min(usize::from(area.height));
    let height = map.height(columns, room).min(room) as u16;
    map.draw(buffer, Rect { height, ..area }, app.panel.scroll);
    // A row apart, where there are rows enough.
    let gap = u16::from(usize::from(height) + fixed < usize::from(area.height));
    let scale = below(area, height + gap);
    draw_scale(buffer, scale, &app.theme, app.depth());
    let rest = below(scale, SCALE_ROWS + 1);
    let used = draw_figures(buffer, rest, app);
    draw_history(buffer, below(rest, used + 1), app);
}

fn two_columns(buffer: &mut Buffer, area: Rect, app: &App) {
    let map = heatmap(app, None);
    let most = usize::from(area.width / 2);
    let rows = usize::from(area.height);
    let width = map.width(most, rows) as u16;
    let left = Rect { width, height: area.height.min(map.height(most, rows) as u16), ..area };
    map.draw(buffer, left, app.panel.scroll);
    let x = area.x + width + 3;
    let right = Rect { x, width: area.right().saturating_sub(x), y: area.y + 1, height: area.height - 1 };
    let used = draw_figures(buffer, right, app);
    let scale = below(right, used + 1);
    draw_scale(buffer, scale, &app.theme, app.depth());
    draw_history(buffer, below(scale, SCALE_ROWS + 1), app);
}

/// What is left of an area below its first rows.
pub fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// The figures, one a row; how many rows that took.
pub fn draw_figures(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let width = usize::from(area.width);
    let mut y = 0;
    for (name, value) in numbers::figures(app).into_iter().take(usize::from(area.height)) {
        buffer.set_stringn(area.x, area.y + y, name, width, app.theme.style(Role::Dim));
        let x = area.x + NAMES.min(width) as u16;
        let value = truncate(&value, width.saturating_sub(NAMES));
        let role = if name == "ratio" { Role::Value } else { Role::Text };
        buffer.set_string(x, area.y + y, value, app.theme.style(role));
        y += 1;
    }
    y
}

/// The ratio over the conversation as a row of bars, with its range.
pub fn draw_history(buffer: &mut Buffer, area: Rect, app: &App) {
    let points = app.panel.ratios.points();
    if area.height < 2 || area.width < 10 || points.is_empty() {
        return;
    }
    let columns = usize::from(area.width.min(48));
    let last = points.last().map_or(0, |p| p.0).max(1);
    let highest = points.iter().map(|p| p.1).fold(1.0, f64::max);
    let title = format!("ratio over {} tokens, 1.0x to {highest:.1}x", crate::ui::text::count(last as u64));
    buffer.set_string(area.x, area.y, truncate(&title, usize::from(area.width)), app.theme.style(Role::Dim));
    let rows = area.height.saturating_sub(1).min(2);
    let bars = app.theme.glyphs().bars;
    for column in 0..columns {
        let ratio = ratio_at(points, (column + 1) * last / columns);
        let height = if highest > 1.0 { (ratio - 1.0) / (highest - 1.0) } else { 0.0 };
        let steps = (height.clamp(0.0, 1.0) * (usize::from(rows) * bars.len()) as f64).round() as usize;
        let steps = steps.max(1);
        for row in 0..rows {
            let filled = steps.saturating_sub(usize::from(row) * bars.len());
            if filled > 0 {
                let bar = bars[filled.min(bars.len()) - 1];
                let y = area.y + rows - row;
                buffer.set_string(area.x + column as u16, y, bar, app.theme.style(Role::Spark));
            }
        }
    }
}

/// The ratio after so many tokens, on a straight line between the points known.
fn ratio_at(points: &[(usize, f64)], tokens: usize) -> f64 {
    let next = points.iter().position(|p| p.0 >= tokens).unwrap_or(points.len() - 1);
    let (to, after) = points[next];
    let (from, before) = match next.checked_sub(1) {
        Some(at) => points[at],
        None => (0, 1.0),
    };
    if to <= from {
        after
    } else {
        before + (after - before) * (tokens.min(to).saturating_sub(from)) as f64 / (to - from) as f64
    }
}

/// A cell's style where heat is shown as a filled column.
pub fn strip_cell(app: &App, kept: f64) -> (&'static str, ratatui::style::Style) {
    let place = heat::level(kept);
    match heat::colour(&app.theme, app.depth(), place) {
        Some(colour) => (" ", ratatui::style::Style::new().bg(colour)),
        None => (heat::shade(&app.theme, app.depth(), place), ratatui::style::Style::new()),
    }
}
