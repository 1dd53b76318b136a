//! Renders an untrusted template in a child process of the same binary, bounded in memory (where
//! the system supports it), steps and time. The child gets no environment and opens no file.

use super::jinja::{self, Job, cut};
use crate::system::process::{CPU_LIMIT, KILLED, ended_by, limit_this_process};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Address space of the child in bytes. Its binary needs about 30 MB.
const MEMORY_BYTES: u64 = 512 << 20;
/// CPU time of the child, and how long its answer is awaited: these differ on a busy machine.
const COMPUTE: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_secs(30);
/// Interval at which `cancel` is checked.
const CANCEL_EVERY: Duration = Duration::from_millis(20);
/// Largest answer: more than any conversation renders to.
const OUTPUT_BYTES: u64 = 64 << 20;
/// Bytes of the child's stderr that are kept for the error message.
const STDERR_BYTES: u64 = 4096;

#[derive(Serialize)]
struct RequestRef<'a> {
    source: &'a str,
    text_bytes: usize,
    jobs: &'a [Job],
}

#[derive(Deserialize)]
struct Request {
    source: String,
    text_bytes: usize,
    jobs: Vec<Job>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Texts(Vec<String>),
    Error(String),
}

/// Runs `jobs` in a child process of `exe` (default: the running binary). Each may render at most
/// `text_bytes`. Kills the child when `cancel` is set.
pub fn render(
    source: &str,
    text_bytes: usize,
    exe: Option<&Path>,
    cancel: &AtomicBool,
    jobs: &[Job],
) -> Result<Vec<String>> {
    let request = serde_json::to_vec(&RequestRef { source, text_bytes, jobs }).context("chat template: request")?;
    let exe = match exe {
        Some(path) => path.to_owned(),
        // This path works even if a newer build has replaced the file.
        None if cfg!(target_os = "linux") => "/proc/self/exe".into(),
        None => std::env::current_exe().context("chat template: the program's own file is not found")?,
    };
    let mut child = Command::new(&exe)
        .arg("__render")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("chat template: cannot start {}", exe.display()))?;
    // The child refuses longer texts itself. JSON writes a byte with up to six.
    let most = (text_bytes as u64).saturating_mul(8 * jobs.len() as u64).saturating_add(64 << 10).min(OUTPUT_BYTES);
    let last_words = child.stderr.take().and_then(|stderr| start(move || read_last_words(stderr)).ok());
    let answer = talk(&mut child, request, most, cancel).inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
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
    let answer = answer.unwrap_or_default();
    if answer.len() as u64 >= most {
        bail!("chat template: it rendered more than {most} bytes and was stopped");
    }
    match serde_json::from_slice(&answer) {
        Ok(Reply::Texts(texts)) => Ok(texts),
        Ok(Reply::Error(line)) => bail!("{line}"),
        Err(_) => {
            let said = last_words.and_then(|thread| thread.join().ok()).unwrap_or_default();
            bail!("chat template: {}", ended(status, &said))
        }
    }
}

/// Reads stderr to its end and returns the beginning.
fn read_last_words(mut stderr: impl Read) -> String {
    let mut kept = Vec::new();
    let _ = stderr.by_ref().take(STDERR_BYTES).read_to_end(&mut kept);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    String::from_utf8_lossy(&kept).into_owned()
}

/// Writes the request and reads up to `most` bytes of the answer; `None` on a timeout or if
/// `cancel` was set.
fn talk(child: &mut Child, request: Vec<u8>, most: u64, cancel: &AtomicBool) -> Result<Option<Vec<u8>>> {
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
    start(move || {
        let mut stdin = stdin;
        // If the child has ended, its status says why.
        let _ = stdin.write_all(&request);
    })?;
    let (send, receive) = mpsc::channel();
    start(move || {
        let mut answer = Vec::new();
        let _ = stdout.take(most).read_to_end(&mut answer);
        let _ = send.send(answer);
    })?;
    let until = Instant::now() + WAIT;
    while Instant::now() < until && !cancel.load(Ordering::Relaxed) {
        match receive.recv_timeout(CANCEL_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            answer => return Ok(answer.ok()),
        }
    }
    Ok(None)
}

fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().spawn(work).context("chat template: a thread cannot be started")
}

/// Why a child gave no answer, by its exit status and its stderr.
fn ended(status: ExitStatus, said: &str) -> String {
    let signal = ended_by(status);
    if said.contains("memory allocation of") || said.contains("out of memory") {
        return format!("it needs more than {} MiB of memory and was stopped", MEMORY_BYTES >> 20);
    }
    if said.contains("overflowed its stack") {
        return "it nests too deeply and was stopped".to_owned();
    }
    let first_line = said.lines().map(str::trim).find(|l| !l.is_empty());
    let what = first_line.map_or(String::new(), |line| format!(": {}", cut(line)));
    match (signal, status.code()) {
        (Some(CPU_LIMIT), _) => {
            format!("it did not finish within {} s of computing and was stopped", COMPUTE.as_secs())
        }
        (Some(KILLED), _) => "the system ended the renderer (signal 9), perhaps for lack of memory".to_owned(),
        (Some(signal), _) => format!("the renderer crashed with signal {signal}{what}"),
        (None, Some(0)) => "the renderer ended without an answer".to_owned(),
        (None, Some(code)) => format!("the renderer failed with exit code {code}{what}"),
        (None, None) => format!("the renderer failed{what}"),
    }
}

/// The child process, `dmschat __render`. Must be called before anything else is set up.
pub fn child_main() -> ExitCode {
    // If a limit is refused, the step limit and the timeout still bound the child.
    limit_this_process(MEMORY_BYTES, COMPUTE.as_secs());
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
        .and_then(|request| jinja::render(&request.source, request.text_bytes, &request.jobs));
    match result {
        Ok(texts) => Reply::Texts(texts),
        Err(e) => Reply::Error(format!("{e:#}")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_crashed_renderer_is_told_as_what_it_was() {
        let by_signal = |n: i32, said: &str| ended(ExitStatus::from_raw(n), said);
        assert!(by_signal(6, "memory allocation of 99 bytes failed").contains("512 MiB of memory"));
        assert!(by_signal(6, "\nthread 'main' has overflowed its stack").contains("nests too deeply"));
        assert!(by_signal(CPU_LIMIT, "").contains("3 s of computing"));
        assert!(by_signal(KILLED, "").contains("signal 9"));
        assert_eq!(by_signal(11, ""), "the renderer crashed with signal 11");
        let panicked = ended(ExitStatus::from_raw(101 << 8), "\nthread 'main' panicked at x.rs:1:\nboom");
        assert_eq!(panicked, "the renderer failed with exit code 101: thread 'main' panicked at x.rs:1:");
    }
}
