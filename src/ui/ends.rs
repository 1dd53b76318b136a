//! With what a chat starts, and how it ends.

use super::effect::Which;
use super::models::{Given, Models};
use super::training::Trainer;
use crate::config::Settings;
use crate::protocol::EngineHandle;
use anyhow::Result;
use std::sync::Arc;

/// The conversation that the chat begins with.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Resume {
    #[default]
    New,
    Open(Which),
    /// From the list.
    Choose,
}

/// Starts an engine with the model of the settings. An error is one line; what fails later arrives
/// as `Event::LoadFailed`.
pub type Loader = Box<dyn Fn(&Settings) -> Result<EngineHandle>>;

/// Everything the runtime loads models with.
pub struct LoadParts {
    pub load: Loader,
    pub models: Arc<dyn Models>,
    pub given: Given,
    pub train: Trainer,
}

/// The way the chat ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitKind {
    Quit,
    /// By a signal of this number, or because the terminal is gone (1).
    Signal(i32),
    /// The model that was asked for at the start did not load; why, in one line.
    NotLoaded(String),
    /// Something could not be saved; what, why and where it is instead, in one line.
    NotSaved(String),
}
