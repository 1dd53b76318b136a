//! The catalogue: models by the short names that people type, with what a download is and needs.
//! The file is `assets/models.toml`; a copy of the user changes it. Opens no connection, and knows
//! no machine: what fits is planned from an entry's configuration.

use crate::checkpoint::known::{Kind, Published};
use crate::checkpoint::{self, Summary};
use crate::regular_file;
use crate::unicode::one_line;
use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use toml::Table;

const EMBEDDED: &str = include_str!("../assets/models.toml");

/// The user's copy, in the config folder.
pub const FILE: &str = "models.toml";

/// Largest copy, and most entries of one.
const MAX_BYTES: u64 = 1 << 20;
const MAX_ENTRIES: usize = 1_000;

/// The known models, the smallest download first.
#[derive(Default)]
pub struct Catalogue {
    pub entries: Vec<Entry>,
    /// Faults of the user's copy, one line each. What is at fault is left out.
    pub problems: Vec<String>,
}

/// A known model.
pub struct Entry {
    /// Its short names; the first is the one that lists show.
    pub names: Vec<String>,
    /// What they stand for: `ORG/NAME`, or `ORG/NAME-GGUF:QUANT`.
    pub model: String,
    /// Bytes of its weights in the download.
    pub bytes: u64,
    pub licence: String,
    /// Whether the hub asks for an account and the acceptance of the licence.
    pub gated: bool,
    /// Where the facts were checked, or `unchecked` and what.
    pub checked: String,
    /// What its configuration says.
    pub summary: Summary,
}

/// An entry as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    also: Vec<String>,
    model: String,
    bytes: u64,
    licence: String,
    #[serde(default)]
    gated: bool,
    checked: String,
    config: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    models: BTreeMap<String, Table>,
}

impl Catalogue {
    /// The catalogue with the changes of the copy in `folder`, if there is one. A fault of the copy
    /// is a line of [`Self::problems`], and what is built in stays.
    pub fn load(folder: &Path) -> Self {
        let path = folder.join(FILE);
        match regular_file::read_text(&path, MAX_BYTES) {
            Ok(text) => Self::merged(&text, &path.display().to_string()),
            Err(why) if why.kind() == ErrorKind::NotFound => Self::built_in(),
            Err(why) => Self { problems: vec![format!("{}: {why}; {AS_BUILT}", path.display())], ..Self::built_in() },
        }
    }

    /// The catalogue without a copy.
    pub fn built_in() -> Self {
        Self::merged("", FILE)
    }

    /// The built-in entries, each with the keys of the copy over its own, and the copy's others.
    fn merged(copy: &str, label: &str) -> Self {
        let mut out = Self::default();
        let mut changes = parse(copy, label).unwrap_or_else(|why| {
            out.problems.push(format!("{}; {AS_BUILT}", one_line(&format!("{why:#}"))));
            BTreeMap::new()
        });
        for (name, table) in parse(EMBEDDED, FILE).unwrap_or_default() {
            let changed = changes.keys().find(|key| same(key, &name) || also(&table).any(|other| same(key, other)));
            let changed = changed.cloned().and_then(|key| changes.remove(&key));
            let entry = changed.map(|change| Entry::new(&name, over(change, table.clone())));
            out.take(entry.unwrap_or_else(|| Entry::new(&name, table.clone())), label, &name);
            // The built-in entry stays where a change is at fault.
            if out.find(&name).is_none() {
                out.take(Entry::new(&name, table), label, &name);
            }
        }
        for (name, table) in changes {
            out.take(Entry::new(&name, table), label, &name);
        }
        out.entries.sort_by_key(|entry| entry.bytes);
        out
    }

    fn take(&mut self, entry: Result<Entry>, label: &str, name: &str) {
        match entry {
            Ok(entry) => self.entries.push(entry),
            Err(why) => self.problems.push(one_line(&format!("{label}: {name:?}: {why:#}"))),
        }
    }

    /// The entry that a short name means.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.names.iter().any(|own| same(own, name)))
    }

    /// The entry of a repository's model.
    pub fn of_model(&self, model: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.model.eq_ignore_ascii_case(model))
    }

    /// All short names, for suggestions.
    pub fn names(&self) -> Vec<String> {
        self.entries.iter().flat_map(|entry| &entry.names).cloned().collect()
    }
}

