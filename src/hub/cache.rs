//! The Hugging Face cache on disk, shared with other tools: `models--ORG--NAME/` with `blobs/HASH`,
//! `snapshots/COMMIT/FILE` (links to blobs) and `refs/REVISION` (the name of a commit); locks are
//! in `.locks/models--ORG--NAME/HASH.lock`. Opens no connection.

use super::gguf_files::{self, GgufModel};
use super::layout::{self, GATES, INDEX, WEIGHTS};
use super::names::{HubModel, is_hub_id, is_plain};
use super::near;
use super::progress::HubError;
use crate::regular_file;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub const CONFIG: &str = "config.json";
pub const TOKENIZER: &str = "tokenizer.json";
const PARTIAL: &str = "incomplete";
/// Largest reference, which holds the name of a commit.
const MAX_REFERENCE_BYTES: u64 = 4096;

/// How complete a snapshot of a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// It cannot be opened.
    Part,
    /// It has configuration and weights.
    Weights,
    /// It also has a tokenizer: everything that a chat needs.
    Whole,
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// The folder of its commit, or its GGUF file there (the first part of several).
    pub path: PathBuf,
    pub commit: String,
    pub extent: Extent,
}

/// A model repository in a cache folder.
#[derive(Clone, Debug)]
pub struct Repo {
    pub id: String,
    pub dir: PathBuf,
    cache: hf_hub::Cache,
    repo: hf_hub::Repo,
    /// Folder of its locks, relative to the cache folder.
    locks: PathBuf,
}

impl Repo {
    pub fn new(cache: &Path, id: &str) -> Self {
        let repo = hf_hub::Repo::model(id.to_owned());
        let name = repo.folder_name();
        let locks = Path::new(".locks").join(&name);
        Self { id: id.to_owned(), dir: cache.join(name), cache: hf_hub::Cache::new(cache.to_owned()), repo, locks }
    }

    /// The folder of a revision, which may be incomplete; `None` if there is none.
    pub fn snapshot(&self, revision: &str) -> Result<Option<PathBuf>> {
        let commit = match reference(&self.dir.join("refs").join(revision)) {
            Some(commit) => commit,
            // The revision may be a commit.
            None => revision.to_owned(),
        };
        layout::plain_name(&commit).with_context(|| format!("{}: bad reference {revision}", self.dir.display()))?;
        Ok(Some(self.folder(&commit)).filter(|dir| dir.is_dir()))
    }

    /// The model in the cache, in part or whole; `None` if nothing of the revision is there.
    pub fn find(&self, model: &HubModel) -> Result<Option<Cached>> {
        let folder = self.snapshot(model.revision())?;
        let commit = |folder: &Path| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(wanted) = &model.gguf else {
            let cached = folder.map(|path| Cached { commit: commit(&path), extent: extent(&path), path });
            return Ok(cached);
        };
        // A later commit has only the files that were pulled since.
        let others = || self.commits().into_iter().filter(|_| model.revision.is_none()).map(|c| self.folder(&c));
        let found = folder.into_iter().chain(others()).find_map(|folder| {
            let models = gguf_models(&folder);
            let path = folder.join(&gguf_files::pick(&models, wanted)?.files[0]);
            Some(Cached { path, commit: commit(&folder), extent: Extent::Whole })
        });
        Ok(found)
    }

