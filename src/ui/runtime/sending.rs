//! Sends commands to the engine, and prompts once they are rendered.

use super::Runtime;
use crate::chat::MessageId;
use crate::protocol::{ChainsRequest, Command, DENSE_TURN, Event, FORK_TURN, GenerateRequest, RecallRequest};
use crate::ui::commands::compact::{QUESTION, max_tokens};
use crate::ui::commands::recall::{cue_bytes, question};
use crate::ui::event::AppEvent;
use crate::ui::outbox::{Purpose, Rendered, Source};
use crate::ui::sessions::render_options;
use crate::ui::state::Level;
use std::ops::Range;

impl Runtime {
    /// Queues a command behind those that wait. Cancel also acts on queued commands.
    pub(in crate::ui) fn send(&mut self, command: Command) -> Vec<AppEvent> {
        match command {
            Command::Cancel => {
                if let Some(turn) = self.outbox.withdraw_turn() {
                    self.flush();
                    return vec![AppEvent::Withdrawn { turn }];
                }
                if self.outbox.withdraw_rebuild() {
                    let tokens = self.app.tokens();
                    return vec![AppEvent::Engine(Event::RebuildDone { cancelled: true, tokens })];
                }
                if self.outbox.withdraw_recall() {
                    return vec![AppEvent::Engine(Event::Recalled(Err("stopped".to_owned())))];
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
                    Command::SetKeep(_)
                        | Command::Pin { .. }
                        | Command::Unpin(_)
                        | Command::PinTokens { .. }
                        | Command::Rebuild
                );
                // It changes the saved conversation, not an empty one.
                let restores = steers && self.sessions.restore.is_some() && self.current.is_some();
                if restores {
                    self.restore();
                    events.push(AppEvent::Restored);
                }
                // Before the first message nothing has said so.
                if restores || ((steers || toggles) && self.sessions.restore.is_none()) {
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
            return vec![AppEvent::GenerateFailed { turn, error: "no model is loaded".into() }];
        };
        let pin = self.app.chat.system().filter(|_| self.app.setup.settings.pin_system).map(str::to_owned);
        let early_stop = self.app.setup.settings.early_stop;
        let chains = self.app.turn.as_ref().and_then(|turn| turn.chains_request(early_stop));
        self.request(turn, self.app.options.max_tokens, pin, chains, source);
        Vec::new()
    }

    /// Renders the conversation up to a message with a request for a summary and asks for it.
    pub(in crate::ui) fn compact(&mut self, upto: MessageId) -> Vec<AppEvent> {
        let Some(mut source) = self.source().filter(|_| self.current.is_some()) else {
            return vec![AppEvent::GenerateFailed { turn: FORK_TURN, error: "no model is loaded".into() }];
        };
        let mut chat = self.app.chat.clone();
        chat.set_head(Some(upto));
        source.ask(&chat, QUESTION);
        self.request(FORK_TURN, Some(max_tokens(source.info.context)), None, None, source);
        Vec::new()
    }

    /// Renders the conversation up to the question of an answer, and has it answered again without eviction, sampled alike.
    pub(in crate::ui) fn compare(&mut self, answer: MessageId) -> Vec<AppEvent> {
        let chat = &self.app.chat;
        let found = chat.get(answer).and_then(|message| Some((message.parent?, message.report.as_deref()?)));
        let (Some(mut source), Some((question, report))) = (self.source().filter(|_| self.current.is_some()), found)
        else {
            return vec![AppEvent::GenerateFailed { turn: DENSE_TURN, error: "no model is loaded".into() }];
        };
        source.path = chat.context_path_to(Some(question)).into_iter().cloned().collect();
        let request = GenerateRequest {
            turn: DENSE_TURN,
            prompt: Vec::new(),
            sampling: report.sampling.clone(),
            seed: Some(report.seed),
            max_tokens: self.app.options.max_tokens,
            max_think: source.info.max_think(self.app.options.max_think),
            pin: None,
            chains: None,
        };
        self.outbox.push_prompt(Purpose::Generate(Box::new(request)), source);
        self.flush();
        Vec::new()
    }

    fn request(
        &mut self,
        turn: u64,
        max_tokens: Option<usize>,
        pin: Option<String>,
        chains: Option<ChainsRequest>,
        source: Source,
    ) {
        let (sampling, seed) = (self.app.sampling(), self.app.options.seed);
        let max_think = source.info.max_think(self.app.options.max_think);
        let request = GenerateRequest { turn, prompt: Vec::new(), sampling, seed, max_tokens, max_think, pin, chains };
        self.outbox.push_prompt(Purpose::Generate(Box::new(request)), source);
        self.flush();
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
            return vec![AppEvent::Engine(Event::Recalled(Err("no model is loaded".to_owned())))];
        };
        source.ask(&self.app.chat, &question(&text));
        source.alone = true;
        let request = RecallRequest { cue_bytes: cue_bytes(&text), text, tokens, ..RecallRequest::default() };
        self.outbox.push_prompt(Purpose::Recall(Box::new(request)), source);
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

    /// Sends the state of a saved conversation that is not in the cache yet.
    fn restore(&mut self) {
        if let Some(restore) = self.sessions.restore.take() {
            self.send_now(Command::Restore(Box::new(restore)));
        }
    }

    /// Loads the saved conversation that was opened into the cache. Its file is not written before the conversation goes on.
    pub(in crate::ui) fn load_cache(&mut self) -> Vec<AppEvent> {
        let Some(restore) = self.sessions.restore.take_if(|_| self.current.is_some()) else {
            return vec![AppEvent::NotRestored];
        };
        self.sessions.restoring = Some(restore.clone());
        self.outbox.push(Command::KeepCache(None));
        self.outbox.push(Command::Restore(Box::new(restore)));
        self.flush();
        vec![AppEvent::Restored]
    }

    /// Notes the end of such a load. One that was stopped is done with the next message.
    pub(in crate::ui) fn restored(&mut self, event: &Event) -> Option<AppEvent> {
        let Event::RebuildDone { cancelled, .. } = event else { return None };
        // A model that was loaded meanwhile has nothing to go back to.
        let restore = self.sessions.restoring.take().filter(|_| *cancelled && self.app.engine.restoring)?;
        self.sessions.restore = Some(restore);
        Some(AppEvent::NotRestored)
    }

    /// Sends the command of a finished rendering, and the commands that waited for it.
    pub(in crate::ui) fn rendered(&mut self, rendered: Rendered) {
        let Some((purpose, result)) = self.outbox.finish(rendered) else { return };
        let event = match (purpose, result) {
            (Purpose::Generate(mut request), Ok(prompt)) => {
                self.restore();
                self.send_now(Command::KeepCache(self.sessions.cache_file()));
                request.prompt = prompt;
                self.send_now(Command::Generate(request));
                Some(AppEvent::Restored)
            }
            (Purpose::Recall(mut request), Ok(prompt)) => {
                self.restore();
                request.prompt = prompt;
                self.send_now(Command::Recall(request));
                Some(AppEvent::Restored)
            }
            (Purpose::Recall(_), Err(error)) => Some(AppEvent::Engine(Event::Recalled(Err(format!("{error:#}"))))),
            (Purpose::Generate(request), Err(error)) => {
                Some(AppEvent::GenerateFailed { turn: request.turn, error: format!("{error:#}") })
            }
            (Purpose::Rewind, Ok(pieces)) => {
                self.send_now(Command::Rewind(pieces));
                None
            }
            (Purpose::Rewind, Err(error)) => {
                Some(AppEvent::Said(Level::Warning, format!("the cache stays as it was: {error:#}")))
            }
        };
        self.flush();
        if let Some(event) = event {
            self.handle(event);
        }
    }
}
