//! The far rows of a lane as two images, for each lane that keeps them. The first has all that a
//! sequence needs until its next choice, and the index:
//!
//! ```text
//! | u32 number of the image | u32 full pages | u32 rows of the filling page | u32 dropped rows | u32 near pages |
//! | near pages x u32 index | queries x head_dim x f32 | full pages x 32 x u32 metadata | full pages x (f32 scale | head_dim x 4 bits) |
//! | blocks of near pages | of the filling page |
//! ```
//!
//! and the second the rest, which may be read later:
//! `| u32 number | blocks of the other full pages |`.
//! First images follow the images of layers and of states in a file, then come the second ones.
//!
//! Numbers are in the machine's byte order. Queries are those of the newest tokens, at most
//! [`Far::QUERIES`], of the query heads that read the lane. A page has [`Far::ROWS`] rows in blocks
//! of the layout of the cache's pages; rows of the last block that do not exist are zero. All
//! numbers are finite.

use super::{CacheError, KvCache, SeqId};
use crate::backend::{Backend, FarLane, FarSizes, KvGeometry, Lane};
use crate::policy::far::Index;
use crate::policy::{Far, SlotMeta};

/// Numbers before the lists.
const HEAD: usize = 5;
const WORD: usize = size_of::<u32>();

/// What an image says of a lane's far rows, and where its blocks begin.
pub(super) enum FarImage {
    First {
        number: usize,
        lane: Lane,
        tokens: usize,
        far: FarLane,
        blocks_at: usize,
    },
    /// The metadata of its rows.
    Rest {
        number: usize,
        metas: Vec<SlotMeta>,
    },
}

/// Far pages of a lane whose rows are to come, in the second image of the lane.
pub struct FarRest<B: Backend> {
    /// Number of the image with the rows.
    number: usize,
    /// Metadata of their rows, as the first image has it.
    metas: Vec<SlotMeta>,
    awaited: B::Awaited,
}

/// Which images of a lane's far rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    First,
    Rest,
}

pub(super) fn require(fine: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if fine { Ok(()) } else { Err(otherwise) }
}

/// Number of the first image of far rows.
pub(super) fn first(g: &KvGeometry) -> usize {
    g.n_layers + g.delta.map_or(0, |delta| delta.n_layers)
}

/// Number of the first image of the rest of far rows.
pub(super) fn rest(g: &KvGeometry) -> usize {
    first(g) + g.far_lanes().count()
}

/// The lane and the part that an image is of; `None` if it is not one of far rows.
pub(super) fn part_of(g: &KvGeometry, number: usize) -> Option<(Lane, Part)> {
    let (at, lanes) = (number.checked_sub(first(g))?, g.far_lanes().count());
    let part = if at < lanes { Part::First } else { Part::Rest };
    (at < 2 * lanes).then(|| g.far_lanes().nth(at % lanes).map(|lane| (lane, part)))?
}

/// Words of the queries of a lane of `tokens` tokens.
fn query_words(g: &KvGeometry, tokens: usize) -> usize {
    tokens.min(Far::QUERIES) * g.n_q_heads / g.n_kv_heads * g.head_dim
}

/// Blocks of full pages and of the rows of one that is filling.
fn blocks(g: &KvGeometry, pages: usize, filling: usize) -> usize {
    pages * Far::ROWS / g.page_slots + filling.div_ceil(g.page_slots)
}

/// Bytes of a first image.
fn bytes(g: &KvGeometry, tokens: usize, sizes: FarSizes) -> usize {
    let FarSizes { full, near, filling } = sizes;
    let words = HEAD + near + query_words(g, tokens) + full * Far::ROWS;
    words * WORD + full * Index::bytes(g.head_dim) + blocks(g, near, filling) * g.page_bytes()
}

/// Bytes of a second image.
fn rest_bytes(g: &KvGeometry, sizes: FarSizes) -> usize {
    WORD + blocks(g, sizes.full - sizes.near, 0) * g.page_bytes()
}

/// Most bytes that an image of a sequence of `tokens` tokens may have.
pub(super) fn max_bytes(g: &KvGeometry, tokens: usize) -> usize {
    let (g, full) = (&g.of_far(), tokens / Far::ROWS);
    if g.keeps_far() { bytes(g, tokens, FarSizes { full, near: full, filling: Far::ROWS - 1 }) } else { 0 }
}

