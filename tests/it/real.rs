//! Real tokenizers, chat templates and a real model against transformers, as recorded by
//! tests/golden/real/make_goldens.py. The files come from tests/models/fetch; where they were not
//! fetched a test says so and is left out, and fails in CI.

use crate::gguf_file::{GgufFile, Meta, Q8_0};
use dmschat::backend::cpu::Cpu;
use dmschat::chat::{Conversation, RenderOptions, render};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::protocol::{Piece, TemplateSpec, Token};
use dmschat::quant::Weights;
use dmschat::quantize::convert::{Importance, convert};
use dmschat::sampler::argmax;
use dmschat::tensor::SharedBytes;
use dmschat::tokenizer::{Tokenizer, flatten};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SMALL: &str = "SmolLM2-135M-Instruct";
const GGUF: &str = "SmolLM2-135M-Instruct.Q4_1";
/// Two logits closer than this may change places by the order of a sum.
const TIE: f32 = 1e-3;

/// A folder of target/models, or `None` where it was not fetched.
pub fn fetched(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/models").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    let why = format!("{} is not there: run tests/models/fetch", folder.display());
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{why}");
    eprintln!("left out: {why}");
    None
}

fn golden<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/real").join(name);
    let raw = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; make_goldens.py beside it makes it", path.display()));
    serde_json::from_slice(&raw).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// What transformers makes of strings.json and conversations.json.
#[derive(Deserialize)]
struct Texts {
    /// What encoding a file begins with.
    bos: Vec<Token>,
    ids: Vec<Vec<Token>>,
    whole: Vec<(usize, Vec<Token>)>,
    decoded: Vec<(usize, String)>,
    cut: Vec<(usize, String)>,
    chats: Vec<(String, Vec<Token>)>,
}

#[derive(Deserialize)]
struct Chat {
    system: Option<String>,
    messages: Vec<Message>,
    think: bool,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
    thought: Option<String>,
}

/// Every string and conversation through one tokenizer and its template.
fn holds(name: &str, vocab: usize, thinks: bool) {
    let Some(folder) = fetched(name) else { return };
    let tokenizer = Tokenizer::new(&fs::read(folder.join("tokenizer.json")).unwrap(), vocab).expect("read");
    let texts: Texts = golden(&format!("{name}.json"));
    let strings: Vec<String> = golden("strings.json");
    strings_hold(&tokenizer, &texts, &strings);
    let config: Value = serde_json::from_slice(&fs::read(folder.join("tokenizer_config.json")).unwrap()).unwrap();
    let text = |key: &str| config[key].as_str().unwrap_or_default().to_owned();
    let spec = TemplateSpec {
        source: Some(text("chat_template")),
        bos_token: text("bos_token"),
        prompt_bos: false,
        eos_token: text("eos_token"),
        special_tokens: Default::default(),
        control: tokenizer.control_literals(),
        trusted: true,
        limit: None,
    };
    chats_hold(&tokenizer, &texts, &spec, thinks);
}

fn strings_hold(tokenizer: &Tokenizer, texts: &Texts, strings: &[String]) {
    assert!(strings.len() == 2000 && texts.ids.len() == 2000);
    let stream = |ids: &[Token]| {
        let mut decoder = tokenizer.decoder();
        let mut out: String = ids.iter().map(|&id| decoder.push(id)).collect();
        out.push_str(&decoder.flush());
        out
    };
    for (at, (text, ids)) in strings.iter().zip(&texts.ids).enumerate() {
        let content = [Piece::Text(text.clone())];
        assert_eq!(&tokenizer.encode_pieces(&content).unwrap(), ids, "string {at} as content: {text:?}");
        assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "string {at}: {text:?}");
        let whole = texts.whole.iter().find(|(i, _)| *i == at).map(|(_, whole)| whole.clone());
        let whole = whole.unwrap_or_else(|| [&texts.bos[..], ids].concat());
        assert_eq!(tokenizer.encode_text(text).unwrap(), whole, "string {at} as a file: {text:?}");
        let decoded = texts.decoded.iter().find(|(i, _)| *i == at).map_or(text, |(_, decoded)| decoded);
        assert_eq!(&tokenizer.decode(ids).unwrap(), decoded, "string {at} decoded");
        assert_eq!(&stream(ids), decoded, "string {at} decoded token by token");
    }
    assert_eq!(texts.cut.len(), 250);
    for (at, decoded) in &texts.cut {
        let ids = &texts.ids[*at];
        assert_eq!(&stream(&ids[1..ids.len() - 1]), decoded, "string {at} without its ends: {:?}", strings[*at]);
    }
}

