//! The models on this machine, for the chat's lists. Opens no connection.

use super::models::{self, Found};
use super::{devices, reference};
use crate::checkpoint::adapter::kvzap;
use crate::checkpoint::eagle;
use crate::checkpoint::{self, ModelRef};
use crate::config::Settings;
use crate::hub::{Hub, cache};
use crate::protocol::{ModelIdentity, ModelReference};
use crate::ui::models::{Given, ModelEntry, Models};
use crate::ui::text::{count, plural};
use std::path::Path;

pub struct Local;

impl Models for Local {
    fn find(&self, model: &ModelIdentity) -> Result<ModelReference, String> {
        reference::find(model)
    }

    fn settings(&self, found: &ModelReference, settings: &Settings, given: Given) -> Settings {
        reference::settings(found, settings, given)
    }

    fn cached(&self) -> Vec<String> {
        Hub::from_env().map(|hub| cache::ids(&hub.cache)).unwrap_or_default()
    }

    fn list(&self, settings: &Settings, used: &[String]) -> Vec<ModelEntry> {
        let free = devices::free_bytes(settings.device);
        let mut found = models::found(settings).unwrap_or_default();
        for path in used {
            models::add(&mut found, path);
        }
        let is_model =
            |found: &Found| !found.path.as_deref().is_some_and(|path| kvzap::is_at(path) || eagle::is_at(path));
        found.into_iter().filter(is_model).map(|model| entry(model, free)).collect()
    }
}

/// Describes a model by its files, without reading its weights.
fn entry(model: Found, free: Option<u64>) -> ModelEntry {
    let place = match &model.path {
        Some(path) => ModelRef::Folder(path.clone()),
        None => ModelRef::BuiltIn,
    };
    let mut out = ModelEntry {
        name: model.name,
        path: model.path.map(|p| p.display().to_string()),
        bytes: model.bytes,
        complete: !model.partial,
        shape: String::new(),
        dms: "?".to_owned(),
        licence: None,
        fits: None,
    };
    match checkpoint::summary(&place, short(&out.name)) {
        Ok(s) => {
            let c = &s.config;
            out.fits = free.map(|free| devices::first_that_fits(devices::bytes_in(c, out.bytes), free).is_some());
            let (layers, context) = (plural(c.n_layers as u64, "layer"), count(c.context as u64));
            let heads = format!("{} query and {} KV heads", c.n_q_heads, c.n_kv_heads);
            out.shape = format!("{}, {layers}, {heads}, context {context}", c.family.name);
            out.dms = models::evicts_by(&s).unwrap_or_else(|| "dense".to_owned());
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
        let model = entry(found(), Some(9));
        assert_eq!((&*model.dms, model.licence.as_deref(), model.fits), ("DMS, window 64", Some("mit"), Some(false)));
        assert_eq!(model.shape, "qwen3, 8 layers, 8 query and 4 KV heads, context 8,192");
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        assert!(entry(found(), None).shape.contains("config.json"));
    }
}
