//! GGUF files from the hub, and models in several files: which file a name means, what is
//! downloaded, and the model's name afterwards. Runs against a hub on loopback
//! ([`crate::fake_hub`]).

use crate::fake_hub::{COMMIT, Do, FakeHub};
use crate::gguf_file::{F32, GgufFile, Meta};
use crate::hub::{Home, files, said};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::hub::HubModel;
use serde_json::Value;
use std::collections::BTreeMap;

const ONE: &str = "tiny-Q4_K_M.gguf";
const PARTS: [&str; 2] = ["big/tiny-Q8_0-00001-of-00002.gguf", "big/tiny-Q8_0-00002-of-00002.gguf"];

/// One model in a file, one in two parts, and a vision tower.
fn repository() -> BTreeMap<String, Vec<u8>> {
    let file = GgufFile::tiny();
    let parts = PARTS.map(str::to_owned).into_iter().zip(crate::gguf::split(&file, 2));
    let whole = [(ONE.to_owned(), file.bytes()), ("mmproj-F16.gguf".to_owned(), b"GGUF".to_vec())];
    parts.chain(whole).collect()
}

fn offline(home: &Home, hub: &FakeHub, model: &str) -> (i32, String, String) {
    let mut command = home.command(hub, &["-p", "hi", "-m", model, "--max-tokens", "3", "--temperature", "0"]);
    said(command.env("HF_HUB_OFFLINE", "1").env("DMSCHAT_CACHE_DIR", home.0.path()).spawn().unwrap())
}

