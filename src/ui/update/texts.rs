//! Texts used in several places.

use crate::ui::text::plural;

/// Said where the cache does not hold the conversation.
pub const REFILL: &str = "your next message loads the conversation again";

/// Returns the text of a toggle's line.
pub fn mark(on: bool, at_token: usize, dropped_slots: u64) -> String {
    let redo = match at_token {
        0 => String::new(),
        n => format!(" (/rebuild recomputes {})", plural(n as u64, "token")),
    };
    match (on, at_token) {
        (true, 0) => "eviction on".to_owned(),
        (true, _) => format!("eviction on: {} dropped at once{redo}", plural(dropped_slots, "slot")),
        (false, 0) => "eviction off: nothing is dropped".to_owned(),
        (false, _) => {
            format!("eviction off: every token is kept from here on; what is gone does not come back{redo}")
        }
    }
}
