//! Events in, state and effects out, without a terminal.

use super::*;
use crate::chat::{Change, session::Record};
use crate::protocol::{Command, Event, ModelInfo, SamplingParams, StopReason, TextKind};
use crate::ui::testing::*;

#[test]
fn enter_sends_and_four_keys_make_a_newline() {
    let mut app = app(120, 40, 8, 4);
    for (code, modifiers) in [
        (KeyCode::Enter, KeyModifiers::SHIFT),
        (KeyCode::Enter, KeyModifiers::ALT),
        (KeyCode::Char('j'), KeyModifiers::CONTROL),
    ] {
        press(&mut app, KeyCode::Char('a'));
        assert!(press_with(&mut app, code, modifiers).is_empty());
    }
    press(&mut app, KeyCode::Char('b'));
    press(&mut app, KeyCode::Char('\\'));
    assert!(press(&mut app, KeyCode::Enter).is_empty());
    assert_eq!(app.input.text(), "a\na\na\nb\n");
    press(&mut app, KeyCode::Char('c'));
    assert!(sent(&press(&mut app, KeyCode::Enter)));
    assert_eq!(app.chat.path()[0].text, "a\na\na\nb\nc");
    assert!(app.input.is_empty());
}

#[test]
fn pasted_lines_are_one_text_and_are_never_sent() {
    let text: String = (0..500).map(|n| format!("line {n}\n")).collect();
    // With bracketed paste, twice.
    let mut app1 = app(120, 40, 8, 4);
    assert!(update(&mut app1, AppEvent::Paste(text.replace('\n', "\r"))).is_empty());
    update(&mut app1, AppEvent::Paste(text.clone()));
    assert_eq!(app1.input.text().chars().count(), 4);
    assert_eq!(app1.input.expanded(), format!("{text}{text}"));
    // As keys that come at once, in three bursts.
    let mut app2 = app(120, 40, 8, 4);
    for (n, c) in text.chars().enumerate() {
        app2.now_ms = 1000 + n as u64 / 400 * 60;
        let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        let effects = update(&mut app2, AppEvent::Key(crossterm::event::KeyEvent::new(code, KeyModifiers::NONE)));
        assert!(effects.is_empty());
    }
    app2.now_ms += 1000;
    assert!(!sent(&update(&mut app2, AppEvent::Tick)));
    assert_eq!(app2.input.text(), text);
    assert!(screen(&mut app2).contains("501 lines in the input"));
    press(&mut app2, KeyCode::Backspace);
    assert!(sent(&press(&mut app2, KeyCode::Enter)));
}

#[test]
fn escape_stops_and_the_partial_answer_stays() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "hello");
    stream(&mut app, TextKind::Answer, "one two");
    let effects = press(&mut app, KeyCode::Esc);
    assert!(matches!(effects[..], [Effect::Engine(Command::Cancel)]));
    let effects = end(&mut app, StopReason::Cancelled);
    assert!(matches!(effects[0], Effect::Store(Store::Sync)));
    assert!(app.turn.is_none());
    let shown = screen(&mut app);
    assert!(shown.contains("one two") && shown.contains("interrupted"), "{shown}");
}

#[test]
fn a_refused_prompt_returns_to_the_input() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "too long");
    refuse(&mut app, "the prompt has 9000 tokens");
    assert_eq!(app.input.text(), "too long");
    assert!(screen(&mut app).contains("not sent: the prompt has 9000 tokens"));
    // It is not part of the conversation, nor of its file.
    assert!(app.chat.is_empty());
    let changes = app.chat.take_changes();
    let is_head = |c: &Change| matches!(c, Change::Record(Record::Head(_)));
    assert!(changes.iter().all(is_head), "{changes:?}");
}