fn chats_hold(tokenizer: &Tokenizer, texts: &Texts, spec: &TemplateSpec, thinks: bool) {
    let chats: Vec<Chat> = golden("conversations.json");
    assert!(chats.len() == 40 && texts.chats.len() == 40);
    for (at, (chat, (text, ids))) in chats.iter().zip(&texts.chats).enumerate() {
        let (pieces, plain) = rendered(chat, spec, thinks);
        assert_eq!(&plain, text, "conversation {at}");
        assert_eq!(&tokenizer.encode_pieces(&pieces).unwrap(), ids, "conversation {at}: {text:?}");
    }
}

/// A conversation as pieces, and as the text that they are.
fn rendered(chat: &Chat, spec: &TemplateSpec, thinks: bool) -> (Vec<Piece>, String) {
    let options = RenderOptions {
        think: chat.think,
        think_tags: thinks.then(|| ("<think>".into(), "</think>".into())),
        date: jiff::civil::date(2026, 11, 21).at(4, 0, 0, 0),
        ..Default::default()
    };
    let mut conversation = Conversation::new(chat.system.clone());
    for m in &chat.messages {
        match m.role.as_str() {
            "user" => conversation.push_user(m.content.as_str()),
            _ => conversation.push_assistant(m.content.as_str(), m.thought.clone()),
        };
    }
    let pieces = render(conversation.system(), &conversation.context_path(), spec, &options).expect("rendered");
    let plain = flatten(&pieces).replace(['\u{FDD0}', '\u{FDD1}'], "");
    (pieces, plain)
}

#[derive(Deserialize)]
struct Renderings {
    models: Vec<Rendering>,
}

/// What transformers makes of the first conversations with a template of tests/golden/templates.
#[derive(Deserialize)]
struct Rendering {
    name: String,
    thinks: bool,
    bos: String,
    eos: String,
    texts: Vec<String>,
}

#[test]
fn published_templates_render_as_by_transformers() {
    let chats: Vec<Chat> = golden("conversations.json");
    for model in golden::<Renderings>("../templates/renderings.json").models {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/templates");
        let spec = TemplateSpec {
            source: Some(fs::read_to_string(place.join(format!("{}.jinja", model.name))).unwrap()),
            bos_token: model.bos,
            prompt_bos: false,
            eos_token: model.eos,
            special_tokens: Default::default(),
            control: Vec::new(),
            trusted: true,
            limit: None,
        };
        for (at, (chat, text)) in chats.iter().zip(&model.texts).enumerate() {
            assert_eq!(&rendered(chat, &spec, model.thinks).1, text, "{}: conversation {at}", model.name);
        }
    }
}

#[test]
fn qwen3_reads_and_writes_as_by_transformers() {
    holds("qwen3", 151_936, true);
}

#[test]
fn llama_3_1_reads_and_writes_as_by_transformers() {
    holds("llama3_1", 128_256, false);
}

#[test]
fn smollm2_reads_and_writes_as_by_transformers() {
    holds(SMALL, 49_152, false);
}

#[derive(Deserialize)]
struct Continuations {
    cases: Vec<Continuation>,
}

/// What transformers continues a prompt with in f32, 128 tokens, end tokens or not.
#[derive(Deserialize)]
struct Continuation {
    prompt: String,
    ids: Vec<Token>,
    greedy: Vec<Token>,
    /// Between the two most probable logits, and the second one's token.
    gap: Vec<f32>,
    second: Vec<Token>,
}

impl Continuation {
    /// Whether `token` may stand at step `at`.
    fn accepts(&self, at: usize, token: Token) -> bool {
        token == self.greedy[at] || (self.gap[at] < TIE && token == self.second[at])
    }
}

fn runner(folder: &Path) -> (Checkpoint, Runner<Cpu>) {
    let checkpoint = Checkpoint::open(&ModelRef::Folder(folder.to_owned()), &AdapterChoice::None).expect("opens");
    let options = EngineOptions { context: Some(8192), ..EngineOptions::new(Codec::F32) };
    let runner = Runner::new(Cpu::new(0), &checkpoint, &options, |_, _| true).expect("loads");
    (checkpoint, runner)
}

