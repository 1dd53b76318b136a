//! The cache on the whole screen: the heatmap with a chosen head, that head's numbers, and where in
//! the conversation the positions are that it kept.

use super::heatmap::{SCALE_ROWS, draw_scale};
use super::panel::{below, draw_history, draw_numbers, heatmap, strip_cell};
use crate::ui::action::Action;
use crate::ui::numbers;
use crate::ui::state::{App, HeadSlots, Inspect};
use crate::ui::text::{count, plural, truncate};
use crate::ui::theme::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// Rows of the strip of positions, at most.
const STRIP: u16 = 8;

pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, inspect: &Inspect) {
    let theme = &app.theme;
    buffer.set_string(area.x + 1, area.y, "cache", theme.style(Role::Title));
    let keys = format!("arrows choose a head, Tab shows the memory, {} closes", app.key(Action::Stop));
    buffer.set_string(
        area.x + 7,
        area.y,
        truncate(&keys, usize::from(area.width).saturating_sub(8)),
        theme.style(Role::Dim),
    );
    let body = Rect {
        x: area.x + 1,
        y: area.y + 1,
        width: area.width.saturating_sub(2),
        height: area.height.saturating_sub(1),
    };
    if body.width < 20 || body.height < 4 {
        return;
    }
    let map = heatmap(app, Some((inspect.layer, inspect.head)));
    let (most, rows) = (usize::from(body.width / 2), usize::from(body.height));
    let width = map.shape().width(most, rows) as u16;
    map.draw(buffer, Rect { width, height: body.height.min(map.shape().height(most, rows) as u16), ..body }, 0);
    let x = body.x + width + 3;
    let right = Rect { x, width: body.right().saturating_sub(x), ..body };
    let mut y = 0;
    for line in head_lines(app, inspect) {
        let row = below(right, y);
        if row.height == 0 {
            return;
        }
        let role = if y == 0 { Role::Value } else { Role::Text };
        buffer.set_string(row.x, row.y, truncate(&line, usize::from(row.width)), theme.style(role));
        y += 1;
    }
    let slots = inspect.slots.as_ref().filter(|s| (s.layer, s.head) == (inspect.layer, inspect.head));
    if let Some(slots) = slots {
        y += 1;
        y += strip(buffer, below(right, y), app, slots);
    }
    let scale = below(right, y + 1);
    draw_scale(buffer, scale, theme, app.depth());
    let rest = below(scale, SCALE_ROWS + 1);
    let used = draw_numbers(buffer, rest, app);
    draw_history(buffer, below(rest, used + 1), app);
}

/// Facts about the chosen head.
fn head_lines(app: &App, inspect: &Inspect) -> Vec<String> {
    let mut lines = vec![format!("layer {}, head {}", inspect.layer, inspect.head)];
    let Some(s) = &app.engine.snapshot else { return lines };
    let live = s.kv.live.get(inspect.layer).and_then(|l| l.get(inspect.head)).copied().unwrap_or(0);
    let dense = numbers::dense_per_head(&s.kv);
    lines.push(match numbers::retention(&s.kv, inspect.layer, inspect.head) {
        Some(r) => format!("{} of {} slots kept, {} %", count(live.into()), count(dense), numbers::percent(r)),
        None => "nothing is stored yet".to_owned(),
    });
    let slots = inspect.slots.as_ref().filter(|h| (h.layer, h.head) == (inspect.layer, inspect.head));
    if let Some(h) = slots.filter(|h| !h.slots.is_empty()) {
        let marked = h.slots.iter().filter(|s| s.marked).count();
        lines.push(format!("{} marked for eviction", count(marked as u64)));
        let gap =
            h.slots.windows(2).map(|w| w[1].position - w[0].position - u32::from(w[1].position > w[0].position)).max();
        lines.push(format!("longest gap: {}", plural(gap.unwrap_or(0).into(), "token")));
    }
    lines
}

/// The conversation's positions from left to right and top to bottom; how bright a cell is says how
/// many of its positions are kept. Returns the rows it took.
fn strip(buffer: &mut Buffer, area: Rect, app: &App, head: &HeadSlots) -> u16 {
    let last = head.slots.iter().map(|s| s.position as usize + 1).max().unwrap_or(0);
    let total = head.tokens.max(last);
    let names = total.to_string().len() as u16 + 1;
    if total == 0 || area.height < 2 || area.width < names + 8 {
        return 0;
    }
    let columns = usize::from(area.width - names);
    let rows = usize::from(area.height.saturating_sub(1).min(STRIP)).min(total.div_ceil(columns)).max(1);
    let per_cell = total.div_ceil(columns * rows).max(1);
    // Cells round up, so that the last rows may have none.
    let rows = total.div_ceil(columns * per_cell);
    let mut kept = vec![0usize; columns * rows];
    for slot in &head.slots {
        if let Some(cell) = kept.get_mut(slot.position as usize / per_cell) {
            *cell += 1;
        }
    }
    let title = match per_cell {
        1 => "tokens kept, one cell per token".to_owned(),
        n => format!("tokens kept, {n} tokens per cell"),
    };
    buffer.set_string(area.x, area.y, truncate(&title, usize::from(area.width)), app.theme.style(Role::Dim));
    for row in 0..rows {
        let y = area.y + 1 + row as u16;
        buffer.set_string(area.x, y, (row * columns * per_cell).to_string(), app.theme.style(Role::Dim));
        for column in 0..columns {
            let cell = row * columns + column;
            let from = cell * per_cell;
            if from >= total {
                break;
            }
            let size = per_cell.min(total - from);
            let (text, style) = strip_cell(app, kept[cell] as f64 / size as f64);
            buffer.set_string(area.x + names + column as u16, y, text, style);
        }
    }
    rows as u16 + 1
}
