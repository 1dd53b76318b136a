//! Memory planning before anything is loaded: pure arithmetic over sizes.

use super::{EngineOptions, FarOptions};
use crate::backend::{DeltaGeometry, KvGeometry};
use crate::cache::PAGE_SLOTS;
use crate::checkpoint::{Checkpoint, DeltaNet, LayerKind, ModelConfig};
use crate::codec::Codec;
use crate::model::step_token_bytes;
use crate::policy::far::Index;
use crate::policy::{Budget, Far, LayerLanes, POSITION_BITS, Policy};
use crate::protocol::{MAX_CONTEXT, Plan};
use crate::quant::Weights;
use std::ops::RangeInclusive;

// Configurations, settings and slots have the same bound.
const _: () = assert!(crate::checkpoint::bounds::POSITIONS == MAX_CONTEXT && MAX_CONTEXT == 1 << POSITION_BITS);

/// Context for which room is kept where none is asked for: a model's own may be far longer than
/// most conversations, and more exact formats serve all of them.
pub const USUAL_CONTEXT: usize = 32_768;

/// Margin of a default context below the length expected to fit with eviction: texts differ in how
/// much of them a model keeps.
const MARGIN: f64 = 1.25;

/// Share of the memory beside weights and cache that the activations of a step may take: less for a
/// long step, which is at most a tenth faster.
const STEP_SHARE: u64 = 8;
const LONG_STEP: usize = 2048;
const LONG_STEP_SHARE: u64 = 64;

/// Memory that is left free for other programs: this share of the memory, at most this many bytes.
const SPARE_SHARE: u64 = 16;
const SPARE_BYTES: u64 = 256 << 20;

/// The cache's policy; dense where the model cannot have it, which loading refuses later.
fn policy(c: &ModelConfig, options: &EngineOptions) -> Policy {
    options.policy.resolve(c.trained()).unwrap_or(Policy::Dense)
}

/// Geometry of the cache of a model's layers with attention, except for values that depend on the
/// backend.
pub(super) fn geometry(c: &ModelConfig, options: &EngineOptions, policy: Policy, n_seqs: usize) -> KvGeometry {
    let [local, global] = [true, false].map(|local| c.heads(LayerKind { local, ..LayerKind::ATTENTION }));
    KvGeometry {
        n_layers: c.attention_layers(),
        n_q_heads: c.n_q_heads,
        n_kv_heads: local.count.max(global.count),
        head_dim: local.dim.max(global.dim),
        heads: (local != global).then_some([local, global]),
        n_seqs,
        page_slots: PAGE_SLOTS,
        same_slots: false,
        max_pages: 0,
        codec: options.codec,
        policy,
        local: c.local_layers(),
        far: options.far.map(|far| far.rule),
        delta: None,
        vocab: c.vocab,
        staged_rows: 0,
    }
}

/// Bytes per token of a dense cache in the layers that store all tokens.
pub fn dense_token_bytes(c: &ModelConfig, codec: Codec) -> u64 {
    c.lanes().filter(LayerLanes::decides).map(|layer| layer_slot_bytes(&layer, codec)).sum()
}

/// Bytes of a slot in each lane of a layer.
fn layer_slot_bytes(layer: &LayerLanes, codec: Codec) -> u64 {
    (layer.heads.count * codec.slot_bytes(layer.heads.dim)) as u64
}

/// Bytes of a sequence in the layers that store a window, which is full, in whole pages of the
/// widest heads: where pages have [as many slots](crate::backend::Pages::SAME_SLOTS) of narrower
/// ones, those take as much.
fn local_bytes(c: &ModelConfig, codec: Codec) -> u64 {
    let widest = c.lanes().map(|layer| layer.heads.dim).max().unwrap_or(0);
    let bytes = |layer: LayerLanes| {
        let slots = layer.window?.next_multiple_of(PAGE_SLOTS);
        Some((slots * layer.heads.count * codec.slot_bytes(widest)) as u64)
    };
    c.lanes().filter_map(bytes).sum()
}

/// Bytes of tables per token of context, used or not: one entry of the page table per page in every
/// lane, and a score per slot where the policy has them.
fn table_token_bytes(c: &ModelConfig, options: &EngineOptions) -> f64 {
    let scores = policy(c, options).scored().map_or(0, |_| size_of::<f32>());
    let slot = size_of::<i32>() as f64 / PAGE_SLOTS as f64 + scores as f64;
    let lanes = c.attention_layers() * c.lanes().map(|layer| layer.heads.count).max().unwrap_or(0);
    (lanes * options.max_seqs) as f64 * slot
}

