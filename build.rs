//! Tells the crate which commit it is built from, and whether the built-in model is beside it: the package of crates.io may have
//! 10 MB and is without.

use std::process::Command;

const MODEL: &str = "assets/demo/model.safetensors";

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success())?;
    String::from_utf8(output.stdout).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty())
}

/// The commit that `cargo package` notes.
fn packaged() -> Option<String> {
    let noted = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let commit = noted.split_once("\"sha1\": \"")?.1;
    commit.get(..9).map(str::to_owned)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DMSCHAT_COMMIT");
    // Both, because `cargo package` builds its copy in the same target folder: there this name has no file, and what ran
    // there named one that does not exist either.
    println!("cargo:rerun-if-changed={MODEL}");
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed={root}/{MODEL}");
    println!("cargo:rustc-check-cfg=cfg(builtin_model)");
    if std::path::Path::new(MODEL).exists() {
        println!("cargo:rustc-cfg=builtin_model");
    }
    let given = std::env::var("DMSCHAT_COMMIT").ok().filter(|c| !c.is_empty());
    if given.is_none()
        && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = given
        .or_else(packaged)
        .or_else(|| git(&["rev-parse", "--short=9", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DMSCHAT_BUILD_COMMIT={commit}");
}
