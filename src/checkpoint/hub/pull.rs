//! Downloads a model into the cache: plans which files are needed, then downloads them one by one.
//! The configuration is downloaded into memory and checked first, so that a model that cannot run,
//! or that does not fit on the disk, is refused before a byte is written.

use super::api::{Listing, Remote};
use super::cache::{self, CONFIG, INDEX, Repo, SINGLE};
use super::download::{Fetcher, File};
use super::http::{Client, Origin};
use super::{Hub, HubError, MAIN, Observer};
use crate::checkpoint::disk::free_bytes;
use crate::checkpoint::files::{Files, TEXTS, max_text_bytes};
use crate::checkpoint::{ModelConfig, config_of};
use crate::tensor::SharedBytes;
use crate::unicode::one_line;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The model card, which states the licence. Optional.
const CARD: &str = "README.md";

/// Files to download.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub id: String,
    pub commit: String,
    /// From the model card.
    pub license: Option<String>,
    pub n_files: usize,
    /// Bytes of all files, and of those still to download.
    pub bytes: u64,
    pub todo_bytes: u64,
    pub weight_bytes: u64,
    pub config: ModelConfig,
    /// Free bytes on the disk of the cache.
    pub free_bytes: Option<u64>,
}

/// The hub's description of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    pub commit: String,
    pub license: Option<String>,
    pub gated: bool,
    pub model_type: Option<String>,
    /// Bytes of all safetensors files in the listing.
    pub weight_bytes: u64,
}

impl Hub {
    /// Requests the description of a model.
    pub fn about(&self, id: &str, revision: Option<&str>, observer: &mut dyn Observer) -> Result<About, HubError> {
        let listing = self.remote(id, revision)?.listing(observer)?;
        let weights = listing.files.iter().filter(|(name, _)| name.ends_with(".safetensors"));
        let weight_bytes = weights.filter_map(|(_, file)| file.bytes).sum();
        let Listing { commit, license, gated, model_type, .. } = listing;
        Ok(About { commit, license, gated, model_type, weight_bytes })
    }

    /// Downloads the newest commit of a model, or of a revision, into the cache and returns its
    /// folder. Complete files are not downloaded again.
    pub fn pull(&self, id: &str, revision: Option<&str>, observer: &mut dyn Observer) -> Result<PathBuf, HubError> {
        let remote = self.remote(id, revision)?;
        let listing = remote.listing(observer)?;
        let repo = self.repo(id);
        let folder = repo.folder(&listing.commit);
        let mut pull = Pull { fetcher: Fetcher::new(&remote, &repo, &listing.commit), listing: &listing };
        refuse_gguf(id, &listing)?;
        let mut texts = pull.files(TEXTS.iter().filter(|name| is_wanted(&listing, name)), observer)?;
        if texts.first().is_none_or(|file| file.name != CONFIG) {
            return Err(HubError::Wrong(format!("{id} has no {CONFIG}, so it is not a model that can run")));
        }
        let mut early = BTreeMap::new();
        for file in texts.iter().take_while(|f| [CONFIG, TEXTS[1]].contains(&f.name.as_str())) {
            let bytes: SharedBytes = Arc::new(pull.fetcher.small(file, observer)?);
            early.insert(file.name.clone(), bytes);
        }
        let config =
            config_of(&Files::Memory(early)).map_err(|e| HubError::Wrong(one_line(&format!("{id}: {e:#}"))))?;
        let weights = pull.weights(&mut texts, observer)?;

        let plan = pull.plan(&texts, &weights, config, &self.cache);
        observer.plan(&plan);
        if let Some(free) = plan.free_bytes.filter(|free| *free < plan.todo_bytes) {
            let (need, at) = (plan.todo_bytes, self.cache.display());
            return Err(HubError::Failed(format!(
                "{id} is not downloaded: {need} bytes are needed, and the disk of {at} has {free} free"
            )));
        }
        pull.fetcher.meter.expect(plan.bytes);
        for file in texts.iter().chain(&weights) {
            pull.fetcher.fetch(file, observer)?;
        }
        repo.set_reference(revision.unwrap_or(MAIN), &listing.commit).map_err(|e| repo.failed(&e))?;
        Ok(folder)
    }

    fn remote<'a>(&'a self, id: &'a str, revision: Option<&'a str>) -> Result<Remote<'a>, HubError> {
        if self.offline {
            let (cache, near) = (self.cache.display(), self.suggestion(id));
            let text = format!("HF_HUB_OFFLINE is set and {id} is not in {cache}{near}");
            return Err(HubError::Wrong(text));
        }
        // A password in it would appear in messages.
        if Origin::of(&self.endpoint).is_none() || self.endpoint.contains(['@', '?', '#']) {
            return Err(HubError::Wrong("HF_ENDPOINT is not a URL such as https://huggingface.co".to_owned()));
        }
        if self.token.as_ref().is_some_and(|token| !token.is_sound()) {
            let text = "the Hugging Face token (HF_TOKEN, or the file HF_HOME/token) contains characters that no such token has";
            return Err(HubError::Wrong(text.to_owned()));
        }
        Ok(Remote { hub: self, client: Client::new(self), id, revision: revision.unwrap_or(MAIN) })
    }
}

