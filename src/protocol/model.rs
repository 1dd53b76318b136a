//! The loaded model: which it is, its shape, and the memory that it takes.

use super::number::or_zero;
use super::{SamplingParams, TemplateSpec};
use crate::codec::Codec;
use crate::policy::{Budget, LayerLanes, PolicyKind};
use serde::{Deserialize, Serialize};

/// Memory planned before loading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub weight_bytes: u64,
    /// Memory beside weights and pages: page tables, rings, activations, logits.
    pub workspace_bytes: u64,
    /// Bytes available for KV pages; `None` if neither memory nor limit is known.
    pub kv_budget_bytes: Option<u64>,
    /// Bytes of a full context without eviction, and at the expected compression ratio.
    pub dense_kv_bytes: u64,
    pub expected_kv_bytes: u64,
    /// Tokens that fit in the worst case, and at the expected compression ratio.
    pub certain_context: usize,
    pub expected_context: usize,
}

/// Data to load a model again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelReference {
    /// `demo`, the absolute path of a folder or file, or a hub id `ORG/NAME`, with `:Q4_K_M` for a
    /// GGUF file.
    pub model: String,
    /// The commit of a hub model; `None` for others.
    pub revision: Option<String>,
    /// `auto`, `none`, the absolute path of an adapter, or a hub id.
    pub adapter: String,
    /// The cache's policy as the settings name it, such as `auto` or `tova`, and its budget;
    /// missing in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Changes of the settings to the eviction rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sinks: Option<usize>,
}

impl ModelReference {
    /// The reference as an argument of `-m`.
    pub fn name(&self) -> String {
        match &self.revision {
            Some(revision) => format!("{}@{revision}", self.model),
            None => self.model.clone(),
        }
    }
}

/// Which model it is, on which device: what has to be equal for saved tokens to mean the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The name for the user: `demo`, the name of a folder, or `ORG/NAME`.
    pub name: String,
    /// `None` if the model cannot be loaded by name (tests), and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<ModelReference>,
    /// Hex digests. A saved token log may be loaded if both are equal.
    pub model_fingerprint: String,
    pub tokenizer_fingerprint: String,
    /// `cpu, 2 threads` or the name of the GPU.
    pub device: String,
    /// Format of the weights; missing in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// Source of eviction decisions; missing for a model without one, and in files of older
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Decisions>,
}

/// A source of decisions about eviction, with the rule's parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// `borrowed`, `adapter`, `predictor`, `kvzap` or `trimkv`.
    pub kind: String,
    /// The model's own name, or the name of a file or hub id.
    pub name: String,
    /// Hex digest of a file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Score below which a predictor marks a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f32>,
    pub window: usize,
    pub sinks: usize,
}

impl ModelIdentity {
    /// Whether that model's cache has the policy and budget of this one, as far as this one names
    /// them.
    pub fn same_cache(&self, other: &Self) -> bool {
        let cache = |r: &ModelReference| r.policy.map(|policy| (policy, r.budget));
        let own = self.reference.as_ref().and_then(cache);
        own.is_none() || own == other.reference.as_ref().and_then(cache)
    }

    /// Whether that model may reuse token ids saved by this one.
    pub fn fits(&self, other: &Self) -> bool {
        self.model_fingerprint == other.model_fingerprint && self.tokenizer_fingerprint == other.tokenizer_fingerprint
    }
}

/// How a model's weights are stored in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WeightsInfo {
    /// `f32`, `f16`, `bf16`, `int8` or `int4`.
    pub format: String,
    /// Mean bits per weight, with scales; 0 in files of older versions.
    #[serde(deserialize_with = "or_zero")]
    pub bits: f64,
    pub bytes: u64,
    /// Whether they are mapped from a file of quantized weights.
    pub cached: bool,
}

