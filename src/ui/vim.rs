//! Vim's keys in the input: a state machine from keys to the editor's operations. Pure; the chat
//! carries out what is not the editor's.

mod motion;
#[cfg(test)]
mod tests;

use super::action::Action;
use super::editor::Editor;
use super::keymap::Key;
use crossterm::event::{KeyCode, KeyModifiers};
use motion::{Reach, Target, motion};

/// Largest number before a command.
const MAX_COUNT: usize = 9_999;
/// Most bytes that a repeated paste inserts.
const MAX_PASTE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Insert,
    Normal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Delete,
    Change,
    Yank,
}

impl Operator {
    fn of(key: char) -> Option<Self> {
        match key {
            'd' => Some(Self::Delete),
            'c' => Some(Self::Change),
            'y' => Some(Self::Yank),
            _ => None,
        }
    }
}

/// The part of a command that was typed so far.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// Numbers before the operator and before its motion; 0 is none.
    counts: [usize; 2],
    operator: Option<(char, Operator)>,
    /// A key that takes another: g, r, f, t, F, T; i and a behind an operator.
    prefix: Option<char>,
}

impl Pending {
    fn count(&mut self) -> &mut usize {
        &mut self.counts[usize::from(self.operator.is_some())]
    }

    /// The number that was typed, if any.
    fn given(&self) -> Option<usize> {
        let [before, behind] = self.counts.map(|n| n.max(1));
        (self.counts != [0, 0]).then(|| (before * behind).min(MAX_COUNT))
    }
}

/// Effect of a key outside of the editor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The key has no meaning here: it does what it does in every keymap.
    Pass,
    Done,
    /// The action is carried out so many times.
    Act(Action, usize),
    /// The conversation scrolls by half a page.
    HalfPage {
        down: bool,
    },
    /// A command begins.
    Command,
}

/// The mode, and the command being typed.
#[derive(Clone, Debug, Default)]
pub struct Vim {
    pub mode: Mode,
    pending: Pending,
    /// How many overlays were open when the field of the topmost one got the keys; 0 if none has.
    pub field_of: usize,
    /// A first g was typed in a page.
    pub page_g: bool,
}

impl Vim {
    /// The mode and the half command, for the status line.
    pub fn label(&self) -> String {
        let number = |n: usize| if n > 0 { n.to_string() } else { String::new() };
        let Pending { counts: [before, behind], operator, prefix } = &self.pending;
        let operator = operator.map_or(String::new(), |(key, _)| key.to_string());
        let prefix = prefix.map_or(String::new(), |key| key.to_string());
        match self.mode {
            Mode::Insert => "insert".to_owned(),
            Mode::Normal => {
                let typed = format!("{}{operator}{}{prefix}", number(*before), number(*behind));
                format!("normal {typed}").trim_end().to_owned()
            }
        }
    }

    /// Begins to insert, as for a new message.
    pub fn insert(&mut self) {
        (self.mode, self.pending) = (Mode::Insert, Pending::default());
    }

    /// Handles a key. `bound`: the keymap has an action for it.
    pub fn key(&mut self, editor: &mut Editor, key: Key, bound: bool) -> After {
        let plain = key.modifiers.is_empty();
        let after = match (self.mode, key.code) {
            // Terminals send Esc and a key right behind it as that key with Alt.
            (_, KeyCode::Char(c)) if key.modifiers == KeyModifiers::ALT && !bound && !matches!(c, '1'..='3') => {
                self.leave_insert(editor);
                self.pending = Pending::default();
                self.character(editor, c)
            }
            (Mode::Insert, KeyCode::Esc) if plain => {
                self.leave_insert(editor);
                After::Done
            }
            (Mode::Insert, KeyCode::Char(_)) if plain => {
                editor.begin_step();
                return After::Pass;
            }
            (Mode::Insert, _) => return After::Pass,
            (Mode::Normal, KeyCode::Esc) if plain && self.label() != "normal" => {
                self.pending = Pending::default();
                After::Done
            }
            (Mode::Normal, KeyCode::Char(c)) if plain => self.character(editor, c),
            (Mode::Normal, KeyCode::Char(c)) if key.modifiers == KeyModifiers::CONTROL => self.control(editor, c),
            (Mode::Normal, code) if plain => match code {
                KeyCode::Left | KeyCode::Backspace => self.character(editor, 'h'),
                KeyCode::Right => self.character(editor, 'l'),
                KeyCode::Home if !editor.is_empty() => self.character(editor, '0'),
                KeyCode::End if !editor.is_empty() => self.character(editor, '$'),
                KeyCode::Delete => self.character(editor, 'x'),
                _ => After::Pass,
            },
            (Mode::Normal, _) => After::Pass,
        };
        if after == After::Pass {
            self.pending = Pending::default();
        }
        self.rest(editor);
        after
    }

