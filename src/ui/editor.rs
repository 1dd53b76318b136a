//! The multi-line input: text, caret, undo, history. Moves and deletes by grapheme; available
//! text-area crates count characters. Draws nothing.

use super::action::Action;
use super::folded::{Fold, Parts, is_mark};
use super::text::{clean, grapheme_width};
use std::borrow::Cow;
use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

const UNDO_STEPS: usize = 200;
/// Bytes of a paste that arrives key by key which are shown as text: what comes before them is
/// folded.
const BURST_BYTES: usize = 16 << 10;

/// A row of the input as it is shown: bytes `start..end` of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub start: usize,
    pub end: usize,
}

/// Text being edited. The caret is always on a grapheme boundary.
#[derive(Clone, Debug, Default)]
pub struct Editor {
    text: String,
    caret: usize,
    /// Column that up and down aim for.
    goal: Option<usize>,
    undo: Vec<(String, usize)>,
    redo: Vec<(String, usize)>,
    /// The last edit typed a character, so that the next one joins its undo step.
    typing: bool,
    killed: String,
    /// The deleted text is whole lines, each with its newline.
    killed_lines: bool,
    /// Everything until [`Editor::end_step`] is one step of undo.
    in_step: bool,
    /// Contents of the folded parts.
    parts: Parts,
    /// Counts the changes of the text.
    revision: u64,
    burst: Option<Box<Burst>>,
}

/// Text that arrives key by key, faster than anyone types.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Where the text that is not folded begins, and where it ends.
    start: usize,
    end: usize,
    /// The mark of the folded part, just before `start`.
    mark: Option<char>,
    /// The editor's after the last key: any other change ends the burst.
    revision: u64,
}

impl From<&str> for Editor {
    fn from(text: &str) -> Self {
        let mut editor = Self::default();
        editor.set(text);
        editor
    }
}

