//! The local models as the chat shows them: the list of `/models`, and the names that `/model`
//! completes. `cli` implements [`Models`].

use crate::config::Settings;
use crate::protocol::{ModelIdentity, ModelReference};

/// Flags that were given and take precedence over a conversation's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    pub adapter: bool,
    /// The cache's policy or budget.
    pub policy: bool,
}

/// Looks models up on this machine. Opens no connection.
pub trait Models: Send + Sync {
    /// Returns a reference to the model of a conversation, or why it cannot be loaded.
    fn find(&self, model: &ModelIdentity) -> Result<ModelReference, String>;

    /// Returns the settings that load it, with what was given on the command line.
    fn settings(&self, found: &ModelReference, settings: &Settings, given: Given) -> Settings;

    /// The name that a short name or an address stands for; any other name as it is.
    fn full_name(&self, name: &str) -> String;

    /// Returns names of models, and which one to recommend. Asks the device for its memory: not for
    /// the UI thread.
    fn known(&self, settings: &Settings) -> Known;

    /// Returns all models on this machine with facts from their files, those in the folders and
    /// files `used`, and then the known ones that can be downloaded. Reads many files: not for the
    /// UI thread.
    fn list(&self, settings: &Settings, used: &[String]) -> Vec<ModelEntry>;
}

/// Names of models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Hub ids in the cache.
    pub cached: Vec<String>,
    /// Short names of known models that can be downloaded, with a word on each.
    pub short: Vec<(String, String)>,
    /// The one to recommend on this machine, with its size: `smollm2 (269 MB)`.
    pub best: Option<String>,
    /// Whether the settings forbid connections.
    pub offline: bool,
}

/// What works without connections.
pub const OFFLINE: &str =
    "HF_HUB_OFFLINE forbids downloads; the built-in model, and folders and GGUF files (/model PATH) work without them";

/// Where a model of the list is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    #[default]
    Here,
    /// On the hub, and known by a short name.
    Hub,
    /// On the hub, as far as its name was typed.
    Typed,
}

/// A model in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelEntry {
    /// Argument of `/model`: `demo`, a folder, `ORG/NAME[@COMMIT]`, or a short name.
    pub name: String,
    pub place: Place,
    /// The repository of a known model.
    pub repository: Option<String>,
    /// Absent for the built-in model.
    pub path: Option<String>,
    /// Bytes of the weights, or of their download.
    pub bytes: u64,
    /// All files are there.
    pub complete: bool,
    /// Architecture, layers, heads and context; why they cannot be read.
    pub shape: String,
    /// `DMS, window 256`, `adapter for NAME`, or `dense`.
    pub dms: String,
    pub licence: Option<String>,
    /// The model fits into the free memory in some format; absent where that is unknown.
    pub fits: Option<bool>,
    /// What fits: `bf16, 8,192 tokens`.
    pub room: String,
    /// The one to recommend on this machine.
    pub is_best: bool,
}

impl AsRef<str> for ModelEntry {
    fn as_ref(&self) -> &str {
        &self.name
    }
}
