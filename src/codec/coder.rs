//! Codecs whose rows are coded with data of one model, such as a dictionary: the file of the data,
//! and the interface of what reads rows by it.

use std::sync::Arc;

/// Where a row belongs: a layer, counted among those with attention, and the position of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub layer: usize,
    pub position: usize,
}

/// Codes rows of K and V by data of one model. Between the model and a page, a row of `head_dim`
/// values holds its codes: the codec's format copies their bits and changes nothing.
pub trait Coder: Send + Sync {
    /// Replaces a row of K, after RoPE, by its codes.
    fn code_k(&self, place: Place, row: &mut [f32]);
    /// Replaces a row of V by its codes.
    fn code_v(&self, place: Place, row: &mut [f32]);
    /// Decodes the bytes of a row of K into the row after RoPE.
    fn read_k(&self, place: Place, bytes: &[u8], out: &mut [f32]);
    /// Decodes the bytes of a row of V.
    fn read_v(&self, place: Place, bytes: &[u8], out: &mut [f32]);
}

/// A file with data of a codec.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// Its name in messages.
    pub name: String,
    pub bytes: Arc<[u8]>,
}

/// RoPE of one layer: radians per position of each pair of channels, empty for a layer that does
/// not rotate, and the factor of cos and sin.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    pub inv_freq: Vec<f32>,
    pub factor: f32,
}

/// Properties of a model that a coder needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    pub head_dim: usize,
    /// Of each layer with attention.
    pub rotations: Vec<Rotation>,
}

/// Makes the coder of a codec from its data. An error completes "FILE: ".
pub type Open = fn(terms: usize, bytes: &[u8], heads: &Heads) -> Result<Arc<dyn Coder>, String>;
