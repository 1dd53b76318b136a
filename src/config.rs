//! Settings: flags over environment over the config file over what is built in; immutable after
//! start. What a checkpoint's `generation_config.json` says comes below the file, and is joined by
//! [`Settings::sampling`] once a model is loaded.
//!
//! Knows no flag parser, no model and no widget.

mod layer;
mod values;

pub use layer::Layer;
pub use values::{ByteSize, CachePolicy, Device, Gemm, Kv, OnOff};

use crate::protocol::SamplingParams;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The model that is built in.
pub const BUILTIN_MODEL: &str = "demo";

/// Where dmschat keeps its things.
#[derive(Clone, Debug, PartialEq)]
pub struct Dirs {
    /// `config.toml`, `keymap.toml`, `themes/`; `DMSCHAT_CONFIG_DIR` moves it.
    pub config: PathBuf,
    /// `sessions/`, input history; `DMSCHAT_DATA_DIR` moves it.
    pub data: PathBuf,
}

impl Dirs {
    /// The system's usual places, or those that the environment names.
    pub fn find() -> Result<Self> {
        Self::find_with(|name| std::env::var_os(name))
    }

    fn find_with(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let usual = directories::ProjectDirs::from("", "", "dmschat");
        let pick = |name: &str, usual: Option<PathBuf>| {
            var(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
                .or(usual)
                .ok_or_else(|| anyhow!("no home folder is known; set {name} to a folder dmschat may use"))
        };
        Ok(Self {
            config: pick("DMSCHAT_CONFIG_DIR", usual.as_ref().map(|d| d.config_dir().to_owned()))?,
            data: pick("DMSCHAT_DATA_DIR", usual.as_ref().map(|d| d.data_dir().to_owned()))?,
        })
    }

    pub fn config_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    pub fn themes(&self) -> PathBuf {
        self.config.join("themes")
    }

    pub fn sessions(&self) -> PathBuf {
        self.data.join("sessions")
    }
}

/// Which adapter goes with the model.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Adapter {
    /// The model's own DMS, or none.
    #[default]
    Auto,
    None,
    File(PathBuf),
}

/// All settings of one run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub dirs: Dirs,
    /// A name, a folder or a hub id.
    pub model: String,
    pub adapter: Adapter,
    pub device: Device,
    /// Absent: as the checkpoint says (on, unless it asks for off).
    pub eviction: Option<bool>,
    pub policy: CachePolicy,
    /// Slots of a head under policy window.
    pub budget: usize,
    pub kv: Kv,
    pub ctx_size: Option<usize>,
    /// A card replays recorded steps.
    pub graph: bool,
    /// What multiplies many rows on a card.
    pub gemm: Gemm,
    pub kv_limit: Option<u64>,
    pub max_tokens: Option<usize>,
    pub seed: Option<u64>,
    pub think: bool,
    /// Absent: as the template does.
    pub keep_thinking: Option<bool>,
    pub system: Option<String>,
    /// Absent: chosen for the terminal.
    pub theme: Option<String>,
    /// Where the theme is set, for messages about it: `--theme`, `DMSCHAT_THEME` or `FILE:LINE: theme`.
    pub theme_set_by: String,
    /// The user's keymap, when there is one.
    pub keymap: Option<PathBuf>,
    pub mouse: bool,
    /// The terminal's title names the conversation.
    pub title: bool,
    /// A bell rings at the end of a long answer.
    pub bell: bool,
    /// For long messages; absent: `$VISUAL`, `$EDITOR`.
    pub editor: Option<String>,
    /// Draw with ASCII characters only.
    pub ascii: bool,
    /// Plain characters, no colours.
    pub plain: bool,
    sampling: SamplingOverrides,
}

/// What was set by hand; the rest is the checkpoint's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SamplingOverrides {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// Slots of a head under policy window where nothing else is set.
const DEFAULT_BUDGET: usize = 512;

