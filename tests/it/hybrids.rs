//! Models in which most layers are gated delta nets: a sequence's state follows the sequence.

use crate::folder::{assemble, merged};
use crate::program::{program, said};
use crate::rule::runner_with;
use crate::tiny::{Form, Rng, Spec, Tiny};
use dmschat::backend::cpu::Cpu;
use dmschat::cache::SeqId;
use dmschat::checkpoint::{AdapterChoice, Checkpoint};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::model::{Observed, Text};
use dmschat::policy::{Budget, PolicyKind};
use dmschat::protocol::Token;
use dmschat::tensor::SharedBytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Feeds tokens in steps of these lengths, the last one repeated, and returns the bits of their
/// logits.
pub fn fed(runner: &mut Runner<Cpu>, seq: SeqId, tokens: &[Token], steps: &[usize]) -> Vec<Vec<u32>> {
    let (mut out, mut at) = (Vec::new(), 0);
    for i in 0.. {
        let len = steps[i.min(steps.len() - 1)].min(tokens.len() - at);
        if len == 0 {
            break;
        }
        runner.feed(seq, &tokens[at..at + len]).unwrap();
        runner.logits(0..len, |_, row| out.push(row.iter().map(|x| x.to_bits()).collect())).unwrap();
        at += len;
    }
    out
}

#[test]
fn chunks_forks_and_images_give_the_bits_of_single_tokens() {
    let predictor = Form::Predictor { linear: true, units: 8 };
    let cases = [
        (Form::Borrowed, PolicyKind::Dms.into()),
        (predictor, PolicyKind::Dms.into()),
        (Form::Plain, PolicyKind::Window.with(Budget::Slots(20))),
        (Form::Plain, PolicyKind::Tova.with(Budget::Slots(20))),
        (Form::Plain, PolicyKind::Pool.with(Budget::of_ratio(3.0))),
    ];
    for (i, (form, policy)) in cases.into_iter().enumerate() {
        let tiny = Tiny::new(Spec { hybrid: true, n_layers: 5, ..Spec::new(true, form) }, 700 + i as u64);
        let mut rng = Rng(70 + i as u64);
        let mut tokens = |n| (0..n).map(|_| rng.below(tiny.spec.vocab) as Token).collect::<Vec<_>>();
        let (log, other) = (tokens(90), tokens(30));
        let codec = if i == 0 { Codec::Int8 } else { Codec::F32 };
        let mut runner = runner_with(2, &tiny, EngineOptions { policy, max_seqs: 3, ..EngineOptions::new(codec) });
        let single = runner.create(true).unwrap();
        let wanted = fed(&mut runner, single, &log, &[1]);
        runner.release(single);
        // A row that held another sequence begins with a state of zeros.
        let seq = runner.create(true).unwrap();
        assert!(fed(&mut runner, seq, &log[..50], &[1, 2, 7, 1, 30, 64]) == wanted[..50], "case {i}: chunks");
        let fork = runner.fork(seq).unwrap();
        assert!(fed(&mut runner, seq, &log[50..], &[3]) == wanted[50..], "case {i}: the forked one");
        let (head, sizes) = runner.head(fork);
        assert_eq!(sizes.len(), 5, "an image of each layer");
        let images: Vec<Vec<u8>> = (0..sizes.len()).map(|layer| exported(&mut runner, fork, layer)).collect();
        runner.release(seq);
        let stale = runner.create(true).unwrap();
        fed(&mut runner, stale, &other, &[30]);
        runner.release(stale);
        let copy = runner.create(true).unwrap();
        for (layer, image) in images.into_iter().enumerate() {
            assert_eq!(image.len() as u64, sizes[layer]);
            assert!(sizes[layer] <= runner.cache.max_layer_bytes(50));
            let checked = runner.cache.layer_check(head.len).check(layer, image).unwrap();
            runner.import_layer(copy, &checked).unwrap();
        }
        runner.end_import(copy, &head, log[..50].iter().copied()).unwrap();
        for seq in [fork, copy] {
            assert!(fed(&mut runner, seq, &log[50..], &[5, 1, 64]) == wanted[50..], "case {i}: {seq:?}");
        }
    }
}

