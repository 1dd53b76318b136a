//! The loop of a chat in a terminal.

use super::super::clipboard::{Copied, Copier};
use super::super::effect::{Effect, Store};
use super::super::event::AppEvent;
use super::super::history::HistoryFile;
use super::super::keyboard::{Input, Keyboard, Typed};
use super::super::outbox::Outbox;
use super::super::sessions::Sessions;
use super::super::state::App;
use super::super::terminal::{Screen, drawn_size};
use super::super::training::{Report, Work};
use super::super::update::update_at;
use super::super::worker::{Outcome, Outcomes};
use super::super::{ExitKind, LoadParts, Resume, editor_program};
use crate::protocol::{EngineHandle, Event, Snapshot};
use crate::system::signals::{Signal, Signals};
use crossterm::event::{Event as Terminal, MouseEventKind};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest time between two frames after a key, and while only the model writes, which needs the
/// cores more.
pub(super) const FRAME: Duration = Duration::from_millis(16);

pub(super) const QUIET_FRAME: Duration = Duration::from_millis(33);

pub struct Runtime {
    pub app: App,
    pub(super) screen: Option<Screen>,
    pub(super) loading: LoadParts,
    /// The work of /train, while it runs.
    pub(super) training: Option<Work>,
    /// The engine in use, and the one that is being loaded.
    pub(in crate::ui) current: Option<EngineHandle>,
    pub(super) next: Option<EngineHandle>,
    /// Commands that are still to be sent to the engine in use.
    pub(in crate::ui) outbox: Outbox,
    pub(in crate::ui) sessions: Sessions,
    pub(super) history: HistoryFile,
    pub(super) copier: Copier,
    pub(super) started: Instant,
    pub(super) dirty: bool,
    /// A key was pressed since the last frame.
    pub(super) pressed: bool,
    pub(in crate::ui) exit: Option<ExitKind>,
    /// The editor had the terminal: signals of keys that came meanwhile were meant for it.
    pub(super) lent: bool,
    /// A model was loaded, or the user has chosen to continue without.
    pub(super) begun: bool,
    /// A conversation to open once the model is there.
    pub(super) resume: Resume,
    pub(super) outcomes: Outcomes,
    /// The name of that conversation's model, while it loads.
    pub(super) own: Option<String>,
    /// That model's name and the error, where it did not load.
    pub(super) lacking: Option<(String, String)>,
    /// The theme follows the terminal's background.
    pub(in crate::ui) follow_background: bool,
}

