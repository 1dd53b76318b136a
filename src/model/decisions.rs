//! Source of a layer's decisions, and its tensors on the device.

use crate::backend::{Alpha, Backend, Columns, Mlp, Predictor};

/// Tensors of a layer's decisions: a projection, unless its rows are stacked below q, k and v, and
/// the other matrices of an MLP. [`Self::NONE`] is for borrowed channels and constant decisions.
pub(super) struct Decisions<B: Backend> {
    pub columns: Columns,
    pub own: Option<Own<B>>,
    pub mlp: Option<Rest<B>>,
}

/// A linear map with its own norm: an adapter.
pub(super) struct Own<B: Backend> {
    pub norm: B::Buf<f32>,
    pub proj: B::Weight,
    pub bias: Option<B::Buf<f32>>,
}

/// Matrices of an MLP after the first: [`Mlp`].
pub(super) struct Rest<B: Backend> {
    pub silu: bool,
    pub middle: Option<[B::Buf<f32>; 2]>,
    pub weight: B::Buf<f32>,
    pub bias: B::Buf<f32>,
}

impl<B: Backend> Decisions<B> {
    pub const NONE: Self =
        Self { columns: Columns { linear: false, units: 0, stride: 0, copies: 0 }, own: None, mlp: None };

    /// Predictor from which attention reads decisions. `raw` holds the output of
    /// [`Workspace::project`](super::Workspace::project).
    pub fn predictor<'a>(&'a self, raw: &'a B::Acts, alpha: Alpha) -> Option<Predictor<'a, B>> {
        let mlp = self.mlp.as_ref().map(|Rest { silu, middle, weight, bias }| {
            let middle = middle.as_ref().map(|[weight, bias]| [weight, bias]);
            Mlp { silu: *silu, middle, weight, bias }
        });
        let own = self.own.is_some().then_some(raw);
        (self.columns.copies > 0).then_some(Predictor { own, columns: self.columns, mlp, alpha })
    }

    /// Number of predictor columns after v in projected rows.
    pub fn stacked_width(&self) -> usize {
        if self.own.is_some() { 0 } else { self.columns.width() }
    }
}
