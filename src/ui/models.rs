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

    /// Hub ids in the cache.
    fn cached(&self) -> Vec<String>;

    /// Returns all models with facts from their files, and those in the folders and files `used`.
    /// Reads many files: not for the UI thread.
    fn list(&self, settings: &Settings, used: &[String]) -> Vec<ModelEntry>;
}

/// A model in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelEntry {
    /// Argument of `/model`: `demo`, a folder, or `ORG/NAME[@COMMIT]`.
    pub name: String,
    /// Absent for the built-in model.
    pub path: Option<String>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// All files are there.
    pub complete: bool,
    /// Architecture, layers, heads and context; why they cannot be read.
    pub shape: String,
    /// `DMS, window 256`, `adapter for NAME`, or `dense`.
    pub dms: String,
    pub licence: Option<String>,
    /// The weights fit the free memory in some format; absent where that is unknown.
    pub fits: Option<bool>,
}

impl AsRef<str> for ModelEntry {
    fn as_ref(&self) -> &str {
        &self.name
    }
}
