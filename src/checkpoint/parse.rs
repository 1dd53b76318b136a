//! Parses `config.json`, `dms_metadata.json` and `generation_config.json`. Refuses settings that
//! the forward pass would compute wrongly.

use super::bounds;
use super::config::{DmcConfig, DmsConfig, DmsVariant, ModelConfig};
use super::family::{Family, WindowIn};
use super::gemma4;
use super::json::{self, Fields};
use super::listed::{full_layers, local_window};
use super::model::GenerationDefaults;
use super::quantized::Quantization;
use super::rope;
use super::spec::{Activation, DeltaNet, Experts, LayerKind, Local, Mlp, Spec};
use crate::policy::{Dmc, Dms, KvHeads, MOST_MEMBERS, Shift};
use crate::protocol::{SamplingOption, SamplingOverrides};
use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};

/// Keys of models that extend Llama's computation, unless they are null or missing.
const FOREIGN_KEYS: [&str; 7] = [
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "num_experts",
    "num_local_experts",
    "attention_chunk_size",
    "kv_lora_rank",
];

/// The configuration of the language model. If it is part of another configuration: `text_config`,
/// with the keys beside it.
pub fn text_part(mut config: Map<String, Value>) -> Map<String, Value> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let wholes = ["qwen3_5", "qwen3_5_moe", "gemma3", "mistral3", "gemma4", "gemma4_unified"];
    if !wholes.contains(&&*kind) {
        return with_gemmas_defaults(config);
    }
    let Some(Value::Object(mut text)) = config.remove("text_config") else { return config };
    let usual = [
        ("gemma3", "gemma3_text"),
        ("mistral3", "mistral"),
        ("gemma4", "gemma4_text"),
        ("gemma4_unified", "gemma4_unified_text"),
    ];
    let usual = usual.into_iter().find(|(whole, _)| *whole == kind);
    if let Some((_, usual)) = usual {
        text.entry("model_type").or_insert_with(|| usual.into());
    }
    // The architecture is stated for the whole model, and so is whether the head is tied.
    config.remove("architectures");
    if config.contains_key("tie_word_embeddings") {
        text.remove("tie_word_embeddings");
    }
    config.extend(text);
    with_gemmas_defaults(config)
}

/// Adds keys that files of Gemma omit. They are part of the model's identity, which sessions
/// store.
fn with_gemmas_defaults(config: Map<String, Value>) -> Map<String, Value> {
    let kind = config.get("model_type").and_then(Value::as_str);
    if kind.and_then(Family::named).is_some_and(|family| family.gemma || family.gemma4) {
        with_class_defaults(config)
    } else {
        config
    }
}

/// Adds keys that a file omits. transformers writes only differences from its classes' defaults; a
/// null is a value.
pub fn with_class_defaults(mut config: Map<String, Value>) -> Map<String, Value> {
    let name = config.get("model_type").and_then(Value::as_str);
    let usual = name.and_then(Family::named).map(Family::class_defaults);
    for (key, value) in usual.iter().flat_map(Value::as_object).flatten() {
        config.entry(key.clone()).or_insert_with(|| value.clone());
    }
    config
}

