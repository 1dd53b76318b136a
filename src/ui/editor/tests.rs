//! Texts that the input keeps: typed, pasted and undone.

use super::*;

fn editor(text: &str) -> Editor {
    let mut e = Editor::default();
    e.insert(text);
    e
}

#[test]
fn backspace_removes_one_grapheme() {
    for last in ["e\u{301}", "👩\u{200d}👩\u{200d}👧", "\u{1100}\u{1161}\u{11a8}", "語", "🇩🇪", "\t", "\n"]
    {
        let mut e = editor(&format!("ab{last}"));
        e.edit(Action::Backspace);
        assert_eq!(e.text(), "ab", "{last:?}");
        e.edit(Action::Left);
        e.edit(Action::Right);
        assert_eq!(e.caret(), 2);
    }
    let mut e = Editor::default();
    e.edit(Action::Backspace);
    e.edit(Action::Delete);
    e.edit(Action::DeleteWord);
    e.edit(Action::KillToEnd);
    assert!(e.is_empty());
}

#[test]
fn typing_into_a_cluster_keeps_the_caret_on_a_boundary() {
    let mut e = Editor::default();
    for c in ["e", "\u{301}", "🇩", "🇪", "👩", "\u{200d}", "👧"] {
        e.insert(c);
        assert_eq!(e.caret(), e.text().len());
    }
    e.edit(Action::Backspace);
    e.edit(Action::Backspace);
    assert_eq!(e.text(), "e\u{301}");
}

#[test]
fn lines_words_kill_and_undo() {
    let mut e = editor("one two\r\nthree four");
    assert_eq!(e.text(), "one two\nthree four");
    e.edit(Action::DeleteWord);
    assert_eq!(e.text(), "one two\nthree ");
    e.edit(Action::LineStart);
    e.edit(Action::KillToEnd);
    assert_eq!(e.text(), "one two\n");
    e.edit(Action::Yank);
    assert_eq!(e.text(), "one two\nthree ");
    e.edit(Action::Undo);
    e.edit(Action::Undo);
    e.edit(Action::Undo);
    assert_eq!(e.text(), "one two\nthree four");
    e.edit(Action::Redo);
    assert_eq!(e.text(), "one two\nthree ");
    assert_eq!(e.caret(), 8);
    e.edit(Action::WordLeft);
    assert_eq!(e.caret(), 4);
}

#[test]
fn rows_cover_the_text_and_the_caret_moves_through_them() {
    let text = "alpha beta gamma delta\n日本語テキスト\n\nend";
    for width in 2..30 {
        let mut e = editor(text);
        let rows = e.rows(width);
        let mut next = 0;
        for row in &rows {
            assert!(row.start == next || row.start == next + 1);
            next = row.end;
            assert!(shown_width(&text[row.start..row.end]) <= width.max(3), "{width}");
        }
        assert_eq!(next, text.len());
        let (last, _) = e.caret_cell(&rows);
        assert_eq!(last, rows.len() - 1);
        for n in (0..last).rev() {
            assert!(e.up(width));
            assert_eq!(e.caret_cell(&rows).0, n, "width {width}");
        }
        assert!(!e.up(width));
        for _ in 0..last {
            assert!(e.down(width));
        }
        assert!(!e.down(width));
    }
}

#[test]
fn a_long_paste_is_one_character_and_is_sent_whole() {
    let long: String = (0..500).map(|n| format!("\r\nline {n}")).collect();
    let long = long.trim_start();
    let sent = long.replace('\r', "");
    let mut e = editor("look: ");
    assert!(e.paste(long));
    e.insert("!");
    assert_eq!(e.expanded(), format!("look: {sent}!"));
    let rows = e.rows(40);
    let shown: String = e.shown(&rows[0]).into_iter().map(|(text, _)| text).collect();
    assert_eq!((rows.len(), &*shown, e.caret_cell(&rows)), (1, "look: [500 lines]!", (0, 18)));
    // Backspace removes it whole, undo and yank bring it back.
    e.edit(Action::Backspace);
    e.edit(Action::Backspace);
    assert_eq!(e.expanded(), "look: ");
    e.edit(Action::Undo);
    e.edit(Action::KillToStart);
    assert!(e.is_empty());
    e.edit(Action::Yank);
    assert_eq!(e.expanded(), format!("look: {sent}"));
    // Sent text comes back folded; the key opens it.
    let text = e.take();
    e.set(&text);
    assert_eq!(e.text().chars().count(), 7);
    assert!(e.open_part() && !e.open_part());
    assert_eq!(e.text(), format!("look: {sent}"));
    assert!(!e.paste("short"));
}

#[test]
fn history_returns_to_the_draft() {
    let mut h = History::default();
    assert_eq!(h.older("draft"), None);
    for text in ["one", "two", "two", "  "] {
        h.push(text);
    }
    assert_eq!(h.older("draft").as_deref(), Some("two"));
    assert_eq!(h.older("x").as_deref(), Some("one"));
    assert_eq!(h.older("x"), None);
    assert_eq!(h.newer().as_deref(), Some("two"));
    assert_eq!(h.newer().as_deref(), Some("draft"));
    assert_eq!(h.newer(), None);
    assert_eq!(search(h.entries(), "O"), ["two", "one"]);
}

/// A paste that arrives key by key.
#[test]
fn a_long_burst_is_folded_as_it_comes_and_is_one_step_of_undo() {
    let text: String = (0..20_000).map(|n| format!("word {n}\n")).collect();
    let mut e = editor("before ");
    e.insert("x");
    let mut most = 0;
    for c in text.chars() {
        e.insert_fast(c.encode_utf8(&mut [0; 4]));
        most = most.max(e.text().len());
    }
    assert!(most < 2 * BURST_BYTES && e.undo.len() < 5, "{most} bytes, {} steps", e.undo.len());
    assert!(e.folds_burst() && e.caret() == e.text().len());
    assert_eq!(e.expanded(), format!("before x{text}"));
    assert_eq!(e.text().chars().filter(|c| is_mark(*c)).count(), 1);
    // The next one, elsewhere, has a part of its own.
    e.edit(Action::LineStart);
    e.edit(Action::WordLeft);
    assert!(!e.folds_burst() || e.caret() < e.text().len());
    let at = e.caret();
    for c in text.chars() {
        e.insert_fast(c.encode_utf8(&mut [0; 4]));
    }
    let whole = e.expanded().into_owned();
    assert_eq!(whole.len(), "before x".len() + 2 * text.len());
    assert!(whole.contains(&text) && e.text()[at..].chars().filter(|c| is_mark(*c)).count() >= 1);
    e.edit(Action::Undo);
    assert_eq!(e.expanded(), format!("before x{text}"));
    e.edit(Action::Undo);
    assert_eq!(e.expanded(), "before x");
}
