//! The parent: gives the targets their share of the time, starts children, watches them, and
//! reports.

use crate::Options;
use crate::mutate::Rng;
use crate::targets::{self, Target};
use crate::trial::CHILD;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a trial may take, in seconds of computing; on a busy machine it may wait longer for
/// them.
const TRIAL: Duration = Duration::from_secs(5);
const TRIAL_WAITED: Duration = Duration::from_secs(60);
/// One child's work. A fresh one begins with fresh memory.
const SLICE: Duration = Duration::from_secs(4);
const SLICE_INPUTS: u64 = 100_000;
/// A long run says how far it is.
const EVERY: Duration = Duration::from_secs(60);
/// Failures that are written down, per target.
const MAX_FAILURES: usize = 20;

#[derive(Default)]
struct Tally {
    inputs: u64,
    accepted: u64,
    spent: Duration,
    failures: usize,
}

/// Result of one child.
struct Slice {
    next: u64,
    accepted: u64,
    /// Number of the trial, and what failed.
    failures: Vec<(u64, String)>,
}

pub fn run(options: &Options) -> ExitCode {
    let wanted =
        |t: &&Target| options.targets.is_empty() || options.targets.iter().any(|w| t.name.contains(w.as_str()));
    let chosen: Vec<&Target> = targets::ALL.iter().filter(wanted).collect();
    assert!(!chosen.is_empty(), "no such target; there are {:?}", targets::ALL.map(|t| t.name));
    if let Some(file) = &options.replay {
        return replay(chosen[0], file);
    }
    let begin = Instant::now();
    let mut tallies: Vec<Tally> = chosen.iter().map(|_| Tally::default()).collect();
    let progress = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut told = begin;
    loop {
        let left = options.seconds.map_or(SLICE, |s| s.saturating_sub(begin.elapsed()));
        let done: u64 = tallies.iter().map(|t| t.inputs).sum();
        if told.elapsed() > EVERY {
            told = Instant::now();
            println!("{done} inputs after {:.0} s", begin.elapsed().as_secs_f64());
        }
        let inputs_left = options.inputs.map_or(u64::MAX, |n| n.saturating_sub(done));
        if left.is_zero() || inputs_left == 0 {
            break;
        }
        // The one that has had the least of its share.
        let share = |i: &usize| tallies[*i].spent.as_secs_f64() / f64::from(chosen[*i].share);
        let at = (0..chosen.len()).min_by(|a, b| share(a).total_cmp(&share(b))).expect("a target");
        let (target, tally) = (chosen[at], &mut tallies[at]);
        let all = chosen.iter().map(|t| t.share).sum::<u32>();
        // Less than the whole time, so that the last target has its turn too.
        let shared = |s: Duration| s.saturating_sub(2 * MIN_SLICE * chosen.len() as u32);
        let of_target = |s: Duration| shared(s).mul_f64(f64::from(target.share) / f64::from(all)) + MIN_SLICE;
        let fair = options.seconds.map_or(SLICE, of_target);
        let asked = Ask { from: tally.inputs, count: SLICE_INPUTS.min(inputs_left), time: SLICE.min(left).min(fair) };
        let start = Instant::now();
        let slice = work(target, options.seed, &asked, &progress);
        tally.spent += start.elapsed();
        tally.accepted += slice.accepted;
        tally.inputs = slice.next;
        for (index, what) in &slice.failures {
            tally.failures += 1;
            if tally.failures <= MAX_FAILURES {
                tell(target, options.seed, *index, what);
            }
        }
    }
    report(options.seed, begin.elapsed(), &chosen, &tallies)
}

/// Starting a child and reading its examples takes about a tenth of it.
const MIN_SLICE: Duration = Duration::from_millis(100);

struct Ask {
    from: u64,
    count: u64,
    time: Duration,
}

fn spawn(args: &[String]) -> Child {
    let exe = std::env::current_exe().expect("this binary");
    // One arena: every other one maps 64 MiB that would count.
    let mut command = Command::new(exe);
    command.arg(CHILD).args(args).env("MALLOC_ARENA_MAX", "1").env("RAYON_NUM_THREADS", "1");
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("a child")
}

