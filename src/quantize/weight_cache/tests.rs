//! The file is what memory would hold, is believed only whole, and has one writer.

use super::weight_file::ALIGN_BYTES;
use super::*;
use crate::checkpoint::ModelRef;
use crate::quant::Code;
use crate::quantize::calibration::Given;
use crate::quantize::convert::Importance;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// A model folder and a cache folder.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { root: tempfile::tempdir().unwrap() };
        place.write_model("model", 1);
        place
    }

    /// Writes a tiny Llama. Models with other `seed`s have other weights.
    fn write_model(&self, name: &str, seed: u8) {
        let folder = self.root.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
            "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 192,
            "vocab_size": 100, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "max_position_embeddings": 256,
            "rope_theta": 10000.0, "hidden_act": "silu"}"#;
        fs::write(folder.join("config.json"), config).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        let config = ModelConfig::from_json("config.json", config.as_bytes()).unwrap();
        let random = Checkpoint::random_of("random", config).unwrap();
        let plain = |spec| Entry { spec, stored: Stored::Plain(DType::Bf16) };
        let layout = Layout::new(&Identity::default(), names::all(&random.config).map(plain).collect()).unwrap();
        let mut file = weight_file::Writer::new(Vec::new(), &layout).unwrap();
        for (i, entry) in layout.entries.iter().enumerate() {
            let mut bytes = random.tensors[&entry.spec.name].bytes().to_vec();
            bytes[0] ^= if i == 0 { seed } else { 0 };
            file.data(&bytes).unwrap();
        }
        fs::write(folder.join("model.safetensors"), file.end().unwrap()).unwrap();
    }

    fn open(&self, name: &str) -> Checkpoint {
        Checkpoint::open(&ModelRef::Folder(self.root.path().join(name)), &AdapterChoice::None).unwrap()
    }

    fn cache(&self) -> WeightCache {
        WeightCache::new(self.root.path().join("cache/weights"))
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.path().join("cache/weights")).into_iter().flatten();
        let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }

    fn whole(&self) -> PathBuf {
        self.files().into_iter().find(|p| p.extension().is_some_and(|e| e == WHOLE)).unwrap()
    }
}

/// Converts, and returns the checkpoint, the notices and whether anything was packed.
fn convert_with(cache: &WeightCache, source: Checkpoint) -> (Checkpoint, Vec<String>, bool) {
    let (mut notices, mut packed) = (Vec::new(), false);
    let mut report = |r| {
        match r {
            Report::Waiting => panic!("nobody else writes here"),
            Report::Measuring { .. } => panic!("nothing is to be measured"),
            Report::Notice(text) => notices.push(text),
            Report::Layers { total, .. } => {
                assert_eq!(total, 2);
                packed = true;
            }
        }
        true
    };
    let out = cache.convert(source, Weights::Int4, &Calibration::Equal, &mut report).unwrap();
    (out, notices, packed)
}

fn same(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.tensors.keys().collect::<Vec<_>>(), b.tensors.keys().collect::<Vec<_>>());
    for (name, t) in &a.tensors {
        assert_eq!(format!("{t:?}"), format!("{:?}", b.tensors[name]));
        assert!(t.bytes() == b.tensors[name].bytes(), "{name}");
    }
    assert_eq!((a.weight_bytes, a.n_params, a.weights), (b.weight_bytes, b.n_params, b.weights));
}

