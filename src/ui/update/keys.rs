//! Keys, pastes and the mouse in the chat itself.

use super::completion::input_changed;
use super::overlay;
use crate::ui::action::Action;
use crate::ui::attach::Attachment;
use crate::ui::examples::offered;
use crate::ui::feed::ItemKey;
use crate::ui::intent::Intent;
use crate::ui::keymap::Key;
use crate::ui::state::{About, App, MIN_SIZE, Overlay};
use crate::ui::text::clean_line;
use crate::ui::widgets;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

const WHEEL_ROWS: isize = 3;

/// Reads a key. Text goes into the input; anything else is returned as intents.
pub fn key(app: &mut App, event: KeyEvent) -> Vec<Intent> {
    if event.kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key = Key::of(&event);
    let mut intents = Vec::new();
    // The draft changes: it is not sent as it was.
    app.attaching = 0;
    if app.size.0 < MIN_SIZE.0 || app.size.1 < MIN_SIZE.1 {
        // The screen is too small: only keys that leave or stop.
        return match app.keymap_action(key) {
            Some(a @ (Action::Interrupt | Action::QuitWhenEmpty | Action::Stop | Action::Suspend)) => {
                vec![Intent::Act(a)]
            }
            _ => intents,
        };
    }
    if !app.overlays.is_empty() {
        return overlay::key(app, key).into_iter().collect();
    }
    if overlay::ends_an_answer(app, key) {
        return intents;
    }
    if let Some(text) = typed(key) {
        let pasted = app.burst.is_fast(app.now_ms);
        if app.burst.typed(app.now_ms) {
            app.input.insert_fast("\n");
        }
        if pasted {
            type_fast(app, &text);
            return intents;
        }
        if text == "/" {
            set_aside(app);
        }
        type_text(app, &text);
        return intents;
    }
    let action = app.keymap_action(key);
    let ends_line = action == Some(Action::Newline) && app.burst.ends_line(app.now_ms);
    if app.burst.hold_ms().is_some() && app.burst.typed(app.now_ms) {
        if ends_line || action == Some(Action::Send) {
            app.input.insert_fast("\n");
        } else {
            intents.push(Intent::Submit);
        }
    }
    if ends_line {
        return intents;
    }
    if app.asked() == About::Quit && action != Some(Action::Interrupt) {
        app.notice = None;
    }
    match action {
        Some(action) => intents.push(Intent::Act(action)),
        None => example_key(app, key),
    }
    intents
}

/// Returns the text that a key types, if any.
fn typed(key: Key) -> Option<String> {
    match key.code {
        KeyCode::Char(c) if key.modifiers.is_empty() => Some(c.to_string()),
        _ => None,
    }
}

/// Sets the draft aside when a slash begins a command: typed before its first character, or right after the program
/// itself put the text into the input.
fn set_aside(app: &mut App) {
    let input = &app.input;
    let before = input.caret() == 0 && !input.text().starts_with('/');
    let given = app.given_back.as_deref() == Some(&*input.expanded());
    if !input.is_empty() && app.editing.is_none() && (before || given) {
        app.aside = Some(app.input.take());
    }
}

fn type_text(app: &mut App, text: &str) {
    app.notice = None;
    app.input.insert(text);
    input_changed(app);
}

/// Inserts text of a paste without brackets.
pub fn type_fast(app: &mut App, text: &str) {
    app.notice = None;
    let folds = app.input.folds_burst();
    app.input.insert_fast(text);
    if !app.input.folds_burst() {
        return input_changed(app);
    }
    app.completion = None;
    if !folds {
        say_folded(app);
    }
}

fn say_folded(app: &mut App) {
    let (fold, send) = (app.key(Action::Fold), app.key(Action::Send));
    app.info(format!("pasted text is folded; {fold} shows it, {send} sends all of it"));
}

/// Puts an example into the input (Alt and its number).
fn example_key(app: &mut App, key: Key) {
    if let (KeyCode::Char(c), KeyModifiers::ALT) = (key.code, key.modifiers)
        && let Some(example) = c
            .to_digit(10)
            .filter(|n| (1..=3).contains(n))
            .and_then(|n| offered(&app.engine).get((n as usize).wrapping_sub(1)))
    {
        app.input.set(example);
        input_changed(app);
    }
}

