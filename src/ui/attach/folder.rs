//! A folder as a list of its files. Bounded, because folders may be huge.

use crate::ui::text::{bytes, clean_line, plural};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Most files that are listed, and most entries that are looked at.
const MAX_FILES: usize = 1_000;
const MAX_ENTRIES: usize = 50_000;
/// How deep folders are entered.
const MAX_DEPTH: usize = 16;

/// The files of a folder and of those in it, with their sizes.
pub struct List {
    /// One a line, in alphabetical order.
    pub text: String,
    /// `12 files`, or `the first 1,000 files`.
    pub what: String,
}

/// Lists a folder, the files nearest to it first. Hidden entries are left out, and links are not
/// entered.
pub fn list(folder: &Path) -> std::io::Result<List> {
    let mut found: Vec<(PathBuf, u64)> = Vec::new();
    let (mut looked, mut complete) = (0, true);
    let mut waiting = VecDeque::from([(PathBuf::new(), 0)]);
    while let Some((inside, depth)) = waiting.pop_front() {
        let entries = match std::fs::read_dir(folder.join(&inside)) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(error),
            Err(_) => continue,
        };
        // A system gives them in any order, and a list that is cut should have the first ones.
        let left = MAX_ENTRIES - looked;
        let mut entries: Vec<_> = entries.flatten().take(left + 1).collect();
        complete &= entries.len() <= left;
        entries.truncate(left);
        looked += entries.len();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let Ok(kind) = entry.file_type() else { continue };
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = inside.join(entry.file_name());
            if kind.is_dir() {
                match depth < MAX_DEPTH {
                    true => waiting.push_back((path, depth + 1)),
                    false => complete = false,
                }
            } else if found.len() < MAX_FILES {
                found.push((path, entry.metadata().map_or(0, |data| data.len())));
            } else {
                complete = false;
            }
        }
    }
    found.sort();
    let line =
        |(path, size): &(PathBuf, u64)| format!("{}  {}\n", clean_line(&path.display().to_string()), bytes(*size));
    let files = plural(found.len() as u64, "file");
    let what = if complete { files } else { format!("the first {files}") };
    Ok(List { text: found.iter().map(line).collect(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_in_order_without_hidden_ones_or_links() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (name, text) in [("b.txt", "12"), ("a/z.rs", ""), ("a/b/c.md", "1"), (".git/config", "x"), ("x\ny", "")] {
            write(name, text);
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink("..", folder.path().join("a/up")).unwrap();
        let list_ = list(folder.path()).unwrap();
        let names: Vec<&str> = list_.text.lines().filter_map(|line| line.split("  ").next()).collect();
        assert_eq!(names[..2], ["a/b/c.md", "a/up"], "{}", list_.text);
        assert!(names.contains(&"a/z.rs") && list_.text.contains("b.txt  2 B\n") && !list_.text.contains(".git"));
        assert_eq!((names.len(), list_.what.as_str()), (5, "5 files"));
        assert!(list(&folder.path().join("none")).is_err());
    }

    #[test]
    fn a_huge_folder_is_cut_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("0")).unwrap();
        for n in 0..MAX_FILES + 1 {
            std::fs::write(folder.path().join("0").join(n.to_string()), "").unwrap();
        }
        std::fs::write(folder.path().join("top"), "").unwrap();
        let found = list(folder.path()).unwrap();
        assert_eq!((found.text.lines().count(), found.what.as_str()), (MAX_FILES, "the first 1,000 files"));
        assert!(found.text.contains("top  0 B"));
    }
}
