//! Commands, lists and questions: what is found, what is asked, and where its result is shown.

use super::*;
use crate::chat::Conversation;
use crate::protocol::{Command, Event, Phase, StopReason};
use crate::ui::action::Action;
use crate::ui::editor::search;
use crate::ui::event::SessionEntry;
use crate::ui::keymap::Keymap;
use crate::ui::testing::*;
use crate::ui::theme::Role;
use ratatui::style::Modifier;

fn choose_older(app: &mut App) {
    press_with(app, KeyCode::Up, KeyModifiers::CONTROL);
}

/// Several turns, more than the screen shows.
fn long(columns: u16, rows: u16) -> App {
    let mut app = app(columns, rows, 8, 4);
    for n in 0..8 {
        turn(&mut app, &format!("question {n}"), "", &"an answer of several words\n\n".repeat(4));
    }
    screen(&mut app);
    app
}

#[test]
fn texts_name_the_keys_that_are_set() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keymap.toml");
    std::fs::write(&file, "[chat]\nselect-older = [\"alt+x\"]\nstop = [\"f12\"]\nfind = []\nredraw = []\n").unwrap();
    let mut app = app(120, 40, 8, 4);
    app.setup.keymap = Keymap::load(Default::default(), Some(&file)).unwrap();
    say(&mut app, "q");
    say(&mut app, "/regen");
    assert_eq!(notice(&app), "the answer is still running; F12 stops it");
    // Without a key, the command of that name, else the action's name.
    assert_eq!((app.key(Action::Find), app.key(Action::Redraw)), ("/find".to_owned(), "redraw (no key)".to_owned()));
}

#[test]
fn the_chosen_message_shows_at_every_depth_of_colour() {
    for (depth, theme) in [
        (Depth::Rgb, "dark"),
        (Depth::Rgb, "light"),
        (Depth::Indexed, "dark"),
        (Depth::Sixteen, "dark"),
        (Depth::Mono, "dark"),
        (Depth::Ascii, "ascii"),
    ] {
        let mut app = loaded(80, 24, depth, theme, model(8, 4));
        turn(&mut app, "first question", "", "An answer.");
        choose_older(&mut app);
        choose_older(&mut app);
        let (shown, buffer) = (screen(&mut app), cells(&mut app));
        let row = shown.lines().position(|l| l.contains("first question")).unwrap() as u16;
        let style = app.theme.style(Role::Selected);
        assert!(style.bg.is_some() || style.add_modifier.contains(Modifier::REVERSED));
        for x in [4, 30] {
            let cell = &buffer[(x, row)];
            assert_eq!(cell.bg, style.bg.unwrap_or_default(), "{depth:?} {theme}");
            assert_eq!(cell.modifier.contains(Modifier::REVERSED), style.add_modifier.contains(Modifier::REVERSED));
        }
        assert!(shown.contains("message 1 of 2 chosen: /pin, /recall"), "{shown}");
    }
}

