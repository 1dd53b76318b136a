//! The screen of a state, as text.

use super::layout;
use crate::protocol::{Event, FarStats, Phase, StopReason, TextKind};
use crate::ui::testing::*;

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
    // Words are left out last: a longer text takes the place of empty rows.
    let mut app = unloaded(80, 24, Depth::Rgb, "dark");
    let mut info = model(8, 4);
    (info.identity.device, info.context) = ("cpu, 2 threads, avx512".into(), 131_072);
    (info.plan.workspace_bytes, info.plan.kv_budget_bytes) = (10_500_000, Some(21_200_000_000));
    (info.plan.certain_context, info.plan.expected_context) = (8_192, 131_072);
    ready(&mut app, info);
    let shown = screen(&mut app);
    for text in ["dmschat", "at least 8,192 tokens of it fit", "What can you do?", "F1 ", "/data/sessions"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
}

#[test]
fn the_panel_of_a_large_model_on_a_small_screen() {
    for (name, depth, theme) in [("rgb", Depth::Rgb, "dark"), ("ascii", Depth::Ascii, "ascii")] {
        let mut app = loaded(80, 24, depth, theme, model(36, 8));
        figures(&mut app, snapshot(2000, 36, 8));
        insta::assert_snapshot!(name, screen(&mut app));
    }
}

