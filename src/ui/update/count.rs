//! How many tokens the draft has: asked of the engine when typing pauses, never while it works.

use super::Effect;
use crate::protocol::Command;
use crate::ui::editor::Editor;
use crate::ui::state::{App, DraftCount};

/// Shorter drafts are not worth a number.
const MIN_BYTES: usize = 20;
/// How long typing has to pause.
const PAUSE_MS: u64 = 150;

/// The editor's revision, or 0 where the text is not worth a number. Constant time without folded parts: a paste that
/// arrives key by key asks after every character.
fn id_of(input: &Editor) -> u64 {
    let text = input.expanded();
    if text.len() < MIN_BYTES || text.starts_with('/') { 0 } else { input.revision() }
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
    let id = id_of(&app.input);
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
