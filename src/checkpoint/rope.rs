//! Rotary embedding: parses both forms of the configuration into [`Rope`], and computes frequencies
//! as transformers' `modeling_rope_utils` does. Refuses other kinds of scaling.

use super::Family;
use super::bounds;
use super::config::{ModelConfig, Rope, RopeScaling};
use super::json::Fields;
use super::spec::QueryGrowth;
use crate::protocol::count;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use std::f64::consts::PI;

/// transformers' defaults for bases of Gemma 3 that are not stated.
const GEMMA_THETA: f64 = 1_000_000.0;
const GEMMA_LOCAL_THETA: f64 = 10_000.0;
const BETA: &str = "llama_4_scaling_beta";
const ORIGINAL: &str = "original_max_position_embeddings";
/// Its value in transformers' class of Phi-3.
const PHI3_ORIGINAL: usize = 4096;

/// Reads `rope_theta` + `rope_scaling`, or transformers 5's `rope_parameters`. `context` is
/// `max_position_embeddings`, YaRN's original context if the config states none.
pub fn parse(config: &Fields, family: &Family, context: usize) -> Result<Rope> {
    let place = config.place();
    if family.gemma || family.gemma4 {
        return gemma(config, family, context);
    }
    let fields = given(config)?;
    if let Some(fields) = fields.as_ref().filter(|fields| fields.get(BETA).is_some()) {
        ensure!(family.growth, "{}: {BETA} is set, which is not supported in {}", fields.place(), family.name);
    }
    let outer = config.opt_positive("rope_theta")?;
    let inner = fields.as_ref().map(|f| f.opt_positive("rope_theta")).transpose()?.flatten();
    if let (Some(a), Some(b), Some(f)) = (outer, inner, &fields) {
        ensure!(a == b, "{}: rope_theta is {b}, but outside of it {a}", f.place());
    }
    let elsewhere = config.opt_object("rope_parameters")?.map(|f| f.opt_positive("rope_theta")).transpose()?.flatten();
    let theta = inner.or(outer).or(elsewhere).unwrap_or(family.rope_theta());
    ensure!(theta > 1.0, "{place}: rope_theta {theta} is not above 1");
    let mut share = None;
    for fields in fields.iter().chain([config]) {
        let part = fields.opt_f64("partial_rotary_factor")?;
        let known = part.is_none_or(|part| part == 1.0 || family.partial_rope && 0.0 < part && part < 1.0);
        let shown = part.unwrap_or_default();
        ensure!(known, "{}: partial_rotary_factor {shown} is not supported in {}", fields.place(), family.name);
        share = share.or(part);
    }
    ensure!(!config.bool_or("rope_interleaved", false)?, "{place}: rope_interleaved is not supported");
    let scaling = match fields {
        Some(fields) => match parse_scaling(&fields, config, context)? {
            RopeScaling::Proportional { .. } => {
                bail!("{}: rope type \"proportional\" is not supported in {}", fields.place(), family.name)
            }
            scaling => scaling,
        },
        None => RopeScaling::Default,
    };
    // transformers' default for a base that is not stated.
    let usual = if family.hybrid { 0.25 } else { 1.0 };
    Ok(Rope { theta, share: share.unwrap_or(usual), scaling })
}

fn parse_scaling(f: &Fields, config: &Fields, context: usize) -> Result<RopeScaling> {
    let kind = f.opt_str("rope_type")?.or(f.opt_str("type")?).unwrap_or("default");
    // As in transformers, a value beside the parameters takes precedence.
    let original = [config, f].into_iter().find(|f| f.get(ORIGINAL).is_some());
    let original = original.map(|f| f.size(ORIGINAL)).transpose()?;
    let is_phi3 = config.opt_str("model_type")? == Some("phi3");
    // Early files of Phi-3 call it so.
    let kind = if kind == "yarn" && is_phi3 { "longrope" } else { kind };
    match kind {
        "default" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: f.positive("factor")? }),
        "llama3" => {
            let (low, high) = (f.positive("low_freq_factor")?, f.positive("high_freq_factor")?);
            ensure!(low < high, "{}: low_freq_factor {low} is not below high_freq_factor {high}", f.place());
            Ok(RopeScaling::Llama3 {
                factor: f.positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: original.ok_or_else(|| f.missing(ORIGINAL))?,
            })
        }
        "yarn" => {
            let factor = match (f.opt_positive("factor")?, original) {
                (Some(factor), _) => factor,
                (None, Some(original)) => context as f64 / original as f64,
                (None, None) => return Err(f.missing("factor")),
            };
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original.unwrap_or(context),
                beta_fast: f.opt_positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: f.opt_positive("beta_slow")?.unwrap_or(1.0),
                attention_factor: f.opt_positive("attention_factor")?,
                mscale: f.opt_f64("mscale")?,
                mscale_all_dim: f.opt_f64("mscale_all_dim")?,
                truncate: f.bool_or("truncate", true)?,
            })
        }
        "proportional" => Ok(RopeScaling::Proportional { factor: f.opt_positive("factor")?.unwrap_or(1.0) }),
        "longrope" | "su" => longrope(f, original.unwrap_or(if is_phi3 { PHI3_ORIGINAL } else { context }), context),
        other => {
            bail!("{}: rope type {other:?} is not supported (default, linear, llama3, yarn, longrope are)", f.place())
        }
    }
}

