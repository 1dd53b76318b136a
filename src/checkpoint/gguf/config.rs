//! The metadata of a GGUF file as the `config.json` and `generation_config.json` that the model
//! would have as a folder, so that one parser checks both.

use super::super::bounds;
use super::super::family::{Family, WindowIn};
use super::header::{Header, Value as Meta, shown};
use super::{keys, tokenizer};
use crate::protocol::SamplingOverrides;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::f64::consts::PI;

/// RoPE of Llama 3.1 and later: the only values published; a file has the resulting
/// factors alone.
const LLAMA3_LOW: f64 = 1.0;
const LLAMA3_HIGH: f64 = 4.0;
const LLAMA3_CONTEXT: f64 = 8192.0;

/// Layers of Gemma 3 27B, whose files do not state the factor of its scores.
const GEMMA_27B_LAYERS: usize = 62;
/// Numbers of layers of the Gemma 3 models (4B, 12B, 27B) whose global layers divide positions by
/// eight. ollama's files do not state that.
const GEMMA_STRETCHED: [usize; 3] = [34, 48, GEMMA_27B_LAYERS];
const GEMMA_FACTOR: f64 = 8.0;

/// The bytes of the tensor of a name.
pub type Data<'f, 'a> = &'f dyn Fn(&str) -> Option<&'a [u8]>;

/// The family, and its name in GGUF files, with which keys begin. Fails for anything except a whole
/// model of a supported architecture.
pub fn architecture(h: &Header) -> Result<(&'static Family, &str)> {
    if let Some(kind) = h.text("general.type")?.filter(|kind| *kind != "model") {
        bail!("it holds a {kind:?}, not a model");
    }
    let named = h.text("general.architecture")?.context("general.architecture is missing")?;
    let unsupported = || format!("architecture {named:?} is not supported ({} are)", Family::gguf_names());
    Ok((Family::of_gguf(named).with_context(unsupported)?, named))
}

/// Layers of the model, and of all blocks: the last ones may be for multi-token prediction.
pub fn layers(h: &Header) -> Result<[usize; 2]> {
    let (family, arch) = architecture(h)?;
    let key = format!("{arch}.block_count");
    let blocks = h.opt_size(&key)?.with_context(|| format!("{key} is missing"))?;
    let next = h.opt_size(&format!("{arch}.nextn_predict_layers"))?.filter(|_| family.hybrid).unwrap_or(0);
    Ok([blocks.saturating_sub(next), blocks])
}

