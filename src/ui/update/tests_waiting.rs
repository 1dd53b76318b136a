//! Unsent text, waiting messages and notices: what is kept, what returns, what goes by itself.

use super::*;
use crate::protocol::{ChainEvent, Command, Event, StopReason, TextKind, TurnReport};
use crate::ui::attach::Attachment;
use crate::ui::commands::sessions::Sessions;
use crate::ui::effect::{Store, Which};
use crate::ui::event::{Asked, SessionEntry};
use crate::ui::state::{Level, Loading, Restore};
use crate::ui::testing::*;
use crossterm::event::{KeyCode, KeyModifiers, MouseEvent, MouseEventKind};

fn loading() -> App {
    let mut app = unloaded(80, 24, Depth::Rgb, "dark");
    app.engine.loading = Some(Loading::new("demo"));
    app
}

#[test]
fn control_c_clears_the_draft_then_asks_then_quits() {
    let mut app = app(120, 40, 8, 4);
    type_in(&mut app, "draft");
    assert!(!quits(&ctrl(&mut app, 'c')));
    assert!(app.input.is_empty());
    // The file of what was typed keeps it for another run.
    assert_eq!(app.history.take_new(), ["draft"]);
    assert!(notice(&app).contains("Alt+Z brings it back"), "{}", notice(&app));
    press_with(&mut app, KeyCode::Char('z'), KeyModifiers::ALT);
    assert_eq!(app.input.text(), "draft");
    ctrl(&mut app, 'c');
    assert!(!quits(&ctrl(&mut app, 'c')));
    assert!(notice(&app).contains("again to quit"));
    // Any other key, and time, take the question back.
    press(&mut app, KeyCode::PageUp);
    assert!(!quits(&ctrl(&mut app, 'c')));
    app.now_ms += 7_000;
    update(&mut app, AppEvent::Tick);
    assert!(!quits(&ctrl(&mut app, 'c')));
    assert!(quits(&ctrl(&mut app, 'c')));
    press(&mut app, KeyCode::Char('x'));
    assert!(!quits(&ctrl(&mut app, 'd')));
    ctrl(&mut app, 'u');
    assert!(quits(&ctrl(&mut app, 'd')));
}

#[test]
fn a_command_works_while_a_draft_stands() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "first", "", "one");
    turn(&mut app, "second", "", "two");
    say(&mut app, "/undo");
    assert_eq!(app.input.text(), "second");
    // The text given back makes way for the next command, and returns.
    type_in(&mut app, "/");
    assert_eq!((app.input.text(), app.aside.as_deref()), ("/", Some("second")));
    assert!(screen(&mut app).contains("your text is set aside"));
    press(&mut app, KeyCode::Backspace);
    assert_eq!((app.input.text(), &app.aside), ("second", &None));
    say(&mut app, "/set temperature 1");
    assert_eq!(app.sampling().temperature, 1.0);
    assert_eq!(app.input.text(), "second");
    // Taken back again: the newer text is in the input, Up has the other.
    say(&mut app, "/undo");
    assert_eq!(app.input.text(), "first");
    assert!(app.history.entries().contains(&"second".to_owned()));
    // Unsent text of the user's own makes way when the slash is before it.
    press(&mut app, KeyCode::Char('!'));
    type_in(&mut app, "/x");
    assert_eq!(app.input.text(), "first!/x");
    press(&mut app, KeyCode::Home);
    say(&mut app, "/set temperature 2");
    assert_eq!((app.sampling().temperature, app.input.text()), (2.0, "first!/x"));
}

#[test]
fn a_text_given_back_never_replaces_a_draft() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "too long");
    type_in(&mut app, "my draft");
    refuse(&mut app, "too many tokens");
    assert_eq!(app.input.text(), "my draft");
    assert_eq!(app.history.entries().last().map(String::as_str), Some("too long"));
    assert!(screen(&mut app).contains("not sent (Up recalls it): too many tokens"));
}