#[test]
fn a_toggle_in_mid_answer_stands_where_it_happened() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "question");
    stream(&mut app, TextKind::Answer, "before the toggle\n\nin the middle of");
    engine(&mut app, Event::EvictionSet { on: false, at_token: 60, dropped_slots: 0 });
    stream(&mut app, TextKind::Answer, " a line\n\nafter the toggle");
    let order = |app: &mut crate::ui::state::App| {
        let shown = screen(app);
        let row =
            |text: &str| shown.lines().position(|l| l.contains(text)).unwrap_or_else(|| panic!("{text}: {shown}"));
        [
            row("before the toggle"),
            row("in the middle of a line"),
            row("eviction off: tokens are kept"),
            row("after the toggle"),
        ]
    };
    assert!(order(&mut app).is_sorted());
    end(&mut app, StopReason::End);
    assert!(order(&mut app).is_sorted());
    assert_eq!(app.chat.marks()[0].within, Some("before the toggle\n\nin the middle of".len()));
}

#[test]
fn a_conversation_that_is_not_saved_is_left_only_when_the_user_says_so() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "", "a");
    let effects = say(&mut app, "/new");
    assert!(matches!(effects[..], [Effect::Store(Store::Close)]));
    assert_eq!(app.chat.path().len(), 2, "it stays until its file is written");
    update(&mut app, AppEvent::NotSaved { why: "no space".into(), then: Store::Close });
    assert!(screen(&mut app).contains("no space. Leave this conversation anyway?"));
    assert!(press(&mut app, KeyCode::Char('n')).is_empty() && app.chat.path().len() == 2);
    update(&mut app, AppEvent::NotSaved { why: "no space".into(), then: Store::Close });
    let effects = press(&mut app, KeyCode::Char('y'));
    assert!(matches!(&effects[..], [Effect::Store(Store::Leave(then))] if **then == Store::Close));
    // Nothing was fed: not worth a word.
    engine(&mut app, Event::RebuildDone { cancelled: false, tokens: 0 });
    assert!(!screen(&mut app).contains("0 tokens"));
}

#[test]
fn eviction_is_switched_under_every_policy_that_drops_or_merges() {
    let mut app = app(120, 40, 8, 4);
    for (policy, switches) in [
        ("dms", true),
        ("window", true),
        ("tova", true),
        ("h2o", true),
        ("pool", true),
        ("dmc", true),
        ("dense", false),
    ] {
        app.engine.info = Some(Arc::new(ModelInfo { policy: policy.parse().unwrap(), window: None, ..model(8, 4) }));
        let effects = press(&mut app, KeyCode::F(4));
        let switched = matches!(effects[..], [Effect::Engine(Command::SetEviction(false))]);
        assert_eq!(switched, switches, "{policy}");
        app.engine.eviction_asked = None;
    }
    assert_eq!(notice(&app), "the cache keeps everything: its policy is dense");
}

#[test]
fn toggles_mark_their_place_and_say_what_they_cost() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "question", "hm", "answer");
    let effects = press(&mut app, KeyCode::F(4));
    assert!(matches!(effects[..], [Effect::Engine(Command::SetEviction(false))]));
    engine(&mut app, Event::EvictionSet { on: false, at_token: 472, dropped_slots: 0 });
    let shown = screen(&mut app);
    assert!(shown.contains("tokens are kept while there is memory"), "{shown}");
    assert!(shown.contains("recomputes all 472"), "{shown}");
    assert!(shown.contains("eviction off"));
    engine(&mut app, Event::EvictionSet { on: true, at_token: 500, dropped_slots: 1234 });
    assert!(screen(&mut app).contains("eviction on: 1,234 slots dropped at once"));
    assert_eq!(app.chat.marks().len(), 2);
    // Of a saved conversation that is not in the cache yet, only the empty cache was switched.
    for restore in [Restore::Waiting(None), Restore::Loading(Default::default())] {
        app.session.restore = restore;
        engine(&mut app, Event::EvictionSet { on: true, at_token: 0, dropped_slots: 0 });
        assert_eq!((app.chat.marks().len(), app.engine.eviction), (2, true));
    }
    app.session.restore = Restore::Done;
    say(&mut app, "/eviction on");
    assert_eq!(notice(&app), "eviction is on already");
    let effects = say(&mut app, "/rebuild");
    assert!(matches!(effects[..], [Effect::Engine(Command::Rebuild)]));
    engine(&mut app, Event::Rebuilding { done: 100, total: 472 });
    assert!(screen(&mut app).contains("rebuilding the cache: 100 of 472 tokens, 21 % (Esc stops)"));
    assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Command::Cancel)]));
    engine(&mut app, Event::RebuildDone { cancelled: true, tokens: 472 });
    assert!(!app.is_busy());
}

