//! The choice of the pages that a decode step reads, by bounds on their keys: `policy::Quest`.

use super::super::super::{KvTables, Span};
use super::super::Cpu;
use super::super::thread_pool::Tile;
use super::call::Call;
use super::plan::{Chosen, Group};
use crate::policy::{Quest, choose as choose_pages, upper_bound};

#[cfg(test)]
mod tests;

impl Chosen {
    fn of_page(&self, page: usize) -> Option<&[bool]> {
        (!self.pages.is_empty()).then(|| &self.pages[page * self.q_heads..][..self.q_heads])
    }

    /// Whether no head reads a page.
    pub fn skips(&self, page: usize) -> bool {
        self.of_page(page).is_some_and(|heads| !heads.contains(&true))
    }

    /// Whether some page may be skipped.
    pub fn is_choice(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Masks in the scores of a page's slots the rows of heads that do not read it.
    pub fn hide(&self, page: usize, scores: &mut Tile<'_>) {
        let Some(heads) = self.of_page(page) else { return };
        for (r, _) in heads.iter().enumerate().filter(|(_, reads)| !**reads) {
            scores.row_mut(r).fill(f32::NEG_INFINITY);
        }
    }

    /// The choice for the one token of a span.
    fn new(call: &Call<'_>, quest: &Quest, group: &Group) -> Self {
        let (g, span, live) = (call.geometry, &call.spans[group.span], call.live(group));
        let (d, q_heads) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
        // The page at which the lane grows: the newest token's page, if no slot is overwritten.
        let newest = live / g.page_slots;
        let reads = quest.pages(call.base(span) + 1, g.page_slots);
        let mut chosen = Self { q_heads, ..Self::default() };
        if newest + 1 > reads && !quest.is_dense(call.layer, g.n_layers) {
            chosen.pages.resize(live.div_ceil(g.page_slots) * q_heads, false);
            chosen.pages[newest * q_heads..].fill(true);
            let mut bounds = vec![0.0; q_heads * newest];
            let mut limits = [vec![0.0; d], vec![0.0; d]];
            for page in 0..newest {
                let stored = call.layout.bounds(call.page(group, page * g.page_slots));
                for (limits, stored) in limits.iter_mut().zip(stored) {
                    let values = stored.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16));
                    limits.iter_mut().zip(values).for_each(|(limit, value)| *limit = value);
                }
                for (head, query) in call.queries(group, 0).chunks_exact(d).enumerate() {
                    bounds[head * newest + page] = upper_bound(query, &limits[0], &limits[1]);
                }
            }
            let mut order = Vec::with_capacity(newest);
            for (head, bounds) in bounds.chunks_exact(newest).enumerate() {
                choose_pages(bounds, reads - 1, &mut order, |page| chosen.pages[page * q_heads + head] = true);
            }
        }
        chosen.keys = 1 + chosen.stored_keys(call, group, live);
        chosen
    }

    /// Stored keys that some head reads.
    fn stored_keys(&self, call: &Call<'_>, group: &Group, live: usize) -> usize {
        let span = &call.spans[group.span];
        let page_slots = call.geometry.page_slots;
        let read = (0..live).step_by(page_slots).filter(|start| !self.skips(start / page_slots));
        let filled = |start: usize| page_slots.min(live - start);
        let Some(rule) = call.rule(span) else { return read.map(filled).sum() };
        let visible = |page: &[u8], row: usize| {
            let meta = call.layout.meta(page, row);
            let marked = call.stored_mark(&rule, span, group.head, meta);
            rule.visible(call.base(span), meta.position(), marked)
        };
        let in_page = |start: usize| {
            let page = call.page(group, start);
            (0..filled(start)).filter(|&row| visible(page, row)).count()
        };
        read.map(in_page).sum()
    }
}

/// Chooses what each group reads, where the policy reads pages.
pub(super) fn choose(cpu: &Cpu, call: &Call<'_>, groups: &mut [Group]) {
    let Some(quest) = call.geometry.policy.quest() else { return };
    let n = groups.len();
    cpu.thread_pool.tiles(&mut Tile::new(groups, n, 1), 1, 1, |_, tile| {
        let group = &mut tile.row_mut(0)[0];
        if call.spans[group.span].len == 1 {
            group.chosen = Chosen::new(call, &quest, group);
        }
    });
}

/// Adds what the last call read to the counters of its sequences.
pub(in super::super) fn count_reads(cpu: &Cpu, kv: &mut KvTables<Cpu>, spans: &[Span]) {
    if kv.geometry.policy.quest().is_none() {
        return;
    }
    for group in &cpu.plan().groups {
        kv.reads[spans[group.span].seq] += group.chosen.keys as u64;
    }
}