/// Bytes of the states of one sequence in the layers that have no attention.
pub fn state_bytes(c: &ModelConfig) -> u64 {
    delta_geometry(c).map_or(0, |delta| delta.seq_bytes() as u64)
}

/// Sizes of the layers that have no attention.
pub(super) fn delta_geometry(c: &ModelConfig) -> Option<DeltaGeometry> {
    let DeltaNet { key_heads, value_heads, key_dim, value_dim, kernel, tiled } = c.spec.delta_net?;
    let n_layers = c.delta_layers();
    Some(DeltaGeometry { n_layers, key_heads, value_heads, key_dim, value_dim, kernel, tiled })
}

/// Bytes of page tables for `context` tokens.
pub fn table_bytes(c: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    (table_token_bytes(c, options) * context as f64) as u64
}

/// Bytes of host memory that a model needs beside weights and pages: page tables, rings, sums of
/// slots that merge, states of layers without attention, the bit sets of fed tokens, and the
/// workspace of a step.
pub fn host_bytes(c: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let g = geometry(c, options, policy(c, options), options.max_seqs);
    let states = state_bytes(c) * options.max_seqs as u64;
    let rings = size_of::<i32>() * g.n_layers * g.n_lanes() * (g.ring_len() + 1 + g.sums_len());
    let seen = size_of::<u32>() * g.n_seqs * g.seen_words();
    let step = options.max_step.unwrap_or(HOST_STEP).min(context).max(options.max_seqs);
    let rows = options.max_logits.max(options.max_seqs).max(options.drafts.rows);
    let staged = options.drafts.rows * staged_row_bytes(c);
    let logits = size_of::<f32>() * c.vocab * rows;
    let scratch = step_token_bytes(c) * step.max(rows);
    states + table_bytes(c, options, context) + (rings + seen + logits + scratch + staged) as u64
}

/// The most sequences for which tables and workspace leave memory free, and fewer than are asked
/// for. `None` if no number does.
pub fn sequences_that_fit(c: &ModelConfig, options: &EngineOptions, context: usize) -> Option<usize> {
    let memory = options.memory_bytes?;
    let bytes = |max_seqs| {
        let fewer = EngineOptions { max_seqs, ..options.clone() };
        table_bytes(c, &fewer, context) + host_bytes(c, &fewer, 0)
    };
    let (mut fits, mut too_many) = (0, options.max_seqs);
    while fits + 1 < too_many {
        let middle = (fits + too_many) / 2;
        if bytes(middle) < memory { fits = middle } else { too_many = middle }
    }
    (fits > 0).then_some(fits)
}

/// Bytes of a row that is committed later, in all layers.
fn staged_row_bytes(c: &ModelConfig) -> usize {
    let delta = c.spec.delta_net.map_or(0, |d| d.channels() + d.value_width() + 2 * d.value_heads);
    let stored = (0..c.n_layers).map(|layer| c.layer(layer)).filter(LayerKind::stores);
    let attention: usize = stored.map(|kind| c.qkv_width(kind) + c.heads(kind).count).sum();
    size_of::<f32>() * (attention + c.delta_layers() * delta)
}

/// Default tokens of a step on host backends.
const HOST_STEP: usize = 512;

/// Longest context whose dense cache and page tables fit in memory beside the weights and `beside`
/// other bytes.
pub fn longest_context(checkpoint: &Checkpoint, options: &EngineOptions, beside: u64) -> Option<usize> {
    let c = &checkpoint.config;
    let local = local_bytes(c, options.codec);
    let free = kv_budget(checkpoint.weight_bytes + beside + local, None, options.memory_bytes)?;
    let token = dense_token_bytes(c, options.codec) as f64 + table_token_bytes(c, options);
    Some((free as f64 / token) as usize)
}

/// Bytes of free memory that are left to other programs.
pub fn spare_bytes(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(0, |m| SPARE_BYTES.min(m / SPARE_SHARE))
}