/// Lets a child do a slice; one that dies or hangs has failed at the trial under way.
fn work(target: &Target, seed: u64, asked: &Ask, progress: &tempfile::NamedTempFile) -> Slice {
    std::fs::write(progress.path(), asked.from.to_le_bytes()).expect("written");
    let at = || -> u64 {
        let raw = std::fs::read(progress.path()).unwrap_or_default();
        raw.first_chunk().map_or(asked.from, |raw| u64::from_le_bytes(*raw))
    };
    let numbers = [seed, asked.from, asked.count, asked.time.as_millis() as u64].map(|n| n.to_string());
    let mut args = vec![target.name.to_owned()];
    args.extend(numbers);
    args.push(progress.path().display().to_string());
    let mut child = spawn(&args);
    let lines = lines_of(child.stdout.take().expect("piped"));
    let errors = lines_of(child.stderr.take().expect("piped"));
    let mut slice = Slice { next: asked.from, accepted: 0, failures: Vec::new() };
    let mut whole = false;
    let mut last = (asked.from, Instant::now(), cpu_time(&child));
    let hung = loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                let mut words = line.splitn(3, ' ');
                let (kind, number) = (words.next(), words.next().and_then(|n| n.parse().ok()).unwrap_or(0));
                let rest = words.next().unwrap_or("");
                match kind {
                    Some("failed") => slice.failures.push((number, rest.to_owned())),
                    Some("done") => (whole, slice.next, slice.accepted) = (true, number, rest.parse().unwrap_or(0)),
                    _ => {}
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let now = at();
                if now != last.0 {
                    last = (now, Instant::now(), cpu_time(&child));
                }
                let (computed, waited) = (cpu_time(&child).saturating_sub(last.2), last.1.elapsed());
                if computed > TRIAL || waited > TRIAL_WAITED {
                    break Some(format!("hangs: {computed:.1?} of computing, {waited:.1?} by the clock"));
                }
            }
        }
    };
    if hung.is_some() {
        let _ = child.kill();
    }
    let status = child.wait().expect("a child's status");
    if !whole {
        let why = errors.iter().filter(|l| !l.trim().is_empty()).take(3).collect::<Vec<_>>().join(" ");
        slice.next = at() + 1;
        slice.failures.push((at(), hung.unwrap_or_else(|| format!("the child ended: {} {why}", ended(status)))));
    }
    slice
}

fn lines_of(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}

fn ended(status: ExitStatus) -> String {
    status.to_string()
}

/// What a child has computed, where the system tells.
fn cpu_time(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    // utime and stime, in hundredths of a second.
    let ticks: u64 = fields.skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Prints a failure and keeps its input.
fn tell(target: &Target, seed: u64, index: u64, what: &str) {
    let input = targets::input(target, &(target.examples)(), &mut Rng::new(seed, target.name, index));
    let path = kept(target, seed, index);
    let _ = std::fs::create_dir_all(path.parent().expect("a folder"));
    let written = std::fs::write(&path, input);
    println!("FAILED {} seed {seed} input {index}: {what}", target.name);
    match written {
        Ok(()) => println!(
            "  again: cargo test --release --test fuzz -- --target {} --replay {}",
            target.name,
            path.display()
        ),
        Err(e) => println!("  {}: {e}", path.display()),
    }
}

fn kept(target: &Target, seed: u64, index: u64) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    folder.join(format!("{}-{seed}-{index}", target.name.replace(['.', ' '], "_")))
}

fn replay(target: &Target, file: &str) -> ExitCode {
    let mut child = spawn(&[target.name.to_owned(), "replay".to_owned(), file.to_owned()]);
    let lines: Vec<String> = lines_of(child.stdout.take().expect("piped")).iter().collect();
    let status = child.wait().expect("a child's status");
    println!("{}: {} {}", target.name, lines.join(" "), if status.success() { String::new() } else { ended(status) });
    if status.success() && !lines.iter().any(|l| l.starts_with("FAILED")) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(seed: u64, time: Duration, chosen: &[&Target], tallies: &[Tally]) -> ExitCode {
    println!("{:<24} {:>10} {:>10} {:>9} {:>9}", "target", "inputs", "accepted", "seconds", "failures");
    for (target, t) in chosen.iter().zip(tallies) {
        let share = 100.0 * t.accepted as f64 / t.inputs.max(1) as f64;
        let seconds = t.spent.as_secs_f64();
        println!("{:<24} {:>10} {share:>8.1} % {seconds:>9.1} {:>9}", target.name, t.inputs, t.failures);
    }
    let inputs: u64 = tallies.iter().map(|t| t.inputs).sum();
    let failures: usize = tallies.iter().map(|t| t.failures).sum();
    println!("{inputs} inputs, seed {seed}, {:.1} s, {failures} failures", time.as_secs_f64());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
