//! Checks a tokenizer.json: allows the normalizers, pre-tokenizers, post-processors and decoders
//! that byte-level and SentencePiece-like BPE models use, and bounds their number and how much each
//! may lengthen a text. Refuses everything else by name before the tokenizers crate, which bounds
//! neither memory nor time, reads the file.

use crate::protocol::Token;
use anyhow::{Result, anyhow, bail, ensure};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// Largest tokenizer.json. The largest known one (Gemma 3) has half of it.
const FILE_BYTES: usize = 64 << 20;
/// Most parts in a sequence. DeepSeek's has five.
const PARTS: usize = 16;
/// Most added tokens. Gemma 3 has 6,415.
const ADDED: usize = 1 << 14;
const ADDED_BYTES: usize = 256;
/// Longest pattern in characters. GPT-4o's has about 400.
const PATTERN_BYTES: usize = 4096;
/// Largest growth of a text by all replacements. A space that becomes U+2581 grows threefold.
const GROWTH: usize = 4;
/// Most pieces of a post-processor's template, stripped characters, and prepended bytes.
const FEW: usize = 64;

const NORMALIZERS: &[&str] =
    &["NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Lowercase", "Strip", "StripAccents", "ByteLevel"];
const PRE_TOKENIZERS: &[&str] =
    &["ByteLevel", "Split", "Digits", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation"];
const POST_PROCESSORS: &[&str] = &["ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"];
const DECODERS: &[&str] = &["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "BPEDecoder"];

/// Facts about a checked file that the loader needs and the crate does not return.
pub struct Checked {
    pub added: Vec<Added>,
    /// Tokens that the vocabulary cannot list, because another has the same spelling or no text
    /// becomes them. The model may write them. Only the converter of GGUF files has them.
    pub spellings: HashMap<Token, String>,
    /// The patterns that split texts.
    pub patterns: Vec<String>,
    /// Whether a text can be split before a space between two ASCII letters without a change of its
    /// tokens.
    pub splits_at_spaces: bool,
}

#[derive(serde::Deserialize)]
pub struct Added {
    pub id: Token,
    pub content: String,
}

#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Few<Added, ADDED>,
    #[serde(default)]
    spellings: HashMap<Token, String>,
    normalizer: Option<Part<Leaf>>,
    pre_tokenizer: Option<Part<Leaf>>,
    post_processor: Option<Part<Leaf>>,
    decoder: Option<Part<Leaf>>,
    model: Model,
}

#[derive(serde::Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    vocab: Count,
    #[serde(default)]
    merges: Count,
}

/// A part, or a sequence of parts. Fields without effect on bounds are left to the crate.
#[derive(serde::Deserialize)]
struct Part<C> {
    #[serde(rename = "type")]
    kind: Option<String>,
    normalizers: Option<Few<C, PARTS>>,
    pretokenizers: Option<Few<C, PARTS>>,
    processors: Option<Few<C, PARTS>>,
    decoders: Option<Few<C, PARTS>>,
    pattern: Option<Pattern>,
    content: Option<String>,
    prepend: Option<String>,
    add_prefix_space: Option<bool>,
    #[serde(default, rename = "single")]
    _single: Option<Few<IgnoredAny, FEW>>,
    #[serde(default, rename = "pair")]
    _pair: Option<Few<IgnoredAny, FEW>>,
    #[serde(default, rename = "special_tokens")]
    _special_tokens: Option<FewValues<Special, FEW>>,
}

type Leaf = Part<IgnoredAny>;

#[derive(serde::Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(serde::Deserialize)]
struct Special {
    #[serde(rename = "ids")]
    _ids: Few<IgnoredAny, FEW>,
    #[serde(rename = "tokens")]
    _tokens: Few<IgnoredAny, FEW>,
}

