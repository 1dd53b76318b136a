//! Keys, pastes and the mouse in the chat itself.

use super::completion::{input_changed, say_folded, set_aside, type_fast, type_text};
use super::perform::{act, submit};
use super::vim_keys;
use crate::ui::action::Action;
use crate::ui::attach::Attachment;
use crate::ui::examples::offered;
use crate::ui::feed::ItemKey;
use crate::ui::keymap::Key;
use crate::ui::overlay::{After, Overlay, WHEEL_ROWS, question};
use crate::ui::state::{About, App, MIN_SIZE};
use crate::ui::text::clean_line;
use crate::ui::widgets;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

/// Letters so soon after a slash that a page does not take belong to the same command.
const COMMAND_PAUSE_MS: u64 = 2_000;

/// Handles a key: text goes into the input, anything else is an action.
pub fn key(app: &mut App, event: KeyEvent) {
    if event.kind == KeyEventKind::Release {
        return;
    }
    let key = Key::of(&event);
    // The unsent text changes: it is not sent as it was.
    app.attaching = 0;
    if app.size.0 < MIN_SIZE.0 || app.size.1 < MIN_SIZE.1 {
        // The screen is too small: only keys that leave or stop.
        if let Some(a @ (Action::Interrupt | Action::QuitWhenEmpty | Action::Stop | Action::Suspend)) =
            app.setup.keymap.action(key)
        {
            act(app, a);
        }
        return;
    }
    if !app.overlays.is_empty() {
        return overlay_key(app, key);
    }
    if question::ends_an_answer(app, key) {
        return;
    }
    if vim_keys::in_input(app, key) {
        return;
    }
    if let Some(text) = typed(key) {
        let pasted = app.burst.is_fast(app.now_ms);
        if app.burst.typed(app.now_ms) {
            app.input.insert_fast("\n");
        }
        if pasted {
            return type_fast(app, &text);
        }
        if text == "/" {
            set_aside(app);
        }
        return type_text(app, &text);
    }
    let action = app.setup.keymap.action(key);
    let ends_line = action == Some(Action::Newline) && app.burst.ends_line(app.now_ms);
    if app.burst.hold_ms().is_some() && app.burst.typed(app.now_ms) {
        if ends_line || action == Some(Action::Send) {
            app.input.insert_fast("\n");
        } else {
            submit(app);
        }
    }
    if ends_line {
        return;
    }
    if app.asked() == About::Quit && action != Some(Action::Interrupt) {
        app.notice = None;
    }
    match action {
        Some(action) => act(app, action),
        None => example_key(app, key),
    }
    app.vim.rest(&mut app.input);
}

/// Handles a key of the topmost overlay.
fn overlay_key(app: &mut App, key: Key) {
    let Some(key) = vim_keys::in_overlay(app, key) else { return };
    let action = app.setup.keymap.action(key);
    let letters = app.overlays.last().is_some_and(|top| top.has_letter_keys());
    if let Some(text) = typed(key).filter(|_| letters) {
        // A command that is typed here is not taken for keys of the page.
        let command = app.mistyped_ms.is_some_and(|at| app.now_ms < at + COMMAND_PAUSE_MS);
        if command || text == "/" {
            app.mistyped_ms = Some(app.now_ms);
            return esc_first(app);
        }
    }
    (app.notice, app.mistyped_ms) = (None, None);
    let after = match action {
        Some(action @ (Action::Suspend | Action::Redraw)) => return act(app, action),
        Some(action @ Action::QuitWhenEmpty) if app.input.is_empty() => return act(app, action),
        Some(Action::Stop | Action::Interrupt | Action::QuitWhenEmpty) => with_top(app, |top, app| top.escape(app)),
        _ => with_top(app, |top, app| top.key(app, key, action)),
    };
    match after {
        Some(After::Act(action)) => act(app, action),
        Some(After::Ignored) if typed(key).is_some() => esc_first(app),
        _ => {}
    }
}

/// Says that this page does not take text.
fn esc_first(app: &mut App) {
    let close = app.key(Action::Stop);
    app.info(format!("{close} first: this page takes no text"));
}

/// Hands an event to the topmost overlay. `None` if none is open.
fn with_top(app: &mut App, handle: impl FnOnce(&mut dyn Overlay<App>, &mut App) -> After) -> Option<After> {
    let mut top = app.overlays.pop()?;
    let at = app.overlays.len();
    let after = handle(&mut *top, app);
    if after == After::Close {
        app.vim.field_of = 0;
    } else {
        // Below what it has opened.
        app.overlays.insert(at, top);
    }
    Some(after)
}

