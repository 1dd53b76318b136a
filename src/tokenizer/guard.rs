//! Calls of the tokenizers crate, which panics on bad files and on some texts.

use crate::unicode::one_line;
use anyhow::{Result, anyhow, bail};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls the tokenizers crate and turns its errors and panics (a bad file makes it panic) into one
/// line. Suppresses the panic message.
pub(super) fn guarded<T>(what: &str, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let inherited = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.with(Cell::get) {
                inherited(info);
            }
        }));
    });
    let was = QUIET.with(|q| q.replace(true));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    QUIET.with(|q| q.set(was));
    match outcome {
        Ok(result) => result.map_err(|e| anyhow!("{what} failed: {}", one_line(&e.to_string()))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            bail!("{what} failed: the tokenizers crate panicked: {}", one_line(text))
        }
    }
}
