//! Share of tokens that a model keeps at each setting of the dial: its table, from a file or from a
//! trial.

use super::loaded::Loaded;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::checkpoint::dial_file;
use crate::policy::{DialTable, MAX_RATIO, STRENGTHS, SlotMeta};
use crate::protocol::{Dial, Token};
use crate::tokenizer::Tokenizer;
use anyhow::Context as _;
use std::path::PathBuf;

/// By how much a step of the dial changes the compression ratio.
const STEP: f64 = 1.4;

/// Text of the trial: a chat with facts, numbers and code.
const SAMPLE: &str = include_str!("sample.txt");
/// Most tokens of the trial.
const SAMPLE_TOKENS: usize = 640;

pub(super) const TOO_SHORT: &str = "the context is too short for measuring the dial";

pub(super) fn sample<B: Backend>(runner: &Runner<B>, tokenizer: &Tokenizer) -> Vec<Token> {
    let mut tokens = tokenizer.encode_text(SAMPLE).unwrap_or_default();
    tokens.truncate(SAMPLE_TOKENS.min(runner.context()));
    tokens
}

/// Builds the table from a sequence without eviction that was fed the sample. `None` if it has too
/// few decisions.
pub(super) fn table_of<B: Backend>(runner: &Runner<B>, seq: SeqId) -> Option<DialTable> {
    let mut counts = [0; STRENGTHS];
    for_each_slot(runner, seq, |_, meta| counts[meta.strength()] += 1);
    DialTable::of_counts(&counts)
}

/// Measures the share that the model keeps at each setting of the dial, by a trial that runs at
/// once.
pub fn measure_dials<B: Backend>(runner: &mut Runner<B>, tokenizer: &Tokenizer) -> anyhow::Result<DialTable> {
    let (seq, tokens) = (runner.create(false)?, sample(runner, tokenizer));
    let fed = tokens.chunks(runner.max_step()).try_for_each(|chunk| {
        runner.feed(seq, chunk)?;
        Ok::<(), anyhow::Error>(runner.check_finite()?)
    });
    let table = table_of(runner, seq);
    runner.release(seq);
    fed?;
    table.context(TOO_SHORT)
}

impl<B: Backend> Loaded<B> {
    /// Returns the table, if it is known or in a file. Fails with a sentence for the user if there
    /// can be none.
    pub fn dial_table(&mut self) -> Result<Option<&DialTable>, String> {
        if let Some(why) = self.runner.cache.geometry().policy.kind().dial_refusal() {
            return Err(why);
        }
        if self.dials.is_none() {
            self.dials = self.dial_file().as_deref().and_then(dial_file::read);
        }
        Ok(self.dials.as_ref())
    }

    fn dial_file(&self) -> Option<PathBuf> {
        let name = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let (model, mut of) = (name(&self.info.identity.model_fingerprint), name(&self.info.weights.format));
        // A table's decisions are relative to the threshold in use, which is not part of the
        // fingerprint.
        let threshold = self.info.identity.decisions.as_ref().and_then(|decisions| decisions.threshold);
        threshold.into_iter().for_each(|threshold| of += &format!("-{:08x}", threshold.to_bits()));
        self.dial_folder.as_ref().map(|folder| dial_file::path(folder, &model, &of))
    }

    /// Keeps a table that was measured. Returns a notice if no file holds it.
    pub fn keep_table(&mut self, table: DialTable) -> Option<String> {
        let written = self.dial_file().map(|file| dial_file::write(&file, &table));
        self.dials = Some(table);
        let not_kept = |error| format!("the measurement is not kept for the next start: {error}");
        written.and_then(Result::err).map(not_kept)
    }

    /// Converts the wanted setting into a dial, if the current dial is `dial`, with the ratios
    /// expected there and as trained. `Ok(None)`: it has to be measured first.
    pub fn dial_for(&mut self, dial: f32, to: Dial) -> Result<Option<(f32, f64, f64)>, String> {
        if let Dial::Ratio(ratio) = to
            && !(1.0..=MAX_RATIO).contains(&f64::from(ratio))
        {
            return Err(format!("{ratio} is out of range, expected a ratio of 1 to {MAX_RATIO}"));
        }
        let Some(table) = self.dial_table()? else { return Ok(None) };
        let trained = table.ratio(0.0);
        let wanted = match to {
            Dial::Trained => trained,
            Dial::More => table.ratio(dial) / STEP,
            Dial::Less => table.ratio(dial) * STEP,
            Dial::Ratio(ratio) => f64::from(ratio),
        };
        let dial = table.setting(wanted.clamp(1.0, MAX_RATIO));
        Ok(Some((dial, table.ratio(dial), trained)))
    }

    /// Like [`Self::dial_for`], before the first conversation: measures at once.
    pub fn first_dial(&mut self, to: Dial) -> Result<(f32, f64, f64), String> {
        if self.dial_for(0.0, to)?.is_none() {
            let table = measure_dials(&mut self.runner, &self.vocabulary.tokenizer);
            self.keep_table(table.map_err(|error| format!("it cannot be measured now: {error}"))?);
        }
        self.dial_for(0.0, to)?.ok_or_else(|| "it cannot be measured now".to_owned())
    }
}

/// Calls `each` with the metadata of each slot of a sequence in the lanes whose tokens the policy
/// chooses, and with the index among those lanes.
pub(super) fn for_each_slot<B: Backend>(runner: &Runner<B>, seq: SeqId, mut each: impl FnMut(usize, SlotMeta)) {
    for (number, lane) in runner.cache.geometry().deciding_lanes().enumerate() {
        let metas = runner.cache.slot_metas(runner.backend(), seq, lane.layer, lane.head);
        metas.into_iter().for_each(|meta| each(number, meta));
    }
}