/// Properties of the loaded model.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    pub identity: ModelIdentity,
    pub family: String,
    pub n_params: u64,
    /// Layers with attention, which are the layers of the cache.
    pub n_layers: usize,
    /// Layers with a state of fixed size instead, and the bytes of all their states in one
    /// sequence.
    pub state_layers: usize,
    pub state_bytes: u64,
    /// The lanes of each layer of the cache.
    pub lanes: Vec<LayerLanes>,
    pub n_q_heads: usize,
    /// The most of any layer, and the most channels of one, as of a slot and a page below.
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Maximum tokens of a conversation.
    pub context: usize,
    pub codec: Codec,
    /// `auto` is resolved.
    pub policy: PolicyKind,
    /// Budget of the policy, if it has one.
    pub budget: Option<Budget>,
    /// Window W in tokens, where tokens leave the cache after one.
    pub window: Option<usize>,
    /// Source of the eviction decisions: `borrowed`, `adapter`, `predictor`, `gates` or `none`.
    pub dms: String,
    pub adapter: Option<String>,
    /// The source of decisions, if not the model itself, and its measured effect:
    /// `forgets with KVzap-mlp-Qwen3-8B (about 3.1x, ...)`.
    pub evicts_by: Option<String>,
    pub weights: WeightsInfo,
    pub slot_bytes: usize,
    pub page_slots: usize,
    pub kv_limit: Option<u64>,
    pub plan: Plan,
    pub template: TemplateSpec,
    /// Tags that open and close a thought, if the vocabulary or the template has them.
    pub think_tags: Option<(String, String)>,
    /// Most drafts of a step; 0 where it has none.
    pub most_drafts: usize,
    /// Whether a server runs it: its cache is there, and what is known of it are the figures that
    /// the server reports.
    pub is_remote: bool,
    /// Whether conversations begin with eviction; `None` if it cannot be switched.
    pub eviction: Option<bool>,
    /// Whether the server reports which tokens its cache holds.
    pub has_memory: bool,
    /// From `generation_config.json`.
    pub default_sampling: SamplingParams,
}

impl ModelInfo {
    /// KV heads of all layers of the cache.
    pub fn heads(&self) -> usize {
        self.lanes.iter().map(|layer| layer.heads.count).sum()
    }

    /// Bytes of the slots of a dense cache of `n` tokens.
    pub fn dense_bytes(&self, n: usize) -> u64 {
        let slot_bytes = |layer: &LayerLanes| match layer.heads.dim {
            dim if dim == self.head_dim => self.slot_bytes,
            dim => self.codec.slot_bytes(dim),
        };
        self.lanes.iter().map(|layer| (layer.all_dense_slots(n) * slot_bytes(layer)) as u64).sum()
    }
}

/// The beginning of a thought that is a part of its opening tag: a channel has a name (Gemma 4).
pub fn thought_header(open: &str) -> &'static str {
    if open == "<|channel>" { "thought\n" } else { "" }
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The model has no think blocks.
    None,
    /// The template has no switch for thinking.
    Fixed,
    Switchable,
}

/// Number of tokens after which a thought of the built-in model is closed: it has found nothing by
/// then, and would fill the context.
const BUILTIN_MAX_THINK: usize = 2048;

/// Whether a template reads one of the names that switch thinking: `enable_thinking`, or `thinking`
/// in a condition.
fn reads_thinking(template: &str) -> bool {
    let ends = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let asks = |word: &str| {
        let asked = format!("{word} thinking");
        template.match_indices(&asked).any(|(at, _)| ends(&template[at + asked.len()..]))
    };
    template.contains("enable_thinking") || ["if", "not", "and", "or"].iter().any(|word| asks(word))
}

impl ModelInfo {
    /// Whether it is the model built into the program.
    pub fn is_builtin(&self) -> bool {
        self.template.trusted
    }

    /// Maximum tokens of a thought, if the user has set it. 0 is no limit.
    pub fn max_think(&self, set: Option<usize>) -> Option<usize> {
        set.or(self.is_builtin().then_some(BUILTIN_MAX_THINK)).filter(|&tokens| tokens > 0)
    }

    pub fn thinking(&self) -> Thinking {
        let switch = self.template.source.as_deref().is_some_and(reads_thinking);
        match (&self.think_tags, switch) {
            (None, _) => Thinking::None,
            (Some(_), false) => Thinking::Fixed,
            (Some(_), true) => Thinking::Switchable,
        }
    }
}
