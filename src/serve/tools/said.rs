//! Texts of answers with calls as they were sampled, by the id of the first call. A client returns
//! calls in OpenAI's form, and the template may spell them differently from the model, if only by
//! a space. The cache would then miss from there on.

use super::format::{Call, Sent};
use crate::chat::template::GivenCall;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of answers that are kept, and maximum bytes of their texts.
const MOST: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

/// An answer with calls.
struct Answer {
    /// Its text as it was sampled.
    sampled: String,
    /// Its text without the calls, and the calls, as the client has them.
    content: String,
    calls: Vec<Call>,
}

impl Answer {
    fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.sampled.len() + self.content.len() + calls.sum::<usize>()
    }

    /// Whether a client has sent it back unchanged.
    fn is(&self, content: &str, calls: &[GivenCall]) -> bool {
        let is_same = |(given, call): (&GivenCall, &Call)| {
            given.name == call.name
                && serde_json::from_str::<Value>(&call.arguments).ok().as_ref() == Some(&given.arguments)
        };
        self.content.trim() == content.trim()
            && self.calls.len() == calls.len()
            && calls.iter().zip(&self.calls).all(is_same)
    }
}

#[derive(Default)]
struct Kept {
    /// Answers by the id of their first call.
    answers: HashMap<String, Arc<Answer>>,
    /// The ids, the oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

/// The texts of the newest answers that have calls.
#[derive(Default)]
pub struct Said(Mutex<Kept>);

impl Said {
    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer that has these calls: its text as it was sampled, and without the calls.
    pub fn keep(&self, calls: &[Sent], sampled: &str, content: &str) {
        let Some(first) = calls.first() else { return };
        let calls = calls.iter().map(|sent| sent.call.clone()).collect();
        let answer = Answer { sampled: sampled.to_owned(), content: content.to_owned(), calls };
        let mut kept = self.lock();
        kept.bytes += answer.bytes();
        match kept.answers.insert(first.id.clone(), Arc::new(answer)) {
            Some(before) => kept.bytes -= before.bytes(),
            None => kept.order.push_back(first.id.clone()),
        }
        while kept.order.len() > MOST || kept.bytes > MOST_BYTES {
            let Some(id) = kept.order.pop_front() else { return };
            kept.bytes -= kept.answers.remove(&id).map_or(0, |answer| answer.bytes());
        }
    }

    /// Returns the sampled text of the answer with these calls and this content. `None` if this
    /// server did not give it, has dropped it, or the client has changed it.
    pub fn find(&self, content: &str, calls: &[GivenCall]) -> Option<String> {
        let answer = Arc::clone(self.lock().answers.get(&calls.first()?.id)?);
        answer.is(content, calls).then(|| answer.sampled.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_kept_again_counts_once() {
        let said = Said::default();
        let sent = |id: &str| [Sent { id: id.into(), call: Call { name: "f".into(), arguments: "{}".into() } }];
        let text = "x".repeat(MOST_BYTES / 3);
        for id in ["a", "a", "a", "b"] {
            said.keep(&sent(id), &text, "!");
        }
        let kept = said.lock();
        assert_eq!((kept.answers.len(), kept.order.len(), kept.bytes), (2, 2, 2 * (text.len() + "!f{}".len())));
    }
}