impl Editor {
    /// The text as it is edited: a folded part is one character.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text as it is sent, with folded parts expanded.
    pub fn expanded(&self) -> Cow<'_, str> {
        // Called with every key: a text without folded parts is returned as it is.
        match !self.parts.is_empty() && self.text.contains(is_mark) {
            true => Cow::Owned(self.parts.expand(&self.text)),
            false => Cow::Borrowed(&self.text),
        }
    }

    /// Returns the ranges of a text that were folded here.
    pub fn folds(&self, text: &str) -> Vec<Fold> {
        self.parts.folds(text)
    }

    /// A number that differs after every change of the text.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn caret(&self) -> usize {
        self.caret
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Replaces everything; the caret goes to the end. Can be undone. What was folded before is
    /// folded again.
    pub fn set(&mut self, text: &str) {
        self.end_step();
        self.remember();
        self.revision += 1;
        self.text = self.parts.refold(text);
        self.caret = self.text.len();
    }

    /// Empties the input and returns what was in it, folded parts included.
    pub fn take(&mut self) -> String {
        self.end_step();
        self.remember();
        self.caret = 0;
        self.revision += 1;
        let text = std::mem::take(&mut self.text);
        self.parts.expand(&text)
    }

    /// Inserts typed text at the caret; all newlines become `\n`.
    pub fn insert(&mut self, text: &str) {
        let text = self.parts.shield(&unix_newlines(text));
        self.insert_raw(&text);
    }

    /// Inserts text of keys that came faster than anyone types: a paste without brackets. It is one
    /// step of undo, and long text is folded as it comes, so that the work per key does not grow
    /// with the text before it.
    pub fn insert_fast(&mut self, text: &str) {
        let running = self.burst.take().filter(|burst| (burst.revision, burst.end) == (self.revision, self.caret));
        let mut burst = running.unwrap_or_else(|| {
            self.remember();
            Box::new(Burst { start: self.caret, end: self.caret, mark: None, revision: self.revision })
        });
        let text = self.parts.shield(&unix_newlines(text));
        self.put(&text);
        if self.caret - burst.start >= BURST_BYTES
            && let Some(mark) = self.parts.grow(burst.mark, &self.text[burst.start..self.caret])
        {
            let before = burst.mark.map_or(0, char::len_utf8);
            self.text.replace_range(burst.start - before..self.caret, mark.encode_utf8(&mut [0; 4]));
            burst.start += mark.len_utf8() - before;
            (self.caret, burst.mark) = (burst.start, Some(mark));
        }
        (burst.end, burst.revision) = (self.caret, self.revision);
        self.burst = Some(burst);
    }

    /// Whether a part of the running burst is folded.
    pub fn folds_burst(&self) -> bool {
        self.burst.as_ref().is_some_and(|burst| burst.mark.is_some() && burst.revision == self.revision)
    }

    /// Inserts pasted text at the caret, folded where it is long. True when it was folded.
    pub fn paste(&mut self, text: &str) -> bool {
        let text = unix_newlines(text);
        let short = self.parts.shorten(&text);
        self.insert_raw(&short);
        short != text
    }

    /// Puts a folded block, such as an attached file, in the place of the word `typed`: the last
    /// one before the caret, else the last one. False when it is not there any more.
    pub fn attach(&mut self, typed: &str, text: &str, label: String) -> bool {
        let ends = |(at, word): &(usize, &str)| super::attach::ends_before(&self.text[at + word.len()..]);
        let found: Vec<usize> = self.text.rmatch_indices(typed).filter(ends).map(|(at, _)| at).collect();
        let before = found.iter().find(|at| **at + typed.len() <= self.caret);
        let Some(&start) = before.or(found.first()) else { return false };
        self.remember();
        let mark = self.parts.fold(text, label, true);
        self.revision += 1;
        self.text.replace_range(start..start + typed.len(), &mark);
        self.caret = start + mark.len();
        true
    }

    /// Turns the folded part at the caret into plain text. False when there is none.
    pub fn open_part(&mut self) -> bool {
        let (before, after) = self.text.split_at(self.caret);
        let found = match (before.chars().next_back(), after.chars().next()) {
            (Some(mark), _) if is_mark(mark) => Some((mark, self.caret - mark.len_utf8())),
            (_, Some(mark)) if is_mark(mark) => Some((mark, self.caret)),
            _ => None,
        };
        // A text that holds marks itself stays a part.
        let whole = found.and_then(|(mark, at)| Some((mark, at, self.parts.text(mark)?.to_owned())));
        let Some((mark, at, text)) = whole.filter(|(.., text)| !text.contains(is_mark)) else { return false };
        self.remember();
        self.revision += 1;
        self.text.replace_range(at..at + mark.len_utf8(), &text);
        self.caret = at + text.len();
        true
    }

    fn insert_raw(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let one = text.chars().nth(1).is_none() && !text.starts_with(char::is_whitespace);
        if !(one && self.typing) {
            self.remember();
        }
        self.put(text);
        self.typing = one;
    }

    /// Inserts text that is not empty.
    fn put(&mut self, text: &str) {
        self.revision += 1;
        self.text.insert_str(self.caret, text);
        self.caret = self.next_boundary(self.caret + text.len() - 1);
    }

    /// Replaces the bytes `start..caret`, for completion.
    pub fn replace_before_caret(&mut self, start: usize, with: &str) {
        self.replace(start, self.caret, with);
    }

    /// Carries out an action that moves in the text or changes it; ignores others.
    pub fn edit(&mut self, action: Action) {
        match action {
            Action::Left => self.go(self.previous_boundary(self.caret)),
            Action::Right => self.go(self.next_boundary(self.caret)),
            Action::WordLeft => self.go(self.word_left_of(self.caret)),
            Action::WordRight => self.go(self.word_right_of(self.caret)),
            Action::LineStart => self.go(self.line_start()),
            Action::LineEnd => self.go(self.line_end()),
            Action::Backspace => self.delete(self.previous_boundary(self.caret), self.caret),
            Action::Delete => self.delete(self.caret, self.next_boundary(self.caret)),
            Action::DeleteWord => self.kill(self.word_left_of(self.caret), self.caret),
            Action::DeleteWordForward => self.kill(self.caret, self.word_right_of(self.caret)),
            // Where nothing is left of the line, the newline goes.
            Action::KillToStart => self.kill(self.line_start().min(self.previous_boundary(self.caret)), self.caret),
            Action::KillToEnd => self.kill(self.caret, self.line_end().max(self.next_boundary(self.caret))),
            Action::Yank => self.insert_raw(&self.killed.clone()),
            Action::Undo => self.undo(),
            Action::Redo => self.redo(),
            _ => {}
        }
    }

    /// Replaces the text and the caret by another step's, and returns the previous ones.
    fn exchange(&mut self, (text, caret): (String, usize)) -> (String, usize) {
        self.revision += 1;
        self.typing = false;
        (std::mem::replace(&mut self.text, text), std::mem::replace(&mut self.caret, caret))
    }

    fn undo(&mut self) {
        self.end_step();
        if let Some(step) = self.undo.pop() {
            let undone = self.exchange(step);
            self.redo.push(undone);
        }
    }

    fn redo(&mut self) {
        self.end_step();
        if let Some(step) = self.redo.pop() {
            let before = self.exchange(step);
            self.undo.push(before);
        }
    }

    /// One shown row up; false at the first one, where the history begins.
    pub fn up(&mut self, width: usize) -> bool {
        self.vertical(width, false)
    }

    /// One shown row down; false at the last one.
    pub fn down(&mut self, width: usize) -> bool {
        self.vertical(width, true)
    }

    /// The text cut into rows of at most `width` columns.
    pub fn rows(&self, width: usize) -> Vec<Row> {
        let width = width.max(2);
        let mut rows = Vec::new();
        let mut offset = 0;
        for line in self.text.split('\n') {
            wrap_row(line, offset, width, &|g| self.width_of(g), &mut rows);
            offset += line.len() + 1;
        }
        rows
    }

    /// Row and column of the caret among `rows`.
    pub fn caret_cell(&self, rows: &[Row]) -> (usize, usize) {
        let row = rows.iter().rposition(|r| r.start <= self.caret).unwrap_or(0);
        let start = rows.get(row).map_or(0, |r| r.start);
        (row, self.width_of(&self.text[start..self.caret]))
    }

    /// The pieces of a row as they are shown; true for the label of a folded part.
    pub fn shown(&self, row: &Row) -> Vec<(String, bool)> {
        let mut pieces: Vec<(String, bool)> = Vec::new();
        for grapheme in self.text[row.start..row.end].graphemes(true) {
            let mark = grapheme.chars().next().filter(|c| is_mark(*c));
            let rest = &grapheme[mark.map_or(0, char::len_utf8)..];
            pieces.extend(mark.map(|m| (self.label(m).to_owned(), true)));
            match pieces.last_mut() {
                Some((text, false)) => text.push_str(&clean(rest)),
                _ => pieces.push((clean(rest).into_owned(), false)),
            }
        }
        pieces
    }

    fn label(&self, mark: char) -> &str {
        self.parts.label(mark).unwrap_or("\u{fffd}")
    }

    /// Columns of text as the input shows it.
    fn width_of(&self, text: &str) -> usize {
        if !text.contains(is_mark) {
            return shown_width(text);
        }
        let marks: usize = text.chars().filter(|c| is_mark(*c)).map(|m| shown_width(self.label(m))).sum();
        marks + text.split(is_mark).map(shown_width).sum::<usize>()
    }

    fn vertical(&mut self, width: usize, down: bool) -> bool {
        let rows = self.rows(width);
        let (row, column) = self.caret_cell(&rows);
        let Some(target) = (if down { rows.get(row + 1) } else { row.checked_sub(1).and_then(|r| rows.get(r)) }) else {
            return false;
        };
        let goal = self.goal.unwrap_or(column);
        let mut at = target.start;
        let mut used = 0;
        for grapheme in self.text[target.start..target.end].graphemes(true) {
            used += self.width_of(grapheme);
            if used > goal {
                break;
            }
            at += grapheme.len();
        }
        // The end of a soft-wrapped row is the start of the next one.
        if at == target.end && rows.iter().any(|r| r.start == at) && at > target.start {
            at = self.previous_boundary(at);
        }
        self.caret = at;
        self.goal = Some(goal);
        self.typing = false;
        true
    }

    /// Makes all edits until [`Editor::end_step`] one step of undo.
    pub fn begin_step(&mut self) {
        if !self.in_step {
            // What can be redone stays until something changes.
            self.undo.push((self.text.clone(), self.caret));
            self.in_step = true;
        }
    }

    pub fn end_step(&mut self) {
        if std::mem::take(&mut self.in_step) && self.undo.last().is_some_and(|(text, _)| *text == self.text) {
            self.undo.pop();
        }
        self.typing = false;
    }

    /// Moves the caret to the byte `to`, which is on a grapheme boundary.
    pub fn go(&mut self, to: usize) {
        self.caret = to;
        self.goal = None;
        self.typing = false;
    }

    fn remember(&mut self) {
        if !self.in_step {
            self.undo.push((self.text.clone(), self.caret));
        }
        if self.undo.len() > UNDO_STEPS {
            self.undo.remove(0);
        }
        self.redo.clear();
        self.goal = None;
        self.typing = false;
    }

    pub fn delete(&mut self, from: usize, to: usize) {
        if from < to {
            self.remember();
            self.revision += 1;
            self.text.replace_range(from..to, "");
            self.caret = from;
        }
    }

    /// Deletes the bytes `from..to`, for [`Action::Yank`].
    pub fn kill(&mut self, from: usize, to: usize) {
        if from < to {
            self.copy(from, to, false);
            self.delete(from, to);
        }
    }

    /// Keeps the bytes `from..to` as the text deleted last; as `lines`, with a newline at the end.
    pub fn copy(&mut self, from: usize, to: usize, lines: bool) {
        self.killed = self.text[from..to].to_owned();
        self.killed.extend(lines.then_some('\n'));
        self.killed_lines = lines;
    }

    /// The text deleted last, and whether it is whole lines.
    pub fn killed(&self) -> (&str, bool) {
        (&self.killed, self.killed_lines)
    }

    /// Replaces the bytes `from..to`; the caret goes behind the new text.
    pub fn replace(&mut self, from: usize, to: usize, with: &str) {
        self.remember();
        self.revision += 1;
        self.text.replace_range(from..to, with);
        self.caret = from + with.len();
    }

    /// Moves the caret from the end of a line onto its last character.
    pub fn leave_line_end(&mut self) {
        if self.caret == self.line_end() && self.caret > self.line_start() {
            self.caret = self.previous_boundary(self.caret);
        }
    }

    pub fn previous_boundary(&self, at: usize) -> usize {
        self.text[..at].grapheme_indices(true).next_back().map_or(0, |(i, _)| i)
    }

    /// The first boundary after byte `at`, which need not be one itself.
    pub fn next_boundary(&self, at: usize) -> usize {
        // With the whole text as its chunk, the cursor needs nothing else.
        let from = (0..=at).rev().find(|&i| self.text.is_char_boundary(i)).unwrap_or(0);
        let mut cursor = GraphemeCursor::new(from, self.text.len(), true);
        cursor.next_boundary(&self.text, 0).ok().flatten().unwrap_or(self.text.len())
    }

    pub fn line_start(&self) -> usize {
        self.text[..self.caret].rfind('\n').map_or(0, |i| i + 1)
    }

    pub fn line_end(&self) -> usize {
        self.text[self.caret..].find('\n').map_or(self.text.len(), |i| self.caret + i)
    }

    fn word_left_of(&self, at: usize) -> usize {
        let mut words = self.text[..at].split_word_bound_indices().rev();
        words.find(|(_, w)| w.chars().any(|c| !c.is_whitespace())).map_or(0, |(i, _)| i)
    }

    fn word_right_of(&self, at: usize) -> usize {
        let mut words = self.text[at..].split_word_bound_indices();
        let found = words.find(|(_, w)| w.chars().any(|c| !c.is_whitespace()));
        found.map_or(self.text.len(), |(i, w)| at + i + w.len())
    }
}

