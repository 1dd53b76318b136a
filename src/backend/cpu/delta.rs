//! The gated delta net on the CPU: token after token, so that a row's result does not depend on the
//! rows beside it. A thread computes whole value heads.

use super::super::{DeltaGeometry, DeltaNetArgs, KvTables, Span};
use super::simd::maths;
use super::thread_pool::Tile;
use super::{Acts, Cpu};
use std::sync::{Mutex, PoisonError};

/// Epsilon of the norm of q and k.
const UNIT_EPS: f32 = 1e-6;

/// [`Ops::delta_net`](super::Ops::delta_net)
pub(super) fn delta_net(
    cpu: &Cpu,
    out: &mut Acts,
    rows: &Acts,
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
    args: &DeltaNetArgs<'_, Cpu>,
) {
    let g = kv.geometry.delta.expect("a model with delta nets");
    let n_seqs = kv.geometry.n_seqs;
    let inputs = &mut kv.delta_inputs[layer * n_seqs * g.inputs_len()..][..n_seqs * g.inputs_len()];
    let states = &mut kv.delta_state[layer * n_seqs * g.state_len()..][..n_seqs * g.state_len()];
    for span in spans.iter().filter(|span| kv.seq_len[span.seq] == 0) {
        inputs[span.seq * g.inputs_len()..][..g.inputs_len()].fill(0.0);
        states[span.seq * g.state_len()..][..g.state_len()].fill(0.0);
    }
    // A task has the state of its head in every sequence: the locks are never contended.
    let heads = states.chunks_exact_mut(g.value_dim * g.key_dim).map(Mutex::new);
    let heads: Vec<Mutex<&mut [f32]>> = heads.collect();
    let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
    let call = Call { cpu, g, rows, inputs, args };
    let mut tiles = Tile::new(&mut out.data, n, g.value_width());
    cpu.thread_pool.tiles(&mut tiles, n.max(1), g.value_dim, |_, tile| {
        let head = tile.col_range().start / g.value_dim;
        for span in spans {
            let mut state = heads[span.seq * g.value_heads + head].lock().unwrap_or_else(PoisonError::into_inner);
            match args.staged {
                true => call.head(tile, head, span, &mut state.to_vec()),
                false => call.head(tile, head, span, &mut state),
            }
        }
    });
    if !args.staged {
        spans.iter().for_each(|span| keep_inputs(&g, inputs, rows, span));
    }
}

/// Arguments of a call, shared by all heads.
struct Call<'a> {
    cpu: &'a Cpu,
    g: DeltaGeometry,
    rows: &'a Acts,
    /// `[n_seqs, kernel - 1, channels]`
    inputs: &'a [f32],
    args: &'a DeltaNetArgs<'a, Cpu>,
}

impl Call<'_> {
    /// Computes a value head's output of a span.
    fn head(&self, out: &mut Tile<'_, f32>, head: usize, span: &Span, state: &mut [f32]) {
        let Self { cpu, g, rows, args, .. } = self;
        let (key_head, keys) = (g.key_head(head), g.key_heads * g.key_dim);
        let z_at = g.channels() + head * g.value_dim;
        let (mut q, mut k, mut v) = (vec![0.0; g.key_dim], vec![0.0; g.key_dim], vec![0.0; g.value_dim]);
        for i in 0..span.len {
            self.convolve(&mut q, span, i, key_head * g.key_dim);
            self.convolve(&mut k, span, i, keys + key_head * g.key_dim);
            self.convolve(&mut v, span, i, 2 * keys + head * g.value_dim);
            maths::unit(cpu.isa, &mut q, UNIT_EPS, 1.0 / (g.key_dim as f32).sqrt());
            maths::unit(cpu.isa, &mut k, UNIT_EPS, 1.0);
            let row = span.start + i;
            let (b, a) = (args.gates.row(row)[head], args.gates.row(row)[g.value_heads + head]);
            let beta = 1.0 / (1.0 + maths::exp(-b));
            let decay = maths::exp(args.decay[head] * maths::softplus(a + args.dt_bias[head]));
            let out = out.row_mut(row);
            maths::delta_rule(cpu.isa, out, state, &q, &k, &mut v, [decay, beta]);
            maths::rms_norm_in_place(cpu.isa, out, args.norm, args.rms_eps);
            v.copy_from_slice(out);
            maths::swiglu(cpu.isa, out, &rows.row(row)[z_at..z_at + g.value_dim], &v);
        }
    }

    /// The convolution of the channels from `channel` on, at token `i` of a span.
    fn convolve(&self, out: &mut [f32], span: &Span, i: usize, channel: usize) {
        let (g, width) = (&self.g, self.g.channels());
        let stored = &self.inputs[span.seq * g.inputs_len()..][..g.inputs_len()];
        out.fill(0.0);
        for t in 0..g.kernel {
            // Token `t` of those stored and then of the span.
            let input = match (i + t).checked_sub(g.kernel - 1) {
                Some(own) => &self.rows.row(span.start + own)[channel..],
                None => &stored[(i + t) * width + channel..],
            };
            maths::add_products(self.cpu.isa, out, input, &self.args.conv[t * width + channel..]);
        }
        maths::silu(self.cpu.isa, out);
    }
}

/// Stores the newest inputs of the convolution of a span's sequence.
fn keep_inputs(g: &DeltaGeometry, inputs: &mut [f32], rows: &Acts, span: &Span) {
    let (kept, width) = (g.kernel - 1, g.channels());
    let inputs = &mut inputs[span.seq * g.inputs_len()..][..g.inputs_len()];
    let new = span.len.min(kept);
    inputs.copy_within(new * width.., 0);
    for (i, input) in inputs.chunks_exact_mut(width).skip(kept - new).enumerate() {
        input.copy_from_slice(&rows.row(span.start + span.len - new + i)[..width]);
    }
}
