//! The configuration of a model, from `config.json`, `dms_metadata.json` and adapter metadata.
//! Families differ in these fields, not in code.

use super::family::Family;
use super::spec::Spec;
use crate::policy::{Dmc, Dms, Policy, PolicyKind, PolicyRequest, Trained};
use anyhow::{Context as _, Result, ensure};

/// The configuration that the forward pass needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: &'static Family,
    pub n_layers: usize,
    pub hidden: usize,
    pub n_q_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub vocab: usize,
    pub rms_eps: f32,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Computation of the layers.
    pub spec: Spec,
    pub rope: Rope,
    /// `max_position_embeddings`, tokens.
    pub context: usize,
    /// `None`: the model was not trained to drop tokens.
    pub dms: Option<DmsConfig>,
    /// `None`: the model was not trained to merge tokens.
    pub dmc: Option<DmcConfig>,
    /// Retention gates from outside the model's files.
    pub gates: Option<Gates>,
}

impl ModelConfig {
    /// Eviction or merging that the model was trained for.
    pub fn trained(&self) -> Option<Trained> {
        let dmc = self.dmc.map(|dmc| Trained::Dmc(dmc.rule));
        let gates = self.gates.map(|gates| Trained::Gates(gates.memory_size));
        let dms = self.dms.as_ref().map(|dms| Trained::Dms(dms.rule));
        dms.or(dmc).or(gates).or(self.spec.window.map(Trained::Window))
    }

    /// The maps that compute decisions from a layer's normed input, if some do.
    pub fn predictor(&self) -> Option<Predictor> {
        let of_dms = self.dms.as_ref().and_then(|dms| match dms.variant {
            DmsVariant::Predictor(maps) => Some(maps),
            _ => None,
        });
        of_dms.or(self.gates.map(|gates| gates.maps))
    }

    /// Where decisions come from, in a word.
    pub fn decided_by(&self) -> &'static str {
        match (&self.dms, self.gates) {
            (Some(dms), _) => dms.variant.name(),
            (None, Some(_)) => "gates",
            (None, None) => "none",
        }
    }

    /// Resolves the cache's policy. Fails for DMS and DMC if the model was not trained with it.
    pub fn policy(&self, asked: PolicyRequest) -> Result<Policy> {
        if let Some(tokens) = self.spec.window {
            let why = || {
                format!(
                    "policy {}: this model's attention sees its newest {tokens} tokens only; it takes --policy window, or none",
                    asked.kind.name()
                )
            };
            return asked.resolve(self.trained()).with_context(why);
        }
        let window_or_decisions =
            matches!(asked.kind, PolicyKind::Auto | PolicyKind::Dense | PolicyKind::Dms | PolicyKind::Window);
        ensure!(
            !self.has_windows() || window_or_decisions,
            "policy {}: layers of this model see a window of tokens; the others take --policy window or dense, or a predictor",
            asked.kind.name()
        );
        let untrained = match asked.kind {
            PolicyKind::Dmc => "policy dmc: this model was not trained with DMC; use --policy pool to merge its tokens",
            PolicyKind::TrimKv => {
                "policy trimkv: this model has no retention gates; name their folder with --adapter, or use --policy \
                 window, tova or h2o to bound its memory"
            }
            _ => {
                "policy dms: this model was not trained with DMS; use --policy dense, or window, tova or h2o to bound its \
                 memory"
            }
        };
        asked.resolve(self.trained()).context(untrained)
    }

    /// Shortens windows to a context of `tokens` tokens: a longer window drops nothing, but rings
    /// of slots have its size.
    pub fn shorten_windows(&mut self, context: usize) {
        let dms = self.dms.iter_mut().map(|dms| &mut dms.rule.window);
        dms.chain(self.spec.windows_mut()).for_each(|window| *window = context.min(*window));
    }

    /// The compression ratio that the model was trained for, if it is stated.
    pub fn target_ratio(&self) -> Option<f64> {
        self.dms.as_ref().and_then(|dms| dms.target_ratio).or(self.dmc.and_then(|dmc| dmc.target_ratio))
    }
}

/// Rotary embedding, `rotate_half` convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    /// Share of a head's channels that are rotated; these are the first channels.
    pub share: f64,
    pub scaling: RopeScaling,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    Default,
    /// Positions are divided by the factor.
    Linear {
        factor: f64,
    },
    /// Like that, and [`Rope::share`] is that of the pairs of channels that turn: the first ones,
    /// with the frequencies that they have among all pairs. The others stay as they are.
    Proportional {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: usize,
    },
    Yarn {
        factor: f64,
        original_context: usize,
        beta_fast: f64,
        beta_slow: f64,
        attention_factor: Option<f64>,
        mscale: Option<f64>,
        mscale_all_dim: Option<f64>,
        truncate: bool,
    },
    /// Frequencies are divided by individual factors, with one list for contexts of up to
    /// `original_context` tokens and one for longer contexts.
    LongRope {
        short: Vec<f64>,
        long: Vec<f64>,
        original_context: usize,
        attention_factor: f64,
        is_long: bool,
    },
}

/// The source of eviction decisions and the parameters of the rule.
#[derive(Clone, Debug, PartialEq)]
pub struct DmsConfig {
    pub variant: DmsVariant,
    pub rule: Dms,
    pub alpha_scale: f32,
    pub alpha_offset: f32,
    /// `dms_alpha_per = "layer"`: head 0's decision serves all KV heads of the layer.
    pub per_layer: bool,
    /// Whether eviction starts switched off (`dms_disable_eviction`).
    pub disabled: bool,
    /// The compression ratio that the checkpoint was trained for, if it is stated; the planner
    /// expects it.
    pub target_ratio: Option<f64>,
}

/// A model trained with DMC. Decisions and weights come from borrowed channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DmcConfig {
    pub rule: Dmc,
    /// See [`DmsConfig`].
    pub alpha_scale: f32,
    pub alpha_offset: f32,
    pub target_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmsVariant {
    /// The last channel of each group's first query head, after q_norm, before RoPE.
    Borrowed,
    /// `dms_proj_alpha(dms_proj_alpha_norm(layer input))`, from its own small tensors.
    Adapter,
    /// A predicted score of the layer's normed input; a token whose score is below a threshold is
    /// marked.
    Predictor(Predictor),
}

impl DmsVariant {
    pub fn name(self) -> &'static str {
        match self {
            Self::Borrowed => "borrowed",
            Self::Adapter => "adapter",
            Self::Predictor(_) => "predictor",
        }
    }
}

/// The maps of a predictor, whose sum is the score of a token in each KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictor {
    /// Whether there is a linear map.
    pub linear: bool,
    /// Units of the hidden layer of an MLP; 0 without one.
    pub units: usize,
    /// Whether the MLP has a second hidden layer of that many units.
    pub deep: bool,
}

/// Retention gates (TrimKV): MLPs with the model's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub maps: Predictor,
    /// Slots of each KV head that they were trained for.
    pub memory_size: usize,
}

impl DmsConfig {
    /// Decisions scaled as in NVIDIA's checkpoints, for each head.
    pub fn new(variant: DmsVariant, rule: Dms) -> Self {
        let (per_layer, disabled, target_ratio) = (false, false, None);
        Self { variant, rule, alpha_scale: 100.0, alpha_offset: 5.0, per_layer, disabled, target_ratio }
    }

    /// The score below which a predictor marks a token.
    pub fn threshold(&self) -> Option<f32> {
        matches!(self.variant, DmsVariant::Predictor(_)).then_some(-self.alpha_offset)
    }
}
