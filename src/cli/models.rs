//! `dmschat models ...`: lists, downloads, describes, quantizes and deletes models.

use super::args::{Common, ModelsCommand};
use super::devices::{self, Stored};
use super::formats::Formats;
use super::output::{self, wrong_use};
use super::quantizing::Quantizing;
use super::start::quiet_settings as settings;
use super::{download, known_models, naming, quantized, spawn};
use crate::chat::session::Store;
use crate::checkpoint::adapter::{self, Adapter};
use crate::checkpoint::eagle;
use crate::checkpoint::known::Kind;
use crate::checkpoint::{self, ModelConfig, ModelRef};
use crate::config::{BUILTIN_MODEL, Settings};
use crate::hub::cache::{self, Extent};
use crate::hub::layout::{GATES, INDEX};
use crate::hub::{Hub, HubError, HubModel, MAIN, Observer, Progress};
use crate::policy::{KvHeads, PolicyKind, PolicyRequest};
use crate::quant::{self, Weights};
use crate::quantize::weight_cache::Cached;
use crate::ui::text::{bytes, plural};
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A model on this machine.
pub(super) struct Found {
    /// Its name for `-m`.
    pub name: String,
    pub path: Option<PathBuf>,
    /// Its commit, if it is in the Hugging Face cache.
    pub commit: Option<String>,
    pub bytes: u64,
    /// Whether files are missing that a chat needs.
    pub partial: bool,
}

impl Found {
    /// Whether quantized weights were made from it.
    fn is_source_of(&self, cached: &Cached) -> bool {
        let Some(path) = &self.path else { return false };
        let (source, revision) = (&cached.identity.source, &cached.identity.revision);
        if revision.is_empty() {
            return checkpoint::full_path(path).display().to_string() == *source;
        }
        self.name.split('@').next() == Some(source) && self.commit.as_ref() == Some(revision)
    }
}

pub fn run(command: &ModelsCommand, common: &Common) -> Result<u8> {
    match command {
        ModelsCommand::Path => output::out(&format!("{}\n", the_hub()?.cache.display()))?,
        ModelsCommand::List { known: true, memory } => known_models::list(common, memory)?,
        ModelsCommand::List { .. } => list(common)?,
        ModelsCommand::Pull { id } => {
            let id = &naming::full_name(id);
            let (path, published) = download::newest(id, &settings(common)?)?;
            if common.json {
                let of = |kind| published.iter().find(|(of, _)| *of == kind).map(|(_, path)| path);
                let [predictor, head] = [Kind::Predictor, Kind::DraftHead].map(of);
                output::out_json(&json!({"name": id, "path": path, "predictor": predictor, "draft_head": head}))?;
            } else {
                for path in std::iter::once(path).chain(published.into_iter().map(|(_, path)| path)) {
                    output::out(&format!("{}\n", path.display()))?;
                }
            }
        }
        ModelsCommand::Rm { id } if common.weights.is_some() => remove_quantized(id, common)?,
        ModelsCommand::Rm { id } => remove(id, common)?,
        ModelsCommand::Quantize { id } => quantize(id, common)?,
        ModelsCommand::Info { id } => info(id, common)?,
        // Refused before: see `Command::moved_to`.
        ModelsCommand::Importance(_) => {}
    }
    Ok(output::OK)
}

fn the_hub() -> Result<Hub> {
    Hub::from_env().map_err(output::as_wrong_use)
}

/// The built-in model, those in the cache, and the folder or GGUF file in the settings.
pub(super) fn found(settings: &Settings) -> Result<Vec<Found>> {
    let mut found = vec![Found { name: BUILTIN_MODEL.to_owned(), path: None, commit: None, bytes: 0, partial: false }];
    found.extend(in_cache(&the_hub()?));
    add(&mut found, &settings.model);
    Ok(found)
}

/// Adds a folder or GGUF file to the models, unless it is none or there already.
pub(super) fn add(found: &mut Vec<Found>, name: &str) {
    let path = Path::new(name);
    let whole = |path: &Path| path.canonicalize().ok();
    let is_there = || found.iter().filter_map(|model| model.path.as_deref()).any(|other| whole(other) == whole(path));
    if cache::holds_model(path) && !is_there() {
        let (bytes, path) = (weight_bytes(path), Some(path.to_owned()));
        found.push(Found { name: name.to_owned(), path, commit: None, bytes, partial: false });
    }
}

