//! `dmslab compare`: measures what eviction and smaller formats of cache and weights cost on a
//! text.

use crate::divergence::{self, Block, Compared, FarRow, Of, Row};
use crate::score::{check_tokens, encode_text_file};
use anyhow::{Result, ensure};
use clap::{Args, ValueHint};
use dmschat::backend::Measure;
use dmschat::checkpoint::Checkpoint;
use dmschat::cli::args::Common;
use dmschat::cli::output::{self, as_wrong_use, wrong_use};
use dmschat::cli::spawn::{ModelJob, with_far};
use dmschat::codec::Codec;
use dmschat::config::List;
use dmschat::config::{Auto, Settings};
use dmschat::engine::{Runner, weights_info};
use dmschat::policy::Policy;
use dmschat::protocol::Token;
use dmschat::quant::Weights;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The logits of all tokens of a step are in memory at once.
const MAX_STEP: usize = 64;

/// `--weights` and `--kv` accept several values: the first of each, without eviction, are the
/// reference for all others.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// UTF-8 text of at least four windows of the model
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,

    /// What decisions must exceed to mark, one row each: 0 as trained, more to keep more, such as
    /// 0,5,10
    #[arg(long, value_name = "X,...")]
    pub dial: Option<List<f32>>,

    /// Other models with the same vocabulary, such as GGUF files made from this one, one row
    /// each, with the weights that --weights auto gives them
    #[arg(long, value_name = "MODEL,...")]
    pub other: Option<List<String>>,

    /// With --far: choose pages as in a prompt, every 2,048 tokens; else as in an answer, every 16
    #[arg(long)]
    pub as_prompt: bool,
}

/// The first formats of `--weights` and `--kv`, without eviction, are the reference of all other
/// pairs, and of other models.
pub fn run(settings: &Settings, args: &CompareArgs, common: &Common) -> Result<u8> {
    if let Some(dial) = args.dial.iter().flat_map(|list| &list.0).find(|dial| !dial.is_finite()) {
        return Err(wrong_use(format!(
            "--dial: {dial} is not a number that a decision can exceed, expected one such as 5"
        )));
    }
    let kvs = common.kv.as_ref().map_or(vec![settings.kv], |list| list.0.clone());
    let weights = common.weights.as_ref().map_or(vec![settings.weights], |list| list.0.clone());
    let pairs: Vec<Formats> = weights.iter().flat_map(|&w| kvs.iter().map(move |&kv| (w, kv))).collect();
    let mut others: Vec<Settings> = pairs.iter().map(|&pair| with_formats(settings, pair)).collect();
    let reference = others.remove(0);
    for model in args.other.iter().flat_map(|list| &list.0) {
        others.push(Settings { model: model.clone(), weights: Weights::Auto, ..reference.clone() });
    }
    let job = Job { args, others: &others, far: reference.far.bytes().is_some(), json: common.json };
    with_far(&reference, MAX_STEP, job)
}

/// Formats of the weights and of the cache.
type Formats = (Weights, Auto<Codec>);

fn with_formats(settings: &Settings, (weights, kv): Formats) -> Settings {
    let mut settings = settings.clone();
    (settings.weights, settings.kv) = (weights, kv);
    settings
}

struct Job<'a> {
    args: &'a CompareArgs,
    others: &'a [Settings],
    /// Whether far pages are asked for.
    far: bool,
    json: bool,
}

impl ModelJob for Job<'_> {
    type Output = u8;
    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let tokens = encode_text_file(checkpoint, &self.args.text_file, runner.context()).map_err(as_wrong_use)?;
        check_tokens(&tokens, runner).map_err(as_wrong_use)?;
        let policy = runner.cache.geometry().policy;
        if self.args.dial.is_some() && !policy.uses_decisions() {
            let name = policy.name();
            return Err(wrong_use(format!("--dial: policy {name} does not use the model's decisions about tokens")));
        }
        let evictions = evictions(&policy, checkpoint, &tokens, self.others.is_empty())?;
        if let Some(why) = self.far.then(|| policy.far_refusal()).flatten() {
            return Err(wrong_use(why));
        }
        let block = if self.args.as_prompt { Block::Prompt } else { Block::Answer };
        let mut ppl = None;
        let mut rows = Vec::new();
        let mut collect = |(dense, more): Compared| {
            ppl = dense;
            rows.extend(more);
        };
        if evictions.contains(&true) {
            for dial in self.args.dial.as_ref().map_or(vec![0.0], |list| list.0.clone()) {
                collect(divergence::eviction(runner, checkpoint.into(), &tokens, dial, block)?);
            }
        }
        for other in self.others {
            let beside = Beside { reference: runner, tokens: &tokens, evictions, block, collect: &mut collect };
            with_far(other, MAX_STEP, beside)?;
        }
        let kv = runner.cache.geometry().codec.name();
        if self.json {
            output::out_json(&as_json(tokens.len(), checkpoint, kv, ppl, &rows))?;
        } else {
            output::out(&as_table(tokens.len(), checkpoint.weights.name(), kv, ppl, &rows))?;
        }
        Ok(output::OK)
    }
}