/// After a rebuild, say, nothing is kept that an undo could go back to.
#[test]
fn an_undo_that_empties_the_cache_says_what_the_next_message_costs() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "first", "", "one");
    turn(&mut app, "second", "", "two");
    say(&mut app, "/undo");
    figures(&mut app, snapshot(0, 8, 4));
    let shown = screen(&mut app);
    assert!(shown.contains("the cache is empty; your next message loads the conversation again"), "{shown}");
    assert!(status(&mut app).contains("loads when you send"), "{}", status(&mut app));
    // Nothing is left to load.
    ctrl(&mut app, 'u');
    say(&mut app, "/undo");
    assert!(!status(&mut app).contains("loads when you send"));
}

#[test]
fn thoughts_stream_as_a_tail_then_fold_and_open() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "think");
    let lines: String = (0..20).map(|n| format!("step {n}\n")).collect();
    stream(&mut app, TextKind::Reasoning, &lines);
    let shown = screen(&mut app);
    assert!(shown.contains("thinking") && shown.contains("step 19") && !shown.contains("step 12"), "{shown}");
    app.now_ms += 3200;
    stream(&mut app, TextKind::Answer, "done");
    let shown = screen(&mut app);
    assert!(shown.contains("thought for 3.2 s") && !shown.contains("step 19"), "{shown}");
    end(&mut app, StopReason::End);
    assert!(screen(&mut app).contains("thought for 3.2 s, 412 tokens"));
    press(&mut app, KeyCode::F(5));
    assert!(screen(&mut app).contains("step 12"));
    press(&mut app, KeyCode::F(6));
    assert!(!screen(&mut app).contains("step 12"));
    assert_eq!(app.chat.path()[1].reasoning.as_deref(), Some(lines.as_str()));
}

#[test]
fn an_answer_that_was_all_thinking_is_called_that() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "think");
    stream(&mut app, TextKind::Reasoning, "on and on");
    end(&mut app, StopReason::MaxTokens);
    let shown = screen(&mut app);
    assert!(shown.contains("no answer: the model was still thinking") && shown.contains("token limit"), "{shown}");
}

#[test]
fn scrolled_back_the_place_holds_with_a_badge() {
    let mut app = app(80, 24, 8, 4);
    say(&mut app, "long");
    let text: String = (0..60).map(|n| format!("row {n}\n")).collect();
    stream(&mut app, TextKind::Answer, &text);
    screen(&mut app);
    press(&mut app, KeyCode::PageUp);
    let before = screen(&mut app);
    stream(&mut app, TextKind::Answer, "row 60\nrow 61\nrow 62\n");
    let after = screen(&mut app);
    assert!(after.contains("3 new lines, End to follow"), "{after}");
    assert_eq!(before.lines().next(), after.lines().next());
    // Thoughts that are opened are not new.
    app.chat.append(app.turn.as_ref().unwrap().turn, TextKind::Reasoning, "one\ntwo\nthree");
    screen(&mut app);
    let badge = |app: &mut App| screen(app).lines().find(|l| l.contains("End to follow")).unwrap().to_owned();
    let closed = badge(&mut app);
    press(&mut app, KeyCode::F(6));
    assert_eq!(badge(&mut app).trim_start_matches('─'), closed.trim_start_matches('─'));
    press(&mut app, KeyCode::End);
    let end = screen(&mut app);
    assert!(end.contains("row 62") && !end.contains("End to follow"), "{end}");
}

#[test]
fn undo_edit_and_regenerate_keep_the_branches() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "first", "", "one");
    turn(&mut app, "second", "", "two");
    assert!(sent(&say(&mut app, "/regen")));
    stream(&mut app, TextKind::Answer, "another two");
    end(&mut app, StopReason::End);
    assert!(screen(&mut app).contains("version 2 of 2"));
    let effects = press_with(&mut app, KeyCode::Char(','), KeyModifiers::ALT);
    assert!(matches!(effects[0], Effect::Rewind));
    assert_eq!(app.chat.path().last().unwrap().text, "two");
    say(&mut app, "/undo");
    assert_eq!((app.input.text(), app.chat.path().len()), ("second", 2));
    ctrl(&mut app, 'u');
    say(&mut app, "/edit");
    assert_eq!(app.input.text(), "first");
    press(&mut app, KeyCode::Char('!'));
    assert!(sent(&press(&mut app, KeyCode::Enter)));
    assert_eq!(app.chat.path()[0].text, "first!");
    assert_eq!(app.chat.siblings(app.chat.path()[0].id).len(), 2);
    end(&mut app, StopReason::End);
    assert!(screen(&mut app).lines().any(|line| line.contains("tok/s") && line.contains("version 2 of 2")));
}

