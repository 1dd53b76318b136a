//! The far rows of a lane as an image, one for each lane that keeps them. They follow the images of
//! layers and of states in a file:
//!
//! ```text
//! | u32 number of the image | u32 full pages | u32 rows of the filling page | u32 dropped rows | u32 near pages |
//! | near pages x u32 index | queries x head_dim x f32 | full pages x head_dim x f32 means | blocks of full pages | of the filling page |
//! ```
//!
//! in the machine's byte order. Queries are those of the newest tokens, at most
//! [`Far::QUERIES`], of the query heads that read the lane. A page has
//! [`Far::ROWS`] rows in blocks of the layout of the cache's pages; rows of the last block that do
//! not exist are zero. All numbers are finite, and means are rounded to bf16.

use super::{CacheError, KvCache, SeqId};
use crate::backend::{Backend, FarLane, FarSizes, KvGeometry, Lane};
use crate::policy::Far;
use half::bf16;

/// Numbers before the lists.
const HEAD: usize = 5;
const WORD: usize = size_of::<u32>();

/// What an image says of a lane's far rows, and where its blocks begin.
pub(super) struct FarImage {
    lane: Lane,
    tokens: usize,
    far: FarLane,
    blocks_at: usize,
}

pub(super) fn require(fine: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if fine { Ok(()) } else { Err(otherwise) }
}

/// Number of the first image of far rows.
pub(super) fn first(g: &KvGeometry) -> usize {
    g.n_layers + g.delta.map_or(0, |delta| delta.n_layers)
}

/// The lane that an image is of; `None` if it is not one of far rows.
pub(super) fn lane_of(g: &KvGeometry, number: usize) -> Option<Lane> {
    g.far_lanes().nth(number.checked_sub(first(g))?)
}

/// Words of the queries of a lane of `tokens` tokens.
fn query_words(g: &KvGeometry, tokens: usize) -> usize {
    tokens.min(Far::QUERIES) * g.n_q_heads / g.n_kv_heads * g.head_dim
}

/// Blocks of full pages and of the rows of one that is filling.
fn blocks(g: &KvGeometry, pages: usize, filling: usize) -> usize {
    pages * Far::ROWS / g.page_slots + filling.div_ceil(g.page_slots)
}

/// Bytes of an image.
fn bytes(g: &KvGeometry, tokens: usize, sizes: FarSizes) -> usize {
    let FarSizes { full, near, filling } = sizes;
    (HEAD + near + query_words(g, tokens) + full * g.head_dim) * WORD + blocks(g, full, filling) * g.page_bytes()
}

/// Most bytes that an image of a sequence of `tokens` tokens may have.
pub(super) fn max_bytes(g: &KvGeometry, tokens: usize) -> usize {
    let (g, full) = (&g.of_far(), tokens / Far::ROWS);
    if g.keeps_far() { bytes(g, tokens, FarSizes { full, near: full, filling: Far::ROWS - 1 }) } else { 0 }
}

impl<B: Backend> KvCache<B> {
    /// Bytes of the images of a sequence's far rows. Waits for the device.
    pub(super) fn far_image_bytes(&self, b: &B, seq: SeqId) -> impl Iterator<Item = u64> {
        let (g, tokens) = (self.geometry().of_far(), self.len(seq));
        g.far_lanes().map(move |lane| bytes(&g, tokens, b.far_sizes(&self.tables, seq.row(), lane)) as u64)
    }

    /// Replaces `out` by image `number`. Waits for the device.
    pub(super) fn export_far(&mut self, b: &B, seq: SeqId, number: usize, lane: Lane, out: &mut Vec<u8>) {
        let g = self.geometry().of_far();
        let sizes = b.far_sizes(&self.tables, seq.row(), lane);
        let all = bytes(&g, self.len(seq), sizes);
        let blocks_at = all - blocks(&g, sizes.full, sizes.filling) * g.page_bytes();
        out.clear();
        out.reserve(all);
        out.resize(blocks_at, 0);
        let FarLane { full, filling, dropped, near, means, queries } =
            b.export_far(&mut self.tables, seq.row(), lane, out);
        let head = [number, full, filling, dropped, near.len()].map(|n| n as u32);
        let parts: [&[u8]; 4] = [
            bytemuck::cast_slice(&head),
            bytemuck::cast_slice(&near),
            bytemuck::cast_slice(&queries),
            bytemuck::cast_slice(&means),
        ];
        out[..blocks_at].copy_from_slice(&parts.concat());
        let used = filling % g.page_slots;
        if used > 0 {
            let last = out.len() - g.page_bytes();
            g.page().clear_rows(&mut out[last..], used);
        }
    }

