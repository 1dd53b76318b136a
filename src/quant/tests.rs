//! Bytes that never change, bounds of errors, unusual groups.

use super::Code;
use super::file::FileCode;
use super::group::{GROUP, GroupCode, TILE_ROWS};
use super::halves::Halves;
use super::q4::Q4;

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
    assert_eq!(
        (Code::Q4H.bytes(4096, 4096), Code::Q6H.bytes(4096, 4096)),
        (4096 * 4096 * 9 / 16, 4096 * 4096 * 13 / 16)
    );
    // A single tile has words for four, and 17 rows are two strips.
    assert_eq!((Code::Q4.strip_bytes(64), Code::Q8.bytes(17, 64)), (512 + 128, 2 * (1024 + 128)));
}

#[test]
fn bytes_of_a_strip_never_change() {
    let (rows, importance) = (values(TILE_ROWS * 320), values(320).iter().map(|v| 0.01 + v * v).collect::<Vec<_>>());
    let importance = Some(&importance[..]);
    let all = [Code::Q8, Code::Q4, Code::Q4H, Code::Q6H].map(|code| (code, None)).into_iter();
    let golden = all.chain([Code::Q4, Code::Q4H].map(|code| (code, importance))).map(|(code, importance)| {
        let bytes = pack(code, &rows, 320, importance);
        // The whole, the first tile's start, the first words.
        let tiles = 5 * code.form().tile_bytes();
        let start = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        [digest(&bytes), start(0), start(tiles)]
    });
    let golden: Vec<_> = golden.collect();
    assert_eq!(golden, GOLDEN, "{golden:#x?}");
}

const GOLDEN: [[u64; 3]; 6] = [
    [0x80b718d8eae1c71c, 0x797a59a894867956, 0x1343130e149c1755],
    [0x4b255631c19cd704, 0xadae7cdbd5b9ac89, 0x464f470f47f14af5],
    [0x1a2ea2c432dad575, 0x5a5d08b8d6cabd89, 0x453e494944b04ad8],
    [0x4374b0c1b0694d68, 0x5b5e09b8d6c9bd89, 0x35c1384933b53b5a],
    [0x54843d42a553c1b6, 0xadae7cdbd5b9ac89, 0x462f470f48914b15],
    [0x27422e96d378c232, 0x5a5d09b8d6cabd89, 0x453e484844304ad9],
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
            let at = (4 * g + t) * 16 + row / 8 * 8 + col % 16 / 8 * 4;
            let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
            let nibble = |at: usize| (word(at) >> (4 * (c / 2) + 16 * (c % 2)) & 15) as u8;
            let (high, low) = (nibble(tile * 512 + at), 5 * 512 + tile * (code.form().tile_bytes() - 512));
            let found = match code.bits() {
                4 => high,
                8 => high << 4 | nibble(low + at),
                // Two bits of every other column in a byte: even nibbles of both u32, then odd
                // ones.
                _ => {
                    let (byte, place) = ([0, 0, 1, 1][c / 2] + 2 * (c % 2), c / 2 % 2 + 2 * (col % 16 / 8));
                    let two = word(low + (4 * g + t) * 8 + row / 8 * 4) >> (8 * byte + 2 * place) & 3;
                    high << 2 | two as u8
                }
            };
            assert_eq!(found, value, "{code:?} {row} {col}");
            let words = code.form().words;
            let index =
                (((tile / 4 * 8 + g) * 4 + tile % 4) * 2 + row / 8) * words + if words == 2 { col / 8 % 2 } else { 0 };
            let at = 5 * code.form().tile_bytes() + 2 * index;
            let word = u16::from_le_bytes(out[at..at + 2].try_into().unwrap());
            let zero = if code == Code::Q8 { 128.0 } else { 7.5 };
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
    for (code, bound) in [(Code::Q8, 6e-5), (Code::Q4, 1.2e-2), (Code::Q4H, 0.9e-2), (Code::Q6H, 6e-4)] {
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
    for code in [Code::Q4, Code::Q4H] {
        let [plain, weighted] =
            [None, Some(&importance[..])].map(|w| error(&unpack(code, &pack(code, &rows, cols, w), cols)));
        assert!(weighted < 0.75 * plain, "{code:?}: {weighted} {plain}");
    }
}

#[test]
fn unusual_groups_have_codes_too() {
    for code in Code::ALL {
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

#[test]
fn a_scale_for_each_half_has_less_error() {
    let cols = 320;
    let rows = values(TILE_ROWS * cols);
    let error = |code: Code| -> f32 {
        let out = unpack(code, &pack(code, &rows, cols, None), cols);
        rows.iter().zip(&out).map(|(a, b)| (a - b) * (a - b)).sum()
    };
    let [q4, halves] = [Code::Q4, Code::Q4H].map(error);
    assert!(halves < 0.75 * q4, "{halves} {q4}");
}

/// Beside the least error of all words whose scales are near, for codes that are nearest on their
/// grids.
#[test]
fn the_search_of_halves_is_near_the_best_word() {
    let (rows, weights) = (values(TILE_ROWS * GROUP), [1.0; GROUP]);
    let (mut found, mut least) = (0.0, 0.0);
    for x in rows.as_chunks::<GROUP>().0 {
        let group = Halves::<4>.choose(x, &weights);
        for half in 0..2 {
            let of_half: Vec<f64> = (0..GROUP).filter(|i| i / 8 % 2 == half).map(|i| f64::from(x[i])).collect();
            let error = |word: u16| -> f64 {
                let (scale, zero) = Halves::<4>.scale_zero(word);
                let (scale, zero) = (f64::from(scale), f64::from(zero));
                let one = |x: &f64| (x - scale * ((x / scale + zero).round().clamp(0.0, 15.0) - zero)).powi(2);
                of_half.iter().map(one).sum()
            };
            let word = group.words[half];
            let near = (-6..=6).filter_map(|step| (word >> 7).checked_add_signed(step));
            let best = near.flat_map(|scale| (0..128).map(move |zero| scale << 7 | zero)).map(error);
            let best = best.fold(f64::INFINITY, f64::min);
            assert!(error(word) >= best);
            (found, least) = (found + error(word), least + best);
        }
    }
    assert!(found < 1.08 * least, "{found} {least}");
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
        FileCode::all().filter(|code| code.form().bits() == 4).map(FileCode::name).collect::<Vec<_>>(),
        ["q4_0", "q4_1", "q4_k", "mxfp4"]
    );
}
