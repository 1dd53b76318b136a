//! Where the decisions of a layer come from, and what they need on the device.

use crate::backend::{AdapterHead, Alpha, Backend, Columns, Mlp, Predictor};

/// Tensors of a layer's decisions; none for borrowed channels.
pub(super) enum Decisions<B: Backend> {
    None,
    /// A linear map with a norm of its own.
    Adapter {
        norm: B::Buf<f32>,
        proj: B::Weight,
        bias: Option<B::Buf<f32>>,
    },
    /// Maps of the layer's normed input, whose first matrices are stacked below q, k and v.
    Predictor {
        columns: Columns,
        mlp: Option<Second<B>>,
    },
}

/// The second matrix of an MLP.
pub(super) struct Second<B: Backend> {
    pub weight: B::Buf<f32>,
    pub bias: B::Buf<f32>,
}

impl<B: Backend> Decisions<B> {
    pub fn adapter(&self, rms_eps: f32, alpha: Alpha) -> Option<AdapterHead<'_, B>> {
        let Self::Adapter { norm, proj, bias } = self else { return None };
        Some(AdapterHead { norm, proj, bias: bias.as_ref(), rms_eps, alpha })
    }

    pub fn predictor(&self, alpha: Alpha) -> Option<Predictor<'_, B>> {
        let Self::Predictor { columns, mlp } = self else { return None };
        let mlp = mlp.as_ref().map(|second| Mlp { weight: &second.weight, bias: &second.bias });
        Some(Predictor { columns: *columns, mlp, alpha })
    }

    /// The matrix of an adapter.
    pub fn proj(&self) -> Option<&B::Weight> {
        if let Self::Adapter { proj, .. } = self { Some(proj) } else { None }
    }

    /// Columns behind v in projected rows.
    pub fn columns(&self) -> Columns {
        if let Self::Predictor { columns, .. } = self { *columns } else { Columns::default() }
    }
}
