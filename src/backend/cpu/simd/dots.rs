//! Dot products with stored rows and weighted sums of stored rows: GEMV (`out = W x`) and the two
//! halves of attention in decode (`scores = K q`, `out = p V`).

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(not(target_arch = "aarch64"))]
use super::vector::Exact;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Bf16, Elem, F16, F32, Fp8, Int8, Portable, Vector};
use super::{BLOCK_COLS, Format, Isa, Set, array_of, by_isa};

/// Contiguous rows of `cols` values.
#[derive(Clone, Copy)]
pub(in super::super) struct Rows<'a> {
    bytes: &'a [u8],
    format: Format,
    cols: usize,
    len: usize,
    /// Prefetch distance in bytes.
    ahead: usize,
}

impl<'a> Rows<'a> {
    pub fn new(bytes: &'a [u8], format: Format, cols: usize) -> Self {
        let row_bytes = format.size_bytes() * cols;
        assert!(row_bytes > 0 && bytes.len().is_multiple_of(row_bytes), "{} bytes of {cols} columns", bytes.len());
        Self { bytes, format, cols, len: bytes.len() / row_bytes, ahead: AHEAD_BYTES }
    }

    /// Prefetches `next` while these rows are processed, instead of the bytes that follow them.
    pub fn then(self, next: &[u8]) -> Self {
        Rows { ahead: (next.as_ptr() as usize).wrapping_sub(self.bytes.as_ptr() as usize), ..self }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn slice(&self, rows: std::ops::Range<usize>) -> Rows<'a> {
        let row_bytes = self.format.size_bytes() * self.cols;
        let bytes = &self.bytes[rows.start * row_bytes..rows.end * row_bytes];
        Rows { bytes, len: rows.len(), ..*self }
    }

    /// The rows as f32 where they are stored so and aligned.
    pub fn as_f32(&self) -> Option<&'a [f32]> {
        if self.format == Format::F32 { bytemuck::try_cast_slice(self.bytes).ok() } else { None }
    }
}

macro_rules! by_format {
    ($format:expr, $call:ident ( $($arg:expr),* $(,)? )) => {
        match $format {
            Format::F32 => $call::<F32>($($arg),*),
            Format::F16 => $call::<F16>($($arg),*),
            Format::Bf16 => $call::<Bf16>($($arg),*),
            Format::Fp8 => $call::<Fp8>($($arg),*),
            Format::Int8 => $call::<Int8>($($arg),*),
        }
    };
}

/// `out[i, r] = x[i] . rows[r]` for x `[out.rows, cols]`. Reads the rows once per `Vector::MAX_RHS`
/// right-hand sides, after the first time from L1.
pub(in super::super) fn dots(isa: Isa, rows: Rows<'_>, x: &[f32], out: &mut Tile<'_>) {
    assert!(out.cols() == rows.len && x.len() >= out.rows() * rows.cols, "shapes of a row of dot products");
    by_format!(rows.format, dots_of(isa, rows, x, out));
}

fn dots_of<E: Elem>(isa: Isa, rows: Rows<'_>, x: &[f32], out: &mut Tile<'_>) {
    debug_assert_eq!(E::FORMAT, rows.format);
    let (w, n_rows, cols, x, n) = (rows.bytes.as_ptr(), rows.len, rows.cols, x.as_ptr(), out.rows());
    let (width, out, ahead) = (out.width(), out.as_mut_ptr(), rows.ahead);
    // The pointers cover `n_rows x cols` elements, `n x cols` and `n` rows of `n_rows` results.
    by_isa!(
        isa,
        dots_body::<E>(
            w: *const u8, n_rows: usize, cols: usize, ahead: usize, x: *const f32, n: usize, out: *mut f32, width: usize
        )
    )
}

