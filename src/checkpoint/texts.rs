//! Reads the chat template and its literals, from the several files that may have them.

use super::files::Files;
use super::gguf::PROMPT_BOS;
use super::json;
use super::model_names::MAX_NAME;
use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// The chat template and its tokens.
#[derive(Debug, Default)]
pub struct ChatTexts {
    /// Jinja source.
    pub template: Option<String>,
    pub bos_token: String,
    pub eos_token: String,
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
    let token = |key: &str| token_literal(config.get(key)).or(token_literal(specials.get(key))).unwrap_or_default();
    let jinja = match files.text("chat_template.jinja")? {
        Some(raw) => {
            let text = String::from_utf8(raw);
            Some(text.with_context(|| format!("{} is not UTF-8", files.label("chat_template.jinja")))?)
        }
        None => None,
    };
    let template = match jinja {
        Some(text) => Some(text),
        None => template_text(object(files, "chat_template.json")?.get("chat_template"))
            .or(template_text(config.get("chat_template"))),
    };
    let ends = [&config, &specials].map(|file| token_literal(file.get("eos_token"))).into_iter().flatten().collect();
    let prompt_bos = config.get(PROMPT_BOS).and_then(Value::as_bool).unwrap_or(false);
    Ok(ChatTexts { template, bos_token: token("bos_token"), eos_token: token("eos_token"), ends, prompt_bos })
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

/// A template is a string, or a list of named ones; `default` is used.
fn template_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            default?.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
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
