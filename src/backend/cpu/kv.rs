//! Placement, storing and bookkeeping of slots on the CPU, token after token: the reference for
//! parallel forms of the same.

use super::super::{KvGeometry, KvTables, Span};
use super::{Acts, Cpu};
use crate::policy::{Placement, Policy, Shift, SlotMeta};
use std::ops::Range;

/// Where the parts of a page lie, in bytes.
#[derive(Clone, Copy)]
pub(super) struct PageLayout {
    pub row_bytes: usize,
    page_slots: usize,
    has_scale: bool,
}

impl PageLayout {
    pub fn new(g: &KvGeometry) -> Self {
        Self { row_bytes: g.codec.row_bytes(g.head_dim), page_slots: g.page_slots, has_scale: g.codec.has_scale() }
    }

    /// All K rows of a page.
    pub fn k_rows(&self) -> Range<usize> {
        0..self.page_slots * self.row_bytes
    }

    pub fn v_rows(&self) -> Range<usize> {
        let len = self.page_slots * self.row_bytes;
        len..2 * len
    }

    pub fn k(&self, row: usize) -> Range<usize> {
        row * self.row_bytes..(row + 1) * self.row_bytes
    }

    pub fn v(&self, row: usize) -> Range<usize> {
        let at = (self.page_slots + row) * self.row_bytes;
        at..at + self.row_bytes
    }

    fn k_scale(&self, row: usize) -> Range<usize> {
        let at = 2 * self.page_slots * self.row_bytes + 4 * row;
        at..at + 4
    }

    fn v_scale(&self, row: usize) -> Range<usize> {
        let at = self.k_scale(row).start + 4 * self.page_slots;
        at..at + 4
    }

    pub fn scales(&self, page: &[u8], row: usize) -> (f32, f32) {
        if !self.has_scale {
            return (1.0, 1.0);
        }
        let at = |r: Range<usize>| f32::from_le_bytes(page[r].try_into().expect("four bytes"));
        (at(self.k_scale(row)), at(self.v_scale(row)))
    }

    pub fn has_scale(&self) -> bool {
        self.has_scale
    }

    /// Scales of all K rows and of all V rows.
    pub fn all_scales<'a>(&self, page: &'a [u8]) -> (&'a [f32], &'a [f32]) {
        let at = self.k_scale(0).start;
        bytemuck::cast_slice(&page[at..at + 8 * self.page_slots]).split_at(self.page_slots)
    }

    /// Metadata of the first `n` rows.
    pub fn metas<'a>(&self, page: &'a [u8], n: usize) -> impl Iterator<Item = SlotMeta> + use<'a> {
        let at = self.meta_range(0).start;
        page[at..at + 4 * n].chunks_exact(4).map(|c| SlotMeta(i32::from_le_bytes([c[0], c[1], c[2], c[3]])))
    }

    fn meta_range(&self, row: usize) -> Range<usize> {
        let scales = if self.has_scale { 8 * self.page_slots } else { 0 };
        let at = 2 * self.page_slots * self.row_bytes + scales + 4 * row;
        at..at + 4
    }

    pub fn meta(&self, page: &[u8], row: usize) -> SlotMeta {
        SlotMeta(i32::from_le_bytes(page[self.meta_range(row)].try_into().expect("four bytes")))
    }

    fn set_meta(&self, page: &mut [u8], row: usize, meta: SlotMeta) {
        page[self.meta_range(row)].copy_from_slice(&meta.0.to_le_bytes());
    }
}

/// One lane's part of the tables, with the pool it takes pages from.
struct Lane<'a> {
    layout: PageLayout,
    page_slots: usize,
    pages: &'a mut [i32],
    live: &'a mut i32,
    ring: &'a mut [i32],
    pool: &'a mut super::Pool,
}

impl<'a> Lane<'a> {
    fn of(kv: &'a mut KvTables<Cpu>, layer: usize, seq: usize, head: usize) -> Self {
        let g = &kv.geometry;
        let (row, ring_len) = (g.row(layer, seq, head), g.policy.ring_len());
        Self {
            layout: PageLayout::new(g),
            page_slots: g.page_slots,
            pages: &mut kv.page_table[row * g.max_pages..(row + 1) * g.max_pages],
            live: &mut kv.live[row],
            ring: &mut kv.ring[row * ring_len..(row + 1) * ring_len],
            pool: &mut kv.pool,
        }
    }