/// The reason the loop woke up.
pub(in crate::ui) enum Woken {
    Typed(Option<Typed>),
    /// In line mode; `None` at the end of the input.
    Line(Option<String>),
    Engine(Option<Event>),
    /// From the engine that is being loaded.
    Next(Option<Event>),
    /// From the work of /train.
    Trained(Option<Report>),
    Snapshot,
    Outcome(Outcome),
    Signal(Signal),
    Timer,
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
            training: None,
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
            lent: false,
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
        let (models, folder) = (Arc::clone(&self.loading.models), self.sessions.folder.clone());
        let settings = self.app.setup.settings.clone();
        let known = move || AppEvent::KnownModels { known: models.known(&settings), used: folder.models() };
        self.sessions.worker.beside(known);
        let session = self.sessions.current();
        self.handle(AppEvent::SessionBegan(session));
        let resume = self.resume.clone();
        if resume != Resume::New {
            self.handle(AppEvent::Opening(matches!(resume, Resume::Open(_))));
        }
        match resume {
            Resume::Open(which) => self.sessions.read(which, false),
            Resume::New | Resume::Choose => self.load_default(),
        }
    }

    pub(in crate::ui) fn outcome(&mut self, outcome: Outcome) {
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
            let typed = async { Some(Woken::Typed(keyboard.events.recv().await)) };
            match self.wait(typed, &mut signals, timer).await {
                Woken::Typed(Some(typed)) => self.typed(typed, &keyboard),
                Woken::Typed(None) => self.exit = Some(ExitKind::Signal(1)),
                Woken::Signal(signal) => self.signal(signal),
                other => self.woken(other),
            }
            self.drain(&mut keyboard);
            if std::mem::take(&mut self.lent) {
                signals.drop_keys().await;
            }
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
    pub(super) fn ask_background(&mut self) -> (Vec<u8>, bool) {
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

    pub(super) fn elapsed_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    pub(super) fn frame(&self) -> Duration {
        if self.pressed { FRAME } else { QUIET_FRAME }
    }

    /// Returns how long the loop may sleep without an event.
    pub(super) fn timer(&self, drawn: Instant) -> Option<Duration> {
        let frame = self.dirty.then(|| self.frame().saturating_sub(drawn.elapsed()));
        let tick = self.app.wants_tick().map(|at| Duration::from_millis((at + 1).saturating_sub(self.elapsed_ms())));
        [frame, tick, self.disk_timer()].into_iter().flatten().min()
    }

    /// Returns how long a disk may still take.
    pub(in crate::ui) fn disk_timer(&self) -> Option<Duration> {
        self.sessions.overdue_at().map(|at| at.saturating_duration_since(Instant::now().into()))
    }

    /// Waits for the next event, of which `input` is one kind. A source that is `None` has none.
    pub(in crate::ui) async fn wait(
        &mut self,
        input: impl Future<Output = Option<Woken>>,
        signals: &mut Signals,
        timer: Option<Duration>,
    ) -> Woken {
        let (events, snapshot) = match &mut self.current {
            Some(engine) => (Some(&mut engine.events), Some(&mut engine.snapshot)),
            None => (None, None),
        };
        let next = self.next.as_mut().map(|n| &mut n.events);
        let training = self.training.as_mut().map(|work| &mut work.reports);
        tokio::select! {
            biased;
            signal = signals.next() => Woken::Signal(signal),
            Some(woken) = input => woken,
            Some(response) = async { Some(events?.recv().await) } => Woken::Engine(response.map(|r| r.event)),
            Some(response) = async { Some(next?.recv().await) } => Woken::Next(response.map(|r| r.event)),
            Some(outcome) = self.outcomes.recv() => Woken::Outcome(outcome),
            Some(report) = async { Some(training?.recv().await) } => Woken::Trained(report),
            // A closed channel shows in the events.
            Some(()) = async { snapshot?.changed().await.ok() } => Woken::Snapshot,
            Some(()) = async {
                tokio::time::sleep(timer?).await;
                Some(())
            } => Woken::Timer,
        }
    }

    /// Handles events that are neither input nor a signal.
    pub(in crate::ui) fn woken(&mut self, woken: Woken) {
        match woken {
            Woken::Engine(event) => self.engine(event),
            Woken::Next(event) => self.next(event),
            Woken::Outcome(outcome) => self.outcome(outcome),
            Woken::Trained(Some(report)) => self.handle(AppEvent::Trained(report)),
            Woken::Trained(None) => self.training = None,
            Woken::Snapshot => self.snapshot(),
            Woken::Timer => self.sessions.overdue().into_iter().for_each(|event| self.handle(event)),
            Woken::Typed(_) | Woken::Line(_) | Woken::Signal(_) => {}
        }
    }

    /// Handles all pending events.
    pub(super) fn drain(&mut self, keyboard: &mut Keyboard) {
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

    pub(super) fn typed(&mut self, (at, event): Typed, keyboard: &Keyboard) {
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
            Ok(Input::Burst(text)) => AppEvent::Burst(text),
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

    pub(in crate::ui) fn engine(&mut self, event: Option<Event>) {
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

    pub(in crate::ui) fn snapshot(&mut self) {
        let snapshot: Option<Arc<Snapshot>> =
            self.current.as_mut().and_then(|e| e.snapshot.borrow_and_update().clone());
        if let Some(snapshot) = snapshot {
            self.handle(AppEvent::Snapshot(snapshot));
        }
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::End(number) => self.exit = Some(ExitKind::Signal(number)),
            Signal::Stop => self.suspend(),
            Signal::Continue => {
                self.on_screen(Screen::retake);
                self.dirty = true;
            }
        }
    }

    pub(super) fn update(&mut self, event: AppEvent) -> Vec<Effect> {
        self.update_at(event, Instant::now())
    }

    pub(super) fn update_at(&mut self, event: AppEvent, at: Instant) -> Vec<Effect> {
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

    pub(super) fn effects(&mut self, effects: Vec<Effect>) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            for event in self.effect(effect) {
                queue.extend(self.update(event));
            }
        }
    }

    /// Carries out an effect and returns its results.
    pub(super) fn effect(&mut self, effect: Effect) -> Vec<AppEvent> {
        match effect {
            Effect::Engine(command) => return self.send(command),
            Effect::Generate { turn } => return self.generate(turn),
            Effect::Rewind => self.rewind(),
            Effect::Recall { text, tokens } => return self.recall(text, tokens),
            Effect::Compact { upto } => return self.compact(upto),
            Effect::Compare { answer } => return self.compare(answer),
            Effect::Load(name) => return self.load(name),
            Effect::Attach { typed, path } => {
                let offline = self.app.models.offline;
                self.sessions
                    .worker
                    .beside(move || AppEvent::Attached { read: super::super::attach::read(&path, offline), typed });
            }
            Effect::Run { id, job } => self.sessions.worker.beside(move || AppEvent::Ran { id, result: job.run() }),
            Effect::ListModels => {
                let (settings, models) = (self.app.setup.settings.clone(), Arc::clone(&self.loading.models));
                let used = self.app.used_models.clone();
                self.sessions.worker.beside(move || AppEvent::Models(models.list(&settings, &used)));
            }
            Effect::Train { estimates } => {
                let mut settings = self.app.setup.settings.clone();
                settings.model = self.loading.models.full_name(&self.app.engine.loaded);
                match (self.loading.train)(&settings, estimates) {
                    Ok(work) => self.training = Some(work),
                    Err(error) => return vec![AppEvent::Trained(Report::Failed(format!("{error:#}")))],
                }
            }
            Effect::StopTraining => self.training = None,
            Effect::LoadReference(reference) => {
                let parts = &self.loading;
                let settings = parts.models.settings(&reference, &self.app.setup.settings, parts.given);
                return self.load_settings(settings);
            }
            Effect::CancelLoad => {
                if !std::mem::replace(&mut self.begun, true) {
                    // The model loaded instead is the user's choice for the conversation that
                    // waits.
                    self.sessions.model_given = true;
                }
                self.next = None;
            }
            Effect::Copy { text, what } => return self.copy(&text, what),
            // By `typed`, which has the keyboard.
            Effect::ExternalEditor(_) => {}
            Effect::Mouse(on) => self.on_screen(|screen| screen.set_mouse(on)),
            Effect::Redraw => self.on_screen(Screen::redraw),
            Effect::Bell => self.on_screen(|screen| screen.write_raw("\x07")),
            Effect::Suspend => self.suspend(),
            Effect::Quit => self.exit = Some(ExitKind::Quit),
            Effect::Store(what) => return self.store(what),
        }
        Vec::new()
    }

    pub(super) fn store(&mut self, what: Store) -> Vec<AppEvent> {
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

    /// Runs an operation on the screen, which line mode does not have. A terminal that is gone ends
    /// the chat elsewhere.
    pub(super) fn on_screen(&mut self, act: impl FnOnce(&mut Screen) -> io::Result<()>) {
        if let Some(screen) = &mut self.screen {
            let _ = act(screen);
        }
    }

    pub(super) fn copy(&mut self, text: &str, what: String) -> Vec<AppEvent> {
        let sent = match self.copier.copy(text) {
            Copied::Done => false,
            Copied::Sequence(sequence) => {
                self.on_screen(|screen| screen.write_raw(&sequence));
                true
            }
        };
        vec![AppEvent::Copied { what, sent }]
    }

    pub(super) fn suspend(&mut self) {
        let Some(screen) = &mut self.screen else { return };
        screen.lend();
        let stopped = Instant::now();
        crate::system::signals::stop_here();
        let _ = screen.retake();
        // Time spent in the shell does not count.
        self.started += stopped.elapsed();
        self.dirty = true;
    }

    pub(super) fn edit_outside(&mut self, text: &str, keyboard: &Keyboard) -> Result<String, String> {
        let Some(screen) = &mut self.screen else { return Err("there is no screen to edit on".into()) };
        keyboard.pause();
        self.lent = true;
        screen.lend();
        let edited = editor_program::edit(self.app.setup.settings.editor.as_deref(), text);
        let _ = screen.retake();
        keyboard.resume();
        edited.map_err(|e| format!("{e:#}"))
    }
}
