//! Inputs of a draft head that come from the model's forward pass.

use crate::backend::Backend;
use crate::checkpoint::draft_head::{DraftHead, Reads};
use anyhow::Result;

/// Taps on the inputs of some layers, in order. The head reads the sum of their mapped inputs, with
/// their norms, or without taps the model's output after the final norm.
pub(super) struct Taps<B: Backend> {
    pub all: Vec<Tap<B>>,
    pub eps: f32,
}

pub(super) struct Tap<B: Backend> {
    pub layer: usize,
    /// `[hidden, hidden]`
    pub weight: B::Weight,
    pub norm: Option<B::Buf<f32>>,
}

impl<B: Backend> Taps<B> {
    pub fn new(b: &B, head: &DraftHead) -> Result<Self> {
        let mut all = Vec::new();
        let taps = if let Reads::Layers(taps) = &head.reads { &taps[..] } else { &[] };
        for tap in taps {
            let norm = match &tap.norm {
                Some(norm) => {
                    let values = norm.to_f32();
                    let mut buffer = b.alloc(values.len())?;
                    b.write(&mut buffer, 0, &values);
                    Some(buffer)
                }
                None => None,
            };
            all.push(Tap { layer: tap.layer, weight: b.weight(std::slice::from_ref(&tap.map))?, norm });
        }
        Ok(Self { all, eps: head.layer.config.rms_eps })
    }
}
