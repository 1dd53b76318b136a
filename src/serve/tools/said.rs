//! Texts of answers with calls as they were sampled, by the id of the first call. A client returns
//! calls in OpenAI's form, and the template may spell them differently from the model, if only by
//! a space. The cache would then miss from there on.

use super::format::{Call, Format, Sent, Tool};
use super::parser::whole;
use crate::chat::template::GivenCall;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of answers that are kept, and maximum bytes of their texts.
const MOST: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

#[derive(Default)]
struct Kept {
    /// Texts of answers, by the id of their first call.
    texts: HashMap<String, Arc<str>>,
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

    /// Keeps the whole text of an answer that has these calls.
    pub fn keep(&self, calls: &[Sent], text: &str) {
        let Some(first) = calls.first() else { return };
        let mut kept = self.lock();
        kept.bytes += text.len();
        match kept.texts.insert(first.id.clone(), text.into()) {
            Some(before) => kept.bytes -= before.len(),
            None => kept.order.push_back(first.id.clone()),
        }
        while kept.order.len() > MOST || kept.bytes > MOST_BYTES {
            let Some(id) = kept.order.pop_front() else { return };
            kept.bytes -= kept.texts.remove(&id).map_or(0, |text| text.len());
        }
    }

    /// Returns the sampled text of the answer with these calls and this content. `None` if this
    /// server did not give it, has dropped it, or the client has changed it.
    pub fn find(
        &self,
        format: &'static dyn Format,
        tools: &Arc<[Tool]>,
        content: &str,
        calls: &[GivenCall],
    ) -> Option<String> {
        let text = Arc::clone(self.lock().texts.get(&calls.first()?.id)?);
        let (said, found) = whole(format, tools, &text);
        let is_same = |(given, found): (&GivenCall, &Call)| {
            given.name == found.name
                && serde_json::from_str::<Value>(&found.arguments).ok().as_ref() == Some(&given.arguments)
        };
        let is_whole = found.len() == calls.len() && calls.iter().zip(&found).all(is_same);
        (is_whole && said.trim() == content.trim()).then(|| text.to_string())
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
            said.keep(&sent(id), &text);
        }
        let kept = said.lock();
        assert_eq!((kept.texts.len(), kept.order.len(), kept.bytes), (2, 2, 2 * text.len()));
    }
}