#[allow(clippy::too_many_arguments)] // The shape of a kernel.
#[inline(always)]
unsafe fn dots_body<V: Vector, E: Elem>(
    w: *const u8,
    n_rows: usize,
    cols: usize,
    ahead: usize,
    x: *const f32,
    n: usize,
    out: *mut f32,
    width: usize,
) {
    let row_bytes = cols * E::FORMAT.size_bytes();
    let mut r = 0;
    while r < n_rows {
        let left = n_rows - r;
        // SAFETY: `Block` stays inside what the caller has checked: rows r.., x and out from i on.
        unsafe {
            let at = w.add(r * row_bytes);
            if (n == 1 || V::EIGHT_ROWS) && left >= 8 {
                let block = Block { w: at, row_bytes, cols, ahead, valid: 8 };
                for (i, some) in passes::<V>(n) {
                    let (x, out) = (x.add(i * cols), out.add(i * width + r));
                    match some {
                        2 if V::EIGHT_ROWS => block.run::<V, E, 8, 2>(x, out, width),
                        3 if V::EIGHT_ROWS => block.run::<V, E, 8, 3>(x, out, width),
                        _ => block.run::<V, E, 8, 1>(x, out, width),
                    }
                }
                r += 8;
                continue;
            }
            let block = Block { w: at, row_bytes, cols, ahead, valid: left.min(4) };
            for (i, some) in passes::<V>(n) {
                let (x, out) = (x.add(i * cols), out.add(i * width + r));
                match some {
                    1 => block.run::<V, E, 4, 1>(x, out, width),
                    2 => block.run::<V, E, 4, 2>(x, out, width),
                    _ => block.run::<V, E, 4, 3>(x, out, width),
                }
            }
        }
        r += left.min(4);
    }
}

/// Splits `n` right-hand sides into the fewest passes, of sizes as equal as possible. Returns the
/// first of each pass and its size.
#[inline(always)]
fn passes<V: Vector>(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let passes = n.div_ceil(V::MAX_RHS);
    (0..passes).map(move |pass| (pass * n / passes, (pass + 1) * n / passes - pass * n / passes))
}

/// Prefetch distance for weights (measured: half and twice are slower).
const AHEAD_BYTES: usize = 9 << 10;

/// Rows from `w` on; the first `valid` exist.
struct Block {
    w: *const u8,
    row_bytes: usize,
    cols: usize,
    ahead: usize,
    valid: usize,
}

impl Block {
    /// `N` times `R` dot products; `R` is a multiple of 4.
    #[inline(always)]
    unsafe fn run<V: Vector, E: Elem, const R: usize, const N: usize>(
        &self,
        x: *const f32,
        out: *mut f32,
        width: usize,
    ) {
        let size = E::FORMAT.size_bytes();
        // SAFETY: rows below `valid` exist; a missing row is read as the last that exists, and its
        // result is dropped. Prefetching never faults.
        unsafe {
            let rows: [*const u8; R] = array_of!(R, r => self.w.add(r.min(self.valid - 1) * self.row_bytes));
            let mut ahead = self.w.wrapping_add(self.ahead);
            for start in (0..self.cols).step_by(BLOCK_COLS) {
                let end = self.cols.min(start + BLOCK_COLS);
                let mut acc = [[V::splat(0.0); N]; R];
                let mut c = start;
                while c + V::LANES <= end {
                    let x: [V; N] = array_of!(N, i => V::load(x.add(i * self.cols + c)));
                    for r in 0..R {
                        // Cache lines in address order, not row by row.
                        if (r * V::LANES * size).is_multiple_of(64) {
                            prefetch(ahead);
                            ahead = ahead.wrapping_add(64);
                        }
                        let w = E::load::<V>(rows[r].add(c * size));
                        for i in 0..N {
                            acc[r][i] = w.mul_add(x[i], acc[r][i]);
                        }
                    }
                    c += V::LANES;
                }
                // Copied by unrolled loops: an index of `acc` unknown to the compiler would keep
                // the accumulators in memory.
                let mut ends = [[V::splat(0.0); R]; N];
                for i in 0..N {
                    for r in 0..R {
                        ends[i][r] = acc[r][i];
                    }
                }
                let ends = std::hint::black_box(&ends);
                for i in 0..N {
                    for block in 0..R / 4 {
                        let mut sums = V::sum4(array_of!(4, r => ends[i][block * 4 + r]));
                        for (r, sum) in sums.iter_mut().enumerate() {
                            for c in c..end {
                                *sum += E::scalar(rows[block * 4 + r].add(c * size)) * *x.add(i * self.cols + c);
                            }
                        }
                        for (r, sum) in sums.into_iter().enumerate().take(self.valid.saturating_sub(block * 4)) {
                            let out = out.add(i * width + block * 4 + r);
                            *out = if start > 0 { *out + sum } else { sum };
                        }
                    }
                }
            }
        }
    }
}

