//! What tells answers apart: ids, and times.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Random hex digits.
pub fn random_digits() -> String {
    let mut bytes = [0; 12];
    // Without randomness the time serves: ids only tell answers apart.
    if getrandom::fill(&mut bytes).is_err() {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        bytes.copy_from_slice(&nanos.to_le_bytes()[..12]);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
