//! Mixtures of experts: chunks against single tokens in every weight format, layouts of their
//! tensors, refusals.

use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, ModelRef};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::protocol::Token;
use dmschat::quant::file::FileCode;
use dmschat::quant::{Code, Weights};
use dmschat::quantize::calibration::Calibration;
use dmschat::quantize::convert::{Importance, codes, convert};
use dmschat::quantize::weight_cache::WeightCache;
use dmschat::tensor::{SharedBytes, Tensor};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3_moe").join(name)).unwrap()
}

fn config(changes: Value) -> anyhow::Result<ModelConfig> {
    let mut config: Map<String, Value> = serde_json::from_slice(&golden("config.json")).unwrap();
    config.extend(changes.as_object().unwrap().clone());
    ModelConfig::from_json("config.json", Value::Object(config).to_string().as_bytes())
}

/// The bits of the logits of tokens fed in steps of these lengths, the last one repeated.
fn fed(checkpoint: &Checkpoint, threads: usize, tokens: &[Token], steps: &[usize]) -> Vec<u32> {
    let options = EngineOptions::new(Codec::F32);
    let mut runner = Runner::new(Cpu::new(threads), checkpoint, &options, |_, _| true).unwrap();
    let seq = runner.create(true).unwrap();
    let (mut out, mut at) = (Vec::new(), 0);
    for i in 0.. {
        let len = steps[i.min(steps.len() - 1)].min(tokens.len() - at);
        if len == 0 {
            break;
        }
        runner.feed(seq, &tokens[at..at + len]).unwrap();
        runner.logits(0..len, |_, row| out.extend(row.iter().map(|x| x.to_bits()))).unwrap();
        at += len;
    }
    out
}

#[test]
fn a_prefill_has_the_bits_of_single_tokens_in_every_format_of_weights() {
    let sizes = json!({"moe_intermediate_size": 64, "intermediate_size": 128, "num_local_experts": 20});
    let source = Checkpoint::random_of("experts", config(sizes).unwrap()).unwrap();
    let mut exact = source.clone();
    for tensor in exact.tensors.values_mut() {
        *tensor = Tensor::from_f32(&tensor.name, tensor.shape.clone(), &tensor.to_f32());
    }
    let converted = |weights| convert(source.clone(), weights, &Importance::new(), 1, |_, _| true).unwrap();
    let tokens: Vec<Token> = (0..150).map(|i| (i * i * 7 + i * 31) % 128).collect();
    for checkpoint in [exact, source.clone(), converted(Weights::Int8), converted(Weights::Int4)] {
        let format = checkpoint.tensors["model.layers.0.mlp.experts.19.down_proj.weight"].format.name().to_owned();
        let single = fed(&checkpoint, 1, &tokens, &[1]);
        assert!(single == fed(&checkpoint, 3, &tokens, &[150]), "{format}: one prefill");
        assert!(single == fed(&checkpoint, 2, &tokens, &[1, 2, 70, 64, 3]), "{format}: chunks");
    }
}