/// Prefetches the cache line at `at` into L1. The address need not be mapped.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: prefetching never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    }
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nomem, nostack, preserves_flags))
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches the cache line at `at` into L2. The address need not be mapped.
#[inline(always)]
pub(super) fn prefetch_l2(at: *const u8) {
    // SAFETY: prefetching never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast())
    }
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nomem, nostack, preserves_flags))
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches `bytes` into L2.
pub(in super::super) fn fetch(bytes: &[u8]) {
    bytes.chunks(64).for_each(|line| prefetch_l2(line.as_ptr()));
}

/// `out[i] += sum over r of p[i, r] * rows[r]` for p `[out.rows, stride]`, in the order of the
/// rows.
pub(in super::super) fn weighted_sum(isa: Isa, rows: Rows<'_>, p: &[f32], stride: usize, out: &mut Tile<'_>) {
    assert!(out.cols() == rows.cols && rows.len <= stride, "shapes of a weighted sum");
    let row_bytes = rows.cols * rows.format.size_bytes();
    let slots = Slots { pages: &[rows.bytes], page_slots: 1 << 31, format: rows.format, row_bytes };
    let order: Vec<u32> = (0..rows.len as u32).collect();
    weighted_sum_of_slots(isa, slots, &order, p, stride, out);
}

/// Rows of `row_bytes` in pages of `page_slots` each, a power of two.
#[derive(Clone, Copy)]
pub(in super::super) struct Slots<'a> {
    pub pages: &'a [&'a [u8]],
    pub page_slots: usize,
    pub format: Format,
    pub row_bytes: usize,
}

/// `out[i] += sum over slots of p[i, slot] * rows[slot]` for p in rows of `stride`: the first
/// `out.cols` columns of the slots of `order`, in its order.
pub(in super::super) fn weighted_sum_of_slots(
    isa: Isa,
    slots: Slots<'_>,
    order: &[u32],
    p: &[f32],
    stride: usize,
    out: &mut Tile<'_>,
) {
    // `Iterator::max` compares by references, and is not vectorised.
    let Some(last) = order.iter().copied().reduce(u32::max) else { return };
    let (last, cols_bytes) = (last as usize, out.cols() * slots.format.size_bytes());
    assert!(slots.page_slots.is_power_of_two() && cols_bytes <= slots.row_bytes, "slots of a weighted sum");
    let held = |page: &[u8]| page.len() >= (slots.page_slots.min(last + 1) - 1) * slots.row_bytes + cols_bytes;
    assert!(last / slots.page_slots < slots.pages.len() && slots.pages.iter().all(|p| held(p)), "slots in pages");
    assert!(out.rows() == 0 || p.len() > (out.rows() - 1) * stride + last, "weights of a weighted sum");
    by_format!(slots.format, weighted_sum_of(isa, slots, order, p, stride, out));
}

fn weighted_sum_of<E: Elem>(isa: Isa, slots: Slots<'_>, order: &[u32], p: &[f32], stride: usize, out: &mut Tile<'_>) {
    debug_assert_eq!(E::FORMAT, slots.format);
    let (p, n, cols, width, out) = (p.as_ptr(), out.rows(), out.cols(), out.width(), out.as_mut_ptr());
    // The pages cover all slots of `order`, and the other pointers `n` rows of weights of these
    // slots and of `cols` sums.
    by_isa!(
        isa,
        weighted_body::<E>(
            slots: Slots<'_>, order: &[u32], cols: usize, p: *const f32, stride: usize, n: usize, out: *mut f32,
            width: usize
        )
    )
}

#[allow(clippy::too_many_arguments)] // The shape of a kernel.
#[inline(always)]
unsafe fn weighted_body<V: Vector, E: Elem>(
    slots: Slots<'_>,
    order: &[u32],
    cols: usize,
    p: *const f32,
    stride: usize,
    n: usize,
    out: *mut f32,
    width: usize,
) {
    for (i, some) in passes::<V>(n) {
        // SAFETY: rows i..i + some of `p` and `out`, all slots: what the caller has checked.
        unsafe {
            let sums = Sums { slots, order, cols, p: p.add(i * stride), stride, out: out.add(i * width), width };
            match some {
                1 => sums.run::<V, E, 1>(),
                2 => sums.run::<V, E, 2>(),
                _ => sums.run::<V, E, 3>(),
            }
        }
    }
}

