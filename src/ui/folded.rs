//! Folded parts of the input: a long paste or an attached file is one character of the text,
//! is shown as its label (`[500 lines]`), and is sent as its content.

use super::text::count;
use std::ops::Range;

/// The characters that mark parts: plane 16 of the private use area. Text that holds one itself
/// becomes a part too, so that none is mistaken.
const MARKS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// A paste of more lines or characters than this is folded.
const MAX_LINES: usize = 10;
const MAX_CHARS: usize = 1_000;

/// The part that a mark refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    label: String,
    text: String,
    /// Stands on lines of its own.
    block: bool,
}

/// Bytes of a text that are shown as a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    pub range: Range<usize>,
    pub label: String,
}

/// All parts that were ever folded: undo, the history and sent messages refer to them.
#[derive(Clone, Debug, Default)]
pub struct Parts(Vec<Part>);

pub fn is_mark(c: char) -> bool {
    MARKS.contains(&c)
}

/// `[500 lines]`, or `[2,300 characters]` of fewer lines.
pub fn label_of(text: &str) -> String {
    // Counted again and again while a paste grows.
    let newlines = text.bytes().filter(|b| *b == b'\n').count();
    match newlines + usize::from(!text.ends_with('\n') && !text.is_empty()) {
        n if n > MAX_LINES => format!("[{} lines]", count(n as u64)),
        _ => match text.chars().count() {
            1 => "[1 character]".to_owned(),
            n => format!("[{} characters]", count(n as u64)),
        },
    }
}

/// The middle of a long text, which a sent message shows as a label.
pub fn middle(text: &str) -> Option<Fold> {
    const LINES: usize = 24;
    const CHARS: usize = 4_000;
    let starts: Vec<usize> = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let range = if starts.len() > LINES {
        starts[3]..starts[starts.len() - 2] - 1
    } else {
        text.char_indices().nth(CHARS)?;
        let from = text.char_indices().nth(400)?.0;
        from..text.char_indices().rev().nth(99)?.0
    };
    Some(Fold { label: label_of(&text[range.clone()]), range })
}

impl Parts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text as the input holds it: a mark where it is long, or holds marks itself.
    pub fn shorten(&mut self, text: &str) -> String {
        let long = text.lines().nth(MAX_LINES).is_some() || text.chars().nth(MAX_CHARS).is_some();
        if !long {
            return self.shield(text);
        }
        // Newlines around it stay outside: a message is sent without those at its ends.
        let start = text.len() - text.trim_start_matches('\n').len();
        let end = text.trim_end_matches('\n').len().max(start);
        let mark = self.fold(&text[start..end], label_of(text), false);
        format!("{}{mark}{}", &text[..start], &text[end..])
    }

    /// The text as it is, unless it holds marks itself.
    pub fn shield(&mut self, text: &str) -> String {
        if text.contains(is_mark) { self.fold(text, label_of(text), false) } else { text.to_owned() }
    }

    /// The mark of a part. A `block` has lines of its own.
    pub fn fold(&mut self, text: &str, label: String, block: bool) -> String {
        let part = Part { label, text: text.to_owned(), block };
        let at = self.0.iter().position(|p| *p == part).unwrap_or_else(|| {
            self.0.push(part);
            self.0.len() - 1
        });
        // More parts than there are marks: nobody pastes as often. The text stays as it is.
        MARKS.clone().nth(at).map_or_else(|| text.replace(is_mark, "\u{fffd}"), String::from)
    }

    /// Appends text to the part of a mark, or begins a new one, and returns its mark. `None` if
    /// there are no more marks.
    pub fn grow(&mut self, mark: Option<char>, text: &str) -> Option<char> {
        let at = match mark {
            Some(mark) => u32::from(mark).checked_sub(u32::from(*MARKS.start()))? as usize,
            None => self.0.len(),
        };
        let mark = MARKS.clone().nth(at)?;
        if at == self.0.len() {
            self.0.push(Part { label: String::new(), text: String::new(), block: false });
        }
        let part = self.0.get_mut(at)?;
        part.text.push_str(text);
        part.label = label_of(&part.text);
        Some(mark)
    }

    fn part(&self, mark: char) -> Option<&Part> {
        let at = u32::from(mark).checked_sub(u32::from(*MARKS.start()))?;
        self.0.get(at as usize)
    }

    /// Label of a mark.
    pub fn label(&self, mark: char) -> Option<&str> {
        self.part(mark).map(|p| &*p.label)
    }

    /// The part that a mark refers to.
    pub fn text(&self, mark: char) -> Option<&str> {
        self.part(mark).map(|p| &*p.text)
    }

    /// The whole text, each mark replaced by its part.
    pub fn expand(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match self.part(c) {
                None => out.push(c),
                Some(part) => {
                    if part.block && !out.is_empty() && !out.ends_with('\n') {
                        out.push('\n');
                    }
                    out.push_str(&part.text);
                    if part.block && chars.peek().is_some_and(|next| *next != '\n') {
                        out.push('\n');
                    }
                }
            }
        }
        out
    }

    /// Where parts occur in a whole text, in order.
    pub fn folds(&self, text: &str) -> Vec<Fold> {
        let found = self.found(text);
        found.into_iter().map(|(range, at)| Fold { range, label: self.0[at].label.clone() }).collect()
    }

    /// The whole text with its parts folded again; a text that holds marks itself becomes a part.
    pub fn refold(&mut self, text: &str) -> String {
        if text.contains(is_mark) {
            return self.shield(text);
        }
        let mut out = String::new();
        let mut from = 0;
        for (range, at) in self.found(text) {
            out.push_str(&text[from..range.start]);
            out.extend(MARKS.clone().nth(at));
            from = range.end;
        }
        out + &text[from..]
    }

    /// Ranges of parts and their numbers. The newest part wins where two overlap.
    fn found(&self, text: &str) -> Vec<(Range<usize>, usize)> {
        let mut found: Vec<(Range<usize>, usize)> = Vec::new();
        for (at, part) in self.0.iter().enumerate().rev().filter(|(_, p)| !p.text.is_empty()) {
            for (start, _) in text.match_indices(&*part.text) {
                let range = start..start + part.text.len();
                if found.iter().all(|(other, _)| range.end <= other.start || other.end <= range.start) {
                    found.push((range, at));
                }
            }
        }
        found.sort_by_key(|(range, _)| range.start);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_folded_comes_back_whole() {
        let mut parts = Parts::default();
        let long: String = (0..500).map(|n| format!("line {n}\n")).collect();
        let raw = format!("look: {}and", parts.shorten(&long));
        assert_eq!(raw.chars().count(), 11);
        assert_eq!(parts.expand(&raw), format!("look: {long}and"));
        assert_eq!(parts.folds(&parts.expand(&raw)), [Fold { range: 6..5 + long.len(), label: "[500 lines]".into() }]);
        assert_eq!(parts.refold(&format!("look: {long}and")), raw);
        // Marks in a text of the user's are text.
        let own = "a\u{100000}b";
        let shielded = parts.shield(own);
        assert_ne!(shielded, own);
        assert_eq!(parts.expand(&shielded), own);
        assert_eq!(parts.shorten("short\ntext"), "short\ntext");
        assert_eq!(middle(&long).map(|f| (f.label, f.range.start)), Some(("[496 lines]".into(), 21)));
        assert_eq!(middle(&"x".repeat(5_000)).map(|f| f.range), Some(400..4_900));
        assert_eq!(middle("short"), None);
        let file = parts.fold("```\nx\n```", "[@x]".into(), true);
        assert_eq!(parts.expand(&format!("read {file} now")), "read \n```\nx\n```\n now");
    }
}
