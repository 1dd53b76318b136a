//! Where Vim's moves go: pure functions of the text and the caret.

use crate::ui::editor::Editor;
use unicode_segmentation::UnicodeSegmentation;

/// Which text an operator takes up to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Before,
    Including,
    Lines,
}

/// End of a move, and of the text that an operator takes, which begins at `from`, else at the
/// caret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub to: usize,
    pub reach: Reach,
    pub from: Option<usize>,
}

fn before(to: usize) -> Option<Target> {
    Some(Target { to, reach: Reach::Before, from: None })
}

fn including(to: usize) -> Option<Target> {
    Some(Target { to, reach: Reach::Including, from: None })
}

fn lines(to: usize) -> Option<Target> {
    Some(Target { to, reach: Reach::Lines, from: None })
}

/// Where a key moves to. `operator`: text up to there is taken, and whether it is changed. `None`
/// if the key is no move, or there is nothing to move to.
pub fn motion(editor: &Editor, key: char, given: Option<usize>, operator: Option<bool>) -> Option<Target> {
    let (text, at, n) = (editor.text(), editor.caret(), given.unwrap_or(1));
    let (start, end) = (editor.line_start(), editor.line_end());
    let steps = |step: fn(&Editor, usize) -> usize, limit: usize| {
        let mut to = at;
        for _ in 0..n {
            if to == limit {
                break;
            }
            to = step(editor, to);
        }
        to
    };
    match key {
        'h' => before(steps(Editor::previous_boundary, start)),
        'l' | ' ' => before(steps(Editor::next_boundary, end)),
        '0' => before(start),
        '^' => before(first_letter(editor, start)),
        '$' => before(end_of(text, line_below(text, at, n - 1))),
        'w' | 'W' => {
            let big = key == 'W';
            let blank = text[at..].graphemes(true).next().is_none_or(|g| class(g, big) == Class::Blank);
            // To change a word leaves the blanks behind it.
            if operator == Some(true) && !blank {
                let first = word_end(text, at, big, true);
                return including((1..n).fold(first, |to, _| word_end(text, to, big, false)));
            }
            let to = (0..n).fold(at, |to, _| next_word(text, to, big));
            before(if operator.is_some() { within_line(text, at, to) } else { to })
        }
        'b' | 'B' => before((0..n).fold(at, |to, _| word_before(text, to, key == 'B'))),
        'e' | 'E' => including((0..n).fold(at, |to, _| word_end(text, to, key == 'E', false))),
        'j' if text[at..].contains('\n') => lines(line_below(text, at, n)),
        'k' if text[..at].contains('\n') => lines((0..n).fold(start, |to, _| start_of(text, to.saturating_sub(1)))),
        'G' | 'g' => {
            let line = given.map(|n| line_below(text, 0, n - 1)).unwrap_or(text.len());
            lines(first_letter(editor, start_of(text, line)))
        }
        _ => None,
    }
}

/// The `n`th such character of the line, as f, t, F and T find it.
pub fn find(editor: &Editor, key: char, wanted: char, n: usize) -> Option<Target> {
    let (text, at) = (editor.text(), editor.caret());
    if key.is_ascii_lowercase() {
        let from = editor.next_boundary(at).min(editor.line_end());
        let (i, _) = text[from..editor.line_end()].char_indices().filter(|(_, c)| *c == wanted).nth(n - 1)?;
        let to = from + i;
        return including(if key == 'f' { to } else { editor.previous_boundary(to) });
    }
    let start = editor.line_start();
    let (i, c) = text[start..at].char_indices().rev().filter(|(_, c)| *c == wanted).nth(n - 1)?;
    before(start + i + if key == 'T' { c.len_utf8() } else { 0 })
}