/// Parses the configuration. `dms_metadata` (already unwrapped) takes precedence over `dms_*` keys.
pub fn model_config(config: &Fields, dms_metadata: Option<&Fields>) -> Result<ModelConfig> {
    let (family, place) = (family(config)?, config.place());
    refuse_unsupported(config, family)?;
    let n_q_heads = config.size_to("num_attention_heads", bounds::HEADS)?;
    let hidden = config.size_to("hidden_size", bounds::HIDDEN)?;
    let n_kv_heads = match config.opt_size("num_key_value_heads")? {
        Some(_) => config.size_to("num_key_value_heads", bounds::HEADS)?,
        None => n_q_heads,
    };
    ensure!(
        n_q_heads % n_kv_heads == 0,
        "{place}: {n_q_heads} attention heads do not share {n_kv_heads} key-value heads evenly"
    );
    let head_dim = match config.opt_size("head_dim")? {
        Some(_) => config.size("head_dim")?,
        None if hidden % n_q_heads == 0 => hidden / n_q_heads,
        None => return Err(config.missing("head_dim")),
    };
    let most = bounds::HEAD_DIM;
    ensure!(head_dim <= most, "{place}: head_dim is {head_dim}, expected at most {most}");
    ensure!(head_dim % 2 == 0, "{place}: head_dim {head_dim} is odd, so it cannot be rotated");
    let context = config.size_to("max_position_embeddings", bounds::CONTEXT)?;
    let rms_eps = config.positive("rms_norm_eps")? as f32;
    ensure!(rms_eps > 0.0 && rms_eps < 1.0, "{place}: rms_norm_eps is not between 0 and 1 in 32 bits");
    let heads = KvHeads { count: n_kv_heads, dim: head_dim };
    let spec = spec(config, family, heads)?;
    let rope = rope::parse(config, family, context)?;
    let head_dim_all = spec.global_heads.map_or(head_dim, |heads| heads.dim);
    let channels = rope.channels(head_dim_all);
    ensure!(channels > 0 && channels % 2 == 0, "{place}: {channels} channels of a head cannot be rotated");
    let (angles, scale) = rope.frequencies(head_dim_all);
    let factors = 2 * angles.len();
    ensure!(
        factors == channels,
        "{place}: {channels} channels of a head are rotated, but there are RoPE factors for {factors}"
    );
    let finite = angles.iter().all(|a| a.is_finite()) && scale.is_finite() && scale > 0.0;
    ensure!(finite, "{place}: its RoPE parameters give angles that are not numbers");
    let dms = match dms_metadata {
        Some(metadata) => Some(dms_from_metadata(metadata)?),
        None => dms_from_config(config)?,
    };
    let dmc = dmc_from_config(config, n_q_heads / n_kv_heads)?;
    ensure!(dms.is_none() || dmc.is_none(), "{place}: it declares both DMS and DMC; a model has one of them");
    Ok(ModelConfig {
        family,
        n_layers: config.size_to("num_hidden_layers", bounds::LAYERS)?,
        hidden,
        n_q_heads,
        n_kv_heads,
        head_dim,
        ffn: ffn(config, family)?,
        vocab: config.size_to("vocab_size", bounds::VOCAB)?,
        rms_eps,
        tied: config.bool_or("tie_word_embeddings", false)?,
        spec,
        rope,
        context: context.min(bounds::POSITIONS),
        dms,
        dmc,
        gates: None,
    })
}

/// Parses the computation of the layers.
fn spec(config: &Fields, family: &Family, heads: KvHeads) -> Result<Spec> {
    let bias = config.bool_or("attention_bias", false)?;
    let mlp_bias = config.bool_or("mlp_bias", false)?;
    ensure!(family.mlp_bias || !mlp_bias, "{}: mlp_bias is not part of {}", config.place(), family.name);
    let mut spec =
        Spec { qk_norm: family.qk_norm, qkv_bias: bias || family.qkv_bias, o_bias: bias, mlp_bias, ..Spec::default() };
    if family.scaled {
        let factor = |key| Ok::<_, anyhow::Error>(config.opt_positive(key)?.unwrap_or(1.0) as f32);
        spec.embedding_scale = factor("embedding_multiplier")?;
        spec.residual_scale = factor("residual_multiplier")?;
        spec.logit_scale = 1.0 / factor("logits_scaling")?;
        spec.score_scale = Some(factor("attention_multiplier")?);
        let factors = [spec.embedding_scale, spec.residual_scale, spec.logit_scale, factor("attention_multiplier")?];
        ensure!(
            factors.iter().all(|factor| (1e-6..=1e6).contains(factor)),
            "{}: its multipliers {factors:?} are out of range",
            config.place()
        );
    }
    spec.window = window(config, family)?;
    if family.growth {
        spec.query_growth = rope::growth(config)?;
    }
    if family.no_rope {
        spec.layers = unrotated(config)?;
    }
    if family.hybrid {
        // Files of other programs have the 1 in the weights: their readers say so.
        spec.norm_offset = if config.bool_or("norms_are_whole", false)? { 0.0 } else { 1.0 };
        spec.output_gate = true;
        spec.delta_net = Some(delta_net(config)?);
        spec.layers = mixers(config)?;
    }
    if family.oss {
        spec.sinks = true;
        let is_global = full_layers(
            config,
            Spec::MOST_WITH_WINDOWS,
            |kind| kind != "sliding_attention",
            ("sliding_window_pattern", 2),
        )?;
        spec.set_local(&is_global, || Ok(Local { window: local_window(config)?, theta: None }))?;
    }
    if family.experts {
        spec.experts = Some(experts(config, family)?);
        spec.layers = with_experts(config, &spec.layers)?;
    }
    if family.gemma {
        gemma(config, &mut spec)?;
    }
    if family.gemma4 {
        gemma4::spec(config, &mut spec, heads)?;
    }
    Ok(spec)
}