impl Settings {
    /// Reads environment and config file and lays `flags` over them. `config`: the file named by
    /// `--config`, which must exist; else the usual one, which need not.
    pub fn load(flags: Layer, config: Option<&Path>) -> Result<Self> {
        let dirs = Dirs::find()?;
        let env = Layer::from_env(|name| std::env::var_os(name))?;
        let path = config.map_or_else(|| dirs.config_file(), Path::to_owned);
        let file = match config {
            Some(path) => Layer::from_file(path)?
                .with_context(|| format!("config file {} does not exist; name one that does", path.display()))?,
            None => Layer::from_file(&dirs.config_file())?.unwrap_or_default(),
        };
        flags.check().map_err(|(key, what)| anyhow!("--{}: {what}", key.replace('_', "-")))?;
        let set_by = |key: &str, flag: bool, variable: bool| match (flag, variable) {
            (true, _) => format!("--{}", key.replace('_', "-")),
            (_, true) => layer::env_name(key),
            _ => layer::place_of_key(&path, key),
        };
        let theme_set_by = match &file.theme {
            None if flags.theme.is_none() && env.theme.is_none() => String::new(),
            _ => set_by("theme", flags.theme.is_some(), env.theme.is_some()),
        };
        let keys_set_by = file.keys.is_some() || env.keys.is_some();
        let keys_set_by = keys_set_by.then(|| set_by("keys", false, env.keys.is_some()));
        let settings = Self { theme_set_by, ..Self::from_layer(dirs, flags.over(env).over(file))? };
        match (keys_set_by, &settings.keymap) {
            (Some(set_by), Some(keymap)) if !keymap.is_file() => {
                bail!("{set_by}: there is no file {}", keymap.display())
            }
            _ => Ok(settings),
        }
    }

    /// One line for each variable of the environment that begins with `DMSCHAT_` and means nothing.
    pub fn unknown_variables() -> Vec<String> {
        layer::unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    }

    /// The built-in values under one layer.
    pub fn from_layer(dirs: Dirs, layer: Layer) -> Result<Self> {
        let keymap = match layer.keys {
            Some(path) if path.is_relative() => Some(dirs.config.join(path)),
            Some(path) => Some(path),
            None => Some(dirs.config.join("keymap.toml")).filter(|p| p.exists()),
        };
        let model = layer.model.unwrap_or_else(|| BUILTIN_MODEL.to_owned());
        let policy = layer.policy.unwrap_or_default();
        if layer.budget.is_some() && policy != CachePolicy::Window {
            bail!("budget: only policy window has a budget; add --policy window or remove it");
        }
        Ok(Self {
            model,
            adapter: match layer.adapter.as_deref() {
                None => Adapter::Auto,
                Some("none") => Adapter::None,
                Some(file) => Adapter::File(file.into()),
            },
            device: layer.device.unwrap_or_default(),
            eviction: layer.eviction.map(|e| e.0),
            policy,
            budget: layer.budget.unwrap_or(DEFAULT_BUDGET),
            kv: layer.kv.unwrap_or_default(),
            ctx_size: layer.ctx_size,
            graph: layer.graph.is_none_or(|g| g.0),
            gemm: layer.gemm.unwrap_or_default(),
            kv_limit: layer.kv_limit.map(|b| b.0),
            max_tokens: layer.max_tokens,
            seed: layer.seed,
            think: layer.think.is_none_or(|t| t.0),
            keep_thinking: layer.keep_thinking.map(|t| t.0),
            system: layer.system,
            theme: layer.theme,
            theme_set_by: String::new(),
            keymap,
            mouse: layer.mouse.is_none_or(|m| m.0),
            title: layer.title.is_none_or(|t| t.0),
            bell: layer.bell.is_some_and(|b| b.0),
            editor: layer.editor,
            ascii: layer.ascii.is_some_and(|a| a.0),
            plain: layer.plain.is_some_and(|p| p.0),
            sampling: SamplingOverrides {
                temperature: layer.temperature,
                top_p: layer.top_p,
                top_k: layer.top_k,
                min_p: layer.min_p,
                repetition_penalty: layer.repetition_penalty,
            },
            dirs,
        })
    }

    /// The sampling of this run for a model with these defaults (`ModelInfo::default_sampling`).
    pub fn sampling(&self, model: &SamplingParams) -> SamplingParams {
        let own = &self.sampling;
        SamplingParams {
            temperature: own.temperature.unwrap_or(model.temperature),
            top_k: own.top_k.unwrap_or(model.top_k),
            top_p: own.top_p.unwrap_or(model.top_p),
            min_p: own.min_p.unwrap_or(model.min_p),
            repetition_penalty: own.repetition_penalty.unwrap_or(model.repetition_penalty),
        }
    }
}
