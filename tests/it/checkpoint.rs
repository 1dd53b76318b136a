//! Model folders, good and bad: every form the program reads, and one clear line for each thing
//! that can be wrong with one.

use crate::folder::{Block, Folder, assemble, blocks, config, layout, merged};
use dmschat::checkpoint::names::TensorSpec;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, DmcConfig, DmsVariant, ModelConfig, ModelRef, RopeScaling};
use dmschat::hub::HubModel;
use dmschat::policy::{Dmc, Shift, Trained};
use serde_json::{Value, json};

fn open(folder: &Folder) -> anyhow::Result<Checkpoint> {
    Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &AdapterChoice::Auto)
}

pub fn opened(folder: &Folder) -> Checkpoint {
    open(folder).unwrap_or_else(|e| panic!("{e:#}"))
}

/// The message of a refusal, as the program prints it, with the folder's path as DIR and its last
/// part as NAME.
fn refused<T>(folder: &Folder, outcome: anyhow::Result<T>) -> String {
    let message = format!("{:#}", outcome.err().expect("refused"));
    assert!(!message.contains('\n'), "{message}");
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    message.replace(folder.path().to_str().unwrap(), "DIR").replace(name, "NAME")
}

pub fn refusal(folder: &Folder) -> String {
    refused(folder, open(folder))
}

