//! Reports of a backend about itself.

use crate::codec::Codec;
use crate::policy::Policy;
use crate::quant::{Code, Weights};
use std::ops::RangeInclusive;

/// Facts that decide which kernels the steps of a model launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelNeeds {
    /// Channels of a head in local layers and in the others.
    pub head_dims: [usize; 2],
    /// Whether layers have other heads than each other or read K and V of others, or values have a
    /// norm.
    pub varies: bool,
    /// Format of K and V in the cache.
    pub codec: Codec,
    /// Format of the weights.
    pub weights: Weights,
    /// Policy of the cache.
    pub policy: Policy,
    /// Whether rows that leave the cache are kept.
    pub far: bool,
    /// Whether layers are gated delta nets.
    pub delta_net: bool,
    /// Whether layers have experts.
    pub experts: bool,
    /// Whether queries grow with their positions.
    pub growth: bool,
    /// Whether steps try drafts.
    pub drafts: bool,
    /// Units of the second hidden layer of retention gates; 0: none.
    pub gate_units: usize,
}

/// Facts about a device that do not change.
#[derive(Clone, Debug)]
pub struct About {
    /// `cpu, 2 threads` or the GPU's name.
    pub name: String,
    /// An external library that runs some of the ops.
    pub library: Option<String>,
    /// Fewest and most tokens of a prefill step that suit the backend; memory decides between them.
    pub step_tokens: RangeInclusive<usize>,
    /// Tokens of a prefill chunk, as a function of the device alone, if a row's results depend on
    /// the rows beside it: the chunks of a prompt or a replay must then follow from its log. `None`
    /// if they do not, so that any chunks give the same state.
    pub chunk_tokens: Option<usize>,
    /// Most rows of a step that is [committed later](super::Ops::commit); 0 where there is none.
    pub staged_rows: usize,
    /// Codes that packed experts may have, all of them the same one; `None`: any.
    pub codes_of_experts: Option<&'static [Code]>,
}

/// Properties of a backend, for notices, the planner and the panel.
pub trait Report {
    fn about(&self) -> About;
    /// A message for the user that came up in a step, returned once.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Bytes of device memory as the driver reports them for this process.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
    /// Energy that the device has used since some time, in millijoules, if it counts that.
    fn energy_mj(&self) -> Option<u64> {
        None
    }
}

/// Contents of a device's memory, as its driver and the backend count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Taken by other programs and by the driver for this one, before anything was loaded.
    pub before_bytes: u64,
    /// Taken by loading the kernels.
    pub kernel_bytes: u64,
    /// Taken now, in all.
    pub taken_bytes: u64,
    /// Live allocations by purpose, in the driver's granules.
    pub allocated: Vec<(&'static str, u64)>,
}
