//! A predictor that is made for the loaded model beside the chat: what is reported of it, and what
//! the screen shows. Plain data; `cli` starts the work.

use super::text::truncate;
use crate::config::Settings;
use anyhow::Result;
use std::any::Any;
use tokio::sync::mpsc::UnboundedReceiver;

/// Starts the work for the model of the settings. `estimate`: only says how long it would take.
pub type Trainer = Box<dyn Fn(&Settings, bool) -> Result<Work>>;

/// Work that runs. Dropping it ends the work.
pub struct Work {
    pub reports: UnboundedReceiver<Report>,
    pub running: Box<dyn Any>,
}

/// A report of the work.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// Seconds that it takes, said before it begins.
    Takes(f64),
    /// What is done, as a share of all work, and the seconds that are left.
    Done {
        doing: String,
        share: f64,
        left_s: u64,
    },
    /// The predictor is in the data folder. It keeps one token in so many, at this divergence from
    /// the dense model in nats per token.
    Made {
        ratio: f64,
        kl: f64,
    },
    Failed(String),
}

/// The work as the chat knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The name that the model was loaded by, and the name that it is shown by.
    pub loaded: String,
    pub name: String,
    /// Only how long it would take is asked for.
    pub estimates: bool,
    /// The last report.
    pub report: Option<Report>,
}

impl Training {
    /// The part of the status line; `None` if nothing is to be shown.
    pub fn status(&self) -> Option<String> {
        if self.estimates {
            return None;
        }
        Some(match &self.report {
            Some(Report::Done { share, left_s, .. }) => {
                format!("training {:.0} %, {} left", 100.0 * share, in_short(*left_s))
            }
            Some(Report::Made { .. }) => "trained".to_owned(),
            Some(Report::Takes(_) | Report::Failed(_)) | None => "training".to_owned(),
        })
    }

    /// What the work does now.
    pub fn doing(&self) -> String {
        match &self.report {
            Some(Report::Done { doing, .. }) => truncate(doing, 60),
            _ => "beginning".to_owned(),
        }
    }
}

fn in_short(seconds: u64) -> String {
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// `about 7 minutes`, `about 40 seconds`.
pub fn about(seconds: f64) -> String {
    let (n, unit) = match seconds {
        s if s < 90.0 => (((s / 10.0).ceil() * 10.0) as u64, "seconds"),
        s if s < 5400.0 => ((s / 60.0).round() as u64, "minutes"),
        s => ((s / 3600.0).round() as u64, "hours"),
    };
    format!("about {n} {unit}")
}
