//! The targets: what each input is given to, through the program's own entries.

use crate::cache;
use crate::corpus::{self, CONFIG, Files, INDEX, WEIGHTS};
use crate::file::read_file;
use crate::heads;
use crate::mutate::{self, Example, Rng, Shape};
use crate::problem::Goal;
use crate::weights;
use anyhow::{Result, bail};
use dmschat::chat::session::{Store, load, markdown};
use dmschat::chat::{Conversation, RenderOptions, render};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig};
use dmschat::config::Layer;
use dmschat::hub::{Listing, cache as hub_cache};
use dmschat::protocol::{ModelIdentity, ModelInfo, TemplateSpec, TextKind};
use dmschat::quantize::imatrix;
use dmschat::tensor::SharedBytes;
use dmschat::tokenizer::Tokenizer;
use dmschat::ui::keymap::Keymap;
use dmschat::ui::theme::Themes;
use dmschat::vote::{extract, tally};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

pub struct Target {
    pub name: &'static str,
    /// Share of the time, relative to the sum of all shares.
    pub share: u32,
    pub shape: Shape,
    /// Spellings that mean something to the parser.
    words: &'static str,
    pub examples: fn() -> Vec<Example>,
    pub run: fn(&mut Place, &[u8]) -> Result<()>,
}

/// The input of a trial.
pub fn input(target: &Target, examples: &[Example], rng: &mut Rng) -> Vec<u8> {
    let words: Vec<&str> = target.words.split_whitespace().collect();
    mutate::input(rng, target.shape, examples, &words)
}

/// Shared state of trials: a folder of their own, and models whose other files are whole.
pub struct Place {
    folder: tempfile::TempDir,
    models: Vec<Files>,
    /// Data after a header: of the first model's weights, of its adapter.
    weights: Vec<u8>,
    adapter: Vec<u8>,
    /// The data of a GGUF file.
    gguf: Vec<u8>,
    info: ModelInfo,
}

impl Place {
    pub fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let models = corpus::models();
        let weights = corpus::split((*models[0][WEIGHTS]).as_ref()).1;
        let info = ModelInfo {
            identity: ModelIdentity {
                name: "demo".into(),
                model_fingerprint: "851134f4e9bdf5adb62a29b257cd13a0".into(),
                tokenizer_fingerprint: "b6eb92dc99d76379a57be8290d377ef6c308c2afeb88c1eda86d2dbb5b01c8d1".into(),
                ..ModelIdentity::default()
            },
            vocab: 300,
            context: 8192,
            n_layers: 2,
            n_kv_heads: 2,
            ..ModelInfo::default()
        };
        Self {
            folder: folder.expect("a temporary folder"),
            models,
            weights,
            adapter: corpus::adapter().1,
            gguf: corpus::gguf_data(),
            info,
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }

    /// Opens one of the models with another file of this name.
    fn open(&self, model: usize, name: &str, bytes: Vec<u8>, adapter: &AdapterChoice) -> Result<()> {
        let mut files = self.models[model].clone();
        files.insert(name.to_owned(), Arc::new(bytes));
        let checkpoint = Checkpoint::from_memory("fuzz", files, adapter)?;
        for tensor in checkpoint.tensors.values() {
            black_box((tensor.bytes().first(), tensor.bytes().last(), tensor.len()));
        }
        Ok(())
    }

    fn open_any(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.open(hash(bytes) % self.models.len(), name, bytes.to_vec(), &AdapterChoice::Auto)
    }
}

/// The same choice for the same input, so that a replay makes it too.
fn hash(bytes: &[u8]) -> usize {
    bytes.iter().fold(7usize, |h, b| h.wrapping_mul(31).wrapping_add(usize::from(*b))) >> 3
}

const TENSORS: &str = "model.embed_tokens.weight model.norm.weight lm_head.weight model.layers.0.self_attn.q_proj.weight \
    model.layers.0.self_attn.q_norm.weight dtype shape data_offsets __metadata__ BF16 F16 F32 F64 F8_E4M3 F4 I64 U8 BOOL format pt";

