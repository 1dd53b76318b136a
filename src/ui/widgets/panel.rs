//! The cache panel: the headline, the heatmap with its scale, what else is held, the ratio's
//! history and how the cache is set. Beside the chat, or below it.

use super::heatmap::{Heatmap, SCALE_ROWS, Shape, Unit};
use super::prelude::*;
use crate::ui::heat;
use crate::ui::numbers;
use crate::ui::overlay::{below, draw_lines, inside};
use crate::ui::state::Shown;
use crate::ui::text::{truncate, width, wrap_plain};

/// Columns of the numbers' names.
const NAMES: usize = 16;
/// Rows of the panel beside the heatmap, gaps included, when everything is shown.
const FIXED: usize = 12;
/// Rows that the heatmap gets before the history, the settings and what else is held; the larger
/// number where it would have to scroll otherwise.
const MAP_FIRST: [usize; 2] = [13, 19];
/// Shown in place of the heatmap while the cache is empty.
const EXPLANATION: &str = "Each cell is one attention head, with the % of the tokens that it still keeps.";

/// Whether the panel is shown where it fits: not before there is something to show.
pub fn is_open(app: &App) -> bool {
    !app.panel.hidden && (app.tokens() > 0 || !app.chat.path().is_empty())
}

/// The heatmap of the last snapshot: what heads keep where nothing was fetched.
pub fn heatmap(app: &App, shown: Shown, chosen: Option<(usize, usize)>) -> Heatmap<'_> {
    let fetched = || numbers::fetched(app).filter(|_| shown == Shown::Fetched);
    fetched().map_or_else(|| map_of_kept(app, chosen), |pages| map_of_fetched(app, &pages, chosen))
}

fn map_of_fetched<'a>(app: &'a App, pages: &[Vec<Option<u32>>], chosen: Option<(usize, usize)>) -> Heatmap<'a> {
    let most = pages.iter().flatten().flatten().max().copied().unwrap_or(0);
    let share = |pages: &Option<u32>| pages.map(|pages| f64::from(pages) / f64::from(most.max(1)));
    let shares = pages.iter().map(|row| row.iter().map(share).collect()).collect();
    Heatmap { theme: &app.theme, depth: app.depth(), shares, unit: Unit::Pages(most), chosen, undecided: false }
}

fn map_of_kept(app: &App, chosen: Option<(usize, usize)>) -> Heatmap<'_> {
    let shares = match &app.engine.snapshot {
        Some(s) => {
            let cells = s.kv.live.iter().enumerate();
            cells.map(|(l, row)| (0..row.len()).map(|h| s.kv.retention(l, h)).collect()).collect()
        }
        None => Vec::new(),
    };
    let undecided = app.tokens() <= numbers::undecided(app);
    Heatmap { theme: &app.theme, depth: app.depth(), shares, unit: Unit::Kept, chosen, undecided }
}

/// Columns that the loaded model's panel wants beside the chat, of at most `most`.
pub fn wanted_width(app: &App, most: u16, rows: u16) -> u16 {
    // A server reports no layers, and there is nothing to draw.
    let Some(info) = app.engine.info.as_ref().filter(|info| info.n_layers > 0) else { return 0 };
    let shape = Shape { layers: info.n_layers, heads: info.n_kv_heads, colour: app.depth().has_colour() };
    let columns = usize::from(most.saturating_sub(2));
    shape.width(columns, usize::from(rows).saturating_sub(FIXED)) as u16 + 2
}

/// Draws the panel: the heatmap in the middle gets what the rest leaves it.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let inner = inside(area);
    if inner.width < 10 || inner.height < 4 {
        return;
    }
    let started = !numbers::headline(app).is_empty();
    let columns = usize::from(inner.width);
    let headline = headline_rows(app, columns);
    let mut settings = joined(app, &numbers::cache_settings(app), Role::Dim, columns);
    let mut held = numbers::also_held(app).len();
    let mut history = usize::from(started);
    let room = usize::from(inner.height).saturating_sub(headline.len() + usize::from(SCALE_ROWS));
    let map = heatmap(app, app.panel.shown, None);
    let wanted = if started { wanted_rows(map.shape(), columns) } else { 0 };
    if wanted + held + history + settings.len() > room {
        history = 0;
    }
    if wanted + held + settings.len() > room {
        settings.clear();
    }
    if wanted + held > room {
        held = 0;
    }
    let rest = room.saturating_sub(held + history + settings.len());
    let parts = [1, 1, held.min(1), history, settings.len().min(1)];
    let gaps: usize = parts.iter().sum();
    let explanation = wrap_plain(EXPLANATION, app.theme.style(Role::Text), columns, &[]);
    let least = if started { map_rows(map.shape(), columns, rest, gaps) } else { explanation.len() };
    let map_height = least.min(rest) as u16;
    // Rows that are left go between the parts, from the top.
    let mut spare = rest.saturating_sub(least);
    let mut apart = |area: Rect| {
        let rows = spare.min(1);
        spare -= rows;
        below(area, rows as u16)
    };

    let mut rest = apart(draw_lines(buffer, inner, &headline));
    if started {
        map.draw(buffer, Rect { height: map_height.min(rest.height), ..rest }, app.panel.scroll);
        rest = below(rest, map_height);
    } else {
        rest = draw_lines(buffer, rest, &explanation);
    }
    rest = apart(rest);
    map.draw_scale(buffer, rest);
    rest = below(rest, SCALE_ROWS);
    if held > 0 {
        rest = apart(rest);
        rest = below(rest, draw_held(buffer, rest, app));
    }
    if history > 0 {
        rest = apart(rest);
        rest = below(rest, draw_history(buffer, rest, app));
    }
    draw_lines(buffer, apart(rest), &settings);
}

