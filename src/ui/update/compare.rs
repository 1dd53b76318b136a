//! `/compare`: answers the last question again from a cache that drops nothing, and shows that answer below the first. It is no
//! part of the conversation.

use super::{Effect, note, turns};
use crate::chat::{Message, Role};
use crate::protocol::{StopReason, TextKind, TurnReport};
use crate::ui::feed::{Local, LocalKind};
use crate::ui::state::{App, Comparison, Level};
use crate::ui::text::{bytes, plural};

/// Asks the last question of the context again.
pub fn begin(app: &mut App) -> Vec<Effect> {
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    let keeps_all = app.engine.info.as_ref().map(|info| info.policy.keeps_all());
    let refusal = match (keeps_all, last_answer(app).map(|answer| answer.id)) {
        (None, _) => "no model is loaded; /model NAME loads one",
        (Some(true), _) => "this cache keeps everything: the answer would be the same",
        (_, None) => "nothing to compare yet: no answer so far",
        (_, Some(answer)) => {
            app.engine.comparing = Some(Comparison { answer, text: String::new() });
            return vec![Effect::Compare { answer }];
        }
    };
    app.say(Level::Info, refusal);
    Vec::new()
}

fn last_answer(app: &App) -> Option<&Message> {
    let is_answer = |m: &&&Message| m.role == Role::Assistant && m.report.is_some() && m.in_context;
    app.chat.path().iter().rev().find(is_answer).copied()
}

/// Collects the answer.
pub fn streamed(app: &mut App, kind: TextKind, text: &str) {
    if let (Some(comparison), TextKind::Answer) = (&mut app.engine.comparing, kind) {
        comparison.text.push_str(text);
    }
}

/// Shows the answer below the first, or why there is none.
pub fn done(app: &mut App, report: &TurnReport) -> Vec<Effect> {
    let why = match (report.stop_reason, &report.detail) {
        (StopReason::End | StopReason::MaxTokens, _) => return show(app, report),
        (StopReason::Cancelled, _) => "stopped".to_owned(),
        (StopReason::CacheFull, Some(detail)) => format!("no room for a cache that drops nothing: {detail}"),
        (reason, detail) => detail.clone().unwrap_or_else(|| reason.as_str().to_owned()),
    };
    failed(app, &why)
}

fn show(app: &mut App, report: &TurnReport) -> Vec<Effect> {
    let Some(Comparison { answer, text }) = app.engine.comparing.take() else { return Vec::new() };
    let tokens = report.prompt_tokens + report.answer_tokens + report.reasoning_tokens;
    let slots = app.engine.info.as_ref().map_or(0, |info| info.n_layers * info.n_kv_heads * info.slot_bytes);
    let dense = bytes((tokens * slots) as u64);
    let said = app.chat.get(answer).map_or("", Message::shown).trim();
    let held = app.chat.get(answer).and_then(|m| m.report.as_ref()).map_or(0, |report| report.kv.live_bytes);
    let rest = match text.trim() {
        "" => format!("the model only thought, {}", plural(report.reasoning_tokens as u64, "token")),
        same if same == said => "the same answer, word for word".to_owned(),
        other => format!("another answer (not part of the conversation):\n{other}"),
    };
    let text = format!("without eviction, {dense} of cache instead of {}: {rest}", bytes(held));
    app.feed.push_result(&app.chat, Local::new(Some(answer), LocalKind::Note, text));
    turns::send_next(app)
}

/// Says why there is no answer.
pub fn failed(app: &mut App, why: &str) -> Vec<Effect> {
    app.engine.comparing = None;
    if why == "stopped" {
        app.say(Level::Info, "stopped; nothing was compared");
        return Vec::new();
    }
    note(app, LocalKind::Warning, format!("not compared: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command, DENSE_TURN, Event};
    use crate::ui::testing::*;
    use crate::ui::update::take_changes;
    use crossterm::event::KeyCode;

    #[test]
    fn the_same_question_is_answered_beside_the_conversation() {
        let mut app = app(100, 30, 8, 4);
        assert!(say(&mut app, "/compare").is_empty() && screen(&mut app).contains("nothing to compare yet"));
        turn(&mut app, "What is my name?", "hm", "You have not told me.");
        take_changes(&mut app);
        let path = app.chat.path().len();
        for (said, stop_reason, shown) in [
            ("Your name is Ada.", StopReason::End, "Your name is Ada."),
            ("You have not told me.", StopReason::End, "the same answer, word for word"),
            ("Your", StopReason::Cancelled, "stopped; nothing was compared"),
        ] {
            let answer = app.chat.head().unwrap();
            assert!(matches!(say(&mut app, "/compare")[..], [Effect::Compare { answer: asked }] if asked == answer));
            let text = Event::Text { turn: DENSE_TURN, kind: TextKind::Answer, text: said.into() };
            engine(&mut app, text);
            assert!(app.is_busy() && screen(&mut app).contains("answering without eviction"), "{}", screen(&mut app));
            if stop_reason == StopReason::Cancelled {
                assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Command::Cancel)]));
            }
            engine(&mut app, Event::TurnDone(Box::new(report(DENSE_TURN, stop_reason))));
            let screen = screen(&mut app);
            assert!(!app.is_busy() && screen.contains(shown), "{shown}: {screen}");
        }
        assert_eq!((app.chat.path().len(), take_changes(&mut app).len()), (path, 0), "nothing of it is saved");
    }
}