#[test]
fn a_healthy_folder_is_read_and_not_copied() {
    let folder = Folder::healthy();
    folder.json(
        "generation_config.json",
        &json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": 7}),
    );
    folder.json(
        "tokenizer_config.json",
        &json!({"chat_template": "T", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}),
    );
    let c = opened(&folder);
    assert_eq!((c.config.n_layers, c.config.head_dim, c.config.tied, c.config.spec.qk_norm), (2, 4, true, false));
    assert_eq!((c.generation.eos.clone(), c.generation.sampling.top_k), (vec![7, 3, 4], Some(20)));
    assert_eq!((c.chat_template.as_deref(), c.bos_token.as_str(), c.eos_token.as_str()), (Some("T"), "<s>", "</s>"));
    assert_eq!(c.n_params * 2, c.weight_bytes);
    let wanted = &blocks()[5];
    let spec = |block: &Block| TensorSpec { name: block.name.clone(), shape: block.shape.clone() };
    let t = c.tensor(&spec(wanted)).unwrap();
    assert_eq!(t.bytes(), wanted.words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
    let neighbour = c.tensor(&spec(&blocks()[6])).unwrap();
    assert_eq!(t.bytes().as_ptr_range().end, neighbour.bytes().as_ptr(), "handles into one map");
    assert_eq!(
        refused(&folder, c.tensor(&TensorSpec { shape: vec![6, 4], ..spec(wanted) })),
        format!("NAME: tensor {} has shape [4, 6], expected [6, 4]", wanted.name)
    );

    folder.write("chat_template.jinja", b"J");
    let again = opened(&folder);
    assert_eq!((again.chat_template.as_deref(), again.fingerprint == c.fingerprint), (Some("J"), true));
    let other = Folder::with_config(json!({"rope_theta": 2e4}));
    assert_ne!(opened(&other).fingerprint, c.fingerprint);
}

#[test]
fn shards_are_found_through_the_index() {
    let folder = sharded(|_| {});
    let c = opened(&folder);
    let last = blocks().pop().unwrap();
    assert_eq!(c.tensors[&last.name].bytes()[..2], last.words[0].to_le_bytes());

    folder.remove("model-2.safetensors");
    assert_eq!(refusal(&folder), "DIR/model-2.safetensors is missing, which model.safetensors.index.json names");
}

/// The healthy model in two shards, its index changed by `change`.
fn sharded(change: impl FnOnce(&mut Value)) -> Folder {
    let folder = Folder::healthy();
    folder.remove("model.safetensors");
    let all = blocks();
    let mut map = json!({});
    for (i, part) in all.chunks(all.len() / 2 + 1).enumerate() {
        let name = format!("model-{}.safetensors", i + 1);
        let (header, data) = layout(part);
        folder.write(&name, &assemble(&header, &data));
        for b in part {
            map[&b.name] = json!(name);
        }
    }
    change(&mut map);
    folder.json("model.safetensors.index.json", &json!({ "weight_map": map }));
    folder
}

#[test]
fn hostile_file_names_are_refused() {
    for name in ["../model-1.safetensors", "/etc/passwd", "a/../../b", "", ".", "C:\\x", "a\u{0}b"] {
        let folder = sharded(|map| map["model.norm.weight"] = json!(name));
        assert_eq!(
            refusal(&folder),
            format!("DIR/model.safetensors.index.json is refused: file name {name:?} is not a plain relative name")
        );
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused_and_the_hub_cache_works() {
    use std::os::unix::fs::symlink;
    let folder = Folder::healthy();
    let elsewhere = Folder::healthy();
    folder.remove("model.safetensors");
    symlink(elsewhere.file("model.safetensors"), folder.file("model.safetensors")).unwrap();
    assert_eq!(refusal(&folder), "DIR/model.safetensors is a link out of the model folder, which is refused");
    elsewhere.remove("model.safetensors");
    assert_eq!(refusal(&folder), "DIR/model.safetensors is a link to a file that is gone");

    // snapshots/COMMIT links to ../../blobs, inside the repository's folder.
    let (cache, made) = (Folder::healthy(), Folder::healthy());
    let snapshot = cache.file("models--o--n/snapshots/abc");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(cache.file("models--o--n/blobs")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(made.file(name), cache.file("models--o--n/blobs").join(name)).unwrap();
        symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    let open = |dir: &std::path::Path| Checkpoint::open(&ModelRef::Folder(dir.to_owned()), &AdapterChoice::Auto);
    assert_eq!(open(&snapshot).unwrap().config.n_layers, 2);
    // Only into the blobs, only below models--*, and not where the blobs are a link themselves.
    let link_out = |dir: &std::path::Path| {
        let said = format!("{:#}", open(dir).err().expect("refused"));
        assert!(said.ends_with("config.json is a link out of the model folder, which is refused"), "{said}");
    };
    let other = cache.file("models--o--n/snapshots/other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(cache.file("models--o--n/mine"), "{}").unwrap();
    std::fs::copy(made.file("config.json"), snapshot.join("own.json")).unwrap();
    for target in ["../../mine", "../abc/own.json"] {
        let _ = std::fs::remove_file(other.join("config.json"));
        symlink(target, other.join("config.json")).unwrap();
        link_out(&other);
    }
    std::fs::create_dir_all(cache.file("plain/snapshots")).unwrap();
    std::fs::rename(cache.file("models--o--n/blobs"), cache.file("plain/blobs")).unwrap();
    std::fs::rename(&snapshot, cache.file("plain/snapshots/abc")).unwrap();
    link_out(&cache.file("plain/snapshots/abc"));
    std::fs::rename(cache.file("plain/snapshots/abc"), &snapshot).unwrap();
    symlink(cache.file("plain/blobs"), cache.file("models--o--n/blobs")).unwrap();
    link_out(&snapshot);
}

#[test]
fn broken_weights_give_one_line_each() {
    let (header, data) = layout(&blocks());
    let whole = assemble(&header, &data);
    let with = |bytes: &[u8]| {
        let folder = Folder::healthy();
        folder.write("model.safetensors", bytes);
        refusal(&folder)
    };
    let folder = Folder::healthy();
    folder.remove("model.safetensors");
    let none =
        "DIR/model.safetensors is missing, and so is model.safetensors.index.json; only safetensors weights are read";
    assert_eq!(refusal(&folder), none);

    assert_eq!(with(b""), "DIR/model.safetensors is empty");
    assert_eq!(with(b"abc"), "DIR/model.safetensors is not a safetensors file: 3 bytes long");
    let claims = "is truncated or no safetensors file: its header claims";
    assert_eq!(with(&[0xff; 40]), format!("DIR/model.safetensors {claims} {} bytes, 32 follow", u64::MAX));
    assert!(with(&whole[..300]).starts_with(&format!("DIR/model.safetensors {claims}")));
    let cut = with(&whole[..whole.len() - 4]);
    assert!(cut.ends_with(&format!(
        "ends at byte {}, but the file has {}: the file is truncated",
        whole.len(),
        whole.len() - 4
    )));

    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut header = header.clone();
        edit(&mut header);
        with(&assemble(&header, &data))
    };
    let norm = "DIR/model.safetensors: tensor model.norm.weight";
    assert_eq!(
        edited(&|h| h["model.norm.weight"]["shape"] = json!([7])),
        format!("{norm}: shape [7] of BF16 does not fill its 12 bytes")
    );
    assert_eq!(
        edited(&|h| h["model.norm.weight"]["shape"] = json!([2, 3])),
        format!("{norm} has shape [2, 3], expected [6]")
    );
    assert_eq!(
        edited(&|h| h["model.norm.weight"]["dtype"] = json!("I16")),
        format!("{norm} is I16; F32, F16 and BF16 are supported")
    );
    assert_eq!(edited(&|h| h["model.norm.weight"]["shape"] = json!([u64::MAX, 3])), format!("{norm}: shape overflows"));
    assert_eq!(
        edited(&|h| h["model.norm.weight"]["data_offsets"] = json!([0, 12])),
        "DIR/model.safetensors: tensors model.embed_tokens.weight and model.norm.weight overlap"
    );
    assert_eq!(
        edited(&|h| drop(h.as_object_mut().unwrap().remove("model.norm.weight"))),
        format!("{norm} [6] is missing")
    );
}

/// Any damage to the header is refused or harmless; nothing panics or reads outside the file.
#[test]
fn damaged_headers_never_panic() {
    let (header, data) = layout(&blocks()[..4]);
    let whole = assemble(&header, &data);
    let header_end = whole.len() - data.len();
    let folder = Folder::healthy();
    let mut state = 7u64;
    for _ in 0..1500 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            bytes[(state >> 33) as usize % header_end] = b"0123456789{}[],:\"x\x00\xff"[(state >> 20) as usize % 20];
        }
        folder.write("model.safetensors", &bytes);
        refusal(&folder);
    }
}

#[test]
fn configs_that_would_be_computed_wrongly_are_refused() {
    for key in
        ["model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"]
    {
        let folder = Folder::with_config(json!({ key: null }));
        assert_eq!(refusal(&folder), format!("DIR/config.json has no {key}, which is needed"));
    }
    let cases = [
        (
            json!({"model_type": "gemma2"}),
            "model_type \"gemma2\" is not supported (qwen3, llama, qwen2, mistral, ministral3, phi3, smollm3, qwen3_5_text, qwen3_moe, qwen3_5_moe_text, gemma3_text, gemma4_text, gemma4_unified_text, gpt_oss, granite are)",
        ),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "architecture LlamaForSequenceClassification is not a supported language model (those whose name ends in ForCausalLM are)",
        ),
        (json!({"hidden_act": "gelu"}), "hidden_act \"gelu\" is not supported (silu is)"),
        (
            json!({"model_type": "mistral", "sliding_window": 8, "dms_cr": 4}),
            "a sliding window beside DMS or DMC is not supported",
        ),
        (
            json!({"sliding_window": 8, "use_sliding_window": true}),
            "sliding window attention is not supported in llama",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer type \"sliding_attention\" is not supported (full_attention is)",
        ),
        (
            json!({"layer_types": ["sliding_attention"], "sliding_window": 8}),
            "sliding window attention is not supported in llama",
        ),
        (
            json!({"model_type": "ministral3", "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 8, "llama_4_scaling_beta": -1}}),
            "rope_scaling: llama_4_scaling_beta -1 is not between 0 and 100",
        ),
        (
            json!({"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}),
            "rope_parameters: llama_4_scaling_beta is set, which is not supported in llama",
        ),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor 0.5 is not supported in llama"),
        (
            json!({"quantization_config": {}}),
            "quantization_config names no quant_method (fp8, gptq, awq, modelopt (NVFP4, FP8), mxfp4 and compressed-tensors (pack-quantized, float-quantized, nvfp4-pack-quantized) are read)",
        ),
        (
            json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            "quantization_config: quant_method \"bitsandbytes\" is not supported (fp8, gptq, awq, modelopt (NVFP4, FP8), mxfp4 and compressed-tensors (pack-quantized, float-quantized, nvfp4-pack-quantized) are read)",
        ),
        (json!({"num_key_value_heads": 3}), "2 attention heads do not share 3 key-value heads evenly"),
        (json!({"head_dim": 5}), "head_dim 5 is odd, so it cannot be rotated"),
        (json!({"num_hidden_layers": "two"}), "num_hidden_layers is \"two\", expected a whole number below 2^31"),
        (json!({"vocab_size": 0}), "vocab_size is 0, expected at least 1"),
        (json!({"eos_token_id": 11}), "eos_token_id 11 is not a token of a vocabulary of 11"),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "rope_scaling: rope type \"dynamic\" is not supported (default, linear, llama3, yarn, longrope are)",
        ),
        (json!({"rope_parameters": {"rope_theta": 5.0}}), "rope_parameters: rope_theta is 5, but outside of it 10000"),
        (json!({"dms_window_size": 4, "dms_alpha_per": "token"}), "dms_alpha_per \"token\" is unknown (head, layer)"),
        (json!({"dmc_cr": 4, "num_key_value_heads": 2}), "DMC needs two query heads for each KV head"),
        (json!({"dmc_cr": 4, "dms_cr": 4}), "it declares both DMS and DMC; a model has one of them"),
        (json!({"dmc_max_members": 65}), "dmc_max_members is 65, expected at most 64"),
        (json!({"dmc_max_members": 0}), "dmc_max_members is 0, expected at least 1"),
    ];
    for (change, wanted) in cases {
        let folder = Folder::with_config(change);
        assert_eq!(refusal(&folder), format!("DIR/config.json: {wanted}"));
    }
    let folder = Folder::with_config(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}}));
    assert_eq!(refusal(&folder), "DIR/config.json: rope_scaling has no low_freq_factor, which is needed");
    let folder = Folder::healthy();
    folder.remove("config.json");
    assert_eq!(refusal(&folder), "DIR/config.json is missing, so this is not a model folder");
    folder.write("config.json", b"{\"a\": ");
    assert!(refusal(&folder).starts_with("DIR/config.json is not JSON: "));
    let untied = Folder::with_config(json!({"tie_word_embeddings": false}));
    assert_eq!(refusal(&untied), "DIR/model.safetensors: tensor lm_head.weight [11, 6] is missing");
}

#[test]
fn a_tied_head_that_is_stored_too_has_to_be_the_embedding() {
    let folder = Folder::healthy();
    let embedding = blocks()[0].clone();
    let mut head = Block { name: "lm_head.weight".into(), ..embedding };
    let write = |head: &Block| {
        let (header, data) = layout(&[blocks(), vec![head.clone()]].concat());
        folder.write("model.safetensors", &assemble(&header, &data));
    };
    write(&head);
    assert!(opened(&folder).config.tied);
    head.words[3] ^= 1;
    write(&head);
    assert_eq!(
        refusal(&folder),
        "DIR/model.safetensors: config.json says tie_word_embeddings, but lm_head.weight differs from the embedding"
    );
}

#[test]
fn both_spellings_of_rope_are_one() {
    let yarn = json!({"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 20});
    let old = merged(yarn.clone(), json!({"type": "yarn"}));
    let new = merged(yarn, json!({"rope_type": "yarn", "rope_theta": 10000}));
    let a = opened(&Folder::with_config(json!({ "rope_scaling": old }))).config.rope;
    let b = opened(&Folder::with_config(json!({ "rope_theta": null, "rope_parameters": new }))).config.rope;
    assert_eq!(a, b);
    assert!(matches!(a.scaling, RopeScaling::Yarn { original_context: 16, beta_fast: 20.0, truncate: true, .. }));
}

/// As in transformers' classes: a missing `rope_theta`, and a window in all layers that
/// `layer_types` lists.
#[test]
fn a_config_without_theta_and_one_whose_layers_all_slide() {
    let all = json!(["sliding_attention", "sliding_attention"]);
    let read = |change: Value| {
        let config = merged(merged(config(), json!({"rope_theta": null})), change);
        ModelConfig::from_json("x", config.to_string().as_bytes())
    };
    let cases = [
        (json!({"model_type": "smollm3"}), 2e6, None),
        (json!({"model_type": "granite"}), 1e4, None),
        (json!({"model_type": "smollm3", "layer_types": all, "sliding_window": 8}), 2e6, Some(8)),
        (
            json!({"model_type": "qwen2", "layer_types": all, "sliding_window": 8, "use_sliding_window": true}),
            1e4,
            Some(8),
        ),
        (json!({"model_type": "mistral", "layer_types": all, "sliding_window": 8}), 1e4, Some(8)),
        (json!({"model_type": "mistral", "layer_types": all, "sliding_window": 64}), 1e4, None),
        // The class default, in a context that it does not fill and in a longer one.
        (json!({"model_type": "mistral"}), 1e4, None),
        (json!({"model_type": "mistral", "max_position_embeddings": 8192}), 1e4, Some(4096)),
        // Layers from `max_window_layers` on slide: none of these two, or all.
        (json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true}), 1e4, None),
        (
            json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0}),
            1e4,
            Some(8),
        ),
        (
            json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0,
                "layer_types": ["full_attention", "full_attention"]}),
            1e4,
            None,
        ),
    ];
    for (change, theta, window) in cases {
        let config = read(change.clone()).unwrap();
        assert_eq!((config.rope.theta, config.spec.window), (theta, window), "{change}");
    }
    // A null is a value: there is no window.
    let mut none = merged(config(), json!({"model_type": "mistral", "max_position_embeddings": 8192}));
    none["sliding_window"] = Value::Null;
    let open = |config: &Value| ModelConfig::from_json("x", config.to_string().as_bytes());
    assert_eq!(open(&none).unwrap().spec.window, None);
    none["layer_types"] = all;
    assert_eq!(open(&none).unwrap_err().to_string(), "x has no sliding_window, which is needed");
    let some = json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1});
    let said = read(some).unwrap_err().to_string();
    assert_eq!(said, "x: use_sliding_window is set, for 1 of 2 layers, which is not supported in qwen2");
}