/// Parses the computation of Gemma 3.
fn gemma(config: &Fields, spec: &mut Spec) -> Result<()> {
    let place = config.place();
    ensure!(
        !config.bool_or("use_bidirectional_attention", false)?,
        "{place}: use_bidirectional_attention is set, which is not supported"
    );
    let activation = config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh");
    ensure!(
        activation == "gelu_pytorch_tanh",
        "{place}: hidden_activation {activation:?} is not supported (gelu_pytorch_tanh is)"
    );
    // Files of other programs have the 1 in the weights: their readers say so.
    spec.norm_offset = if config.bool_or("norms_are_whole", false)? { 0.0 } else { 1.0 };
    (spec.norms_behind, spec.activation) = (true, Activation::GeluTanh);
    spec.embedding_scale = (config.size_to("hidden_size", bounds::HIDDEN)? as f32).sqrt();
    let scalar = config.positive("query_pre_attn_scalar")?;
    ensure!((1e-3..=1e6).contains(&scalar), "{place}: query_pre_attn_scalar {scalar} is out of range");
    spec.score_scale = Some(scalar.powf(-0.5) as f32);
    let is_global = full_layers(
        config,
        Spec::MOST_WITH_WINDOWS,
        |kind| kind != "sliding_attention",
        ("sliding_window_pattern", 6),
    )?;
    spec.set_local(&is_global, || Ok(Local { window: local_window(config)?, theta: Some(rope::local_theta(config)?) }))
}

/// Sizes of the layers that are a gated delta net.
fn delta_net(config: &Fields) -> Result<DeltaNet> {
    let place = config.place();
    ensure!(config.bool_or("attn_output_gate", true)?, "{place}: attn_output_gate false is not supported");
    let gate = config.opt_str("output_gate_type")?.unwrap_or("swish");
    ensure!(matches!(gate, "swish" | "silu"), "{place}: output_gate_type {gate:?} is not supported (swish is)");
    let sizes = DeltaNet {
        key_heads: config.size_to("linear_num_key_heads", bounds::HEADS)?,
        value_heads: config.size_to("linear_num_value_heads", bounds::HEADS)?,
        key_dim: config.size_to("linear_key_head_dim", bounds::HEAD_DIM)?,
        value_dim: config.size_to("linear_value_head_dim", bounds::HEAD_DIM)?,
        kernel: config.size_to("linear_conv_kernel_dim", bounds::KERNEL)?,
        tiled: config.bool_or("linear_value_heads_are_tiled", false)?,
    };
    let DeltaNet { key_heads, value_heads, .. } = sizes;
    ensure!(
        value_heads.is_multiple_of(key_heads),
        "{place}: {value_heads} value heads do not share {key_heads} key heads evenly"
    );
    Ok(sizes)
}

/// Channels of a dense feed-forward block. Configurations of families with experts may omit them
/// and state only those of an expert.
fn ffn(config: &Fields, family: &Family) -> Result<usize> {
    let omitted = family.experts && config.get("intermediate_size").is_none();
    config.size_to(if omitted { "moe_intermediate_size" } else { "intermediate_size" }, bounds::FFN)
}

/// Sizes of the layers with experts. transformers has two names for their number.
fn experts(config: &Fields, family: &Family) -> Result<Experts> {
    let place = config.place();
    let named = if config.get("num_experts").is_some() { "num_experts" } else { "num_local_experts" };
    let count = config.size_to(named, bounds::EXPERTS)?;
    let per_token = config.size_to("num_experts_per_tok", bounds::EXPERTS)?;
    ensure!(per_token <= count, "{place}: a token has {per_token} of {count} experts");
    let width = config.size_to(if family.oss { "intermediate_size" } else { "moe_intermediate_size" }, bounds::FFN)?;
    if family.oss {
        let limit = config.opt_f64("swiglu_limit")?.unwrap_or(7.0);
        ensure!(limit == 7.0, "{place}: swiglu_limit {limit} is not supported (7 is)");
    }
    let shared = family.shared_expert;
    // A shared expert is one more in the stack.
    ensure!(
        count + usize::from(shared) <= bounds::EXPERTS,
        "{place}: {count} experts and a shared one are more than {}",
        bounds::EXPERTS
    );
    if shared {
        let own = config.size_to("shared_expert_intermediate_size", bounds::FFN)?;
        ensure!(own == width, "{place}: a shared expert of {own} channels is not supported (others have {width})");
    }
    let normalized = config.bool_or("norm_topk_prob", false)?;
    Ok(Experts { count, per_token, width, normalized, shared, bias: family.oss, clamped: family.oss })
}