/// Builds the model's `config.json`. Its parser checks the sizes. `raw` is the file, `data` returns
/// the bytes of a tensor.
pub fn config<'a>(h: &Header, raw: &[u8], data: Data<'_, 'a>) -> Result<Map<String, Value>> {
    let (family, arch) = architecture(h)?;
    let key = |name: &str| format!("{arch}.{name}");
    let head_dim = head_dim(h, arch)?;
    keys::check(h, family, arch, head_dim)?;
    let need =
        |name: &str| -> Result<usize> { h.opt_size(&key(name))?.with_context(|| format!("{} is missing", key(name))) };
    ensure!(
        family.experts || h.opt_size(&key("expert_count"))?.unwrap_or(0) == 0,
        "{} is set: models with experts are not supported",
        key("expert_count")
    );
    let (heads, [layers, blocks]) = (need("attention.head_count")?, layers(h)?);
    let last = h.tensors.keys().filter_map(|name| layer_of(name)).max();
    if let Some(last) = last.filter(|last| *last >= blocks) {
        bail!("{} is {blocks}, but there are tensors of layer {last}", key("block_count"));
    }
    let size = |name: &str| Ok::<_, anyhow::Error>(h.opt_size(&key(name))?.unwrap_or(head_dim));
    let rotated = size("rope.dimension_count")?;
    let partial = family.partial_rope && rotated < head_dim;
    for (name, other) in [
        ("attention.value_length", size("attention.value_length")?),
        ("attention.key_length_swa", size("attention.key_length_swa")?),
        ("attention.value_length_swa", size("attention.value_length_swa")?),
        ("rope.dimension_count", rotated),
        ("rope.dimension_count_swa", h.opt_size(&key("rope.dimension_count_swa"))?.unwrap_or(rotated)),
    ] {
        let fits = other == head_dim || name.starts_with("rope") && partial && other == rotated;
        ensure!(fits, "{} {other} is not supported (the head size {head_dim} is)", key(name));
    }
    let embedding = h.tensors.get("token_embd.weight").context("tensor token_embd.weight is missing")?;
    let [vocab, _] = embedding.shape[..] else { bail!("tensor token_embd.weight is not a matrix") };
    let mut out = json!({
        "model_type": family.name,
        "num_hidden_layers": layers,
        "hidden_size": need("embedding_length")?,
        "intermediate_size": match h.opt_size(&key("feed_forward_length"))? {
            None if !family.experts => Some(need("feed_forward_length")?),
            stated => stated,
        },
        "num_attention_heads": heads,
        "num_key_value_heads": h.opt_size(&key("attention.head_count_kv"))?.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": need("context_length")?,
        "rms_norm_eps": h.number(&key("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": theta(h, arch, family)?,
        "tie_word_embeddings": !h.tensors.contains_key("output.weight"),
        "attention_bias": h.tensors.contains_key("blk.0.attn_q.bias") && !family.qkv_bias,
        "mlp_bias": h.tensors.contains_key("blk.0.ffn_gate.bias"),
    });
    if family.hybrid {
        let (width, heads) = (need("ssm.inner_size")?, need("ssm.time_step_rank")?);
        ensure!(heads > 0 && width % heads == 0, "{} {width} is not {heads} heads", key("ssm.inner_size"));
        for (ours, n) in [
            ("linear_num_key_heads", need("ssm.group_count")?),
            ("linear_num_value_heads", heads),
            ("linear_key_head_dim", need("ssm.state_size")?),
            ("linear_value_head_dim", width / heads),
            ("linear_conv_kernel_dim", need("ssm.conv_kernel")?),
            ("full_attention_interval", h.opt_size(&key("full_attention_interval"))?.unwrap_or(4)),
        ] {
            out[ours] = n.into();
        }
        // The converter adds the 1, and reorders the heads.
        out["norms_are_whole"] = true.into();
        out["linear_value_heads_are_tiled"] = true.into();
    }
    if family.experts {
        for (ours, theirs) in [
            ("num_experts", "expert_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
        ] {
            out[ours] = need(theirs)?.into();
        }
        // llama.cpp's architecture says it; files of ollama may say no.
        let stated = h.flag(&key("norm_top_k_prob"))?.or(h.flag(&key("expert_weights_norm"))?);
        out["norm_topk_prob"] = stated.unwrap_or(true).into();
        if family.shared_expert {
            let shared = h.opt_size(&key("expert_shared_feed_forward_length"))?;
            out["shared_expert_intermediate_size"] = shared.unwrap_or(need("expert_feed_forward_length")?).into();
        }
        let dense = |layer: &usize| !h.tensors.contains_key(&format!("blk.{layer}.ffn_gate_inp.weight"));
        out["mlp_only_layers"] = (0..layers.min(bounds::LAYERS)).filter(dense).collect::<Vec<_>>().into();
    }
    if family.oss {
        out["intermediate_size"] = need("expert_feed_forward_length")?.into();
        out["sliding_window"] = need("attention.sliding_window")?.into();
    }
    if family.gemma {
        let window = need("attention.sliding_window")?;
        out["sliding_window"] = window.into();
        let pattern = key("attention.sliding_window_pattern");
        match h.metadata.get(&pattern) {
            None => {}
            Some(Meta::Array(local)) => {
                let kind = |local: &bool| if *local { "sliding_attention" } else { "full_attention" };
                let local = local.flags(raw).with_context(|| format!("{pattern} is not a list of layers"))?;
                out["layer_types"] = local.iter().take(bounds::LAYERS).map(kind).collect::<Vec<_>>().into();
            }
            Some(_) => out["sliding_window_pattern"] = h.opt_size(&pattern)?.into(),
        }
        // As in llama.cpp: the largest model uses the scale of another head size.
        let usual = if layers == GEMMA_27B_LAYERS { need("embedding_length")? / heads.max(1) } else { head_dim };
        let scale = h.number(&key("attention.scale"))?.filter(|scale| *scale > 0.0);
        out["query_pre_attn_scalar"] = scale.map_or(usual as f64, |scale| scale.powi(-2)).into();
        if out["rms_norm_eps"].is_null() {
            out["rms_norm_eps"] = 1e-6.into();
        }
        for name in keys::WINDOW_BASES {
            if let Some(theta) = h.number(&key(name))? {
                out["rope_local_base_freq"] = theta.into();
            }
        }
        // The converter adds the 1.
        out["norms_are_whole"] = true.into();
    }
    if partial {
        out["partial_rotary_factor"] = (rotated as f64 / head_dim as f64).into();
    }
    if family.window == WindowIn::AllLayers {
        // Files of Phi-4 state 0: none.
        let window = h.opt_size(&key("attention.sliding_window"))?.filter(|window| *window > 0);
        out["sliding_window"] = window.into();
    }
    if family.scaled {
        // As in llama.cpp, 0 is a factor that is not set.
        for (ours, theirs, usual) in [
            ("logits_scaling", "logit_scale", 1.0),
            ("residual_multiplier", "residual_scale", 1.0),
            ("embedding_multiplier", "embedding_scale", 1.0),
            ("attention_multiplier", "attention.scale", (head_dim as f64).powf(-0.5)),
        ] {
            out[ours] = h.number(&key(theirs))?.filter(|factor| *factor != 0.0).unwrap_or(usual).into();
        }
    }
    out["rope_scaling"] = rope_scaling(h, arch, rotated, &out["rope_theta"], data)?;
    if family.oss && !out["rope_scaling"].is_null() {
        // The model was trained without truncation; files do not state it.
        out["rope_scaling"]["truncate"] = false.into();
    }
    // llama.cpp's queries grow from the context that YaRN extends on.
    let beta = h.number(&key("attention.temperature_scale"))?.filter(|beta| family.growth && *beta != 0.0);
    if let Some(beta) = beta {
        ensure!(out["rope_scaling"].is_object(), "{} is set without rope scaling", key("attention.temperature_scale"));
        out["rope_scaling"]["llama_4_scaling_beta"] = beta.into();
    }
    if family.growth && out["rope_scaling"].is_null() {
        // Mistral Small has none, and the class a default of its own.
        out["rope_scaling"] = json!({"rope_type": "default"});
    }
    let stretched = family.gemma && GEMMA_STRETCHED.contains(&layers);
    if stretched && !h.metadata.contains_key(&key("rope.scaling.factor")) && out["rope_scaling"].is_null() {
        out["rope_scaling"] = json!({"rope_type": "linear", "factor": GEMMA_FACTOR});
    }
    match out {
        Value::Object(map) => Ok(map),
        _ => bail!("no configuration"),
    }
}

/// The layer that a tensor is of.
pub fn layer_of(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Values per head: stated, or the embedding's divided by the number of heads. Tables are made of
/// it, so it is bounded here.
pub fn head_dim(h: &Header, arch: &str) -> Result<usize> {
    let key = |name: &str| format!("{arch}.{name}");
    let (named, size) = match h.opt_size(&key("attention.key_length"))? {
        Some(stated) => (key("attention.key_length"), stated),
        None => {
            let sizes = h.opt_size(&key("embedding_length"))?.zip(h.opt_size(&key("attention.head_count"))?);
            let (hidden, heads) = sizes.with_context(|| format!("{} is missing", key("attention.key_length")))?;
            let (of, by) = (key("embedding_length"), key("attention.head_count"));
            ensure!(heads > 0 && hidden % heads == 0, "{of} {hidden} is not a multiple of {by} {heads}");
            (format!("{of} / {by}"), hidden / heads)
        }
    };
    ensure!(size <= bounds::HEAD_DIM, "{named} is {size}, expected at most {}", bounds::HEAD_DIM);
    Ok(size)
}

/// The head size if the file's rows of q and k are interleaved.
pub fn interleaved(h: &Header) -> Result<Option<usize>> {
    let (family, arch) = architecture(h)?;
    family.interleaved.then(|| head_dim(h, arch)).transpose()
}

/// `rope_scaling`: stated in the metadata, or found from the factors of Llama 3; null if there is
/// none.
fn rope_scaling<'a>(h: &Header, arch: &str, channels: usize, theta: &Value, data: Data<'_, 'a>) -> Result<Value> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    if let (Some(long), Some(short)) = (
        factors(h, "rope_factors_long.weight", channels, data)?,
        factors(h, "rope_factors_short.weight", channels, data)?,
    ) {
        return Ok(json!({"rope_type": "longrope", "long_factor": long, "short_factor": short,
            "attention_factor": h.number(&key("attn_factor"))?,
            "original_max_position_embeddings": h.opt_size(&key("original_context_length"))?}));
    }
    if let Some(factors) = factors(h, "rope_freqs.weight", channels, data)? {
        let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
        let theta = theta.as_f64().unwrap_or_default();
        let same = (0..).zip(&factors).all(|(i, &f)| {
            let wavelength = 2.0 * PI * theta.powf(f64::from(2 * i) / channels as f64);
            (f64::from(f) / llama3_factor(wavelength, factor) - 1.0).abs() < 1e-3
        });
        ensure!(same, "the factors in rope_freqs.weight are not those of Llama 3, which alone are supported");
        let other = stated_scaling(h, arch)?;
        ensure!(other.is_null(), "{} {other} beside rope_freqs.weight is not supported", key("factor"));
        return Ok(json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH, "original_max_position_embeddings": LLAMA3_CONTEXT}));
    }
    stated_scaling(h, arch)
}

