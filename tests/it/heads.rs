//! Draft heads: hidden states and guesses of EAGLE-3 as in speculators
//! (tests/golden/make_eagle.py), and of layers for multi-token prediction as in transformers
//! (make_mtp.py); and conversations that do not depend on a head.

use crate::fake_hub::FakeHub;
use crate::hub::{Home, WEIGHTS, files, said};
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::KvGeometry;
use dmschat::backend::cpu::Cpu;
use dmschat::cache::KvCache;
use dmschat::checkpoint::eagle;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::codec::Codec;
use dmschat::engine::{DraftRequest, Drafts, EngineOptions, Runner};
use dmschat::model::{self, Head, Model, Workspace};
use dmschat::policy::Policy;
use dmschat::protocol::{MAX_DRAFTS, Token};
use dmschat::tensor::SharedBytes;
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KINDS: [&str; 3] = ["eagle/speculators", "eagle/plain", "mtp"];

/// Largest difference of a value of the hidden states, which are up to 10.
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    base: String,
    tokens: Vec<Token>,
    /// `[tokens - 1, hidden]`
    hidden: Vec<f32>,
    behind: Vec<Token>,
    guesses: Vec<Token>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A golden, and the model with its head.
fn opened(kind: &str) -> (Golden, Checkpoint) {
    let path = folder(kind);
    let text = std::fs::read(path.join("golden.json")).expect("tests/golden/make_eagle.py and make_mtp.py make it");
    let golden: Golden = serde_json::from_slice(&text).unwrap();
    if kind == "mtp" {
        let mut checkpoint = with_mtp(&golden.base);
        assert!(checkpoint.unused().is_none() && checkpoint.draft_head.is_none());
        checkpoint.find_draft_head().unwrap();
        return (golden, checkpoint);
    }
    let base = ModelRef::Folder(folder(&golden.base));
    let mut checkpoint = Checkpoint::open(&base, &AdapterChoice::None).unwrap();
    let head = eagle::named(&path, checkpoint.config.n_layers).unwrap();
    checkpoint.set_draft_head(head).unwrap();
    (golden, checkpoint)
}

/// A model whose files hold the tensors of `mtp` too, in a shard of their own.
fn with_mtp(base: &str) -> Checkpoint {
    let read = |name: &str| std::fs::read(folder(name)).unwrap();
    let shards = [("1", read(&format!("{base}/model.safetensors"))), ("2", read("mtp/mtp.safetensors"))];
    let mut map = serde_json::Map::new();
    for (shard, bytes) in &shards {
        let header = &bytes[8..8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize];
        let header: serde_json::Map<_, _> = serde_json::from_slice(header).unwrap();
        map.extend(header.into_iter().map(|(name, _)| (name, shard.to_string().into())));
    }
    map.remove("__metadata__");
    let index = json!({ "weight_map": map }).to_string().into_bytes();
    let texts = [("config.json", read(&format!("{base}/config.json"))), ("model.safetensors.index.json", index)];
    let files = texts.into_iter().chain(shards);
    let shared = files.map(|(name, bytes)| (name.to_owned(), Arc::new(bytes) as SharedBytes));
    Checkpoint::from_memory(base, shared.collect(), &AdapterChoice::None).unwrap()
}

fn options() -> EngineOptions {
    let drafts = Drafts { rows: MAX_DRAFTS + 1, ..Drafts::default() };
    EngineOptions { drafts, ..EngineOptions::new(Codec::F32) }
}

