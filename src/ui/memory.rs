//! The conversation as it was fed, token by token, with the share of lanes that still store each
//! token: the state of the memory page, its rows and its passages. Draws nothing.

use super::text::{clean, width};
use crate::protocol::{LaneFilter, LaneState, Presence, PresenceRequest, Recalled};
use std::ops::Range;

/// Minimum interval between two requests.
pub const EVERY_MS: u64 = 200;
/// A request without an answer for so long does not hold back the next one.
const PATIENCE_MS: u64 = 5_000;
/// Tokens of a passage.
const PASSAGE: usize = 16;
/// Number of passages that the keys for the best and the least remembered passages visit.
const VISITED: usize = 9;

/// Contents of the memory page: the last answer of the engine, its text put together from all of
/// them.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    text: String,
    /// End in `text` of each token.
    ends: Vec<usize>,
    revision: u64,
    /// The last answer, without its text.
    presence: Presence,
    /// When the request was sent that has no answer yet.
    asked_ms: Option<u64>,
    /// When the last request was sent.
    last_ms: Option<u64>,
    /// The cache may have changed since the last answer.
    stale: bool,
    /// First token of each row, for rows of `columns`.
    rows: Vec<usize>,
    columns: usize,
}

/// Where the memory page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPage {
    pub filter: LaneFilter,
    /// The token under the cursor; `None` follows the newest.
    pub cursor: Option<usize>,
    /// Where the passage begins that is being chosen; it ends at the cursor.
    pub anchor: Option<usize>,
}

/// A recall test on the memory page: what it found, once it has ended.
#[derive(Clone, Debug, Default)]
pub struct PageRecall {
    /// Empty while the model is asked.
    pub words: String,
    pub recalled: Option<Box<Recalled>>,
}

/// The tokens that spell some whole characters: mostly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelled<'a> {
    pub tokens: Range<usize>,
    pub text: &'a str,
}

impl Memory {
    /// Number of tokens whose counts are known.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Notes that the cache may have changed.
    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Returns the request to send now, if the page is not up to date and the last request is
    /// answered and not too recent.
    pub fn request(&mut self, page: &MemoryPage, tokens: usize, now_ms: u64) -> Option<PresenceRequest> {
        let due = self.due_at(page, tokens)?;
        (due <= now_ms).then(|| self.request_now(page, tokens, now_ms))
    }

    /// Returns the request to send now, whether or not the page is up to date.
    pub fn request_now(&mut self, page: &MemoryPage, tokens: usize, now_ms: u64) -> PresenceRequest {
        (self.asked_ms, self.last_ms, self.stale) = (Some(now_ms), Some(now_ms), false);
        let position = self.cursor(page, tokens);
        PresenceRequest { filter: page.filter, position, revision: self.revision, known: self.ends.len() }
    }

    /// Returns when the next request is due; `None` while the page is up to date.
    pub fn due_at(&self, page: &MemoryPage, tokens: usize) -> Option<u64> {
        let shown = (self.presence.filter, self.presence.position, self.presence.kept.len());
        let current = shown == (page.filter, self.cursor(page, tokens), tokens);
        if current && !self.stale && self.last_ms.is_some() {
            return None;
        }
        let interval = self.last_ms.map_or(0, |last| last + EVERY_MS);
        Some(self.asked_ms.map_or(interval, |asked| asked + PATIENCE_MS))
    }

    fn cursor(&self, page: &MemoryPage, tokens: usize) -> usize {
        page.cursor.unwrap_or(usize::MAX).min(tokens.saturating_sub(1))
    }

    /// Takes in an answer of the engine.
    pub fn update(&mut self, presence: &Presence) {
        self.asked_ms = None;
        if presence.from == 0 {
            self.text.clear();
            self.ends.clear();
            self.rows.clear();
        } else if presence.from != self.ends.len() || presence.revision != self.revision {
            // An answer to an earlier state: the next one has all of the text.
            (self.revision, self.stale) = (0, true);
            return;
        }
        let start = self.text.len();
        self.revision = presence.revision;
        self.text += &presence.text;
        self.ends.extend(presence.ends.iter().map(|&end| start + end as usize));
        // A cache that is being filled again has fewer tokens than were known.
        if presence.kept.len() < self.ends.len() {
            self.ends.truncate(presence.kept.len());
            self.text.truncate(self.ends.last().copied().unwrap_or(0));
            self.rows.clear();
        }
        self.presence = Presence { text: String::new(), ends: Vec::new(), ..presence.clone() };
    }