#[test]
fn unknown_commands_and_values_say_what_was_expected() {
    let mut app = app(120, 40, 8, 4);
    for (line, expected) in [
        ("/hepl", "no command /hepl; did you mean /help?"),
        ("/undo/undo", "no command /undo/undo; //undo/undo sends it as a message"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set top_p 2", "top_p takes 0 to 1, or default, not \"2\""),
        ("/theme nope", "no theme \"nope\"; themes: auto, dark, light, cividis, ascii"),
        ("/think maybe", "/think takes on or off"),
        ("/export notes.txt", ".md or .jsonl"),
        ("/copy x", "a number, code, all or answer N"),
    ] {
        say(&mut app, line);
        assert!(notice(&app).contains(expected), "{line}: {}", notice(&app));
        ctrl(&mut app, 'u');
    }
    say(&mut app, "/set temperature 0.7");
    // What was set stays when another model comes; the rest is that model's, and so is what is
    // given back to it.
    let other = SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() };
    let info = ModelInfo { default_sampling: other.clone(), ..model(8, 4) };
    ready(&mut app, info);
    assert_eq!(app.sampling(), SamplingParams { temperature: 0.7, ..other.clone() });
    // A note says what does not stay.
    turn(&mut app, "q", "", "a");
    app.engine.twin = true;
    figures(&mut app, crate::protocol::Snapshot { pinned: 3, ..snapshot(40, 8, 4) });
    ready(&mut app, ModelInfo { default_sampling: other.clone(), ..model(8, 4) });
    let noted = app.feed.locals.last().unwrap().text.clone();
    assert!(noted.ends_with("; pins of messages do not come back; the twin is off"), "{noted}");
    say(&mut app, "/set temperature default");
    assert_eq!(app.sampling(), other);
    say(&mut app, "/set top_k");
    assert_eq!(notice(&app), "top_k is 20; it takes a number of tokens, or default; 0 is off");
    say(&mut app, "/set kv_limit 1GB");
    assert_eq!(app.options.kv_limit, Some(1_000_000_000));
}

#[test]
fn a_path_is_no_command_and_tab_completes() {
    let mut app = app(120, 40, 8, 4);
    assert!(sent(&say(&mut app, "/usr/bin/env is what?")));
    end(&mut app, StopReason::End);
    type_in(&mut app, "/ev");
    assert!(screen(&mut app).contains("/eviction on|off"));
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Tab);
    assert_eq!(app.input.text(), "/eviction off");
    assert!(matches!(press(&mut app, KeyCode::Enter)[..], [Effect::Engine(Command::SetEviction(false))]));
}

