//! Retention gates of TrimKV: against what their own package dropped (tests/golden/make_trimkv.py),
//! and against themselves over splits, forks, images and toggles.

use crate::fake_hub::{COMMIT, FakeHub};
use crate::hub::{Home, WEIGHTS, files, said};
use crate::kernels::needs;
use crate::rule::slots;
use crate::spy::{Spy, Watch};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::backend::KernelNeeds;
use dmschat::backend::cpu::Cpu;
use dmschat::backend::cuda::check_needs;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, ModelRef, Tuning};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind};
use dmschat::protocol::Token;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// As the goldens of other predictors.
const TOLERANCE: f32 = 2e-4;

#[derive(Deserialize)]
struct Golden {
    model: String,
    tokens: Vec<Token>,
    /// `[n_tokens][n_layers][n_kv_heads]`
    log_beta: Vec<Vec<Vec<f32>>>,
    /// The position that a token dropped, or -1.
    dropped: Vec<Vec<Vec<i64>>>,
    logits: Vec<f32>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(kind: &str) -> Golden {
    serde_json::from_slice(&fs::read(folder(&format!("trimkv/{kind}/golden.json"))).unwrap()).unwrap()
}

fn opened(kind: &str) -> Checkpoint {
    let gates = AdapterChoice::File(folder(&format!("trimkv/{kind}")));
    Checkpoint::open(&ModelRef::Folder(folder(&golden(kind).model)), &gates).expect("opens")
}

fn runner(checkpoint: &Checkpoint, options: EngineOptions) -> Runner<Cpu> {
    Runner::new(Cpu::new(2), checkpoint, &options, |_, _| true).expect("loads")
}

fn options() -> EngineOptions {
    EngineOptions { max_seqs: 4, max_step: Some(64), ..EngineOptions::new(Codec::F32) }
}

fn log_sigmoid(x: f32) -> f32 {
    -(f64::from(-x).exp().ln_1p()) as f32
}

fn in_order(mut slots: Vec<Vec<Vec<usize>>>) -> Vec<Vec<Vec<usize>>> {
    slots.iter_mut().flatten().for_each(|lane| lane.sort_unstable());
    slots
}

/// What the package stored after the first `n` tokens.
fn kept(golden: &Golden, n: usize) -> Vec<Vec<Vec<usize>>> {
    let (layers, heads) = (golden.dropped[0].len(), golden.dropped[0][0].len());
    let gone = |layer: usize, head: usize| golden.dropped[..n].iter().map(move |step| step[layer][head]);
    let lane = |layer, head| (0..n).filter(|&p| gone(layer, head).all(|gone| gone != p as i64)).collect();
    (0..layers).map(|layer| (0..heads).map(|head| lane(layer, head)).collect()).collect()
}

/// Scores, what is stored after each token, and logits.
#[test]
fn gates_keep_what_their_package_keeps() {
    for kind in ["rg", "rg10"] {
        let (golden, checkpoint) = (golden(kind), opened(kind));
        assert_eq!(
            checkpoint.evicts_by().as_deref(),
            Some(&*format!("forgets with {kind} (made for 24 tokens a head)"))
        );
        let watch = Watch::default();
        let mut runner = Runner::new(Spy::new(&watch), &checkpoint, &options(), |_, _| true).expect("loads");
        assert_eq!(runner.cache.geometry().policy.budget(), Some(Budget::Slots(24)));
        watch.seen().decisions = Some(Vec::new());
        let seq = runner.create(true).expect("a sequence");
        for (at, &token) in golden.tokens.iter().enumerate() {
            runner.feed(seq, &[token]).expect("fed");
            let stored = crate::rule::stored(&runner, seq);
            let positions =
                stored.iter().map(|layer| layer.iter().map(|lane| lane.iter().map(|s| s.0).collect()).collect());
            assert_eq!(positions.collect::<Vec<Vec<Vec<usize>>>>(), kept(&golden, at + 1), "{kind} after token {at}");
        }
        let got = watch.seen().decisions.take().expect("decisions");
        let wanted = golden.log_beta.iter().flatten().flatten();
        assert_eq!(got.len(), wanted.clone().count());
        for (gate, want) in got.iter().zip(wanted) {
            let (got, scale) = (log_sigmoid(*gate), want.abs().max(1e-3));
            assert!((got - want).abs() < TOLERANCE * scale, "{kind}: log beta {got}, not {want}");
        }
        let row = |row: &[f32]| row.iter().zip(&golden.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        runner
            .logits(0..1, |_, logits| assert!(row(logits) < TOLERANCE, "{kind}: logits differ by {}", row(logits)))
            .unwrap();
    }
}

/// A prompt in any steps is what the package stores token by token, with the same slots.
#[test]
fn steps_forks_and_images_keep_what_single_tokens_keep() {
    for (kind, codec) in [("rg", Codec::F32), ("rg10", Codec::F32)] {
        let (golden, checkpoint) = (golden(kind), opened(kind));
        let mut runner = runner(&checkpoint, EngineOptions { codec, ..options() });
        let (n, mut of_ones) = (golden.tokens.len(), None);
        for steps in [vec![1; n], vec![64, n - 64], vec![7, 30, 1, 1, 41]] {
            let (seq, mut at) = (runner.create(true).unwrap(), 0);
            for step in steps {
                runner.feed(seq, &golden.tokens[at..at + step]).unwrap();
                at += step;
            }
            let got = slots(&runner, seq);
            assert_eq!(*of_ones.get_or_insert_with(|| got.clone()), got, "{kind}: slots of another split");
            assert_eq!(in_order(got), kept(&golden, n), "{kind}");
            runner.release(seq);
        }
        let seq = runner.create(true).unwrap();
        runner.feed(seq, &golden.tokens[..50]).unwrap();
        let fork = runner.fork(seq).unwrap();
        // The original goes on elsewhere, over the pages that both hold.
        let other: Vec<Token> = golden.tokens.iter().rev().copied().take(40).collect();
        runner.feed(seq, &other).unwrap();
        let (head, _) = runner.head(fork);
        let images: Vec<Vec<u8>> = (0..runner.config().n_layers)
            .map(|layer| {
                let mut image = Vec::new();
                runner.export_layer(fork, layer, &mut image);
                image
            })
            .collect();
        runner.release(seq);
        let copy = runner.create(true).unwrap();
        for (layer, image) in images.into_iter().enumerate() {
            let check = runner.cache.layer_check(head.len);
            runner.import_layer(copy, &check.check(layer, image).unwrap()).unwrap();
        }
        runner.end_import(copy, &head, std::iter::empty()).unwrap();
        for seq in [fork, copy] {
            runner.feed(seq, &golden.tokens[50..]).unwrap();
            assert_eq!(in_order(slots(&runner, seq)), kept(&golden, n), "{kind}");
            runner.release(seq);
        }
        assert_eq!(runner.cache.audit(runner.backend()), Ok(0));
    }
}

/// With eviction off, nothing leaves; back on, those with the most left stay.
#[test]
fn eviction_that_is_switched_on_again_keeps_the_best() {
    let (golden, checkpoint) = (golden("rg"), opened("rg"));
    let watch = Watch::default();
    let mut runner = Runner::new(Spy::new(&watch), &checkpoint, &options(), |_, _| true).expect("loads");
    watch.seen().decisions = Some(Vec::new());
    let (n, seq) = (60, runner.create(false).expect("a sequence"));
    for &token in &golden.tokens[..n] {
        runner.feed(seq, &[token]).expect("fed");
    }
    let gates = watch.seen().decisions.take().expect("decisions");
    let (layers, heads) = (runner.config().n_layers, runner.config().n_kv_heads);
    runner.set_eviction(seq, true).unwrap();
    for (layer, lanes) in crate::rule::stored(&runner, seq).iter().enumerate() {
        for (head, lane) in lanes.iter().enumerate() {
            let left = |p: usize| log_sigmoid(gates[(p * layers + layer) * heads + head]) * (n + 1 - p) as f32;
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| left(b).total_cmp(&left(a)));
            order.truncate(24);
            order.sort_unstable();
            assert_eq!(lane.iter().map(|slot| slot.0).collect::<Vec<_>>(), order, "layer {layer}, head {head}");
        }
    }
}

#[test]
fn what_gates_cannot_be_is_refused_in_one_line() {
    let base = folder("trimkv/rg");
    let config: Value = serde_json::from_slice(&fs::read(base.join("config.json")).unwrap()).unwrap();
    let model = ModelRef::Folder(folder("qwen3_gqa"));
    let dir = tempfile::tempdir().unwrap();
    fs::copy(base.join("trimkv_weights.pth"), dir.path().join("trimkv_weights.pth")).unwrap();
    for (key, value, part) in [
        ("global_capacity", json!(true), "these gates share one budget among all heads (DBTrimKV)"),
        ("retention_gate", json!("rg9"), "retention_gate \"rg9\" is unknown (rg and rg10 are known)"),
        ("hidden_act", json!("gelu"), "gates are computed with silu"),
        ("memory_size", json!(8), "memory_size is 8, expected at least 16"),
        ("num_hidden_layers", json!(4), "its num_hidden_layers is 4, and the model needs 3"),
        ("num_key_value_heads", json!(4), "its num_key_value_heads is 4, and the model needs 2"),
        ("model_type", json!("llama"), "its model_type is llama, and the model needs qwen3"),
        (
            "retention_gate_intermediate_size",
            json!(41),
            "retention_gate.linear1.weight has shape [40, 48], expected [41, 48]",
        ),
        ("retention_gate", json!("rg10"), "share one budget"),
    ] {
        let mut changed = config.clone();
        changed[key] = value;
        if key == "retention_gate" && part == "share one budget" {
            changed.as_object_mut().unwrap().remove("global_capacity");
        }
        fs::write(dir.path().join("config.json"), changed.to_string()).unwrap();
        let why = Checkpoint::open(&model, &AdapterChoice::File(dir.path().to_owned())).err().expect("refused");
        let why = format!("{why:#}");
        assert!(why.contains(part) && why.lines().count() == 1, "{why}");
    }
    // Files that are older than the key are of gates for each head.
    let mut older = config.clone();
    for key in ["global_capacity", "memory_size"] {
        older.as_object_mut().unwrap().remove(key);
    }
    fs::write(dir.path().join("config.json"), older.to_string()).unwrap();
    let checkpoint = Checkpoint::open(&model, &AdapterChoice::File(dir.path().to_owned())).unwrap();
    let policy =
        |c: &ModelConfig, kind: PolicyKind| c.policy(kind.into()).map(|policy| (policy.kind(), policy.budget()));
    assert_eq!(policy(&checkpoint.config, PolicyKind::Auto).unwrap(), (PolicyKind::TrimKv, Some(Budget::Slots(1024))));
    let asked = checkpoint.config.policy(PolicyKind::TrimKv.with(Budget::of_ratio(4.0))).unwrap();
    assert_eq!(asked.budget(), Some(Budget::of_ratio(4.0)));
    assert_eq!(policy(&checkpoint.config, PolicyKind::Dense).unwrap().0, PolicyKind::Dense);
    assert!(policy(&checkpoint.config, PolicyKind::Dms).unwrap_err().to_string().contains("was not trained with DMS"));
    let plain = Checkpoint::open(&model, &AdapterChoice::None).unwrap();
    let why = policy(&plain.config, PolicyKind::TrimKv).unwrap_err().to_string();
    assert!(why.contains("this model has no retention gates"), "{why}");
    let mut tuned = opened("rg");
    let why = tuned.tune(Tuning { window: Some(9), ..Tuning::default() }).unwrap_err().to_string();
    assert!(why.contains("evicts by retention gates"), "{why}");

    let gated = opened("rg").config.policy(PolicyKind::Auto.into()).unwrap();
    // Those of benchmarks.
    let random = Checkpoint::shape_predicting("smollm2-135m", "random-gates").unwrap().unwrap();
    assert_eq!(random.policy(PolicyKind::Auto.into()).unwrap().budget(), Some(Budget::Slots(1024)));
    let wide = KernelNeeds { gate_units: 4096, ..needs(gated) };
    let why = check_needs(&wide).unwrap_err().to_string();
    assert!(why.contains("at most 2048 units, and this one has 4096; use --device cpu"), "{why}");
    assert!(check_needs(&KernelNeeds { gate_units: 2048, ..wide }).is_ok());
}

/// Gates from the hub, named by --adapter, and a conversation with them.
#[test]
fn gates_are_pulled_by_their_id_and_used() {
    const ID: &str = "nvidia/KVzap-mlp-Qwen3-8B";
    let plain = Tiny::new(Spec { n_layers: 3, tied: false, speaks: true, ..Spec::new(true, Form::Plain) }, 11);
    let mut files = files();
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        files.insert(name.to_owned(), fs::read(plain.folder.file(name)).unwrap());
    }
    let (hub, home) = (FakeHub::new(files), Home::new());
    let gates = ["config.json", "trimkv_weights.pth"];
    hub.predictor(gates.map(|name| (name.to_owned(), fs::read(folder("trimkv/rg").join(name)).unwrap())).into());
    let ask = |more: &[&str]| {
        let args = [
            "-p",
            "hi there, how is it going",
            "-m",
            "any/model",
            "--max-tokens",
            "40",
            "--temperature",
            "0",
            "--json",
        ];
        let (code, stdout, stderr) = said(home.command(&hub, &[&args, more].concat()).spawn().unwrap());
        (code, serde_json::from_str::<Value>(&stdout).unwrap_or_default(), stderr)
    };
    let (code, answer, stderr) = ask(&["--adapter", ID, "--device", "cpu"]);
    assert!(code == 0 && stderr.contains("was made for someone/qwen3_gqa, not for any/model"), "{stderr}");
    let lanes = |slots: usize| json!(vec![[slots; 2]; 3]);
    assert_eq!((&answer["decisions"]["kind"], &answer["kv"]["live"]), (&json!("trimkv"), &lanes(24)), "{answer}");
    let snapshot = home.cache().join("models--nvidia--KVzap-mlp-Qwen3-8B/snapshots").join(COMMIT);
    assert!(snapshot.join("trimkv_weights.pth").exists());
    let (code, answer, stderr) = ask(&["--adapter", ID, "--policy", "trimkv", "--budget", "16"]);
    assert!(code == 0 && answer["kv"]["live"] == lanes(16), "{answer} {stderr}");
    let (_, list, _) = home.run(&hub, &["models", "list"]);
    assert!(list.lines().any(|line| line.starts_with(ID) && line.contains("a predictor")), "{list}");
}
