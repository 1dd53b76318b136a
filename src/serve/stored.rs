//! Answers in the form of Responses that can be asked for again, and gone on from: the newest, in
//! memory.

use super::refusal::Refusal;
use axum::http::StatusCode;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most answers, and most bytes of them and of their conversations.
const MOST: usize = 1000;
const BYTES: usize = 64 << 20;

/// An answer and its conversation. Items are shared with the answers before it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The answer as it was sent.
    pub response: Value,
    /// All items before it, of which the last `n_new` are its own input.
    pub before: Vec<Arc<Value>>,
    pub n_new: usize,
}

impl Stored {
    fn id(&self) -> &str {
        self.response["id"].as_str().unwrap_or_default()
    }

    fn input(&self) -> &[Arc<Value>] {
        &self.before[self.before.len().saturating_sub(self.n_new)..]
    }

    /// Bytes that it adds, about.
    fn bytes(&self) -> usize {
        let own: usize = self.input().iter().map(|item| item.to_string().len()).sum();
        own + self.response.to_string().len() + self.before.len() * size_of::<Arc<Value>>()
    }
}

#[derive(Debug, Default)]
struct Newest {
    /// The oldest first, each with its bytes.
    all: VecDeque<(usize, Stored)>,
    bytes: usize,
}

/// The stored answers of a server.
#[derive(Debug, Default)]
pub struct Store(Mutex<Newest>);

impl Store {
    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer. The oldest make room for it.
    pub fn insert(&self, stored: Stored) {
        let bytes = stored.bytes();
        let mut newest = self.newest();
        newest.bytes += bytes;
        newest.all.push_back((bytes, stored));
        while newest.all.len() > MOST || newest.bytes > BYTES {
            let Some((bytes, _)) = newest.all.pop_front() else { return };
            newest.bytes -= bytes;
        }
    }

    fn with<T>(&self, param: &str, id: &str, read: impl Fn(&Stored) -> T) -> Result<T, Refusal> {
        let newest = self.newest();
        let found = newest.all.iter().find(|(_, stored)| stored.id() == id);
        found.map(|(_, stored)| read(stored)).ok_or_else(|| not_stored(param, id))
    }

    pub fn get(&self, id: &str) -> Result<Value, Refusal> {
        self.with("id", id, |stored| stored.response.clone())
    }

    /// The items that it was asked with, without those of the answers before it.
    pub fn input(&self, id: &str) -> Result<Vec<Arc<Value>>, Refusal> {
        self.with("id", id, |stored| stored.input().to_vec())
    }

    /// All items up to it and of it, which a request goes on from.
    pub fn conversation(&self, id: &str) -> Result<Vec<Arc<Value>>, Refusal> {
        self.with("previous_response_id", id, |stored| {
            let said = stored.response["output"].as_array().into_iter().flatten().cloned().map(Arc::new);
            stored.before.iter().cloned().chain(said).collect()
        })
    }

    pub fn delete(&self, id: &str) -> Result<(), Refusal> {
        let mut newest = self.newest();
        let at = newest.all.iter().position(|(_, stored)| stored.id() == id);
        let (bytes, _) = at.and_then(|at| newest.all.remove(at)).ok_or_else(|| not_stored("id", id))?;
        newest.bytes -= bytes;
        Ok(())
    }
}

/// There is no stored answer of this id.
fn not_stored(param: &str, id: &str) -> Refusal {
    let message = format!("there is no response {id:?} here: it was never stored, deleted, or left out for newer ones");
    Refusal { param: Some(param.to_owned()), ..Refusal::new(StatusCode::NOT_FOUND, message).code("response_not_found") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(id: &str, before: Vec<Arc<Value>>, n_new: usize) -> Stored {
        Stored { response: json!({ "id": id, "output": [{ "id": format!("msg_{id}") }] }), before, n_new }
    }

    #[test]
    fn the_oldest_make_room_and_what_goes_on_from_them_keeps_their_items() {
        let store = Store::default();
        let item = |text: &str| Arc::new(json!({ "id": text }));
        store.insert(stored("a", vec![item("1")], 1));
        let before = store.conversation("a").unwrap();
        assert_eq!(before.iter().map(|item| item["id"].as_str().unwrap()).collect::<Vec<_>>(), ["1", "msg_a"]);
        store.insert(stored("b", before.into_iter().chain([item("2")]).collect(), 1));
        assert_eq!(store.input("b").unwrap(), [item("2")]);
        store.delete("a").unwrap();
        assert_eq!((store.conversation("b").unwrap().len(), store.delete("a").is_err()), (4, true));
        for i in 0..MOST {
            store.insert(stored(&i.to_string(), Vec::new(), 0));
        }
        assert_eq!(store.get("b").unwrap_err().status.as_u16(), 404);
        // One that is larger than all may be is not kept, and leaves nothing behind.
        store.insert(stored("huge", vec![Arc::new(json!("x".repeat(BYTES)))], 1));
        let newest = store.newest();
        assert_eq!((newest.all.len(), newest.bytes), (0, 0));
    }
}