/// In every format of weights, with and without eviction, with several chains.
#[test]
fn a_hybrid_answers_a_prompt() {
    let spec =
        Spec { hidden: 64, ffn: 128, tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) };
    let tiny = Tiny::new(Spec { hybrid: true, n_layers: 4, ..spec }, 740);
    let (home, folder) = (tempfile::tempdir().unwrap(), tiny.folder.path().to_str().unwrap());
    let ask = |more: &[&str]| -> Value {
        let fixed =
            ["-m", folder, "-p", "a question", "--device", "cpu", "--seed", "5", "--max-tokens", "40", "--json"];
        let output = program(env!("CARGO_BIN_EXE_dmschat"), &home).args([&fixed[..], more].concat()).output().unwrap();
        let (code, stdout, stderr) = said(&output);
        assert_eq!(code, 0, "{more:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let evicting = ask(&[]);
    assert_eq!(evicting["answer_tokens"], 40);
    // What a hybrid forgets is kept unasked; with room for all far pages nothing is lost.
    let limit = evicting["kv"]["far"]["limit_bytes"].as_u64().unwrap();
    assert!(limit > 0 && ask(&["--far", "off"])["kv"]["far"].is_null(), "{evicting}");
    let all = ask(&["--far", "1GiB", "--far-pages", "4096"]);
    assert_eq!(all["kv"]["far"]["limit_bytes"], 1 << 30);
    assert_eq!(all["answer"], ask(&["--eviction", "off"])["answer"]);
    let live = evicting["kv"]["live"].as_array().unwrap();
    assert!(live.len() == 2 && evicting["kv"]["ratio"].as_f64().unwrap() > 1.0, "{evicting}");
    assert_eq!(ask(&["--eviction", "off"])["kv"]["ratio"], 1.0);
    assert_eq!(ask(&["--policy", "window", "--budget", "24"])["kv"]["live"], json!([[24, 24], [24, 24]]));
    let chains = ask(&["--width", "3", "--early-stop", "off"]);
    assert_eq!(chains["chains"][0]["answer"], evicting["answer"], "chain 0 is the ordinary answer");
    for format in ["int8", "int4"] {
        let answer = ask(&["--weights", format]);
        assert_eq!((&answer["weights"]["format"], &answer["answer_tokens"]), (&json!(format), &json!(40)));
    }
}

fn exported(runner: &mut Runner<Cpu>, seq: SeqId, layer: usize) -> Vec<u8> {
    let mut image = Vec::new();
    runner.export_layer(seq, layer, &mut image);
    image
}

/// What predictors are fitted to: the layers with attention, by their numbers in the cache.
#[test]
fn layers_with_attention_are_observed() {
    let tiny = Tiny::new(Spec { hybrid: true, n_layers: 5, ..Spec::new(true, Form::Plain) }, 730);
    let mut runner = runner_with(1, &tiny, EngineOptions::new(Codec::F32));
    let (tokens, text) = ([3, 5, 7, 9, 11, 13], Text { tokens: 1..3, queries: 3..6 });
    let seq = runner.create(false).unwrap();
    let (mut seen, mut values) = (Vec::new(), Vec::new());
    let collect = |o: Observed<'_>| {
        assert!(o.attention.iter().chain(o.hidden).all(|x| x.is_finite()));
        seen.push((o.layer, o.hidden.len(), o.values.len(), o.attention.len()));
        values.extend(o.values.to_vec());
    };
    runner.observe(seq, &tokens, &text, collect).unwrap();
    let Spec { hidden, n_q_heads, n_kv_heads, head_dim, .. } = tiny.spec;
    let sizes = |layer| (layer, 2 * hidden, 2 * n_kv_heads * head_dim, 2 * n_q_heads);
    assert_eq!(seen, [sizes(0), sizes(1)]);
    // Values as the cache stores them, in pages of 16 rows after the tables of a layer's image.
    let image = exported(&mut runner, seq, 0);
    let (g, at) = (*runner.cache.geometry(), 4 + 4 * n_kv_heads);
    let row = &image[at + g.page().v(1).start..][..4 * head_dim];
    let stored: Vec<f32> = row.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    assert_eq!(stored, values[..head_dim]);
    assert_eq!(runner.output_columns(1).len(), n_q_heads * head_dim * hidden);
}

