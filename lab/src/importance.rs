//! `dmslab importance`: measures on a text which columns of a model's matrices matter, for
//! dmschat's `--importance`.

use crate::score::encode_text_file;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueHint};
use dmschat::chat::session::{Output, open_stream};
use dmschat::cli::output::{self, as_wrong_use, notice, wrong_use};
use dmschat::cli::quantizing::Quantizing;
use dmschat::cli::{calibrate, download, spawn};
use dmschat::config::Settings;
use dmschat::quantize::imatrix;
use std::io::Write;
use std::path::PathBuf;

/// Only a file of an imatrix tool is replaced.
const OUTPUT: Output = Output { noun: "a file of importance (imatrix)", is_own: imatrix::is_at };
/// Tokens of a text that are used. More do not make a difference.
const MAX_TOKENS: usize = 8192;

#[derive(Args, Debug)]
pub struct ImportanceArgs {
    /// Folder, GGUF file or hub id
    pub id: String,
    /// UTF-8 text of the kind that the model will work on: a few thousand tokens
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,
    /// The file to write, in the form of llama.cpp's imatrix
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
}

/// Feeds the text to the model on the CPU, in f32, and writes the importance in the form of
/// llama.cpp's imatrix files.
pub fn run(settings: &Settings, args: &ImportanceArgs) -> Result<u8> {
    let settings = &Settings { model: args.id.clone(), ..settings.clone() };
    let path = args.output.display();
    let mut stream = open_stream(&args.output).with_context(|| format!("cannot write {path}"))?;
    if stream.is_none() {
        OUTPUT.check(&args.output).map_err(as_wrong_use)?;
    }
    download::ensure(settings)?;
    let checkpoint = spawn::open(settings).map_err(as_wrong_use)?;
    ensure!(
        !checkpoint.weights.chooses_codes(),
        wrong_use(format!("{} is quantized already; measure the model that it was made of", args.id))
    );
    let mut tokens = encode_text_file(&checkpoint, &args.text_file, usize::MAX).map_err(as_wrong_use)?;
    tokens.truncate(MAX_TOKENS.min(checkpoint.config.context));
    ensure!(!tokens.is_empty(), wrong_use(format!("{} has no tokens", args.text_file.display())));
    let mut progress = Quantizing::default();
    let importance = calibrate::importance(&checkpoint, &tokens, 0, &mut |report| progress.report(report));
    progress.clear();
    let bytes = imatrix::to_bytes(&importance?);
    match &mut stream {
        Some(stream) => {
            stream.write_all(&bytes).map_err(output::of_stdout).with_context(|| format!("cannot write {path}"))?
        }
        None => OUTPUT.write(&args.output, &bytes)?,
    }
    notice(&format!("measured over {} tokens; use it with --importance {path}", tokens.len()));
    // A stream may be stdout.
    if stream.is_none() {
        output::out(&format!("{path}\n"))?;
    }
    Ok(output::OK)
}
