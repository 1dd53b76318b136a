//! The file of a predictor: `dmschat-adapter-2`, safetensors with metadata.

use super::regression::Fitted;
use crate::checkpoint::ModelConfig;
use crate::checkpoint::adapter::card::Header;
use anyhow::Result;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

/// A tensor: name, shape, bytes.
type Stored = (String, Vec<usize>, Vec<u8>, Dtype);

/// Bytes of a file: bf16 matrices, f32 biases.
pub fn to_bytes(config: &ModelConfig, layers: &[Fitted], header: &Header) -> Result<Vec<u8>> {
    let mut stored: Vec<Stored> = Vec::new();
    for (l, layer) in layers.iter().enumerate() {
        let linears = [
            ("", &layer.weight, &layer.bias),
            ("0.", &layer.inner, &layer.inner_bias),
            ("2.", &layer.out, &layer.out_bias),
        ];
        for (name, weight, bias) in linears {
            let shape = vec![bias.len(), weight.len() / bias.len()];
            let bytes = weight.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
            stored.push((format!("layers.{l}.{name}weight"), shape, bytes, Dtype::BF16));
            let bytes = bias.iter().flat_map(|x| x.to_le_bytes()).collect();
            stored.push((format!("layers.{l}.{name}bias"), vec![bias.len()], bytes, Dtype::F32));
        }
    }
    let views =
        stored.iter().map(|(name, shape, bytes, dtype)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>>>()?;
    Ok(safetensors::serialize(views, Some(header.metadata(config).into_iter().collect()))?)
}
