//! The files of a checkpoint, in a folder or embedded. Owns the rule that file names are plain and
//! do not leave the folder. Knows nothing of their content.

use super::gguf::{Gguf, Part};
use super::{builtin, mapped};
use crate::hub::gguf_files;
use crate::hub::layout::{WEIGHTS, max_text_bytes, plain_name};
use crate::regular_file;
use crate::tensor::SharedBytes;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of one checkpoint.
#[derive(Clone)]
pub enum Files {
    Folder {
        /// The path that the user gave, for error messages.
        dir: PathBuf,
        /// Canonical folders. Every file must be in one of them after links are resolved.
        roots: Vec<PathBuf>,
    },
    BuiltIn,
    /// Files in memory, by name.
    Memory(BTreeMap<String, SharedBytes>),
    /// One file of weights, whose metadata are the others.
    Gguf(Arc<Gguf>),
}

impl Files {
    /// The folder or the GGUF file at `path`.
    pub fn at(path: &Path) -> Result<Self> {
        if !path.is_file() {
            return Self::folder(path);
        }
        let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        ensure!(
            named || gguf_files::begins((*mapped::map_file(path)?).as_ref()),
            "{} is a file; give a GGUF file, or the folder that holds config.json and the weights",
            path.display()
        );
        Ok(Self::Gguf(Arc::new(Gguf::open(path)?)))
    }

    /// Files in memory, by name: from a folder, or from a GGUF model.
    pub fn memory(files: BTreeMap<String, SharedBytes>) -> Result<Self> {
        let parts = files.iter().filter(|(name, _)| name.ends_with(".gguf"));
        let parts: Vec<Part> = parts.map(|(name, bytes)| Part::whole(name, bytes.clone())).collect();
        match parts.is_empty() {
            false => Ok(Self::Gguf(Arc::new(Gguf::new(parts)?))),
            true => Ok(Self::Memory(files)),
        }
    }

    /// A folder of model files. A snapshot of the Hugging Face cache
    /// (`models--ORG--NAME/snapshots/COMMIT`) may also link into its repository's `blobs`.
    pub fn folder(dir: &Path) -> Result<Self> {
        let canonical = std::fs::canonicalize(dir).with_context(|| format!("no model folder {}", dir.display()))?;
        ensure!(canonical.is_dir(), "{} is neither a folder nor a file", dir.display());
        if !canonical.join("config.json").exists()
            && let Some(file) = gguf_file(dir)
        {
            bail!(
                "{} is not a model folder but holds GGUF files; give the path of one, such as {}",
                dir.display(),
                file.display()
            );
        }
        let blobs = blobs_of(&canonical);
        Ok(Self::Folder { dir: dir.to_owned(), roots: [Some(canonical), blobs].into_iter().flatten().collect() })
    }

    /// The commit, for a snapshot of the Hugging Face cache.
    pub fn commit(&self) -> Option<String> {
        let Self::Folder { roots, .. } = self else { return None };
        let snapshot = roots.first().filter(|dir| blobs_of(dir).is_some())?;
        Some(snapshot.file_name()?.to_str()?.to_owned())
    }

    /// Whether they are a folder or a file of the user's.
    pub fn are_on_disk(&self) -> bool {
        matches!(self, Self::Folder { .. } | Self::Gguf(_))
    }

    /// The name of a file in error messages.
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Folder { dir, .. } => dir.join(name).display().to_string(),
            Self::BuiltIn => format!("demo/{name}"),
            Self::Memory(_) => name.to_owned(),
            Self::Gguf(gguf) => gguf.label().to_owned(),
        }
    }

    /// The content of a text file; `None` if it does not exist.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::BuiltIn => builtin::file(name).map(<[u8]>::to_vec),
            Self::Memory(files) => files.get(name).map(|bytes| (**bytes).as_ref().to_vec()),
            Self::Gguf(gguf) => gguf.text(name)?,
            Self::Folder { .. } => match self.path(name)? {
                Some(path) => Some(regular_file::read(&path, max_text_bytes(name)).with_context(|| self.label(name))?),
                None => None,
            },
        })
    }

    /// The bytes of a weight file, shared and not copied; `None` if it does not exist.
    pub fn bytes(&self, name: &str) -> Result<Option<SharedBytes>> {
        match self {
            #[cfg(not(builtin_model))]
            Self::BuiltIn => bail!(builtin::LEFT_OUT),
            #[cfg(builtin_model)]
            Self::BuiltIn => match name {
                WEIGHTS => {
                    let bytes = builtin::weights().context("no memory for the built-in model (16 MB)")?;
                    Ok(Some(Arc::new(bytes)))
                }
                _ => Ok(None),
            },
            Self::Memory(files) => Ok(files.get(name).cloned()),
            Self::Gguf(_) => Ok(None),
            Self::Folder { .. } => self.path(name)?.map(|path| mapped::map_file(&path)).transpose(),
        }
    }

    /// Checks a name and resolves its links; `None` if the file does not exist (or is embedded).
    fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        let Self::Folder { dir, roots } = self else { return Ok(None) };
        plain_name(name).with_context(|| format!("{} names a file outside the model folder", dir.display()))?;
        let path = match std::fs::canonicalize(dir.join(name)) {
            Ok(path) => path,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let dangling = dir.join(name).is_symlink();
                ensure!(!dangling, "{} is a link to a file that is gone", self.label(name));
                return Ok(None);
            }
            Err(e) => return Err(e).with_context(|| self.label(name)),
        };
        let inside = roots.iter().any(|root| path.starts_with(root));
        ensure!(inside, "{} is a link out of the model folder, which is refused", self.label(name));
        Ok(Some(path))
    }
}

/// The first GGUF file in a folder.
fn gguf_file(dir: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    files.filter(|p| p.extension().is_some_and(|e| e == "gguf")).min()
}

/// The folder that a snapshot in the Hugging Face cache links to.
fn blobs_of(snapshot: &Path) -> Option<PathBuf> {
    let snapshots = snapshot.parent().filter(|p| p.ends_with("snapshots"))?;
    let repository = snapshots.parent()?;
    let named = repository.file_name()?.to_str()?.starts_with("models--");
    named.then(|| repository.join("blobs"))
}
