//! Downloads a model into the cache: plans which files are needed, then downloads them one by one.
//! The configuration is downloaded into memory and checked first, so that a model that cannot run,
//! or that does not fit on the disk, is refused before a byte is written.

use super::adapter;
use super::config::ModelConfig;
use super::eagle::config::is_head;
use super::files::Files;
use super::gguf::{Gguf, HEADER_BYTES, Part};
use super::summary::{Summary, config_of, summary_of};
use crate::hub::cache::{self, CONFIG};
use crate::hub::download::{Fetcher, File};
use crate::hub::gguf_files::{self, GgufModel};
use crate::hub::layout::{CARD, GATES, INDEX, TEXTS, WEIGHTS, max_text_bytes, plain_name};
use crate::hub::{Hub, HubError, HubModel, Listed, Listing, Observer};
use crate::protocol::bytes as size;
use crate::regular_file::free_bytes;
use crate::tensor::SharedBytes;
use crate::unicode::one_line;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes requested first for the header of a GGUF file. Most headers have 2 to 16 MB.
const HEAD_BYTES: u64 = 4 << 20;
/// Bytes requested first for the header of a later part, which has no vocabulary.
const PART_HEAD_BYTES: u64 = 128 << 10;
/// Maximum bytes of the headers of all parts of a model, which are in memory together.
const ALL_HEADS_BYTES: u64 = HEADER_BYTES as u64 + gguf_files::MOST_PARTS as u64 * PART_HEAD_BYTES;

/// The download of a model, before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// `ORG/NAME`, with `:Q4_K_M` for a GGUF file.
    pub name: String,
    pub commit: String,
    /// From the model card.
    pub license: Option<String>,
    pub n_files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that are not in the cache yet.
    pub todo_bytes: u64,
    pub weight_bytes: u64,
    /// `None` for a predictor, which is not a model.
    pub config: Option<ModelConfig>,
    /// Free bytes on the disk of the cache.
    pub free_bytes: Option<u64>,
}

/// Receives the reports of a model's download.
pub trait Downloader: Observer {
    /// Receives the plan, before the download starts.
    fn plan(&mut self, plan: &Plan);
}

/// The hub's description of a model.
pub struct About {
    pub commit: String,
    pub license: Option<String>,
    pub gated: bool,
    pub model_type: Option<String>,
    /// Bytes of all safetensors files or gates in the listing, or of the GGUF file.
    pub weight_bytes: u64,
    /// List of its GGUF files, if it has any.
    pub gguf: Option<String>,
    /// Summary of its configuration, or why it cannot be read or does not run. `None` if a GGUF
    /// file has to be chosen first, and for a predictor or a draft head.
    pub summary: Option<Result<Summary, HubError>>,
}

impl Hub {
    /// Requests the description of a model: its listing, and its configuration, which is not
    /// written to the cache.
    pub fn about(&self, model: &HubModel, observer: &mut dyn Observer) -> Result<About, HubError> {
        let remote = self.remote(model)?;
        let listing = remote.listing(observer)?;
        let weight_bytes = match &model.gguf {
            Some(_) => pick(model, &listing)?.bytes,
            None => {
                let is_weights = |name: &str| name.ends_with(".safetensors") || name == GATES;
                let weights = listing.files.iter().filter(|(name, _)| is_weights(name));
                weights.filter_map(|(_, file)| file.bytes).sum()
            }
        };
        let gguf = Some(gguf_files::listed(&gguf_models(&listing))).filter(|files| !files.is_empty());
        let repo = self.repo(&model.id);
        let mut pull = Pull { fetcher: Fetcher::new(&remote, &repo, &listing.commit, observer), listing: &listing };
        let summary = match weight_bytes == 0 && model.gguf.is_none() && gguf.is_some() {
            true => None,
            false => pull.summary(model).transpose(),
        };
        let Listing { commit, license, gated, model_type, .. } = listing;
        Ok(About { commit, license, gated, model_type, weight_bytes, gguf, summary })
    }

