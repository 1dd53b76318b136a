//! Variables of the environment that would stop the program, in libraries that read them by
//! themselves.

use crate::system;
use std::ffi::OsStr;
use std::fs;

/// Bytes of the stack of every thread that Rust starts, and the stack without it.
const STACK: &str = "RUST_MIN_STACK";
const USUAL_STACK: usize = 2 << 20;
/// The time zone or a file of it, and the largest such file.
const ZONE: &str = "TZ";
const MAX_ZONE_BYTES: u64 = 1 << 20;

/// Removes a stack with which threads overflow, and a time zone that is read from a device, a pipe
/// or a huge file. To be called before any thread starts.
pub fn clean() {
    let is_harmful = |name: &&str| std::env::var_os(name).is_some_and(|value| is_harmful(name, &value));
    let harmful: Vec<&str> = [STACK, ZONE].into_iter().filter(is_harmful).collect();
    if !harmful.is_empty() {
        system::forget_variables(&harmful);
    }
}

fn is_harmful(name: &str, value: &OsStr) -> bool {
    let text = value.to_string_lossy();
    match name {
        STACK => text.parse().is_ok_and(|bytes: usize| bytes < USUAL_STACK),
        // The name of a zone is not a path, and neither is a rule such as CET-1.
        _ => fs::metadata(text.strip_prefix(':').unwrap_or(&text))
            .is_ok_and(|found| !found.is_file() || found.len() > MAX_ZONE_BYTES),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_what_stops_the_program_is_harmful() {
        let folder = tempfile::tempdir().unwrap();
        let [zone, pipe] = ["zone", "pipe"].map(|name| folder.path().join(name));
        fs::write(&zone, "TZif").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let path = |path: &std::path::Path| format!(":{}", path.display());
        let (zone, pipe) = (path(&zone), path(&pipe));
        for (name, value, harmful) in [
            (STACK, "0", true),
            (STACK, "8388608", false),
            (STACK, "much", false),
            (ZONE, "Europe/Berlin", false),
            (ZONE, "CET-1", false),
            (ZONE, &zone, false),
            (ZONE, &pipe, true),
            (ZONE, "/dev/zero", true),
            (ZONE, ":/dev/urandom", true),
        ] {
            assert_eq!(is_harmful(name, OsStr::new(value)), harmful, "{name}={value}");
        }
    }
}
