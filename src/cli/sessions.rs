//! `dmschat sessions ...`: lists and searches the saved conversations, exports them, and removes
//! their caches.

mod export;

use super::args::{Common, SessionsCommand};
use super::output;
use crate::cache::file::{Kept, Room};
use crate::chat::session::{CACHE_EXTENSION, Entry, Found, Passage, Query, Store, cache_of, local_time};
use crate::config::Settings;
use crate::regular_file::temporary::remove_abandoned;
use crate::ui::text::{bytes, clean_line, plural, truncate};
use anyhow::Result;
use serde_json::json;
use std::fs;
use std::path::Path;

/// Columns of a model's name in the list.
const MODEL_WIDTH: usize = 20;

pub fn run(command: &SessionsCommand, common: &Common) -> Result<u8> {
    let settings = super::quiet_settings(common)?;
    match command {
        SessionsCommand::List => list(&settings, common)?,
        SessionsCommand::Search { words } => search(&settings, &words.join(" "), common)?,
        SessionsCommand::Export { all: _, tag, format, dir } => {
            return export::run(&settings, tag.as_deref(), *format, dir, common.json);
        }
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
                "id": e.id, "title": e.title, "tags": e.tags.names(), "model": e.model, "turns": e.turns, "bytes": e.bytes,
                "cache_bytes": cache_bytes(&e.path), "path": e.path,
            })
        };
        return output::out_json(&entries.iter().map(about).collect::<Vec<_>>());
    }
    let line = |[id, date, turns, size, cache, model, title]: [&str; 7]| {
        let id_width = entries.iter().map(|e| e.id.len()).max().unwrap_or(0);
        let model = truncate(model, MODEL_WIDTH);
        format!("{id:<id_width$}  {date:<16}  {turns:>5}  {size:>8}  {cache:>8}  {model:<MODEL_WIDTH$}  {title}\n")
    };
    if !entries.is_empty() {
        output::out(&line(["ID", "LAST TURN", "TURNS", "SIZE", "CACHE", "MODEL", "TITLE"]))?;
    }
    for e in &entries {
        let cache = match cache_bytes(&e.path) {
            0 => "-".to_owned(),
            n => bytes(n),
        };
        let title = format!("{}{}", e.title, e.tags.shown());
        let (date, turns, size) = (e.date(), e.turns.to_string(), bytes(e.bytes));
        let line = line([&e.id, &date, &turns, &size, &cache, &clean_line(&e.model), &clean_line(&title)]);
        output::out(&output::visible(&line))?;
    }
    Ok(())
}

/// Prints the passages with the words, conversation by conversation, the newest first.
fn search(settings: &Settings, words: &str, common: &Common) -> Result<()> {
    let query = Query::new(words).ok_or_else(|| output::wrong_use("sessions search: there is no word to look for"))?;
    let (mut found, mut failed) = (Vec::new(), Ok(()));
    let store = Store::new(settings.dirs.sessions());
    let mut any = false;
    let searched = store.search_texts(&query, |hit| {
        any = true;
        match common.json {
            true => found.push(hit),
            false => failed = output::out(&output::visible(&passages(&hit))),
        }
        failed.is_ok()
    });
    failed?;
    if common.json {
        let about = |f: &Found| {
            json!({
                "id": f.id, "title": f.title, "date": local_time(f.modified), "path": f.path,
                "passages": f.passages, "more": f.more,
            })
        };
        output::out_json(&found.iter().map(about).collect::<Vec<_>>())?;
    } else if !any {
        let sessions = plural(searched.sessions as u64, "conversation");
        output::notice(&format!("{} is in none of {sessions}", clean_line(words)));
    }
    if searched.unread > 0 {
        output::notice(&format!("{} could not be read", plural(searched.unread as u64, "line")));
    }
    Ok(())
}

fn passages(found: &Found) -> String {
    let mut out = format!("{}  {}  {}\n", found.id, local_time(found.modified), clean_line(&found.title));
    for Passage { part, text, .. } in &found.passages {
        out += &format!("    {}: {}\n", part.name(), clean_line(text));
    }
    if found.more > 0 {
        out += &format!("    {} more\n", found.more);
    }
    out
}

/// Removes caches without a session, then the oldest until the rest is within the limit; or all.
/// Sessions are not touched.
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
    let caches = |files: &[Kept]| format!("{} of {}", plural(files.len() as u64, "cache"), bytes(sum(files)));
    output::out(&format!("removed {}; {} left\n", caches(&gone), caches(&kept)))?;
    Ok(())
}
