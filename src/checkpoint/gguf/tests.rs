//! Checks of the header, the decoders and the names.

use super::blocks::Kind;
use super::header::{Header, Value};
use super::{Blocks, RowOrder, gguf_name};
use crate::quant::Code;
use crate::quant::file::FileCode;
use crate::tensor::{Rows, SharedBytes};
use std::sync::Arc;

static TYPES: &[u8] = include_bytes!("../../../tests/golden/gguf/types.gguf");

/// Quantized, dequantized and written by llama.cpp: tests/golden/gguf/make_goldens.py.
#[test]
fn every_type_decodes_to_the_bits_of_llama_cpp() {
    let header = Header::parse(TYPES, TYPES.len()).unwrap();
    let decode = |name: &str| {
        let entry = &header.tensors[name];
        assert_eq!(entry.shape, [3, 512], "{name}");
        let mut out = vec![0.0; 3 * 512];
        let kind = entry.kind.unwrap();
        assert!(name.contains('.') || kind.name() == name, "{name} is {}", kind.name());
        kind.decode(&TYPES[entry.range.clone()], &mut out);
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let types: Vec<&String> = header.tensors.keys().filter(|name| !name.contains('.')).collect();
    assert_eq!(types.len(), 15);
    for name in types {
        assert!(decode(name) == decode(&format!("{name}.values")), "{name}");
    }
}

/// Values of gguf 0.19's `dequantize`; a scale of 2^128 is no number.
#[test]
fn mxfp4_has_the_values_of_llama_cpp() {
    let hex = "7dc2becf931aed15f5d3ef2d059d9f3c36016d2ec75220cd240786de399208950e0f";
    let mut raw: Vec<u8> = (0..34).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    let (mut out, kind) = (vec![0.0; 64], Kind::from_id(39).unwrap());
    kind.decode(&raw, &mut out);
    assert_eq!(out[..8], [0.25, -1.0, -1.5, 0.375, -0.25, -0.75, 0.75, 0.75]);
    assert_eq!(out[16..24], [-0.5, -0.375, -0.5, -0.125, 0.125, -1.0, 0.125, -1.5]);
    let small = [-3.0, -4.0, 6.0, 1.0].map(|x| x * 2f32.powi(-126));
    assert_eq!(out[32..36], small);
    assert!(kind.has_finite_scales(&raw));
    raw[17] = 255;
    assert!(!kind.has_finite_scales(&raw));
}

/// All codes and scales of MXFP4 in the strips that keep them, of several quads.
#[test]
fn mxfp4_keeps_its_values() {
    let (rows, cols) = (20, 320);
    let byte = |i: usize| if i.is_multiple_of(17) { (i / 17 * 37 % 253) as u8 } else { (i * 89 % 256) as u8 };
    let raw: Vec<u8> = (0..rows * cols / 32 * 17).map(byte).collect();
    let (kind, range, code) = (Kind::from_id(39).unwrap(), 0..raw.len(), Code::File(FileCode::Mxfp4));
    let blocks = Blocks { kind, bytes: Arc::new(raw), range, cols, order: RowOrder { head_dim: None } };
    let mut packed = vec![0xee; code.bytes(rows, cols)];
    assert_eq!((blocks.own_code(), code.bytes(16, 64) * 8), (Some(code), 16 * 64 * 4 + 128 * 8));
    let strips = packed.chunks_exact_mut(code.strip_bytes(cols)).enumerate();
    strips.for_each(|(strip, out)| assert!(blocks.exact_strip(code, strip, out)));
    for row in 0..rows {
        let (mut unpacked, mut values) = (vec![0.0; cols], vec![0.0; cols]);
        code.unpack_row(&packed, rows, cols, row, &mut unpacked);
        blocks.decode(row, &mut values);
        assert_eq!(unpacked, values, "row {row}");
    }
}

/// Packed and unpacked again, in several strips and with rows that do not fill the last.
#[test]
fn codes_of_a_file_keep_the_bits_of_llama_cpp() {
    let bytes: SharedBytes = Arc::new(TYPES);
    let header = Header::parse(TYPES, TYPES.len()).unwrap();
    let mut kept = Vec::new();
    for (name, entry) in header.tensors.iter().filter(|(name, _)| !name.contains('.')) {
        let kind = entry.kind.unwrap();
        let Some(code) = kind.own_code() else { continue };
        let order = RowOrder { head_dim: None };
        let rows = Blocks { kind, bytes: bytes.clone(), range: entry.range.clone(), cols: 512, order };
        let code = Code::File(code);
        let mut packed = vec![0xee; code.bytes(3, 512)];
        assert!(rows.own_code() == Some(code) && rows.exact_strip(code, 0, &mut packed), "{name}");
        for row in 0..3 {
            let (mut unpacked, mut values) = (vec![0.0; 512], vec![0.0; 512]);
            code.unpack_row(&packed, 3, 512, row, &mut unpacked);
            rows.decode(row, &mut values);
            // Values at 0 may differ in their sign.
            assert_eq!(unpacked, values, "{name}, row {row}");
        }
        kept.push(name.as_str());
    }
    assert_eq!(kept, ["IQ4_NL", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"]);
}

#[test]
fn names_and_rows_are_those_of_llama_cpp() {
    let name = |name| gguf_name(name).unwrap_or_default();
    assert_eq!(name("model.layers.12.self_attn.q_norm.weight"), "blk.12.attn_q_norm.weight");
    assert_eq!(name("model.layers.0.mlp.down_proj.bias"), "blk.0.ffn_down.bias");
    assert_eq!(name("lm_head.weight"), "output.weight");
    assert_eq!(name("model.layers.0.router.scale"), "blk.0.ffn_gate_inp.scale");
    assert_eq!(name("model.layers.0.router.per_expert_scale"), "blk.0.ffn_down_exps.scale");
    assert_eq!(name("model.layers.0.mlp.experts.gate_up_proj"), "blk.0.ffn_gate_up_exps.weight");
    assert_eq!(name("model.layers.0.self_attn.dms_proj_alpha.weight"), "");
    // Heads of 4 rows: their halves alternate in the file.
    let order = RowOrder { head_dim: Some(4) };
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|row| order.source(row)), [0, 2, 1, 3, 4, 6, 5, 7]);
}

/// A file of these metadata entries (already encoded) and tensors: name, dimensions, type, offset.
fn file(version: u32, entries: &[Vec<u8>], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut out = [b"GGUF".to_vec(), version.to_le_bytes().to_vec()].concat();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend(entries.concat());
    for (name, dims, kind, offset) in tensors {
        out.extend(text(name));
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

fn text(s: &str) -> Vec<u8> {
    [(s.len() as u64).to_le_bytes().to_vec(), s.as_bytes().to_vec()].concat()
}

fn entry(key: &str, type_id: u32, value: &[u8]) -> Vec<u8> {
    [text(key), type_id.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn refusal(raw: &[u8]) -> String {
    format!("{:#}", Header::parse(raw, raw.len()).expect_err("refused"))
}

#[test]
fn values_of_every_kind_are_read() {
    let array = [[5, 0, 0, 0].as_slice(), &2u64.to_le_bytes(), &(-1i32).to_le_bytes(), &7i32.to_le_bytes()].concat();
    let strings = [[8, 0, 0, 0].as_slice(), &2u64.to_le_bytes(), &text("a"), &text("\u{e9}")].concat();
    let entries = [
        entry("u8", 0, &[200]),
        entry("i16", 3, &(-2i16).to_le_bytes()),
        entry("f32", 6, &0.5f32.to_le_bytes()),
        entry("bool", 7, &[1]),
        entry("text", 8, &text("x")),
        entry("ints", 9, &array),
        entry("texts", 9, &strings),
        entry("u64", 10, &u64::MAX.to_le_bytes()),
    ];
    let raw = file(3, &entries, &[("t", &[32, 2], 8, 0)], 68);
    let h = Header::parse(&raw, raw.len()).unwrap();
    let value = |key: &str| h.metadata[key].clone();
    assert_eq!((value("u8"), value("i16")), (Value::Unsigned(200), Value::Signed(-2)));
    assert_eq!((value("f32"), value("bool")), (Value::Float(0.5), Value::Bool(true)));
    assert_eq!((value("text"), value("u64")), (Value::Text("x".into()), Value::Unsigned(u64::MAX)));
    let (Value::Array(ints), Value::Array(texts)) = (value("ints"), value("texts")) else { panic!("no arrays") };
    assert_eq!((ints.integers(&raw).unwrap(), texts.texts(&raw).unwrap()), (vec![-1, 7], vec!["a", "\u{e9}"]));
    assert_eq!((&h.tensors["t"].shape[..], h.tensors["t"].kind), (&[2, 32][..], Ok(Kind::Q8_0)));
    assert_eq!(h.tensors["t"].range.end, raw.len());
}

#[test]
fn lies_are_refused_before_they_are_believed() {
    let one = |tensor: (&str, &[u64], u32, u64), data| refusal(&file(3, &[], &[tensor], data));
    let raw = file(3, &[], &[], 0);
    assert_eq!(refusal(b"PK\x03\x04"), "not a GGUF file: it does not begin with \"GGUF\"");
    assert_eq!(refusal(&file(1, &[], &[], 0)), "GGUF version 1 is not supported (2 and 3 are)");
    assert!(refusal(&file(3u32.swap_bytes(), &[], &[], 0)).starts_with("big-endian files"));
    let mut many = raw.clone();
    many[8..16].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert_eq!(refusal(&many), "its header claims 1152921504606846976 tensors, but has room for 0 at most");
    assert_eq!(refusal(&raw[..10]), "the file is truncated: its header extends beyond its end");
    let huge = entry("k", 8, &u64::MAX.to_le_bytes());
    let said = refusal(&file(3, &[huge], &[], 0));
    assert!(said.starts_with("metadata \"k\": its header claims 18446744073709551615 bytes of text"), "{said}");
    let array = [[10, 0, 0, 0].as_slice(), &(1u64 << 61).to_le_bytes()].concat();
    let said = refusal(&file(3, &[entry("k", 9, &array)], &[], 0));
    assert!(said.contains("claims 2305843009213693952 values"), "{said}");
    let nested = refusal(&file(3, &[entry("k", 9, &[9, 0, 0, 0])], &[], 0));
    assert_eq!(nested, "metadata \"k\": arrays of arrays are not supported");
    assert_eq!(refusal(&file(3, &[entry("k", 77, &[])], &[], 0)), "metadata \"k\": its type 77 is unknown");
    let twice = entry("k", 7, &[1]);
    assert_eq!(refusal(&file(3, &[twice.clone(), twice], &[], 0)), "metadata \"k\" occurs twice");
    let alignment = entry("general.alignment", 4, &3u32.to_le_bytes());
    assert!(refusal(&file(3, &[alignment], &[], 0)).contains("expected a power of two"));

    assert!(one(("t", &[32, 2], 8, 0), 67).contains("the file is truncated"));
    assert_eq!(one(("t", &[33], 8, 0), 64), "tensor t: its rows of 33 values are not whole blocks of 32 (Q8_0)");
    assert_eq!(one(("t", &[32], 0, 5), 256), "tensor t: its offset 5 is not a multiple of 32");
    assert_eq!(one(("t", &[32], 0, u64::MAX - 31), 64), format!("tensor t: its offset {} overflows", u64::MAX - 31));
    assert_eq!(one(("t", &[1 << 39, 1 << 39], 0, 0), 64), "tensor t: shape [549755813888, 549755813888] overflows");
    assert_eq!(one(("t", &[u64::MAX], 0, 0), 64), format!("tensor t: a dimension is {}", u64::MAX));
    assert_eq!(one(("t", &[1; 5], 0, 0), 64), "tensor t: it has 5 dimensions, expected at most 4");
    let both: [(&str, &[u64], u32, u64); 2] = [("a", &[16], 0, 0), ("b", &[8], 0, 32)];
    assert_eq!(refusal(&file(3, &[], &both, 64)), "tensors a and b overlap");
}
