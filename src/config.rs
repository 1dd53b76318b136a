//! Settings: flags take precedence over the environment, the profile, the config file and the
//! defaults. They change after start only when a chat switches to another profile. The checkpoint's
//! `generation_config.json` ranks below the file; [`crate::protocol::SamplingOverrides::over`]
//! merges it once a model is loaded. `settings.rs` declares each setting once.
//!
//! Knows no model and no widget.

mod dirs;
mod environment;
mod layer;
pub mod profile;
mod settings;
mod shown;
mod values;
mod write;

pub use dirs::{BUILTIN_MODEL, Dirs};

pub use environment::in_words;
pub use settings::{Layer, Origin, Settings};
pub use shown::{DEFAULT, Shown, shown};
pub use values::{Adapter, Auto, ByteSize, Device, FarSize, Gemm, Importance, KeymapName, List, OnOff, Pin, Width};
pub use write::save;

use crate::policy::PolicyRequest;
use anyhow::{Context, Result, anyhow, bail};
use layer::Sources;
use std::path::PathBuf;

impl Settings {
    /// Reads the environment, the profile and the config file; flags take precedence.
    pub fn load(origin: &Origin) -> Result<Self> {
        Self::load_in(Dirs::find()?, origin)
    }

    /// Like [`Self::load`], with these folders.
    pub fn load_in(dirs: Dirs, origin: &Origin) -> Result<Self> {
        let flags = &origin.flags;
        let sources = Sources::read(&dirs, origin)?;
        flags.check().map_err(|(key, what)| anyhow!("--{}: {what}", key.replace('_', "-")))?;
        let set_by = |key: &str| match flags.sets(key) {
            true => format!("--{}", key.replace('_', "-")),
            false => sources.place(key),
        };
        let Sources { env, profile, file, .. } = &sources;
        let merged = flags.clone().over(env.clone()).over(profile.clone()).over(file.clone());
        let theme_set_by = if merged.sets("theme") { set_by("theme") } else { String::new() };
        let keys_set_by = merged.sets("keys").then(|| set_by("keys"));
        let settings = Self::from_layer(dirs, merged).with_context(|| set_by("budget"))?;
        let settings = Self { theme_set_by, origin: origin.clone(), ..settings };
        match (keys_set_by, settings.keymap_file()) {
            (Some(set_by), Some(keymap)) if !keymap.is_file() => {
                bail!("{set_by}: the file {} does not exist", keymap.display())
            }
            _ => Ok(settings),
        }
    }

    /// The file that [`save`] writes, and the settings that rank below it: of this profile, or of
    /// the config file.
    pub fn place_to_save(&self, profile: Option<&str>) -> Result<(PathBuf, Layer)> {
        let config = self.origin.config.clone().unwrap_or_else(|| self.dirs.config_file());
        match profile {
            Some(name) => Ok((profile::file(&self.dirs, name)?, Layer::from_file(&config)?.unwrap_or_default())),
            None => Ok((config, Layer::default())),
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
    pub fn keymap_file(&self) -> Option<PathBuf> {
        match &self.keys {
            Some(path) => Some(self.dirs.config.join(path)),
            None => Some(self.dirs.config.join("keymap.toml")).filter(|p| p.exists()),
        }
    }
}