#[test]
fn messages_sent_while_a_model_loads_or_answers_wait_their_turn() {
    let mut app = loading();
    assert!(!sent(&say(&mut app, "hi")));
    assert!(!sent(&say(&mut app, "more")));
    assert!(screen(&mut app).contains("queued: more  (Esc takes it back)"));
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.input.text(), app.queue.len()), ("more", 1));
    press(&mut app, KeyCode::Enter);
    assert!(sent(&ready(&mut app, model(8, 4))));
    assert_eq!(app.chat.path()[0].text, "hi");
    assert!(sent(&end(&mut app, StopReason::End)));
    assert_eq!(app.chat.path()[2].text, "more");
    // After a stop they wait for Enter.
    say(&mut app, "third");
    ctrl(&mut app, 'c');
    assert!(!sent(&end(&mut app, StopReason::Cancelled)));
    assert!(screen(&mut app).contains("queued: third  (Enter sends, Esc takes it back)"));
    assert!(sent(&press(&mut app, KeyCode::Enter)));
    // With unsent text in the input, Esc stops the answer.
    say(&mut app, "fourth");
    type_in(&mut app, "d");
    assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Command::Cancel)]));
    assert_eq!(app.queue.len(), 1);
}

#[test]
fn loading_is_stopped_at_the_second_press_and_a_message_begins_it_again() {
    let mut app = loading();
    assert!(press(&mut app, KeyCode::Esc).is_empty());
    assert!(notice(&app).contains("press Esc again to stop loading demo"), "{}", notice(&app));
    assert!(app.engine.loading.is_some());
    assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::CancelLoad]));
    assert!(app.engine.loading.is_none());
    assert!(matches!(&say(&mut app, "hi")[..], [Effect::Load(name)] if name == "demo"));
    // A load that fails leaves the message where it is, and the chat usable.
    update(&mut app, AppEvent::LoadFailed("no room".into()));
    assert_eq!(app.queue.len(), 1);
    assert!(matches!(&say(&mut app, "/model other")[..], [Effect::Load(name)] if name == "other"));
    assert!(sent(&ready(&mut app, model(8, 4))));
}

#[test]
fn what_waits_for_a_conversation_being_opened_goes_to_that_one() {
    let mut app = loading();
    app.resuming = true;
    say(&mut app, "go on");
    assert!(!sent(&ready(&mut app, model(8, 4))));
    assert!(sent(&open(&mut app, crate::chat::Conversation::new(None), None)));
}

/// A saved conversation is loaded at once; what is sent meanwhile waits for it, and Esc leaves it
/// to the next message.
#[test]
fn a_conversation_loads_when_it_is_opened_and_messages_wait() {
    let mut app = app(120, 40, 8, 4);
    let open_old = |app: &mut App| {
        let mut chat = crate::chat::Conversation::new(None);
        chat.push_user("old question");
        let effects = open(app, chat, Some(Default::default()));
        assert!(matches!(effects[..], [.., Effect::Engine(Command::Restore(_))]), "{effects:?}");
        assert!(app.is_busy() && app.session.is_restoring());
    };
    open_old(&mut app);
    assert!(!sent(&say(&mut app, "go on")) && app.queue.len() == 1);
    assert!(sent(&engine(&mut app, Event::RebuildDone { cancelled: false, tokens: 40 })));
    end(&mut app, StopReason::End);
    open_old(&mut app);
    assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Command::Cancel)]));
    engine(&mut app, Event::RebuildDone { cancelled: true, tokens: 0 });
    assert_eq!(notice(&app), "stopped; the conversation loads with your next message");
    assert!(matches!(app.session.restore, Restore::Waiting(Some(_))) && !app.is_busy());
}

#[test]
fn notices_go_with_time_and_with_what_they_are_about() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "q");
    assert!(app.wants_tick().is_some());
    stream(&mut app, TextKind::Answer, "a");
    say(&mut app, "/regen");
    assert_eq!(notice(&app), "the answer is still running; Esc stops it");
    end(&mut app, StopReason::End);
    assert_eq!(notice(&app), "");
    assert_eq!(app.wants_tick(), None);

    say(&mut app, "/eviction");
    let until = app.wants_tick().unwrap();
    assert_eq!(until, app.now_ms + 6_000);
    app.now_ms = until - 1;
    update(&mut app, AppEvent::Tick);
    assert!(notice(&app).contains("eviction is on"));
    app.now_ms = until;
    update(&mut app, AppEvent::Tick);
    assert_eq!((notice(&app), app.wants_tick()), ("", None));
    // Errors stay until a key does something.
    say(&mut app, "/nonsense");
    assert_eq!(app.wants_tick(), None);
}

