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

/// Removes the last message and its answer from the path; its text returns to the input.
pub fn undo(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    let text = app.chat.undo().ok_or("nothing was asked yet")?;
    let place = turns::give_back(app, &text);
    app.info(format!("removed from the context{place}; it stays in the file as a branch"));
    turns::moved(app);
    Ok(())
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
