//! NVIDIA's KVzap predictors (arXiv 2601.07891): a folder with `config.json` and
//! `model.safetensors`, as kvpress saves them.

use super::super::bounds;
use super::super::config::{ModelConfig, Predictor};
use super::super::files::Files;
use super::super::json::{self, Fields};
use super::super::safetensors::TensorFile;
use crate::hub::layout::WEIGHTS;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// Threshold of the paper and of the model cards.
pub const THRESHOLD: f32 = -4.0;
/// Newest tokens that kvpress never drops.
pub const WINDOW: usize = 128;
/// First tokens that are never marked: not in kvpress, where a text is fed whole. Without them
/// strong eviction loses the attention sink.
pub const SINKS: usize = 4;

/// The `model_type` in `config.json`.
const MODEL_TYPE: &str = "kvzap";

/// Whether `config.json` is of a predictor.
pub fn is_kvzap(config: &Map<String, Value>) -> bool {
    config.get("model_type").and_then(Value::as_str) == Some(MODEL_TYPE)
}

/// Contents of `config.json`.
pub struct KvZap {
    pub maps: Predictor,
    input_dim: usize,
    output_dim: usize,
    n_modules: usize,
    /// Prefix of the names of its tensors.
    pub prefix: &'static str,
}

impl KvZap {
    /// Opens the predictor in a folder; `None` if it holds something else.
    pub fn open(files: &Files) -> Result<Option<(Self, TensorFile)>> {
        let Some(map) = json::optional(files, "config.json")?.filter(is_kvzap) else { return Ok(None) };
        let place = files.label("config.json");
        let config = Fields::new(&place, &map);
        let label = files.label(WEIGHTS);
        let bytes = files.bytes(WEIGHTS)?.with_context(|| format!("{label} is missing"))?;
        let file = TensorFile::new(&label, bytes)?;
        let units = config.opt_size_to("hidden_dim", bounds::FFN)?;
        ensure!(units != Some(0), "{place}: hidden_dim is 0, expected null or a number of units");
        let first = if units.is_some() { "0.0.weight" } else { "0.weight" };
        let prefix = ["layers.", "module_list."].into_iter().find(|p| file.raw(&format!("{p}{first}")).is_some());
        let prefix = prefix.with_context(|| format!("{label}: tensor layers.{first} is missing"))?;
        Ok(Some((
            Self {
                maps: Predictor { linear: units.is_none(), units: units.unwrap_or(0), deep: false },
                input_dim: config.size_to("input_dim", bounds::HIDDEN)?,
                output_dim: config.size_to("output_dim", bounds::HEADS)?,
                n_modules: config.size_to("n_modules", bounds::LAYERS)?,
                prefix,
            },
            file,
        )))
    }

    /// Fails unless the sizes are the model's. The error names the first difference.
    pub fn fits(&self, label: &str, model: &str, c: &ModelConfig) -> Result<()> {
        for (key, theirs, ours) in [
            ("n_modules", self.n_modules, c.attention_layers()),
            ("input_dim", self.input_dim, c.hidden),
            ("output_dim", self.output_dim, c.deciding_heads().count),
        ] {
            if theirs != ours {
                bail!("{label} does not fit {model}: its {key} is {theirs}, and the model needs {ours}");
            }
        }
        Ok(())
    }
}

/// The model that a published predictor was made for, from its name.
pub fn base_of(name: &str) -> Option<&str> {
    let short = name.rsplit('/').next().unwrap_or(name);
    ["KVzap-mlp-", "KVzap-linear-"].into_iter().find_map(|prefix| short.strip_prefix(prefix))
}
