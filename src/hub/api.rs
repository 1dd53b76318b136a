//! The hub's API: a model's commit, its files with sizes and hashes, its licence. Nothing in an
//! answer is trusted: names are checked before they become names on disk.

use super::cache::{self, Repo};
use super::environment::Hub;
use super::gguf_files;
use super::http::{self, Answer, Client, Fault, Retries, header};
use super::names::{HubModel, is_plain};
use super::near;
use super::progress::{HubError, Observer};
use crate::unicode::one_line;
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Attempts for a listing or for headers.
const TRIES: u32 = 3;
/// A listing of 20,000 files has half of that.
const MAX_LISTING_BYTES: u64 = 8 << 20;
/// Characters of a licence's name or text that are shown.
const LICENSE_CHARS: usize = 2000;

/// The hash of a file, which is also the blob's name in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash(String);

impl Hash {
    /// sha256 (64 hex digits) of a large file, or git's blob hash (40) of a small one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"');
        let hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Starts to hash a file of that many bytes.
    pub fn hasher(&self, bytes: u64) -> Hasher {
        if self.0.len() == 64 {
            return Hasher::Sha256(Sha256::new());
        }
        let mut sha = Sha1::new();
        sha.update(format!("blob {bytes}\0"));
        Hasher::Git(sha)
    }
}

#[derive(Clone)]
pub enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(h) => h.update(bytes),
            Self::Git(h) => h.update(bytes),
        }
    }

    pub fn matches(self, hash: &Hash) -> bool {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        hash.0
            == match self {
                Self::Sha256(h) => hex(&h.finalize()),
                Self::Git(h) => hex(&h.finalize()),
            }
    }
}

/// A file of a model. Size and hash are `None` if a mirror does not list them.
#[derive(Clone, Debug)]
pub struct Listed {
    pub bytes: Option<u64>,
    pub hash: Option<Hash>,
}

/// A model at one commit.
#[derive(Clone, Debug)]
pub struct Listing {
    pub commit: String,
    pub license: Option<String>,
    /// Whether its licence has to be accepted on the hub first.
    pub gated: bool,
    /// Such as `qwen3`, if the hub lists it.
    pub model_type: Option<String>,
    pub files: BTreeMap<String, Listed>,
}

impl Listing {
    /// Parses the listing of `id` that `host` sent. Each value is checked here or where it is used.
    pub fn parse(host: &str, id: &str, raw: &[u8]) -> Result<Self, HubError> {
        let odd = |what: &str| HubError::Failed(one_line(&format!("{host} sent an invalid listing of {id}: {what}")));
        let info: Info = serde_json::from_slice(raw).map_err(|e| odd(&e.to_string()))?;
        let commit = info.sha.filter(|sha| sha.len() <= 64 && is_plain(sha)).ok_or_else(|| odd("no commit"))?;
        let license = match &info.card["license"] {
            serde_json::Value::String(name) => Some(name.clone()),
            _ => info.tags.iter().find_map(|t| t.strip_prefix("license:")).map(str::to_owned),
        };
        // Usually a short name; some models have a text there.
        let license = license.map(|text| text.chars().take(LICENSE_CHARS).collect());
        let listed = |s: Sibling| {
            let lfs = s.lfs.as_ref();
            let hash = lfs.map_or(s.blob_id.as_deref(), |l| l.sha256.as_deref()).and_then(Hash::parse);
            (s.rfilename, Listed { bytes: lfs.and_then(|l| l.size).or(s.size), hash })
        };
        Ok(Self {
            commit,
            license,
            gated: !matches!(info.gated, serde_json::Value::Null | serde_json::Value::Bool(false)),
            model_type: info.config["model_type"].as_str().map(str::to_owned),
            files: info.siblings.into_iter().map(listed).collect(),
        })
    }
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    gated: serde_json::Value,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default, rename = "cardData")]
    card: serde_json::Value,
    #[serde(default)]
    config: serde_json::Value,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// One model on the hub at one revision.
pub struct Remote<'a> {
    pub hub: &'a Hub,
    pub client: Client,
    pub id: &'a str,
    pub revision: &'a str,
}

impl Hub {
    /// `; did you mean ...?` if a cached model has a similar name, else empty.
    pub fn suggestion(&self, id: &str) -> String {
        near::suggestion(id, &cache::ids(&self.cache))
    }

