//! Child processes that end with whoever they work for.

use super::process;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Children of one owner, one at a time, each in a process group or a session of its own. Dropped,
/// it ends the one that runs with everything that one has started, and no other is started.
#[derive(Debug, Default)]
pub struct Children(Runner);

/// Starts the children of a [`Children`], on any thread.
#[derive(Clone, Debug, Default)]
pub struct Runner(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The process group of the child that runs.
    group: Option<u32>,
    ended: bool,
}

impl Children {
    pub fn runner(&self) -> Runner {
        self.0.clone()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.ended = true;
        state.group.take().into_iter().for_each(process::kill_group);
    }
}

impl Runner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the owner has ended its children.
    pub fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Starts a child, whose command gives it a group or a session of its own; `None` if the owner
    /// has ended.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Option<Child>> {
        // Locked until the group is known, so that the owner's end also ends this child.
        let mut state = self.state();
        if state.ended {
            return Ok(None);
        }
        let child = command.spawn()?;
        state.group = Some(child.id());
        Ok(Some(child))
    }

    /// Leaves the child to itself, which has ended or is about to.
    pub fn forget(&self) {
        self.state().group = None;
    }

    /// Ends the child, if it still runs, and the processes that it left behind.
    pub fn clear(&self, child: &mut Child) {
        process::kill_group(child.id());
        self.forget();
        let _ = child.kill();
        let _ = child.wait();
    }
}
