//! What the configuration says about a model, before its weights are read.

use super::adapter::Adapter;
use super::config::ModelConfig;
use super::files::Files;
use super::json::{self, Fields};
use super::known::{self, Published};
use super::model::AdapterChoice;
use super::shards::Shards;
use super::{parse, texts};
use crate::hub::layout::CARD;
use crate::hub::model_names::{MAX_NAME, Names};
use crate::policy::Trained;
use crate::tensor::SharedBytes;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Reads `config.json`, and `dms_metadata.json` if it exists: the configuration, and each file's
/// object.
pub(super) fn configuration(files: &Files) -> Result<(ModelConfig, Object, Option<Object>)> {
    let label = files.label("config.json");
    let raw =
        files.text("config.json")?.with_context(|| format!("{label} is missing, so this is not a model folder"))?;
    let mut map = json::object(&label, &raw)?;
    // transformers' class says that heads of `mistral3` are tied, and finds others in the files.
    if map.get("model_type").is_some_and(|kind| kind == "mistral3")
        && !map.contains_key("tie_word_embeddings")
        && let Ok(shards) = Shards::open(files)
    {
        map.insert("tie_word_embeddings".to_owned(), shards.raw("lm_head.weight").is_none().into());
    }
    let map = parse::text_part(map);
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

/// [`summary`] of files, of which the configuration suffices.
pub(super) fn summary_of(files: &Files, name: &str) -> Result<Summary> {
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

/// [`summary`](super::summary) of a configuration alone, as `config.json` has it.
pub fn summary_of_config(config: Map<String, Value>, name: &str) -> Result<Summary> {
    let bytes: SharedBytes = Arc::new(serde_json::to_vec(&config)?);
    summary_of(&Files::Memory([("config.json".to_owned(), bytes)].into()), name)
}

/// The configuration. Needs no weights.
pub(super) fn config_of(files: &Files) -> Result<ModelConfig> {
    Ok(configuration(files)?.0)
}

pub(super) type Object = Map<String, Value>;

/// `dms_metadata.json`, whose fields may be under the key `config`.
pub(super) fn metadata_object(files: &Files) -> Result<Option<Object>> {
    let Some(mut outer) = json::optional(files, "dms_metadata.json")? else { return Ok(None) };
    match outer.remove("config") {
        Some(Value::Object(inner)) => Ok(Some(inner)),
        _ => Ok(Some(outer)),
    }
}

/// The names of a model and of those that it was made of, as its files state them.
pub(super) fn names_of(name: &str, files: &Files, config: &Object) -> Names {
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

pub(super) fn choose_adapter(choice: &AdapterChoice, names: &Names, config: &ModelConfig) -> Result<Option<Adapter>> {
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
                Some(Trained::Gates(_)) => "retention gates",
                None => return Adapter::named(path).map(Some),
            };
            bail!("{model} has {own} of its own, so --adapter {label} is refused");
        }
    }
}