fn wanted_rows(shape: Shape, columns: usize) -> usize {
    let fits = |rows: &usize| shape.height(columns, *rows) <= *rows;
    let rows = MAP_FIRST.into_iter().find(fits).unwrap_or(MAP_FIRST[1]);
    shape.height(columns, rows).min(rows)
}

/// Rows of the map where `rows` are left: the gaps go before the map takes a form that says less.
fn map_rows(shape: Shape, columns: usize, rows: usize, gaps: usize) -> usize {
    let airy = rows.saturating_sub(gaps);
    shape.height(columns, if shape.says_as_much(columns, airy, rows) { airy } else { rows })
}

/// Parts with a separator between them, broken into rows at the separators.
fn joined(app: &App, parts: &[String], role: Role, columns: usize) -> Vec<Line<'static>> {
    let separator = format!(" {} ", app.theme.glyphs().separator);
    let mut rows: Vec<String> = Vec::new();
    for part in parts {
        match rows.last_mut() {
            Some(row) if width(row) + width(&separator) + width(part) <= columns => {
                row.push_str(&separator);
                row.push_str(part);
            }
            _ => rows.push(truncate(part, columns)),
        }
    }
    rows.into_iter().map(|row| Line::styled(row, app.theme.style(role))).collect()
}

fn headline_rows(app: &App, columns: usize) -> Vec<Line<'static>> {
    let parts = numbers::headline(app);
    let parts = if parts.is_empty() { vec!["cache empty".to_owned()] } else { parts };
    let rows = joined(app, &parts, Role::Value, columns);
    // In two rows, the ratio stays beside what it compares with.
    if rows.len() < 2 {
        return rows;
    }
    [&parts[..1], &parts[1..]].into_iter().flat_map(|p| joined(app, p, Role::Value, columns)).collect()
}

/// The headline and what else is held, as the whole-screen panel shows them. Returns the rows used.
pub fn draw_numbers(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let rest = draw_lines(buffer, area, &headline_rows(app, usize::from(area.width)));
    let rest = below(rest, draw_held(buffer, rest, app));
    area.height - rest.height
}

/// Memory held beside the live slots, one purpose a row. Returns the rows used.
fn draw_held(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let width = usize::from(area.width);
    let names = NAMES.min(width.saturating_sub(8));
    let mut y = 0;
    for (name, value) in numbers::also_held(app).into_iter().take(usize::from(area.height)) {
        buffer.set_stringn(area.x, area.y + y, name, names, app.theme.style(Role::Dim));
        let value = truncate(&value, width.saturating_sub(names));
        buffer.set_string(area.x + names as u16, area.y + y, value, app.theme.style(Role::Text));
        y += 1;
    }
    y
}

/// The ratio over the conversation, one row of bars between 1x and its largest value. Returns the
/// rows used.
pub fn draw_history(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let points = app.panel.ratios.points();
    let highest = points.iter().map(|p| p.1).fold(1.0, f64::max);
    let (name, to) = ("ratio 1x ", format!(" {}", crate::ui::text::ratio(Some(highest))));
    let columns = usize::from(area.width).saturating_sub(name.len() + to.len()).min(48);
    if area.height == 0 || columns < 8 || points.is_empty() {
        return 0;
    }
    let (dim, text) = (app.theme.style(Role::Dim), app.theme.style(Role::Spark));
    let last = points.last().map_or(0, |p| p.0).max(1);
    let bars = app.theme.glyphs().bars;
    buffer.set_string(area.x, area.y, name, dim);
    let x = area.x + name.len() as u16;
    for column in 0..columns {
        let ratio = ratio_at(points, (column + 1) * last / columns);
        let height = if highest > 1.0 { (ratio - 1.0) / (highest - 1.0) } else { 0.0 };
        let step = (height.clamp(0.0, 1.0) * bars.len() as f64).ceil() as usize;
        buffer.set_string(x + column as u16, area.y, bars[step.clamp(1, bars.len()) - 1], text);
    }
    buffer.set_string(x + columns as u16, area.y, to, dim);
    1
}

/// The ratio after this many tokens, on a straight line between the known points.
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
        None => (heat::mark(&app.theme, app.depth(), kept), ratatui::style::Style::new()),
    }
}
