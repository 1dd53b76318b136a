//! Eviction decisions from outside a model's own files: adapters of version 1 (a linear map with
//! its own norm), predictors of version 2, KVzap's, and TrimKV's gates. All become tensors of
//! [`names`](super::names), and a [`DmsConfig`] or [`Gates`](super::Gates).

pub mod card;
pub mod kvzap;
pub mod trimkv;

use super::builtin;
use super::config::{DmsConfig, DmsVariant, ModelConfig, Predictor};
use super::files::Files;
use super::identity::{fingerprint, full_path};
use super::json;
use super::known;
use super::names::{DecisionSpec, PREDICTOR, TensorSpec};
use super::safetensors::TensorFile;
use super::{bounds, mapped};
use crate::hub::layout::{GATES, WEIGHTS};
use crate::hub::model_names::Names;
use crate::hub::{self, HubModel};
use crate::policy::{Dms, Shift};
use crate::tensor::{SharedBytes, Tensor};
use anyhow::{Result, anyhow, bail, ensure};
use card::{Card, FORMATS, Header, Metadata, VERSION_1, VERSION_2};
use kvzap::KvZap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trimkv::TrimKv;

/// How the names of our files end.
pub const EXTENSION: &str = "safetensors";

/// Whether the file at a path begins as one of ours: a safetensors file whose metadata say so.
pub fn is_own(path: &Path) -> bool {
    let metadata = || -> Result<Option<String>> {
        let file = TensorFile::new("", mapped::map_file(path)?)?;
        Ok(file.metadata.get("format").cloned())
    };
    metadata().is_ok_and(|format| format.is_some_and(|format| format.starts_with(FORMATS)))
}

/// Whether `config.json` is of a source of decisions, and not of a model.
pub fn is_source(files: &Files) -> bool {
    json::optional(files, "config.json")
        .is_ok_and(|config| config.is_some_and(|config| kvzap::is_kvzap(&config) || trimkv::are_gates(&config)))
}

/// [`is_source`] for a folder.
pub fn is_source_at(folder: &Path) -> bool {
    Files::folder(folder).is_ok_and(|files| is_source(&files))
}

/// An opened file or folder of decisions. `label` names it in error messages.
pub struct Adapter {
    label: String,
    name: String,
    file: TensorFile,
    form: Form,
}

enum Form {
    Version1,
    Version2(Header),
    KvZap(KvZap),
    TrimKv(TrimKv),
}

/// The source of a model's decisions, for users and records.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// `adapter`, `predictor`, `kvzap` or `trimkv`.
    pub kind: &'static str,
    pub name: String,
    /// Its path, for error messages.
    pub label: String,
    /// The model that it was made for, if that is known.
    pub base: Option<String>,
    /// Digest of its tensors and metadata.
    pub hash: String,
    pub card: Option<Card>,
    /// Whether nobody asked for it by name.
    pub found: bool,
    /// Whether it was made for another model of the same shapes.
    pub is_anothers: bool,
}

