//! A sequence as bytes, layer by layer, to be stored outside the device and restored exactly: the
//! same slots in the same order, with their marks. The image of a layer with attention is
//!
//! ```text
//! | u32 layer | heads x i32 live | heads x ring_len x i32 ring | heads x sums_len x f32 sums | pages of head 0 | ... | scores |
//! ```
//!
//! in the machine's byte order. Scores are f32, one for each row of each page, where the policy has
//! them; so are the sums of a lane's newest slot. Rows of a page beyond the lane's slots, ring
//! entries of positions that do not exist, and sums of an empty lane are zero. The numbers of K and
//! V are finite. An image comes from outside: only [`LayerCheck`] makes the [`CheckedLayer`] that
//! [`KvCache::import_layer`] takes, of nothing that a lane of such a sequence could not hold.
//! Images of [`state`](super::state) follow them, then those of [far rows](super::far_image), of
//! which the second half may be imported later.

use super::far_image::{self, FarImage, FarRest, RestError, require};
use super::state::{self, LAYER_BYTES};
use super::{CacheError, KvCache, SeqId};
use crate::backend::{Backend, KvGeometry};
use crate::policy::{MOST_MEMBERS, Policy, Scope};
use crate::protocol::Token;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// State of a sequence beside its layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeqHead {
    /// Number of tokens fed.
    pub len: usize,
    pub eviction: bool,
    /// See [`KvCache::dial`] and [`KvCache::pins`].
    pub dial: f32,
    pub pins: Vec<Range<usize>>,
    /// As in [`SeqStats`](super::SeqStats).
    pub reads: u64,
    pub peak: u32,
}

/// Why an image was refused.
#[derive(Debug, thiserror::Error)]
#[error("layer {layer}: {what}")]
pub struct InvalidImage {
    layer: usize,
    what: &'static str,
}

/// Checks images of the layers of a sequence, on any thread.
#[derive(Clone, Copy, Debug)]
pub struct LayerCheck {
    g: KvGeometry,
    len: usize,
}

/// The image of a layer that a sequence of a cache could have.
#[derive(Default)]
pub struct CheckedLayer {
    layer: usize,
    /// Stored slots of each lane, and the rings of all lanes.
    live: Vec<i32>,
    rings: Vec<i32>,
    /// Sums of the newest slot of each lane, if the policy has them.
    sums: Vec<f32>,
    /// Scores of each row of each page, if the policy has them.
    scores: Vec<f32>,
    /// All that the image of a state has.
    state: Vec<f32>,
    /// All that an image of far rows has, but for their blocks.
    far: Option<FarImage>,
    bytes: Vec<u8>,
}

impl CheckedLayer {
    /// The image's memory, for another one.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Bytes of the tables in a layer's image, before its pages.
fn table_bytes(g: &KvGeometry) -> usize {
    LAYER_BYTES + g.n_kv_heads * ((1 + g.ring_len()) * size_of::<i32>() + g.sums_len() * size_of::<f32>())
}

/// Bytes of a page with the scores of its rows.
fn page_bytes(g: &KvGeometry) -> usize {
    g.page_bytes() + score_rows(g) * size_of::<f32>()
}

/// Scores of a page.
fn score_rows(g: &KvGeometry) -> usize {
    if g.policy.scored().is_some() { g.page_slots } else { 0 }
}

/// Whether these are sums of a slot: positive weights of a number of tokens that a slot can have.
fn are_sums(sums: &[f32]) -> bool {
    let (weight, tokens) = (sums[sums.len() - 2], sums[sums.len() - 1]);
    weight > 0.0 && tokens.fract() == 0.0 && (1.0..=MOST_MEMBERS as f32).contains(&tokens)
}

impl<B: Backend> KvCache<B> {
    /// State of a sequence, and the bytes of each layer's image. Waits for the device.
    pub fn head(&self, b: &B, seq: SeqId) -> (SeqHead, Vec<u64>) {
        let (g, stats) = (self.geometry(), self.stats(b, seq));
        let bytes = |(layer, lanes): (usize, &Vec<u32>)| {
            let own = g.of_layer(layer);
            let pages: usize = lanes.iter().map(|&live| (live as usize).div_ceil(own.page_slots)).sum();
            (table_bytes(&own) + pages * page_bytes(&own)) as u64
        };
        let state = &self.seqs[seq.0];
        let head = SeqHead {
            len: stats.len,
            eviction: state.eviction,
            dial: state.dial,
            pins: state.pins.clone(),
            reads: stats.reads,
            peak: stats.peak,
        };
        let states = g.delta.iter().flat_map(|delta| vec![state::bytes(delta) as u64; delta.n_layers]);
        (head, stats.live.iter().enumerate().map(bytes).chain(states).chain(self.far_image_bytes(b, seq)).collect())
    }

