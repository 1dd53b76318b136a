//! `quantization_config` of a folder: the formats of quantized safetensors that are read.
//! [`packed`](super::packed) has the 4- and 8-bit integer formats, [`fp8`](super::fp8) and
//! [`fp4`](super::fp4) the others.

use super::fp4;
use super::fp8;
use super::json::Fields;
use super::names::TensorSpec;
use super::packed::{self, Grouping, Layout};
use super::shards::Shards;
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};
use serde_json::Value;

const READ: &str = "fp8, gptq, awq, modelopt (NVFP4, FP8), mxfp4 and compressed-tensors (pack-quantized, float-quantized, \
                    nvfp4-pack-quantized) are read";

/// How the matrices of a folder are stored, where they are not plain.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantization {
    /// F8_E4M3 with one scale per block `[rows, cols]`; without a block, per row,
    /// per tensor or per block of the usual size.
    Fp8 { block: Option<[usize; 2]> },
    /// E2M1 with one scale per 16 columns and one per matrix.
    Nvfp4(fp4::Writer),
    /// Experts in MXFP4, which [`oss`](super::oss) reads; other matrices are plain.
    Mxfp4,
    /// Integer codes with a scale and a zero point per group of columns.
    Packed { layout: Layout, bits: usize, group: Grouping },
}

impl Quantization {
    /// Parses the configuration; `None` if it has no `quantization_config`.
    pub fn parse(config: &Fields) -> Result<Option<Self>> {
        let Some(q) = config.opt_object("quantization_config")? else { return Ok(None) };
        let place = q.place();
        let method = match q.opt_str("quant_method")? {
            Some(method) => method,
            None => bail!("{place} names no quant_method ({READ})"),
        };
        match method {
            "fp8" => Self::fp8(&q).map(Some),
            "gptq" => Self::gptq(&q).map(Some),
            "awq" => Self::awq(&q).map(Some),
            "modelopt" | "modelopt_fp4" => Self::modelopt(&q).map(Some),
            "mxfp4" => Ok(Some(Self::Mxfp4)),
            "compressed-tensors" => Self::compressed(&q).map(Some),
            other => bail!("{place}: quant_method {other:?} is not supported ({READ})"),
        }
    }

    fn fp8(q: &Fields) -> Result<Self> {
        let format = q.opt_str("fmt")?.unwrap_or("e4m3");
        ensure!(matches!(format, "e4m3" | "float8_e4m3fn"), "{}: fmt {format:?} is not supported (e4m3 is)", q.place());
        let block = match q.get("weight_block_size") {
            None => None,
            Some(value) => Some(block(value).filter(|b| b.iter().all(|n| *n > 0)).ok_or_else(|| {
                anyhow::anyhow!("{}: weight_block_size {value} is not two sizes of at least 1", q.place())
            })?),
        };
        Ok(Self::Fp8 { block })
    }

    fn gptq(q: &Fields) -> Result<Self> {
        refuse_dynamic(q)?;
        let words = q.opt_str("pack_dtype")?.unwrap_or("int32");
        ensure!(words == "int32", "{}: pack_dtype {words:?} is not supported (int32 is)", q.place());
        let version = q.opt_str("checkpoint_format")?.unwrap_or("gptq");
        let zero_offset = match version {
            "gptq" => 1,
            "gptq_v2" => 0,
            other => bail!("{}: checkpoint_format {other:?} is not supported (gptq, gptq_v2 are)", q.place()),
        };
        let (bits, group) = (bits(q, "bits", &[4, 8])?, grouping(q)?);
        Ok(Self::Packed { layout: Layout::Gptq { zero_offset }, bits, group })
    }

    fn awq(q: &Fields) -> Result<Self> {
        for key in ["version", "format", "checkpoint_format"] {
            let order = q.opt_str(key)?.unwrap_or("gemm");
            ensure!(order.eq_ignore_ascii_case("gemm"), "{}: {key} {order:?} is not supported (gemm is)", q.place());
        }
        Ok(Self::Packed { layout: Layout::Awq, bits: bits(q, "bits", &[4])?, group: grouping(q)? })
    }

    fn modelopt(q: &Fields) -> Result<Self> {
        match q.opt_str("quant_algo")? {
            Some("NVFP4") => Ok(Self::Nvfp4(fp4::Writer::Modelopt)),
            Some("FP8") => Ok(Self::Fp8 { block: None }),
            other => {
                bail!("{}: quant_algo {:?} is not supported (NVFP4, FP8 are)", q.place(), other.unwrap_or_default())
            }
        }
    }

