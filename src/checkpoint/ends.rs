//! Tokens that end a turn: all that a model's files name, and tokens whose spelling means an end in
//! any model. Files often name only the base model's end, in one place or another.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

/// Spellings of ends, as in llama.cpp (`src/llama-vocab.cpp`).
const KNOWN: [&str; 23] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    // Tokens of code models, after which they begin another file.
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The known ends that a vocabulary has, by its ids of spellings. `marked`: the file has the token
/// as a control token.
pub fn known<I>(id: impl Fn(&str) -> Option<I>, marked: impl Fn(&I) -> bool) -> Vec<(&'static str, I)> {
    let has = |literal: &str| id(literal).is_some();
    // Where an answer has several messages, one of these ends it; `<|end|>` only ends a message.
    let of_messages = has("<|call|>") && has("<|return|>") || has("<|flush|>") && (has("<|call|>") || has("<|calls|>"));
    // Gemma's vocabulary has the tags of HTML.
    let of_html = has("<end_of_turn>") || has("<eos>") || has("<|tool_response>");
    // In Qwen's it is a word, which closes an element of HTML.
    let is_end = |literal: &str, id: &I| match literal {
        "<|end|>" => !of_messages,
        "</s>" => !of_html && marked(id),
        _ => true,
    };
    let all = KNOWN.into_iter().filter_map(|literal| Some((literal, id(literal)?)));
    all.filter(|(literal, id)| is_end(literal, id)).collect()
}

/// The tokens below `vocab` that end a turn: named by id or by spelling in the files, and the known
/// ones.
pub fn all(ids: Vec<u32>, literals: &[String], tokenizer_json: &[u8], vocab: usize) -> Vec<u32> {
    // A file that cannot be read is refused by the tokenizer.
    let words: Words = serde_json::from_slice(tokenizer_json).unwrap_or_default();
    let special: Vec<u32> = words.added_tokens.iter().filter(|token| token.special).map(|token| token.id).collect();
    let mut spelled = words.model.vocab.0;
    spelled.extend(words.added_tokens.into_iter().map(|token| (token.content, token.id)));
    let id = |literal: &str| spelled.get(literal).copied().filter(|id| (*id as usize) < vocab);
    let named = literals.iter().filter_map(|literal| id(literal));
    let known = known(id, |id| special.contains(id)).into_iter().map(|(_, id)| id);
    let mut out = Vec::new();
    for id in ids.into_iter().chain(named).chain(known) {
        if !out.contains(&id) {
            out.push(id);
        }
    }
    out
}

#[derive(Default, Deserialize)]
struct Words {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Marks,
}

/// Words of a vocabulary that look like marks. No other word is an end.
#[derive(Default)]
struct Marks(HashMap<String, u32>);

impl<'de> Deserialize<'de> for Marks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Marks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Marks, A::Error> {
                const MAX_BYTES: usize = 64;
                let mut out = Marks::default();
                while let Some(word) = map.next_key::<String>()? {
                    if word.len() <= MAX_BYTES && word.starts_with(['<', '[', '_']) {
                        out.0.insert(word, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(out)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Marks, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Marks::default())
            }
        }
        from.deserialize_any(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_what_files_name_and_what_a_spelling_means() {
        let json = |words: &[&str]| {
            let added = |(id, w): (u32, &&str)| serde_json::json!({"id": id, "content": w, "special": true});
            let added: Vec<_> = (10..).zip(words).map(added).collect();
            let vocab = serde_json::json!({"a": 0, "<eos": 1, "<|eot_id|>": 2});
            serde_json::json!({"added_tokens": added, "model": {"vocab": vocab}}).to_string().into_bytes()
        };
        let of = |words: &[&str], literals: &[&str], vocab| {
            let literals: Vec<String> = literals.iter().map(|l| (*l).to_owned()).collect();
            all(vec![5], &literals, &json(words), vocab)
        };
        assert_eq!(of(&["<|im_end|>", "<own>"], &[], 99), [5, 10, 2]);
        assert_eq!(of(&["<|im_end|>", "<own>"], &["<own>", "<none>"], 99), [5, 11, 10, 2]);
        assert_eq!(of(&["<|im_end|>", "<own>"], &["<own>"], 11), [5, 10, 2], "an id beyond the vocabulary");
        // A message of several ends by `<|end|>`, the turn does not; HTML is none of it.
        assert_eq!(of(&["<|end|>", "<|return|>", "<|call|>"], &[], 99), [5, 2, 11, 12]);
        assert_eq!(of(&["<|end|>", "</s>"], &[], 99), [5, 2, 10, 11]);
        assert_eq!(of(&["<end_of_turn>", "</s>"], &[], 99), [5, 2, 10]);
        assert_eq!(all(vec![5, 5], &[], b"{", 99), [5]);
        // A word of the vocabulary, or an added one that is not special, unless a file names it.
        let word = br#"{"added_tokens": [], "model": {"vocab": {"</s>": 3, "<|im_end|>": 4}}}"#;
        let added = br#"{"added_tokens": [{"id": 3, "content": "</s>", "special": false}], "model": {}}"#;
        assert_eq!((all(vec![5], &[], word, 99), all(vec![5], &[], added, 99)), (vec![5, 4], vec![5]));
        assert_eq!(all(vec![5], &["</s>".to_owned()], word, 99), [5, 3, 4]);
    }
}
