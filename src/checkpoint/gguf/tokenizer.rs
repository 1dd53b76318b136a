//! The vocabulary of a GGUF file as the `tokenizer.json` and `tokenizer_config.json` that the model
//! would have as a folder, so that one reader checks and builds both: byte-level BPE (`gpt2`), and
//! SentencePiece's (`llama`, [`sentencepiece`]).

use super::super::{bounds, ends};
use super::header::{Array, Header, Value as Meta};
use super::sentencepiece::{self, Parts, Vocabulary};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
/// Value of [`MODEL`] of SentencePiece's vocabulary with merges.
const GEMMA4: &str = "gemma4";
const MERGES: &str = "tokenizer.ggml.merges";

/// Key that we add to `tokenizer_config.json`: whether a prompt begins with the BOS even if the
/// template does not write it. Folders have no such key: transformers adds nothing to a template's
/// output, llama.cpp does.
pub const PROMPT_BOS: &str = "prompt_begins_with_bos";

/// `tokenizer.ggml.token_type` of ordinary tokens.
const NORMAL: i64 = 1;
/// Output of SentencePiece for characters that it does not have.
const UNKNOWN: i64 = 2;
/// Tokens that no text encodes to.
const CONTROL: i64 = 3;
/// Tokens such as `<think>`: in a folder, added tokens that are not special.
const USER_DEFINED: i64 = 4;
/// Fills the vocabulary up to the rows of the embedding.
const UNUSED: i64 = 5;

/// Tokens of Phi-3 that leave what follows as it is.
const STRIP_NOTHING: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words begin where a capital follows a small letter. The pattern is from the tokenizer files of
/// the mistral-common package.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like the pattern above, with contractions in words and numbers of three digits: `o200k_base` of
/// the tiktoken package.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a text is split before BPE, by `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    Qwen2,
    /// Like Qwen2, with marks as parts of words.
    Qwen35,
    Llama3,
    /// Like Llama 3, but texts are merged to tokens and begin with no BOS.
    Dbrx,
    /// For Mistral Nemo and Small.
    Tekken,
    /// For GPT-4o, Phi-4-mini.
    Gpt4o,
    /// Single digits, then GPT-2's pattern.
    Digits,
    Gpt2,
}

impl Split {
    fn of(h: &Header) -> Result<Self> {
        const PRE: &str = "tokenizer.ggml.pre";
        let known = "qwen2, llama-bpe, tekken, gpt-4o, smollm and gpt-2 are";
        let Some(pre) = h.text(PRE)? else {
            bail!(
                "{PRE} is missing, so its texts cannot be split into tokens; convert the model with a newer llama.cpp"
            );
        };
        Ok(match pre {
            "qwen2" | "deepseek-r1-qwen" | "megrez" => Self::Qwen2,
            "qwen35" => Self::Qwen35,
            "llama-bpe" | "llama3" | "llama-v3" => Self::Llama3,
            "dbrx" | "smaug-bpe" => Self::Dbrx,
            "tekken" => Self::Tekken,
            "gpt-4o" => Self::Gpt4o,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => Self::Digits,
            "gpt-2" | "phi-2" | "gigachat" | "mellum" => Self::Gpt2,
            _ => bail!("pre-tokenizer {pre:?} is not supported ({known})"),
        })
    }

    fn pre_tokenizer(self) -> Value {
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        let parts = match self {
            Self::Qwen2 => vec![split(QWEN2), byte_level(false)],
            Self::Qwen35 => vec![split(QWEN35), byte_level(false)],
            Self::Llama3 | Self::Dbrx => vec![split(LLAMA3), byte_level(false)],
            Self::Tekken => vec![split(TEKKEN), byte_level(false)],
            Self::Gpt4o => vec![split(GPT4O), byte_level(false)],
            Self::Digits => vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
            Self::Gpt2 => vec![byte_level(true)],
        };
        json!({"type": "Sequence", "pretokenizers": parts})
    }
}

