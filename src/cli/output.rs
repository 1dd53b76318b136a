//! Output to stdout and stderr, and the exit codes of errors.

use crate::unicode::{self, Kind};
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use thiserror::Error;

/// An error in use, configuration or model: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WrongUse(pub String);

/// An error of exit code 2.
pub fn wrong_use(message: impl fmt::Display) -> anyhow::Error {
    WrongUse(message.to_string()).into()
}

/// Gives an error exit code 2.
pub fn as_wrong_use(error: anyhow::Error) -> anyhow::Error {
    wrong_use(format!("{error:#}"))
}

/// Ctrl+C before there was an answer: exit code 130.
#[derive(Debug, Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A signal of this number ended the program, which first had to clean up: exit code 128 + number,
/// as shells say it.
#[derive(Debug, Error)]
#[error("ended by signal {0}")]
pub struct Killed(pub i32);

/// Answered.
pub const OK: u8 = 0;
pub const FAILED: u8 = 1;
pub const WRONG_USE: u8 = 2;
pub const INTERRUPTED: u8 = 130;
/// The exit code of Rust programs after a panic.
pub const PANICKED: u8 = 101;

/// Prints an error as one line to stderr and returns its exit code. A closed stdout is not an
/// error.
pub fn report(error: &anyhow::Error) -> u8 {
    if is_closed_pipe(error) {
        return OK;
    }
    notice(&format!("{error:#}"));
    if error.chain().any(|e| e.is::<Interrupted>()) {
        return INTERRUPTED;
    }
    if let Some(Killed(signal)) = error.chain().find_map(|e| e.downcast_ref()) {
        return 128 + *signal as u8;
    }
    let wrong_use = error.chain().any(|e| e.is::<WrongUse>());
    if wrong_use { WRONG_USE } else { FAILED }
}

/// Whether it is the error of [`out`] that says that the reader of stdout has closed it. Any other
/// pipe that breaks, such as that to a child, is a failure.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_marked = |e: &io::Error| e.get_ref().is_some_and(|inner| inner.is::<StdoutClosed>());
    error.chain().any(|e| e.downcast_ref::<io::Error>().is_some_and(is_marked))
}

/// Marks errors of writing to stdout.
#[derive(Debug, Error)]
#[error("the reader of stdout has closed it")]
struct StdoutClosed;

/// Marks an error of writing to stdout whose reader has gone: of a pipe, or of a connection.
pub fn of_stdout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => io::Error::new(error.kind(), StdoutClosed),
        _ => error,
    }
}

static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the name that lines on stderr begin with.
pub fn name_program(name: &'static str) {
    let _ = PROGRAM.set(name);
}

pub fn program() -> &'static str {
    PROGRAM.get().unwrap_or(&"dmschat")
}

/// Prints one line to stderr.
pub fn notice(line: &str) {
    // A closed stderr cannot be reported.
    let _ = writeln!(io::stderr(), "{}: {}", program(), visible(&unicode::one_line(line)));
}

/// A line on stderr that is redrawn in its place, on a terminal.
#[derive(Default)]
pub struct StatusLine {
    /// Columns of the line that is shown.
    drawn: usize,
}

impl StatusLine {
    /// Shows a line, as much of it as one row of a usual terminal holds: a carriage return does not
    /// reach back over a wrapped one.
    pub fn show(&mut self, line: &str) {
        let line: String = visible(&unicode::one_line(line)).chars().take(79).collect();
        let _ = write!(io::stderr(), "\r{line:0$}", self.drawn);
        self.drawn = line.chars().count();
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.drawn > 0 {
            let _ = write!(io::stderr(), "\r{:1$}\r", "", self.drawn);
        }
        self.drawn = 0;
    }
}

/// Writes to stdout and flushes it.
pub fn out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(of_stdout)
}

/// Prints an object as one line of JSON to stdout, with invisible and control characters escaped.
pub fn out_json(value: &impl Serialize) -> Result<()> {
    Ok(out(&format!("{}\n", unicode::escape_json(&serde_json::to_string(value)?)))?)
}

/// Makes text of a model or a file safe for a terminal.
pub fn visible(text: &str) -> String {
    Visible::new(true).push(text)
}

/// Makes streamed text safe for output. For a terminal: control characters and bidi overrides are
/// spelled out, and invisible characters ([`unicode::kind`]) are dropped except where emoji need
/// them; newlines and tabs stay. For a pipe: only control characters are spelled out.
pub struct Visible {
    terminal: bool,
    /// The last character written, which decides what may follow.
    before: Option<char>,
    /// A joiner is held back until the next character is known.
    joiner: bool,
}

impl Visible {
    pub fn new(terminal: bool) -> Self {
        Self { terminal, before: None, joiner: false }
    }

    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            self.one(c, &mut out);
        }
        out
    }

    fn one(&mut self, c: char, out: &mut String) {
        const JOINER: char = '\u{200d}';
        if std::mem::take(&mut self.joiner) && unicode::keeps(self.before, JOINER, Some(c)) {
            out.push(JOINER);
        }
        match unicode::kind(c) {
            Kind::Control if matches!(c, '\n' | '\t') || (c == '\r' && !self.terminal) => out.push(c),
            Kind::Control => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            _ if !self.terminal => out.push(c),
            Kind::Bidi => out.push_str(&format!("<U+{:04X}>", u32::from(c))),
            Kind::Joiner => return self.joiner = true,
            _ if unicode::keeps(self.before, c, None) => out.push(c),
            // Dropped, so `before` stays.
            _ => return,
        }
        self.before = Some(c);
    }
}