fn unix_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Columns of text without folded parts.
fn shown_width(text: &str) -> usize {
    text.graphemes(true).map(|g| clean(g).graphemes(true).map(grapheme_width).sum::<usize>()).sum()
}

fn wrap_row(line: &str, offset: usize, width: usize, width_of: &dyn Fn(&str) -> usize, rows: &mut Vec<Row>) {
    let mut start = 0;
    let mut used = 0;
    // Where a word begins, and the columns before it.
    let mut word: Option<(usize, usize)> = None;
    let mut after_space = false;
    for (i, grapheme) in line.grapheme_indices(true) {
        let w = width_of(grapheme);
        if grapheme == " " {
            after_space = true;
        } else if after_space {
            word = Some((i, used));
            after_space = false;
        }
        // One column is left for the caret after the last character.
        if used + w > width - 1 && i > start {
            let (cut, before) = word.filter(|(at, _)| *at > start && *at <= i).unwrap_or((i, used));
            rows.push(Row { start: offset + start, end: offset + cut });
            start = cut;
            used -= before;
            word = None;
        }
        used += w;
    }
    rows.push(Row { start: offset + start, end: offset + line.len() });
}

/// Messages sent before, for Up and Down and for the search.
#[derive(Clone, Debug, Default)]
pub struct History {
    entries: Vec<String>,
    /// Entries since [`History::take_new`].
    new: Vec<String>,
    /// The entry shown, and the unsent text it replaced.
    at: Option<(usize, String)>,
}