/// Puts experts into layers: one in `decoder_sparse_step`, except `mlp_only_layers`.
fn with_experts(config: &Fields, layers: &[LayerKind]) -> Result<Vec<LayerKind>> {
    let (n, place) = (config.size_to("num_hidden_layers", bounds::LAYERS)?, config.place());
    let step = config.opt_size("decoder_sparse_step")?.unwrap_or(1).max(1);
    let dense = match config.get("mlp_only_layers") {
        None => Vec::new(),
        Some(listed) => {
            let layers = listed.as_array().map(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
            match layers.flatten() {
                Some(layers) => layers,
                None => bail!("{place}: mlp_only_layers is not a list of layers"),
            }
        }
    };
    let of = |layer: usize| match (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64)) {
        true => Mlp::Experts,
        false => Mlp::Dense,
    };
    Ok((0..n).map(|layer| LayerKind { mlp: of(layer), ..layers[layer % layers.len()] }).collect())
}

/// Layers of attention and of gated delta nets: `layer_types`, or attention in every fourth.
fn mixers(config: &Fields) -> Result<Vec<LayerKind>> {
    let of = |is_attention| if is_attention { LayerKind::ATTENTION } else { LayerKind::DELTA_NET };
    let full = full_layers(config, bounds::LAYERS, |kind| kind == "full_attention", ("full_attention_interval", 4))?;
    ensure!(full.contains(&true), "{}: it has no layer of attention, which is not supported", config.place());
    Ok(full.into_iter().map(of).collect())
}

/// Whether `layer_types` lists only sliding windows.
fn all_slide(config: &Fields) -> bool {
    let layers = config.get("layer_types").and_then(Value::as_array);
    layers.is_some_and(|layers| !layers.is_empty() && layers.iter().all(|kind| kind == "sliding_attention"))
}

/// The newest tokens that every layer sees. A window as long as the context hides nothing.
fn window(config: &Fields, family: &Family) -> Result<Option<usize>> {
    let (place, all_listed) = (config.place(), all_slide(config));
    if family.has_local() || config.get("sliding_window").is_none() && !all_listed {
        return Ok(None);
    }
    let window = config.size_to("sliding_window", bounds::CONTEXT)?;
    let n_layers = config.size_to("num_hidden_layers", bounds::LAYERS)?;
    let used = config.bool_or("use_sliding_window", false)?;
    // The number of layers that see less than the whole, as transformers' classes have it.
    let sliding = match family.window {
        _ if window >= config.size("max_position_embeddings")?.min(bounds::POSITIONS) => 0,
        _ if all_listed => n_layers,
        WindowIn::AllLayers => n_layers,
        WindowIn::NoLayer | WindowIn::AllIfUsed if used => n_layers,
        WindowIn::ListedLayers if used && config.get("layer_types").is_none() => match family.no_rope {
            true => unrotated(config)?.iter().filter(|layer| !layer.rotates).count(),
            false => n_layers.saturating_sub(config.opt_size("max_window_layers")?.unwrap_or(0)),
        },
        _ => 0,
    };
    if sliding == 0 {
        return Ok(None);
    }
    ensure!(
        sliding == n_layers,
        "{place}: use_sliding_window is set, for {sliding} of {n_layers} layers, which is not supported in {}",
        family.name
    );
    let known = family.window != WindowIn::NoLayer;
    ensure!(known, "{place}: sliding window attention is not supported in {}", family.name);
    let evicts = config.keys().any(|key| key.starts_with("dms_") || key.starts_with("dmc_"));
    ensure!(!evicts, "{place}: a sliding window beside DMS or DMC is not supported");
    Ok(Some(window))
}

/// Layers of which some do not rotate q and k: those with a 0 in `no_rope_layers`, or every fourth.
fn unrotated(config: &Fields) -> Result<Vec<LayerKind>> {
    let n = config.size_to("num_hidden_layers", bounds::LAYERS)?;
    let of = |rotates| LayerKind { rotates, ..LayerKind::ATTENTION };
    let Some(listed) = config.get("no_rope_layers") else {
        let interval = config.opt_size("no_rope_layer_interval")?.unwrap_or(4).max(1);
        return Ok((1..=n).map(|layer| of(layer % interval != 0)).collect());
    };
    let layers: Option<Vec<_>> = listed
        .as_array()
        .and_then(|list| list.iter().take(n).map(|rotates| Some(of(rotates.as_u64()? != 0))).collect());
    match layers.filter(|layers| layers.len() == n) {
        Some(layers) => Ok(layers),
        None => bail!("{}: no_rope_layers is not a list of {n} numbers", config.place()),
    }
}