/// Folders of models that were trained as transformers has them in memory.
#[test]
fn stacked_experts_are_read_too() {
    let file = golden("model.safetensors");
    let open = |file: Vec<u8>| {
        let files = [("config.json", golden("config.json")), ("model.safetensors", file)];
        let shared = |(name, bytes): (&str, Vec<u8>)| (name.to_owned(), Arc::new(bytes) as SharedBytes);
        Checkpoint::from_memory("m", files.map(shared).into(), &AdapterChoice::None)
    };
    let single = open(file.clone()).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut add = |name: &str, shape: Vec<usize>, bytes: Vec<u8>| {
        let at = [data.len(), data.len() + bytes.len()];
        header.insert(name.to_owned(), json!({"dtype": "BF16", "shape": shape, "data_offsets": at}));
        data.extend(bytes);
    };
    for (name, tensor) in single.tensors.iter().filter(|(name, _)| !name.contains(".experts.")) {
        add(name, tensor.shape.clone(), tensor.bytes().to_vec());
    }
    for layer in [0, 2] {
        let place = format!("model.layers.{layer}.mlp.experts");
        let of = |parts: &[&str]| -> Vec<u8> {
            let names = (0..12).flat_map(|e| parts.iter().map(move |part| (e, part)));
            names.flat_map(|(e, part)| single.tensors[&format!("{place}.{e}.{part}.weight")].bytes().to_vec()).collect()
        };
        add(&format!("{place}.gate_up_proj"), vec![12, 64, 64], of(&["gate_proj", "up_proj"]));
        add(&format!("{place}.down_proj"), vec![12, 64, 32], of(&["down_proj"]));
    }
    let header = Value::Object(header).to_string();
    let stacked = open([&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
    assert!(stacked.tensors.keys().eq(single.tensors.keys()));
    for (name, tensor) in &single.tensors {
        assert!(stacked.tensors[name].bytes() == tensor.bytes(), "{name}");
    }
    // Other sizes than the configuration's are refused by the names in the file.
    let error = open({
        let header = crate::harness::edited(&header, &[("[12,64,32]", "[12,32,64]")]);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    });
    let error = error.err().unwrap().to_string();
    assert!(error.contains("mlp.experts.down_proj has shape [12, 32, 64], expected [12, 64, 32]"), "{error}");
}

#[test]
fn matrices_of_all_experts_of_a_layer_have_one_code() {
    let codes = codes(&config(json!({"moe_intermediate_size": 64})).unwrap(), Weights::Int4);
    let of = |name: &str| codes.get(&format!("model.layers.{name}.weight")).copied();
    assert_eq!(of("0.mlp.experts.11.down_proj"), Some(Code::Q4H));
    assert_eq!((of("0.mlp.gate"), of("1.mlp.gate_proj")), (None, Some(Code::Q4H)));
    assert_eq!(of("1.mlp.down_proj"), None, "80 columns");
}

#[test]
fn a_shared_expert_is_the_last_one_of_its_layer() {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3_5_moe/config.json");
    let text: Value = serde_json::from_slice(&std::fs::read(place).unwrap()).unwrap();
    let whole = |changes: Value| {
        let text = crate::folder::merged(text.clone(), changes);
        let config = json!({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
            "text_config": text, "vision_config": {"depth": 2}});
        ModelConfig::from_json("config.json", config.to_string().as_bytes())
    };
    let config = whole(json!({})).unwrap();
    let experts = config.spec.experts.unwrap();
    assert_eq!((experts.all(), experts.passed(), config.dense_ffns().len()), (11, 4, 0));
    let packed = codes(&whole(json!({"hidden_size": 64})).unwrap(), Weights::Int4);
    let code = |part: &str| packed.get(&format!("model.layers.0.mlp.{part}.up_proj.weight"));
    assert!(code("experts.9").is_some() && code("experts.9") == code("shared_expert"), "{packed:?}");
    let error = whole(json!({"shared_expert_intermediate_size": 32})).unwrap_err().to_string();
    assert_eq!(error, "config.json: a shared expert of 32 channels is not supported (others have 16)");
}

/// The folder of gpt-oss in MXFP4 with experts of 64 channels in place of 32, which fill tiles:
/// its configuration and tensors. Codes, scales and biases are the same ones, twice.
pub fn wide_mxfp4() -> [(&'static str, Vec<u8>); 2] {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt_oss_mxfp4");
    let [config, file] = ["config.json", "model.safetensors"].map(|name| std::fs::read(place.join(name)).unwrap());
    let config: Value = serde_json::from_slice(&config).unwrap();
    let config = crate::folder::merged(config, json!({"intermediate_size": 64}));
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&file[8..start]).unwrap();
    let (mut out, mut data) = (Map::new(), Vec::new());
    for (name, mut tensor) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let [from, to] = [0, 1].map(|i| start + tensor["data_offsets"][i].as_u64().unwrap() as usize);
        // Rows of gate and up, or columns of down in groups of 32.
        let doubled = match name.rsplit_once('.').unwrap().1 {
            "gate_up_proj_blocks" | "gate_up_proj_scales" | "gate_up_proj_bias" => Some(1),
            "down_proj_blocks" | "down_proj_scales" => Some(2),
            _ => None,
        };
        let at = data.len();
        data.extend(file[from..to].repeat(if doubled.is_some() { 2 } else { 1 }));
        if let Some(dim) = doubled {
            tensor["shape"][dim] = json!(2 * tensor["shape"][dim].as_u64().unwrap());
        }
        tensor["data_offsets"] = json!([at, data.len()]);
        out.insert(name, tensor);
    }
    let file = crate::folder::assemble(&Value::Object(out), &data);
    [("config.json", config.to_string().into_bytes()), ("model.safetensors", file)]
}

/// Experts in MXFP4 keep codes and scales, in memory and in the weight cache, and compute a token
/// as they do a prefill.
#[test]
fn experts_in_mxfp4_stay_as_they_are() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("m");
    std::fs::create_dir(&folder).unwrap();
    wide_mxfp4().iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
    let source = Checkpoint::open(&ModelRef::Folder(folder), &AdapterChoice::None).unwrap();
    assert_eq!(source.own_format(), Some(Weights::Own));
    let made = convert(source.clone(), Weights::Own, &Importance::new(), 2, |_, _| true).unwrap();
    for (name, tensor) in &made.tensors {
        let of_expert = name.contains(".mlp.experts.") && name.ends_with("weight");
        assert_eq!(tensor.format.name() == "mxfp4", of_expert, "{name}: {}", tensor.format.name());
        assert_eq!(tensor.to_f32(), source.tensors[name].to_f32(), "{name}");
    }
    let mxfp4 = Code::File(FileCode::Mxfp4);
    assert_eq!([mxfp4, Code::Q8].map(|code| made.misplaced_code(&[code])), [None, Some(mxfp4)]);
    // Codes of experts are of nothing else.
    let mut misplaced = made.clone();
    let gate = made.tensors["model.layers.0.mlp.experts.0.gate_proj.weight"].clone();
    misplaced.tensors.insert("lm_head.weight".to_owned(), gate.named("lm_head.weight"));
    assert_eq!(misplaced.misplaced_code(&[mxfp4]), Some(mxfp4));
    // Benchmarks have the same mix.
    let random = Checkpoint::random_of("random", source.config.clone()).unwrap().with_random_codes(false).unwrap();
    let matrices = random.tensors.iter().filter(|(_, t)| t.shape.len() == 2);
    for (name, tensor) in matrices {
        assert_eq!(tensor.format.name(), made.tensors[name].format.name(), "{name}");
    }
    let tokens: Vec<Token> = (0..150).map(|i| (i * i * 7 + i * 31) % 128).collect();
    let single = fed(&made, 1, &tokens, &[1]);
    assert!(single == fed(&made, 2, &tokens, &[150]) && single == fed(&made, 2, &tokens, &[1, 2, 70, 64, 3]));
    let cache = WeightCache::new(home.path().join("weights"));
    for _ in 0..2 {
        let cached = cache.convert(source.clone(), Weights::Own, &Calibration::Equal, &mut |_| true).unwrap();
        assert!(made.tensors.iter().all(|(name, tensor)| cached.tensors[name].bytes() == tensor.bytes()));
    }
    assert_eq!(cache.list().len(), 1);
}

