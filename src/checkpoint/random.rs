//! Checkpoints with random bf16 weights in the shapes of known models, for benchmarks. A shape
//! always gives the same bytes. They have no files and no tokenizer.

use super::adapter::{self, kvzap};
use super::config::{DmsConfig, DmsVariant, Gates, ModelConfig, Predictor, Rope, RopeScaling};
use super::names::{self, LayerSpec, MixerSpec, TensorSpec};
use super::{
    Activation, Checkpoint, DeltaNet, Experts, Family, GenerationDefaults, LayerKind, Local, Mlp, Spec, builtin,
    mapped, pack,
};
use crate::cores;
use crate::policy::{Dms, Shift};
use crate::quant::file::{FileCode, random_strip};
use crate::quant::{Code, Weights};
use crate::tensor::{DType, SharedBytes, Tensor};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// The shapes of [`Checkpoint::random`].
pub const SHAPES: [&str; 11] = [
    "qwen3-8b",
    "qwen3-8b-wide",
    "qwen3-30b-a3b",
    "qwen3.6-35b-a3b",
    "gpt-oss-20b",
    "qwen3.5-9b",
    "gemma3-4b",
    "gemma4-e4b",
    "llama-3.2-1b",
    "smollm2-135m",
    "demo",
];

/// Alignment of tensors, for any vector load.
const ALIGN_BYTES: usize = 64;

/// Number and distance of the offsets at which tensors that share bytes start.
const SHIFTS: usize = 61;
const SHIFT_BYTES: usize = 1 << 20;

/// Strips of random codes that differ: a prime.
const DRAWN_STRIPS: usize = 61;

/// Weights per chunk.
const CHUNK: usize = 1 << 18;

impl Checkpoint {
    /// Random weights in one of [`SHAPES`], with the DMS rule of the published checkpoint of that
    /// shape and random decisions.
    pub fn random(shape: &str) -> Result<Self> {
        Self::random_of(shape, shape_config(shape)?)
    }

    /// Like [`Self::random`], but tensors of the same width overlap in memory, at different
    /// offsets: for a device that copies them, if the weights of all layers would not fit into the
    /// host's memory.
    pub fn random_shared(shape: &str) -> Result<Self> {
        Self::random_shared_of(shape, shape_config(shape)?)
    }

    /// Like [`Self::random_shared`], for any configuration.
    pub fn random_shared_of(shape: &str, config: ModelConfig) -> Result<Self> {
        let mut blocks = HashMap::new();
        for TensorSpec { shape, .. } in names::all(&config) {
            let most = blocks.entry(width(&shape)).or_insert((shape.clone(), 0));
            most.1 = most.1.max(bytes_of(&shape));
        }
        let filled = blocks.into_iter().map(|(width, (shape, len))| {
            let bytes = mapped::buffer(len + SHIFTS * SHIFT_BYTES, |all| fill(all, &shape, width as u64))?;
            Ok((width, bytes))
        });
        let filled = filled.collect::<Result<HashMap<_, _>>>()?;
        let tensors = names::all(&config).enumerate().map(|(i, TensorSpec { name, shape })| {
            let start = i % SHIFTS * SHIFT_BYTES;
            let range = start..start + bytes_of(&shape);
            let bytes = filled[&width(&shape)].clone();
            Tensor::new(&name, DType::Bf16, shape, bytes, range)
        });
        let tensors = tensors.collect();
        Ok(Self::with_tensors(shape, config, tensors))
    }

    /// The configuration of a shape.
    pub fn shape(shape: &str) -> Result<ModelConfig> {
        shape_config(shape)
    }

    /// The configuration of a shape with a random predictor of KVzap's sizes, `random-linear` or
    /// `random-mlp`, that marks about two of three tokens, or with random gates of TrimKV's sizes,
    /// `random-gates`; `None` for another name.
    pub fn shape_predicting(shape: &str, name: &str) -> Result<Option<ModelConfig>> {
        // Biases are 1. Scores of the linear map are near N(1, 1); scores of the MLP have a
        // variance of about 2.
        let (maps, threshold) = match name {
            "random-linear" => (Predictor { linear: true, units: 0, deep: false }, 1.4),
            "random-mlp" => (Predictor { linear: false, units: 512, deep: false }, 1.6),
            "random-gates" => {
                let maps = Predictor { linear: false, units: 512, deep: false };
                let gates = Some(Gates { maps, memory_size: 1024 });
                return Ok(Some(ModelConfig { gates, dms: None, ..shape_config(shape)? }));
            }
            _ => return Ok(None),
        };
        let dms = adapter::predictor(maps, threshold, kvzap::WINDOW, kvzap::SINKS);
        Ok(Some(ModelConfig { dms: Some(dms), ..shape_config(shape)? }))
    }

