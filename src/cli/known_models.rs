//! Known models on this machine: what of each fits, which one suits it, and
//! `dmschat models list --known`. Opens no connection.

use super::args::Common;
use super::devices::{Room, Stored};
use super::naming::catalogue;
use super::start::quiet_settings;
use super::{download, output};
use crate::catalogue::{Catalogue, Entry};
use crate::checkpoint::Summary;
use crate::config::ByteSize;
use crate::engine::Estimate;
use crate::policy::Trained;
use crate::ui::text::{bytes, count};
use anyhow::Result;
use serde_json::{Value, json};

/// Most bytes of weights that are recommended without a GPU: a token reads all of them.
const MOST_BYTES_ON_CPU: u64 = 1_000_000_000;

/// What of a known model fits.
pub fn fit(entry: &Entry, room: &Room) -> Option<Estimate> {
    let stored = match entry.quantization() {
        Some(codes) if codes.eq_ignore_ascii_case("mxfp4") => Stored::Mxfp4,
        codes => Stored::of(codes.is_some()),
    };
    room.estimate(&entry.summary.config, entry.bytes, stored)
}

/// The known model to recommend: of those that anyone may use and of which a usual context fits,
/// the largest; without a GPU of those that are fast enough, one that forgets from the start.
pub fn best<'a>(catalogue: &'a Catalogue, room: &Room) -> Option<&'a Entry> {
    let suits = |entry: &&Entry| {
        let config = &entry.summary.config;
        let usual = config.usual_context().min(crate::engine::USUAL_CONTEXT);
        let is_fast = room.is_gpu() || entry.bytes <= MOST_BYTES_ON_CPU && entry.evicts();
        !entry.is_restricted() && is_fast && fit(entry, room).is_some_and(|fit| fit.expected_context >= usual)
    };
    catalogue.entries.iter().rev().find(suits)
}

/// What evicts tokens of a model's cache: its own training, or a built-in adapter.
pub fn trained_by(summary: &Summary) -> Option<String> {
    Some(match (summary.config.trained(), &summary.adapter) {
        (Some(Trained::Dms(rule)), _) => format!("DMS, window {}", rule.window),
        (Some(Trained::Dmc(_)), _) => "DMC".to_owned(),
        (Some(Trained::Gates(slots)), _) => format!("retention gates, {slots} tokens a head"),
        (Some(Trained::Window(tokens)), _) => format!("sliding window of {tokens}"),
        (None, Some(base)) => format!("adapter for {base}"),
        (None, None) => return None,
    })
}

/// What makes a known model forget, in words.
pub fn evicts_by(entry: &Entry) -> String {
    if entry.summary.config.dms.is_none() && entry.summary.adapter.is_some() {
        return "built-in adapter".to_owned();
    }
    match trained_by(&entry.summary).filter(|_| entry.evicts()) {
        Some(text) => text,
        None if entry.predictor().is_some() => "KVzap predictor".to_owned(),
        None => "predictor to train".to_owned(),
    }
}

/// The format of the weights and the tokens of context: `bf16, 8,192 tokens`.
pub fn in_words(entry: &Entry, fit: &Estimate) -> String {
    let weights = entry.quantization().filter(|_| fit.weights.keeps_codes());
    format!("{}, {} tokens", weights.unwrap_or(fit.weights.name()), count(fit.context as u64))
}

/// `models list --known`: all known models, and what of each fits here, or on GPUs with so much
/// memory.
pub fn list(common: &Common, memory: &[ByteSize]) -> Result<()> {
    let device = quiet_settings(common)?.device;
    let rooms: Vec<Room> = match memory {
        [] => Room::here(device).into_iter().collect(),
        sizes => sizes.iter().map(|size| Room::of_gpu(size.0)).collect(),
    };
    let catalogue = catalogue();
    catalogue.problems.iter().for_each(|problem| output::notice(problem));
    if common.json {
        return output::out_json(&catalogue.entries.iter().map(|entry| about(entry, &rooms)).collect::<Vec<_>>());
    }
    let text = if memory.is_empty() { lines(&catalogue, rooms.first()) } else { table(&catalogue, &rooms) };
    Ok(output::out(&output::visible(&text))?)
}

