//! Tells the crate which commit it is built from.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    String::from_utf8(output.stdout).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DMSCHAT_COMMIT");
    let given = std::env::var("DMSCHAT_COMMIT").ok().filter(|c| !c.is_empty());
    if given.is_none()
        && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = given.or_else(|| git(&["rev-parse", "--short=9", "HEAD"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DMSCHAT_BUILD_COMMIT={commit}");
}
