//! The list of saved conversations, and the search in it.

use super::editor::Editor;
use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher};

/// The list of saved conversations.
#[derive(Clone, Debug, Default)]
pub struct Picker {
    pub query: Editor,
    pub entries: Vec<SessionEntry>,
    /// Among those that match.
    pub selected: usize,
    /// The entry being renamed, and its new title.
    pub renaming: Option<(String, Editor)>,
}

impl Picker {
    /// Returns the entries that match the query, best first.
    pub fn matching(&self) -> Vec<&SessionEntry> {
        let query = self.query.text().trim();
        if query.is_empty() {
            return self.entries.iter().collect();
        }
        let pattern = Pattern::parse(query, CaseMatching::Ignore, Normalization::Smart);
        let matched = pattern.match_list(self.entries.iter(), &mut Matcher::new(Config::DEFAULT));
        matched.into_iter().map(|(entry, _)| entry).collect()
    }

    /// Keeps the selection among the entries that match.
    pub fn clamp_selection(&mut self) {
        self.selected = self.selected.min(self.matching().len().saturating_sub(1));
    }
}

impl AsRef<str> for SessionEntry {
    fn as_ref(&self) -> &str {
        &self.haystack
    }
}

/// A saved conversation in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionEntry {
    pub id: String,
    pub title: String,
    /// When it was last written, in words.
    pub when: String,
    pub turns: usize,
    pub model: String,
    /// The last question, and on the next line its answer.
    pub preview: String,
    pub ratio: Option<f64>,
    /// Of its file.
    pub bytes: u64,
    /// The session that it continues from a summary.
    pub continues: Option<String>,
    /// The text that the search matches.
    pub haystack: String,
}
