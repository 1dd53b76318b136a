//! A model on another machine's engine: a server with OpenAI's API stands where the engine's thread
//! does, with the same commands and events. What it does not report, such as its cache, is refused
//! by name; another dmschat switches eviction with a request, and reports what its cache holds.

mod chat;
mod http;
mod memory;
mod reading;
mod served;

pub use http::Remote;

use crate::protocol::{
    Ask, Command, ConversationId, EngineHandle, EngineMessage, Event, EventSender, GenerateRequest, ModelInfo, Outlet,
    Request, Snapshot,
};
use crate::random;
use http::Server;
use reading::{Conversation, Reading, Running, lock};
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

/// Starts the thread that speaks to the server. [`Event::Ready`] follows once it has said which
/// model it has, or [`Event::LoadFailed`].
pub fn spawn(remote: Remote) -> std::io::Result<EngineHandle> {
    let (handle, inbox, outlet) = EngineHandle::new();
    let work = move || match Server::connect(&remote) {
        Ok((server, info)) => Remotes::new(server, info, outlet).run(&inbox),
        Err(why) => outlet.event(Event::LoadFailed(why)),
    };
    std::thread::Builder::new().name("remote".into()).spawn(work)?;
    Ok(handle)
}

/// The conversations with a server.
struct Remotes {
    server: Arc<Server>,
    info: Arc<ModelInfo>,
    open: HashMap<ConversationId, Conversation>,
}

impl Remotes {
    fn new(server: Server, info: ModelInfo, first: Outlet) -> Self {
        let mut remotes = Self { server: Arc::new(server), info: Arc::new(info), open: HashMap::new() };
        remotes.begin(first);
        remotes
    }

    fn begin(&mut self, outlet: Outlet) {
        outlet.event(Event::Ready(Arc::clone(&self.info)));
        let (outlet, running) = (Arc::new(outlet), Running::default());
        let conversation = Conversation { outlet, running, eviction: Arc::default(), memory: Arc::default() };
        self.publish_empty(&conversation);
        self.open.insert(conversation.outlet.conversation(), conversation);
    }

    /// Publishes an empty cache.
    fn publish_empty(&self, Conversation { outlet, eviction, memory, .. }: &Conversation) {
        memory.lock().set(None);
        let eviction = reading::wanted(eviction).or(self.info.eviction).unwrap_or(false);
        outlet.snapshot(Snapshot { eviction, ..Snapshot::default() });
    }

    /// Ends with the last conversation.
    fn run(mut self, inbox: &Receiver<EngineMessage>) {
        while !self.open.is_empty() {
            let Ok(message) = inbox.recv() else { return };
            match message {
                EngineMessage::Open(outlet) => self.begin(outlet),
                EngineMessage::Ask { outlet, .. } => {
                    outlet.event(Event::Failed("a server is not asked on behalf of others".to_owned()));
                }
                // Slots are of an engine.
                EngineMessage::KeepSlots { .. } => {}
                EngineMessage::Request(request) => self.take(request),
                EngineMessage::Close(conversation) => {
                    if let Some(conversation) = self.open.remove(&conversation) {
                        lock(&conversation.running).take();
                    }
                }
            }
        }
    }

    fn take(&mut self, Request { conversation, id, command }: Request) {
        let Some(of) = self.open.get(&conversation).cloned() else { return };
        let events = of.outlet.sender(Some(id));
        match command {
            Command::Generate(request) => {
                let running = self.generate(&of, events, *request);
                self.open.insert(conversation, Conversation { running, ..of });
            }
            Command::Cancel => {
                if let Some(reading) = lock(&of.running).take() {
                    events.event(Event::TurnDone(Box::new(reading.cancelled())));
                }
            }
            Command::Restore(_) => events.event(Event::RebuildDone { cancelled: false, tokens: 0 }),
            Command::CountTokens { id, text } => {
                let server = Arc::clone(&self.server);
                // A server may take its time.
                std::thread::spawn(move || {
                    if let Some(tokens) = server.count_tokens(&text) {
                        events.event(Event::TokensCounted { id, tokens });
                    }
                });
            }
            // The messages that follow are sent whole. What the server holds then it says with the
            // next answer.
            Command::Rewind(_) | Command::Clear => self.publish_empty(&of),
            Command::KeepCache(_) | Command::Elect(_) => {}
            // The server switches it with the next request, and counts what that drops.
            Command::SetEviction(on) if self.info.eviction.is_some() => {
                *of.eviction.lock().unwrap_or_else(PoisonError::into_inner) = Some(on);
                let at_token = of.outlet.last_snapshot().map_or(0, |last| last.tokens);
                events.event(Event::EvictionSet { on, at_token, dropped_slots: 0 });
            }
            Command::Presence(request) if self.info.has_memory => {
                memory::ask(&self.server, &of.memory, events, request);
            }
            // What is shown stays empty.
            Command::Inspect { .. } | Command::Presence(_) => {}
            Command::Probe(probe) => events.event(Event::Found(probe.refused(&self.why()))),
            other => self.refuse(&events, &other),
        }
    }

    fn why(&self) -> String {
        format!("not available on {}: its cache is its own", self.server.name())
    }

    fn refuse(&self, events: &EventSender, command: &Command) {
        let name = match command {
            Command::SetEviction(_) => "eviction",
            Command::SetTwin(_) => "twin",
            Command::SetDial(_) => "forget",
            Command::Pin { .. } | Command::Unpin(_) | Command::PinTokens { .. } => "pin",
            Command::Rebuild => "rebuild",
            Command::SetKvLimit(_) => "kv_limit",
            Command::SetWhenFull(_) => "when_full",
            _ => "this",
        };
        events.refuse(name, self.why());
    }

    /// Begins to read an answer. A reading of its own: the thread of one that was stopped ends
    /// with the next object that it receives.
    fn generate(&self, of: &Conversation, events: EventSender, request: GenerateRequest) -> Running {
        if request.chains.is_some() {
            events.refuse("width", format!("several chains are not available on {}", self.server.name()));
        }
        let seed = request.ask.seed.unwrap_or_else(random::fresh_seed);
        let eviction = reading::wanted(&of.eviction);
        let request = GenerateRequest { ask: Ask { seed: Some(seed), eviction, ..request.ask }, ..request };
        let reading = Reading::new(&request, self.info.lanes.iter().map(|layer| layer.heads.count).collect(), events);
        let body = chat::body(&request.ask, self.server.model());
        let running = Arc::new(Mutex::new(Some(reading)));
        let (server, of) = (Arc::clone(&self.server), Conversation { running: Arc::clone(&running), ..of.clone() });
        std::thread::spawn(move || reading::read(&server, &body, &of));
        running
    }
}
