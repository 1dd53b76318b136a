//! Finds the tensors of a checkpoint in its weight files, whatever their format.

use super::config::ModelConfig;
use super::files::Files;
use super::gguf::Gguf;
use super::json::{self, Fields};
use super::names::{self, TensorSpec};
use super::oss;
use super::quantized::Quantization;
use super::safetensors::SourceFile;
use super::shards::Shards;
use crate::tensor::{Format, Tensor};
use anyhow::{Result, ensure};
use std::path::Path;
use std::sync::Arc;

const CONFIG: &str = "config.json";

/// The weight files of a checkpoint.
pub enum Source {
    Safetensors { shards: Shards, quantization: Option<Quantization> },
    Gguf(Arc<Gguf>),
}

impl Source {
    /// The GGUF file, or the safetensors files of a folder.
    pub fn open(files: &Files) -> Result<Self> {
        if let Files::Gguf(gguf) = files {
            return Ok(Self::Gguf(gguf.clone()));
        }
        let config = json::optional(files, CONFIG)?.unwrap_or_default();
        let quantization = Quantization::parse(&Fields::new(&files.label(CONFIG), &config))?;
        Ok(Self::Safetensors { shards: Shards::open(files)?, quantization })
    }

    /// The files that hold the weights.
    pub fn files(&self) -> Vec<SourceFile> {
        match self {
            Self::Safetensors { shards, .. } => shards.sources(),
            Self::Gguf(gguf) => {
                let name = |label| Path::new(label).file_name().unwrap_or_default().to_string_lossy().into_owned();
                let files = gguf.files();
                files.map(|(label, bytes, head_bytes)| SourceFile { name: name(label), head_bytes, bytes }).collect()
            }
        }
    }

    /// Contents of the files besides the language model, with the number of their tensors.
    pub fn unused(&self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Safetensors { shards, .. } => shards.unused(),
            Self::Gguf(gguf) => gguf.unused(),
        }
    }

    /// Names the files in error messages.
    fn label(&self) -> &str {
        match self {
            Self::Safetensors { shards, .. } => shards.label(),
            Self::Gguf(gguf) => gguf.label(),
        }
    }

    /// A tensor, which may be some rows of one in the files. `stored` tells the name there.
    fn get(&self, config: &ModelConfig, spec: &TensorSpec, stored: impl Fn(&str) -> String) -> Result<Option<Tensor>> {
        if let (true, Self::Safetensors { shards, .. }) = (config.family.oss, self)
            && let Some(tensor) = oss::tensor(shards, config, spec)?
        {
            return Ok(Some(tensor));
        }
        let stored = |spec: &TensorSpec| TensorSpec { name: stored(&spec.name), shape: spec.shape.clone() };
        let of_experts = || names::of_experts(config, spec).into_iter().find(|(w, _)| self.has(&stored(w).name));
        let Some((whole, runs)) = names::fused(config, spec).or_else(of_experts) else {
            let tensor = self.whole(&stored(spec))?;
            return Ok(tensor.map(|tensor| tensor.named(&spec.name)));
        };
        let whole = stored(&whole);
        let tensor = self.whole(&whole)?.map(|tensor| whole.check(Some(tensor), self.label())).transpose()?;
        // A vector may be a row of a matrix.
        let n = if whole.shape.len() == spec.shape.len() + 1 && runs.run == 1 { 1 } else { spec.shape[0] };
        Ok(tensor.map(|tensor| {
            let mut rows = tensor.as_matrix().rows(&spec.name, n, runs);
            rows.shape.clone_from(&spec.shape);
            rows
        }))
    }

    /// Whether a layer for multi-token prediction has a tensor of this name: see [`Self::mtp`].
    pub fn has_mtp(&self, name: &str) -> bool {
        self.mtp_name(name).is_some_and(|name| self.has(&name))
    }

    /// A tensor of the layer for multi-token prediction, by the name that it would have in a model
    /// of only that layer.
    pub fn mtp(&self, config: &ModelConfig, spec: &TensorSpec) -> Result<Tensor> {
        let stored = |name: &str| self.mtp_name(name).unwrap_or_else(|| name.to_owned());
        spec.check(self.get(config, spec, stored)?, self.label())
    }

    fn mtp_name(&self, name: &str) -> Option<String> {
        let rest = name.strip_prefix("model.")?;
        match self {
            Self::Safetensors { .. } => Some(format!("mtp.{rest}")),
            Self::Gguf(gguf) => {
                let rest = rest.strip_prefix("layers.0.").map_or_else(|| format!("nextn.{rest}"), str::to_owned);
                Some(format!("model.layers.{}.{rest}", gguf.next_layer()?))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Gguf(gguf) => gguf.has(name),
            Self::Safetensors { shards, .. } => shards.raw(name).is_some(),
        }
    }

    fn whole(&self, spec: &TensorSpec) -> Result<Option<Tensor>> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(spec).map(Some),
            Self::Safetensors { shards, quantization: Some(quantization) } => {
                match quantization.tensor(shards, spec)? {
                    Some(tensor) => Ok(Some(tensor)),
                    None => shards.plain(spec),
                }
            }
            Self::Safetensors { shards, quantization: None } => shards.plain(spec),
        }
    }

    /// Every tensor of the configuration, with its shape checked. The first is the embedding.
    pub fn take(&self, config: &ModelConfig) -> Result<Vec<Tensor>> {
        let tensors = names::all(config).map(|spec| spec.check(self.get(config, &spec, str::to_owned)?, self.label()));
        let tensors = tensors.collect::<Result<Vec<Tensor>>>()?;
        if config.tied
            && let Self::Safetensors { shards, .. } = self
            && let Some(head) =
                shards.plain(&TensorSpec { name: "lm_head.weight".into(), ..names::embedding(config) })?
        {
            // transformers ties them if they are equal, and keeps a head that differs.
            let plain = matches!(tensors[0].format, Format::Plain(_));
            ensure!(
                plain && head.bytes() == tensors[0].bytes(),
                "{}: config.json says tie_word_embeddings, but lm_head.weight differs from the embedding",
                self.label()
            );
        }
        Ok(tensors)
    }
}