/// Against the defaults of `configuration_*.py` of transformers 4.57 and 5.24.
#[test]
fn keys_that_a_config_leaves_out_have_their_class_defaults() {
    let read = |family: &str| {
        let mut sizes = json!({"model_type": family, "vocab_size": 11, "hidden_size": 4096, "intermediate_size": 10,
            "num_hidden_layers": 8, "num_attention_heads": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 8});
        if family == "qwen3_moe" {
            sizes["num_experts"] = 4.into();
        }
        if family == "qwen3_5_moe_text" {
            sizes["shared_expert_intermediate_size"] = 8.into();
        }
        ModelConfig::from_json("x", sizes.to_string().as_bytes()).unwrap_or_else(|e| panic!("{family}: {e:#}"))
    };
    for (family, tied, context, kv, head, eps, theta) in [
        ("llama", false, 2048, 32, 128, 1e-6, 1e4),
        ("granite", false, 2048, 32, 128, 1e-6, 1e4),
        ("mistral", false, 131_072, 8, 128, 1e-6, 1e4),
        ("ministral3", false, 262_144, 8, 128, 1e-5, 1e6),
        ("phi3", false, 4096, 32, 128, 1e-5, 1e4),
        ("smollm3", true, 32_768, 4, 128, 1e-6, 2e6),
        ("qwen2", false, 32_768, 32, 128, 1e-6, 1e4),
        ("qwen3", false, 32_768, 32, 128, 1e-6, 1e4),
        ("qwen3_moe", false, 32_768, 4, 128, 1e-6, 1e4),
        ("qwen3_5_text", false, 32_768, 4, 256, 1e-6, 1e4),
        ("qwen3_5_moe_text", false, 32_768, 2, 256, 1e-6, 1e4),
        ("gpt_oss", false, 131_072, 8, 64, 1e-5, 1.5e5),
        ("gemma3_text", true, 131_072, 4, 256, 1e-6, 1e6),
        ("gemma4_text", true, 131_072, 4, 256, 1e-6, 1e6),
        ("gemma4_unified_text", true, 262_144, 4, 256, 1e-6, 1e6),
    ] {
        let c = read(family);
        let found = (c.tied, c.context, c.n_kv_heads, c.head_dim, c.rms_eps, c.rope.theta);
        assert_eq!(found, (tied, context, kv, head, eps as f32, theta), "{family}");
    }
}