/// Returns the text that a key types, if any.
fn typed(key: Key) -> Option<String> {
    match key.code {
        KeyCode::Char(c) if key.modifiers.is_empty() => Some(c.to_string()),
        _ => None,
    }
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

/// Reads a line in line mode: the answer to a question, the number of an example, a message or a
/// command.
pub fn line(app: &mut App, line: &str) {
    if question::answer(app, line) {
        return;
    }
    // Unsent text that was given back is not on the screen: only a line that was continued stays
    // before this one.
    if !app.input.text().ends_with('\n') {
        app.input.take();
    }
    if line.trim().is_empty() && app.editing.take().is_some() {
        app.input.take();
        return app.info("the message stays as it was");
    }
    let example = line.trim().parse::<usize>().ok().and_then(|n| offered(&app.engine).get(n.wrapping_sub(1)));
    app.input.insert(example.filter(|_| app.chat.is_empty()).map_or(line, |e| e));
    (app.notice, app.completion) = (None, None);
    // An Enter held from an earlier line must not make this one a newline.
    app.burst = Default::default();
    act(app, Action::Send);
}

/// Inserts a bracketed paste, which never sends.
pub fn paste(app: &mut App, text: &str) {
    let into_field = |top: &mut dyn Overlay<App>, app: &mut App| {
        top.paste(app, &text.replace(['\r', '\n'], " "));
        After::Stay
    };
    if with_top(app, into_field).is_some() {
        return;
    }
    app.notice = None;
    if app.input.paste(text) {
        say_folded(app);
    }
    input_changed(app);
    app.completion = None;
}

/// Types the text of many keys that waited together, as [`key`] would one after the other.
pub fn burst(app: &mut App, text: &str) {
    let too_small = app.size.0 < MIN_SIZE.0 || app.size.1 < MIN_SIZE.1;
    if app.overlay::<question::Question>().is_some() || too_small || vim_keys::takes_letters(app) {
        let typed = |c| if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        return text.chars().for_each(|c| key(app, KeyEvent::new(typed(c), KeyModifiers::NONE)));
    }
    if !app.overlays.is_empty() {
        return paste(app, text);
    }
    (app.attaching, app.answered) = (0, None);
    let newlines = text.bytes().filter(|b| *b == b'\n').count();
    if app.burst.typed_many(app.now_ms, newlines) {
        app.input.insert_fast("\n");
    }
    type_fast(app, text);
}

/// Replaces a file's name in the input by the attached file. Sends the input after the last file
/// that it waits for.
pub fn attached(app: &mut App, typed: &str, read: Result<Attachment, String>) {
    let left = std::mem::take(&mut app.attaching);
    match read {
        Err(why) if left > 0 => app.error(format!("not sent: {why}. Remove the @ to send just the name")),
        Err(why) => app.error(why),
        Ok(Attachment { label, text }) if attach(app, typed, &text, &label) => {
            app.info(format!("attached {label}"));
            input_changed(app);
            app.attaching = left.saturating_sub(1);
            if left == 1 {
                submit(app);
            }
        }
        Ok(_) => app.info(format!("not attached: {} is no longer in the input", clean_line(typed))),
    }
}

/// Puts an attachment in the place of its name, which was there already.
fn attach(app: &mut App, typed: &str, text: &str, label: &str) -> bool {
    let mut found = false;
    app.by_hand(|app| found = app.input.attach(typed, text, label.to_owned()));
    found
}

/// Sends after a held Enter turned out to be the last key.
pub fn tick(app: &mut App) {
    if app.burst.due(app.now_ms) {
        submit(app);
    }
}

/// Handles the mouse: the wheel scrolls, a click on a think block's line opens or folds it.
pub fn mouse(app: &mut App, event: MouseEvent) {
    let rows = match event.kind {
        MouseEventKind::ScrollUp => -WHEEL_ROWS,
        MouseEventKind::ScrollDown => WHEEL_ROWS,
        MouseEventKind::Down(MouseButton::Left) if app.overlays.is_empty() => {
            if let Some(ItemKey::Message(id)) = fold_line_at(app, event.column, event.row) {
                app.feed.toggle_fold(id);
            }
            return;
        }
        _ => return,
    };
    let scrolled = with_top(app, |top, app| {
        top.scroll(app, rows > 0);
        After::Stay
    });
    if scrolled.is_none() {
        app.feed.scroll(rows);
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
