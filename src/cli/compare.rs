//! `dmschat compare`: what eviction costs on a text.

use super::args::CompareArgs;
use super::output::{self, as_wrong_use, wrong_use};
use super::score::{check_tokens, encode_text_file};
use super::spawn::{ModelJob, with_model};
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::config::Settings;
use crate::engine::Runner;
use crate::engine::score::compare;
use anyhow::Result;

/// Logits of every token of a step are held at once.
const MAX_STEP: usize = 64;

pub fn run(settings: &Settings, args: &CompareArgs, json: bool) -> Result<u8> {
    with_model(settings, MAX_STEP, Job { args, json })
}

struct Job<'a> {
    args: &'a CompareArgs,
    json: bool,
}

impl ModelJob for Job<'_> {
    fn run<B: Backend>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let Some(dms) = &checkpoint.config.dms else {
            return Err(wrong_use(format!(
                "{} was not trained to evict: there is nothing to compare",
                checkpoint.name
            )));
        };
        let tokens = encode_text_file(checkpoint, &self.args.text_file).map_err(as_wrong_use)?;
        check_tokens(&tokens, runner).map_err(as_wrong_use)?;
        let least = 4 * dms.rule.window;
        if tokens.len() < least {
            return Err(wrong_use(format!(
                "the text has {} tokens; at least {least} (four windows) are needed for eviction to show",
                tokens.len()
            )));
        }
        let result = compare(runner, &tokens)?;
        if self.json {
            output::out(&format!("{}\n", serde_json::to_string(&result)?))?;
        } else {
            let show = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.3}"));
            output::out(&format!(
                "{} tokens: perplexity {} without eviction, {} with; KL {:.4} nats a token; top-1 agreement {:.1} %; compression {}x\n",
                result.tokens,
                show(result.ppl_off),
                show(result.ppl_on),
                result.kl,
                100.0 * result.top1_agreement,
                show(result.ratio)
            ))?;
        }
        Ok(output::OK)
    }
}