#[test]
fn hidden_states_and_guesses_are_those_of_speculators() {
    for kind in KINDS {
        let (golden, checkpoint) = opened(kind);
        let b = Cpu::new(1);
        let (n, hidden) = (golden.tokens.len() - 1, checkpoint.config.hidden);
        let model = Model::load(&b, &checkpoint, |_, _| true).unwrap();
        let mut ws = Workspace::new(&b, &model, n, 1, 0).unwrap();
        // A runner makes the cache: its geometry is what loading makes of the options.
        let runner = Runner::new(Cpu::new(1), &checkpoint, &options(), |_, _| true).unwrap();
        let mut cache = KvCache::new(&b, *runner.cache.geometry(), 64, n).unwrap();
        let seq = cache.create(&b, true).unwrap();
        let span = cache.span(seq, 0, n);
        cache.reserve_step(&b, &[span]).unwrap();
        ws.tokens[..n].copy_from_slice(&golden.tokens[..n]);
        let spans = &[span];
        model::Step { b: &b, model: &model, ws: &mut ws, cache: &mut cache, spans, staged: false }.forward();

        for steps in [vec![n], vec![1, 7, n - 8]] {
            let head = checkpoint.draft_head.as_ref().unwrap();
            let c = &head.layer.config;
            let geometry = KvGeometry {
                n_layers: 1,
                n_q_heads: c.n_q_heads,
                n_kv_heads: c.n_kv_heads,
                head_dim: c.head_dim,
                policy: Policy::Dense,
                heads: None,
                n_seqs: 1,
                delta: None,
                ..*runner.cache.geometry()
            };
            let mut head = Head::new(&b, &model, head, geometry, 64, n).unwrap();
            let seq = head.cache.create(&b, true).unwrap();
            let mut at = 0;
            for len in steps {
                let rows: Vec<usize> = (at..at + len).collect();
                let span = head.cache.span(seq, 0, len);
                head.cache.reserve_step(&b, &[span]).unwrap();
                head.feed(&b, &ws.features, &rows, &golden.tokens[at + 1..=at + len], &[span]);
                let got = head.read_hidden(&b, len);
                for (i, (got, want)) in got.iter().zip(&golden.hidden[at * hidden..]).enumerate() {
                    let apart = (got - want).abs();
                    assert!(
                        apart < TOLERANCE,
                        "{kind}: row {}, value {}: {got}, not {want}",
                        at + i / hidden,
                        i % hidden
                    );
                }
                let all: Vec<usize> = (0..len).collect();
                let guesses: Vec<Token> = head.guess(&b, &all).into_iter().flatten().collect();
                assert_eq!(guesses, golden.behind[at..at + len], "{kind}: guesses behind each row");
                at += len;
            }
        }
    }
}

/// However a text is fed, and whatever else is fed beside it, the head's next guess is the same.
#[test]
fn guesses_do_not_depend_on_how_a_text_is_fed() {
    for kind in KINDS {
        let (golden, checkpoint) = opened(kind);
        let mut runner = Runner::new(Cpu::new(1), &checkpoint, &options(), |_, _| true).unwrap();
        let n = golden.tokens.len() - 1;
        for steps in [vec![n], vec![3, 1, 1, n - 5], vec![1; n]] {
            let (seq, mut at, mut guesses) = (runner.create(true).unwrap(), 0, Vec::new());
            let mut seq = seq;
            for len in steps {
                runner.feed(seq, &golden.tokens[at..at + len]).unwrap();
                let next = &golden.tokens[at + 1..=at + len];
                guesses = runner.draft(&[DraftRequest { seq, next, max: golden.guesses.len() }]).remove(0);
                at += len;
                // A fork goes on where it is.
                let fork = runner.fork(seq).unwrap();
                runner.release(seq);
                seq = fork;
            }
            assert_eq!(guesses, golden.guesses, "{kind}");
            // After a token that is not the expected one, it begins again.
            let other = (golden.tokens[n] + 1) % 64;
            runner.feed(seq, &[other]).unwrap();
            let guesses = runner.draft(&[DraftRequest { seq, next: &[5], max: 2 }]).remove(0);
            assert_eq!(guesses.len(), 2, "{kind}");
            runner.release(seq);
        }
    }
}

#[test]
fn a_head_for_another_model_is_refused() {
    let open = |name: &str| Checkpoint::open(&ModelRef::Folder(folder(name)), &AdapterChoice::None).unwrap();
    let head = || eagle::named(&folder("eagle/plain"), 4).unwrap();
    let error = open("qwen3_gqa").set_draft_head(head()).unwrap_err().to_string();
    assert_eq!(
        error,
        "plain is a draft head for a different model than qwen3_gqa: its hidden size is 64, and the model's is 48"
    );
    let error = eagle::named(&folder("qwen3_gqa"), 4).err().unwrap().to_string();
    assert!(error.contains("config.json is not that of an EAGLE-3 head"), "{error}");
    let error = eagle::named(&folder("nowhere"), 4).err().unwrap().to_string();
    assert!(error.contains("is neither a folder nor a hub id"), "{error}");
}