/// Refuses a repository of GGUF files, which are read by their paths only.
fn refuse_gguf(id: &str, listing: &Listing) -> Result<(), HubError> {
    let has = |what: &dyn Fn(&str) -> bool| listing.files.keys().any(|name| what(name));
    if has(&|name| name.ends_with(".gguf")) && !has(&|name| [SINGLE, INDEX].contains(&name)) {
        let text = format!("{id} has GGUF files only; download one of them with another program and give its path");
        return Err(HubError::Wrong(text));
    }
    Ok(())
}

/// Whether to download a file: the repository has it, and a model card is not too large.
fn is_wanted(listing: &Listing, name: &str) -> bool {
    let fits = |bytes: Option<u64>| bytes.is_some_and(|n| n <= max_text_bytes(name));
    listing.files.get(name).is_some_and(|file| name != CARD || fits(file.bytes))
}

struct Pull<'a> {
    fetcher: Fetcher<'a>,
    listing: &'a Listing,
}

impl Pull<'_> {
    /// Sizes and hashes of files, from the listing or else from headers.
    fn files<S: AsRef<str>>(
        &self,
        names: impl Iterator<Item = S>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<File>, HubError> {
        let remote = self.fetcher.remote;
        let mut files = Vec::new();
        for name in names {
            let name = name.as_ref();
            let mut listed = self.listing.files[name].clone();
            if listed.bytes.is_none() || listed.hash.is_none() {
                listed = remote.headers(&self.listing.commit, name, observer)?;
            }
            let (Some(bytes), Some(hash)) = (listed.bytes, listed.hash) else {
                let (id, host) = (remote.id, remote.hub.host());
                return Err(HubError::Failed(format!(
                    "{id} is not downloaded: {host} gives no hash of {name}, so that it cannot be checked"
                )));
            };
            // Such files are read into memory when the model is opened.
            let most = if name.ends_with(".safetensors") { u64::MAX } else { max_text_bytes(name) };
            if bytes > most {
                let (id, host) = (remote.id, remote.hub.host());
                return Err(HubError::Wrong(format!(
                    "{id} is not downloaded: {host} lists {name} with {bytes} bytes, and {most} are the most it may have"
                )));
            }
            files.push(File { name: name.to_owned(), bytes, hash });
        }
        Ok(files)
    }

    /// The weight files: one, or those in the index, which is downloaded here and added to `texts`.
    fn weights(&mut self, texts: &mut Vec<File>, observer: &mut dyn Observer) -> Result<Vec<File>, HubError> {
        let id = self.fetcher.remote.id;
        let files = &self.listing.files;
        if files.contains_key(SINGLE) {
            return self.files([SINGLE].iter(), observer);
        }
        if !files.contains_key(INDEX) {
            return Err(HubError::Wrong(format!(
                "{id} has neither {SINGLE} nor {INDEX}, and only safetensors weights are read"
            )));
        }
        let index = self.files([INDEX].iter(), observer)?;
        let raw = self.fetcher.small(&index[0], observer)?;
        texts.extend(index);
        let names = cache::shards(&raw).map_err(|e| HubError::Wrong(one_line(&format!("{id}: {e:#}"))))?;
        if let Some(name) = names.iter().find(|name| !files.contains_key(*name)) {
            return Err(HubError::Wrong(format!("{id}: {INDEX} names {name}, which the hub does not have")));
        }
        self.files(names.iter(), observer)
    }

    fn plan(&self, texts: &[File], weights: &[File], config: ModelConfig, cache: &Path) -> Plan {
        let sum = |files: &[File]| files.iter().map(|f| f.bytes).fold(0, u64::saturating_add);
        let here = |f: &File| f.bytes - self.fetcher.here(f);
        Plan {
            id: self.fetcher.remote.id.to_owned(),
            commit: self.listing.commit.clone(),
            license: self.listing.license.clone(),
            n_files: texts.len() + weights.len(),
            bytes: sum(texts).saturating_add(sum(weights)),
            todo_bytes: texts.iter().chain(weights).map(here).fold(0, u64::saturating_add),
            weight_bytes: sum(weights),
            config,
            free_bytes: free_bytes(cache),
        }
    }
}

impl Repo {
    /// An error of the cache's disk.
    pub(super) fn failed(&self, error: &std::io::Error) -> HubError {
        let at = self.dir.display();
        HubError::Failed(match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                format!(
                    "{} is not downloaded: the disk of {at} is full; the next download continues from here",
                    self.id
                )
            }
            _ => format!("{} is not downloaded: {at}: {error}", self.id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_in_one_line() {
        let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let said = Repo::new(Path::new("/cache"), "any/model").failed(&error).to_string();
        let wanted = "any/model is not downloaded: the disk of /cache/models--any--model is full; \
                      the next download continues from here";
        assert_eq!(said, wanted);
    }
}
