//! Sends commands to the engine, and prompts once they are rendered.

use super::Runtime;
use crate::chat::MessageId;
use crate::protocol::{ChainsRequest, Command, Event, FORK_TURN, GenerateRequest, RecallRequest};
use crate::ui::event::AppEvent;
use crate::ui::outbox::{Purpose, Rendered, Source};
use crate::ui::sessions::render_options;
use crate::ui::state::Level;
use crate::ui::update::{QUESTION, cue_bytes, max_tokens, question};

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
                let steers =
                    matches!(command, Command::SetKeep(_) | Command::Pin { .. } | Command::Unpin(_) | Command::Rebuild);
                // It changes the saved conversation, not an empty one.
                if steers && self.sessions.restore.is_some() && self.current.is_some() {
                    self.restore();
                    self.send_now(Command::KeepCache(self.sessions.cache_file()));
                    events.push(AppEvent::Restored);
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
    pub(in crate::ui) fn recall(&mut self, text: String) -> Vec<AppEvent> {
        let Some(mut source) = self.source().filter(|_| self.current.is_some()) else {
            return vec![AppEvent::Engine(Event::Recalled(Err("no model is loaded".to_owned())))];
        };
        source.ask(&self.app.chat, &question(&text));
        source.alone = true;
        let request = RecallRequest { cue_bytes: cue_bytes(&text), text, ..RecallRequest::default() };
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
