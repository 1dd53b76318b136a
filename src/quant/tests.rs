//! Bytes that never change, bounds of errors, unusual groups.

use super::Code;
use super::file::FileCode;
use super::group::{GROUP, GroupCode, TILE_ROWS};
use super::q4::Q4;

const Q4K: Code = Code::File(FileCode::Q4K);

/// Values with outliers, the same on every machine.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| (next() + next() + next()) * if next() > 0.98 { 0.2 } else { 0.05 }).collect()
}

fn pack(code: Code, rows: &[f32], cols: usize, importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0xee; code.strip_bytes(cols)];
    code.pack_strip(rows, cols, importance, &mut out);
    out
}

fn unpack(code: Code, bytes: &[u8], cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; TILE_ROWS * cols];
    out.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| code.unpack_row(bytes, TILE_ROWS, cols, row, out));
    out
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn sizes_are_those_of_the_format() {
    assert_eq!(
        (Code::Q8.bytes(4096, 4096), Code::Q4.bytes(4096, 4096)),
        (4096 * 4096 * 33 / 32, 4096 * 4096 * 17 / 32)
    );
    // A single tile has words for four, and 17 rows are two strips.
    assert_eq!((Code::Q4.strip_bytes(64), Code::Q8.bytes(17, 64)), (512 + 128, 2 * (1024 + 128)));
}

#[test]
fn bytes_of_a_strip_never_change() {
    let (rows, importance) = (values(TILE_ROWS * 320), values(320).iter().map(|v| 0.01 + v * v).collect::<Vec<_>>());
    let golden = [(Code::Q8, None), (Code::Q4, None), (Code::Q4, Some(&importance[..]))].map(|(code, importance)| {
        let bytes = pack(code, &rows, 320, importance);
        // The whole, the first tile's start, the first words.
        let tiles = 5 * 512 * code.planes();
        let start = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        [digest(&bytes), start(0), start(tiles)]
    });
    assert_eq!(golden, GOLDEN, "{golden:#x?}");
}

const GOLDEN: [[u64; 3]; 3] = [
    [0x80b718d8eae1c71c, 0x797a59a894867956, 0x1343130e149c1755],
    [0x4b255631c19cd704, 0xadae7cdbd5b9ac89, 0x464f470f47f14af5],
    [0x54843d42a553c1b6, 0xadae7cdbd5b9ac89, 0x462f470f48914b15],
];

#[test]
fn a_code_is_where_the_layout_says() {
    let cols = 320;
    for code in Code::ALL {
        let most = ((1u32 << code.bits()) - 1) as u8;
        for (row, col, value) in [(0, 0, most), (0, 1, 5), (3, 17, 9), (11, 100, 3), (15, 319, most)] {
            let mut codes = vec![0u8; TILE_ROWS * cols];
            codes[row * cols + col] = value;
            let mut scales = vec![0.0; TILE_ROWS * cols / GROUP];
            scales[row * cols / GROUP + col / GROUP] = 1.0;
            let mut out = vec![0; code.strip_bytes(cols)];
            code.pack_codes(&codes, &scales, &vec![7.5; scales.len()], cols, &mut out);
            let (tile, g, t, c) = (col / 64, row % 8, col % 64 / 16, col % 8);
            let at = tile * 512 + (4 * g + t) * 16 + row / 8 * 8 + col % 16 / 8 * 4;
            let read = |plane: usize| {
                let w = u32::from_le_bytes(out[plane * 5 * 512 + at..][..4].try_into().unwrap());
                (w >> (4 * (c / 2) + 16 * (c % 2)) & 15) as u8
            };
            let found = (0..code.planes()).fold(0, |all, plane| all << 4 | read(plane));
            assert_eq!(found, value, "{code:?} {row} {col}");
            let word = code.planes() * 5 * 512 + 2 * (((tile / 4 * 8 + g) * 4 + tile % 4) * 2 + row / 8);
            let word = u16::from_le_bytes(out[word..word + 2].try_into().unwrap());
            let zero = if code == Code::Q4 { 7.5 } else { 128.0 };
            assert_eq!(code.scale_zero(word), (1.0, zero));
            let mut decoded = vec![0.0; cols];
            code.unpack_row(&out, TILE_ROWS, cols, row, &mut decoded);
            assert_eq!(decoded[col], value as f32 - zero);
        }
    }
}