    /// The model's repository on the hub, or why there can be no connection to it.
    pub fn remote<'a>(&'a self, model: &'a HubModel) -> Result<Remote<'a>, HubError> {
        let id = &model.id;
        if self.offline {
            let (name, cache, near) = (model.name(), self.cache.display(), self.suggestion(id));
            let folder = Repo::new(&self.cache, id).snapshot(model.revision()).ok().flatten();
            let here = folder.map(|folder| gguf_files::listed(&cache::gguf_models(&folder)));
            let here = here.filter(|files| !files.is_empty()).map(|files| format!(", which has {files}"));
            let here = here.unwrap_or_default();
            let text = format!("HF_HUB_OFFLINE is set and {name} is not in {cache}{here}{near}");
            return Err(HubError::Wrong(text));
        }
        // A password in it would appear in messages.
        if http::Origin::of(&self.endpoint).is_none() || self.endpoint.contains(['@', '?', '#']) {
            return Err(HubError::Wrong("HF_ENDPOINT is not a URL such as https://huggingface.co".to_owned()));
        }
        if self.token.as_ref().is_some_and(|token| !token.is_sound()) {
            let text = "the Hugging Face token (HF_TOKEN, or the file HF_HOME/token) contains characters that no such token has";
            return Err(HubError::Wrong(text.to_owned()));
        }
        Ok(Remote { hub: self, client: Client::new(self), id, revision: model.revision() })
    }
}

impl Remote<'_> {
    /// Requests the listing.
    pub fn listing(&self, observer: &mut (impl Observer + ?Sized)) -> Result<Listing, HubError> {
        let revision = self.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.hub.endpoint, self.id);
        let host = self.hub.host();
        let raw = self.with_retries(None, observer, |client| {
            let mut answer = client.get(&url, &[])?;
            http::body(&mut answer, &host, MAX_LISTING_BYTES)
        })?;
        Listing::parse(&host, self.id, &raw)
    }

    /// The URL of a file.
    pub fn file_url(&self, commit: &str, name: &str) -> String {
        let name: Vec<String> = name.split('/').map(percent).collect();
        format!("{}/{}/resolve/{commit}/{}", self.hub.endpoint, self.id, name.join("/"))
    }

    /// Requests size and hash of a file by its headers, for hubs that do not list them.
    pub fn headers(
        &self,
        commit: &str,
        name: &str,
        observer: &mut (impl Observer + ?Sized),
    ) -> Result<Listed, HubError> {
        let url = self.file_url(commit, name);
        let answer = self.with_retries(Some(name), observer, |client| client.head(&url))?;
        let hash = header(&answer, "x-linked-etag").or(header(&answer, "etag")).and_then(Hash::parse);
        let own = |answer: &Answer| (!answer.status().is_redirection()).then(|| http::length(answer)).flatten();
        Ok(Listed { bytes: http::number(&answer, "x-linked-size").or_else(|| own(&answer)), hash })
    }

    fn with_retries<T>(
        &self,
        file: Option<&str>,
        observer: &mut (impl Observer + ?Sized),
        mut ask: impl FnMut(&Client) -> Result<T, Fault>,
    ) -> Result<T, HubError> {
        let mut retries = Retries::new(self.hub, TRIES);
        loop {
            match ask(&self.client) {
                Ok(answer) => return Ok(answer),
                Err(fault) => self.retry(fault, file, &mut retries, observer)?,
            }
        }
    }

    /// Waits before a retry if one may help, else returns the error.
    pub fn retry(
        &self,
        fault: Fault,
        file: Option<&str>,
        retries: &mut Retries,
        observer: &mut (impl Observer + ?Sized),
    ) -> Result<(), HubError> {
        match fault {
            Fault::Passing { why, asked } => retries.wait(&why, asked, observer).map_err(|error| match error {
                HubError::Failed(why) => HubError::Failed(format!("{} is not downloaded: {why}", self.id)),
                other => other,
            }),
            Fault::Lasting(why) => Err(HubError::Failed(format!("{} is not downloaded: {why}", self.id))),
            Fault::Refused { status, word } => Err(self.refused(status, &word, file)),
        }
    }

    /// The error that a refusal of the hub means for the user.
    fn refused(&self, status: u16, word: &str, file: Option<&str>) -> HubError {
        let (id, host) = (self.id, self.hub.host());
        let page = format!("{}/{id}", self.hub.endpoint);
        let near = self.hub.suggestion(id);
        let with_token = self.client.has_token();
        // The hub lists a gated model to everyone, and refuses its files.
        let gated = word == "GatedRepo" || (word.is_empty() && matches!((status, file), (403, _) | (401, Some(_))));
        HubError::Wrong(match status {
            _ if gated && with_token => {
                format!("{id} is gated, and the token that is set has no access: accept its licence at {page}")
            }
            _ if gated => format!("{id} is gated: accept its licence at {page}, and set HF_TOKEN to your token"),
            _ if word == "RevisionNotFound" => format!("{id} has no revision {:?} at {host}", self.revision),
            404 if file.is_some() => {
                let file = file.unwrap_or_default();
                return HubError::Failed(format!("{host} lists {file} of {id} but does not have it"));
            }
            404 | 401 if word == "RepoNotFound" || status == 404 || !with_token => {
                let seen = if with_token { "the token that is set" } else { "those without a token (HF_TOKEN)" };
                format!("no model {id} at {host}, or it is not visible to {seen}{near}")
            }
            401 => format!("{host} does not accept the token that is set (HF_TOKEN, or the file HF_HOME/token)"),
            _ => return HubError::Failed(format!("{id} is not downloaded: {host} answers {status}")),
        })
    }
}

/// Percent-encodes a path segment.
fn percent(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    part.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