    /// The characters from token `at` on, with all tokens that spell them.
    fn spelled_from(&self, at: usize) -> Spelled<'_> {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let last = (at..self.len()).find(|&t| self.ends[t] > start).unwrap_or(self.len().saturating_sub(1));
        let text = self.text.get(start..self.ends[last]).unwrap_or("");
        Spelled { tokens: at..last + 1, text }
    }

    /// The characters that token `token` helps to spell.
    pub fn spelled(&self, token: usize) -> Spelled<'_> {
        if self.is_empty() {
            return Spelled { tokens: 0..0, text: "" };
        }
        let mut first = token.min(self.len().saturating_sub(1));
        let start = |t: usize| t.checked_sub(1).map_or(0, |before| self.ends[before]);
        while first > 0 && self.ends[first - 1] == start(first - 1) {
            first -= 1;
        }
        self.spelled_from(first)
    }

    /// All characters of a row, in the order of the text.
    pub fn row(&self, row: usize) -> impl Iterator<Item = Spelled<'_>> {
        let end = self.rows.get(row + 1).copied().unwrap_or(self.len());
        let mut at = self.rows.get(row).copied().unwrap_or(end);
        std::iter::from_fn(move || {
            let spelled = (at < end).then(|| self.spelled_from(at))?;
            at = spelled.tokens.end;
            Some(spelled)
        })
    }

    /// Mean share of the lanes that store the tokens.
    pub fn share(&self, tokens: Range<usize>) -> f64 {
        let n = tokens.len().max(1) as f64;
        tokens.map(|t| self.presence.share(t)).sum::<f64>() / n
    }

    /// Divides the text into rows of at most `columns` columns. Only new text is looked at.
    pub fn lay_out(&mut self, columns: usize) {
        if columns != self.columns {
            self.rows.clear();
            self.columns = columns;
        }
        // The last row continues.
        let mut at = self.rows.pop().unwrap_or(0);
        let (mut start, mut used, mut broken) = (at, 0, false);
        let mut rows = std::mem::take(&mut self.rows);
        while at < self.len() {
            let spelled = self.spelled_from(at);
            let wide = width(&shown(spelled.text, "^"));
            if broken || (used > 0 && used + wide > columns) {
                rows.push(start);
                (start, used) = (at, 0);
            }
            used += wide;
            broken = spelled.text.ends_with('\n');
            at = spelled.tokens.end;
        }
        rows.push(start);
        self.rows = rows;
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The row of a token.
    pub fn row_of(&self, token: usize) -> usize {
        self.rows.partition_point(|&first| first <= token).saturating_sub(1)
    }

    /// The token of `row` below or above the column of `token`.
    pub fn in_row(&self, token: usize, row: usize) -> usize {
        let row_start = self.rows.get(self.row_of(token)).copied().unwrap_or(0);
        let columns = |s: &Spelled| width(&shown(s.text, "^"));
        let before = self.row(self.row_of(row_start)).take_while(|s| s.tokens.end <= token);
        let column: usize = before.map(|s| columns(&s)).sum();
        let (mut used, mut found) = (0, self.rows.get(row).copied().unwrap_or(token));
        for spelled in self.row(row) {
            if used > column {
                break;
            }
            used += columns(&spelled);
            found = spelled.tokens.end - 1;
        }
        found
    }

    /// Tokens of the next passage after `cursor` that is among the best (or least) remembered ones;
    /// from the start again after the last. Tokens of the window, which every head stores, do not
    /// count. `None` if there is none.
    pub fn next_passage(&self, cursor: usize, best: bool, window: usize) -> Option<Range<usize>> {
        let n = self.len().saturating_sub(window + 1);
        let size = PASSAGE.min(n / 2).max(1);
        let mut passages: Vec<(f64, usize)> =
            (0..n / size).map(|i| (self.share(i * size..(i + 1) * size), i * size)).collect();
        passages.sort_by(|a, b| if best { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) });
        passages.truncate(passages.len().div_ceil(4).min(VISITED));
        let mut starts: Vec<usize> = passages.into_iter().map(|(_, start)| start).collect();
        starts.sort_unstable();
        starts.iter().find(|&&start| start > cursor).or(starts.first()).map(|&start| start..start + size)
    }

    /// Tokens of a passage between two of its tokens, or around one: up to the ends of its
    /// sentence, line or message.
    pub fn passage(&self, cursor: usize, anchor: Option<usize>) -> Range<usize> {
        let at = self.spelled(cursor).tokens;
        if let Some(anchor) = anchor {
            let from = self.spelled(anchor).tokens;
            return at.start.min(from.start)..at.end.max(from.end);
        }
        let text = |token: usize| self.spelled_from(token).text;
        let ends = |text: &str| {
            let trimmed = text.trim_end();
            text.contains('\n')
                || is_control(text)
                || (trimmed.len() < text.len() && trimmed.ends_with(['.', '!', '?']))
        };
        let starts_new = |token: usize| {
            let next = (token + 1 < self.len()).then(|| text(token + 1));
            let stops = text(token).ends_with(['.', '!', '?']);
            stops && next.is_some_and(|next| next.starts_with(' ') || is_control(next) || next.starts_with('\n'))
        };
        let (mut from, mut to) = (at.start, at.end);
        while from > 0 && !ends(text(from - 1)) && !starts_new(from - 1) {
            from -= 1;
        }
        while to < self.len() && !ends(text(to - 1)) && !starts_new(to - 1) && !is_control(text(to)) {
            to += 1;
        }
        from..to
    }

    /// A passage without the control tokens and the white space at its ends.
    pub fn without_edges(&self, passage: Range<usize>) -> Range<usize> {
        let is_edge = |spelled: &Spelled| is_control(spelled.text.trim()) || spelled.text.trim().is_empty();
        let Range { mut start, mut end } = passage;
        while let Some(first) = Some(self.spelled(start)).filter(|first| start < end && is_edge(first)) {
            start = first.tokens.end;
        }
        while let Some(last) = Some(end).filter(|end| start < *end).map(|end| self.spelled(end - 1)).filter(is_edge) {
            end = last.tokens.start;
        }
        start..end.max(start)
    }

    /// The text of a passage, without the tokens that are not known yet: pins of a cache that is
    /// being filled are.
    pub fn text_of(&self, passage: Range<usize>) -> &str {
        let end_of = |n: usize| n.min(self.ends.len()).checked_sub(1).map_or(0, |last| self.ends[last]);
        self.text.get(end_of(passage.start)..end_of(passage.end)).unwrap_or("")
    }

    /// Layers in which at least one head stores the token at the cursor, as ranges: `0-3, 7`; empty
    /// if none does.
    pub fn layers_that_keep(&self) -> String {
        let keeps = |layer: &Vec<LaneState>| layer.iter().any(|state| *state != LaneState::Dropped);
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (layer, _) in self.presence.of_position.iter().enumerate().filter(|(_, heads)| keeps(heads)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == layer => *last = layer,
                _ => ranges.push((layer, layer)),
            }
        }
        let word = |(from, to)| if from == to { format!("{from}") } else { format!("{from}-{to}") };
        ranges.into_iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

