//! How many tokens the draft has: asked of the engine when typing pauses, never while it works.

use super::Effect;
use crate::protocol::Command;
use crate::ui::state::App;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Shorter drafts are not worth a number.
const MIN_BYTES: usize = 20;
/// A longer draft is compared by its length and its beginning.
const COMPARED: usize = 64 << 10;
/// How long typing has to pause.
const PAUSE_MS: u64 = 150;

/// The count of the draft in the input.
#[derive(Clone, Debug, Default)]
pub struct DraftCount {
    /// Names the text; 0 where nothing is to be counted.
    id: u64,
    changed_ms: u64,
    asked: bool,
    tokens: Option<usize>,
}

impl DraftCount {
    /// The number that is shown: of this text, or of the one before while that is being counted.
    pub fn tokens(&self) -> Option<usize> {
        self.tokens.filter(|_| self.id != 0)
    }

    pub fn counted(&mut self, id: u64, tokens: usize) {
        if self.id == id {
            self.tokens = Some(tokens);
        }
    }
}

fn id_of(text: &str) -> u64 {
    if text.len() < MIN_BYTES || text.starts_with('/') {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    text.len().hash(&mut hasher);
    text.as_bytes()[..text.len().min(COMPARED)].hash(&mut hasher);
    hasher.finish() | 1
}

fn can_ask(app: &App) -> bool {
    app.draft_count.id != 0 && !app.draft_count.asked && app.engine.info.is_some() && !app.is_busy()
}

/// When the draft is to be counted.
pub fn due_at(app: &App) -> Option<u64> {
    can_ask(app).then_some(app.draft_count.changed_ms + PAUSE_MS)
}

/// Notices a changed draft, and has it counted when its time has come.
pub fn draft(app: &mut App) -> Option<Effect> {
    let id = id_of(&app.input.expanded());
    if id != app.draft_count.id {
        let tokens = app.draft_count.tokens.filter(|_| id != 0);
        app.draft_count = DraftCount { id, changed_ms: app.now_ms, asked: false, tokens };
    }
    if due_at(app).is_none_or(|at| app.now_ms < at) {
        return None;
    }
    app.draft_count.asked = true;
    let text = app.input.expanded().into_owned();
    Some(Effect::Engine(Command::CountTokens { id, text }))
}
