//! Dot products with packed weights, computed directly from the packed tiles.
//!
//! 64 bytes of a tile are 16 u32: four for each of its 16-column chunks, two of row g and two of
//! row g + 8. A step takes the same bits of all 16 u32, and activations are stored in that order
//! once per GEMM. Each row of a group is summed separately until the group's scale is applied:
//! `scale * (sum of code * x - zero * sum of x)`.
//!
//! [`Method::F32`] converts codes to f32; [`Method::Bytes`] multiplies them as bytes
//! ([`super::integer`]). Both use the exact weights and round activations to bf16.

// Loops index fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
use super::file_codes;
#[cfg(target_arch = "x86_64")]
use super::integer::{self, Bytes};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::strip::{
    Line, MOST_WORDS, Ordered, STEPS, Strip, TILE_BYTES, WORDS, as_nibbles, put, put_halves, put_runs, round, zero_of,
};
#[cfg(not(target_arch = "aarch64"))]
use super::vector::Exact;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
use super::{Isa, Set, array_of, by_isa};
use crate::quant::{Code, EIGHT, GROUP, TILE_ROWS};
use std::ops::Range;

/// A range of rows of a packed matrix.
#[derive(Clone)]
pub(in super::super) struct Strips<'a> {
    code: Code,
    /// Bytes of the whole matrix.
    bytes: &'a [u8],
    cols: usize,
    rows: Range<usize>,
}

impl<'a> Strips<'a> {
    pub fn new(code: Code, bytes: &'a [u8], cols: usize, rows: Range<usize>) -> Self {
        assert!(Code::fits(cols) && bytes.len() >= code.bytes(rows.end, cols), "a packed matrix of {cols} columns");
        Self { code, bytes, cols, rows }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Decodes the columns `cols`, which must be whole groups, of all rows into
    /// `[rows, cols.len()]` with a row stride of `stride`.
    pub fn unpack(&self, isa: Isa, cols: Range<usize>, stride: usize, out: &mut [f32]) {
        let (code, bytes, width, rows) = (self.code, self.bytes, self.cols, self.rows.clone());
        by_isa!(isa, unpack_body::<>(code: Code, bytes: &[u8], width: usize, rows: Range<usize>, cols: Range<usize>, stride: usize, out: &mut [f32]))
    }
}

#[inline(always)]
fn word(strip: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([strip[at], strip[at + 1], strip[at + 2], strip[at + 3]])
}

/// Scalar loops, compiled for the caller's instruction set.
#[inline(always)]
unsafe fn unpack_body<V: Vector>(
    code: Code,
    bytes: &[u8],
    width: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    if let Code::File(_) = code {
        for (row, out) in rows.zip(out.chunks_mut(stride)) {
            code.unpack_groups(bytes, width, row, cols.start / GROUP, &mut out[..cols.len()]);
        }
        return;
    }
    let (tiles, size, form) = (width / GROUP, code.strip_bytes(width), code.form());
    for (row, out) in rows.zip(out.chunks_mut(stride)) {
        let out = &mut out[..cols.len()];
        let strip = &bytes[row / TILE_ROWS * size..][..size];
        let (g, second) = (row % 8, row % TILE_ROWS / 8);
        for (tile, out) in (cols.start / GROUP..).zip(out.as_chunks_mut::<GROUP>().0) {
            out.fill(0.0);
            let (levels, low_bits) = ((1 << form.low_bits) as f32, form.low_bits);
            for plane in 0..1 + usize::from(low_bits > 0) {
                for (t, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                    // Of eight columns each.
                    let at = (plane * tiles + tile) * TILE_BYTES + g * 64 + 16 * t + 8 * second;
                    let nibbles = if plane == 1 && low_bits == 2 {
                        let low = tiles * TILE_BYTES + tile * form.low_tile_bytes() + g * 32;
                        as_nibbles(word(strip, low + 8 * t + 4 * second))
                    } else {
                        [word(strip, at), word(strip, at + 4)]
                    };
                    for (w, out) in nibbles.into_iter().zip(out.as_chunks_mut::<EIGHT>().0) {
                        for c in 0..EIGHT {
                            let nibble = w >> (4 * (c / 2) + 16 * (c % 2)) & 15;
                            out[c] = levels * out[c] + nibble as f32;
                        }
                    }
                }
            }
            let at = tiles * form.tile_bytes() + 2 * form.word_index(row % TILE_ROWS, tile);
            let grid = |half: usize| {
                let at = at + 2 * half.min(form.words - 1);
                code.scale_zero(u16::from_le_bytes([strip[at], strip[at + 1]]))
            };
            let grids = [grid(0), grid(1)];
            for (i, out) in out.as_chunks_mut::<EIGHT>().0.iter_mut().enumerate() {
                let (scale, zero) = grids[i % 2];
                out.iter_mut().for_each(|v| *v = scale * (*v - zero));
            }
        }
    }
}

/// Method that computes dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Method {
    F32,
    /// Constructed only if the instructions were detected.
    #[cfg(target_arch = "x86_64")]
    Bytes(Bytes),
}

