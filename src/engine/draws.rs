//! How the rows of decode steps are sampled: parameters, masks and what is added to logits, on the
//! device.

use crate::backend::{Backend, KvTables, OutOfMemory, SampleArgs, SamplingState};
use crate::grammar::Mask;
use crate::protocol::{Adjustment, Token};

pub(super) struct Draws<B: Backend> {
    /// Sampling parameters of each row, on the device.
    states: B::Buf<SamplingState>,
    /// Host copy of `states`; unchanged parameters are not uploaded again.
    uploaded: Vec<SamplingState>,
    /// Masks of rows, on the device: [`SampleArgs::masks`].
    masks: B::Buf<u32>,
    /// Words of a mask.
    words: usize,
    /// Host copy of the rows of `masks` that were uploaded.
    uploaded_masks: Vec<Option<Mask>>,
    /// Tokens that the next step's rows may sample; empty where all rows may sample any.
    next_masks: Vec<Option<Mask>>,
    /// What is added to logits of rows, on the device: [`SampleArgs::adjusts`].
    adjusts: B::Buf<Adjustment>,
    /// Of the next step's rows; empty where nothing is added.
    next_adjusts: Vec<Vec<Adjustment>>,
}

impl<B: Backend> Draws<B> {
    /// For steps of up to `rows` rows. `words`: those of a bit for each token of the vocabulary.
    pub fn new(b: &B, rows: usize, words: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            states: b.alloc(rows)?,
            uploaded: Vec::new(),
            masks: b.alloc(rows * words)?,
            words,
            uploaded_masks: Vec::new(),
            next_masks: Vec::new(),
            adjusts: b.alloc(rows * SamplingState::MOST_ADJUSTED)?,
            next_adjusts: Vec::new(),
        })
    }

    /// Sets the tokens that each row of the next step may sample.
    pub fn mask_next(&mut self, rows: Vec<Option<Mask>>) {
        self.next_masks = rows;
    }

    /// Sets what is added to the logits of each row of the next step, at most
    /// [`SamplingState::MOST_ADJUSTED`] in each.
    pub fn adjust_next(&mut self, rows: Vec<Vec<Adjustment>>) {
        self.next_adjusts = rows;
    }

    /// Uploads how rows are sampled. Returns whether all are greedy.
    pub fn send(&mut self, b: &B, mut states: Vec<SamplingState>) -> bool {
        let masks = std::mem::take(&mut self.next_masks);
        self.uploaded_masks.resize(masks.len().max(self.uploaded_masks.len()), None);
        for (row, mask) in masks.into_iter().enumerate().filter_map(|(row, mask)| Some((row, mask?))) {
            states[row].masked = 1;
            if self.uploaded_masks[row].as_ref() != Some(&mask) {
                b.write(&mut self.masks, row * self.words, mask.words());
                self.uploaded_masks[row] = Some(mask);
            }
        }
        for (row, adjusts) in std::mem::take(&mut self.next_adjusts).into_iter().enumerate() {
            states[row].adjusted = adjusts.len() as u32;
            if !adjusts.is_empty() {
                b.write(&mut self.adjusts, row * SamplingState::MOST_ADJUSTED, &adjusts);
            }
        }
        if self.uploaded != states {
            b.write(&mut self.states, 0, &states);
            self.uploaded = states;
        }
        self.uploaded.iter().all(SamplingState::is_greedy)
    }

    /// The arguments of sampling. `staged`: [`SampleArgs::staged`].
    pub fn args<'a>(
        &'a self,
        kv: &'a KvTables<B>,
        non_finite: &'a B::Buf<i32>,
        staged: Option<&'a B::Buf<Token>>,
        greedy: bool,
    ) -> SampleArgs<'a, B> {
        let (adjusts, masks) = (Some(&self.adjusts), Some(&self.masks));
        SampleArgs { draws: &self.states, kv, non_finite, staged, greedy, adjusts, masks }
    }
}
