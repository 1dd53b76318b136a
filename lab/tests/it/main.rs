//! The one integration binary of dmslab. Tiny models and the emulator come from dmschat's tests.

use std::process::Command;
use tempfile::TempDir;

#[cfg(all(feature = "gpu-emulator", target_os = "linux", target_arch = "x86_64"))]
mod emulated;
#[allow(dead_code)]
#[cfg(all(feature = "gpu-emulator", target_os = "linux", target_arch = "x86_64"))]
#[path = "../../../tests/it/emulator.rs"]
mod emulator;
mod evaluation;
#[allow(dead_code)]
#[path = "../../../tests/it/folder.rs"]
mod folder;
mod measures;
#[path = "../../../tests/it/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "../../../tests/it/tiny.rs"]
mod tiny;

/// A dmslab with folders of its own and nothing in its environment.
fn dmslab(home: &TempDir) -> Command {
    program::program(env!("CARGO_BIN_EXE_dmslab"), home)
}