#[test]
fn the_file_is_what_memory_would_hold_and_is_made_once() {
    let place = Place::new();
    let in_memory = convert::convert(place.open("model"), Weights::Int4, &Importance::new(), 0, |_, _| true).unwrap();
    let (first, notices, packed) = convert_with(&place.cache(), place.open("model"));
    assert!(first.cached && packed && notices.is_empty(), "{notices:?}");
    same(&first, &in_memory);
    assert!(first.tensors.values().all(|t| t.dtype().is_some() || t.bytes().as_ptr().align_offset(ALIGN_BYTES) == 0));
    let before = fs::metadata(place.whole()).unwrap().ino();
    let (second, notices, packed) = convert_with(&place.cache(), place.open("model"));
    assert!(!packed && notices.is_empty() && fs::metadata(place.whole()).unwrap().ino() == before);
    same(&second, &first);
    assert_eq!(place.files().len(), 2, "a file and a folder of texts: {:?}", place.files());
    // Another importance is another file.
    let name = "model.layers.0.mlp.up_proj.weight";
    let importance = Importance::from([(name.to_owned(), (0..128).map(|i| 1.0 + i as f32).collect())]);
    let given = Given { importance: importance.into(), name: "a file".to_owned() };
    let other =
        place.cache().convert(place.open("model"), Weights::Int4, &Calibration::Given(given), &mut |_| true).unwrap();
    assert!(other.tensors[name].bytes() != first.tensors[name].bytes() && place.files().len() == 4);
}

/// Codes that were chosen are written as they are; a file without them has another name.
#[test]
fn codes_chosen_by_gptq_are_kept() {
    fn correct(
        source: &Checkpoint,
        _: Weights,
        _: Option<Arc<Importance>>,
        _: Option<u32>,
        _: OnReport,
    ) -> anyhow::Result<Guide> {
        let (name, tensor) = source.tensors.iter().find(|(name, _)| name.ends_with("q_proj.weight")).unwrap();
        let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
        let len = Code::Q4.bytes(rows, cols);
        let packed = Tensor::packed(name, Code::Q4, [rows, cols], Arc::new(vec![0x5a; len]), 0..len);
        Ok(Guide { chosen: [(name.clone(), packed)].into(), ..Guide::default() })
    }
    let place = Place::new();
    place.write_model("model", 1);
    let plain = convert_with(&place.cache(), place.open("model")).0;
    let calibration = Calibration::Equal.corrected(correct, None);
    assert_eq!(calibration.describe(Weights::Int4), "gptq 4");
    for source in [1, 2] {
        let cached = place.cache().convert(place.open("model"), Weights::Int4, &calibration, &mut |_| true).unwrap();
        let memory = convert_in_memory(place.open("model"), Weights::Int4, &calibration, &mut |_| true).unwrap();
        for made in [cached, memory] {
            for (name, tensor) in &made.tensors {
                let is_chosen = name.ends_with("layers.0.self_attn.q_proj.weight");
                match is_chosen {
                    true => assert!(tensor.bytes().iter().all(|b| *b == 0x5a), "{source}"),
                    false => assert!(tensor.bytes() == plain.tensors[name].bytes(), "{name}"),
                }
            }
        }
    }
}

#[test]
fn the_file_serves_without_the_original() {
    let place = Place::new();
    let (first, ..) = convert_with(&place.cache(), place.open("model"));
    fs::remove_dir_all(place.root.path().join("model")).unwrap();
    let cached = place.cache().list();
    let [cached] = &cached[..] else { panic!("{cached:?}") };
    assert_eq!((&*cached.identity.weights, &*cached.identity.name), ("int4", "model"));
    assert_eq!(cached.identity.source, place.root.path().canonicalize().unwrap().join("model").display().to_string());
    let alone = place.cache().open(cached, &AdapterChoice::None).unwrap();
    same(&alone, &first);
    assert_eq!((alone.fingerprint, &*alone.tokenizer_json, alone.cached), (first.fingerprint, &b"{}"[..], true));
    assert!(place.cache().remove(cached).unwrap() > 0 && place.files().is_empty());
}