impl History {
    pub fn push(&mut self, text: &str) {
        if self.add_old(text) {
            self.new.push(text.to_owned());
        }
    }

    /// Adds an entry that is in the file already. False if the last entry is the same.
    pub fn add_old(&mut self, text: &str) -> bool {
        self.at = None;
        let added = !text.trim().is_empty() && self.entries.last().is_none_or(|last| last != text);
        if added {
            self.entries.push(text.to_owned());
        }
        added
    }

    /// Inserts the entries of earlier runs before all others.
    pub fn add_before(&mut self, entries: Vec<String>) {
        let mut older = entries;
        older.retain(|entry| !entry.trim().is_empty());
        older.dedup();
        older.append(&mut self.entries);
        self.entries = older;
        self.at = None;
    }

    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Returns the entries added since the last call, which are not in the file.
    pub fn take_new(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new)
    }

    /// Returns the entry before the one shown; `unsent` is kept.
    pub fn older(&mut self, unsent: &str) -> Option<String> {
        let at = match &self.at {
            Some((at, _)) => at.checked_sub(1)?,
            None => self.entries.len().checked_sub(1)?,
        };
        let kept = self.at.take().map_or_else(|| unsent.to_owned(), |(_, d)| d);
        self.at = Some((at, kept));
        self.entries.get(at).cloned()
    }

    /// Returns the entry after the one shown, or the unsent text after the last.
    pub fn newer(&mut self) -> Option<String> {
        let (at, unsent) = self.at.take()?;
        if at + 1 < self.entries.len() {
            self.at = Some((at + 1, unsent));
            self.entries.get(at + 1).cloned()
        } else {
            Some(unsent)
        }
    }
}

/// Entries that contain `query` in any case, newest first, each once: commands if it begins with a
/// slash, else messages.
pub fn search<'a>(entries: &'a [String], query: &str) -> Vec<&'a String> {
    let query = query.to_lowercase();
    let is_command = |line: &str| super::spelling::parse(line).is_some();
    let mut found: Vec<&String> = Vec::new();
    for entry in entries.iter().rev() {
        if is_command(entry) == query.starts_with('/')
            && entry.to_lowercase().contains(&query)
            && !found.contains(&entry)
        {
            found.push(entry);
        }
    }
    found
}

#[cfg(test)]
mod tests;