    /// The folder of a commit. `commit` has to be a plain name: an absolute path would replace the
    /// folder.
    pub fn folder(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo.clone()).pointer_path(commit)
    }

    /// The file of that hash.
    pub fn blob(&self, hash: &str) -> PathBuf {
        self.dir.join("blobs").join(hash)
    }

    /// The incomplete file of that hash.
    pub fn partial(&self, hash: &str) -> PathBuf {
        beside(&self.blob(hash), PARTIAL)
    }

    /// Opens the lock of a blob, which huggingface_hub also takes while it downloads.
    pub fn lock_file(&self, hash: &str) -> io::Result<File> {
        let path = real_folder(self.cache.path(), &self.locks)?.join(format!("{hash}.lock"));
        regular_file::open_no_follow(File::options().create(true).truncate(false).write(true), &path)
            .map_err(|e| named(&path, &e))
    }

    /// Opens or creates the incomplete file of a blob. Does not follow a link.
    pub fn open_partial(&self, hash: &str) -> io::Result<File> {
        real_folder(&self.dir, Path::new("blobs"))?;
        let path = self.partial(hash);
        regular_file::open_no_follow(File::options().create(true).truncate(false).read(true).write(true), &path)
            .map_err(|e| named(&path, &e))
    }

    /// Links a blob under its file name into a commit's folder.
    pub fn link(&self, commit: &str, name: &str, hash: &str) -> io::Result<()> {
        let path = Path::new("snapshots").join(commit).join(name);
        real_folder(&self.dir, path.parent().unwrap_or(&path))?;
        let path = self.dir.join(path);
        let up = "../".repeat(2 + Path::new(name).components().count() - 1);
        let target = PathBuf::from(format!("{up}blobs/{hash}"));
        if fs::read_link(&path).is_ok_and(|old| old == target) {
            return Ok(());
        }
        // Create the link beside it and rename, so that the name is never missing.
        let fresh = beside(&path, &format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&fresh);
        regular_file::link(&target, &self.blob(hash), &fresh)?;
        fs::rename(&fresh, &path)
    }

    /// Makes `revision` refer to `commit`.
    pub fn set_reference(&self, revision: &str, commit: &str) -> io::Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = Path::new("refs").join(revision);
        real_folder(&self.dir, path.parent().unwrap_or(&path))?;
        let path = self.dir.join(path);
        let fresh = beside(&path, &format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&fresh);
        // create_new does not follow a link.
        let mut file = File::options().write(true).create_new(true).open(&fresh)?;
        file.write_all(commit.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &path)
    }

    /// References and their commits.
    pub fn references(&self) -> BTreeMap<String, String> {
        let files = files_below(&self.dir.join("refs")).into_iter();
        files.map(|(name, path)| (name, reference(&path).unwrap_or_default())).collect()
    }

    /// Commits with a folder, sorted.
    pub fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join("snapshots")).into_iter().flatten().flatten();
        let mut commits: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        commits.sort();
        commits
    }

    /// Bytes of complete and of incomplete blobs.
    pub fn bytes(&self) -> (u64, u64) {
        let (mut whole, mut partial) = (0, 0);
        for entry in fs::read_dir(self.dir.join("blobs")).into_iter().flatten().flatten() {
            let bytes = entry.metadata().map_or(0, |m| m.len());
            let part = entry.path().extension().is_some_and(|e| e == PARTIAL);
            *if part { &mut partial } else { &mut whole } += bytes;
        }
        (whole, partial)
    }

    /// Deletes all revisions of the model and returns the number of bytes freed. Fails while a
    /// process downloads it.
    pub fn remove(&self) -> Result<u64, HubError> {
        let _held = self.hold()?;
        let (whole, partial) = self.bytes();
        let failed = |e: io::Error| HubError::Failed(format!("{}: {e}", self.dir.display()));
        fs::remove_dir_all(&self.dir).map_err(failed)?;
        let _ = fs::remove_dir_all(self.cache.path().join(&self.locks));
        Ok(whole + partial)
    }

    /// Takes all its locks, so that no process downloads it. Fails if one does.
    fn hold(&self) -> Result<Vec<File>, HubError> {
        let mut held = Vec::new();
        for entry in fs::read_dir(self.cache.path().join(&self.locks)).into_iter().flatten().flatten() {
            let opened = regular_file::open_no_follow(File::options().write(true), &entry.path());
            let Ok(lock) = opened else { continue };
            if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(HubError::Failed(format!("{} is being downloaded by another process", self.id)));
            }
            held.push(lock);
        }
        Ok(held)
    }

    /// Deletes the files of a GGUF model, in its revision or else in all revisions, and the blobs
    /// that are no longer used. The repository is deleted with its last file.
    pub fn remove_gguf(&self, model: &HubModel) -> Result<u64, HubError> {
        let failed = |e: io::Error| HubError::Failed(format!("{}: {e}", self.dir.display()));
        let held = self.hold()?;
        let (before, _) = self.bytes();
        while let Some(found) = self.find(model).ok().flatten() {
            let folder = self.folder(&found.commit);
            let models = gguf_models(&folder);
            let picked = gguf_files::pick(&models, model.gguf.as_deref().unwrap_or_default());
            for file in picked.into_iter().flat_map(|model| &model.files) {
                fs::remove_file(folder.join(file)).map_err(failed)?;
            }
        }
        // An importance matrix alone is of no use.
        if self.linked(|name| !gguf_files::is_imatrix(name)).is_empty() {
            drop(held);
            return self.remove();
        }
        self.remove_unlinked().map_err(failed)?;
        Ok(before - self.bytes().0)
    }

    /// Deletes one revision: its folder, its references, and the blobs that no other revision uses.
    pub fn remove_revision(&self, revision: &str) -> Result<u64, HubError> {
        let references = self.references();
        let commit = references.get(revision).cloned().unwrap_or_else(|| revision.to_owned());
        let failed = |e: io::Error| HubError::Failed(format!("{}: {e}", self.dir.display()));
        let held = self.hold()?;
        let (before, _) = self.bytes();
        if is_plain(&commit) && self.folder(&commit).is_dir() {
            fs::remove_dir_all(self.folder(&commit)).map_err(failed)?;
        }
        for (name, _) in references.iter().filter(|(_, meant)| **meant == commit) {
            fs::remove_file(self.dir.join("refs").join(name)).map_err(failed)?;
        }
        if self.commits().is_empty() {
            drop(held);
            return self.remove();
        }
        self.remove_unlinked().map_err(failed)?;
        Ok(before - self.bytes().0)
    }

    /// Deletes the complete blobs that no snapshot links to.
    fn remove_unlinked(&self) -> io::Result<()> {
        let kept = self.linked(|_| true);
        for entry in fs::read_dir(self.dir.join("blobs")).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|e| e != PARTIAL) && !kept.contains(&path) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Blobs that a snapshot links to under such names.
    fn linked(&self, counts: impl Fn(&str) -> bool) -> BTreeSet<PathBuf> {
        let blobs = self.dir.join("blobs");
        let files = files_below(&self.dir.join("snapshots")).into_values();
        let counted = files.filter(|path| path.file_name().is_some_and(|name| counts(&name.to_string_lossy())));
        let targets = counted.filter_map(|path| fs::read_link(path).ok());
        targets.filter_map(|target| Some(blobs.join(target.file_name()?))).collect()
    }
}

