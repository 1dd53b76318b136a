//! The child: runs trials one after the other under a memory limit, and says what happened on
//! stdout. The trial under way stands in a file, so that the parent knows which one ended the
//! child.

use crate::mutate::Rng;
use crate::targets::{self, Place};
use std::cell::RefCell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The argument that makes this binary a child.
pub const CHILD: &str = "--child";
/// Above what is mapped before the first trial.
const MEMORY_BYTES: u64 = 512 << 20;
/// Somewhat more than the 2,000 at which the program cuts.
const MAX_MESSAGE_CHARS: usize = 2_100;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// `TARGET SEED FROM COUNT MILLISECONDS PROGRESS-FILE`, or `TARGET replay FILE`.
pub fn child(args: &[String]) -> ExitCode {
    let target = targets::ALL.iter().find(|t| t.name == args[0]).expect("a target");
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|p| *p.borrow_mut() = info.to_string().split_whitespace().collect::<Vec<_>>().join(" "));
    }));
    let mut place = Place::new();
    if args[1] == "replay" {
        let bytes = std::fs::read(&args[2]).expect("the file to replay");
        limit();
        match one(target, &mut place, &bytes) {
            Ok(None) => println!("accepted"),
            Ok(Some(refusal)) => println!("refused: {refusal}"),
            Err(failure) => println!("FAILED {failure}"),
        }
        return ExitCode::SUCCESS;
    }
    let number = |n: usize| args[n].parse::<u64>().expect("a number");
    let (seed, from, count, time) = (number(1), number(2), number(3), Duration::from_millis(number(4)));
    let progress = File::options().write(true).open(&args[5]).expect("the progress file");
    let examples = (target.examples)();
    limit();
    let begin = Instant::now();
    let (mut index, mut accepted) = (from, 0u64);
    while index < from + count && begin.elapsed() < time {
        tell(&progress, index);
        let bytes = targets::input(target, &examples, &mut Rng::new(seed, target.name, index));
        match one(target, &mut place, &bytes) {
            Ok(None) => accepted += 1,
            Ok(Some(_)) => {}
            Err(failure) => println!("failed {index} {failure}"),
        }
        index += 1;
    }
    println!("done {index} {accepted}");
    ExitCode::SUCCESS
}

/// One trial: the refusal if there is one, or what failed.
fn one(target: &targets::Target, place: &mut Place, bytes: &[u8]) -> Result<Option<String>, String> {
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(place, bytes)));
    let message = match result {
        Ok(Ok(())) => return Ok(None),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => return Err(format!("panic: {}", PANIC.with(|p| p.take()))),
    };
    if message.contains('\n') || message.chars().count() > MAX_MESSAGE_CHARS {
        let shown: String = message.chars().take(300).collect();
        return Err(format!(
            "message of {} characters, {} lines: {shown:?}",
            message.chars().count(),
            message.lines().count()
        ));
    }
    Ok(Some(message))
}

#[cfg(unix)]
fn tell(progress: &File, index: u64) {
    use std::os::unix::fs::FileExt;
    let _ = progress.write_all_at(&index.to_le_bytes(), 0);
}

#[cfg(not(unix))]
fn tell(_: &File, _: u64) {}

/// Limits what may be mapped. The children of a target take the limit over.
#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let most = Some(MEMORY_BYTES + pages * rustix::param::page_size() as u64);
    let _ = setrlimit(Resource::As, Rlimit { current: most, maximum: most });
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

#[cfg(not(unix))]
fn limit() {}
