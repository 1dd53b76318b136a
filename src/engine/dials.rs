//! Share of tokens that a model keeps at each setting of the dial: a table from a file, or from a trial prefill that runs in steps between
//! those of the conversations, once for each model.

use super::loaded::{Dials, Loaded, Trial};
use super::runner::{Runner, StepError};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::checkpoint::dial_file;
use crate::policy::{DialTable, MAX_RATIO, Policy, STRENGTHS, SlotMeta};
use crate::protocol::Keep;
use crate::tokenizer::Tokenizer;
use anyhow::Context as _;
use std::path::PathBuf;

/// Text of the trial prefill: a chat with facts, numbers and code.
const SAMPLE: &str = include_str!("sample.txt");
/// Most tokens of the trial prefill.
const SAMPLE_TOKENS: usize = 640;
/// By how much a step of the dial changes the compression ratio.
const STEP: f64 = 1.4;

impl Trial {
    fn begin<B: Backend>(seq: SeqId, runner: &Runner<B>, tokenizer: &Tokenizer) -> Self {
        let mut tokens = tokenizer.encode_text(SAMPLE).unwrap_or_default();
        tokens.truncate(SAMPLE_TOKENS.min(runner.context()));
        Self { seq, tokens, fed: 0 }
    }

    /// Feeds at most `size` tokens. Returns whether tokens are left.
    fn step<B: Backend>(&mut self, runner: &mut Runner<B>, size: usize) -> Result<bool, StepError> {
        let n = size.clamp(1, runner.max_step()).min(self.tokens.len() - self.fed);
        runner.feed(self.seq, &self.tokens[self.fed..self.fed + n])?;
        runner.check_finite()?;
        self.fed += n;
        Ok(self.fed < self.tokens.len())
    }

    /// Counts the decisions, and releases the sequence. `None` if they are too few.
    fn end<B: Backend>(self, runner: &mut Runner<B>) -> Option<DialTable> {
        let mut counts = [0; STRENGTHS];
        for_each_slot(runner, self.seq, |_, meta| counts[meta.strength()] += 1);
        runner.release(self.seq);
        DialTable::of_counts(&counts)
    }
}

const TOO_SHORT: &str = "the context is too short for measuring the dial";

/// What the model keeps at each setting of the dial, by a trial prefill that runs at once.
pub fn measure_dials<B: Backend>(runner: &mut Runner<B>, tokenizer: &Tokenizer) -> anyhow::Result<DialTable> {
    let mut trial = Trial::begin(runner.create(false)?, runner, tokenizer);
    let fed = loop {
        match trial.step(runner, usize::MAX) {
            Ok(true) => {}
            ended => break ended,
        }
    };
    let table = trial.end(runner);
    fed?;
    table.context(TOO_SHORT)
}

impl<B: Backend> Loaded<B> {
    /// The table, if it is known or in a file. Fails with a sentence for the user if there can be none.
    pub fn dial_table(&mut self) -> Result<Option<&DialTable>, String> {
        match self.runner.cache.geometry().policy {
            Policy::Dms(_) => {}
            Policy::Dense => return Err("the cache keeps everything: its policy is dense".into()),
            Policy::Dmc(_) => {
                return Err("policy dmc merges as its heads decide; its ratio was fixed in training".into());
            }
            policy => return Err(format!("policy {} keeps as much as --budget says", policy.name())),
        }
        if matches!(self.dials, Dials::Unknown) {
            let table = self.dial_file().as_deref().and_then(dial_file::read);
            self.dials = table.map_or(Dials::Unmeasured(None), Dials::Known);
        }
        Ok(if let Dials::Known(table) = &self.dials { Some(table) } else { None })
    }

    fn dial_file(&self) -> Option<PathBuf> {
        let name = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let (model, weights) = (name(&self.info.identity.model_fingerprint), name(&self.info.weights.format));
        self.dial_folder.as_ref().map(|folder| dial_file::path(folder, &model, &weights))
    }

    /// Whether a trial prefill runs.
    pub fn is_measuring(&self) -> bool {
        matches!(self.dials, Dials::Unmeasured(Some(_)))
    }