#[test]
fn results_scroll_into_view_and_notices_are_whole_beside_the_badge() {
    let mut app = long(80, 24);
    press(&mut app, KeyCode::PageUp);
    assert!(screen(&mut app).contains(" End to follow "));
    for _ in 0..9 {
        choose_older(&mut app);
    }
    // A long text leaves room for the sign alone.
    let shown = screen(&mut app);
    assert!(shown.contains(" ↓ ") && !shown.contains("End to follow"), "{shown}");
    say(&mut app, "/stats");
    let shown = screen(&mut app);
    assert!(shown.contains("live slots of 472 tokens, by layer and head"), "{shown}");
    assert!(shown.contains("L7 "), "its end, as it fits: {shown}");
    // One that is taller than the pane begins at the top.
    let mut app = long(80, 14);
    press(&mut app, KeyCode::PageUp);
    say(&mut app, "/stats");
    assert!(screen(&mut app).lines().take(3).any(|l| l.contains("cache ")), "{}", screen(&mut app));

    let mut app = long(80, 24);
    press(&mut app, KeyCode::PageUp);
    say(&mut app, "/parallel 3000");
    let shown = screen(&mut app);
    for words in ["/parallel takes 1 to 1024 chains", "not \"3000\""] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_file_named_by_hand_is_attached_at_enter() {
    let mut app = app(80, 24, 8, 4);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("notes.txt"), "48213\n").unwrap();
    std::fs::write(path("my notes.txt"), "two\n").unwrap();
    std::fs::write(path("image"), [0xff, 0xd8]).unwrap();
    let answer = |app: &mut App, effect: &Effect| {
        let Effect::Attach { typed, path } = effect else { panic!("{effect:?}") };
        let read = crate::ui::attach::read(path, false);
        update(app, AppEvent::Attached { typed: typed.clone(), read })
    };
    let text = format!("Find the codes in @{}, and in @\"{}\".", path("notes.txt"), path("my notes.txt"));
    app.input.set(&text);
    let effects = press(&mut app, KeyCode::Enter);
    assert_eq!((effects.len(), app.chat.is_empty()), (2, true));
    // In either order, and sent after the last one.
    assert!(answer(&mut app, &effects[1]).is_empty());
    assert!(matches!(answer(&mut app, &effects[0])[..], [Effect::Generate { .. }]));
    let sent = app.chat.path()[0].text.clone();
    assert!(sent.contains("\n48213\n") && sent.contains("\ntwo\n") && !sent.contains('@'), "{sent}");
    end(&mut app, StopReason::End);

    // A failed attachment is reported before anything is sent.
    app.input.set(&format!("What is in @{}?", path("image")));
    let effects = press(&mut app, KeyCode::Enter);
    assert!(answer(&mut app, &effects[0]).is_empty() && app.chat.path().len() == 2);
    assert!(notice(&app).starts_with("not sent: ") && notice(&app).contains("not UTF-8"), "{}", notice(&app));
    // A key in between leaves the unsent text to its writer.
    app.input.set(&format!("@{} ", path("notes.txt")));
    let effects = press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Char('!'));
    assert!(answer(&mut app, &effects[0]).is_empty() && app.input.expanded().contains("48213"));
    // Names of nothing are letters; what looks like a file is said.
    app.input.take();
    assert!(matches!(say(&mut app, "mail a@b.c and @nobody")[..], [Effect::Generate { .. }]));
    assert_eq!(notice(&app), "");
    end(&mut app, StopReason::End);
    say(&mut app, "read @no/such.txt.");
    assert_eq!(notice(&app), "@no/such.txt was not attached: there is no such file; Tab completes names");
}

#[test]
fn the_list_of_commands_fills_the_screen_and_says_how_many_more() {
    let is_listed = |spec: &crate::ui::commands::Command| spec.group != crate::ui::commands::Group::Hidden;
    let listed = crate::ui::commands::ALL.iter().filter(|spec| is_listed(spec)).count();
    // The list takes two thirds of the rows.
    let mut app = app(120, (3 * listed).div_ceil(2) as u16, 8, 4);
    type_in(&mut app, "/");
    let shown = screen(&mut app);
    for spec in crate::ui::commands::ALL {
        assert_eq!(shown.contains(&format!("  /{} ", spec.name)), is_listed(spec), "/{}: {shown}", spec.name);
    }
    assert!(!shown.contains(" more; ") && shown.contains("the system prompt\n"), "whole texts: {shown}");
    app.size = (80, 24);
    let more = format!("  {} more; letters narrow the list, Down scrolls it", listed - 15);
    assert!(screen(&mut app).contains(&more), "{}", screen(&mut app));
    press(&mut app, KeyCode::Up);
    assert!(screen(&mut app).contains("/export FILE"), "the last one: {}", screen(&mut app));
    app.input.take();
    type_in(&mut app, "/evc");
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.input.text(), "/eviction ");
    for (typed, near) in [("/fnid", "find"), ("/evictoin", "eviction"), ("/comapct", "compact")] {
        app.input.take();
        app.completion = None;
        say(&mut app, typed);
        assert_eq!(notice(&app), format!("no command {typed}; did you mean /{near}?"));
    }
}

