//! GGUF files as checkpoints: the model equals its folder, and each fault gives one clear line.

use crate::converter::{NAMES, NORMS_BEHIND, OWN, as_converted, gates_in_one, interleave};
use crate::gguf_file::{BF16, Data, F32, GgufFile, Meta, Q8_0};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef, RopeScaling, names};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::protocol::Piece;
use dmschat::quant::Weights;
use dmschat::quantize::calibration::Calibration;
use dmschat::quantize::convert::{Importance, convert};
use dmschat::quantize::weight_cache::convert_in_memory;
use dmschat::tensor::{SharedBytes, Tensor};
use dmschat::tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub fn open(file: &GgufFile) -> anyhow::Result<Checkpoint> {
    let files = BTreeMap::from([("x.gguf".to_owned(), Arc::new(file.bytes()) as SharedBytes)]);
    Checkpoint::from_memory("x", files, &AdapterChoice::None)
}

/// The model in several files, as llama-gguf-split makes them: the first has the metadata.
pub fn split(file: &GgufFile, n: usize) -> Vec<Vec<u8>> {
    let mut parts = vec![GgufFile::default(); n];
    parts[0].meta = file.meta.clone();
    for (at, (name, tensor)) in file.tensors.iter().enumerate() {
        parts[at % n].tensors.insert(name.clone(), tensor.clone());
    }
    for (number, part) in (0..).zip(&mut parts) {
        part.set("split.no", Meta::U32(number)).set("split.count", Meta::U32(n as u32));
    }
    parts.iter().map(GgufFile::bytes).collect()
}

pub fn refusal(change: impl FnOnce(&mut GgufFile)) -> String {
    let mut file = GgufFile::tiny();
    change(&mut file);
    let said = format!("{:#}", open(&file).err().expect("refused"));
    assert!(!said.contains('\n'), "{said}");
    said
}

