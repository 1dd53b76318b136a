//! Admission: as many requests as there are slots are answered at once, a bounded number waits in
//! front, and others are sent away.

use super::refusal::Refusal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Admission {
    slots: Arc<Semaphore>,
    n_slots: usize,
    waiting: AtomicUsize,
    /// Most requests that wait.
    queue: usize,
}

/// The right to one slot, until it is dropped.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// Counts a request that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub fn new(n_slots: usize, queue: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(n_slots)), n_slots, waiting: AtomicUsize::new(0), queue }
    }

    /// Waits for a slot, in the order of arrival. A queue that is full refuses.
    pub async fn enter(&self) -> Result<Permit, Refusal> {
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(Permit(permit));
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let queue = if self.queue == 0 { String::new() } else { format!(", and {} requests wait", self.queue) };
            return Err(Refusal::busy(format!(
                "the server is busy: {} {} answered{queue}; ask again later",
                self.n_slots,
                if self.n_slots == 1 { "request is" } else { "requests are" },
            )));
        }
        let waiting = Waiting(&self.waiting);
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        drop(waiting);
        permit.map(Permit).map_err(|_| Refusal::busy("the server is ending"))
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
        let first = admission.enter().await.unwrap();
        let (second, third) = tokio::join!(
            async {
                let permit = admission.enter().await;
                assert_eq!(admission.load(), (1, 0));
                permit
            },
            async {
                assert_eq!(admission.load(), (1, 1));
                let refused = admission.enter().await.unwrap_err();
                drop(first);
                refused
            }
        );
        assert!(second.is_ok());
        assert_eq!((third.status, third.code), (StatusCode::SERVICE_UNAVAILABLE, Some("overloaded")));
        // A client that hangs up while it waits leaves the queue.
        let given_up = tokio::time::timeout(std::time::Duration::from_millis(1), admission.enter()).await;
        assert!(given_up.is_err());
        assert_eq!(admission.load(), (1, 0));
    }
}
