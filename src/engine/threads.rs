//! The threads of engines. They are joined before the process ends: a library that a backend loaded (NVIDIA's) has exit
//! handlers, and these must not run beside a thread that still calls it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How often [`join_all`] looks.
const LOOK: Duration = Duration::from_millis(2);

/// Engines that were started and not joined, those included whose handle was dropped when another model was loaded.
static STARTED: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

fn started() -> MutexGuard<'static, Vec<JoinHandle<()>>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread of an engine.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = Builder::new().name("engine".into()).spawn(work)?;
    started().push(thread);
    join_all(Duration::ZERO);
    Ok(())
}

/// Joins the thread of every engine, for at most that long; false if one still runs. A thread ends soon after its
/// [`EngineHandle`](crate::protocol::EngineHandle) is dropped: after the step, the tensor or the kernel that it is at.
pub fn join_all(within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let ended: Vec<_> = started().extract_if(.., |thread| thread.is_finished()).collect();
        // The engine has sent the text of a panic as an event.
        ended.into_iter().for_each(|thread| drop(thread.join()));
        if started().is_empty() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(LOOK);
    }
}
