//! What commands and messages say, and the small signs around the conversation.

use super::*;
use crate::protocol::{StopReason, TextKind, TurnReport};
use crate::ui::heat::Depth;
use crate::ui::testing::*;
use crossterm::event::{KeyCode, KeyModifiers};

fn notice(app: &App) -> &str {
    app.notice.as_ref().map_or("", |n| &n.text)
}

fn quits(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Quit])
}

/// The chat with a model that somebody else made.
fn with_model(change: impl Fn(&mut ModelInfo)) -> App {
    let mut app = unloaded(120, 40, Depth::Rgb, "dark");
    let mut info = model(8, 4);
    (info.name, info.template.trusted) = ("org/model".into(), false);
    change(&mut info);
    update(&mut app, AppEvent::ModelReady(Arc::new(info)));
    app
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
    let turn = app.turn.as_ref().unwrap().turn;
    engine(&mut app, Event::TurnDone(Box::new(report(turn, StopReason::End))));
    assert!(matches!(say(&mut app, "/clear")[..], [Effect::Store(Store::Close)]));
    let own_names = slash_names();
    assert!(crate::ui::commands::ALIASES.iter().all(|(_, name)| own_names.contains(name)));
}

fn slash_names() -> Vec<&'static str> {
    crate::ui::commands::SPECS.iter().map(|s| s.name).collect()
}

#[test]
fn think_says_when_there_is_nothing_to_switch() {
    let mut app = with_model(|m| m.think_tags = None);
    say(&mut app, "/think off");
    assert_eq!(notice(&app), "org/model has no thinking to switch");
    let mut app = with_model(|m| m.template.source = Some("{{ messages }}".into()));
    say(&mut app, "/think off");
    assert_eq!(notice(&app), "org/model decides by itself whether it thinks");
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
        let turn = app.turn.as_ref().unwrap().turn;
        let effects = engine(&mut app, Event::TurnDone(Box::new(report(turn, StopReason::End))));
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
    press_with(&mut app, KeyCode::Char('c'), KeyModifiers::CONTROL);
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