#[test]
fn copying_gives_the_source() {
    let mut app = app(120, 40, 8, 4);
    let answer = "\n\n# Title\n\n```py\nx = 1\n```\n| a |\n|--|\n";
    turn(&mut app, "q", "", answer);
    let copied = |effects: Vec<Effect>| match effects.into_iter().next() {
        Some(Effect::Copy { text, .. }) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(copied(press(&mut app, KeyCode::F(8))), answer.trim_matches('\n'));
    assert_eq!(copied(say(&mut app, "/copy code")), "x = 1\n");
    assert_eq!(copied(say(&mut app, "/copy answer 1")), answer.trim_matches('\n'));
    // Blocks by the numbers on the screen: those of the last answer, or of the chosen one.
    turn(&mut app, "q", "", "$x^2$\n\n```rust\nlet a = \"$x^2$\";\n```\n\n    indented\n");
    let shown = screen(&mut app);
    assert!(["x²", "py 1", "rust 1", "code 2"].iter().all(|part| shown.contains(part)), "{shown}");
    assert_eq!(copied(say(&mut app, "/copy 1")), "let a = \"$x^2$\";\n");
    assert_eq!(copied(say(&mut app, "/copy 2")), "indented");
    assert!(copied(press(&mut app, KeyCode::F(8))).starts_with("$x^2$"));
    say(&mut app, "/copy 3");
    assert_eq!(notice(&app), "/copy: no code block 3; this answer has 2 code blocks");
    app.input.set("");
    update(&mut app, AppEvent::Copied { what: "answer".into(), sent: true });
    assert!(notice(&app).contains("sent"));
}

#[test]
fn stats_and_heatmap_show_the_same_numbers() {
    let mut app = app(120, 70, 8, 4);
    turn(&mut app, "q", "t", "a");
    say(&mut app, "/stats");
    let shown = screen(&mut app);
    let s = app.engine.snapshot.clone().unwrap();
    for layer in 0..8 {
        // The table's row, on the left, and the heatmap's, on the right.
        let (table, cells): (Vec<&str>, Vec<&str>) = shown.lines().filter_map(|l| l.split_once('│')).fold(
            (Vec::new(), Vec::new()),
            |(mut t, mut c), (left, right)| {
                if left.trim().starts_with(&format!("L{layer} ")) {
                    t = left.split_whitespace().skip(1).collect();
                }
                if right.trim().starts_with(&format!("L{layer} ")) {
                    c = right.split_whitespace().skip(1).collect();
                }
                (t, c)
            },
        );
        for head in 0..4 {
            let live = s.kv.live[layer][head];
            assert_eq!(table[head], live.to_string());
            assert_eq!(cells[head], ((f64::from(live) / 472.0) * 100.0).round().to_string());
        }
    }
    let ratio = crate::ui::text::ratio(s.kv.ratio);
    assert_eq!(shown.matches(&ratio).count(), 5, "headline, history, /stats, status line, answer: {shown}");
}

#[test]
fn history_is_recalled_at_the_edges_and_searched() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "alpha", "", "1");
    turn(&mut app, "beta", "", "2");
    press(&mut app, KeyCode::Char('d'));
    press(&mut app, KeyCode::Up);
    press(&mut app, KeyCode::Up);
    assert_eq!(app.input.text(), "alpha");
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Down);
    assert_eq!(app.input.text(), "d");
    ctrl(&mut app, 'r');
    press(&mut app, KeyCode::Char('l'));
    assert!(screen(&mut app).contains("search history"));
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.input.text(), "alpha");
}

#[test]
fn questions_are_asked_before_files_go() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "", "a");
    say(&mut app, "/delete");
    assert!(app.overlay::<Question>().is_some());
    press(&mut app, KeyCode::Char('n'));
    assert!(app.overlays.is_empty());
    assert_eq!(app.chat.path().len(), 2);
    say(&mut app, "/delete");
    let effects = press(&mut app, KeyCode::Char('y'));
    let [Effect::Engine(Command::KeepCache(None)), Effect::Store(Store::DeleteCurrent)] = &effects[..] else {
        panic!("{effects:?}")
    };
    update(&mut app, AppEvent::NewConversation(Default::default()));
    assert!(app.chat.is_empty());
    let effects = update(&mut app, AppEvent::Exists { path: "x.md".into(), export: true });
    assert!(effects.is_empty());
    let effects = press(&mut app, KeyCode::Char('y'));
    assert!(matches!(&effects[0], Effect::Store(Store::Export { overwrite: true, .. })));
}

#[test]
fn a_broken_engine_keeps_the_conversation() {
    let mut app = app(120, 40, 8, 4);
    say(&mut app, "q");
    stream(&mut app, TextKind::Answer, "half an ans");
    engine(&mut app, Event::Failed("index out of bounds".into()));
    let shown = screen(&mut app);
    assert!(shown.contains("half an ans") && shown.contains("the engine failed: index out of bounds"), "{shown}");
    // Another message starts the engine again and waits for it.
    assert!(matches!(&say(&mut app, "again")[..], [Effect::Load(name)] if name == "demo"));
    assert_eq!(app.queue[0].text, "again");
}