    /// In normal mode the caret is on a character.
    pub fn rest(&self, editor: &mut Editor) {
        if self.mode == Mode::Normal {
            editor.leave_line_end();
        }
    }

    fn leave_insert(&mut self, editor: &mut Editor) {
        if self.mode == Mode::Insert {
            editor.end_step();
            if editor.caret() > editor.line_start() {
                editor.go(editor.previous_boundary(editor.caret()));
            }
        }
        self.mode = Mode::Normal;
    }

    fn control(&mut self, editor: &mut Editor, key: char) -> After {
        match key {
            'r' => {
                let n = std::mem::take(&mut self.pending).given().unwrap_or(1);
                (0..n).for_each(|_| editor.edit(Action::Redo));
                After::Done
            }
            'd' | 'u' => After::HalfPage { down: key == 'd' },
            'f' => After::Act(Action::PageDown, 1),
            'b' => After::Act(Action::PageUp, 1),
            _ => After::Pass,
        }
    }

    /// A character in normal mode.
    fn character(&mut self, editor: &mut Editor, key: char) -> After {
        let pending = &mut self.pending;
        if let Some(prefix) = pending.prefix.take() {
            let pending = std::mem::take(pending);
            return self.prefixed(editor, &pending, prefix, key);
        }
        match (key, pending.operator) {
            ('1'..='9', _) | ('0', _) if key != '0' || *pending.count() > 0 => {
                let count = pending.count();
                *count = (*count * 10 + key as usize - '0' as usize).min(MAX_COUNT);
                return After::Done;
            }
            ('g' | 'f' | 't' | 'F' | 'T', _) | ('i' | 'a', Some(_)) | ('r', None) => {
                pending.prefix = Some(key);
                return After::Done;
            }
            (_, None) if Operator::of(key).is_some() => {
                pending.operator = Operator::of(key).map(|operator| (key, operator));
                return After::Done;
            }
            _ => {}
        }
        let pending = std::mem::take(pending);
        match pending.operator {
            Some((same, operator)) if same == key => self.lines(editor, operator, pending.given().unwrap_or(1)),
            Some((_, operator)) => {
                if let Some(target) = motion(editor, key, pending.given(), Some(operator == Operator::Change)) {
                    self.operate(editor, operator, &target);
                }
            }
            None => return self.command(editor, key, pending.given()),
        }
        After::Done
    }

    /// A key behind one that takes another.
    fn prefixed(&mut self, editor: &mut Editor, pending: &Pending, prefix: char, key: char) -> After {
        let n = pending.given().unwrap_or(1);
        let target = match prefix {
            'r' => {
                self.replace(editor, n, key);
                None
            }
            'g' if key == 'g' && editor.is_empty() => return After::Act(Action::ToStart, 1),
            'g' if key == 'g' => motion(editor, 'g', Some(n), None),
            'f' | 't' | 'F' | 'T' => motion::find(editor, prefix, key, n),
            'i' | 'a' if key == 'w' => motion::word_around(editor, prefix == 'a'),
            _ => None,
        };
        match (target, pending.operator) {
            (Some(target), Some((_, operator))) => self.operate(editor, operator, &target),
            (Some(target), None) => editor.go(target.to),
            (None, _) => {}
        }
        After::Done
    }

    /// A command or a move.
    fn command(&mut self, editor: &mut Editor, key: char, given: Option<usize>) -> After {
        let n = given.unwrap_or(1);
        match key {
            'j' => return After::Act(Action::HistoryNewer, n),
            'k' => return After::Act(Action::HistoryOlder, n),
            'G' if editor.is_empty() => return After::Act(Action::ToEnd, 1),
            ':' | '/' => {
                self.insert();
                return After::Command;
            }
            'i' | 'a' | 'I' | 'A' | 'o' | 'O' => self.begin_insert(editor, key),
            'x' => self.by(editor, Operator::Delete, 'l', n),
            'X' => self.by(editor, Operator::Delete, 'h', n),
            's' => self.by(editor, Operator::Change, 'l', n),
            'D' => self.by(editor, Operator::Delete, '$', n),
            'C' => self.by(editor, Operator::Change, '$', n),
            'S' => self.lines(editor, Operator::Change, n),
            'Y' => self.lines(editor, Operator::Yank, n),
            'p' | 'P' => paste(editor, key == 'p', n),
            'u' => (0..n).for_each(|_| editor.edit(Action::Undo)),
            _ => {
                if let Some(target) = motion(editor, key, given, None) {
                    editor.go(target.to);
                }
            }
        }
        After::Done
    }

