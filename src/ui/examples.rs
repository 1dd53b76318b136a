//! What the welcome screen offers to try, by the model that is loaded.

use super::state::EngineView;
use crate::config::BUILTIN_MODEL;

/// Texts that Tab (or Alt+1 to Alt+3) puts into the input: what the built-in model can do.
pub const EXAMPLES: [&str; 3] = [
    "Solve 5*b - 2355 = -50*b - 2740 for b.",
    "a = 4; b = a + 7; c = b - 2; a = c + 5. What is a?",
    "What can you do?",
];

/// What any other model is asked.
const GENERAL: [&str; 3] = [
    "Explain in three sentences how a language model remembers a conversation.",
    "Write a shell command that finds the ten largest files below a folder.",
    "A bat and a ball cost 1.10 in all. The bat costs 1.00 more than the ball. What does the ball cost?",
];

/// The examples for the model that is loaded or chosen.
pub fn offered(engine: &EngineView) -> &'static [&'static str; 3] {
    let builtin = match &engine.info {
        Some(info) => info.template.trusted,
        None => engine.chosen == BUILTIN_MODEL,
    };
    if builtin { &EXAMPLES } else { &GENERAL }
}
