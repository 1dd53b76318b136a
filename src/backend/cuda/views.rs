//! The view of the KV tables that kernels get. Where heads differ by layer, a view has those of one
//! kind of layers, and what works on all layers is launched once for each kind.

use super::super::{KvGeometry, KvTables};
use super::abi::{self, layers};
use super::far_rows::FarRows;
use super::gpu::Cuda;
use super::kinds::Kind;
use crate::policy::{Budget, History, Policy, Scope, Shift};

/// The tables, with heads and rows of the widest heads where layers differ: for what does not
/// depend on them.
pub(super) fn view(kv: &KvTables<Cuda>) -> abi::Kv {
    view_by(kv, &kv.geometry, layers::ALL)
}

/// The tables with the heads and rows of a layer, for a launch over layers of its kind.
pub(super) fn view_of(kv: &KvTables<Cuda>, layer: usize) -> abi::Kv {
    let (g, kind) = (&kv.geometry, Kind::of(&kv.geometry, layer));
    let layers_of = match (g.heads, kind) {
        (None, _) => layers::ALL,
        (_, Kind::Local) => layers::LOCAL,
        (_, Kind::Other) => layers::OTHERS,
    };
    abi::Kv { staged: kv.pool.staged_of(g, kind), ..view_by(kv, &g.of_layer(layer), layers_of) }
}

fn view_by(kv: &KvTables<Cuda>, g: &KvGeometry, layers_of: i32) -> abi::Kv {
    let (local, local_window) = g.local.bits();
    let (page, rule) = (g.page(), g.policy.rule());
    let sides = |at: usize| if page.has_sides() { at as i32 } else { 0 };
    let [code_factor, code_shift, code_bits] = g.codec.byte_codes();
    let [near, near_rows, recent] = kv.pool.far.as_ref().map_or([0; 3], FarRows::tables);
    abi::Kv {
        pages: kv.pool.base(),
        table: kv.page_table.ptr(),
        live: kv.live.ptr(),
        ring: kv.ring.ptr(),
        seq_len: kv.seq_len.ptr(),
        eviction: kv.eviction.ptr(),
        slots: kv.slots.ptr(),
        refs: kv.pool.refs.ptr(),
        free_list: kv.pool.free_list.ptr(),
        returned: kv.pool.returned.ptr(),
        counts: kv.pool.counts.ptr(),
        staged: kv.pool.staged.ptr(),
        reads: kv.reads.ptr(),
        peak: kv.peak.ptr(),
        dial: kv.dial.ptr(),
        pinned: kv.pinned.ptr(),
        stride: kv.pool.stride as u64,
        n_layers: g.n_layers as i32,
        n_q_heads: g.n_q_heads as i32,
        n_kv_heads: g.n_kv_heads as i32,
        head_dim: g.head_dim as i32,
        n_seqs: g.n_seqs as i32,
        max_pages: g.max_pages as i32,
        k_bytes: page.slot.k_bytes as i32,
        v_bytes: page.slot.v_bytes as i32,
        v_at: page.v_at as i32,
        k_sides_at: sides(page.k_side_at),
        v_sides_at: sides(page.v_side_at),
        meta_at: page.meta_at as i32,
        evicts: rule.is_some() as i32,
        window: rule.map_or(0, |r| r.window as i32),
        previous: rule.is_some_and(|r| r.shift == Shift::Previous) as i32,
        sinks: rule.map_or(0, |r| r.sinks as i32),
        policy: policy_bits(&g.policy),
        budget: budget(&g.policy),
        score: if g.policy.scored().is_some() { kv.score.ptr() } else { 0 },
        local,
        local_window: local_window as i32,
        ring_len: g.ring_len() as i32,
        code_factor,
        code_shift,
        code_bits,
        table_heads: g.most_heads() as i32,
        layers_of,
        unused: 0,
        near,
        near_rows,
        recent,
    }
}

/// Behaviour of a policy other than the eviction rule, as bits for the kernels.
fn policy_bits(policy: &Policy) -> i32 {
    let mut bits = if policy.quest().is_some() { abi::policy::READS_PAGES } else { 0 };
    if let Some(rule) = policy.scored() {
        let of = |bit, set: bool| if set { bit } else { 0 };
        bits |= abi::policy::SCORES;
        bits |= of(abi::policy::BY_LAYER, rule.scope == Scope::Layer);
        bits |= of(abi::policy::SUMS_SCORES, rule.history == History::Sum);
        bits |= of(abi::policy::KEEPS_NEWEST, rule.keeps_newest);
        bits |= of(abi::policy::BY_DECISION, rule.uses_decisions());
    }
    bits
}

/// A policy's budget as kernels take it: `budget_at` in `kv.cuh`.
fn budget(policy: &Policy) -> i32 {
    let bounded = |n: usize| n.min(i32::MAX as usize) as i32;
    match policy.budget() {
        None => 0,
        Some(Budget::Slots(slots)) => bounded(slots),
        Some(Budget::Ratio(units)) => -bounded(units as usize),
    }
}
