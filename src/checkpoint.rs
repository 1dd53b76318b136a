//! Opens model folders, GGUF files and the built-in model, and checks their content. Knows nothing
//! of devices or of the forward pass.

pub mod adapter;
pub mod bounds;
mod builtin;
pub mod config;
pub mod dial_file;
pub mod draft_head;
pub mod eagle;
mod ends;
mod family;
pub(crate) mod files;
mod fp8;
pub(crate) mod gguf;
mod json;
pub mod known;
pub(crate) mod mapped;
mod mtp;
pub mod names;
pub(crate) mod origin;
pub(crate) mod pack;
mod packed;
mod parse;
pub mod pull;
mod quantized;
pub mod random;
mod rope;
pub(crate) mod safetensors;
mod shards;
mod source;
mod spec;
mod stacked;
mod texts;
mod tuning;

pub use crate::hub::ModelRef;
pub use config::{DmcConfig, DmsConfig, DmsVariant, ModelConfig, Predictor, Rope, RopeScaling};
pub use family::Family;
pub use spec::{Activation, DeltaNet, Experts, LayerKind, Local, Mixer, Mlp, Spec};
pub use stacked::Stacked;
pub use tuning::Tuning;

use crate::hub;
use crate::hub::layout::CARD;
use crate::hub::model_names::{MAX_NAME, Names};
use crate::policy::Trained;
use crate::protocol::SamplingOverrides;
use crate::quant;
use crate::tensor::{Format, SharedBytes, Tensor};
use crate::unicode;
use adapter::Adapter;
use anyhow::{Context, Result, bail};
use draft_head::DraftHead;
use files::Files;
use json::Fields;
use known::Published;
use names::TensorSpec;
use origin::Origin;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use source::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An opened checkpoint: configuration, mapped tensors, tokenizer and template. A clone shares the
/// tensors' bytes.
#[derive(Clone)]
pub struct Checkpoint {
    /// `demo`, the name of the folder, or `ORG/NAME`.
    pub name: String,
    pub config: ModelConfig,
    /// The content of `tokenizer.json`; empty if there is none.
    pub tokenizer_json: Vec<u8>,
    /// Jinja source of the chat template, if there is one.
    pub chat_template: Option<String>,
    pub bos_token: String,
    /// Whether a prompt begins with the BOS even where the template does not write it.
    pub prompt_bos: bool,
    pub eos_token: String,
    /// All special tokens by the names that templates have for them, those two included.
    pub special_tokens: BTreeMap<String, String>,
    pub generation: GenerationDefaults,
    /// A notice about values of `generation_config.json` that are out of range and ignored.
    pub ignored: Option<String>,
    /// The source of decisions outside the model's files, if one is in use.
    pub adapter: Option<adapter::Source>,
    /// Possible downloads for the model: a predictor, if no source of decisions is in use and none
    /// was forbidden, and the head that [`Self::find_draft_head`] looked for.
    pub published: Vec<Published>,
    pub(crate) names: Names,
    /// The head that guesses its next tokens, if one is in use.
    pub draft_head: Option<DraftHead>,
    pub builtin: bool,
    /// Format that [`quantize`](crate::quantize) gave the matrices; `Bf16` is as in the files.
    pub weights: quant::Weights,
    /// Whether the weights are mapped from a file of the weight cache.
    pub cached: bool,
    /// `None` for the built-in model and for random weights.
    pub origin: Option<Origin>,
    /// A notice about matrices that [`quantize`](crate::quantize) left as they are.
    pub kept: Option<String>,
    /// Formats of the matrices in the files, largest share of bytes first: `bf16`, or `Q4_K, Q6_K`.
    pub stored_as: String,
    /// Whether its tensors have no bytes to read: [`Checkpoint::described`].
    pub is_description: bool,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    pub n_params: u64,
    /// Hex digest over config, tensor names, shapes, sizes and a sample of the weights.
    pub fingerprint: String,
    pub tensors: BTreeMap<String, Tensor>,
}

