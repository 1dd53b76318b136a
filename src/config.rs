//! Settings: flags take precedence over the environment, the config file and the defaults. They do
//! not change after start. The checkpoint's `generation_config.json` ranks below the file;
//! [`crate::protocol::SamplingOverrides::over`] merges it once a model is loaded. `settings.rs`
//! declares each setting once.
//!
//! Knows no model and no widget.

mod dirs;
mod environment;
mod layer;
mod settings;
mod shown;
mod values;

use layer::sources;

pub use dirs::{BUILTIN_MODEL, Dirs};

pub use environment::in_words;
pub use settings::{Layer, Settings};
pub use shown::{DEFAULT, Shown, shown};
pub use values::{Adapter, Auto, ByteSize, Device, Gemm, Importance, List, OnOff, Pin, Width};

use crate::policy::PolicyRequest;
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};

impl Settings {
    /// Reads the environment and the config file; `flags` take precedence. `config` is the file of
    /// `--config`, which must exist; the default file need not.
    pub fn load(flags: Layer, config: Option<&Path>) -> Result<Self> {
        let dirs = Dirs::find()?;
        let (env, file, path) = sources(&dirs, config)?;
        flags.check().map_err(|(key, what)| anyhow!("--{}: {what}", key.replace('_', "-")))?;
        let set_by = |key: &str, flag: bool, variable: bool| match (flag, variable) {
            (true, _) => format!("--{}", key.replace('_', "-")),
            (_, true) => environment::env_name(key),
            _ => format!("{}: {key}", layer::place_of_key(&path, key)),
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
        match (keys_set_by, settings.keymap()) {
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

    /// The policy of the cache with its budget.
    pub fn policy_request(&self) -> PolicyRequest {
        PolicyRequest { kind: self.policy, budget: self.budget }
    }

    /// The user's keymap file, if any.
    pub fn keymap(&self) -> Option<PathBuf> {
        match &self.keys {
            Some(path) => Some(self.dirs.config.join(path)),
            None => Some(self.dirs.config.join("keymap.toml")).filter(|p| p.exists()),
        }
    }
}
