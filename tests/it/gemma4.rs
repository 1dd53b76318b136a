//! Models whose layers have other heads than each other, or read the K and V of others (Gemma 4): a
//! cache of the layers that store, under every source of decisions.

use crate::families::predictor;
use crate::gguf::golden;
use crate::hybrids::fed;
use crate::local::{images, step_and_draft};
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, ModelRef, Tuning};
use dmschat::codec::Codec;
use dmschat::engine::{Decode, Drafts, EngineOptions, FarOptions, Runner};
use dmschat::policy::{Budget, Far, KvHeads, PolicyKind, PolicyRequest};
use dmschat::protocol::{LaneFilter, SamplingParams, Token};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const NAMES: [&str; 4] = ["gemma4", "gemma4_wide", "gemma4_seeing", "gemma4_experts"];
const TOKENS: usize = 80;
const WINDOW: usize = 24;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn runner(name: &str, adapter: &AdapterChoice, options: EngineOptions) -> Runner<Cpu> {
    let mut checkpoint = Checkpoint::open(&ModelRef::Folder(folder(name)), adapter).unwrap();
    if checkpoint.adapter.is_some() {
        checkpoint.tune(Tuning { window: Some(9), ..Tuning::default() }).unwrap();
    }
    let drafts = Drafts { rows: 16, ..Drafts::default() };
    let options = EngineOptions { context: Some(128), max_seqs: 8, drafts, ..options };
    Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap()
}

fn tokens() -> Vec<Token> {
    (0..TOKENS).map(|i| (i * 7919 % 128) as Token).collect()
}

/// Checks a sequence's figures against its slots.
fn check(runner: &Runner<Cpu>, seq: SeqId) {
    let (g, stats, n) = (*runner.cache.geometry(), runner.cache.stats(runner.backend(), seq), runner.cache.len(seq));
    let mut bytes = 0;
    for lane in g.lanes() {
        let metas = runner.cache.slot_metas(runner.backend(), seq, lane.layer, lane.head);
        assert_eq!(metas.len(), stats.live[lane.layer][lane.head] as usize);
        bytes += metas.len() * g.codec.slot_bytes(g.layer(lane.layer).heads.dim);
        if !g.layer(lane.layer).decides() {
            let mut positions: Vec<usize> = metas.iter().map(|meta| meta.position()).collect();
            positions.sort_unstable();
            assert_eq!(positions, (n.saturating_sub(WINDOW)..n).collect::<Vec<_>>(), "layer {}", lane.layer);
        }
    }
    assert_eq!(stats.bytes(&g), bytes as u64);
    assert!(stats.live.iter().map(Vec::len).eq(g.layers().map(|layer| layer.heads.count)));
    let counts = runner.cache.presence(runner.backend(), seq, LaneFilter::default(), n - 1);
    assert_eq!(usize::from(counts.kept[n - 1]), g.deciding_lanes().count(), "all lanes store the newest token");
    runner.cache.audit(runner.backend()).unwrap();
}

/// A copy of a sequence through its images.
fn restored(runner: &mut Runner<Cpu>, seq: SeqId, fed: &[Token]) -> SeqId {
    let (head, bytes) = runner.head(seq);
    let all = images(runner, seq);
    assert!(all.iter().map(|image| image.len() as u64).eq(bytes.iter().copied()));
    assert!(all.iter().all(|image| image.len() as u64 <= runner.cache.max_layer_bytes(head.len)));
    let (check, copy) = (runner.cache.layer_check(head.len), runner.create(head.eviction).unwrap());
    for (layer, image) in all.into_iter().enumerate() {
        runner.import_layer(copy, &check.check(layer, image).unwrap()).unwrap();
    }
    runner.end_import(copy, &head, fed.iter().copied()).unwrap();
    copy
}