fn list(common: &Common) -> Result<()> {
    let settings = settings(common)?;
    let mut found = found(&settings)?;
    let others = found.len();
    Store::new(settings.dirs.sessions()).models().iter().for_each(|path| add(&mut found, path));
    let used: Vec<String> = found[others..].iter().map(|model| model.name.clone()).collect();
    let used = |model: &Found| used.contains(&model.name);
    let made = Adapter::all_in(&settings.dirs.adapters());
    let predictor = |m: &Found| made.iter().map(|(_, adapter)| adapter).find(|a| a.is_for(&m.name)).map(Adapter::name);
    let (files, mut rest) = (quantized::all(), quantized::all());
    let of = |m: &Found| -> Vec<&Cached> { files.iter().filter(|c| m.is_source_of(c)).collect() };
    rest.retain(|c| !found.iter().any(|m| m.is_source_of(c)));
    if common.json {
        let file = |c: &&Cached| json!({"format": c.identity.weights, "bytes": c.bytes, "path": c.path});
        let about = |m: &Found| {
            let (bytes, quantized) = (m.path.as_ref().map(|_| m.bytes), of(m).iter().map(file).collect::<Vec<_>>());
            json!({
                "name": m.name, "path": m.path, "bytes": bytes, "complete": !m.partial, "quantized": quantized,
                "predictor": predictor(m), "used_before": used(m),
            })
        };
        let alone = |c: &Cached| {
            let (name, path) = (&c.identity.source, Value::Null);
            json!({"name": name, "path": path, "bytes": null, "complete": true, "quantized": [file(&c)]})
        };
        let list: Vec<_> = found.iter().map(about).chain(rest.iter().map(alone)).collect();
        return output::out_json(&list);
    }
    let names = found.iter().map(|m| &m.name).chain(rest.iter().map(|c| &c.identity.source));
    let width = names.map(|n| n.chars().count()).max().unwrap_or(0);
    output::out(&format!("{:width$}  {:>8}  about\n", "name", "size"))?;
    for model in &found {
        let about = match &model.path {
            None => format!("{:>8}  built in", ""),
            Some(path) => {
                let partial = if model.partial { "  (incomplete)" } else { "" };
                let before = if used(model) { "  (used before)" } else { "" };
                let evicts = match predictor(model) {
                    Some(name) => format!(", predictor {name}"),
                    None if adapter::is_source_at(path) => ", a predictor".to_owned(),
                    None if eagle::is_at(path) => ", a draft head".to_owned(),
                    None => String::new(),
                };
                // The name of a GGUF file is its path.
                let path = path.display().to_string();
                let path = if path == model.name { "" } else { &path };
                let quantized: String = of(model).iter().map(|c| format!(", {}", quantized::describe(c))).collect();
                format!("{:>8}{quantized}{evicts}  {path}{partial}{before}", bytes(model.bytes)).trim_end().to_owned()
            }
        };
        output::out(&output::visible(&format!("{:width$}  {about}\n", model.name)))?;
    }
    for file in &rest {
        // A folder that is opened by its path is listed by its quantized weights alone.
        let source = Path::new(&file.identity.source);
        let here = source.is_absolute() && cache::holds_model(source);
        let original = if here { "" } else { " (without the original)" };
        let about = format!("{:>8}  {}, {}{original}", "", quantized::describe(file), file.path.display());
        output::out(&output::visible(&format!("{:width$}  {about}\n", file.identity.source)))?;
    }
    Ok(())
}

/// Quantizes a model beforehand.
fn quantize(model: &str, common: &Common) -> Result<()> {
    let model = &naming::full_name(model);
    let mut settings = settings(common)?;
    settings.model = model.to_owned();
    let weights = settings.weights;
    if !weights.chooses_codes() {
        return Err(wrong_use("models quantize needs --weights int8, --weights int4 or --weights int4-fast"));
    }
    download::ensure(&settings)?;
    let checkpoint = spawn::open(&settings).map_err(output::as_wrong_use)?;
    let options = spawn::weight_options(&settings, &checkpoint).map_err(output::as_wrong_use)?;
    if !checkpoint.can_be(weights) || checkpoint.weights.is_packed() {
        return Err(wrong_use(match checkpoint.weights.is_packed() {
            _ if checkpoint.builtin => format!("{model} is built in and stays bf16"),
            true => format!("{model} is quantized already: {}", checkpoint.weights.name()),
            false => format!("{model} cannot be quantized: all its matrices have columns that are not multiples of 64"),
        }));
    }
    let mut progress = Quantizing::default();
    let made = quantized::cache()?.make(&checkpoint, weights, &options.calibration, &mut |r| progress.report(r));
    progress.clear();
    let made = made?;
    if common.json {
        let (format, cached) = (&made.identity.weights, true);
        let weights = json!({"format": format, "bytes": made.bytes, "cached": cached});
        return output::out_json(&json!({"name": model, "path": made.path, "weights": weights}));
    }
    Ok(output::out(&format!("{}  {}\n", quantized::describe(&made), made.path.display()))?)
}