/// A folder as llama.cpp would convert it, without a vocabulary.
pub fn converted(c: &Checkpoint) -> GgufFile {
    let hybrid = c.config.spec.delta_net;
    let (m, experts) = (&c.config, c.config.spec.experts);
    let own_name = match (hybrid, experts) {
        (Some(_), Some(_)) => Some("qwen35moe"),
        (Some(_), None) => Some("qwen35"),
        (None, of) => of.map(|of| if of.bias { "gpt-oss" } else { "qwen3moe" }),
    };
    let arch = own_name.unwrap_or(m.family.name);
    let mut file = GgufFile::default();
    let key = |name: &str| format!("{arch}.{name}");
    for (name, n) in [
        ("block_count", m.n_layers),
        ("embedding_length", m.hidden),
        ("feed_forward_length", m.ffn),
        ("context_length", m.context),
        ("attention.head_count", m.n_q_heads),
        ("attention.head_count_kv", m.n_kv_heads),
        ("attention.key_length", m.head_dim),
        ("attention.value_length", m.head_dim),
    ] {
        file.set(&key(name), Meta::U32(n as u32));
    }
    if let Some(d) = hybrid {
        file.set(&key("rope.dimension_count"), Meta::U32(m.rope.channels(m.head_dim) as u32));
        for (name, n) in [
            ("ssm.conv_kernel", d.kernel),
            ("ssm.state_size", d.key_dim),
            ("ssm.group_count", d.key_heads),
            ("ssm.time_step_rank", d.value_heads),
            ("ssm.inner_size", d.value_heads * d.value_dim),
            ("full_attention_interval", 2),
        ] {
            file.set(&key(name), Meta::U32(n as u32));
        }
    }
    let expert_sizes = experts.map(|e| [("", e.count), ("_used", e.per_token), ("_feed_forward", e.width)]);
    for (name, n) in expert_sizes.into_iter().flatten() {
        let what = if name == "_feed_forward" { "length" } else { "count" };
        file.set(&key(&format!("expert{name}_{what}")), Meta::U32(n as u32));
    }
    file.set("general.architecture", Meta::text(arch));
    file.set(&key("attention.layer_norm_rms_epsilon"), Meta::F32(m.rms_eps));
    file.set(&key("rope.freq_base"), Meta::F32(m.rope.theta as f32));
    if let RopeScaling::Yarn { factor, original_context, .. } = m.rope.scaling {
        file.set(&key("rope.scaling.type"), Meta::text("yarn"));
        file.set(&key("rope.scaling.factor"), Meta::F32(factor as f32));
        file.set(&key("rope.scaling.original_context_length"), Meta::U32(original_context as u32));
    }
    if let RopeScaling::LongRope { short, long, original_context, attention_factor, .. } = &m.rope.scaling {
        file.set(&key("rope.dimension_count"), Meta::U32(m.rope.channels(m.head_dim) as u32));
        file.set(&key("rope.scaling.original_context_length"), Meta::U32(*original_context as u32));
        file.set(&key("rope.scaling.attn_factor"), Meta::F32(*attention_factor as f32));
        for (name, factors) in [("rope_factors_short.weight", short), ("rope_factors_long.weight", long)] {
            let factors: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
            file.tensor(name, &[factors.len()], F32, &factors);
        }
    }
    if let Some(scale) = m.spec.score_scale {
        file.set(&key("attention.scale"), Meta::F32(scale));
        file.set(&key("embedding_scale"), Meta::F32(m.spec.embedding_scale));
        file.set(&key("residual_scale"), Meta::F32(m.spec.residual_scale));
        file.set(&key("logit_scale"), Meta::F32(1.0 / m.spec.logit_scale));
    }
    let names = names::all(m).filter(|spec| !spec.name.contains("self_attn.q_gate"));
    for mut spec in names {
        let gate = c.tensors.get(&spec.name.replace("q_proj", "q_gate")).filter(|_| spec.name.contains("q_proj"));
        let tensor = c.tensor(&spec).unwrap();
        let own = OWN.iter().fold(spec.name.clone(), |name, (ours, theirs)| name.replace(ours, theirs));
        let (stem, kind) = own.rsplit_once('.').unwrap();
        let (prefix, part) = match stem.strip_prefix("model.layers.").and_then(|s| s.split_once('.')) {
            Some((layer, part)) => (format!("blk.{layer}."), part),
            None => (String::new(), stem),
        };
        let mut values = tensor.to_f32();
        let permuted = ["llama", "mistral", "ministral3", "smollm3", "granite"].contains(&arch);
        if permuted && ["self_attn.q_proj", "self_attn.k_proj"].contains(&part) {
            values = interleave(&values, spec.shape[0], m.head_dim);
        }
        // Each head's rows of q, then its gate's.
        if let Some(gate) = gate {
            let head = m.head_dim * m.hidden;
            let gate = gate.to_f32();
            let heads = values.chunks(head).zip(gate.chunks(head)).flat_map(|(q, gate)| [q, gate].concat());
            (values, spec.shape[0]) = (heads.collect(), 2 * spec.shape[0]);
        }
        let (part, kind) = match part.strip_prefix("linear_attn") {
            Some(part) => as_converted(&hybrid.unwrap(), &mut spec.shape, &mut values, &format!("{part}.{kind}")),
            None if hybrid.is_some() && part.contains("norm") => {
                values.iter_mut().for_each(|w| *w += 1.0);
                (if part.starts_with("post") { "post_attention_norm" } else { part }, format!(".{kind}"))
            }
            None if m.spec.norms_behind && part.contains("norm") => {
                values.iter_mut().for_each(|w| *w += m.spec.norm_offset);
                (NORMS_BEHIND.iter().find(|n| n.0 == part).map_or(part, |n| n.1), format!(".{kind}"))
            }
            None if kind == "sinks" => (part, ".weight".to_owned()),
            None if arch == "gpt-oss" && part.starts_with("post") => ("post_attention_norm", format!(".{kind}")),
            None => (part, format!(".{kind}")),
        };
        if let Some((expert, part)) = part.strip_prefix("mlp.experts.").and_then(|rest| rest.split_once('.')) {
            let theirs = format!("{prefix}ffn_{}_exps{kind}", part.strip_suffix("_proj").unwrap());
            let before = file.tensors.remove(&theirs).filter(|_| expert != "0");
            let last = spec.shape.len();
            let dims: Vec<usize> = spec.shape.iter().rev().copied().chain([1]).collect();
            file.tensor(&theirs, &dims, if last == 1 { F32 } else { BF16 }, &values);
            let all = file.tensors.get_mut(&theirs).unwrap();
            before.into_iter().for_each(|b| (all.dims[last], _) = (b.dims[last] + 1, all.bytes.splice(0..0, b.bytes)));
            continue;
        }
        let theirs = NAMES.iter().find(|n| n.0 == part).map_or(part, |n| n.1);
        let dims: Vec<usize> = spec.shape.iter().rev().copied().collect();
        let f32s = ["mlp.gate", "mlp.router", "mlp.shared_expert_gate", "ssm_conv1d"].contains(&part)
            || tensor.format.name() != "bf16";
        let element = if dims.len() == 2 && !f32s { BF16 } else { F32 };
        file.tensor(&format!("{prefix}{theirs}{kind}"), &dims, element, &values);
    }
    if m.spec.v_norm {
        let (frequencies, _) = m.rope.frequencies(m.deciding_heads().dim);
        let factors: Vec<f32> = frequencies.iter().map(|f| if *f > 0.0 { 1.0 } else { 1e30 }).collect();
        file.tensor("rope_freqs.weight", &[factors.len()], F32, &factors);
    }
    (0..m.n_layers).filter(|_| m.has_experts_beside()).for_each(|layer| gates_in_one(&mut file, layer));
    for layer in (0..m.n_layers).filter(|_| arch == "phi3") {
        for (whole, parts) in [("attn_qkv", &["attn_q", "attn_k", "attn_v"][..]), ("ffn_up", &["ffn_gate", "ffn_up"])] {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let parts = parts.iter().map(|part| file.tensors.remove(&name(part)).unwrap());
            let fused = parts.reduce(|a, b| Data {
                dims: vec![a.dims[0], a.dims[1] + b.dims[1]],
                bytes: [a.bytes, b.bytes].concat(),
                ..a
            });
            file.tensors.insert(name(whole), fused.unwrap());
        }
    }
    file
}

