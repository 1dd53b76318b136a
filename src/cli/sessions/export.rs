//! `dmschat sessions export`: a file for each conversation. A file that is there is replaced only
//! if it is an older export of the same conversation, so that an export can be continued.

use crate::chat::session::{Entry, Store, markdown_of, session_in, write_atomically};
use crate::cli::args::ExportFormat;
use crate::cli::output;
use crate::config::Settings;
use crate::regular_file;
use crate::ui::text::{clean_line, plural};
use anyhow::{Context, Result};
use serde_json::json;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a Markdown file that its session's id is looked for in.
const FRONT_MATTER: u64 = 64 << 10;

pub fn run(settings: &Settings, tag: Option<&str>, format: ExportFormat, dir: &Path, json: bool) -> Result<u8> {
    let store = Store::new(settings.dirs.sessions());
    let mut entries = store.list();
    entries.retain(|entry| tag.is_none_or(|tag| entry.tags.has(tag)));
    fs::create_dir_all(dir).with_context(|| dir.display().to_string()).map_err(output::as_wrong_use)?;
    let place = |path: &Path| path.canonicalize().ok();
    if place(dir).is_some() && place(dir) == place(store.folder()) {
        return Err(output::wrong_use("sessions export: this is the folder of the conversations; name another"));
    }
    let (mut written, mut unchanged, mut refused) = (0, 0, Vec::new());
    for entry in &entries {
        match export(&store, entry, format, dir) {
            Ok(true) => written += 1,
            Ok(false) => unchanged += 1,
            Err(error) => refused.push(clean_line(&format!("{error:#}"))),
        }
    }
    if json {
        output::out_json(&json!({ "written": written, "unchanged": unchanged, "refused": refused }))?;
    } else {
        let all = plural(entries.len() as u64, "conversation");
        output::out(&format!("{written} of {all} written to {}, {unchanged} unchanged\n", dir.display()))?;
        refused.iter().for_each(|line| output::notice(line));
    }
    Ok(if refused.is_empty() { output::OK } else { output::FAILED })
}

/// Writes the file of a conversation; false if the one that is there is as new.
fn export(store: &Store, entry: &Entry, format: ExportFormat, dir: &Path) -> Result<bool> {
    let (path, owner): (PathBuf, fn(&Path) -> Option<String>) = match format {
        ExportFormat::Jsonl => (dir.join(format!("{}.jsonl", entry.id)), session_in),
        ExportFormat::Md => (dir.join(format!("{}.md", entry.id)), session_of_markdown),
    };
    if let Ok(found) = path.symlink_metadata() {
        if !found.is_file() || owner(&path).as_ref() != Some(&entry.id) {
            anyhow::bail!("{}: it is not an export of this conversation, so it is left as it is", path.display());
        }
        if found.modified().is_ok_and(|time| time >= entry.modified) {
            return Ok(false);
        }
    }
    let bytes = match format {
        ExportFormat::Jsonl => store.lines(&entry.id)?,
        ExportFormat::Md => markdown_of(&store.read(&entry.id)?, &entry.id).into_bytes(),
    };
    write_atomically(&path, &bytes)?;
    Ok(true)
}

/// The id of the session in the front matter of a Markdown file.
fn session_of_markdown(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    regular_file::open(path).ok()?.take(FRONT_MATTER).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let front = text.strip_prefix("---\n")?.split("\n---").next()?;
    let id = front.lines().find_map(|line| line.strip_prefix("session: "))?;
    serde_json::from_str(id).ok()
}
