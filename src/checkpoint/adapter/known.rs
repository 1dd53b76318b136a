//! Which predictor that NVIDIA has published belongs to a model, by the model's names.

use super::super::hub::{self, HubModel};
use super::super::model_names::{Names, same};
use super::super::{ModelConfig, ModelRef};
use super::Adapter;
use std::path::Path;

/// Models with published KVzap predictors, `nvidia/KVzap-mlp-NAME` and `nvidia/KVzap-linear-NAME`: layers, hidden size, KV heads.
const KVZAP: [(&str, [usize; 3]); 3] =
    [("Qwen3-8B", [36, 4096, 8]), ("Qwen3-32B", [64, 5120, 8]), ("Llama-3.1-8B-Instruct", [32, 4096, 8])];
const LICENCE: &str = "Apache-2.0";
/// Hidden units of the published MLPs.
const UNITS: usize = 512;

/// A published predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Its hub id.
    pub id: String,
    pub bytes: u64,
    pub licence: &'static str,
}

/// The published predictor for a model of these names and shapes.
pub fn published(names: &Names, c: &ModelConfig) -> Option<Published> {
    let shape = [c.n_layers, c.hidden, c.n_kv_heads];
    let (known, _) = KVZAP.iter().find(|(known, of)| *of == shape && is_of(names, known))?;
    let bytes = 2 * c.n_layers * (UNITS * (c.hidden + 1) + c.n_kv_heads * (UNITS + 1));
    Some(Published { id: format!("nvidia/KVzap-mlp-{known}"), bytes: bytes as u64, licence: LICENCE })
}

/// The published predictor for a model, if it is in the hub's cache and fits.
pub(super) fn cached(names: &Names, config: &ModelConfig) -> Option<Adapter> {
    let (known, _) = KVZAP.iter().find(|(known, _)| is_of(names, known))?;
    ["mlp", "linear"].into_iter().find_map(|kind| {
        let id = format!("nvidia/KVzap-{kind}-{known}");
        let adapter = from_hub(&HubModel { id, gguf: None, revision: None }).ok()?;
        adapter.fits(names.first(), config).is_ok().then_some(adapter)
    })
}

/// The predictor of a hub id in the cache.
pub(super) fn from_hub(model: &HubModel) -> anyhow::Result<Adapter> {
    Adapter::open(&hub::cached(model)?.path, Some(&model.id))
}

/// The hub id in what `--adapter` names, unless a file or folder has that name.
pub fn hub_model(named: &Path) -> Option<HubModel> {
    match ModelRef::parse(named.to_str()?) {
        Ok(ModelRef::Hub(model)) if model.gguf.is_none() => Some(model),
        _ => None,
    }
}

fn is_of(names: &Names, known: &str) -> bool {
    names.has(known) || names.bases.iter().any(|base| same(base, known))
}

#[cfg(test)]
mod tests {
    use super::super::super::Checkpoint;
    use super::*;

    #[test]
    fn a_published_predictor_is_known_by_name_or_base_and_shapes() {
        let config = Checkpoint::shape("qwen3-8b").unwrap();
        let found = published(&Names::of("Qwen3-8B-Q4_K_M"), &config).unwrap();
        assert_eq!((&*found.id, found.bytes / 1_000_000), ("nvidia/KVzap-mlp-Qwen3-8B", 151));
        let tune = Names { own: vec!["me/tune".to_owned()], bases: vec!["Qwen/Qwen3-8B".to_owned()] };
        assert_eq!(published(&tune, &config), Some(found));
        assert!(!tune.has("Qwen3-8B"));
        assert_eq!(published(&Names::of("me/tune"), &config), None);
        assert_eq!(published(&tune, &ModelConfig { n_layers: 48, ..config }), None);
    }
}
