//! A model on another machine's engine: a server with OpenAI's API stands where the engine's thread
//! does, with the same commands and events. What it does not report, such as its cache, is refused
//! by name.

mod chat;
mod http;
mod reading;
mod served;

pub use http::Remote;

use crate::protocol::{
    Ask, Command, ConversationId, EngineHandle, EngineMessage, Event, EventSender, GenerateRequest, ModelInfo, Outlet,
    Request, Snapshot,
};
use crate::random;
use http::Server;
use reading::{Reading, Running, lock};
use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

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
    open: HashMap<ConversationId, (Arc<Outlet>, Running)>,
}

impl Remotes {
    fn new(server: Server, info: ModelInfo, first: Outlet) -> Self {
        let mut remotes = Self { server: Arc::new(server), info: Arc::new(info), open: HashMap::new() };
        remotes.begin(first);
        remotes
    }

    fn begin(&mut self, outlet: Outlet) {
        outlet.event(Event::Ready(Arc::clone(&self.info)));
        self.open.insert(outlet.conversation(), (Arc::new(outlet), Running::default()));
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
                EngineMessage::Request(request) => self.take(request),
                EngineMessage::Close(conversation) => {
                    if let Some((_, running)) = self.open.remove(&conversation) {
                        lock(&running).take();
                    }
                }
            }
        }
    }

    fn take(&mut self, Request { conversation, id, command }: Request) {
        let Some((outlet, running)) = self.open.get(&conversation).cloned() else { return };
        let events = outlet.sender(Some(id));
        match command {
            Command::Generate(request) => {
                let running = self.generate(Arc::clone(&outlet), events, *request);
                self.open.insert(conversation, (outlet, running));
            }
            Command::Cancel => {
                if let Some(reading) = lock(&running).take() {
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
            Command::Rewind(_) | Command::Clear => outlet.snapshot(Snapshot::default()),
            Command::KeepCache(_) | Command::Elect(_) => {}
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
    fn generate(&self, outlet: Arc<Outlet>, events: EventSender, request: GenerateRequest) -> Running {
        if request.chains.is_some() {
            events.refuse("width", format!("several chains are not available on {}", self.server.name()));
        }
        let seed = request.ask.seed.unwrap_or_else(random::fresh_seed);
        let request = GenerateRequest { ask: Ask { seed: Some(seed), ..request.ask }, ..request };
        let reading = Reading::new(&request, [self.info.n_layers, self.info.n_kv_heads], events);
        let body = chat::body(&request.ask, self.server.model());
        let running = Arc::new(Mutex::new(Some(reading)));
        let (server, of) = (Arc::clone(&self.server), Arc::clone(&running));
        std::thread::spawn(move || reading::read(&server, &body, &outlet, &of));
        running
    }
}