    /// Images of a sequence: one of each layer, and two of each lane that keeps far rows.
    pub fn n_images(&self) -> usize {
        far_image::rest(self.geometry()) + self.geometry().far_lanes().count()
    }

    /// Most bytes that an image of a sequence of `len` tokens may have.
    pub fn max_layer_bytes(&self, len: usize) -> u64 {
        let g = self.geometry();
        let of_layer = |layer| {
            let own = g.of_layer(layer);
            table_bytes(&own) + own.n_kv_heads * len.div_ceil(own.page_slots) * page_bytes(&own)
        };
        let attention = (0..g.n_layers).map(of_layer).max().unwrap_or(0);
        attention.max(g.delta.as_ref().map_or(0, state::bytes)).max(far_image::max_bytes(g, len)) as u64
    }

    /// Replaces `out` by an image of a sequence. Waits for the device.
    pub fn export_layer(&mut self, b: &B, seq: SeqId, layer: usize, out: &mut Vec<u8>) {
        let g = *self.geometry();
        if let Some(part) = far_image::part_of(&g, layer) {
            return self.export_far(b, seq, layer, part, out);
        }
        if let Some(of_state) = layer.checked_sub(g.n_layers) {
            return self.export_state(b, seq, layer, of_state, out);
        }
        let g = g.of_layer(layer);
        let (heads, ring_len, row) = (g.n_kv_heads, g.ring_len(), g.row(layer, seq.0, 0));
        let mut live = vec![0; heads];
        let mut ring = vec![0; heads * ring_len];
        let mut sums = vec![0f32; heads * g.sums_len()];
        let mut table = vec![0; heads * g.max_pages];
        b.read(&self.tables.live, row, &mut live);
        b.read(&self.tables.ring, row * ring_len, &mut ring);
        b.read(&self.tables.sums, row * g.sums_len(), &mut sums);
        b.read(&self.tables.page_table, row * g.max_pages, &mut table);
        let len = self.len(seq);
        let used = len.min(g.policy_of(layer).ring_len());
        ring.chunks_mut(ring_len.max(1)).for_each(|lane| lane[used..].fill(0));
        for (sums, _) in sums.chunks_mut(g.sums_len().max(1)).zip(&live).filter(|(_, live)| **live == 0) {
            sums.fill(0.0);
        }
        let held = |head: usize| (live[head] as usize).div_ceil(g.page_slots);
        let pages: Vec<i32> =
            (0..heads).flat_map(|head| table[head * g.max_pages..][..held(head)].iter().copied()).collect();
        let tables = table_bytes(&g);
        // Old bytes are written over: zeroing them takes as long as a copy.
        out.resize(tables + pages.len() * g.page_bytes(), 0);
        let number = (layer as u32).to_ne_bytes();
        let parts: [&[u8]; 4] =
            [&number, bytemuck::cast_slice(&live), bytemuck::cast_slice(&ring), bytemuck::cast_slice(&sums)];
        out[..tables].copy_from_slice(&parts.concat());
        b.export_pages(&mut self.tables, &pages, &mut out[tables..]);
        // Rows without a slot hold what others left there, and so do ends of pages.
        let (mut end, layout) = (0, g.page());
        for page in out[tables..].chunks_exact_mut(g.page_bytes()) {
            page[layout.end..].fill(0);
        }
        for (head, &live) in live.iter().enumerate() {
            end += held(head);
            let used = live as usize % g.page_slots;
            if used > 0 {
                layout.clear_rows(&mut out[tables + (end - 1) * g.page_bytes()..][..g.page_bytes()], used);
            }
        }
        if score_rows(&g) > 0 {
            for (head, &live) in live.iter().enumerate() {
                let mut scores = vec![0f32; held(head) * g.page_slots];
                b.read(&self.tables.score, (row + head) * g.score_slots(), &mut scores[..live as usize]);
                out.extend_from_slice(bytemuck::cast_slice(&scores));
            }
        }
    }

