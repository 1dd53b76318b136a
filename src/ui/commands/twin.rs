//! `/twin on|off`: compares the next answers with a copy of the conversation that drops nothing.

use super::prelude::*;

/// Switches the twin, or says how it is set.
pub fn run(app: &mut App, argument: &str) -> Done {
    app.model()?;
    let now = on_or_off(app.engine.twin);
    match argument {
        "" => app.info(format!("the twin is {now}; /twin on or /twin off")),
        word if word == now => app.info(format!("the twin is {now} already")),
        word => app.send(Engine::SetTwin(word == "on")),
    }
    Ok(())
}

/// Shows that the twin was switched, with its price, or why it is off.
pub fn was_set(app: &mut App, on: bool, why: Option<String>) {
    let was = std::mem::replace(&mut app.engine.twin, on);
    match why {
        Some(why) if was => app.note(LocalKind::Note, format!("{why}; answers continue without it")),
        Some(why) => super::command::failed(app, "twin", &why),
        None if !on => app.info("twin off: answers are no longer compared"),
        None => {
            let now = app.engine.snapshot.as_ref().map_or(0, |s| s.kv.dense_bytes);
            let full = app.engine.info.as_ref().map_or(0, |i| i.plan.dense_kv_bytes);
            let text = format!(
                "twin on: the next answers are also scored without eviction. That takes a dense cache: {} for this \
                 conversation, {} for a full context; /twin off frees it",
                bytes(now),
                bytes(full)
            );
            app.result(LocalKind::Note, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Event;
    use crate::ui::testing::*;

    #[test]
    fn a_twin_is_priced_before_it_is_used_and_says_why_it_is_off() {
        let mut app = app(100, 24, 8, 4);
        turn(&mut app, "q", "hm", "Fine.");
        let commands = say(&mut app, "/twin on");
        assert!(matches!(commands[..], [Effect::Engine(Engine::SetTwin(true))]));
        engine(&mut app, Event::TwinSet { on: false, why: Some("no room for a twin".into()) });
        assert!(!app.engine.twin && screen(&mut app).contains("no room for a twin"));
        engine(&mut app, Event::TwinSet { on: true, why: None });
        assert!(app.feed.locals.last().unwrap().text.contains("a dense cache: 3.9 MB for this conversation"));
        assert!(say(&mut app, "/twin on").is_empty());
        // Given up by the engine: a line that stays.
        engine(&mut app, Event::TwinSet { on: false, why: Some("the twin stopped: full".into()) });
        assert!(!app.engine.twin && app.feed.locals.last().unwrap().text.starts_with("the twin stopped: full;"));
        say(&mut app, "/twin maybe");
        assert!(screen(&mut app).contains("/twin takes on or off"));
    }
}
