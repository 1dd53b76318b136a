//! Why a job ended early.

use crate::engine::runner::StepError;
use crate::protocol::GrammarError;

/// Why a job ended early.
#[derive(Debug)]
pub(in crate::engine) enum Halt {
    Cancelled,
    CacheFull(String),
    ContextFull(String),
    Error(String),
    Grammar(GrammarError),
}

impl Halt {
    /// Why a probe has no answer. `failed` says what could not be done.
    pub fn without_answer(self, failed: &str) -> String {
        match self {
            Self::Cancelled => "stopped".to_owned(),
            Self::CacheFull(why) | Self::ContextFull(why) | Self::Error(why) => format!("{failed}: {why}"),
            Self::Grammar(error) => format!("{failed}: {error}"),
        }
    }
}

impl<E: Into<StepError>> From<E> for Halt {
    fn from(error: E) -> Self {
        match error.into() {
            StepError::Cache(error) => Self::CacheFull(error.to_string()),
            error => Self::Error(error.to_string()),
        }
    }
}