pub fn golden(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    Checkpoint::open(&ModelRef::Folder(folder), &AdapterChoice::None).unwrap()
}

/// Biases, shards, YaRN, a tied head, permuted q and k, fused tensors, partial longrope.
#[test]
fn a_converted_folder_is_the_same_model() {
    for name in
        ["qwen3_gqa", "qwen3_yarn", "llama_bias_sharded", "qwen2", "phi3_longrope", "smollm3", "granite", "qwen3_moe"]
    {
        let folder = golden(name);
        let file = open(&converted(&folder)).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        assert_eq!(file.config, folder.config, "{name}");
        assert_eq!(file.tensors.len(), folder.tensors.len(), "{name}");
        for (tensor, ours) in &folder.tensors {
            assert!(file.tensors[tensor].to_f32() == ours.to_f32(), "{name}: {tensor}");
        }
    }
}

/// Norms with their 1, plain decays, reordered value heads, a multi-token prediction block.
#[test]
fn a_converted_hybrid_computes_the_same() {
    let tiny = Tiny::new(Spec { hybrid: true, n_layers: 4, ..Spec::new(true, Form::Plain) }, 9);
    let folder = tiny.checkpoint();
    let mut file = converted(&folder);
    file.set("qwen35.block_count", Meta::U32(5)).set("qwen35.nextn_predict_layers", Meta::U32(1));
    file.tensor("blk.4.nextn.eh_proj.weight", &[2, 2], F32, &[0.0; 4]);
    let file = open(&file).unwrap();
    assert_eq!(file.unused().unwrap(), "1 tensor of multi-token prediction");
    let mut config = file.config.clone();
    config.spec.norm_offset = 1.0;
    config.spec.delta_net.as_mut().unwrap().tiled = false;
    assert_eq!(config, folder.config);
    let logits = |c: &Checkpoint| {
        let mut runner = Runner::new(Cpu::new(1), c, &EngineOptions::new(Codec::F32), |_, _| true).unwrap();
        let (seq, mut all) = (runner.create(true).unwrap(), Vec::new());
        runner.feed(seq, &[5, 9, 200, 31, 5, 17, 44, 2]).unwrap();
        runner.logits(0..8, |_, row| all.extend_from_slice(row)).unwrap();
        all
    };
    let worst = logits(&file).iter().zip(logits(&folder)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "logits differ by {worst}");
}

