//! What an engine is started with.

use super::draft::Drafts;
use crate::backend::{About, KernelNeeds};
use crate::checkpoint::{Checkpoint, LayerKind, ModelConfig};
use crate::codec::{Codec, Coder, DataFile, Heads, Rotation};
use crate::policy::{Far, PolicyRequest};
use crate::protocol::WhenFull;
use crate::quant::Weights;
use crate::quantize::calibration::Calibration;
use crate::quantize::weight_cache::WeightCache;
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows of logits in the workspace where texts are scored, and in a chat.
pub(super) const MAX_LOGITS: usize = 16;

pub const CHAT_LOGITS: usize = 4;

/// How the weights are stored.
#[derive(Clone, Debug, Default)]
pub struct WeightOptions {
    pub choice: Weights,
    /// Where converted weights are kept; `None` converts them in memory at every start.
    pub cache: Option<WeightCache>,
    /// How 4-bit codes are chosen.
    pub calibration: Calibration,
}

/// How rows that leave the cache are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarOptions {
    pub rule: Far,
    /// Host memory for them.
    pub limit_bytes: u64,
}

/// Settings of an engine, resolved.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub codec: Codec,
    /// Data of the model that the codec needs.
    pub codec_data: Option<DataFile>,
    /// Codecs to try, in order, if the wanted context is not expected to fit with `codec`.
    pub smaller_codecs: &'static [Codec],
    /// Maximum tokens of a conversation. `None`: the length that the checkpoint was trained for,
    /// lowered to what fits, either in the worst case or with a margin at the ratio at which a DMS
    /// model evicts. Longer contexts use YaRN, for families that document it.
    pub context: Option<usize>,
    /// Memory that is free before loading; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Memory needed beside weights and pages. Set by [`resolve_context`](super::resolve_context).
    pub workspace_bytes: u64,
    /// Maximum bytes of allocated KV pages.
    pub kv_limit: Option<u64>,
    /// Whether conversations start with eviction. `None`: as the checkpoint asks.
    pub eviction: Option<bool>,
    /// Compression ratio that conversations begin with; `None`: as the model was trained.
    pub dial_ratio: Option<f32>,
    /// Folder of the files that record what models keep at each setting of the dial; `None`: no
    /// file is read or written.
    pub dial_folder: Option<PathBuf>,
    pub when_full: WhenFull,
    /// Which slots live; by default the model's own policy.
    pub policy: PolicyRequest,
    /// Whether rows that leave the cache are kept; only on a backend that can, by
    /// [`About::far`](crate::backend::About::far).
    pub far: Option<FarOptions>,
    /// How the weights are stored.
    pub weights: WeightOptions,
    /// Maximum tokens of one step. `None`: chosen for the backend and the memory by
    /// [`resolve_context`](super::resolve_context).
    pub max_step: Option<usize>,
    /// Rows of logits that the workspace has room for, at least one for each sequence.
    pub max_logits: usize,
    pub drafts: Drafts,
    /// Number of cache sequences. A conversation takes up to four: itself, two snapshots of its
    /// last turn and a rebuild.
    pub max_seqs: usize,
    /// Maximum conversations that answer prompts without an owner; 0: there are none.
    pub slots: usize,
    /// Maximum snapshots of earlier turns that a conversation keeps, each in its own sequence, and
    /// the maximum bytes of pages that only they hold.
    pub max_older: usize,
    pub checkpoint_bytes: u64,
    /// How the model is named in sessions; reported in `ModelInfo`.
    pub reference: Option<crate::protocol::ModelReference>,
}

impl EngineOptions {
    pub fn new(codec: Codec) -> Self {
        Self { codec, max_logits: MAX_LOGITS, max_seqs: 4, ..Self::default() }
    }

    /// Makes the coder of the codec, if it needs one. Fails if its data are missing or of another
    /// model.
    pub fn coder(&self, config: &ModelConfig) -> Result<Option<Arc<dyn Coder>>> {
        let rotation = |(inv_freq, factor)| Rotation { inv_freq, factor };
        let own = config.spec.global_heads.is_some();
        ensure!(
            !own || !self.codec.needs_data(),
            "--kv {}: layers of this model have heads of different sizes, for which there is no dictionary",
            self.codec.name()
        );
        let rotations = config.rotations().map(rotation).collect();
        let heads = Heads { head_dim: config.head_dim, rotations };
        self.codec.coder(self.codec_data.as_ref(), &heads).map_err(anyhow::Error::msg)
    }

    /// Determines the kernels that a checkpoint needs on a device under these options. Fails for a
    /// policy that it was not trained for, and for experts in codes that the device has no kernels
    /// for.
    pub(super) fn kernel_needs(&self, checkpoint: &Checkpoint, device: &About) -> Result<KernelNeeds> {
        let (config, weights) = (&checkpoint.config, checkpoint.weights);
        if let Some(code) = device.codes_of_experts.and_then(|codes| checkpoint.misplaced_code(codes)) {
            bail!(
                "weights {}: {} cannot multiply what this model has in {}; use --weights int8 or int4, or --device cpu",
                weights.name(),
                device.name,
                code.name()
            );
        }
        let policy = config.policy(self.policy)?;
        let [local, global] = [true, false].map(|local| config.heads(LayerKind { local, ..LayerKind::ATTENTION }));
        Ok(KernelNeeds {
            head_dims: [local.dim, global.dim],
            varies: local != global || config.spec.v_norm || config.spec.layers.iter().any(|layer| layer.shares),
            codec: self.codec,
            weights,
            policy,
            far: self.far.is_some() && policy.keeps_far(),
            delta_net: config.spec.delta_net.is_some(),
            experts: config.spec.experts.is_some(),
            growth: config.spec.query_growth.is_some(),
            drafts: self.drafts.rows > 0,
            gate_units: config.gates.map_or(0, |gates| if gates.maps.deep { gates.maps.units } else { 0 }),
        })
    }
}