/// Bytes available for KV pages: free memory less the `fixed` bytes (weights and workspace),
/// limited by `kv_limit`. `None` if neither is known.
pub fn kv_budget(fixed: u64, kv_limit: Option<u64>, memory_bytes: Option<u64>) -> Option<u64> {
    let free = memory_bytes.map(|m| m.saturating_sub(fixed + spare_bytes(memory_bytes)));
    match (free, kv_limit) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Tokens of a prefill step: the most of `sizes`, halved until the activations take a small share
/// of the memory that is left beside the weights and the expected cache, but not below the fewest.
pub fn step_tokens(checkpoint: &Checkpoint, options: &EngineOptions, sizes: RangeInclusive<usize>) -> usize {
    let Some(free) = kv_budget(checkpoint.weight_bytes, None, options.memory_bytes) else { return *sizes.end() };
    let c = &checkpoint.config;
    let context = options.context.unwrap_or(c.context);
    // A cache that does not fit leaves a little to the workspace all the same: the context gets
    // shorter.
    let cache = (dense_token_bytes(c, options.codec) as f64 * context as f64 / ratio(c, options, context)) as u64;
    let room = free - cache.min(free / 4 * 3);
    let share = |step| if step > LONG_STEP { LONG_STEP_SHARE } else { STEP_SHARE };
    let mut step = *sizes.end();
    while step / 2 >= *sizes.start() && (step * step_token_bytes(c)) as u64 > room / share(step) {
        step /= 2;
    }
    step
}

/// Expected ratio of a dense cache to this one, over `context` tokens.
fn ratio(c: &ModelConfig, options: &EngineOptions, context: usize) -> f64 {
    policy(c, options).expected_ratio(context, c.target_ratio())
}

/// Default context out of `context` tokens: the length that fits in the worst case, or with
/// eviction the length expected to fit, with a margin. A conversation that keeps more than that
/// ends its turn when the cache is full.
pub fn default_context(checkpoint: &Checkpoint, options: &EngineOptions, context: usize) -> usize {
    let c = &checkpoint.config;
    let evicts = options.eviction.unwrap_or(!c.dms.as_ref().is_some_and(|d| d.disabled));
    let plan = plan(checkpoint, options, context, None);
    let policy = policy(c, options);
    match evicts && policy.evicts() {
        true if policy.is_learned() => {
            let budget = kv_budget(checkpoint.weight_bytes + options.workspace_bytes, None, options.memory_bytes);
            let slots = slots_budget(c, options.codec, near_rows(c, options), budget, context);
            let fits = whole_pages(c, options.codec, slots, ratio(c, options, context) / MARGIN, context);
            fits.max(plan.certain_context)
        }
        true => plan.expected_context,
        false => plan.certain_context,
    }
}

/// Share of free host memory that far rows take unasked, and the part of the cache's memory that
/// must be left beside their near rows and index.
const UNASKED_SHARE: u64 = 4;

/// Far rows of a model for which nothing is said about them. Where few layers have attention, what
/// their heads drop is nowhere else: others found facts of long texts lost on models with gated
/// delta nets while the perplexity stayed the same. So these models have far rows if they evict, as
/// many as the whole context needs, in at most a quarter of the `free` host memory, and if the
/// cache has room for those that are near.
pub fn usual_far(
    c: &ModelConfig,
    weight_bytes: u64,
    options: &EngineOptions,
    rule: Far,
    free: u64,
) -> Option<FarOptions> {
    let evicts = options.eviction.unwrap_or(!c.dms.as_ref().is_some_and(|d| d.disabled));
    if c.spec.delta_net.is_none() || c.spec.global_heads.is_some() || !evicts || !policy(c, options).keeps_far() {
        return None;
    }
    let context = options.context.unwrap_or(c.context);
    let limit_bytes = (dense_token_bytes(c, options.codec) * context as u64).min(free / UNASKED_SHARE);
    let far = FarOptions { rule, limit_bytes };
    let with = EngineOptions { far: Some(far), ..options.clone() };
    let budget = kv_budget(weight_bytes, options.kv_limit, options.memory_bytes);
    let left = slots_budget(c, options.codec, near_rows(c, &with), budget, context);
    let has_room = budget.zip(left).is_none_or(|(all, left)| left >= all - all / UNASKED_SHARE);
    has_room.then_some(far)
}

/// The rule of far rows, if the options set one and the policy keeps rows that leave.
fn far(c: &ModelConfig, options: &EngineOptions) -> Option<Far> {
    options.far.map(|far| far.rule).filter(|_| policy(c, options).keeps_far())
}

/// [`Far::near_rows`], where rows that leave are kept: of the longest step, which a prompt's chunks
/// do not exceed.
fn near_rows(c: &ModelConfig, options: &EngineOptions) -> Option<usize> {
    far(c, options).map(|far| far.near_rows(options.max_step.unwrap_or(0)))
}

/// The part of a budget that is left for slots. The rest is for the far rows of one sequence: at
/// most `near` rows of a lane beside its slots, and the index of all.
fn slots_budget(
    c: &ModelConfig,
    codec: Codec,
    near: Option<usize>,
    budget: Option<u64>,
    context: usize,
) -> Option<u64> {
    let rows = near.unwrap_or(0).min(context);
    let index = near.map_or(0, |_| index_bytes(c, context));
    budget.map(|bytes| bytes.saturating_sub(rows as u64 * dense_token_bytes(c, codec) + index))
}

/// Bytes of the index of far pages of a sequence of that many tokens that have all left.
fn index_bytes(c: &ModelConfig, context: usize) -> u64 {
    let page: usize = c.lanes().filter(LayerLanes::decides).map(|l| l.heads.count * Index::bytes(l.heads.dim)).sum();
    (page * context.div_ceil(Far::ROWS)) as u64
}

/// Bytes that the cache's pages leave to others: weights, workspace, and the index of far pages.
pub fn fixed_bytes(checkpoint: &Checkpoint, options: &EngineOptions, context: usize) -> u64 {
    let c = &checkpoint.config;
    let index = far(c, options).map_or(0, |_| index_bytes(c, context));
    checkpoint.weight_bytes + options.workspace_bytes + index
}

/// Tokens of `context` that fit into a budget at a compression ratio, in whole pages of all lanes.
fn whole_pages(c: &ModelConfig, codec: Codec, budget: Option<u64>, ratio: f64, context: usize) -> usize {
    let page_row = (dense_token_bytes(c, codec) * PAGE_SLOTS as u64) as f64;
    let tokens = |bytes: u64| ((bytes as f64 * ratio / page_row) as usize).saturating_mul(PAGE_SLOTS);
    let local = local_bytes(c, codec);
    budget.map_or(context, |bytes| tokens(bytes.saturating_sub(local)).min(context))
}

/// Plans memory for `context` tokens. If the free memory is unknown, everything is assumed to fit.
/// Mapped weights count fully, because they must stay resident.
pub fn plan(checkpoint: &Checkpoint, options: &EngineOptions, context: usize, kv_limit: Option<u64>) -> Plan {
    let c = &checkpoint.config;
    let (token, local) = (dense_token_bytes(c, options.codec), local_bytes(c, options.codec));
    let budget = kv_budget(checkpoint.weight_bytes + options.workspace_bytes, kv_limit, options.memory_bytes);
    let ratio = ratio(c, options, context);
    let plan = Plan {
        weight_bytes: checkpoint.weight_bytes,
        workspace_bytes: options.workspace_bytes,
        dense_kv_bytes: token * context as u64 + local,
        expected_kv_bytes: (token as f64 * context as f64 / ratio) as u64 + local,
        ..Plan::default()
    };
    with_budget(plan, c, (options.codec, &policy(c, options), near_rows(c, options)), context, budget)
}

/// The plan with this many bytes for the cache, of which each lane has so many [near
/// rows](Far::near_rows) if rows that leave are kept.
pub fn with_budget(
    plan: Plan,
    c: &ModelConfig,
    (codec, policy, near): (Codec, &Policy, Option<usize>),
    context: usize,
    budget: Option<u64>,
) -> Plan {
    let slots = slots_budget(c, codec, near, budget, context);
    let fits = |ratio: f64| whole_pages(c, codec, slots, ratio, context);
    Plan {
        kv_budget_bytes: budget,
        certain_context: fits(1.0),
        expected_context: match policy.budget() {
            // A lane stops growing at its budget.
            Some(Budget::Slots(slots)) if fits(1.0) < slots.min(context) => fits(1.0),
            _ => fits(policy.expected_ratio(context, c.target_ratio())),
        },
        ..plan
    }
}

/// What of a model would fit into memory, from its configuration alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub weights: Weights,
    pub weight_bytes: u64,
    pub codec: Codec,
    /// Tokens that fit in the worst case, and as many as are expected to fit with the eviction that
    /// the model was trained for.
    pub context: usize,
    pub expected_context: usize,
}