    fn begin_insert(&mut self, editor: &mut Editor, key: char) {
        self.mode = Mode::Insert;
        let (caret, end) = (editor.caret(), editor.line_end());
        match key {
            'a' if caret < end => editor.go(editor.next_boundary(caret)),
            'I' => editor.go(motion::first_letter(editor, editor.line_start())),
            'A' => editor.go(end),
            _ => {}
        }
        // Undo goes back to where the text was inserted.
        editor.begin_step();
        match key {
            'o' => editor.replace(end, end, "\n"),
            'O' => {
                let start = editor.line_start();
                editor.replace(start, start, "\n");
                editor.go(start);
            }
            _ => {}
        }
    }

    fn by(&mut self, editor: &mut Editor, operator: Operator, key: char, n: usize) {
        if let Some(target) = motion(editor, key, Some(n), Some(false)) {
            self.operate(editor, operator, &target);
        }
    }

    /// Carries an operator out between the caret and a target.
    fn operate(&mut self, editor: &mut Editor, operator: Operator, target: &Target) {
        let caret = target.from.unwrap_or(editor.caret());
        let (from, mut to) = (caret.min(target.to), caret.max(target.to));
        match target.reach {
            Reach::Lines => return self.on_lines(editor, operator, from, to),
            Reach::Including => to = editor.next_boundary(to),
            Reach::Before => {}
        }
        match operator {
            Operator::Yank => {
                if from < to {
                    editor.copy(from, to, false);
                    editor.go(from);
                }
            }
            Operator::Delete => editor.kill(from, to),
            Operator::Change => {
                self.begin_insert(editor, 'i');
                editor.kill(from, to);
            }
        }
    }

    /// Carries an operator out on `n` lines from the caret's on.
    fn lines(&mut self, editor: &mut Editor, operator: Operator, n: usize) {
        let from = editor.caret();
        let to = motion::line_below(editor.text(), from, n.saturating_sub(1));
        self.on_lines(editor, operator, from, to);
    }

    /// Carries an operator out on the lines of the bytes `from` to `to`.
    fn on_lines(&mut self, editor: &mut Editor, operator: Operator, from: usize, to: usize) {
        let text = editor.text();
        let (start, end) = (motion::start_of(text, from), motion::end_of(text, to));
        let all = text.len();
        match operator {
            Operator::Yank => {
                editor.copy(start, end, true);
                editor.go(from.min(editor.caret()));
            }
            Operator::Change => {
                self.begin_insert(editor, 'i');
                editor.copy(start, end, true);
                editor.go(start);
                editor.delete(start, end);
            }
            Operator::Delete => {
                editor.copy(start, end, true);
                // The newline behind the lines goes with them, at the end the one before them.
                editor.delete(if end == all { start.saturating_sub(1) } else { start }, (end + 1).min(all));
                editor.go(motion::first_letter(editor, editor.line_start()));
            }
        }
    }

    /// Replaces `n` characters, where the line has as many.
    fn replace(&mut self, editor: &mut Editor, n: usize, with: char) {
        let (from, end) = (editor.caret(), editor.line_end());
        let mut to = from;
        for _ in 0..n {
            if to >= end {
                return;
            }
            to = editor.next_boundary(to);
        }
        editor.replace(from, to, &with.to_string().repeat(n));
        editor.go(editor.previous_boundary(editor.caret()));
    }
}

/// Inserts what was deleted last `n` times: lines below or above this line, else behind or before
/// the character.
fn paste(editor: &mut Editor, behind: bool, n: usize) {
    let (killed, lines) = editor.killed();
    if killed.is_empty() {
        return;
    }
    let text = killed.repeat(n.min((MAX_PASTE / killed.len()).max(1)));
    let (caret, end) = (editor.caret(), editor.line_end());
    if lines {
        let start = if behind { end + 1 } else { editor.line_start() };
        match behind {
            true => editor.replace(end, end, &format!("\n{}", text.strip_suffix('\n').unwrap_or(&text))),
            false => editor.replace(start, start, &text),
        }
        return editor.go(motion::first_letter(editor, start));
    }
    let at = if behind && caret < end { editor.next_boundary(caret) } else { caret };
    editor.replace(at, at, &text);
    // On the last character, or the first of several lines.
    editor.go(if text.contains('\n') { at } else { editor.previous_boundary(editor.caret()) });
}
