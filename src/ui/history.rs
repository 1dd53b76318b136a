//! The input history on disk, one JSON string a line. Entries are appended one by one, so that
//! neither a second chat nor a kill loses any. Failures are ignored.

use crate::regular_file::temporary::Temporary;
use crate::regular_file::{is_at, make_private_folder, open_no_follow, private};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Entries that are read; the file is shortened when it holds twice this number.
const MAX_ENTRIES: usize = 1_000;
/// A longer entry stays in memory.
const MAX_ENTRY_BYTES: usize = 1 << 20;
/// Most bytes read from the end of the file; a longer file is shortened.
const MAX_BYTES: u64 = 16 << 20;

/// The file of the input history.
#[derive(Clone, Debug)]
pub struct HistoryFile {
    path: Option<PathBuf>,
}

impl HistoryFile {
    /// Without `path` nothing is read or written.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// Returns the newest entries, oldest first.
    pub fn read(&self) -> Vec<String> {
        let file = self.path.as_ref().and_then(|path| open_no_follow(OpenOptions::new().read(true), path).ok());
        file.map_or_else(Vec::new, |mut file| newest(&lines_of(&mut file)).iter().filter_map(|l| parse(l)).collect())
    }

    /// Adds an entry.
    pub fn append(&self, entry: &str) {
        let Some(path) = &self.path else { return };
        if entry.len() > MAX_ENTRY_BYTES {
            return;
        }
        let (Ok(line), Some(mut file)) = (serde_json::to_string(entry), locked(path)) else { return };
        // A process that was killed may have left half a line.
        let ended = file.seek(SeekFrom::End(-1)).is_err() || {
            let mut last = [0];
            file.read_exact(&mut last).is_err() || last == *b"\n"
        };
        let begin = if ended { "" } else { "\n" };
        let _ = file.write_all(format!("{begin}{line}\n").as_bytes());
    }

    /// Shortens a long file to its newest entries, including entries of other processes.
    pub fn shorten(&self) {
        let Some(mut file) = self.path.as_deref().and_then(locked) else { return };
        let long = file.metadata().is_ok_and(|m| m.len() > MAX_BYTES);
        let lines = lines_of(&mut file);
        let Some((path, folder)) = self.path.as_ref().and_then(|path| Some((path, path.parent()?))) else { return };
        if long || lines.len() > 2 * MAX_ENTRIES {
            // Other processes wait for the lock and then open the new file.
            let _ = Temporary::in_own_folder(folder).and_then(|mut new| {
                new.file.write_all((newest(&lines).join("\n") + "\n").as_bytes())?;
                new.rename(path)
            });
        }
    }
}

fn newest(lines: &[String]) -> &[String] {
    &lines[lines.len().saturating_sub(MAX_ENTRIES)..]
}

fn parse(line: &str) -> Option<String> {
    serde_json::from_str(line).ok()
}

/// The whole lines among the last bytes of a file.
fn lines_of(file: &mut File) -> Vec<String> {
    let len = file.metadata().map_or(0, |m| m.len());
    let from = len.saturating_sub(MAX_BYTES);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(from)).is_err() || file.take(MAX_BYTES).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let cut = usize::from(from > 0);
    text.lines().skip(cut).filter(|line| parse(line).is_some()).map(str::to_owned).collect()
}

/// Opens or creates the file for appending and locks it. After half a second it is used without the
/// lock: appends of whole lines do not mix.
fn locked(path: &Path) -> Option<File> {
    if let Some(folder) = path.parent() {
        make_private_folder(folder).ok()?;
    }
    for _ in 0..50 {
        let file = open_no_follow(private(OpenOptions::new().read(true).append(true).create(true)), path).ok()?;
        if file.try_lock().is_ok() && file.metadata().is_ok_and(|m| is_at(path, &m).unwrap_or(true)) {
            return Some(file);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    open_no_follow(OpenOptions::new().read(true).append(true), path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_chats_and_a_kill_keep_every_entry_and_long_files_are_shortened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data/history.jsonl");
        let (one, two) = (HistoryFile::new(Some(path.clone())), HistoryFile::new(Some(path.clone())));
        one.append("first\nin two lines");
        two.append("second");
        // Neither has ended, and one of them was killed while it wrote.
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"\"half").unwrap();
        one.append("third");
        assert_eq!(two.read(), ["first\nin two lines", "second", "third"]);
        one.append(&"x".repeat(MAX_ENTRY_BYTES + 1));
        for n in 0..2 * MAX_ENTRIES {
            two.append(&n.to_string());
        }
        one.shorten();
        two.append("last");
        let kept = one.read();
        assert_eq!((kept.len(), kept[0].as_str(), kept.last().unwrap().as_str()), (MAX_ENTRIES, "1001", "last"));
        assert!(std::fs::read_to_string(&path).unwrap().lines().count() == MAX_ENTRIES + 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_or_a_pipe_in_its_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("history.jsonl"), dir.path().join("other"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let file = HistoryFile::new(Some(path));
        file.append("typed");
        file.shorten();
        assert_eq!((std::fs::read_to_string(&other).unwrap(), file.read().len()), ("mine".to_owned(), 0));
    }
}
