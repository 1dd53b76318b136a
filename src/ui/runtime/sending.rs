//! Sends commands to the engine, and prompts once they are rendered.

use super::Runtime;
use crate::chat::MessageId;
use crate::config::Pin;
use crate::protocol::{Ask, Command, GenerateRequest, RecallRequest};
use crate::ui::commands::compact::{QUESTION, max_tokens};
use crate::ui::commands::recall::{cue_bytes, question};
use crate::ui::event::{AppEvent, Asked};
use crate::ui::outbox::{Purpose, Source};
use crate::ui::sessions::render_options;
use crate::ui::state::{Level, Restore};
use crate::ui::worker::Rendered;
use std::ops::Range;

impl Runtime {
    /// Queues a command after the waiting ones. Cancel also acts on queued commands.
    pub(in crate::ui) fn send(&mut self, command: Command) -> Vec<AppEvent> {
        match command {
            Command::Cancel => {
                if let Some(what) = self.outbox.withdraw() {
                    self.flush();
                    return vec![AppEvent::NotAsked { what, why: None }];
                }
                self.send_now(command);
            }
            // These only read: they need no place in the order.
            Command::Inspect { .. } | Command::Presence(_) | Command::CountTokens { .. } => self.send_now(command),
            command => {
                let mut events = Vec::new();
                let toggles = matches!(command, Command::SetEviction(_));
                let steers = matches!(
                    command,
                    Command::SetDial(_)
                        | Command::Pin { .. }
                        | Command::Unpin(_)
                        | Command::PinTokens { .. }
                        | Command::Rebuild
                );
                // It changes the saved conversation, not an empty one.
                let restores = steers && self.current.is_some() && self.restore();
                if restores {
                    events.push(AppEvent::Restored);
                }
                // Before the first message nothing has said so.
                if restores || ((steers || toggles) && self.app.session.is_restored()) {
                    self.outbox.push(Command::KeepCache(self.sessions.cache_file()));
                }
                self.outbox.push(command);
                self.flush();
                return events;
            }
        }
        Vec::new()
    }

    fn send_now(&self, command: Command) {
        if let Some(engine) = &self.current {
            engine.send(command);
        }
    }

    fn flush(&mut self) {
        while let Some(command) = self.outbox.ready() {
            self.send_now(command);
        }
    }

    /// Has a prompt rendered and asked. `make` completes its source and returns what it is for.
    fn ask_for(&mut self, what: Asked, make: impl FnOnce(&Self, &mut Source) -> Option<Purpose>) -> Vec<AppEvent> {
        let source = self.source().filter(|_| self.current.is_some());
        let Some((purpose, source)) = source.and_then(|mut source| Some((make(self, &mut source)?, source))) else {
            return vec![AppEvent::NotAsked { what, why: Some("no model is loaded".into()) }];
        };
        self.outbox.push_prompt(purpose, source);
        self.flush();
        Vec::new()
    }

    /// Renders the conversation and requests the answer of `turn`.
    pub(in crate::ui) fn generate(&mut self, turn: u64) -> Vec<AppEvent> {
        self.ask_for(Asked::Turn(turn), |this, source| {
            let (app, settings) = (&this.app, &this.app.setup.settings);
            let pin = app.chat.system().filter(|_| settings.pin == Pin::System).map(str::to_owned);
            let chains = app.turn.as_ref().and_then(|turn| turn.width.request(settings.early_stop, false));
            let ask = this.ask(app.options.max_tokens, source);
            Some(Purpose::Generate(Box::new(GenerateRequest { turn, ask, pin, chains })))
        })
    }

    /// Renders the conversation up to a message with a request for a summary and asks for it.
    pub(in crate::ui) fn compact(&mut self, upto: MessageId) -> Vec<AppEvent> {
        self.ask_for(Asked::Aside { dense: false }, |this, source| {
            let mut chat = this.app.chat.clone();
            chat.set_head(Some(upto));
            source.ask(&chat, QUESTION);
            let ask = this.ask(Some(max_tokens(source.info.context)), source);
            Some(Purpose::Probe(Asked::Aside { dense: false }, ask.aside(false)))
        })
    }

