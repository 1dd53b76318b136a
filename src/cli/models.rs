//! `dmschat models ...`: what is on this machine. Downloads come with a later version.

use super::args::{Common, ModelsCommand};
use super::output::{self, wrong_use};
use crate::config::{BUILTIN_MODEL, Settings};
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// A model's folder and how to name it after `-m`.
struct Found {
    name: String,
    path: Option<PathBuf>,
    bytes: u64,
}

pub fn run(command: &ModelsCommand, common: &Common) -> Result<u8> {
    match command {
        ModelsCommand::Path => output::out(&format!("{}\n", cache_dir()?.display()))?,
        ModelsCommand::List => list(common)?,
        ModelsCommand::Pull { id } => return Err(later("pull", id)),
        ModelsCommand::Rm { id } => return Err(later("rm", id)),
        ModelsCommand::Info { id } => return Err(later("info", id)),
    }
    Ok(output::OK)
}

fn later(what: &str, id: &str) -> anyhow::Error {
    wrong_use(format!(
        "models {what} {id}: this comes with a later version; put the model's files in a folder and use -m FOLDER"
    ))
}

/// Where Hugging Face's tools keep downloaded models: `HF_HUB_CACHE`, else `HF_HOME/hub`, else the
/// usual place.
fn cache_dir() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let usual = || {
        let home = directories::BaseDirs::new()?.home_dir().to_owned();
        let cache = var("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        Some(cache.join("huggingface").join("hub"))
    };
    var("HF_HUB_CACHE")
        .or_else(|| var("HF_HOME").map(|h| h.join("hub")))
        .or_else(usual)
        .ok_or_else(|| wrong_use("no home folder is known; set HF_HOME"))
}

fn list(common: &Common) -> Result<()> {
    let mut found = vec![Found { name: BUILTIN_MODEL.to_owned(), path: None, bytes: 0 }];
    found.extend(in_cache(&cache_dir()?));
    let settings = Settings::load(common.layer(), common.config.as_deref()).map_err(output::as_wrong_use)?;
    let named = Path::new(&settings.model);
    if let Some(model) = folder(named, settings.model.clone()) {
        found.push(model);
    }
    if common.json {
        let list: Vec<_> = found
            .iter()
            .map(|m| serde_json::json!({"name": m.name, "path": m.path, "bytes": m.path.as_ref().map(|_| m.bytes)}))
            .collect();
        output::out(&format!("{}\n", serde_json::to_string(&list)?))?;
        return Ok(());
    }
    let width = found.iter().map(|m| m.name.len()).max().unwrap_or(0);
    for model in &found {
        let about = match &model.path {
            None => "built in".to_owned(),
            Some(path) => format!("{:>6.1} GB  {}", model.bytes as f64 / 1e9, path.display()),
        };
        output::out(&output::visible(&format!("{:width$}  {about}\n", model.name)))?;
    }
    Ok(())
}

/// Complete snapshots in a Hugging Face cache: `models--ORG--NAME/snapshots/REVISION`.
fn in_cache(cache: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let Some(id) = file_name.to_str().and_then(|n| n.strip_prefix("models--")) else { continue };
        let name = id.replacen("--", "/", 1);
        let snapshots = fs::read_dir(entry.path().join("snapshots")).into_iter().flatten().flatten();
        found.extend(snapshots.filter_map(|s| folder(&s.path(), name.clone())));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// A folder with a configuration and safetensors.
fn folder(path: &Path, name: String) -> Option<Found> {
    if !path.join("config.json").is_file() {
        return None;
    }
    let weights = fs::read_dir(path).ok()?.flatten().map(|e| e.path());
    let bytes: Vec<u64> = weights
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .filter_map(|p| fs::metadata(p).ok().map(|m| m.len()))
        .collect();
    (!bytes.is_empty()).then(|| Found { name, path: Some(path.to_owned()), bytes: bytes.iter().sum() })
}