/// The scaling that the metadata state, with llama.cpp's defaults: linear, by no factor.
fn stated_scaling(h: &Header, arch: &str) -> Result<Value> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let number = |name: &str| h.number(&key(name));
    let factor = number("factor")?.or(h.number(&format!("{arch}.rope.scale_linear"))?).filter(|f| *f != 0.0);
    let kind = h.text(&key("type"))?.unwrap_or("linear");
    // The first one multiplies YaRN's own factor of cos and sin, the second one replaces it.
    let (times, whole) = (number("attn_factor")?.unwrap_or(1.0), number("yarn_attn_factor")?);
    if kind == "yarn" {
        let log_multiplier = number("yarn_log_multiplier")?.filter(|by| *by != 0.0);
        let usual = factor.map_or(1.0, |factor| if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 });
        let attention = whole.or((times != 1.0).then_some(usual * times));
        let beta = |side: &str| Ok::<_, anyhow::Error>(number(&format!("yarn_{side}"))?.or(number(side)?));
        let mut out = json!({
            "rope_type": kind,
            "factor": factor.unwrap_or(1.0),
            "original_max_position_embeddings": h.opt_size(&key("original_context_length"))?,
            "beta_fast": beta("beta_fast")?,
            "beta_slow": beta("beta_slow")?,
        });
        if let Some(attention) = attention {
            out["attention_factor"] = attention.into();
        }
        if let Some(by) = log_multiplier {
            (out["mscale"], out["mscale_all_dim"]) = (1.0.into(), by.into());
        }
        return Ok(out);
    }
    for (name, value) in [("attn_factor", times), ("yarn_attn_factor", whole.unwrap_or(1.0))] {
        ensure!(value == 1.0, "{} {value} is not supported with rope scaling of type {kind}", key(name));
    }
    match kind {
        "none" => Ok(Value::Null),
        "linear" => Ok(factor
            .filter(|factor| *factor != 1.0)
            .map_or(Value::Null, |factor| json!({"rope_type": "linear", "factor": factor}))),
        "longrope" => bail!("{} is longrope, but there is no tensor rope_factors_long.weight", key("type")),
        other => bail!("{} {other:?} is not supported (none, linear, yarn, longrope are)", key("type")),
    }
}

