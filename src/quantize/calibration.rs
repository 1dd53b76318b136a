//! Importance of columns: which of them 4-bit codes store most exactly. 8-bit codes do not depend
//! on it.

use super::convert::{self, Importance, OnReport, Report};
use super::imatrix;
use super::imatrix::published::{self, Published};
use crate::checkpoint::Checkpoint;
use crate::quant::Weights;
use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Measures the importance of a model's columns on a built-in text. The result depends on the
/// checkpoint alone.
pub type Measure = fn(&Checkpoint, OnReport<'_>) -> Result<Importance>;

/// Where the importance of columns comes from.
#[derive(Clone, Debug, Default)]
pub enum Calibration {
    /// All columns count the same.
    #[default]
    Equal,
    Given(Given),
    /// Measured when it is needed. A notice about an unusable file is shown then.
    Measured(Measure, Option<String>),
}

/// Importance from a file.
#[derive(Clone, Debug)]
pub struct Given {
    pub importance: Arc<Importance>,
    /// The file, for the user.
    pub name: String,
}

/// How [`Calibration::Measured`] measures. Changes with every change of the text or of the
/// computation that changes bytes.
const MEASURED: &str = "measured 1";

impl Calibration {
    /// How importance was obtained, in a few words; part of a quantized file's key. Empty if
    /// nothing was measured.
    pub fn describe(&self, weights: Weights) -> String {
        match self {
            Self::Equal => String::new(),
            _ if !weights.uses_importance() => String::new(),
            Self::Given(given) => digest(&given.importance),
            Self::Measured(..) => MEASURED.to_owned(),
        }
    }

    /// By what 4-bit codes are chosen, for the user.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Equal => None,
            Self::Given(given) => Some(&given.name),
            Self::Measured(..) => Some("measured"),
        }
    }

    /// The importance that the model's publisher has put beside it; measured if there is none.
    pub fn published(source: &Checkpoint, measure: Measure) -> Self {
        let Some(Published { path, name }) = published::find(source) else { return Self::Measured(measure, None) };
        let read = imatrix::read(&path, &source.config).and_then(|importance| {
            let lacks = convert::lacks(source, &importance);
            ensure!(lacks.is_none(), "{}: it has no {}", path.display(), lacks.unwrap_or_default());
            Ok(importance)
        });
        match read {
            Ok(importance) => Self::Given(Given { importance: importance.into(), name }),
            Err(why) => Self::Measured(measure, Some(format!("{why:#}; it is not used"))),
        }
    }

    /// The importance for a model, measured now if it is to be. A model on which it cannot be
    /// measured is quantized without, which a notice says.
    pub fn importance(&self, source: &Checkpoint, weights: Weights, report: OnReport<'_>) -> Result<Arc<Importance>> {
        match self {
            _ if !convert::chooses_codes(source, weights) => Ok(Arc::default()),
            Self::Given(Given { importance, name }) => {
                report(Report::Notice(format!("4-bit codes are chosen by {name}")));
                Ok(importance.clone())
            }
            Self::Measured(measure, other) => {
                let mut stopped = other.iter().any(|why| !report(Report::Notice(why.clone())));
                let measured = measure(source, &mut |progress| {
                    stopped = stopped || !report(progress);
                    !stopped
                });
                match measured {
                    Err(why) if !stopped => {
                        let name = &source.name;
                        report(Report::Notice(format!("{name} is quantized without importance: {why:#}")));
                        Ok(Arc::default())
                    }
                    measured => measured.map(Arc::new),
                }
            }
            Self::Equal => Ok(Arc::default()),
        }
    }
}

/// Digest of importance vectors; empty without any.
fn digest(importance: &Importance) -> String {
    if importance.is_empty() {
        return String::new();
    }
    let mut hash = Sha256::new();
    for (name, columns) in importance {
        hash.update(format!("{name} {}\n", columns.len()));
        columns.iter().for_each(|x| hash.update(x.to_le_bytes()));
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}
