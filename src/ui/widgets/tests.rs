//! What is drawn for a state, as text.

use crate::protocol::{Phase, TextKind};
use crate::ui::heat::Depth;
use crate::ui::testing::*;
use crate::ui::update::{AppEvent, update};
use crossterm::event::KeyCode;
use std::sync::Arc;

const THOUGHT: &str = "5*b - 2355 = -50*b - 2740\n55*b = -385\nb = -7";
const ANSWER: &str = "The solution is **b = -7**.\n\n1. Add `50*b`\n2. Divide by 55\n\n| step | result |\n|--|--:|\n| 1 | 55*b = -385 |\n\n```py\nb = -385 / 55\n```";

#[test]
fn the_chat_at_120x40() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "Solve 5*b - 2355 = -50*b - 2740 for b.", THOUGHT, ANSWER);
    insta::assert_snapshot!(screen(&mut app));
}

#[test]
fn the_chat_at_80x24() {
    let mut app = app(80, 24, 8, 4);
    turn(&mut app, "日本語 and 👩\u{200d}👩\u{200d}👧 and \u{1100}\u{1161}\u{11a8} \u{1b}[31m?", THOUGHT, "Fine.");
    insta::assert_snapshot!(screen(&mut app));
}

#[test]
fn the_welcome_at_80x24() {
    insta::assert_snapshot!(screen(&mut app(80, 24, 8, 4)));
}

#[test]
fn the_panel_of_a_large_model_over_a_small_screen() {
    for (name, depth, theme) in [("rgb", Depth::Rgb, "dark"), ("ascii", Depth::Ascii, "ascii")] {
        let mut app = unloaded(80, 24, depth, theme);
        update(&mut app, AppEvent::ModelReady(Arc::new(model(36, 8))));
        update(&mut app, AppEvent::Snapshot(Arc::new(snapshot(2000, 36, 8))));
        press(&mut app, KeyCode::F(2));
        insta::assert_snapshot!(name, screen(&mut app));
    }
}

#[test]
fn every_size_draws_and_nothing_is_lost_by_resizing() {
    let mut app = app(200, 50, 36, 8);
    turn(&mut app, "question", THOUGHT, ANSWER);
    say(&mut app, "more");
    stream(&mut app, TextKind::Answer, &"word ".repeat(400));
    let wide = screen(&mut app);
    for (columns, rows) in [(40, 20), (20, 5), (1, 1), (3, 40), (500, 3), (80, 24), (30, 8), (99, 12), (100, 9)] {
        app.size = (columns, rows);
        let shown = screen(&mut app);
        if (columns, rows) == (20, 5) {
            assert!(shown.contains("too small a screen"), "{shown}");
        }
        for code in [KeyCode::F(1), KeyCode::F(2), KeyCode::F(3), KeyCode::Char('/')] {
            press(&mut app, code);
            screen(&mut app);
            press(&mut app, KeyCode::Esc);
            app.overlays.clear();
            app.turn.iter_mut().for_each(|t| t.stopping = false);
        }
        app.input.take();
        app.completion = None;
    }
    app.size = (200, 50);
    app.panel.hidden = false;
    app.notice = None;
    assert_eq!(screen(&mut app), wide);
}

#[test]
fn streaming_rows_are_those_of_the_whole() {
    let mut app1 = app(90, 60, 8, 4);
    say(&mut app1, "q");
    let text = "Intro.\n\n- a\n- b\n\nMiddle *text*.\n\n```rust\nfn f() {}\n\nfn g() {}\n```\n\nEnd.";
    for c in text.chars() {
        stream(&mut app1, TextKind::Answer, &c.to_string());
        screen(&mut app1);
    }
    let streamed = screen(&mut app1);
    let mut app2 = app(90, 60, 8, 4);
    say(&mut app2, "q");
    stream(&mut app2, TextKind::Answer, text);
    assert_eq!(streamed, screen(&mut app2));
}

#[test]
fn progress_and_a_short_context_are_shown() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "q");
    let mut s = snapshot(7900, 8, 4);
    s.phase = Phase::Prefill { done: 400, total: 1200 };
    update(&mut app, AppEvent::Snapshot(Arc::new(s)));
    let shown = screen(&mut app);
    assert!(shown.contains("reading the prompt: 400 of 1,200 tokens, 33 % (Esc stops)"), "{shown}");
    assert!(shown.contains("context 7,900/8,192"));
}

#[test]
fn nothing_from_outside_reaches_the_terminal_as_it_is() {
    let nasty = "\x1b]0;owned\x07\u{9b}31m\u{202e}abc\u{200b}\r\n\x08";
    for plain in [false, true] {
        let mut app = app(100, 40, 8, 4);
        app.setup.plain = plain;
        let mut info = model(8, 4);
        (info.name, info.device) = (nasty.into(), nasty.into());
        info.adapter = Some(nasty.into());
        update(&mut app, AppEvent::ModelReady(Arc::new(info)));
        update(&mut app, AppEvent::Paste(nasty.into()));
        screen(&mut app);
        press(&mut app, KeyCode::Enter);
        stream(&mut app, TextKind::Reasoning, nasty);
        screen(&mut app);
        stream(&mut app, TextKind::Answer, nasty);
        engine(&mut app, crate::protocol::Event::Notice(nasty.into()));
        update(&mut app, AppEvent::Said(crate::ui::state::Level::Error, nasty.into()));
        let shown = screen(&mut app);
        let bad = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{200b}');
        assert!(!shown.contains(bad), "{shown:?}");
    }
}