#[test]
fn errors_are_within_half_a_step() {
    let cols = 256;
    let rows = values(TILE_ROWS * cols);
    // Mean squared error relative to the mean square: uniform rounding with 8 bits, and with 4 bits
    // and a search.
    for (code, bound) in [(Code::Q8, 6e-5), (Code::Q4, 1.2e-2), (Q4K, 0.9e-2)] {
        let out = unpack(code, &pack(code, &rows, cols, None), cols);
        let error: f32 = rows.iter().zip(&out).map(|(a, b)| (a - b) * (a - b)).sum();
        let power: f32 = rows.iter().map(|v| v * v).sum();
        assert!(error < bound * power, "{code:?}: {}", error / power);
        if code == Code::Q8 {
            for (x, y) in rows.chunks_exact(GROUP).zip(out.chunks_exact(GROUP)) {
                let step = x.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                assert!(x.iter().zip(y).all(|(a, b)| (a - b).abs() <= 0.502 * step));
            }
        }
    }
}

#[test]
fn importance_moves_the_error_to_where_it_counts_less() {
    let cols = 64;
    let rows = values(TILE_ROWS * cols);
    let importance: Vec<f32> = (0..cols).map(|c| if c % 8 == 0 { 100.0 } else { 1.0 }).collect();
    let error = |out: &[f32]| -> f32 {
        let one = |(i, (a, b)): (usize, (&f32, &f32))| importance[i % cols] * (a - b) * (a - b);
        rows.iter().zip(out).enumerate().map(one).sum()
    };
    for code in [Code::Q4, Q4K] {
        let [plain, weighted] =
            [None, Some(&importance[..])].map(|w| error(&unpack(code, &pack(code, &rows, cols, w), cols)));
        assert!(weighted < 0.75 * plain, "{code:?}: {weighted} {plain}");
    }
}

#[test]
fn unusual_groups_have_codes_too() {
    for code in Code::ALL.into_iter().chain([Q4K]) {
        let mut rows = vec![0.0f32; TILE_ROWS * 64];
        rows[64..128].fill(0.25);
        rows[128..192].fill(-3.0);
        rows[192] = 1e30;
        rows[256..320].iter_mut().enumerate().for_each(|(i, v)| *v = 1e-7 * i as f32);
        rows[320] = f32::NAN;
        rows[384] = f32::INFINITY;
        rows[448..512].iter_mut().enumerate().for_each(|(i, v)| *v = 1.0 + i as f32 / 64.0);
        let out = unpack(code, &pack(code, &rows, 64, None), 64);
        assert!(out[..64].iter().all(|&v| v == 0.0), "{code:?}");
        assert!(out[64..128].iter().all(|v| (v - 0.25).abs() < 0.005), "{code:?} {:?}", &out[64..128]);
        assert!(out[128..192].iter().all(|v| (v + 3.0).abs() < 0.05), "{code:?} {:?}", &out[128..192]);
        assert!(out[192..320].iter().all(|v| v.is_finite()), "{code:?}");
        // Values that are not finite stay visible.
        assert!(out[320..448].iter().all(|v| v.is_nan()), "{code:?}");
        assert!(out[448..512].iter().zip(&rows[448..512]).all(|(a, b)| (a - b).abs() < 0.08), "{code:?}");
        assert!(out[512..].iter().all(|&v| v == 0.0));
    }
}

/// A row that is no multiple of 256 columns ends with groups of its own.
#[test]
fn q4_k_has_less_error_than_q4_in_the_last_columns_too() {
    for cols in [64, 320, 576] {
        let rows = values(TILE_ROWS * cols);
        let error = |code: Code| -> f32 {
            let out = unpack(code, &pack(code, &rows, cols, None), cols);
            let last = (0..rows.len()).filter(|i| i % cols / 64 == (cols - 1) / 64);
            last.map(|i| (rows[i] - out[i]) * (rows[i] - out[i])).sum()
        };
        let [q4, q4_k] = [Code::Q4, Q4K].map(error);
        assert!(q4_k < 0.85 * q4, "{cols}: {q4_k} {q4}");
    }
}

#[test]
fn q4_words_hold_the_nearest_scale() {
    for scale in [1.0f32, 1.01, 0.0333, 6.2e-5, 5e-5, 1e-6, 65_000.0, 1e9] {
        let (stored, zero) = Q4.scale_zero(Q4.word(scale, 3.3));
        let step = (scale / 64.0).max(1e-6);
        assert!((stored - scale.min(65_024.0)).abs() <= 0.51 * step, "{scale} {stored}");
        assert_eq!(zero, 3.5);
    }
}

#[test]
fn codes_of_files_are_rows_in_order() {
    assert!(FileCode::all().enumerate().all(|(i, code)| code as usize == i));
    assert_eq!(
        FileCode::all().filter(|code| code.planes() == 1).map(FileCode::name).collect::<Vec<_>>(),
        ["q4_0", "q4_1", "q4_k"]
    );
}