/// The base of RoPE, by llama.cpp's name or ollama's.
fn theta(h: &Header, arch: &str, family: &Family) -> Result<f64> {
    let stated = h.number(&format!("{arch}.rope.freq_base"))?;
    let usual = if family.gemma { 1e6 } else { 10_000.0 };
    Ok(stated.or(h.number(&format!("{arch}.rope.global.freq_base"))?).unwrap_or(usual))
}

/// Factors of RoPE, one for each pair of channels, if the file has that tensor.
pub fn factors<'a>(h: &Header, name: &str, channels: usize, data: Data<'_, 'a>) -> Result<Option<Vec<f32>>> {
    let Some((tensor, raw)) = h.tensors.get(name).zip(data(name)) else { return Ok(None) };
    let kind = tensor.kind.ok().with_context(|| format!("tensor {name} has an element type that is not supported"))?;
    ensure!(tensor.shape == [channels / 2], "tensor {name} has shape {:?}", tensor.shape);
    let mut factors = vec![0.0; channels / 2];
    kind.decode(raw, &mut factors);
    Ok(Some(factors))
}

/// How much longer Llama 3's scaling makes a wavelength, in tokens.
fn llama3_factor(wavelength: f64, factor: f64) -> f64 {
    let (low, high) = (LLAMA3_CONTEXT / LLAMA3_LOW, LLAMA3_CONTEXT / LLAMA3_HIGH);
    if wavelength < high {
        1.0
    } else if wavelength > low {
        factor
    } else {
        let smooth = (LLAMA3_CONTEXT / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}

/// The model's `generation_config.json`: end tokens, and the sampling defaults that newer files
/// state.
pub fn generation(h: &Header, raw: &[u8]) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    let mut ends: Vec<usize> = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let stated = tokenizer::special(h, raw, name)?;
        let several = tokenizer::ids(h, raw, &format!("tokenizer.ggml.{name}_token_ids"))?;
        ends.extend(stated.into_iter().chain(several));
    }
    let mut unique: Vec<usize> = Vec::new();
    for id in ends {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    out.insert("eos_token_id".to_owned(), unique.into());
    for ours in SamplingOverrides::options().map(|option| option.name) {
        // llama.cpp's names, where they differ.
        let theirs = match ours {
            "temperature" => "temp",
            "repetition_penalty" => "penalty_repeat",
            same => same,
        };
        if let Some(value) = h.number(&format!("general.sampling.{theirs}"))? {
            out.insert(ours.to_owned(), value.into());
        }
    }
    Ok(out)
}

impl Header {
    /// A text, if the key exists.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Meta::Text(text)) => Ok(Some(text)),
            Some(other) => bail!("{key} is {}, expected a text", shown(other)),
        }
    }

    /// A whole number of at least 0, if the key exists.
    pub fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let n = match self.metadata.get(key) {
            None => return Ok(None),
            Some(Meta::Unsigned(n)) => usize::try_from(*n).ok(),
            Some(Meta::Signed(n)) => usize::try_from(*n).ok(),
            Some(_) => None,
        };
        n.map(Some).with_context(|| format!("{key} is {}, expected a whole number", shown(&self.metadata[key])))
    }

    /// A truth value, if the key exists.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Meta::Bool(value)) => Ok(Some(*value)),
            Some(Meta::Unsigned(n @ (0 | 1))) => Ok(Some(*n == 1)),
            Some(other) => bail!("{key} is {}, expected true or false", shown(other)),
        }
    }

    /// A finite number, if the key exists.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let n = match self.metadata.get(key) {
            None => return Ok(None),
            Some(Meta::Unsigned(n)) => Some(*n as f64),
            Some(Meta::Signed(n)) => Some(*n as f64),
            Some(Meta::Float(n)) => Some(*n).filter(|n| n.is_finite()),
            Some(_) => None,
        };
        n.map(Some).with_context(|| format!("{key} is {}, expected a number", shown(&self.metadata[key])))
    }
}