impl ModelConfig {
    /// Parses a `config.json` without its folder. `place` names it in error messages.
    pub fn from_json(place: &str, raw: &[u8]) -> Result<Self> {
        model_config(&Fields::new(place, &with_class_defaults(text_part(json::object(place, raw)?))), None)
    }
}

fn family(config: &Fields) -> Result<&'static Family> {
    let model_type = config.opt_str("model_type")?.ok_or_else(|| config.missing("model_type"))?;
    let Some(family) = Family::named(model_type) else {
        bail!("{}: model_type {model_type:?} is not supported ({} are)", config.place(), Family::names());
    };
    let architectures = config.get("architectures").and_then(Value::as_array);
    let names: Vec<&str> = architectures.into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(
        names.is_empty() || names.iter().any(|n| n.contains("ForCausalLM")),
        "{}: architecture {} is not a supported language model (those whose name ends in ForCausalLM are)",
        config.place(),
        names.join(", ")
    );
    Ok(family)
}

fn refuse_unsupported(config: &Fields, family: &Family) -> Result<()> {
    let place = config.place();
    Quantization::parse(config)?;
    if family.gemma4 {
        gemma4::refuse(config)?;
    }
    for key in FOREIGN_KEYS {
        let known = (family.experts || family.gemma4) && key.ends_with("_experts")
            || family.gemma && key == "query_pre_attn_scalar"
            || family.gemma4 && key == "final_logit_softcapping";
        ensure!(known || config.get(key).is_none(), "{place}: {key} is set, which is not supported");
    }
    ensure!(
        family.no_rope || config.get("no_rope_layers").is_none(),
        "{place}: no_rope_layers is set, which is not supported"
    );
    if let Some(act) = config.opt_str("hidden_act")? {
        ensure!(matches!(act, "silu" | "swish"), "{place}: hidden_act {act:?} is not supported (silu is)");
    }
    let layer_types = config.get("layer_types").and_then(Value::as_array).filter(|_| !all_slide(config));
    let is_known = |t: &Value| {
        t == "full_attention"
            || family.hybrid && t == "linear_attention"
            || family.has_local() && t == "sliding_attention"
    };
    if let Some(other) = layer_types.into_iter().flatten().find(|t| !is_known(t)) {
        let known = match family {
            Family { hybrid: true, .. } => "full_attention and linear_attention are",
            other if other.has_local() => "full_attention and sliding_attention are",
            _ => "full_attention is",
        };
        bail!("{place}: layer type {other} is not supported ({known})");
    }
    for key in ["embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"] {
        let factor = config.opt_f64(key)?.unwrap_or(1.0);
        ensure!(family.scaled || factor == 1.0, "{place}: {key} {factor} is not supported (1 is)");
    }
    Ok(())
}

/// The format of NVIDIA and Model-Optimizer: `dms_*` keys; a decision marks the previous token.
/// Missing values have the defaults of NVIDIA's configuration class.
fn dms_from_config(config: &Fields) -> Result<Option<DmsConfig>> {
    if !config.keys().any(|k| k.starts_with("dms_") && config.get(k).is_some()) {
        return Ok(None);
    }
    let per_layer = match config.opt_str("dms_alpha_per")? {
        None | Some("head") => false,
        Some("layer") => true,
        Some(other) => bail!("{}: dms_alpha_per {other:?} is unknown (head, layer)", config.place()),
    };
    let variant = if config.bool_or("dms_separate_alpha", false)? { DmsVariant::Adapter } else { DmsVariant::Borrowed };
    let window = config.opt_size_to("dms_window_size", bounds::POSITIONS)?.unwrap_or(512);
    let usual = DmsConfig::new(variant, Dms::new(window, Shift::Previous));
    Ok(Some(DmsConfig {
        alpha_scale: config.opt_f32("dms_alpha_scale")?.unwrap_or(usual.alpha_scale),
        alpha_offset: config.opt_f32("dms_initial_alpha_offset")?.unwrap_or(usual.alpha_offset),
        per_layer,
        disabled: config.bool_or("dms_disable_eviction", false)?,
        target_ratio: config.opt_positive("dms_cr")?,
        ..usual
    }))
}

