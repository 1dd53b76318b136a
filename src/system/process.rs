//! Child processes, their limits and ends, and what this process was given.

use std::process::{Command, ExitStatus};

pub use imp::{
    CPU_LIMIT, KILLED, can_open, ended_by, in_group_of_its_own, in_session_of_its_own, is_in_foreground, kill_group,
    limit_this_process, shell, stdin_is_given, stdout_is_closed,
};

#[cfg(unix)]
mod imp {
    use super::{Command, ExitStatus};
    use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit};
    use std::io;
    use std::os::unix::process::{CommandExt, ExitStatusExt};

    /// The signal of the limit of CPU time.
    pub const CPU_LIMIT: i32 = Signal::XCPU.as_raw();
    /// The signal of a kill.
    pub const KILLED: i32 = Signal::KILL.as_raw();

    /// The shell and the flag before its command.
    pub fn shell() -> [&'static str; 2] {
        ["sh", "-c"]
    }

    /// Gives the child and its children a group that [`kill_group`] ends.
    pub fn in_group_of_its_own(command: &mut Command) -> &mut Command {
        command.process_group(0)
    }

    /// Gives the child a session without a terminal, so that it can neither read keys nor draw.
    /// [`kill_group`] ends it with its children.
    pub fn in_session_of_its_own(command: &mut Command) -> &mut Command {
        // SAFETY: setsid is a system call that a process may make between fork and exec.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(|_| ())?)) }
    }

    /// Ends the group of this child.
    pub fn kill_group(id: u32) {
        if let Some(group) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The signal that ended a process.
    pub fn ended_by(status: ExitStatus) -> Option<i32> {
        status.signal()
    }

    /// Bounds address space and CPU time of this process, and lets it write no core file. A limit
    /// that is refused is left out.
    pub fn limit_this_process(memory_bytes: u64, seconds: u64) {
        let at_most = |n| Rlimit { current: Some(n), maximum: Some(n) };
        let _ = setrlimit(Resource::As, at_most(memory_bytes));
        // The soft limit sends SIGXCPU, which the exit status shows; the hard limit kills.
        let _ = setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum: Some(2 * seconds) });
        let _ = setrlimit(Resource::Core, at_most(0));
    }

    /// Whether the terminal of stdin is this process's to use: a shell's job in the background is
    /// stopped if it sets it up.
    pub fn is_in_foreground() -> bool {
        rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Whether stdin is a pipe or a file. Terminals and devices are not read.
    pub fn stdin_is_given() -> bool {
        use rustix::fs::{FileType, fstat};
        let kind = fstat(io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        matches!(kind, Ok(FileType::Fifo | FileType::RegularFile))
    }

    /// Whether the reader of stdout, a pipe or a connection, has closed it. Detects it even if
    /// nothing was written since.
    pub fn stdout_is_closed() -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let stdout = io::stdout();
        let mut fds = [PollFd::new(&stdout, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Whether this process may open the given number of further files.
    pub fn can_open(files: usize) -> bool {
        let opened: Vec<_> = (0..files).map(|_| std::fs::File::open("/dev/null")).collect();
        let refused = |file: &io::Result<_>| file.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EMFILE));
        !opened.iter().any(refused)
    }
}

#[cfg(not(unix))]
mod imp {
    use super::{Command, ExitStatus};
    use std::io::IsTerminal;

    pub const CPU_LIMIT: i32 = 24;
    pub const KILLED: i32 = 9;

    pub fn shell() -> [&'static str; 2] {
        ["cmd", "/C"]
    }

    pub fn in_group_of_its_own(command: &mut Command) -> &mut Command {
        command
    }

    pub fn in_session_of_its_own(command: &mut Command) -> &mut Command {
        command
    }

    pub fn kill_group(_: u32) {}

    pub fn ended_by(_: ExitStatus) -> Option<i32> {
        None
    }

    pub fn limit_this_process(_: u64, _: u64) {}

    /// Only a write says so here.
    pub fn stdout_is_closed() -> bool {
        false
    }

    pub fn is_in_foreground() -> bool {
        true
    }

    pub fn stdin_is_given() -> bool {
        !std::io::stdin().is_terminal()
    }

    pub fn can_open(_: usize) -> bool {
        true
    }
}