/// Parameters of Gemma's global layers: by the kind of a layer, or in older files for global layers
/// only.
fn gemma(config: &Fields, family: &Family, context: usize) -> Result<Rope> {
    if family.gemma4 && config.get("rope_parameters").is_none() {
        // As transformers' class has it.
        let scaling = RopeScaling::Proportional { factor: 1.0 };
        return Ok(Rope { theta: GEMMA_THETA, share: 0.25, scaling });
    }
    let of_kind = config.opt_object("rope_parameters")?.map(|f| f.opt_object("full_attention")).transpose()?.flatten();
    let fields = match of_kind {
        Some(fields) => Some(fields),
        None => config.opt_object("rope_scaling")?,
    };
    let inner = fields.as_ref().map(|f| f.opt_positive("rope_theta")).transpose()?.flatten();
    let theta = inner.or(config.opt_positive("rope_theta")?).unwrap_or(GEMMA_THETA);
    ensure!(theta > 1.0, "{}: rope_theta {theta} is not above 1", config.place());
    let share = fields.as_ref().map(|f| f.opt_f64("partial_rotary_factor")).transpose()?.flatten().unwrap_or(1.0);
    let place = config.place();
    let scaling = fields.map_or(Ok(RopeScaling::Default), |fields| parse_scaling(&fields, config, context))?;
    let is_proportional = matches!(scaling, RopeScaling::Proportional { .. });
    if !is_proportional {
        return Ok(Rope { theta, share: 1.0, scaling });
    }
    ensure!(family.gemma4, "{place}: rope type \"proportional\" is not supported in {}", family.name);
    ensure!(0.0 < share && share <= 1.0, "{place}: partial_rotary_factor {share} is not above 0 and at most 1");
    Ok(Rope { theta, share, scaling })
}

/// The growth of queries, which is among the parameters of RoPE. As in transformers, it begins at
/// the context that YaRN extends.
pub fn growth(config: &Fields) -> Result<Option<QueryGrowth>> {
    let Some(fields) = given(config)? else { return Ok(None) };
    let beta = fields.opt_f64(BETA)?.unwrap_or(0.0);
    if beta == 0.0 {
        return Ok(None);
    }
    ensure!((0.0..=100.0).contains(&beta), "{}: {BETA} {beta} is not between 0 and 100", fields.place());
    let length = fields.size_to(ORIGINAL, bounds::CONTEXT)?;
    Ok(Some(QueryGrowth { beta: beta as f32, length: length.min(bounds::POSITIONS) }))
}

/// The parameters of RoPE. As in transformers, a rope_scaling that is not empty takes precedence
/// over rope_parameters.
fn given<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(fields) = config.opt_object(key)?.filter(|f| f.keys().next().is_some()) {
            return Ok(Some(fields));
        }
    }
    Ok(None)
}

/// The base of RoPE in Gemma's local layers.
pub fn local_theta(config: &Fields) -> Result<f64> {
    let all = config.opt_object("rope_parameters")?;
    let local = all.map(|f| f.opt_object("sliding_attention")).transpose()?.flatten();
    let theta = match &local {
        Some(fields) => {
            let kind = fields.opt_str("rope_type")?.unwrap_or("default");
            ensure!(kind == "default", "{}: rope type {kind:?} of local layers is not supported", fields.place());
            fields.opt_positive("rope_theta")?
        }
        None => config.opt_positive("rope_local_base_freq")?,
    };
    let theta = theta.unwrap_or(GEMMA_LOCAL_THETA);
    ensure!(theta > 1.0, "{}: the rope_theta {theta} of local layers is not above 1", config.place());
    Ok(theta)
}