impl Method {
    /// Methods of an instruction set, fastest first.
    pub fn available(isa: Isa) -> Vec<Self> {
        let mut out = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if isa.0 == Set::Avx512 && is_x86_feature_detected!("avx512vnni") {
                out.push(Method::Bytes(Bytes::Avx512Vnni));
            }
            if isa.0 == Set::Avx2 && is_x86_feature_detected!("avxvnni") {
                out.push(Method::Bytes(Bytes::AvxVnni));
            }
            if isa.0 == Set::Avx2 {
                out.push(Method::Bytes(Bytes::Avx2));
            }
        }
        let _ = isa;
        out.push(Method::F32);
        out
    }

    /// Fastest method of an instruction set.
    pub fn best(isa: Isa) -> Self {
        Self::available(isa)[0]
    }

    /// Number of 64-byte lines of activations per tile.
    fn lines(self) -> usize {
        match self {
            Method::F32 => STEPS,
            #[cfg(target_arch = "x86_64")]
            Method::Bytes(_) => integer::LINES,
        }
    }
}

/// Activations in tile order, in the format of one method.
#[derive(Default)]
pub(in super::super) struct Input {
    x: Ordered,
    method: Option<Method>,
}

impl Input {
    /// Rounds `x` `[n, cols]` to bf16 and stores it in tile order.
    pub fn set(&mut self, method: Method, x: &[f32], n: usize, cols: usize) {
        assert!(Code::fits(cols) && x.len() >= n * cols, "activations of packed dot products");
        let (tiles, quads) = (cols / GROUP, cols.div_ceil(4 * GROUP));
        self.method = Some(method);
        let ordered = &mut self.x;
        ordered.resize(n, cols, method.lines());
        for row in 0..n {
            let lines = &mut ordered.lines[row * tiles * method.lines()..][..tiles * method.lines()];
            let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut ordered.sums[row * quads..][..quads]);
            let halves: &mut [f32] = bytemuck::cast_slice_mut(&mut ordered.halves[row * quads..][..quads]);
            let runs: &mut [f32] = bytemuck::cast_slice_mut(&mut ordered.runs[2 * row * quads..][..2 * quads]);
            let x = &x[row * cols..(row + 1) * cols];
            match method {
                Method::F32 => order_f32(x, lines, sums, halves, runs),
                #[cfg(target_arch = "x86_64")]
                Method::Bytes(_) => {
                    let scales = bytemuck::cast_slice_mut(&mut ordered.scales[row * quads..][..quads]);
                    integer::order(x, lines, scales, sums, halves, runs);
                }
            }
        }
    }
}

/// Rounds values to bf16, as [`Input::set`] does.
fn round_all(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = round(*x));
}

/// Stores activations by nibble. Line k of a tile holds the columns of nibble k: lane 4 t + u is
/// column 16 t + 8 (u mod 2) + c, where c is 2 k, or 2 (k - 4) + 1 for k >= 4.
fn order_f32(x: &[f32], lines: &mut [Line], sums: &mut [f32], halves: &mut [f32], runs: &mut [f32]) {
    for (tile, (x, lines)) in x.as_chunks::<GROUP>().0.iter().zip(lines.as_chunks_mut::<STEPS>().0).enumerate() {
        let mut rounded = *x;
        round_all(&mut rounded);
        for (k, line) in lines.iter_mut().enumerate() {
            let column = if k < 4 { 2 * k } else { 2 * (k - 4) + 1 };
            for t in 0..4 {
                let [a, b] = [0, 8].map(|eight| rounded[16 * t + eight + column].to_bits());
                line.0[4 * t..4 * t + 4].copy_from_slice(&[a, b, a, b]);
            }
        }
        put(sums, tile, rounded.iter().sum());
        let eights = rounded.as_chunks::<EIGHT>().0;
        let of_half = |half: usize| eights.iter().skip(half).step_by(2).flatten().sum();
        put_halves(halves, tile, [of_half(0), of_half(1)]);
        let runs_of = rounded.as_chunks::<16>().0;
        put_runs(runs, tile, std::array::from_fn(|run| runs_of[run].iter().sum()));
    }
}

