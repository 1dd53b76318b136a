//! How the rows of decode steps are sampled: parameters and masks on the device, and what is added
//! to logits.

use crate::backend::{Backend, KvTables, OutOfMemory, SampleArgs, SamplingState};
use crate::grammar::Mask;
use crate::protocol::Token;

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
    /// [`SampleArgs::adjust`] of the next step.
    adjust: Vec<Vec<(Token, f32)>>,
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
            adjust: Vec::new(),
        })
    }

    /// Sets the tokens that each row of the next step may sample.
    pub fn mask_next(&mut self, rows: Vec<Option<Mask>>) {
        self.next_masks = rows;
    }

    /// Sets what is added to the logits of the next step: [`SampleArgs::adjust`].
    pub fn adjust_next(&mut self, rows: Vec<Vec<(Token, f32)>>) {
        self.adjust = rows;
    }

    /// Takes what is added to the logits of this step.
    pub fn take_adjust(&mut self) -> Vec<Vec<(Token, f32)>> {
        std::mem::take(&mut self.adjust)
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
        adjust: &'a [Vec<(Token, f32)>],
    ) -> SampleArgs<'a, B> {
        SampleArgs { draws: &self.states, kv, non_finite, staged, greedy, masks: Some(&self.masks), adjust }
    }
}
