//! `/regen`, `/edit` and `/undo`: the last question once more.

use super::prelude::*;
use crate::chat::Role;

/// Generates another answer beside the existing one.
pub fn regenerate(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    app.model()?;
    app.chat.regenerate().ok_or("nothing was asked yet")?;
    turns::begin(app, None);
    Ok(())
}

/// Tokens from which on it is said before they are read again.
const PRICED_TOKENS: usize = 200;

/// Removes the last message and its answer from the path; its text returns to the input. Where no
/// earlier state is kept, its price is said first.
pub fn undo(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    let price = read_again(app);
    if price >= PRICED_TOKENS && !app.paid {
        let (price, send) = (plural(price as u64, "token"), app.key(Action::Send));
        return Err(Refusal::Price(format!("/undo reads {price} again; {send} again does it")));
    }
    let text = app.chat.undo().ok_or("nothing was asked yet")?;
    let place = turns::give_back(app, &text);
    app.info(format!("removed from the context{place}; it stays in the file as a branch"));
    turns::moved(app);
    Ok(())
}

/// Tokens that the next message reads again if the last turn is undone.
fn read_again(app: &App) -> usize {
    let Some(snapshot) = app.engine.snapshot.as_ref().filter(|s| s.tokens > 0 && app.session.is_restored()) else {
        return 0;
    };
    let path = app.chat.context_path();
    let asked = path.iter().rposition(|m| m.role == Role::User).unwrap_or(0);
    let before = path[..asked].iter().rev().find_map(|m| m.report.as_ref());
    let left = before.map_or(0, |r| r.prompt_tokens + r.reasoning_tokens + r.answer_tokens).min(snapshot.tokens);
    left - snapshot.kept.iter().filter(|&&kept| kept <= left).max().copied().unwrap_or(0)
}

/// Puts the chosen or last message of the user into the input.
pub fn edit(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    let path = app.chat.path();
    let chosen = app.feed.selected.and_then(|id| path.iter().position(|m| m.id == id)).map(|at| &path[..=at]);
    let mut last = chosen.into_iter().chain([&path[..]]).filter_map(|p| p.iter().rev().find(|m| m.role == Role::User));
    let message = last.next().ok_or("nothing was asked yet")?;
    let (id, text) = (message.id, message.text.clone());
    app.editing = Some(id);
    app.input.set(&text);
    Ok(())
}
