//! The file of a model's [`DialTable`], so that its trial prefill runs only once.

use crate::policy::DialTable;
use crate::regular_file::{self, temporary::Temporary};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAX_BYTES: u64 = 1 << 16;

/// The file of the model with this fingerprint, whose weights have this format, in a folder.
pub fn path(folder: &Path, fingerprint: &str, weights: &str) -> PathBuf {
    folder.join(format!("{fingerprint}-{weights}.json"))
}

/// Reads a table; `None` if there is none that can be used.
pub fn read(path: &Path) -> Option<DialTable> {
    let bytes = regular_file::read(path, MAX_BYTES).ok()?;
    DialTable::of_quantiles(serde_json::from_slice(&bytes).ok()?)
}

/// Writes a table.
pub fn write(path: &Path, table: &DialTable) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("no folder"))?;
    let mut new = Temporary::in_own_folder(folder)?;
    new.file.write_all(&serde_json::to_vec(table.quantiles())?)?;
    new.rename(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::STRENGTHS;

    #[test]
    fn a_table_is_read_as_written_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(&folder.path().join("dials"), "f00d", "int4");
        assert!(read(&path).is_none());
        let table = DialTable::of_counts(&[7; STRENGTHS]).unwrap();
        write(&path, &table).unwrap();
        assert_eq!(read(&path), Some(table));
        std::fs::write(&path, b"[1, 2").unwrap();
        assert!(read(&path).is_none());
    }
}
