//! Reads keys, pastes, the mouse and resizes on a separate thread and stamps each with its arrival
//! time, so that a busy screen does not change what counts as typed fast. (crossterm's async stream
//! returns one event per wake-up; a paste without brackets has thousands.)

use super::capabilities::{LONGEST_REPLY, background_of};
use super::theme::Background;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How often the thread checks whether to pause or end.
const LOOK: Duration = Duration::from_millis(100);

/// Keys of text that wait together from which on they are one text, and the most bytes of it.
const MANY_KEYS: usize = 64;
const MOST_BYTES: usize = 64 << 10;

/// How late the terminal's reply about its background is still recognised.
const LATE: Duration = Duration::from_secs(10);

/// An input and its time; an error when the terminal is gone.
pub type Typed = (Instant, io::Result<Input>);

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Event(Event),
    /// Text of many keys that waited together. It does not end in a newline.
    Burst(String),
    /// The terminal reported its background after startup stopped waiting for it.
    Background(Background),
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Reading,
    PauseWanted,
    Paused,
    Ended,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = state;
        self.changed.notify_all();
    }
}

/// The receiving end of the reading thread.
pub struct Keyboard {
    pub events: UnboundedReceiver<Typed>,
    shared: Arc<Shared>,
}

impl Keyboard {
    /// Starts to read; the terminal must be in raw mode. `typed` was read before; with `reply_due`
    /// the terminal may still answer the question about its background.
    pub fn start(typed: &[u8], reply_due: bool) -> io::Result<Self> {
        let (send, events) = unbounded_channel();
        // Keys that are not text look like other sequences here, so they are dropped.
        let text: String = String::from_utf8_lossy(typed).chars().take_while(|c| *c != '\x1b').collect();
        if !text.is_empty() {
            let _ = send.send((Instant::now(), Ok(Input::Event(Event::Paste(text)))));
        }
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("keyboard".into()).spawn(move || {
            read(&theirs, &send, LateReply { until: reply_due.then(|| Instant::now() + LATE), held: Vec::new() });
        })?;
        Ok(Self { events, shared })
    }

