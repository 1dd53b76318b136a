//! Chooses the context, the codec and the number of sequences that fit into memory.

use super::head;
use super::options::EngineOptions;
use super::planner;
use super::runner::workspace_bytes;
use crate::backend::Backend;
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::protocol::{MAX_CONTEXT, Plan};
use anyhow::{Result, anyhow, bail, ensure};

/// Sequences; more are a user's choice of chains.
pub(super) const USUAL_SEQUENCES: usize = 16;

/// Bytes of memory that a model needs beside weights and pages, and whether they are the host's.
pub(super) fn beside<B: Backend>(
    b: &B,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    context: usize,
) -> (u64, bool) {
    let on_device = workspace_bytes(b, checkpoint, options);
    let bytes = on_device.unwrap_or_else(|| planner::host_bytes(&checkpoint.config, options, context));
    (bytes + head::bytes(checkpoint, options, on_device.is_some()), on_device.is_none())
}

/// Chooses the context length, and the codec and the tokens of a step if they are open. Extends
/// RoPE if the requested context is longer than the model was trained on, and lowers a default to
/// what fits. `notice` receives messages for the user. Fails if the model or the requested context
/// does not fit in memory, before anything of their size is allocated. The error names an adapter
/// that was found by itself if the rest fits without it.
pub fn resolve_context<B: Backend>(
    b: &B,
    checkpoint: &mut Checkpoint,
    options: &mut EngineOptions,
    notice: impl FnMut(String),
) -> Result<Plan> {
    let mut before = options.clone();
    resolve(b, checkpoint, options, notice).map_err(|why| {
        let Some(source) = checkpoint.adapter.as_ref().filter(|source| source.found) else { return why };
        let label = source.label.clone();
        (checkpoint.config.dms, checkpoint.config.gates) = (None, None);
        match resolve(b, checkpoint, &mut before, |_| ()) {
            Ok(_) => {
                anyhow!("{why:#}; it fits without {label}, which was found by itself: --adapter none leaves it out")
            }
            Err(_) => why,
        }
    })
}

pub(super) fn resolve<B: Backend>(
    b: &B,
    checkpoint: &mut Checkpoint,
    options: &mut EngineOptions,
    mut notice: impl FnMut(String),
) -> Result<Plan> {
    let (native, asked) = (checkpoint.config.context, options.context);
    let wanted = asked.unwrap_or(checkpoint.config.usual_context());
    ensure!(wanted <= MAX_CONTEXT, "a context of {wanted} tokens is out of range, expected 1 to {MAX_CONTEXT}");
    if wanted > native {
        checkpoint.config.extend_yarn(wanted)?;
    }
    checkpoint.config.rope.set_context(wanted);
    checkpoint.config.shorten_windows(wanted);
    if let (None, Some(factors)) = (asked, checkpoint.config.rope_factors()) {
        notice(format!("the context is {wanted} tokens: {factors}; --ctx-size N takes a longer one"));
    }
    let goal = if asked.is_some() { wanted } else { wanted.min(planner::USUAL_CONTEXT) };
    let smaller = choose_codec(b, checkpoint, options, goal);
    let open_step = options.max_step.is_none();
    let context = shorter_by_tables(checkpoint, options, wanted, asked.is_some())?;
    let on_host = set_context(b, checkpoint, options, context, open_step);
    // A limit on the pages is the user's choice: the context is not lowered for it.
    let plan = planner::plan(checkpoint, options, context, None);
    let (certain, expected) = (plan.certain_context, plan.expected_context);
    let default = planner::default_context(checkpoint, options, context);
    // Mapped weights may exceed the host's memory if the user asks for it.
    let runs_slowly = on_host && options.memory_bytes.is_none_or(|m| options.workspace_bytes < m);
    if certain == 0 && !(runs_slowly && asked.is_some()) {
        let hint = if runs_slowly { "; --ctx-size N runs it anyway, slowly" } else { "" };
        let fewer = fewer_sequences(&checkpoint.config, options, context);
        bail!("{}{hint}{fewer}", does_not_fit(plan.weight_bytes, plan.workspace_bytes, options));
    }
    smaller.into_iter().for_each(&mut notice);
    let more = if expected > certain { format!(" (about {expected} with eviction)") } else { String::new() };
    if certain < wanted && asked.is_some() {
        notice(format!("only {certain} of {wanted} tokens of context fit in memory in the worst case{more}"));
    } else if default < wanted && asked.is_none() {
        let why = if default > certain {
            format!("that many are expected to fit with eviction, {certain} in the worst case")
        } else {
            format!("that is what fits in the worst case{more}")
        };
        notice(format!("the context is {default} tokens, not {wanted}: {why}; --ctx-size overrides it"));
        // Tables for a shorter context are smaller.
        set_context(b, checkpoint, options, default, open_step);
    }
    let context = options.context.unwrap_or(wanted);
    Ok(planner::plan(checkpoint, options, context, options.kv_limit))
}

