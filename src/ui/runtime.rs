//! The event loop: waits for keys, engine events, snapshots, signals and timers, passes them to
//! `update`, runs the effects and draws. All pending events are handled before a frame is drawn; at
//! most 60 frames a second, none when nothing changed.

mod loading;
mod saving;
mod sending;

use super::clipboard::{Copied, Copier};
use super::effect::{Effect, Store, Which};
use super::event::AppEvent;
use super::history::HistoryFile;
use super::keyboard::{Input, Keyboard, Typed};
use super::outbox::Outbox;
use super::sessions::Sessions;
use super::state::App;
use super::terminal::{Screen, drawn_size};
use super::update::update_at;
use super::worker::{Outcome, Outcomes};
use super::{ExitKind, LoadParts, Resume, editor_program};
use crate::protocol::{EngineHandle, Event, Response, Snapshot};
use crate::system::signals::{Signal, Signals};
use crossterm::event::{Event as Terminal, MouseEventKind};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest time between two frames after a key, and while only the model writes, which needs the
/// cores more.
const FRAME: Duration = Duration::from_millis(16);
const QUIET_FRAME: Duration = Duration::from_millis(33);

pub struct Runtime {
    pub app: App,
    screen: Option<Screen>,
    loading: LoadParts,
    /// The engine in use, and the one that is being loaded.
    pub(super) current: Option<EngineHandle>,
    next: Option<EngineHandle>,
    /// Commands that are still to be sent to the engine in use.
    pub(super) outbox: Outbox,
    pub(super) sessions: Sessions,
    history: HistoryFile,
    copier: Copier,
    started: Instant,
    dirty: bool,
    /// A key was pressed since the last frame.
    pressed: bool,
    exit: Option<ExitKind>,
    /// A model was loaded, or the user has chosen to continue without.
    begun: bool,
    /// A conversation to open once the model is there.
    resume: Resume,
    outcomes: Outcomes,
    /// The name of that conversation's model, while it loads.
    own: Option<String>,
    /// That model's name and the error, where it did not load.
    lacking: Option<(String, String)>,
    /// The theme follows the terminal's background.
    pub(super) follow_background: bool,
}

/// Events of an engine.
pub(super) type Events = tokio::sync::mpsc::UnboundedReceiver<Response>;

/// The reason the loop woke up.
enum Woken {
    Input(Option<Typed>),
    Engine(Option<Event>),
    Next(Option<Event>),
    Snapshot,
    Outcome(Outcome),
    Signal(Signal),
    Timer,
}

/// Sources of events other than keys and signals.
pub(super) struct Sources<'a> {
    /// The events of the engine in use, and of the one that is being loaded.
    pub current: Option<&'a mut Events>,
    pub next: Option<&'a mut Events>,
    /// Results of work on other threads.
    pub outcomes: &'a mut Outcomes,
}

impl Runtime {
    pub fn new(
        app: App,
        loading: LoadParts,
        sessions: Sessions,
        history: HistoryFile,
        resume: Resume,
        outcomes: Outcomes,
    ) -> Self {
        Self {
            app,
            screen: None,
            loading,
            current: None,
            next: None,
            outbox: Outbox::new(sessions.worker.clone()),
            sessions,
            history,
            copier: Copier::default(),
            started: Instant::now(),
            dirty: true,
            pressed: true,
            exit: None,
            begun: false,
            resume,
            outcomes,
            own: None,
            lacking: None,
            follow_background: false,
        }
    }

    /// Starts reading the history and the conversation, and loads the model.
    pub fn begin(&mut self) {
        let history = self.history.clone();
        self.sessions.worker.beside(move || AppEvent::History(history.read()));
        let (models, folder) = (Arc::clone(&self.loading.models), self.sessions.folder());
        self.sessions.worker.beside(move || AppEvent::KnownModels { cached: models.cached(), used: folder.models() });
        let began = self.sessions.began();
        self.handle(began);
        let which = match &self.resume {
            Resume::Newest => Which::Newest,
            Resume::Named(name) => Which::Named(name.clone()),
            Resume::New => return self.load_default(),
            Resume::Choose => {
                self.handle(AppEvent::Opening(false));
                return self.load_default();
            }
        };
        self.handle(AppEvent::Opening(true));
        self.sessions.read(which, false);
    }