/// Deletes quantized weights and leaves the model itself.
fn remove_quantized(model: &str, common: &Common) -> Result<()> {
    let model = &naming::full_name(model);
    let weights = settings(common)?.weights;
    let mut files = quantized::of(model);
    files.retain(|c| weights.admits(&c.identity.weights));
    if files.is_empty() {
        return Err(wrong_use(format!("there are no {} weights of {model} in the cache folder", weights.name())));
    }
    let cache = quantized::cache()?;
    let mut freed = 0;
    for file in &files {
        freed += cache.remove(file).with_context(|| file.path.display().to_string())?;
    }
    if common.json {
        return output::out_json(&json!({"name": model, "freed_bytes": freed}));
    }
    let what = files.iter().map(quantized::describe).collect::<Vec<_>>().join(", ");
    Ok(output::out(&format!("deleted {what} of {model}: {} are free again\n", bytes(freed)))?)
}

/// The models in the Hugging Face cache: one per commit with safetensors weights, and each GGUF
/// model.
fn in_cache(hub: &Hub) -> Vec<Found> {
    let mut found = Vec::new();
    for id in cache::ids(&hub.cache) {
        let repo = hub.repo(&id);
        let current = repo.references().remove(MAIN);
        let before = found.len();
        for commit in repo.commits() {
            let folder = repo.folder(&commit);
            let at = if current.as_ref() == Some(&commit) { String::new() } else { format!("@{commit}") };
            let models = cache::gguf_models(&folder);
            found.extend(models.iter().map(|model| Found {
                name: format!("{id}:{}{at}", model.label(&models)),
                path: Some(folder.join(&model.files[0])),
                commit: Some(commit.clone()),
                bytes: model.bytes,
                partial: false,
            }));
            let extent = cache::extent(&folder);
            if extent == Extent::Part && !has_weights(&folder) {
                continue;
            }
            let (bytes, partial) = (weight_bytes(&folder), extent < Extent::Weights);
            found.push(Found { name: format!("{id}{at}"), path: Some(folder), commit: Some(commit), bytes, partial });
        }
        // A download without a complete weight file yet.
        let (_, partial) = repo.bytes();
        if partial > 0 && found.len() == before {
            found.push(Found { name: id, path: Some(repo.dir.clone()), commit: None, bytes: partial, partial: true });
        }
    }
    found
}

fn has_weights(folder: &Path) -> bool {
    weight_bytes(folder) > 0 || folder.join(INDEX).exists()
}

/// Bytes of the weight files of a folder, or of a GGUF file.
fn weight_bytes(folder: &Path) -> u64 {
    if folder.is_file() {
        return fs::metadata(folder).map_or(0, |m| m.len());
    }
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let weights = files.filter(|p| p.extension().is_some_and(|e| e == "safetensors") || p.ends_with(GATES));
    weights.filter_map(|p| fs::metadata(p).ok().map(|m| m.len())).sum()
}

/// The hub model that a name means.
fn hub_model(name: &str) -> Result<HubModel> {
    match naming::parse(name).map_err(output::as_wrong_use)? {
        ModelRef::Hub(model) => Ok(model),
        _ => Err(wrong_use(format!("{name} is not a hub id (ORG/NAME); dmschat does not delete other folders"))),
    }
}

fn remove(name: &str, common: &Common) -> Result<()> {
    let name = &naming::full_name(name);
    let model = hub_model(name)?;
    let hub = the_hub()?;
    let (id, repo) = (&model.id, hub.repo(&model.id));
    if !repo.dir.is_dir() {
        let (at, near) = (hub.cache.display(), hub.suggestion(id));
        return Err(wrong_use(format!("{id} is not in the Hugging Face cache ({at}){near}")));
    }
    let whole = model.gguf.is_none() && model.revision.is_none();
    if !whole && repo.find(&model).map_err(output::as_wrong_use)?.is_none() {
        let what = model.gguf.clone().unwrap_or_else(|| format!("revision {}", model.revision()));
        return Err(wrong_use(format!("{id} is in the Hugging Face cache without {what}")));
    }
    let freed = match (&model.gguf, &model.revision) {
        (Some(_), _) => repo.remove_gguf(&model),
        (None, None) => repo.remove(),
        (None, Some(revision)) => repo.remove_revision(revision),
    };
    let freed = freed.map_err(download::with_exit_code)?;
    if common.json {
        return output::out_json(&json!({"name": name, "freed_bytes": freed}));
    }
    output::out(&output::visible(&format!("deleted {name}: {} are free again\n", bytes(freed))))?;
    for file in quantized::of(name) {
        let (what, weights) = (quantized::describe(&file), &file.identity.weights);
        output::notice(&format!(
            "its weights {what} are kept; dmschat models rm --weights {weights} {name} deletes them"
        ));
    }
    Ok(())
}