    /// Checks that a sequence of `len` tokens could have this state.
    pub fn check_head(&self, head: &SeqHead, len: usize) -> Result<(), &'static str> {
        let g = self.geometry();
        let slots = g.seq_lanes() as u64 * len as u64;
        let in_order = head.pins.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let counts = u64::from(head.peak) <= slots && head.reads <= slots.saturating_mul(len as u64);
        require(head.len == len && counts, "counters that such a sequence cannot have")?;
        let pins = in_order && !head.pins.iter().any(Range::is_empty);
        require(head.dial.is_finite() && pins, "a dial or pins that no sequence has")
    }

    /// A check of the layers of a sequence of `len` tokens.
    pub fn layer_check(&self, len: usize) -> LayerCheck {
        LayerCheck { g: *self.geometry(), len }
    }

    /// Fills one layer of a sequence from an image that this cache's [`LayerCheck`] has checked.
    /// The sequence is one that [`KvCache::create`] made, in which nothing was fed. Layers may come
    /// in any order, each once, and [`KvCache::end_import`] follows the last before
    /// [`KvCache::first_rest`]. Returns what [`KvCache::import_rest`] needs for far pages of the
    /// layer: until then the sequence and its forks may be fed, released and forked, but nothing
    /// may choose among their far pages, bring them near, or export them.
    pub fn import_layer(&mut self, b: &B, seq: SeqId, image: &CheckedLayer) -> Result<Option<FarRest<B>>, CacheError> {
        let g = *self.geometry();
        let CheckedLayer { layer, live, rings, sums, scores, state, far, bytes } = image;
        if let Some(far) = far {
            return self.import_far(b, seq, far, bytes);
        }
        if let Some(of_state) = layer.checked_sub(g.n_layers) {
            self.import_state(b, seq, of_state, state);
            return Ok(None);
        }
        let g = g.of_layer(*layer);
        let held = |live: &i32| (*live as usize).div_ceil(g.page_slots);
        let n_pages: usize = live.iter().map(held).sum();
        let pages = &bytes[table_bytes(&g)..][..n_pages * g.page_bytes()];
        self.reserve(b, n_pages)?;
        let taken = b.import_pages(&mut self.tables, pages);
        let (row, mut at) = (g.row(*layer, seq.0, 0), 0);
        for (head, held) in live.iter().map(held).enumerate() {
            b.write(&mut self.tables.page_table, (row + head) * g.max_pages, &taken[at..at + held]);
            let rows = score_rows(&g);
            b.write(&mut self.tables.score, (row + head) * g.score_slots(), &scores[at * rows..(at + held) * rows]);
            at += held;
        }
        b.write(&mut self.tables.ring, row * g.ring_len(), rings);
        b.write(&mut self.tables.sums, row * g.sums_len(), sums);
        b.write(&mut self.tables.live, row, live);
        Ok(None)
    }

