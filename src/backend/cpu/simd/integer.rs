//! Integer dot products with packed weights: codes of 4 to 8 bits times activations of 16 bits. An
//! activation is split into a high and a low signed byte for the 8-bit dot products of AVX-512
//! VNNI, AVX-VNNI or AVX2.
//!
//! Each group of 64 activations has its own scale, the largest magnitude divided by 32,512.
//! Rounding to that scale is off by at most half a step, in addition to the rounding to bf16 that
//! all methods share. Sums of a group are exact.
//!
//! A u32 of codes gives two vectors of bytes: its even nibbles (columns 0, 4, 1 and 5 of eight) and
//! its odd nibbles (columns 2, 6, 3 and 7). Activations are stored in that order once per GEMM.
//! Lanes of 32 bits belong to one half of a tile, so a scale for each half costs nothing more.

// Loops index fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

mod vectors;

use super::super::thread_pool::Tile;
use super::array_of;
use super::strip::{Line, MOST_WORDS, Ordered, Strip, put, put_halves, put_runs, round, zero_of};
use crate::quant::{Code, EIGHT, GROUP};
use std::arch::x86_64::*;
use vectors::{Avx2, Avx512Vnni, AvxVnni};
pub(super) use vectors::{Dot, E2M1, LINES};

/// Largest magnitude of a 16-bit activation. It keeps the high byte at most 127 while the low byte
/// is -128 to 127.
const MOST: f32 = 32_512.0;

/// Instructions for 8-bit dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bytes {
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

/// Columns of a 16-column block in the order of the even nibbles of four u32, two u32 per row; and
/// in the order of the odd nibbles.
const EVEN: [i8; 16] = [0, 4, 1, 5, 8, 12, 9, 13, 0, 4, 1, 5, 8, 12, 9, 13];
const ODD: [i8; 16] = [2, 6, 3, 7, 10, 14, 11, 15, 2, 6, 3, 7, 10, 14, 11, 15];

/// Rounds `x` to bf16 and then to 16 bits, and stores it with the scale and the sum of each group.
pub(super) fn order(
    x: &[f32],
    lines: &mut [Line],
    scales: &mut [f32],
    sums: &mut [f32],
    halves: &mut [f32],
    runs: &mut [f32],
) {
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32], lines: &mut [Line], scales: &mut [f32], sums: &mut [f32], halves: &mut [f32], runs: &mut [f32]) {
        for (tile, (x, lines)) in x.as_chunks::<GROUP>().0.iter().zip(lines.as_chunks_mut::<LINES>().0).enumerate() {
            let (scale, totals) = order_group(x, lines);
            let of_half = array_of!(2, half => (0..4).map(|t| totals[2 * t + half]).sum::<i32>());
            put(scales, tile, scale);
            put(sums, tile, scale * totals.iter().sum::<i32>() as f32);
            put_halves(halves, tile, of_half.map(|total| scale * total as f32));
            put_runs(runs, tile, array_of!(4, run => scale * (totals[2 * run] + totals[2 * run + 1]) as f32));
        }
    }
    // SAFETY: the method exists only where AVX2 was detected.
    unsafe { avx2(x, lines, scales, sums, halves, runs) }
}

/// Rounds and stores one group. Returns its scale, and the sum of every eight columns.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn order_group(x: &[f32; GROUP], lines: &mut [Line; LINES]) -> (f32, [i32; 8]) {
    let rounded = array_of!(GROUP, i => round(x[i]));
    let mut most = [0f32; 8];
    // Stays zero unless a value is not finite; the scale then becomes NaN.
    let mut bad = [0f32; 8];
    for x in rounded.as_chunks::<8>().0 {
        for i in 0..8 {
            most[i] = if x[i].abs() > most[i] { x[i].abs() } else { most[i] };
            bad[i] += 0.0 * x[i];
        }
    }
    let largest = most.iter().fold(0f32, |a, &b| if b > a { b } else { a });
    let scale = largest / MOST + bad.iter().sum::<f32>();
    let inverse = if largest > 0.0 { MOST / largest } else { 0.0 };
    let (mut high, mut low, mut totals) = ([0i8; GROUP], [0i8; GROUP], [0; 8]);
    for i in 0..GROUP {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits of the
        // float.
        let value = (rounded[i] * inverse + 12_582_912.0).to_bits() as i16;
        low[i] = value as i8;
        high[i] = ((value - low[i] as i16) >> 8) as i8;
        totals[i / EIGHT] += value as i32;
    }
    for (i, (bytes, places)) in [(&high, EVEN), (&high, ODD), (&low, EVEN), (&low, ODD)].into_iter().enumerate() {
        for t in 0..GROUP / 16 {
            // SAFETY: 16 bytes of 64, for t below 4.
            unsafe {
                let block = _mm_loadu_si128(bytes.as_ptr().add(16 * t).cast());
                let ordered = _mm_shuffle_epi8(block, _mm_loadu_si128(places.as_ptr().cast()));
                _mm_storeu_si128(lines[i].0.as_mut_ptr().add(4 * t).cast(), ordered);
            }
        }
    }
    (scale, totals)
}

/// Work that is generic over the dot products of an instruction set.
pub(super) trait Work {
    /// The caller has enabled the instructions of `D`.
    unsafe fn run<D: Dot>(self);
}

/// Runs `work` with its instructions enabled.
pub(super) fn enable(bytes: Bytes, work: impl Work) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<Avx2>() }
    }
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn avx_vnni(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<AvxVnni>() }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn avx512_vnni(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<Avx512Vnni>() }
    }
    // SAFETY: the method exists only where its instructions were detected.
    unsafe {
        match bytes {
            Bytes::Avx2 => avx2(work),
            Bytes::AvxVnni => avx_vnni(work),
            Bytes::Avx512Vnni => avx512_vnni(work),
        }
    }
}

