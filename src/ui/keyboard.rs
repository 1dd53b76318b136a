//! Reads keys, pastes, the mouse and resizes on a thread of its own, and stamps each with the time
//! it came in, so that a busy screen does not change what was typed fast and what was not. (The
//! async stream of crossterm hands over one event per wake-up; pastes without brackets are thousands.)

use crossterm::event::{self, Event};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How often the thread looks whether it is to pause or end.
const LOOK: Duration = Duration::from_millis(100);

/// What came in, and when; an error when the terminal is gone.
pub type Typed = (Instant, io::Result<Event>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    PauseWanted,
    Paused,
    Ended,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Option<State>>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.lock() = Some(state);
        self.changed.notify_all();
    }
}

/// The reading thread's other end.
pub struct Keyboard {
    pub events: UnboundedReceiver<Typed>,
    shared: Arc<Shared>,
}

impl Keyboard {
    /// Starts to read; the terminal must be in raw mode.
    pub fn start() -> io::Result<Self> {
        let (send, events) = unbounded_channel();
        let shared = Arc::new(Shared::default());
        shared.set(State::Reading);
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("keyboard".into()).spawn(move || read(&theirs, &send))?;
        Ok(Self { events, shared })
    }

    /// Leaves the keyboard to someone else. Returns once nothing is read any more.
    pub fn pause(&self) {
        let mut state = self.shared.lock();
        if *state != Some(State::Reading) {
            return;
        }
        *state = Some(State::PauseWanted);
        while *state == Some(State::PauseWanted) {
            state = self.shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub fn resume(&self) {
        let mut state = self.shared.lock();
        if *state == Some(State::Paused) {
            *state = Some(State::Reading);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.shared.set(State::Ended);
    }
}

fn read(shared: &Shared, send: &UnboundedSender<Typed>) {
    loop {
        {
            let mut state = shared.lock();
            if *state == Some(State::PauseWanted) {
                *state = Some(State::Paused);
                shared.changed.notify_all();
            }
            while *state == Some(State::Paused) {
                state = shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            if *state == Some(State::Ended) {
                return;
            }
        }
        let event = match event::poll(LOOK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(e) => Err(e),
        };
        let gone = event.is_err();
        if send.send((Instant::now(), event)).is_err() || gone {
            // Nobody must wait for a pause of a thread that is gone.
            shared.set(State::Ended);
            return;
        }
    }
}
