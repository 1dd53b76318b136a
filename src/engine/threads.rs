//! Threads of engines. They are joined before the process ends, because NVIDIA's libraries have
//! exit handlers that must not run while another thread calls them.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Polling interval of [`join_all`].
const POLL: Duration = Duration::from_millis(2);

/// Engines not joined yet, including those whose handle was dropped when another model was loaded.
static STARTED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

fn started() -> MutexGuard<'static, Vec<JoinHandle<()>>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts an engine's thread.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = Builder::new().name("engine".into()).spawn(work)?;
    started().push(thread);
    join_all(Duration::ZERO);
    Ok(())
}

/// Joins the threads of all engines. Returns false if one still runs after `within`. A thread ends
/// after the last [`EngineHandle`](crate::protocol::EngineHandle) of its engine is dropped, at the
/// end of the current step, tensor or kernel.
pub fn join_all(within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let ended: Vec<_> = started().extract_if(.., |thread| thread.is_finished()).collect();
        // A panic was already sent as an event.
        ended.into_iter().for_each(|thread| drop(thread.join()));
        if started().is_empty() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(POLL);
    }
}
