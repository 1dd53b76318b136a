//! Publications for known models, found by a model's names: NVIDIA's predictors of importance, and
//! draft heads.

use super::config::ModelConfig;
use crate::hub::HubModel;
use crate::hub::ModelRef;
use crate::hub::model_names::{Names, same};
use std::path::Path;

/// Models by name: layers, hidden size, KV heads.
type Models = [(&'static str, [usize; 3])];

/// Models with KVzap predictors, `nvidia/KVzap-mlp-NAME` and `nvidia/KVzap-linear-NAME`.
const KVZAP: &Models =
    &[("Qwen3-8B", [36, 4096, 8]), ("Qwen3-32B", [64, 5120, 8]), ("Llama-3.1-8B-Instruct", [32, 4096, 8])];
/// Hidden units of the published MLPs.
const UNITS: usize = 512;

/// Models with EAGLE-3 heads of `speculators`, `RedHatAI/NAME-speculator.eagle3`.
const EAGLE: &Models = &[
    ("Qwen3-8B", [36, 4096, 8]),
    ("Qwen3-14B", [40, 5120, 8]),
    ("Qwen3-32B", [64, 5120, 8]),
    ("Llama-3.1-8B-Instruct", [32, 4096, 8]),
];
/// Tokens that these heads can guess.
const GUESSED: usize = 32_000;

/// Possible downloads for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub kind: Kind,
    /// Its hub id.
    pub id: String,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Predictor,
    DraftHead,
}

impl Published {
    /// Offers it in one line.
    pub fn offer(&self) -> String {
        let Self { kind, id, bytes } = self;
        let (licence, does, leave) = match kind {
            Kind::Predictor => ("Apache-2.0", "makes this model evict", "--adapter none"),
            Kind::DraftHead => ("licence: see its model card", "may make answers faster", "--draft lookup"),
        };
        let size = crate::protocol::bytes(*bytes);
        format!("{id} ({size}, {licence}) {does}: dmschat models pull {id} downloads it; {leave} leaves it")
    }
}

/// The published predictor for a model of these names and shapes.
pub fn predictor(names: &Names, c: &ModelConfig) -> Option<Published> {
    let known = of_shape(KVZAP, names, c)?;
    let bytes = 2 * c.n_layers * (UNITS * (c.hidden + 1) + c.n_kv_heads * (UNITS + 1));
    Some(Published { kind: Kind::Predictor, id: format!("nvidia/KVzap-mlp-{known}"), bytes: bytes as u64 })
}

/// Hub ids of the published predictors for a model of these names, the better one first.
pub fn predictors(names: &Names) -> Vec<String> {
    let known = KVZAP.iter().find(|(known, _)| is_of(names, known));
    let ids = known.map(|(known, _)| ["mlp", "linear"].map(|kind| format!("nvidia/KVzap-{kind}-{known}")));
    ids.into_iter().flatten().collect()
}

/// Hub id of the published head for a model of these names.
pub fn draft_head_id(names: &Names) -> Option<String> {
    let known = EAGLE.iter().find(|(known, _)| is_of(names, known));
    known.map(|(known, _)| format!("RedHatAI/{known}-speculator.eagle3"))
}

/// The published head for a model of these names and shapes: a layer of the model's sizes with
/// inputs of twice the width, the model's embeddings, and bf16 maps.
pub fn draft_head(names: &Names, c: &ModelConfig) -> Option<Published> {
    of_shape(EAGLE, names, c)?;
    let (h, q, kv) = (c.hidden, c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    let values = h * (c.vocab + GUESSED + 3 * h + 2 * (q + 2 * kv) + q + 3 * c.ffn + 4);
    let bytes = 2 * values + size_of::<u64>() * GUESSED + c.vocab;
    Some(Published { kind: Kind::DraftHead, id: draft_head_id(names)?, bytes: bytes as u64 })
}

/// The hub id in what `--adapter` and `--draft` name, unless a file or folder has that name.
pub fn hub_model(named: &Path) -> Option<HubModel> {
    match ModelRef::parse(named.to_str()?) {
        Ok(ModelRef::Hub(model)) if model.gguf.is_none() => Some(model),
        _ => None,
    }
}

fn of_shape(models: &Models, names: &Names, c: &ModelConfig) -> Option<&'static str> {
    let shape = [c.n_layers, c.hidden, c.n_kv_heads];
    models.iter().find(|(known, of)| *of == shape && is_of(names, known)).map(|(known, _)| *known)
}

fn is_of(names: &Names, known: &str) -> bool {
    names.has(known) || names.bases.iter().any(|base| same(base, known))
}

#[cfg(test)]
mod tests {
    use super::super::Checkpoint;
    use super::*;

    #[test]
    fn what_is_published_is_known_by_name_or_base_and_shapes() {
        let config = Checkpoint::shape("qwen3-8b").unwrap();
        let found = predictor(&Names::of("Qwen3-8B-Q4_K_M"), &config).unwrap();
        assert_eq!((&*found.id, found.bytes / 1_000_000), ("nvidia/KVzap-mlp-Qwen3-8B", 151));
        let tune = Names { own: vec!["me/tune".to_owned()], bases: vec!["Qwen/Qwen3-8B".to_owned()] };
        assert_eq!(predictor(&tune, &config), Some(found));
        assert!(!tune.has("Qwen3-8B"));
        assert_eq!(predictor(&Names::of("me/tune"), &config), None);
        let head = draft_head(&tune, &config).unwrap();
        // The file has 2,044,116,968 bytes, a header among them.
        assert_eq!((&*head.id, head.bytes), ("RedHatAI/Qwen3-8B-speculator.eagle3", 2_044_115_328));
        let other = ModelConfig { n_layers: 48, ..config };
        assert_eq!((predictor(&tune, &other), draft_head(&tune, &other)), (None, None));
        // Sizes of https://huggingface.co/Qwen/Qwen3-32B. The file of its head has 3,121,274,856
        // bytes.
        let large = ModelConfig { n_layers: 64, hidden: 5120, n_q_heads: 64, ffn: 25_600, ..other };
        assert_eq!(draft_head(&Names::of("Qwen/Qwen3-32B"), &large).map(|head| head.bytes), Some(3_121_273_216));
    }
}
