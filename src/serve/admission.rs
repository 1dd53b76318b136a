//! Admission: as many requests as there are slots are answered at once, a bounded number waits in
//! front, and others are sent away.

use super::refusal::Refusal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Admission {
    slots: Arc<Semaphore>,
    n_slots: usize,
    waiting: Arc<AtomicUsize>,
    /// Most requests that wait.
    queue: usize,
}

/// The right to one slot, until it is dropped.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// A request that was let in.
#[derive(Debug)]
pub enum Place {
    /// A slot is free for it.
    Slot(Permit),
    Queue(Waiting),
}

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Waiting {
    waiting: Arc<AtomicUsize>,
    slots: Arc<Semaphore>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    /// Waits for a slot, in the order of arrival.
    pub async fn slot(self) -> Result<Permit, Refusal> {
        match self {
            Self::Slot(permit) => Ok(permit),
            Self::Queue(waiting) => {
                let permit = Arc::clone(&waiting.slots).acquire_owned().await;
                permit.map(Permit).map_err(|_| Refusal::busy("the server is ending"))
            }
        }
    }
}

impl Admission {
    pub fn new(n_slots: usize, queue: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(n_slots)), n_slots, waiting: Arc::default(), queue }
    }

    /// Takes a slot, or a place in the queue. A queue that is full refuses.
    pub fn enter(&self) -> Result<Place, Refusal> {
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(Place::Slot(Permit(permit)));
        }
        let waiting = Waiting { waiting: Arc::clone(&self.waiting), slots: Arc::clone(&self.slots) };
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.queue {
            return Ok(Place::Queue(waiting));
        }
        let queue = if self.queue == 0 { String::new() } else { format!(", and {} requests wait", self.queue) };
        Err(Refusal::busy(format!(
            "the server is busy: {} {} answered{queue}; ask again later",
            self.n_slots,
            if self.n_slots == 1 { "request is" } else { "requests are" },
        )))
    }

    /// Requests that are answered, and that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.n_slots - self.slots.available_permits(), self.waiting.load(Ordering::Relaxed))
    }

    pub fn n_slots(&self) -> usize {
        self.n_slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[tokio::test]
    async fn one_waits_and_the_next_is_sent_away_until_a_slot_is_free() {
        let admission = Admission::new(1, 1);
        let first = admission.enter().unwrap().slot().await.unwrap();
        let second = admission.enter().unwrap();
        assert!(matches!(second, Place::Queue(_)));
        assert_eq!(admission.load(), (1, 1));
        let third = admission.enter().unwrap_err();
        assert_eq!((third.status, third.code), (StatusCode::SERVICE_UNAVAILABLE, Some("overloaded")));
        drop(first);
        let second = second.slot().await.unwrap();
        assert_eq!(admission.load(), (1, 0));
        // A client that hangs up while it waits leaves the queue.
        let given_up = tokio::time::timeout(std::time::Duration::from_millis(1), admission.enter().unwrap().slot());
        assert!(given_up.await.is_err());
        assert_eq!(admission.load(), (1, 0));
        drop(second);
        assert_eq!(admission.load(), (0, 0));
    }
}
