//! A program of the workspace as scripts see it: what goes to stdout, what to stderr, and the exit
//! code.

use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The program at `path` with folders of its own and nothing in its environment.
pub fn program(path: &str, home: &TempDir) -> Command {
    let mut command = Command::new(path);
    command.env_clear().env("DMSCHAT_CONFIG_DIR", home.path().join("config"));
    command.env("DMSCHAT_DATA_DIR", home.path().join("data")).env("HOME", home.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// One line on stderr that holds all of `parts`, nothing on stdout, exit code 2.
pub fn refused(result: (i32, String, String), parts: &[&str]) {
    let (code, stdout, stderr) = result;
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(parts.iter().all(|p| stderr.contains(p)), "{stderr}");
}

/// Whether the process has a handler for SIGINT: before that a signal would just end it.
#[cfg(target_os = "linux")]
pub fn catches_ctrl_c(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(caught, 16).unwrap() & 0b10 != 0
}

/// Runs a command that works on its main thread, sends Ctrl+C once it listens for it, and returns
/// what it said.
#[cfg(target_os = "linux")]
pub fn interrupted(mut command: Command) -> (i32, String, String) {
    use rustix::process::{Pid, Signal, kill_process};
    let mut child = command.spawn().unwrap();
    while !catches_ctrl_c(child.id()) && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Again, if it came between the handler and the listener.
    while child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    said(&child.wait_with_output().unwrap())
}
