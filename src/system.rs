//! The process itself, where the system's own calls are needed: its end without exit handlers, its end when memory is
//! refused, and a signal handler for files that get shorter while they are mapped.

use std::alloc::{GlobalAlloc, Layout, System};

/// Ends the process with one line where a small allocation is refused. Larger ones are refused to their caller, who may
/// have asked for them with `try_reserve`; where nobody handles that, Rust prints a line of its own and aborts.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Nobody asks for less with `try_reserve`.
const SMALL_BYTES: usize = 64 << 10;

// SAFETY: every call is the system allocator's; a small one that fails does not return.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's word on the layout.
        unsafe { given(System.alloc(layout), layout.size()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's word on the layout.
        unsafe { given(System.alloc_zeroed(layout), layout.size()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's word on the block and its layout.
        unsafe { given(System.realloc(at, layout, size), size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's word on the block and its layout.
        unsafe { System.dealloc(at, layout) }
    }
}

fn given(at: *mut u8, bytes: usize) -> *mut u8 {
    if at.is_null() && bytes < SMALL_BYTES {
        imp::end_with(b"dmschat: out of memory\n");
    }
    at
}

pub use imp::{exit_now, remember_terminal, take_shortened_files, terminal_is_ours};

#[cfg(unix)]
mod imp {
    use std::mem::MaybeUninit;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// How the terminal was, and the bytes that give it back.
    struct Terminal {
        settings: libc::termios,
        bytes: Vec<u8>,
    }

    static TERMINAL: OnceLock<Terminal> = OnceLock::new();
    static OURS: AtomicBool = AtomicBool::new(false);

    /// Ends the process at once with that code: no exit handler runs, nothing buffered is written.
    pub fn exit_now(code: u8) -> ! {
        // SAFETY: may be called at any time, and does not return. The system takes back memory, files and the GPU.
        unsafe { libc::_exit(i32::from(code)) }
    }

    /// Keeps the settings of the terminal on stdin as they are now, and the bytes that undo what is written to it later.
    pub fn remember_terminal(bytes: Vec<u8>) {
        let mut settings = MaybeUninit::uninit();
        // SAFETY: the pointer is to room for the settings, which a call that succeeds fills.
        let settings = unsafe {
            if libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) != 0 {
                return;
            }
            settings.assume_init()
        };
        let _ = TERMINAL.set(Terminal { settings, bytes });
    }

    /// Whether [`end_with`] gives the terminal back.
    pub fn terminal_is_ours(ours: bool) {
        OURS.store(ours, Ordering::SeqCst);
    }

    /// Gives the terminal back, writes a line to stderr and ends the process with code 1. Allocates nothing, takes no
    /// lock and runs no exit handler: safe in a signal handler.
    pub(super) fn end_with(line: &[u8]) -> ! {
        if let (true, Some(terminal)) = (OURS.swap(false, Ordering::SeqCst), TERMINAL.get()) {
            write(libc::STDOUT_FILENO, &terminal.bytes);
            // SAFETY: the settings are those that the system gave.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &terminal.settings) };
        }
        write(libc::STDERR_FILENO, line);
        exit_now(1)
    }

    fn write(to: libc::c_int, bytes: &[u8]) {
        // SAFETY: the bytes are live and as many as is said. Where they cannot be written nobody is left to tell.
        unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
    }

    extern "C" fn shortened(_: libc::c_int) {
        end_with(
            b"dmschat: a file of the model became shorter, or could not be read, while it was in use; \
              do not change model files while a chat runs\n",
        )
    }

    /// From now on, a mapped file that gets shorter while it is read ends the process with a line, and gives the
    /// terminal back first. (The system sends SIGBUS, which would kill the process.)
    pub fn take_shortened_files() {
        // SAFETY: a struct of numbers and a set, for which all zeros is a value; the handler only calls what may be
        // called in one, on the thread's own signal stack where there is one.
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

    pub fn remember_terminal(_: Vec<u8>) {}

    pub fn terminal_is_ours(_: bool) {}

    pub(super) fn end_with(line: &[u8]) -> ! {
        eprint!("{}", String::from_utf8_lossy(line));
        exit_now(1)
    }

    pub fn take_shortened_files() {}
}
