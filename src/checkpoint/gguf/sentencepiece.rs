//! A SentencePiece vocabulary with scores (`llama`: Llama 2, Mistral, Gemma) as the BPE that
//! transformers' converter makes of it: SentencePiece merges the two neighbours whose union has the
//! best score, so each way to cut a token in two is a merge, ordered by the token's score.

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Longest token that texts are merged to. SentencePiece makes at most 16 characters by default.
const MAX_BYTES: usize = 256;
/// SentencePiece's character for a space.
const SPACE: &str = "\u{2581}";

/// The parts of `tokenizer.json` that depend on the kind of vocabulary.
pub struct Parts {
    pub normalizer: Value,
    pub decoder: Value,
    pub model: Value,
}

/// A vocabulary, by id.
pub struct Vocabulary<'a> {
    pub tokens: &'a [&'a str],
    pub scores: &'a [f32],
    /// Whether a token is an ordinary one, which merges make.
    pub ordinary: &'a [bool],
    /// Piece that stands for unknown characters.
    pub unknown: Option<&'a str>,
    /// Whether a text begins with a space that is not in it.
    pub space_prefix: bool,
}

/// `ids` are the ids of the spellings. `stated`: the merges, where the file has them (`gemma4`).
pub fn parts(v: &Vocabulary<'_>, ids: Map<String, Value>, stated: Option<&[&str]>) -> Result<Parts> {
    let mut model = json!({"type": "BPE", "dropout": null, "unk_token": v.unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false});
    model["merges"] = match stated {
        Some(merges) => merges.into(),
        None => merges(v)?.into(),
    };
    model["vocab"] = ids.into();
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if v.space_prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model,
    })
}

/// Pairs of tokens, best first.
fn merges(v: &Vocabulary<'_>) -> Result<Vec<[String; 2]>> {
    let Vocabulary { tokens, scores, ordinary, .. } = *v;
    let ids: HashMap<&str, usize> = (0..tokens.len()).rev().map(|id| (tokens[id], id)).collect();
    let mut pairs = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| ordinary[*id]) {
        let n = token.len();
        ensure!(n <= MAX_BYTES, "token {id} has {n} bytes, expected at most {MAX_BYTES}");
        for (at, _) in token.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (ids.get(&token[..at]), ids.get(&token[at..])) {
                pairs.push((id, *left, *right, at));
            }
        }
    }
    // Equal scores are ordered as in transformers' converter.
    pairs.sort_by_key(|&(id, left, right, _)| (id, left, right));
    pairs.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]).then((b.3).cmp(&a.3)));
    Ok(pairs.into_iter().map(|(_, left, right, _)| [tokens[left], tokens[right]].map(str::to_owned)).collect())
}
