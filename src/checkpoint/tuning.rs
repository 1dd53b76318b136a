//! User settings of a model's eviction rule.

use super::{Checkpoint, DmsVariant};
use anyhow::{Result, bail, ensure};

/// Values that replace values of the checkpoint or of its source of decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Score below which a predictor marks a token.
    pub threshold: Option<f32>,
    /// See [`Dms`](crate::policy::Dms).
    pub window: Option<usize>,
    pub sinks: Option<usize>,
}

impl Checkpoint {
    /// Replaces parameters of the eviction rule. Fails for a model without what they are of.
    pub fn tune(&mut self, tuning: Tuning) -> Result<()> {
        if tuning == Tuning::default() {
            return Ok(());
        }
        let name = &self.name;
        ensure!(
            self.config.gates.is_none(),
            "{name} evicts by retention gates, so --threshold, --window and --sinks are refused; --policy trimkv --budget \
             SLOTS changes how much it keeps"
        );
        let Some(dms) = &mut self.config.dms else {
            bail!(
                "{name} has nothing that decides about eviction, so --threshold, --window and --sinks need an --adapter"
            );
        };
        let predicts = matches!(dms.variant, DmsVariant::Predictor(_));
        ensure!(
            predicts || tuning.threshold.is_none(),
            "{name} evicts without a predictor's scores, so --threshold is refused; /forget and --keep-ratio change how much it keeps"
        );
        dms.alpha_offset = tuning.threshold.map_or(dms.alpha_offset, |threshold| -threshold);
        dms.rule.window = tuning.window.unwrap_or(dms.rule.window);
        dms.rule.sinks = tuning.sinks.unwrap_or(dms.rule.sinks);
        if predicts {
            let card = self.adapter.as_ref().and_then(|source| source.card.as_ref());
            let figures = card.and_then(|card| card.figures(-dms.alpha_offset, dms.rule.window));
            dms.target_ratio = figures.map(|(ratio, _)| ratio);
        }
        Ok(())
    }
}
