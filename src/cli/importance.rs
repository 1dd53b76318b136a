//! `dmschat models importance`: measures on a text which columns of a model's matrices matter, for `--importance`.

use super::args::ImportanceArgs;
use super::output::{self, as_wrong_use, notice, wrong_use};
use super::quantizing::Quantizing;
use super::score::encode_text_file;
use super::{calibrate, download, spawn};
use crate::chat::session::{check_output, open_stream, write_output};
use crate::checkpoint::imatrix;
use crate::config::Settings;
use anyhow::{Context, Result};
use std::io::Write;

/// Tokens of a text that are used. More do not make a difference.
const MAX_TOKENS: usize = 8192;

/// Feeds the text to the model on the CPU, in f32, and writes the importance in the form of llama.cpp's imatrix files.
pub fn run(settings: &Settings, args: &ImportanceArgs) -> Result<()> {
    let path = args.output.display();
    let mut stream = open_stream(&args.output).with_context(|| format!("cannot write {path}"))?;
    if stream.is_none() {
        check_output(&args.output).map_err(as_wrong_use)?;
    }
    download::ensure(settings)?;
    let checkpoint = spawn::open(settings).map_err(as_wrong_use)?;
    if checkpoint.weights.code().is_some() {
        return Err(wrong_use(format!("{} is quantized already; measure the model that it was made of", args.id)));
    }
    let mut tokens = encode_text_file(&checkpoint, &args.text_file, usize::MAX).map_err(as_wrong_use)?;
    tokens.truncate(MAX_TOKENS.min(checkpoint.config.context));
    if tokens.is_empty() {
        return Err(wrong_use(format!("{} has no tokens", args.text_file.display())));
    }
    let mut progress = Quantizing::default();
    let importance = calibrate::importance(&checkpoint, &tokens, 0, &mut |report| progress.report(report));
    progress.clear();
    let bytes = imatrix::to_bytes(&importance?);
    match &mut stream {
        Some(stream) => stream.write_all(&bytes).with_context(|| format!("cannot write {path}"))?,
        None => write_output(&args.output, &bytes)?,
    }
    notice(&format!("measured over {} tokens; use it with --importance {path}", tokens.len()));
    // A stream may be stdout.
    if stream.is_none() {
        output::out(&format!("{path}\n"))?;
    }
    Ok(())
}