/// Chunks, drafts, forks and images give the bits of single steps, whatever decides and however
/// rows are stored.
#[test]
fn layers_that_share_a_cache_follow_the_one_that_stores() {
    let (all, sampling) = (tokens(), SamplingParams::default());
    for (name, codec) in NAMES.into_iter().flat_map(|name| [Codec::F32, Codec::Bf16, Codec::K8V4].map(|c| (name, c))) {
        let adapter = tempfile::tempdir().unwrap();
        predictor(adapter.path(), &golden(name).config);
        let predicted = AdapterChoice::File(adapter.path().to_owned());
        let window = PolicyKind::Window.with(Budget::Slots(20));
        for (adapter, policy) in [
            (&AdapterChoice::None, PolicyRequest::default()),
            (&AdapterChoice::None, window),
            (&predicted, PolicyRequest::default()),
        ] {
            let mut runner = runner(name, adapter, EngineOptions { policy, ..EngineOptions::new(codec) });
            let what = format!("{name}, {codec}, {policy:?}");
            let mut wanted = None;
            for steps in [&[1][..], &[TOKENS], &[30, 1, 1, 25, 23]] {
                let seq = runner.create(true).unwrap();
                let got = (fed(&mut runner, seq, &all, steps), images(&mut runner, seq));
                check(&runner, seq);
                assert!(wanted.as_ref().is_none_or(|wanted| *wanted == got), "{what}: {steps:?}");
                wanted = Some(got);
                runner.release(seq);
            }
            let [plain, drafted] = [(); 2].map(|()| runner.create(true).unwrap());
            runner.feed(plain, &all).unwrap();
            runner.feed(drafted, &all).unwrap();
            let fork = runner.fork(plain).unwrap();
            let copy = restored(&mut runner, plain, &all);
            let next = step_and_draft(&mut runner, plain, drafted);
            let row = |seq, token| Decode { seq, token, sampling: &sampling, seed: 1 };
            let after = images(&mut runner, plain);
            assert!(images(&mut runner, drafted) == after, "{what}: drafts");
            for seq in [fork, copy] {
                runner.feed(seq, &next[..6]).unwrap();
                check(&runner, seq);
                assert!(images(&mut runner, seq) == after, "{what}: a fork, or a copy from images");
            }
            // Several sequences in one step.
            let tokens = runner.decode(&[row(plain, 7), row(fork, 7), row(copy, 7)]).unwrap();
            assert!(tokens.iter().all(|token| *token == tokens[0]), "{what}: {tokens:?}");
        }
    }
}

#[test]
fn pins_the_switch_and_far_rows_are_those_of_the_layers_that_store() {
    for name in NAMES {
        let adapter = tempfile::tempdir().unwrap();
        predictor(adapter.path(), &golden(name).config);
        let predicted = AdapterChoice::File(adapter.path().to_owned());
        let runner_of = |far| runner(name, &predicted, EngineOptions { far, ..EngineOptions::new(Codec::Bf16) });
        let mut runner = runner_of(None);
        let seq = runner.create(false).unwrap();
        runner.pin(seq, 3..30).unwrap();
        runner.feed(seq, &tokens()[..60]).unwrap();
        check(&runner, seq);
        let dense = runner.cache.stats(runner.backend(), seq);
        assert_eq!(
            (dense.live_slots, dense.bytes(runner.cache.geometry())),
            (dense.dense_slots(), dense.dense_bytes(runner.cache.geometry()))
        );
        assert!(runner.set_eviction(seq, true).unwrap() > 0);
        runner.feed(seq, &tokens()[60..]).unwrap();
        runner.forget(seq, 1).unwrap();
        check(&runner, seq);
        runner.drop_positions(seq, 70..75).unwrap();
        check(&runner, seq);

        let mut runner = runner_of(Some(FarOptions { rule: Far { pages: 1 }, limit_bytes: u64::MAX }));
        let seq = runner.create(true).unwrap();
        runner.feed(seq, &tokens()).unwrap();
        let far = runner.cache.far_counts(runner.backend(), seq);
        assert!(far.rows > 0, "{name}: rows leave");
        let copy = restored(&mut runner, seq, &tokens());
        for seq in [seq, copy] {
            runner.feed(seq, &[1, 2, 3]).unwrap();
        }
        assert!(images(&mut runner, seq) == images(&mut runner, copy), "{name}");
    }
}

fn config(name: &str) -> Value {
    let whole: Value = serde_json::from_slice(&std::fs::read(folder(name).join("config.json")).unwrap()).unwrap();
    whole.get("text_config").cloned().unwrap_or(whole)
}

fn parsed(config: &Value) -> Result<ModelConfig, String> {
    ModelConfig::from_json("x", config.to_string().as_bytes()).map_err(|e| format!("{e:#}"))
}

