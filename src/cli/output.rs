//! What is written to stdout and stderr, and which exit code an error has.

use std::fmt;
use std::io::{self, Write};

/// Wrong use, configuration or model: exit code 2.
#[derive(Debug)]
pub struct WrongUse(pub String);

impl fmt::Display for WrongUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}

/// An error of exit code 2.
pub fn wrong_use(message: impl fmt::Display) -> anyhow::Error {
    WrongUse(message.to_string()).into()
}

/// Marks whatever went wrong as exit code 2.
pub fn as_wrong_use(error: anyhow::Error) -> anyhow::Error {
    wrong_use(format!("{error:#}"))
}

/// Ctrl+C before there was anything to keep: exit code 130.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Answered.
pub const OK: u8 = 0;
pub const FAILED: u8 = 1;
pub const WRONG_USE: u8 = 2;
pub const INTERRUPTED: u8 = 130;
/// As Rust's own `main` ends after a panic.
pub const PANICKED: u8 = 101;

/// Says an error in one line on stderr and gives its exit code. A closed stdout is no error.
pub fn report(error: &anyhow::Error) -> u8 {
    if is_closed_pipe(error) {
        return OK;
    }
    notice(&format!("{error:#}"));
    if error.chain().any(|e| e.is::<Interrupted>()) {
        return INTERRUPTED;
    }
    let wrong_use = error.chain().any(|e| e.is::<WrongUse>());
    if wrong_use { WRONG_USE } else { FAILED }
}

/// True when a reader of ours has gone away.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// One line on stderr.
pub fn notice(line: &str) {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(io::stderr(), "dmschat: {}", visible(&line));
}

/// Writes to stdout and flushes it.
pub fn out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// An answer as it may go to stdout: as [`visible`] to a terminal; into a pipe its own characters,
/// but no control characters.
pub fn printable(text: &str, terminal: bool) -> String {
    if terminal {
        return visible(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => out.push(c),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Text from a model or a file as it may go to a terminal: control characters, bidi overrides and
/// zero-width characters are spelled out; newlines and tabs stay. Emoji keep their joiners.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            '\u{200b}' | '\u{200c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{061c}' => {}
            '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' => {}
            c => out.push(c),
        }
    }
    out
}
