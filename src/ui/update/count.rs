//! Counts the tokens of the unsent text: asks the engine when typing pauses and the engine is idle.

use crate::protocol::Command;
use crate::ui::editor::Editor;
use crate::ui::folded::is_mark;
use crate::ui::state::{App, UnsentCount};

/// Shorter drafts are not counted.
const MIN_BYTES: usize = 20;
/// How long typing has to pause before the unsent text is counted.
const PAUSE_MS: u64 = 150;

/// Returns the editor's revision, or 0 if the text is not counted. Constant time, because a paste
/// that arrives key by key calls it for every character.
fn id_of(input: &Editor) -> u64 {
    let short = input.text().len() < MIN_BYTES && !input.text().contains(is_mark);
    if short || input.text().starts_with('/') { 0 } else { input.revision() }
}

fn can_ask(app: &App) -> bool {
    app.unsent_count.id != 0 && !app.unsent_count.asked && app.engine.info.is_some() && !app.is_busy()
}

/// Returns when the unsent text is due to be counted.
pub fn due_at(app: &App) -> Option<u64> {
    can_ask(app).then_some(app.unsent_count.changed_ms + PAUSE_MS)
}

/// Tracks changes of the unsent text and requests its count when due.
pub fn unsent(app: &mut App) {
    let id = id_of(&app.input);
    if id != app.unsent_count.id {
        let tokens = app.unsent_count.tokens.filter(|_| id != 0);
        app.unsent_count = UnsentCount { id, changed_ms: app.now_ms, asked: false, tokens };
    }
    if due_at(app).is_none_or(|at| app.now_ms < at) {
        return;
    }
    app.unsent_count.asked = true;
    let text = app.input.expanded().into_owned();
    app.send(Command::CountTokens { id, text });
}
