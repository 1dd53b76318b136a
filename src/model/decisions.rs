//! Where the decisions of a layer come from, and what they need on the device.

use super::Workspace;
use crate::backend::{After, Alpha, Backend, Columns, Linear, Mlp, Norm, Predictor};

/// Tensors of a layer's decisions: what makes the columns that they are read from, unless their maps are stacked below q, k
/// and v, and an MLP's second matrix. The default is none, for borrowed channels and constant decisions.
pub(super) struct Decisions<B: Backend> {
    pub columns: Columns,
    pub own: Option<Own<B>>,
    pub mlp: Option<Second<B>>,
}

/// A linear map with a norm of its own: an adapter.
pub(super) struct Own<B: Backend> {
    pub norm: B::Buf<f32>,
    pub proj: B::Weight,
    pub bias: Option<B::Buf<f32>>,
}

/// The second matrix of an MLP.
pub(super) struct Second<B: Backend> {
    pub weight: B::Buf<f32>,
    pub bias: B::Buf<f32>,
}

impl<B: Backend> Decisions<B> {
    pub const NONE: Self =
        Self { columns: Columns { linear: false, units: 0, stride: 0, copies: 0 }, own: None, mlp: None };

    /// Makes the columns of a layer's input `ws.x` that have rows of their own.
    pub fn project(&self, b: &B, ws: &mut Workspace<B>, eps: f32, layer: usize, n: usize) {
        let Some(Own { norm, proj, bias }) = &self.own else { return };
        let norm = Norm { weight: norm, eps, layer, non_finite: &mut ws.non_finite };
        let before = Some((norm, &mut ws.adapter));
        b.linear(&mut ws.raw, &ws.x, Linear { weight: proj, bias: bias.as_ref(), before, after: After::Store }, n);
    }

    /// How attention reads decisions. `raw` has what [`Self::project`] made.
    pub fn predictor<'a>(&'a self, raw: &'a B::Acts, alpha: Alpha) -> Option<Predictor<'a, B>> {
        let mlp = self.mlp.as_ref().map(|second| Mlp { weight: &second.weight, bias: &second.bias });
        let own = self.own.is_some().then_some(raw);
        (self.columns.copies > 0).then_some(Predictor { own, columns: self.columns, mlp, alpha })
    }

    /// Columns behind v in projected rows.
    pub fn stacked_width(&self) -> usize {
        if self.own.is_some() { 0 } else { self.columns.width() }
    }
}
