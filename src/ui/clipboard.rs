//! Copying: the system's clipboard where there is one, else OSC 52, which hands the text to the
//! terminal and gets no answer.

use arboard::Clipboard;

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
pub fn osc52(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64(text.as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(*chunk.get(i).unwrap_or(&0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_usual_one() {
        for (text, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        assert_eq!(osc52("ü"), "\x1b]52;c;w7w=\x07");
    }
}
