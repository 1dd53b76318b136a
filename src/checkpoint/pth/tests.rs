//! Against files that torch wrote (tests/golden/make_trimkv.py), and hostile ones.

use super::*;
use crate::checkpoint::names::TensorSpec;
use std::path::Path;
use std::sync::Arc;

fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/trimkv/pth");
    std::fs::read(folder.join(format!("{name}.pth"))).expect("a golden file")
}

fn opened(bytes: Vec<u8>) -> Result<TensorFile> {
    open("a.pth", Arc::new(bytes))
}

fn refusal(bytes: Vec<u8>) -> String {
    let why = opened(bytes).err().expect("refused").to_string();
    assert!(why.starts_with("a.pth: ") && why.lines().count() == 1, "{why}");
    why
}

fn values(file: &TensorFile, name: &str, shape: &[usize]) -> Vec<f32> {
    let spec = TensorSpec { name: name.to_owned(), shape: shape.to_vec() };
    file.tensor(&spec).unwrap().unwrap_or_else(|| panic!("no tensor {name}")).to_f32()
}

/// A zip as torch writes it, of these files.
fn zip_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut central) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let (size, start) = ((bytes.len() as u32).to_le_bytes(), (out.len() as u32).to_le_bytes());
        let name_len = (name.len() as u16).to_le_bytes();
        out.extend([b"PK\x03\x04", &[0; 22][..], &name_len, &[0; 2], name.as_bytes(), bytes].concat());
        let lengths = [&size[..], &size, &name_len].concat();
        central.extend([b"PK\x01\x02", &[0; 16][..], &lengths, &[0; 12], &start, name.as_bytes()].concat());
    }
    let (n, start) = ((files.len() as u16).to_le_bytes(), (out.len() as u32).to_le_bytes());
    let size = (central.len() as u32).to_le_bytes();
    out.extend([&central[..], b"PK\x05\x06", &[0; 4], &n, &n, &size, &start, &[0; 2]].concat());
    out
}

/// A file with that pickle and eight bytes of storage.
fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    zip_of(&[("x/data.pkl", pickle), ("x/byteorder", b"little"), ("x/data/0", &[0; 8])])
}

