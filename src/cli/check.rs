//! `--check COMMAND`: lets a command judge answers, one at a time, on a thread of its own.

use crate::protocol::ChainReport;
use crate::system::children::{Children, Runner};
use crate::system::process;
use anyhow::{Context, Result};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long a command may take for one answer.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Interval at which a command that runs is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Verdict of a command about the answer of a chain.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Right,
    Wrong,
    /// It did not end in time.
    Hangs,
    /// It cannot be run, and why.
    Fails(String),
}

/// The answers of chains on their way through the command. Dropping it kills what still runs.
pub struct Checks {
    /// `None` once the command was abandoned.
    answers: Option<Sender<(usize, ChainReport)>>,
    pub verdicts: mpsc::UnboundedReceiver<(usize, Verdict)>,
    /// Ends the command that runs when it is dropped.
    _children: Children,
    /// Number of chains, those that have ended and those that have a verdict.
    chains: usize,
    ended: usize,
    judged: usize,
}

impl Checks {
    pub fn new(command: &str) -> Result<Self> {
        let (answers, inbox) = channel();
        let (outbox, verdicts) = mpsc::unbounded_channel();
        let children = Children::default();
        let (command, runner) = (command.to_owned(), children.runner());
        let thread = std::thread::Builder::new().name("check".into());
        thread
            .spawn(move || run_all(&command, &inbox, &outbox, &runner))
            .context("cannot start a thread for --check")?;
        Ok(Self { answers: Some(answers), verdicts, _children: children, chains: 0, ended: 0, judged: 0 })
    }

    /// This many chains begin.
    pub fn begin(&mut self, chains: usize) {
        self.chains = chains;
    }

    /// Checks the answer of a chain that has ended. One without an answer is wrong.
    pub fn add(&mut self, chain: usize, report: &ChainReport) {
        self.ended += 1;
        let answers = self.answers.as_ref().filter(|_| !report.answer.trim().is_empty());
        if answers.is_none_or(|answers| answers.send((chain, report.clone())).is_err()) {
            self.judged += 1;
        }
    }

    /// Counts a verdict that was not `Right`.
    pub fn count(&mut self) {
        self.judged += 1;
    }

    /// Whether no chain is left to end or to be judged.
    pub fn are_done(&self) -> bool {
        self.chains > 0 && self.ended == self.chains && (self.answers.is_none() || self.judged == self.chains)
    }

    /// Checks no more answers.
    pub fn give_up(&mut self) {
        self.answers = None;
    }
}

fn run_all(
    command: &str,
    inbox: &Receiver<(usize, ChainReport)>,
    outbox: &mpsc::UnboundedSender<(usize, Verdict)>,
    runner: &Runner,
) {
    while let Ok((chain, report)) = inbox.recv() {
        let verdict = check(command, &report, runner, LIMIT);
        let ends = verdict == Verdict::Hangs || runner.is_ended();
        if outbox.send((chain, verdict)).is_err() || ends {
            return;
        }
    }
}

/// Runs the command on one answer.
fn check(command: &str, report: &ChainReport, runner: &Runner, limit: Duration) -> Verdict {
    let mut child = match start(command, report, runner) {
        Ok(Some(child)) => child,
        Ok(None) => return Verdict::Wrong,
        Err(error) => return Verdict::Fails(error.to_string()),
    };
    if let Some(mut stdin) = child.stdin.take() {
        let answer = report.answer.trim().to_owned() + "\n";
        // A command need not read it, and one that hangs does not: nobody waits for this thread.
        std::thread::spawn(move || drop(stdin.write_all(answer.as_bytes())));
    }
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if started.elapsed() < limit => std::thread::sleep(POLL),
            _ => break None,
        }
    };
    runner.clear(&mut child);
    match status {
        None => Verdict::Hangs,
        Some(status) => match status.code() {
            Some(0) => Verdict::Right,
            Some(code @ (126 | 127)) => Verdict::Fails(format!("the shell cannot run it (exit code {code})")),
            _ => Verdict::Wrong,
        },
    }
}

fn start(command: &str, report: &ChainReport, runner: &Runner) -> std::io::Result<Option<Child>> {
    let [name, flag] = process::shell();
    runner.spawn(process::in_group_of_its_own(&mut shell(name, flag, command, report)))
}

fn shell(shell: &str, flag: &str, command: &str, report: &ChainReport) -> Command {
    let mut child = Command::new(shell);
    let counted = report.extracted.as_deref().unwrap_or_default().replace('\0', "");
    child.args([flag, command]).env("DMSCHAT_ANSWER", counted);
    child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    child
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::protocol::StopReason;

    fn judge(command: &str, limit: Duration) -> Verdict {
        let report = ChainReport {
            answer: "so it is\n42\n".into(),
            reasoning: String::new(),
            extracted: Some("42".into()),
            stop_reason: StopReason::End,
            tokens: 3,
            reasoning_tokens: 0,
            reads: 0.0,
            seed: 1,
        };
        check(command, &report, &Runner::default(), limit)
    }

    #[test]
    fn a_command_reads_an_answer_and_says_whether_it_is_right() {
        for (command, verdict) in [
            ("grep -qx 42", Verdict::Right),
            ("test $DMSCHAT_ANSWER = 42", Verdict::Right),
            ("grep -qx 43", Verdict::Wrong),
            ("exit 0", Verdict::Right),
            ("kill -9 $$", Verdict::Wrong),
        ] {
            assert_eq!(judge(command, LIMIT), verdict, "{command}");
        }
        assert!(matches!(judge("/nowhere/to/be/found", LIMIT), Verdict::Fails(_)));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_all_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let alive = folder.path().join("alive");
        // The child of the shell would write the file later.
        let command = format!("(sleep 1; touch {}) & sleep 100", alive.display());
        assert_eq!(judge(&command, Duration::from_millis(100)), Verdict::Hangs);
        std::thread::sleep(Duration::from_millis(1300));
        assert!(!alive.exists());
    }
}