/// Every place that names an end of a turn counts, and spellings that mean one.
#[test]
fn a_turn_ends_where_any_file_says() {
    let folder = Folder::with_config(json!({"eos_token_id": 3}));
    folder.json("generation_config.json", &json!({"eos_token_id": [99, 2, 3]}));
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "special": true});
    folder.json(
        "tokenizer.json",
        &json!({"added_tokens": [added(5, "<own>"), added(6, "<|eot_id|>"), added(7, "<other>"), added(40, "<|im_end|>")],
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}),
    );
    folder.json("tokenizer_config.json", &json!({"eos_token": {"content": "<own>"}}));
    folder.json("special_tokens_map.json", &json!({"eos_token": "<other>"}));
    assert_eq!(opened(&folder).generation.eos, [2, 3, 5, 7, 6]);
}

/// The decision tensors of the tiny model.
fn decisions(hidden: usize) -> Vec<Block> {
    let name = |layer, what| format!("model.layers.{layer}.self_attn.dms_proj_alpha{what}.weight");
    let block = |name, shape: Vec<usize>| Block { name, words: vec![0x3f80; shape.iter().product()], shape };
    (0..2).flat_map(|l| [block(name(l, ""), vec![1, hidden]), block(name(l, "_norm"), vec![hidden])]).collect()
}