    fn meta(&self, slot: usize) -> SlotMeta {
        self.layout.meta(self.pool.page(self.pages[slot / self.page_slots]), slot % self.page_slots)
    }

    /// The page of `slot`, fit to be written: never one that another sequence holds too.
    fn own_page(&mut self, slot: usize) -> &mut [u8] {
        let entry = &mut self.pages[slot / self.page_slots];
        *entry = self.pool.make_unique(*entry);
        self.pool.page_mut(*entry)
    }

    fn set_meta(&mut self, slot: usize, meta: SlotMeta) {
        let (layout, row) = (self.layout, slot % self.page_slots);
        layout.set_meta(self.own_page(slot), row, meta);
    }

    fn append(&mut self) -> usize {
        let slot = *self.live as usize;
        if slot.is_multiple_of(self.page_slots) {
            self.pages[slot / self.page_slots] = self.pool.take();
        }
        *self.live += 1;
        slot
    }

    fn held_pages(&self) -> usize {
        (*self.live as usize).div_ceil(self.page_slots)
    }

    fn clear(&mut self) {
        for entry in &mut self.pages[..(*self.live as usize).div_ceil(self.page_slots)] {
            self.pool.release(std::mem::replace(entry, -1));
        }
        *self.live = 0;
    }
}

pub(super) fn place(kv: &mut KvTables<Cpu>, decisions: &[f32], layer: usize, spans: &[Span]) {
    let heads = kv.geometry.n_kv_heads;
    let mut slots = std::mem::take(&mut kv.slots);
    for span in spans {
        for head in 0..heads {
            place_lane(kv, &mut slots, decisions, layer, span, head);
        }
    }
    kv.slots = slots;
}

fn place_lane(kv: &mut KvTables<Cpu>, slots: &mut [i32], decisions: &[f32], layer: usize, span: &Span, head: usize) {
    let (policy, heads) = (kv.geometry.policy, kv.geometry.n_kv_heads);
    let base = kv.seq_len[span.seq] as usize;
    let eviction = kv.eviction[span.seq] != 0;
    let mut lane = Lane::of(kv, layer, span.seq, head);
    for i in 0..span.len {
        let (n, at) = (base + i, (span.start + i) * heads + head);
        let Policy::Dms(dms) = policy else {
            let slot = lane.append();
            lane.set_meta(slot, SlotMeta::new(n, false));
            slots[at] = slot as i32;
            continue;
        };
        let ring_len = dms.ring_len();
        let marks = decisions[at] > 0.0;
        if dms.shift == Shift::Previous && marks && n > 0 {
            let previous = lane.ring[(n - 1) % ring_len] as usize;
            let meta = lane.meta(previous).mark();
            lane.set_meta(previous, meta);
        }
        let leaving = (n >= ring_len).then(|| {
            let slot = lane.ring[n % ring_len] as usize;
            (slot, lane.meta(slot).marked())
        });
        let slot = match policy.place(leaving, eviction) {
            Placement::Append => lane.append(),
            Placement::Overwrite(slot) => {
                // A token of this very step that held the slot is superseded before it is stored.
                if i >= ring_len {
                    slots[(span.start + i - ring_len) * heads + head] = -1;
                }
                slot
            }
        };
        lane.set_meta(slot, SlotMeta::new(n, dms.shift == Shift::Same && marks));
        lane.ring[n % ring_len] = slot as i32;
        slots[at] = slot as i32;
    }
}

pub(super) fn store(kv: &mut KvTables<Cpu>, qkv: &Acts, layer: usize, spans: &[Span]) {
    let g = kv.geometry;
    let (layout, d, heads) = (PageLayout::new(&g), g.head_dim, g.n_kv_heads);
    for span in spans {
        for i in span.start..span.start + span.len {
            let (k, v) = qkv.row(i)[g.n_q_heads * d..].split_at(heads * d);
            for head in 0..heads {
                let slot = kv.slots[i * heads + head];
                if slot < 0 {
                    continue;
                }
                let (entry, row) = (slot as usize / g.page_slots, slot as usize % g.page_slots);
                let page = kv.page_table[g.row(layer, span.seq, head) * g.max_pages + entry];
                let page = kv.pool.page_mut(page);
                let range = head * d..(head + 1) * d;
                let k_scale = g.codec.encode(&k[range.clone()], &mut page[layout.k(row)]);
                let v_scale = g.codec.encode(&v[range], &mut page[layout.v(row)]);
                if layout.has_scale {
                    page[layout.k_scale(row)].copy_from_slice(&k_scale.to_le_bytes());
                    page[layout.v_scale(row)].copy_from_slice(&v_scale.to_le_bytes());
                }
            }
        }
    }
}