#[test]
fn the_help_begins_with_ten_keys_and_is_filtered_by_what_is_typed() {
    let mut app = app(100, 30, 8, 4);
    press(&mut app, KeyCode::F(1));
    let first: Vec<String> = screen(&mut app).lines().skip(1).map(str::to_owned).collect();
    assert_eq!(first[0].trim(), "To begin");
    assert!(first[1].trim().starts_with("Enter ") && first[8].contains("F3"), "{first:#?}");
    assert!(first[12].contains("@FILE") && first[16].contains("What the panel shows"), "{first:#?}");
    // A page is what the screen shows.
    press(&mut app, KeyCode::PageDown);
    let second = screen(&mut app);
    assert!(!second.contains(first[26].trim()) || first[26].trim().is_empty(), "{second}");
    press(&mut app, KeyCode::End);
    assert!(screen(&mut app).contains("Keys in the input"), "{}", screen(&mut app));
    press(&mut app, KeyCode::Up);
    type_in(&mut app, "pin never");
    let shown = screen(&mut app);
    assert!(
        shown.contains("/pin [system]") && !shown.contains("/unpin") && shown.contains("help: pin never"),
        "{shown}"
    );
    press(&mut app, KeyCode::Esc);
    assert!(app.overlays.is_empty());
    say(&mut app, "/help nosuchword");
    assert!(screen(&mut app).contains("nothing fits; Esc closes"));
}

#[test]
fn refusals_come_as_notices_that_name_their_command() {
    let mut app = unloaded(120, 40, Depth::Rgb, "dark");
    for line in ["/pin", "/unpin all", "/forget 2", "/eviction off", "/twin on", "/recall x", "/regen"] {
        say(&mut app, line);
        let name = line.split(' ').next().unwrap();
        assert_eq!(notice(&app), format!("{name}: no model is loaded; /model NAME loads one"), "{line}");
    }
    let mut app = crate::ui::testing::app(120, 40, 8, 4);
    let why = "0 is out of range, expected a ratio of 1 to 64".to_owned();
    engine(&mut app, Event::Refused { command: "forget", why });
    assert_eq!(notice(&app), "/forget: 0 is out of range, expected a ratio of 1 to 64");
    assert!(app.feed.locals.is_empty(), "nothing stays in the conversation");
    for line in ["/pin", "/pin system", "/undo", "/edit", "/rebuild", "/copy", "/chains", "/export x.md", "/delete"] {
        app.input.take();
        say(&mut app, line);
        assert!(notice(&app).starts_with(line.split(' ').next().unwrap()), "{line}: {}", notice(&app));
    }
}

#[test]
fn unpin_asks_which_pins_go() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "Remember: my name is Ada.", "", "Noted.");
    say(&mut app, "/unpin");
    assert_eq!(notice(&app), "/unpin: nothing is pinned");
    // Which tokens they are is asked once the answer has ended.
    let pinned = crate::protocol::Snapshot { pinned: 45, ..snapshot(472, 8, 4) };
    let during = crate::protocol::Snapshot { phase: Phase::Decode, ..pinned.clone() };
    assert!(figures(&mut app, during).is_empty());
    let effects = figures(&mut app, pinned);
    assert!(matches!(effects[..], [Effect::Engine(Command::Presence(_))]), "{effects:?}");
    assert!(say(&mut app, "/unpin").is_empty());
    let shown = screen(&mut app);
    assert!(
        shown.contains("Take back the pin of \"Remember: my name is Ada.\"? In all 45 tokens are pinned."),
        "{shown}"
    );
    assert!(shown.contains("y or Enter: yes    n or Esc: no    a: all pins"), "{shown}");
    let effects = press(&mut app, KeyCode::Char('a'));
    assert!(matches!(effects[..], [Effect::Engine(Command::Unpin(None))]));
    say(&mut app, "/unpin");
    let effects = press(&mut app, KeyCode::Char('y'));
    assert!(matches!(&effects[..], [Effect::Engine(Command::Unpin(Some(text)))] if text.starts_with("Remember")));
    assert!(matches!(say(&mut app, "/unpin all")[..], [Effect::Engine(Command::Unpin(None))]));
}