/// Computes `out[i, r] = x[i] . rows[r]` for the rows of `x`. `scratch` belongs to the calling
/// thread.
pub(in super::super) fn tile_dots(
    isa: Isa,
    strips: &Strips<'_>,
    input: &Input,
    out: &mut Tile<'_>,
    scratch: &mut Vec<f32>,
) {
    let &Strips { code, bytes, cols, .. } = strips;
    let x = &input.x;
    assert!(out.cols() == strips.len() && (x.n, x.cols) == (out.rows(), cols), "shapes of packed dot products");
    assert!(strips.rows.start.is_multiple_of(TILE_ROWS), "packed dot products of whole strips");
    let method = input.method.expect("activations in tile order");
    scratch.resize(scratch.len().max(cols.div_ceil(4 * GROUP) * MOST_WORDS), 0.0);
    let size = code.strip_bytes(cols);
    let first = strips.rows.start / TILE_ROWS;
    for (strip, row) in (first..).zip((0..strips.len()).step_by(TILE_ROWS)) {
        let rows = TILE_ROWS.min(strips.len() - row);
        let job = Strip { code, strip: &bytes[strip * size..][..size], tiles: cols / GROUP, scales: scratch, x };
        let mut tile = out.narrow(row..row + rows);
        match (method, code) {
            (Method::F32, Code::File(code)) => file_codes::f32_strip(isa, code, job, &mut tile),
            (Method::F32, _) => f32_strip(isa, job, &mut tile),
            #[cfg(target_arch = "x86_64")]
            (Method::Bytes(bytes), Code::File(code)) => file_codes::integer_strip(bytes, code, job, &mut tile),
            #[cfg(target_arch = "x86_64")]
            (Method::Bytes(bytes), _) => integer::strip(bytes, job, &mut tile),
        }
    }
}

fn f32_strip(isa: Isa, job: Strip<'_>, out: &mut Tile<'_>) {
    by_isa!(isa, f32_body::<>(job: Strip<'_>, out: &mut Tile<'_>))
}

#[inline(always)]
unsafe fn f32_body<V: Vector>(job: Strip<'_>, out: &mut Tile<'_>) {
    // SAFETY: the instruction set of V is enabled.
    unsafe { job.run::<V>(out) }
}