/// The end of a line about a copy that cannot be read.
const AS_BUILT: &str = "the built-in catalogue is used";

impl Entry {
    fn new(name: &str, table: Table) -> Result<Self> {
        let Raw { also, model, bytes, licence, gated, checked, config } = table.try_into()?;
        if name.contains(['/', '\\']) || name.trim().is_empty() {
            bail!("a short name has no slash and is not empty");
        }
        let Value::Object(mut config) = serde_json::to_value(config)? else { bail!("its config is not a table") };
        config.values_mut().filter(|value| *value == "null").for_each(|value| *value = Value::Null);
        let id = model.split([':', '@']).next().unwrap_or_default();
        let summary = checkpoint::summary_of_config(config, id.rsplit('/').next().unwrap_or_default())?;
        if !id.contains('/') {
            bail!("model {model:?} is not ORG/NAME or ORG/NAME-GGUF:QUANT");
        }
        let names = std::iter::once(name.to_owned()).chain(also).collect();
        Ok(Self { names, model, bytes, licence, gated, checked, summary })
    }

    /// The name that lists show.
    pub fn name(&self) -> &str {
        self.names.first().map_or(&self.model, String::as_str)
    }

    /// The quantization of a GGUF file; `None` for safetensors, whose format is chosen.
    pub fn quantization(&self) -> Option<&str> {
        Some(self.model.split_once(':')?.1)
    }

    /// The predictor that is downloaded with it, if it does not evict by itself.
    pub fn predictor(&self) -> Option<&Published> {
        self.summary.published.iter().find(|published| published.kind == Kind::Predictor)
    }

    /// Whether it forgets from its first start.
    pub fn evicts(&self) -> bool {
        self.summary.config.dms.is_some() || self.summary.adapter.is_some() || self.predictor().is_some()
    }

    /// Whether its licence keeps it from being recommended to everyone.
    pub fn is_restricted(&self) -> bool {
        self.gated || self.licence.contains("non-commercial")
    }
}

/// The entries of a file.
fn parse(text: &str, label: &str) -> Result<BTreeMap<String, Table>> {
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("{label}, line {line}: {}", error.message())
    })?;
    if file.models.len() > MAX_ENTRIES {
        bail!("{label} has {} models, expected at most {MAX_ENTRIES}", file.models.len());
    }
    Ok(file.models)
}

/// Other names in an entry's table.
fn also(table: &Table) -> impl Iterator<Item = &str> {
    table.get("also").and_then(toml::Value::as_array).into_iter().flatten().filter_map(toml::Value::as_str)
}

/// The values of `change` over those of `below`, table by table.
fn over(change: Table, mut below: Table) -> Table {
    for (key, value) in change {
        let value = match (value, below.remove(&key)) {
            (toml::Value::Table(change), Some(toml::Value::Table(below))) => toml::Value::Table(over(change, below)),
            (value, _) => value,
        };
        below.insert(key, value);
    }
    below
}