fn adapter_file(blocks: &[Block], changes: Value) -> Vec<u8> {
    let (mut header, data) = layout(blocks);
    let metadata = json!({
        "format": "dmschat-adapter-1", "base": "org/tiny", "model_type": "llama", "num_hidden_layers": "2", "hidden_size": "6",
        "num_key_value_heads": "1", "vocab_size": "11", "window": "16", "shift": "1", "alpha_scale": "100.0",
        "alpha_offset": "5.0", "alpha_per": "head", "license": "Apache-2.0"
    });
    header["__metadata__"] = merged(metadata, changes);
    assemble(&header, &data)
}

#[test]
fn a_dmc_model_has_its_own_keys_and_no_adapter() {
    let given = json!({"dmc_cr": 3.5, "dmc_alpha_scale": 10, "dmc_alpha_offset": 2, "dmc_weight_scale": 3, "dmc_weight_offset": -1,
        "dmc_max_members": 16});
    let config = opened(&Folder::with_config(given)).config;
    let rule = Dmc { weight_scale: 3.0, weight_offset: -1.0, most_members: 16 };
    let dmc = DmcConfig { rule, alpha_scale: 10.0, alpha_offset: 2.0, target_ratio: Some(3.5) };
    assert_eq!((config.dmc, config.trained(), config.target_ratio()), (Some(dmc), Some(Trained::Dmc(rule)), Some(3.5)));
    let folder = Folder::with_config(json!({"dmc_weight_scale": 1}));
    let usual = DmcConfig { rule: Dmc::default(), alpha_scale: 100.0, alpha_offset: 5.0, target_ratio: None };
    assert_eq!(opened(&folder).config.dmc, Some(usual));
    let sidecar = AdapterChoice::File(folder.file("model.safetensors"));
    let outcome = Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &sidecar);
    assert!(refused(&folder, outcome).contains("has DMC of its own, so --adapter"));
}

