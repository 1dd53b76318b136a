//! Retention gates of TrimKV (PyPI `trimkv` 0.1.5): a folder with `config.json` and
//! `trimkv_weights.pth`, as its training saves them.

use super::super::bounds;
use super::super::config::{Gates, ModelConfig, Predictor};
use super::super::files::Files;
use super::super::json::{self, Fields};
use super::super::pth;
use super::super::safetensors::TensorFile;
use super::super::spec::Activation;
use crate::hub::layout::GATES;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// The key of `config.json` that only gates have.
const KIND: &str = "retention_gate";
/// Gates with one hidden layer and with two.
const ONE: &str = "rg";
const TWO: &str = "rg10";
/// Slots of a head, and hidden units, where the file states none.
const MEMORY: usize = 1024;
const UNITS: usize = 512;
/// Fewest slots of a head: a page of the cache.
const FEWEST: usize = 16;

/// Whether `config.json` is of gates.
pub fn are_gates(config: &Map<String, Value>) -> bool {
    config.get(KIND).is_some_and(|kind| !kind.is_null())
}

/// Contents of `config.json`.
pub struct TrimKv {
    pub gates: Gates,
    /// The model that they were made for.
    pub base: Option<String>,
    model_type: String,
    n_layers: usize,
    hidden: usize,
    n_kv_heads: usize,
}

impl TrimKv {
    /// Opens the gates in a folder; `None` if it holds something else.
    pub fn open(files: &Files) -> Result<Option<(Self, TensorFile)>> {
        let Some(map) = json::optional(files, "config.json")?.filter(are_gates) else { return Ok(None) };
        let opened = Self::parse(&Fields::new(&files.label("config.json"), &map))?;
        let label = files.label(GATES);
        let bytes = files.bytes(GATES)?.with_context(|| format!("{label} is missing"))?;
        let mut file = pth::open(&label, bytes)?;
        // What the rule depends on, for fingerprints.
        file.metadata.insert("gates".to_owned(), format!("{:?}", opened.gates));
        Ok(Some((opened, file)))
    }

    fn parse(config: &Fields<'_>) -> Result<Self> {
        let place = config.place();
        let kind = config.opt_str(KIND)?.unwrap_or_default();
        let deep = match kind {
            ONE => false,
            TWO => true,
            _ => bail!("{place}: {KIND} {kind:?} is unknown ({ONE} and {TWO} are known)"),
        };
        // Where the key is missing, the files are older than gates of the second kind.
        let global = config.bool_or("global_capacity", deep)?;
        ensure!(
            !global,
            "{place}: global_capacity is set: these gates share one budget among all heads (DBTrimKV), and the cache has one \
             for each head; use gates of TrimKV"
        );
        let memory_size = config.opt_size_to("memory_size", bounds::POSITIONS)?.unwrap_or(MEMORY);
        ensure!(memory_size >= FEWEST, "{place}: memory_size is {memory_size}, expected at least {FEWEST}");
        let units = config.opt_size_to("retention_gate_intermediate_size", bounds::FFN)?.unwrap_or(UNITS);
        ensure!(units > 0, "{place}: retention_gate_intermediate_size is 0, expected a number of units");
        let activation = config.opt_str("hidden_act")?.unwrap_or("silu");
        ensure!(activation == "silu", "{place}: hidden_act is {activation:?}, and gates are computed with silu");
        Ok(Self {
            gates: Gates { maps: Predictor { linear: false, units, deep }, memory_size },
            base: config.opt_str("base_model")?.map(str::to_owned),
            model_type: config.opt_str("model_type")?.unwrap_or_default().to_owned(),
            n_layers: config.size_to("num_hidden_layers", bounds::LAYERS)?,
            hidden: config.size_to("hidden_size", bounds::HIDDEN)?,
            n_kv_heads: config.size_to("num_key_value_heads", bounds::HEADS)?,
        })
    }

    /// Fails unless the sizes are the model's. The error names the first difference.
    pub fn fits(&self, label: &str, model: &str, c: &ModelConfig) -> Result<()> {
        for (key, theirs, ours) in [
            ("num_hidden_layers", self.n_layers, c.n_layers),
            ("hidden_size", self.hidden, c.hidden),
            ("num_key_value_heads", self.n_kv_heads, c.n_kv_heads),
        ] {
            ensure!(theirs == ours, "{label} does not fit {model}: its {key} is {theirs}, and the model needs {ours}");
        }
        let (theirs, ours) = (&self.model_type, c.family.name);
        ensure!(theirs == ours, "{label} does not fit {model}: its model_type is {theirs}, and the model needs {ours}");
        ensure!(
            c.spec.activation == Activation::Silu && c.attention_layers() == c.n_layers && !c.has_windows(),
            "{label} does not fit {model}: gates need attention over all tokens in every layer"
        );
        Ok(())
    }

    /// The name in the file of a predictor's tensor `LAYER.PART`, whose parts are the first
    /// matrix 0, the second hidden layer 1, and the last matrix 2.
    pub fn stored_name(&self, tensor: &str) -> String {
        let (layer, part) = tensor.split_once('.').unwrap_or((tensor, ""));
        let part = match (part, self.gates.maps.deep) {
            ("0.weight", _) => "linear1.weight",
            ("0.bias", _) => "linear1.bias",
            ("1.weight", _) => "linear2.weight",
            ("1.bias", _) => "linear2.bias",
            ("2.weight", false) => "linear2.weight",
            ("2.weight", true) => "linear3.weight",
            _ => "bias",
        };
        format!("model.layers.{layer}.self_attn.{KIND}.{part}")
    }
}