    /// Fills those of `rests` that an image has, and removes them. Fails if it has none of them or
    /// other rows than the first image of their lane says, or without memory; then they stay
    /// without rows.
    pub fn import_rest(&mut self, b: &B, rests: &mut Vec<FarRest<B>>, image: &CheckedLayer) -> Result<(), RestError> {
        let far = image.far.as_ref().ok_or(RestError::Other)?;
        self.fill_far(b, rests, far, &image.bytes)
    }

    /// Ends an import, whose layers are all there, of a sequence that `tokens` were fed to. Fails
    /// if images that could each be do not fit together.
    pub fn end_import(
        &mut self,
        b: &B,
        seq: SeqId,
        head: &SeqHead,
        tokens: impl Iterator<Item = Token>,
    ) -> Result<(), &'static str> {
        self.write_seen(b, seq.0, tokens);
        let state = &mut self.seqs[seq.0];
        (state.len, state.eviction, state.dial) = (head.len, head.eviction, head.dial);
        state.pins.clone_from(&head.pins);
        b.write(&mut self.tables.seq_len, seq.0, &[head.len as i32]);
        b.write(&mut self.tables.eviction, seq.0, &[head.eviction as i32]);
        b.write(&mut self.tables.dial, seq.0, &[head.dial]);
        b.write(&mut self.tables.reads, seq.0, &[head.reads]);
        b.write(&mut self.tables.peak, seq.0, &[head.peak]);
        require(self.far_rows_fit(b, seq), "more far rows and slots than tokens")
    }
}

impl LayerCheck {
    /// Checks that a layer of the sequence could have this image.
    pub fn check(&self, layer: usize, image: Vec<u8>) -> Result<CheckedLayer, InvalidImage> {
        self.checked(layer, image).map_err(|what| InvalidImage { layer, what })
    }