impl<B: Backend> KvCache<B> {
    /// Bytes of the images of a sequence's far rows. Waits for the device.
    pub(super) fn far_image_bytes(&self, b: &B, seq: SeqId) -> Vec<u64> {
        let (g, tokens) = (self.geometry().of_far(), self.len(seq));
        let sizes: Vec<FarSizes> = g.far_lanes().map(|lane| b.far_sizes(&self.tables, seq.row(), lane)).collect();
        let firsts = sizes.iter().map(|&sizes| bytes(&g, tokens, sizes) as u64);
        firsts.chain(sizes.iter().map(|&sizes| rest_bytes(&g, sizes) as u64)).collect()
    }

    /// Number of the first image that a sequence does not need until its next choice, those of
    /// [`FarRest`].
    pub fn first_rest(&self) -> usize {
        rest(self.geometry())
    }

    /// Replaces `out` by image `number`. Waits for the device.
    pub(super) fn export_far(
        &mut self,
        b: &B,
        seq: SeqId,
        number: usize,
        (lane, part): (Lane, Part),
        out: &mut Vec<u8>,
    ) {
        let g = self.geometry().of_far();
        let sizes = b.far_sizes(&self.tables, seq.row(), lane);
        out.clear();
        if part == Part::Rest {
            out.reserve(rest_bytes(&g, sizes));
            out.extend((number as u32).to_ne_bytes());
            return b.export_far_rest(&self.tables, seq.row(), lane, out);
        }
        let all = bytes(&g, self.len(seq), sizes);
        let blocks_at = all - blocks(&g, sizes.near, sizes.filling) * g.page_bytes();
        out.reserve(all);
        out.resize(blocks_at, 0);
        let FarLane { full, filling, dropped, near, index, metas, queries } =
            b.export_far(&mut self.tables, seq.row(), lane, out);
        let head = [number, full, filling, dropped, near.len()].map(|n| n as u32);
        let metas: Vec<u32> = metas.iter().map(|meta| meta.0).collect();
        let parts: [&[u8]; 5] = [
            bytemuck::cast_slice(&head),
            bytemuck::cast_slice(&near),
            bytemuck::cast_slice(&queries),
            bytemuck::cast_slice(&metas),
            &index,
        ];
        out[..blocks_at].copy_from_slice(&parts.concat());
        let used = filling % g.page_slots;
        if used > 0 {
            let last = out.len() - g.page_bytes();
            g.page().clear_rows(&mut out[last..], used);
        }
    }

    /// Fills the far rows of a lane, but for those that are in its second image.
    pub(super) fn import_far(
        &mut self,
        b: &B,
        seq: SeqId,
        image: &FarImage,
        bytes: &[u8],
    ) -> Result<Option<FarRest<B>>, CacheError> {
        let FarImage::First { number, lane, tokens, far, blocks_at } = image else { return Ok(None) };
        let g = self.geometry().of_far();
        let read = blocks(&g, far.near.len(), far.filling);
        self.reserve(b, if B::IN_POOL { read } else { 0 })?;
        let awaited = b.import_far(&mut self.tables, seq.row(), *lane, *tokens, far, &bytes[*blocks_at..])?;
        let pages = (0..).zip(far.metas.chunks(Far::ROWS));
        let others = pages.filter(|(page, _)| far.near.binary_search(page).is_err());
        let metas = others.flat_map(|(_, metas)| metas).copied().collect();
        Ok(Some(FarRest { number: number + rest(&g) - first(&g), metas, awaited }))
    }