/// The word under the caret; `around`: with the blanks behind it, else with those before it.
pub fn word_around(editor: &Editor, around: bool) -> Option<Target> {
    let (start, end, at) = (editor.line_start(), editor.line_end(), editor.caret());
    let line = &editor.text()[start..end];
    let mut runs: Vec<(usize, Class)> = Vec::new();
    for (i, grapheme) in line.grapheme_indices(true) {
        let class = class(grapheme, false);
        if runs.last().is_none_or(|(_, last)| *last != class) {
            runs.push((i, class));
        }
    }
    let n = runs.iter().rposition(|(i, _)| start + i <= at)?;
    let end_of = |n: usize| runs.get(n + 1).map_or(line.len(), |(i, _)| *i);
    let blank = |n: usize| runs.get(n).is_some_and(|(_, class)| *class == Class::Blank);
    let (from, to) = match around {
        false => (runs[n].0, end_of(n)),
        true if blank(n) || blank(n + 1) => (runs[n].0, end_of(n + 1)),
        true if n > 0 && blank(n - 1) => (runs[n - 1].0, end_of(n)),
        true => (runs[n].0, end_of(n)),
    };
    Some(Target { to: start + to, reach: Reach::Before, from: Some(start + from) })
}

/// The start of the line that holds a byte.
pub fn start_of(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |i| i + 1)
}

/// The end of the line that holds a byte, without its newline.
pub fn end_of(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |i| at + i)
}

/// The start of the line `n` below, or of the last one; the byte itself if `n` is 0.
pub fn line_below(text: &str, at: usize, n: usize) -> usize {
    let mut to = at;
    for _ in 0..n {
        match text[to..].find('\n') {
            Some(i) => to += i + 1,
            None => break,
        }
    }
    to
}

/// The first character of a line that is not blank, else its last one.
pub fn first_letter(editor: &Editor, start: usize) -> usize {
    let line = &editor.text()[start..end_of(editor.text(), start)];
    let blank = line.len() - line.trim_start().len();
    if blank < line.len() || line.is_empty() { start + blank } else { editor.previous_boundary(start + line.len()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Blank,
    Sign,
    Word,
}

/// Words are letters and digits, or signs; `big` words are anything between blanks.
fn class(grapheme: &str, big: bool) -> Class {
    match grapheme.chars().next() {
        Some(c) if c.is_whitespace() => Class::Blank,
        Some(_) if big => Class::Word,
        Some(c) if c.is_alphanumeric() || c == '_' => Class::Word,
        _ => Class::Sign,
    }
}

/// The start of the next word or empty line, or the end of the text.
fn next_word(text: &str, at: usize, big: bool) -> usize {
    let mut rest = text[at..].grapheme_indices(true).map(|(i, g)| (at + i, g, class(g, big))).peekable();
    let Some(first) = rest.peek().map(|(.., class)| *class) else { return at };
    while first != Class::Blank && rest.next_if(|(.., class)| *class == first).is_some() {}
    let empty = |i: usize, g: &str| g == "\n" && i > at && text[..i].ends_with('\n');
    while rest.next_if(|(i, g, class)| *class == Class::Blank && !empty(*i, g)).is_some() {}
    rest.next().map_or(text.len(), |(i, ..)| i)
}

/// The last character of this or the next word. `here`: of this one also if the caret is there.
fn word_end(text: &str, at: usize, big: bool, here: bool) -> usize {
    let mut rest = text[at..].grapheme_indices(true).map(|(i, g)| (at + i, class(g, big))).peekable();
    let mut last = at;
    if !here {
        rest.next();
    }
    while rest.next_if(|(_, class)| *class == Class::Blank).is_some() {}
    let word = rest.peek().map(|(_, class)| *class);
    while let Some((i, _)) = rest.next_if(|(_, class)| Some(*class) == word) {
        last = i;
    }
    last
}

/// The start of this or the previous word, or an empty line.
fn word_before(text: &str, at: usize, big: bool) -> usize {
    let mut rest = text[..at].grapheme_indices(true).rev().map(|(i, g)| (i, g, class(g, big))).peekable();
    let empty = |i: usize, g: &str| g == "\n" && (i == 0 || text[..i].ends_with('\n'));
    while rest.next_if(|(i, g, class)| *class == Class::Blank && !empty(*i, g)).is_some() {}
    let Some((mut to, _, word)) = rest.next() else { return 0 };
    if word == Class::Blank {
        return to;
    }
    while let Some((i, ..)) = rest.next_if(|(.., class)| *class == word) {
        to = i;
    }
    to
}

/// An operator's end does not go over to the line of the next word.
fn within_line(text: &str, from: usize, to: usize) -> usize {
    let line = start_of(text, to);
    if line > from && text[line..to].trim().is_empty() { (line - 1).max(from) } else { to }
}