fn names(home: &Home, hub: &FakeHub) -> Vec<String> {
    let (_, list, _) = home.run(hub, &["models", "list", "--json"]);
    let list: Vec<Value> = serde_json::from_str(&list).unwrap();
    list[1..].iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_file_of_a_repository_is_pulled_used_offline_and_removed() {
    let (hub, home) = (FakeHub::new(repository()), Home::new());
    let all = "Q8_0 (0.0 GB), Q4_K_M (0.0 GB); choose one: any/model:Q4_K_M";
    home.refused_as(&hub, "any/model", 2, &["any/model: its GGUF files are", all]);
    home.refused_as(&hub, "any/model:Q5_K_M", 2, &["no single GGUF file's name ends in \"Q5_K_M\"", all]);

    let (code, stdout, stderr) = home.run(&hub, &["models", "pull", "any/model:q8_0"]);
    let first = home.snapshot().join(PARTS[0]);
    assert_eq!((code, stdout.trim_end()), (0, &*first.display().to_string()), "{stderr}");
    for part in ["any/model:q8_0 at 01234567: 2 files, ", "licence apache-2.0", "its weights", " tokens of context"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    home.assert_whole(&hub, &PARTS);
    assert!(!home.snapshot().join(ONE).exists() && hub.asked(ONE).is_empty());

    let (before, commit) = (hub.connections(), format!("any/model:Q8_0@{COMMIT}"));
    for name in ["any/model:Q8_0", &commit] {
        let (code, stdout, stderr) = offline(&home, &hub, name);
        assert!(code == 0 && !stdout.is_empty(), "{stderr}");
    }
    let (code, _, stderr) = offline(&home, &hub, "any/model:Q4_K_M");
    assert!(code == 2 && stderr.contains("any/model:Q4_K_M is not in") && stderr.contains("has Q8_0"), "{stderr}");
    assert_eq!(names(&home, &hub), ["any/model:Q8_0"]);
    let (_, info, _) = home.run(&hub, &["models", "info", "any/model:Q8_0", "--json"]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["name"], &info["path"]), (&"any/model:Q8_0".into(), &first.to_str().unwrap().into()));
    assert_eq!(hub.connections(), before);

    // Another file of the repository; then each goes without the other.
    assert_eq!(home.run(&hub, &["models", "pull", "any/model:Q4_K_M"]).0, 0);
    assert_eq!(names(&home, &hub), ["any/model:Q8_0", "any/model:Q4_K_M"]);
    let (code, _, stderr) = home.run(&hub, &["models", "rm", "any/model:Q8_0"]);
    assert_eq!((code, names(&home, &hub)), (0, vec!["any/model:Q4_K_M".to_owned()]), "{stderr}");
    home.assert_whole(&hub, &[ONE]);
    assert_eq!(home.run(&hub, &["models", "rm", "any/model:Q8_0"]).0, 2);
    assert_eq!(home.run(&hub, &["models", "rm", "any/model:Q4_K_M"]).0, 0);
    assert!(!home.repo().exists());
}

/// The importance matrix beside a model is downloaded with it and used for 4-bit codes, of the file
/// and of a folder of that name.
#[test]
fn the_importance_matrix_of_a_repository_is_pulled_and_used() {
    const IMATRIX: &str = "imatrix_unsloth.gguf_file";
    let mut files = repository();
    let mut imatrix = GgufFile::default();
    imatrix.set("general.type", Meta::text("imatrix"));
    for (name, cols) in [("attn_q", 64), ("attn_k", 64), ("attn_v", 64), ("attn_output", 64), ("ffn_gate", 64)]
        .into_iter()
        .chain([("ffn_up", 64), ("ffn_down", 96)])
    {
        let values: Vec<f32> = (0..cols).map(|i| 1.0 + (i % 5) as f32).collect();
        imatrix.tensor(&format!("blk.0.{name}.weight.in_sum2"), &[cols, 1], F32, &values);
        imatrix.tensor(&format!("blk.0.{name}.weight.counts"), &[1, 1], F32, &[2.0]);
    }
    files.insert(IMATRIX.to_owned(), imatrix.bytes());
    files.insert("notes-on-imatrix.txt".to_owned(), b"none".to_vec());
    let (hub, home) = (FakeHub::new(files.clone()), Home::new());
    let (code, _, stderr) = home.run(&hub, &["models", "pull", "any/model:Q4_K_M"]);
    assert!(code == 0 && stderr.contains("any/model:Q4_K_M at 01234567: 2 files, "), "{stderr}");
    home.assert_whole(&hub, &[ONE, IMATRIX]);
    let info = |model: &str, more: &[&str]| -> Value {
        let (_, info, _) = home.run(&hub, &[&["models", "info", model, "--json"], more].concat());
        serde_json::from_str::<Value>(&info).unwrap()["importance"].clone()
    };
    let wanted = format!("{IMATRIX} of any/model");
    assert_eq!(info("any/model:Q4_K_M", &[]), wanted);
    assert_eq!(info("any/model:Q4_K_M", &["--importance", "measured"]), "measured");
    let quantize = |model: &str| home.run(&hub, &["models", "quantize", model, "--weights", "int4-fast"]);
    let (code, _, stderr) = quantize("any/model:Q4_K_M");
    assert!(code == 0 && stderr.contains(&format!("4-bit codes are chosen by {wanted}")), "{stderr}");
    // A file of that model elsewhere, until a second repository may be meant.
    let folder = home.0.path().join("files");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("Model-Q8_0.gguf");
    std::fs::write(&file, &files[ONE]).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(info(file, &[]), wanted);
    let other = home.cache().join("models--other--model-GGUF/snapshots").join(COMMIT);
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("model.imatrix.gguf"), b"GGUF").unwrap();
    assert_eq!(info(file, &[]), "measured");
    // A file with the model's name beside it has priority; a bad file is named, and importance is
    // measured instead.
    std::fs::write(folder.join("Model.imatrix"), [0xff; 64]).unwrap();
    let (code, _, stderr) = quantize(file);
    let why = "Model.imatrix: not an imatrix file: the number of matrices is -1; it is not used";
    assert!(code == 0 && stderr.contains(why), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("imatrix")).count(), 1, "{stderr}");
    // Without its last model, the repository goes.
    assert_eq!(home.run(&hub, &["models", "rm", "any/model:Q4_K_M"]).0, 0);
    assert!(!home.repo().exists());
}

/// Anybody can list a model in more parts than exist anywhere: the listing alone refuses it.
#[test]
fn a_listing_of_very_many_files_is_refused_before_any_is_read() {
    let parts = |n: usize| (1..=n).map(move |i| (format!("tiny-Q8_0-{i:05}-of-{n:05}.gguf"), b"GGUF".to_vec()));
    let many = (0..2001).map(|i| (format!("tiny-{i}-Q4_K_M.gguf"), b"GGUF".to_vec()));
    for (files, model, wanted) in [
        (parts(1001).collect(), "any/model:Q8_0", "any/model: tiny-Q8_0 has 1001 parts, expected at most 1000"),
        (many.collect(), "any/model:Q8_0", "any/model has 2001 GGUF models, expected at most 2000"),
    ] {
        let (hub, home) = (FakeHub::new(files), Home::new());
        home.refused_as(&hub, model, 2, &[wanted]);
        assert!(hub.asked(".gguf").is_empty());
    }
}

