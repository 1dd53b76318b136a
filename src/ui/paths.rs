//! Completion of paths: the names in a folder that begin as typed. Bounded, because folders may be
//! huge.

use super::text::clean_line;
use std::path::{Path, PathBuf};

/// Most entries of a folder that are read, and most names offered.
const MAX_ENTRIES: usize = 10_000;
const MAX_NAMES: usize = 200;

/// Returns the paths that begin with `typed`, folders with a slash at the end. Hidden names need a
/// typed dot.
pub fn complete(typed: &str, folders_only: bool) -> Vec<String> {
    let (folder, name) =
        typed.rsplit_once('/').map_or(("", typed), |(folder, name)| (&typed[..folder.len() + 1], name));
    let place = if folder.is_empty() { PathBuf::from(".") } else { expand_home(Path::new(folder)) };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let found = entry.file_name().into_string().ok()?;
            // Names that cannot be shown as they are would be offered under another one.
            if clean_line(&found) != found
                || !found.starts_with(name)
                || (found.starts_with('.') && !name.starts_with('.'))
            {
                return None;
            }
            let kind = std::fs::metadata(entry.path()).ok()?;
            match kind.is_dir() {
                true => Some(format!("{folder}{found}/")),
                false => (kind.is_file() && !folders_only).then(|| format!("{folder}{found}")),
            }
        })
        .collect();
    names.sort();
    names.truncate(MAX_NAMES);
    names
}

pub fn is_folder(typed: &str) -> bool {
    expand_home(Path::new(typed)).is_dir()
}

/// Whether this is a file that can be read whole, or a folder. A pipe is neither.
pub fn can_be_attached(typed: &str) -> bool {
    std::fs::metadata(expand_home(Path::new(typed))).is_ok_and(|found| found.is_file() || found.is_dir())
}

/// `~/x` as a path in the home folder.
pub fn expand_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_completed_in_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = format!("{}/", folder.path().display());
        for name in ["notes.md", "nothing", ".hidden", "no\u{202e}txt.exe", "no\x1b[31m"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("nested")).unwrap();
        let offered = |typed: &str, folders| {
            let found = complete(&format!("{at}{typed}"), folders);
            found.into_iter().map(|p| p.trim_start_matches(&*at).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(offered("n", false), ["nested/", "notes.md", "nothing"]);
        assert_eq!(offered("no", true), [""; 0]);
        assert_eq!(offered("", true), ["nested/"]);
        assert_eq!(offered(".", false), [".hidden"]);
        assert!(complete("/nowhere/at/all", false).is_empty());
    }
}
