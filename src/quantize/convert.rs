//! Converts the matrices of a checkpoint to a format of [`quant`](crate::quant). Formats of other
//! programs become bf16 where they are not packed.

use crate::checkpoint::names::{self, LayerSpec, TensorSpec};
use crate::checkpoint::pack::{is_expert, pack, packable, plain};
use crate::checkpoint::{Checkpoint, ModelConfig, mapped};
use crate::cores;
use crate::quant::{Code, Weights, formats};
use crate::tensor::{Format, Tensor};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::Range;

/// E[x^2] of each input column, by the name of the matrix.
pub type Importance = BTreeMap<String, Vec<f32>>;

/// Progress of a conversion. The callback returns whether to continue.
pub enum Report {
    /// Layers whose importance is measured so far, and in total.
    Measuring { done: usize, total: usize },
    /// Layers converted so far and in total.
    Layers { done: usize, total: usize },
    /// Another start makes the file; asks only whether to continue.
    Waiting,
    /// A sentence for the user.
    Notice(String),
}

/// Callback of a conversion.
pub type OnReport<'a> = &'a mut dyn FnMut(Report) -> bool;

/// The code of each matrix for which a format chooses one.
pub fn codes(c: &ModelConfig, weights: Weights) -> BTreeMap<String, Code> {
    packable(c).into_iter().filter_map(|(name, part)| Some((name, weights.code(part)?))).collect()
}

/// [`codes`] of this checkpoint, or the files' codes if the format keeps them.
pub fn codes_of(source: &Checkpoint, weights: Weights) -> BTreeMap<String, Code> {
    if weights.keeps_codes() { own_codes(source) } else { codes(&source.config, weights) }
}

/// Codes for the matrices of a checkpoint's files. Formats without a code of ours become 8 bits,
/// and so do matrices that are no experts in a code of experts.
/// Plain matrices stay plain, and so does a stack that has one; but a plain shared expert becomes
/// 8 bits, because it is stacked with the other experts.
pub fn own_codes(source: &Checkpoint) -> BTreeMap<String, Code> {
    let own = |name: &str| match &source.tensors.get(name)?.format {
        Format::Rows(rows) => {
            let kept = rows.own_code().filter(|code| !code.is_of_experts() || is_expert(name));
            Some(kept.unwrap_or(Code::Q8))
        }
        Format::Plain(_) if name.contains(".mlp.shared_expert.") => Some(Code::Q8),
        _ => None,
    };
    let mut out = packable(&source.config);
    for layer in (0..source.config.n_layers).map(|l| LayerSpec::new(&source.config, l)) {
        for stack in layer.stacks() {
            if stack.iter().any(|matrix| own(&matrix.name).is_none()) {
                for matrix in stack {
                    out.remove(&matrix.name);
                }
            }
        }
    }
    out.into_keys().filter_map(|name| own(&name).map(|code| (name, code))).collect()
}

/// Whether a conversion chooses 4-bit codes: not if there are none, or if it keeps the files'
/// codes.
pub fn chooses_codes(source: &Checkpoint, weights: Weights) -> bool {
    let chooses = |(name, code): (&String, &Code)| match source.tensors.get(name) {
        Some(Tensor { format: Format::Rows(rows), shape, .. }) => {
            !rows.exact_strip(*code, 0, &mut vec![0; code.strip_bytes(shape[1])])
        }
        _ => true,
    };
    let converts = !source.builtin && !source.weights.is_packed();
    converts
        && codes(&source.config, weights).iter().any(|(name, code)| code.uses_importance() && chooses((name, code)))
}

/// A matrix with 4-bit codes of which nothing is known. Text may never have reached an expert.
pub fn lacks(source: &Checkpoint, importance: &Importance) -> Option<String> {
    let needs = |(name, code): &(String, Code)| {
        code.uses_importance() && !name.contains(".mlp.experts.") && !importance.contains_key(name)
    };
    formats().flat_map(|weights| codes(&source.config, weights)).find(needs).map(|(name, _)| name)
}