/// The panel is never over the chat, and the chat keeps enough columns and rows.
#[test]
fn the_panel_leaves_the_chat_its_room_at_every_size() {
    let mut app = app(80, 24, 36, 8);
    figures(&mut app, snapshot(2000, 36, 8));
    for columns in (30..260).step_by(7).chain([80, 120, 200]) {
        for rows in (8..60).step_by(3).chain([24, 40, 50]) {
            app.size = (columns, rows);
            let at = layout(&app);
            let Some(panel) = at.panel else {
                assert!(columns < 80 && rows < 24, "no panel at {columns}x{rows}");
                continue;
            };
            let parts = [at.conversation, at.rule, panel, at.banner, at.input, at.status];
            for (i, a) in parts.iter().enumerate() {
                assert!(parts[i + 1..].iter().all(|b| !a.intersects(*b)), "{columns}x{rows}: {parts:?}");
            }
            let beside = panel.x > 0;
            assert!(at.conversation.width >= if beside { 44 } else { columns }, "{columns}x{rows}");
            assert!(at.conversation.height >= if beside { rows - 4 } else { 8 }, "{columns}x{rows}");
        }
    }
    app.size = (80, 24);
    let shown = screen(&mut app);
    for text in ["cache ", "dense ", "L34", "few ", " keeps all", "eviction on"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    press(&mut app, KeyCode::F(2));
    assert!(layout(&app).panel.is_none());
}

/// The headline, the status line, /stats and the answer's last line name the same ratio, and the
/// bytes beside the headline add up to what the pool has mapped.
#[test]
fn the_panel_agrees_with_its_headline() {
    let mut app = app(120, 40, 8, 4);
    let before = screen(&mut app);
    assert!(layout(&app).panel.is_none() && !before.contains("dense"), "hidden while it holds nothing: {before}");
    turn(&mut app, "q", THOUGHT, "Fine.");
    let mut s = snapshot(472, 8, 4);
    (s.kv.live_bytes, s.kv.dense_bytes, s.kv.ratio) = (2_500_000, 13_900_000, Some(5.56));
    (s.kv.bytes, s.checkpoint_bytes, s.mapped_bytes) = (18_600_000, 8_000_000, 24_000_000);
    (s.chain_bytes, s.twin_bytes) = (3_000_000, 1_000_000);
    figures(&mut app, s);
    let shown = screen(&mut app);
    let expected = [
        "cache 2.5 MB · dense 13.9 MB · 5.6x",
        "kept for undo   8.0 MB",
        "other chains    3.0 MB",
        "twin            1.0 MB",
        "free in pages   4.1 MB",
        "reserved        5.4 MB",
        "dms · window 64 · f32 · eviction on",
        "eviction on · 5.6x · context",
    ];
    for text in expected {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let at = |text: &str| shown.find(text).unwrap();
    assert!(at("cache 2.5") < at("L7") && at("L7") < at("kept for undo") && at("reserved") < at("dms · window"));
    assert!(!shown.contains("18.6 MB") && !shown.contains("24.0 MB") && !shown.contains("state"), "{shown}");
    // The help explains every name.
    let names = crate::ui::numbers::also_held(&app);
    assert!(names.iter().all(|(name, _)| crate::ui::numbers::LEGEND.iter().any(|(word, _)| word == name)), "{names:?}");
    let stats = crate::ui::numbers::stats_note(&app);
    for row in ["cache           2.5 MB", "dense           13.9 MB", "ratio           5.6x", "reserved        5.4 MB"] {
        assert!(stats.contains(row), "{row}: {stats}");
    }
    // A hybrid: the panel has its layers with attention alone.
    let info = app.engine.info.as_ref().unwrap();
    let (state_layers, state_bytes) = (24, 52_000_000);
    app.engine.info = Some(Arc::new(crate::protocol::ModelInfo { state_layers, state_bytes, ..(**info).clone() }));
    assert!(screen(&mut app).contains("24 layers have a state of fixed size"));
    let stats = crate::ui::numbers::stats_note(&app);
    assert!(stats.contains("state           52.0 MB in each sequence: 24 layers"), "{stats}");
}

/// What heads fetched is a map of its own, between the panel of what they keep and no panel.
#[test]
fn the_panel_shows_what_was_fetched() {
    for (name, columns, rows) in [("fetched_at_80x24", 80, 24), ("fetched_at_120x40", 120, 40)] {
        let mut app = app(columns, rows, 8, 4);
        turn(&mut app, "q", THOUGHT, "Fine.");
        let mut s = snapshot(472, 8, 4);
        let by_head: Vec<Vec<u32>> = (0..8).map(|l| (0..4).map(|h| l * h * (l + h) % 23).collect()).collect();
        let fetched = by_head.iter().flatten().map(|&pages| u64::from(pages)).sum();
        s.kv.far = Some(FarStats {
            rows: 12_480,
            near: 512,
            bytes: 2_100_000,
            limit_bytes: 2_000_000_000,
            fetched,
            fetched_by_head: by_head,
            ..FarStats::default()
        });
        figures(&mut app, s);
        let kept = screen(&mut app);
        assert!(kept.contains(&format!("fetched {fetched} pages")) && kept.contains(" keeps all"), "{kept}");
        press(&mut app, KeyCode::F(2));
        let shown = screen(&mut app);
        assert!(!shown.contains(" keeps all") && shown.contains(" pages"), "{shown}");
        insta::assert_snapshot!(name, shown);
        press(&mut app, KeyCode::F(2));
        assert!(layout(&app).panel.is_none());
        press(&mut app, KeyCode::F(2));
        assert_eq!(screen(&mut app), kept);
        let stats = crate::ui::numbers::stats_note(&app);
        assert!(stats.contains("far pages fetched by the newest turn, by layer and head:"), "{stats}");
        assert!(stats.contains("L3     0  12   7   8"), "{stats}");
        // The page of heads: what they keep, what they fetched, and the memory again.
        press(&mut app, KeyCode::F(3));
        press(&mut app, KeyCode::Tab);
        assert!(screen(&mut app).contains("Tab shows what was fetched"));
        press(&mut app, KeyCode::Down);
        press(&mut app, KeyCode::Right);
        press(&mut app, KeyCode::Tab);
        let shown = screen(&mut app);
        assert!(
            shown.contains("2 pages fetched by the newest turn") && shown.contains("Tab shows the memory"),
            "{shown}"
        );
        press(&mut app, KeyCode::Tab);
        assert!(!screen(&mut app).contains("pages fetched by"));
        press(&mut app, KeyCode::Esc);
    }
}

/// The first screen says what this is and names the help at every size; the machine's figures are
/// in /stats.
#[test]
fn the_first_screen_names_its_purpose_and_the_help_at_every_size() {
    for (columns, rows) in [(120, 40), (80, 24), (60, 20), (40, 12), (30, 8)] {
        let mut app = app(columns, rows, 30, 3);
        let shown = screen(&mut app);
        assert!(layout(&app).panel.is_none() && shown.lines().last().unwrap().ends_with("F1 help"), "{shown}");
        assert!(rows < 12 || shown.contains("watch a model decide"), "{columns}x{rows}: {shown}");
        assert!(rows < 20 || (shown.contains("my name is Ada") && shown.contains("F3")), "{columns}x{rows}: {shown}");
        assert!(!shown.contains("weights"), "{shown}");
    }
    let stats = crate::ui::numbers::stats_note(&{
        let mut app = app(80, 24, 8, 4);
        figures(&mut app, snapshot(40, 8, 4));
        app
    });
    assert!(stats.contains("device          cpu, 2 threads"), "{stats}");
}

/// However narrow the screen, a running answer is seen in the status line.
#[test]
fn the_state_is_the_last_thing_cut_from_the_status_line() {
    let mut app = app(200, 24, 8, 4);
    say(&mut app, "q");
    stream(&mut app, TextKind::Answer, "Fine");
    for columns in [200, 100, 80, 60, 40, 30] {
        app.size.0 = columns;
        let shown = screen(&mut app);
        let status = shown.lines().last().unwrap();
        assert!(status.ends_with("⠋ answering"), "{columns}: {status}");
        assert!(status.starts_with(" demo"), "{columns}: {status}");
    }
}

/// Links are sequences around cells: what a terminal makes of the bytes is the same screen, row by
/// row.
#[test]
fn links_leave_every_row_its_width() {
    const LINKS: &str = "See https://example.org/a/long/path/that/wraps?over=several&rows=of-the-screen#and-more 日本語, \
        [the **paper** 👩](https://arxiv.org/abs/2506.05345) or [mail](mailto:a@b.c), \
        not [this](javascript:alert).\n\n| a | b |\n|-|-|\n| https://a.b/c | 2 |\n\n```\nhttps://in.code\n```";
    let mut plain = app(80, 40, 8, 4);
    let mut linked = app(80, 40, 8, 4);
    linked.setup.links = true;
    let mut emulator = vt100::Parser::new(40, 80, 0);
    let area = ratatui::layout::Rect::new(0, 0, 80, 40);
    let options = ratatui::TerminalOptions { viewport: ratatui::Viewport::Fixed(area) };
    let mut bytes = Vec::new();
    let backend = ratatui::backend::CrosstermBackend::new(&mut bytes);
    let mut terminal = ratatui::Terminal::with_options(backend, options).unwrap();
    say(&mut plain, "q");
    say(&mut linked, "q");
    // Several frames, so that parts of rows are drawn again.
    for part in LINKS.split_inclusive(' ') {
        stream(&mut plain, TextKind::Answer, part);
        stream(&mut linked, TextKind::Answer, part);
        terminal.draw(|f| super::frame::draw(f, &mut linked)).unwrap();
    }
    drop(terminal);
    emulator.process(&bytes);
    let expected = screen(&mut plain);
    let seen: Vec<String> = emulator.screen().rows(0, 80).map(|r| r.trim_end().to_owned()).collect();
    let columns = |row: &str| crate::ui::text::width(row);
    for (seen, expected) in seen.iter().zip(expected.lines()) {
        assert_eq!(columns(seen), columns(expected), "{seen:?} {expected:?}");
    }
    let text = String::from_utf8_lossy(&bytes);
    for url in ["https://example.org/a/long", "https://arxiv.org/abs", "mailto:a@b.c", "https://a.b/c"] {
        assert!(text.contains(&format!(";{url}")), "{url}");
    }
    assert!(!text.contains(";javascript") && !text.contains(";https://in.code"));
    assert_eq!(text.matches("\x1b]8;;\x1b\\").count() * 2, text.matches("\x1b]8;").count());
}

/// Prose keeps a right margin, and rows are never wider than the pane.
#[test]
fn the_conversation_has_a_right_margin() {
    for columns in [44, 60, 80, 120, 200] {
        let mut app = app(columns, 40, 8, 4);
        app.panel.hidden = true;
        turn(
            &mut app,
            &"question ".repeat(40),
            "",
            &format!("{}\n\n```\n{}\n```", "word ".repeat(80), "x".repeat(300)),
        );
        let shown = screen(&mut app);
        for row in shown.lines().take_while(|r| !r.starts_with('─')) {
            assert!(crate::ui::text::width(row) <= usize::from(columns) - 2, "{columns}: {row}");
            let prose = row.contains("word") || row.contains("question");
            assert!(!prose || crate::ui::text::width(row) <= 103, "{columns}: {row}");
        }
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
            assert!(shown.contains("terminal too small"), "{shown}");
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
    let fences = "````md\n```\n\nplain\n```text\n\nmore\n````\n\nEnd.\n\n```one``` line\n\nAnd on.";
    for text in ["Intro.\n\n- a\n- b\n\nMiddle *text*.\n\n```rust\nfn f() {}\n\nfn g() {}\n```\n\nEnd.", fences] {
        let mut app1 = app(90, 60, 8, 4);
        app1.panel.hidden = true;
        say(&mut app1, "q");
        for c in text.chars() {
            stream(&mut app1, TextKind::Answer, &c.to_string());
            screen(&mut app1);
        }
        let streamed = screen(&mut app1);
        let mut app2 = app(90, 60, 8, 4);
        app2.panel.hidden = true;
        say(&mut app2, "q");
        stream(&mut app2, TextKind::Answer, text);
        assert_eq!(streamed, screen(&mut app2));
        // Both cut the text where it was finished; the finished answer is rendered as a whole.
        end(&mut app1, StopReason::End);
        let rows =
            |screen: &str| screen.lines().filter(|l| l.starts_with("   ")).map(str::to_owned).collect::<Vec<_>>();
        let (streamed, whole) = (rows(&streamed), rows(&screen(&mut app1)));
        assert!(
            streamed.iter().filter(|row| !row.trim().is_empty()).all(|row| whole.contains(row)),
            "{streamed:#?}{whole:#?}"
        );
    }
}

#[test]
fn progress_and_a_short_context_are_shown() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "q");
    let mut s = snapshot(7900, 8, 4);
    s.phase = Phase::Prefill { done: 400, total: 1200 };
    figures(&mut app, s);
    let shown = screen(&mut app);
    assert!(shown.contains("reading the prompt: 400 of 1,200 tokens, 33 % (Esc stops)"), "{shown}");
    assert!(shown.contains("context 7,900/8,192"));
}

#[test]
fn nothing_from_outside_reaches_the_terminal_as_it_is() {
    let nasty = "\x1b]0;owned\x07\u{9b}31m\u{202e}abc\u{200b}\r\n\x08";
    for plain in [false, true] {
        let mut app = app(100, 40, 8, 4);
        app.setup.settings.plain = plain;
        let mut info = model(8, 4);
        (info.identity.name, info.identity.device) = (nasty.into(), nasty.into());
        (info.dms, info.adapter, info.evicts_by) = ("adapter".into(), Some(nasty.into()), Some(nasty.into()));
        ready(&mut app, info);
        update(&mut app, AppEvent::Paste(nasty.into()));
        screen(&mut app);
        press(&mut app, KeyCode::Enter);
        stream(&mut app, TextKind::Reasoning, nasty);
        screen(&mut app);
        stream(&mut app, TextKind::Answer, nasty);
        engine(&mut app, Event::Notice(nasty.into()));
        update(&mut app, AppEvent::Said(crate::ui::state::Level::Error, nasty.into()));
        let shown = screen(&mut app);
        let bad = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{200b}');
        assert!(!shown.contains(bad), "{shown:?}");
    }
}

#[test]
fn a_long_conversation_shows_its_end_at_once_and_the_rest_by_and_by() {
    let mut app = app(100, 30, 8, 4);
    let text = "a word and another one ".repeat(2_000);
    for n in 0..40 {
        app.chat.push_user(format!("question {n}"));
        app.chat.push_assistant(format!("{text}\n\nend {n}"), None);
    }
    app.feed.arrange(&app.chat);
    let shown = screen(&mut app);
    assert!(shown.contains("end 39") && app.feed.behind, "{shown}");
    assert!(app.wants_tick().is_some_and(|at| at <= app.now_ms));
    app.feed.scroll(-40);
    let (first, mut frames) = (screen(&mut app), 1);
    while app.feed.behind {
        assert_eq!(screen(&mut app), first, "what is in view stays in place");
        frames += 1;
    }
    assert!((3..20).contains(&frames), "{frames}");
    assert_eq!((app.feed.unseen(), app.feed.rows.len()), (0, app.feed.items.len()));
}