    fn checked(&self, layer: usize, image: Vec<u8>) -> Result<CheckedLayer, &'static str> {
        let Self { g, len } = self;
        let (of_state, of_far) = (layer.checked_sub(g.n_layers), far_image::part_of(g, layer));
        let fits = of_state.is_none_or(|layer| g.delta.is_some_and(|delta| layer < delta.n_layers));
        require((fits || of_far.is_some()) && *len <= g.max_pages * g.page_slots, "more than the cache holds")?;
        require(image.starts_with(&(layer as u32).to_ne_bytes()), "it is the image of another layer")?;
        if let Some(part) = of_far {
            let far = Some(far_image::check(g, *len, part, &image)?);
            return Ok(CheckedLayer { layer, far, bytes: image, ..CheckedLayer::default() });
        }
        if let (Some(delta), Some(_)) = (&g.delta, of_state) {
            let state = state::check(delta, &image)?;
            return Ok(CheckedLayer { layer, state, bytes: image, ..CheckedLayer::default() });
        }
        let g = &g.of_layer(layer);
        let (tables, pages) = image.split_at_checked(table_bytes(g)).ok_or("shorter than its tables")?;
        let (_, tables) = tables.split_at(LAYER_BYTES);
        let (tables, sums) = tables.split_at(tables.len() - g.n_kv_heads * g.sums_len() * size_of::<f32>());
        let mut live: Vec<i32> = tables.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let rings = live.split_off(g.n_kv_heads);
        let sums: Vec<f32> = sums.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let mut stored = sums.chunks(g.sums_len().max(1)).zip(&live).filter(|(_, live)| **live > 0);
        let sound = sums.iter().all(|x| x.is_finite()) && stored.all(|(sums, _)| are_sums(sums));
        require(sound, "sums that are not those of a slot")?;
        require(live.iter().all(|&live| live >= 0 && live as usize <= *len), "more slots than tokens")?;
        let held: Vec<usize> = live.iter().map(|&live| (live as usize).div_ceil(g.page_slots)).collect();
        let n_pages: usize = held.iter().sum();
        require(pages.len() == n_pages * page_bytes(g), "another size than its slots need")?;
        let (pages, scores) = pages.split_at(n_pages * g.page_bytes());
        let scores: Vec<f32> = scores.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        require(scores.iter().all(|score| score.is_finite()), "a score is not a number")?;
        let (ring_len, mut rest, mut stored) = (g.ring_len(), pages, vec![0; *len]);
        for head in 0..g.n_kv_heads {
            let lane;
            (lane, rest) = rest.split_at(held[head] * g.page_bytes());
            let policy = g.policy_of(layer);
            let (ring, beyond) = rings[head * ring_len..][..ring_len].split_at(policy.ring_len());
            require(beyond.iter().all(|&slot| slot == 0), "the ring is longer than the window")?;
            self.lane((g, head as u32 + 1, policy), live[head] as usize, ring, lane, &mut stored)?;
        }
        let by_layer = g.policy.scored().is_some_and(|rule| rule.scope == Scope::Layer);
        let agree = !by_layer || self.lanes_agree(&live, pages, &scores);
        require(agree, "its heads store different tokens, or score them differently")?;
        Ok(CheckedLayer { layer, live, rings, sums, scores, bytes: image, ..CheckedLayer::default() })
    }

    /// Whether all lanes of the layer have the slots and the scores of the first, as where tokens
    /// are dropped by layer.
    fn lanes_agree(&self, live: &[i32], pages: &[u8], scores: &[f32]) -> bool {
        let (g, layout, n) = (&self.g, self.g.page(), live[0] as usize);
        if live.iter().any(|other| *other != live[0]) {
            return false;
        }
        let held = n.div_ceil(g.page_slots);
        let slot = |head: usize, slot: usize| {
            let (page, row) = (head * held + slot / g.page_slots, slot % g.page_slots);
            let meta = layout.meta(&pages[page * g.page_bytes()..], row);
            (meta.position(), scores[page * g.page_slots + row].to_bits())
        };
        (1..g.n_kv_heads).all(|head| (0..n).all(|i| slot(head, i) == slot(0, i)))
    }

    /// Checks lane `number` of a layer of this geometry and policy, counted from 1: every slot
    /// holds a different token of the sequence, and the ring names the slots of the newest tokens.
    /// `stored`: `[len]` number of the last lane in which the position was found.
    fn lane(
        &self,
        (g, number, policy): (&KvGeometry, u32, Policy),
        live: usize,
        ring: &[i32],
        pages: &[u8],
        stored: &mut [u32],
    ) -> Result<(), &'static str> {
        let len = &self.len;
        let (layout, page_bytes) = (g.page(), g.page_bytes());
        let meta = |slot: usize| layout.meta(&pages[slot / g.page_slots * page_bytes..], slot % g.page_slots);
        // No slot is given to a token that is not of it.
        let in_order = !policy.evicts() || policy.merging().is_some();
        for slot in 0..live {
            let position = meta(slot).position();
            match stored.get_mut(position) {
                None => return Err("a slot is of a token that does not exist"),
                Some(_) if in_order && slot > 0 && meta(slot - 1).position() >= position => {
                    return Err("slots are out of order");
                }
                Some(of) if *of == number => return Err("two slots are of one token"),
                Some(of) => *of = number,
            }
        }
        let mut rows = (0..live).map(|slot| (&pages[slot / g.page_slots * page_bytes..], slot % g.page_slots));
        let finite = rows.all(|(page, row)| {
            g.codec.are_finite([&page[layout.k(row)], &page[layout.v(row)]], layout.sides(page, row))
        });
        require(finite, "K or V has values that are not numbers")?;
        for position in len.saturating_sub(ring.len())..*len {
            if ring.is_empty() {
                break;
            }
            let slot = ring[position % ring.len()] as usize;
            let of_token = slot < live && meta(slot).position() == position;
            require(of_token, "the ring names another slot than that of the token")?;
        }
        let unused = ring.get(*len..).unwrap_or_default();
        require(unused.iter().all(|&slot| slot == 0), "the ring names a slot of no token")
    }
}
