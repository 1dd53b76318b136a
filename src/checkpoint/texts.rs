//! Reads the chat template and its literals, from the several files that may have them.

use super::files::Files;
use super::gguf::PROMPT_BOS;
use super::json;
use crate::hub::model_names::MAX_NAME;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The chat template and its tokens.
#[derive(Debug, Default)]
pub struct ChatTexts {
    /// Jinja source.
    pub template: Option<String>,
    /// Special tokens by the names that templates have for them, such as `bos_token`.
    pub specials: BTreeMap<String, String>,
    /// Spellings of the tokens that the files call an end.
    pub ends: Vec<String>,
    /// Whether a prompt begins with the BOS even where the template does not write it.
    pub prompt_bos: bool,
}

/// Reads `chat_template.jinja`, else `chat_template.json`, else `tokenizer_config.json` (the order
/// of transformers); tokens from `tokenizer_config.json`, else `special_tokens_map.json`.
pub fn read(files: &Files) -> Result<ChatTexts> {
    let config = object(files, "tokenizer_config.json")?;
    let specials = object(files, "special_tokens_map.json")?;
    let jinja = match files.text("chat_template.jinja")? {
        Some(raw) => {
            let text = String::from_utf8(raw);
            Some(text.with_context(|| format!("{} is not UTF-8", files.label("chat_template.jinja")))?)
        }
        None => None,
    };
    let template = match jinja {
        Some(text) => Some(text),
        None => match template_text(files, "chat_template.json", &object(files, "chat_template.json")?)? {
            Some(text) => Some(text),
            None => template_text(files, "tokenizer_config.json", &config)?,
        },
    };
    let ends = [&config, &specials].map(|file| token_literal(file.get("eos_token"))).into_iter().flatten().collect();
    let prompt_bos = config.get(PROMPT_BOS).and_then(Value::as_bool).unwrap_or(false);
    Ok(ChatTexts { template, specials: special_tokens(&config, &specials), ends, prompt_bos })
}

/// What transformers gives a template: the seven usual tokens, every other `NAME_token`, and those
/// that the files name in an object.
fn special_tokens(config: &Map<String, Value>, specials: &Map<String, Value>) -> BTreeMap<String, String> {
    const USUAL: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    const OBJECTS: [&str; 2] = ["extra_special_tokens", "model_specific_special_tokens"];
    const MOST: usize = 256;
    const MAX_LITERAL: usize = 1024;
    // A newer file says null where an older one beside it has a token.
    let unset = |key: &str| config.contains_key("added_tokens_decoder") && config.get(key) == Some(&Value::Null);
    let files = [config, specials];
    let usual = files.into_iter().flat_map(|file| USUAL.map(|key| (key, file.get(key))));
    let others = files.into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    let objects = files.into_iter().flat_map(|file| OBJECTS.map(|key| file.get(key)));
    let named = objects.flatten().filter_map(Value::as_object).flatten();
    let mut out = BTreeMap::new();
    for (key, value) in usual.chain(others.chain(named).map(|(key, value)| (key.as_str(), Some(value)))) {
        let literal = token_literal(value).filter(|literal| literal.len() <= MAX_LITERAL);
        if let Some(literal) = literal.filter(|_| key.len() <= MAX_NAME && out.len() < MOST && !unset(key)) {
            out.entry(key.to_owned()).or_insert(literal);
        }
    }
    out
}

/// The `license` of a model card's front matter.
pub fn licence(card: &[u8]) -> Option<String> {
    const MAX_LEN: usize = 60;
    let matter = front_matter(card);
    let line = matter.lines().find_map(|l| l.strip_prefix("license:"))?;
    let name: String = line.trim().trim_matches(['"', '\'']).chars().take(MAX_LEN).collect();
    (!name.is_empty()).then_some(name)
}

/// The `base_model` of a model card's front matter: a name, or a list of them.
pub fn bases(card: &[u8]) -> Vec<String> {
    const MOST: usize = 8;
    let matter = front_matter(card);
    let mut lines = matter.lines().skip_while(|line| !line.starts_with("base_model:"));
    let first = lines.next().and_then(|line| line.strip_prefix("base_model:")).unwrap_or_default();
    let listed = lines.map_while(|line| line.trim_start().strip_prefix("- "));
    let plain = |text: &str| text.trim().trim_matches(['"', '\'', '[', ']']).to_owned();
    let names = first.split(',').chain(listed).map(plain);
    names.filter(|name| !name.is_empty() && name.len() <= MAX_NAME).take(MOST).collect()
}

/// Text between the first two lines of `---`; empty if the card does not begin with one.
fn front_matter(card: &[u8]) -> String {
    const MAX_BYTES: usize = 64 << 10;
    let card = String::from_utf8_lossy(&card[..card.len().min(MAX_BYTES)]);
    card.strip_prefix("---").and_then(|rest| rest.split("\n---").next()).unwrap_or_default().to_owned()
}

fn object(files: &Files, name: &str) -> Result<Map<String, Value>> {
    Ok(json::optional(files, name)?.unwrap_or_default())
}

/// The template of a file: a text, or the one named `default` in a list or an object of them.
fn template_text(files: &Files, file: &str, content: &Map<String, Value>) -> Result<Option<String>> {
    const MOST: usize = 8;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let named: Vec<(&str, Option<String>)> = match content.get("chat_template") {
        Some(Value::Array(list)) => {
            let names = list.iter().map(|one| one.get("name").and_then(Value::as_str));
            let texts = list.iter().map(|one| one.get("template").and_then(text));
            names.zip(texts).filter_map(|(name, text)| Some((name?, text))).collect()
        }
        Some(Value::Object(map)) => map.iter().map(|(name, value)| (name.as_str(), text(value))).collect(),
        Some(value) => return Ok(text(value)),
        None => return Ok(None),
    };
    if let Some((_, template)) = named.iter().find(|(name, _)| *name == "default") {
        return Ok(template.clone());
    }
    let cut = |name: &str| format!("{:?}", name.chars().take(MAX_NAME).collect::<String>());
    let names: Vec<String> = named.iter().take(MOST).map(|(name, _)| cut(name)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let (label, names) = (files.label(file), names.join(", "));
    bail!("{label}: chat_template has no template named \"default\", only {names}; name one of them \"default\"")
}

/// A token is a string, or an object with `content`.
fn token_literal(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_what_a_model_was_made_of() {
        let of = |front: &str| bases(format!("---\n{front}\nlicense: mit\n---\nbase_model: no").as_bytes());
        assert_eq!(of("base_model: Qwen/Qwen3-8B"), ["Qwen/Qwen3-8B"]);
        assert_eq!(of("base_model:\n- a/b\n  - \"c/d\"\ntags:\n- e"), ["a/b", "c/d"]);
        assert_eq!(of("base_model: [a/b, 'c/d']"), ["a/b", "c/d"]);
        assert!(of("base_model_relation: finetune").is_empty() && bases(b"base_model: a").is_empty());
    }
}