#[test]
fn a_question_takes_no_letters_that_were_meant_for_the_draft() {
    let mut app = app(100, 30, 8, 4);
    let key = |app: &mut App, code, ms| {
        app.now_ms += ms;
        update(app, AppEvent::Key(crossterm::event::KeyEvent::new(code, KeyModifiers::NONE)))
    };
    app.ask("Replace it?", |app| app.store(Store::DeleteCurrent));
    for c in "yes now".chars() {
        assert!(key(&mut app, KeyCode::Char(c), 150).is_empty());
    }
    assert_eq!((app.input.text(), app.overlays.len()), ("yes now", 1));
    app.input.take();
    // The whole word and Enter answer it, and none of that is sent.
    let effects = key(&mut app, KeyCode::Char('y'), 1_000);
    assert!(matches!(effects.last(), Some(Effect::Store(Store::DeleteCurrent))));
    for code in [KeyCode::Char('e'), KeyCode::Char('s'), KeyCode::Enter] {
        assert!(key(&mut app, code, 100).is_empty() && app.input.is_empty());
    }
    key(&mut app, KeyCode::Char('e'), 100);
    assert_eq!(app.input.text(), "e");
    app.ask("Replace it?", |app| app.store(Store::DeleteCurrent));
    key(&mut app, KeyCode::Char('n'), 1_000);
    key(&mut app, KeyCode::Char('e'), 50);
    assert_eq!((app.input.text(), app.overlays.len()), ("ee", 0));
}

#[test]
fn the_search_of_the_history_has_messages_or_commands() {
    let mut app = app(100, 30, 8, 4);
    turn(&mut app, "set the table", "", "ok");
    say(&mut app, "/set temperature 1");
    assert_eq!(search(app.history.entries(), "set"), ["set the table"]);
    assert_eq!(search(app.history.entries(), "/set"), ["/set temperature 1"]);
    assert_eq!(search(app.history.entries(), ""), ["set the table"]);
}

#[test]
fn an_undone_question_is_no_version_of_the_next() {
    let mut app = app(100, 30, 8, 4);
    turn(&mut app, "first", "", "one");
    say(&mut app, "/undo");
    app.input.take();
    turn(&mut app, "unrelated", "", "two");
    assert!(!screen(&mut app).contains("version"), "{}", screen(&mut app));
    say(&mut app, "/edit");
    app.input.take();
    turn(&mut app, "related", "", "three");
    let shown = screen(&mut app);
    assert!(shown.contains("version 2 of 2") && !shown.contains("of 3"), "{shown}");
}

#[test]
fn the_list_of_conversations_has_straight_columns_and_first_answers() {
    let mut app = app(120, 30, 8, 4);
    let entry = |id: &str, model: &str, answer: &str| SessionEntry {
        id: id.into(),
        title: "Solve 3*x = 6 for x.".into(),
        when: "2026-11-21 04:15".into(),
        model: model.into(),
        preview: format!("Solve 3*x = 6 for x.\n{answer}"),
        haystack: format!("{id} {model}"),
        ..SessionEntry::default()
    };
    let entries = vec![entry("a", "demo", "x = 2"), entry("b", "SmolLM2-135M-Instruct", "I cannot do that")];
    assert!(matches!(say(&mut app, "/sessions demo")[..], [Effect::Store(Store::List)]));
    update(&mut app, AppEvent::Sessions(entries));
    let shown = screen(&mut app);
    assert!(shown.contains("conversations: demo") && !shown.contains("SmolLM2"), "{shown}");
    ctrl(&mut app, 'u');
    let shown = screen(&mut app);
    let rows: Vec<&str> = shown.lines().filter(|l| l.contains("2026-11-21")).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].find("2026-11-21"), rows[1].find("2026-11-21"), "{shown}");
    assert_eq!(rows[0].find("demo"), rows[1].find("SmolLM2"), "{shown}");
    assert!(rows[0].contains("x.  x = 2") && rows[1].contains("I cannot do that"), "{shown}");
    // Narrow screens keep the model, and the keys that close pages.
    app.size = (60, 20);
    let shown = screen(&mut app);
    let rows: Vec<&str> = shown.lines().filter(|l| l.contains("2026-11-21")).collect();
    assert!(rows[0].contains("demo") && rows[1].contains("SmolLM2-135M"), "{shown}");
    assert!(shown.contains("Esc closes"), "{shown}");
    press(&mut app, KeyCode::Esc);
    press(&mut app, KeyCode::F(1));
    let shown = screen(&mut app);
    assert!(shown.contains("type to filter, Esc closes"), "{shown}");
}

