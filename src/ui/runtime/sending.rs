//! Sends commands to the engine, and prompts once they are rendered.

use super::Runtime;
use crate::chat::MessageId;
use crate::protocol::{Ask, Command, GenerateRequest, Probe, RecallRequest};
use crate::ui::commands::compact::{QUESTION, max_tokens};
use crate::ui::commands::recall::{cue_bytes, question};
use crate::ui::event::{AppEvent, Asked};
use crate::ui::outbox::{Purpose, Source};
use crate::ui::sessions::render_options;
use crate::ui::state::{Level, Restore};
use crate::ui::worker::Rendered;
use std::ops::Range;

fn not_asked(what: Asked) -> Vec<AppEvent> {
    vec![AppEvent::NotAsked { what, why: Some("no model is loaded".into()) }]
}

impl Runtime {
    /// Queues a command behind those that wait. Cancel also acts on queued commands.
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

    /// Renders the conversation and requests the answer of `turn`.
    pub(in crate::ui) fn generate(&mut self, turn: u64) -> Vec<AppEvent> {
        let Some(source) = self.source().filter(|_| self.current.is_some()) else {
            return not_asked(Asked::Turn(turn));
        };
        let pin = self
            .app
            .chat
            .system()
            .filter(|_| self.app.setup.settings.pin == crate::config::Pin::System)
            .map(str::to_owned);
        let early_stop = self.app.setup.settings.early_stop;
        let chains = self.app.turn.as_ref().and_then(|turn| turn.chains_request(early_stop));
        let ask = self.ask(self.app.options.max_tokens, &source);
        let request = GenerateRequest { turn, ask, pin, chains };
        self.outbox.push_prompt(Purpose::Generate(Box::new(request)), source);
        self.flush();
        Vec::new()
    }

    /// Renders the conversation up to a message with a request for a summary and asks for it.
    pub(in crate::ui) fn compact(&mut self, upto: MessageId) -> Vec<AppEvent> {
        let Some(mut source) = self.source().filter(|_| self.current.is_some()) else {
            return not_asked(Asked::Aside { dense: false });
        };
        let mut chat = self.app.chat.clone();
        chat.set_head(Some(upto));
        source.ask(&chat, QUESTION);
        let ask = Box::new(self.ask(Some(max_tokens(source.info.context)), &source));
        self.outbox.push_prompt(Purpose::Probe(Probe::Aside { ask, dense: false }), source);
        self.flush();
        Vec::new()
    }

    /// Renders the conversation up to the question of an answer, and has it answered again without
    /// eviction, sampled alike.
    pub(in crate::ui) fn compare(&mut self, answer: MessageId) -> Vec<AppEvent> {
        let chat = &self.app.chat;
        let found = chat.get(answer).and_then(|message| Some((message.parent?, message.report.as_deref()?)));
        let (Some(mut source), Some((question, report))) = (self.source().filter(|_| self.current.is_some()), found)
        else {
            return not_asked(Asked::Aside { dense: true });
        };
        source.path = chat.context_path_to(Some(question)).into_iter().cloned().collect();
        let ask = Box::new(Ask {
            sampling: report.sampling.clone(),
            seed: Some(report.seed),
            ..self.ask(self.app.options.max_tokens, &source)
        });
        self.outbox.push_prompt(Purpose::Probe(Probe::Aside { ask, dense: true }), source);
        self.flush();
        Vec::new()
    }

    /// What is asked, but for its prompt.
    fn ask(&self, max_tokens: Option<usize>, source: &Source) -> Ask {
        let (sampling, seed) = (self.app.sampling(), self.app.options.seed);
        let max_think = source.info.max_think(self.app.options.max_think);
        let drafts = self.app.options.drafts.min(source.info.most_drafts);
        Ask { prompt: Vec::new(), sampling, seed, max_tokens, max_think, drafts }
    }

    /// Renders the rest of the conversation and rewinds the cache to it.
    pub(in crate::ui) fn rewind(&mut self) -> Vec<AppEvent> {
        match self.source() {
            Some(source) if !source.path.is_empty() => self.outbox.push_prompt(Purpose::Rewind, source),
            Some(_) => self.outbox.push(Command::Rewind(Vec::new())),
            None => {}
        }
        self.flush();
        Vec::new()
    }

    /// Renders the conversation with a question for `text` and asks it.
    pub(in crate::ui) fn recall(&mut self, text: String, tokens: Option<Range<usize>>) -> Vec<AppEvent> {
        let Some(mut source) = self.source().filter(|_| self.current.is_some()) else {
            return not_asked(Asked::Recall);
        };
        source.ask(&self.app.chat, &question(&text));
        source.alone = true;
        let request = RecallRequest { cue_bytes: cue_bytes(&text), text, tokens, ..RecallRequest::default() };
        self.outbox.push_prompt(Purpose::Probe(Probe::Recall(Box::new(request))), source);
        self.flush();
        Vec::new()
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

    /// Sends the command of a finished rendering, and the commands that waited for it.
    pub(in crate::ui) fn rendered(&mut self, rendered: Rendered) {
        let Some((purpose, result)) = self.outbox.finish(rendered) else { return };
        let event = match (purpose, result) {
            (Purpose::Generate(mut request), Ok(prompt)) => {
                self.restore();
                self.send_now(Command::KeepCache(self.sessions.cache_file()));
                request.ask.prompt = prompt;
                self.send_now(Command::Generate(request));
                Some(AppEvent::Restored)
            }
            (Purpose::Probe(mut probe), Ok(prompt)) => {
                self.restore();
                self.send_now(Command::KeepCache(self.sessions.cache_file()));
                match &mut probe {
                    Probe::Recall(request) => request.prompt = prompt,
                    Probe::Aside { ask, .. } => ask.prompt = prompt,
                    Probe::Logprobs(_) => {}
                }
                self.send_now(Command::Probe(probe));
                Some(AppEvent::Restored)
            }
            (Purpose::Rewind, Ok(pieces)) => {
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
