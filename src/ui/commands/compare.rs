//! `/compare`: answers the last question again from a cache that drops nothing, and shows that
//! answer below the first. It is not part of the conversation.

use super::prelude::*;
use crate::chat::{Message, Role};
use crate::protocol::{StopReason, TextKind, TurnReport};
use crate::ui::state::Comparison;

/// Asks the last question of the context again.
pub fn run(app: &mut App, _: &str) -> Done {
    turns::idle(app)?;
    if app.model()?.policy.keeps_all() {
        return Err("this cache keeps everything: the answer would be the same".into());
    }
    let answer = last_answer(app).ok_or("nothing to compare yet: no answer so far")?.id;
    app.engine.comparing = Some(Comparison { answer, text: String::new() });
    app.emit(Effect::Compare { answer });
    Ok(())
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
pub fn done(app: &mut App, report: &TurnReport) {
    let why = match (report.stop_reason, &report.detail) {
        (StopReason::End | StopReason::MaxTokens, _) => return show(app, report),
        (StopReason::Cancelled, _) => "stopped".to_owned(),
        (StopReason::CacheFull, Some(detail)) => format!("no room for a cache that drops nothing: {detail}"),
        (reason, detail) => detail.clone().unwrap_or_else(|| reason.name().to_owned()),
    };
    failed(app, &why);
}

fn show(app: &mut App, report: &TurnReport) {
    let Some(Comparison { answer, text }) = app.engine.comparing.take() else { return };
    // The last token of an answer is not fed.
    let fed = (report.prompt_tokens + report.answer_tokens + report.reasoning_tokens).saturating_sub(1);
    let dense = bytes(app.engine.info.as_ref().map_or(0, |info| info.dense_bytes(fed)));
    let said = app.chat.get(answer).map_or("", Message::shown).trim();
    let kv = app.chat.get(answer).and_then(|m| m.report.as_ref()).map(|report| &report.kv);
    let held = kv.map_or(0, |kv| kv.live_bytes);
    let far = kv.and_then(|kv| kv.far.as_ref()).filter(|far| far.rows > 0).map_or_else(String::new, |far| {
        let (rows, read) = (plural(far.rows, "row"), count(far.near));
        format!(" and {rows} far, of which it read {read}")
    });
    let rest = match text.trim() {
        "" => format!("the model only thought, {}", plural(report.reasoning_tokens as u64, "token")),
        same if same == said => "the same answer, word for word".to_owned(),
        other => format!("another answer (not part of the conversation):\n{other}"),
    };
    let text = format!("without eviction, {dense} of cache instead of {}{far}: {rest}", bytes(held));
    app.feed.push_result(&app.chat, Local::new(Some(answer), LocalKind::Note, text));
    turns::send_next(app);
}

/// Says why there is no answer.
pub fn failed(app: &mut App, why: &str) {
    app.engine.comparing = None;
    match why {
        "stopped" => app.info("stopped; nothing was compared"),
        why => app.note(LocalKind::Warning, format!("/compare: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Command as Engine, Event, Finding};
    use crate::ui::testing::*;

    #[test]
    fn the_same_question_is_answered_beside_the_conversation() {
        let mut app = app(100, 30, 8, 4);
        assert!(say(&mut app, "/compare").is_empty() && screen(&mut app).contains("nothing to compare yet"));
        turn(&mut app, "What is my name?", "hm", "You have not told me.");
        app.chat.take_changes();
        let path = app.chat.path().len();
        for (said, stop_reason, shown) in [
            ("Your name is Ada.", StopReason::End, "Your name is Ada."),
            ("You have not told me.", StopReason::End, "the same answer, word for word"),
            ("Your", StopReason::Cancelled, "stopped; nothing was compared"),
        ] {
            let answer = app.chat.head().unwrap();
            assert!(matches!(say(&mut app, "/compare")[..], [Effect::Compare { answer: asked }] if asked == answer));
            let text = Finding::Text { dense: true, kind: TextKind::Answer, text: said.into() };
            engine(&mut app, Event::Found(text));
            assert!(app.is_busy() && screen(&mut app).contains("answering without eviction"), "{}", screen(&mut app));
            if stop_reason == StopReason::Cancelled {
                assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Engine::Cancel)]));
            }
            engine(&mut app, Event::Found(Finding::Said { dense: true, report: Box::new(report(0, stop_reason)) }));
            let screen = screen(&mut app);
            assert!(!app.is_busy() && screen.contains(shown), "{shown}: {screen}");
        }
        assert_eq!((app.chat.path().len(), app.chat.take_changes().len()), (path, 0), "nothing of it is saved");
    }
}