/// Whether a token's text is a control token of the usual spelling.
fn is_control(text: &str) -> bool {
    text.starts_with("<|") && text.ends_with("|>")
}

/// A token's text as it is drawn: clean, newlines as `newline`.
pub fn shown(text: &str, newline: &str) -> String {
    clean(text).replace('\n', newline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing;

    #[test]
    fn a_cache_that_is_filled_again_has_fewer_tokens_than_pins() {
        let words: String = (0..40).map(|n| format!("word{n} ")).collect();
        let all = testing::presence(&words, 1, 2);
        let mut memory = Memory::default();
        memory.update(&all);
        memory.lay_out(20);
        let known = memory.len();
        let kept = all.kept[..10].to_vec();
        memory.update(&Presence { text: String::new(), ends: Vec::new(), from: known, kept, ..all.clone() });
        memory.lay_out(20);
        assert_eq!(memory.len(), 10);
        // Every row ends, and the rows have the tokens that are there.
        let shown: Vec<_> = (0..memory.rows()).flat_map(|row| memory.row(row).map(|s| s.tokens)).collect();
        assert_eq!(shown, (0..10).map(|t| t..t + 1).collect::<Vec<_>>());
        assert_eq!(memory.text_of(8..20), "word8 word9 ");
        assert_eq!(memory.text_of(30..32), "");
    }
}