    /// Like [`Self::random`], with an adapter whose offset marks about `1 - 1/ratio` of the tokens,
    /// so that the cache is smaller by that ratio.
    pub fn random_evicting(shape: &str, ratio: f64) -> Result<Self> {
        ensure!(ratio > 1.0 && ratio.is_finite(), "a compression ratio of {ratio} is not above 1");
        let mut config = shape_config(shape)?;
        let published = config.dms.context("every shape has a rule")?;
        // The logit before scale and offset is near N(0, 1), because norms are 1 and rows have
        // length 1. Logistic approximation of its quantile.
        let quantile = (ratio - 1.0).ln() / 1.702;
        let alpha_offset = -(published.alpha_scale as f64 * quantile) as f32;
        config.dms = Some(DmsConfig { variant: DmsVariant::Adapter, alpha_offset, ..published });
        Self::random_of(shape, config)
    }

    /// Random weights for any configuration (tests, benchmarks of other rules). Norm weights are 1.
    pub fn random_of(name: &str, config: ModelConfig) -> Result<Self> {
        let specs: Vec<TensorSpec> = names::all(&config).collect();
        let mut places = Vec::with_capacity(specs.len());
        let mut end = 0usize;
        for TensorSpec { shape, .. } in &specs {
            let len = bytes_of(shape);
            places.push(end..end + len);
            end = (end + len).next_multiple_of(ALIGN_BYTES);
        }
        let bytes = mapped::buffer(end, |all| {
            for (spec, range) in specs.iter().zip(&places) {
                fill(&mut all[range.clone()], &spec.shape, range.start as u64);
            }
        })?;
        let tensors: Vec<Tensor> = specs
            .into_iter()
            .zip(places)
            .map(|(spec, range)| Tensor::new(&spec.name, DType::Bf16, spec.shape, bytes.clone(), range))
            .collect();
        Ok(Self::with_tensors(name, config, tensors))
    }

    /// The same shape with random codes of files: in the mix of llama.cpp's Q4_K_M, or of gpt-oss
    /// with experts in MXFP4 and other matrices in bf16. If matrices may share their bytes, those
    /// of the same code and width do.
    pub fn with_random_codes(&self, shared: bool) -> Result<Self> {
        let six = six_bits(&self.config);
        let mut packed = pack::packable(&self.config);
        let is_mxfp4 = self.config.spec.experts.is_some_and(|experts| experts.clamped);
        packed.retain(|name, _| !is_mxfp4 || name.contains(".mlp.experts."));
        let mut filled = HashMap::new();
        let mut tensors = Vec::new();
        // The tallest first: its bytes are enough for all of its width.
        let mut tallest: Vec<_> = self.tensors.values().collect();
        tallest.sort_by_key(|tensor| std::cmp::Reverse(tensor.shape[0]));
        for tensor in tallest {
            if !packed.contains_key(&tensor.name) {
                tensors.push(tensor.clone());
                continue;
            }
            let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
            let file = match six.contains(&tensor.name) {
                _ if is_mxfp4 => FileCode::Mxfp4,
                true => FileCode::Q6K,
                false => FileCode::Q4K,
            };
            let (code, own) = (Code::File(file), if shared { 0 } else { tensors.len() });
            let len = code.bytes(rows, cols);
            let bytes = match filled.entry((file, cols, own)) {
                Entry::Occupied(entry) => SharedBytes::clone(entry.get()),
                Entry::Vacant(entry) => {
                    let bytes = mapped::buffer(len, |all| fill_codes(all, file, cols, own))?;
                    SharedBytes::clone(entry.insert(bytes))
                }
            };
            tensors.push(Tensor::packed(&tensor.name, code, [rows, cols], bytes, 0..len));
        }
        let mut out = Self { weights: Weights::Own, ..self.clone() };
        out.take_tensors(tensors);
        out.n_params = self.n_params;
        Ok(out)
    }

    fn with_tensors(name: &str, config: ModelConfig, tensors: Vec<Tensor>) -> Self {
        let mut checkpoint = Self::empty(name, config);
        checkpoint.generation = GenerationDefaults { do_sample: Some(false), ..Default::default() };
        checkpoint.fingerprint = format!("random-{name}");
        checkpoint.take_tensors(tensors);
        checkpoint
    }
}

