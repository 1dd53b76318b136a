//! Profiles: files of settings by name, beside the config file. A profile ranks above the config
//! file and below the environment.

use super::Dirs;
use super::settings::Layer;
use crate::unicode::one_line;
use crate::words::nearest;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// Most characters of a profile's name.
const MAX_NAME: usize = 64;
/// Most entries of the folder that are read.
const MAX_ENTRIES: usize = 10_000;

/// Whether a name can be that of a file in one folder: letters, digits, `-`, `_` and inner dots.
pub fn is_name(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    plain && !name.is_empty() && name.chars().count() <= MAX_NAME && !name.starts_with('.') && !name.contains("..")
}

/// Names of the files in a folder that end in this, in alphabetical order.
pub fn names(folder: &Path, end: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let name = |entry: std::fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(end)?.to_owned());
    let mut found: Vec<String> = entries.filter_map(name).filter(|name| is_name(name)).collect();
    found.sort();
    found
}

/// The file of a profile, which need not exist.
pub fn file(dirs: &Dirs, name: &str) -> Result<PathBuf> {
    if !is_name(name) {
        let shown = one_line(name);
        bail!("{shown:?} cannot name a profile; use letters, digits, - and _ (at most {MAX_NAME} characters)");
    }
    Ok(dirs.profiles().join(format!("{name}.toml")))
}

/// The settings of a profile. An error for a missing one names those there are.
pub fn read(dirs: &Dirs, name: &str) -> Result<Layer> {
    let path = file(dirs, name)?;
    if let Some(layer) = Layer::from_file(&path)? {
        return Ok(layer);
    }
    let known = names(&dirs.profiles(), ".toml");
    let near = nearest(name, known.iter().map(String::as_str));
    let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
    match known.is_empty() {
        true => bail!("there is no profile {name}: {} does not exist, and there are no others", path.display()),
        false => bail!("there is no profile {name}; {near}profiles: {}", one_line(&known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        let longest = "x".repeat(MAX_NAME);
        for name in ["work", "a.b", "\u{e4}-1_2", &longest] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../a", "a..b", ".a", "a b", "a\\b", "a\0", "a\n", &(longest.clone() + "x")]
        {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_missing_profile_names_those_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { config: dir.path().into(), data: "/d".into(), cache: "/c".into() };
        let error = |name: &str| format!("{:#}", read(&dirs, name).unwrap_err());
        assert!(error("fast").ends_with("and there are no others"), "{}", error("fast"));
        std::fs::create_dir(dirs.profiles()).unwrap();
        for name in ["fast.toml", "work.toml", "notes.txt", ".hidden.toml"] {
            std::fs::write(dirs.profiles().join(name), "seed = 3").unwrap();
        }
        assert_eq!(error("fsat"), "there is no profile fsat; did you mean fast? profiles: fast, work");
        assert!(error("../fast").starts_with("\"../fast\" cannot name a profile"));
        assert_eq!(read(&dirs, "fast").unwrap().seed, Some(3));
        std::fs::write(dirs.profiles().join("fast.toml"), "sede = 3").unwrap();
        assert!(error("fast").contains("fast.toml:1: unknown key `sede`; did you mean `seed`?"));
    }
}