/// Checks the file, except its vocabulary, for a model of `vocab` embeddings.
pub fn check(json: &[u8], vocab: usize) -> Result<Checked> {
    ensure!(json.len() <= FILE_BYTES, "tokenizer.json has {} bytes, expected at most {FILE_BYTES}", json.len());
    let file: File = serde_json::from_slice(json)
        .map_err(|e| anyhow!("tokenizer.json is not a tokenizer: {}", crate::unicode::one_line(&e.to_string())))?;
    // An added token may also be in the list of ordinary tokens, and be beyond the vocabulary.
    check_model(&file.model, vocab, file.added_tokens.0.len())?;
    for token in &file.added_tokens.0 {
        let n = token.content.len();
        ensure!(n <= ADDED_BYTES, "tokenizer.json: an added token has {n} bytes, expected at most {ADDED_BYTES}");
    }
    let normalizers = leaves("normalizer", &file.normalizer, |p| &p.normalizers, NORMALIZERS)?;
    let pre_tokenizers = leaves("pre-tokenizer", &file.pre_tokenizer, |p| &p.pretokenizers, PRE_TOKENIZERS)?;
    leaves("post-processor", &file.post_processor, |p| &p.processors, POST_PROCESSORS)?;
    let decoders = leaves("decoder", &file.decoder, |p| &p.decoders, DECODERS)?;
    check_growth("normalizer", &normalizers)?;
    check_growth("decoder", &decoders)?;
    let mut patterns = Vec::new();
    for part in &pre_tokenizers {
        match &part.pattern {
            Some(Pattern::Regex(regex)) => {
                check_regex(regex)?;
                patterns.push(regex.clone());
            }
            Some(Pattern::String(text)) => check_length("pattern", text, PATTERN_BYTES)?,
            None => {}
        }
    }
    let splits_at_spaces = splits_at_spaces(&normalizers, &pre_tokenizers);
    let spellings = file.spellings.into_iter().filter(|(id, text)| (*id as usize) < vocab && text.len() <= ADDED_BYTES);
    Ok(Checked { added: file.added_tokens.0, spellings: spellings.collect(), patterns, splits_at_spaces })
}

/// The file without [`Checked::spellings`].
pub fn without_spellings(json: &[u8]) -> Result<Vec<u8>> {
    let mut file: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
    file.remove("spellings");
    Ok(serde_json::to_vec(&file)?)
}

fn check_model(model: &Model, vocab: usize, n_added: usize) -> Result<()> {
    if let Some(kind) = model.kind.as_deref().filter(|k| *k != "BPE") {
        bail!("tokenizer.json: model type {} is not supported (BPE is)", shown(kind));
    }
    if model.dropout.is_some_and(|d| d > 0.0) {
        bail!("tokenizer.json: BPE dropout is set, so the same text would not give the same tokens; set it to null");
    }
    for (name, text) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        text.as_deref().map_or(Ok(()), |text| check_length(name, text, FEW))?;
    }
    // Ids are unique and below `vocab`, so that more entries are an error. Published vocabularies
    // have up to 2.3 merges per token (Gemma).
    ensure!(
        model.vocab.0 <= vocab + n_added && model.merges.0 <= 4 * vocab,
        "tokenizer.json: {} tokens and {} merges are too many for the model's vocabulary of {vocab}",
        model.vocab.0,
        model.merges.0
    );
    Ok(())
}

/// The parts in a sequence, or the one part.
fn leaves<'a>(
    what: &str,
    part: &'a Option<Part<Leaf>>,
    children: impl Fn(&'a Part<Leaf>) -> &'a Option<Few<Leaf, PARTS>>,
    known: &[&str],
) -> Result<Vec<View<'a>>> {
    let Some(part) = part else { return Ok(Vec::new()) };
    let views: Vec<View> = if part.kind.as_deref() == Some("Sequence") {
        children(part).iter().flat_map(|few| &few.0).map(View::of).collect()
    } else {
        vec![View::of(part)]
    };
    for view in &views {
        let Some(kind) = view.kind else { bail!("tokenizer.json: a {what} names no type") };
        if !known.contains(&kind) {
            bail!("tokenizer.json: {what} {} is not supported ({} are)", shown(kind), known.join(", "));
        }
    }
    Ok(views)
}

/// The fields of a part that are checked.
struct View<'a> {
    kind: Option<&'a str>,
    pattern: &'a Option<Pattern>,
    content: Option<&'a str>,
    prepend: Option<&'a str>,
    add_prefix_space: Option<bool>,
}

impl<'a> View<'a> {
    fn of<C>(part: &'a Part<C>) -> Self {
        Self {
            kind: part.kind.as_deref(),
            pattern: &part.pattern,
            content: part.content.as_deref(),
            prepend: part.prepend.as_deref(),
            add_prefix_space: part.add_prefix_space,
        }
    }
}

