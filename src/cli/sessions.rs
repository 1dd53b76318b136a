//! `dmschat sessions ...`: lists the saved conversations with their caches, and removes caches.

use super::args::{Common, SessionsCommand};
use super::output;
use crate::cache::file::{Kept, Room};
use crate::chat::session::{CACHE_EXTENSION, Entry, Store, cache_of};
use crate::config::Settings;
use crate::regular_file::temporary::remove_abandoned;
use crate::ui::text::bytes;
use anyhow::Result;
use serde_json::json;
use std::fs;
use std::path::Path;

pub fn run(command: &SessionsCommand, common: &Common) -> Result<u8> {
    let settings = Settings::load(common.layer(), common.config.as_deref()).map_err(output::as_wrong_use)?;
    match command {
        SessionsCommand::List => list(&settings, common)?,
        SessionsCommand::Prune { all } => prune(&settings, *all, common)?,
    }
    Ok(output::OK)
}

fn list(settings: &Settings, common: &Common) -> Result<()> {
    let entries = Store::new(settings.dirs.sessions()).list();
    let cache_bytes = |path: &Path| fs::metadata(cache_of(path)).map_or(0, |meta| meta.len());
    if common.json {
        let about = |e: &Entry| {
            json!({
                "id": e.id, "title": e.title, "model": e.model, "turns": e.turns, "bytes": e.bytes,
                "cache_bytes": cache_bytes(&e.path), "path": e.path,
            })
        };
        return output::out_json(&entries.iter().map(about).collect::<Vec<_>>());
    }
    for e in &entries {
        let cache = match cache_bytes(&e.path) {
            0 => "no cache".to_owned(),
            n => format!("cache {}", bytes(n)),
        };
        let line = format!("{}  {}  {:>8}  {cache:>14}  {}\n", e.id, e.date(), bytes(e.bytes), e.title);
        output::out(&output::visible(&line))?;
    }
    Ok(())
}

/// Removes caches without a session, then the oldest until the rest is within the limit; or all. Sessions are not touched.
fn prune(settings: &Settings, all: bool, common: &Common) -> Result<()> {
    let folder = settings.dirs.sessions();
    remove_abandoned(&folder);
    let sum = |files: &[Kept]| files.iter().map(|k| k.bytes).sum::<u64>();
    let (mut gone, mut kept): (Vec<Kept>, Vec<Kept>) =
        Room::list(&folder, CACHE_EXTENSION).into_iter().partition(|k| all || !k.path.with_extension("jsonl").exists());
    while !kept.is_empty() && sum(&kept) > settings.cache_disk {
        gone.push(kept.remove(0));
    }
    for Kept { path, .. } in &gone {
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => anyhow::bail!("{}: {e}", path.display()),
            _ => {}
        }
    }
    if common.json {
        return output::out_json(&json!({
            "removed": gone.len(), "removed_bytes": sum(&gone), "left": kept.len(), "left_bytes": sum(&kept),
        }));
    }
    let caches = |files: &[Kept]| format!("{} of {}", plural(files.len()), bytes(sum(files)));
    output::out(&format!("removed {}; {} left\n", caches(&gone), caches(&kept)))?;
    Ok(())
}

fn plural(n: usize) -> String {
    if n == 1 { "1 cache".to_owned() } else { format!("{n} caches") }
}
