//! Finding text in the conversation: looks through the rows as they are drawn, so that a hit is
//! always something that can be seen. Rows of an item are joined, so that a hit may run over a line
//! end.

use super::feed::{Feed, Rows};
use super::text::grapheme_width;
use unicode_segmentation::UnicodeSegmentation;

/// Place of a hit: an item, and cells of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    pub item: usize,
    /// Row within the item, first column, columns; one for each row that it touches.
    pub cells: Vec<(usize, u16, u16)>,
}

/// All hits of a query in the conversation, in order.
pub fn hits(feed: &Feed, query: &str) -> Vec<Hit> {
    let items = feed.items.iter().enumerate();
    items.filter_map(|(n, key)| Some((n, feed.rows.get(key)?))).flat_map(|(n, rows)| hits_in(n, rows, query)).collect()
}

/// Hits in the rows of one item, in any case.
pub fn hits_in(item: usize, rows: &Rows, query: &str) -> Vec<Hit> {
    let wanted: Vec<char> = query.chars().flat_map(char::to_lowercase).collect();
    if query.trim().is_empty() {
        return Vec::new();
    }
    // Each lower-case character, and the cell it is drawn in.
    let mut text: Vec<(char, (usize, u16, u16))> = Vec::new();
    for (row, line) in rows.lines.iter().enumerate() {
        let drawn: String = line.spans.iter().map(|s| s.content.as_ref()).collect();
        let mut column = (drawn.len() - drawn.trim_start_matches(' ').len()) as u16;
        if text.last().is_some_and(|(c, _)| *c != ' ') && !drawn.trim().is_empty() {
            text.push((' ', (row, column, 0)));
        }
        for grapheme in drawn.trim_matches(' ').graphemes(true) {
            let width = grapheme_width(grapheme) as u16;
            text.extend(grapheme.chars().flat_map(char::to_lowercase).map(|c| (c, (row, column, width))));
            column += width;
        }
    }
    let mut hits = Vec::new();
    let mut at = 0;
    while at + wanted.len() <= text.len() {
        let here = &text[at..at + wanted.len()];
        if here.iter().map(|(c, _)| c).eq(&wanted) {
            hits.push(Hit { item, cells: joined(here.iter().map(|(_, cell)| *cell)) });
            at += wanted.len();
        } else {
            at += 1;
        }
    }
    hits
}

/// Neighbouring cells of a row as one.
fn joined(cells: impl Iterator<Item = (usize, u16, u16)>) -> Vec<(usize, u16, u16)> {
    let mut out: Vec<(usize, u16, u16)> = Vec::new();
    for (row, column, width) in cells {
        match out.last_mut() {
            Some((last, start, columns)) if *last == row => *columns = (*columns).max(column + width - *start),
            _ => out.push((row, column, width)),
        }
    }
    out
}

/// How often a text holds the query, in any case.
pub fn count_in(text: &str, query: &str) -> usize {
    let query = query.trim().to_lowercase();
    if query.is_empty() { 0 } else { text.to_lowercase().matches(&*query).count() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::text::{Line, Span};

    #[test]
    fn hits_are_found_in_any_case_and_over_line_ends() {
        let line = |parts: &[&str]| Line::from(parts.iter().map(|p| Span::raw((*p).to_owned())).collect::<Vec<_>>());
        let lines = vec![line(&["   The Quick ", "日本 brown"]), line(&["   fox; QUICK"]), Line::default()];
        let rows = Rows { lines, ..Rows::default() };
        let cells = |query: &str| hits_in(0, &rows, query).into_iter().map(|h| h.cells).collect::<Vec<_>>();
        assert_eq!(cells("quick"), [vec![(0, 7, 5)], vec![(1, 8, 5)]]);
        assert_eq!(cells("brown fox"), [vec![(0, 18, 5), (1, 3, 3)]]);
        assert_eq!(cells("本 B"), [vec![(0, 15, 4)]]);
        assert!(cells("").is_empty() && cells("lazy").is_empty());
        assert_eq!(count_in("Fox and fox", "FOX"), 2);
    }
}
