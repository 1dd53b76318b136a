//! The input: prompt, text, caret, and the list of completions over it.

use crate::ui::state::App;
use crate::ui::text::{count, truncate};
use crate::ui::theme::Role;
use ratatui::Frame;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};
use unicode_segmentation::UnicodeSegmentation;

/// Columns before the text.
pub const PROMPT_WIDTH: usize = 2;
/// Most lines of the completion list.
const MAX_LIST: usize = 8;

/// Draws the input and puts the terminal's cursor on the caret.
pub fn draw(frame: &mut Frame, area: Rect, app: &App, has_keys: bool) {
    let theme = &app.theme;
    let width = usize::from(area.width).saturating_sub(PROMPT_WIDTH);
    let rows = app.input.rows(width);
    let (caret_row, caret_column) = app.input.caret_cell(&rows);
    let height = usize::from(area.height);
    let first = (caret_row + 1).saturating_sub(height).min(rows.len().saturating_sub(height));
    let buffer = frame.buffer_mut();
    let prompt = format!("{} ", theme.glyphs().prompt);
    buffer.set_string(area.x, area.y, prompt, theme.style(Role::Prompt));
    let x = area.x + PROMPT_WIDTH as u16;
    if app.input.is_empty() {
        let text = truncate("ask something, or / for commands", width);
        buffer.set_string(x, area.y, text, theme.style(Role::Placeholder));
    }
    for (n, row) in rows.iter().skip(first).take(height).enumerate() {
        let pieces = app.input.shown(row).into_iter();
        let role = |folded| if folded { Role::Key } else { Role::Input };
        let spans = pieces.map(|(text, folded)| Span::styled(text, theme.style(role(folded))));
        buffer.set_line(x, area.y + n as u16, &spans.collect::<Line>(), width as u16);
    }
    if has_keys {
        let column = caret_column.min(width.saturating_sub(1)) as u16;
        frame.set_cursor_position(Position { x: x + column, y: area.y + (caret_row - first) as u16 });
    }
}

/// How much stands in the input, when it is more than is seen.
pub fn size_note(app: &App, width: usize) -> Option<String> {
    let lines = app.input.text().split('\n').count();
    let hidden = app.input.rows(width).len() > usize::from((app.size.1 / 3).max(1));
    let characters = app.input.text().graphemes(true).count();
    hidden.then(|| match lines {
        1 => format!("{} characters in the input", count(characters as u64)),
        _ => format!("{} lines in the input", count(lines as u64)),
    })
}

/// The list of completions, above the input.
pub fn draw_completion(frame: &mut Frame, input: Rect, app: &App) {
    let Some(completion) = &app.completion else { return };
    let room = usize::from(input.y).min(MAX_LIST);
    let n = completion.candidates.len().min(room);
    if n == 0 {
        return;
    }
    let first = (completion.selected + 1).saturating_sub(n);
    let area = Rect::new(input.x, input.y - n as u16, input.width, n as u16);
    Clear.render(area, frame.buffer_mut());
    let labels = completion.candidates.iter().map(|c| c.label.len()).max().unwrap_or(0) + 2;
    let more = completion.candidates.len() - n;
    for (i, candidate) in completion.candidates.iter().skip(first).take(n).enumerate() {
        let chosen = first + i == completion.selected;
        let (style, help) = if chosen {
            (app.theme.style(Role::Selected), app.theme.style(Role::Selected))
        } else {
            (app.theme.style(Role::Popup), app.theme.style(Role::Dim))
        };
        let width = usize::from(area.width);
        let mut text = candidate.help.clone();
        if i + 1 == n && more > 0 && !chosen {
            text = format!("{text}  ({more} more)");
        }
        let label = truncate(&format!("  {:<labels$}", candidate.label), width);
        let help_text = truncate(&text, width.saturating_sub(crate::ui::text::width(&label)));
        let line = Line::from(vec![Span::styled(label, style), Span::styled(help_text, help)]);
        frame.buffer_mut().set_line(area.x, area.y + i as u16, &line, area.width);
    }
}
