//! `/pin` and `/unpin`: messages that are never forgotten.

use super::prelude::*;
use crate::chat::Role;
use crate::ui::overlay::question::Question;

/// The word for the system prompt, with its help.
pub const SYSTEM: (&str, &str) = ("system", "the system prompt");

/// Asks the engine what a pin would cost.
pub fn pin(app: &mut App, argument: &str) -> Done {
    let text = pinnable(app, argument)?;
    app.send(Engine::Pin { text, ask: true });
    Ok(())
}

/// Asks whether one pin or all are meant. `system` and `all` need no question.
pub fn unpin(app: &mut App, argument: &str) -> Done {
    let text = pinnable(app, argument)?;
    match (argument, app.engine.snapshot.as_ref().map_or(0, |s| s.pinned)) {
        ("all", _) => app.send(Engine::Unpin(None)),
        ("system", _) => app.send(Engine::Unpin(Some(text))),
        // A conversation that is not in the cache yet may have pins.
        (_, 0) if app.session.is_restored() => return Err("nothing is pinned".into()),
        (_, tokens) => {
            let all = match tokens {
                0 => String::new(),
                n => format!(" In all {} are pinned.", plural(n as u64, "token")),
            };
            let asked = format!("Take back the pin of {:?}?{all}", truncate(&clean_line(&text), 60));
            let question = Question::new(app, asked, |app| app.send(Engine::Unpin(Some(text))));
            app.open(question.or('a', "all pins", |app| app.send(Engine::Unpin(None))));
        }
    }
    Ok(())
}

/// The text that is meant: the chosen message, else the last one of the user, or the system prompt.
fn pinnable(app: &mut App, argument: &str) -> Result<String, Refusal> {
    app.model()?;
    turns::idle(app)?;
    let (text, missing) = if argument == "system" {
        (app.chat.system(), "there is no system prompt; /system TEXT sets one")
    } else {
        let selected = app.feed.selected.and_then(|id| app.chat.get(id));
        let last = || app.chat.path().into_iter().rev().find(|m| m.role == Role::User);
        (selected.or_else(last).map(|m| m.shown()), "nothing was said yet")
    };
    Ok(text.filter(|text| !text.trim().is_empty()).ok_or(missing)?.to_owned())
}