fn bytes_of(shape: &[usize]) -> usize {
    shape.iter().product::<usize>() * DType::Bf16.size_bytes()
}

/// Inputs of a matrix, which determine the range of its random values; 0 for a norm, which is all
/// ones.
fn width(shape: &[usize]) -> usize {
    if shape.len() == 1 { 0 } else { shape[1] }
}

/// The matrices that have Q6_K in Q4_K_M: the output head, and v and down of half of the layers.
fn six_bits(c: &ModelConfig) -> HashSet<String> {
    let eighth = c.n_layers / 8;
    let more = |l: &usize| *l < eighth || *l >= 7 * eighth || (l - eighth) % 3 == 2;
    let layers = (0..c.n_layers).filter(more).map(|l| LayerSpec::new(c, l));
    let head = names::lm_head(c).unwrap_or_else(|| names::embedding(c));
    let six = |layer: LayerSpec| {
        let v = if let MixerSpec::Attention(mixer) = layer.mixer { mixer.v } else { None };
        v.into_iter().chain(layer.mlp.down).map(|linear| linear.weight.name)
    };
    layers.flat_map(six).chain([head.name]).collect()
}

/// Fills strips with random codes; from some number of strips on they repeat.
fn fill_codes(all: &mut [u8], code: FileCode, cols: usize, seed: usize) {
    let size = Code::File(code).strip_bytes(cols);
    let (drawn, rest) = all.split_at_mut((DRAWN_STRIPS * size).min(all.len()));
    let strips = drawn.chunks_exact_mut(size).enumerate();
    let deviation = (cols as f32).sqrt().recip();
    strips.for_each(|(i, out)| random_strip(code, cols, deviation, (seed * DRAWN_STRIPS + i) as u32 * 2, out));
    rest.chunks_mut(drawn.len().max(1)).for_each(|out| out.copy_from_slice(&drawn[..out.len()]));
}

/// Fills one tensor: a norm with ones, a matrix with uniform values of variance 1/inputs.
fn fill(to: &mut [u8], shape: &[usize], seed: u64) {
    if shape.len() == 1 {
        let one = half::bf16::ONE.to_le_bytes();
        to.chunks_exact_mut(2).for_each(|w| w.copy_from_slice(&one));
        return;
    }
    let half_width = (3.0 / shape[1] as f32).sqrt();
    let chunks = to.chunks_mut(2 * CHUNK).enumerate().collect();
    cores::each(chunks, 0, |(chunk, to): (usize, &mut [u8])| fill_chunk(to, half_width, seed, chunk));
}