impl Strip<'_> {
    /// Multiplies all rows of activations. The order in which a row is summed does not depend on
    /// the other rows.
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self, out: &mut Tile<'_>) {
        self.decode_scales();
        // SAFETY: the caller's contract.
        unsafe {
            match self.code.form().words {
                1 => self.rows::<V, false, WORDS>(out),
                _ => self.rows::<V, true, MOST_WORDS>(out),
            }
        }
    }

    /// [`Self::run`] where four tiles have `N` words.
    #[inline(always)]
    unsafe fn rows<V: Vector, const HALVES: bool, const N: usize>(&self, out: &mut Tile<'_>) {
        let (n, mut i) = (out.rows(), 0);
        while i < n {
            // SAFETY: the caller's contract. Sums of up to 16 rows of weights and activations fit
            // in registers.
            unsafe {
                match (n - i, V::LANES) {
                    (1, _) => self.block::<V, HALVES, N, 1, 8>(i, out),
                    (2 | 3, 16) => self.block::<V, HALVES, N, 2, 8>(i, out),
                    (2 | 3, _) => self.block::<V, HALVES, N, 2, 4>(i, out),
                    (_, 16) => self.block::<V, HALVES, N, 4, 4>(i, out),
                    _ => self.block::<V, HALVES, N, 4, 2>(i, out),
                }
            }
            i += [1, 2, 2, 4][(n - i).min(4) - 1];
        }
    }

    /// Multiplies `B` rows of activations, from `first` on, by `G` pairs of weight rows at a time.
    #[inline(always)]
    unsafe fn block<V: Vector, const HALVES: bool, const N: usize, const B: usize, const G: usize>(
        &self,
        first: usize,
        out: &mut Tile<'_>,
    ) {
        let (tiles, quads) = (self.tiles, self.tiles.div_ceil(4));
        let x: [*const u8; B] = array_of!(B, b => self.x.lines[(first + b) * tiles * STEPS..].as_ptr().cast());
        // SAFETY: the strip has `tiles` tiles and words for `quads` of four, activations a line for
        // every step of a tile and one of sums for every quad; `first + B` is at most the rows of
        // activations.
        unsafe {
            let sums = if HALVES { &self.x.halves } else { &self.x.sums };
            let sums: [*const f32; B] = array_of!(B, b => sums[(first + b) * quads..].as_ptr().cast());
            let mut zeros = [[V::splat(0.0); MOST_WORDS / 8]; B];
            for quad in 0..quads {
                let offsets: [f32; N] = self.offsets(quad * N);
                for b in 0..B {
                    for j in 0..N / V::LANES {
                        let sums = V::load(sums[b].add(quad * 16 + j * V::LANES % 16));
                        zeros[b][j] = V::load(offsets.as_ptr().add(j * V::LANES)).mul_add(sums, zeros[b][j]);
                    }
                }
            }
            let mut zero = [[0f32; N]; B];
            for b in 0..B {
                for j in 0..N / V::LANES {
                    zeros[b][j].store(zero[b].as_mut_ptr().add(j * V::LANES));
                }
            }
            for g in (0..8).step_by(G) {
                let acc = self.products::<V, HALVES, B, G>(&x, g);
                for b in 0..B {
                    for i in 0..G {
                        // The last 8 lanes stay zero for vectors of 8 lanes.
                        let mut lanes = [0f32; 16];
                        acc[b][i].store(lanes.as_mut_ptr());
                        for half in [8, 4] {
                            for l in 0..half {
                                lanes[l] += lanes[l + half];
                            }
                        }
                        for second in 0..2 {
                            let row = g + i + 8 * second;
                            let z = zero_of::<HALVES>(&zero[b][(g + i) * (N / 8)..][..N / 8], second);
                            if row < out.cols() {
                                out.row_mut(first + b)[row] = lanes[2 * second] + lanes[2 * second + 1] - z;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Returns the scaled sums of `code * x` of `G` pairs of rows from `g` on, in lanes by row.
    #[inline(always)]
    unsafe fn products<V: Vector, const HALVES: bool, const B: usize, const G: usize>(
        &self,
        x: &[*const u8; B],
        g: usize,
    ) -> [[V; G]; B] {
        // Scales of a pair of rows in a tile, and in four tiles.
        let of_tile = if HALVES { 4 } else { 2 };
        let (tiles, low_bits) = (self.tiles, self.code.form().low_bits);
        let (planes, levels) = (1 + usize::from(low_bits > 0), (1 << low_bits) as f32);
        // SAFETY: the caller's contract.
        unsafe {
            let mut acc = [[V::splat(0.0); G]; B];
            let mut two: Line;
            for tile in 0..tiles {
                let scales = self.scales.as_ptr().add(((tile / 4 * 8 + g) * 4 + tile % 4) * of_tile);
                let line = tile * STEPS * 64;
                for i in 0..G {
                    let mut part = [V::splat(0.0); B];
                    for plane in 0..planes {
                        let mut codes = if plane == 0 { self.codes(tile, g + i) } else { self.low_codes(tile, g + i) };
                        self.prefetch(codes);
                        if plane > 0 {
                            if low_bits == 2 {
                                two = self.low_nibbles(tile, g + i);
                                codes = two.0.as_ptr().cast();
                            }
                            for b in 0..B {
                                part[b] = part[b].mul_add(V::splat(levels), V::splat(0.0));
                            }
                        }
                        for lane in (0..16).step_by(V::LANES) {
                            for step in 0..STEPS {
                                let nibbles = V::load_nibbles(codes.add(4 * lane), 4 * step as u32);
                                for b in 0..B {
                                    let x = V::load(x[b].add(line + step * 64 + 4 * lane).cast());
                                    part[b] = nibbles.mul_add(x, part[b]);
                                }
                            }
                        }
                    }
                    let scales = scales.add(i * 4 * of_tile);
                    let scale = if HALVES { V::load_fours(scales) } else { V::load_pairs(scales) };
                    for b in 0..B {
                        acc[b][i] = scale.mul_add(part[b], acc[b][i]);
                    }
                }
            }
            acc
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::maths::tests::random;
    use super::*;
    use crate::quant::file::random_strip;

    /// Returns a packed matrix of random codes, scales and zero points, and its values.
    fn packed(code: Code, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
        let mut values = random(rows.next_multiple_of(TILE_ROWS) * cols, rows as u64);
        values[rows * cols..].fill(0.0);
        let mut bytes = vec![0; code.bytes(rows, cols)];
        if let Code::File(file) = code {
            let strips = bytes.chunks_exact_mut(code.strip_bytes(cols)).enumerate();
            strips.for_each(|(i, out)| random_strip(file, cols, 0.5, i as u32, out));
            let mut out = vec![0.0; rows * cols];
            out.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| code.unpack_row(&bytes, rows, cols, row, out));
            return (bytes, out);
        }
        let strips = bytes.chunks_exact_mut(code.strip_bytes(cols)).zip(values.chunks_exact(TILE_ROWS * cols));
        strips.for_each(|(out, values)| code.pack_strip(values, cols, None, out));
        let mut out = vec![0.0; rows * cols];
        out.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| code.unpack_row(&bytes, rows, cols, row, out));
        (bytes, out)
    }

    fn methods() -> Vec<(Isa, Method)> {
        let all = Isa::available().into_iter().chain([Isa::EXACT]);
        all.flat_map(|isa| Method::available(isa).into_iter().map(move |method| (isa, method))).collect()
    }

    #[test]
    fn tile_dots_match_an_f64_loop_with_every_method() {
        for code in Code::stored() {
            for (rows, cols) in [(16, 64), (37, 192), (48, 576), (16, 1536)] {
                let (bytes, w) = packed(code, rows, cols);
                for n in [1, 2, 3, 4, 7] {
                    let mut x = random(n * cols, 5);
                    round_all(&mut x);
                    // Bound on the error of rounding each group of activations to 16 bits.
                    let rounding = |i: usize, r: usize| -> f64 {
                        let groups = x[i * cols..][..cols].chunks(GROUP).zip(w[r * cols..][..cols].chunks(GROUP));
                        let most = |x: &[f32]| x.iter().fold(0f32, |m, v| m.max(v.abs())) as f64;
                        let sum = |w: &[f32]| w.iter().map(|w| w.abs() as f64).sum::<f64>();
                        groups.map(|(x, w)| most(x) / 65_000.0 * sum(w)).sum()
                    };
                    for (isa, method) in methods() {
                        let (mut input, mut scratch) = (Input::default(), Vec::new());
                        input.set(method, &x, n, cols);
                        let mut out = vec![f32::NAN; n * (rows + 2)];
                        let strips = Strips::new(code, &bytes, cols, 0..rows);
                        let mut tile = Tile::new(&mut out, n, rows + 2);
                        tile_dots(isa, &strips, &input, &mut tile.narrow(1..rows + 1), &mut scratch);
                        for (i, r) in (0..n).flat_map(|i| (0..rows).map(move |r| (i, r))) {
                            let want: f64 = (0..cols).map(|c| x[i * cols + c] as f64 * w[r * cols + c] as f64).sum();
                            let size: f64 = (0..cols).map(|c| (x[i * cols + c] * w[r * cols + c]).abs() as f64).sum();
                            let got = out[i * (rows + 2) + r + 1] as f64;
                            let case = format!("{} {method:?} {code:?} {rows}x{cols}x{n}", isa.name());
                            let rounding = if method == Method::F32 { 0.0 } else { rounding(i, r) };
                            assert!((got - want).abs() < 2e-6 * size + rounding, "{case}: {got} {want}");
                        }
                        let beside = |i: usize| out[i * (rows + 2)].is_nan() && out[(i + 1) * (rows + 2) - 1].is_nan();
                        assert!((0..n).all(beside), "wrote beside");
                        // A row's sums do not depend on the rows beside it.
                        input.set(method, &x[..cols], 1, cols);
                        let mut alone = vec![0.0; rows];
                        tile_dots(isa, &strips, &input, &mut Tile::new(&mut alone, 1, rows), &mut scratch);
                        assert!(alone.iter().zip(&out[1..]).all(|(a, b)| a.to_bits() == b.to_bits()));
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_unpacked_as_their_rows() {
        for code in Code::stored() {
            let (bytes, values) = packed(code, 37, 320);
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; 5 * 128];
                Strips::new(code, &bytes, 320, 14..19).unpack(isa, 64..192, 128, &mut out);
                let want = (14..19).flat_map(|row| values[row * 320 + 64..row * 320 + 192].to_vec());
                assert!(out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{code:?} {}", isa.name());
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for code in Code::ALL {
            let mut values = vec![0.5; TILE_ROWS * 64];
            values[3 * 64 + 5] = f32::NAN;
            let mut bytes = vec![0; code.strip_bytes(64)];
            code.pack_strip(&values, 64, None, &mut bytes);
            for (isa, method) in methods() {
                let (mut input, mut out) = (Input::default(), [0.0; TILE_ROWS]);
                input.set(method, &[1.0; 64], 1, 64);
                let strips = Strips::new(code, &bytes, 64, 0..TILE_ROWS);
                tile_dots(isa, &strips, &input, &mut Tile::new(&mut out, 1, TILE_ROWS), &mut Vec::new());
                let bad: Vec<usize> = (0..TILE_ROWS).filter(|&r| out[r].is_nan()).collect();
                assert_eq!(bad, [3], "{code:?} {method:?} {}", isa.name());
            }
        }
    }
}