fn longrope(f: &Fields, original_context: usize, context: usize) -> Result<RopeScaling> {
    let factors = |key| {
        let list = f.get(key).and_then(Value::as_array).filter(|list| list.len() <= bounds::HEAD_DIM);
        let numbers = list
            .and_then(|list| list.iter().map(|n| Some(f64::from(n.as_f64()? as f32))).collect::<Option<Vec<f64>>>());
        numbers.with_context(|| format!("{}: {key} is not a list of numbers", f.place()))
    };
    let factor = f.opt_positive("factor")?.unwrap_or(context as f64 / original_context as f64);
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original_context as f64).ln()).sqrt() };
    let attention_factor = f64::from(f.opt_positive("attention_factor")?.unwrap_or(usual) as f32);
    let (short, long) = (factors("short_factor")?, factors("long_factor")?);
    Ok(RopeScaling::LongRope { short, long, original_context, attention_factor, is_long: context > original_context })
}

impl Rope {
    /// Without scaling, of all channels.
    pub fn plain(theta: f64) -> Self {
        Self { theta, share: 1.0, scaling: RopeScaling::Default }
    }

    /// Channels of a head that are rotated, some perhaps by the angle 0.
    pub fn channels(&self, head_dim: usize) -> usize {
        match self.scaling {
            RopeScaling::Proportional { .. } => head_dim,
            _ => (head_dim as f64 * self.share) as usize,
        }
    }

    /// Takes the frequencies for a context of that many tokens, if they depend on it. As in
    /// llama.cpp they apply to a whole conversation, because stored keys cannot change theirs.
    pub fn set_context(&mut self, context: usize) {
        if let RopeScaling::LongRope { original_context, is_long, .. } = &mut self.scaling {
            *is_long = context > *original_context;
        }
    }

    /// Inverse frequencies `[channels / 2]`, radians per token, and the factor on cos and sin.
    /// Frequencies are rounded to f32 as in transformers. Channels i and `i + channels / 2` of a
    /// head are rotated by `position * inv_freq[i]`.
    pub fn frequencies(&self, head_dim: usize) -> (Vec<f64>, f32) {
        let channels = self.channels(head_dim);
        let plain = (0..channels / 2).map(|i| self.theta.powf(-((2 * i) as f64) / channels as f64));
        let (freqs, scale): (Vec<f64>, f64) = match &self.scaling {
            RopeScaling::Default => (plain.collect(), 1.0),
            RopeScaling::Proportional { factor } => {
                let turned = (self.share * head_dim as f64 / 2.0) as usize;
                let of = |(i, f): (usize, f64)| if i < turned { f / factor } else { 0.0 };
                (plain.enumerate().map(of).collect(), 1.0)
            }
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let context = *original_context as f64;
                let smooth = |f| llama3(f, *factor, *low_freq_factor, *high_freq_factor, context);
                (plain.map(smooth).collect(), 1.0)
            }
            yarn @ RopeScaling::Yarn { factor, .. } => {
                let kept = yarn.kept_share(self.theta, channels);
                let mixed = plain.zip(kept).map(|(f, keep)| f / factor * (1.0 - keep) + f * keep);
                (mixed.collect(), yarn.attention_scale())
            }
            RopeScaling::LongRope { short, long, attention_factor, is_long, .. } => {
                let factors = if *is_long { long } else { short };
                (plain.zip(factors).map(|(f, factor)| f / factor).collect(), *attention_factor)
            }
        };
        (freqs.into_iter().map(|f| f as f32 as f64).collect(), scale as f32)
    }
}

/// Llama 3.1: wavelengths beyond the original context are stretched by `factor`, short wavelengths
/// are kept, and the range between is blended.
fn llama3(freq: f64, factor: f64, low: f64, high: f64, context: f64) -> f64 {
    let wavelength = 2.0 * PI / freq;
    if wavelength < context / high {
        freq
    } else if wavelength > context / low {
        freq / factor
    } else {
        let smooth = (context / wavelength - low) / (high - low);
        (1.0 - smooth) * freq / factor + smooth * freq
    }
}