/// Lists the files in a folder and its subfolders, sorted, with names relative to that folder. Does
/// not follow links.
fn files_below(root: &Path) -> BTreeMap<String, PathBuf> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match (entry.file_type(), path.strip_prefix(root).map(|name| name.to_string_lossy().replace('\\', "/"))) {
                (Ok(kind), _) if kind.is_dir() => folders.push(path),
                (Ok(_), Ok(name)) => drop(files.insert(name, path)),
                _ => {}
            }
        }
    }
    files
}

/// Whether a path is a GGUF file, or a folder with a configuration and weights. Does not look at
/// their content.
pub fn holds_model(path: &Path) -> bool {
    if !path.is_file() {
        return extent(path) >= Extent::Weights;
    }
    let mut begin = [0; 4];
    let read = regular_file::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && gguf_files::begins(&begin)
}

/// How complete the model in a folder is.
pub fn extent(snapshot: &Path) -> Extent {
    let there = |name: &str| snapshot.join(name).is_file();
    let sharded = || {
        let raw = regular_file::read(&snapshot.join(INDEX), layout::max_text_bytes(INDEX));
        let names = raw.ok().and_then(|raw| shards(&raw).ok());
        names.is_some_and(|names| !names.is_empty() && names.iter().all(|name| there(name)))
    };
    if !there(CONFIG) || !(there(WEIGHTS) || there(GATES) || sharded()) {
        Extent::Part
    } else if there(TOKENIZER) {
        Extent::Whole
    } else {
        Extent::Weights
    }
}