/// Estimates a start before a download, with the choices of one: the first of `formats`, which are
/// names and bytes of the weights, with which a usual context is expected to fit, and then the
/// first such codec; else the last. `None` if no token would fit.
pub fn estimate(c: &ModelConfig, formats: &[(Weights, u64)], codecs: &[Codec], memory_bytes: u64) -> Option<Estimate> {
    let native = c.usual_context();
    let goal = native.min(USUAL_CONTEXT);
    let room = |bytes: u64, codec: Codec| {
        let options = EngineOptions::new(codec);
        let beside = host_bytes(c, &options, goal);
        let budget = kv_budget(bytes + beside, None, Some(memory_bytes));
        let fit = |ratio| whole_pages(c, codec, budget, ratio, native);
        (fit(1.0), fit(ratio(c, &options, native).max(1.0)))
    };
    let is_enough = |bytes: u64, codec: Codec| room(bytes, codec).1 >= goal;
    let usual = *codecs.first()?;
    let format = formats.iter().find(|(_, bytes)| is_enough(*bytes, usual)).or(formats.last());
    let &(weights, weight_bytes) = format?;
    let codec = *codecs.iter().find(|codec| is_enough(weight_bytes, **codec)).or(codecs.last())?;
    let (context, expected_context) = room(weight_bytes, codec);
    (context > 0).then_some(Estimate { weights, weight_bytes, codec, context, expected_context })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    /// The estimate makes the choices of a start, and leaves no more room than one.
    #[test]
    fn an_estimate_chooses_as_a_start_does() {
        let c = Checkpoint::shape("smollm2-135m").unwrap();
        let formats = [(Weights::Bf16, 269_000_000), (Weights::Int8, 143_000_000), (Weights::Int4, 90_000_000)];
        let at = |mb: u64| estimate(&c, &formats, &[Codec::F32, Codec::Fp8], mb * 1_000_000);
        let all: Vec<_> = (0..250).map(|n| n * 10).filter_map(|mb| Some((mb, at(mb)?))).collect();
        assert!(all[0].0 > 90 && all.is_sorted_by_key(|(_, found)| std::cmp::Reverse(found.weights as usize)));
        let found = |weights| all.iter().find(|(_, found)| found.weights == weights).unwrap().1;
        // A smaller codec where 4 bits are not enough; else the whole context, with which a format
        // was chosen.
        assert_eq!(found(Weights::Int4).codec, Codec::Fp8);
        for weights in [Weights::Int8, Weights::Bf16] {
            assert_eq!((found(weights).codec, found(weights).expected_context), (Codec::F32, c.context), "{weights}");
        }
        assert_eq!(at(90), None);
        let evicting = Checkpoint::shape("qwen3-8b").unwrap();
        let found = estimate(&evicting, &[(Weights::Int4, 4_700_000_000)], &[Codec::Bf16], 7 << 30).unwrap();
        assert_eq!(found.expected_context, (8 * found.context).min(evicting.context) / PAGE_SLOTS * PAGE_SLOTS);
    }

    #[test]
    fn what_fits_is_counted_in_whole_pages() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions::new(Codec::F32);
        // 32 lanes x 16 slots x 516 bytes are 264,192 bytes: three times in 1 MiB.
        assert_eq!(plan(&checkpoint, &options, 8192, Some(1 << 20)).certain_context, 48);
        // Far rows come first: two far pages, the page that is filling, a block of a prompt, and
        // the index, for each page 32 lanes x 64 channels in four bits, and a scale.
        let far = Some(FarOptions { rule: Far { pages: 2 }, limit_bytes: u64::MAX });
        let near = (3 * 32 + 2048) * dense_token_bytes(&checkpoint.config, Codec::F32) + 8192 / 32 * 32 * 36;
        let of_step = |max_step, bytes| {
            let options = EngineOptions { far, max_step, ..options.clone() };
            let plan = plan(&checkpoint, &options, 8192, Some(bytes));
            (plan.certain_context, plan.kv_budget_bytes)
        };
        assert_eq!(of_step(None, (1 << 20) + near), (48, Some((1 << 20) + near)));
        // Longer steps make longer blocks.
        let more = near + 2048 * dense_token_bytes(&checkpoint.config, Codec::F32);
        assert_eq!(of_step(Some(512), (1 << 20) + near), of_step(None, (1 << 20) + near));
        assert_eq!(of_step(Some(4096), (1 << 20) + more), (48, Some((1 << 20) + more)));
        // No page takes the memory of the index.
        let options = EngineOptions { far, workspace_bytes: 7, ..EngineOptions::new(Codec::F32) };
        assert_eq!(fixed_bytes(&checkpoint, &options, 8192), checkpoint.weight_bytes + 7 + 8192 / 32 * 32 * 36);
    }

    /// Models with gated delta nets have far rows unasked, if they evict and there is room.
    #[test]
    fn only_hybrids_that_evict_have_far_rows_unasked() {
        let (rule, window) = (Far { pages: 16 }, PolicyKind::Window.with(Budget::Slots(512)));
        let options = EngineOptions { policy: window, context: Some(65_536), ..EngineOptions::new(Codec::Bf16) };
        let hybrid = Checkpoint::shape("qwen3.5-9b").unwrap();
        let of = |c: &ModelConfig, options: &EngineOptions, free| usual_far(c, 0, options, rule, free);
        let all = dense_token_bytes(&hybrid, Codec::Bf16) * 65_536;
        assert_eq!(of(&hybrid, &options, u64::MAX), Some(FarOptions { rule, limit_bytes: all }));
        assert_eq!(of(&hybrid, &options, all), Some(FarOptions { rule, limit_bytes: all / 4 }));
        let with = |change: &dyn Fn(&mut EngineOptions)| {
            let mut options = options.clone();
            change(&mut options);
            of(&hybrid, &options, all).is_some()
        };
        assert!(!with(&|o| o.eviction = Some(false)) && !with(&|o| o.policy = PolicyKind::Dense.into()));
        // The near rows may take a quarter of the cache.
        let rows = rule.near_rows(0) as u64 * dense_token_bytes(&hybrid, Codec::Bf16);
        assert!(with(&|o| o.kv_limit = Some(5 * rows)) && !with(&|o| o.kv_limit = Some(4 * rows)));
        assert_eq!(of(&Checkpoint::shape("qwen3-8b").unwrap(), &options, all), None);
    }

    #[test]
    fn a_default_context_counts_on_eviction_with_a_margin_and_a_step_on_what_is_left() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let ratio = checkpoint.config.dms.as_ref().and_then(|d| d.target_ratio).expect("the shape is of a DMS model");
        let c = &checkpoint.config;
        // Room for 1,600 tokens of a dense cache.
        let room = 1600 * dense_token_bytes(c, Codec::Int8);
        let memory_bytes = Some(checkpoint.weight_bytes + room + SPARE_BYTES);
        let options = EngineOptions { memory_bytes, ..EngineOptions::new(Codec::Int8) };
        let tokens = |options: &EngineOptions| default_context(&checkpoint, options, 1 << 20);
        let spare = SPARE_BYTES - spare_bytes(memory_bytes);
        let dense = (room + spare) as f64 / dense_token_bytes(c, Codec::Int8) as f64;
        let close = |tokens: usize, wanted: f64| (tokens as f64 - wanted).abs() <= 2.0 * PAGE_SLOTS as f64;
        assert!(close(tokens(&options), dense * ratio / MARGIN));
        assert!(close(tokens(&EngineOptions { eviction: Some(false), ..options.clone() }), dense));
        assert_eq!(default_context(&checkpoint, &options, 64), 64);
        // The step halves until it is a small share of the remaining memory, and stops at the
        // minimum.
        let step = |memory: u64| {
            let memory_bytes = Some(checkpoint.weight_bytes + memory);
            step_tokens(&checkpoint, &EngineOptions { memory_bytes, ..options.clone() }, 128..=4096)
        };
        assert_eq!((step(64 << 30), step(1 << 20)), (4096, 128));
        // Twice as long a step needs 16 times as much as the longest usual one.
        let usual = (LONG_STEP * step_token_bytes(c)) as u64 * STEP_SHARE;
        let cache = |memory: u64| (dense_token_bytes(c, Codec::Int8) as f64 * c.context as f64 / ratio) as u64 + memory;
        assert_eq!((step(cache(2 * usual)), step(cache(17 * usual))), (2048, 4096));
        assert_eq!(step_tokens(&checkpoint, &EngineOptions::new(Codec::Bf16), 128..=4096), 4096);
    }
}