#[test]
fn a_file_that_is_not_what_its_name_promises_is_made_again() {
    let place = Place::new();
    let first = convert::convert(place.open("model"), Weights::Int4, &Importance::new(), 0, |_, _| true).unwrap();
    convert_with(&place.cache(), place.open("model"));
    let path = place.whole();
    let good = fs::read(&path).unwrap();
    place.write_model("other", 2);
    let (_, notices, packed) = convert_with(&place.cache(), place.open("other"));
    assert!(packed && notices.is_empty());
    let other_path =
        place.files().into_iter().find(|p| p.to_string_lossy().contains("other--") && p.is_file()).unwrap();
    let other = fs::read(&other_path);
    let edited = |at: usize, new: &[u8]| [&good[..at], new, &good[at + new.len()..]].concat();
    let version = find(&good, b"weights 2");
    let other = other.unwrap();
    let forged = |file: &[u8], of: &Path, as_of: &Path| {
        let key = |path: &Path| path.file_stem().unwrap().to_str().unwrap().rsplit("--").next().unwrap().to_owned();
        let at = find(file, key(of).as_bytes());
        [&file[..at], key(as_of).as_bytes(), &file[at + key(of).len()..]].concat()
    };
    let data = 8 + u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    let flipped = |at: usize| edited(at, &[good[at] ^ 1]);
    // The last byte of the data, before one block's checksum.
    let last = good.len() - 9;
    let cases = [
        (good[..good.len() - 1].to_vec(), "the file is truncated"),
        (good[..5].to_vec(), "not a safetensors file"),
        (other.clone(), "it was made from other files"),
        (forged(&other, &other_path, &path), "it is damaged: the checksum of MiB 0 of 1 differs"),
        (edited(version, b"weights 3"), "its format is \"weights 3\", and this version reads \"weights 2\""),
        (edited(data, &[0; 4096]), "it is damaged: the checksum of MiB 0 of 1 differs"),
        (flipped(data), "it is damaged: the checksum of MiB 0 of 1 differs"),
        (flipped(last), "it is damaged: the checksum of MiB 0 of 1 differs"),
        (flipped(good.len() - 1), "it is damaged: the checksum of MiB 0 of 1 differs"),
    ];
    for (bytes, why) in cases {
        fs::write(&path, bytes).unwrap();
        let (again, notices, packed) = convert_with(&place.cache(), place.open("model"));
        assert!(packed && notices.len() == 1 && notices[0].contains(why), "{why}: {notices:?}");
        assert!(notices[0].contains("is not used and made again") && !notices[0].contains('\n'));
        same(&again, &first);
        assert!(fs::read(&path).unwrap() == good);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

#[test]
fn a_file_of_the_first_version_is_used_as_it_is() {
    let place = Place::new();
    let (first, ..) = convert_with(&place.cache(), place.open("model"));
    let path = place.whole();
    let new = fs::read(&path).unwrap();
    let begin = 8 + u64::from_le_bytes(*new.first_chunk().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&new[8..begin]).unwrap();
    let sums = header.as_object_mut().unwrap().remove("checksums").unwrap();
    let end = begin + sums["data_offsets"][0].as_u64().unwrap() as usize;
    header["__metadata__"]["dmschat"] = "weights 1".into();
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize((8 + text.len()).next_multiple_of(ALIGN_BYTES) - 8, b' ');
    let old = [&(text.len() as u64).to_le_bytes()[..], &text, &new[begin..end]].concat();
    // Beside the one that `first` maps.
    fs::remove_file(&path).unwrap();
    fs::write(&path, &old).unwrap();
    let (again, notices, packed) = convert_with(&place.cache(), place.open("model"));
    assert!(!packed && notices.is_empty() && fs::read(&path).unwrap() == old, "{notices:?}");
    same(&again, &first);
    // A new file that lost its checksums is not an old one.
    let text = String::from_utf8(text).unwrap().replace("weights 1", "weights 2");
    fs::remove_file(&path).unwrap();
    fs::write(&path, [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &new[begin..end]].concat()).unwrap();
    let (_, notices, packed) = convert_with(&place.cache(), place.open("model"));
    assert!(packed && notices.len() == 1 && notices[0].contains("it is damaged: it has no checksums"), "{notices:?}");
}

#[test]
fn what_a_killed_start_leaves_is_not_believed() {
    let place = Place::new();
    let (first, ..) = convert_with(&place.cache(), place.open("model"));
    let path = place.whole();
    // Killed before the rename: everything is there, under the other name.
    fs::rename(&path, path.with_extension(PARTIAL)).unwrap();
    fs::rename(path.with_extension(""), path.with_extension("texts.partial")).unwrap();
    let (again, notices, packed) = convert_with(&place.cache(), place.open("model"));
    assert!(packed && notices.is_empty() && again.cached);
    same(&again, &first);
    assert_eq!(place.files(), [path.with_extension(""), path]);
}

#[test]
fn without_room_or_folder_the_weights_stay_in_memory() {
    let place = Place::new();
    let full = WeightCache { free_bytes: |_| Some(1000), ..place.cache() };
    let (in_memory, notices, packed) = convert_with(&full, place.open("model"));
    assert!(packed && !in_memory.cached && in_memory.weights == Weights::Int4 && place.files().is_empty());
    let said = "has no room for quantized weights: 0 MB are needed, 0 MB are free; the weights are quantized in memory, at every start";
    assert!(notices.len() == 1 && notices[0].ends_with(said), "{notices:?}");
    fs::remove_dir_all(place.root.path().join("cache")).unwrap();
    fs::write(place.root.path().join("cache"), "").unwrap();
    let (in_memory, notices, _) = convert_with(&place.cache(), place.open("model"));
    assert!(!in_memory.cached && notices.len() == 1 && notices[0].contains("cannot be written"), "{notices:?}");
}

#[test]
fn a_stop_leaves_nothing() {
    let place = Place::new();
    let stop = |r| !matches!(r, Report::Layers { done: 1, .. });
    let stopped = place.cache().convert(place.open("model"), Weights::Int8, &Calibration::Equal, &mut { stop });
    assert_eq!(stopped.err().unwrap().to_string(), "loading was stopped");
    assert!(place.files().is_empty(), "{:?}", place.files());
}

#[test]
fn a_second_start_waits_for_the_first_and_uses_its_file() {
    let place = Place::new();
    let (cache, source) = (place.cache(), place.open("model"));
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (waits, has_waited) = std::sync::mpsc::channel();
    let (first, second, notices) = std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            // Stops in the middle until the second one waits.
            let mut begun = Some(begun);
            let mut report = |r| {
                if let Some(begun) = begun.take_if(|_| matches!(r, Report::Layers { done: 1, .. })) {
                    begun.send(()).unwrap();
                    has_waited.recv().unwrap();
                }
                true
            };
            cache.convert(source, Weights::Int4, &Calibration::Equal, &mut report).unwrap()
        });
        has_begun.recv().unwrap();
        let mut notices = Vec::new();
        let mut report = |r| {
            if let Report::Notice(text) = r {
                notices.push(text);
                let _ = waits.send(());
            }
            true
        };
        let second = place.cache().convert(place.open("model"), Weights::Int4, &Calibration::Equal, &mut report);
        (first.join().unwrap(), second.unwrap(), notices)
    });
    same(&first, &second);
    assert!(first.cached && second.cached && place.files().len() == 2);
    let wanted = "another dmschat is quantizing model to int4; waiting for it (--no-weight-cache does not wait)";
    assert_eq!(notices, [wanted]);
}

#[test]
fn what_another_models_killed_start_leaves_is_swept() {
    let place = Place::new();
    let folder = place.root.path().join("cache/weights");
    fs::create_dir_all(folder.join("gone--0123456789abcdef.texts.partial")).unwrap();
    fs::write(folder.join("gone--0123456789abcdef.partial"), "half").unwrap();
    // The user's.
    fs::create_dir_all(folder.join("mine.texts.partial")).unwrap();
    fs::write(folder.join("mine--1.partial"), "half").unwrap();
    let busy = File::create(folder.join("busy--00112233445566ff.partial")).unwrap();
    busy.lock().unwrap();
    convert_with(&place.cache(), place.open("model"));
    let path = place.whole();
    let left =
        ["busy--00112233445566ff.partial", "mine--1.partial", "mine.texts.partial"].map(|name| folder.join(name));
    let mut wanted = [&left[..], &[path.with_extension(""), path]].concat();
    wanted.sort();
    assert_eq!(place.files(), wanted);
}
