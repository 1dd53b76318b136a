//! Against transformers: logits, greedy continuations, rope frequencies, encodings and renderings
//! that tests/golden/make_goldens.py recorded. A missing golden fails.

use crate::rule::stored;
use crate::spy::{Spy, Watch};
use dmschat::backend::cpu::Cpu;
use dmschat::chat::{Conversation, RenderOptions, render};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, ModelRef, Tuning};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::protocol::{Piece, TemplateSpec, Token};
use dmschat::quant::Weights;
use dmschat::quantize::convert::{Importance, convert};
use dmschat::sampler;
use dmschat::tokenizer::{Tokenizer, flatten};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Largest difference of a logit in f32; the logits' spread is about 6.
const LOGIT_TOLERANCE: f32 = 2e-4;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> Vec<u8> {
    let path = folder(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; tests/golden/make_goldens.py makes it", path.display()))
}

fn parsed<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    serde_json::from_slice(&read(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<Token>,
    vocab: usize,
    prompt_tokens: usize,
    greedy: Vec<Token>,
    inv_freq: Vec<f64>,
    attention_scale: f32,
}

fn holds(name: &str) {
    computes(name, &Checkpoint::open(&ModelRef::Folder(folder(name)), &AdapterChoice::None).expect("opens"));
}

/// Compares a model with its goldens, from a folder or another file: frequencies, one prefill,
/// chunks and single steps, a continuation.
pub fn computes(name: &str, checkpoint: &Checkpoint) {
    let golden: Golden = parsed(&format!("{name}/golden.json"));
    let raw = read(&format!("{name}/logits.f32"));
    let logits: Vec<f32> = raw.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    assert_eq!(logits.len(), golden.tokens.len() * golden.vocab, "{name}: logits.f32 has another size");
    assert_eq!(checkpoint.generation.eos, [1, 2], "{name}");
    let (inv_freq, scale) = checkpoint.config.rope.frequencies(checkpoint.config.deciding_heads().dim);
    same_frequencies(name, &inv_freq, scale, &golden.inv_freq, golden.attention_scale);

    let mut runner = Runner::new(Cpu::new(2), checkpoint, &EngineOptions::new(Codec::F32), |_, _| true).expect("loads");
    let n = golden.tokens.len();
    for steps in [vec![n], vec![1, 30, 1, 1, n - 33], vec![1; n]] {
        let seq = runner.create(true).expect("a sequence");
        let mut at = 0;
        for step in steps {
            runner.feed(seq, &golden.tokens[at..at + step]).expect("fed");
            runner
                .logits(0..step, |row, got| {
                    let want = &logits[(at + row) * golden.vocab..][..golden.vocab];
                    for (id, (g, w)) in got.iter().zip(want).enumerate() {
                        let place = at + row;
                        assert!((g - w).abs() < LOGIT_TOLERANCE, "{name}: token {place}, logit {id}: {g}, not {w}");
                    }
                })
                .unwrap();
            at += step;
        }
        runner.release(seq);
    }

    let seq = runner.create(true).expect("a sequence");
    let mut fed = golden.tokens[..golden.prompt_tokens].to_vec();
    let mut continuation = Vec::new();
    while continuation.len() < golden.greedy.len() {
        runner.feed(seq, &fed).expect("fed");
        let last = fed.len() - 1;
        runner.logits(last..last + 1, |_, row| fed = vec![sampler::argmax(row)]).unwrap();
        continuation.push(fed[0]);
    }
    assert_eq!(continuation, golden.greedy, "{name}");
}

fn same_frequencies(name: &str, got: &[f64], scale: f32, want: &[f64], want_scale: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    assert!((scale - want_scale).abs() < 1e-6, "{name}: attention scale {scale}, not {want_scale}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        // transformers computes the powers in f32.
        assert!(g == w || (g / w - 1.0).abs() < 2e-6, "{name}: frequency {i} is {g}, not {w}");
    }
}

#[test]
fn qwen3_with_grouped_heads() {
    holds("qwen3_gqa");
}

#[test]
fn llama_with_tied_embeddings_and_llama3_rope() {
    holds("llama_tied_llama3");
}

#[test]
fn gemma3_with_local_layers() {
    holds("gemma3");
}

#[test]
fn gemma4_with_inputs_of_layers_that_share_keys_and_are_wide() {
    holds("gemma4");
}

#[test]
fn gemma4_with_keys_that_are_values_and_fewer_of_them_in_global_layers() {
    holds("gemma4_wide");
}

#[test]
fn gemma4_that_sees() {
    holds("gemma4_seeing");
}

#[test]
fn gemma4_with_experts_beside_dense_blocks() {
    holds("gemma4_experts");
}

#[test]
fn qwen3_with_yarn_in_f16() {
    holds("qwen3_yarn");
}

#[test]
fn llama_with_biases_in_f32_shards() {
    holds("llama_bias_sharded");
}

#[test]
fn qwen2_with_biases_of_q_k_and_v() {
    holds("qwen2");
}

#[test]
fn mistral_with_heads_of_a_size_of_their_own() {
    holds("mistral");
}

#[test]
fn mistral3_inside_of_a_model_that_sees() {
    holds("mistral3");
}

#[test]
fn ministral3_whose_queries_grow() {
    holds("ministral3");
}

#[test]
fn mistral_with_a_sliding_window() {
    holds("mistral_sliding");
}

#[test]
fn phi3_with_fused_tensors_and_partial_longrope() {
    holds("phi3_longrope");
}

#[test]
fn smollm3_with_a_layer_without_rope() {
    holds("smollm3");
}

#[test]
fn granite_with_its_factors() {
    holds("granite");
}

#[test]
fn qwen3_5_with_gated_delta_nets() {
    holds("qwen3_5");
}

#[test]
fn qwen3_moe_with_experts_in_all_layers_but_one() {
    holds("qwen3_moe");
}

#[test]
fn qwen3_5_moe_with_delta_nets_experts_and_a_shared_one() {
    holds("qwen3_5_moe");
}

#[test]
fn gpt_oss_with_sinks_and_experts_with_biases() {
    holds("gpt_oss");
}

#[test]
fn gpt_oss_with_experts_in_mxfp4() {
    holds("gpt_oss_mxfp4");
}

/// The squared error of all logits in a format of weights.
fn error(name: &str, weights: Weights) -> f32 {
    let source = Checkpoint::open(&ModelRef::Folder(folder(name)), &AdapterChoice::None).expect("opens");
    let made = convert(source, weights, &Importance::new(), 2, |_, _| true).expect("converts");
    let golden: Golden = parsed(&format!("{name}/golden.json"));
    let raw = read(&format!("{name}/logits.f32"));
    let mut wanted = raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let mut runner = Runner::new(Cpu::new(2), &made, &EngineOptions::new(Codec::F32), |_, _| true).expect("loads");
    let (seq, mut error) = (runner.create(true).expect("a sequence"), 0.0);
    runner.feed(seq, &golden.tokens).expect("fed");
    let mut squared = |row: &[f32]| row.iter().zip(&mut wanted).map(|(got, want)| (got - want).powi(2)).sum::<f32>();
    runner.logits(0..golden.tokens.len(), |_, row| error += squared(row)).unwrap();
    error
}

/// Experts that keep their codes have the file's values; inputs are rounded to bf16.
#[test]
fn codes_of_mxfp4_are_nearer_to_transformers_than_others() {
    let [own, int8, int4] = [Weights::Own, Weights::Int8, Weights::Int4].map(|w| error("gpt_oss_mxfp4", w));
    assert!(10.0 * own < int8 && int8 < int4, "{own} {int8} {int4}");
}

#[derive(Deserialize)]
struct RopeCase {
    name: String,
    head_dim: usize,
    max_position_embeddings: usize,
    rope_parameters: Value,
    inv_freq: Vec<f64>,
    attention_scale: f32,
}

#[derive(Deserialize)]
struct Ropes {
    cases: Vec<RopeCase>,
}

#[test]
fn rope_of_published_configurations() {
    for case in parsed::<Ropes>("rope.json").cases {
        let config = json!({
            "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4 * case.head_dim, "num_attention_heads": 4,
            "head_dim": case.head_dim, "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": case.max_position_embeddings, "rope_parameters": case.rope_parameters
        });
        let config = ModelConfig::from_json(&case.name, config.to_string().as_bytes()).expect("read");
        let (inv_freq, scale) = config.rope.frequencies(case.head_dim);
        same_frequencies(&case.name, &inv_freq, scale, &case.inv_freq, case.attention_scale);
    }
}

/// `--ctx-size 131072` on Qwen3 is what its model card says to write into config.json for that.
#[test]
fn qwen3_beyond_its_context_is_as_its_card_says() {
    let ropes = parsed::<Ropes>("rope.json");
    let card = ropes.cases.iter().find(|c| c.name == "qwen3-8b yarn x4").expect("a case");
    let config = json!({
        "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1e6, "rope_scaling": null
    });
    let mut config = ModelConfig::from_json("qwen3-8b", config.to_string().as_bytes()).expect("read");
    config.extend_yarn(131_072).expect("documented");
    let (inv_freq, scale) = config.rope.frequencies(config.head_dim);
    same_frequencies(&card.name, &inv_freq, scale, &card.inv_freq, card.attention_scale);
}

#[derive(Deserialize)]
struct Texts {
    vocab: usize,
    texts: Vec<TextCase>,
    chats: Vec<ChatCase>,
}

#[derive(Deserialize)]
struct TextCase {
    text: String,
    ids: Vec<Token>,
    decoded: String,
}

#[derive(Deserialize)]
struct ChatCase {
    messages: Vec<ChatMessage>,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    text: String,
    ids: Vec<Token>,
}

#[derive(Deserialize)]
struct ChatMessage {
    role: String,
    content: String,
}

#[test]
fn texts_encode_and_decode_as_by_transformers() {
    let golden: Texts = parsed("tokenizer/golden.json");
    let tokenizer = Tokenizer::new(&read("tokenizer/tokenizer.json"), golden.vocab).expect("read");
    for case in &golden.texts {
        assert_eq!(tokenizer.encode_text(&case.text).unwrap(), case.ids, "{:?}", case.text);
        let mut decoder = tokenizer.decoder();
        let mut streamed: String = case.ids.iter().map(|&id| decoder.push(id)).collect();
        streamed.push_str(&decoder.flush());
        assert_eq!(streamed, case.decoded);
    }
}

#[test]
fn chats_render_and_encode_as_by_transformers() {
    let golden: Texts = parsed("tokenizer/golden.json");
    let tokenizer = Tokenizer::new(&read("tokenizer/tokenizer.json"), golden.vocab).expect("read");
    let spec = TemplateSpec {
        source: Some(String::from_utf8(read("tokenizer/chat_template.jinja")).expect("UTF-8")),
        bos_token: String::new(),
        prompt_bos: false,
        eos_token: "<|im_end|>".into(),
        special_tokens: Default::default(),
        control: tokenizer.control_literals(),
        trusted: true,
        limit: None,
    };
    let mut compared = 0;
    for case in &golden.chats {
        // A chat always asks for the next reply.
        if !case.add_generation_prompt || case.messages.last().is_none_or(|m| m.role != "user") {
            continue;
        }
        let options = RenderOptions {
            think: case.enable_thinking != Some(false),
            think_tags: Some(("<think>".into(), "</think>".into())),
            ..Default::default()
        };
        let (chat, system) = conversation(&case.messages);
        let pieces = render(system, &chat.context_path(), &spec, &options).expect("rendered");
        let plain = flatten(&pieces).replace(['\u{FDD0}', '\u{FDD1}'], "");
        assert_eq!(plain, case.text);
        assert_eq!(tokenizer.encode_pieces(&pieces).unwrap(), case.ids, "{plain}");
        assert!(pieces.iter().any(|p| matches!(p, Piece::Control(_))));
        compared += 1;
    }
    assert!(compared >= 12, "{compared}");
}

fn conversation(messages: &[ChatMessage]) -> (Conversation, Option<&str>) {
    let system = messages.iter().find(|m| m.role == "system").map(|m| m.content.as_str());
    let mut chat = Conversation::new(system.map(str::to_owned));
    for m in messages {
        match m.role.as_str() {
            "user" => drop(chat.push_user(m.content.as_str())),
            "assistant" => {
                let (thought, answer) = match m.content.split_once("</think>") {
                    Some((thought, answer)) => (thought.strip_prefix("<think>"), answer),
                    None => (None, m.content.as_str()),
                };
                chat.push_assistant(answer.trim_start_matches('\n'), thought.map(str::to_owned));
            }
            _ => {}
        }
    }
    (chat, system)
}

#[derive(Deserialize)]
struct KvZap {
    model: String,
    threshold: f32,
    window: usize,
    tokens: Vec<Token>,
    scores: Vec<Vec<Vec<f32>>>,
    masked: Vec<Vec<Vec<usize>>>,
    logits: Vec<f32>,
}

/// Scores, marks and logits of kvpress, whose `DMSPress` was fed token by token.
#[test]
fn kvzap_scores_and_marks_as_kvpress_does() {
    for name in ["linear-qwen3_gqa", "mlp-qwen3_gqa", "linear-llama_tied_llama3", "mlp-llama_tied_llama3"] {
        let golden: KvZap = parsed(&format!("kvzap/{name}/golden.json"));
        let adapter = AdapterChoice::File(folder(&format!("kvzap/{name}")));
        let mut checkpoint = Checkpoint::open(&ModelRef::Folder(folder(&golden.model)), &adapter).expect("opens");
        // kvpress has no sinks.
        let (threshold, window) = (Some(golden.threshold), Some(golden.window));
        checkpoint.tune(Tuning { threshold, window, sinks: Some(0) }).expect("a predictor");
        let (watch, options) = (Watch::default(), EngineOptions::new(Codec::F32));
        let mut runner = Runner::new(Spy::new(&watch), &checkpoint, &options, |_, _| true).expect("loads");
        watch.seen().decisions = Some(Vec::new());
        let seq = runner.create(true).expect("a sequence");
        for &token in &golden.tokens {
            runner.feed(seq, &[token]).expect("fed");
        }
        let wanted = golden.scores.iter().flatten().flatten();
        let got = watch.seen().decisions.take().expect("decisions");
        assert_eq!(got.len(), wanted.clone().count(), "{name}");
        let worst = got.iter().zip(wanted).map(|(d, s)| (golden.threshold - d - s).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{name}: scores differ by {worst}");
        runner
            .logits(0..1, |_, row| {
                let worst = row.iter().zip(&golden.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < LOGIT_TOLERANCE, "{name}: logits differ by {worst}");
            })
            .unwrap();
        // kvpress masks a token that the next query will not see, which here leaves with the next
        // token.
        let newest = golden.tokens.len() - 1 - golden.window;
        for (slots, masked) in stored(&runner, seq).iter().flatten().zip(golden.masked.iter().flatten()) {
            let gone: Vec<usize> = (0..=newest).filter(|&p| !slots.contains(&(p, false))).collect();
            let mut masked = masked.clone();
            masked.sort_unstable();
            assert_eq!(gone, masked, "{name}");
        }
    }
}
