//! Settings: flags take precedence over the environment, the config file and the defaults. They do not change after
//! start. The checkpoint's `generation_config.json` ranks below the file; [`SamplingOverrides::over`] merges it once a model
//! is loaded.
//!
//! Knows no flag parser, no model and no widget.

mod layer;
mod shown;
mod values;

pub use layer::{Layer, in_words};
pub use shown::{DEFAULT, Shown, shown};
pub use values::{Auto, ByteSize, Device, Gemm, OnOff, Pin, Width};

use crate::codec::Codec;
use crate::policy::PolicyRequest;
use crate::protocol::{SamplingOverrides, WhenFull};
use crate::quant::Weights;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name of the built-in model.
pub const BUILTIN_MODEL: &str = "demo";

/// The folders of dmschat.
#[derive(Clone, Debug, PartialEq)]
pub struct Dirs {
    /// Holds `config.toml`, `keymap.toml` and `themes/`. `DMSCHAT_CONFIG_DIR` overrides it.
    pub config: PathBuf,
    /// Holds `sessions/` and the input history. `DMSCHAT_DATA_DIR` overrides it.
    pub data: PathBuf,
    /// Holds `weights/`. `DMSCHAT_CACHE_DIR` overrides it.
    pub cache: PathBuf,
}

impl Dirs {
    /// Finds the system's default folders, or those in the environment.
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
            cache: pick("DMSCHAT_CACHE_DIR", usual.as_ref().map(|d| d.cache_dir().to_owned()))?,
        })
    }

    pub fn config_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    pub fn themes(&self) -> PathBuf {
        self.config.join("themes")
    }

    /// Quantized weights.
    pub fn weights(&self) -> PathBuf {
        self.cache.join("weights")
    }

    /// What models keep at each setting of the dial.
    pub fn dials(&self) -> PathBuf {
        self.cache.join("dials")
    }

    pub fn sessions(&self) -> PathBuf {
        self.data.join("sessions")
    }
}

/// The adapter to use with the model.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Adapter {
    /// No adapter: the model's own DMS, if any.
    #[default]
    Auto,
    None,
    File(PathBuf),
}

/// The settings of one run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub dirs: Dirs,
    /// `demo`, a folder, a GGUF file or a hub id.
    pub model: String,
    pub adapter: Adapter,
    pub device: Device,
    /// Format of the weights in memory.
    pub weights: Weights,
    /// Whether quantized weights are kept in [`Dirs::weights`].
    pub weight_cache: bool,
    /// A file of importance, by which 4-bit and 8-bit codes are chosen.
    pub importance: Option<PathBuf>,
    /// `None`: the checkpoint's default (on, unless it disables eviction).
    pub eviction: Option<bool>,
    pub policy: PolicyRequest,
    pub kv: Auto<Codec>,
    pub ctx_size: Option<usize>,
    /// Whether a GPU replays captured CUDA graphs.
    pub graph: bool,
    /// Library or kernels that compute the GEMMs of prefill on a GPU.
    pub gemm: Gemm,
    pub kv_limit: Option<u64>,
    /// `None`: models trained to evict forget, others stop.
    pub when_full: Option<WhenFull>,
    /// Whether the system prompt is pinned.
    pub pin_system: bool,
    /// Compression ratio that conversations begin with; `None`: as the model was trained.
    pub keep_ratio: Option<f32>,
    /// Maximum bytes of the caches of all saved conversations on disk; 0 keeps none.
    pub cache_disk: u64,
    /// Maximum bytes of memory that only checkpoints of earlier turns hold; 0 keeps none.
    pub checkpoints: u64,
    pub max_tokens: Option<usize>,
    /// Tokens after which a thought is closed; 0 never, `None`: [`crate::protocol::ModelInfo::max_think`].
    pub max_think: Option<usize>,
    /// How many chains answer; `None` is one.
    pub width: Width,
    /// Whether chains end once the others cannot change the vote.
    pub early_stop: bool,
    pub seed: Option<u64>,
    pub think: bool,
    /// `None`: as the template does.
    pub keep_thinking: Option<bool>,
    pub system: Option<String>,
    /// `None`: chosen to match the terminal.
    pub theme: Option<String>,
    /// What set the theme, for error messages: `--theme`, `DMSCHAT_THEME` or `FILE:LINE: theme`.
    pub theme_set_by: String,
    /// The user's keymap file, if any.
    pub keymap: Option<PathBuf>,
    pub mouse: bool,
    /// Whether the terminal's title names the conversation.
    pub title: bool,
    /// Whether a bell rings at the end of a long answer.
    pub bell: bool,
    /// The editor for long messages; `None`: `$VISUAL`, then `$EDITOR`.
    pub editor: Option<String>,
    /// Whether to draw with ASCII characters only.
    pub ascii: bool,
    /// Whether to draw with plain characters and no colours.
    pub plain: bool,
    /// The sampling parameters that the user set.
    pub sampling: SamplingOverrides,
}