/// Describes a model by its files if they are on this machine, else by the hub's listing.
fn info(model: &str, common: &Common) -> Result<()> {
    let model = &naming::full_name(model);
    let mut settings = settings(common)?;
    settings.model = model.to_owned();
    let about = match download::missing(model).map_err(output::as_wrong_use)? {
        None => here(&settings)?,
        Some(_) => (on_hub(model, &settings)?, Formats::default()),
    };
    let (mut about, formats) = about;
    if common.json {
        about.insert("formats".to_owned(), formats.json());
        return output::out_json(&about);
    }
    for (name, value) in in_words(about) {
        let value = match value {
            Value::Null => continue,
            Value::String(text) => text,
            Value::Bool(yes) => (if yes { "yes" } else { "no" }).to_owned(),
            Value::Number(n) if name.ends_with("bytes") => bytes(n.as_u64().unwrap_or(0)),
            Value::Number(n) if name == "parameters" => millions(n.as_u64().unwrap_or(0)),
            other => other.to_string(),
        };
        output::out(&output::visible(&format!("{:<18} {value}\n", name.replace('_', " "))))?;
    }
    for (name, text) in formats.lines() {
        output::out(&output::visible(&format!("{name:<18} {text}\n")))?;
    }
    Ok(())
}

/// The rows for a person: what evicts, in one row of words, and how 4-bit codes are chosen.
fn in_words(mut about: Map<String, Value>) -> Map<String, Value> {
    let taken = ["dms", "dms_window", "adapter", "dmc", "importance"].map(|key| about.shift_remove(key));
    let [dms, window, adapter, dmc, importance] = taken.map(Option::unwrap_or_default);
    let window = window.as_u64().map_or_else(String::new, |tokens| format!(" (window {tokens})"));
    let by = match (dms.as_str(), adapter.as_str()) {
        (Some("borrowed"), _) => Some(format!("itself, trained with DMS{window}")),
        (Some(kind), Some(base)) => Some(format!("{kind} for {base}{window}")),
        (Some(kind), None) => Some(format!("{kind}{window}")),
        (None, _) if dmc == true => Some("itself, trained with DMC".to_owned()),
        (None, _) => None,
    };
    let chosen = importance.as_str().map(|by| match by {
        "measured" => "importance measured when they are packed".to_owned(),
        name => format!("importance from {name}"),
    });
    about.extend(by.map(|by| ("evicts_by".to_owned(), json!(by))));
    about.extend(chosen.map(|by| ("4-bit_codes_by".to_owned(), json!(by))));
    about
}