#[test]
fn an_error_raised_from_a_list_shows_in_the_list() {
    let mut app = app(80, 24, 8, 4);
    app.open(Sessions::new(Vec::new(), ""));
    update(&mut app, AppEvent::Said(crate::ui::state::Level::Error, "that file cannot be removed".into()));
    assert!(screen(&mut app).contains("that file cannot be removed"));
    press(&mut app, KeyCode::Down);
    assert!(!screen(&mut app).contains("that file cannot be removed"));
}

/// A list that gets shorter by a paste, and the wheel, leave one of its rows chosen.
#[test]
fn enter_opens_a_row_that_is_on_the_screen() {
    let mut app = app(80, 24, 8, 4);
    let entries = ["alpha", "beta", "alphabet"].map(|id| SessionEntry {
        id: id.into(),
        haystack: id.into(),
        ..SessionEntry::default()
    });
    app.open(Sessions::new(entries.into(), ""));
    press(&mut app, KeyCode::End);
    for _ in 0..5 {
        press(&mut app, KeyCode::Down);
    }
    update(&mut app, AppEvent::Paste("beta".into()));
    let wheel = MouseEvent { kind: MouseEventKind::ScrollDown, column: 5, row: 5, modifiers: KeyModifiers::NONE };
    update(&mut app, AppEvent::Mouse(wheel));
    let effects = press(&mut app, KeyCode::Enter);
    assert!(
        matches!(&effects[..], [Effect::Store(Store::Open { which: Which::Id(id), .. })] if id == "beta"),
        "{effects:?}"
    );
}

#[test]
fn an_answer_asked_for_again_and_stopped_leaves_the_first_one() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "question", "", "first answer");
    assert!(sent(&say(&mut app, "/regen")));
    let id = app.turn.as_ref().unwrap().turn;
    update(&mut app, AppEvent::NotAsked { what: Asked::Turn(id), why: None });
    assert!(app.turn.is_none() && app.input.is_empty());
    let texts: Vec<&str> = app.chat.path().iter().map(|m| m.text.as_str()).collect();
    assert_eq!(texts, ["question", "first answer"]);
    // A message of its own goes back to the input.
    say(&mut app, "another");
    let id = app.turn.as_ref().unwrap().turn;
    update(&mut app, AppEvent::NotAsked { what: Asked::Turn(id), why: None });
    assert_eq!((app.input.text(), app.chat.path().len()), ("another", 2));
}

#[test]
fn eviction_is_switched_after_the_chains_and_once() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "/parallel 4 how many?");
    let turn = app.turn.as_ref().unwrap().turn;
    engine(&mut app, Event::TurnStarted { turn, prompt_tokens: 40, reused: 0, todo: 40 });
    engine(&mut app, Event::Chain { turn, event: ChainEvent::Started(4) });
    let f4 = |app: &mut App| {
        let effects = press(app, KeyCode::F(4));
        assert!(effects.is_empty(), "{effects:?}");
        notice(app).to_owned()
    };
    assert_eq!(f4(&mut app), "eviction goes off after this answer");
    assert_eq!(f4(&mut app), "eviction stays on");
    assert_eq!(f4(&mut app), "eviction goes off after this answer");
    say(&mut app, "/eviction off");
    assert_eq!(notice(&app), "eviction already goes off after this answer");
    let switches = |effects: Vec<Effect>| -> Vec<bool> {
        let on = |effect| if let Effect::Engine(Command::SetEviction(on)) = effect { Some(on) } else { None };
        effects.into_iter().filter_map(on).collect()
    };
    engine(&mut app, Event::Chain { turn, event: ChainEvent::Elected(0) });
    assert_eq!(switches(end(&mut app, StopReason::End)), [false]);
    engine(&mut app, Event::EvictionSet { on: false, at_token: 472, dropped_slots: 0 });
    assert_eq!(app.chat.marks().len(), 1);
    // While a switch is on its way, the next one waits, and a third takes that back.
    assert_eq!(switches(press(&mut app, KeyCode::F(4))), [true]);
    (0..3).for_each(|_| assert!(switches(press(&mut app, KeyCode::F(4))).is_empty()));
    let set = Event::EvictionSet { on: true, at_token: 472, dropped_slots: 9 };
    assert_eq!(switches(engine(&mut app, set)), [false]);
}