/// The model's `tokenizer.json`; `None` for a file without a vocabulary.
pub fn tokenizer(h: &Header, raw: &[u8]) -> Result<Option<Value>> {
    let split = match h.text(MODEL)? {
        Some("gpt2") => Some(Split::of(h)?),
        Some("llama" | GEMMA4) => None,
        None | Some("no_vocab" | "none") => return Ok(None),
        Some(other) => {
            bail!("tokenizer {other:?} is not supported (byte-level BPE, \"gpt2\", and SentencePiece, \"llama\", are)")
        }
    };
    let (tokens, mut types) = vocabulary(h, raw)?;
    let place: HashMap<&str, usize> = tokens.iter().enumerate().rev().map(|(id, token)| (*token, id)).collect();
    // As in llama.cpp: converters write a wrong type for these.
    let named = ["eos", "eot", "eom"].map(|name| special(h, raw, name));
    let named = named.into_iter().collect::<Result<Vec<_>>>()?;
    let marked = |id: &usize| types[*id] == CONTROL || named.contains(&Some(*id));
    for (_, id) in ends::known(|literal| place.get(literal).copied(), marked) {
        types[id] = CONTROL;
    }
    let added = |kind: i64| matches!(kind, CONTROL | USER_DEFINED) || split.is_none() && kind == UNKNOWN;
    let n_added = types.iter().filter(|kind| added(**kind)).count();
    ensure!(
        n_added <= bounds::ADDED_TOKENS,
        "{TYPES} names {n_added} tokens that are not split, expected at most {}",
        bounds::ADDED_TOKENS
    );
    let strips = is_phi3(h, split)?;
    let (mut vocab, mut listed, mut spellings) = (Map::new(), Vec::new(), Map::new());
    for (id, (token, kind)) in tokens.iter().zip(&types).enumerate() {
        if *kind == UNUSED || vocab.contains_key(*token) {
            // No text becomes it, but the model may write it. The converter fills up with [PAD..].
            if *kind != CONTROL && **token != format!("[PAD{id}]") {
                spellings.insert(id.to_string(), (*token).into());
            }
            continue;
        }
        vocab.insert((*token).to_owned(), id.into());
        if added(*kind) {
            let rstrip = strips && !STRIP_NOTHING.contains(token);
            listed.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": rstrip,
                "normalized": false, "special": *kind != USER_DEFINED}));
        }
    }
    let parts = match split {
        Some(split) => byte_level(h, raw, split, vocab)?,
        None => {
            let has_merges = h.text(MODEL)? == Some(GEMMA4);
            let merges = if has_merges { Some(merges(h, raw)?) } else { None };
            let scores = match has_merges {
                true => Vec::new(),
                false => {
                    let scores = array(h, SCORES, tokens.len())?.with_context(|| format!("{SCORES} is missing"))?;
                    scores.floats(raw).context(SCORES)?
                }
            };
            ensure!(
                has_merges || scores.len() == tokens.len(),
                "{SCORES} has {} values for {} tokens",
                scores.len(),
                tokens.len()
            );
            let ordinary: Vec<bool> = types.iter().map(|kind| *kind == NORMAL).collect();
            let unknown = match types.iter().position(|kind| *kind == UNKNOWN) {
                None => special(h, raw, "unknown")?,
                found => found,
            };
            let unknown = unknown.map(|id| tokens[id]);
            let space_prefix = h.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(!has_merges);
            let (scores, ordinary, tokens) = (&scores, &ordinary, &tokens);
            let vocabulary = Vocabulary { tokens, scores, ordinary, unknown, space_prefix };
            sentencepiece::parts(&vocabulary, vocab, merges.as_deref())?
        }
    };
    let mut file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": listed,
        "normalizer": parts.normalizer,
        "pre_tokenizer": split.map(Split::pre_tokenizer),
        "post_processor": bos_processor(h, raw, &tokens, split)?,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    if !spellings.is_empty() {
        file["spellings"] = spellings.into();
    }
    Ok(Some(file))
}

/// Whether the tokenizer is Phi-3's, whose control tokens absorb the white space after them. No key
/// states it: llama.cpp goes by the model's name, which not every file has.
fn is_phi3(h: &Header, split: Option<Split>) -> Result<bool> {
    let name = h.text("general.name")?.unwrap_or_default().to_lowercase();
    let named = ["phi-3", "phi3"].iter().any(|known| name.contains(known));
    Ok(named || split.is_none() && h.text("general.architecture")? == Some("phi3"))
}

/// The merges that the file states, best first.
fn merges<'a>(h: &Header, raw: &'a [u8]) -> Result<Vec<&'a str>> {
    let merges = array(h, MERGES, bounds::MERGES)?.with_context(|| format!("{MERGES} is missing"))?;
    merges.texts(raw).context(MERGES)
}

fn byte_level(h: &Header, raw: &[u8], split: Split, vocab: Map<String, Value>) -> Result<Parts> {
    let merges = merges(h, raw)?;
    let normalizer = matches!(split, Split::Qwen2 | Split::Qwen35).then(|| json!({"type": "NFC"}));
    Ok(Parts {
        normalizer: normalizer.into(),
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model: json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": matches!(split, Split::Llama3 | Split::Tekken), "vocab": vocab, "merges": merges}),
    })
}

/// Whether a text begins with the BOS: as the file states, else as llama.cpp does for this kind of
/// vocabulary.
fn adds_bos(h: &Header, split: Option<Split>) -> Result<bool> {
    let usual = matches!(split, None | Some(Split::Llama3 | Split::Tekken));
    Ok(h.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(usual))
}

/// Puts the BOS before a file's text if the model was trained so.
fn bos_processor(h: &Header, raw: &[u8], tokens: &[&str], split: Option<Split>) -> Result<Value> {
    let add = adds_bos(h, split)?;
    let Some(id) = special(h, raw, "bos")?.filter(|id| add && *id < tokens.len()) else { return Ok(Value::Null) };
    let bos = tokens[id];
    let special = json!({"SpecialToken": {"id": bos, "type_id": 0}});
    let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    Ok(json!({"type": "TemplateProcessing", "single": [special, sequence("A", 0)],
        "pair": [special, sequence("A", 0), sequence("B", 1)],
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}}}))
}

