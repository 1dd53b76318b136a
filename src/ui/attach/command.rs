//! `!COMMAND`: runs a command in the shell and makes a text of its output. Bounded in time and
//! size; the command has no terminal, so that it can neither ask nor draw.

use super::fence::fence_for;
use crate::system::children::Runner;
use crate::system::process;
use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of the output that are kept: of its beginning and of its end.
const HEAD: usize = 48 << 10;
const TAIL: usize = 16 << 10;
/// Output after which the command is ended.
const MAX_OUTPUT: usize = 64 << 20;
/// Pieces of the output that wait.
const CHUNKS: usize = 16;
/// How often it is looked at, and how long the output of what it left behind is waited for.
const POLL: Duration = Duration::from_millis(10);
const REST: Duration = Duration::from_millis(500);

/// Runs a command, on any thread.
#[derive(Debug)]
pub struct Job {
    command: String,
    runner: Runner,
}

/// Why a command ended.
enum End {
    Exited(ExitStatus),
    Late,
    Long,
}

impl Job {
    pub fn new(command: &str, runner: Runner) -> Self {
        Self { command: command.to_owned(), runner }
    }

    /// Runs the command. Returns the command and its output as the text of a message, or why there
    /// is none.
    pub fn run(self) -> Result<String, String> {
        self.run_for(LIMIT)
    }

    fn run_for(self, limit: Duration) -> Result<String, String> {
        let cannot = |e: io::Error| format!("the command cannot be run: {e}");
        let Some((mut child, reader)) = self.start().map_err(cannot)? else { return Err("stopped".to_owned()) };
        let mut output = Output::default();
        // Bounded: a command may write faster than its output is taken.
        let (sender, chunks) = sync_channel(CHUNKS);
        std::thread::spawn(move || send_all(reader, &sender));
        let begun = Instant::now();
        let end = loop {
            match chunks.recv_timeout(POLL) {
                Ok(chunk) => output.add(&chunk),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match child.try_wait() {
                Ok(Some(status)) => break End::Exited(status),
                Ok(None) if begun.elapsed() >= limit => break End::Late,
                Ok(None) if output.bytes > MAX_OUTPUT => break End::Long,
                Ok(None) => {}
                Err(error) => return Err(cannot(error)),
            }
        };
        self.runner.clear(&mut child);
        if self.runner.is_ended() {
            return Err("stopped".to_owned());
        }
        let rest = Instant::now() + REST;
        while let Ok(chunk) = chunks.recv_timeout(rest.saturating_duration_since(Instant::now())) {
            output.add(&chunk);
        }
        told(&self.command, &output.text(), &end, limit)
    }

    /// The command and what it writes; `None` if it was ended before it began.
    fn start(&self) -> io::Result<Option<(Child, PipeReader)>> {
        let (reader, writer) = io::pipe()?;
        let [shell, flag] = process::shell();
        let mut command = Command::new(shell);
        command.args([flag, &self.command]).stdin(Stdio::null());
        command.stdout(writer.try_clone()?).stderr(writer);
        command.env("TERM", "dumb").env("NO_COLOR", "1").env("PAGER", "cat").env("GIT_PAGER", "cat");
        let child = self.runner.spawn(process::in_session_of_its_own(&mut command))?;
        Ok(child.map(|child| (child, reader)))
    }
}

fn send_all(mut reader: impl Read, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = reader.read(&mut buffer) {
        if sender.send(buffer[..n].to_vec()).is_err() {
            return;
        }
    }
}

/// The message: the command, its output in a fence, and how it ended unless that is well.
fn told(command: &str, output: &str, end: &End, limit: Duration) -> Result<String, String> {
    let how = match end {
        End::Exited(status) => match (status.code(), process::ended_by(*status)) {
            (Some(0), _) => String::new(),
            // The shell's words are the output.
            (Some(126 | 127), _) => {
                let why = output.lines().next_back().unwrap_or("the shell does not know it").to_owned();
                return Err(format!("the command cannot be run: {why}"));
            }
            (Some(code), _) => format!("\nexit code {code}"),
            (None, Some(signal)) => format!("\nended by signal {signal}"),
            (None, None) => "\nended".to_owned(),
        },
        End::Late => format!("\nstopped after {} s", limit.as_secs()),
        End::Long => format!("\nstopped after {} MiB of output", MAX_OUTPUT >> 20),
    };
    let (fence, output) = (fence_for(output), output.trim_end_matches('\n'));
    let output = if output.is_empty() { "(no output)" } else { output };
    Ok(format!("$ {command}\n{fence}\n{output}\n{fence}{how}"))
}

/// The beginning and the end of an output.
#[derive(Default)]
struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    bytes: usize,
}

