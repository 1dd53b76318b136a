//! The open conversation's file, and whether the cache holds what was read from it.

use crate::chat::MessageId;
use crate::protocol::RestoreRequest;

/// The session file of this conversation.
#[derive(Clone, Debug, Default)]
pub struct SessionView {
    pub id: Option<String>,
    pub restore: Restore,
    /// The loaded model has answered in it since it was opened.
    pub answered: bool,
    /// The message to show once the conversation is open.
    pub wanted: Option<MessageId>,
    /// The words of the running search over all conversations.
    pub searches: Option<String>,
    /// Query for the list of conversations, once it is read.
    pub search: Option<String>,
}

/// Whether the cache holds a conversation that was read from a file.
#[derive(Clone, Debug, Default)]
pub enum Restore {
    #[default]
    Done,
    /// The next message loads it. Without a request its texts are encoded again.
    Waiting(Option<Box<RestoreRequest>>),
    /// It is being loaded, before any message.
    Loading(Box<RestoreRequest>),
}

impl SessionView {
    pub fn is_restored(&self) -> bool {
        matches!(self.restore, Restore::Done)
    }

    pub fn is_restoring(&self) -> bool {
        matches!(self.restore, Restore::Loading(_))
    }

    /// Begins to load the conversation. Returns the request, if one is waiting.
    pub fn load(&mut self) -> Option<Box<RestoreRequest>> {
        let Restore::Waiting(request) = &mut self.restore else { return None };
        let request = request.take()?;
        self.restore = Restore::Loading(request.clone());
        Some(request)
    }

    /// Ends the loading; `cancelled` leaves it to the next message. False if nothing was being
    /// loaded.
    pub fn loaded(&mut self, cancelled: bool) -> bool {
        if !self.is_restoring() {
            return false;
        }
        if let Restore::Loading(request) = std::mem::take(&mut self.restore)
            && cancelled
        {
            self.restore = Restore::Waiting(Some(request));
        }
        true
    }
}