fn about(entry: &Entry, rooms: &[Room]) -> Value {
    let in_room = |room: &Room| {
        let fit = fit(entry, room);
        json!({
            "free_bytes": room.bytes, "fits": fit.is_some(), "weights": fit.map(|fit| fit.weights.name()),
            "weight_bytes": fit.map(|fit| fit.weight_bytes), "kv": fit.map(|fit| fit.codec.name()),
            "context": fit.map(|fit| fit.context), "expected_context": fit.map(|fit| fit.expected_context),
        })
    };
    json!({
        "name": entry.name(), "names": entry.names, "model": entry.model, "bytes": entry.bytes,
        "licence": entry.licence, "gated": entry.gated, "evicts_by": evicts_by(entry), "evicts": entry.evicts(),
        "checked": entry.checked, "downloaded": is_here(entry),
        "fits": rooms.iter().map(in_room).collect::<Vec<_>>(),
    })
}

/// Whether it is on this machine.
pub fn is_here(entry: &Entry) -> bool {
    download::missing(&entry.model).is_ok_and(|missing| missing.is_none())
}

fn lines(catalogue: &Catalogue, room: Option<&Room>) -> String {
    let head = match room {
        Some(room) => format!("fits into {} ({} free)", room.name, bytes(room.bytes)),
        None => "fits".to_owned(),
    };
    let width = |of: fn(&Entry) -> usize| catalogue.entries.iter().map(of).max().unwrap_or(0);
    let (name, terms) = (width(|e| e.name().chars().count()), width(|e| licence(e).chars().count()));
    let by = width(|e| evicts_by(e).chars().count());
    let mut out = format!("{:name$}  {:>8}  {:terms$}  {:by$}  {head}\n", "name", "size", "licence", "forgets by");
    for entry in &catalogue.entries {
        let fit = room.map(|room| match fit(entry, room) {
            Some(fit) => in_words(entry, &fit),
            None => "does not fit".to_owned(),
        });
        let here = if is_here(entry) { " (downloaded)" } else { "" };
        let (size, fit) = (bytes(entry.bytes), fit.unwrap_or_default() + here);
        let line =
            format!("{:name$}  {size:>8}  {:terms$}  {:by$}  {fit}", entry.name(), licence(entry), evicts_by(entry));
        out += line.trim_end();
        out += "\n";
    }
    out + "dmschat run NAME downloads one and opens a chat with it; dmschat models info NAME says more\n"
}

fn licence(entry: &Entry) -> String {
    entry.licence.clone() + if entry.gated { " (gated)" } else { "" }
}

/// A table of Markdown, with a column for each room.
fn table(catalogue: &Catalogue, rooms: &[Room]) -> String {
    let columns = |cell: &dyn Fn(&Room) -> String| rooms.iter().map(cell).collect::<Vec<_>>().join(" | ");
    let mut out = format!(
        "| name | download | licence | forgets by | {} |\n",
        columns(&|room| format!("{} GiB", (room.of_bytes as f64 / (1u64 << 30) as f64 * 10.0).round() / 10.0))
    );
    out += &format!("|{}\n", " --- |".repeat(4 + rooms.len()));
    for entry in &catalogue.entries {
        let cells = columns(&|room| match fit(entry, room) {
            Some(fit) if fit.expected_context > fit.context => {
                let expected = count(fit.expected_context as u64);
                format!("{} ({expected})", in_words(entry, &fit).replace(" tokens", ""))
            }
            Some(fit) => in_words(entry, &fit).replace(" tokens", ""),
            None => "-".to_owned(),
        });
        let (name, size) = (entry.name(), bytes(entry.bytes));
        out += &format!("| `{name}` | {size} | {} | {} | {cells} |\n", licence(entry), evicts_by(entry));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Device;

    #[test]
    fn the_recommended_model_suits_the_machine() {
        let catalogue = Catalogue::built_in();
        let on_gpu = |gib: u64| best(&catalogue, &Room::of_gpu(gib << 30)).map(Entry::name);
        let memory = [2, 8, 24].map(on_gpu);
        assert!(memory.iter().all(Option::is_some), "{memory:?}");
        let bytes = memory.map(|name| catalogue.find(name.unwrap()).unwrap().bytes);
        assert!(bytes[0] < bytes[1] && bytes[1] <= bytes[2], "{memory:?}");
        assert_eq!(on_gpu(0), None);
        if let Some(room) = Room::here(Device::Cpu) {
            assert_eq!(best(&catalogue, &room).map(Entry::name), Some("smollm2"));
        }
    }
}