#[test]
fn all_five_forms_of_dms_are_recognised() {
    assert_eq!(opened(&Folder::healthy()).config.dms, None);

    let borrowed = opened(&Folder::with_config(json!({"dms_window_size": 16, "dms_cr": 8}))).config.dms.unwrap();
    assert_eq!(
        (borrowed.variant, borrowed.rule.window, borrowed.rule.shift),
        (DmsVariant::Borrowed, 16, Shift::Previous)
    );
    assert_eq!((borrowed.alpha_scale, borrowed.alpha_offset, borrowed.target_ratio), (100.0, 5.0, Some(8.0)));

    let keys = json!({"dms_window_size": 9, "dms_alpha_scale": 10, "dms_initial_alpha_offset": 4,
        "dms_separate_alpha": true, "dms_alpha_per": "layer", "dms_disable_eviction": true});
    let folder = Folder::with_config(keys.clone());
    let missing = "DIR/model.safetensors: tensor model.layers.0.self_attn.dms_proj_alpha.weight [1, 6] is missing";
    assert_eq!(refusal(&folder), missing);
    let (header, data) = layout(&[blocks(), decisions(6)].concat());
    folder.write("model.safetensors", &assemble(&header, &data));
    let adapter = opened(&folder).config.dms.unwrap();
    assert_eq!((adapter.variant, adapter.alpha_scale, adapter.alpha_offset), (DmsVariant::Adapter, 10.0, 4.0));
    assert!(adapter.per_layer && adapter.disabled);

    for wrap in [false, true] {
        let folder = Folder::with_config(keys.clone());
        let metadata = json!({"window_size": 7, "alpha_scale": 50.0, "alpha_offset": 2.5, "target_cr": 4});
        folder.json("dms_metadata.json", &if wrap { json!({ "config": metadata }) } else { metadata });
        let own = opened(&folder).config.dms.unwrap();
        assert_eq!((own.variant, own.rule.window, own.rule.shift), (DmsVariant::Borrowed, 7, Shift::Same));
        assert_eq!((own.alpha_scale, own.alpha_offset, own.per_layer), (50.0, 2.5, false));
    }

    let folder = Folder::healthy();
    folder.write("a.safetensors", &adapter_file(&decisions(6), json!({})));
    let c = with_adapter(&folder).unwrap();
    let dms = c.config.dms.clone().unwrap();
    assert_eq!((dms.variant, dms.rule.window, dms.rule.shift), (DmsVariant::Adapter, 16, Shift::Previous));
    assert_eq!(c.adapter.and_then(|source| source.base).as_deref(), Some("org/tiny"));
    assert_eq!(c.tensors["model.layers.1.self_attn.dms_proj_alpha_norm.weight"].to_f32(), [1.0; 6]);
}

