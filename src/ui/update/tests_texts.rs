//! Texts of commands and messages, and the small signs around the conversation.

use super::*;
use crate::chat::Role;
use crate::protocol::{Command, Event, ModelInfo, StopReason, TextKind, TurnReport};
use crate::ui::commands::help::Help;
use crate::ui::testing::*;
use crate::ui::widgets::message::advice;

/// The chat with a model that somebody else made.
fn with_model(change: impl Fn(&mut ModelInfo)) -> App {
    let mut app = unloaded(120, 40, Depth::Rgb, "dark");
    let mut info = model(8, 4);
    (info.identity.name, info.template.trusted) = ("org/model".into(), false);
    change(&mut info);
    ready(&mut app, info);
    app
}

#[test]
fn words_behind_a_command_that_takes_none_are_refused_and_nothing_is_done() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "", "a");
    for line in ["/undo 99", "/compact keep the names", "/quit now", "/unpin 7"] {
        app.input.take();
        assert!(say(&mut app, line).is_empty(), "{line}");
        let (name, words) = line.split_once(' ').unwrap();
        assert!(
            notice(&app).starts_with(&format!("{name} takes ")) && notice(&app).contains(words),
            "{}",
            notice(&app)
        );
        assert_eq!(app.chat.path().len(), 2);
    }
    app.input.take();
    say(&mut app, "/copy answer 9");
    assert_eq!(notice(&app), "/copy: no answer 9 from the end; this conversation has 1 answer");
    app.input.take();
    say(&mut app, "/help me");
    assert!(app.overlay::<Help>().is_some());
}

/// There is no input on the screen whose unsent text a line could continue.
#[test]
fn in_line_mode_a_line_is_sent_alone() {
    let mut app = app(120, 40, 8, 4);
    let line = |app: &mut App, text: &str| {
        update(app, AppEvent::Line(text.into()));
        app.chat.path().iter().rev().find(|m| m.role == Role::User).map(|m| m.text.clone())
    };
    assert_eq!(line(&mut app, "/nosuch"), None);
    assert_eq!(line(&mut app, "/stats"), None);
    turn(&mut app, "first", "", "a");
    line(&mut app, "/undo");
    line(&mut app, "two\\");
    assert_eq!(line(&mut app, "lines").as_deref(), Some("two\nlines"));
    end(&mut app, StopReason::End);
    line(&mut app, "/edit");
    line(&mut app, "");
    assert!(app.editing.is_none() && notice(&app) == "the message stays as it was");
    line(&mut app, "/edit");
    assert_eq!(line(&mut app, "one line").as_deref(), Some("one line"));
}

#[test]
fn a_command_runs_typed_in_full_or_completed_and_has_other_names() {
    let mut app = app(120, 40, 8, 4);
    assert!(say(&mut app, "/q").is_empty());
    assert_eq!(app.input.text(), "/quit");
    assert!(quits(&press(&mut app, KeyCode::Enter)));
    for alias in ["/exit", "/bye"] {
        app.input.take();
        assert!(quits(&say(&mut app, alias)), "{alias}");
    }
    turn(&mut app, "q", "", "a");
    assert!(matches!(say(&mut app, "/retry")[..], [Effect::Generate { .. }]));
    end(&mut app, StopReason::End);
    assert!(matches!(say(&mut app, "/clear")[..], [Effect::Store(Store::Close)]));
}

#[test]
fn think_says_when_there_is_nothing_to_switch() {
    let mut app = with_model(|m| m.think_tags = None);
    say(&mut app, "/think off");
    assert_eq!(notice(&app), "/think: org/model has no thinking to switch");
    let mut app = with_model(|m| m.template.source = Some("{{ messages }}".into()));
    say(&mut app, "/think off");
    assert_eq!(notice(&app), "/think: org/model decides by itself whether it thinks");
    assert!(app.options.think);
}