impl RopeScaling {
    /// YaRN with the parameters of its paper.
    fn yarn(factor: f64, original_context: usize) -> Self {
        Self::Yarn {
            factor,
            original_context,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        }
    }

    /// YaRN (arXiv 2309.00071): per channel, the weight of the unscaled frequency: 1 for channels
    /// that rotate more than `beta_fast` times in the original context, 0 under `beta_slow`.
    fn kept_share(&self, theta: f64, head_dim: usize) -> Vec<f64> {
        let RopeScaling::Yarn { original_context, beta_fast, beta_slow, truncate, .. } = self else {
            return vec![1.0; head_dim / 2];
        };
        let dim = head_dim as f64;
        let channel = |turns: f64| dim * (*original_context as f64 / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (channel(*beta_fast), channel(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001; // as transformers does, against 0 / 0
        }
        (0..head_dim / 2).map(|i| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0)).collect()
    }

    /// The factor on cos and sin: the config's own, else the paper's 0.1 ln(s) + 1, or DeepSeek's
    /// quotient of two of them.
    fn attention_scale(&self) -> f64 {
        let RopeScaling::Yarn { factor, attention_factor, mscale, mscale_all_dim, .. } = self else { return 1.0 };
        let scale = |m: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let given = |m: &Option<f64>| m.filter(|&m| m != 0.0);
        match (attention_factor, given(mscale), given(mscale_all_dim)) {
            (Some(a), _, _) => *a,
            (None, Some(m), Some(all)) => scale(m) / scale(all),
            _ => scale(1.0),
        }
    }
}

/// Qwen3 was trained on 32,768 tokens; its configs say 40,960, which leaves 8,192 for a prompt (its
/// model cards).
const QWEN3_CONTEXT: usize = 40_960;
const QWEN3_TRAINED: usize = 32_768;

impl ModelConfig {
    /// Default context of a conversation. With LongRope it is the longest context with the factors
    /// for short contexts: stored keys cannot change their factors, and the ones for long contexts
    /// are worse in a short chat.
    pub fn usual_context(&self) -> usize {
        match &self.rope.scaling {
            RopeScaling::LongRope { original_context, .. } => self.context.min(*original_context),
            _ => self.context,
        }
    }

    /// Describes for which context a model with LongRope takes which factors:
    /// `short factors up to 4,096 tokens, ...`.
    pub fn rope_factors(&self) -> Option<String> {
        let RopeScaling::LongRope { original_context, .. } = &self.rope.scaling else { return None };
        let [short, whole] = [*original_context, self.context].map(count);
        (self.context > *original_context)
            .then(|| format!("RoPE factors for short contexts up to {short} tokens, those for long ones up to {whole}"))
    }

    /// Extends the context to `ctx` tokens: with the config's own YaRN up to its limit; beyond it
    /// by YaRN with factor ctx / (tokens trained on) if the family documents that (Qwen3's model
    /// cards: factor 4 for 131,072), else an error.
    pub fn extend_yarn(&mut self, ctx: usize) -> Result<()> {
        if ctx <= self.context {
            return Ok(());
        }
        if let RopeScaling::Yarn { factor, original_context, .. } = self.rope.scaling
            && ctx as f64 <= factor * original_context as f64
        {
            self.context = ctx;
            return Ok(());
        }
        let trained = match &self.rope.scaling {
            RopeScaling::Default if self.context == QWEN3_CONTEXT => QWEN3_TRAINED,
            RopeScaling::Default => self.context,
            RopeScaling::Yarn { original_context, .. } => *original_context,
            RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 0,
            RopeScaling::LongRope { .. } | RopeScaling::Proportional { .. } => 0,
        };
        ensure!(
            self.family.yarn && trained > 0,
            "a context of {ctx} tokens is more than the {} this model was made for, and {} documents no way to extend it",
            self.context,
            self.family.name
        );
        let wanted = ctx as f64 / trained as f64;
        match &mut self.rope.scaling {
            // Its own factor of cos and sin is that of its own factor.
            RopeScaling::Yarn { factor, attention_factor, .. } => (*factor, *attention_factor) = (wanted, None),
            other => *other = RopeScaling::yarn(wanted, trained),
        }
        self.context = ctx;
        Ok(())
    }
}