impl Adapter {
    /// A file of ours.
    pub fn new(label: &str, bytes: SharedBytes) -> Result<Self> {
        let file = TensorFile::new(label, bytes)?;
        let metadata = Metadata { label, map: &file.metadata };
        let form = match metadata.text("format")? {
            VERSION_1 => Form::Version1,
            VERSION_2 => Form::Version2(Header::parse(&metadata)?),
            other => {
                bail!("{label}: adapter format {other:?} is unknown ({VERSION_1} and {VERSION_2} are known)")
            }
        };
        let name = Path::new(label).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { label: label.to_owned(), name, file, form })
    }

    /// Loads one of our files, or a folder with a KVzap predictor or retention gates. `name` is
    /// shown to users instead of the file name.
    pub fn open(path: &Path, name: Option<&str>) -> Result<Self> {
        let label = path.display().to_string();
        let folder = match path.file_name().is_some_and(|name| name == WEIGHTS || name == GATES) {
            true => path.parent().filter(|folder| folder.join("config.json").is_file()),
            false => Some(path).filter(|path| path.is_dir()),
        };
        let Some(folder) = folder else {
            let opened = Self::new(&label, mapped::map_file(path)?)?;
            return Ok(Self { name: name.map_or(opened.name, str::to_owned), ..opened });
        };
        let files = Files::folder(folder)?;
        let kvzap = KvZap::open(&files)?.map(|(config, file)| (Form::KvZap(config), file));
        let opened = match kvzap {
            None => TrimKv::open(&files)?.map(|(config, file)| (Form::TrimKv(config), file)),
            found => found,
        };
        let Some((form, file)) = opened else {
            bail!(
                "{label} holds no KVzap predictor and no retention gates: it needs a config.json with model_type \"kvzap\" \
                 or with retention_gate"
            );
        };
        let called = || full_path(folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.map_or_else(called, str::to_owned);
        Ok(Self { label: folder.display().to_string(), name, file, form })
    }

    /// Opens the adapter that `--adapter` names: a file, a folder, or a hub id whose predictor is
    /// in the cache.
    pub fn named(path: &Path) -> Result<Self> {
        match known::hub_model(path) {
            Some(model) => Self::of_hub(&model),
            None => Self::open(path, None),
        }
    }

    /// The adapter to use if none is named: the one in `folder` that was made for the model, else a
    /// built-in one, else a published one in the hub's cache.
    pub fn find(folder: Option<&Path>, names: &Names, config: &ModelConfig) -> Result<Option<Self>> {
        if let Some(own) = folder.and_then(|folder| Self::find_in(folder, names, config)) {
            return Ok(Some(own));
        }
        let built_in = Self::built_in(names.first(), config)?;
        Ok(built_in.or_else(|| Self::cached(names, config)))
    }

    /// The predictor of a hub id in the cache.
    fn of_hub(model: &HubModel) -> Result<Self> {
        Self::open(&hub::cached(model)?.path, Some(&model.id))
    }

    /// The published predictor for a model, if it is in the hub's cache and fits.
    fn cached(names: &Names, config: &ModelConfig) -> Option<Self> {
        known::predictors(names).into_iter().find_map(|id| {
            let adapter = Self::of_hub(&HubModel { id, gguf: None, revision: None }).ok()?;
            adapter.fits(names.first(), config).is_ok().then_some(adapter)
        })
    }

    /// Returns the built-in adapter for this model, if there is one: of those that fit its shapes,
    /// the one made for a model of that name, else the first.
    fn built_in(model: &str, config: &ModelConfig) -> Result<Option<Self>> {
        let mut found: Option<Self> = None;
        for (name, bytes) in builtin::ADAPTERS {
            let adapter = Self::new(name, Arc::new(*bytes))?;
            let named = adapter.is_for(model);
            if adapter.fits(model, config).is_ok() && (named || found.is_none()) {
                found = Some(adapter);
                if named {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The adapter in a folder that was made for this model and fits it. One with the name that
    /// users see is preferred.
    fn find_in(folder: &Path, names: &Names, config: &ModelConfig) -> Option<Self> {
        let all = Self::all_in(folder).into_iter().map(|(_, adapter)| adapter);
        let mut fitting: Vec<Self> = all.filter(|adapter| adapter.fits(names.first(), config).is_ok()).collect();
        let at = fitting.iter().position(|adapter| adapter.is_for(names.first()));
        let at = at.or_else(|| fitting.iter().position(|adapter| adapter.base().is_some_and(|base| names.has(base))));
        at.map(|at| fitting.swap_remove(at))
    }

    /// The adapter files of a folder that can be read, by name.
    pub fn all_in(folder: &Path) -> Vec<(PathBuf, Self)> {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == EXTENSION)).collect();
        files.sort();
        files.into_iter().filter_map(|path| Self::open(&path, None).ok().map(|adapter| (path, adapter))).collect()
    }

    /// Whether it was made for a model of this name, or of this GGUF file.
    pub fn is_for(&self, model: &str) -> bool {
        let model = model.strip_suffix(".gguf").unwrap_or(model);
        self.base().is_some_and(|base| short(base) == short(model))
    }

    /// Name shown to users.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Metadata of a predictor's file.
    pub fn header(&self) -> Option<&Header> {
        if let Form::Version2(header) = &self.form { Some(header) } else { None }
    }

    /// The model that it was made for.
    pub fn base(&self) -> Option<&str> {
        match &self.form {
            Form::KvZap(_) => kvzap::base_of(&self.name),
            Form::TrimKv(config) => config.base.as_deref(),
            _ => self.file.metadata.get("base").map(String::as_str),
        }
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata { label: &self.label, map: &self.file.metadata }
    }

    /// Fails unless every shape field equals the model's. The error names the first difference.
    pub fn fits(&self, model: &str, c: &ModelConfig) -> Result<()> {
        match &self.form {
            Form::KvZap(config) => return config.fits(&self.label, model, c),
            Form::TrimKv(config) => return config.fits(&self.label, model, c),
            Form::Version1 | Form::Version2(_) => {}
        }
        let metadata = self.metadata();
        let refuse = |key: &str, theirs: &str, ours: &str| -> Result<()> {
            let base = self.base().unwrap_or("an unnamed model");
            bail!("{} is an adapter for {base} ({key} {theirs}) and does not fit {model} ({key} {ours})", self.label)
        };
        let model_type = metadata.text("model_type")?;
        if model_type != c.family.name {
            return refuse("model_type", model_type, c.family.name);
        }
        for (key, ours) in card::shapes(c) {
            let theirs: usize = metadata.number(key)?;
            if theirs != ours {
                return refuse(key, &theirs.to_string(), &ours.to_string());
            }
        }
        Ok(())
    }

    /// Makes the decisions of a model its own.
    pub fn decide(&self, config: &mut ModelConfig) -> Result<()> {
        let dms = match &self.form {
            Form::Version1 => self.version_1()?,
            Form::Version2(header) => {
                let Header { threshold, window, sinks, ref card, .. } = *header;
                let target_ratio = card.figures(threshold, window).map(|(ratio, _)| ratio);
                DmsConfig { target_ratio, ..predictor(self.maps("layers.")?, threshold, window, sinks) }
            }
            Form::KvZap(config) => predictor(config.maps, kvzap::THRESHOLD, kvzap::WINDOW, kvzap::SINKS),
            Form::TrimKv(gates) => {
                config.gates = Some(gates.gates);
                return Ok(());
            }
        };
        config.dms = Some(dms);
        Ok(())
    }

    fn version_1(&self) -> Result<DmsConfig> {
        let metadata = self.metadata();
        let shift = match metadata.text("shift")? {
            "0" => Shift::Same,
            "1" => Shift::Previous,
            other => bail!("{}: metadata shift is {other:?}, expected 0 or 1", self.label),
        };
        let per_layer = match metadata.text("alpha_per")? {
            "head" => false,
            "layer" => true,
            other => bail!("{}: metadata alpha_per {other:?} is unknown (head, layer)", self.label),
        };
        Ok(DmsConfig {
            alpha_scale: metadata.finite("alpha_scale")?,
            alpha_offset: metadata.finite("alpha_offset")?,
            per_layer,
            target_ratio: metadata.number("target_ratio").ok(),
            ..DmsConfig::new(DmsVariant::Adapter, Dms::new(metadata.length("window")?, shift))
        })
    }

    /// The maps that the file has in its first layer, and thereby in every one.
    fn maps(&self, prefix: &str) -> Result<Predictor> {
        let linear = self.file.raw(&format!("{prefix}0.weight")).is_some();
        let units = self.file.raw(&format!("{prefix}0.0.weight")).map_or(0, |t| t.shape.first().copied().unwrap_or(0));
        ensure!(linear || units > 0, "{}: tensor {prefix}0.weight or {prefix}0.0.weight is missing", self.label);
        ensure!(units <= bounds::FFN, "{}: {units} hidden units, expected at most {}", self.label, bounds::FFN);
        Ok(Predictor { linear, units, deep: false })
    }

    /// Its tensors, with their shapes checked. `config` has its rule.
    pub fn tensors(&self, config: &ModelConfig) -> Result<Vec<Tensor>> {
        let short = |rest: &str| match &self.form {
            Form::KvZap(config) => format!("{}{rest}", config.prefix),
            Form::TrimKv(config) => config.stored_name(rest),
            Form::Version1 | Form::Version2(_) => format!("layers.{rest}"),
        };
        let specs = (0..config.n_layers).filter_map(|layer| DecisionSpec::new(config, layer));
        let read = |TensorSpec { name, shape }: TensorSpec| {
            // The file has predictors' tensors under names of its own.
            let stored = match name.strip_prefix(PREDICTOR).and_then(|name| name.strip_prefix("layers.")) {
                Some(rest) => short(rest),
                None => name.clone(),
            };
            let spec = TensorSpec { name: stored, shape };
            let mut tensor = spec.check(self.file.tensor(&spec)?, &self.label)?;
            tensor.name = name;
            Ok(tensor)
        };
        specs.flat_map(DecisionSpec::into_tensors).map(read).collect()
    }

    /// Name for users and records. `tensors` are its own.
    pub fn source(&self, tensors: &[Tensor], found: bool, names: &Names) -> Source {
        let (kind, card) = match &self.form {
            Form::Version1 => ("adapter", None),
            Form::Version2(header) => ("predictor", Some(header.card.clone())),
            Form::KvZap(_) => ("kvzap", None),
            Form::TrimKv(_) => ("trimkv", None),
        };
        let tensors = tensors.iter().map(|t| (t.name.clone(), t.clone())).collect();
        let hash = fingerprint(&self.identity(), &tensors);
        let base = self.base().map(str::to_owned);
        let is_anothers = base.as_ref().is_some_and(|base| !names.has(base));
        // A hub id is shown without its owner.
        let name = self.name.rsplit('/').next().unwrap_or_default().to_owned();
        let label = self.label.clone();
        Source { kind, name, label, base, hash, card, found, is_anothers }
    }

    /// Values beside its tensors, for the model's fingerprint.
    pub fn identity(&self) -> String {
        format!("{:?}", self.file.metadata)
    }
}

/// The error of an adapter, which it names, where nobody asked for that adapter.
pub(super) fn refused_unasked(why: &anyhow::Error) -> anyhow::Error {
    anyhow!("{why:#}; this adapter was found by itself, and --adapter none leaves it out")
}

/// The rule of a predictor.
pub(super) fn predictor(maps: Predictor, threshold: f32, window: usize, sinks: usize) -> DmsConfig {
    let rule = Dms { sinks, ..Dms::new(window, Shift::Same) };
    DmsConfig { alpha_scale: -1.0, alpha_offset: -threshold, ..DmsConfig::new(DmsVariant::Predictor(maps), rule) }
}

/// A model's name without its owner, in lower case.
fn short(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_lowercase()
}