/// Bytes of all tensors of a model under `weights`, if those that are not packed have `plain_bytes`
/// per value.
pub fn loaded_bytes(c: &ModelConfig, weights: Weights, plain_bytes: usize) -> u64 {
    let codes = codes(c, weights);
    let bytes = |t: TensorSpec| match codes.get(&t.name) {
        Some(code) => code.bytes(t.shape[0], t.shape[1]) as u64,
        None => (t.shape.iter().product::<usize>() * plain_bytes) as u64,
    };
    names::all(c).map(bytes).sum()
}

/// Fails on a matrix in another program's format that has scales that are not finite. Reads
/// all of the matrices, so it is called only before they are converted.
pub fn check_scales(source: &Checkpoint) -> Result<()> {
    for (name, tensor) in &source.tensors {
        let Format::Rows(matrix) = &tensor.format else { continue };
        let rows = tensor.shape[0];
        let share = rows.div_ceil(cores::count()).max(1);
        let firsts: Vec<usize> = (0..rows).step_by(share).collect();
        let bad = cores::map(&firsts, |&from| (from..rows.min(from + share)).find(|row| !matrix.is_finite(*row)));
        if let Some(row) = bad.into_iter().flatten().next() {
            bail!(
                "{}: tensor {name} has a scale in row {row} that is NaN or infinite, so the file is damaged; get it again",
                source.name
            );
        }
    }
    Ok(())
}