/// Reads a line in line mode: the answer to a question, the number of an example, a message or a command.
pub fn line(app: &mut App, line: &str) -> Vec<Intent> {
    if let Some(Overlay::Confirm(question)) = app.overlays.last() {
        let then = question.then.clone();
        app.overlays.pop();
        return matches!(line.trim(), "y" | "Y" | "yes").then_some(Intent::Confirmed(then)).into_iter().collect();
    }
    // A draft that was given back is not on the screen: only a line that was continued stays before this one.
    if !app.input.text().ends_with('\n') {
        app.input.take();
    }
    if line.trim().is_empty() && app.editing.take().is_some() {
        app.input.take();
        app.info("the message stays as it was");
        return Vec::new();
    }
    let example = line.trim().parse::<usize>().ok().and_then(|n| offered(&app.engine).get(n.wrapping_sub(1)));
    app.input.insert(example.filter(|_| app.chat.is_empty()).map_or(line, |e| e));
    (app.notice, app.completion) = (None, None);
    // An Enter held from an earlier line must not make this one a newline.
    app.burst = Default::default();
    vec![Intent::Act(Action::Send)]
}

/// Inserts a bracketed paste, which never sends.
pub fn paste(app: &mut App, text: &str) {
    if overlay::paste(app, text) {
        return;
    }
    app.notice = None;
    if app.input.paste(text) {
        say_folded(app);
    }
    input_changed(app);
    app.completion = None;
}

/// Replaces a file's name in the input by the attached file. Sends the input after the last file that it waits for.
pub fn attached(app: &mut App, typed: &str, read: Result<Attachment, String>) -> Option<Intent> {
    let left = std::mem::take(&mut app.attaching);
    match read {
        Err(why) if left > 0 => app.error(format!("not sent: {why}; without the @ its name is sent")),
        Err(why) => app.error(why),
        Ok(Attachment { label, text }) if app.input.attach(typed, &text, label.clone()) => {
            app.info(format!("attached {label}"));
            input_changed(app);
            app.attaching = left.saturating_sub(1);
            return (left == 1).then_some(Intent::Submit);
        }
        Ok(_) => app.info(format!("not attached: {} left the input", clean_line(typed))),
    }
    None
}

/// Sends after a held Enter turned out to be the last key.
pub fn tick(app: &mut App) -> Option<Intent> {
    app.burst.due(app.now_ms).then_some(Intent::Submit)
}

/// Handles the mouse: the wheel scrolls, a click on a think block's line opens or folds it.
pub fn mouse(app: &mut App, event: MouseEvent) {
    if !app.overlays.is_empty() {
        match event.kind {
            MouseEventKind::ScrollUp => overlay::scroll(app, false),
            MouseEventKind::ScrollDown => overlay::scroll(app, true),
            _ => {}
        }
        return;
    }
    match event.kind {
        MouseEventKind::ScrollUp => app.feed.scroll(-WHEEL_ROWS),
        MouseEventKind::ScrollDown => app.feed.scroll(WHEEL_ROWS),
        MouseEventKind::Down(MouseButton::Left) => {
            if let Some(ItemKey::Message(id)) = fold_line_at(app, event.column, event.row) {
                app.feed.toggle_fold(id);
            }
        }
        _ => {}
    }
}

/// Returns the item whose think block a click at this cell opens or folds.
fn fold_line_at(app: &App, column: u16, row: u16) -> Option<ItemKey> {
    let pane = widgets::layout(app).conversation;
    if !pane.contains(ratatui::layout::Position { x: column, y: row }) {
        return None;
    }
    // A short conversation is at the bottom of the pane.
    let above = usize::from(pane.height).saturating_sub(app.feed.total());
    let at = app.feed.locate(app.feed.top() + usize::from(row - pane.y).checked_sub(above)?);
    let key = *app.feed.items.get(at.item)?;
    (app.feed.rows.get(&key)?.fold_row == Some(at.row)).then_some(key)
}
