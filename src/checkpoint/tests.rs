//! Rope frequencies, random checkpoints, names of models.

use super::adapter::Adapter;
use super::*;
use crate::hub::model_names::Names;

#[test]
fn random_checkpoints_have_every_tensor() {
    let c = Checkpoint::random("smollm2-135m").unwrap();
    assert_eq!(c.tensors["model.layers.29.mlp.down_proj.weight"].shape, [576, 1536]);
    let q = c.tensors["model.layers.0.self_attn.q_proj.weight"].to_f32();
    let variance = q.iter().map(|x| x * x).sum::<f32>() / q.len() as f32;
    assert!((variance * 576.0 - 1.0).abs() < 0.02, "{variance}");
    assert!(c.tensors.values().all(|t| t.bytes().as_ptr().align_offset(64) == 0));
    let again = Checkpoint::random("smollm2-135m").unwrap();
    assert_eq!(again.tensors["model.embed_tokens.weight"].bytes(), c.tensors["model.embed_tokens.weight"].bytes());
    let message = Checkpoint::random("x").err().unwrap().to_string();
    assert_eq!(
        message,
        "no shape named \"x\" (qwen3-8b, qwen3-8b-wide, qwen3-30b-a3b, qwen3.6-35b-a3b, gpt-oss-20b, qwen3.5-9b, gemma3-4b, gemma4-e4b, llama-3.2-1b, smollm2-135m, demo are known)"
    );
}

/// Expected values: transformers' formulas evaluated in Python's doubles, by a script that follows
/// `_compute_llama3_parameters` and `_compute_yarn_parameters` line by line.
#[test]
fn rope_frequencies_are_transformers() {
    let yarn = |factor, original_context, truncate| RopeScaling::Yarn {
        factor,
        original_context,
        beta_fast: if truncate { 32.0 } else { 16.0 },
        beta_slow: if truncate { 1.0 } else { 2.0 },
        attention_factor: None,
        mscale: if factor == 40.0 { Some(1.0) } else { None },
        mscale_all_dim: if factor == 40.0 { Some(0.8) } else { None },
        truncate,
    };
    let llama3 =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
    let check = |theta, head_dim, scaling, want_scale: f32, want: &[(usize, f64)]| {
        let (freqs, scale) = Rope { theta, share: 1.0, scaling }.frequencies(head_dim);
        assert_eq!((freqs.len(), scale), (head_dim / 2, want_scale));
        for &(i, f) in want {
            assert!((freqs[i] / f - 1.0).abs() < 1e-6, "{theta} channel {i}: {} is not {f}", freqs[i]);
        }
    };
    let qwen3 = [(0, 1.0), (1, 8.058421878e-01), (40, 1.778279410e-04), (63, 1.240937761e-06)];
    check(1e6, 128, RopeScaling::Default, 1.0, &qwen3);
    let llama = [
        (0, 1.0),
        (13, 4.839421346e-03),
        (14, 3.211445995e-03),
        (15, 1.290547928e-03),
        (17, 9.708287803e-05),
        (18, 1.946163818e-05),
        (31, 9.418306725e-08),
    ];
    check(5e5, 64, llama3, 1.0, &llama);
    let stretched = [
        (0, 1.0),
        (23, 6.978305849e-03),
        (24, 5.375321491e-03),
        (30, 1.064360981e-03),
        (39, 6.490394321e-05),
        (40, 4.445698525e-05),
        (63, 3.102344402e-07),
    ];
    check(1e6, 128, yarn(4.0, 32_768, true), 1.138_629_4, &stretched);
    let deepseek = [
        (10, 5.623413252e-02),
        (15, 8.334508951e-03),
        (22, 1.778279410e-04),
        (23, 3.333803580e-05),
        (31, 3.333803580e-06),
    ];
    check(1e4, 64, yarn(40.0, 4096, true), 1.056_966_3, &deepseek);
    let untruncated = [
        (8, 5.081327482e-02),
        (10, 2.393195370e-02),
        (12, 7.387542023e-03),
        (16, 8.068715305e-05),
        (31, 3.023511428e-07),
    ];
    check(1.5e5, 64, yarn(32.0, 4096, false), 1.346_573_6, &untruncated);
}