/// Codes and scales of MXFP4 in other shapes than the configuration's, and scales that are no
/// numbers.
#[test]
fn experts_in_mxfp4_are_checked() {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gpt_oss_mxfp4");
    let [config, file] = ["config.json", "model.safetensors"].map(|name| std::fs::read(place.join(name)).unwrap());
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(file[8..start].to_vec()).unwrap();
    let open = |header: &str, data: &[u8]| {
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        let files = [("config.json", config.clone()), ("model.safetensors", file)];
        let shared = |(name, bytes): (&str, Vec<u8>)| (name.to_owned(), Arc::new(bytes) as SharedBytes);
        Checkpoint::from_memory("m", files.map(shared).into(), &AdapterChoice::None)
    };
    let refused = |from: &str, to: &str| {
        let edited = crate::harness::edited(&header, &[(from, to)]);
        format!("{:#}", open(&edited, &file[start..]).err().expect("refused"))
    };
    let wanted = "down_proj_blocks has shape [6, 32, 2, 16], expected [6, 64, 1, 16]";
    assert!(refused("[6,64,1,16]", "[6,32,2,16]").contains(wanted), "{}", refused("[6,64,1,16]", "[6,32,2,16]"));
    assert!(
        refused("[6,64,2]", "[6,128,1]").contains("gate_up_proj_scales has shape [6, 128, 1], expected [6, 64, 2]")
    );
    assert!(refused("down_proj_scales", "down_proj_scalez").contains("down_proj_scales is missing"));
    let healthy = open(&header, &file[start..]).unwrap();
    let name = "model.layers.0.mlp.experts.0.gate_proj.weight";
    assert_eq!(healthy.tensors[name].format.name(), "MXFP4");
    let told: Value = serde_json::from_str(&header).unwrap();
    let at = told["model.layers.0.mlp.experts.gate_up_proj_scales"]["data_offsets"][0].as_u64().unwrap() as usize;
    let mut data = file[start..].to_vec();
    data[at] = 255;
    let broken = open(&header, &data).unwrap();
    let error = convert(broken, Weights::Int8, &Importance::new(), 1, |_, _| true).err().map(|e| format!("{e:#}"));
    let error = error.or_else(|| {
        let broken = open(&header, &data).unwrap();
        dmschat::quantize::convert::check_scales(&broken).err().map(|e| format!("{e:#}"))
    });
    assert!(error.as_ref().is_some_and(|error| error.contains(name)), "{error:?}");
}

#[test]
fn layers_and_sizes_of_experts_are_checked() {
    let layers = |changes| {
        let config = config(changes).unwrap();
        (0..3).map(|layer| format!("{:?}", config.layer(layer).mlp)).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(layers(json!({})), "Experts Dense Experts");
    assert_eq!(layers(json!({"mlp_only_layers": null, "decoder_sparse_step": 2})), "Dense Experts Dense");
    let cases: BTreeMap<&str, Value> = BTreeMap::from([
        ("num_local_experts is 4096, expected at most 2048", json!({"num_local_experts": 4096})),
        ("a token has 13 of 12 experts", json!({"num_experts_per_tok": 13})),
        ("mlp_only_layers is not a list of layers", json!({"mlp_only_layers": [-1]})),
        ("has no num_local_experts, which is needed", json!({"num_local_experts": null})),
        ("num_local_experts is set, which is not supported", json!({"model_type": "qwen3"})),
    ]);
    for (wanted, changes) in cases {
        let error = config(changes).unwrap_err().to_string();
        assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
    }
}