    /// Fills those of the far pages that an image has.
    pub(super) fn fill_far(
        &mut self,
        b: &B,
        rests: &mut Vec<FarRest<B>>,
        image: &FarImage,
        bytes: &[u8],
    ) -> Result<(), RestError> {
        let FarImage::Rest { number, metas } = image else { return Err(RestError::Other) };
        let at = rests.iter().position(|rest| rest.number == *number).ok_or(RestError::NoLane)?;
        let FarRest { metas: said, awaited, .. } = rests.swap_remove(at);
        if *metas != said {
            return Err(RestError::Other);
        }
        Ok(b.fill_far(&mut self.tables, awaited, &bytes[WORD..]).map_err(CacheError::from)?)
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

/// Why far pages were not filled.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    #[error("it is damaged (far rows of no lane)")]
    NoLane,
    #[error("it is damaged (far rows that are not those of their lane)")]
    Other,
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Checks that the far rows of a lane of `tokens` tokens could have this image.
pub(super) fn check(
    g: &KvGeometry,
    tokens: usize,
    (lane, part): (Lane, Part),
    image: &[u8],
) -> Result<FarImage, &'static str> {
    match part {
        Part::First => check_first(&g.of_far(), tokens, lane, image),
        Part::Rest => check_rest(&g.of_far(), image),
    }
}

/// Number of an image, with which it begins.
fn number_of(image: &[u8]) -> Option<usize> {
    Some(u32::from_ne_bytes(*image.first_chunk()?) as usize)
}

fn check_first(g: &KvGeometry, tokens: usize, lane: Lane, image: &[u8]) -> Result<FarImage, &'static str> {
    let (head, rest) = image.split_at_checked(HEAD * WORD).ok_or("shorter than its head")?;
    let words = |bytes: &[u8]| -> Vec<u32> { bytes.chunks_exact(WORD).map(bytemuck::pod_read_unaligned).collect() };
    let head: Vec<usize> = words(head).into_iter().map(|n| n as usize).collect();
    let [number, full, filling, dropped, near] = head[..] else { return Err("shorter than its head") };
    let fits = [full, filling, dropped].iter().all(|&n| n <= tokens) && near <= full && filling < Far::ROWS;
    require(fits && full * Far::ROWS + filling + dropped <= tokens, "more far rows than tokens")?;
    require(image.len() == bytes(g, tokens, FarSizes { full, near, filling }), "another size than its far rows need")?;
    let (near, rest) = rest.split_at(near * WORD);
    let near = words(near);
    let in_order =
        near.windows(2).all(|pair| pair[0] < pair[1]) && near.last().is_none_or(|&last| (last as usize) < full);
    require(in_order, "its near pages are not a list of its pages")?;
    let (queries, rest) = rest.split_at(query_words(g, tokens) * WORD);
    let (metas, rest) = rest.split_at(full * Far::ROWS * WORD);
    let (index, blocks) = rest.split_at(full * Index::bytes(g.head_dim));
    let queries: Vec<f32> = queries.chunks_exact(WORD).map(bytemuck::pod_read_unaligned).collect();
    let mut indices = index.chunks_exact(Index::bytes(g.head_dim)).map(Index::read);
    let finite = queries.iter().all(|x| x.is_finite()) && indices.all(|index| index.is_finite());
    require(finite, "queries or an index that are not numbers")?;
    let metas: Vec<SlotMeta> = words(metas).into_iter().map(SlotMeta).collect();
    let of_blocks = checked_rows(g, blocks, near.len() * Far::ROWS + filling)?;
    let (of_near, of_filling) = of_blocks.split_at(near.len() * Far::ROWS);
    let said = near.iter().flat_map(|&page| &metas[page as usize * Far::ROWS..][..Far::ROWS]);
    require(said.eq(of_near), "near rows that are not those of their pages")?;
    let mut taken = vec![false; tokens];
    for meta in metas.iter().chain(of_filling) {
        match taken.get_mut(meta.position()).map(|taken| std::mem::replace(taken, true)) {
            None => return Err("a far row is of a token that does not exist"),
            Some(true) => return Err("two far rows are of one token"),
            Some(false) => {}
        }
    }
    let blocks_at = image.len() - blocks.len();
    let far = FarLane { full, filling, dropped, near, index: index.to_vec(), metas, queries };
    Ok(FarImage::First { number, lane, tokens, far, blocks_at })
}

fn check_rest(g: &KvGeometry, image: &[u8]) -> Result<FarImage, &'static str> {
    let number = number_of(image).ok_or("shorter than its head")?;
    let (rows, page_bytes) = (&image[WORD..], blocks(g, 1, 0) * g.page_bytes());
    require(rows.len().is_multiple_of(page_bytes), "another size than its far rows need")?;
    let metas = checked_rows(g, rows, rows.len() / page_bytes * Far::ROWS)?;
    Ok(FarImage::Rest { number, metas })
}

/// The metadata of the first `n` rows of these blocks, whose K and V are finite.
fn checked_rows(g: &KvGeometry, blocks: &[u8], n: usize) -> Result<Vec<SlotMeta>, &'static str> {
    let layout = g.page();
    let row = |row: usize| {
        let (page, row) = (&blocks[row / g.page_slots * g.page_bytes()..][..g.page_bytes()], row % g.page_slots);
        let finite = g.codec.are_finite([&page[layout.k(row)], &page[layout.v(row)]], layout.sides(page, row));
        finite.then(|| layout.meta(page, row)).ok_or("K or V has values that are not numbers")
    };
    (0..n).map(row).collect()
}
