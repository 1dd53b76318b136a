//! The channels between front ends and the thread of an engine.
//!
//! A front end holds one [`EngineHandle`] for each conversation. Requests of all conversations
//! share one channel to the engine; every conversation has its own channel of events and its own
//! snapshots.

use super::{Ask, ChainsRequest, Command, Event, GenerateRequest, Snapshot};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{mpsc, watch};

/// Identifies a conversation of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(u64);

/// Identifies a command that was sent to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl ConversationId {
    #[cfg(test)]
    pub(crate) fn of(id: u64) -> Self {
        Self(id)
    }
}

/// A command of a conversation.
#[derive(Clone, Debug)]
pub struct Request {
    pub conversation: ConversationId,
    pub id: RequestId,
    pub command: Command,
}

/// An event of a conversation.
#[derive(Clone, Debug)]
pub struct Response {
    pub conversation: ConversationId,
    /// The request that caused it; `None` for events without one (loading, a notice of the device).
    pub request: Option<RequestId>,
    pub event: Event,
}

/// Commands to an engine.
#[derive(Debug)]
pub enum EngineMessage {
    /// Opens a conversation. Answered by [`Event::Ready`], or by [`Event::Failed`] if no sequence
    /// is free.
    Open(Outlet),
    /// Answers a prompt that belongs to no conversation, in a slot: the idle one that holds the
    /// longest beginning of the prompt. Answered by [`Event::Failed`] if all slots are taken.
    Ask {
        outlet: Outlet,
        id: RequestId,
        request: Box<GenerateRequest>,
    },
    /// Keeps the caches of slots in a folder from now on, and loads the newest that it has, one for
    /// each outlet. Answered by [`Event::SlotsLoaded`] in every conversation.
    KeepSlots {
        outlets: Vec<Outlet>,
        folder: PathBuf,
        /// Maximum bytes of the files in it.
        limit_bytes: u64,
    },
    Request(Request),
    /// Closes a conversation and releases its cache; the cache of a slot stays for the next prompt,
    /// with what was computed of an answer that had not ended. The engine ends with its last
    /// conversation.
    Close(ConversationId),
}

/// The engine's end of a conversation's channels. Sending does nothing if the front end is gone.
#[derive(Debug)]
pub struct Outlet {
    conversation: ConversationId,
    events: mpsc::UnboundedSender<Response>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Outlet {
    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    /// Returns a sender of events caused by `request`.
    pub fn sender(&self, request: Option<RequestId>) -> EventSender {
        EventSender { conversation: self.conversation, request, events: self.events.clone() }
    }

    /// Sends an event without a request.
    pub fn event(&self, event: Event) {
        self.sender(None).event(event);
    }

    /// Sends a notice without a request.
    pub fn notice(&self, text: impl Into<String>) {
        self.sender(None).notice(text);
    }

    /// Replaces the latest snapshot.
    pub fn snapshot(&self, snapshot: Snapshot) {
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
    }

    /// Returns the latest snapshot.
    pub fn last_snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshots.borrow().clone()
    }

    /// Whether the front end is gone.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }
}

/// Sends the events of one request to the conversation that made it.
#[derive(Clone, Debug)]
pub struct EventSender {
    conversation: ConversationId,
    request: Option<RequestId>,
    events: mpsc::UnboundedSender<Response>,
}

impl EventSender {
    pub fn event(&self, event: Event) {
        let Self { conversation, request, .. } = *self;
        let _ = self.events.send(Response { conversation, request, event });
    }

    pub fn notice(&self, text: impl Into<String>) {
        self.event(Event::Notice(text.into()));
    }

    pub fn refuse(&self, command: &'static str, why: impl Into<String>) {
        self.event(Event::Refused { command, why: why.into() });
    }
}

/// Sends commands of one conversation.
#[derive(Clone, Debug)]
pub struct CommandSender {
    conversation: ConversationId,
    messages: Sender<EngineMessage>,
    /// The last id given to a conversation or request of this engine.
    last_id: Arc<AtomicU64>,
}

impl CommandSender {
    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a command and returns the id that its events carry, or `None` if the engine has ended.
    pub fn request(&self, command: Command) -> Option<RequestId> {
        let id = RequestId(self.next_id());
        let request = Request { conversation: self.conversation, id, command };
        self.messages.send(EngineMessage::Request(request)).is_ok().then_some(id)
    }

    /// Sends a command. Returns false if the engine has ended.
    pub fn send(&self, command: Command) -> bool {
        self.request(command).is_some()
    }

    /// Asks in a slot, where several chains may answer: see [`EngineMessage::Ask`]. The answer is
    /// turn 1 of the returned handle. Dropping it ends the answer between two steps and frees the
    /// slot.
    pub fn ask(&self, ask: Ask, chains: Option<ChainsRequest>) -> EngineHandle {
        let (handle, outlet) = self.another();
        let request = Box::new(GenerateRequest { turn: 1, ask, pin: None, chains });
        let id = RequestId(self.next_id());
        let _ = self.messages.send(EngineMessage::Ask { outlet, id, request });
        handle
    }

    /// Keeps the caches of up to `slots` slots in a folder: see [`EngineMessage::KeepSlots`].
    pub fn keep_slots(&self, slots: usize, folder: PathBuf, limit_bytes: u64) {
        let outlets = (0..slots).map(|_| self.another().1).collect();
        let _ = self.messages.send(EngineMessage::KeepSlots { outlets, folder, limit_bytes });
    }

    /// The channels of another conversation.
    fn another(&self) -> (EngineHandle, Outlet) {
        EngineHandle::with(Self { conversation: ConversationId(self.next_id()), ..self.clone() })
    }
}

/// A conversation with a running engine. Dropping the last one ends the engine, at the end of the
/// current step or tensor.
pub struct EngineHandle {
    pub commands: CommandSender,
    pub events: mpsc::UnboundedReceiver<Response>,
    /// `None` until the model is loaded.
    pub snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
}

impl EngineHandle {
    /// Creates the channels of a new engine: the handle of its first conversation and the engine's
    /// ends.
    pub fn new() -> (Self, Receiver<EngineMessage>, Outlet) {
        let (messages, inbox) = channel();
        let last_id = Arc::new(AtomicU64::new(0));
        let (handle, outlet) = Self::with(CommandSender { conversation: ConversationId(0), messages, last_id });
        (handle, inbox, outlet)
    }

    fn with(commands: CommandSender) -> (Self, Outlet) {
        let (events, events_out) = mpsc::unbounded_channel();
        let (snapshots, snapshot) = watch::channel(None);
        let outlet = Outlet { conversation: commands.conversation, events, snapshots };
        (Self { commands, events: events_out, snapshot }, outlet)
    }

    /// Opens another conversation of the same engine. Its events begin with [`Event::Ready`].
    pub fn open(&self) -> Self {
        let (handle, outlet) = self.commands.another();
        let _ = handle.commands.messages.send(EngineMessage::Open(outlet));
        handle
    }

    pub fn conversation(&self) -> ConversationId {
        self.commands.conversation
    }

    /// Sends a command. Returns false if the engine has ended.
    pub fn send(&self, command: Command) -> bool {
        self.commands.send(command)
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        let _ = self.commands.messages.send(EngineMessage::Close(self.commands.conversation));
    }
}
