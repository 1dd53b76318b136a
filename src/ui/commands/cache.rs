//! Commands on the contents of the cache: `/eviction`, `/forget`, `/rebuild`, `/stats`, `/panel`.

use super::prelude::*;
use crate::policy::MAX_RATIO;
use crate::protocol::Dial;
use crate::ui::state::{EngineView, Shown};
use crate::ui::{numbers, widgets};

pub fn stats(app: &mut App, _: &str) -> Done {
    app.result(LocalKind::Table, numbers::stats_note(app));
    Ok(())
}

/// Switches eviction, or says how it is set. The engine reports where the switch acted.
pub fn eviction(app: &mut App, argument: &str) -> Done {
    let EngineView { eviction, eviction_asked, eviction_later, .. } = app.engine;
    let now = on_or_off(eviction);
    if argument.is_empty() {
        let later = eviction_later.map_or(String::new(), |on| format!("; it goes {} later", on_or_off(on)));
        return app.tell(format!("eviction is {now}{later}; /eviction on or /eviction off"));
    }
    let model = app.model()?;
    let (on, set) = (argument == "on", eviction_asked.unwrap_or(eviction));
    let after = match &app.turn {
        _ if app.session.is_restoring() => "once the conversation is loaded",
        Some(turn) if turn.chains.is_some() => "after this answer",
        _ => next_step(app),
    };
    if model.is_remote && model.eviction.is_none() {
        app.info(format!("whether the cache evicts is {}", numbers::NOT_REPORTED));
    } else if model.policy.keeps_all() {
        app.info(format!("the cache keeps everything: its policy is {}", model.policy));
    } else if on == eviction_later.unwrap_or(set) {
        app.info(match eviction_later {
            Some(_) => format!("eviction already goes {argument} {after}"),
            None => format!("eviction is {argument} already"),
        });
    } else if app.defers_switches() {
        app.engine.eviction_later = Some(on).filter(|on| *on != set);
        app.info(match app.engine.eviction_later {
            Some(_) => format!("eviction goes {argument} {after}"),
            None => format!("eviction stays {argument}"),
        });
    } else {
        switch(app, on);
    }
    Ok(())
}

/// When a switch acts while an answer runs. A server is asked with a message.
fn next_step(app: &App) -> &'static str {
    match app.engine.info.as_ref().is_some_and(|info| info.is_remote) {
        true => "with the next message",
        false => "with the next step",
    }
}

/// Switches eviction now, or before the next step of what runs.
pub fn switch(app: &mut App, on: bool) {
    if app.turn.is_some() {
        app.info(format!("eviction goes {} {}", on_or_off(on), next_step(app)));
    }
    app.engine.eviction_asked = Some(on);
    app.send(Engine::SetEviction(on));
}

/// Steers how much is kept. The engine reports the expected share.
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
            let now = app.engine.dial.map_or("what the model was trained to keep".to_owned(), numbers::kept);
            return app.tell(format!("keeps {now}; /forget less|more|N|trained changes it"));
        }
        "less" => Dial::More,
        "more" => Dial::Less,
        "trained" => Dial::Trained,
        n => {
            let ratio: f32 = n.trim_end_matches('x').parse().map_err(|_| Refusal::Takes)?;
            if !(1.0..=MAX_RATIO).contains(&f64::from(ratio)) {
                return Err(Refusal::Takes);
            }
            Dial::Ratio(ratio)
        }
    };
    app.send(Engine::SetDial(to));
    if app.turn.as_ref().is_some_and(|turn| turn.chains.is_some()) {
        app.info("what is kept changes after this answer");
    }
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

/// Shows the panel, then what was fetched where there are far pages, then hides it.
pub fn panel(app: &mut App, _: &str) -> Done {
    let is_seen = !app.panel.hidden && widgets::layout(app).panel.is_some();
    if is_seen && app.panel.shown == Shown::Kept && numbers::fetched(app).is_some() {
        app.panel.shown = Shown::Fetched;
        return Ok(());
    }
    (app.panel.hidden, app.panel.shown) = (!app.panel.hidden, Shown::Kept);
    if app.tokens() == 0 && app.chat.path().is_empty() {
        let then = if app.panel.hidden { "stays hidden" } else { "opens with the first message" };
        app.info(format!("the cache panel {then}"));
    } else if !app.panel.hidden && widgets::layout(app).panel.is_none() {
        let key = app.key(Action::Inspect);
        app.info(format!("the screen is too small for the panel; {key} shows the cache on all of it"));
    }
    Ok(())
}
