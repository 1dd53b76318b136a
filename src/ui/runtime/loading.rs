//! Loads models, and the conversation that the command line names.

use super::Runtime;
use crate::config::{Adapter, Settings};
use crate::protocol::{DraftSource, Event};
use crate::ui::effect::{Effect, Store};
use crate::ui::event::AppEvent;
use crate::ui::worker::Read;
use crate::ui::{ExitKind, Resume};
use std::sync::Arc;

impl Runtime {
    /// Handles a saved conversation that was read. At startup its model is loaded first.
    pub(super) fn read(&mut self, read: Box<Read>) {
        let Some(read) = self.sessions.expect(read) else { return };
        if self.begun || self.next.is_some() {
            let events = self.sessions.was_read(&self.app, read);
            return events.into_iter().for_each(|event| self.handle(event));
        }
        let own = read.model().cloned().filter(|_| !self.sessions.model_given);
        self.sessions.keep(read);
        self.handle(AppEvent::Opening(false));
        match own {
            Some(reference) => {
                self.own = Some(reference.name());
                self.handle(AppEvent::LoadBegan(reference.name()));
                self.effects(vec![Effect::LoadReference(reference)]);
            }
            None => self.load_default(),
        }
    }

    pub(super) fn load_default(&mut self) {
        let name = self.app.setup.settings.model.clone();
        self.handle(AppEvent::LoadBegan(name.clone()));
        self.effects(vec![Effect::Load(name)]);
    }

    /// Handles an event of the engine that is loading; once ready it replaces the one in use.
    pub(in crate::ui) fn next(&mut self, event: Option<Event>) {
        match event {
            Some(
                progress @ (Event::Downloading(_)
                | Event::Loading { .. }
                | Event::Quantizing { .. }
                | Event::CompilingKernels { .. }),
            ) => self.handle(AppEvent::Progress(progress)),
            Some(Event::Ready(info)) => {
                if std::mem::replace(&mut self.current, self.next.take()).is_some() {
                    self.outbox.clear();
                }
                self.begun = true;
                self.sessions.info = Some(Arc::clone(&info));
                self.handle(AppEvent::ModelReady(info));
                self.snapshot();
                self.open_resumed();
            }
            Some(Event::LoadFailed(error) | Event::Failed(error)) => self.load_failed(error),
            Some(event) => self.handle(AppEvent::Engine(event)),
            None => self.load_failed("the engine ended while it loaded".into()),
        }
    }

    pub(super) fn load_failed(&mut self, error: String) {
        self.next = None;
        let own = self.own.take();
        if self.begun {
            self.handle(AppEvent::LoadFailed(error));
        } else if let Some(model) = own {
            self.lacking = Some((model, error));
            self.load_default();
        } else {
            self.exit = Some(ExitKind::NotLoaded(error));
        }
    }

    pub(super) fn open_resumed(&mut self) {
        let which = match std::mem::take(&mut self.resume) {
            Resume::New => return,
            Resume::Open(which) => which,
            Resume::Choose => return self.effects(vec![Effect::Store(Store::List)]),
        };
        match self.lacking.take() {
            Some((model, why)) => self.handle(AppEvent::OpenLacksModel { which, model, why }),
            None => self.effects(vec![Effect::Store(Store::Open { which, with_current: false })]),
        }
    }

    pub(super) fn load(&mut self, name: String) -> Vec<AppEvent> {
        let name = self.loading.models.full_name(&name);
        let mut settings = self.app.setup.settings.clone();
        if name != settings.model {
            settings.adapter = Adapter::Auto;
            settings.model = name;
        }
        // A share set by /forget stays; a saved conversation has its own.
        if let Some((ratio, trained)) = self.app.engine.dial {
            settings.keep_ratio = (ratio != trained).then_some(ratio);
        }
        self.load_settings(settings)
    }

    pub(super) fn load_settings(&mut self, mut settings: Settings) -> Vec<AppEvent> {
        if self.current.is_some() {
            settings.eviction = Some(self.app.engine.eviction);
        }
        settings.kv_limit = self.app.options.kv_limit;
        settings.when_full = self.app.options.when_full;
        if settings.draft == DraftSource::Off {
            // None are tried until /draft asks for them.
            settings.draft = DraftSource::Lookup;
        }
        match (self.loading.load)(&settings) {
            Ok(handle) => {
                self.next = Some(handle);
                Vec::new()
            }
            Err(error) if self.begun => vec![AppEvent::LoadFailed(format!("{error:#}"))],
            Err(error) => {
                self.exit = Some(ExitKind::NotLoaded(format!("{error:#}")));
                Vec::new()
            }
        }
    }
}
