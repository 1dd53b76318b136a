//! `/twin on|off`: compares the next answers with a copy of the conversation that drops nothing.

use super::texts::NO_MODEL;
use super::{Effect, note, result};
use crate::protocol::Command;
use crate::ui::feed::LocalKind;
use crate::ui::state::{App, Level};
use crate::ui::text::bytes;

/// Switches the twin, or says how it is set.
pub fn set(app: &mut App, on: Option<bool>) -> Vec<Effect> {
    let word = if app.engine.twin { "on" } else { "off" };
    let text = match on {
        _ if app.engine.info.is_none() => format!("/twin: {NO_MODEL}"),
        None => format!("the twin is {word}; /twin on or /twin off"),
        Some(on) if on == app.engine.twin => format!("the twin is {word} already"),
        Some(on) => return vec![Effect::Engine(Command::SetTwin(on))],
    };
    app.say(Level::Info, text);
    Vec::new()
}

/// Shows that the twin was switched, with its price, or why it is off.
pub fn was_set(app: &mut App, on: bool, why: Option<String>) -> Vec<Effect> {
    let was = std::mem::replace(&mut app.engine.twin, on);
    match why {
        Some(why) if was => return note(app, LocalKind::Note, format!("{why}; answers go on without it")),
        Some(why) => app.say(Level::Info, why),
        None if !on => app.say(Level::Info, "twin off: answers are no longer compared"),
        None => {
            let now = app.engine.snapshot.as_ref().map_or(0, |s| s.kv.dense_bytes);
            let full = app.engine.info.as_ref().map_or(0, |i| i.plan.dense_kv_bytes);
            let text = format!(
                "twin on: the next answers are also scored without eviction. That takes a dense cache: {} for this \
                 conversation, {} for a full context; /twin off frees it",
                bytes(now),
                bytes(full)
            );
            return result(app, LocalKind::Note, text);
        }
    }
    Vec::new()
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
        assert!(matches!(commands[..], [Effect::Engine(Command::SetTwin(true))]));
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