#[test]
fn only_qwen3_is_extended_by_yarn() {
    let mut qwen = Checkpoint::random("demo").unwrap().config;
    qwen.extend_yarn(4096).unwrap();
    assert_eq!((qwen.context, &qwen.rope.scaling), (8192, &RopeScaling::Default));
    qwen.extend_yarn(32_768).unwrap();
    qwen.extend_yarn(65_536).unwrap();
    assert_eq!(qwen.context, 65_536);
    assert!(matches!(qwen.rope.scaling, RopeScaling::Yarn { factor: 8.0, original_context: 8192, .. }));
    qwen.family = Family::named("llama").unwrap();
    let message = qwen.extend_yarn(100_000).unwrap_err().to_string();
    assert_eq!(
        message,
        "a context of 100000 tokens is more than the 65536 this model was made for, and llama documents no way to extend it"
    );
}

#[test]
fn a_configs_own_yarn_reaches_as_far_as_its_factor() {
    let own = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 256,
        beta_fast: 12.0,
        beta_slow: 2.0,
        attention_factor: Some(1.5),
        mscale: Some(1.0),
        mscale_all_dim: None,
        truncate: false,
    };
    let mut config = ModelConfig { context: 256, ..Checkpoint::random("demo").unwrap().config };
    config.rope.scaling = own.clone();
    config.extend_yarn(1024).unwrap();
    assert_eq!((config.context, &config.rope.scaling), (1024, &own));
    config.extend_yarn(2048).unwrap();
    let RopeScaling::Yarn { factor, beta_fast, attention_factor, truncate, .. } = config.rope.scaling else { panic!() };
    assert_eq!((factor, beta_fast, attention_factor, truncate), (8.0, 12.0, None, false));
}

#[test]
fn windows_are_bounded_and_no_longer_than_the_context() {
    let mut config = Checkpoint::random_evicting("demo", 8.0).unwrap().config;
    config.dms.as_mut().unwrap().rule.window = bounds::POSITIONS;
    config.shorten_windows(4096);
    assert_eq!(config.dms.as_ref().unwrap().rule.window, 4096);
    config.shorten_windows(8192);
    assert_eq!(config.dms.unwrap().rule.window, 4096);
    let demo = serde_json::from_slice::<Value>(include_bytes!("../../assets/demo/config.json")).unwrap();
    let with = |window: usize| {
        let mut config = demo.clone();
        config["dms_window_size"] = window.into();
        ModelConfig::from_json("x", config.to_string().as_bytes()).map_err(|e| e.to_string())
    };
    assert!(with(bounds::POSITIONS).is_ok());
    let said = with(bounds::POSITIONS + 1).unwrap_err();
    assert_eq!(said, "x: dms_window_size is 1048577, expected at most 1048576");
}

/// Stored keys cannot change their factors. A chat begins with the factors for short contexts
/// unless a longer context is asked for.
#[test]
fn the_usual_context_of_longrope_is_that_of_its_short_factors() {
    let mut config = ModelConfig { context: 131_072, ..Checkpoint::random("demo").unwrap().config };
    assert_eq!((config.usual_context(), config.rope_factors()), (131_072, None));
    let factors = vec![1.0; 64];
    config.rope.scaling = RopeScaling::LongRope {
        short: factors.clone(),
        long: factors,
        original_context: 4096,
        attention_factor: 1.2,
        is_long: true,
    };
    assert_eq!(config.usual_context(), 4096);
    let said = config.rope_factors().unwrap();
    assert_eq!(said, "RoPE factors for short contexts up to 4,096 tokens, those for long ones up to 131,072");
}