impl Output {
    fn add(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len();
        let (head, rest) = chunk.split_at(chunk.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    /// As text, without characters that control a terminal, and without its middle if it is long.
    fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let between = self.bytes - self.head.len() - tail.len();
        let bytes = match between {
            0 => [self.head.as_slice(), &tail].concat(),
            n => [self.head.as_slice(), format!("\n[{n} bytes left out]\n").as_bytes(), &tail].concat(),
        };
        let text = without_escapes(&String::from_utf8_lossy(&bytes)).replace("\r\n", "\n");
        text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
    }
}

/// The text without the escape sequences of colours and cursors.
fn without_escapes(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| ('@'..='~').contains(&c));
        out.push_str(end.map_or("", |at| &part[at + 1..]));
    }
    out
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::system::children::Children;

    fn run(command: &str, limit: Duration) -> Result<String, String> {
        Job::new(command, Runner::default()).run_for(limit)
    }

    #[test]
    fn the_output_is_fenced_with_how_it_ended() {
        for (command, text) in [
            ("printf 'a\\nb\\n'; echo c >&2", "a\nb\nc\n```"),
            ("true", "(no output)\n```"),
            ("echo a; exit 3", "a\n```\nexit code 3"),
            ("printf '\\033[31mred\\033[0m\\007 </think><|im_end|>\\0'", "red </think><|im_end|>\n```"),
            ("kill -TERM $$", "(no output)\n```\nended by signal 15"),
            ("cat", "(no output)\n```"),
            ("(: < /dev/tty) 2> /dev/null || echo none", "none\n```"),
        ] {
            assert_eq!(run(command, LIMIT).unwrap(), format!("$ {command}\n```\n{text}"));
        }
        let fenced = run("echo '```'", LIMIT).unwrap();
        assert!(fenced.ends_with("\n````\n```\n````"), "{fenced}");
        let error = run("nosuchcommand", LIMIT).unwrap_err();
        assert!(error.contains("cannot be run") && error.contains("nosuchcommand") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_long_output_keeps_its_ends_and_an_endless_one_is_stopped() {
        let text = run("echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last", LIMIT).unwrap();
        assert!(text.len() < HEAD + TAIL + 200 && text.contains("bytes left out]"), "{}", text.len());
        assert!(text.contains("\nfirst\n") && text.ends_with("\nlast\n```"));
        let text = run("yes", LIMIT).unwrap();
        assert!(text.ends_with("\nstopped after 64 MiB of output") && text.len() < HEAD + TAIL + 200);
    }

    #[test]
    fn time_and_the_handle_end_a_command_with_all_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let alive = folder.path().join("alive");
        let command = format!("echo begun; (sleep 1; touch {}) & sleep 100", alive.display());
        let text = run(&command, Duration::from_millis(300)).unwrap();
        assert!(text.contains("begun\n```\nstopped after 0 s"), "{text}");
        let children = Children::default();
        let job = Job::new(&command, children.runner());
        let runs = std::thread::spawn(move || job.run());
        std::thread::sleep(Duration::from_millis(300));
        drop(children);
        assert_eq!(runs.join().unwrap(), Err("stopped".to_owned()));
        std::thread::sleep(Duration::from_millis(1300));
        assert!(!alive.exists());
        // A child that stays does not hold the message up.
        let begun = Instant::now();
        assert!(run("echo a; sleep 100 &", LIMIT).is_ok() && begun.elapsed() < Duration::from_secs(30));
    }
}
