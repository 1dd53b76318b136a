//! Which tokens a server's cache held at the end of the last answer, for the memory page.

use super::http::Server;
use crate::protocol::{Event, EventSender, Presence, PresenceRequest};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of an answer's id.
const ID_BYTES: usize = 256;

/// The memory of a conversation.
#[derive(Debug, Default)]
pub struct Memory {
    /// The last answer whose server keeps what its cache held, and that, once it was asked for.
    answer: Option<String>,
    known: Option<Arc<Presence>>,
    /// Changes with the answer.
    revision: u64,
}

/// One that threads share.
#[derive(Debug, Default)]
pub struct Shared {
    memory: Mutex<Memory>,
    /// Locked while the server is asked, so that it is asked once.
    asks: Mutex<()>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// The cache holds what it held after this answer; `None` if that is not known.
    pub fn set(&mut self, answer: Option<&str>) {
        let is_id =
            |id: &&str| id.len() <= ID_BYTES && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let answer = answer.filter(is_id).map(str::to_owned);
        *self = Self { answer, known: None, revision: self.revision + 1 };
    }

    /// The reply to a request.
    fn reply(&self, request: &PresenceRequest) -> Presence {
        let known = self.known.as_deref().cloned().unwrap_or_default();
        // Of all heads, whatever was asked for.
        let reply = Presence { position: request.position, revision: self.revision, ..known };
        match request.revision == self.revision && request.known == reply.ends.len() && request.known > 0 {
            true => Presence { from: request.known, text: String::new(), ends: Vec::new(), ..reply },
            false => reply,
        }
    }
}

/// Answers a request, and asks the server first if that is needed.
pub fn ask(server: &Arc<Server>, shared: &Arc<Shared>, events: EventSender, request: PresenceRequest) {
    let (server, shared) = (Arc::clone(server), Arc::clone(shared));
    std::thread::spawn(move || {
        let asks = shared.asks.lock();
        let unknown =
            Some(shared.lock()).filter(|memory| memory.known.is_none()).and_then(|memory| memory.answer.clone());
        if let Some(answer) = unknown {
            let known = server.memory(&answer).and_then(|sent| presence(&sent)).unwrap_or_else(|why| {
                events.notice(format!("which tokens the cache of {} holds is not known: {why}", server.name()));
                Presence::default()
            });
            let mut memory = shared.lock();
            if memory.answer.as_ref() == Some(&answer) {
                memory.known = Some(Arc::new(known));
            }
        }
        drop(asks);
        events.event(Event::Presence(Arc::new(shared.lock().reply(&request))));
    });
}

/// As a server sends it.
#[derive(Deserialize)]
struct Sent {
    text: String,
    ends: Vec<u32>,
    lanes: usize,
    kept: Vec<u16>,
    marked: Vec<u16>,
    #[serde(default)]
    far: Vec<u16>,
    #[serde(default)]
    near: Vec<u16>,
    #[serde(default)]
    pins: Vec<[usize; 2]>,
    #[serde(default)]
    decided_after: usize,
    #[serde(default)]
    forgot: Option<usize>,
}

/// Reads what a server sends. Fails unless all of it is about the same tokens.
fn presence(value: &Value) -> Result<Presence, String> {
    let Sent { text, ends, lanes, kept, marked, far, near, pins, decided_after, forgot } =
        Sent::deserialize(value).map_err(|why| format!("it is not understood: {why}"))?;
    let n = ends.len();
    let same = |counts: &[u16]| counts.len() == n && counts.iter().all(|&count| usize::from(count) <= lanes);
    let is_end = |end: &u32| text.is_char_boundary(*end as usize);
    let pins: Vec<Range<usize>> = pins.into_iter().map(|[start, end]| start..end).collect();
    let fits = ends.is_sorted()
        && ends.iter().all(is_end)
        && same(&kept)
        && same(&marked)
        && [&far, &near].iter().all(|counts| counts.is_empty() || same(counts))
        && pins.iter().all(|pin| pin.start <= pin.end && pin.end <= n)
        && decided_after <= 1;
    match fits {
        true => Ok(Presence {
            text,
            ends,
            lanes,
            kept,
            marked,
            far,
            near,
            pins,
            decided_after,
            forgot,
            ..Presence::default()
        }),
        false => Err("its parts do not fit together".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let sent = json!({ "text": "aü", "ends": [1, 1, 3], "lanes": 2, "kept": [2, 0, 1], "marked": [0, 0, 1], "pins": [[0, 2]] });
        let read = presence(&sent).unwrap();
        assert_eq!((read.share(0), read.share(2), read.is_pinned(1)), (1.0, 0.5, true));
        for (name, value) in [
            ("ends", json!([1, 2, 3])),
            ("ends", json!([3, 1, 3])),
            ("ends", json!([1, 1, 4])),
            ("kept", json!([2, 0])),
            ("kept", json!([2, 0, 3])),
            ("marked", json!([])),
            ("far", json!([1])),
            ("pins", json!([[0, 4]])),
            ("pins", json!([[2, 1]])),
            ("lanes", json!(-1)),
            ("decided_after", json!(1_u64 << 40)),
        ] {
            let mut wrong = sent.clone();
            wrong[name] = value;
            assert!(presence(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_text_is_sent_once() {
        let mut memory = Memory::default();
        memory.set(Some("chatcmpl-1"));
        memory.known = Some(Arc::new(Presence { text: "ab".into(), ends: vec![1, 2], ..Presence::default() }));
        let asked = |known, revision| PresenceRequest { known, revision, position: 1, ..PresenceRequest::default() };
        let first = memory.reply(&asked(0, 0));
        assert_eq!((&*first.text, first.from, first.position), ("ab", 0, 1));
        let second = memory.reply(&asked(2, first.revision));
        assert_eq!((&*second.text, second.from, second.revision), ("", 2, first.revision));
        memory.set(Some("../secret"));
        assert_eq!((memory.answer.as_deref(), memory.reply(&asked(2, first.revision)).from), (None, 0));
    }
}