/// Whether two spellings are the same short name.
fn same(a: &str, b: &str) -> bool {
    let plain = |c: char| if c == ':' { '-' } else { c.to_ascii_lowercase() };
    a.chars().map(plain).eq(b.chars().map(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_name_is_one_models_and_its_facts_agree_with_its_shapes() {
        let catalogue = Catalogue::built_in();
        assert_eq!((&catalogue.problems[..], catalogue.entries.len()), (&[][..], 22));
        let names = catalogue.names();
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].iter().any(|other| same(other, name)), "{name}");
            let entry = catalogue.find(&name.to_uppercase().replace(':', "-")).expect(name);
            assert!(!entry.checked.is_empty() && !entry.licence.is_empty(), "{name}");
            // Bytes per weight of bf16, with or without a second copy of a tied embedding, of Q8_0,
            // of MXFP4, where experts alone have it, and of Q4_K_M, whose embedding has more bits;
            // inputs of layers have them too.
            let c = &entry.summary.config;
            let weights = checkpoint::names::all(c).map(|t| t.shape.iter().product::<usize>()).sum::<usize>() as f64;
            let tied = (c.vocab * c.hidden * usize::from(c.tied)) as f64 / weights;
            let each = entry.bytes as f64 / weights;
            let range = match entry.quantization() {
                None => 1.99..=2.01 + 2.0 * tied,
                Some("Q8_0") => 1.05..=1.08,
                Some("MXFP4") => 0.57..=0.59,
                _ if c.spec.layer_inputs.is_some() => 0.70..=0.73,
                _ => 0.59..=0.67,
            };
            assert!(range.contains(&each), "{name}: {each} bytes a weight");
        }
        let evicts = |name: &str| catalogue.find(name).map(|entry| entry.evicts());
        assert_eq!(
            ["smollm2", "qwen3:8b-dms", "qwen3:8b", "llama3.1:8b", "qwen3:4b"].map(evicts),
            [true, true, true, true, false].map(Some)
        );
    }

    /// Shapes that the laboratory measures, which were written down apart from the catalogue.
    #[test]
    fn shapes_are_those_of_the_laboratory() {
        let catalogue = Catalogue::built_in();
        for (name, shape) in [
            ("smollm2", "smollm2-135m"),
            ("qwen3:8b", "qwen3-8b"),
            ("qwen3:8b-dms", "qwen3-8b"),
            ("qwen3.5:9b", "qwen3.5-9b"),
            ("gemma3:4b", "gemma3-4b"),
            ("gemma4:e4b", "gemma4-e4b"),
            ("llama3.2:1b", "llama-3.2-1b"),
            ("gpt-oss:20b", "gpt-oss-20b"),
        ] {
            let mut listed = catalogue.find(name).unwrap().summary.config.clone();
            let mut known = checkpoint::Checkpoint::shape(shape).unwrap();
            if name != "qwen3:8b-dms" {
                (listed.dms, known.dms) = (None, None);
            }
            // A pattern and the list that it stands for are the same layers, and so is a scale that
            // is stated and usual.
            for config in [&mut listed, &mut known] {
                config.spec.score_scale = None;
                config.spec.layers = (0..config.n_layers).map(|layer| config.layer(layer)).collect();
            }
            assert_eq!(format!("{listed:?}"), format!("{known:?}"), "{name}");
        }
    }

    #[test]
    fn a_copy_changes_and_adds_entries_and_a_bad_one_is_one_line() {
        let copy = "[models.\"SmolLM2-135m\".config]\nnum_hidden_layers = 60\n[models.mine]\nmodel = \"me/mine\"\n\
                    bytes = 5\nlicence = \"mit\"\nchecked = \"unchecked\"\n[models.mine.config]\nmodel_type = \"llama\"\n\
                    hidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 1\nintermediate_size = 64\n\
                    vocab_size = 100\nmax_position_embeddings = 100\nrms_norm_eps = 1e-5\n";
        let catalogue = Catalogue::merged(copy, "x/models.toml");
        assert_eq!(catalogue.problems, [""; 0]);
        assert_eq!(catalogue.find("smollm2").unwrap().summary.config.n_layers, 60);
        assert_eq!(catalogue.find("mine").unwrap().model, "me/mine");
        assert_eq!(catalogue.entries.len(), Catalogue::built_in().entries.len() + 1);
        for (copy, problem) in [
            ("[models", "x/models.toml, line 1: "),
            ("\n[model.x]\n", "x/models.toml, line 2: "),
            ("[models.smollm2.config]\nhidden_size = 0\n", "x/models.toml: \"smollm2\": config.json: "),
            ("[models.\"qwen3:4b\"]\nbites = 3\n", "x/models.toml: \"qwen3:4b\": "),
            ("[models.new]\nbytes = 3\n", "x/models.toml: \"new\": "),
        ] {
            let catalogue = Catalogue::merged(copy, "x/models.toml");
            let said = catalogue.problems.join("|");
            assert!(said.starts_with(problem) && !said.contains(['\n', '|']), "{copy}: {said}");
            assert_eq!(catalogue.entries.len(), Catalogue::built_in().entries.len(), "{copy}");
        }
    }
}
