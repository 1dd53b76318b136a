//! Tables of keys, and what they leave.

use super::*;
use crate::config::KeymapName;
use crate::ui::keymap::Keymap;
use crossterm::event::KeyEvent;

/// Types keys into a text in normal mode: `<Esc>`, `<C-r>`, `<A-x>` and characters. `|` is the
/// caret. Returns the text with its caret, and the mode.
fn typed(text: &str, keys: &str) -> (String, Mode) {
    let map = Keymap::load(KeymapName::Vim, None).unwrap();
    let (mut editor, mut vim) = (Editor::from(text.replace('|', "").as_str()), Vim::default());
    editor.go(text.find('|').unwrap_or(0));
    vim.mode = Mode::Normal;
    let mut rest = keys;
    while let Some(c) = rest.chars().next() {
        let (code, modifiers, length) = match rest.split_once('>').filter(|_| c == '<') {
            Some(("<Esc", _)) => (KeyCode::Esc, KeyModifiers::NONE, 5),
            Some((name, _)) if name.starts_with("<C-") => {
                (KeyCode::Char(name[3..].chars().next().unwrap()), KeyModifiers::CONTROL, name.len() + 1)
            }
            Some((name, _)) if name.starts_with("<A-") => {
                (KeyCode::Char(name[3..].chars().next().unwrap()), KeyModifiers::ALT, name.len() + 1)
            }
            _ => (KeyCode::Char(c), KeyModifiers::NONE, c.len_utf8()),
        };
        rest = &rest[length..];
        let key = Key::of(&KeyEvent::new(code, modifiers));
        if vim.key(&mut editor, key, map.action(key).is_some()) == After::Pass
            && let KeyCode::Char(c) = key.code
        {
            editor.insert(&c.to_string());
        }
    }
    let (before, after) = editor.text().split_at(editor.caret());
    (format!("{before}|{after}"), vim.mode)
}

/// As `vim -u NONE` leaves text and cursor.
#[test]
fn keys_leave_the_text_and_the_caret_that_vim_leaves() {
    for (text, keys, expected) in [
        // Moves.
        ("|one two", "w", "one |two"),
        ("|one two", "e", "on|e two"),
        ("|one two", "ee", "one tw|o"),
        ("one tw|o", "b", "one |two"),
        ("one tw|o", "bb", "|one two"),
        ("|foo.bar(x)", "w", "foo|.bar(x)"),
        ("|foo.bar(x) y", "W", "foo.bar(x) |y"),
        ("|foo.bar(x) y", "E", "foo.bar(x|) y"),
        ("|one\n\ntwo", "w", "one\n|\ntwo"),
        ("one\n\n|two", "b", "one\n|\ntwo"),
        ("|a b c d", "3w", "a b c |d"),
        ("|one", "w", "on|e"),
        ("  in|dented", "0", "|  indented"),
        ("  in|dented", "^", "  |indented"),
        ("|one\ntwo", "$", "on|e\ntwo"),
        ("|one\ntwo", "5l", "on|e\ntwo"),
        ("one\n|two", "h", "one\n|two"),
        ("|one\ntwo\n  three", "G", "one\ntwo\n  |three"),
        ("one\ntwo\nth|ree", "gg", "|one\ntwo\nthree"),
        ("|one\ntwo\nthree", "2G", "one\n|two\nthree"),
        ("|one two", "fw", "one t|wo"),
        ("|one two", "tw", "one |two"),
        ("one tw|o", "Fn", "o|ne two"),
        // Deleting.
        ("o|ne", "x", "o|e"),
        ("on|e", "x", "o|n"),
        ("|one\ntwo", "9x", "|\ntwo"),
        ("on|e", "X", "o|e"),
        ("|one two three", "dw", "|two three"),
        ("|one two three", "2dw", "|three"),
        ("|one two three", "d2w", "|three"),
        ("|a b c d e f g", "2d3w", "|g"),
        ("one |two\nthree", "dw", "one| \nthree"),
        ("one |two", "dw", "one| "),
        ("one tw|o", "db", "one |o"),
        ("|one two", "de", "| two"),
        ("one |two\nthree", "d$", "one| \nthree"),
        ("one |two\nthree", "D", "one| \nthree"),
        ("one |two", "d0", "|two"),
        ("  |one", "d^", "  |one"),
        ("o|ne\ntwo\nthree", "dd", "|two\nthree"),
        ("one\n|two", "dd", "|one"),
        ("|one", "dd", "|"),
        ("|one\ntwo\nthree", "2dd", "|three"),
        ("|one\ntwo\nthree", "dj", "|three"),
        ("one\ntwo\n|three", "dk", "|one"),
        ("one\n|two\nthree", "dG", "|one"),
        ("one\n|two\nthree", "dgg", "|three"),
        ("one tw|o three", "diw", "one | three"),
        ("one tw|o three", "daw", "one |three"),
        ("one tw|o", "daw", "on|e"),
        ("|one two", "dtw", "|wo"),
        // Copying and pasting.
        ("|one two", "yyp", "one two\n|one two"),
        ("|one\ntwo", "yyjP", "|one\none\ntwo"),
        ("|one\ntwo", "ddp", "two\n|one"),
        ("|one two", "dwp", "tone| wo"),
        ("|one two", "ywP", "one| one two"),
        ("|ab", "xp", "b|a"),
        ("|ab", "x3p", "baa|a"),
        ("|one", "yyG2p", "one\n|one\none"),
        // Undo and redo.
        ("|one two", "dwu", "|one two"),
        ("|one two", "dwu<C-r>", "|two"),
        ("|one two three", "dwdwuu", "|one two three"),
        ("|", "ione two<Esc>u", "|"),
        ("|one", "Atwo three<Esc>u", "on|e"),
        ("|one two", "cwx y<Esc>u", "|one two"),
        // Half a command is given up.
        ("|one two", "d<Esc>w", "one |two"),
        ("|one two", "2<Esc>x", "|ne two"),
        ("|one two", "dzx", "|ne two"),
        // By grapheme.
        ("|e\u{301}x", "x", "|x"),
        ("|日本 go", "w", "日本 |go"),
        ("|one", "rx", "|xne"),
        ("|one", "2rx", "x|xe"),
        ("|one", "9rx", "|one"),
        ("|", "x", "|"),
        ("|", "dw", "|"),
        ("|", "p", "|"),
    ] {
        let expected = (expected.to_owned(), Mode::Normal);
        let wrapped = std::panic::catch_unwind(|| typed(text, keys));
        assert_eq!(wrapped.unwrap_or_else(|_| panic!("{text:?} {keys}")), expected, "{text:?} {keys}");
    }
}

