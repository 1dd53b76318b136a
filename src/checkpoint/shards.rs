//! The safetensors files of a folder as one set of tensors.

use super::files::Files;
use super::json::{self, Fields};
use super::names::{self, TensorSpec};
use super::safetensors::{RawTensor, SourceFile, TensorFile};
use crate::hub::layout::{self, INDEX, WEIGHTS};
use crate::tensor::Tensor;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// The safetensors files of a folder, and the file of each tensor.
pub struct Shards {
    label: String,
    files: Vec<TensorFile>,
    /// Tensor name to index into `files`.
    owner: BTreeMap<String, usize>,
}

impl Shards {
    /// `model.safetensors`, else the shards of `model.safetensors.index.json`.
    pub fn open(files: &Files) -> Result<Self> {
        if let Some(bytes) = files.bytes(WEIGHTS)? {
            let file = TensorFile::new(&files.label(WEIGHTS), bytes)?;
            let owner = file.names().map(|n| (n.to_owned(), 0)).collect();
            return Ok(Self { label: files.label(WEIGHTS), files: vec![file], owner });
        }
        let Some(index) = json::optional(files, INDEX)? else {
            bail!("{} is missing, and so is {INDEX}; only safetensors weights are read", files.label(WEIGHTS));
        };
        let place = files.label(INDEX);
        let map = Fields::new(&place, &index).opt_object("weight_map")?;
        let map = map.with_context(|| format!("{place} has no weight_map, which is needed"))?;
        let mut out = Self { label: place.clone(), files: Vec::new(), owner: BTreeMap::new() };
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in map.keys() {
            let name = map.opt_str(tensor)?.unwrap_or_default();
            let at = match seen.get(name) {
                Some(&at) => at,
                None => {
                    layout::plain_name(name).map_err(|e| e.context(format!("{place} is refused")))?;
                    let bytes = files.bytes(name)?;
                    let bytes =
                        bytes.with_context(|| format!("{} is missing, which {INDEX} names", files.label(name)))?;
                    out.files.push(TensorFile::new(&files.label(name), bytes)?);
                    seen.insert(name, out.files.len() - 1);
                    out.files.len() - 1
                }
            };
            out.owner.insert(tensor.to_owned(), at);
        }
        Ok(out)
    }

    pub fn sources(&self) -> Vec<SourceFile> {
        self.files.iter().map(TensorFile::source).collect()
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// The tensor of that name and shape, in F32, F16 or BF16.
    pub fn plain(&self, spec: &TensorSpec) -> Result<Option<Tensor>> {
        let Some((name, at)) = self.stored(&spec.name) else { return Ok(None) };
        let mut tensor = self.files[at].tensor(&TensorSpec { name, shape: spec.shape.clone() })?;
        tensor.iter_mut().for_each(|tensor| tensor.name.clone_from(&spec.name));
        Ok(tensor)
    }

    /// The tensor of that name, in any element type.
    pub fn raw(&self, name: &str) -> Option<RawTensor> {
        let (name, at) = self.stored(name)?;
        self.files[at].raw(&name)
    }

    /// The name that a tensor has in the files, and its file. In files of a vision model, the
    /// language model's tensors have a prefix.
    fn stored(&self, name: &str) -> Option<(String, usize)> {
        let part = || Some(format!("model.language_model.{}", name.strip_prefix("model.")?));
        let found = |name: String| self.owner.get(&name).map(|&at| (name, at));
        // Older versions of transformers saved Gemma 3 in this way.
        let older = || found(format!("language_model.{name}"));
        found(name.to_owned()).or_else(|| found(part()?)).or_else(older)
    }

    /// Contents of the files besides the language model, with the number of their tensors.
    pub fn unused(&self) -> Vec<(&'static str, usize)> {
        let vision = ["visual.", "vision_tower.", "multi_modal_projector.", "vision_embedder.", "embed_vision."];
        let audio = ["audio_tower.", "embed_audio."];
        let parts = [(&vision[..], "the vision tower"), (&audio, "the audio tower"), (&["mtp."], names::MTP)];
        let of = |name: &String, prefixes: &[&str]| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let count = |prefixes: &[&str]| self.owner.keys().filter(|name| of(name, prefixes)).count();
        parts.into_iter().map(|(prefixes, part)| (part, count(prefixes))).filter(|(_, n)| *n > 0).collect()
    }
}