/// Sets the context, the tokens of a step if they are open, and the bytes of workspace for both.
/// Returns whether the workspace is in host memory.
pub(super) fn set_context<B: Backend>(
    b: &B,
    checkpoint: &Checkpoint,
    options: &mut EngineOptions,
    context: usize,
    open_step: bool,
) -> bool {
    options.context = Some(context);
    if open_step {
        options.max_step = Some(planner::step_tokens(checkpoint, options, b.about().step_tokens));
    }
    let (bytes, on_host) = beside(b, checkpoint, options, context);
    options.workspace_bytes = bytes;
    on_host
}

/// Sets the first codec with which `goal` tokens are expected to fit, or the last one. Returns a
/// message for the user if that is not the default.
pub(super) fn choose_codec<B: Backend>(
    b: &B,
    checkpoint: &Checkpoint,
    options: &mut EngineOptions,
    goal: usize,
) -> Option<String> {
    let mut refused = Vec::new();
    for &codec in options.smaller_codecs {
        let mut trial = options.clone();
        set_context(b, checkpoint, &mut trial, goal, options.max_step.is_none());
        let fits = planner::default_context(checkpoint, &trial, goal);
        if fits >= goal {
            break;
        }
        refused.push(format!("{fits} as {}", options.codec.name()));
        options.codec = codec;
    }
    (!refused.is_empty()).then(|| {
        format!(
            "keys and values are stored as {}: of {goal} tokens of context {} would fit; --kv overrides it",
            options.codec.name(),
            refused.join(" and ")
        )
    })
}

/// Returns the context to plan with: `wanted`, or less if its page tables alone would take a large
/// share of memory. Fails if the user `asked` for it and they do not fit.
pub(super) fn shorter_by_tables(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    wanted: usize,
    asked: bool,
) -> Result<usize> {
    let c = &checkpoint.config;
    let (tables, rest) = (planner::table_bytes(c, options, wanted), planner::host_bytes(c, options, 0));
    let Some(memory) = options.memory_bytes.filter(|m| tables > m / 4) else { return Ok(wanted) };
    if asked {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        ensure!(
            tables + rest < memory,
            "a context of {wanted} tokens needs page tables of {:.0} MB, {:.0} MB are free; give a smaller --ctx-size{}",
            mb(tables),
            mb(memory),
            fewer_sequences(c, options, wanted)
        );
        return Ok(wanted);
    }
    let fits = planner::longest_context(checkpoint, options, rest).map_or(wanted, |n| n.min(wanted));
    if fits == 0 {
        bail!("{}{}", does_not_fit(checkpoint.weight_bytes, rest, options), fewer_sequences(c, options, wanted));
    }
    Ok(fits)
}

/// The end of a message where many sequences are what does not fit.
pub(super) fn fewer_sequences(c: &ModelConfig, options: &EngineOptions, context: usize) -> String {
    let fit = planner::sequences_that_fit(c, options, context).filter(|_| options.max_seqs > USUAL_SEQUENCES);
    fit.map_or(String::new(), |fit| {
        format!(", or fewer chains (--width, --batch): about {fit} of {} sequences fit", options.max_seqs)
    })
}

pub(super) fn does_not_fit(weights: u64, beside: u64, options: &EngineOptions) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let free = mb(options.memory_bytes.unwrap_or(0));
    format!(
        "the model does not fit: it needs {:.0} MB of weights and {:.0} MB of workspace, {free:.0} MB are free",
        mb(weights),
        mb(beside)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;

    #[test]
    fn a_width_that_no_memory_holds_is_refused_with_what_fits() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options =
            |max_seqs| EngineOptions { memory_bytes: Some(1 << 30), max_seqs, ..EngineOptions::new(Codec::Bf16) };
        let refused =
            |max_seqs| format!("{:#}", shorter_by_tables(&checkpoint, &options(max_seqs), 1 << 20, true).unwrap_err());
        let text = refused(1000);
        let fit: usize =
            text.split("about ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect(&text);
        assert!(text.contains("--width") && text.contains("of 1000 sequences"), "{text}");
        assert!(shorter_by_tables(&checkpoint, &options(fit), 1 << 20, true).is_ok() && fit > 16);
        refused(fit + 1);
    }
}