/// The format of FastDMS: `dms_metadata.json`, borrowed neuron; a decision marks its own token.
fn dms_from_metadata(metadata: &Fields) -> Result<DmsConfig> {
    let window = metadata.opt_size_to("window_size", bounds::POSITIONS)?.unwrap_or(256);
    let usual = DmsConfig::new(DmsVariant::Borrowed, Dms::new(window, Shift::Same));
    Ok(DmsConfig {
        alpha_scale: metadata.opt_f32("alpha_scale")?.unwrap_or(usual.alpha_scale),
        alpha_offset: metadata.opt_f32("alpha_offset")?.unwrap_or(usual.alpha_offset),
        target_ratio: metadata.opt_positive("target_cr")?,
        ..usual
    })
}

/// dmschat's own format: `dmc_*` keys, which docs/models.md describes. Missing values have
/// defaults.
fn dmc_from_config(config: &Fields, group: usize) -> Result<Option<DmcConfig>> {
    if !config.keys().any(|k| k.starts_with("dmc_") && config.get(k).is_some()) {
        return Ok(None);
    }
    ensure!(group >= 2, "{}: DMC needs two query heads for each KV head", config.place());
    let (usual, number) = (Dmc::default(), |key, usual| Ok::<_, anyhow::Error>(config.opt_f32(key)?.unwrap_or(usual)));
    let most_members = match config.opt_size("dmc_max_members")? {
        Some(_) => config.size_to("dmc_max_members", MOST_MEMBERS)?,
        None => MOST_MEMBERS,
    };
    let rule = Dmc {
        weight_scale: number("dmc_weight_scale", usual.weight_scale)?,
        weight_offset: number("dmc_weight_offset", usual.weight_offset)?,
        most_members,
    };
    Ok(Some(DmcConfig {
        rule,
        alpha_scale: number("dmc_alpha_scale", 100.0)?,
        alpha_offset: number("dmc_alpha_offset", 5.0)?,
        target_ratio: config.opt_positive("dmc_cr")?,
    }))
}

/// Parses sampling defaults from `generation_config.json`, and end tokens from it and from
/// `config.json`. Leaves out ids outside the vocabulary, and fails if no other is named. Ignores
/// sampling defaults out of range; the second value is a notice about them.
pub fn generation(
    generation: Option<&Fields>,
    config: &Fields,
    vocab: usize,
) -> Result<(GenerationDefaults, Option<String>)> {
    let (mut out, mut ignored) = (GenerationDefaults::default(), Vec::new());
    if let Some(g) = generation {
        for SamplingOption { name, range } in SamplingOverrides::options() {
            let Some(value) = g.get(name) else { continue };
            match value.as_f64().and_then(|n| out.sampling.with(name, Some(n))) {
                Some(sampling) => out.sampling = sampling,
                None => {
                    let shown: String = value.to_string().chars().take(60).collect();
                    ignored.push(format!("{name} {shown} (expected {} to {})", range.start(), range.end()));
                }
            }
        }
        out.do_sample = g.opt_bool("do_sample")?;
    }
    // Files of models whose vocabulary was cut still name the tokens that it had.
    let mut wrong = None;
    for fields in generation.into_iter().chain([config]) {
        let (ends, error) = end_tokens(fields, vocab);
        out.eos.extend(ends);
        wrong = wrong.or(error);
    }
    if let Some(error) = wrong.filter(|_| out.eos.is_empty()) {
        return Err(error);
    }
    let place = generation.map_or("", |g| g.place());
    let notice = (!ignored.is_empty()).then(|| format!("{place}: ignored, out of range: {}", ignored.join(", ")));
    Ok((out, notice))
}

/// The end tokens that a file names, and an error about those that are no token.
fn end_tokens(fields: &Fields, vocab: usize) -> (Vec<u32>, Option<anyhow::Error>) {
    let ids = match fields.get("eos_token_id") {
        None => &[],
        Some(Value::Array(ids)) => &ids[..],
        Some(id) => std::slice::from_ref(id),
    };
    let known = |id: &Value| id.as_u64().filter(|n| (*n as usize) < vocab).map(|n| n as u32);
    let wrong = ids
        .iter()
        .find(|id| known(id).is_none())
        .map(|id| anyhow::anyhow!("{}: eos_token_id {id} is not a token of a vocabulary of {vocab}", fields.place()));
    (ids.iter().filter_map(known).collect(), wrong)
}