#[test]
fn keys_that_insert_leave_normal_mode_until_esc() {
    for (text, keys, expected) in [
        ("o|ne", "ix", "ox|ne"),
        ("o|ne", "ax", "onx|e"),
        ("  o|ne", "Ix", "  x|one"),
        ("o|ne\ntwo", "Ax", "onex|\ntwo"),
        ("o|ne\ntwo", "ox", "one\nx|\ntwo"),
        ("o|ne\ntwo", "Ox", "x|\none\ntwo"),
        ("|one two", "cwx", "x| two"),
        ("|one two three", "c2wx", "x| three"),
        ("on|e two", "cwx", "onx| two"),
        ("one| two", "cwx", "onex|two"),
        ("o|ne\ntwo", "ccx", "x|\ntwo"),
        ("o|ne two", "Cx", "ox|"),
        ("o|ne", "sx", "ox|e"),
        ("o|ne", "Sx", "x|"),
        ("one tw|o", "ciwx", "one x|"),
        ("|", "ax", "x|"),
    ] {
        assert_eq!(typed(text, keys), (expected.to_owned(), Mode::Insert), "{text:?} {keys}");
    }
    // Esc goes back onto the last character; with a key right behind it, it is that key with Alt.
    assert_eq!(typed("|", "ione<Esc>"), ("on|e".to_owned(), Mode::Normal));
    assert_eq!(typed("|", "ione two<A-b>"), ("one |two".to_owned(), Mode::Normal));
    assert_eq!(typed("|one two", "i<A-d>w"), ("|two".to_owned(), Mode::Normal));
}

#[test]
fn keys_of_the_chat_are_passed_on_and_numbers_are_bounded() {
    let map = Keymap::load(KeymapName::Vim, None).unwrap();
    let key = |vim: &mut Vim, editor: &mut Editor, code, modifiers| {
        let key = Key::of(&KeyEvent::new(code, modifiers));
        vim.key(editor, key, map.action(key).is_some())
    };
    let (none, control) = (KeyModifiers::NONE, KeyModifiers::CONTROL);
    let (mut editor, mut vim) = (Editor::from("x"), Vim { mode: Mode::Normal, ..Vim::default() });
    let mut press = |code, modifiers| key(&mut vim, &mut editor, code, modifiers);
    assert_eq!(press(KeyCode::Enter, none), After::Pass);
    assert_eq!(press(KeyCode::Esc, none), After::Pass);
    assert_eq!(press(KeyCode::Char('c'), control), After::Pass);
    assert_eq!(press(KeyCode::Char('d'), control), After::HalfPage { down: true });
    assert_eq!(press(KeyCode::Char('k'), none), After::Act(Action::HistoryOlder, 1));
    for _ in 0..30 {
        assert_eq!(press(KeyCode::Char('9'), none), After::Done);
    }
    assert_eq!(press(KeyCode::Char('j'), none), After::Act(Action::HistoryNewer, MAX_COUNT));
    assert_eq!(press(KeyCode::Char(':'), none), After::Command);
    assert_eq!(vim.mode, Mode::Insert);
    // A large text pasted often stays a text of a megabyte.
    let (mut editor, mut vim) = (Editor::from("x".repeat(1000).as_str()), Vim { mode: Mode::Normal, ..Vim::default() });
    for c in "yy9999p".chars() {
        key(&mut vim, &mut editor, KeyCode::Char(c), none);
    }
    assert!(editor.text().len() <= MAX_PASTE + 1001);
}