/// Multiplies one strip by all rows of activations.
pub(super) fn strip(bytes: Bytes, job: Strip<'_>, out: &mut Tile<'_>) {
    struct Job<'a, 'b, 'c>(Strip<'a>, &'b mut Tile<'c>);

    impl Work for Job<'_, '_, '_> {
        #[inline(always)]
        unsafe fn run<D: Dot>(self) {
            // SAFETY: the caller's contract.
            unsafe { run::<D>(self.0, self.1) }
        }
    }
    enable(bytes, Job(job, out));
}

/// Number of scales of four tiles: for each pair of rows and each tile four, `[g, g, g + 8, g +
/// 8]`, where two of a row are those of its halves, or the same.
const SCALES: usize = MOST_WORDS;

/// Offset of the scales of rows g and g + 8 of tile `t` of four. Without halves each g has the
/// tiles in the order 0, 2, 1, 3.
#[inline(always)]
fn scales_at<const HALVES: bool>(quad: usize, g: usize, t: usize) -> usize {
    quad * SCALES + g * 16 + if HALVES { 4 * t } else { t % 2 * 8 + t / 2 * 4 }
}

/// Maximum rows of activations that are multiplied together.
pub(super) const MOST_ROWS: usize = 4;

/// Multiplies all rows of activations. The order in which a row is summed does not depend on the
/// other rows.
#[inline(always)]
unsafe fn run<D: Dot>(mut job: Strip<'_>, out: &mut Tile<'_>) {
    job.prefetch_words();
    let room = MOST_ROWS * job.tiles.div_ceil(4) * SCALES;
    job.scales.resize(room.max(job.scales.len()), 0.0);
    let (n, mut i) = (out.rows(), 0);
    while i < n {
        // SAFETY: the caller's contract.
        unsafe {
            match job.code {
                Code::Q8 => blocks::<D, 8, false>(&mut job, i, out),
                Code::Q4 => blocks::<D, 4, false>(&mut job, i, out),
                Code::Q4H => blocks::<D, 4, true>(&mut job, i, out),
                Code::Q6H => blocks::<D, 6, true>(&mut job, i, out),
                Code::File(code) => panic!("{} has kernels of its own", code.name()),
            }
        }
        i += [1, 2, 2, 4][(n - i).min(4) - 1];
    }
}

/// Multiplies one, two or four rows of activations from `first` on.
#[inline(always)]
unsafe fn blocks<D: Dot, const BITS: usize, const HALVES: bool>(job: &mut Strip<'_>, first: usize, out: &mut Tile<'_>) {
    // SAFETY: the caller's contract.
    unsafe {
        match out.rows() - first {
            1 => block::<D, BITS, HALVES, 1, 8>(job, first, out),
            2 | 3 => block::<D, BITS, HALVES, 2, 4>(job, first, out),
            _ => block::<D, BITS, HALVES, MOST_ROWS, 2>(job, first, out),
        }
    }
}

/// Multiplies `B` rows of activations, from `first` on, by `G` pairs of weight rows at a time.
#[inline(always)]
unsafe fn block<D: Dot, const BITS: usize, const HALVES: bool, const B: usize, const G: usize>(
    job: &mut Strip<'_>,
    first: usize,
    out: &mut Tile<'_>,
) {
    let (tiles, input): (usize, &Ordered) = (job.tiles, job.x);
    let quads = tiles.div_ceil(4);
    // Words of a pair of rows in four tiles.
    let of_pair = if HALVES { 16 } else { 8 };
    let mut zeros = [[0f32; MOST_WORDS]; B];
    // SAFETY: the strip has `tiles` tiles and words for `quads` of four; activations have `LINES`
    // lines for every tile, and one of scales and one of sums for every quad; `first + B` is at
    // most their rows; the scratch has room for `MOST_ROWS` of them.
    unsafe {
        let scales = job.scales.as_mut_ptr();
        for quad in 0..quads {
            for b in 0..B {
                let line = (first + b) * quads + quad;
                let sums = if HALVES { &input.halves[line] } else { &input.sums[line] };
                let (of_x, words) = (&input.scales[line], job.words()[quad * 16 * of_pair..].as_ptr());
                D::scales::<BITS, HALVES>(words, of_x, sums, scales.add((b * quads + quad) * SCALES), &mut zeros[b]);
            }
        }
        let x: [*const Line; B] = array_of!(B, b => input.lines.as_ptr().add((first + b) * tiles * LINES));
        for g in (0..8).step_by(G) {
            let mut sums = [[D::zero(); G]; B];
            for tile in 0..tiles {
                for i in 0..G {
                    let planes = [job.codes(tile, g + i), job.low_codes(tile, g + i)];
                    job.prefetch(planes[0]);
                    if BITS > 4 {
                        job.prefetch(planes[1]);
                    }
                    let at = scales_at::<HALVES>(tile / 4, g + i, tile % 4);
                    for b in 0..B {
                        let scales = scales.add(b * quads * SCALES + at);
                        sums[b][i] = D::add::<BITS>(sums[b][i], planes, x[b].add(tile * LINES), scales);
                    }
                }
            }
            for (b, i) in (0..B).flat_map(|b| (0..G).map(move |i| (b, i))) {
                let sums = D::rows(sums[b][i]);
                for second in 0..2 {
                    let (row, z) = (g + i + 8 * second, &zeros[b][(g + i) * of_pair..][..of_pair]);
                    if row < out.cols() {
                        out.row_mut(first + b)[row] = sums[second] - zero_of::<HALVES>(z, second);
                    }
                }
            }
        }
    }
}
