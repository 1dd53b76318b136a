//! Checks of whole models with random weights: steps on a GPU against steps on the CPU, and prefill
//! against decode. Random decision logits may be close to 0, so that these checks are not exact;
//! the cache histories beside this file are. A GPU rounds activations before bf16 weights, which
//! changes a decision logit by hundredths: with bf16 weights every token is marked, so that slots
//! are comparable, and with f32 weights the model decides.

use super::{CODECS, Finding, Report, slots_of, widen};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{
    Activation, Checkpoint, DeltaNet, DmcConfig, Experts, LayerInputs, LayerKind, Local, Mlp, ModelConfig, QueryGrowth,
};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, Dmc, KvHeads, PolicyKind, PolicyRequest, SlotMeta};
use dmschat::protocol::Token;
use dmschat::sampler::argmax;
use std::time::Instant;

const PROMPT: usize = 150;
const ANSWER: usize = 60;
/// The same in a short run, and its layers of a model.
const SHORT_ANSWER: usize = 4;
const SHORT_LAYERS: usize = 2;
/// Largest difference of logits, relative to the largest: a decision near 0, or a different
/// rounding of K and V, changes what follows.
const LIMIT: f32 = 5e-2;
/// The same for k8v4, where another rounding moves a value by a fifteenth of its row's range:
/// 9.2e-2 on an H200.
const LIMIT_4_BITS: f32 = 1.5e-1;
/// One head in this many may therefore have other slots. With fp8, whose rounding steps are a
/// sixteenth of a value, up to half did on an H200: there only the exact cache histories compare
/// slots.
const OTHER_SLOTS: usize = 4;
/// The same behind random experts, which make roundings larger: 15 of 32 heads on an H200, where
/// the logits differed by 2.2e-2, and by 9.2e-3 without experts.
const OTHER_SLOTS_OF_EXPERTS: usize = 2;
/// An offset below every decision logit.
const MARKS_ALL: f32 = -1e6;

/// Variation of a model or its cache.
#[derive(Clone, Copy, PartialEq)]
enum Other {
    No,
    /// Tokens are merged.
    Pool,
    Dmc,
    /// Layers of another family than Llama.
    Layers,
    /// Every other layer is a gated delta net, and attention is gated.
    Hybrid,
    /// Every other layer has experts.
    Experts,
    /// Sinks in the softmax, local layers, experts with biases (gpt-oss).
    Sinks,
    /// Heads by layer, layers that read K and V of others, inputs of layers (small Gemma 4).
    Shared,
    /// Heads by layer, values that are keys, experts beside dense blocks (large Gemma 4).
    Beside,
}

/// The results of a run.
struct Trace {
    /// The logits after the prompt and after each token.
    logits: Vec<Vec<f32>>,
    tokens: Vec<Token>,
    /// Positions and marks of each lane. Strengths of decisions differ by roundings.
    slots: Vec<Vec<(usize, bool)>>,
}