/// Writes a random head for a model, which guesses the letters a to h and spaces.
pub fn write_random(folder: &Path, h: usize, vocab: usize, head_dim: usize) {
    let (heads, ffn) = (4, 96);
    let letters: Vec<i64> = [b' '].into_iter().chain(b'a'..=b'h').map(i64::from).collect();
    let n = letters.len();
    let shapes = [
        ("fc", vec![h, 3 * h]),
        ("midlayer.hidden_norm", vec![h]),
        ("midlayer.input_layernorm", vec![h]),
        ("midlayer.self_attn.q_proj", vec![heads * head_dim, 2 * h]),
        ("midlayer.self_attn.k_proj", vec![heads / 2 * head_dim, 2 * h]),
        ("midlayer.self_attn.v_proj", vec![heads / 2 * head_dim, 2 * h]),
        ("midlayer.self_attn.o_proj", vec![h, heads * head_dim]),
        ("midlayer.post_attention_layernorm", vec![h]),
        ("midlayer.mlp.gate_proj", vec![ffn, h]),
        ("midlayer.mlp.up_proj", vec![ffn, h]),
        ("midlayer.mlp.down_proj", vec![h, ffn]),
        ("norm", vec![h]),
        ("lm_head", vec![n, h]),
    ];
    let (mut header, mut data, mut rng) = (serde_json::Map::new(), Vec::new(), Rng(7));
    let mut entry = |name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
        let from = data.len();
        data.extend(bytes);
        header.insert(name.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [from, data.len()]}));
    };
    let differences = letters.iter().zip(0..).flat_map(|(letter, i)| (letter - i).to_le_bytes()).collect();
    entry("d2t", "I64", &[n], differences);
    for (name, shape) in shapes {
        let size = if shape.len() == 2 { 2.0 / (shape[1] as f64).sqrt() } else { 1.0 };
        let values = (0..shape.iter().product()).flat_map(|_| ((rng.signed() * size) as f32).to_le_bytes()).collect();
        entry(&format!("{name}.weight"), "F32", &shape, values);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": h, "num_attention_heads": heads, "num_key_value_heads": heads / 2,
        "head_dim": head_dim, "intermediate_size": ffn, "vocab_size": vocab, "draft_vocab_size": n,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "num_hidden_layers": 1,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[test]
fn a_head_is_used_from_a_folder_and_a_wrong_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [right, wrong] = ["right", "wrong"].map(|name| folder.path().join(name));
    [&right, &wrong].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let shape = Checkpoint::shape("demo").unwrap();
    let config = (shape.hidden, shape.vocab);
    write_random(&right, config.0, config.1, 64);
    write_random(&wrong, config.0 + 64, config.1, 64);
    let said = |draft: &str| {
        let args = ["-p", "Solve 3x + 4 = 19", "--max-tokens", "40", "--temperature", "0", "--json", "--device", "cpu"];
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"));
        let out = command
            .args(args)
            .args(["--draft", draft])
            .env("HOME", folder.path())
            .env_remove("DMSCHAT_BUILD_COMMIT")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let answer = |draft: &str| {
        let (_, stdout, stderr) = said(draft);
        serde_json::from_str::<serde_json::Value>(&stdout).unwrap_or_else(|_| panic!("{stderr}"))
    };
    let (plain, drafted) = (answer("off"), answer(right.to_str().unwrap()));
    for key in ["answer", "reasoning", "reasoning_tokens"] {
        assert_eq!(plain[key], drafted[key], "{key}");
    }
    assert!(drafted["draft"]["rounds"].as_u64() > Some(0), "{drafted}");
    let (code, _, stderr) = said(wrong.to_str().unwrap());
    assert!(code == Some(2) && stderr.trim_end().lines().count() == 1, "{stderr}");
    assert!(stderr.contains("wrong is a draft head for a different model than demo: its hidden size is"), "{stderr}");
    let (code, _, stderr) = said("lokup");
    assert!(code == Some(2) && stderr.contains("is not a source of drafts"), "{stderr}");
}

#[test]
fn a_head_of_the_hub_is_downloaded_with_its_first_use() {
    const ID: &str = "RedHatAI/Qwen3-8B-speculator.eagle3";
    let folder = tempfile::tempdir().unwrap();
    let plain = Tiny::new(Spec { tied: false, speaks: true, ..Spec::new(true, Form::Plain) }, 11);
    write_random(folder.path(), plain.spec.hidden, plain.spec.vocab, 16);
    let mut files = files();
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        files.insert(name.to_owned(), std::fs::read(plain.folder.file(name)).unwrap());
    }
    files.insert("README.md".to_owned(), b"---\nlicense: mit\nbase_model:\n- Qwen/Qwen3-8B\n---\n".to_vec());
    let (hub, home) = (FakeHub::new(files), Home::new());
    let of_head = |name: &str| (name.to_owned(), std::fs::read(folder.path().join(name)).unwrap());
    hub.predictor(["config.json", WEIGHTS].map(of_head).into());
    // From then on it is used where nobody names it, because it is known for the model.
    for (offline, draft) in [("0", ID), ("1", ID), ("1", "auto")] {
        let args = ["-p", "hi", "-m", "any/model", "--max-tokens", "20", "--json", "--draft", draft];
        let (code, stdout, stderr) = said(home.command(&hub, &args).env("HF_HUB_OFFLINE", offline).spawn().unwrap());
        let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code}: {stderr}"));
        assert!(answer["draft"]["rounds"].as_u64() > Some(0), "{answer}");
        assert_eq!(stderr.contains(&format!("{ID} at 01234567: 2 files")), offline == "0", "{stderr}");
    }
}
