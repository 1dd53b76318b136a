//! Codes against numpy, and files that are not a model's dictionary.

use super::super::{Codec, DataFile};
use super::*;
use serde_json::Value;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/csr/csr.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    numbers(value).iter().map(|&x| x as f32).collect()
}

#[test]
fn pursuit_finds_the_codes_of_numpy() {
    let golden = golden();
    let (dim, terms) = (golden["dim"].as_u64().unwrap() as usize, golden["terms"].as_u64().unwrap() as usize);
    let atoms = Atoms::new(dim, floats(&golden["learned"]));
    let (indices, coefficients) = (golden["indices"].as_array().unwrap(), golden["coefficients"].as_array().unwrap());
    let mut negative = 0;
    for ((row, indices), coefficients) in floats(&golden["rows"]).chunks_exact(dim).zip(indices).zip(coefficients) {
        let (mut rest, mut codes) = (row.to_vec(), vec![0; terms]);
        atoms.pursue(&mut rest, &mut codes);
        let got: Vec<f64> = codes.iter().map(|&code| term(code).0 as f64).collect();
        assert_eq!(got, numbers(indices));
        for (code, wanted) in codes.iter().zip(floats(coefficients)) {
            negative += usize::from(wanted < 0.0);
            // A last bit of f16 at a tie.
            assert!((term(*code).1 - wanted).abs() <= wanted.abs() / 1000.0 + 1e-6);
        }
        let mut sum = vec![0.0; dim];
        atoms.add(codes.into_iter(), &mut sum);
        assert!(row.iter().zip(&sum).zip(&rest).all(|((x, sum), rest)| (x - sum - rest).abs() < 1e-4));
    }
    assert!(negative > 50, "coefficients are signed");
}

fn dictionary(head_dim: usize, layers: usize) -> Dictionary {
    Dictionary::random(head_dim, layers, 24, 5)
}

fn heads(head_dim: usize, layers: usize) -> Heads {
    let rotation = |layer: usize| Rotation {
        inv_freq: if layer % 3 == 2 { Vec::new() } else { (0..head_dim / 4).map(|i| 0.5f32.powi(i as i32)).collect() },
        factor: 1.25,
    };
    Heads { head_dim, rotations: (0..layers).map(rotation).collect() }
}

/// A key is coded as it was before RoPE: of the same key at any position there are the same codes.
#[test]
fn keys_are_coded_before_rope_and_rotated_when_read() {
    let (d, heads) = (32, heads(32, 3));
    let coder = open(8, &dictionary(d, 3).to_bytes().unwrap(), &heads).unwrap();
    for layer in 0..3 {
        let key: Vec<f32> = (0..d).map(|i| (i as f32 * 1.7 + layer as f32).sin()).collect();
        let angles = Angles::new(heads.rotations[layer].clone());
        let codes = |position| {
            let mut row = key.clone();
            angles.rotate(position, &mut row);
            coder.code_k(Place { layer, position }, &mut row);
            let mut bytes = vec![0; 32];
            Codes(8).encode(&row, &mut bytes);
            bytes
        };
        let first = codes(0);
        // The last is beyond the angles that are kept.
        for position in [1, 7, 300, 70_000, BLOCK * BLOCKS + 9] {
            let far = codes(position);
            assert!(codes_of(&far).map(|c| term(c).0).eq(codes_of(&first).map(|c| term(c).0)), "{position}");
            let (mut plain, mut read) = (vec![0.0; d], vec![0.0; d]);
            coder.read_k(Place { layer, position: 0 }, &first, &mut plain);
            coder.read_k(Place { layer, position }, &far, &mut read);
            angles.unrotate(position, &mut read);
            angles.unrotate(0, &mut plain);
            assert!(plain.iter().zip(&read).all(|(a, b)| (a - b).abs() < 5e-3), "{position}: {plain:?} {read:?}");
        }
    }
}

#[test]
fn files_that_are_not_the_models_are_refused() {
    let written = dictionary(32, 3);
    assert_eq!(Dictionary::parse(&written.to_bytes().unwrap()), Ok(written.clone()));
    let said = |bytes: &[u8], codec: Codec, heads: &Heads| {
        let data = DataFile { name: "d".to_owned(), bytes: bytes.into() };
        let text = codec.coder(Some(&data), heads).err().unwrap();
        assert!(text.starts_with("d: ") && !text.contains('\n'), "{text}");
        text[3..].to_owned()
    };
    let bytes = written.to_bytes().unwrap();
    assert_eq!(said(&bytes, Codec::Csr8, &heads(32, 4)), "it is for 3 layers with attention, and the model has 4");
    assert_eq!(said(&bytes, Codec::Csr8, &heads(64, 3)), "it is for heads of 32 channels, and the model's have 64");
    let narrow = dictionary(8, 1).to_bytes().unwrap();
    assert_eq!(said(&narrow, Codec::Csr16, &heads(8, 1)), "heads of 8 channels cannot hold 16 codes");
    assert!(said(b"nothing", Codec::Csr8, &heads(32, 3)).starts_with("not a dictionary: "));
    let change = |change: &dyn Fn(&mut Dictionary)| {
        let mut changed = written.clone();
        change(&mut changed);
        said(&changed.to_bytes().unwrap(), Codec::Csr8, &heads(32, 3))
    };
    assert_eq!(change(&|d| d.layers[1][0] = 2), "tensor k.2 is missing");
    assert_eq!(change(&|d| d.layers[1][1] = usize::MAX), "layers names atoms beyond those of 3 layers");
    let nan = |d: &mut Dictionary| {
        let mut rows = d.v[0].rows.clone();
        rows[20] = f32::NAN;
        d.v[0] = Atoms::new(16, rows);
    };
    assert_eq!(change(&nan), "v.0: atom 1 is not of finite numbers");
    let none = Codec::Csr8.coder(None, &heads(32, 3)).err().unwrap();
    assert_eq!(none, "--kv csr:8 needs a dictionary of the model, and none was read");
    // A damaged cache names atoms that do not exist.
    let coder = open(8, &bytes, &heads(32, 3)).unwrap();
    let mut out = vec![1.0; 32];
    coder.read_v(Place { layer: 0, position: 0 }, &[0xff; 32], &mut out);
    assert_eq!(out, vec![0.0; 32]);
}
