//! `dmschat adapter ...`: makes, lists, describes and deletes predictors.

mod progress;
mod train;

use super::args::{AdapterCommand, Common};
use super::output::{self, wrong_use};
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::adapter::card::Header;
use crate::config::Settings;
use crate::ui::text::bytes;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub fn run(settings: &Settings, command: &AdapterCommand, common: &Common) -> Result<u8> {
    match command {
        AdapterCommand::Train(args) => return train::run(settings, args, common),
        AdapterCommand::List => list(settings, common)?,
        AdapterCommand::Info { name } => info(settings, name, common)?,
        AdapterCommand::Rm { name } => remove(settings, name, common)?,
    }
    Ok(output::OK)
}

fn list(settings: &Settings, common: &Common) -> Result<()> {
    let found = Adapter::all_in(&settings.dirs.adapters());
    if common.json {
        return output::out_json(&found.iter().map(|(path, adapter)| about(path, adapter)).collect::<Vec<_>>());
    }
    if found.is_empty() {
        output::notice("no predictor was made yet; dmschat adapter train -m MODEL makes one");
    }
    let width = found.iter().map(|(_, adapter)| adapter.name().len()).max().unwrap_or(0);
    for (path, adapter) in &found {
        let line = format!("{:width$}  {:>8}  {}\n", adapter.name(), bytes(size(path)), in_short(adapter));
        output::out(&output::visible(&line))?;
    }
    Ok(())
}

/// `for SmolLM2-135M-Instruct, about 3.1x, KL 0.0123`
fn in_short(adapter: &Adapter) -> String {
    let base = format!("for {}", adapter.base().unwrap_or("an unnamed model"));
    match adapter.header().and_then(figures) {
        Some((ratio, kl)) => format!("{base}, about {ratio:.1}x, KL {kl:.4}"),
        None => base,
    }
}

fn figures(header: &Header) -> Option<(f64, f64)> {
    header.card.figures(header.threshold, header.window)
}

fn info(settings: &Settings, name: &str, common: &Common) -> Result<()> {
    let (path, adapter) = find(settings, name)?;
    if common.json {
        return output::out_json(&about(&path, &adapter));
    }
    let mut lines = format!("{}\n", in_short(&adapter));
    lines += &format!("{:>9}  {} ({})\n", "file", path.display(), bytes(size(&path)));
    if let Some(header) = adapter.header() {
        let Header { threshold, window, sinks, card, .. } = header;
        lines += &format!("{:>9}  window {window}, threshold {threshold:.2}, the first {sinks} tokens stay\n", "rule");
        lines += &format!("{:>9}  {} by {}\n", "made", card.date, card.command);
        lines += &format!("{:>9}  {}\n", "texts", card.texts);
        if let Some(all) = figures(header) {
            lines += &format!("\n{}", train::table(&card.measured, all));
        }
    }
    Ok(output::out(&output::visible(&lines))?)
}

fn remove(settings: &Settings, name: &str, common: &Common) -> Result<()> {
    let folder = settings.dirs.adapters();
    let (path, adapter) = find(settings, name)?;
    if path.parent() != Some(&*folder) {
        return Err(wrong_use(format!("{} is not in {}; delete the file itself", path.display(), folder.display())));
    }
    let freed = size(&path);
    fs::remove_file(&path).with_context(|| path.display().to_string())?;
    if common.json {
        return output::out_json(&json!({"name": adapter.name(), "freed_bytes": freed}));
    }
    Ok(output::out(&output::visible(&format!("deleted {}: {} are free again\n", adapter.name(), bytes(freed))))?)
}

/// A predictor of the data folder by name, or a file.
fn find(settings: &Settings, name: &str) -> Result<(PathBuf, Adapter)> {
    let folder = settings.dirs.adapters();
    if let Some(found) = Adapter::all_in(&folder).into_iter().find(|(_, adapter)| adapter.name() == name) {
        return Ok(found);
    }
    let path = Path::new(name);
    if !path.exists() {
        return Err(wrong_use(format!(
            "no predictor in {} is called {name}; see dmschat adapter list",
            folder.display()
        )));
    }
    Ok((path.to_owned(), Adapter::open(path, None).map_err(output::as_wrong_use)?))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

fn about(path: &Path, adapter: &Adapter) -> Value {
    let mut out = json!({"name": adapter.name(), "path": path, "bytes": size(path), "base": adapter.base()});
    if let (Some(header), Value::Object(map)) = (adapter.header(), &mut out) {
        let figures = figures(header);
        map.extend([
            ("window".to_owned(), json!(header.window)),
            ("threshold".to_owned(), json!(header.threshold)),
            ("ratio".to_owned(), json!(figures.map(|(ratio, _)| ratio))),
            ("kl".to_owned(), json!(figures.map(|(_, kl)| kl))),
            ("card".to_owned(), json!(header.card)),
        ]);
    }
    out
}