/// Given the golden's own tokens, each most probable next token is the golden's: equivalent to
/// decoding it, as `prefill(T)` equals T decodes.
#[test]
fn smollm2_continues_as_by_transformers() {
    let Some(folder) = fetched(SMALL) else { return };
    let (_, mut runner) = runner(&folder);
    let golden: Continuations = golden("greedy.json");
    assert_eq!(golden.cases.len(), 20);
    for case in &golden.cases {
        assert_eq!(case.greedy.len(), 128);
        let tokens = [&case.ids[..], &case.greedy[..127]].concat();
        let seq = runner.create(false).expect("a sequence");
        let mut choices = Vec::new();
        for step in tokens.chunks(runner.max_step()) {
            runner.feed(seq, step).expect("fed");
            runner.logits(0..step.len(), |_, row| choices.push(argmax(row))).expect("logits");
        }
        runner.release(seq);
        for (at, &token) in choices[case.ids.len() - 1..].iter().enumerate() {
            let (wanted, gap) = (case.greedy[at], case.gap[at]);
            assert!(case.accepts(at, token), "{:?}: token {at} is {token}, not {wanted} (gap {gap})", case.prompt);
        }
    }
}

/// Decoding for real, token after token, for two short prompts and a long one.
#[test]
fn smollm2_decodes_as_by_transformers() {
    let Some(folder) = fetched(SMALL) else { return };
    let (_, mut runner) = runner(&folder);
    let golden: Continuations = golden("greedy.json");
    let cases = &golden.cases;
    for case in [&cases[0], &cases[15], &cases[18]] {
        let seq = runner.create(false).expect("a sequence");
        let (last, before) = case.ids.split_last().expect("a prompt");
        for part in before.chunks(runner.max_step()) {
            runner.feed(seq, part).expect("fed");
        }
        let mut token = *last;
        for (at, &wanted) in case.greedy.iter().enumerate() {
            runner.feed(seq, &[token]).expect("fed");
            runner.logits(0..1, |_, row| token = argmax(row)).unwrap();
            assert!(case.accepts(at, token), "{:?}: token {at} is {token}, not {wanted}", case.prompt);
            if token != wanted {
                break; // a tie went the other way: from here on the two texts differ
            }
        }
        runner.release(seq);
    }
}

/// The program as a user starts it: template, tokenizer, greedy choice and end token of the folder,
/// and of the GGUF file.
#[test]
fn smollm2_answers_a_question() {
    let (Some(folder), Some(gguf)) = (fetched(SMALL), fetched(GGUF)) else { return };
    let case = &golden::<Continuations>("greedy.json").cases[0];
    let tokenizer = Tokenizer::new(&fs::read(folder.join("tokenizer.json")).unwrap(), 49_152).expect("read");
    let end = tokenizer.token_for("<|im_end|>").expect("an end token");
    let answer = case.greedy.iter().position(|&t| t == end).expect("an end");
    let gguf = gguf.join(format!("{GGUF}.gguf"));
    for (model, weights) in [(&folder, "bf16"), (&gguf, "bf16"), (&gguf, "own")] {
        let home = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_dmschat"))
            .args([
                "--device",
                "cpu",
                "--weights",
                weights,
                "--eviction",
                "off",
                "--temperature",
                "0",
                "-p",
                &case.prompt,
                "-m",
            ])
            .arg(model)
            .env("DMSCHAT_CONFIG_DIR", home.path())
            .env("DMSCHAT_DATA_DIR", home.path())
            .env("DMSCHAT_CACHE_DIR", home.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.trim_end(), tokenizer.decode(&case.greedy[..answer]).unwrap(), "{}", model.display());
    }
}

#[test]
fn a_shipped_adapter_is_found_for_a_plain_model_and_can_be_left_off() {
    let (Some(folder), Some(gguf)) = (fetched(SMALL), fetched(GGUF)) else { return };
    for model in [folder, gguf.join(format!("{GGUF}.gguf"))] {
        let open = |choice| Checkpoint::open(&ModelRef::Folder(model.clone()), &choice).expect("opens");
        let found = open(AdapterChoice::Auto);
        assert_eq!(found.config.dms.as_ref().map(|d| d.rule.window), Some(192));
        let notice = found.notices().next().unwrap_or_default();
        let parts = [
            "forgets with the built-in adapter for HuggingFaceTB/SmolLM2-135M-Instruct",
            ". --adapter none keeps everything",
        ];
        assert!(parts.iter().all(|part| notice.contains(part)), "{notice}");
        let plain = open(AdapterChoice::None);
        assert_eq!((plain.config.dms.clone(), plain.notices().next()), (None, None));
    }
}