/// Uniform values in `-half_width..half_width`, as bf16, that depend on `seed` and the number of
/// the chunk alone.
fn fill_chunk(to: &mut [u8], half_width: f32, seed: u64, chunk: usize) {
    // xorshift64*, and not crate::random: published speeds were measured on these weights.
    let mut state = (seed ^ (chunk as u64).rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for w in to.chunks_exact_mut(2) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let signed = (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as i32;
        let value = signed as f32 * (half_width / 2f32.powi(31));
        w.copy_from_slice(&half::bf16::from_bits((value.to_bits() >> 16) as u16).to_le_bytes());
    }
}

fn shape_config(shape: &str) -> Result<ModelConfig> {
    let family = |name| Family::named(name).expect("a family of the table");
    let qwen3 = |n_layers, hidden, n_q_heads, head_dim, ffn, vocab| ModelConfig {
        family: family("qwen3"),
        n_layers,
        hidden,
        n_q_heads,
        n_kv_heads: 8,
        head_dim,
        ffn,
        vocab,
        rms_eps: 1e-6,
        tied: false,
        spec: Spec { qk_norm: true, ..Spec::default() },
        rope: Rope { theta: 1e6, share: 1.0, scaling: RopeScaling::Default },
        context: 40_960,
        dms: None,
        dmc: None,
        gates: None,
    };
    let llama = |n_layers, hidden, n_q_heads, n_kv_heads, ffn, vocab| ModelConfig {
        family: family("llama"),
        n_kv_heads,
        rms_eps: 1e-5,
        tied: true,
        spec: Spec::default(),
        ..qwen3(n_layers, hidden, n_q_heads, 64, ffn, vocab)
    };
    let published = |config: serde_json::Value| ModelConfig::from_json(shape, config.to_string().as_bytes());
    let dms = |variant, window, shift| {
        Some(DmsConfig { target_ratio: Some(8.0), ..DmsConfig::new(variant, Dms::new(window, shift)) })
    };
    Ok(match shape {
        "qwen3-8b" => ModelConfig {
            dms: dms(DmsVariant::Borrowed, 512, Shift::Previous),
            ..qwen3(36, 4096, 32, 128, 12_288, 151_936)
        },
        // The same sizes with half as many heads, twice as wide.
        "qwen3-8b-wide" => ModelConfig { n_q_heads: 16, n_kv_heads: 4, head_dim: 256, ..shape_config("qwen3-8b")? },
        "qwen3-30b-a3b" => {
            let experts = Experts {
                count: 128,
                per_token: 8,
                width: 768,
                normalized: true,
                shared: false,
                bias: false,
                clamped: false,
            };
            ModelConfig {
                family: family("qwen3_moe"),
                n_kv_heads: 4,
                spec: Spec {
                    qk_norm: true,
                    experts: Some(experts),
                    layers: vec![LayerKind { mlp: Mlp::Experts, ..LayerKind::ATTENTION }],
                    ..Spec::default()
                },
                ..qwen3(48, 2048, 32, 128, 6144, 151_936)
            }
        }
        // Sizes that the configuration does not state are those of the family's class.
        "qwen3.6-35b-a3b" => published(json!({
            "model_type": "qwen3_5_moe_text", "full_attention_interval": 4, "max_position_embeddings": 262_144,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        }))?,
        "gpt-oss-20b" => published(json!({
            "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            },
        }))?,
        "qwen3.5-9b" => {
            let sizes =
                DeltaNet { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, kernel: 4, tiled: false };
            let delta = LayerKind::DELTA_NET;
            ModelConfig {
                family: family("qwen3_5_text"),
                n_kv_heads: 4,
                spec: Spec {
                    qk_norm: true,
                    norm_offset: 1.0,
                    output_gate: true,
                    delta_net: Some(sizes),
                    layers: vec![delta, delta, delta, LayerKind::ATTENTION],
                    ..Spec::default()
                },
                rope: Rope { theta: 1e7, share: 0.25, scaling: RopeScaling::Default },
                context: 262_144,
                ..qwen3(32, 4096, 16, 256, 12_288, 248_320)
            }
        }
        "gemma3-4b" => {
            let local = LayerKind { local: true, ..LayerKind::ATTENTION };
            ModelConfig {
                family: family("gemma3_text"),
                n_kv_heads: 4,
                tied: true,
                spec: Spec {
                    qk_norm: true,
                    norm_offset: 1.0,
                    norms_behind: true,
                    activation: Activation::GeluTanh,
                    embedding_scale: 2560f32.sqrt(),
                    local: Some(Local { window: 1024, theta: Some(1e4) }),
                    layers: vec![local, local, local, local, local, LayerKind::ATTENTION],
                    ..Spec::default()
                },
                rope: Rope { theta: 1e6, share: 1.0, scaling: RopeScaling::Linear { factor: 8.0 } },
                context: 131_072,
                ..qwen3(34, 2560, 8, 256, 10_240, 262_208)
            }
        }
        // Sizes as published code lists them for the E4B; others are those of transformers' class.
        "gemma4-e4b" => published(json!({
            "model_type": "gemma4_text", "num_hidden_layers": 42, "hidden_size": 2560, "intermediate_size": 10_240,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
            "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256, "sliding_window": 512,
            "final_logit_softcapping": 30.0, "vocab_size": 262_144, "max_position_embeddings": 131_072,
        }))?,
        "llama-3.2-1b" => ModelConfig {
            context: 131_072,
            rope: Rope {
                theta: 5e5,
                share: 1.0,
                scaling: RopeScaling::Llama3 {
                    factor: 32.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 8192,
                },
            },
            dms: dms(DmsVariant::Borrowed, 256, Shift::Same),
            ..llama(16, 2048, 32, 8, 8192, 128_256)
        },
        "smollm2-135m" => ModelConfig {
            context: 8192,
            rope: Rope { theta: 1e5, share: 1.0, scaling: RopeScaling::Default },
            dms: dms(DmsVariant::Adapter, 128, Shift::Previous),
            ..llama(30, 576, 9, 3, 1536, 49_152)
        },
        // The shape of the built-in model.
        "demo" => {
            let raw = builtin::file("config.json").context("no built-in model")?;
            ModelConfig::from_json("demo/config.json", raw)?
        }
        other => bail!("no shape named {other:?} ({} are known)", SHAPES.join(", ")),
    })
}
