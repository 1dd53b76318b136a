//! Search in the conversation: the keys of the bar, and moving between hits.

use super::{Args, Command, Group};
use crate::ui::action::Action;
use crate::ui::find::{Find, count_in, hits};
use crate::ui::folded;
use crate::ui::keymap::Key;
use crate::ui::refusal::Done;
use crate::ui::state::{App, Overlay};
use crate::ui::update::field::edit_line;
use crossterm::event::KeyCode;

pub const FIND: Command = Command::new(Group::Chat, "find", "[TEXT]", "find text in this conversation", run)
    .args(Args::TEXT)
    .also(&["search"]);

/// Opens the bar with a query, which may be empty.
fn run(app: &mut App, text: &str) -> Done {
    if app.chat.path().is_empty() && app.feed.locals.is_empty() {
        return Err("there is nothing to search yet".into());
    }
    app.overlays.push(Overlay::Find(Find { query: text.into(), ..Find::default() }));
    changed(app);
    Ok(())
}

/// Handles a key of the bar. Esc is handled before.
pub fn key(app: &mut App, key: Key, action: Option<Action>) {
    match (key.code, action) {
        (KeyCode::Enter | KeyCode::Down, _) | (_, Some(Action::Find)) => step(app, true),
        (KeyCode::Up, _) => step(app, false),
        (KeyCode::PageUp, _) => app.feed.scroll(-(app.feed.height as isize)),
        (KeyCode::PageDown, _) => app.feed.scroll(app.feed.height as isize),
        (_, Some(Action::FoldAll)) => app.feed.toggle_all(),
        _ => {
            let Some(Overlay::Find(find)) = app.overlays.last_mut() else { return };
            edit_line(&mut find.query, key, action);
            changed(app);
        }
    }
}

/// Goes to the first hit in view or below after the query changed, else to the last one above.
pub fn changed(app: &mut App) {
    let Some(query) = query(app) else { return };
    let found = hits(&app.feed, &query);
    let top = app.feed.top();
    let at = found.iter().position(|hit| app.feed.row_of(hit.item, hit.cells[0].0) >= top);
    go(app, at.unwrap_or(found.len().saturating_sub(1)));
}

/// Goes to the next or previous hit, wrapping around.
fn step(app: &mut App, on: bool) {
    let Some(Overlay::Find(find)) = app.overlays.last() else { return };
    let (current, count) = (find.current, find.count.max(1));
    go(app, if on { current + 1 } else { current + count - 1 } % count);
}

/// Scrolls to a hit and shows it in the upper third of the pane.
fn go(app: &mut App, at: usize) {
    let Some(query) = query(app) else { return };
    let found = hits(&app.feed, &query);
    let at = at.min(found.len().saturating_sub(1));
    if let Some(hit) = found.get(at) {
        let row = app.feed.row_of(hit.item, hit.cells[0].0);
        app.feed.go_to(row.saturating_sub(app.feed.height / 3));
    }
    let hidden = hidden(app, &query);
    if let Some(Overlay::Find(find)) = app.overlays.last_mut() {
        (find.count, find.current, find.hidden) = (found.len(), at, hidden);
    }
}

fn query(app: &App) -> Option<String> {
    match app.overlays.last() {
        Some(Overlay::Find(find)) => Some(find.query.text().to_owned()),
        _ => None,
    }
}

/// Counts hits in folded thoughts, pastes and files.
fn hidden(app: &App, query: &str) -> usize {
    let path = app.chat.path();
    let folded = path.iter().filter(|m| !app.feed.is_open(m.id));
    let counts = folded.map(|m| {
        let stored = app.feed.folds.get(&m.id).cloned();
        let user = m.role == crate::chat::Role::User;
        let folds = stored.unwrap_or_else(|| folded::middle(m.shown()).filter(|_| user).into_iter().collect());
        let parts = folds.iter().filter_map(|fold| m.shown().get(fold.range.clone()));
        parts.chain(m.shown_reasoning()).map(|text| count_in(text, query)).sum::<usize>()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::*;

    #[test]
    fn hits_are_gone_through_and_folded_ones_counted() {
        let mut app = app(80, 24, 8, 4);
        for n in 0..20 {
            turn(&mut app, &format!("question {n}"), "a hidden needle", &format!("answer {n}, not yet"));
        }
        turn(&mut app, "where?", "thought", "A Needle is here.");
        turn(&mut app, "again?", "thought", "The needle\n\nonce more.");
        screen(&mut app);
        let bar = |app: &mut App| screen(app).lines().rev().find(|l| l.contains("find:")).unwrap_or("").to_owned();
        ctrl(&mut app, 'f');
        type_in(&mut app, "nEEdle");
        assert!(bar(&mut app).contains("20 more"), "{}", bar(&mut app));
        assert!(bar(&mut app).contains("1 of 2") || bar(&mut app).contains("2 of 2"));
        // The thoughts open: all 22, and around the end to the first.
        press(&mut app, KeyCode::F(6));
        screen(&mut app);
        for _ in 0..22 {
            press(&mut app, KeyCode::Down);
        }
        assert!(bar(&mut app).contains("of 22"), "{}", bar(&mut app));
        while !bar(&mut app).contains("1 of 22") || bar(&mut app).contains("21 of 22") {
            press(&mut app, KeyCode::Up);
        }
        assert!(screen(&mut app).contains("question 0"));
        press(&mut app, KeyCode::Esc);
        assert!(app.overlays.is_empty() && screen(&mut app).contains("question 0"));
        // With a text in the input the key moves in it; the command opens the bar too.
        press(&mut app, KeyCode::Char('x'));
        ctrl(&mut app, 'f');
        assert!(app.overlays.is_empty());
        app.input.set("");
        say(&mut app, "/search once more");
        assert!(bar(&mut app).contains("1 of 1"), "{}", bar(&mut app));
    }
}
