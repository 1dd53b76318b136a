//! The computation of a model beyond its sizes, as data. A family's parser writes it; the forward
//! pass reads it and knows no family.

mod kinds;
mod layers;

pub use kinds::{Activation, DeltaNet, Experts, LayerInputs, LayerKind, Local, Mixer, Mlp, QueryGrowth, Spec};
