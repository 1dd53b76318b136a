//! Tells the crate which commit it is built from, and packs the built-in model if it is beside it: the package of crates.io may
//! have 10 MB and is without.

use miniz_oxide::deflate::core::{self as deflate, CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus};
use std::path::Path;
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

/// Splits the model into the low and the high bytes of its bf16 weights. The low ones are noise; the high ones, signs and
/// exponents, have a third of their size under a Huffman code, and no match is worth looking for.
fn pack(model: &[u8], folder: &Path) -> std::io::Result<()> {
    let (pairs, rest) = model.as_chunks::<2>();
    assert!(rest.is_empty(), "{MODEL} has an odd size");
    let (low, high): (Vec<u8>, Vec<u8>) = pairs.iter().map(|&[low, high]| (low, high)).unzip();
    let flags = deflate::create_comp_flags_from_zip_params(1, 0, CompressionStrategy::HuffmanOnly as i32);
    let mut packed = Vec::new();
    let (status, _) =
        deflate::compress_to_output(&mut CompressorOxide::new(flags), &high, TDEFLFlush::Finish, |bytes| {
            packed.extend_from_slice(bytes);
            true
        });
    assert_eq!(status, TDEFLStatus::Done);
    std::fs::write(folder.join("model.low"), low)?;
    std::fs::write(folder.join("model.high"), packed)
}

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DMSCHAT_COMMIT");
    // Both, because `cargo package` builds its copy in the same target folder: there this name has no file, and what ran
    // there named one that does not exist either.
    println!("cargo:rerun-if-changed={MODEL}");
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed={root}/{MODEL}");
    println!("cargo:rustc-check-cfg=cfg(builtin_model)");
    if let Ok(model) = std::fs::read(MODEL) {
        pack(&model, Path::new(&std::env::var("OUT_DIR").unwrap_or_default()))?;
        println!("cargo:rustc-cfg=builtin_model");
    }
    let given = std::env::var("DMSCHAT_COMMIT").ok().filter(|c| !c.is_empty());
    if given.is_none()
        && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = given
        .or_else(packaged)
        .or_else(|| git(&["rev-parse", "--short=9", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=DMSCHAT_BUILD_COMMIT={commit}");
    Ok(())
}