fn with_adapter(folder: &Folder) -> anyhow::Result<Checkpoint> {
    let file = AdapterChoice::File(folder.file("a.safetensors"));
    Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &file)
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let folder = Folder::healthy();
    let refusal = |bytes: Vec<u8>| {
        folder.write("a.safetensors", &bytes);
        refused(&folder, with_adapter(&folder))
    };
    for (key, theirs, ours) in [
        ("hidden_size", "576", "6"),
        ("num_hidden_layers", "30", "2"),
        ("model_type", "qwen3", "llama"),
        ("vocab_size", "10", "11"),
    ] {
        assert_eq!(
            refusal(adapter_file(&decisions(6), json!({ key: theirs }))),
            format!(
                "DIR/a.safetensors is an adapter for org/tiny ({key} {theirs}) and does not fit NAME ({key} {ours})"
            )
        );
    }
    assert_eq!(
        refusal(adapter_file(&decisions(7), json!({}))),
        "DIR/a.safetensors: tensor model.layers.0.self_attn.dms_proj_alpha.weight has shape [1, 7], expected [1, 6]"
    );
    let cases = [
        (json!({"format": null}), "its metadata has no format, so it is not an adapter file"),
        (json!({"format": "x"}), "adapter format \"x\" is unknown (dmschat-adapter-1 and dmschat-adapter-2 are known)"),
        (json!({"window": "-1"}), "metadata window is \"-1\", which is not such a number"),
        (json!({"alpha_scale": "NaN"}), "metadata alpha_scale is NaN"),
        (json!({"shift": "2"}), "metadata shift is \"2\", expected 0 or 1"),
        (json!({"alpha_per": "token"}), "metadata alpha_per \"token\" is unknown (head, layer)"),
    ];
    for (change, wanted) in cases {
        assert_eq!(refusal(adapter_file(&decisions(6), change)), format!("DIR/a.safetensors: {wanted}"));
    }
    // One that nobody has named.
    let base = folder.path().file_name().unwrap().to_str();
    folder.write("a.safetensors", &adapter_file(&decisions(6), json!({"base": base, "shift": "2"})));
    let found = AdapterChoice::In(folder.path().to_owned());
    assert_eq!(
        refused(&folder, Checkpoint::open(&ModelRef::Folder(folder.path().to_owned()), &found)),
        "DIR/a.safetensors: metadata shift is \"2\", expected 0 or 1; this adapter was found by itself, and --adapter none \
         leaves it out"
    );
    folder.json("config.json", &merged(config(), json!({"dms_window_size": 8})));
    assert_eq!(
        refusal(adapter_file(&decisions(6), json!({}))),
        "NAME has DMS of its own, so --adapter DIR/a.safetensors is refused"
    );
}