    fn compressed(q: &Fields) -> Result<Self> {
        if let Some(transforms) = q.opt_object("transform_config")?
            && transforms.keys().next().is_some()
        {
            bail!("{}: transform_config is not supported: its rotations belong to the computation", q.place());
        }
        let groups = q.opt_object("config_groups")?.ok_or_else(|| q.missing("config_groups"))?;
        let mut found: Option<Self> = None;
        for key in groups.keys() {
            let Some(group) = groups.opt_object(key)? else { continue };
            let format = group.opt_str("format")?.or(q.opt_str("format")?).unwrap_or_default();
            let weights = group.opt_object("weights")?.ok_or_else(|| group.missing("weights"))?;
            let kind = weights.opt_str("type")?.unwrap_or("int");
            let this = match (format, kind) {
                ("pack-quantized", "int") => {
                    let group = match weights.opt_str("strategy")? {
                        Some("channel" | "tensor") => Grouping::Row,
                        None | Some("group") => grouping(&weights)?,
                        Some(other) => bail!(
                            "{}: strategy {other:?} is not supported (group, channel and tensor are)",
                            weights.place()
                        ),
                    };
                    Self::Packed { layout: Layout::Compressed, bits: bits(&weights, "num_bits", &[4, 8])?, group }
                }
                ("float-quantized", "float") => {
                    bits(&weights, "num_bits", &[8])?;
                    let block = weights.get("block_structure").and_then(block);
                    Self::Fp8 { block }
                }
                ("nvfp4-pack-quantized", "float") => {
                    bits(&weights, "num_bits", &[4])?;
                    let group = weights.size("group_size")?;
                    ensure!(group == fp4::GROUP, "{}: group_size {group} is not supported (16 is)", weights.place());
                    Self::Nvfp4(fp4::Writer::Compressed)
                }
                _ => bail!("{}: format {format:?} with weights of type {kind:?} is not supported ({READ})", q.place()),
            };
            ensure!(
                found.as_ref().is_none_or(|f| *f == this),
                "{}: groups of different formats are not supported",
                q.place()
            );
            found = Some(this);
        }
        found.ok_or_else(|| anyhow::anyhow!("{}: config_groups is empty", q.place()))
    }

    /// The matrix of this name as it is stored; `None` if the files have none that is quantized.
    pub fn tensor(&self, shards: &Shards, spec: &TensorSpec) -> Result<Option<Tensor>> {
        let Some(stem) = spec.name.strip_suffix(".weight").filter(|_| spec.shape.len() == 2) else { return Ok(None) };
        match self {
            Self::Fp8 { block } => fp8::tensor(shards, spec, stem, *block),
            Self::Mxfp4 => Ok(None),
            Self::Nvfp4(writer) => fp4::tensor(shards, spec, stem, *writer),
            Self::Packed { layout, bits, group } => packed::tensor(shards, spec, stem, (*layout, *bits, *group)),
        }
    }
}

/// Fails if `dynamic` (GPTQModel) gives some matrices another format. Matrices that it leaves
/// unquantized need nothing, because the files state how each matrix is stored.
fn refuse_dynamic(q: &Fields) -> Result<()> {
    let Some(rules) = q.opt_object("dynamic")? else { return Ok(()) };
    for pattern in rules.keys().filter(|pattern| !pattern.starts_with("-:")) {
        let Some(Value::Object(changes)) = rules.get(pattern) else { continue };
        for key in ["bits", "group_size", "format", "checkpoint_format", "method", "quant_method", "pack_dtype"] {
            let (own, all) = (changes.get(key), q.get(key));
            ensure!(
                own.is_none() || own == all,
                "{}: {key} of {pattern:?} differs from that of other matrices, which is not supported",
                rules.place()
            );
        }
    }
    Ok(())
}

fn block(value: &Value) -> Option<[usize; 2]> {
    let sizes: Option<Vec<usize>> = value.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect();
    sizes?.try_into().ok()
}

/// `group_size`: columns, or -1 for all of a row.
fn grouping(q: &Fields) -> Result<Grouping> {
    match q.get("group_size").map(Value::as_i64) {
        None => Ok(Grouping::Unstated),
        Some(Some(-1)) => Ok(Grouping::Row),
        Some(_) => q.size("group_size").map(Grouping::Columns),
    }
}

fn bits(q: &Fields, key: &str, known: &[usize]) -> Result<usize> {
    let bits = q.size(key)?;
    let list = known.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    ensure!(known.contains(&bits), "{}: {key} {bits} is not supported ({list} supported)", q.place());
    Ok(bits)
}