/// Default bytes of checkpoints of earlier turns.
const DEFAULT_CHECKPOINTS: u64 = 256 << 20;

/// Default bytes of caches on disk.
const DEFAULT_CACHE_DISK: u64 = 4 << 30;

/// The environment, the config file and its path. The file of `--config` must exist; the default one need not.
fn sources(dirs: &Dirs, config: Option<&Path>) -> Result<(Layer, Layer, PathBuf)> {
    let env = Layer::from_env(|name| std::env::var_os(name))?;
    let file = match config {
        Some(path) => Layer::from_file(path)?
            .with_context(|| format!("config file {} does not exist; name one that does", path.display()))?,
        None => Layer::from_file(&dirs.config_file())?.unwrap_or_default(),
    };
    Ok((env, file, config.map_or_else(|| dirs.config_file(), Path::to_owned)))
}

impl Settings {
    /// Reads the environment and the config file; `flags` take precedence. `config` is the file of `--config`, which
    /// must exist; the default file need not.
    pub fn load(flags: Layer, config: Option<&Path>) -> Result<Self> {
        let dirs = Dirs::find()?;
        let (env, file, path) = sources(&dirs, config)?;
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
        let (budget_flag, budget_variable) = (flags.budget.is_some(), env.budget.is_some());
        let merged = Self::from_layer(dirs, flags.over(env).over(file));
        let settings = merged.with_context(|| set_by("budget", budget_flag, budget_variable))?;
        let settings = Self { theme_set_by, ..settings };
        match (keys_set_by, &settings.keymap) {
            (Some(set_by), Some(keymap)) if !keymap.is_file() => {
                bail!("{set_by}: the file {} does not exist", keymap.display())
            }
            _ => Ok(settings),
        }
    }

    /// One line for each unknown `DMSCHAT_*` environment variable.
    pub fn unknown_variables() -> Vec<String> {
        layer::unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    }

    /// The settings of one layer over the defaults. Fails for a budget that the policy cannot have.
    pub fn from_layer(dirs: Dirs, layer: Layer) -> Result<Self> {
        let keymap = match layer.keys {
            Some(path) if path.is_relative() => Some(dirs.config.join(path)),
            Some(path) => Some(path),
            None => Some(dirs.config.join("keymap.toml")).filter(|p| p.exists()),
        };
        let model = layer.model.unwrap_or_else(|| BUILTIN_MODEL.to_owned());
        let policy = PolicyRequest { kind: layer.policy.unwrap_or_default(), budget: layer.budget };
        if let Some(why) = layer.budget.and_then(|budget| policy.kind.budget_refusal(budget)) {
            bail!(why);
        }
        Ok(Self {
            model,
            adapter: match layer.adapter.as_deref() {
                None => Adapter::Auto,
                Some("none") => Adapter::None,
                Some(file) => Adapter::File(file.into()),
            },
            device: layer.device.unwrap_or_default(),
            weights: layer.weights.unwrap_or(Weights::Auto),
            weight_cache: layer.weight_cache.is_none_or(|c| c.0),
            importance: layer.importance,
            eviction: layer.eviction.map(|e| e.0),
            policy,
            kv: layer.kv.unwrap_or_default(),
            ctx_size: layer.ctx_size,
            graph: layer.graph.is_none_or(|g| g.0),
            gemm: layer.gemm.unwrap_or_default(),
            kv_limit: layer.kv_limit.map(|b| b.0),
            when_full: layer.when_full,
            pin_system: layer.pin == Some(Pin::System),
            keep_ratio: layer.keep_ratio,
            checkpoints: layer.checkpoints.map_or(DEFAULT_CHECKPOINTS, |b| b.0),
            cache_disk: layer.cache_disk.map_or(DEFAULT_CACHE_DISK, |b| b.0),
            max_tokens: layer.max_tokens,
            max_think: layer.max_think,
            width: layer.width.unwrap_or(Width::Chains(1)),
            early_stop: layer.early_stop.is_none_or(|e| e.0),
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
}