#[test]
fn the_hub_cache_is_looked_up_by_reference_and_near_names_are_told() {
    let cache = tempfile::tempdir().unwrap();
    let repo = cache.path().join("models--Qwen--Qwen3-0.6B");
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::create_dir_all(repo.join("snapshots/abc")).unwrap();
    std::fs::write(repo.join("refs/main"), "abc\n").unwrap();
    let found = |id: &str, revision: Option<&str>| {
        let model = hub::HubModel { id: id.to_owned(), gguf: None, revision: revision.map(str::to_owned) };
        hub::cache::find_in(cache.path(), &model).map(|cached| cached.path)
    };
    assert_eq!(found("Qwen/Qwen3-0.6B", None).unwrap(), repo.join("snapshots/abc"));
    assert_eq!(found("Qwen/Qwen3-0.6B", Some("abc")).unwrap(), repo.join("snapshots/abc"));
    let message = |id, revision| found(id, revision).unwrap_err().to_string();
    assert!(message("Qwen/Qwen3-0.6B", Some("v9")).contains("without revision v9"));
    assert!(message("qwen/qwen3-06b", None).ends_with("; did you mean Qwen/Qwen3-0.6B?"));
    std::fs::write(repo.join("refs/main"), "../../..").unwrap();
    assert!(format!("{:#}", found("Qwen/Qwen3-0.6B", None).unwrap_err()).contains("is not a plain relative name"));
}

#[test]
fn random_decisions_mark_about_the_share_asked_for() {
    let c = Checkpoint::random_evicting("demo", 8.0).unwrap();
    let dms = c.config.dms.as_ref().unwrap();
    assert_eq!(dms.variant, DmsVariant::Adapter);
    let row = c.tensors["model.layers.0.self_attn.dms_proj_alpha.weight"].to_f32();
    let hidden = c.config.hidden;
    // Against random unit-variance inputs.
    let input = c.tensors["model.embed_tokens.weight"].to_f32();
    let marked = input.chunks(hidden).filter(|x| {
        let norm = (x.iter().map(|v| v * v).sum::<f32>() / hidden as f32).sqrt();
        let dot: f32 = x.iter().zip(&row[..hidden]).map(|(a, b)| a / norm * b).sum();
        dot * dms.alpha_scale - dms.alpha_offset > 0.0
    });
    let share = marked.count() as f64 / (input.len() / hidden) as f64;
    assert!((share - 0.875).abs() < 0.05, "{share}");
}

#[test]
fn the_built_in_model_is_whole() {
    let c = Checkpoint::open(&ModelRef::BuiltIn, &AdapterChoice::Auto).unwrap();
    assert_eq!((c.name.as_str(), c.builtin, c.config.family.name), ("demo", true, "qwen3"));
    let dms = c.config.dms.as_ref().unwrap();
    assert_eq!(
        (dms.variant, dms.rule.window, dms.rule.shift),
        (DmsVariant::Borrowed, 64, crate::policy::Shift::Previous)
    );
    assert!(c.chat_template.is_some() && !c.generation.eos.is_empty());
    assert_eq!(Checkpoint::random("demo").unwrap().config, c.config);
    let file = builtin::weights().unwrap();
    assert!(file == std::fs::read("assets/demo/model.safetensors").unwrap());
    assert_eq!(file.as_ptr().align_offset(64), 0);
    assert!(c.tensors.values().all(|t| file.as_ptr_range().contains(&t.bytes().as_ptr())), "not copied");
}

#[test]
fn the_shipped_adapter_is_found_by_shape() {
    let mut config = Checkpoint::random_shared("smollm2-135m").unwrap().config;
    let find = |config: &ModelConfig| Adapter::find(None, &Names::of("a-finetune"), config).unwrap();
    let adapter = find(&config).expect("fits");
    assert_eq!(adapter.base(), Some("HuggingFaceTB/SmolLM2-135M-Instruct"));
    let mut with_it = config.clone();
    adapter.decide(&mut with_it).unwrap();
    assert_eq!(with_it.dms.unwrap().rule.window, 192);
    assert_eq!(adapter.tensors(&config).unwrap().len(), 2 * config.n_layers);
    config.vocab += 1;
    assert!(find(&config).is_none());
}
