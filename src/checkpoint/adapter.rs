//! Sidecar adapter files: DMS decision tensors for a model without DMS, and metadata that names the
//! model.

use super::bounds;
use super::builtin;
use super::config::{DmsConfig, DmsVariant, ModelConfig};
use super::names::DecisionSpec;
use super::safetensors::TensorFile;
use crate::policy::{Dms, Shift};
use crate::tensor::{SharedBytes, Tensor};
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;

/// The only supported format.
const FORMAT: &str = "dmschat-adapter-1";

/// An adapter file. `label` names it in error messages.
pub struct Adapter {
    label: String,
    file: TensorFile,
}

impl Adapter {
    pub fn new(label: &str, bytes: SharedBytes) -> Result<Self> {
        let file = TensorFile::new(label, bytes)?;
        let adapter = Self { label: label.to_owned(), file };
        let format = adapter.text("format")?;
        ensure!(format == FORMAT, "{label}: adapter format {format:?} is unknown ({FORMAT} is known)");
        Ok(adapter)
    }

    /// Returns the built-in adapter for this model, if there is one: of those that fit its shapes,
    /// the one made for a model of that name, else the first.
    pub fn find(model: &str, config: &ModelConfig) -> Result<Option<Self>> {
        let short = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase();
        let mut found: Option<Self> = None;
        for (name, bytes) in builtin::ADAPTERS {
            let adapter = Self::new(name, Arc::new(*bytes))?;
            let named = short(adapter.base()) == short(model);
            if adapter.fits(model, config).is_ok() && (named || found.is_none()) {
                found = Some(adapter);
                if named {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The model that it was made for.
    pub fn base(&self) -> &str {
        self.file.metadata.get("base").map_or("an unnamed model", String::as_str)
    }

    fn text(&self, key: &str) -> Result<&str> {
        let value = self.file.metadata.get(key).map(String::as_str);
        value.with_context(|| format!("{}: its metadata has no {key}, so it is not an adapter file", self.label))
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T> {
        let text = self.text(key)?;
        let parsed = text.trim().parse().ok();
        parsed.with_context(|| format!("{}: metadata {key} is {text:?}, which is not such a number", self.label))
    }

    fn finite(&self, key: &str) -> Result<f32> {
        let value: f32 = self.number(key)?;
        ensure!(value.is_finite(), "{}: metadata {key} is {value}", self.label);
        Ok(value)
    }

    /// Fails unless every shape field equals the model's. The error names the first difference.
    pub fn fits(&self, model: &str, c: &ModelConfig) -> Result<()> {
        let refuse = |key: &str, theirs: &str, ours: &str| -> Result<()> {
            bail!(
                "{} is an adapter for {} ({key} {theirs}) and does not fit {model} ({key} {ours})",
                self.label,
                self.base()
            )
        };
        let model_type = self.text("model_type")?;
        if model_type != c.family {
            return refuse("model_type", model_type, &c.family);
        }
        for (key, ours) in [
            ("num_hidden_layers", c.n_layers),
            ("hidden_size", c.hidden),
            ("num_key_value_heads", c.n_kv_heads),
            ("vocab_size", c.vocab),
        ] {
            let theirs: usize = self.number(key)?;
            if theirs != ours {
                return refuse(key, &theirs.to_string(), &ours.to_string());
            }
        }
        Ok(())
    }

    /// The DMS rule in its metadata.
    pub fn dms(&self) -> Result<DmsConfig> {
        let shift = match self.text("shift")? {
            "0" => Shift::Same,
            "1" => Shift::Previous,
            other => bail!("{}: metadata shift is {other:?}, expected 0 or 1", self.label),
        };
        let per_layer = match self.text("alpha_per")? {
            "head" => false,
            "layer" => true,
            other => bail!("{}: metadata alpha_per {other:?} is unknown (head, layer)", self.label),
        };
        let window: usize = self.number("window")?;
        ensure!(window <= bounds::CONTEXT, "{}: metadata window {window} is not a length in tokens", self.label);
        Ok(DmsConfig {
            variant: DmsVariant::Adapter,
            rule: Dms { window, shift, sinks: 0, dial: 0.0 },
            alpha_scale: self.finite("alpha_scale")?,
            alpha_offset: self.finite("alpha_offset")?,
            per_layer,
            disabled: false,
            target_ratio: self.number("target_ratio").ok(),
        })
    }

    /// Its tensors, with their shapes checked.
    pub fn tensors(&self, config: &ModelConfig) -> Result<Vec<Tensor>> {
        let specs = (0..config.n_layers).flat_map(|layer| DecisionSpec::new(config, layer).into_tensors());
        specs.map(|spec| spec.check(self.file.tensor(&spec)?, &self.label)).collect()
    }

    /// Metadata as one text, for the model's fingerprint.
    pub fn identity(&self) -> String {
        format!("{:?}", self.file.metadata)
    }
}