    /// Pauses reading, for another program. Returns once the thread reads no more.
    pub fn pause(&self) {
        let mut state = self.shared.lock();
        if *state != State::Reading {
            return;
        }
        *state = State::PauseWanted;
        while *state == State::PauseWanted {
            state = self.shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub fn resume(&self) {
        let mut state = self.shared.lock();
        if *state == State::Paused {
            *state = State::Reading;
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.shared.set(State::Ended);
    }
}

fn read(shared: &Shared, send: &UnboundedSender<Typed>, mut late: LateReply) {
    loop {
        {
            let mut state = shared.lock();
            if *state == State::PauseWanted {
                *state = State::Paused;
                shared.changed.notify_all();
            }
            while *state == State::Paused {
                state = shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            if *state == State::Ended {
                return;
            }
        }
        let (inputs, gone) = match event::poll(LOOK).and_then(|any| any.then(event::read).transpose()) {
            Ok(Some(event)) => waiting(event, &mut late, || {
                event::poll(Duration::ZERO).and_then(|any| any.then(event::read).transpose())
            }),
            Ok(None) if crate::system::terminal_is_gone() => (vec![Err(io::ErrorKind::UnexpectedEof.into())], true),
            Ok(None) => (late.give_up(), false),
            Err(e) => (vec![Err(e)], true),
        };
        let now = Instant::now();
        let heard = inputs.into_iter().all(|input| send.send((now, input)).is_ok());
        if !heard || gone {
            // Nobody must wait for a pause of a thread that is gone.
            shared.set(State::Ended);
            return;
        }
    }
}

/// Text that a key types, if any.
fn text_of(event: &Event) -> Option<char> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return None };
    match (*code, *modifiers) {
        (KeyCode::Char(c), modifiers) if (modifiers - KeyModifiers::SHIFT).is_empty() => Some(c),
        (KeyCode::Enter, KeyModifiers::NONE) | (KeyCode::Char('j'), KeyModifiers::CONTROL) => Some('\n'),
        (KeyCode::Tab, KeyModifiers::NONE) => Some('\t'),
        _ => None,
    }
}

/// Returns this event and the waiting ones, as `next` reads them: many keys of text as one text,
/// which saves time and memory. Also returns whether the terminal is gone.
fn waiting(
    first: Event,
    late: &mut LateReply,
    mut next: impl FnMut() -> io::Result<Option<Event>>,
) -> (Vec<io::Result<Input>>, bool) {
    let (mut inputs, mut keys, mut event) = (Vec::new(), Keys::default(), Some(first));
    while let Some(now) = event.take() {
        if late.held.is_empty() && text_of(&now).is_some() {
            keys.push(now);
        } else {
            keys.end(&mut inputs);
            inputs.extend(late.pass(now));
        }
        if inputs.len() >= MANY_KEYS || keys.text.len() >= MOST_BYTES {
            break;
        }
        match next() {
            Ok(more) => event = more,
            Err(error) => {
                keys.end(&mut inputs);
                inputs.push(Err(error));
                return (inputs, true);
            }
        }
    }
    keys.end(&mut inputs);
    (inputs, false)
}

/// Keys of text, in order: as single keys at first, and as one text once they are many.
#[derive(Default)]
struct Keys {
    few: Vec<Event>,
    text: String,
    /// The last key was Enter: a line feed after it ends the same line.
    ended_line: bool,
}

impl Keys {
    fn push(&mut self, event: Event) {
        if self.few.len() < MANY_KEYS {
            self.few.push(event);
            if self.few.len() == MANY_KEYS {
                let few = self.few.clone();
                few.iter().for_each(|event| self.add(event));
            }
        } else {
            self.add(&event);
        }
    }

    fn add(&mut self, event: &Event) {
        let line_feed = matches!(event, Event::Key(KeyEvent { code: KeyCode::Char('j'), modifiers, .. })
            if *modifiers == KeyModifiers::CONTROL);
        if !(line_feed && self.ended_line) {
            self.text.extend(text_of(event));
        }
        self.ended_line = matches!(event, Event::Key(KeyEvent { code: KeyCode::Enter, .. }));
    }

    /// Moves the keys to the inputs. Newlines at the end stay keys: they may send.
    fn end(&mut self, inputs: &mut Vec<io::Result<Input>>) {
        let keys = std::mem::take(self);
        if keys.text.is_empty() {
            return inputs.extend(keys.few.into_iter().map(|event| Ok(Input::Event(event))));
        }
        let text = keys.text.trim_end_matches('\n');
        let enters = keys.text.len() - text.len();
        if !text.is_empty() {
            inputs.push(Ok(Input::Burst(text.to_owned())));
        }
        let enter = || Ok(Input::Event(Event::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE))));
        inputs.extend(std::iter::repeat_with(enter).take(enters));
    }
}

/// Takes a late reply to OSC 11 out of the keys: crossterm reads it as Alt+], characters, and
/// Ctrl+G or Alt+backslash.
struct LateReply {
    /// Until when a reply is expected; `None` if none is due.
    until: Option<Instant>,
    /// Events that look like the beginning of a reply.
    held: Vec<Event>,
}

