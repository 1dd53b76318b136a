//! Calls as they were sampled, by their ids. A client returns a call in OpenAI's form; what the
//! template would write for it may differ from what the model wrote, by a space, and then the cache
//! would hold nothing of what follows.

use super::format::{Call, Format, Sent, Tool};
use super::parser::whole;
use crate::chat::template::GivenCall;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Most answers that are kept, and most bytes of their texts.
const MOST: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

#[derive(Default)]
struct Kept {
    /// The texts of answers, by the first id of their calls.
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
        kept.texts.insert(first.id.clone(), text.into());
        kept.order.push_back(first.id.clone());
        while kept.order.len() > MOST || kept.bytes > MOST_BYTES {
            let Some(id) = kept.order.pop_front() else { return };
            kept.bytes -= kept.texts.remove(&id).map_or(0, |text| text.len());
        }
    }

    /// The text of the answer that had these calls and this content, if it was given here and
    /// nothing of it has changed since.
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
