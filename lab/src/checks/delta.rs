//! Checks of the gated delta net: outputs, states and inputs over steps of chunks and of single
//! tokens, and after a fork.

use super::{Case, Output, Random, acts, buffer, geometry, poisoned, read, values};
use dmschat::backend::{DeltaGeometry, DeltaNetArgs, KvTables, Measure, Span};
use dmschat::cache::PAGE_SLOTS;
use dmschat::codec::Codec;
use dmschat::policy::Policy;

const N_SEQS: usize = 4;
/// Most rows of a step.
const MOST_ROWS: usize = 40;

/// Sizes of a model's delta nets.
pub struct Delta(DeltaGeometry);

pub fn all() -> Vec<Delta> {
    let sizes = [(2, 6, 16, 24, false), (2, 6, 16, 24, true), (1, 1, 128, 128, false), (2, 4, 128, 64, false)];
    let case = |(key_heads, value_heads, key_dim, value_dim, tiled)| {
        Delta(DeltaGeometry { n_layers: 2, key_heads, value_heads, key_dim, value_dim, kernel: 4, tiled })
    };
    sizes.map(case).into()
}

/// Spans of every step, as sequence, first row and length. Sequence 3 is a fork of the first one,
/// made before step [`FORKED_AT`].
fn steps() -> [Vec<(usize, usize, usize)>; 5] {
    [
        vec![(1, 2, 5), (0, 0, 2)],
        vec![(0, 0, 37), (2, 37, 1)],
        vec![(2, 0, 1), (0, 1, 1), (1, 2, 1)],
        vec![(3, 0, 1), (1, 1, 17), (0, 18, 3)],
        vec![(0, 0, 1), (3, 1, 1)],
    ]
}
const FORKED_AT: usize = 3;

impl Case for Delta {
    fn name(&self) -> String {
        let DeltaGeometry { key_heads, value_heads, key_dim, value_dim, tiled, .. } = self.0;
        let order = if tiled { ", tiled" } else { "" };
        format!("delta net {key_dim} x {value_dim} of {key_heads} and {value_heads} heads{order}")
    }
    fn limit(&self) -> f32 {
        // The norm of a small output makes its rounding larger.
        1e-5
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, g) = (Random::new(11), self.0);
        let mut geometry = geometry(Policy::Dense, Codec::Bf16, [8, 1, 1], [1, N_SEQS]);
        geometry.delta = Some(g);
        let mut kv = KvTables::new(b, geometry, PAGE_SLOTS, MOST_ROWS).expect("memory for a check");
        let halved = |x: Vec<f32>| x.iter().map(|x| 0.5 * x).collect::<Vec<_>>();
        let conv = buffer(b, &random.floats(g.kernel * g.channels()));
        let decay = buffer(b, &halved(random.floats(g.value_heads)).iter().map(|x| -x.abs()).collect::<Vec<_>>());
        let (dt_bias, norm) = (buffer(b, &random.floats(g.value_heads)), buffer(b, &random.floats(g.value_dim)));
        let mut floats = Vec::new();
        for (step, spans) in steps().into_iter().enumerate() {
            if step == FORKED_AT {
                b.fork(&mut kv, 0, 3);
            }
            let spans: Vec<Span> = spans.into_iter().map(|(seq, start, len)| Span { seq, start, len }).collect();
            let n: usize = spans.iter().map(|s| s.len).sum();
            for layer in 0..g.n_layers {
                let width = g.channels() + g.value_width();
                let mut rows = acts(b, width, &random.floats(n * width));
                let gates = acts(b, 2 * g.value_heads, &random.floats(n * 2 * g.value_heads));
                let mut out = poisoned(b, n, g.value_width());
                let args = DeltaNetArgs {
                    gates: &gates,
                    conv: &conv,
                    decay: &decay,
                    dt_bias: &dt_bias,
                    norm: &norm,
                    rms_eps: 1e-6,
                    staged: false,
                };
                b.delta_net(&mut out, &mut rows, &mut kv, layer, &spans, &args);
                floats.extend(values(b, &out, n * g.value_width()));
            }
            b.advance(&mut kv, None, &spans);
        }
        floats.extend(read(b, &kv.delta_state, g.n_layers * N_SEQS * g.state_len()));
        floats.extend(read(b, &kv.delta_inputs, g.n_layers * N_SEQS * g.inputs_len()));
        Output { floats, exact: vec![] }
    }
}
