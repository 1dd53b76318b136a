//! What a head ([`Eagle`]) reads of the model's forward.

use crate::backend::Backend;
use crate::checkpoint::eagle::Eagle;
use anyhow::Result;

/// What a head reads of the model: maps of the inputs of some layers, in order, whose results are added up, with their norms.
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
    /// Those of a model with so many layers.
    pub fn new(b: &B, eagle: &Eagle, n_layers: usize) -> Result<Self> {
        let mut all = Vec::new();
        for (layer, (weight, norm)) in eagle.config.layers(n_layers).into_iter().zip(&eagle.weights.fc) {
            let norm = match norm {
                Some(norm) => {
                    let values = norm.to_f32();
                    let mut buffer = b.alloc(values.len())?;
                    b.write(&mut buffer, 0, &values);
                    Some(buffer)
                }
                None => None,
            };
            all.push(Tap { layer, weight: b.weight(std::slice::from_ref(weight))?, norm });
        }
        Ok(Self { all, eps: eagle.config.rms_eps })
    }
}