/// The block after the last one has the names of a layer, and names of NextN.
#[test]
fn a_converted_layer_for_multi_token_prediction_is_the_same() {
    let tiny = Tiny::new(Spec { hybrid: true, mtp: true, n_layers: 4, ..Spec::new(true, Form::Plain) }, 9);
    let folder = tiny.checkpoint();
    let mut file = converted(&folder);
    file.set("qwen35.block_count", Meta::U32(5)).set("qwen35.nextn_predict_layers", Meta::U32(1));
    let nextn = [
        ("fc", "nextn.eh_proj"),
        ("pre_fc_norm_embedding", "nextn.enorm"),
        ("pre_fc_norm_hidden", "nextn.hnorm"),
        ("norm", "nextn.shared_head_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
    ];
    for (name, shape) in tiny.spec.shapes().into_iter().filter(|(name, _)| name.starts_with("mtp.")) {
        let part = name.trim_start_matches("mtp.").trim_start_matches("layers.0.").trim_end_matches(".weight");
        let theirs = nextn.iter().chain(&NAMES).find(|(ours, _)| *ours == part).map_or(part, |(_, theirs)| theirs);
        let offset = if shape.len() == 1 { 1.0 } else { 0.0 };
        let values: Vec<f32> = tiny.weights[&name].iter().map(|&w| w as f32 + offset).collect();
        let dims: Vec<usize> = shape.into_iter().rev().collect();
        file.tensor(&format!("blk.4.{theirs}.weight"), &dims, F32, &values);
    }
    let file = open(&file).unwrap();
    assert_eq!(file.unused(), None);
    let [ours, theirs] = [&folder, &file].map(|checkpoint| checkpoint.own_head().unwrap().unwrap());
    let offset = |t: &Tensor| if t.shape.len() == 1 { 1.0 } else { 0.0 };
    let same = |a: &Tensor, b: &Tensor| {
        let wanted: Vec<f32> = a.to_f32().iter().map(|w| w + offset(a)).collect();
        assert!(a.shape == b.shape && b.to_f32() == wanted, "{}", a.name);
    };
    assert_eq!(ours.layer.tensors.len(), theirs.layer.tensors.len());
    for (name, tensor) in &ours.layer.tensors {
        same(tensor, &theirs.layer.tensors[name]);
    }
    let inputs =
        [(&ours.embedding, &theirs.embedding), (ours.hidden.as_ref().unwrap(), theirs.hidden.as_ref().unwrap())];
    for (a, b) in inputs {
        same(&a.norm, &b.norm);
        same(&a.map[0], &b.map[0]);
    }
}

/// Files have the factors of Llama 3's RoPE alone.
#[test]
fn the_rope_of_llama_3_is_found_from_its_factors() {
    let mut file = GgufFile::tiny();
    file.set("llama.rope.freq_base", Meta::F32(5e5));
    let factor = |i: i32| {
        let wavelength = 2.0 * std::f64::consts::PI * 5e5f64.powf(f64::from(2 * i) / 32.0);
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        let between = 1.0 / ((1.0 - smooth) / 8.0 + smooth);
        if wavelength < 2048.0 {
            1.0
        } else if wavelength > 8192.0 {
            8.0
        } else {
            between
        }
    };
    let factors: Vec<f32> = (0..16).map(|i| factor(i) as f32).collect();
    file.tensor("rope_freqs.weight", &[16], F32, &factors);
    let wanted =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
    assert_eq!(open(&file).unwrap().config.rope.scaling, wanted);
    file.tensor("rope_freqs.weight", &[16], F32, &[2.0; 16]);
    let said = format!("{:#}", open(&file).err().unwrap());
    assert_eq!(said, "x.gguf: the factors in rope_freqs.weight are not those of Llama 3, which alone are supported");
}

#[test]
fn a_vocabulary_in_the_metadata_is_a_tokenizer() {
    let mut file = GgufFile::tiny();
    file.set("general.sampling.temp", Meta::F32(0.5)).set("general.sampling.top_k", Meta::U32(20));
    let c = open(&file).unwrap();
    assert_eq!((&*c.bos_token, &*c.eos_token), ("<|endoftext|>", "<|im_end|>"));
    assert!(c.chat_template.as_deref().is_some_and(|t| t.starts_with("{% for m")));
    assert_eq!(
        (c.generation.eos.clone(), c.generation.sampling.temperature, c.generation.sampling.top_k),
        (vec![259, 257], Some(0.5), Some(20))
    );
    let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    let text = |s: &str| t.encode_pieces(&[Piece::Text(s.to_owned())]).unwrap();
    let ids = text("he h\u{e9} \n<think>");
    assert_eq!(ids[0], 256, "a merge");
    assert_eq!(t.decode(&ids).unwrap(), "he h\u{e9} \n<think>");
    assert!(ids.iter().all(|&id| id < 257), "content is no control token: {ids:?}");
    assert_eq!(t.token_for("<think>"), Some(260));
    assert_eq!(t.encode_text("<|im_end|>h").unwrap(), [259, 71]);
    assert_eq!((t.literal(262), t.token_for("[PAD262]")), (String::new(), None));
    // Two tokens of one spelling: texts become the first, the model may write both.
    let mut twice = file.clone();
    if let Some(Meta::Texts(tokens)) = twice.meta.get_mut("tokenizer.ggml.tokens") {
        tokens[262] = tokens[97].clone();
    }
    let c = open(&twice).unwrap();
    let two = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    let streamed = |id| two.decoder().push(id);
    assert_eq!((streamed(262), two.literal(262)), (streamed(97), two.literal(97)));
    let mut newer = file.clone();
    let c = open(newer.set("tokenizer.ggml.pre", Meta::text("qwen35"))).unwrap();
    let newer = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    assert!(String::from_utf8_lossy(&c.tokenizer_json).contains(r"[\\p{L}\\p{M}]+"));
    assert_eq!(newer.decode(&newer.encode_text("he \u{915}\u{93f}5 x").unwrap()).unwrap(), "he \u{915}\u{93f}5 x");
    // Two pairs that are merged where no split is between them: a capital in a word, two digits.
    for (pre, counts) in [("qwen2", [1, 2]), ("llama-bpe", [1, 1]), ("tekken", [2, 2]), ("gpt-4o", [2, 1])] {
        let mut other = file.clone();
        let merges = ["a B", "1 1"].map(str::to_owned).to_vec();
        other.set("tokenizer.ggml.pre", Meta::text(pre)).set("tokenizer.ggml.merges", Meta::Texts(merges));
        if let Some(Meta::Texts(tokens)) = other.meta.get_mut("tokenizer.ggml.tokens") {
            tokens.splice(262.., ["aB", "11"].map(str::to_owned));
        }
        if let Some(Meta::I32s(types)) = other.meta.get_mut("tokenizer.ggml.token_type") {
            types[262..].fill(1);
        }
        let t = Tokenizer::new(&open(&other).unwrap().tokenizer_json, 264).unwrap();
        let text = |s: &str| t.encode_pieces(&[Piece::Text(s.to_owned())]).unwrap().len();
        assert_eq!(["aB", "11"].map(text), counts, "{pre}");
    }
    file.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    let c = open(&file).unwrap();
    let t = Tokenizer::new(&c.tokenizer_json, c.config.vocab).unwrap();
    assert_eq!(t.encode_text("h").unwrap(), [257, 71]);
}

#[test]
fn quantized_matrices_are_converted_to_every_format() {
    let open = || open(&GgufFile::tiny()).unwrap();
    let (source, name) = (open(), "model.layers.0.self_attn.q_proj.weight");
    assert_eq!(source.tensors[name].format.name(), "Q8_0");
    let values = source.tensors[name].to_f32();
    let worst = |c: &Checkpoint| {
        let pairs = c.tensors[name].to_f32().into_iter().zip(values.clone());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    for (weights, format, bound) in [
        (Weights::Bf16, "bf16", 3e-4),
        (Weights::Int8, "q8", 5e-4),
        (Weights::Int4, "q6h", 2e-3),
        (Weights::Int4Fast, "q4", 1e-2),
    ] {
        let out = convert(open(), weights, &Importance::new(), 1, |_, _| true).unwrap();
        assert_eq!(out.tensors[name].format.name(), format);
        assert!(worst(&out) < bound, "{format}: {}", worst(&out));
    }
}

#[test]
fn what_cannot_be_run_is_named_before_anything_is_loaded() {
    let set = |key: &str, value: Meta| refusal(|f| _ = f.set(key, value));
    assert_eq!(
        set("general.architecture", Meta::text("gemma2")),
        "x.gguf: architecture \"gemma2\" is not supported (qwen3, llama, qwen2, mistral, mistral3, phi3, smollm3, qwen35, qwen3moe, qwen35moe, gemma3, gemma4, gpt-oss, granite are)"
    );
    assert_eq!(set("general.type", Meta::text("imatrix")), "x.gguf: it holds a \"imatrix\", not a model");
    assert_eq!(
        set("split.count", Meta::U32(3)),
        "x.gguf: it is one of 3 parts of a model; give the first by its name that ends in -00001-of-00003.gguf"
    );
    assert_eq!(
        set("llama.expert_count", Meta::U32(8)),
        "x.gguf: llama.expert_count is set: models with experts are not supported"
    );
    assert_eq!(
        set("llama.block_count", Meta::text("1")),
        "x.gguf: llama.block_count is \"1\", expected a whole number"
    );
    assert_eq!(
        set("llama.attention.head_count", Meta::U32(0)),
        "x.gguf: llama.embedding_length 64 is not a multiple of llama.attention.head_count 0"
    );
    assert_eq!(
        set("llama.block_count", Meta::U32(0)),
        "x.gguf: llama.block_count is 0, but there are tensors of layer 0"
    );
    assert!(set("llama.block_count", Meta::U32(u32::MAX)).starts_with("x.gguf: num_hidden_layers is 4294967295"));
    assert_eq!(
        set("tokenizer.ggml.pre", Meta::text("bloom")),
        "x.gguf: pre-tokenizer \"bloom\" is not supported (qwen2, llama-bpe, tekken, gpt-4o, smollm and gpt-2 are)"
    );
    assert!(set("tokenizer.ggml.model", Meta::text("t5")).contains("SentencePiece, \"llama\", are"));
    assert_eq!(
        set("llama.rope.dimension_count", Meta::U32(16)),
        "x.gguf: llama.rope.dimension_count 16 is not supported (the head size 32 is)"
    );
    let kind = |kind: u32| {
        refusal(|f| {
            if let Some(t) = f.tensors.get_mut("blk.0.ffn_up.weight") {
                t.kind = kind;
            }
        })
    };
    assert!(kind(19).starts_with("x.gguf: tensor blk.0.ffn_up.weight is IQ1_S, which is not supported (F32, F16, "));
    let missing = refusal(|f| drop(f.tensors.remove("blk.0.attn_k.weight")));
    assert_eq!(missing, "x.gguf: tensor blk.0.attn_k.weight [32, 64] is missing");
    let shape = refusal(|f| _ = f.tensor("blk.0.attn_v.weight", &[64, 16], F32, &[0.0; 1024]));
    assert!(shape.ends_with("v_proj.weight has shape [16, 64], expected [32, 64]"), "{shape}");
    let vector = refusal(|f| _ = f.tensor("output_norm.weight", &[64], Q8_0, &[1.0; 64]));
    assert_eq!(vector, "x.gguf: tensor output_norm.weight is a Q8_0 of shape [64], expected a matrix");
}

/// The largest sizes that are read, and the next: the key is named before anything is built.
#[test]
fn a_vocabulary_and_heads_are_bounded_by_their_keys() {
    let tokens = |n: usize| refusal(|f| _ = f.set("tokenizer.ggml.tokens", Meta::Texts(vec![String::new(); n])));
    assert_eq!(tokens((1 << 19) + 1), "x.gguf: tokenizer.ggml.tokens has 524289 values, expected at most 524288");
    assert_eq!(tokens(1 << 19), "x.gguf: tokenizer.ggml.token_type has 264 values for 524288 tokens");
    let merges = |n: usize| refusal(|f| _ = f.set("tokenizer.ggml.merges", Meta::Texts(vec![String::new(); n])));
    assert_eq!(merges((1 << 21) + 1), "x.gguf: tokenizer.ggml.merges has 2097153 values, expected at most 2097152");
    let control = |n: usize| {
        let mut file = GgufFile::tiny();
        let values: Vec<f32> = vec![0.0; n * 64];
        file.tensor("token_embd.weight", &[64, n], F32, &values);
        file.set("tokenizer.ggml.tokens", Meta::Texts((0..n).map(|i| format!("<|{i}|>")).collect()));
        file.set("tokenizer.ggml.token_type", Meta::I32s(vec![3; n]));
        open(&file).map(|c| c.tokenizer_json.len()).map_err(|e| format!("{e:#}"))
    };
    assert!(control(1 << 14).is_ok());
    let said = "x.gguf: tokenizer.ggml.token_type names 16385 tokens that are not split, expected at most 16384";
    assert_eq!(control((1 << 14) + 1).unwrap_err(), said);
    let heads = |n: u32| refusal(|f| _ = f.set("llama.attention.key_length", Meta::U32(n)));
    assert_eq!(heads(1025), "x.gguf: llama.attention.key_length is 1025, expected at most 1024");
    assert_eq!(heads(1024), "x.gguf: llama.rope.dimension_count 32 is not supported (the head size 1024 is)");
}

#[test]
fn a_scale_that_is_no_number_is_refused_before_anything_is_quantized() {
    for (bits, block) in [(0x7e00u16, 0), (0x7c00, 191)] {
        let mut file = GgufFile::tiny();
        let up = file.tensors.get_mut("blk.0.ffn_up.weight").unwrap();
        up.bytes[block * 34..block * 34 + 2].copy_from_slice(&bits.to_le_bytes());
        for weights in [Weights::Bf16, Weights::Int8, Weights::Int4] {
            let quiet = &mut |_| panic!("nothing is said before it");
            let said = convert_in_memory(open(&file).unwrap(), weights, &Calibration::Equal, quiet).err().unwrap();
            let place = "x: tensor model.layers.0.mlp.up_proj.weight has a scale in row";
            let wanted = format!("{place} {} that is NaN or infinite, so the file is damaged; get it again", block / 2);
            assert_eq!(said.to_string(), wanted);
        }
    }
}

/// A file is opened by its path, whatever its name; the model has the file's name.
#[test]
fn files_are_told_from_folders_by_their_first_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        Checkpoint::open(&ModelRef::Folder(path), &AdapterChoice::Auto)
    };
    let bytes = GgufFile::tiny().bytes();
    assert_eq!(write("Tiny-Q8_0.gguf", &bytes).unwrap().name, "Tiny-Q8_0");
    assert_eq!(write("blob", &bytes).unwrap().name, "blob");
    let said = |name, bytes: &[u8]| format!("{:#}", write(name, bytes).err().unwrap());
    assert!(said("page.gguf", b"<html>").ends_with("page.gguf: not a GGUF file: it does not begin with \"GGUF\""));
    assert!(said("short.gguf", &bytes[..bytes.len() - 1]).contains("the file is truncated"));
    assert!(said("notes.txt", b"text").contains("is a file; give a GGUF file, or the folder"));
    let dir = folder.path().display();
    let said = Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &AdapterChoice::Auto).err().unwrap();
    let wanted =
        format!("{dir} is not a model folder but holds GGUF files; give the path of one, such as {dir}/Tiny-Q8_0.gguf");
    assert_eq!(said.to_string(), wanted);
}