#[test]
fn names_of_models() {
    assert_eq!(ModelRef::parse("demo").unwrap(), ModelRef::BuiltIn);
    let folder = Folder::healthy();
    let path = folder.path().to_str().unwrap();
    assert_eq!(ModelRef::parse(path).unwrap(), ModelRef::Folder(path.into()));
    let hub = |id: &str, gguf: Option<&str>, revision: Option<&str>| {
        let (gguf, revision) = (gguf.map(str::to_owned), revision.map(str::to_owned));
        ModelRef::Hub(HubModel { id: id.to_owned(), gguf, revision })
    };
    assert_eq!(ModelRef::parse("org/Name-1.5@v2").unwrap(), hub("org/Name-1.5", None, Some("v2")));
    assert_eq!(ModelRef::parse("org/Name-GGUF:Q4_K_M@v2").unwrap(), hub("org/Name-GGUF", Some("Q4_K_M"), Some("v2")));
    let message = |text: &str| ModelRef::parse(text).unwrap_err().to_string();
    assert_eq!(message("./nowhere"), "no model folder ./nowhere; expected one that exists, or a hub id ORG/NAME");
    assert!(message("dmeo").ends_with("; did you mean demo?"), "{}", message("dmeo"));
    assert!(message("").starts_with("no model named \"\"; expected demo, a folder, a GGUF file or a hub id ORG/NAME"));
    let file = Checkpoint::open(&ModelRef::Folder(folder.file("config.json")), &AdapterChoice::Auto);
    assert_eq!(
        refused(&folder, file),
        "DIR/config.json is a file; give a GGUF file, or the folder that holds config.json and the weights"
    );
}