#[test]
fn figures_of_the_conversation_before_do_not_stay() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "hm", "Fine.");
    assert!(status(&mut app).contains("tok/s"), "{}", status(&mut app));
    let mut chat = Conversation::new(None);
    chat.push_user("old question");
    let turn = chat.begin_reply(true, None);
    chat.append(turn, crate::protocol::TextKind::Answer, "old answer");
    chat.finish(report(turn, StopReason::MaxTokens));
    open(&mut app, chat, None);
    assert!(app.engine.snapshot.is_none());
    let said = |app: &mut App| status(app).contains("tok/s") || status(app).contains("token limit");
    assert!(!said(&mut app), "{}", status(&mut app));
    figures(&mut app, snapshot(0, 8, 4));
    assert!(!screen(&mut app).contains("the cache is empty"));
    crate::ui::testing::turn(&mut app, "again", "hm", "Fine.");
    assert!(said(&mut app));
    ready(&mut app, model(8, 4));
    assert!(!said(&mut app), "{}", status(&mut app));
}

/// The cache is empty while a rebuild begins, and one that is stopped gives the old cache back.
#[test]
fn a_rebuild_that_is_stopped_does_not_call_the_cache_empty() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "hm", "Fine.");
    say(&mut app, "/rebuild");
    figures(&mut app, snapshot(0, 8, 4));
    engine(&mut app, Event::RebuildDone { cancelled: true, tokens: 472 });
    figures(&mut app, snapshot(472, 8, 4));
    let shown = screen(&mut app);
    assert!(shown.contains("stopped; the cache holds 472 tokens") && !shown.contains("the cache is empty"), "{shown}");
}

#[test]
fn a_command_with_a_wrong_argument_stays_in_the_input() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "question", "", "answer");
    for line in [
        "/parallel 3000",
        "/parallel 3000 how many?",
        "/set temprature 1",
        "/set top_p 2",
        "/set width 3000",
        "/set keep_ratio 0",
        "/set theme nope",
        "/set when_full never",
        "/forget 0",
        "/forget 65",
        "/forget lots",
        "/draft 99",
        "/copy answer 9",
        "/copy 9",
        "/theme nope",
        "/export notes.txt",
        "/think maybe",
        "/rename",
        "/recall",
    ] {
        assert!(say(&mut app, line).is_empty(), "{line}");
        assert_eq!(app.input.text(), line);
        assert!(app.notice.as_ref().is_some_and(|n| n.level == crate::ui::state::Level::Error), "{line}");
        app.input.set("");
    }
    // The engine may refuse too. What was typed meanwhile stays.
    let refused = || Event::Refused { command: "forget", why: "it cannot be measured now".into() };
    say(&mut app, "/forget 2");
    assert_eq!(app.input.text(), "");
    engine(&mut app, refused());
    assert_eq!(app.input.text(), "/forget 2");
    app.input.set("more");
    engine(&mut app, refused());
    assert_eq!(app.input.text(), "more");
    // One that is carried out leaves it.
    app.input.set("");
    assert!(matches!(say(&mut app, "/set when_full stop")[..], [Effect::Engine(Command::SetWhenFull(Some(_)))]));
    say(&mut app, "/set system Be brief.");
    assert_eq!((app.input.text(), app.chat.system()), ("", Some("Be brief.")));
}

/// A state that is kept costs nothing; without one the price is said, and the same command again
/// pays it.
#[test]
fn undo_says_its_price_first() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "first", "hm", "one");
    turn(&mut app, "second", "hm", "two");
    let kept = |kept: Vec<usize>| crate::protocol::Snapshot { kept, ..snapshot(900, 8, 4) };
    figures(&mut app, kept(vec![40]));
    assert!(say(&mut app, "/undo").is_empty());
    assert_eq!((notice(&app), app.input.text()), ("/undo reads 432 tokens again; Enter again does it", "/undo"));
    // A key in between asks again.
    press(&mut app, KeyCode::Char(' '));
    press(&mut app, KeyCode::Backspace);
    assert!(press(&mut app, KeyCode::Enter).is_empty() && app.chat.path().len() == 4);
    assert!(matches!(press(&mut app, KeyCode::Enter)[..], [Effect::Rewind, ..]));
    assert_eq!((app.chat.path().len(), app.input.text()), (2, "second"));
    // With a state to go back to it is done at once.
    app.input.set("");
    turn(&mut app, "second", "hm", "two");
    figures(&mut app, kept(vec![40, 471]));
    assert!(matches!(say(&mut app, "/undo")[..], [Effect::Rewind, ..]));
}
