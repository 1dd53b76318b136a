//! `dmschat models importance`: measures on a text which columns of a model's matrices matter, for `--importance`.

use super::args::ImportanceArgs;
use super::output::{self, as_wrong_use, notice, wrong_use};
use super::score::{check_tokens, encode_text_file};
use super::{download, spawn};
use crate::backend::cpu::Cpu;
use crate::checkpoint::convert::{self, Importance};
use crate::checkpoint::imatrix;
use crate::codec::Codec;
use crate::config::Settings;
use crate::engine::{EngineOptions, Runner};
use crate::quant::Weights;
use anyhow::{Context, Result};

/// Tokens of a text that are used. More do not make a difference.
const MAX_TOKENS: usize = 8192;
/// Tokens of a step.
const STEP: usize = 512;

/// Feeds the text to the model on the CPU, in f32, and writes the mean of x^2 of every matrix's input columns in the form of
/// llama.cpp's imatrix files.
pub fn run(settings: &Settings, args: &ImportanceArgs) -> Result<()> {
    download::ensure(settings)?;
    let checkpoint = spawn::open(settings).map_err(as_wrong_use)?;
    if checkpoint.weights.code().is_some() {
        return Err(wrong_use(format!("{} is quantized already; measure the model that it was made of", args.id)));
    }
    let checkpoint = convert::convert(checkpoint, Weights::Bf16, &Importance::new(), 0, |_, _| true)?;
    let mut tokens = encode_text_file(&checkpoint, &args.text_file, usize::MAX).map_err(as_wrong_use)?;
    tokens.truncate(MAX_TOKENS.min(checkpoint.config.context));
    let options =
        EngineOptions { context: Some(tokens.len().max(1)), max_step: Some(STEP), ..EngineOptions::new(Codec::F32) };
    let mut runner = Runner::new(Cpu::recording(0), &checkpoint, &options, |_, _| true)?;
    check_tokens(&tokens, &runner).map_err(as_wrong_use)?;
    let seq = runner.create(false)?;
    for step in tokens.chunks(STEP) {
        runner.feed(seq, step)?;
        // The head's input too.
        runner.logits(0..1, |_, _| {})?;
    }
    let importance = runner.backend().recorded();
    let path = args.output.display();
    std::fs::write(&args.output, imatrix::to_bytes(&importance)).with_context(|| format!("cannot write {path}"))?;
    notice(&format!("measured over {} tokens; use it with --importance {path}", tokens.len()));
    Ok(output::out(&format!("{path}\n"))?)
}