/// Defaults in `generation_config.json`, else in `config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Every token that ends a turn.
    pub eos: Vec<u32>,
    pub do_sample: Option<bool>,
    pub sampling: SamplingOverrides,
}

/// The adapter to use with a model without DMS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// A built-in one, or a published one that is downloaded, if one fits.
    Auto,
    /// An adapter in a folder that was made for the model, else a built-in one, else a published
    /// one that is downloaded.
    In(PathBuf),
    None,
    /// A file, a folder or a hub id.
    File(PathBuf),
}

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
                config.dms = Some(adapter.dms()?);
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
        let (source, dms) = (self.adapter.as_ref()?, self.config.dms.as_ref()?);
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

    /// A digest that differs where the weights in memory do: other than the fingerprint, also with
    /// their format.
    pub fn weights_digest(&self) -> String {
        fingerprint("", &self.tensors)
    }

    /// The tensor of that name, which must have that shape.
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Tensor> {
        spec.check(self.tensors.get(&spec.name).cloned(), &self.name)
    }

    pub(crate) fn empty(name: &str, config: ModelConfig) -> Self {
        Self {
            name: name.to_owned(),
            config,
            tokenizer_json: Vec::new(),
            chat_template: None,
            bos_token: String::new(),
            prompt_bos: false,
            eos_token: String::new(),
            special_tokens: BTreeMap::new(),
            generation: GenerationDefaults::default(),
            ignored: None,
            adapter: None,
            published: Vec::new(),
            names: Names::default(),
            draft_head: None,
            builtin: false,
            weights: quant::Weights::default(),
            cached: false,
            origin: None,
            kept: None,
            stored_as: String::new(),
            is_description: false,
            weight_bytes: 0,
            n_params: 0,
            fingerprint: String::new(),
            tensors: BTreeMap::new(),
        }
    }

    /// Replaces matrices by the ones in a file of converted weights.
    pub(crate) fn with_converted(mut self, weights: quant::Weights, converted: BTreeMap<String, Tensor>) -> Self {
        let n_params = self.n_params;
        let mut tensors = std::mem::take(&mut self.tensors);
        tensors.extend(converted);
        self.take_tensors(tensors.into_values().collect());
        Self { weights, cached: true, n_params, ..self }
    }

    pub(crate) fn take_tensors(&mut self, tensors: Vec<Tensor>) {
        self.n_params = tensors.iter().map(|t| t.len() as u64).sum();
        self.weight_bytes = tensors.iter().map(|t| t.stored_bytes() as u64).sum();
        self.tensors = tensors.into_iter().map(|t| (t.name.clone(), t)).collect();
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

/// The absolute path of a model. Links to folders are resolved; a link to a file keeps its name,
/// because in the Hugging Face cache its target is called by a hash.
pub fn full_path(path: &Path) -> PathBuf {
    let full = if path.is_file() { std::path::absolute(path) } else { std::fs::canonicalize(path) };
    full.unwrap_or_else(|_| path.to_owned())
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

/// Reads `config.json`, and `dms_metadata.json` if it exists: the configuration, and each file's
/// object.
fn configuration(files: &Files) -> Result<(ModelConfig, Object, Option<Object>)> {
    let label = files.label("config.json");
    let raw =
        files.text("config.json")?.with_context(|| format!("{label} is missing, so this is not a model folder"))?;
    let map = parse::text_part(json::object(&label, &raw)?);
    let metadata = metadata_object(files)?;
    let metadata_fields = metadata.as_ref().map(|m| Fields::new(&files.label("dms_metadata.json"), m));
    let whole = parse::with_class_defaults(map.clone());
    let config = parse::model_config(&Fields::new(&label, &whole), metadata_fields.as_ref())?;
    Ok((config, map, metadata))
}

/// A description of a model without its weights.
pub struct Summary {
    pub config: ModelConfig,
    /// The model that the fitting built-in adapter was made for, if any.
    pub adapter: Option<String>,
    /// Downloads offered for it: a predictor, unless it evicts by itself, and a draft head.
    pub published: Vec<Published>,
    pub licence: Option<String>,
}

/// Reads the configuration and the model card. `name` helps to choose between fitting adapters.
pub fn summary(model: &ModelRef, name: &str) -> Result<Summary> {
    let (_, files, _) = locate(model)?;
    summary_of(&files, name)
}

/// [`summary`] of files, of which the configuration suffices.
fn summary_of(files: &Files, name: &str) -> Result<Summary> {
    let (config, map, _) = configuration(files)?;
    let names = names_of(name, files, &map);
    let adapter = choose_adapter(&AdapterChoice::Auto, &names, &config)?;
    let predictor = known::predictor(&names, &config).filter(|_| config.trained().is_none());
    let published = predictor.into_iter().chain(known::draft_head(&names, &config)).collect();
    let adapter = adapter.and_then(|adapter| adapter.base().map(str::to_owned));
    let licence = match files {
        Files::BuiltIn => Some("apache-2.0".to_owned()),
        Files::Gguf(gguf) => gguf.licence(),
        _ => files.text(CARD).ok().flatten().and_then(|card| texts::licence(&card)),
    };
    Ok(Summary { config, adapter, published, licence })
}

/// The configuration. Needs no weights.
fn config_of(files: &Files) -> Result<ModelConfig> {
    Ok(configuration(files)?.0)
}

type Object = Map<String, Value>;

/// `dms_metadata.json`, whose fields may be under the key `config`.
fn metadata_object(files: &Files) -> Result<Option<Object>> {
    let Some(mut outer) = json::optional(files, "dms_metadata.json")? else { return Ok(None) };
    match outer.remove("config") {
        Some(Value::Object(inner)) => Ok(Some(inner)),
        _ => Ok(Some(outer)),
    }
}

/// The names of a model and of those that it was made of, as its files state them.
fn names_of(name: &str, files: &Files, config: &Object) -> Names {
    let mut names = match files {
        Files::Gguf(gguf) => gguf.names(),
        Files::BuiltIn => Names::default(),
        _ => {
            let card = files.text(CARD).ok().flatten().map(|card| texts::bases(&card));
            let path = config.get("_name_or_path").and_then(Value::as_str).filter(|path| path.len() <= MAX_NAME);
            Names { own: Vec::new(), bases: card.into_iter().flatten().chain(path.map(str::to_owned)).collect() }
        }
    };
    names.own.insert(0, name.to_owned());
    names
}

fn choose_adapter(choice: &AdapterChoice, names: &Names, config: &ModelConfig) -> Result<Option<Adapter>> {
    match choice {
        AdapterChoice::None => Ok(None),
        AdapterChoice::Auto | AdapterChoice::In(_) if config.trained().is_some() => Ok(None),
        AdapterChoice::Auto => Adapter::find(None, names, config),
        AdapterChoice::In(folder) => Adapter::find(Some(folder), names, config),
        AdapterChoice::File(path) => {
            let (label, model) = (path.display(), names.first());
            let own = match config.trained() {
                Some(Trained::Dms(_)) => "DMS",
                Some(Trained::Dmc(_)) => "DMC",
                Some(Trained::Window(_)) => "a sliding window",
                None => return Adapter::named(path).map(Some),
            };
            bail!("{model} has {own} of its own, so --adapter {label} is refused");
        }
    }
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

/// A digest that differs between models whose saved token logs are not interchangeable. Reads a few
/// hundred bytes per tensor, so that opening a large model does not read all of it.
fn fingerprint(identity: &str, tensors: &BTreeMap<String, Tensor>) -> String {
    const SAMPLE_BYTES: usize = 256;
    let mut hash = Sha256::new();
    hash.update(identity);
    for t in tensors.values() {
        hash.update(format!("{t:?}"));
        if let (Format::Rows(rows), &[n, cols]) = (&t.format, &t.shape[..]) {
            let mut middle = vec![0.0; cols];
            rows.decode(n / 2, &mut middle);
            hash.update(bytemuck::cast_slice(&middle));
            continue;
        }
        let raw = t.bytes();
        let middle = raw.len() / 2;
        hash.update(&raw[middle..raw.len().min(middle + SAMPLE_BYTES)]);
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