#[test]
fn a_file_is_run_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, GgufFile::tiny().bytes()).unwrap();
    let run = |more: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"))
            .args(["--device", "cpu", "--temperature", "0", "--max-tokens", "3", "-p", "he", "-m"])
            .arg(&path)
            .args(more)
            .envs(["DMSCHAT_CONFIG_DIR", "DMSCHAT_DATA_DIR", "DMSCHAT_CACHE_DIR"].map(|name| (name, folder.path())))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for weights in ["auto", "bf16", "int8", "int4", "own"] {
        let (code, said) = run(&["--weights", weights]);
        assert_eq!(code, Some(0), "{weights}: {said}");
    }
    let (code, said) = run(&["--policy", "dms"]);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(code, Some(2), "{said}");
    assert!(last.starts_with("dmschat: policy dms: this model was not trained with DMS"), "{said}");
}

/// Tokens of SentencePiece's own program: tests/golden/gguf/make_sentencepiece.py.
#[test]
fn sentencepiece_vocabularies_give_the_tokens_of_sentencepiece() {
    #[derive(serde::Deserialize)]
    struct Golden {
        tokens: Vec<String>,
        scores: Vec<f32>,
        types: Vec<i32>,
        texts: Vec<String>,
        with_prefix: Vec<Vec<u32>>,
        without_prefix: Vec<Vec<u32>>,
    }
    let golden: Golden = serde_json::from_str(include_str!("../golden/gguf/sentencepiece.json")).unwrap();
    let n = golden.tokens.len();
    for (prefix, wanted) in [(true, &golden.with_prefix), (false, &golden.without_prefix)] {
        let mut file = GgufFile::tiny();
        file.tensor("token_embd.weight", &[64, n], Q8_0, &vec![0.5; n * 64]);
        file.set("tokenizer.ggml.model", Meta::text("llama"));
        file.set("tokenizer.ggml.tokens", Meta::Texts(golden.tokens.clone()));
        file.set("tokenizer.ggml.scores", Meta::F32s(golden.scores.clone()));
        file.set("tokenizer.ggml.token_type", Meta::I32s(golden.types.clone()));
        file.set("tokenizer.ggml.add_space_prefix", Meta::Bool(prefix));
        file.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
        file.set("tokenizer.ggml.bos_token_id", Meta::U32(1)).set("tokenizer.ggml.eos_token_id", Meta::U32(2));
        let checkpoint = open(&file).unwrap();
        assert_eq!((&*checkpoint.bos_token, &*checkpoint.eos_token), ("<s>", "</s>"));
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, n).unwrap();
        for (text, wanted) in golden.texts.iter().zip(wanted) {
            assert_eq!(&tokenizer.encode_pieces(&[Piece::Text(text.clone())]).unwrap(), wanted, "{text:?}");
            if !text.contains('\u{2581}') {
                assert_eq!(&tokenizer.decode(wanted).unwrap(), text);
                let mut decoder = tokenizer.decoder();
                let streamed: String = wanted.iter().map(|id| decoder.push(*id)).collect();
                assert_eq!(streamed + &decoder.flush(), *text);
            }
        }
        let file_text = tokenizer.encode_text("a").unwrap();
        assert_eq!((file_text[0], tokenizer.token_for("</s>")), (1, Some(2)));
    }
    let short = refusal(|f| {
        _ = f.set("tokenizer.ggml.model", Meta::text("llama")).set("tokenizer.ggml.scores", Meta::F32s(vec![0.0]))
    });
    assert_eq!(short, "x.gguf: tokenizer.ggml.scores has 1 values for 264 tokens");
}
