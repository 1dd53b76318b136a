//! The rows of a recall test: its summary, and the text with bars under each token, how surely the
//! model says it, how many heads store it and, where some have it far, how many read it. Tokens
//! that it would not say are dim.

use super::prelude::*;
use crate::protocol::Recalled;
use crate::ui::heat;
use crate::ui::text::{clean_line, grapheme_width};
use unicode_segmentation::UnicodeSegmentation;

/// Columns before the text, for the names of the bars.
const INDENT: usize = 9;

/// One grapheme of the text.
struct Cell {
    text: String,
    style: Style,
    /// Probability of its token, and shares of the lanes that store it and that read it, there or
    /// in a far page; `None` in the part that is given.
    known: Option<f64>,
    stored: Option<f64>,
    read: Option<f64>,
}

/// Makes the rows under the summary, for a pane of `width` columns.
pub fn rows(recalled: &Recalled, width: usize, theme: &Theme, depth: Depth) -> Vec<Line<'static>> {
    let room = width.saturating_sub(INDENT).max(10);
    let (mut lines, mut row, mut used) = (Vec::new(), Vec::new(), 0);
    for cell in cells(recalled, theme) {
        let columns = grapheme_width(&cell.text);
        if used + columns > room {
            lines.extend(drawn(&std::mem::take(&mut row), theme, depth));
            used = 0;
        }
        used += columns;
        row.push(cell);
    }
    lines.extend(drawn(&row, theme, depth));
    lines
}

fn cells(recalled: &Recalled, theme: &Theme) -> Vec<Cell> {
    let mut cells = Vec::new();
    let some_far = recalled.tokens.iter().filter_map(|token| token.evidence).any(|of| of.read + of.unread > 0);
    let mut add = |text: &str, role: Role, known: Option<f64>, [stored, read]: [Option<f64>; 2]| {
        for text in clean_line(text).graphemes(true).filter(|g| grapheme_width(g) > 0) {
            cells.push(Cell { text: text.to_owned(), style: theme.style(role), known, stored, read });
        }
    };
    add(&recalled.cue, Role::Note, None, [None; 2]);
    for token in &recalled.tokens {
        let role = if token.known.is_choice { Role::Strong } else { Role::Dim };
        let share = |lanes: u32| f64::from(lanes) / f64::from(recalled.lanes.max(1));
        let stored = token.evidence.map(|of| share(of.stored));
        let read = token.evidence.filter(|_| some_far).map(|of| share(of.attended()));
        add(&token.text, role, Some(token.known.logprob.exp()), [stored, read]);
    }
    cells
}

/// The three lines of a row. The bars of a row in the given part only are left out.
fn drawn(row: &[Cell], theme: &Theme, depth: Depth) -> Vec<Line<'static>> {
    let dim = theme.style(Role::Dim);
    let name = |name: &str| Span::styled(format!("   {name:<6}"), dim);
    let text = row.iter().map(|cell| Span::styled(cell.text.clone(), cell.style));
    let mut lines = vec![Line::from_iter(std::iter::once(name("")).chain(text))];
    let mut bars = |title: &str, share: &dyn Fn(&Cell) -> Option<(f64, Style)>| {
        if row.iter().all(|cell| share(cell).is_none()) {
            return;
        }
        let bar = |cell: &Cell| match share(cell) {
            Some((level, style)) => {
                Span::styled(heat::bar(theme, depth, level).repeat(grapheme_width(&cell.text)), style)
            }
            None => Span::raw(" ".repeat(grapheme_width(&cell.text))),
        };
        lines.push(Line::from_iter(std::iter::once(name(title)).chain(row.iter().map(bar))));
    };
    bars("known", &|cell| Some((cell.known?, dim)));
    let coloured = |share: f64| {
        let colour = heat::colour(theme, depth, heat::level(share));
        (share, colour.map_or(dim, |colour| Style::new().fg(colour)))
    };
    bars("kept", &|cell| cell.stored.map(coloured));
    bars("read", &|cell| cell.read.map(coloured));
    lines
}
