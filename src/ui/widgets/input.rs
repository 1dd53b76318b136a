//! The input: prompt, text, caret, and the list of completions over it.

use super::prelude::*;
use crate::ui::action::Action;
use crate::ui::picker::first_shown;
use crate::ui::text::{count, truncate, width};
use ratatui::layout::Position;
use ratatui::widgets::{Clear, Widget};
use unicode_segmentation::UnicodeSegmentation;

/// Columns before the text.
pub const PROMPT_WIDTH: usize = 2;
/// Rows of the completion list that a small screen gives it too.
const MIN_LIST: usize = 8;

/// Draws the input and puts the terminal's cursor on the caret.
pub fn draw(frame: &mut Frame, area: Rect, app: &App, has_keys: bool) {
    let theme = &app.theme;
    let columns = usize::from(area.width).saturating_sub(PROMPT_WIDTH);
    let rows = app.input.rows(columns);
    let (caret_row, caret_column) = app.input.caret_cell(&rows);
    let height = usize::from(area.height);
    let first = first_shown(caret_row, rows.len(), height);
    let buffer = frame.buffer_mut();
    let prompt = format!("{} ", theme.glyphs().prompt);
    buffer.set_string(area.x, area.y, prompt, theme.style(Role::Prompt));
    let x = area.x + PROMPT_WIDTH as u16;
    if app.input.is_empty() {
        let text = truncate("ask something, or / for commands", columns);
        buffer.set_string(x, area.y, text, theme.style(Role::Placeholder));
    }
    for (n, row) in rows.iter().skip(first).take(height).enumerate() {
        let pieces = app.input.shown(row).into_iter();
        let role = |folded| if folded { Role::Key } else { Role::Input };
        let spans = pieces.map(|(text, folded)| Span::styled(text, theme.style(role(folded))));
        buffer.set_line(x, area.y + n as u16, &spans.collect::<Line>(), columns as u16);
    }
    if has_keys {
        let column = caret_column.min(columns.saturating_sub(1)) as u16;
        frame.set_cursor_position(Position { x: x + column, y: area.y + (caret_row - first) as u16 });
    }
}

/// How much the input holds, when it is more than is seen.
pub fn size_note(app: &App, columns: usize) -> Option<String> {
    let lines = app.input.text().split('\n').count();
    let hidden = app.input.rows(columns).len() > usize::from((app.size.1 / 3).max(1));
    let characters = app.input.text().graphemes(true).count();
    hidden.then(|| match lines {
        1 => format!("{} characters in the input", count(characters as u64)),
        _ => format!("{} lines in the input", count(lines as u64)),
    })
}

/// The list of completions, above row `below` and over the panel, with up to two thirds of the
/// screen. Its last row says how many more there are.
pub fn draw_completion(frame: &mut Frame, below: u16, app: &App) {
    let Some(completion) = &app.completion else { return };
    let (all, columns) = (completion.candidates.len(), frame.area().width);
    let room = usize::from(below).min((usize::from(app.size.1) * 2 / 3).max(MIN_LIST));
    let shown = if all > room { room.saturating_sub(1) } else { all };
    if shown == 0 {
        return;
    }
    let rows = shown + usize::from(all > shown);
    let first = first_shown(completion.selected, all, shown);
    let area = Rect::new(0, below - rows as u16, columns, rows as u16);
    Clear.render(area, frame.buffer_mut());
    let labels = completion.candidates.iter().map(|c| width(&c.label)).max().unwrap_or(0) + 2;
    for (i, candidate) in completion.candidates.iter().skip(first).take(shown).enumerate() {
        let (style, help) = if first + i == completion.selected {
            (app.theme.style(Role::Selected), app.theme.style(Role::Selected))
        } else {
            (app.theme.style(Role::Popup), app.theme.style(Role::Dim))
        };
        let room = usize::from(columns);
        let label = truncate(&format!("  {:<labels$}", candidate.label), room);
        let help_text = truncate(&candidate.help, room.saturating_sub(width(&label)));
        let line = Line::from(vec![Span::styled(label, style), Span::styled(help_text, help)]);
        frame.buffer_mut().set_line(0, area.y + i as u16, &line, columns);
    }
    if all > shown {
        let key = app.key(Action::HistoryNewer);
        let text = format!("  {} more; letters narrow the list, {key} scrolls it", count((all - shown) as u64));
        let (y, room) = (area.bottom() - 1, usize::from(columns));
        frame.buffer_mut().set_string(0, y, truncate(&text, room), app.theme.style(Role::Dim));
    }
}
