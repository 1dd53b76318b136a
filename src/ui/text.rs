//! Text on its way to the terminal: what may be shown, how wide it is, where it breaks. Everything
//! from a model, a file or a person passes through [`clean`] before it becomes a span; nothing
//! here knows the application.

use crate::protocol::StopReason;
use crate::unicode::{self, Kind};
use ratatui::buffer::CellWidth;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation;

/// Combining marks kept on one grapheme; the rest are dropped so that no cell grows without end.
const MAX_MARKS: usize = 8;
const TAB_WIDTH: usize = 4;

/// Columns that a text takes in the terminal (it must be clean).
pub fn width(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.graphemes(true).map(grapheme_width).sum()
}

/// Columns of one grapheme.
pub fn grapheme_width(grapheme: &str) -> usize {
    if grapheme.chars().any(char::is_control) { 0 } else { grapheme.cell_width() as usize }
}

/// The text with everything that could steer a terminal or hide from the reader made visible or
/// dropped: C0 and C1 controls as `^[` or `\x9b`, bidi overrides as `<U+202E>`, hidden characters
/// ([`unicode::kind`]) dropped except what emoji need. Newlines stay; tabs become spaces.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\n') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    let mut column = 0;
    for grapheme in text.graphemes(true) {
        if grapheme == "\n" || grapheme == "\r\n" {
            out.push('\n');
            column = 0;
            continue;
        }
        if grapheme == "\t" {
            let n = TAB_WIDTH - column % TAB_WIDTH;
            out.extend(std::iter::repeat_n(' ', n));
            column += n;
            continue;
        }
        let start = out.len();
        clean_grapheme(grapheme, &mut out);
        column += width(&out[start..]);
    }
    Cow::Owned(out)
}

/// [`clean`], and newlines shown as `^J`: for file names, titles and other one-line texts.
pub fn clean_line(text: &str) -> String {
    clean(text).replace('\n', "^J")
}

fn clean_grapheme(grapheme: &str, out: &mut String) {
    let mut marks = 0;
    let mut previous = None;
    let mut chars = grapheme.chars().peekable();
    while let Some(c) = chars.next() {
        match unicode::kind(c) {
            Kind::Control => match c {
                '\0'..='\x1f' => out.extend(['^', (c as u8 + 0x40) as char]),
                '\x7f' => out.push_str("^?"),
                _ => out.push_str(&format!("\\x{:02x}", c as u32)),
            },
            Kind::Bidi => out.push_str(&format!("<U+{:04X}>", c as u32)),
            Kind::Separator => out.push(' '),
            Kind::Shown if is_mark(c) => {
                marks += 1;
                if marks <= MAX_MARKS {
                    out.push(c);
                }
            }
            _ if unicode::keeps(previous, c, chars.peek().copied()) => out.push(c),
            _ => {}
        }
        previous = Some(c);
    }
}

fn is_mark(c: char) -> bool {
    let mut buffer = [0; 4];
    !c.is_ascii() && !('\u{1100}'..='\u{11ff}').contains(&c) && c.encode_utf8(&mut buffer).cell_width() == 0
}

/// Cuts a clean one-line text to `max` columns, with an ellipsis where something was cut.
pub fn truncate(text: &str, max: usize) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for grapheme in text.graphemes(true) {
        let w = grapheme_width(grapheme);
        if used + w + 1 > max {
            break;
        }
        out.push_str(grapheme);
        used += w;
    }
    if max > 0 {
        out.push('~');
    }
    out
}