pub(super) fn fork(kv: &mut KvTables<Cpu>, from: usize, to: usize) {
    let g = kv.geometry;
    let ring_len = g.policy.ring_len();
    assert_eq!(kv.seq_len[to], 0, "fork into a sequence that is not empty");
    for layer in 0..g.n_layers {
        for head in 0..g.n_kv_heads {
            let (a, b) = (g.row(layer, from, head), g.row(layer, to, head));
            kv.page_table.copy_within(a * g.max_pages..(a + 1) * g.max_pages, b * g.max_pages);
            kv.ring.copy_within(a * ring_len..(a + 1) * ring_len, b * ring_len);
            kv.live[b] = kv.live[a];
            let lane = Lane::of(kv, layer, to, head);
            for entry in &lane.pages[..lane.held_pages()] {
                lane.pool.share(*entry);
            }
        }
    }
    kv.seq_len[to] = kv.seq_len[from];
    kv.eviction[to] = kv.eviction[from];
}

pub(super) fn release(kv: &mut KvTables<Cpu>, seq: usize) {
    for layer in 0..kv.geometry.n_layers {
        for head in 0..kv.geometry.n_kv_heads {
            Lane::of(kv, layer, seq, head).clear();
        }
    }
    kv.seq_len[seq] = 0;
}

pub(super) fn compact(kv: &mut KvTables<Cpu>, seq: usize) {
    let g = kv.geometry;
    let Policy::Dms(dms) = g.policy else { return };
    let n = kv.seq_len[seq] as usize;
    for layer in 0..g.n_layers {
        for head in 0..g.n_kv_heads {
            let mut lane = Lane::of(kv, layer, seq, head);
            let kept: Vec<usize> = (0..*lane.live as usize)
                .filter(|&slot| {
                    let meta = lane.meta(slot);
                    !meta.marked() || n - 1 - meta.position() <= dms.window
                })
                .collect();
            if kept.len() < *lane.live as usize {
                compact_lane(&mut lane, &kept, n.saturating_sub(dms.ring_len()));
            }
        }
    }
}

/// Reads the survivors out before it takes pages for them, so that no page is needed beyond those
/// the lane already has.
fn compact_lane(lane: &mut Lane<'_>, kept: &[usize], window_start: usize) {
    let (layout, page_slots, ring_len) = (lane.layout, lane.page_slots, lane.ring.len());
    let rows: Vec<SlotBytes> = kept
        .iter()
        .map(|&slot| {
            let page = lane.pool.page(lane.pages[slot / page_slots]);
            let row = slot % page_slots;
            SlotBytes {
                k: page[layout.k(row)].to_vec(),
                v: page[layout.v(row)].to_vec(),
                scales: layout.scales(page, row),
                meta: layout.meta(page, row),
            }
        })
        .collect();
    // Pages that only this lane holds come back as it clears them; shared ones stay with the
    // other holder, and the host has reserved as many.
    lane.clear();
    for bytes in rows {
        let slot = lane.append();
        let row = slot % page_slots;
        let page = lane.own_page(slot);
        page[layout.k(row)].copy_from_slice(&bytes.k);
        page[layout.v(row)].copy_from_slice(&bytes.v);
        if layout.has_scale {
            page[layout.k_scale(row)].copy_from_slice(&bytes.scales.0.to_le_bytes());
            page[layout.v_scale(row)].copy_from_slice(&bytes.scales.1.to_le_bytes());
        }
        layout.set_meta(page, row, bytes.meta);
        // Slots are not in order of position: an older token must not take a newer one's place.
        if bytes.meta.position() >= window_start {
            lane.ring[bytes.meta.position() % ring_len] = slot as i32;
        }
    }
}

struct SlotBytes {
    k: Vec<u8>,
    v: Vec<u8>,
    scales: (f32, f32),
    meta: SlotMeta,
}

pub(super) fn slot_metas(kv: &KvTables<Cpu>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
    let g = &kv.geometry;
    let (row, layout) = (g.row(layer, seq, head), PageLayout::new(g));
    (0..kv.live[row] as usize)
        .map(|slot| {
            let page = kv.page_table[row * g.max_pages + slot / g.page_slots];
            layout.meta(kv.pool.page(page), slot % g.page_slots)
        })
        .collect()
}