/// The growth of replacements multiplies; the growth of prepended bytes adds up.
fn check_growth(what: &str, parts: &[View]) -> Result<()> {
    let mut growth = 1;
    for part in parts {
        check_length(what, part.prepend.unwrap_or_default(), FEW)?;
        match part.pattern {
            None => {}
            Some(Pattern::Regex(_)) => bail!("tokenizer.json: a {what} that replaces a regex is not supported"),
            Some(Pattern::String(pattern)) => {
                ensure!(!pattern.is_empty(), "tokenizer.json: a {what} replaces the empty text");
                growth *= part.content.unwrap_or_default().len().div_ceil(pattern.len()).clamp(1, GROWTH + 1);
                ensure!(
                    growth <= GROWTH,
                    "tokenizer.json: its {what}s make a text more than {GROWTH} times as long, which is refused"
                );
            }
        }
    }
    Ok(())
}

fn check_length(what: &str, text: &str, most: usize) -> Result<()> {
    ensure!(text.len() <= most, "tokenizer.json: a {what} has {} bytes, expected at most {most}", text.len());
    Ok(())
}

/// Refuses regular expressions that backtrack over the text: back references, look-behind and
/// conditionals. No published tokenizer uses them.
fn check_regex(regex: &str) -> Result<()> {
    check_length("pattern", regex, PATTERN_BYTES)?;
    let mut rest = regex;
    let mut class = 0usize;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let next = after.chars().next();
        let refused = match c {
            '\\' => next.is_some_and(|n| matches!(n, '1'..='9' | 'k' | 'g')).then_some("a back reference"),
            '(' if class == 0 && (after.starts_with("?<=") || after.starts_with("?<!")) => Some("look-behind"),
            '(' if class == 0 && after.starts_with("?P=") => Some("a back reference"),
            '(' if class == 0 && after.starts_with("?(") => Some("a conditional"),
            _ => None,
        };
        if let Some(what) = refused {
            bail!("tokenizer.json: the pattern {} has {what}, which is not supported", shown(regex));
        }
        class = match c {
            '[' => class + 1,
            ']' => class.saturating_sub(1),
            _ => class,
        };
        rest = if c == '\\' { &after[next.map_or(0, char::len_utf8)..] } else { after };
    }
    Ok(())
}

/// Patterns in which no match spans a single space between two ASCII letters, and matches before it
/// do not depend on what follows: a run of letters ends before the space, which starts the next
/// match. Those of Qwen2 and 3, Qwen3.5, Llama 3, and the built-in model.
const SPLIT_AT_SPACES: &[&str] = &[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s",
];

pub fn is_known_pattern(regex: &str) -> bool {
    SPLIT_AT_SPACES.contains(&regex)
}

/// Whether parts are known to allow the split: NFC changes nothing between ASCII characters;
/// GPT-2's pattern (of `ByteLevel`) and those above match letters with at most one space before
/// them.
fn splits_at_spaces(normalizers: &[View], pre_tokenizers: &[View]) -> bool {
    let known = |part: &View| match (part.kind, part.pattern) {
        (Some("ByteLevel"), _) => part.add_prefix_space == Some(false),
        (Some("Digits"), _) => true,
        (Some("Split"), Some(Pattern::Regex(regex))) => is_known_pattern(regex),
        _ => false,
    };
    let byte_level = pre_tokenizers.iter().any(|p| p.kind == Some("ByteLevel"));
    byte_level && normalizers.iter().all(|p| p.kind == Some("NFC")) && pre_tokenizers.iter().all(known)
}

/// Text of a file, shortened for a message.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?}")
}

/// A list of at most `N` entries. Reading a longer one fails.
struct Few<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Few<T, N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a list of at most {N} entries")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
                let mut out = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if out.len() == N {
                        return Err(A::Error::custom(format!("a list of more than {N} entries")));
                    }
                    out.push(item);
                }
                Ok(out)
            }
        }
        d.deserialize_seq(List::<T, N>(PhantomData)).map(Self)
    }
}

/// An object of at most `N` values, which are checked but not stored.
struct FewValues<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for FewValues<T, N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Object<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Object<T, N> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an object of at most {N} values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
                let mut n = 0;
                while let Some((_, _)) = map.next_entry::<IgnoredAny, T>()? {
                    n += 1;
                    if n > N {
                        return Err(A::Error::custom(format!("an object of more than {N} values")));
                    }
                }
                Ok(())
            }
        }
        d.deserialize_map(Object::<T, N>(PhantomData))?;
        Ok(Self(PhantomData))
    }
}

/// The number of entries of a list or an object.
#[derive(Default)]
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = usize;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list or an object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<usize, A::Error> {
                let mut n = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(n)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
                let mut n = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(n)
            }
        }
        d.deserialize_any(Counter).map(Self)
    }
}
