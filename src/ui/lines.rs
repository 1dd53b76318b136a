//! Line mode, for terminals that cannot position the cursor (`TERM=dumb`): the same state and
//! commands; only new text is printed.

use super::declined;
use super::event::AppEvent;
use super::runtime::{Runtime, Woken};
use super::state::{About, App};
use super::text::{clean, clean_line};
use super::widgets::{message, recall, twin, welcome};
use super::{ExitKind, numbers};
use crate::chat::MessageId;
use crate::protocol::{Event, TextKind};
use crate::system::signals::{Signal, Signals};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const COLUMNS: usize = 78;

/// Text printed so far.
#[derive(Default)]
struct Printed {
    locals: usize,
    /// The turn whose text is being printed, and which part of it.
    part: Option<TextKind>,
    /// Nothing of this part was printed yet.
    begins: bool,
    /// Progress of the running download, in tenths.
    tenth: Option<u64>,
    /// The message that the next line replaces.
    editing: Option<MessageId>,
    /// The last thing printed ended its line.
    at_line_start: bool,
    prompt: bool,
    /// The beginning of an answer that may be one that the built-in model declines with.
    held: String,
}

impl Runtime {
    /// Runs line by line until the input ends.
    pub async fn run_lines(&mut self) -> anyhow::Result<ExitKind> {
        let (send, receiver) = mpsc::unbounded_channel();
        let mut lines = Lines { receiver, held: None };
        let read = move || {
            let mut input = std::io::stdin().lock();
            let mut line = Vec::new();
            while input.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
                line.clear();
                if send.send((Instant::now(), text)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("lines".into()).spawn(read)?;
        let mut printed = Printed { at_line_start: true, ..Printed::default() };
        self.app.setup.by_lines = true;
        self.begin();
        let mut signals = Signals::new()?;
        let (mut ended, mut asked_to_quit) = (false, false);
        put_lines(&message::plain_lines(&welcome::lines(&self.app, COLUMNS, false)));
        while self.exit.is_none() {
            self.print_news(&mut printed);
            let busy = self.app.is_busy() || self.app.engine.loading.is_some();
            if ended && !busy {
                break;
            }
            if !busy && !printed.prompt && !ended {
                printed.prompt = true;
                put("> ");
            }
            let line = async { if ended || busy { None } else { Some(Woken::Line(lines.next().await)) } };
            match self.wait(line, &mut signals, self.disk_timer()).await {
                Woken::Line(Some(line)) => {
                    (printed.prompt, asked_to_quit) = (false, false);
                    self.handle(AppEvent::Line(line));
                }
                Woken::Line(None) => ended = true,
                Woken::Engine(event) => {
                    let streamed = match &event {
                        Some(Event::Text { kind, text, .. }) => Some((*kind, text.as_str())),
                        Some(Event::Found(found)) => found.streamed(),
                        _ => None,
                    };
                    let demo = self.app.engine.info.as_ref().is_some_and(|info| info.is_builtin());
                    if let Some((kind, text)) = streamed {
                        match demo && kind == TextKind::Answer {
                            true => print_unless_declined(&mut printed, text),
                            false => print_text(&mut printed, kind, text),
                        }
                    }
                    self.engine(event);
                    self.snapshot();
                }
                Woken::Signal(Signal::End(2)) if busy => {
                    self.press(KeyCode::Esc);
                    // The signal also confirms the question.
                    if self.app.asked() == About::StopLoading {
                        self.press(KeyCode::Esc);
                    }
                }
                Woken::Signal(Signal::End(2)) if !std::mem::replace(&mut asked_to_quit, true) => {
                    put("\ninterrupt again to quit\n");
                    printed.prompt = false;
                }
                Woken::Signal(Signal::Stop) => crate::system::signals::stop_here(),
                Woken::Signal(Signal::Continue) => {}
                Woken::Signal(Signal::End(number)) => self.exit = Some(ExitKind::Signal(number)),
                other => self.woken(other),
            }
        }
        self.print_news(&mut printed);
        put("\n");
        self.leave().await;
        Ok(self.exit.take().unwrap_or(ExitKind::Quit))
    }

    fn press(&mut self, code: KeyCode) {
        self.handle(AppEvent::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }

    fn print_news(&mut self, printed: &mut Printed) {
        let app = &self.app;
        let mut lines: Vec<String> = Vec::new();
        if app.turn.is_none() && !printed.held.is_empty() {
            let path = app.chat.path();
            let said = path.last().and_then(|message| declined::shown(app, message));
            let text = said.unwrap_or_else(|| std::mem::take(&mut printed.held));
            printed.held.clear();
            print_text(printed, TextKind::Answer, &text);
        }
        if app.turn.is_none() && printed.part.take().is_some() {
            lines.extend(last_words(app));
            let report = app.chat.path().last().and_then(|m| m.report.as_ref()?.twin.as_deref());
            lines.extend(report.map(twin::words));
        }
        // Another conversation has lines of its own.
        printed.locals = printed.locals.min(app.feed.locals.len());
        for local in &app.feed.locals[printed.locals..] {
            lines.extend(clean(&local.text).split('\n').map(str::to_owned));
            if let Some(recalled) = &local.recalled {
                lines.extend(message::plain_lines(&recall::rows(recalled, COLUMNS, &app.theme, app.depth())));
            }
        }
        printed.locals = app.feed.locals.len();
        let download = app.engine.loading.as_ref().and_then(|l| l.download());
        let tenth = download.map(|d| d.done_bytes * 10 / d.total_bytes.max(1));
        if let (Some(download), true) = (download, tenth != printed.tenth) {
            lines.push(numbers::download(download));
        }
        printed.tenth = tenth;
        if let Some(notice) = &app.notice {
            lines.push(clean_line(&notice.text));
        }
        if let Some(message) = app.editing.filter(|id| printed.editing != Some(*id)).and_then(|id| app.chat.get(id)) {
            lines.extend(clean(&message.text).split('\n').map(str::to_owned));
            lines.push("your next line replaces this message; an empty one leaves it as it is".to_owned());
        }
        printed.editing = app.editing;
        if let Some(top) = app.overlays.last() {
            let Some(shown) = top.plain_lines(app, COLUMNS) else { return };
            lines.extend(shown);
        }
        if app.notice.is_some() || !app.overlays.is_empty() {
            self.handle(AppEvent::Printed);
        }
        if !lines.is_empty() {
            if !printed.at_line_start || printed.prompt {
                put("\n");
            }
            printed.at_line_start = true;
            printed.prompt = false;
            put_lines(&lines);
        }
    }
}

fn put_lines(lines: &[String]) {
    lines.iter().for_each(|line| put(&format!("{line}\n")));
}

/// Lines of a paste come closer than this.
const TOGETHER: Duration = Duration::from_millis(50);

/// Entered lines. Lines that arrive together are a paste and become one text.
struct Lines {
    receiver: mpsc::UnboundedReceiver<(Instant, String)>,
    /// The line after a paste, which came later.
    held: Option<(Instant, String)>,
}

impl Lines {
    /// Returns the next text. Cancel safe.
    async fn next(&mut self) -> Option<String> {
        if self.held.is_none() {
            self.held = Some(self.receiver.recv().await?);
        }
        loop {
            let Some((last, text)) = &mut self.held else { return None };
            let is_command = text.starts_with('/');
            match tokio::time::timeout(TOGETHER, self.receiver.recv()).await {
                Ok(Some((at, line))) if !is_command && at.saturating_duration_since(*last) < TOGETHER => {
                    *last = at;
                    text.push('\n');
                    text.push_str(&line);
                }
                Ok(Some(later)) => return self.held.replace(later).map(|(_, text)| text),
                Ok(None) | Err(_) => return self.held.take().map(|(_, text)| text),
            }
        }
    }
}

/// Prints and flushes. A closed terminal ends the chat by a signal, not by a panic here.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Text of the built-in model as it comes, but for an answer that it declines with: that is held
/// back, and shown as elsewhere when it is whole.
fn print_unless_declined(printed: &mut Printed, text: &str) {
    if printed.held.is_empty() && printed.part == Some(TextKind::Answer) && !printed.begins {
        return print_text(printed, TextKind::Answer, text);
    }
    printed.held.push_str(text);
    if !declined::is(&printed.held) && !declined::may_become(&printed.held) {
        let text = std::mem::take(&mut printed.held);
        print_text(printed, TextKind::Answer, &text);
    }
}

/// Streamed text as it comes.
fn print_text(printed: &mut Printed, kind: TextKind, text: &str) {
    if printed.part != Some(kind) {
        let title = match kind {
            TextKind::Reasoning => "(thinking)\n",
            TextKind::Answer if printed.part.is_some() => "\n(answer)\n",
            TextKind::Answer => "",
        };
        put(title);
        printed.part = Some(kind);
        printed.begins = true;
    }
    // Models write newlines between their thoughts and the answer.
    let text = if printed.begins { text.trim_start_matches('\n') } else { text };
    printed.begins &= text.is_empty();
    put(&clean(text));
    printed.at_line_start = text.ends_with('\n');
}

/// Describes how the last answer ended.
fn last_words(app: &App) -> Option<String> {
    let path = app.chat.path();
    let report = path.last()?.report.as_ref()?;
    let tokens = report.answer_tokens + report.reasoning_tokens;
    let tokens = super::text::plural(tokens as u64, "token");
    let (how, advice) = (clean_line(&message::ending(report)), message::advice(report));
    Some(format!("[{how}{advice}, {tokens}, ratio {}]", super::text::ratio(report.kv.ratio)))
}
