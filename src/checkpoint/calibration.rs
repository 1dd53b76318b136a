//! Importance of columns: which of them 4-bit codes store most exactly. 8-bit codes do not depend
//! on it.

use super::Checkpoint;
use super::convert::{self, Importance, OnReport, Report};
use crate::quant::Weights;
use anyhow::Result;
use sha2::{Digest, Sha256};

/// Measures the importance of a model's columns on a built-in text. The result depends on the
/// checkpoint alone.
pub type Measure = fn(&Checkpoint, OnReport<'_>) -> Result<Importance>;

/// Where the importance of columns comes from.
#[derive(Clone, Debug, Default)]
pub enum Calibration {
    /// All columns count the same.
    #[default]
    Equal,
    Given(Importance),
    /// Measured when it is needed.
    Measured(Measure),
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
            _ if weights != Weights::Int4 => String::new(),
            Self::Given(importance) => digest(importance),
            Self::Measured(_) => MEASURED.to_owned(),
        }
    }

    /// The importance for a model, measured now if it is to be. A model on which it cannot be
    /// measured is quantized without, which a notice says.
    pub fn importance(&self, source: &Checkpoint, weights: Weights, report: OnReport<'_>) -> Result<Importance> {
        match self {
            Self::Given(importance) => Ok(importance.clone()),
            Self::Measured(measure) if convert::chooses_codes(source, weights) => {
                let mut stopped = false;
                let measured = measure(source, &mut |progress| {
                    stopped = stopped || !report(progress);
                    !stopped
                });
                match measured {
                    Err(why) if !stopped => {
                        let name = &source.name;
                        report(Report::Notice(format!("{name} is quantized without importance: {why:#}")));
                        Ok(Importance::new())
                    }
                    measured => measured,
                }
            }
            Self::Equal | Self::Measured(_) => Ok(Importance::new()),
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
