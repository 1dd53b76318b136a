//! By what 4-bit codes are chosen: the importance of columns, which says which of them are stored
//! most exactly, or GPTQ. 8-bit codes do not depend on it.

use super::convert::{self, Importance, OnReport, Report};
use super::imatrix;
use super::imatrix::published::{self, Published};
use crate::checkpoint::Checkpoint;
use crate::quant::Weights;
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Measures the importance of a model's columns on a built-in text. The result depends on the
/// checkpoint alone.
pub type Measure = fn(&Checkpoint, OnReport<'_>) -> Result<Importance>;

/// Chooses codes by GPTQ, on the importance that is given or on its own. The result depends on the
/// checkpoint and on that importance alone: a GPU of the given index, if any, only saves time.
pub type Correct = fn(&Checkpoint, Weights, Option<Arc<Importance>>, Option<u32>, OnReport<'_>) -> Result<Guide>;

/// What codes are chosen by.
#[derive(Clone, Default)]
pub struct Guide {
    pub importance: Arc<Importance>,
    /// Matrices whose codes are chosen.
    pub chosen: BTreeMap<String, Tensor>,
}

/// Where the importance of columns comes from, and whether GPTQ is used.
#[derive(Clone, Debug, Default)]
pub enum Calibration {
    /// All columns count the same.
    #[default]
    Equal,
    Given(Given),
    /// Measured when it is needed. A notice about an unusable file is shown then.
    Measured(Measure, Option<String>),
    /// GPTQ where it lowers the error, with the help of a GPU if there is one; the importance for
    /// all else.
    Corrected(Correct, Option<u32>, Box<Calibration>),
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
const MEASURED: &str = "measured 2";
/// How [`Calibration::Corrected`] chooses. Changes with every change of the texts or of the
/// computation that changes bytes.
const CORRECTED: &str = "gptq 4";

impl Calibration {
    /// How importance was obtained, in a few words; part of a quantized file's key. Empty if
    /// nothing was measured.
    pub fn describe(&self, weights: Weights) -> String {
        match self {
            Self::Equal => String::new(),
            _ if !weights.uses_importance() => String::new(),
            Self::Given(given) => digest(&given.importance),
            Self::Measured(..) => MEASURED.to_owned(),
            Self::Corrected(_, _, by) => match &**by {
                Self::Given(given) => format!("{CORRECTED} {}", digest(&given.importance)),
                _ => CORRECTED.to_owned(),
            },
        }
    }

    /// The same with GPTQ, and the index of a GPU that helps.
    pub fn corrected(self, correct: Correct, gpu: Option<u32>) -> Self {
        Self::Corrected(correct, gpu, Box::new(self))
    }

    /// Whether codes are chosen by GPTQ where it lowers the error.
    pub fn is_corrected(&self) -> bool {
        matches!(self, Self::Corrected(..))
    }

    /// The importance by which 4-bit codes are chosen, for the user.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Equal => None,
            Self::Given(given) => Some(&given.name),
            Self::Measured(..) => Some("measured"),
            Self::Corrected(_, _, by) => by.by(),
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

    /// What a model's codes are chosen by, measured now if it is to be. A model on which it cannot
    /// be measured is quantized without, which a notice says.
    pub fn guide(&self, source: &Checkpoint, weights: Weights, report: OnReport<'_>) -> Result<Guide> {
        match self {
            _ if !convert::chooses_codes(source, weights) => Ok(Guide::default()),
            Self::Given(given) => Ok(given.said(report).into()),
            Self::Measured(measure, other) => {
                if let Some(why) = other {
                    report(Report::Notice(why.clone()));
                }
                measured(source, report, |report| Ok(Arc::new(measure(source, report)?).into()))
            }
            Self::Corrected(correct, gpu, by) => {
                let given = match &**by {
                    Self::Given(given) => Some(given.said(report)),
                    Self::Measured(_, Some(why)) => {
                        report(Report::Notice(why.clone()));
                        None
                    }
                    _ => None,
                };
                measured(source, report, |report| correct(source, weights, given, *gpu, report))
            }
            Self::Equal => Ok(Guide::default()),
        }
    }
}

impl Given {
    /// The importance, with a notice of it.
    fn said(&self, report: OnReport<'_>) -> Arc<Importance> {
        report(Report::Notice(format!("4-bit codes are chosen by {}", self.name)));
        self.importance.clone()
    }
}

impl From<Arc<Importance>> for Guide {
    fn from(importance: Arc<Importance>) -> Self {
        Self { importance, ..Self::default() }
    }
}

/// The result of `measure`; nothing if that fails although nobody stops it.
fn measured(
    source: &Checkpoint,
    report: OnReport<'_>,
    measure: impl FnOnce(OnReport<'_>) -> Result<Guide>,
) -> Result<Guide> {
    let mut stopped = false;
    let measured = measure(&mut |progress| {
        stopped = stopped || !report(progress);
        !stopped
    });
    match measured {
        Err(why) if !stopped => {
            let name = &source.name;
            report(Report::Notice(format!("{name} is quantized without importance: {why:#}")));
            Ok(Guide::default())
        }
        measured => measured,
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
