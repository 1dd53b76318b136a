//! The terminal itself: taking it, giving it back whatever happens, and drawing frames into it.
//! Asks it one thing, its background, and waits 50 ms for the answer at most.

use super::state::App;
use super::theme::Background;
use super::widgets::frame;
use crate::system;
use anyhow::{Context, Result};
use crossterm::Command;
use crossterm::cursor::Show;
use crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, KeyboardEnhancementFlags, PopKeyboardEnhancementFlags,
    PushKeyboardEnhancementFlags,
};
use crossterm::queue;
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, TerminalOptions, Viewport};
use std::fmt;
use std::io::{self, BufWriter, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

/// The terminal is ours now: what a panic has to give back.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The window's title is ours.
static TITLED: AtomicBool = AtomicBool::new(false);
/// xterm's stack of titles. A terminal without one is left with an empty title, which shells set
/// again.
const KEEP_TITLE: &str = "\x1b[22;2t";
const RESTORE_TITLE: &str = "\x1b]2;\x1b\\\x1b[23;2t";

/// Linux's console takes some sequences for others.
fn is_console() -> bool {
    std::env::var("TERM").as_deref() == Ok("linux")
}

/// Clicks and the wheel, without the stream of moves that crossterm's own command asks for.
struct Mouse(bool);

impl Command for Mouse {
    fn write_ansi(&self, f: &mut impl fmt::Write) -> fmt::Result {
        f.write_str(if self.0 { "\x1b[?1000h\x1b[?1006h" } else { "\x1b[?1006l\x1b[?1000l" })
    }

    #[cfg(windows)]
    fn execute_winapi(&self) -> io::Result<()> {
        Ok(())
    }
}

type Terminal = ratatui::Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Size of a terminal that reports none.
const USUAL: (u16, u16) = (80, 24);
/// Most columns and rows that are drawn: a terminal may claim billions of cells.
const MOST: (u16, u16) = (1000, 500);

/// Returns the columns and rows that are drawn of a terminal that says this size, and whether they
/// are all.
pub fn drawn_size(said: Option<(u16, u16)>) -> ((u16, u16), bool) {
    let (columns, rows) = said.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(USUAL);
    let drawn = (columns.min(MOST.0), rows.min(MOST.1));
    (drawn, said == Some(drawn))
}

fn open() -> io::Result<Terminal> {
    let backend = CrosstermBackend::new(BufWriter::with_capacity(64 * 1024, io::stdout()));
    let viewport = match drawn_size(said_size()) {
        (_, true) => Viewport::Fullscreen,
        ((columns, rows), false) => Viewport::Fixed(Rect::new(0, 0, columns, rows)),
    };
    Terminal::with_options(backend, TerminalOptions { viewport })
}

fn fixed_size() -> Option<(u16, u16)> {
    let (drawn, all) = drawn_size(said_size());
    (!all).then_some(drawn)
}

fn said_size() -> Option<(u16, u16)> {
    crossterm::terminal::size().ok()
}

/// The screen, ours until it is dropped.
pub struct Screen {
    /// Never dropped: ratatui's own drop complains on stderr, which panics when that is gone too.
    terminal: ManuallyDrop<Terminal>,
    /// The part of the terminal that is drawn, if it is not all of it.
    fixed: Option<(u16, u16)>,
    mouse: bool,
    /// The title written last.
    title: String,
}

impl Screen {
    /// Takes the terminal over.
    pub fn take(mouse: bool) -> Result<Self> {
        give_back_on_panic(thread::current().id());
        enter(mouse).context("cannot set up the terminal")?;
        let terminal = open().inspect_err(|_| give_back())?;
        Ok(Self { terminal: ManuallyDrop::new(terminal), fixed: fixed_size(), mouse, title: String::new() })
    }

    /// Asks the terminal for its background; also returns what was typed meanwhile. To be called
    /// before anything else reads the keyboard.
    pub fn ask_background(&mut self) -> io::Result<(Option<Background>, Vec<u8>)> {
        super::capabilities::ask_background(self.terminal.backend_mut())
    }

    /// Draws one frame of the chat.
    pub fn draw(&mut self, app: &mut App) -> io::Result<()> {
        self.frame(|frame| frame::draw(frame, app))?;
        if app.setup.settings.title {
            self.set_title(app.title())?;
        }
        Write::flush(self.terminal.backend_mut())
    }

    /// Draws one frame; the terminal shows it as a whole.
    pub fn frame(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        let fixed = fixed_size();
        if self.fixed != fixed {
            self.fixed = fixed;
            *self.terminal = open()?;
        }
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate)?;
        self.terminal.draw(draw)?;
        queue!(self.terminal.backend_mut(), EndSynchronizedUpdate)?;
        Write::flush(self.terminal.backend_mut())
    }

    /// Names the window, and the first time keeps the title that it had.
    fn set_title(&mut self, title: String) -> io::Result<()> {
        if title == self.title || is_console() {
            return Ok(());
        }
        let keep = if TITLED.swap(true, Ordering::SeqCst) { "" } else { KEEP_TITLE };
        write!(self.terminal.backend_mut(), "{keep}\x1b]2;{title}\x1b\\")?;
        self.title = title;
        Ok(())
    }

    /// The next frame is drawn from nothing. (`Terminal::clear` would ask where the cursor is.)
    pub fn redraw(&mut self) -> io::Result<()> {
        let (columns, rows) = self.size();
        self.terminal.resize(Rect::new(0, 0, columns, rows))
    }

    pub fn size(&self) -> (u16, u16) {
        drawn_size(said_size()).0
    }

    pub fn set_mouse(&mut self, on: bool) -> io::Result<()> {
        self.mouse = on;
        queue!(self.terminal.backend_mut(), Mouse(on))?;
        Write::flush(self.terminal.backend_mut())
    }

    /// Writes to the terminal as it is (OSC 52).
    pub fn write_raw(&mut self, text: &str) -> io::Result<()> {
        let out = self.terminal.backend_mut();
        out.write_all(text.as_bytes())?;
        Write::flush(out)
    }

    /// Lends the terminal to someone else: an editor, the shell.
    pub fn lend(&mut self) {
        give_back();
    }

    /// Takes it again, and draws from nothing. Where it was not lent, as after a SIGSTOP of another
    /// program, it is given back first: modes that the terminal counts are set once.
    pub fn retake(&mut self) -> io::Result<()> {
        give_back();
        enter(self.mouse)?;
        self.title.clear();
        self.redraw()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter(mouse: bool) -> io::Result<()> {
    // Kept from the first time on, when the settings are the shell's.
    system::remember_terminal(leaving());
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    system::terminal_is_ours(true);
    let mut out = io::stdout();
    queue!(out, EnterAlternateScreen, EnableBracketedPaste)?;
    // Linux's console takes the sequence for another one.
    if std::env::var("TERM").as_deref() != Ok("linux") {
        queue!(out, PushKeyboardEnhancementFlags(KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES))?;
    }
    if mouse {
        queue!(out, Mouse(true))?;
    }
    out.flush()
}

/// Puts the terminal back as it was. Does nothing when it is not ours.
pub fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = io::stdout();
    let _ = out.write_all(&leaving());
    let _ = out.flush();
    let _ = disable_raw_mode();
    system::terminal_is_ours(false);
}

/// Sequences that undo [`enter`].
fn leaving() -> Vec<u8> {
    let mut out = Vec::new();
    let _ = queue!(out, EndSynchronizedUpdate, Mouse(false), DisableBracketedPaste);
    if std::env::var("TERM").as_deref() != Ok("linux") {
        let _ = queue!(out, PopKeyboardEnhancementFlags);
    }
    if TITLED.swap(false, Ordering::SeqCst) {
        let _ = out.write_all(RESTORE_TITLE.as_bytes());
    }
    let _ = queue!(out, Show, LeaveAlternateScreen);
    out
}

/// A panic of the interface gives the terminal back before its text is printed; one of another
/// thread must not write over the screen (the engine says it by an event).
fn give_back_on_panic(ui: ThreadId) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if thread::current().id() == ui {
                give_back();
                before(info);
            } else if !TAKEN.load(Ordering::SeqCst) {
                before(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_cannot_be_is_not_believed() {
        for (said, drawn) in [
            (None, (USUAL, false)),
            (Some((0, 50)), (USUAL, false)),
            (Some((200, 50)), ((200, 50), true)),
            (Some(MOST), (MOST, true)),
            (Some((u16::MAX, u16::MAX)), (MOST, false)),
            (Some((80, 501)), ((80, 500), false)),
        ] {
            assert_eq!(drawn_size(said), drawn, "{said:?}");
        }
    }
}
