//! Copying: the system's clipboard where there is one, else OSC 52, which hands the text to the
//! terminal and gets no answer.

use arboard::Clipboard;
use crossterm::Command;
use crossterm::clipboard::CopyToClipboard;

/// How a text left us.
#[derive(Debug, PartialEq)]
pub enum Copied {
    /// It is in the system's clipboard.
    Done,
    /// To be written to the terminal.
    Sequence(String),
}

/// Holds the system's clipboard: on X11 its content lives as long as its owner.
#[derive(Default)]
pub struct Copier {
    system: Option<Clipboard>,
}

impl Copier {
    pub fn copy(&mut self, text: &str) -> Copied {
        let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let remote = set("SSH_TTY") || set("SSH_CONNECTION");
        let no_display = cfg!(all(unix, not(target_os = "macos"))) && !set("DISPLAY") && !set("WAYLAND_DISPLAY");
        if !remote && !no_display && self.hand_over(text).is_some() {
            return Copied::Done;
        }
        Copied::Sequence(osc52(text))
    }

    fn hand_over(&mut self, text: &str) -> Option<()> {
        if self.system.is_none() {
            self.system = Clipboard::new().ok();
        }
        self.system.as_mut()?.set_text(text).ok()
    }
}

/// The sequence that asks a terminal to put a text into its clipboard.
fn osc52(text: &str) -> String {
    let mut sequence = String::new();
    // Writing to a string cannot fail.
    let _ = CopyToClipboard::to_clipboard_from(text).write_ansi(&mut sequence);
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_is_handed_the_text_in_base64() {
        assert_eq!(osc52("ü"), "\x1b]52;c;w7w=\x1b\\");
    }
}