    /// Begins the trial prefill, unless it runs. Fails if no sequence is free.
    pub fn begin_trial(&mut self) -> Result<(), CacheError> {
        if !self.is_measuring() {
            let seq = self.with_sequence(|runner| runner.create(false))?;
            let trial = Trial::begin(seq, &self.runner, &self.vocabulary.tokenizer);
            self.dials = Dials::Unmeasured(Some(trial));
        }
        Ok(())
    }

    /// Runs the next step of the trial prefill, of at most `size` tokens. Returns its outcome when it has ended: a notice for
    /// the user if there is one, or why there is no table.
    pub fn step_trial(&mut self, size: usize) -> Option<Result<Option<String>, String>> {
        let Dials::Unmeasured(trial) = &mut self.dials else { return None };
        let mut running = trial.take()?;
        let fed = running.step(&mut self.runner, size);
        if matches!(fed, Ok(true)) {
            *trial = Some(running);
            return None;
        }
        let table = running.end(&mut self.runner);
        self.trim();
        if let Err(error) = fed {
            return Some(Err(format!("it cannot be measured now: {error}")));
        }
        let Some(table) = table else { return Some(Err(TOO_SHORT.to_owned())) };
        let written = self.dial_file().map(|file| dial_file::write(&file, &table));
        self.dials = Dials::Known(table);
        let not_kept = |error| format!("the measurement is not kept for the next start: {error}");
        Some(Ok(written.and_then(Result::err).map(not_kept)))
    }

    /// Gives the trial prefill up, whose memory is needed. Returns false if none runs.
    pub fn give_up_trial(&mut self) -> bool {
        let Dials::Unmeasured(trial) = &mut self.dials else { return false };
        let Some(trial) = trial.take() else { return false };
        self.runner.release(trial.seq);
        true
    }

    /// The dial for what is wanted, where it is `dial` now, with the ratios expected there and as trained. `Ok(None)`: it has to
    /// be measured first.
    pub fn dial_for(&mut self, dial: f32, keep: Keep) -> Result<Option<(f32, f64, f64)>, String> {
        if let Keep::Ratio(ratio) = keep
            && !(1.0..=MAX_RATIO).contains(&f64::from(ratio))
        {
            return Err(format!("{ratio} is out of range, expected a ratio of 1 to {MAX_RATIO}"));
        }
        let Some(table) = self.dial_table()? else { return Ok(None) };
        let trained = table.ratio(0.0);
        let wanted = match keep {
            Keep::Trained => trained,
            Keep::More => table.ratio(dial) / STEP,
            Keep::Less => table.ratio(dial) * STEP,
            Keep::Ratio(ratio) => f64::from(ratio),
        };
        let dial = table.setting(wanted.clamp(1.0, MAX_RATIO));
        Ok(Some((dial, table.ratio(dial), trained)))
    }

    /// As [`Self::dial_for`], before the first conversation: measures at once.
    pub fn first_dial(&mut self, keep: Keep) -> Result<(f32, f64, f64), String> {
        if self.dial_for(0.0, keep)?.is_none() {
            self.begin_trial().map_err(|error| format!("it cannot be measured now: {error}"))?;
            while self.is_measuring() {
                if let Some(Err(why)) = self.step_trial(usize::MAX) {
                    return Err(why);
                }
            }
        }
        self.dial_for(0.0, keep)?.ok_or_else(|| "it cannot be measured now".to_owned())
    }
}

/// Calls `each` with the number of the lane and the metadata of each slot of a sequence.
pub(super) fn for_each_slot<B: Backend>(runner: &Runner<B>, seq: SeqId, mut each: impl FnMut(usize, SlotMeta)) {
    let (layers, heads) = (runner.config().n_layers, runner.config().n_kv_heads);
    for lane in 0..layers * heads {
        let metas = runner.cache.slot_metas(runner.backend(), seq, lane / heads, lane % heads);
        metas.into_iter().for_each(|meta| each(lane, meta));
    }
}