/// Builds the model's `tokenizer_config.json`: the chat template and its tokens, and whether a
/// prompt begins with the BOS even if the template does not write it.
pub fn texts(h: &Header, raw: &[u8]) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    if let Some(template) = h.text("tokenizer.chat_template")? {
        out.insert("chat_template".to_owned(), template.into());
    }
    let Some(tokens) = array(h, TOKENS, bounds::VOCAB)? else { return Ok(out) };
    let tokens = tokens.texts(raw).context(TOKENS)?;
    for name in ["bos", "eos"] {
        if let Some(token) = special(h, raw, name)?.and_then(|id| tokens.get(id)) {
            out.insert(format!("{name}_token"), (*token).into());
        }
    }
    // The tokenizer does without these, so a wrong id is no reason to refuse a file.
    for (key, name) in [("unknown", "unk"), ("padding", "pad"), ("seperator", "sep"), ("cls", "cls"), ("mask", "mask")]
    {
        if let Some(token) = special(h, raw, key).ok().flatten().and_then(|id| tokens.get(id)) {
            out.insert(format!("{name}_token"), (*token).into());
        }
    }
    let split = if h.text(MODEL)? == Some("gpt2") { Some(Split::of(h)?) } else { None };
    let stated = h.metadata.contains_key("tokenizer.ggml.add_bos_token");
    // transformers has no BOS in a conversation with Phi-3.
    let adds = adds_bos(h, split)? && (stated || !is_phi3(h, split)?);
    out.insert(PROMPT_BOS.to_owned(), adds.into());
    if !adds && !out.contains_key("chat_template") {
        out.remove("bos_token");
    }
    Ok(out)
}

/// The ids in a list of token ids that the vocabulary has; none without the key.
pub fn ids(h: &Header, raw: &[u8], key: &str) -> Result<Vec<usize>> {
    let Some(listed) = array(h, key, bounds::ADDED_TOKENS)? else { return Ok(Vec::new()) };
    let ids = listed.integers(raw).with_context(|| key.to_owned())?;
    let n = array(h, TOKENS, bounds::VOCAB)?.map_or(usize::MAX, |tokens| tokens.len);
    Ok(ids.into_iter().filter_map(|id| usize::try_from(id).ok()).filter(|id| *id < n).collect())
}

/// The spelling of every token, and its type.
fn vocabulary<'a>(h: &Header, raw: &'a [u8]) -> Result<(Vec<&'a str>, Vec<i64>)> {
    let found = |key: &str| array(h, key, bounds::VOCAB)?.with_context(|| format!("{key} is missing"));
    let (tokens, types) = (found(TOKENS)?, found(TYPES)?);
    ensure!(types.len == tokens.len, "{TYPES} has {} values for {} tokens", types.len, tokens.len);
    Ok((tokens.texts(raw).context(TOKENS)?, types.integers(raw).context(TYPES)?))
}

/// The id `tokenizer.ggml.NAME_token_id`. As in llama.cpp, where it is missing or not of the
/// vocabulary: the default for this kind of vocabulary, if there is one.
pub fn special(h: &Header, raw: &[u8], name: &str) -> Result<Option<usize>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let n = array(h, TOKENS, bounds::VOCAB)?.map_or(usize::MAX, |tokens| tokens.len);
    let stated = match h.metadata.get(&key) {
        Some(Meta::Signed(..0)) => None,
        _ => h.opt_size(&key)?,
    };
    let usual = match (h.text(MODEL)?, name) {
        (Some("llama"), "bos") => Some(1),
        (Some("llama"), "eos") => Some(2),
        (Some("llama"), "unknown") => Some(0),
        (Some(GEMMA4), "bos") => Some(2),
        (Some(GEMMA4), "eos") => Some(1),
        (Some(GEMMA4), "unknown") => Some(3),
        // Falcon's. In other vocabularies of this kind it is an ordinary word.
        (Some("gpt2"), "bos" | "eos") => {
            let types = array(h, TYPES, bounds::VOCAB)?.map(|types| types.integers(raw)).transpose()?;
            Some(11).filter(|id| types.is_some_and(|types| types.get(*id) == Some(&CONTROL)))
        }
        _ => None,
    };
    Ok(stated.filter(|id| *id < n).or(usual.filter(|id| *id < n)))
}

/// An array of at most `most` values, if the key exists.
fn array<'a>(h: &'a Header, key: &str, most: usize) -> Result<Option<&'a Array>> {
    match h.metadata.get(key) {
        None => Ok(None),
        Some(Meta::Array(array)) if array.len <= most => Ok(Some(array)),
        Some(Meta::Array(array)) => bail!("{key} has {} values, expected at most {most}", array.len),
        Some(_) => bail!("{key} is not an array"),
    }
}