/// Wraps one logical line of styled text into rows of at most `width` columns. `first` and `rest`
/// are put before the first and the following rows; they count. Words break at spaces, wide
/// characters anywhere, and longer runs at graphemes. Nothing is lost except the spaces at a break.
pub fn wrap<'a>(
    spans: &[Span<'a>],
    width: usize,
    first: &[Span<'static>],
    rest: &[Span<'static>],
) -> Vec<Line<'static>> {
    let mut wrapper = Wrapper::new(width, first, rest);
    for span in spans {
        wrapper.feed(&span.content, span.style);
    }
    wrapper.finish()
}

/// Wraps plain text of any number of lines in one style.
pub fn wrap_plain(text: &str, style: Style, width: usize, indent: &[Span<'static>]) -> Vec<Line<'static>> {
    let clean = clean(text);
    clean.split('\n').flat_map(|line| wrap(&[Span::styled(line, style)], width, indent, indent)).collect()
}

/// Appends clean text of any number of lines to lines of spans, of which there is at least one.
pub fn append(lines: &mut Vec<Vec<Span<'static>>>, text: &str, style: Style) {
    for (n, part) in text.split('\n').enumerate() {
        if n > 0 {
            lines.push(Vec::new());
        }
        lines.last_mut().into_iter().for_each(|spans| spans.push(Span::styled(part.to_owned(), style)));
    }
}

struct Wrapper {
    width: usize,
    rest: Vec<Span<'static>>,
    rest_width: usize,
    lines: Vec<Line<'static>>,
    line: Vec<Span<'static>>,
    /// Columns of the row so far, prefix included.
    used: usize,
    /// Columns of the row's prefix.
    prefix: usize,
    /// The word being collected: graphemes with their styles.
    word: Vec<(String, Style)>,
    word_width: usize,
    /// Spaces before the word.
    gap: Vec<(usize, Style)>,
    gap_width: usize,
}

impl Wrapper {
    fn new(width: usize, first: &[Span<'static>], rest: &[Span<'static>]) -> Self {
        let prefix_width = |spans: &[Span]| spans.iter().map(|s| self::width(&s.content)).sum::<usize>();
        let (first_width, rest_width) = (prefix_width(first), prefix_width(rest));
        Self {
            width: width.max(first_width.max(rest_width) + 2),
            rest: rest.to_vec(),
            rest_width,
            lines: Vec::new(),
            line: first.to_vec(),
            used: first_width,
            prefix: first_width,
            word: Vec::new(),
            word_width: 0,
            gap: Vec::new(),
            gap_width: 0,
        }
    }

    fn feed(&mut self, text: &str, style: Style) {
        for grapheme in text.graphemes(true) {
            let w = grapheme_width(grapheme);
            if grapheme == " " {
                self.end_word();
                self.gap.push((1, style));
                self.gap_width += 1;
            } else if w == 0 {
                continue;
            } else {
                if w == 2 {
                    self.end_word();
                }
                if self.prefix.max(self.rest_width) + self.word_width + w > self.width {
                    self.end_word();
                }
                match self.word.last_mut() {
                    Some((run, s)) if *s == style => run.push_str(grapheme),
                    _ => self.word.push((grapheme.to_owned(), style)),
                }
                self.word_width += w;
                if w == 2 {
                    self.end_word();
                }
            }
        }
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        if self.used + self.gap_width + self.word_width > self.width && self.used > self.prefix {
            self.break_line();
        } else {
            let room = self.width.saturating_sub(self.used + self.word_width);
            let mut left = room.min(self.gap_width);
            for (n, style) in std::mem::take(&mut self.gap) {
                let n = n.min(left);
                left -= n;
                self.push(&" ".repeat(n), style);
            }
        }
        self.gap.clear();
        self.gap_width = 0;
        for (run, style) in std::mem::take(&mut self.word) {
            self.push(&run, style);
        }
        self.word_width = 0;
    }

    fn push(&mut self, text: &str, style: Style) {
        if text.is_empty() {
            return;
        }
        self.used += width(text);
        match self.line.last_mut() {
            Some(span) if span.style == style && self.used > self.prefix => span.content.to_mut().push_str(text),
            _ => self.line.push(Span::styled(text.to_owned(), style)),
        }
    }

    fn break_line(&mut self) {
        let line = std::mem::replace(&mut self.line, self.rest.clone());
        self.lines.push(Line::from(line));
        self.used = self.rest_width;
        self.prefix = self.rest_width;
    }

    fn finish(mut self) -> Vec<Line<'static>> {
        self.end_word();
        self.lines.push(Line::from(std::mem::take(&mut self.line)));
        self.lines
    }
}

/// 12345 as `12,345`.
pub fn count(n: u64) -> String {
    crate::protocol::count(n as usize)
}

pub use crate::protocol::bytes;

/// Line, from 1, of a byte of a text.
pub fn line_number(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|b| *b == b'\n').count()
}

/// `1 slot`, `2 slots`.
pub fn plural(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{} {one}s", count(n)) }
}

/// A longer while: `45 s`, `2 min 7 s`, `1 h 5 min`.
pub fn duration(s: f64) -> String {
    let s = s.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// Seconds for a person: `0.4 s`, `3.2 s`, `75 s`.
pub fn seconds(ms: f64) -> String {
    let s = ms / 1000.0;
    if s < 59.95 { format!("{s:.1} s") } else { format!("{s:.0} s") }
}

/// The compression ratio: `5.2x`, or a dash while nothing is stored.
pub fn ratio(r: Option<f64>) -> String {
    match r {
        Some(r) if r.is_finite() => format!("{r:.1}x"),
        _ => "-".to_owned(),
    }
}

/// Said of a turn whose thought has no end.
pub const NO_ANSWER: &str = "no answer: the model was still thinking";
pub const ONLY_THOUGHT: &str = "no answer: the model only thought";

/// Words for a full context.
pub const FULL: &str = "context full";

/// Returns a few words for a stop reason.
pub fn stop_words(reason: StopReason) -> &'static str {
    match reason {
        StopReason::End => "end",
        StopReason::MaxTokens => "token limit",
        StopReason::ContextFull => FULL,
        StopReason::CacheFull => "cache full",
        StopReason::Cancelled => "interrupted",
        StopReason::Error => "error",
    }
}

pub fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect()).collect()
    }

    #[test]
    fn controls_never_pass() {
        let nasty = "a\x1b[31mb\x07\u{9b}2J\u{202e}x\u{200b}y\u{feff}\u{2066}\r\u{7f}";
        let shown = clean(nasty);
        assert_eq!(shown, "a^[[31mb^G\\x9b2J<U+202E>xy<U+2066>^M^?");
        assert!(!shown.chars().any(char::is_control));
        for n in 0..=0x10ffff {
            let Some(c) = char::from_u32(n) else { continue };
            let text = c.to_string();
            let shown = clean(&text);
            assert!(c == '\n' || !shown.chars().any(char::is_control), "U+{n:04X}");
        }
    }

    #[test]
    fn joiners_stay_inside_emoji_only() {
        let family = "👩\u{200d}👩\u{200d}👧";
        assert_eq!(clean(family), family);
        assert_eq!(width(family), 2);
        assert_eq!(clean("a\u{200d}b"), "ab");
        assert_eq!(clean("한\u{1100}\u{1161}\u{11a8}"), "한\u{1100}\u{1161}\u{11a8}");
        assert_eq!(width("\u{1100}\u{1161}\u{11a8}"), 2);
        let zalgo = format!("e{}", "\u{301}".repeat(300));
        assert_eq!(clean(&zalgo).chars().count(), 1 + MAX_MARKS);
    }

    #[test]
    fn wrapping_keeps_every_word_and_every_row_fits() {
        let text =
            "The quick brown 日本語テキスト fox, supercalifragilistic word e\u{301}e\u{301} 👩\u{200d}👩\u{200d}👧!";
        for w in 4..60 {
            let lines = wrap_plain(text, Style::new(), w, &[Span::raw("  ")]);
            let mut joined = String::new();
            for line in plain(&lines) {
                assert!(width(&line) <= w.max(4), "{line:?} at {w}");
                joined.push_str(line.strip_prefix("  ").unwrap());
            }
            let squash = |s: &str| s.chars().filter(|c| *c != ' ').collect::<String>();
            assert_eq!(squash(&joined), squash(text));
        }
    }

    #[test]
    fn leading_spaces_of_a_row_are_kept() {
        assert_eq!(plain(&wrap_plain("    code here", Style::new(), 40, &[])), ["    code here"]);
        assert_eq!(plain(&wrap_plain("one two", Style::new(), 4, &[])), ["one", "two"]);
        assert_eq!(plain(&wrap_plain("", Style::new(), 4, &[])), [""]);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_234_567), "1.2 MB");
        assert_eq!(bytes(999_900), "1.0 MB");
        assert_eq!(truncate("日本語", 4), "日~");
    }
}