/// The weight files in an index. Each is a plain relative name.
pub fn shards(index: &[u8]) -> Result<BTreeSet<String>> {
    let json: serde_json::Value = serde_json::from_slice(index).with_context(|| format!("{INDEX} is not JSON"))?;
    let map = json.get("weight_map").and_then(|m| m.as_object());
    let map = map.with_context(|| format!("{INDEX} has no weight_map"))?;
    let mut out = BTreeSet::new();
    for value in map.values() {
        let name = value.as_str().unwrap_or_default();
        layout::plain_name(name).with_context(|| format!("{INDEX} is refused"))?;
        ensure!(name.ends_with(".safetensors"), "{INDEX} names {name:?}, and only safetensors are read");
        out.insert(name.to_owned());
    }
    Ok(out)
}

/// A hub model in a cache folder, or an error that says how to get it.
pub fn find_in(cache: &Path, model: &HubModel) -> Result<Cached> {
    let (id, repo) = (&model.id, Repo::new(cache, &model.id));
    let name = model.name();
    if !repo.dir.is_dir() {
        let near = near::suggestion(id, &ids(cache));
        bail!(
            "{id} is not in the Hugging Face cache ({}): dmschat models pull {name} downloads it{near}",
            cache.display()
        );
    }
    repo.find(model)?.with_context(|| {
        let at = model.revision.as_ref().map(|r| format!("@{r}")).unwrap_or_default();
        let without = match &model.gguf {
            Some(gguf) if repo.snapshot(model.revision()).is_ok_and(|folder| folder.is_some()) => gguf.clone(),
            _ => format!("revision {}", model.revision()),
        };
        let cache = cache.display();
        format!(
            "{id} is in the Hugging Face cache ({cache}) without {without}: dmschat models pull {name}{at} downloads it"
        )
    })
}

/// The GGUF models in the folder of a commit, whose files are all complete.
pub fn gguf_models(snapshot: &Path) -> Vec<GgufModel> {
    let files = files_below(snapshot).into_iter();
    let files: Vec<(String, u64)> =
        files.filter_map(|(name, path)| Some((name, fs::metadata(path).ok()?.len()))).collect();
    gguf_files::models(files.iter().map(|(name, bytes)| (name.as_str(), *bytes)))
}

/// Ids of the models in a cache folder, sorted.
pub fn ids(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let mut ids: Vec<String> = names
        .filter_map(|n| Some(n.strip_prefix("models--")?.replacen("--", "/", 1)))
        .filter(|n| is_hub_id(n))
        .collect();
    ids.sort();
    ids
}

/// The commit in a reference.
fn reference(path: &Path) -> Option<String> {
    Some(regular_file::read_text(path, MAX_REFERENCE_BYTES).ok()?.trim().to_owned())
}

/// Creates the folders of a relative path below `root`. None of them may be a link, so that
/// downloads stay below `root`.
fn real_folder(root: &Path, below: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(root)?;
    let mut path = root.to_owned();
    for part in below.components() {
        path.push(part);
        match fs::create_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::symlink_metadata(&path)?.is_dir() {
                    let what = "a link or a file where the cache has a folder; move it away";
                    return Err(named(&path, &io::Error::new(io::ErrorKind::NotADirectory, what)));
                }
            }
            made => made?,
        }
    }
    Ok(path)
}

/// Adds the path to the error.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Appends `.added` to the file name.
fn beside(path: &Path, added: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(added);
    PathBuf::from(name)
}

impl Repo {
    /// An error of the cache's disk.
    pub fn failed(&self, error: &std::io::Error) -> HubError {
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