    /// Downloads the newest commit of a model's revision into the cache. Returns the path of its
    /// folder or of its GGUF file. Complete files are not downloaded again.
    pub fn pull(&self, model: &HubModel, observer: &mut dyn Downloader) -> Result<PathBuf, HubError> {
        let remote = self.remote(model)?;
        let listing = remote.listing(observer)?;
        let repo = self.repo(&model.id);
        let folder = repo.folder(&listing.commit);
        let mut pull = Pull { fetcher: Fetcher::new(&remote, &repo, &listing.commit, observer), listing: &listing };
        let files = match model.gguf {
            Some(_) => pull.gguf(model)?,
            None => pull.folder()?,
        };
        let path =
            files.weights.first().filter(|_| model.gguf.is_some()).map_or(folder.clone(), |f| folder.join(&f.name));
        let plan = pull.plan(model, &files, &self.cache);
        pull.fetcher.observer.plan(&plan);
        if let Some(free) = plan.free_bytes.filter(|free| *free < plan.todo_bytes) {
            let (name, need, at) = (&plan.name, plan.todo_bytes, self.cache.display());
            return Err(HubError::Failed(format!(
                "{name} is not downloaded: {} are needed, and the disk of {at} has {} free",
                size(need),
                size(free)
            )));
        }
        pull.fetcher.meter.expect(plan.bytes);
        for file in files.texts.iter().chain(&files.weights) {
            pull.fetcher.fetch(file)?;
        }
        repo.set_reference(model.revision(), &listing.commit).map_err(|e| repo.failed(&e))?;
        Ok(path)
    }
}

fn gguf_models(listing: &Listing) -> Vec<GgufModel> {
    let plain = listing.files.iter().filter(|(name, _)| plain_name(name).is_ok());
    gguf_files::models(plain.map(|(name, file)| (name.as_str(), file.bytes.unwrap_or(0))))
}

/// The GGUF model that the name means, or an error that lists the GGUF files of the repository.
fn pick(model: &HubModel, listing: &Listing) -> Result<GgufModel, HubError> {
    let (id, models) = (&model.id, gguf_models(listing));
    let wanted = model.gguf.as_deref().unwrap_or_default();
    if models.len() > gguf_files::MOST {
        let (n, most) = (models.len(), gguf_files::MOST);
        return Err(HubError::Wrong(format!("{id} has {n} GGUF models, expected at most {most}")));
    }
    let picked = gguf_files::pick(&models, wanted).cloned().ok_or_else(|| {
        let Some(first) = models.first() else { return HubError::Wrong(format!("{id} has no GGUF files")) };
        let first = gguf_files::pick(&models, "Q4_K_M").unwrap_or(first).label(&models);
        let none = match wanted {
            "" => "its GGUF files are".to_owned(),
            wanted => format!("no single GGUF file's name ends in {wanted:?}; the files are"),
        };
        HubError::Wrong(format!("{id}: {none} {}; choose one: {id}:{first}", gguf_files::listed(&models)))
    })?;
    if picked.files.len() > gguf_files::MOST_PARTS {
        let (name, n, most) = (picked.name(), picked.files.len(), gguf_files::MOST_PARTS);
        return Err(HubError::Wrong(format!("{id}: {name} has {n} parts, expected at most {most}")));
    }
    Ok(picked)
}

/// Downloads the beginning of each part of a GGUF model, up to the end of its header. `read`
/// downloads the given number of bytes from the start of a part.
fn heads(
    id: &str,
    parts: &[File],
    mut read: impl FnMut(&File, u64) -> Result<SharedBytes, HubError>,
) -> Result<Vec<Part>, HubError> {
    let (mut heads, mut left) = (Vec::new(), ALL_HEADS_BYTES);
    for file in parts {
        let first = if heads.is_empty() { HEAD_BYTES } else { PART_HEAD_BYTES };
        let most = file.bytes.min(HEADER_BYTES as u64);
        let mut bytes = first.min(most);
        let head = loop {
            if bytes > left {
                let (name, all) = (&file.name, size(ALL_HEADS_BYTES));
                return Err(HubError::Wrong(format!(
                    "{id}: the headers of all parts up to {name} have more than {all}"
                )));
            }
            let head = read(file, bytes)?;
            let part = Part { label: file.name.clone(), bytes: head, file_bytes: file.bytes as usize };
            if bytes == most || part.has_header() {
                break part;
            }
            bytes = (4 * bytes).min(most);
        };
        left -= bytes;
        heads.push(head);
    }
    Ok(heads)
}

/// Whether to download a file: the repository has it, and it is not a model card that is too large.
fn is_wanted(listing: &Listing, name: &str) -> bool {
    let fits = |bytes: Option<u64>| bytes.is_some_and(|n| n <= max_text_bytes(name));
    listing.files.get(name).is_some_and(|file| name != CARD || fits(file.bytes))
}

struct Pull<'a, O: ?Sized> {
    fetcher: Fetcher<'a, O>,
    listing: &'a Listing,
}

/// The files of a model, and its configuration.
struct Wanted {
    /// All files but the weights.
    texts: Vec<File>,
    weights: Vec<File>,
    /// `None` for a predictor.
    config: Option<ModelConfig>,
}

