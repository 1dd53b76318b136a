//! Ctrl+C (SIGINT) and other ends from outside (SIGTERM, SIGHUP) as something to await, or to end
//! by.

use super::output::{INTERRUPTED, notice};
use anyhow::{Context, Result};
use std::io::IsTerminal;
use std::sync::Once;

pub use crate::system::signals::{Interrupts, Kills};

/// Ends the program at the next Ctrl+C, with `line` on stderr and exit code 130: for commands that
/// work on this thread and await nothing. Only the first call counts. No exit handler runs, because
/// the GPU's library is in use at that time.
pub fn end_on_interrupt(line: &'static str) -> Result<()> {
    static STARTED: Once = Once::new();
    let mut started = Ok(());
    STARTED.call_once(|| started = listen(line));
    started
}

fn listen(line: &'static str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interrupts = runtime.block_on(async { Interrupts::new() }).context("cannot listen for Ctrl+C")?;
    let end = move || {
        runtime.block_on(interrupts.next());
        // The terminal shows ^C after a line of progress.
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        notice(line);
        crate::system::exit_now(INTERRUPTED)
    };
    std::thread::Builder::new().name("interrupts".into()).spawn(end)?;
    Ok(())
}
