//! Examples of the welcome screen, by the model that is loaded.

use super::state::EngineView;
use crate::config::BUILTIN_MODEL;

/// Texts that Tab (or Alt+1 to Alt+3) puts into the input: what the built-in model can do.
pub const EXAMPLES: [&str; 3] =
    ["Remember: my name is Ada.", "Solve 5*b - 2355 = -50*b - 2740 for b.", "What can you do?"];

/// Suggestion after the first two, if the model evicts; the key opens the memory page.
const FORGETTING: &str =
    "After 1 and 2 ask \"What is my name?\". {key} shows what the model kept: the name, not the arithmetic.";

/// Examples for any other model.
const GENERAL: [&str; 3] = [
    "Explain in three sentences how a language model remembers a conversation.",
    "Write a shell command that finds the ten largest files below a folder.",
    "A bat and a ball cost 1.10 in all. The bat costs 1.00 more than the ball. What does the ball cost?",
];

/// Suggestions after some of them.
const GENERAL_FORGETTING: &str = "{key} then shows, word by word, what the model still keeps of the conversation.";

/// The examples for the model that is loaded or chosen.
pub fn offered(engine: &EngineView) -> &'static [&'static str; 3] {
    if is_builtin(engine) { &EXAMPLES } else { &GENERAL }
}

/// Suggestion after some of them, which shows forgetting. `key` opens the memory page.
pub fn forgetting(engine: &EngineView, key: &str) -> String {
    let text = if is_builtin(engine) { FORGETTING } else { GENERAL_FORGETTING };
    text.replace("{key}", key)
}

fn is_builtin(engine: &EngineView) -> bool {
    match &engine.info {
        Some(info) => info.template.trusted,
        None => engine.chosen == BUILTIN_MODEL,
    }
}