/// The header is read before anything is written, and its bytes are not requested twice.
#[test]
fn a_long_header_is_the_beginning_of_the_download() {
    let mut file = GgufFile::tiny();
    file.set("general.filler", Meta::Texts(vec!["x".repeat(1 << 20); 6]));
    file.tensor("unused", &[1 << 20], F32, &vec![0.5; 1 << 20]);
    let hub = FakeHub::new([(ONE.to_owned(), file.bytes())].into());
    let home = Home::new();
    // The first answer is cut inside the header, a later one inside the weights.
    hub.script("Q4_K_M.gguf?", vec![Do::Cut(2 << 20), Do::Well, Do::Well, Do::Cut(100), Do::Well]);
    let model = HubModel { id: "any/model".to_owned(), gguf: Some("Q4_K_M".to_owned()), revision: None };
    home.hub(&hub).pull(&model, &mut crate::hub::Heard::default()).unwrap();
    home.assert_whole(&hub, &[ONE]);
    let asked: Vec<_> = hub.seen().into_iter().filter(|s| s.cdn).collect();
    let from: Vec<&str> = asked.iter().filter_map(|s| s.header("range")).collect();
    assert_eq!(from.first(), Some(&"bytes=2097152-"), "{from:?}");
    assert!(from.is_sorted_by_key(|range| range["bytes=".len()..range.len() - 1].parse::<u64>().unwrap()), "{from:?}");
}

#[test]
fn what_cannot_run_is_refused_before_its_weights() {
    let mut file = GgufFile::tiny();
    file.set("general.architecture", Meta::text("mamba"));
    let hub = FakeHub::new([(ONE.to_owned(), file.bytes())].into());
    let home = Home::new();
    home.refused_as(&hub, "any/model:Q4_K_M", 2, &["any/model:Q4_K_M: ", "architecture \"mamba\" is not supported"]);
    assert!(!home.repo().exists());
    let hub = FakeHub::new(files());
    home.refused_as(&hub, "any/model:Q4_K_M", 2, &["any/model has no GGUF files"]);
}

#[test]
fn a_model_in_parts_is_opened_by_its_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = GgufFile::tiny();
    whole.set("quantize.imatrix.file", Meta::text("calibration.dat"));
    let path = |n: usize| folder.path().join(format!("Tiny-0000{n}-of-00003.gguf"));
    for (n, bytes) in (1..).zip(crate::gguf::split(&whole, 3)) {
        std::fs::write(path(n), bytes).unwrap();
    }
    let open_at = |n| Checkpoint::open(&ModelRef::Folder(path(n)), &AdapterChoice::None);
    let (parts, one) = (open_at(1).unwrap(), crate::gguf::open(&whole).unwrap());
    assert_eq!((parts.name.as_str(), parts.imatrix().as_deref()), ("Tiny", Some("calibration.dat")));
    assert_eq!(parts.tensors.len(), one.tensors.len());
    for (name, tensor) in &one.tensors {
        assert!(parts.tensors[name].to_f32() == tensor.to_f32(), "{name}");
    }
    let said = |n| format!("{:#}", open_at(n).err().unwrap());
    assert!(said(2).contains("is part 2 of 3; give the first, "), "{}", said(2));
    // Two parts with each other's names, and a part of a model in four.
    let swap = || {
        std::fs::rename(path(2), folder.path().join("x")).unwrap();
        std::fs::rename(path(3), path(2)).unwrap();
        std::fs::rename(folder.path().join("x"), path(3)).unwrap();
    };
    swap();
    assert!(said(1).ends_with("Tiny-00002-of-00003.gguf is not part 2 of 3 by its metadata"), "{}", said(1));
    swap();
    let second = std::fs::read(path(2)).unwrap();
    std::fs::write(path(2), &crate::gguf::split(&whole, 4)[1]).unwrap();
    assert!(said(1).ends_with("Tiny-00002-of-00003.gguf is not part 2 of 3 by its metadata"), "{}", said(1));
    std::fs::write(path(2), second).unwrap();
    std::fs::remove_file(path(3)).unwrap();
    assert!(said(1).contains("is the first of 3 parts, and ") && said(1).ends_with("00003-of-00003.gguf is missing"));
    let alone = folder.path().join("renamed.gguf");
    std::fs::rename(path(1), &alone).unwrap();
    let said = format!("{:#}", Checkpoint::open(&ModelRef::Folder(alone), &AdapterChoice::None).err().unwrap());
    assert!(said.contains("it is one of 3 parts of a model"), "{said}");
}
