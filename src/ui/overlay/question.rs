//! A question over the conversation, answered with y or n.

use super::prelude::*;
use crate::ui::state::App;
use crate::ui::text::{clean_line, width, wrap_plain};

/// Keys this soon after a question, or after a key that was not an answer to it, belong to the
/// draft that it interrupted.
const TYPED_MS: u64 = 400;

/// Effect of an answer.
type Then = Box<dyn FnOnce(&mut App)>;

pub struct Question {
    text: String,
    yes: Option<Then>,
    /// A third answer: its key, its words, and what it leads to.
    other: Option<(char, &'static str, Option<Then>)>,
    /// When it was asked, or when the last key was typed that is not an answer yet: keys right
    /// after that are still typed text.
    asked_ms: u64,
}

impl Question {
    pub fn new(app: &App, text: impl Into<String>, yes: impl FnOnce(&mut App) + 'static) -> Self {
        Self { text: text.into(), yes: Some(Box::new(yes)), other: None, asked_ms: app.now_ms }
    }

    /// A third answer by this key, in these words.
    pub fn or(mut self, key: char, words: &'static str, then: impl FnOnce(&mut App) + 'static) -> Self {
        self.other = Some((key, words, Some(Box::new(then))));
        self
    }
}

impl App {
    /// Asks a question over everything else; `yes` is done if the answer is yes.
    pub fn ask(&mut self, text: impl Into<String>, yes: impl FnOnce(&mut Self) + 'static) {
        self.open(Question::new(self, text, yes));
    }
}

impl Overlay<App> for Question {
    /// A long text, such as a command to confirm, has more rows.
    fn rows(&self) -> u16 {
        (2 + width(&self.text) / 60 + 1).clamp(5, 14) as u16
    }

    fn hides_banner(&self) -> bool {
        false
    }

    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let buffer = frame.buffer_mut();
        rule(buffer, area, &app.theme);
        let inside = super::inside(area);
        let lines = wrap_plain(&self.text, app.theme.style(Role::Warning), usize::from(inside.width), &[]);
        let shown = lines.len().min(usize::from(area.height).saturating_sub(2));
        draw_lines(buffer, below(inside, 1), &lines[..shown]);
        let other = self.other.as_ref().map_or(String::new(), |(key, words, _)| format!("    {key}: {words}"));
        let keys = format!("y or Enter: yes    n or {}: no{other}", app.key(Action::Stop));
        let at = row(inside, shown as i16 + 1);
        buffer.set_stringn(at.x, at.y, keys, usize::from(at.width), app.theme.style(Role::Text));
    }

    /// Text typed without a pause goes into the input, as it would have without the question.
    fn key(&mut self, app: &mut App, key: Key, _: Option<Action>) -> After {
        if app.now_ms < self.asked_ms + TYPED_MS {
            self.asked_ms = app.now_ms;
            if let (KeyCode::Char(c), true) = (key.code, key.modifiers.is_empty()) {
                app.input.insert(&c.to_string());
            }
            return After::Stay;
        }
        let (then, rest) = match (key.code, &mut self.other) {
            (KeyCode::Char(c), Some((key, _, then))) if c == *key => (then.take(), ""),
            (KeyCode::Char('y' | 'Y'), _) => (self.yes.take(), "es"),
            (KeyCode::Enter, _) => (self.yes.take(), ""),
            (KeyCode::Char('n' | 'N'), _) => (None, "o"),
            _ => return After::Stay,
        };
        app.answered = Some((app.now_ms, rest));
        if let Some(then) = then {
            then(app);
        }
        After::Close
    }

    fn field(&self) -> Field {
        Field::Text
    }

    fn plain_lines(&self, _: &App, _: usize) -> Option<Vec<String>> {
        let other = self.other.as_ref().map_or(String::new(), |(key, words, _)| format!(", {key}: {words}"));
        Some(vec![format!("{} (y or n{other})", clean_line(&self.text))])
    }
}

/// Reads a line in line mode as the answer to the question that is open. False if none is.
pub fn answer(app: &mut App, line: &str) -> bool {
    let Some(yes) = app.overlay_mut::<Question>().map(|question| question.yes.take()) else { return false };
    app.overlays.pop();
    if let Some(yes) = yes.filter(|_| matches!(line.trim(), "y" | "Y" | "yes")) {
        yes(app);
    }
    true
}

/// Drops the rest of `yes` or `no` and the Enter after it, which answer a question that is gone.
pub fn ends_an_answer(app: &mut App, key: Key) -> bool {
    const PAUSE_MS: u64 = 1_000;
    let answered = app.answered.take().filter(|(at, _)| app.now_ms < at + PAUSE_MS);
    let Some((_, rest)) = answered else { return false };
    match key.code {
        KeyCode::Char(c) if rest.starts_with(c) => app.answered = Some((app.now_ms, &rest[1..])),
        KeyCode::Enter => {}
        _ => return false,
    }
    true
}
