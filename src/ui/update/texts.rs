//! Texts used in several places.

use crate::protocol::Snapshot;
use crate::ui::action::Action;
use crate::ui::state::App;
use crate::ui::text::{count, plural};

/// What works without a network.
pub const WITHOUT_NETWORK: &str =
    "; without a network, /models loads models on this machine, and /model PATH a folder or a GGUF file";

/// Describes a conversation that the cache no longer holds. `held`: the last figures while it did.
pub fn refill(held: Option<&Snapshot>) -> String {
    let pins = if held.is_some_and(|s| s.pinned > 0) { "; pins of messages do not come back" } else { "" };
    format!("your next message loads the conversation again{pins}")
}

/// Says that the answer, or one of its chains, repeats itself, and what helps.
pub fn repeats(app: &App, chain: Option<usize>) -> String {
    let stop = app.key(Action::Stop);
    if let Some(number) = chain {
        return format!("chain {} repeats itself; {stop} ends the chains and keeps the votes so far", number + 1);
    }
    match app.sampling().temperature < 1.0 {
        true => format!("it repeats itself; {stop} stops it; /set temperature 1 or /parallel 8 may find a way out"),
        false => format!("it repeats itself; {stop} stops it; /parallel 8 may find a way out"),
    }
}

/// Whether the engine keeps what leaves the cache.
pub fn keeps_far(app: &App) -> bool {
    app.engine.snapshot.as_ref().is_some_and(|snapshot| snapshot.kv.far.is_some())
}

/// Returns the text of the line of a toggle that a server is told with the next message.
pub fn mark_on_server(on: bool) -> &'static str {
    match on {
        true => "eviction on from the next message on: marked tokens are dropped then",
        false => {
            "eviction off from the next message on: tokens are kept while there is memory; dropped tokens are gone"
        }
    }
}

/// Returns the text of a toggle's line.
pub fn mark(keeps_far: bool, on: bool, at_token: usize, dropped_slots: u64) -> String {
    match (on, at_token) {
        (true, 0) => "eviction on".to_owned(),
        (true, n) => {
            let (slots, tokens) = (plural(dropped_slots, "slot"), plural(n as u64, "token"));
            match keeps_far {
                true => format!("eviction on: {slots} are far at once (/rebuild recomputes {tokens})"),
                false => format!("eviction on: {slots} dropped at once (/rebuild recomputes {tokens})"),
            }
        }
        (false, 0) => "eviction off: nothing is dropped".to_owned(),
        (false, n) => {
            let all = count(n as u64);
            let rest = if keeps_far { "far tokens are all read" } else { "dropped tokens are gone" };
            format!("eviction off: tokens are kept while there is memory; {rest}; /rebuild recomputes all {all}")
        }
    }
}