/// Runs the checks. `open` opens a backend for each model.
pub fn run_all<B: Measure, E: std::error::Error + Send + Sync + 'static>(
    open: impl Fn() -> Result<B, E>,
    report: &mut Report<'_>,
) -> Result<()> {
    let answer = if report.is_short() { SHORT_ANSWER } else { ANSWER };
    let own = [("demo", true), ("demo", false), ("smollm2-135m", false)].map(|(shape, f32)| (shape, f32, Other::No));
    let others = [
        Other::Pool,
        Other::Dmc,
        Other::Layers,
        Other::Hybrid,
        Other::Experts,
        Other::Sinks,
        Other::Shared,
        Other::Beside,
    ];
    let others = others.map(|other| ("demo", true, other));
    let with_bf16 = [Other::Layers, Other::Hybrid, Other::Shared, Other::Beside].map(|other| ("demo", false, other));
    for (shape, in_f32, other) in own.into_iter().chain(others).chain(with_bf16) {
        let mut config = Checkpoint::shape(shape)?;
        if other == Other::Hybrid {
            mix(&mut config);
        }
        if other == Other::Layers {
            vary(&mut config);
        }
        // All experts are chosen: if two were almost equally good, backends might choose different
        // ones.
        let (count, per_token, width, normalized) = (3, 3, 80, true);
        let experts = Experts { count, per_token, width, normalized, shared: true, bias: false, clamped: false };
        let layer = LayerKind { mlp: Mlp::Experts, ..LayerKind::ATTENTION };
        if other == Other::Experts {
            config.spec.experts = Some(experts);
            config.spec.layers = vec![layer, LayerKind::ATTENTION];
        }
        if other == Other::Sinks {
            config.spec.experts = Some(Experts { shared: false, bias: true, clamped: true, ..experts });
            config.spec.layers = vec![LayerKind { local: true, ..layer }, layer];
            config.spec.local = Some(Local { window: 40, theta: None });
            (config.spec.sinks, config.spec.o_bias) = (true, true);
        }
        if matches!(other, Other::Shared | Other::Beside) {
            differ(&mut config, (other == Other::Beside).then_some(Experts { shared: false, ..experts }));
        }
        if report.is_short() {
            config.n_layers = config.spec.layers.len().max(SHORT_LAYERS);
        }
        let mut checkpoint = Checkpoint::random_of(shape, config)?;
        if other == Other::Dmc {
            checkpoint.config.dms = None;
            let rule = Dmc::default();
            checkpoint.config.dmc = Some(DmcConfig { rule, alpha_scale: 100.0, alpha_offset: 5.0, target_ratio: None });
        }
        if in_f32 {
            widen(&mut checkpoint);
        } else if let Some(dms) = &mut checkpoint.config.dms {
            dms.alpha_offset = MARKS_ALL;
        }
        // The heads are few, and decisions near 0 would change a large part of the slots.
        let varied = matches!(other, Other::Shared | Other::Beside);
        if varied && in_f32 {
            checkpoint.config.dms = None;
        }
        let policy = match other {
            Other::Pool => PolicyKind::Pool.into(),
            _ if varied && in_f32 => PolicyKind::Window.with(Budget::Slots(64)),
            _ => PolicyKind::Auto.into(),
        };
        let policy_name = [
            "",
            " pool",
            " dmc",
            " of other layers",
            " of a hybrid",
            " of experts",
            " with sinks",
            " that shares",
            " of both blocks",
        ][other as usize];
        let name = format!("{shape}{policy_name}{}", if in_f32 { " in f32" } else { "" });
        let others = match other {
            Other::Pool | Other::Shared | Other::Beside => None,
            Other::Experts => Some(OTHER_SLOTS_OF_EXPERTS),
            _ => Some(OTHER_SLOTS),
        };
        let others = others.filter(|_| in_f32);
        let all = other == Other::No || varied && in_f32;
        for &codec in if all { CODECS } else { &[Codec::Bf16] } {
            if !report.takes() {
                continue;
            }
            let expected = trace(Cpu::new(0), &checkpoint, (policy, codec), &[PROMPT], Err(answer))?;
            let started = Instant::now();
            let got = trace(open()?, &checkpoint, (policy, codec), &[PROMPT], Ok(&expected.tokens))?;
            let what = format!("model {name} {}: prefill, {answer} decodes", codec.name());
            report.add(finding(what, codec, others, &got, &expected, started));
            let started = Instant::now();
            let divided = [1, 70, 1, 1, 9, 68];
            let parts = trace(open()?, &checkpoint, (policy, codec), &divided, Ok(&expected.tokens))?;
            let what = format!("model {name} {}: the same in parts", codec.name());
            report.add(finding(what, codec, others, &parts, &got, started));
        }
    }
    Ok(())
}

/// Gives a model the features of other families: partial RoPE, layers without RoPE, local layers,
/// norms after blocks, another gate, factors, queries that grow.
pub(super) fn vary(config: &mut ModelConfig) {
    config.rope.share = 0.5;
    let spec = &mut config.spec;
    spec.layers = [true, false].map(|local| LayerKind { local, rotates: local, ..LayerKind::ATTENTION }).to_vec();
    spec.local = Some(Local { window: 40, theta: Some(3e3) });
    (spec.norms_behind, spec.activation) = (true, Activation::GeluTanh);
    (spec.embedding_scale, spec.residual_scale, spec.logit_scale) = (1.5, 0.7, 0.8);
    spec.score_scale = Some(1.25 / (config.head_dim as f32).sqrt());
    spec.query_growth = Some(QueryGrowth { beta: 0.2, length: 60 });
}

