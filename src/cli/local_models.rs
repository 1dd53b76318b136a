//! The models on this machine, for the chat's lists. Opens no connection.

use super::devices::{Room, Stored};
use super::models::{self, Found};
use super::{known_models, naming, reference};
use crate::catalogue::{Catalogue, Entry};
use crate::checkpoint::adapter;
use crate::checkpoint::eagle;
use crate::checkpoint::{self, ModelConfig, ModelRef};
use crate::config::Settings;
use crate::hub::{Hub, cache};
use crate::protocol::{ModelIdentity, ModelReference};
use crate::ui::models::{Given, Known, ModelEntry, Models, Place};
use crate::ui::text::{bytes, count, plural};
use std::path::Path;

pub struct Local;

impl Models for Local {
    fn find(&self, model: &ModelIdentity) -> Result<ModelReference, String> {
        reference::find(model)
    }

    fn settings(&self, found: &ModelReference, settings: &Settings, given: Given) -> Settings {
        reference::settings(found, settings, given)
    }

    fn full_name(&self, name: &str) -> String {
        naming::full_name(name)
    }

    fn known(&self, settings: &Settings) -> Known {
        let hub = Hub::from_env().ok();
        let (catalogue, room) = (naming::catalogue(), Room::here(settings.device));
        let (missing, best) = on_hub(&catalogue, room.as_ref());
        let help = |entry: &Entry| format!("{}, {} to download", entry.model, bytes(entry.bytes));
        Known {
            cached: hub.as_ref().map(|hub| cache::ids(&hub.cache)).unwrap_or_default(),
            short: missing.map(|entry| (entry.name().to_owned(), help(entry))).collect(),
            best: best.map(|entry| format!("{} ({})", entry.name(), bytes(entry.bytes))),
            offline: hub.is_some_and(|hub| hub.offline),
        }
    }

    fn list(&self, settings: &Settings, used: &[String]) -> Vec<ModelEntry> {
        let room = Room::here(settings.device);
        let mut found = models::found(settings).unwrap_or_default();
        for path in used {
            models::add(&mut found, path);
        }
        let is_model = |found: &Found| {
            !found.path.as_deref().is_some_and(|path| adapter::is_source_at(path) || eagle::is_at(path))
        };
        let here = found.into_iter().filter(is_model).map(|model| entry(model, room.as_ref()));
        let catalogue = naming::catalogue();
        let (missing, best) = on_hub(&catalogue, room.as_ref());
        let is_best = |entry: &Entry| best.is_some_and(|best| best.name() == entry.name());
        here.chain(missing.map(|entry| known(entry, room.as_ref(), is_best(entry)))).collect()
    }
}

/// The known models that are not on this machine, and the one to recommend.
fn on_hub<'a>(catalogue: &'a Catalogue, room: Option<&Room>) -> (impl Iterator<Item = &'a Entry>, Option<&'a Entry>) {
    let missing = catalogue.entries.iter().filter(|entry| !known_models::is_here(entry));
    (missing, room.and_then(|room| known_models::best(catalogue, room)))
}

/// Describes a known model by the catalogue.
fn known(entry: &Entry, room: Option<&Room>, is_best: bool) -> ModelEntry {
    let fit = room.and_then(|room| known_models::fit(entry, room));
    ModelEntry {
        name: entry.name().to_owned(),
        place: Place::Hub,
        repository: Some(entry.model.clone()),
        path: None,
        bytes: entry.bytes,
        complete: true,
        shape: shape(&entry.summary.config),
        dms: known_models::evicts_by(entry),
        licence: Some(entry.licence.clone()),
        fits: room.map(|_| fit.is_some()),
        room: fit.map(|fit| known_models::in_words(entry, &fit)).unwrap_or_default(),
        is_best,
    }
}

/// Family, layers, heads and context.
fn shape(c: &ModelConfig) -> String {
    let (layers, context) = (plural(c.n_layers as u64, "layer"), count(c.context as u64));
    let heads = format!("{} query and {} KV heads", c.n_q_heads, c.n_kv_heads);
    format!("{}, {layers}, {heads}, context {context}", c.family.name)
}

/// Describes a model by its files, without reading its weights.
fn entry(model: Found, room: Option<&Room>) -> ModelEntry {
    let place = match &model.path {
        Some(path) => ModelRef::Folder(path.clone()),
        None => ModelRef::BuiltIn,
    };
    let mut out = ModelEntry {
        name: model.name,
        path: model.path.map(|p| p.display().to_string()),
        bytes: model.bytes,
        complete: !model.partial,
        dms: "?".to_owned(),
        ..ModelEntry::default()
    };
    match checkpoint::summary(&place, short(&out.name)) {
        Ok(s) => {
            let c = &s.config;
            let stored = Stored::of(out.path.as_ref().is_some_and(|path| path.ends_with(".gguf")));
            out.fits = room.map(|room| room.estimate(c, out.bytes, stored).is_some());
            out.shape = shape(c);
            out.dms = known_models::trained_by(&s).unwrap_or_else(|| "dense".to_owned());
            out.licence = s.licence;
        }
        Err(error) => out.shape = format!("{error:#}"),
    }
    out
}

/// The name without a revision and the choice of a file.
fn short(name: &str) -> &str {
    let name = name.split(['@', ':']).next().unwrap_or(name);
    Path::new(name).file_name().and_then(|n| n.to_str()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_the_files_say() {
        let folder = tempfile::tempdir().unwrap();
        let config = include_str!("../../assets/demo/config.json");
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        std::fs::write(folder.path().join("README.md"), "---\nlicense: mit\n---\n# A model").unwrap();
        let found = || Found {
            name: "a/b@main".into(),
            path: Some(folder.path().to_owned()),
            commit: None,
            bytes: 10,
            partial: false,
        };
        let model = entry(found(), Some(&Room::of_gpu(9)));
        assert_eq!((&*model.dms, model.licence.as_deref(), model.fits), ("DMS, window 64", Some("mit"), Some(false)));
        assert_eq!(model.shape, "qwen3, 8 layers, 8 query and 4 KV heads, context 8,192");
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        assert!(entry(found(), None).shape.contains("config.json"));
    }
}