impl<O: Observer + ?Sized> Pull<'_, O> {
    /// Downloads only the configuration of a model and returns its summary; `None` for a predictor
    /// or a draft head.
    fn summary(&mut self, model: &HubModel) -> Result<Option<Summary>, HubError> {
        let files = match model.gguf {
            Some(_) => {
                let weights = self.files(pick(model, self.listing)?.files.iter())?;
                self.header(model, &weights)?
            }
            None => {
                let names = [CONFIG, TEXTS[1]];
                let listing = self.listing;
                let texts = self.files(names.iter().filter(|name| is_wanted(listing, name)))?;
                self.config_files(&texts)?
            }
        };
        if adapter::is_source(&files) || is_head(&files) {
            return Ok(None);
        }
        let summary = summary_of(&files, model.id.rsplit('/').next().unwrap_or(&model.id));
        summary.map(Some).map_err(|e| HubError::Wrong(one_line(&format!("{}: {e:#}", model.name()))))
    }

    /// Downloads the files among these that decide whether the model can run, into memory.
    fn config_files(&mut self, texts: &[File]) -> Result<Files, HubError> {
        if texts.first().is_none_or(|file| file.name != CONFIG) {
            let id = self.fetcher.remote.id;
            return Err(HubError::Wrong(format!("{id} has no {CONFIG}, so it is not a model that can run")));
        }
        let mut files = BTreeMap::new();
        for file in texts.iter().take_while(|f| [CONFIG, TEXTS[1]].contains(&f.name.as_str())) {
            let bytes: SharedBytes = Arc::new(self.fetcher.small(file)?);
            files.insert(file.name.clone(), bytes);
        }
        Ok(Files::Memory(files))
    }

    /// The files of a model in safetensors.
    fn folder(&mut self) -> Result<Wanted, HubError> {
        let (id, listing) = (self.fetcher.remote.id, self.listing);
        let has = |name: &str| listing.files.contains_key(name);
        if !has(WEIGHTS) && !has(INDEX) && listing.files.keys().any(|name| name.ends_with(".gguf")) {
            let model = HubModel { id: id.to_owned(), gguf: Some(String::new()), revision: None };
            pick(&model, listing)?;
        }
        let mut texts = self.files(TEXTS.iter().filter(|name| is_wanted(listing, name)))?;
        let files = self.config_files(&texts)?;
        let is_source = adapter::is_source(&files);
        let config = match is_source || is_head(&files) {
            true => None,
            false => Some(config_of(&files).map_err(|e| HubError::Wrong(one_line(&format!("{id}: {e:#}"))))?),
        };
        let weights = match is_source && has(GATES) {
            true => self.files([GATES].iter())?,
            false => self.weights(&mut texts)?,
        };
        Ok(Wanted { texts, weights, config })
    }

    /// The parts of a GGUF model, the configuration in their headers, and the importance matrix
    /// that is published with it.
    fn gguf(&mut self, model: &HubModel) -> Result<Wanted, HubError> {
        let picked = pick(model, self.listing)?;
        let weights = self.files(picked.files.iter())?;
        let fits = |(name, file): (&'_ String, &Listed)| {
            plain_name(name).is_ok() && file.bytes.is_some_and(|bytes| bytes <= gguf_files::MAX_IMATRIX_BYTES)
        };
        let beside = self.listing.files.iter().filter(|file| fits(*file)).map(|(name, _)| name.as_str());
        let imatrix = gguf_files::imatrix(beside, picked.name(), false);
        let texts = self.files(imatrix.into_iter())?;
        let files = self.header(model, &weights)?;
        let config = config_of(&files).map_err(|e| HubError::Wrong(one_line(&format!("{}: {e:#}", model.name()))))?;
        Ok(Wanted { texts, weights, config: Some(config) })
    }

    /// The headers of all parts of a GGUF model.
    fn header(&mut self, model: &HubModel, weights: &[File]) -> Result<Files, HubError> {
        let heads = heads(self.fetcher.remote.id, weights, |file, bytes| Ok(self.fetcher.head(file, bytes)?))?;
        let gguf = Gguf::new(heads).map_err(|e| HubError::Wrong(one_line(&format!("{}: {e:#}", model.name()))))?;
        Ok(Files::Gguf(Arc::new(gguf)))
    }

    /// Sizes and hashes of files, from the listing or else from HTTP headers.
    fn files<S: AsRef<str>>(&mut self, names: impl Iterator<Item = S>) -> Result<Vec<File>, HubError> {
        let remote = self.fetcher.remote;
        let mut files = Vec::new();
        for name in names {
            let name = name.as_ref();
            let mut listed = self.listing.files[name].clone();
            if listed.bytes.is_none() || listed.hash.is_none() {
                listed = remote.headers(&self.listing.commit, name, self.fetcher.observer)?;
            }
            let (Some(bytes), Some(hash)) = (listed.bytes, listed.hash) else {
                let (id, host) = (remote.id, remote.hub.host());
                return Err(HubError::Failed(format!(
                    "{id} is not downloaded: {host} gives no hash of {name}, so it cannot be verified"
                )));
            };
            // Opening the model reads all other files into memory, so their size is bounded.
            let weights = [".safetensors", ".gguf", GATES].iter().any(|end| name.ends_with(end));
            let most = if weights || gguf_files::is_imatrix(name) { u64::MAX } else { max_text_bytes(name) };
            if bytes > most {
                let (id, host) = (remote.id, remote.hub.host());
                return Err(HubError::Wrong(format!(
                    "{id} is not downloaded: {host} lists {name} with {bytes} bytes, expected at most {most}"
                )));
            }
            files.push(File { name: name.to_owned(), bytes, hash });
        }
        Ok(files)
    }

    /// The weight files: a single one, or the shards in the index. Downloads the index and adds it
    /// to `texts`.
    fn weights(&mut self, texts: &mut Vec<File>) -> Result<Vec<File>, HubError> {
        let id = self.fetcher.remote.id;
        let files = &self.listing.files;
        if files.contains_key(WEIGHTS) {
            return self.files([WEIGHTS].iter());
        }
        if !files.contains_key(INDEX) {
            return Err(HubError::Wrong(format!(
                "{id} has neither {WEIGHTS} nor {INDEX}, and only safetensors weights are read"
            )));
        }
        let index = self.files([INDEX].iter())?;
        let raw = self.fetcher.small(&index[0])?;
        texts.extend(index);
        let names = cache::shards(&raw).map_err(|e| HubError::Wrong(one_line(&format!("{id}: {e:#}"))))?;
        if let Some(name) = names.iter().find(|name| !files.contains_key(*name)) {
            return Err(HubError::Wrong(format!("{id}: {INDEX} names {name}, which the hub does not have")));
        }
        self.files(names.iter())
    }

    fn plan(&self, model: &HubModel, wanted: &Wanted, cache: &Path) -> Plan {
        let Wanted { texts, weights, config } = wanted;
        let sum = |files: &[File]| files.iter().map(|f| f.bytes).fold(0, u64::saturating_add);
        let missing = |f: &File| f.bytes - self.fetcher.here(f);
        Plan {
            name: model.name(),
            commit: self.listing.commit.clone(),
            license: self.listing.license.clone(),
            n_files: texts.len() + weights.len(),
            bytes: sum(texts).saturating_add(sum(weights)),
            todo_bytes: texts.iter().chain(weights).map(missing).fold(0, u64::saturating_add),
            weight_bytes: sum(weights),
            config: config.clone(),
            free_bytes: free_bytes(cache),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Hash;

    /// The beginning of a file.
    struct Begun(Arc<Vec<u8>>, usize);

    impl AsRef<[u8]> for Begun {
        fn as_ref(&self) -> &[u8] {
            &self.0[..self.1]
        }
    }

    /// Many parts whose headers never end: their bytes in memory together are bounded.
    #[test]
    fn the_headers_of_all_parts_are_bounded_together() {
        // One string of metadata that is longer than a header may be, or no metadata.
        let long =
            [&b"GGUF"[..], &[3, 0, 0, 0], &[0; 8], &1u64.to_le_bytes(), &1u64.to_le_bytes(), b"k", &[8, 0, 0, 0]];
        let long = [long.concat(), (1u64 << 28).to_le_bytes().to_vec()].concat();
        let short = [&b"GGUF"[..], &[3, 0, 0, 0], &[0; 16]].concat();
        for (begin, parts, refused_at) in [(&long, 60, Some(2)), (&short, gguf_files::MOST_PARTS, None)] {
            let mut whole = vec![0; HEADER_BYTES];
            whole[..begin.len()].copy_from_slice(begin);
            let whole = Arc::new(whole);
            let file = |n: usize| File {
                name: format!("part {n}"),
                bytes: 1 << 30,
                hash: Hash::parse(&"a".repeat(64)).unwrap(),
            };
            let files: Vec<File> = (0..parts).map(file).collect();
            let mut held: BTreeMap<String, u64> = BTreeMap::new();
            let read = heads("any/model", &files, |file, bytes| {
                held.insert(file.name.clone(), bytes);
                let begun: SharedBytes = Arc::new(Begun(whole.clone(), bytes as usize));
                Ok(begun)
            });
            match (read, refused_at) {
                (Err(why), Some(n)) => {
                    assert!(why.to_string().contains(&format!("up to part {n} have more than")), "{why}")
                }
                (read, at) => assert!(read.is_ok_and(|heads| heads.len() == parts) && at.is_none()),
            }
            assert!(held.values().sum::<u64>() <= 200 << 20, "{held:?}");
        }
    }
}