    /// Fills the far rows of a lane.
    pub(super) fn import_far(&mut self, b: &B, seq: SeqId, image: &FarImage, bytes: &[u8]) -> Result<(), CacheError> {
        let (g, FarImage { lane, tokens, far, blocks_at }) = (self.geometry().of_far(), image);
        let read = blocks(&g, far.near.len(), far.filling);
        self.reserve(b, if B::IN_POOL { read } else { 0 })?;
        Ok(b.import_far(&mut self.tables, seq.row(), *lane, *tokens, far, &bytes[*blocks_at..])?)
    }

    /// Whether no lane of a sequence has more rows, stored, far and dropped, than tokens.
    pub(super) fn far_rows_fit(&self, b: &B, seq: SeqId) -> bool {
        let (g, tokens, live) = (*self.geometry(), self.len(seq), self.live_slots(b));
        g.far_lanes().all(|lane| {
            let FarSizes { full, filling, .. } = b.far_sizes(&self.tables, seq.row(), lane);
            live[g.row(lane.layer, seq.row(), lane.head)] + full * Far::ROWS + filling <= tokens
        })
    }
}

/// Checks that the far rows of a lane of `tokens` tokens could have this image.
pub(super) fn check(g: &KvGeometry, tokens: usize, lane: Lane, image: &[u8]) -> Result<FarImage, &'static str> {
    let g = &g.of_far();
    let (head, rest) = image.split_at_checked(HEAD * WORD).ok_or("shorter than its head")?;
    let head: Vec<usize> = head.chunks_exact(WORD).map(|n| bytemuck::pod_read_unaligned::<u32>(n) as usize).collect();
    let [_, full, filling, dropped, near] = head[..] else { return Err("shorter than its head") };
    let fits = [full, filling, dropped].iter().all(|&n| n <= tokens) && near <= full && filling < Far::ROWS;
    require(fits && full * Far::ROWS + filling + dropped <= tokens, "more far rows than tokens")?;
    require(image.len() == bytes(g, tokens, FarSizes { full, near, filling }), "another size than its far rows need")?;
    let (near, rest) = rest.split_at(near * WORD);
    let near: Vec<u32> = near.chunks_exact(WORD).map(bytemuck::pod_read_unaligned).collect();
    let in_order =
        near.windows(2).all(|pair| pair[0] < pair[1]) && near.last().is_none_or(|&last| (last as usize) < full);
    require(in_order, "its near pages are not a list of its pages")?;
    let (queries, rest) = rest.split_at(query_words(g, tokens) * WORD);
    let (means, blocks) = rest.split_at(full * g.head_dim * WORD);
    let numbers = |bytes: &[u8]| -> Vec<f32> { bytes.chunks_exact(WORD).map(bytemuck::pod_read_unaligned).collect() };
    let (queries, means) = (numbers(queries), numbers(means));
    require(queries.iter().chain(&means).all(|x| x.is_finite()), "queries or means that are not numbers")?;
    require(means.iter().all(|x| bf16::from_f32(*x).to_f32() == *x), "means that are not rounded")?;
    let (layout, mut taken) = (g.page(), vec![false; tokens]);
    for row in 0..full * Far::ROWS + filling {
        let (page, row) = (&blocks[row / g.page_slots * g.page_bytes()..][..g.page_bytes()], row % g.page_slots);
        let of_token = taken.get_mut(layout.meta(page, row).position());
        match of_token.map(|taken| std::mem::replace(taken, true)) {
            None => return Err("a far row is of a token that does not exist"),
            Some(true) => return Err("two far rows are of one token"),
            Some(false) => {}
        }
        let finite = g.codec.are_finite([&page[layout.k(row)], &page[layout.v(row)]], layout.sides(page, row));
        require(finite, "K or V has values that are not numbers")?;
    }
    let blocks_at = image.len() - blocks.len();
    let far = FarLane { full, filling, dropped, near, means, queries };
    Ok(FarImage { lane, tokens, far, blocks_at })
}
