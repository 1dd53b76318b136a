//! The first screen: terminals of any size draw it, and its examples are answered rightly.

use crate::pty::Chat;

/// A terminal without a size gets a usual size; one of billions of cells is drawn in part. The
/// environment asks for stacks that overflow and a time zone without an end.
#[test]
fn senseless_sizes_and_variables_do_not_stop_the_chat() {
    for (side, env) in [(0, &[][..]), (u16::MAX, &[("RUST_MIN_STACK", "0"), ("TZ", ":/dev/zero")])] {
        let home = tempfile::tempdir().unwrap();
        let mut chat = Chat::start(home.path(), side, side, env, &[]);
        chat.until_shows("F1 help");
        chat.say("2+2");
        chat.until_shows("tok/s");
        chat.keys("\x04");
        assert_eq!(chat.end(), 0);
    }
}

#[test]
fn the_examples_offered_are_answered_rightly() {
    let expected = ["Ada", "-7", "linear equations"];
    for (example, expected) in dmschat::ui::examples::EXAMPLES.iter().zip(expected) {
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"))
            .args(["-p", example, "--temperature", "0"])
            .output()
            .unwrap();
        let answer = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(answer.contains(expected), "{example}: {answer}");
    }
}