/// Gives the layers of a model other heads than each other and what else Gemma 4 has: with experts
/// as its large models, else as its small ones.
fn differ(config: &mut ModelConfig, experts: Option<Experts>) {
    let (local, global) = (LayerKind { local: true, ..LayerKind::ATTENTION }, LayerKind::ATTENTION);
    let spec = &mut config.spec;
    (spec.v_norm, spec.norms_behind, spec.layer_scale, spec.activation) = (true, true, true, Activation::GeluTanh);
    (spec.score_scale, spec.logit_cap, spec.embedding_scale) = (Some(0.1), Some(6.0), 1.5);
    spec.local = Some(Local { window: 40, theta: Some(3e3) });
    if experts.is_some() {
        let beside = |layer| LayerKind { mlp: Mlp::DenseAndExperts, ..layer };
        (spec.experts, spec.layers) = (experts, vec![beside(local), beside(global)]);
        (spec.global_heads, spec.keys_are_values) = (Some(KvHeads { count: 2, dim: 128 }), true);
    } else {
        let reader = |layer| LayerKind { shares: true, wide: true, ..layer };
        spec.layers = vec![local, global, reader(local), reader(global)];
        spec.layer_inputs = Some(LayerInputs { width: 24, vocab: config.vocab });
        spec.global_heads = Some(KvHeads { count: 2, dim: 512 });
        (config.n_kv_heads, config.head_dim) = (1, 256);
    }
}

/// Makes a model one of both kinds of layers.
pub(super) fn mix(config: &mut ModelConfig) {
    let spec = &mut config.spec;
    let sizes = DeltaNet { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 48, kernel: 4, tiled: false };
    (spec.delta_net, spec.output_gate, spec.norm_offset) = (Some(sizes), true, 1.0);
    let delta = LayerKind::DELTA_NET;
    spec.layers = vec![delta, LayerKind::ATTENTION];
}

/// Feeds a prompt in the given parts, then feeds the given tokens, or decodes so many greedily.
fn trace<B: Measure>(
    b: B,
    checkpoint: &Checkpoint,
    (policy, codec): (PolicyRequest, Codec),
    parts: &[usize],
    forced: Result<&[Token], usize>,
) -> Result<Trace> {
    let answer = forced.map_or_else(|n| n, |tokens| tokens.len() - 1);
    let options = EngineOptions { context: Some(512), max_step: Some(256), policy, ..EngineOptions::new(codec) };
    let mut runner = Runner::new(b, checkpoint, &options, |_, _| true)?;
    let vocab = checkpoint.config.vocab;
    let prompt: Vec<Token> = (0..PROMPT).map(|i| (i * 7919 % vocab) as Token).collect();
    let seq = runner.create(true)?;
    let (mut at, mut trace) = (0, Trace { logits: vec![], tokens: vec![], slots: vec![] });
    for &n in parts {
        runner.feed(seq, &prompt[at..at + n])?;
        at += n;
    }
    let mut last = parts.last().copied().unwrap_or(1) - 1;
    for i in 0..=answer {
        runner.logits(last..last + 1, |_, row| trace.logits.push(row.to_vec()))?;
        let greedy = argmax(trace.logits.last().expect("a row was read"));
        let token = forced.map_or(greedy, |tokens| tokens[i]);
        trace.tokens.push(token);
        if i < answer {
            runner.feed(seq, &[token])?;
            last = 0;
        }
    }
    let seen = |metas: Vec<SlotMeta>| metas.iter().map(|meta| (meta.position(), meta.marked())).collect();
    trace.slots = slots_of(&runner, seq).into_iter().map(seen).collect();
    Ok(trace)
}

/// `others`: one head in this many may hold other slots; `None`: none may.
fn finding(
    name: String,
    codec: Codec,
    others: Option<usize>,
    got: &Trace,
    expected: &Trace,
    started: Instant,
) -> Finding {
    let rows = got.logits.iter().flatten().zip(expected.logits.iter().flatten());
    let largest = expected.logits.iter().flatten().fold(1e-6f32, |m, x| m.max(x.abs()));
    let difference =
        rows.map(|(a, b)| (a - b).abs()).fold(0.0, |m, x| if x.is_nan() { f32::INFINITY } else { x.max(m) });
    let lanes = got.slots.iter().zip(&expected.slots).filter(|(a, b)| a != b).count();
    let most = match (others, codec) {
        (None, _) => 0,
        (Some(_), Codec::Fp8 | Codec::Int8 | Codec::K8V4) => expected.slots.len(),
        (Some(of), _) => expected.slots.len() / of,
    };
    let broken = (lanes > most).then(|| format!("{lanes} of {} heads hold other slots", expected.slots.len()));
    let limit = if codec == Codec::K8V4 { LIMIT_4_BITS } else { LIMIT };
    Finding { name, error: difference / largest, limit, broken, time: started.elapsed() }
}
