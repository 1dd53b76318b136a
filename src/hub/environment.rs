//! The hub and the cache that the environment selects, with the variables and folders of
//! huggingface_hub.

use crate::regular_file;
use anyhow::{Context, Result};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Largest token file.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// A secret that appears in no message and no log.
#[derive(Clone)]
pub struct Token(pub(super) String);

impl Token {
    /// Removes line breaks and surrounding white space, which come with copying, as huggingface_hub
    /// does.
    pub fn new(secret: &str) -> Self {
        Self(secret.replace(['\r', '\n'], "").trim().to_owned())
    }

    /// Whether it is valid in a header.
    pub(super) fn is_sound(&self) -> bool {
        self.0.bytes().all(|b| b.is_ascii_graphic())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The hub and the cache that the environment selects.
#[derive(Clone, Debug)]
pub struct Hub {
    pub cache: PathBuf,
    /// `https://huggingface.co` or HF_ENDPOINT, without a trailing slash.
    pub endpoint: String,
    pub token: Option<Token>,
    /// Whether connections are forbidden (HF_HUB_OFFLINE).
    pub offline: bool,
    /// Pause before the first retry; doubles with each.
    pub pause: Duration,
}

impl Hub {
    /// Reads HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN (or the file HF_TOKEN_PATH, by default
    /// `HF_HOME/token`) and HF_HUB_OFFLINE, as huggingface_hub does.
    pub fn from_env() -> Result<Self> {
        let file = || {
            let path =
                folder("HF_TOKEN_PATH").or_else(|| Some(hf_hub::Cache::new(home()?.join("hub")).token_path()))?;
            let text = regular_file::read_text(&path, MAX_TOKEN_BYTES).ok()?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(file);
        let offline = text("HF_HUB_OFFLINE").map(|v| v.to_uppercase());
        Ok(Self {
            cache: cache_dir()?,
            endpoint: endpoint(),
            token: token.as_deref().map(Token::new),
            offline: matches!(offline.as_deref(), Some("1" | "ON" | "YES" | "TRUE")),
            pause: Duration::from_millis(500),
        })
    }
}

/// The cache folder that huggingface_hub would use.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")) {
        return Ok(dir);
    }
    Ok(home().context("no home folder: set HF_HOME")?.join("hub"))
}

/// HF_HOME, which also holds the token.
fn home() -> Option<PathBuf> {
    folder("HF_HOME").or_else(|| {
        let caches = folder("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
        Some(caches?.join("huggingface"))
    })
}

/// Returns the folder in an environment variable. As in huggingface_hub, a leading `~` is the home
/// folder, and `$NAME` and `${NAME}` are variables.
fn folder(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty())?;
    let Some(text) = value.to_str() else { return Some(PathBuf::from(value)) };
    let text = expanded(text, |name| std::env::var(name).ok());
    match text.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Some(std::env::home_dir()?.join(rest.trim_start_matches('/')))
        }
        _ => Some(PathBuf::from(text)),
    }
}

/// Replaces variables that exist by their values.
fn expanded(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let inner = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
        let (name, behind) = inner.unwrap_or_else(|| after.split_at(end));
        match value(name).filter(|_| !name.is_empty()) {
            Some(value) => {
                out.push_str(&value);
                rest = behind;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

/// A variable of the environment without the white space around it, unless it is empty.
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}

/// The hub's address, without a slash at its end.
pub(super) fn endpoint() -> String {
    let stated = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
    stated.trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_a_folder_are_expanded_and_a_token_has_no_line_breaks() {
        let value = |name: &str| [("HOME", "/h"), ("A_1", "b")].iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        for (text, wanted) in [
            ("$HOME/hf", "/h/hf"),
            ("${HOME}/$A_1-$A_1", "/h/b-b"),
            ("/x/$NONE/${NONE}/$", "/x/$NONE/${NONE}/$"),
            ("${HOME", "${HOME"),
        ] {
            assert_eq!(expanded(text, value), wanted, "{text}");
        }
        let Token(secret) = Token::new(" hf_a\r\nbc\n");
        assert_eq!(secret, "hf_abc");
    }
}
