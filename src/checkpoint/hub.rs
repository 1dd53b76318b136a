//! Names of models, and the Hugging Face hub: finds a model in the local cache and downloads it
//! there. The only room that opens connections, and only for a hub id that is not in the cache (or
//! to check for updates). Reports to an [`Observer`]; knows nothing of screens.
//!
//! # What hf-hub does here, and what it does not
//!
//! Repository ids, revisions, folder names, snapshot paths and the place of the token file follow
//! `hf-hub` 0.5, without its client (two packages: hf-hub and dirs). A test reads a downloaded
//! model back through its cache. The rest is ours, over ureq with rustls:
//!
//! - *Requests.* `info_request().query("blobs", "true")` would list sizes and hashes as well, but
//!   it and the URLs need the feature `ureq`: four more packages for progress bars, and gzip in our
//!   own ureq, whose decoded bodies have neither the length nor the ranges that resuming and
//!   checking rely on. Its `ApiBuilder` also reads the token file without a bound, so that a named
//!   pipe in its place hangs the program. The URLs that this saves are two `format!`.
//! - *Downloads.* It resumes without `If-Range`, checks no hash, and has neither timeouts nor a way
//!   to stop; its `metadata()` sends the token to whatever host the hub redirects to.
//! - *Writing and reading references.* `create_ref` truncates the file in place and follows links;
//!   `get` joins the reference's text to a path unchecked, and an absolute one leaves the cache.
//! - *Environment.* `Cache::from_env` reads HF_HOME alone; HF_HUB_CACHE, XDG_CACHE_HOME and
//!   HF_TOKEN_PATH are read here.
//!
//! hf-hub 1.0 is another program: 236 packages and 4 min of build on 2 cores, without resume and
//! HF_HUB_OFFLINE. The hub's own transfer protocol (xet) is not used: the hub redirects plain
//! clients to such files.
//!
//! # Rules
//!
//! - A file is identified by the hash in the hub's listing (sha256 of large files, git's blob hash
//!   of small ones). The hash is its name in the cache, and the file gets that name only if its
//!   bytes have that hash.
//! - `blobs/HASH.incomplete` is always a prefix of the file, so that any download can be resumed.
//! - The token is sent to the origin of HF_ENDPOINT and to no other ([`http`]).
//! - A reference (`refs/main`) is written when all files of its commit are complete: a cached model
//!   stays usable while a newer one is downloaded.

mod api;
pub mod cache;
mod download;
pub mod gguf_files;
mod http;
mod names;
mod near;
pub mod progress;
mod pull;

pub use api::Listing;
pub use cache::Repo;
use names::is_hub_id;
pub use progress::Progress;
pub use pull::{About, Plan};

use crate::regular_file;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The built-in model's name.
pub const DEMO: &str = "demo";

/// The default revision.
pub const MAIN: &str = "main";

/// Largest token file.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// The name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    BuiltIn,
    /// A folder, or a GGUF file.
    Folder(PathBuf),
    Hub(HubModel),
}

/// A model of the hub: `ORG/NAME[:GGUF][@REVISION]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    pub id: String,
    /// The end of the name of one of its GGUF files, such as `Q4_K_M`; `None` for safetensors.
    pub gguf: Option<String>,
    pub revision: Option<String>,
}

impl HubModel {
    /// Its name without the revision.
    pub fn name(&self) -> String {
        match &self.gguf {
            Some(gguf) => format!("{}:{gguf}", self.id),
            None => self.id.clone(),
        }
    }

    /// The revision, by default the newest.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }
}

impl ModelRef {
    /// Parses `demo`, an existing path, or the name of a [`HubModel`], also as the address of its
    /// page.
    pub fn parse(text: &str) -> Result<Self> {
        if text == DEMO {
            return Ok(Self::BuiltIn);
        }
        if !text.is_empty() && Path::new(text).exists() {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        let named = names::short(text, Some(&endpoint()));
        if let Some(model) = HubModel::parse(&named) {
            return Ok(Self::Hub(model));
        }
        if text.to_lowercase().ends_with(".gguf") {
            bail!("no file {text}");
        }
        if text.contains(['/', '\\']) {
            bail!("no model folder {text}; expected one that exists, or a hub id ORG/NAME");
        }
        let cached = cache::ids(&cache_dir()?);
        bail!(
            "no model named {text:?}; expected demo, a folder, a GGUF file or a hub id ORG/NAME{}",
            near::suggestion(text, &cached)
        )
    }
}

/// Why a model was not downloaded. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The model, its name, the token or a setting is wrong: a retry would fail in the same way.
    #[error("{0}")]
    Wrong(String),
    /// A retry may succeed; the bytes received so far are kept.
    #[error("{0}")]
    Failed(String),
    /// [`Observer::stopped`] returned true.
    #[error("stopped; the next download continues from here")]
    Stopped,
}

/// Receives the reports of a download.
pub trait Observer {
    /// Whether to stop. Called several times per second.
    fn stopped(&self) -> bool;
    /// Receives what will be downloaded, before the download starts.
    fn plan(&mut self, plan: &Plan);
    /// Receives progress, at most ten times per second and after each file.
    fn progress(&mut self, progress: &Progress);
    /// Receives a sentence for the user.
    fn notice(&mut self, text: &str);
}

/// A secret that appears in no message and no log.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Removes line breaks and surrounding white space, which come with copying, as huggingface_hub
    /// does.
    pub fn new(secret: &str) -> Self {
        Self(secret.replace(['\r', '\n'], "").trim().to_owned())
    }

    /// Whether it is valid in a header.
    fn is_sound(&self) -> bool {
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

    pub fn repo(&self, id: &str) -> Repo {
        Repo::new(&self.cache, id)
    }

    /// `; did you mean ...?` if a cached model has a similar name, else empty.
    pub fn suggestion(&self, id: &str) -> String {
        near::suggestion(id, &cache::ids(&self.cache))
    }

    /// The host of the hub, for messages.
    pub fn host(&self) -> String {
        http::Origin::of(&self.endpoint).map_or_else(|| self.endpoint.clone(), |o| o.host)
    }
}

/// The name of a hub model as it is written, where an address is given; any other name as it is.
pub fn full_name(text: &str) -> String {
    match ModelRef::parse(text) {
        Ok(ModelRef::Hub(model)) => {
            let at = model.revision.as_ref().map(|revision| format!("@{revision}")).unwrap_or_default();
            model.name() + &at
        }
        _ => text.to_owned(),
    }
}

/// A hub model in the local cache. Opens no connection.
pub fn cached(model: &HubModel) -> Result<cache::Cached> {
    cache::find_in(&cache_dir()?, model)
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
fn endpoint() -> String {
    let stated = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
    stated.trim_end_matches('/').to_owned()
}

/// Whether this can be a branch, a tag, a commit, or a reference such as `refs/pr/1`.
fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(|part| is_plain(part) && !part.ends_with(".lock"))
}

/// Whether this is safe as a name in a path and in a URL.
fn is_plain(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    plain && !text.is_empty() && !text.starts_with('.') && !text.contains("..")
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
