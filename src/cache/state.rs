//! The fixed-size state of a sequence in layers without attention: the op that changes it, and its
//! images, which follow the images of the layers with attention in a file:
//!
//! ```text
//! | u32 number of the image | (kernel - 1) x channels x f32 inputs | value_heads x key_dim x value_dim x f32 state |
//! ```
//!
//! in the machine's byte order, all finite.

use super::{KvCache, SeqId};
use crate::backend::{Backend, DeltaGeometry, DeltaNetArgs, Span};

/// Bytes of its number, with which every image begins.
pub(super) const LAYER_BYTES: usize = size_of::<u32>();

/// Bytes of an image.
pub(super) fn bytes(delta: &DeltaGeometry) -> usize {
    LAYER_BYTES + (delta.inputs_len() + delta.state_len()) * size_of::<f32>()
}

/// The values of an image, without its number.
pub(super) fn check(delta: &DeltaGeometry, image: &[u8]) -> Result<Vec<f32>, &'static str> {
    if image.len() != bytes(delta) {
        return Err("another size than a state has");
    }
    let values: Vec<f32> = image[LAYER_BYTES..].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    if values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        Err("a state has values that are not numbers")
    }
}

impl<B: Backend> KvCache<B> {
    /// Runs the gated delta net of one layer of a step:
    /// [`Ops::delta_net`](crate::backend::Ops::delta_net).
    pub fn delta_net(
        &mut self,
        b: &B,
        out: &mut B::Acts,
        rows: &mut B::Acts,
        layer: usize,
        spans: &[Span],
        args: &DeltaNetArgs<'_, B>,
    ) {
        b.delta_net(out, rows, &mut self.tables, layer, spans, args);
    }

    /// Replaces `out` by image `number`, the state of `layer`. Waits for the device.
    pub(super) fn export_state(&self, b: &B, seq: SeqId, number: usize, layer: usize, out: &mut Vec<u8>) {
        let Some((delta, row)) = self.state_row(seq, layer) else { return };
        let (mut inputs, mut state) = (vec![0.0; delta.inputs_len()], vec![0.0; delta.state_len()]);
        if self.len(seq) > 0 {
            b.read(&self.tables.delta_inputs, row * inputs.len(), &mut inputs);
            b.read(&self.tables.delta_state, row * state.len(), &mut state);
        }
        out.clear();
        out.extend((number as u32).to_ne_bytes());
        out.extend_from_slice(bytemuck::cast_slice(&inputs));
        out.extend_from_slice(bytemuck::cast_slice(&state));
    }

    /// Sets the state of `layer` to values that [`check`] has returned.
    pub(super) fn import_state(&mut self, b: &B, seq: SeqId, layer: usize, values: &[f32]) {
        let Some((delta, row)) = self.state_row(seq, layer) else { return };
        let (inputs, state) = values.split_at(delta.inputs_len());
        b.write(&mut self.tables.delta_inputs, row * inputs.len(), inputs);
        b.write(&mut self.tables.delta_state, row * state.len(), state);
    }

    /// The sizes of states, and the row of a sequence's in a layer.
    fn state_row(&self, seq: SeqId, layer: usize) -> Option<(DeltaGeometry, usize)> {
        let g = self.geometry();
        g.delta.map(|delta| (delta, layer * g.n_seqs + seq.row()))
    }
}
