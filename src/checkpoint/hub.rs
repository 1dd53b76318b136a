//! Names of models, and the Hugging Face hub: looking a model up in the local cache, and bringing it
//! there. The one room that opens a connection, and only for a hub id that is not in the cache (or
//! when asked to look for news). Knows nothing of screens: who waits hears by [`Observer`].
//!
//! # Why ureq and not hf-hub
//!
//! hf-hub 1.0 is the hub's own crate. It was measured: 236 packages and 4 min 6 s of clean build on
//! 2 cores, where the whole of dmschat has 5 minutes; it neither resumes nor knows HF_HUB_OFFLINE,
//! so that the larger part would still be ours. hf-hub 0.5 over ureq is small (58 packages), but its
//! listing has no sizes and no hashes, and its cache knows HF_HOME only. What remains to be written is
//! two requests (a listing, a file) over an HTTP client; ureq with rustls is 26 packages and 20 s.
//! The hub's own transfer protocol (xet) is not spoken: it hands such files to plain clients by an
//! ordinary redirect.
//!
//! # Rules
//!
//! - A file is known by the hash that the hub's listing gives (sha256 of large files, git's blob hash
//!   of small ones), is named so in the cache, and gets that name only when its bytes have that hash.
//! - `blobs/HASH.incomplete` holds a beginning of the file at any moment, so that a download goes on
//!   where it was left, whatever ended it.
//! - The token goes to the origin of HF_ENDPOINT and to none else ([`http`]).
//! - A reference (`refs/main`) is written when all files of its commit are there: a model in the cache
//!   stays usable while a newer one is on its way.

mod api;
pub mod cache;
mod download;
mod http;
mod near;
pub mod progress;
mod pull;

pub use api::Listing;
pub use cache::Repo;
pub use progress::Progress;
pub use pull::{About, Plan};

use crate::regular_file;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The built-in model's name.
pub const DEMO: &str = "demo";

/// The revision that is meant where none is named.
pub const MAIN: &str = "main";

/// Of the file that holds the token.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Which model is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    BuiltIn,
    Folder(PathBuf),
    Hub { id: String, revision: Option<String> },
}

impl ModelRef {
    /// `demo`, the path of something that exists, or a hub id `ORG/NAME[@REVISION]`.
    pub fn parse(text: &str) -> Result<Self> {
        if text == DEMO {
            return Ok(Self::BuiltIn);
        }
        if !text.is_empty() && Path::new(text).exists() {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision.to_owned())),
            None => (text, None),
        };
        if is_hub_id(id) && revision.as_deref().is_none_or(is_revision) {
            return Ok(Self::Hub { id: id.to_owned(), revision });
        }
        if text.contains(['/', '\\']) {
            bail!("no model folder {text}");
        }
        let cached = cache::ids(&cache_dir()?);
        bail!(
            "no model named {text:?}; expected demo, a folder or a hub id ORG/NAME{}",
            near::suggestion(text, &cached)
        )
    }
}

/// Why a model was not downloaded, in one line each.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The model, its name, the token or a setting: another try would give the same.
    #[error("{0}")]
    Wrong(String),
    /// May be tried again; what has come is kept.
    #[error("{0}")]
    Failed(String),
    /// [`Observer::stopped`] said so.
    #[error("stopped; what has come is kept, and the next download goes on from there")]
    Stopped,
}

/// Who waits for a download.
pub trait Observer {
    /// Asked several times a second: true ends the download.
    fn stopped(&self) -> bool;
    /// What will be downloaded, before it is.
    fn plan(&mut self, plan: &Plan);
    /// Ten times a second at most, and when a file is there.
    fn progress(&mut self, progress: &Progress);
    /// One sentence a person should see.
    fn notice(&mut self, text: &str);
}

/// A secret that no message and no log shows.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn new(secret: &str) -> Self {
        Self(secret.to_owned())
    }

    /// Fit to stand in a header.
    fn is_sound(&self) -> bool {
        self.0.bytes().all(|b| b.is_ascii_graphic())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The hub and the cache, as the environment describes them.
#[derive(Clone, Debug)]
pub struct Hub {
    pub cache: PathBuf,
    /// `https://huggingface.co`, or what HF_ENDPOINT says; no slash at its end.
    pub endpoint: String,
    pub token: Option<Token>,
    /// No connection is opened, whatever is asked for.
    pub offline: bool,
    /// Before the first new try; doubles from try to try.
    pub pause: Duration,
}

impl Hub {
    /// Reads HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN (or the file HF_TOKEN_PATH, by default
    /// `HF_HOME/token`) and HF_HUB_OFFLINE, as huggingface_hub does.
    pub fn from_env() -> Result<Self> {
        let text = |name: &str| std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let file = || {
            let path = folder("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))?;
            let text = regular_file::read_text(&path, MAX_TOKEN_BYTES).ok()?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")).or_else(file);
        let offline = text("HF_HUB_OFFLINE").map(|v| v.to_uppercase());
        Ok(Self {
            cache: cache_dir()?,
            endpoint,
            token: token.as_deref().map(Token::new),
            offline: matches!(offline.as_deref(), Some("1" | "ON" | "YES" | "TRUE")),
            pause: Duration::from_millis(500),
        })
    }

    pub fn repo(&self, id: &str) -> Repo {
        Repo::new(&self.cache, id)
    }

    /// `; did you mean ...?` where a cached model has nearly this name.
    pub fn suggestion(&self, id: &str) -> String {
        near::suggestion(id, &cache::ids(&self.cache))
    }

    /// The hub's host, for messages.
    pub fn host(&self) -> String {
        http::Origin::of(&self.endpoint).map_or_else(|| self.endpoint.clone(), |o| o.host)
    }
}

/// The folder of a hub id's files in the local cache. No network.
pub fn cached_folder(id: &str, revision: Option<&str>) -> Result<PathBuf> {
    cache::folder_in(&cache_dir()?, id, revision)
}

/// The cache folder as huggingface_hub finds it.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")) {
        return Ok(dir);
    }
    Ok(home().context("no home folder: set HF_HOME")?.join("hub"))
}

/// HF_HOME, where the token is kept too.
fn home() -> Option<PathBuf> {
    folder("HF_HOME").or_else(|| {
        let caches = folder("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
        Some(caches?.join("huggingface"))
    })
}

/// A folder that a variable names; `~/` is the home folder.
fn folder(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty())?;
    match value.to_str().and_then(|v| v.strip_prefix("~/")) {
        Some(rest) => Some(std::env::home_dir()?.join(rest)),
        None => Some(PathBuf::from(value)),
    }
}

fn is_hub_id(text: &str) -> bool {
    text.len() <= 200 && text.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name))
}

/// A branch, a tag, a commit, or a reference such as `refs/pr/1`.
fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(|part| is_plain(part) && !part.ends_with(".lock"))
}

fn is_part(text: &str) -> bool {
    is_plain(text) && !text.contains("--")
}

/// Fit to be a name in a path and in an address.
fn is_plain(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    plain && !text.is_empty() && !text.starts_with('.') && !text.contains("..")
}
