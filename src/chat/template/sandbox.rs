//! Renders a template that came with a checkpoint in a child process of the same binary, bounded
//! in memory (where the system has a limit for it), steps and time. The child gets no environment
//! and opens no file.

use super::jinja::{Job, render_here};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What the child may map, in bytes; its own binary takes some 30 MB of that.
const MEMORY_BYTES: u64 = 512 << 20;
/// What it may compute, and how long it is waited for: on a busy machine the one is not the other.
const COMPUTE: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(30);
/// How often a cancel is looked for.
const CANCEL_EVERY: Duration = Duration::from_millis(20);
/// More than any conversation renders to.
const OUTPUT_BYTES: u64 = 64 << 20;

#[derive(Serialize)]
struct RequestRef<'a> {
    source: &'a str,
    jobs: &'a [Job],
}

#[derive(Deserialize)]
struct Request {
    source: String,
    jobs: Vec<Job>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Texts(Vec<String>),
    Error(String),
}

/// Runs `jobs` in a child of `exe` (absent: the running binary). The child is killed when `cancel` is set.
pub fn render(source: &str, exe: Option<&Path>, cancel: &AtomicBool, jobs: &[Job]) -> Result<Vec<String>> {
    let request = serde_json::to_vec(&RequestRef { source, jobs }).context("chat template: request")?;
    let exe = match exe {
        Some(path) => path.to_owned(),
        // This name holds even when a newer build has taken the file's place.
        None if cfg!(target_os = "linux") => "/proc/self/exe".into(),
        None => std::env::current_exe().context("chat template: the program's own file is not found")?,
    };
    let mut child = Command::new(&exe)
        .arg("__render")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("chat template: cannot start {}", exe.display()))?;
    let answer = talk(&mut child, request, cancel);
    let timed_out = answer.is_none();
    if timed_out {
        let _ = child.kill();
    }
    let status = child.wait().context("chat template: renderer")?;
    if timed_out && cancel.load(Ordering::Relaxed) {
        bail!("chat template: cancelled");
    }
    if timed_out {
        bail!("chat template: it did not finish within {} s and was stopped", WAIT.as_secs());
    }
    match serde_json::from_slice(&answer.unwrap_or_default()) {
        Ok(Reply::Texts(texts)) => Ok(texts),
        Ok(Reply::Error(line)) => bail!("{line}"),
        Err(_) => bail!("chat template: {}", ended(status)),
    }
}

/// Writes the request, reads the answer; `None` when time ran out first, or `cancel` was set.
fn talk(child: &mut Child, request: Vec<u8>, cancel: &AtomicBool) -> Option<Vec<u8>> {
    let (stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    std::thread::spawn(move || {
        let mut stdin = stdin;
        // A child that has ended already says so by its status.
        let _ = stdin.write_all(&request);
    });
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let _ = stdout.take(OUTPUT_BYTES).read_to_end(&mut answer);
        let _ = send.send(answer);
    });
    let until = Instant::now() + WAIT;
    while Instant::now() < until && !cancel.load(Ordering::Relaxed) {
        match receive.recv_timeout(CANCEL_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            answer => return answer.ok(),
        }
    }
    None
}

fn ended(status: ExitStatus) -> String {
    if status.success() {
        return format!("it rendered more than {} MiB and was stopped", OUTPUT_BYTES >> 20);
    }
    if out_of_time(status) {
        return format!("it did not finish within {} s of computing and was stopped", COMPUTE.as_secs());
    }
    format!("it needs more than {} MiB of memory and was stopped", MEMORY_BYTES >> 20)
}

#[cfg(unix)]
fn out_of_time(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(rustix::process::Signal::XCPU.as_raw())
}

#[cfg(not(unix))]
fn out_of_time(_: ExitStatus) -> bool {
    false
}

/// The child: `dmschat __render`. Call it before anything else is set up.
pub fn child_main() -> ExitCode {
    limit();
    let mut input = Vec::new();
    let reply = match std::io::stdin().lock().read_to_end(&mut input) {
        Ok(_) => answer(&input),
        Err(e) => Reply::Error(format!("chat template: {e}")),
    };
    let Ok(bytes) = serde_json::to_vec(&reply) else { return ExitCode::FAILURE };
    match std::io::stdout().lock().write_all(&bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(input: &[u8]) -> Reply {
    let result = serde_json::from_slice::<Request>(input)
        .context("chat template: the request does not parse")
        .and_then(|request| render_here(&request.source, &request.jobs));
    match result {
        Ok(texts) => Reply::Texts(texts),
        Err(e) => Reply::Error(format!("{e:#}")),
    }
}

#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let at_most = |n| Rlimit { current: Some(n), maximum: Some(n) };
    // Where a limit is refused, steps and the wait still bound the child.
    let _ = setrlimit(Resource::As, at_most(MEMORY_BYTES));
    // At the first of the two it is told, which leaves a trace in its status; at the second it is ended.
    let seconds = COMPUTE.as_secs();
    let _ = setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum: Some(2 * seconds) });
    let _ = setrlimit(Resource::Core, at_most(0));
}

#[cfg(not(unix))]
fn limit() {}
