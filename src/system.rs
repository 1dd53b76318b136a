//! Process-level system calls: exit without exit handlers, exit when memory runs out, a SIGBUS
//! handler for mapped files that are truncated, and a clock that excludes the time in which job
//! control had stopped the process.

pub mod children;
pub mod process;
pub mod signals;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds in which the process was stopped.
static STOPPED_NS: AtomicU64 = AtomicU64::new(0);

/// Returns the time without that in which the process was stopped (Ctrl+Z): for durations of work.
pub fn now() -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_nanos(STOPPED_NS.load(Ordering::Relaxed))).unwrap_or(now)
}

/// Excludes a stop of this length from [`now`].
pub fn was_stopped(stop: Duration) {
    STOPPED_NS.fetch_add(stop.as_nanos() as u64, Ordering::Relaxed);
}

/// Removes variables from the environment. Does nothing once there are several threads, or where
/// they cannot be counted.
pub fn forget_variables(names: &[&str]) {
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    for name in names.iter().filter(|_| is_alone) {
        // SAFETY: no other thread exists that could read the environment.
        unsafe { std::env::remove_var(name) };
    }
}

/// The system allocator, except that a failed allocation of usual size ends the process with one
/// line, unless [`may_fail`] asks for it. A failed larger one returns null to its caller, which may
/// be a reader that reports it; otherwise Rust prints two lines and aborts.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const USUAL_BYTES: usize = 1 << 20;

thread_local! {
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Allocates by `try_reserve` or similar; the caller continues if there is no memory.
pub fn may_fail<T>(allocate: impl FnOnce() -> T) -> T {
    MAY_FAIL.set(true);
    let allocated = allocate();
    MAY_FAIL.set(false);
    allocated
}

// SAFETY: every call is the system allocator's; one that fails may not return.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the layout.
        unsafe { checked(System.alloc(layout), layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the layout.
        unsafe { checked(System.alloc_zeroed(layout), layout.size()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees the block and its layout.
        unsafe { checked(System.realloc(at, layout, size), size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the block and its layout.
        unsafe { System.dealloc(at, layout) }
    }
}

fn checked(at: *mut u8, bytes: usize) -> *mut u8 {
    if at.is_null() && bytes < USUAL_BYTES && !MAY_FAIL.try_with(Cell::get).unwrap_or(false) {
        imp::end_with(b"dmschat: out of memory\n");
    }
    at
}

pub use imp::{
    exit_now, is_ignored, open_terminal, remember_terminal, take_shortened_files, terminal_is_gone, terminal_is_ours,
};

#[cfg(unix)]
mod imp {
    use std::fs::File;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Settings of the terminal at start, and the bytes that restore its screen.
    struct Terminal {
        settings: libc::termios,
        bytes: Vec<u8>,
    }

    static TERMINAL: OnceLock<Terminal> = OnceLock::new();
    static OURS: AtomicBool = AtomicBool::new(false);

    /// Ends the process at once with `code`. No exit handler runs and no buffer is flushed.
    pub fn exit_now(code: u8) -> ! {
        // SAFETY: may be called at any time and does not return. The system frees memory, files and
        // the GPU.
        unsafe { libc::_exit(i32::from(code)) }
    }

    /// Whether the process ignores this signal, as one that `nohup` started does SIGHUP.
    pub fn is_ignored(signal: i32) -> bool {
        // SAFETY: without a new action nothing is changed, and a successful call fills the old one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
        }
    }

    /// Opens the terminal for reads that do not wait; `None` where the system has no such file.
    pub fn open_terminal() -> io::Result<Option<File>> {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        File::options().read(true).custom_flags(flags.bits() as i32).open("/dev/tty").map(Some)
    }

    /// True for a terminal that was closed without SIGHUP (its session's leader was killed): it
    /// reads as empty for ever, and crossterm would ask it again and again.
    pub fn terminal_is_gone() -> bool {
        matches!(rustix::termios::tcgetattr(io::stdin()), Err(rustix::io::Errno::IO))
    }

    /// Saves the current settings of the terminal on stdin, and the bytes that undo later changes.
    pub fn remember_terminal(bytes: Vec<u8>) {
        let mut settings = MaybeUninit::uninit();
        // SAFETY: the pointer is to memory for the settings, which a successful call initialises.
        let settings = unsafe {
            if libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) != 0 {
                return;
            }
            settings.assume_init()
        };
        let _ = TERMINAL.set(Terminal { settings, bytes });
    }

    /// Sets whether [`end_with`] restores the terminal.
    pub fn terminal_is_ours(ours: bool) {
        OURS.store(ours, Ordering::SeqCst);
    }

    /// Restores the terminal, writes a line to stderr and ends the process with code 1. Allocates
    /// nothing, takes no lock and runs no exit handler, so it may be called in a signal handler.
    pub(super) fn end_with(line: &[u8]) -> ! {
        if let (true, Some(terminal)) = (OURS.swap(false, Ordering::SeqCst), TERMINAL.get()) {
            write(libc::STDOUT_FILENO, &terminal.bytes);
            // SAFETY: the settings were filled by the system.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &terminal.settings) };
        }
        write(libc::STDERR_FILENO, line);
        exit_now(1)
    }

    fn write(to: libc::c_int, bytes: &[u8]) {
        // SAFETY: pointer and length belong to a live slice. There is nobody to report an error to.
        unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
    }

    extern "C" fn shortened(_: libc::c_int) {
        end_with(
            b"dmschat: a model file was truncated, or could not be read, while it was in use; \
              do not change model files while a chat runs\n",
        )
    }

    /// Installs a SIGBUS handler: reading beyond the end of a truncated mapped file ends the
    /// process by [`end_with`] instead of killing it.
    pub fn take_shortened_files() {
        // SAFETY: all zeros is a valid sigaction; the handler calls async-signal-safe functions
        // only, on the thread's signal stack if it has one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = shortened as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }
}

#[cfg(not(unix))]
mod imp {
    pub fn exit_now(code: u8) -> ! {
        std::process::exit(i32::from(code))
    }

    pub fn is_ignored(_: i32) -> bool {
        false
    }

    pub fn open_terminal() -> std::io::Result<Option<std::fs::File>> {
        Ok(None)
    }

    pub fn terminal_is_gone() -> bool {
        false
    }

    pub fn remember_terminal(_: Vec<u8>) {}

    pub fn terminal_is_ours(_: bool) {}

    pub(super) fn end_with(line: &[u8]) -> ! {
        eprint!("{}", String::from_utf8_lossy(line));
        exit_now(1)
    }

    pub fn take_shortened_files() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_excludes_stops() {
        was_stopped(Duration::from_millis(50));
        let clock = now();
        assert!(Instant::now() - clock >= Duration::from_millis(50));
    }
}
