//! `dmslab score`: log-probabilities of a text. Also reads the inputs of `compare`.

use crate::schedule::{Op, Schedule, score};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueHint};
use dmschat::backend::Measure;
use dmschat::checkpoint::Checkpoint;
use dmschat::cli::output::{self, as_wrong_use, wrong_use};
use dmschat::cli::spawn::{ModelJob, with_model};
use dmschat::config::Settings;
use dmschat::engine::{Runner, weights_info};
use dmschat::protocol::{TextLimit, Token};
use dmschat::regular_file;
use dmschat::tokenizer::Tokenizer;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Largest file of text or tokens.
const MAX_INPUT_BYTES: u64 = 64 << 20;

/// Longest step; longer ones are split. The result does not depend on it.
const MAX_STEP: usize = 2048;

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub struct ScoreArgs {
    /// Token ids: a JSON list, or numbers separated by spaces or commas
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub tokens_file: Option<PathBuf>,
    /// UTF-8 text, encoded with the tokenizer's post-processor
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub text_file: Option<PathBuf>,
    /// Comma-separated prefill:N, decode:N, off and on that cover the tokens exactly
    /// [default: one prefill]
    #[arg(long, value_name = "STEPS")]
    pub schedule: Option<String>,
}

pub fn run(settings: &Settings, args: &ScoreArgs, json: bool) -> Result<u8> {
    with_model(settings, MAX_STEP, Job { settings, args, json })
}

struct Job<'a> {
    settings: &'a Settings,
    args: &'a ScoreArgs,
    json: bool,
}

impl ModelJob for Job<'_> {
    type Output = u8;
    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let tokens = match (&self.args.tokens_file, &self.args.text_file) {
            (Some(file), _) => read_tokens(file),
            (None, Some(file)) => encode_text_file(checkpoint, file, runner.context()),
            (None, None) => Err(wrong_use("score needs --tokens-file or --text-file")),
        }
        .map_err(as_wrong_use)?;
        check_tokens(&tokens, runner).map_err(as_wrong_use)?;
        let mut schedule = match &self.args.schedule {
            Some(text) => Schedule::parse(text, tokens.len()).map_err(as_wrong_use)?,
            None => Schedule::whole(tokens.len()),
        };
        if self.settings.eviction == Some(false) {
            schedule.0.insert(0, Op::Eviction(false));
        }
        let result = score(runner, &tokens, &schedule)?;
        if self.json {
            let mut result = serde_json::to_value(&result)?;
            result["weights"] = serde_json::to_value(weights_info(checkpoint))?;
            output::out_json(&result)?;
        } else {
            let show = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
            output::out(&format!(
                "{} tokens, perplexity {}, compression {}x\n",
                tokens.len(),
                show(result.ppl),
                show(result.ratio)
            ))?;
        }
        Ok(output::OK)
    }
}

/// Reads a JSON list of ids, or numbers separated by spaces or commas.
fn read_tokens(path: &Path) -> Result<Vec<Token>> {
    let text = read_text(path)?;
    if let Ok(tokens) = serde_json::from_str(&text) {
        return Ok(tokens);
    }
    text.split(|c: char| c.is_whitespace() || c == ',')
        .filter(|w| !w.is_empty())
        .map(|w| w.parse().map_err(|_| wrong_use(format!("{}: `{w}` is not a token id", path.display()))))
        .collect()
}

/// Encodes a text file with the post-processor of tokenizer.json.
pub fn encode_text_file(checkpoint: &Checkpoint, path: &Path, context: usize) -> Result<Vec<Token>> {
    let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
    let text = read_text(path)?;
    let limit = TextLimit { context, token_bytes: tokenizer.longest_token_bytes() };
    if let Some(why) = limit.refusal(&path.display().to_string(), text.len()) {
        return Err(wrong_use(why));
    }
    tokenizer.encode_text(&text)
}

fn read_text(path: &Path) -> Result<String> {
    // The user named it, so that a pipe is read too: `--text-file <(...)`.
    let read = File::open(path).and_then(|file| regular_file::read_at_most(file, MAX_INPUT_BYTES));
    let bytes = read.with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes)
        .map(regular_file::without_mark)
        .map_err(|e| wrong_use(format!("{}: not UTF-8 at byte {}", path.display(), e.utf8_error().valid_up_to())))
}

/// Fails if the model cannot process these tokens.
pub fn check_tokens<B: Measure>(tokens: &[Token], runner: &Runner<B>) -> Result<()> {
    let (vocab, context) = (runner.config().vocab, runner.context());
    ensure!(!tokens.is_empty(), wrong_use("the input has no tokens"));
    if let Some(at) = tokens.iter().position(|&t| t as usize >= vocab) {
        return Err(wrong_use(format!("token {} at position {at} is outside the vocabulary of {vocab}", tokens[at])));
    }
    ensure!(
        tokens.len() <= context,
        wrong_use(format!("the input has {} tokens, but the context holds {context}", tokens.len()))
    );
    Ok(())
}
