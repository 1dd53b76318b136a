//! `dmschat compare`: measures what eviction and smaller codecs cost on a text.

use super::args::{Common, CompareArgs};
use super::output::{self, as_wrong_use, wrong_use};
use super::score::{check_tokens, encode_text_file};
use super::spawn::{ModelJob, with_model};
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::config::{Kv, Settings};
use crate::engine::Runner;
use crate::engine::compare::{self, Compared, Row};
use crate::protocol::Token;
use anyhow::Result;
use serde_json::{Value, json};

/// The logits of all tokens of a step are in memory at once.
const MAX_STEP: usize = 64;

/// The first format of `--kv`, without eviction, is the reference.
pub fn run(settings: &Settings, args: &CompareArgs, common: &Common) -> Result<u8> {
    let kvs = common.kv.as_ref().map_or(vec![settings.kv], |list| list.0.clone());
    let job = Job { settings, args, others: &kvs[1..], json: common.json };
    with_model(&with_kv(settings, kvs[0]), MAX_STEP, job)
}

fn with_kv(settings: &Settings, kv: Kv) -> Settings {
    let mut settings = settings.clone();
    settings.kv = kv;
    settings
}

struct Job<'a> {
    settings: &'a Settings,
    args: &'a CompareArgs,
    others: &'a [Kv],
    json: bool,
}

impl ModelJob for Job<'_> {
    fn run<B: Backend>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let tokens = encode_text_file(checkpoint, &self.args.text_file, runner.context()).map_err(as_wrong_use)?;
        check_tokens(&tokens, runner).map_err(as_wrong_use)?;
        let evictions = evictions(checkpoint, &tokens, self.others.is_empty())?;
        let mut ppl = None;
        let mut rows = Vec::new();
        let mut collect = |(dense, more): Compared| {
            ppl = dense;
            rows.extend(more);
        };
        if evictions.contains(&true) {
            collect(compare::eviction(runner, &tokens)?);
        }
        for &kv in self.others {
            let beside = Beside { reference: runner, tokens: &tokens, evictions, collect: &mut collect };
            with_model(&with_kv(self.settings, kv), MAX_STEP, beside)?;
        }
        let kv = runner.cache.geometry().codec.name();
        if self.json {
            output::out_json(&as_json(tokens.len(), kv, ppl, &rows))?;
        } else {
            output::out(&as_table(tokens.len(), kv, ppl, &rows))?;
        }
        Ok(output::OK)
    }
}

/// The eviction settings with which a codec is compared.
fn evictions(checkpoint: &Checkpoint, tokens: &[Token], alone: bool) -> Result<&'static [bool]> {
    let Some(dms) = &checkpoint.config.dms else {
        if alone {
            let name = &checkpoint.name;
            return Err(wrong_use(format!(
                "{name} does not evict; compare formats instead, such as --kv f32,bf16,fp8"
            )));
        }
        return Ok(&[false]);
    };
    let least = 4 * dms.rule.window;
    if tokens.len() < least {
        return Err(wrong_use(format!(
            "the text has {} tokens; eviction shows from {least} tokens (four windows)",
            tokens.len()
        )));
    }
    Ok(&[false, true])
}

/// The same model with another codec, compared with the reference.
struct Beside<'a, R: Backend, F: FnMut(Compared)> {
    reference: &'a mut Runner<R>,
    tokens: &'a [Token],
    evictions: &'static [bool],
    collect: F,
}

impl<R: Backend, F: FnMut(Compared)> ModelJob for Beside<'_, R, F> {
    fn run<B: Backend>(mut self, runner: &mut Runner<B>, _: &Checkpoint) -> Result<u8> {
        check_tokens(self.tokens, runner).map_err(as_wrong_use)?;
        (self.collect)(compare::codec(self.reference, runner, self.tokens, self.evictions)?);
        Ok(output::OK)
    }
}

/// The reference codec with eviction on against off, and all rows.
fn as_json(tokens: usize, kv: &str, ppl: Option<f64>, rows: &[Row]) -> Value {
    let on = rows.iter().find(|r| r.kv == kv && r.eviction);
    json!({
        "tokens": tokens,
        "kv": kv,
        "ppl_off": ppl,
        "ppl_on": on.and_then(|r| r.ppl),
        "kl": on.map(|r| r.kl),
        "top1_agreement": on.map(|r| r.top1_agreement),
        "ratio": on.and_then(|r| r.ratio),
        "rows": rows,
    })
}

fn as_table(tokens: usize, kv: &str, ppl: Option<f64>, rows: &[Row]) -> String {
    let show = |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
    let mut out = format!("{tokens} tokens; reference: {kv} without eviction, perplexity {}\n", show(ppl, 4));
    out.push_str("kv    eviction  perplexity  KL, nats/token  same top token   ratio     KV MB\n");
    for r in rows {
        out.push_str(&format!(
            "{:<4}  {:<8}  {:>10}  {:>14.6}  {:>12.2} %  {:>5}x  {:>8.3}\n",
            r.kv,
            if r.eviction { "on" } else { "off" },
            show(r.ppl, 4),
            r.kl,
            100.0 * r.top1_agreement,
            show(r.ratio, 2),
            r.live_bytes as f64 / 1e6
        ));
    }
    out
}