#[test]
fn the_large_panel_walks_over_the_heads() {
    let mut app = app(120, 40, 8, 4);
    turn(&mut app, "q", "", "a");
    press(&mut app, KeyCode::F(3));
    let effects = press(&mut app, KeyCode::Tab);
    assert!(matches!(effects[..], [Effect::Engine(Command::Inspect { layer: 0, head: 0 })]));
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Right);
    let effects = press(&mut app, KeyCode::Right);
    assert!(matches!(effects[..], [Effect::Engine(Command::Inspect { layer: 1, head: 2 })]));
    let slots = (0..100).map(|n| crate::protocol::SlotInfo { position: n * 4, marked: n % 10 == 0 }).collect();
    engine(&mut app, Event::HeadPositions { layer: 1, head: 2, slots });
    let shown = screen(&mut app);
    assert!(shown.contains("layer 1, head 2") && shown.contains("10 marked for eviction"), "{shown}");
    assert!(shown.contains("longest gap: 3 tokens"), "{shown}");
    press(&mut app, KeyCode::Esc);
    assert!(app.overlays.is_empty());
}

#[test]
fn the_wheel_scrolls_and_a_click_opens_thoughts() {
    use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
    let mut app = app(80, 24, 8, 4);
    turn(&mut app, "q", "deep thought\nand more", "answer");
    let shown = screen(&mut app);
    let row = shown.lines().position(|l| l.contains("thought for")).unwrap() as u16;
    let mouse = |kind, row| AppEvent::Mouse(MouseEvent { kind, column: 5, row, modifiers: KeyModifiers::NONE });
    update(&mut app, mouse(MouseEventKind::Down(MouseButton::Left), row + 1));
    assert!(!screen(&mut app).contains("deep thought"));
    update(&mut app, mouse(MouseEventKind::Down(MouseButton::Left), row));
    assert!(screen(&mut app).contains("deep thought"));
    for n in 0..6 {
        turn(&mut app, &format!("question {n}"), "t", "answer");
    }
    screen(&mut app);
    update(&mut app, mouse(MouseEventKind::ScrollUp, 3));
    assert!(screen(&mut app).contains("End to follow"));
    update(&mut app, mouse(MouseEventKind::ScrollDown, 3));
    assert!(!screen(&mut app).contains("End to follow"));
    assert!(matches!(press(&mut app, KeyCode::F(9))[..], [Effect::Mouse(false)]));
}

#[test]
fn a_long_paste_is_folded_in_the_message_too_and_a_key_opens_it() {
    let mut app = app(80, 24, 8, 4);
    let text: String = (0..500).map(|n| format!("line {n}\n")).collect();
    type_in(&mut app, "Sum up: ");
    update(&mut app, AppEvent::Paste(text.clone()));
    assert!(screen(&mut app).contains("Sum up: [500 lines]"));
    assert!(sent(&press(&mut app, KeyCode::Enter)));
    assert_eq!(app.chat.path()[0].text, format!("Sum up: {}", text.trim_end()));
    assert!(screen(&mut app).contains("Sum up: [500 lines]"));
    press(&mut app, KeyCode::F(5));
    assert!(!screen(&mut app).contains("[500 lines]") && screen(&mut app).contains("line 499"));
    assert_eq!(app.history.entries().last(), Some(&format!("Sum up: {text}")));
}

#[test]
fn a_file_is_attached_in_place_of_its_name() {
    let mut app = app(80, 24, 8, 4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.md").display().to_string();
    std::fs::write(&path, "one\ntwo\n").unwrap();
    for c in format!("Read @{}", path.trim_end_matches("tes.md")).chars() {
        press(&mut app, KeyCode::Char(c));
    }
    let effects = press(&mut app, KeyCode::Tab);
    let [Effect::Attach { typed, path: asked }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*asked, path);
    let read = crate::ui::attach::read(asked, false);
    update(&mut app, AppEvent::Attached { typed: typed.clone(), read });
    assert!(screen(&mut app).contains("2 lines, 8 B]"), "{}", screen(&mut app));
    assert!(sent(&press(&mut app, KeyCode::Enter)));
    assert_eq!(app.chat.path()[0].text, format!("Read \n{path}:\n```\none\ntwo\n```"));
}