struct Sums<'a> {
    slots: Slots<'a>,
    order: &'a [u32],
    cols: usize,
    p: *const f32,
    stride: usize,
    out: *mut f32,
    width: usize,
}

/// Slots between the row that is added and the one that is prefetched.
const AHEAD_SLOTS: usize = 8;

impl Sums<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, E: Elem, const N: usize>(&self) {
        let mut c = 0;
        // SAFETY: every column below `cols` is visited once, by the widest step that fits.
        unsafe {
            while c + 4 * V::LANES <= self.cols {
                self.columns::<V, E, N, 4>(c);
                c += 4 * V::LANES;
            }
            while c + V::LANES <= self.cols {
                self.columns::<V, E, N, 1>(c);
                c += V::LANES;
            }
            for c in c..self.cols {
                for i in 0..N {
                    let out = self.out.add(i * self.width + c);
                    for &slot in self.order {
                        let v = E::scalar(self.row(slot).add(c * E::FORMAT.size_bytes()));
                        *out += *self.p.add(i * self.stride + slot as usize) * v;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn row(&self, slot: u32) -> *const u8 {
        let slot = slot as usize;
        let shift = self.slots.page_slots.trailing_zeros();
        // SAFETY: the pages cover all slots.
        unsafe {
            let page = self.slots.pages.get_unchecked(slot >> shift).as_ptr();
            page.add((slot & (self.slots.page_slots - 1)) * self.slots.row_bytes)
        }
    }

    /// `C` vectors of columns from `c` on.
    #[inline(always)]
    unsafe fn columns<V: Vector, E: Elem, const N: usize, const C: usize>(&self, c: usize) {
        let size = E::FORMAT.size_bytes();
        // SAFETY: columns c..c + C * LANES of all slots exist; prefetching never faults.
        unsafe {
            let mut acc: [[V; C]; N] =
                array_of!(N, i => array_of!(C, j => V::load(self.out.add(i * self.width + c + j * V::LANES))));
            for (r, &slot) in self.order.iter().enumerate() {
                let row = self.row(slot).add(c * size);
                let later = self.row(*self.order.get_unchecked((r + AHEAD_SLOTS).min(self.order.len() - 1)));
                for line in 0..(C * V::LANES * size).div_ceil(64) {
                    prefetch(later.wrapping_add(c * size + line * 64));
                }
                let v: [V; C] = array_of!(C, j => E::load::<V>(row.add(j * V::LANES * size)));
                for i in 0..N {
                    let p = V::splat(*self.p.add(i * self.stride + slot as usize));
                    for j in 0..C {
                        acc[i][j] = v[j].mul_add(p, acc[i][j]);
                    }
                }
            }
            for (i, acc) in acc.into_iter().enumerate() {
                for (j, acc) in acc.into_iter().enumerate() {
                    acc.store(self.out.add(i * self.width + c + j * V::LANES));
                }
            }
        }
    }
}

/// Converts `out.len()` stored values to f32, times `factor`.
pub(in super::super) fn widen(isa: Isa, bytes: &[u8], format: Format, factor: f32, out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * format.size_bytes(), "bytes to widen");
    by_format!(format, widen_of(isa, bytes, factor, out));
}

fn widen_of<E: Elem>(isa: Isa, bytes: &[u8], factor: f32, out: &mut [f32]) {
    let (len, bytes, out) = (out.len(), bytes.as_ptr(), out.as_mut_ptr());
    // Both pointers cover `len` elements.
    by_isa!(isa, widen_body::<E>(bytes: *const u8, len: usize, factor: f32, out: *mut f32))
}

#[inline(always)]
unsafe fn widen_body<V: Vector, E: Elem>(bytes: *const u8, len: usize, factor: f32, out: *mut f32) {
    let size = E::FORMAT.size_bytes();
    let mut i = 0;
    // SAFETY: elements below `len`; with a factor of 1 and nothing to add the values stay exact.
    unsafe {
        while i + V::LANES <= len {
            E::load::<V>(bytes.add(i * size)).mul_add(V::splat(factor), V::splat(0.0)).store(out.add(i));
            i += V::LANES;
        }
        for i in i..len {
            *out.add(i) = E::scalar(bytes.add(i * size)) * factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::simd::maths::tests::random;
    use crate::codec::{FP8_VALUES, fp8_encode, int8_value};
    use half::{bf16, f16};

    const FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::Bf16, Format::Fp8, Format::Int8];

    /// Stored bytes and what they mean.
    fn stored(values: &[f32], format: Format) -> (Vec<u8>, Vec<f32>) {
        match format {
            Format::F32 => (bytemuck::cast_slice(values).to_vec(), values.to_vec()),
            Format::F16 => {
                let h: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
                (bytemuck::cast_slice(&h).to_vec(), h.iter().map(|v| v.to_f32()).collect())
            }
            Format::Bf16 => {
                let h: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                (bytemuck::cast_slice(&h).to_vec(), h.iter().map(|v| v.to_f32()).collect())
            }
            Format::Fp8 => {
                let h: Vec<u8> = values.iter().map(|&v| fp8_encode(v)).collect();
                let values = h.iter().map(|&c| FP8_VALUES[c as usize]).collect();
                (h, values)
            }
            Format::Int8 => {
                // Small magnitudes, as the tolerance of `close` is meant for; all codes are read in
                // a test of their own.
                let codes: Vec<u8> = values.iter().map(|v| (v.to_bits() >> 16) as u8 & 0x87).collect();
                let values = codes.iter().map(|&c| int8_value(c)).collect();
                (codes, values)
            }
        }
    }

    fn close(a: f32, b: f32) -> bool {
        (a - b).abs() <= 2e-5 * (1.0 + b.abs())
    }

    #[test]
    fn dots_match_the_plain_loop_on_every_isa() {
        for isa in Isa::available() {
            for format in FORMATS {
                for (rows, cols, n) in
                    [(1, 5, 1), (3, 72, 2), (8, 64, 1), (13, 96, 5), (17, 131, 8), (30, 32, 3), (9, 128, 4)]
                {
                    let (bytes, w) = stored(&random(rows * cols, 1), format);
                    let x = random(n * cols, 2);
                    let mut out = vec![f32::NAN; n * (rows + 3)];
                    dots(
                        isa,
                        Rows::new(&bytes, format, cols),
                        &x,
                        &mut Tile::new(&mut out, n, rows + 3).narrow(1..rows + 1),
                    );
                    for i in 0..n {
                        for r in 0..rows {
                            let want: f32 = (0..cols).map(|c| x[i * cols + c] * w[r * cols + c]).sum();
                            let got = out[i * (rows + 3) + r + 1];
                            assert!(close(got, want), "{} {format:?} {rows}x{cols}x{n}: {got} {want}", isa.name());
                        }
                        assert!(
                            out[i * (rows + 3)].is_nan() && out[i * (rows + 3) + rows + 1].is_nan(),
                            "wrote beside"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn weighted_sums_match_the_plain_loop_on_every_isa() {
        for isa in Isa::available() {
            for format in FORMATS {
                for (rows, cols, n) in [(1, 5, 1), (7, 72, 2), (32, 64, 3), (33, 128, 8), (16, 32, 5), (130, 96, 4)] {
                    let (bytes, v) = stored(&random(rows * cols, 3), format);
                    let (p, before) = (random(n * (rows + 2), 4), random(n * cols, 5));
                    let mut out = before.clone();
                    let rows_of = Rows::new(&bytes, format, cols);
                    weighted_sum(isa, rows_of, &p, rows + 2, &mut Tile::new(&mut out, n, cols));
                    for i in 0..n {
                        for c in 0..cols {
                            let sum: f32 = (0..rows).map(|r| p[i * (rows + 2) + r] * v[r * cols + c]).sum();
                            let (got, want) = (out[i * cols + c], before[i * cols + c] + sum);
                            assert!(close(got, want), "{} {format:?} {rows}x{cols}x{n}: {got} {want}", isa.name());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn every_code_reads_as_the_codec_says() {
        let fp8 = (Format::Fp8, (|c| FP8_VALUES[c as usize]) as fn(u8) -> f32);
        for (format, value) in [fp8, (Format::Int8, int8_value)] {
            let codes: Vec<u8> = (0..=255).filter(|c| format != Format::Fp8 || c & 0x7f != 0x7f).collect();
            for isa in Isa::available() {
                let mut out = vec![0.0; codes.len()];
                let rows = Rows::new(&codes, format, codes.len());
                weighted_sum(isa, rows, &[1.0], 1, &mut Tile::new(&mut out, 1, codes.len()));
                assert!(codes.iter().zip(&out).all(|(&c, &v)| value(c) == v), "{format:?} {}", isa.name());
            }
        }
    }
}
