//! Opens model folders, GGUF files and the built-in model, and checks their content. Knows nothing
//! of devices or of the forward pass.

pub mod adapter;
pub mod bounds;
mod builtin;
pub mod config;
pub mod dial_file;
pub mod draft_head;
mod e2m1;
pub mod eagle;
mod ends;
mod family;
pub(crate) mod files;
mod fp4;
mod fp8;
mod gemma4;
pub(crate) mod gguf;
mod identity;
mod json;
pub mod known;
mod listed;
pub(crate) mod mapped;
mod model;
mod mtp;
pub mod names;
pub(crate) mod origin;
mod oss;
pub(crate) mod pack;
mod packed;
mod parse;
mod pth;
pub mod pull;
mod quantized;
pub mod random;
mod rope;
pub(crate) mod safetensors;
mod shards;
mod source;
mod spec;
mod stacked;
mod summary;
mod texts;
mod tuning;

pub use crate::hub::ModelRef;
pub use config::{DmcConfig, DmsConfig, DmsVariant, Gates, ModelConfig, Predictor, Rope, RopeScaling};
pub use family::Family;
pub use identity::full_path;
pub use model::{AdapterChoice, Checkpoint, GenerationDefaults};
pub use spec::{Activation, DeltaNet, Experts, LayerInputs, LayerKind, Local, Mixer, Mlp, QueryGrowth, Spec};
pub use stacked::Stacked;
pub use summary::{Summary, summary_of_config};
pub use tuning::Tuning;

use identity::fingerprint;
use summary::{choose_adapter, configuration, names_of, summary_of};

use crate::hub;
use crate::tensor::{SharedBytes, Tensor};
use crate::unicode;
use anyhow::Result;
use draft_head::DraftHead;
use files::Files;
use json::Fields;
use known::Published;
use origin::Origin;
use serde_json::Value;
use source::Source;
use std::collections::BTreeMap;
use std::path::Path;

impl Checkpoint {
    /// Opens a model: reads its configuration, maps its weights, and checks that every tensor of
    /// the configuration exists with its shape. Each error is one line.
    pub fn open(model: &ModelRef, adapter: &AdapterChoice) -> Result<Self> {
        let (name, files, commit) = locate(model)?;
        let mut out = Self::from_files(&name, &files, adapter, own_weights).map_err(unicode::one_line_error)?;
        out.origin =
            out.origin.map(|origin| Origin { model: reference(model), revision: commit.or(origin.revision), ..origin });
        Ok(out)
    }

    /// [`Checkpoint::open`] for files in memory, by name.
    pub fn from_memory(name: &str, files: BTreeMap<String, SharedBytes>, adapter: &AdapterChoice) -> Result<Self> {
        Self::from_files(name, &Files::memory(files)?, adapter, own_weights).map_err(unicode::one_line_error)
    }

    /// `weights` returns the tensors of the configuration, and their files if these are the model's
    /// own.
    pub(crate) fn from_files(
        name: &str,
        files: &Files,
        adapter: &AdapterChoice,
        weights: impl FnOnce(&Files, &ModelConfig) -> Result<(Vec<Tensor>, Option<Source>)>,
    ) -> Result<Self> {
        let (mut config, config_map, metadata) = configuration(files)?;
        let config_fields = Fields::new(&files.label("config.json"), &config_map);
        let generation = json::optional(files, "generation_config.json")?;
        let generation_fields = generation.as_ref().map(|g| Fields::new(&files.label("generation_config.json"), g));
        let (generation, ignored) = parse::generation(generation_fields.as_ref(), &config_fields, config.vocab)?;

        let (mut tensors, own_files) = weights(files, &config)?;
        let stored_as = formats(&tensors);
        let mut identity = format!("{}{metadata:?}", Value::Object(config_map.clone()));
        let found = matches!(adapter, AdapterChoice::Auto | AdapterChoice::In(_));
        let names = names_of(name, files, &config_map);
        let mut source = None;
        if let Some(adapter) = choose_adapter(adapter, &names, &config)? {
            let mut take = || -> Result<Vec<Tensor>> {
                adapter.fits(name, &config)?;
                adapter.decide(&mut config)?;
                adapter.tensors(&config)
            };
            let decisions = take().map_err(|why| if found { adapter::refused_unasked(&why) } else { why })?;
            source = Some(adapter.source(&decisions, found, &names));
            tensors.extend(decisions);
            identity.push_str(&adapter.identity());
        }

        let texts = texts::read(files)?;
        let mut out = Self::empty(name, config);
        out.tokenizer_json = files.text("tokenizer.json")?.unwrap_or_default();
        out.chat_template = texts.template;
        let token = |name: &str| texts.specials.get(name).cloned().unwrap_or_default();
        (out.bos_token, out.eos_token, out.prompt_bos) = (token("bos_token"), token("eos_token"), texts.prompt_bos);
        out.special_tokens = texts.specials;
        let eos = ends::all(generation.eos, &texts.ends, &out.tokenizer_json, out.config.vocab);
        out.generation = GenerationDefaults { eos, ..generation };
        out.ignored = ignored;
        let predictor = known::predictor(&names, &out.config).filter(|_| found && out.config.trained().is_none());
        out.published.extend(predictor);
        out.names = names;
        out.adapter = source;
        out.builtin = matches!(files, Files::BuiltIn);
        out.origin = own_files.filter(|_| !out.builtin).map(|source| {
            let (model, revision) = (name.to_owned(), files.commit());
            Origin { model, revision, files: files.clone(), source: source.into() }
        });
        out.take_tensors(tensors);
        out.stored_as = stored_as;
        out.fingerprint = fingerprint(&identity, &out.tensors);
        Ok(out)
    }