/// The GGUF file that the folder of SmolLM2 was made from, opened as it is: the same configuration,
/// tokens and weights.
#[test]
fn a_gguf_file_is_the_model_that_was_converted_from_it() {
    let (Some(folder), Some(gguf)) = (fetched(SMALL), fetched(GGUF)) else { return };
    let open = |path: PathBuf| Checkpoint::open(&ModelRef::Folder(path), &AdapterChoice::None).expect("opens");
    let (folder, file) = (open(folder), open(gguf.join(format!("{GGUF}.gguf"))));
    assert_eq!((file.config.clone(), &*file.stored_as), (folder.config.clone(), "Q4_1, Q8_0"));
    assert_eq!((&file.bos_token, &file.eos_token), (&folder.bos_token, &folder.eos_token));
    assert_eq!(file.chat_template, folder.chat_template);
    let read = |c: &Checkpoint| Tokenizer::new(&c.tokenizer_json, c.config.vocab).expect("read");
    let (ours, theirs) = (read(&file), read(&folder));
    for text in golden::<Vec<String>>("strings.json") {
        assert_eq!(ours.encode_text(&text).unwrap(), theirs.encode_text(&text).unwrap(), "{text:?}");
    }
    let file = convert(file, Weights::Bf16, &Importance::new(), 0, |_, _| true).expect("converted");
    assert_eq!(file.tensors.len(), folder.tensors.len());
    for (name, tensor) in &folder.tensors {
        let ours = &file.tensors[name];
        let same =
            if tensor.shape.len() == 2 { ours.bytes() == tensor.bytes() } else { ours.to_f32() == tensor.to_f32() };
        assert!(same, "{name}");
    }
}

/// The vocabularies of Qwen 3 and Llama 3 as llama.cpp's converter writes them: the same tokens as
/// their tokenizer.json.
#[test]
fn vocabularies_in_gguf_metadata_give_the_same_tokens() {
    for (name, pre, vocab) in [("qwen3", "qwen2", 151_936), ("llama3_1", "llama-bpe", 128_256)] {
        let Some(folder) = fetched(name) else { return };
        let raw = fs::read(folder.join("tokenizer.json")).unwrap();
        let json: Value = serde_json::from_slice(&raw).unwrap();
        let theirs = Tokenizer::new(&raw, vocab).expect("read");
        let mut tokens: Vec<String> = (0..vocab).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![5; vocab];
        for (token, id) in json["model"]["vocab"].as_object().unwrap() {
            let id = id.as_u64().unwrap() as usize;
            (tokens[id], types[id]) = (token.clone(), 1);
        }
        for added in json["added_tokens"].as_array().unwrap() {
            let id = added["id"].as_u64().unwrap() as usize;
            tokens[id] = added["content"].as_str().unwrap().to_owned();
            types[id] = if added["special"] == true { 3 } else { 4 };
        }
        let merge = |m: &Value| match m {
            Value::Array(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            text => text.as_str().unwrap().to_owned(),
        };
        let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
        let mut file = GgufFile::tiny();
        file.tensor("token_embd.weight", &[64, vocab], Q8_0, &vec![0.0; 64 * vocab]);
        let bos = types.iter().position(|&t| t == 3).unwrap() as u32;
        file.set("tokenizer.ggml.bos_token_id", Meta::U32(bos)).set("tokenizer.ggml.pre", Meta::text(pre));
        file.meta.remove("tokenizer.ggml.add_bos_token");
        file.set("tokenizer.ggml.tokens", Meta::Texts(tokens)).set("tokenizer.ggml.token_type", Meta::I32s(types));
        file.set("tokenizer.ggml.merges", Meta::Texts(merges));
        let files = [("x.gguf".to_owned(), Arc::new(file.bytes()) as SharedBytes)].into();
        let c = Checkpoint::from_memory(name, files, &AdapterChoice::None).expect("opens");
        let ours = Tokenizer::new(&c.tokenizer_json, vocab).expect("read");
        assert_eq!(ours.control_literals(), theirs.control_literals(), "{name}");
        for text in golden::<Vec<String>>("strings.json") {
            let ids = ours.encode_text(&text).unwrap();
            assert_eq!(ids, theirs.encode_text(&text).unwrap(), "{name}: {text:?}");
            assert_eq!(ours.decode(&ids).unwrap(), theirs.decode(&ids).unwrap(), "{name}: {text:?}");
        }
    }
}
