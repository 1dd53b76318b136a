//! The files of a model repository: their names, and how large they may be. The same in a folder
//! and on the hub.

use anyhow::{Result, bail};
use std::path::{Component, Path};

/// Largest JSON or Jinja file, on disk and in downloads: several times the largest known one of its
/// kind.
pub fn max_text_bytes(name: &str) -> u64 {
    const MIB: u64 = 1 << 20;
    match name {
        "tokenizer.json" => 128 * MIB,
        INDEX => 32 * MIB,
        "tokenizer_config.json" => 16 * MIB,
        _ => 4 * MIB,
    }
}

/// The weights of a folder, where one file holds them all.
pub const WEIGHTS: &str = "model.safetensors";
/// Where several do, which file holds which tensor.
pub const INDEX: &str = "model.safetensors.index.json";
/// The model card, which states the licence and what the model was made of.
pub const CARD: &str = "README.md";
/// The weights of retention gates (TrimKV).
pub const GATES: &str = "trimkv_weights.pth";

/// Files beside the weights that a checkpoint is opened from, where they exist. The first two
/// decide whether the model can run.
pub const TEXTS: [&str; 9] = [
    "config.json",
    "dms_metadata.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    CARD,
    "chat_template.jinja",
    "chat_template.json",
];

/// Fails unless the name is a relative path of ordinary names.
pub fn plain_name(name: &str) -> Result<()> {
    let plain = !name.is_empty()
        && !name.contains(['\\', '\0', ':'])
        && !name.chars().any(char::is_control)
        && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !plain {
        bail!("file name {name:?} is not a plain relative name");
    }
    Ok(())
}
