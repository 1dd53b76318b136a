//! Names of models: the built-in one, folders, and Hugging Face ids as far as they are already in
//! the local cache. No network.

use super::files;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// The built-in model's name.
pub const DEMO: &str = "demo";

/// Which model is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    BuiltIn,
    Folder(PathBuf),
    Hub { id: String, revision: Option<String> },
}

impl ModelRef {
    /// `demo`, the path of something that exists, or a hub id `ORG/NAME[@REVISION]`.
    pub fn parse(text: &str) -> Result<Self> {
        if text == DEMO {
            return Ok(Self::BuiltIn);
        }
        if !text.is_empty() && Path::new(text).exists() {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision.to_owned())),
            None => (text, None),
        };
        if is_hub_id(id) && revision.as_deref().is_none_or(is_part) {
            return Ok(Self::Hub { id: id.to_owned(), revision });
        }
        if text.contains(['/', '\\']) {
            bail!("no model folder {text}");
        }
        let cached = cached_ids(&cache_dir()?);
        bail!("no model named {text:?}; expected demo, a folder or a hub id ORG/NAME{}", suggestion(text, &cached))
    }
}

/// The folder of a hub id's files in the local cache.
pub fn cached_folder(id: &str, revision: Option<&str>) -> Result<PathBuf> {
    folder_in(&cache_dir()?, id, revision)
}

/// As [`cached_folder`], in a given cache folder.
pub fn folder_in(cache: &Path, id: &str, revision: Option<&str>) -> Result<PathBuf> {
    let repo = cache.join(format!("models--{}", id.replace('/', "--")));
    if !repo.is_dir() {
        bail!(
            "{id} is not in the Hugging Face cache ({}), and downloading comes in a later version: \
             fetch it with other means and give its folder as --model{}",
            cache.display(),
            suggestion(id, &cached_ids(cache))
        );
    }
    let wanted = revision.unwrap_or("main");
    let commit = match std::fs::read_to_string(repo.join("refs").join(wanted)) {
        Ok(commit) => commit.trim().to_owned(),
        // A commit may be asked for by its own name.
        Err(_) => wanted.to_owned(),
    };
    files::plain_name(&commit).with_context(|| format!("{}: bad reference {wanted}", repo.display()))?;
    let snapshot = repo.join("snapshots").join(&commit);
    ensure!(
        snapshot.is_dir(),
        "{id} is in the Hugging Face cache ({}) without revision {wanted}, and downloading comes in a later version",
        cache.display()
    );
    Ok(snapshot)
}

/// The cache folder as huggingface_hub finds it.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE")) {
        return Ok(dir);
    }
    if let Some(home) = set("HF_HOME") {
        return Ok(home.join("hub"));
    }
    let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME").or_else(|| set("USERPROFILE"))?.join(".cache")));
    Ok(caches.context("no home folder: set HF_HOME")?.join("huggingface").join("hub"))
}

/// Ids of the models in a cache folder, sorted.
pub fn cached_ids(cache: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let mut ids: Vec<String> = names
        .filter_map(|n| Some(n.strip_prefix("models--")?.replacen("--", "/", 1)))
        .filter(|n| is_hub_id(n))
        .collect();
    ids.sort();
    ids
}

fn is_hub_id(text: &str) -> bool {
    text.len() <= 200 && text.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name))
}

fn is_part(text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    plain && !text.is_empty() && !text.starts_with('.') && !text.contains("..") && !text.contains("--")
}

/// `; did you mean ...?` where a known name is a slip or a case away.
fn suggestion(wanted: &str, known: &[String]) -> String {
    let low = wanted.to_lowercase();
    let near = |name: &&str| {
        let (name, short) = (name.to_lowercase(), name.rsplit('/').next().unwrap_or(name).to_lowercase());
        let slack = 1 + low.len() / 6;
        distance(&low, &name) <= slack || distance(&low, &short) <= slack
    };
    let names: Vec<&str> = [DEMO].into_iter().chain(known.iter().map(String::as_str)).filter(near).take(3).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

/// Edit distance with neighbouring swaps (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}