impl LateReply {
    /// Passes an event on, or holds it while it may be part of a reply.
    fn pass(&mut self, event: Event) -> Vec<io::Result<Input>> {
        if self.until.is_none_or(|until| Instant::now() > until) {
            self.until = None;
            let mut all = self.give_up();
            all.push(Ok(Input::Event(event)));
            return all;
        }
        let key = |e: &Event| match e {
            Event::Key(KeyEvent { code: KeyCode::Char(c), modifiers, .. }) => Some((*c, *modifiers)),
            _ => None,
        };
        let (c, modifiers) = key(&event).unwrap_or(('\0', KeyModifiers::NONE));
        let opens = (c, modifiers) == (']', KeyModifiers::ALT);
        if self.held.is_empty() && !opens {
            return vec![Ok(Input::Event(event))];
        }
        let body: String = self.held.iter().skip(1).filter_map(key).map(|(c, _)| c).collect();
        let closes = matches!((c, modifiers), ('g', KeyModifiers::CONTROL) | ('\\', KeyModifiers::ALT));
        if let (true, Some(colour)) = (closes, body.strip_prefix("11;")) {
            (self.until, self.held) = (None, Vec::new());
            return background_of(colour).map(|b| Ok(Input::Background(b))).into_iter().collect();
        }
        let plain = c.is_ascii_graphic() && (modifiers - KeyModifiers::SHIFT).is_empty();
        let next = format!("{body}{c}");
        let fits = next.starts_with("11;") || "11;".starts_with(&next);
        self.held.push(event);
        if opens && self.held.len() == 1 || plain && fits && self.held.len() <= LONGEST_REPLY {
            return Vec::new();
        }
        self.give_up()
    }

    /// Returns the held events: they were typed.
    fn give_up(&mut self) -> Vec<io::Result<Input>> {
        self.held.drain(..).map(|e| Ok(Input::Event(e))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<Event> {
        let key = |c, modifiers| Event::Key(KeyEvent::new(KeyCode::Char(c), modifiers));
        let mut out = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            out.push(match c {
                '^' => key(chars.next().unwrap(), KeyModifiers::CONTROL),
                '!' => key(chars.next().unwrap(), KeyModifiers::ALT),
                c if c.is_uppercase() => key(c, KeyModifiers::SHIFT),
                c => key(c, KeyModifiers::NONE),
            });
        }
        out
    }

    fn pass(text: &str, due: bool) -> Vec<Input> {
        let mut late = LateReply { until: due.then(|| Instant::now() + LATE), held: Vec::new() };
        let mut out: Vec<_> = keys(text).into_iter().flat_map(|e| late.pass(e)).collect();
        out.extend(late.give_up());
        out.into_iter().map(Result::unwrap).collect()
    }

    /// A paste without brackets is a few inputs, not one for each of its characters.
    #[test]
    fn many_keys_that_wait_are_one_text() {
        let key = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        let read = |text: &str| {
            let mut events = text.chars().map(|c| match c {
                '\r' => key(KeyCode::Enter),
                '\n' => keys("^j").remove(0),
                c => keys(&c.to_string()).remove(0),
            });
            let mut late = LateReply { until: None, held: Vec::new() };
            let first = events.next().unwrap();
            let (inputs, gone) = waiting(first, &mut late, || Ok(events.next()));
            assert!(!gone);
            inputs.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        };
        let long = "a Line\r\n".repeat(100);
        let burst = Input::Burst("a Line\n".repeat(100).trim_end().to_owned());
        assert_eq!(read(&long), [burst, Input::Event(key(KeyCode::Enter))]);
        assert_eq!(read("hello").len(), 5);
        let most = read(&"x".repeat(10 * MOST_BYTES));
        assert!(matches!(&most[..], [Input::Burst(text)] if text.len() == MOST_BYTES));
    }

    /// A reply that comes late is never typed text; everything else is.
    #[test]
    fn late_replies_are_not_typed() {
        let typed = |text: &str| keys(text).into_iter().map(Input::Event).collect::<Vec<_>>();
        for end in ["^g", "!\\"] {
            let mut expected = typed("a");
            expected.push(Input::Background(Background::Light));
            expected.extend(typed("b"));
            assert_eq!(pass(&format!("a!]11;rgb:FFff/ffff/ffff{end}b"), true), expected);
        }
        for text in ["!]", "!]1", "!]12;x", "!]11;rgb:00", "plain text", "!]11;rgb:^c", "!]!]x"] {
            assert_eq!(pass(text, true), typed(text), "{text}");
        }
        let reply = "!]11;rgb:ffff/ffff/ffff^g";
        assert_eq!(pass(reply, false), typed(reply));
        let twice = pass(&format!("{reply}{reply}"), true);
        assert_eq!(twice.len(), 1 + keys(reply).len());
    }
}