/// The eviction settings with which a format is compared: both where the policy drops, merges or
/// skips tokens.
fn evictions(policy: &Policy, checkpoint: &Checkpoint, tokens: &[Token], alone: bool) -> Result<&'static [bool]> {
    match policy {
        Policy::Dense if alone => {
            let what = match checkpoint.config.trained() {
                Some(_) => "policy dense",
                None => &checkpoint.name,
            };
            Err(wrong_use(format!(
                "{what} does not evict; compare formats instead, such as --kv f32,bf16,fp8 or --weights bf16,int8,int4"
            )))
        }
        Policy::Dense => Ok(&[false]),
        Policy::Dms(rule) if tokens.len() < 4 * rule.window => Err(wrong_use(format!(
            "the text is too short: {} tokens, but eviction shows from {} tokens on (four windows of {})",
            tokens.len(),
            4 * rule.window,
            rule.window
        ))),
        _ => Ok(&[false, true]),
    }
}

/// The same model in other formats, or another one, compared with the reference.
struct Beside<'a, R: Measure, F: FnMut(Compared)> {
    reference: &'a mut Runner<R>,
    tokens: &'a [Token],
    evictions: &'static [bool],
    block: Block,
    collect: F,
}

impl<R: Measure, F: FnMut(Compared)> ModelJob for Beside<'_, R, F> {
    type Output = u8;
    fn run<B: Measure>(mut self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        check_tokens(self.tokens, runner).map_err(as_wrong_use)?;
        let [vocab, wanted] = [checkpoint.config.vocab, self.reference.config().vocab];
        ensure!(
            vocab == wanted,
            wrong_use(format!("--other: {} has {vocab} tokens, and the model {wanted}", checkpoint.name))
        );
        let Self { reference, tokens, evictions, block, .. } = &mut self;
        let compared = divergence::formats(reference, runner, checkpoint.into(), tokens, evictions, *block)?;
        (self.collect)(compared);
        Ok(output::OK)
    }
}

/// The reference with eviction on against off, and all rows.
fn as_json(tokens: usize, checkpoint: &Checkpoint, kv: &str, ppl: Option<f64>, rows: &[Row]) -> Value {
    let on = rows.iter().find(|r| (r.of.weights, r.kv) == (checkpoint.weights.name(), kv) && r.eviction);
    json!({
        "tokens": tokens,
        "weights": weights_info(checkpoint),
        "kv": kv,
        "ppl_off": ppl,
        "ppl_on": on.and_then(|r| r.ppl),
        "kl": on.map(|r| r.kl),
        "top1_agreement": on.map(|r| r.top1_agreement),
        "ratio": on.and_then(|r| r.ratio),
        "far": on.and_then(|r| r.far),
        "rows": rows,
    })
}

fn as_table(tokens: usize, weights: &str, kv: &str, ppl: Option<f64>, rows: &[Row]) -> String {
    let show = |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
    let mut out = format!(
        "{tokens} tokens; reference: weights {weights}, cache {kv} without eviction, perplexity {}\n",
        show(ppl, 4)
    );
    out.push_str("weights       MB  kv    eviction  perplexity  KL, nats/token  99 % below  same top token   ratio     KV MB  model\n");
    for r in rows {
        let Of { weights, weight_bytes, model } = &r.of;
        let [mb, live_mb] = [*weight_bytes, r.live_bytes].map(|bytes| bytes as f64 / 1e6);
        let (eviction, ppl, ratio) = (if r.eviction { "on" } else { "off" }, show(r.ppl, 4), show(r.ratio, 2));
        let (Row { kv, kl, kl_99, .. }, same) = (r, 100.0 * r.top1_agreement);
        out += &format!(
            "{weights:<7}  {mb:>7.1}  {kv:<4}  {eviction:<8}  {ppl:>10}  {kl:>14.6}  {kl_99:>10.4}  {same:>12.2} %  {ratio:>5}x  \
             {live_mb:>8.3}  {}\n",
            output::visible(model)
        );
        if let Some(far) = &r.far {
            let FarRow { pages, block, near, rows, bytes, fetched } = far;
            out += &format!(
                "         far: {pages} pages every {block} tokens; at the end {near:.0} of {rows:.0} far rows a head are read, \
                 {:.3} MB; {fetched:.2} pages fetched a head and token\n",
                *bytes as f64 / 1e6
            );
        }
    }
    out
}
