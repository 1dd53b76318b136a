//! Files of quantized weights on this machine: of which models they are, and their use in place of
//! an original that is gone. Opens no connection.

use super::devices;
use crate::checkpoint::{self, ModelRef};
use crate::config::{Device, Dirs};
use crate::hub;
use crate::hub::Hub;
use crate::hub::cache::{self, Extent};
use crate::quant::Weights;
use crate::quantize::weight_cache::{Cached, WeightCache};
use crate::ui::text::bytes;
use anyhow::Result;

/// The folder of quantized weights.
pub fn cache() -> Result<WeightCache> {
    Ok(WeightCache::new(Dirs::find()?.weights()))
}

/// All files of quantized weights; none if there is no folder.
pub fn all() -> Vec<Cached> {
    cache().map(|cache| cache.list()).unwrap_or_default()
}

/// The name and revision that files of this model have as their source; `None` for the built-in
/// model.
fn source(model: &str) -> Option<(String, Option<String>)> {
    let path = || {
        let path = std::path::absolute(model).ok()?;
        Some((checkpoint::full_path(&path).display().to_string(), None))
    };
    match ModelRef::parse(model) {
        Ok(ModelRef::BuiltIn) => None,
        Ok(ModelRef::Hub(model)) => Some((model.name(), model.revision)),
        Ok(ModelRef::Folder(_)) | Err(_) => path(),
    }
}

/// The files of a model, of any revision if none is named.
pub fn of(model: &str) -> Vec<Cached> {
    let Some((source, revision)) = source(model) else { return Vec::new() };
    let is_of = |c: &Cached| {
        c.identity.source == source && revision.as_ref().is_none_or(|r| *r == hub::MAIN || *r == c.identity.revision)
    };
    all().into_iter().filter(is_of).collect()
}

/// Whether the model's own weights are on this machine.
fn is_here(model: &str) -> bool {
    match ModelRef::parse(model) {
        Ok(ModelRef::BuiltIn) => true,
        Ok(ModelRef::Folder(path)) => cache::holds_model(&path),
        Ok(ModelRef::Hub(model)) => {
            let cached = Hub::from_env().and_then(|hub| hub.repo(&model.id).find(&model));
            cached.ok().flatten().is_some_and(|cached| cached.extent >= Extent::Weights)
        }
        Err(_) => false,
    }
}

/// The file to open in place of a model whose own weights are gone. Under `auto` the most exact
/// that fits the free memory, else the smallest.
pub fn in_place_of(model: &str, weights: Weights, device: Device) -> Option<Cached> {
    if is_here(model) {
        return None;
    }
    let mut files = of(model);
    files.retain(|c| weights.admits(&c.identity.weights));
    files.sort_by_key(|c| c.bytes);
    let free = devices::free_bytes(device).unwrap_or(u64::MAX);
    let at = files.iter().rposition(|c| c.bytes < free).unwrap_or(0);
    (!files.is_empty()).then(|| files.swap_remove(at))
}

/// `int4 4.7 GB`
pub fn describe(cached: &Cached) -> String {
    format!("{} {}", cached.identity.weights, bytes(cached.bytes))
}