    /// Has a head guess its next tokens. Fails for one of another model.
    pub fn set_draft_head(&mut self, mut head: DraftHead) -> Result<()> {
        head.fits(&self.name, &self.config)?;
        head.adapt(self.weights.is_packed(), self.tensors.get(&names::embedding(&self.config).name))?;
        self.draft_head = Some(head);
        Ok(())
    }

    /// Loads the draft head to use if none is named: the model's own, else a published one in the
    /// hub's cache. A published head that is not in the cache is offered for download.
    pub fn find_draft_head(&mut self) -> Result<()> {
        // An unreadable head is not needed: answers come without it.
        let mut head = self.own_head().ok().flatten();
        if let Some(id) = known::draft_head_id(&self.names).filter(|_| head.is_none()) {
            match eagle::named(Path::new(&id), self.config.n_layers) {
                Ok(cached) => head = Some(cached).filter(|head| head.fits(&self.name, &self.config).is_ok()),
                Err(_) => self.published.extend(known::draft_head(&self.names, &self.config)),
            }
        }
        head.map_or(Ok(()), |head| self.set_draft_head(head))
    }

    /// The head among the model's own tensors, if there is one: its layer for multi-token
    /// prediction.
    pub fn own_head(&self) -> Result<Option<DraftHead>> {
        self.origin.as_ref().map_or(Ok(None), |origin| mtp::read(&origin.source, &self.config))
    }

