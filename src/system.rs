//! The process itself, where the system's own calls are needed: its end without exit handlers.

/// Ends the process at once with that code: no exit handler runs, nothing buffered is written.
#[cfg(unix)]
pub fn exit_now(code: u8) -> ! {
    // SAFETY: may be called at any time, and does not return. The system takes back memory, files and the GPU.
    unsafe { libc::_exit(i32::from(code)) }
}

#[cfg(not(unix))]
pub fn exit_now(code: u8) -> ! {
    std::process::exit(i32::from(code))
}
