//! Finds the importance matrix that was published with a model: beside its GGUF file, or in a GGUF
//! repository of its name in the Hugging Face cache. Opens no connection.

use crate::checkpoint::Checkpoint;
use crate::checkpoint::files::Files;
use crate::hub::cache::{self, Repo};
use crate::hub::model_names::same;
use crate::hub::{self, gguf_files};
use std::fs;
use std::path::{Path, PathBuf};

/// An importance matrix on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub path: PathBuf,
    /// For the user: `imatrix_unsloth.dat of unsloth/Qwen3-8B-GGUF`.
    pub name: String,
}

/// The importance matrix of a model; `None` if there is none, or if several may be meant.
pub fn find(checkpoint: &Checkpoint) -> Option<Published> {
    find_in(&hub::cache_dir().ok()?, checkpoint)
}

fn find_in(cache: &Path, checkpoint: &Checkpoint) -> Option<Published> {
    let (name, origin) = (&checkpoint.name, checkpoint.origin.as_ref()?);
    let beside = || {
        let Files::Gguf(gguf) = &origin.files else { return None };
        let (file, stem) = (Path::new(gguf.label()), Path::new(gguf.label()).file_stem()?.to_str()?);
        match snapshot(file) {
            Some((folder, id)) => in_folder(folder, stem, Some(&id)),
            None => in_folder(file.parent()?, stem, None),
        }
    };
    beside().or_else(|| in_repositories(cache, name))
}

/// The file of the only repository of this model in the cache that has one. Some publishers put the
/// owner before the name.
fn in_repositories(cache: &Path, model: &str) -> Option<Published> {
    let owned = model.replacen('/', "_", 1);
    let of_model = |id: &String| same(id, model) || same(id, &owned);
    let in_repository = |id: String| {
        let repo = Repo::new(cache, &id);
        // A later commit has only the files that were pulled since.
        let folders = repo.snapshot(hub::MAIN).ok().flatten().into_iter();
        let mut folders = folders.chain(repo.commits().into_iter().map(|commit| repo.folder(&commit)));
        folders.find_map(|folder| in_folder(&folder, model, Some(&id)))
    };
    let mut found = cache::ids(cache).into_iter().filter(of_model).filter_map(in_repository);
    found.next().filter(|_| found.next().is_none())
}

/// The importance matrix among the files of a folder: of a repository's commit, or of one that may
/// hold several models.
fn in_folder(folder: &Path, model: &str, id: Option<&str>) -> Option<Published> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let file = gguf_files::imatrix(names.iter().map(String::as_str), model, id.is_none())?;
    let path = folder.join(file);
    let fits = fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= gguf_files::MAX_IMATRIX_BYTES);
    let name = id.map_or_else(|| path.display().to_string(), |id| format!("{file} of {id}"));
    fits.then_some(Published { path, name })
}

/// Returns the commit's folder that holds a file of the Hugging Face cache, and the id of its
/// repository.
fn snapshot(file: &Path) -> Option<(&Path, String)> {
    file.ancestors().find_map(|folder| {
        let repository = folder.parent().filter(|above| above.ends_with("snapshots"))?.parent()?;
        let name = repository.file_name()?.to_str()?.strip_prefix("models--")?;
        Some((folder, name.replacen("--", "/", 1)))
    })
}
