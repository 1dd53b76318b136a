//! The program's folders.

use anyhow::{Result, anyhow};
use std::ffi::OsString;
use std::path::PathBuf;

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

    pub(super) fn find_with(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
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

    /// Caches of a server's slots, which are a model's.
    pub fn slots(&self, model_fingerprint: &str) -> PathBuf {
        self.data.join("slots").join(model_fingerprint.get(..16).unwrap_or(model_fingerprint))
    }

    /// Settings by name.
    pub fn profiles(&self) -> PathBuf {
        self.config.join("profiles")
    }

    /// Messages by name.
    pub fn prompts(&self) -> PathBuf {
        self.config.join("prompts")
    }

    /// Quantized weights.
    pub fn weights(&self) -> PathBuf {
        self.cache.join("weights")
    }

    /// Folder of the files that record what models keep at each setting of the dial.
    pub fn dials(&self) -> PathBuf {
        self.cache.join("dials")
    }

    /// Dictionaries of KV formats, by the fingerprint of the model.
    pub fn dictionaries(&self) -> PathBuf {
        self.data.join("dictionaries")
    }

    /// Predictors that the user has made.
    pub fn adapters(&self) -> PathBuf {
        self.data.join("adapters")
    }

    pub fn sessions(&self) -> PathBuf {
        self.data.join("sessions")
    }
}