    pub(super) fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Events(events) => events.into_iter().for_each(|event| self.handle(event)),
            Outcome::Read(read) => self.read(read),
            Outcome::Written(written) => {
                let events = self.sessions.written(&self.app, written);
                events.into_iter().for_each(|event| self.handle(event));
            }
            Outcome::Rendered(rendered) => self.rendered(rendered),
            Outcome::Rescued(..) | Outcome::Ended => {}
        }
    }

    /// Runs on the whole screen until something ends it.
    pub async fn run(&mut self) -> anyhow::Result<ExitKind> {
        self.screen = Some(Screen::take(self.app.mouse)?);
        let (columns, rows) = self.screen.as_ref().map_or((80, 24), Screen::size);
        self.handle(AppEvent::Resize(columns, rows));
        self.begin();
        let mut signals = Signals::new()?;
        let (typed, reply_due) = self.ask_background();
        let mut keyboard = Keyboard::start(&typed, reply_due)?;
        let mut drawn = self.started;
        while self.exit.is_none() {
            if self.dirty && drawn.elapsed() >= self.frame() {
                drawn = Instant::now();
                (self.dirty, self.pressed) = (false, false);
                if let Some(screen) = &mut self.screen
                    && screen.draw(&mut self.app).is_err()
                {
                    self.exit = Some(ExitKind::Signal(1));
                    break;
                }
            }
            let timer = self.timer(drawn);
            let woken = self.wait(&mut keyboard, &mut signals, timer).await;
            self.woken(woken, &keyboard);
            self.drain(&mut keyboard);
            if self.app.wants_tick().is_some_and(|at| at <= self.elapsed_ms()) {
                self.handle(AppEvent::Tick);
            }
        }
        self.leave().await;
        drop(keyboard);
        self.screen = None;
        Ok(self.exit.take().unwrap_or(ExitKind::Quit))
    }

    /// Asks for the terminal's background where the theme follows it. Returns what was typed
    /// meanwhile, and whether the answer may still come.
    fn ask_background(&mut self) -> (Vec<u8>, bool) {
        if !self.follow_background {
            return (Vec::new(), false);
        }
        let asked = self.screen.as_mut().and_then(|s| s.ask_background().ok());
        let (background, typed) = asked.unwrap_or_default();
        if let Some(background) = background {
            self.handle(AppEvent::Background(background));
        }
        (typed, background.is_none())
    }

    pub(super) fn exit_kind(&self) -> Option<ExitKind> {
        self.exit.clone()
    }

    pub(super) fn set_exit(&mut self, exit: ExitKind) {
        self.exit = Some(exit);
    }

    /// Returns the sources of events other than keys and signals.
    pub(super) fn sources(&mut self) -> Sources<'_> {
        Sources {
            current: self.current.as_mut().map(|e| &mut e.events),
            next: self.next.as_mut().map(|e| &mut e.events),
            outcomes: &mut self.outcomes,
        }
    }

    fn elapsed_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn frame(&self) -> Duration {
        if self.pressed { FRAME } else { QUIET_FRAME }
    }

    /// Returns how long the loop may sleep without an event.
    fn timer(&self, drawn: Instant) -> Option<Duration> {
        let frame = self.dirty.then(|| self.frame().saturating_sub(drawn.elapsed()));
        let tick = self.app.wants_tick().map(|at| Duration::from_millis((at + 1).saturating_sub(self.elapsed_ms())));
        let disk = self.sessions.overdue_at().map(|at| at.saturating_duration_since(Instant::now().into()));
        [frame, tick, disk].into_iter().flatten().min()
    }

    async fn wait(&mut self, keyboard: &mut Keyboard, signals: &mut Signals, timer: Option<Duration>) -> Woken {
        let sleep = async {
            match timer {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let (events, snapshot) = match &mut self.current {
            Some(engine) => (Some(&mut engine.events), Some(&mut engine.snapshot)),
            None => (None, None),
        };
        let snapshot = async {
            // A closed channel shows in the events.
            let changed = match snapshot {
                Some(s) => s.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                std::future::pending().await
            }
        };
        let next = self.next.as_mut().map(|n| &mut n.events);
        tokio::select! {
            biased;
            signal = signals.next() => Woken::Signal(signal),
            typed = keyboard.events.recv() => Woken::Input(typed),
            event = receive(events) => Woken::Engine(event),
            event = receive(next) => Woken::Next(event),
            Some(outcome) = self.outcomes.recv() => Woken::Outcome(outcome),
            () = snapshot => Woken::Snapshot,
            () = sleep => Woken::Timer,
        }
    }

    fn woken(&mut self, woken: Woken, keyboard: &Keyboard) {
        match woken {
            Woken::Input(Some(typed)) => self.typed(typed, keyboard),
            Woken::Input(None) => self.exit = Some(ExitKind::Signal(1)),
            Woken::Engine(event) => self.engine(event),
            Woken::Next(event) => self.next(event),
            Woken::Outcome(outcome) => self.outcome(outcome),
            Woken::Snapshot => self.snapshot(),
            Woken::Signal(signal) => self.signal(signal),
            Woken::Timer => self.sessions.overdue().into_iter().for_each(|event| self.handle(event)),
        }
    }

    /// Handles all pending events.
    fn drain(&mut self, keyboard: &mut Keyboard) {
        let mut left = 4096;
        while self.exit.is_none() && left > 0 {
            left -= 1;
            if let Ok(typed) = keyboard.events.try_recv() {
                self.typed(typed, keyboard);
            } else if let Some(response) = self.current.as_mut().and_then(|e| e.events.try_recv().ok()) {
                self.engine(Some(response.event));
            } else if let Ok(outcome) = self.outcomes.try_recv() {
                self.outcome(outcome);
            } else if self.current.as_ref().is_some_and(|e| e.snapshot.has_changed().unwrap_or(false)) {
                self.snapshot();
            } else {
                break;
            }
        }
    }

    fn typed(&mut self, (at, event): Typed, keyboard: &Keyboard) {
        let event = match event {
            Ok(Input::Event(Terminal::Key(key))) => AppEvent::Key(key),
            Ok(Input::Event(Terminal::Paste(text))) => AppEvent::Paste(text),
            Ok(Input::Event(Terminal::Mouse(mouse)))
                if matches!(mouse.kind, MouseEventKind::Moved | MouseEventKind::Up(_)) =>
            {
                return;
            }
            Ok(Input::Event(Terminal::Mouse(mouse))) => AppEvent::Mouse(mouse),
            Ok(Input::Event(Terminal::Resize(columns, rows))) => {
                let (columns, rows) = drawn_size(Some((columns, rows))).0;
                AppEvent::Resize(columns, rows)
            }
            Ok(Input::Event(Terminal::FocusGained | Terminal::FocusLost)) => return,
            Ok(Input::Background(background)) => AppEvent::Background(background),
            // The terminal is gone.
            Err(_) => return self.exit = Some(ExitKind::Signal(1)),
        };
        self.pressed = true;
        let effects = self.update_at(event, at);
        for effect in effects {
            // Our reader must not read the keyboard while the editor does.
            if let Effect::ExternalEditor(text) = effect {
                let edited = self.edit_outside(&text, keyboard);
                self.handle(AppEvent::Edited(edited));
            } else {
                self.effects(vec![effect]);
            }
        }
    }

    pub(super) fn engine(&mut self, event: Option<Event>) {
        match event {
            Some(event) => self.handle(AppEvent::Engine(event)),
            None => {
                self.current = None;
                self.outbox.clear();
                if self.app.engine.failed.is_none() {
                    self.handle(AppEvent::EngineEnded);
                }
            }
        }
    }

    pub(super) fn snapshot(&mut self) {
        let snapshot: Option<Arc<Snapshot>> =
            self.current.as_mut().and_then(|e| e.snapshot.borrow_and_update().clone());
        if let Some(snapshot) = snapshot {
            self.handle(AppEvent::Snapshot(snapshot));
        }
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::End(number) => self.exit = Some(ExitKind::Signal(number)),
            Signal::Stop => self.suspend(),
            Signal::Continue => {
                if let Some(screen) = &mut self.screen {
                    let _ = screen.retake();
                }
                self.dirty = true;
            }
        }
    }

    fn update(&mut self, event: AppEvent) -> Vec<Effect> {
        self.update_at(event, Instant::now())
    }

    fn update_at(&mut self, event: AppEvent, at: Instant) -> Vec<Effect> {
        self.dirty = true;
        let now_ms = at.saturating_duration_since(self.started).as_millis() as u64;
        let effects = update_at(&mut self.app, now_ms, event);
        self.remember();
        effects
    }

    /// Handles an event, its effects and their results.
    pub fn handle(&mut self, event: AppEvent) {
        let effects = self.update(event);
        self.effects(effects);
    }

    fn effects(&mut self, effects: Vec<Effect>) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            for event in self.effect(effect) {
                queue.extend(self.update(event));
            }
        }
    }

    fn effect(&mut self, effect: Effect) -> Vec<AppEvent> {
        match effect {
            Effect::Engine(command) => self.send(command),
            Effect::Generate { turn } => self.generate(turn),
            Effect::Rewind => self.rewind(),
            Effect::Recall { text, tokens } => self.recall(text, tokens),
            Effect::Compact { upto } => self.compact(upto),
            Effect::Compare { answer } => self.compare(answer),
            Effect::Load(name) => self.load(name),
            Effect::Attach { typed, path } => {
                self.sessions.worker.beside(move || AppEvent::Attached { read: super::attach::read(&path), typed });
                Vec::new()
            }
            Effect::ListModels => {
                let (settings, models) = (self.app.setup.settings.clone(), Arc::clone(&self.loading.models));
                let used = self.app.used_models.clone();
                self.sessions.worker.beside(move || AppEvent::Models(models.list(&settings, &used)));
                Vec::new()
            }
            Effect::LoadReference(reference) => {
                let parts = &self.loading;
                let settings = parts.models.settings(&reference, &self.app.setup.settings, parts.given);
                self.load_settings(settings)
            }
            Effect::CancelLoad => {
                if !std::mem::replace(&mut self.begun, true) {
                    // The model loaded instead is the user's choice for the conversation that
                    // waits.
                    self.sessions.keep_model();
                }
                self.next = None;
                Vec::new()
            }
            Effect::Copy { text, what } => self.copy(&text, what),
            Effect::ExternalEditor(_) => Vec::new(),
            Effect::Mouse(on) => {
                if let Some(screen) = &mut self.screen {
                    let _ = screen.set_mouse(on);
                }
                Vec::new()
            }
            Effect::Redraw => {
                if let Some(screen) = &mut self.screen {
                    let _ = screen.redraw();
                }
                Vec::new()
            }
            Effect::Bell => {
                if let Some(screen) = &mut self.screen {
                    let _ = screen.write_raw("\x07");
                }
                Vec::new()
            }
            Effect::Suspend => {
                self.suspend();
                Vec::new()
            }
            Effect::Quit => {
                self.exit = Some(ExitKind::Quit);
                Vec::new()
            }
            Effect::Store(what) => {
                let stops = what == Store::StopOpening;
                let changes = self.app.chat.take_changes();
                self.sessions.record(&self.app.chat, changes);
                let events = self.sessions.run(&self.app, what);
                if stops && !self.begun && self.next.is_none() {
                    self.resume = Resume::New;
                    self.load_default();
                }
                events
            }
        }
    }

    fn copy(&mut self, text: &str, what: String) -> Vec<AppEvent> {
        let sent = match self.copier.copy(text) {
            Copied::Done => false,
            Copied::Sequence(sequence) => {
                if let Some(screen) = &mut self.screen {
                    let _ = screen.write_raw(&sequence);
                }
                true
            }
        };
        vec![AppEvent::Copied { what, sent }]
    }

    fn suspend(&mut self) {
        let Some(screen) = &mut self.screen else { return };
        screen.lend();
        let stopped = Instant::now();
        crate::system::signals::stop_here();
        let _ = screen.retake();
        // Time spent in the shell does not count.
        self.started += stopped.elapsed();
        self.dirty = true;
    }

    fn edit_outside(&mut self, text: &str, keyboard: &Keyboard) -> Result<String, String> {
        let Some(screen) = &mut self.screen else { return Err("there is no screen to edit on".into()) };
        keyboard.pause();
        screen.lend();
        let edited = editor_program::edit(self.app.setup.settings.editor.as_deref(), text);
        let _ = screen.retake();
        keyboard.resume();
        edited.map_err(|e| format!("{e:#}"))
    }
}

pub(super) async fn receive(events: Option<&mut Events>) -> Option<Event> {
    match events {
        Some(events) => events.recv().await.map(|response| response.event),
        None => std::future::pending().await,
    }
}
