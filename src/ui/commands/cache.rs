//! What the cache keeps: `/eviction`, `/forget`, `/rebuild`, `/stats`, `/panel`.

use super::prelude::*;
use crate::protocol::Dial;
use crate::ui::{numbers, widgets};

pub fn stats(app: &mut App, _: &str) -> Done {
    app.result(LocalKind::Table, numbers::stats_note(app));
    Ok(())
}

/// Switches eviction, or says how it is set. The engine reports where the switch acted.
pub fn eviction(app: &mut App, argument: &str) -> Done {
    let now = on_or_off(app.engine.eviction);
    if argument.is_empty() {
        return app.tell(format!("eviction is {now}; /eviction on or /eviction off"));
    }
    let model = app.model()?;
    if model.policy.keeps_all() {
        app.info(format!("the cache keeps everything: its policy is {}", model.policy));
    } else if argument == now {
        app.info(format!("eviction is {now} already"));
    } else {
        app.send(Engine::SetEviction(argument == "on"));
    }
    Ok(())
}

/// Steers how much is kept. The engine reports what is expected then.
pub fn forget(app: &mut App, argument: &str) -> Done {
    let model = app.model()?;
    if !model.policy.is_steered() {
        let name = &model.identity.name;
        return Err(
            format!("{name} keeps as its cache policy says; only models trained to evict can be steered").into()
        );
    }
    let to = match argument {
        "" => {
            let now = app.engine.dial.map_or("as the model was trained".to_owned(), numbers::kept);
            return app.tell(format!("keeps {now}; /forget less|more|N|trained changes it"));
        }
        "less" => Dial::More,
        "more" => Dial::Less,
        "trained" => Dial::Trained,
        n => Dial::Ratio(n.trim_end_matches('x').parse().map_err(|_| Refusal::Takes)?),
    };
    app.send(Engine::SetDial(to));
    Ok(())
}

pub fn rebuild(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    if app.tokens() == 0 {
        return Err("the cache is empty".into());
    }
    app.engine.rebuilding = Some((0, app.tokens()));
    app.send(Engine::Rebuild);
    Ok(())
}

/// Shows or hides the panel.
pub fn panel(app: &mut App, _: &str) -> Done {
    app.panel.hidden = !app.panel.hidden;
    if app.tokens() == 0 && app.chat.path().is_empty() {
        let then = if app.panel.hidden { "stays hidden" } else { "opens with the first message" };
        app.info(format!("the cache panel {then}"));
    } else if !app.panel.hidden && widgets::layout(app).panel.is_none() {
        let key = app.key(Action::Inspect);
        app.info(format!("the screen is too small for the panel; {key} shows the cache on all of it"));
    }
    Ok(())
}
