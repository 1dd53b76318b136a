//! `dmschat models importance`: measures on a text which columns of a model's matrices matter, for `--importance`.

use super::args::ImportanceArgs;
use super::output::{self, as_wrong_use, notice, wrong_use};
use super::quantizing::Quantizing;
use super::score::encode_text_file;
use super::{calibrate, download, spawn};
use crate::checkpoint::imatrix;
use crate::config::Settings;
use anyhow::{Context, Result};

/// Tokens of a text that are used. More do not make a difference.
const MAX_TOKENS: usize = 8192;

/// Feeds the text to the model on the CPU, in f32, and writes the importance in the form of llama.cpp's imatrix files.
pub fn run(settings: &Settings, args: &ImportanceArgs) -> Result<()> {
    download::ensure(settings)?;
    let checkpoint = spawn::open(settings).map_err(as_wrong_use)?;
    if checkpoint.weights.code().is_some() {
        return Err(wrong_use(format!("{} is quantized already; measure the model that it was made of", args.id)));
    }
    let mut tokens = encode_text_file(&checkpoint, &args.text_file, usize::MAX).map_err(as_wrong_use)?;
    tokens.truncate(MAX_TOKENS.min(checkpoint.config.context));
    let mut progress = Quantizing::default();
    let importance = calibrate::importance(&checkpoint, &tokens, 0, &mut |report| progress.report(report));
    progress.clear();
    let path = args.output.display();
    std::fs::write(&args.output, imatrix::to_bytes(&importance?)).with_context(|| format!("cannot write {path}"))?;
    notice(&format!("measured over {} tokens; use it with --importance {path}", tokens.len()));
    Ok(output::out(&format!("{path}\n"))?)
}
