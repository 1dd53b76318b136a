//! Tables: columns as wide as they need, narrowed from the widest down when the screen is narrow,
//! and a list of `name: value` rows when even that does not fit.

use crate::ui::text::{width, wrap};
use crate::ui::theme::{Role, Theme};
use pulldown_cmark::Alignment;
use ratatui::text::{Line, Span};

type Cell = Vec<Span<'static>>;

/// Narrowest column before the table becomes a list.
const MIN_COLUMN: usize = 4;

pub struct Table {
    alignments: Vec<Alignment>,
    /// The first row is the head.
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(alignments: Vec<Alignment>) -> Self {
        Self { alignments, rows: Vec::new() }
    }

    pub fn start_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub fn push_cell(&mut self, cell: Cell) {
        if let Some(row) = self.rows.last_mut() {
            row.push(cell);
        }
    }

    pub fn render(mut self, room: usize, theme: &Theme) -> Vec<Line<'static>> {
        let head = theme.style(Role::Strong);
        for span in self.rows.first_mut().into_iter().flatten().flatten() {
            span.style = span.style.patch(head);
        }
        match self.column_widths(room) {
            Some(widths) => self.grid(&widths, theme),
            None => self.list(room),
        }
    }

    fn column_widths(&self, room: usize) -> Option<Vec<usize>> {
        let columns = self.alignments.len();
        let mut widths = vec![1; columns];
        for row in &self.rows {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(cell_width(cell));
            }
        }
        let room = room.checked_sub(3 * columns.saturating_sub(1))?;
        while widths.iter().sum::<usize>() > room {
            let widest = widths.iter_mut().max()?;
            if *widest <= MIN_COLUMN {
                return None;
            }
            *widest -= 1;
        }
        Some(widths)
    }

    fn grid(&self, widths: &[usize], theme: &Theme) -> Vec<Line<'static>> {
        let glyphs = theme.glyphs();
        let border = theme.style(Role::Border);
        let mut lines = Vec::new();
        for (n, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<Line>> = widths
                .iter()
                .enumerate()
                .map(|(i, w)| row.get(i).map_or_else(Vec::new, |cell| wrap(cell, *w, &[], &[])))
                .collect();
            for y in 0..cells.iter().map(Vec::len).max().unwrap_or(1) {
                let mut spans = Vec::new();
                for (i, w) in widths.iter().enumerate() {
                    if i > 0 {
                        spans.push(Span::styled(format!(" {} ", glyphs.vertical), border));
                    }
                    let content = cells[i].get(y).map(|l| l.spans.clone()).unwrap_or_default();
                    let space = w.saturating_sub(cell_width(&content));
                    let (left, right) = match self.alignments[i] {
                        Alignment::Right => (space, 0),
                        Alignment::Center => (space / 2, space - space / 2),
                        _ => (0, space),
                    };
                    spans.push(Span::raw(" ".repeat(left)));
                    spans.extend(content);
                    spans.push(Span::raw(" ".repeat(right)));
                }
                lines.push(Line::from(spans));
            }
            if n == 0 {
                let cross = format!("{0}{1}{0}", glyphs.horizontal, glyphs.cross);
                let rule: Vec<String> = widths.iter().map(|w| glyphs.horizontal.repeat(*w)).collect();
                lines.push(Line::styled(rule.join(&cross), border));
            }
        }
        lines
    }

    fn list(&self, room: usize) -> Vec<Line<'static>> {
        let Some((head, rows)) = self.rows.split_first() else { return Vec::new() };
        let mut lines = Vec::new();
        for row in rows {
            for (i, cell) in row.iter().enumerate() {
                let mut spans = head.get(i).cloned().unwrap_or_default();
                spans.push(Span::raw(": "));
                spans.extend(cell.iter().cloned());
                lines.extend(wrap(&spans, room, &[], &[]));
            }
        }
        lines
    }
}

fn cell_width(cell: &[Span]) -> usize {
    cell.iter().map(|s| width(&s.content)).sum()
}