    /// Notices for the user: an adapter that was chosen automatically, defaults that are ignored.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        self.found().chain(self.warnings())
    }

    /// Says what was chosen where nobody named a source of decisions, and what could be downloaded.
    pub fn found(&self) -> impl Iterator<Item = String> {
        self.found_adapter().into_iter().chain(self.published.iter().map(Published::offer))
    }

    fn found_adapter(&self) -> Option<String> {
        let source = self.adapter.as_ref().filter(|source| source.found)?;
        let other =
            if source.is_anothers { format!(", made for a different model than {}", self.name) } else { String::new() };
        Some(format!("{}{other}. --adapter none keeps everything", self.evicts_by()?))
    }

    /// The source of decisions from outside the model's files, with what it is measured to do:
    /// `forgets with KVzap-mlp-Qwen3-8B (about 3.1x, KL 0.009 on held-out text)`.
    pub fn evicts_by(&self) -> Option<String> {
        let source = self.adapter.as_ref()?;
        if let Some(Gates { memory_size, .. }) = self.config.gates {
            return Some(format!("forgets with {} (made for {memory_size} tokens a head)", source.name));
        }
        let dms = self.config.dms.as_ref()?;
        let base = source.base.as_deref().unwrap_or("an unnamed model");
        let name = match source.kind {
            "adapter" if builtin::is_adapter(&source.name) => format!("the built-in adapter for {base}"),
            "adapter" => format!("the adapter for {base}"),
            "predictor" => format!("predictor {}", source.name),
            _ => source.name.clone(),
        };
        let figures = dms.threshold().zip(source.card.as_ref());
        let promise = match figures.and_then(|(threshold, card)| card.figures(threshold, dms.rule.window)) {
            Some((ratio, kl)) => format!(" (about {ratio:.1}x, KL {kl:.3} on held-out text)"),
            None => dms.target_ratio.map_or(String::new(), |ratio| format!(" (trained for {ratio:.0}x)")),
        };
        Some(format!("forgets with {name}{promise}"))
    }

    /// A notice about a source of decisions that the user named and that was made for a different
    /// model.
    fn anothers_adapter(&self) -> Option<String> {
        let source = self.adapter.as_ref().filter(|source| source.is_anothers && !source.found)?;
        let (name, base) = (&source.name, source.base.as_deref()?);
        Some(format!("{name} was made for {base}, not for {}: it may drop tokens that this model needs", self.name))
    }

    /// A notice about a head that was made for a model of another name.
    fn anothers_head(&self) -> Option<String> {
        let head = self.draft_head.as_ref().filter(|head| head.is_anothers(&self.name))?;
        let base = head.base.as_deref()?;
        Some(format!("{} was made for {base}, not for {}: fewer of its drafts may be right", head.name, self.name))
    }

    /// The importance matrix that its GGUF file names.
    pub fn imatrix(&self) -> Option<String> {
        match &self.origin.as_ref()?.files {
            Files::Gguf(gguf) => gguf.imatrix(),
            _ => None,
        }
    }

    /// Contents of the files that nothing here computes: `333 tensors of the vision tower`.
    pub fn unused(&self) -> Option<String> {
        let source = &self.origin.as_ref()?.source;
        let tensors = |n| if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
        let own = mtp::read(source, &self.config).is_ok_and(|head| head.is_some());
        let unused = source
            .unused()
            .into_iter()
            .filter(|(part, _)| !own || *part != names::MTP)
            .map(|(part, n)| format!("{} of {part}", tensors(n)));
        Some(unused.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
    }

    /// Notices about deviations from the files.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let own = self.ignored.clone().into_iter().chain(self.kept.clone());
        own.chain(self.reordered()).chain(self.anothers_adapter()).chain(self.anothers_head())
    }

    /// A notice about codes of GPTQ that the conversion could not keep.
    fn reordered(&self) -> Option<String> {
        let again = self.weights.uses_importance() && self.stored_as.contains(packed::ACT_ORDER);
        again
            .then(|| "its GPTQ codes are in act-order, so they were quantized again; int8 is closer to them".to_owned())
    }
}

/// A model as `-m` takes it from anywhere.
fn reference(model: &ModelRef) -> String {
    match model {
        ModelRef::BuiltIn => hub::DEMO.to_owned(),
        ModelRef::Folder(path) => full_path(path).display().to_string(),
        ModelRef::Hub(model) => model.name(),
    }
}

/// The weights of a checkpoint's own files.
fn own_weights(files: &Files, config: &ModelConfig) -> Result<(Vec<Tensor>, Option<Source>)> {
    let source = Source::open(files)?;
    Ok((source.take(config)?, Some(source)))
}

/// The name of a model, its files, and the commit of one from the hub.
fn locate(model: &ModelRef) -> Result<(String, Files, Option<String>)> {
    match model {
        ModelRef::BuiltIn => Ok((hub::DEMO.to_owned(), Files::BuiltIn, None)),
        ModelRef::Folder(dir) => {
            let files = Files::at(dir)?;
            let path = full_path(dir);
            let name = path.file_name().map_or_else(|| dir.display().to_string(), |n| n.to_string_lossy().into_owned());
            let name = match (&files, hub::gguf_files::part(&name)) {
                (Files::Gguf(_), Some((stem, ..))) => stem.to_owned(),
                (Files::Gguf(_), None) => Path::new(&name).with_extension("").display().to_string(),
                _ => name,
            };
            Ok((name, files, None))
        }
        ModelRef::Hub(model) => {
            let cached = hub::cached(model)?;
            let files = if model.gguf.is_some() { Files::at(&cached.path) } else { Files::folder(&cached.path) };
            Ok((model.name(), files?, Some(cached.commit)))
        }
    }
}

/// Reads the configuration and the model card. `name` helps to choose between fitting adapters.
pub fn summary(model: &ModelRef, name: &str) -> Result<Summary> {
    let (_, files, _) = locate(model)?;
    summary_of(&files, name)
}

/// Formats of the matrices, largest share of bytes first.
fn formats(tensors: &[Tensor]) -> String {
    let mut bytes: Vec<(&str, usize)> = Vec::new();
    for tensor in tensors.iter().filter(|t| t.shape.len() == 2) {
        let name = tensor.format.name();
        match bytes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += tensor.stored_bytes(),
            None => bytes.push((name, tensor.stored_bytes())),
        }
    }
    bytes.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    bytes.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