/// A number of parameters: `135 M`, `8.19 B`.
fn millions(n: u64) -> String {
    match n {
        0..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

fn here(settings: &Settings) -> Result<(Map<String, Value>, Formats)> {
    let (checkpoint, target) = spawn::open_or_say(settings).map_err(output::as_wrong_use)?;
    let formats = Formats::new(settings, &checkpoint, target)?;
    let importance = spawn::weight_options(settings, &checkpoint).map_err(output::as_wrong_use)?.calibration;
    let chooses = |weights: Weights| weights.uses_importance() && checkpoint.can_be(weights);
    let is_chosen = quant::formats().any(chooses) && !checkpoint.weights.is_packed();
    let gptq = is_chosen && importance.is_corrected();
    let importance = importance.by().filter(|_| is_chosen);
    let path = match naming::parse(&settings.model).map_err(output::as_wrong_use)? {
        ModelRef::BuiltIn => None,
        ModelRef::Folder(path) => Some(path),
        ModelRef::Hub(model) => the_hub()?.repo(&model.id).find(&model)?.map(|cached| cached.path),
    };
    let c = &checkpoint.config;
    let dms = c.dms.as_ref();
    let mut about = object(json!({
        "name": checkpoint.name, "path": path, "downloaded": true, "architecture": c.family.name,
        "parameters": checkpoint.n_params, "stored_as": checkpoint.stored_as, "imatrix": checkpoint.imatrix(),
        "importance": importance, "gptq": gptq, "weight_bytes": checkpoint.weight_bytes, "not_used": checkpoint.unused(),
    }));
    about.extend(shape(c));
    let adapter = checkpoint.adapter.as_ref().and_then(|source| source.base.as_deref());
    about.extend(object(json!({
        "dms": Some(c.decided_by()).filter(|by| *by != "none"), "dms_window": dms.map(|d| d.rule.window), "adapter": adapter,
        "dmc": c.dmc.is_some(), "cache_policies": policies(c),
    })));
    Ok((about, formats))
}

/// The layers without attention, if there are any.
fn layers_with_state(c: &ModelConfig) -> Option<String> {
    let n = c.delta_layers();
    (n > 0).then(|| format!("{n}, of fixed size (gated delta net)"))
}

/// The layers that see a window of tokens, if there are any.
fn layers_with_window(c: &ModelConfig) -> Option<String> {
    let window = c.lanes().filter_map(|layer| layer.window).max()?;
    let n = (0..c.n_layers).filter(|&layer| !c.layer(layer).decides()).count();
    Some(format!("{n}, which see the newest {window} tokens"))
}

/// The layers that store nothing, if there are any.
fn layers_that_share(c: &ModelConfig) -> Option<String> {
    let n = (0..c.n_layers).filter(|&layer| c.layer(layer).shares).count();
    (n > 0).then(|| format!("{n}, which read the K and V of earlier ones"))
}

/// Values of `--policy` for a model.
fn policies(c: &ModelConfig) -> String {
    let runs = |kind: &PolicyKind| c.policy(PolicyRequest { kind: *kind, budget: None }).is_ok();
    let named = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Auto);
    named.filter(runs).map(PolicyKind::name).collect::<Vec<_>>().join(", ")
}

fn on_hub(model: &str, settings: &Settings) -> Result<Map<String, Value>> {
    let about = the_hub()?.about(&hub_model(model)?, &mut Quiet).map_err(download::with_exit_code)?;
    let (summary, problem) = match about.summary {
        Some(Ok(summary)) => (Some(summary), None),
        Some(Err(HubError::Stopped)) => return Err(download::with_exit_code(HubError::Stopped)),
        Some(Err(why)) => (None, Some(why.to_string())),
        None => (None, None),
    };
    let (size, device) = (about.weight_bytes, settings.device);
    let is_gguf = size == 0 || model.contains(':');
    let config = summary.as_ref().map(|summary| &summary.config);
    let fit = match config {
        None if is_gguf => None,
        config => devices::fit(config, size, Stored::of(is_gguf), device),
    };
    let mut object = object(json!({
        "name": model, "path": null, "downloaded": false, "architecture": about.model_type, "commit": about.commit,
        "licence": about.license, "gated": about.gated, "weight_bytes": size,
        "gguf": about.gguf, "fit": fit, "problem": problem,
    }));
    if let Some(summary) = &summary {
        let c = &summary.config;
        object.extend(shape(c));
        let published = |kind| summary.published.iter().find(|p| p.kind == kind).map(|p| json!(p.id));
        let beside = [("predictor", published(Kind::Predictor)), ("draft_head", published(Kind::DraftHead))];
        object.insert("evicts_by".to_owned(), json!(known_models::trained_by(summary)));
        object.extend(beside.map(|(key, id)| (key.to_owned(), json!(id))));
    }
    Ok(object)
}

/// Heads of the layers that see all tokens, where they are others than those of local ones.
fn global_heads(c: &ModelConfig) -> Option<String> {
    let KvHeads { count, dim } = c.spec.global_heads?;
    Some(format!("{} of {dim} channels", plural(count as u64, "KV head")))
}

/// The family of a model, and its sizes.
fn shape(c: &ModelConfig) -> Map<String, Value> {
    let experts = c.spec.experts.map(|e| format!("{} experts, {} per token", e.count, e.per_token));
    object(json!({
        "architecture": c.family.name, "layers": c.n_layers, "layers_with_state": layers_with_state(c),
        "local_layers": layers_with_window(c), "sharing_layers": layers_that_share(c), "experts": experts, "query_heads": c.n_q_heads, "kv_heads": c.n_kv_heads,
        "head_dim": c.head_dim, "global_heads": global_heads(c), "vocabulary": c.vocab, "context": c.context, "rope_factors": c.rope_factors(),
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Reports notices only.
struct Quiet;

impl Observer for Quiet {
    fn stopped(&self) -> bool {
        false
    }

    fn progress(&mut self, _: &Progress) {}

    fn notice(&mut self, text: &str) {
        output::notice(text);
    }
}