/// Converts a checkpoint in memory. `threads` is 0 for one per core. `progress` takes the bytes
/// converted and in total, and returns whether to continue. The built-in model and quantized
/// checkpoints stay as they are.
pub fn convert(
    mut checkpoint: Checkpoint,
    weights: Weights,
    importance: &Importance,
    threads: usize,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<Checkpoint> {
    let codes = codes_of(&checkpoint, weights);
    if checkpoint.builtin && weights.is_packed() {
        checkpoint.kept =
            Some(format!("the built-in model is small and stays bf16; --weights {} is not used", weights.name()));
        return Ok(checkpoint);
    }
    if checkpoint.weights.is_packed() {
        return Ok(checkpoint);
    }
    if weights.keeps_codes() && codes.is_empty() {
        bail!(
            "--weights own keeps the codes of GGUF files and MXFP4, and {} has none that can be kept",
            checkpoint.name
        );
    }
    if weights.is_packed() && codes.is_empty() {
        bail!(
            "--weights {}: no matrix of {} has a number of columns that is divisible by 64",
            weights.name(),
            checkpoint.name
        );
    }
    let (mut done, total) = (0, checkpoint.weight_bytes);
    let mut wanted = true;
    let mut step = |tensor: &Tensor| {
        done += tensor.stored_bytes() as u64;
        wanted = wanted && progress(done, total);
        wanted
    };
    let packs = |t: &Tensor| codes.get(&t.name).copied().filter(|_| !matches!(t.format, Format::Packed(_)));
    let (to_pack, rest): (Vec<_>, Vec<_>) =
        std::mem::take(&mut checkpoint.tensors).into_values().partition(|t| packs(t).is_some());
    let mut tensors = packed(&to_pack, packs, importance, threads, &mut step)?;
    for tensor in rest {
        if !step(&tensor) {
            break;
        }
        tensors.push(plain(tensor, threads)?);
    }
    ensure!(wanted, "loading was stopped");
    let n_params = checkpoint.n_params;
    checkpoint.take_tensors(tensors);
    checkpoint.n_params = n_params;
    checkpoint.weights = if weights.is_packed() { weights } else { Weights::default() };
    Ok(checkpoint)
}

/// Matrices packed into one buffer, because memory is mapped in pages of 2 MiB only where a buffer
/// has that many bytes. `step` takes each matrix before it is packed and returns whether to
/// continue.
fn packed(
    matrices: &[Tensor],
    code: impl Fn(&Tensor) -> Option<Code>,
    importance: &Importance,
    threads: usize,
    step: &mut dyn FnMut(&Tensor) -> bool,
) -> Result<Vec<Tensor>> {
    let mut places = Vec::new();
    let mut end = 0;
    for tensor in matrices {
        let code = code(tensor).context("a matrix without a code")?;
        let start = end;
        end += code.bytes(tensor.shape[0], tensor.shape[1]);
        places.push((tensor, code, start..end));
    }
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = mapped::buffer(end, |out| {
        for (tensor, code, range) in &places {
            if !step(tensor) {
                return;
            }
            let importance = importance.get(&tensor.name).map(Vec::as_slice);
            pack(tensor, *code, importance, threads, 0, &mut out[range.clone()]);
        }
    })?;
    let tensor = |(t, code, range): (&Tensor, Code, Range<usize>)| {
        Tensor::packed(&t.name, code, [t.shape[0], t.shape[1]], bytes.clone(), range)
    };
    Ok(places.into_iter().map(tensor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{AdapterChoice, Experts, LayerKind, Mlp, ModelRef};
    use crate::tensor::Rows;
    use std::sync::Arc;

    /// Like a tied Llama with matrices that fill strips, except for k and v, which are stacked with
    /// q.
    fn checkpoint() -> Checkpoint {
        let config = ModelConfig { n_layers: 2, ..Checkpoint::shape("smollm2-135m").unwrap() };
        Checkpoint::random_of("random", ModelConfig { vocab: 1001, ..config }).unwrap()
    }

    #[test]
    fn bytes_do_not_depend_on_the_number_of_threads() {
        let source = checkpoint();
        let tensor = &source.tensors["model.embed_tokens.weight"];
        let importance: Vec<f32> = (0..tensor.shape[1]).map(|i| 1.0 + (i % 7) as f32).collect();
        for code in Code::ALL {
            let bytes = [1, 8].map(|threads| {
                let mut out = vec![0xaa; code.bytes(tensor.shape[0], tensor.shape[1])];
                pack(tensor, code, Some(&importance), threads, 0, &mut out);
                out
            });
            assert!(bytes[0] == bytes[1], "{code:?}");
        }
    }

    /// The ends and what is late have six bits, and a mixture's experts four.
    #[test]
    fn int4_has_a_code_for_each_kind_of_matrix() {
        let mut config = checkpoint().config;
        let of = |config: &ModelConfig, name: &str| codes(config, Weights::Int4)[&format!("model.{name}.weight")];
        assert_eq!([of(&config, "layers.0.self_attn.v_proj"), of(&config, "embed_tokens")], [Code::Q4H, Code::Q6H]);
        // Of 20 layers, the last one and down of the last three: an eighth, rounded up.
        config.n_layers = 20;
        let six_bits = |part: &str| {
            (0..20).filter(|l| of(&config, &format!("layers.{l}.{part}")) == Code::Q6H).collect::<Vec<_>>()
        };
        assert_eq!(["self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"].map(six_bits), [[19], [19], [19]]);
        assert_eq!(six_bits("mlp.down_proj"), [17, 18, 19]);
        config.n_layers = 2;
        assert!(loaded_bytes(&config, Weights::Int4, 2) < loaded_bytes(&config, Weights::Int8, 2) * 3 / 4);
        config.spec.experts = Some(Experts {
            count: 9,
            per_token: 2,
            width: 64,
            normalized: true,
            shared: true,
            bias: false,
            clamped: false,
        });
        config.spec.layers = vec![LayerKind { mlp: Mlp::Experts, ..LayerKind::ATTENTION }; 2];
        assert_eq!(
            ["self_attn.o_proj", "mlp.experts.3.up_proj", "mlp.shared_expert.down_proj"]
                .map(|part| of(&config, &format!("layers.1.{part}"))),
            [Code::Q6H, Code::Q4H, Code::Q4H]
        );
        let source = checkpoint();
        let made = convert(source, Weights::Int4, &Importance::new(), 2, |_, _| true).unwrap();
        assert_eq!(made.tensors["model.layers.0.mlp.down_proj.weight"].format.name(), "q4h");
    }

    #[test]
    fn matrices_are_packed_and_all_else_stays() {
        let source = checkpoint();
        let expected = loaded_bytes(&source.config, Weights::Int4, 2);
        let (mut last, total) = (0, source.weight_bytes);
        let out = convert(source, Weights::Int4, &Importance::new(), 0, |done, all| {
            assert!(done > last && all == total);
            last = done;
            true
        });
        let out = out.unwrap();
        assert_eq!((last, out.weight_bytes, out.weights), (total, expected, Weights::Int4));
        let format = |name: &str| out.tensors[name].format.name().to_owned();
        assert_eq!(format("model.embed_tokens.weight"), "q6h");
        for name in ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"] {
            assert_eq!(format(&format!("model.layers.0.{name}.weight")), "q4h", "{name}");
            assert_eq!(format(&format!("model.layers.1.{name}.weight")), "q6h", "{name}");
        }
        for name in ["input_layernorm", "self_attn.dms_proj_alpha"] {
            assert_eq!(format(&format!("model.layers.1.{name}.weight")), "bf16", "{name}");
        }
    }

    #[test]
    fn a_stack_is_packed_as_a_whole_or_not_at_all() {
        // k and v have 3 x 8 rows, which do not fill a strip.
        let config = ModelConfig { head_dim: 8, n_layers: 1, ..Checkpoint::shape("smollm2-135m").unwrap() };
        let codes = codes(&config, Weights::Int8);
        assert!(!codes.contains_key("model.layers.0.self_attn.q_proj.weight"));
        assert_eq!(codes["model.layers.0.mlp.gate_proj.weight"], Code::Q8);
        let narrow = ModelConfig { hidden: 72, ffn: 72, n_q_heads: 9, n_kv_heads: 3, ..config };
        let source = Checkpoint::random_of("narrow", narrow).unwrap();
        let error = convert(source, Weights::Int8, &Importance::new(), 0, |_, _| true).err().unwrap();
        assert_eq!(
            error.to_string(),
            "--weights int8: no matrix of narrow has a number of columns that is divisible by 64"
        );
    }

    #[test]
    fn the_built_in_model_stays_as_it_is() {
        let source = Checkpoint::open(&ModelRef::BuiltIn, &AdapterChoice::Auto).unwrap();
        let out = convert(source, Weights::Int4, &Importance::new(), 0, |_, _| true).unwrap();
        assert_eq!(out.weights, Weights::Bf16);
        assert_eq!(out.notices().filter(|n| n.contains("stays bf16")).count(), 1);
    }

    /// Rows of another program, which knows the codes of its even strips.
    struct Steps;

    impl Rows for Steps {
        fn name(&self) -> &str {
            "STEPS"
        }
        fn bits(&self) -> f32 {
            4.0
        }
        fn decode(&self, row: usize, out: &mut [f32]) {
            out.iter_mut().enumerate().for_each(|(i, v)| *v = (row + i) as f32);
        }
        fn exact_strip(&self, _: Code, strip: usize, out: &mut [u8]) -> bool {
            out.fill(0x77);
            strip.is_multiple_of(2)
        }
    }

    #[test]
    fn other_formats_become_bf16_or_are_packed() {
        let tensor = Tensor::from_rows("steps", [40, 64], Arc::new(Steps));
        let plain = plain(tensor.clone(), 3).unwrap();
        assert_eq!((plain.format.name(), plain.to_f32() == tensor.to_f32()), ("bf16", true));
        let out = packed(&[tensor], |_| Some(Code::Q4), &Importance::new(), 3, &mut |_| true).unwrap().remove(0);
        let size = Code::Q4.strip_bytes(64);
        let kept = |strip: usize| out.bytes()[strip * size..(strip + 1) * size].iter().all(|&b| b == 0x77);
        assert_eq!([kept(0), kept(1), kept(2)], [true, false, true]);
    }
}
