//! Vim's keys in the chat, the search over all conversations, tags.

use super::files;
use crate::chat::session::{Part, Passage};
use crate::chat::{Conversation, Tags};
use crate::config::KeymapName;
use crate::ui::commands::sessions::Sessions;
use crate::ui::effect::Which;
use crate::ui::event::{SearchHit, SearchResult, SessionEntry};
use crate::ui::state::App;
use crate::ui::testing::*;
use crate::ui::vim::Mode;

fn vim() -> App {
    let mut app = app(100, 24, 8, 4);
    app.setup.keymap = app.setup.keymap.switched(KeymapName::Vim).unwrap();
    app
}

/// Keys as a person types them: not as fast as a paste.
fn keys(app: &mut App, text: &str) -> Vec<Effect> {
    let mut effects = Vec::new();
    for c in text.chars() {
        app.now_ms += 100;
        effects.extend(press(app, KeyCode::Char(c)));
    }
    effects
}

#[test]
fn vim_edits_a_message_and_enter_sends_it() {
    let mut app = vim();
    keys(&mut app, "one two");
    press(&mut app, KeyCode::Esc);
    assert!(status(&mut app).contains("normal"), "{}", status(&mut app));
    keys(&mut app, "bcwthree");
    assert_eq!(app.input.text(), "one three");
    assert!(status(&mut app).contains("insert"));
    press(&mut app, KeyCode::Esc);
    keys(&mut app, "2");
    assert!(status(&mut app).contains("normal 2"));
    keys(&mut app, "xu");
    // What was typed before the first Esc is one step.
    keys(&mut app, "uu");
    assert_eq!(app.input.text(), "");
    for _ in 0..2 {
        ctrl(&mut app, 'r');
    }
    assert_eq!(app.input.text(), "one three");
    app.now_ms += 1000;
    let effects = press(&mut app, KeyCode::Enter);
    assert!(effects.iter().any(|e| matches!(e, Effect::Generate { .. })), "{effects:?}");
    assert_eq!(app.vim.mode, Mode::Insert);
}

#[test]
fn esc_ends_insert_mode_before_it_stops_and_texts_say_so() {
    let mut app = vim();
    keys(&mut app, "q");
    app.now_ms += 1000;
    press(&mut app, KeyCode::Enter);
    say(&mut app, "/regen");
    assert_eq!(notice(&app), "the answer is still running; Esc Esc stops it");
    app.input.set("");
    press(&mut app, KeyCode::Esc);
    assert!(!app.turn.as_ref().unwrap().stopping);
    press(&mut app, KeyCode::Esc);
    assert!(app.turn.as_ref().unwrap().stopping);
}

#[test]
fn letters_move_in_pages_and_type_behind_a_slash() {
    let mut app = vim();
    press(&mut app, KeyCode::F(1));
    let first = screen(&mut app);
    assert!(first.contains("/: filter"), "{first}");
    keys(&mut app, "jjj");
    let moved = screen(&mut app);
    assert!(moved != first && !moved.contains("help: j"), "{moved}");
    keys(&mut app, "gg");
    assert_eq!(screen(&mut app), first);
    keys(&mut app, "G");
    assert!(screen(&mut app).contains("keymap.toml") || screen(&mut app).contains("closes"));
    keys(&mut app, "/vim");
    assert!(screen(&mut app).contains("Vim keys"));
    press(&mut app, KeyCode::Esc);
    keys(&mut app, "q");
    assert!(app.overlays.is_empty());
    // A command begins in normal mode too, and the unsent text comes back behind it.
    keys(&mut app, "unsent");
    press(&mut app, KeyCode::Esc);
    keys(&mut app, ":");
    assert_eq!((app.input.text(), app.aside.as_deref()), ("/", Some("unsent")));
    app.input.set("");
}