#[test]
fn a_message_that_the_cache_has_no_room_for_is_recalled_by_up() {
    let mut app = app(120, 40, 8, 4);
    for question in ["first", "second"] {
        say(&mut app, question);
        let turn = app.turn.as_ref().unwrap().turn;
        let full = report(turn, StopReason::CacheFull);
        let why = Some("the KV cache is full: 6.3 kB more would pass the limit of 1.3 MB".to_owned());
        let refused = TurnReport { in_context: false, generated: Vec::new(), detail: why, ..full };
        engine(&mut app, Event::TurnDone(Box::new(refused)));
        assert_eq!((app.input.text(), app.history.entries().last().map(String::as_str)), ("", Some(question)));
        let shown = screen(&mut app);
        assert_eq!(shown.matches("not sent (Up recalls it): the KV cache is full").count(), 1, "{shown}");
    }
}

#[test]
fn what_fails_late_is_in_view() {
    for late in [true, false] {
        let mut app = app(100, 24, 8, 4);
        for n in 0..8 {
            turn(&mut app, &format!("question {n}"), "hm", "an answer");
        }
        screen(&mut app);
        press(&mut app, KeyCode::PageUp);
        screen(&mut app);
        match late {
            true => drop(update(&mut app, AppEvent::LoadFailed("no connection".into()))),
            false => drop(engine(&mut app, Event::Notice("no connection".into()))),
        }
        assert!(screen(&mut app).contains("no connection"), "{late}: {}", screen(&mut app));
    }
}

#[test]
fn text_that_is_typed_into_a_page_needs_esc_first() {
    let mut app = app(100, 24, 8, 4);
    turn(&mut app, "question", "hm", "an answer");
    press(&mut app, KeyCode::F(3));
    let effects: Vec<Effect> = "/unpin".chars().flat_map(|c| press(&mut app, KeyCode::Char(c))).collect();
    assert!(!effects.iter().any(|e| matches!(e, Effect::Engine(Command::PinTokens { .. }))), "{effects:?}");
    assert_eq!(notice(&app), "Esc first: this page takes no text");
    app.notice = None;
    app.now_ms += 10_000;
    press(&mut app, KeyCode::Char('x'));
    assert_eq!(notice(&app), "Esc first: this page takes no text");
    press(&mut app, KeyCode::Esc);
    assert!(app.overlays.is_empty());
}

/// Keys that waited together are one text, wherever they are typed.
#[test]
fn a_burst_is_typed_at_once() {
    let mut app = app(100, 24, 8, 4);
    let long: String = (0..2_000).map(|n| format!("line {n}\n")).collect();
    let text = long.trim_end();
    let effects = update(&mut app, AppEvent::Burst(text.to_owned()));
    assert!(!sent(&effects) && app.input.expanded() == text);
    assert!(notice(&app).starts_with("pasted text is folded"));
    app.input.set("");
    press(&mut app, KeyCode::F(1));
    update(&mut app, AppEvent::Burst("cache".into()));
    assert!(screen(&mut app).contains("help: cache"), "{}", screen(&mut app));
}

#[test]
fn a_waiting_message_shows_its_file_as_the_input_did() {
    let mut app = app(100, 24, 8, 4);
    say(&mut app, "first");
    type_in(&mut app, "sum up @notes.md");
    let file = Attachment { label: "[@notes.md, 2 lines]".into(), text: "notes.md:\n```\none\ntwo\n```".into() };
    update(&mut app, AppEvent::Attached { typed: "@notes.md".into(), read: Ok(file) });
    press(&mut app, KeyCode::Enter);
    let shown = screen(&mut app);
    assert!(shown.contains("queued: sum up [@notes.md, 2 li") && !shown.contains("^J"), "{shown}");
}