/// Published files state the heads of global layers once, transformers by layer.
#[test]
fn heads_of_global_layers_are_stated_in_two_ways() {
    for (name, count, dim) in [("gemma4", 1, 16), ("gemma4_wide", 2, 16), ("gemma4_seeing", 1, 16)] {
        let mut config = config(name);
        let by_layer = parsed(&config).unwrap();
        let fields = config.as_object_mut().unwrap();
        fields.remove("per_layer_config");
        fields.extend([
            ("global_head_dim".to_owned(), json!(dim)),
            ("num_global_key_value_heads".to_owned(), json!(count)),
        ]);
        assert_eq!(parsed(&config).unwrap(), by_layer, "{name}");
        assert_eq!(by_layer.spec.global_heads, Some(KvHeads { count, dim }));
    }
    // Of the published E2B: 20 of 35 layers store nothing; of the others three are global.
    let kinds: Vec<_> = (1..=35).map(|n| if n % 5 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let e2b = json!({"model_type": "gemma4_text", "num_hidden_layers": 35, "hidden_size": 1536, "intermediate_size": 6144,
        "num_attention_heads": 8, "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
        "layer_types": kinds, "vocab_size": 262_144});
    let c = parsed(&e2b).unwrap();
    assert_eq!((c.attention_layers(), c.lanes().filter(|layer| layer.decides()).count()), (15, 3));
    let index = |layer| (c.kv_layer(layer), c.mixer_index(layer));
    assert_eq!([13, 14, 15, 19, 34].map(index), [(13, 13), (14, 14), (13, 13), (14, 14), (14, 14)]);
    assert_eq!(c.dense_ffns().into_iter().collect::<Vec<_>>(), [6144, 12_288]);
}

#[test]
fn hostile_configurations_are_refused_in_one_line() {
    let experts = |change: Value| {
        let mut fields =
            json!({"enable_moe_block": true, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16});
        fields.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        fields
    };
    let by_layer = |own: Value| json!({"per_layer_config": {"2": own, "4": own}});
    for (changes, wanted) in [
        (json!({"enable_moe_block": true}), "x has no num_experts, which is needed"),
        (experts(json!({"top_k_experts": 9})), "x: a token has 9 of 8 experts"),
        (experts(json!({"num_experts": 1 << 20})), "num_experts is 1048576, expected at most"),
        (experts(json!({"moe_intermediate_size": 0})), "moe_intermediate_size is 0, expected"),
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention is set for text"),
        (json!({"hidden_activation": "silu"}), "hidden_activation \"silu\" is not supported"),
        (json!({"num_kv_shared_layers": 5}), "num_kv_shared_layers is 5, expected fewer than the 5 layers"),
        (json!({"num_kv_shared_layers": 4}), "none of the first 1 layers has K and V for all of the last 4"),
        (json!({"num_kv_shared_layers": -1}), "num_kv_shared_layers is -1, expected a whole number"),
        (json!({"final_logit_softcapping": 0}), "final_logit_softcapping is 0, expected a number above 0"),
        (json!({"final_logit_softcapping": 1e300}), "final_logit_softcapping is out of range"),
        (
            json!({"hidden_size_per_layer_input": 1 << 20}),
            "hidden_size_per_layer_input is 1048576, expected at most 4096",
        ),
        (
            json!({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64}),
            "vocab_size_per_layer_input is 64, less than the 128 tokens",
        ),
        (json!({"per_layer_config": 7}), "per_layer_config is 7, expected an object"),
        (by_layer(json!({"head_dim": 15})), "heads of global layers have 15 channels, expected an even number"),
        (by_layer(json!({"head_dim": 1 << 20})), "heads of global layers have 1048576 channels"),
        (
            by_layer(json!({"head_dim": 16, "num_key_value_heads": 3})),
            "do not share 3 key-value heads of global layers",
        ),
        (by_layer(json!({"num_key_value_heads": 0})), "do not share 0 key-value heads of global layers"),
        (by_layer(json!({"sliding_window": 7})), "per_layer_config sets sliding_window in layer"),
        (json!({"per_layer_config": {"2": {"head_dim": 16}}}), "other heads in layer 4 than in others of its kind"),
        (json!({"per_layer_config": {"0": {"head_dim": 16}}}), "other heads in layer 0 than in others of its kind"),
        (json!({"per_layer_config": {"9": {}}}), "per_layer_config has a layer 9, which the model has not"),
        (json!({"num_hidden_layers": 1024}), "num_hidden_layers is 1024, expected at most 256"),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2.0}}}),
            "partial_rotary_factor 2 is not above 0 and at most 1",
        ),
    ] {
        let mut whole = config("gemma4_wide");
        let fields = whole.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        let error = parsed(&whole).unwrap_err();
        assert!(error.contains(wanted) && !error.contains('\n'), "{changes}: {error}");
    }
    let other = json!({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1,
        "intermediate_size": 8, "vocab_size": 8, "rope_parameters": {"rope_type": "proportional"}});
    assert!(parsed(&other).unwrap_err().contains("rope type \"proportional\" is not supported in llama"));
}
