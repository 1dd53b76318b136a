//! Where a checkpoint's files come from: a folder, or the embedded model. Owns the rule that names
//! are plain and stay inside; knows nothing of what the files say.

use super::{builtin, mapped};
use crate::tensor::SharedBytes;
use anyhow::{Context, Result, bail, ensure};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// JSON and Jinja files larger than this are refused unread (the largest tokenizer.json known is
/// a tenth of it).
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// The files of one checkpoint.
pub enum Files {
    Folder {
        /// As the user gave it, for messages.
        dir: PathBuf,
        /// Canonical folder that every file must lie in once links are followed.
        root: PathBuf,
    },
    BuiltIn,
}

impl Files {
    /// A folder of model files. A snapshot of the Hugging Face cache links into its sibling
    /// `blobs`, so there the bound is the repository's folder.
    pub fn folder(dir: &Path) -> Result<Self> {
        let canonical = std::fs::canonicalize(dir).with_context(|| format!("no model folder {}", dir.display()))?;
        ensure!(
            canonical.is_dir(),
            "{} is a file; give the folder that holds config.json and the weights",
            dir.display()
        );
        let snapshots = canonical.parent().filter(|p| p.ends_with("snapshots")).and_then(Path::parent);
        let root = snapshots.unwrap_or(&canonical).to_owned();
        Ok(Self::Folder { dir: dir.to_owned(), root })
    }

    /// How messages name a file.
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Folder { dir, .. } => dir.join(name).display().to_string(),
            Self::BuiltIn => format!("demo/{name}"),
        }
    }

    /// The whole of a text file, or `None` where there is none.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(path) = self.path(name)? else {
            return Ok(builtin::file(name).filter(|_| matches!(self, Self::BuiltIn)).map(<[u8]>::to_vec));
        };
        let len = std::fs::metadata(&path).with_context(|| self.label(name))?.len();
        ensure!(len <= MAX_TEXT_BYTES, "{} has {len} bytes, more than a file of its kind may", self.label(name));
        Ok(Some(std::fs::read(&path).with_context(|| self.label(name))?))
    }

    /// The bytes of a weight file, shared and not copied, or `None` where there is none.
    pub fn bytes(&self, name: &str) -> Result<Option<SharedBytes>> {
        match self {
            Self::BuiltIn => Ok(builtin::file(name).map(|bytes| Arc::new(bytes) as SharedBytes)),
            Self::Folder { .. } => self.path(name)?.map(|path| mapped::map_file(&path)).transpose(),
        }
    }

    /// Checks a name and follows its links; `None` where nothing is there (or it is embedded).
    fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        let Self::Folder { dir, root } = self else { return Ok(None) };
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
        ensure!(path.starts_with(root), "{} is a link out of the model folder, which is refused", self.label(name));
        Ok(Some(path))
    }
}

/// Refuses what is not a relative path of ordinary names.
pub fn plain_name(name: &str) -> Result<()> {
    let plain = !name.is_empty()
        && !name.contains(['\\', '\0', ':'])
        && !name.chars().any(char::is_control)
        && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
    if !plain {
        bail!("file name {name:?} is not a plain relative name");
    }
    Ok(())
}