#[test]
fn files_of_torch_give_their_tensors() {
    let file = opened(golden("tensors")).unwrap();
    let six: Vec<f32> = (0..6).map(|x| x as f32).collect();
    for name in ["f32", "f16", "bf16"] {
        assert_eq!(values(&file, name, &[2, 3]), six, "{name}");
    }
    assert_eq!(values(&file, "tied", &[4]), values(&file, "again", &[4]));
    assert_eq!(values(&file, "part", &[2]), [2.0, 3.0]);
    assert_eq!(values(&file, "row", &[2, 3]), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!((values(&file, "one", &[2, 1]), values(&file, "scalar", &[])), (vec![0.0, 3.0], vec![3.0]));
    assert_eq!(file.names().count(), 9);
    assert!(file.tensor(&TensorSpec { name: "f32".into(), shape: vec![3, 2] }).is_err());
    for (name, of_one) in [("state_dict", vec!["bias", "weight"]), ("parameters", vec!["weight"])] {
        let file = opened(golden(name)).unwrap();
        assert_eq!(file.names().collect::<Vec<_>>(), of_one);
        assert!(values(&file, "weight", &[2, 3]).iter().all(|x| x.abs() < 1.0 && *x != 0.0));
    }
}

#[test]
fn what_is_no_dict_of_tensors_is_refused_by_name() {
    for (name, part) in [
        ("view", "tensor turned: it is a view with strides [1, 3]"),
        ("int", "\"torch.LongStorage\", which is refused"),
        ("nested", "model is not a tensor"),
        ("number", "instruction 0x47 at byte"),
        ("module", "\"torch.nn.modules.linear.Linear\", which is refused"),
        ("legacy", "it is no zip"),
    ] {
        let why = refusal(golden(name));
        assert!(why.contains(part), "{name}: {why}");
    }
    let attack = refusal(with_pickle(b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R."));
    assert!(attack.contains("\"posix.system\", which is refused"), "{attack}");
    let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu";
    let tensor = |storage_len: &[u8], place: &[u8]| {
        let call = b"ctorch._utils\n_rebuild_tensor_v2\n(";
        let parts = [b"\x80\x02}X\x01\0\0\0a", &call[..], storage, storage_len, b"tQ", place, b"\x89NtRs."];
        with_pickle(&parts.concat())
    };
    assert_eq!(values(&opened(tensor(b"K\x02", b"K\x01K\x01\x85K\x01\x85")).unwrap(), "a", &[1]), [0.0]);
    for (bytes, part) in [
        (tensor(b"K\x02", b"K\x01K\x02\x85K\x01\x85"), "2 values from 1 on are more than its storage has"),
        (tensor(b"K\x03", b"K\0K\x02\x85K\x01\x85"), "its storage has 8 bytes, expected 3 values of F32"),
        (tensor(b"J\xff\xff\xff\xff", b"K\0K\x02\x85K\x01\x85"), "-1 is no size"),
        (tensor(b"K\x02", b"K\0K\x02K\x02\x86K\x02\x85"), "1 strides for 2 dimensions"),
        (
            tensor(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"K\0K\x02\x85K\x01\x85"),
            "expected 9223372036854775807 values",
        ),
        (
            tensor(b"K\x02", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x02\x85K\x01\x85"),
            "are more than its storage has",
        ),
        (with_pickle(b"\x80\x04}."), "version 4, expected 2"),
        (with_pickle(b"\x80\x02}X\xff\xff\xff\xff"), "a text of 4294967295 bytes"),
        (with_pickle(b"\x80\x02K\x01."), "it holds no dict of tensors"),
        (with_pickle(b"\x80\x02}X\x01\0\0\0aNX\x01\0\0\0aN(u."), "items of something that is no dict"),
        (with_pickle(b"\x80\x02}(X\x01\0\0\0aNX\x01\0\0\0aNu."), "two values of a"),
        (with_pickle(&[b"\x80\x02", &vec![b'('; 20_000][..]].concat()), "more than 8192 values at once"),
        (with_pickle(&vec![b'N'; PICKLE_BYTES + 1]), "expected at most 2097152"),
        (with_pickle(b"\x80\x02h\x07."), "value 7 was not remembered"),
        (with_pickle(b"\x80\x02cos"), "a name without an end"),
        (with_pickle(b"\x80\x02}K\x01K\x02s."), "a name that is no text"),
        (zip_of(&[("x/data.pkl", b"}."), ("x/byteorder", b"big")]), "not little-endian"),
        (zip_of(&[("data.pkl", b"}.")]), "it has no data.pkl"),
        (zip_of(&[("x/data.pkl", b"}."), ("x/data.pkl", b"}.")]), "two files x/data.pkl"),
    ] {
        let why = refusal(bytes);
        assert!(why.contains(part), "{why}, expected {part}");
    }
    let mut compressed = zip_of(&[("x/data.pkl", b"}.")]);
    let at = compressed.windows(4).position(|word| word == b"PK\x01\x02").unwrap();
    compressed[at + 10] = 8;
    assert!(refusal(compressed).contains("x/data.pkl in it is compressed"));
}

/// A tuple in a tuple, a million times: reading and freeing it takes no deep stack.
#[test]
fn deep_values_take_no_deep_stack() {
    let deep = [b"\x80\x02N", &vec![0x85; 1_000_000][..], b"."].concat();
    assert!(refusal(with_pickle(&deep)).contains("it holds no dict of tensors"));
}

#[test]
fn damaged_files_are_read_or_refused() {
    for name in ["tensors", "state_dict", "parameters"] {
        let whole = golden(name);
        for n in 0..whole.len() {
            refusal(whole[..n].to_vec());
        }
        for at in 0..whole.len() {
            for value in [0, 1, b'(', 0x7f, 0xff, whole[at] ^ 0x10] {
                let mut changed = whole.clone();
                changed[at] = value;
                if let Err(why) = opened(changed) {
                    assert_eq!(why.to_string().lines().count(), 1, "{why}");
                }
            }
        }
    }
}
