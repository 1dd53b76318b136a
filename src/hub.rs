//! Names of models, and the Hugging Face hub: finds a model in the local cache and downloads it
//! there. Opens connections only for a hub id that is not in the cache (or to check for updates).
//! Reports to an [`Observer`]; knows nothing of screens.
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
pub mod download;
mod environment;
pub mod gguf_files;
pub mod http;
pub mod layout;
pub mod model_names;
mod names;
mod near;
pub mod progress;

pub use api::{Hash, Listed, Listing, Remote};
pub use cache::Repo;
pub use environment::{Hub, Token, cache_dir};
pub use names::{DEMO, HubModel, MAIN};
pub use progress::{HubError, Observer, Progress};

use anyhow::{Result, bail};
use environment::endpoint;
use std::path::{Path, PathBuf};

/// The name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    BuiltIn,
    /// A folder, or a GGUF file.
    Folder(PathBuf),
    Hub(HubModel),
}

impl ModelRef {
    /// `demo`, an existing path, or the name of a [`HubModel`], also as the address of its page.
    pub fn recognize(text: &str) -> Option<Self> {
        if text == DEMO {
            return Some(Self::BuiltIn);
        }
        if !text.is_empty() && Path::new(text).exists() {
            return Some(Self::Folder(PathBuf::from(text)));
        }
        HubModel::parse(&names::short(text, Some(&endpoint()))).map(Self::Hub)
    }

    /// Like [`Self::recognize`]. An error says what was expected.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_beside(text, &[])
    }

    /// Like [`Self::parse`], where there are also models of these short names: an error suggests
    /// them.
    pub fn parse_beside(text: &str, names: &[String]) -> Result<Self> {
        if let Some(model) = Self::recognize(text) {
            return Ok(model);
        }
        if text.to_lowercase().ends_with(".gguf") {
            bail!("no file {text}");
        }
        if text.contains(['/', '\\']) {
            bail!("no model folder {text}; expected one that exists, or a hub id ORG/NAME");
        }
        let known = [names, &cache::ids(&cache_dir()?)].concat();
        let short = if names.is_empty() { "" } else { " a short name (dmschat models list --known)," };
        bail!(
            "no model named {text:?}; expected demo,{short} a folder, a GGUF file or a hub id ORG/NAME{}",
            near::suggestion(text, &known)
        )
    }
}

impl Hub {
    pub fn repo(&self, id: &str) -> Repo {
        Repo::new(&self.cache, id)
    }
}

/// A hub model in the local cache. Opens no connection.
pub fn cached(model: &HubModel) -> Result<cache::Cached> {
    cache::find_in(&cache_dir()?, model)
}
