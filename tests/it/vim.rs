//! Vim's keys, as a person has them who writes `keymap = "vim"` into the config file.

use crate::pty::Chat;

#[test]
fn a_message_is_edited_in_modes_and_pages_move_by_letters() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("config")).unwrap();
    std::fs::write(home.path().join("config/config.toml"), "keymap = \"vim\"\n").unwrap();
    let mut chat = Chat::start(home.path(), 100, 30, &[], &[]);
    chat.until_shows("insert");
    chat.until_shows("F1 help");
    // Insert, correct the middle, undo, and send.
    chat.keys("2+3+4 wrong");
    chat.keys("\x1b");
    chat.until_shows("normal");
    chat.keys("b");
    chat.keys("D");
    chat.keys("0");
    chat.keys("2x");
    chat.until_shows("3+4");
    chat.keys("u");
    chat.until_shows("2+3+4");
    chat.keys("\x12");
    chat.keys("\r");
    chat.until_shows(" tokens \u{b7} ");
    let screen = chat.until_shows("insert");
    assert!(screen.contains("3+4") && !screen.contains("wrong"), "{screen}");
    // The last message again by k, and away by cc and Esc.
    chat.keys("\x1b");
    chat.until_shows("normal");
    chat.keys("k");
    chat.keys("cc");
    chat.until_shows("insert");
    chat.keys("/sessions\r");
    chat.until_shows("conversations:");
    chat.until_shows("/: filter");
    chat.keys("j");
    chat.keys("/zzz");
    chat.until_shows("nothing fits");
    // Out of the field, and of the list.
    chat.keys("\x1b");
    chat.until_shows("/: filter");
    chat.keys("q");
    chat.until_shows("ask something");
    chat.keys("/help\r");
    chat.until_shows("To begin");
    chat.keys("G");
    chat.until_shows("Keys in the input");
    chat.keys("gg");
    chat.until_shows("To begin");
    chat.keys("q");
    chat.until_shows("ask something");
    chat.keys("\x1b");
    chat.keys(":");
    chat.keys("quit\r");
    assert_eq!(chat.end(), 0);
}

#[test]
fn a_wrong_keymap_is_named_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("config")).unwrap();
    std::fs::write(home.path().join("config/config.toml"), "\nkeymap = \"emacs\"\n").unwrap();
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"))
        .args(["config", "keymap"])
        .env("DMSCHAT_CONFIG_DIR", home.path().join("config"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains("line 2") || said.contains(":2"), "{said}");
    assert!(said.contains("\"emacs\" is not a keymap (expected default or vim)"), "{said}");
}