    /// Renders the conversation up to the question of an answer, and has it answered again without
    /// eviction, sampled alike.
    pub(in crate::ui) fn compare(&mut self, answer: MessageId) -> Vec<AppEvent> {
        self.ask_for(Asked::Aside { dense: true }, |this, source| {
            let chat = &this.app.chat;
            let message = chat.get(answer)?;
            let (question, report) = (message.parent?, message.report.as_deref()?);
            source.path = chat.context_path_to(Some(question)).into_iter().cloned().collect();
            let ask = this.ask(this.app.options.max_tokens, source);
            let ask = Ask { sampling: report.sampling.clone(), seed: Some(report.seed), ..ask };
            Some(Purpose::Probe(Asked::Aside { dense: true }, ask.aside(true)))
        })
    }

    /// Renders the conversation with a question for `text` and asks it.
    pub(in crate::ui) fn recall(&mut self, text: String, tokens: Option<Range<usize>>) -> Vec<AppEvent> {
        self.ask_for(Asked::Recall, |this, source| {
            source.ask(&this.app.chat, &question(&text));
            source.alone = true;
            let request = RecallRequest { cue_bytes: cue_bytes(&text), text, tokens, ..RecallRequest::default() };
            Some(Purpose::Probe(Asked::Recall, request.into()))
        })
    }

    /// The request without its prompt.
    fn ask(&self, max_tokens: Option<usize>, source: &Source) -> Ask {
        let (sampling, seed) = (self.app.sampling(), self.app.options.seed);
        let max_think = source.info.max_think(self.app.options.max_think);
        let drafts = self.app.options.drafts.min(source.info.most_drafts);
        Ask { sampling, seed, max_tokens, max_think, drafts, ..Ask::default() }
    }

    /// Renders the rest of the conversation and rewinds the cache to it.
    pub(in crate::ui) fn rewind(&mut self) {
        match self.source() {
            Some(source) if !source.path.is_empty() => self.outbox.push_prompt(Purpose::Rewind, source),
            Some(_) => self.outbox.push(Command::Rewind(Vec::new())),
            None => {}
        }
        self.flush();
    }

    fn source(&self) -> Option<Source> {
        Some(Source {
            info: self.app.engine.info.clone()?,
            system: self.app.chat.system().map(str::to_owned),
            path: self.app.chat.context_path().into_iter().cloned().collect(),
            alone: false,
            options: render_options(&self.app),
        })
    }

    /// Sends the state of a saved conversation that is not in the cache yet; false if there is
    /// none.
    fn restore(&mut self) -> bool {
        let Restore::Waiting(Some(restore)) = &self.app.session.restore else { return false };
        self.send_now(Command::Restore(restore.clone()));
        true
    }

    /// Sends a command that reads the cache, which holds the saved conversation then.
    fn ask_now(&mut self, command: Command) -> AppEvent {
        self.restore();
        self.send_now(Command::KeepCache(self.sessions.cache_file()));
        self.send_now(command);
        AppEvent::Restored
    }

    /// Sends the command of a finished rendering, and the commands that waited for it.
    pub(in crate::ui) fn rendered(&mut self, rendered: Rendered) {
        let Some((purpose, result)) = self.outbox.finish(rendered) else { return };
        let event = match (purpose, result) {
            (Purpose::Generate(mut request), Ok([prompt, _])) => {
                request.ask.prompt = prompt;
                Some(self.ask_now(Command::Generate(request)))
            }
            (Purpose::Probe(_, mut probe), Ok([prompt, alone])) => {
                probe.set_prompts(prompt, alone);
                Some(self.ask_now(Command::Probe(probe)))
            }
            (Purpose::Rewind, Ok([pieces, _])) => {
                self.send_now(Command::Rewind(pieces));
                None
            }
            (purpose, Err(error)) => Some(match purpose.asked() {
                Some(what) => AppEvent::NotAsked { what, why: Some(format!("{error:#}")) },
                None => AppEvent::Said(Level::Warning, format!("the cache stays as it was: {error:#}")),
            }),
        };
        self.flush();
        if let Some(event) = event {
            self.handle(event);
        }
    }
}