/// A held key, or a paste without brackets, in normal mode is keys and no text.
#[test]
fn keys_that_came_together_are_keys_in_normal_mode() {
    let mut app = vim();
    keys(&mut app, "x y");
    press(&mut app, KeyCode::Esc);
    update(&mut app, AppEvent::Burst("h".repeat(80)));
    assert_eq!((app.input.text(), app.input.caret()), ("x y", 0));
}

fn entry(id: &str, tags: &[&str]) -> SessionEntry {
    let tags = Tags::read(tags.iter().map(|tag| (*tag).to_owned()).collect());
    SessionEntry {
        id: id.into(),
        title: format!("about {id}"),
        haystack: format!("about {id}"),
        tags,
        ..Default::default()
    }
}

#[test]
fn tags_are_given_taken_and_filter_the_list() {
    let mut app = app(100, 24, 8, 4);
    turn(&mut app, "q", "", "a");
    assert!(matches!(say(&mut app, "/tag Work #home")[..], [Effect::Store(Store::Sync)]));
    assert_eq!(notice(&app), "tags: #Work #home");
    assert!(say(&mut app, "/tag work").is_empty());
    assert!(matches!(say(&mut app, "/tag -HOME")[..], [Effect::Store(Store::Sync)]));
    assert_eq!(app.chat.tags().names(), ["Work"]);
    assert!(say(&mut app, "/tag a#b").is_empty() && app.input.text() == "/tag a#b");
    app.input.set("");
    say(&mut app, "/tag -none");
    assert_eq!(notice(&app), "/tag: this conversation has no tag \"none\"");
    app.input.set("");
    app.open(Sessions::new(
        vec![entry("alpha", &["Work"]), entry("beta", &["workshop", "x"]), entry("gamma", &[])],
        "",
    ));
    let shows = |app: &mut App, names: [bool; 3]| {
        let shown = screen(app);
        assert_eq!(["alpha", "beta", "gamma"].map(|name| shown.contains(&format!("about {name}"))), names, "{shown}");
    };
    assert!(screen(&mut app).contains("about alpha #Work"));
    keys(&mut app, "#work");
    shows(&mut app, [true, true, false]);
    keys(&mut app, "s");
    shows(&mut app, [false, true, false]);
    ctrl(&mut app, 'u');
    keys(&mut app, "#work alp");
    shows(&mut app, [true, false, false]);
}

#[test]
fn a_passage_that_was_found_opens_its_conversation_there() {
    let mut app = app(100, 24, 8, 4);
    assert!(matches!(&say(&mut app, "/search blue whale")[..], [Effect::Store(Store::Search(w))] if w == "blue whale"));
    let hit = |session: &str, message| SearchHit {
        session: session.into(),
        title: format!("about {session}"),
        when: "2026-11-21 04:15".into(),
        passage: Passage { message: Some(message), part: Part::Assistant, text: format!("a blue whale {session}") },
    };
    let result =
        |words: &str| SearchResult { words: words.into(), hits: vec![hit("a", 2), hit("b", 4)], ..Default::default() };
    // Of an earlier search.
    update(&mut app, AppEvent::Searched(Box::new(result("other"))));
    assert!(app.overlays.is_empty());
    update(&mut app, AppEvent::Searched(Box::new(result("blue whale"))));
    let shown = screen(&mut app);
    assert!(shown.contains("2 passages with blue whale") && shown.contains("a blue whale b"), "{shown}");
    press(&mut app, KeyCode::Down);
    let effects = press(&mut app, KeyCode::Enter);
    let opens = |e: &Effect| matches!(e, Effect::Store(Store::Open { which: Which::Id(id), .. }) if id == "b");
    assert!(effects.iter().any(opens), "{effects:?}");
    assert_eq!(app.session.wanted, Some(4));
    // A message of this conversation, and one that is in none of its versions shown.
    let mut chat = Conversation::new(None);
    chat.push_user("first");
    app.chat = chat;
    app.feed.arrange(&app.chat);
    files::show_message(&mut app, 1);
    assert_eq!(app.feed.selected, Some(1));
    files::show_message(&mut app, 99);
    assert!(notice(&app).contains("another version"));
}