#[test]
fn images_of_states_are_checked() {
    let tiny = Tiny::new(Spec { hybrid: true, n_layers: 5, ..Spec::new(true, Form::Plain) }, 720);
    let mut runner = runner_with(1, &tiny, EngineOptions::new(Codec::F32));
    let seq = runner.create(true).unwrap();
    fed(&mut runner, seq, &[3, 5, 7], &[3]);
    // Two layers have attention, three have a state.
    let image = exported(&mut runner, seq, 2);
    let check = runner.cache.layer_check(3);
    let refused = |layer, image: Vec<u8>| check.check(layer, image).err().map(|e| e.to_string()).unwrap_or_default();
    assert_eq!(refused(2, image.clone()), "");
    assert_eq!(refused(3, image.clone()), "layer 3: it is the image of another layer");
    assert_eq!(refused(5, image.clone()), "layer 5: more than the cache holds");
    assert_eq!(refused(2, image[..image.len() - 4].to_vec()), "layer 2: another size than a state has");
    let mut broken = image;
    broken.splice(40..44, f32::INFINITY.to_ne_bytes());
    assert_eq!(refused(2, broken), "layer 2: a state has values that are not numbers");
}

/// The golden model as the language model of one that sees.
#[test]
fn the_language_model_is_found_inside_of_one_that_sees() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3_5");
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let (mut text, file): (Value, _) =
        (serde_json::from_slice(&read("config.json")).unwrap(), read("model.safetensors"));
    let open = |config: &Value, file: Vec<u8>| {
        let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", file)];
        let shared = |(name, bytes): (&str, Vec<u8>)| (name.to_owned(), Arc::new(bytes) as SharedBytes);
        let files: BTreeMap<String, SharedBytes> = files.map(shared).into();
        Checkpoint::from_memory("m", files, &AdapterChoice::None)
    };
    let plain = open(&text, file.clone()).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&file[8..start]).unwrap();
    let renamed = |name: String| name.replace("model.", "model.language_model.");
    let mut header: Map<String, Value> = header.into_iter().map(|(name, at)| (renamed(name), at)).collect();
    let mut data = file[start..].to_vec();
    for name in ["model.visual.patch_embed.weight", "model.visual.merger.norm.weight", "mtp.fc.weight"] {
        header
            .insert(name.into(), json!({"dtype": "BF16", "shape": [2], "data_offsets": [data.len(), data.len() + 4]}));
        data.extend([0; 4]);
    }
    let file = assemble(&Value::Object(header), &data);
    text.as_object_mut().unwrap().remove("architectures");
    text["tie_word_embeddings"] = json!(true);
    let whole = json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": false, "text_config": text, "vision_config": {"depth": 2}, "image_token_id": 9});
    let inside = open(&whole, file.clone()).unwrap();
    assert_eq!(inside.config, plain.config);
    assert!(inside.tensors.len() == plain.tensors.len());
    for (name, tensor) in &plain.tensors {
        assert!(inside.tensors[name].to_f32() == tensor.to_f32(), "{name}");
    }
    let unused = "2 tensors of the vision tower, 1 tensor of multi-token prediction";
    assert_eq!((inside.unused().as_deref(), plain.unused()), (Some(unused), None));
    for (change, wanted) in [
        (json!({"layer_types": ["linear_attention"]}), "config.json: layer_types is not a list of 5 names"),
        (json!({"layer_types": null, "full_attention_interval": 6}), "it has no layer of attention"),
        (json!({"linear_num_value_heads": 3}), "3 value heads do not share 2 key heads evenly"),
        (json!({"linear_conv_kernel_dim": 17}), "linear_conv_kernel_dim is 17, expected at most 16"),
        (json!({"attn_output_gate": false}), "attn_output_gate false is not supported"),
        (json!({"output_gate_type": "sigmoid"}), "output_gate_type \"sigmoid\" is not supported (swish is)"),
        (json!({"linear_key_head_dim": 8}), "linear_attn.in_proj_qkv.weight has shape [208, 48], expected [176, 48]"),
    ] {
        let text = merged(whole["text_config"].clone(), change);
        let refused = open(&merged(whole.clone(), json!({"text_config": text})), file.clone());
        let refused = refused.err().map(|e| format!("{e:#}")).unwrap_or_default();
        assert!(refused.contains(wanted), "{refused}, not {wanted}");
    }
}