/// A command that fails after it has begun comes back to be corrected, with its name in the
/// message.
#[test]
fn a_command_that_fails_later_comes_back_unless_something_else_is_typed() {
    let not_opened = || AppEvent::NotOpened(Level::Error, "no session matches".into());
    let unwritten = |name| AppEvent::CommandFailed(name, "no such folder".into());
    type Fails<'a> = Box<dyn Fn() -> AppEvent + 'a>;
    let cases: [(&str, Fails, &str); 6] = [
        ("/resume nosuch", Box::new(not_opened), "/resume: no session matches"),
        (
            "/model nosuch/x",
            Box::new(|| AppEvent::LoadFailed("not found".into())),
            "/model: not found; demo stays loaded",
        ),
        ("/load nosuch/x", Box::new(|| AppEvent::LoadFailed("not found".into())), "/model: not found"),
        ("/export /no/x.md", Box::new(|| unwritten("export")), "/export: no such folder"),
        ("/save /no/x.jsonl", Box::new(|| unwritten("save")), "/save: no such folder"),
        (
            "/recall some text",
            Box::new(|| AppEvent::NotAsked { what: Asked::Recall, why: Some("full".into()) }),
            "/recall: full",
        ),
    ];
    for (line, fails, shown) in &cases {
        let mut app = app(120, 40, 8, 4);
        turn(&mut app, "question", "hm", "answer");
        say(&mut app, line);
        assert_eq!(app.input.text(), "", "{line}");
        update(&mut app, fails());
        assert_eq!(app.input.text(), *line);
        assert!(screen(&mut app).contains(shown), "{line}: {}", screen(&mut app));
        // Once: a failure of something else gives nothing back.
        app.input.set("");
        update(&mut app, fails());
        assert_eq!(app.input.text(), "", "{line}");
        // Something else is typed, or a text was set aside for the command.
        say(&mut app, line);
        type_in(&mut app, "more");
        update(&mut app, fails());
        assert_eq!(app.input.text(), "more");
        assert!(screen(&mut app).contains(shown), "{line}");
    }
    // A list's conversation is not the one that was typed; nor is a list's model.
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "/resume nosuch");
    crate::ui::update::files::open(&mut app, Which::Id("x".into()));
    update(&mut app, not_opened());
    assert_eq!((app.input.text(), notice(&app)), ("", "no session matches"));
    // One that cannot begin stays too, if there is something to correct in it.
    say(&mut app, "q");
    say(&mut app, "/model other");
    assert_eq!(app.input.text(), "/model other");
    app.input.set("");
    say(&mut app, "/regen");
    assert_eq!(app.input.text(), "");
}

/// What the model's adapter says is not below the answer to a message that waited for the model.
#[test]
fn a_notice_about_the_model_stands_above_the_message_that_waited_for_it() {
    let mut app = loading();
    say(&mut app, "my question");
    assert!(sent(&ready(&mut app, model(8, 4))));
    engine(&mut app, Event::Info("forgets with an adapter".into()));
    stream(&mut app, TextKind::Answer, "my answer");
    let shown = screen(&mut app);
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: {shown}"));
    assert!(at("forgets with") < at("my question") && at("my question") < at("my answer"), "{shown}");
}

#[test]
fn what_was_taken_back_leaves_no_trace_and_figures_say_what_they_lack() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "question", "hm", "answer");
    let toggle = |on, dropped_slots| Event::EvictionSet { on, at_token: 472, dropped_slots };
    for on in [false, true, false, true] {
        engine(&mut app, toggle(on, 0));
    }
    assert!(app.feed.locals.is_empty() && app.chat.marks().len() == 4 && app.chat.shown_marks().is_empty());
    // One that dropped something stays.
    engine(&mut app, toggle(false, 0));
    engine(&mut app, toggle(true, 12));
    assert_eq!((app.feed.locals.len(), app.chat.shown_marks().len()), (2, 2));
    // After a way back the cache may hold less than the conversation.
    let back = crate::protocol::Snapshot { unread: 35, ..snapshot(40, 8, 4) };
    figures(&mut app, back);
    assert!(status(&mut app).contains("context 40/8,192 · 35 more when you send"), "{}", status(&mut app));
    assert!(crate::ui::numbers::stats_note(&app).contains("40/8,192, 35 more when you send"));
    // What is kept is said as it acts.
    engine(&mut app, Event::DialSet { ratio: 2.0, trained: 10.2, at_token: 40 });
    assert_eq!(notice(&app), "from now on keeps about 1 token in 2 (by default 1 in 10)");
    engine(&mut app, toggle(false, 0));
    engine(&mut app, Event::DialSet { ratio: 2.0, trained: 4.6, at_token: 40 });
    assert_eq!(notice(&app), "once eviction is on, keeps about 1 token in 2 (by default 1 in 4.6)");
    // A limit that is set later is the one of /stats.
    let plan = crate::protocol::Plan { kv_budget_bytes: Some(1_000_000), certain_context: 120, ..Default::default() };
    engine(&mut app, Event::Planned(Box::new(plan)));
    let stats = crate::ui::numbers::stats_note(&app);
    assert!(stats.contains("cache room      1.0 MB, fits 120 tokens"), "{stats}");
}