pub const ALL: [Target; 28] = [
    Target {
        name: "config.json",
        share: 12,
        shape: Shape::Json,
        words: "model_type qwen3 llama architectures num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim \
            intermediate_size vocab_size rms_norm_eps tie_word_embeddings max_position_embeddings rope_theta rope_scaling \
            rope_parameters rope_type type yarn llama3 linear factor original_max_position_embeddings beta_fast beta_slow mscale \
            mscale_all_dim attention_factor truncate low_freq_factor high_freq_factor sliding_window use_sliding_window layer_types \
            full_attention attention_bias mlp_bias hidden_act silu quantization_config quant_method gptq awq fp8 compressed-tensors bits group_size \
            checkpoint_format weight_block_size config_groups weights num_bits format pack-quantized partial_rotary_factor eos_token_id \
            dms_window_size dms_alpha_scale dms_initial_alpha_offset dms_alpha_per head layer dms_separate_alpha \
            dms_disable_eviction dms_cr do_sample temperature top_k",
        examples: corpus::configs,
        run: |place, bytes| place.open_any(CONFIG, bytes),
    },
    Target {
        name: "dms_metadata.json",
        share: 3,
        shape: Shape::Json,
        words: "config window_size alpha_scale alpha_offset target_cr alpha_per head layer separate_alpha disable_eviction",
        examples: corpus::dms_metadata,
        run: |place, bytes| place.open_any("dms_metadata.json", bytes),
    },
    Target {
        name: "generation_config.json",
        share: 5,
        shape: Shape::Json,
        words: "eos_token_id bos_token_id pad_token_id do_sample temperature top_k top_p min_p repetition_penalty",
        examples: corpus::generation_configs,
        run: |place, bytes| place.open_any("generation_config.json", bytes),
    },
    Target {
        name: "index",
        share: 8,
        shape: Shape::Json,
        words: "weight_map metadata total_size model-00001-of-00006.safetensors ../x.safetensors /etc/passwd a/b.safetensors \
            config.json model.norm.weight lm_head.weight C:\\x . ..",
        examples: corpus::indexes,
        run: |place, bytes| {
            let named = hub_cache::shards(bytes).map(|_| ());
            place.open(3, INDEX, bytes.to_vec(), &AdapterChoice::Auto).and(named)
        },
    },
    Target {
        name: "safetensors-header",
        share: 12,
        shape: Shape::Header,
        words: TENSORS,
        examples: corpus::headers,
        run: |place, bytes| {
            let file = [bytes, &place.weights].concat();
            place.open(0, WEIGHTS, file, &AdapterChoice::Auto)
        },
    },
    Target {
        name: "gguf-header",
        share: 14,
        shape: Shape::Binary,
        words: "GGUF general.architecture llama qwen3 general.alignment llama.block_count llama.embedding_length \
            llama.feed_forward_length llama.context_length llama.attention.head_count llama.attention.head_count_kv \
            llama.rope.dimension_count llama.rope.freq_base llama.attention.layer_norm_rms_epsilon qwen3.block_count \
            qwen3.embedding_length qwen3.attention.head_count qwen3.rope.freq_base tokenizer.ggml.model gpt2 tokenizer.ggml.pre \
            qwen2 llama-bpe tokenizer.ggml.tokens tokenizer.ggml.token_type tokenizer.ggml.merges tokenizer.ggml.bos_token_id \
            tokenizer.ggml.eos_token_id tokenizer.ggml.add_bos_token tokenizer.chat_template <|im_end|> <think> [PAD262] \
            token_embd.weight output_norm.weight rope_freqs.weight blk.0.attn_q.weight blk.0.attn_k.weight blk.0.attn_v.weight \
            blk.0.ffn_down.weight blk.0.attn_norm.weight blk.0.attn_q_norm.weight blk.0.attn_k_norm.weight",
        examples: corpus::ggufs,
        run: gguf,
    },
    Target {
        name: "gguf-tokenizer",
        share: 8,
        shape: Shape::Json,
        words: "tokenizer.ggml.model gpt2 llama none no_vocab tokenizer.ggml.pre qwen2 llama-bpe smollm gpt-2 tokenizer.ggml.tokens \
            tokenizer.ggml.token_type tokenizer.ggml.merges tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id \
            tokenizer.ggml.eot_token_id tokenizer.ggml.add_bos_token tokenizer.chat_template general.sampling.temp <|im_end|> <think> \
            [PAD262] h e he hee \u{120} \u{2581}",
        examples: corpus::gguf_vocabularies,
        run: |_, bytes| gguf_model(corpus::gguf_with(bytes).bytes()),
    },
    Target {
        name: "imatrix",
        share: 6,
        shape: Shape::Binary,
        words: "GGUF general.type imatrix imatrix.datasets imatrix.chunk_count .in_sum2 .counts blk.0.attn_q.weight \
            blk.0.ffn_gate_exps.weight blk.1.ffn_down.weight output.weight",
        examples: corpus::imatrices,
        run: |place, bytes| {
            let config = ModelConfig::from_json("fuzz", &corpus::bytes(corpus::EXPERTS))?;
            let read = imatrix::read(&place.file("a.imatrix", bytes), &config)?;
            assert!(read.values().flatten().all(|x| x.is_finite() && *x > 0.0));
            Ok(())
        },
    },
    Target {
        name: "weight-file",
        share: 6,
        shape: Shape::Header,
        words: "dmschat weights 1 weights 2 weights 3 key weights calibration source revision name fingerprint checksums int8 int4 q8 q4 \
            model.norm.weight model.layers.0.mlp.up_proj.weight.q8 model.embed_tokens.weight.q8 dtype shape data_offsets U8 U64 F32 BF16",
        examples: weights::headers,
        run: |place, bytes| weights::run(place.folder.path(), bytes, true),
    },
    Target {
        name: "weight-data",
        share: 6,
        shape: Shape::Lines,
        words: "checksums",
        examples: weights::data,
        run: |place, bytes| weights::run(place.folder.path(), bytes, false),
    },
    Target {
        name: "adapter",
        share: 8,
        shape: Shape::Header,
        words: "format dmschat-adapter-1 base model_type qwen3 llama num_hidden_layers hidden_size num_key_value_heads vocab_size \
            window shift alpha_scale alpha_offset alpha_per head layer target_ratio NaN inf 1e39 -1 4294967296 dtype shape data_offsets",
        examples: corpus::adapters,
        run: |place, bytes| {
            let path = place.file("adapter.safetensors", &[bytes, &place.adapter].concat());
            place.open(0, "README", Vec::new(), &AdapterChoice::File(path))
        },
    },
    Target {
        name: "adapter-2",
        share: 4,
        shape: Shape::Values,
        words: "dmschat-adapter-1 dmschat-adapter-2 qwen3 llama 0 1 NaN inf 1e39 -4.0 1048576 1048577 {} {\"measured\":[]} F32 BF16 U8",
        examples: heads::predictors,
        run: |place, bytes| {
            heads::run_predictor(&place.folder.path().join("two.safetensors"), place.models[0].clone(), bytes)
        },
    },
    Target {
        name: "kvzap",
        share: 4,
        shape: Shape::Values,
        words: "kvzap KVzapModel qwen3 0 1 2 48 512",
        examples: heads::kvzaps,
        run: |place, bytes| heads::run_kvzap(place.folder.path(), place.models[0].clone(), bytes),
    },
    Target {
        name: "pth",
        share: 6,
        shape: Shape::Binary,
        words: "PK archive/data.pkl archive/data/0 archive/byteorder little collections OrderedDict torch._utils \
            _rebuild_tensor_v2 _rebuild_parameter torch FloatStorage HalfStorage BFloat16Storage LongStorage storage cpu \
            model.layers.0.self_attn.retention_gate.linear1.weight posix system",
        examples: heads::gates,
        run: |place, bytes| heads::run_gates(place.folder.path(), place.models[0].clone(), bytes),
    },
    Target {
        name: "eagle",
        share: 4,
        shape: Shape::Values,
        words: "llama qwen3 eagle3 LlamaForCausalLMEagle3 silu gelu full_attention yarn linear float32",
        examples: heads::eagles,
        run: |place, bytes| heads::run_eagle(place.folder.path(), bytes),
    },
    Target {
        name: "mtp",
        share: 4,
        shape: Shape::Values,
        words: "F32 F16 BF16 I64 U8 F8_E4M3 pt",
        examples: heads::mtps,
        run: |_, bytes| heads::run_mtp(bytes),
    },
    Target {
        name: "tokenizer_config.json",
        share: 5,
        shape: Shape::Json,
        words: "bos_token eos_token content chat_template default name template special add_bos_token added_tokens_decoder <s> \
            {{messages}} {%if%}",
        examples: corpus::tokenizer_configs,
        run: |place, bytes| {
            let names =
                ["tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "tokenizer_config.json"];
            place.open(0, names[hash(bytes) % 4], bytes.to_vec(), &AdapterChoice::Auto)
        },
    },
    Target {
        name: "tokenizer.json",
        share: 14,
        shape: Shape::Json,
        words: "BPE WordPiece Unigram WordLevel ByteLevel Replace Precompiled precompiled_charsmap Sequence Split Regex String \
            Metaspace Digits Punctuation NFC NFKD Prepend Strip StripAccents BertNormalizer TemplateProcessing RobertaProcessing \
            ByteFallback Fuse WordPieceCTC type model vocab merges added_tokens id content single_word normalized lstrip rstrip \
            normalizer normalizers pre_tokenizer pretokenizers post_processor processors decoder decoders truncation padding \
            max_length stride strategy LongestFirst Fixed BatchLongest pattern behavior Isolated Removed MergedWithNext invert \
            unk_token unk_id dropout byte_fallback fuse_unk ignore_merges (a+)+$ (?=x) (.*){9}",
        examples: corpus::tokenizers,
        run: |_, bytes| {
            let tokenizer = Tokenizer::new(bytes, 100_000)?;
            let tokens = tokenizer.encode_text("Hello <|im_end|> w\u{f6}rld 123  a\u{2581}b\n\u{1f680}")?;
            tokenizer.decode(&tokens)?;
            tokenizer.decode(&(0..64).collect::<Vec<_>>())?;
            black_box((tokenizer.control_literals(), tokenizer.fingerprint().len()));
            Ok(())
        },
    },
    Target {
        name: "chat-template",
        share: 4,
        shape: Shape::Lines,
        words: "{{ }} {% %} {%- -%} {# #} for in messages endfor if elif else endif message.role message['content'] set loop.index0 \
            namespace() range(99999999) ~ |trim |tojson |length |join(',') raise_exception('x') add_generation_prompt \
            enable_thinking strftime_now('%Y') .split('x') [::-1] * 999999999 ** macro endmacro call include import break \
            bos_token reasoning_content |string |items 'x'*9999999",
        examples: corpus::templates,
        run: template,
    },
    Target {
        name: "session",
        share: 12,
        shape: Shape::JsonLines,
        words: "type header turn message edit toggle head system title id parent version format dmschat-session session user text \
            reasoning report log log_base generated eviction at_token dropped_slots in_context kv live live_slots ratio stop_reason \
            end cancelled seed sampling temperature null pending model name model_fingerprint template_date of time turn",
        examples: corpus::sessions,
        run: session,
    },
    Target {
        name: "cache",
        share: 6,
        shape: Shape::Binary,
        words: "dmschatC",
        examples: cache::examples,
        run: |place, bytes| cache::run(place.file("a.cache", bytes), bytes),
    },
    Target {
        name: "cache-values",
        share: 6,
        shape: Shape::Binary,
        words: "dial 0.1 1e30 pins reads peak start end true null len eviction log identity 18446744073709551615",
        examples: cache::files,
        run: |place, bytes| cache::forged(&place.file("b.cache", bytes), bytes),
    },
    Target {
        name: "answers",
        share: 3,
        shape: Shape::Lines,
        words: "\\boxed{ } { #### = answer is Answer: answer: **Answer:** $ ` ' , . 1,234 1/2 -0 1e308 9223372036854775807 50% ( ) + - * / \
            (3+7)*7 a-b-c A) (B) \u{221e} \u{202e} \u{660} \u{ff11}",
        examples: corpus::answers,
        run: |_, bytes| answers(&String::from_utf8_lossy(bytes)),
    },
    Target {
        name: "problems",
        share: 3,
        shape: Shape::JsonLines,
        words: "task messages role content reasoning_content expected system user assistant file 2+2? 4 1,000 Paris",
        examples: corpus::problems,
        run: |place, bytes| {
            for (_, problems) in read_file(&place.file("problems.jsonl", bytes), 100)?.problems {
                for problem in problems {
                    let last = problem.messages.last().map(|m| m.content.clone()).unwrap_or_default();
                    let read = problem.goal.read(&last, &last);
                    black_box(read.is_some_and(|answer| problem.goal.is_right(&answer)));
                }
            }
            Ok(())
        },
    },
    Target {
        name: "config.toml",
        share: 4,
        shape: Shape::Lines,
        words: "model adapter device auto cpu cuda:1 eviction on off kv fp8 bf16 ctx_size kv_limit 2GiB 1e9 max_tokens temperature top_p \
            top_k min_p repetition_penalty seed think system theme keys mouse editor ascii plain = [ ] [[x]] ''' \"\"\" # \\u0000",
        examples: corpus::settings,
        run: |place, bytes| Layer::from_file(&place.file("config.toml", bytes)).map(drop),
    },
    Target {
        name: "keymap",
        share: 3,
        shape: Shape::Lines,
        words: "[chat] [edit] ctrl+x alt+enter shift+tab f12 f99 esc space ctrl+ + - panel mouse newline send = [ ] '' ctrl+ctrl+a",
        examples: corpus::keymaps,
        run: |place, bytes| Keymap::load(Default::default(), Some(&place.file("keymap.toml", bytes))).map(drop),
    },
    Target {
        name: "theme",
        share: 3,
        shape: Shape::Lines,
        words: "inherits dark own light [palette] [roles] [heat] fg bg bold dim italic underline reverse strike #ffffff #fff red \
            bright-blue 255 256 -1 text heading = { } , true ''",
        examples: corpus::themes,
        run: |place, bytes| {
            place.file("own.toml", bytes);
            let folder = Some(place.folder.path().to_owned());
            Themes { folder, ..Themes::default() }.load("own").map(drop)
        },
    },
    Target {
        name: "hub-listing",
        share: 6,
        shape: Shape::Json,
        words: "sha siblings rfilename size blobId lfs sha256 gated tags license:mit config model_type cardData license ../../x /x \
            model.safetensors auto manual",
        examples: corpus::listings,
        run: |_, bytes| Ok(Listing::parse("hub.example", "any/model", bytes).map(drop)?),
    },
];

/// An answer as the vote reads it, and as `--check` gives it to a command.
fn answers(text: &str) -> Result<()> {
    let (answer, reasoning) = text.split_once('\n').unwrap_or((text, ""));
    let read = [true, false].map(|complete| extract(answer, reasoning, complete));
    for found in read.iter().flatten() {
        assert!(!found.trim().is_empty() && found.chars().count() <= 200, "{found:?}");
    }
    let votes = tally(read.iter().map(Option::as_deref).enumerate());
    assert!(votes.iter().map(|vote| vote.chains.len()).sum::<usize>() <= 2);
    let goals = [
        Goal::Value("1,234".into()),
        Goal::Ends("a".into()),
        Goal::Countdown { numbers: vec![3, 7, 20], target: 70 },
        Goal::Subset { numbers: vec![5, 9, i64::MAX, i64::MAX], target: 14 },
        Goal::Factor(1111),
        Goal::Path { edges: vec![("a".into(), "b".into())], from: "a".into(), to: "b".into() },
    ];
    for goal in goals {
        black_box(goal.read(text, answer).is_some_and(|read| goal.is_right(&read)));
    }
    Ok(())
}

fn gguf(place: &mut Place, bytes: &[u8]) -> Result<()> {
    gguf_model([bytes, &place.gguf].concat())
}

fn gguf_model(bytes: Vec<u8>) -> Result<()> {
    let files = Files::from([("x.gguf".to_owned(), Arc::new(bytes) as SharedBytes)]);
    let checkpoint = Checkpoint::from_memory("fuzz", files, &AdapterChoice::Auto)?;
    for tensor in checkpoint.tensors.values().filter(|t| t.shape.len() == 2) {
        let mut row = vec![0.0; tensor.shape[1]];
        for at in [0, tensor.shape[0] / 2, tensor.shape[0] - 1] {
            tensor.decode_row(at, &mut row);
        }
        black_box(row.last());
    }
    let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
    black_box(tokenizer.encode_text("he <|im_end|> 12")?);
    Ok(())
}

fn session(place: &mut Place, bytes: &[u8]) -> Result<()> {
    if hash(bytes).is_multiple_of(4) {
        let path = place.file("a-session.jsonl", bytes);
        let store = Store::new(place.folder.path());
        black_box((store.list().len(), store.search("sums").len()));
        let _ = store.read("a-session");
        let _ = std::fs::remove_file(path);
    }
    let mut loaded = load(bytes, "s")?;
    // What is left out is said in one line each.
    if let Some(long) = loaded.problems.iter().find(|p| p.contains('\n') || p.chars().count() > 2_100) {
        bail!("{long}");
    }
    let (request, _) = loaded.restore_for(&place.info);
    black_box((request.log.len(), markdown(&loaded.conversation, &place.info, &Default::default(), None).len()));
    Ok(())
}

fn template(_: &mut Place, bytes: &[u8]) -> Result<()> {
    let spec = TemplateSpec {
        source: Some(String::from_utf8_lossy(bytes).into_owned()),
        control: ["<|im_start|>", "<|im_end|>", "<think>", "</think>"].map(str::to_owned).to_vec(),
        ..TemplateSpec::default()
    };
    let opts = RenderOptions { exe: Some(env!("CARGO_BIN_EXE_dmschat").into()), ..RenderOptions::default() };
    let mut chat = Conversation::new(Some("be brief".to_owned()));
    chat.push_user("first");
    chat.push_assistant("one", Some("hm".to_owned()));
    chat.push_user("second");
    let turn = chat.begin_reply(true, None);
    chat.append(turn, TextKind::Answer, "");
    render(chat.system(), &chat.context_path(), &spec, &opts).map(drop)
}