#[test]
fn the_examples_fit_the_model() {
    assert!(screen(&mut app(120, 40, 8, 4)).contains("Solve 5*b"));
    let shown = screen(&mut with_model(|_| ()));
    assert!(!shown.contains("Solve 5*b") && shown.contains("Write a shell command"), "{shown}");
}

#[test]
fn a_full_cache_is_said_once_with_what_to_do() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "q");
    stream(&mut app, TextKind::Answer, "half");
    let full = TurnReport {
        in_context: false,
        detail: Some("the KV cache is full: 1.2 MB more would pass the limit of 512 MB".into()),
        ..report(app.turn.as_ref().unwrap().turn, StopReason::CacheFull)
    };
    engine(&mut app, Event::TurnDone(Box::new(full)));
    let shown = screen(&mut app);
    assert_eq!(shown.matches("cache is full").count(), 1, "{shown}");
    assert!(!shown.contains("cache full:") && shown.contains("/set kv_limit"), "{shown}");
}

#[test]
fn a_bell_ends_a_long_answer_where_it_is_asked_for() {
    for (bell, ms, rings) in [(true, 11_000, true), (true, 9_000, false), (false, 60_000, false)] {
        let mut app = app(120, 40, 8, 4);
        app.setup.settings.bell = bell;
        say(&mut app, "q");
        app.now_ms += ms;
        let effects = end(&mut app, StopReason::End);
        assert_eq!(effects.iter().any(|e| matches!(e, Effect::Bell)), rings, "{bell} {ms}");
    }
}

#[test]
fn the_draft_is_counted_when_typing_pauses_and_the_engine_is_idle() {
    let mut app = app(120, 40, 8, 4);
    let effects = update(&mut app, AppEvent::Paste("some words of a draft that is long enough".into()));
    assert!(effects.is_empty());
    let due = app.wants_tick().unwrap();
    app.now_ms = due;
    let effects = update(&mut app, AppEvent::Tick);
    let [Effect::Engine(Command::CountTokens { id, .. })] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(app.wants_tick(), None);
    engine(&mut app, Event::TokensCounted { id, tokens: 312 });
    assert!(screen(&mut app).contains("≈ 312 tokens"));
    ctrl(&mut app, 'c');
    assert!(!screen(&mut app).contains("≈ 312 tokens"));
    // While an answer runs the engine is left alone.
    say(&mut app, "q");
    update(&mut app, AppEvent::Paste("some words of a draft that is long enough".into()));
    app.now_ms += 10_000;
    assert!(update(&mut app, AppEvent::Tick).is_empty());
}

#[test]
fn the_title_is_the_conversations_without_controls() {
    let mut app = app(120, 40, 8, 4);
    assert_eq!(app.title(), "dmschat");
    say(&mut app, "what is \u{1b}]2;this\u{7}?");
    assert!(app.title().starts_with("what is ") && app.title().ends_with(" - dmschat"), "{}", app.title());
    assert!(!app.title().contains(char::is_control));
}

#[test]
fn advice_names_nothing_that_is_set_already() {
    let mut full = report(1, StopReason::CacheFull);
    assert!(!advice(&full).contains("/eviction"));
    full.eviction = false;
    assert!(advice(&full).contains("/eviction on"));
}

#[test]
fn the_status_names_the_speed_of_the_version_shown_and_a_full_context() {
    let mut app = with_model(|info| info.context = 472);
    turn(&mut app, "q", "", "a");
    let mut slow = report(2, StopReason::End);
    say(&mut app, "/regen");
    slow.decode_tok_s = Some(7.0);
    update(&mut app, AppEvent::Engine(Event::TurnDone(Box::new(slow))));
    assert!(status(&mut app).contains("7 tok/s") && status(&mut app).contains("472/472 full"), "{}", status(&mut app));
    press_with(&mut app, KeyCode::Char(','), KeyModifiers::ALT);
    assert!(status(&mut app).contains("312 tok/s"), "{}", status(&mut app));
}
