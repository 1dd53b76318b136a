//! Reads the files of llama.cpp's imatrix tool: for each matrix, the mean of x^2 of each column of
//! its input; for a stack of experts, one mean for each expert. [`published`] finds the file of a
//! model.
//!
//! The older form (`imatrix.dat`), all little-endian: i32 number of entries; for each an i32 length
//! and the name, i32 number of calls, i32 number of values, the values as f32, sums over the calls.
//! The rest is not read. Newer files are GGUF with F32 tensors `NAME.in_sum2` and
//! `NAME.counts`, which has one count for each expert.

pub mod published;

use super::convert::Importance;
use crate::checkpoint::gguf;
use crate::checkpoint::names::{self, TensorSpec};
use crate::checkpoint::{DeltaNet, ModelConfig};
use crate::hub::gguf_files::{self, MAX_IMATRIX_BYTES};
use crate::regular_file;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// Longest name of a matrix.
const MAX_NAME: usize = 256;

/// Little-endian f32 values of the file.
type Floats<'a> = &'a [[u8; 4]];

/// Entry of a matrix in a file.
struct Entry<'a> {
    sums: Floats<'a>,
    counts: Counts<'a>,
}

/// The number of inputs that sums are of: one for all, or one for each expert.
enum Counts<'a> {
    Calls(f32),
    Each(Floats<'a>),
}

/// Range of a matrix's columns in an entry: the columns of expert `part` of `of`.
struct Place {
    name: String,
    part: usize,
    of: usize,
}

/// Reads the importance of a model's matrices. Fails if the file has none of them, or one of
/// another width.
pub fn read(path: &Path, config: &ModelConfig) -> Result<Importance> {
    let raw = regular_file::read(path, MAX_IMATRIX_BYTES).with_context(|| path.display().to_string())?;
    importance(&raw, config).with_context(|| path.display().to_string())
}

/// Whether the file at a path is one of importance, of either form.
pub fn is_at(path: &Path) -> bool {
    let Ok(raw) = regular_file::read(path, MAX_IMATRIX_BYTES) else { return false };
    let entries = if gguf_files::begins(&raw) { gguf_entries(&raw) } else { entries(&raw) };
    entries.is_ok_and(|entries| !entries.is_empty())
}

/// The older form of a file with this importance. Matrices without a name in llama.cpp's files are
/// left out.
pub fn to_bytes(importance: &Importance) -> Vec<u8> {
    let named: Vec<_> = importance.iter().filter_map(|(name, w)| Some((gguf::gguf_name(name)?, w))).collect();
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, n: usize| out.extend((n as i32).to_le_bytes());
    number(&mut out, named.len());
    for (name, columns) in named {
        number(&mut out, name.len());
        out.extend(name.as_bytes());
        number(&mut out, 1);
        number(&mut out, columns.len());
        columns.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }
    out
}

/// The importance in the bytes of a file.
fn importance(raw: &[u8], config: &ModelConfig) -> Result<Importance> {
    let entries = if gguf_files::begins(raw) { gguf_entries(raw)? } else { entries(raw)? };
    let mut out = Importance::new();
    for spec in names::all(config).filter(|spec| spec.shape.len() == 2) {
        let found = places(config, &spec).into_iter().find_map(|place| entries.get(&place.name).map(|e| (place, e)));
        let Some((place, entry)) = found else { continue };
        let Some(mut columns) = entry.columns(&place, spec.shape[1])? else { continue };
        if let Some(sizes) = config.spec.delta_net.filter(|d| !d.tiled)
            && spec.name.ends_with("linear_attn.out_proj.weight")
        {
            columns = by_key_head(&sizes, &columns);
        }
        out.insert(spec.name, columns);
    }
    ensure!(!out.is_empty(), "it has none of the model's matrices");
    Ok(out)
}

/// Where a matrix may be. What holds for a fused one holds for its parts.
fn places(config: &ModelConfig, spec: &TensorSpec) -> Vec<Place> {
    let whole = |name: &str| gguf::gguf_name(name).map(|name| Place { name, part: 0, of: 1 });
    let fused = names::fused(config, spec).and_then(|(fused, _)| whole(&fused.name));
    let experts = names::of_experts(config, spec).into_iter().filter_map(|(stack, rows)| {
        let (name, of) = (gguf::gguf_name(&stack.name)?, stack.shape[0]);
        Some(Place { name, part: rows.first / stack.shape[1], of })
    });
    whole(&spec.name).into_iter().chain(fused).chain(experts).collect()
}

impl Entry<'_> {
    /// The means of some columns; `None` if the text never used the matrix.
    fn columns(&self, place: &Place, cols: usize) -> Result<Option<Vec<f32>>> {
        let Place { name, part, of } = place;
        let (has, wanted) = (self.sums.len(), cols * of);
        ensure!(has == wanted, "it is of another model: {name} has {has} columns, and the model's {wanted}");
        let count = match self.counts {
            Counts::Calls(calls) => calls,
            Counts::Each([all]) => f32::from_le_bytes(*all),
            Counts::Each(each) => {
                ensure!(each.len() == *of, "{name} has {} counts for {of} matrices", each.len());
                f32::from_le_bytes(each[*part])
            }
        };
        let sums = self.sums[part * cols..][..cols].iter().map(|sum| f32::from_le_bytes(*sum));
        let means: Vec<f32> = sums.map(|sum| sum / count.max(1.0)).collect();
        ensure!(means.iter().all(|x| x.is_finite() && *x >= 0.0), "{name}: its importance is not a mean of squares");
        Ok(with_floor(means))
    }
}

/// The columns of a delta net's output projection in the order of a folder: value heads of one key
/// head side by side. llama.cpp has them a number of key heads apart.
fn by_key_head(sizes: &DeltaNet, columns: &[f32]) -> Vec<f32> {
    let (keys, each) = (sizes.key_heads, sizes.value_heads / sizes.key_heads);
    let heads = (0..sizes.value_heads).map(|head| head % each * keys + head / each);
    heads.flat_map(|head| &columns[head * sizes.value_dim..][..sizes.value_dim]).copied().collect()
}

fn entries(raw: &[u8]) -> Result<BTreeMap<String, Entry<'_>>> {
    let mut at = Reader { rest: raw };
    let n = at.number("number of matrices")?;
    let mut out = BTreeMap::new();
    for _ in 0..n {
        let len = at.number("length of a name")?;
        ensure!(len <= MAX_NAME, "not an imatrix file: a name has {len} bytes");
        let name =
            String::from_utf8(at.bytes(len)?.to_vec()).ok().context("not an imatrix file: a name is not UTF-8")?;
        let calls = at.number("number of calls")? as f32;
        let len = at.number("number of columns")?;
        let bytes = len.checked_mul(size_of::<f32>()).context("not an imatrix file")?;
        out.insert(name, Entry { sums: at.bytes(bytes)?.as_chunks().0, counts: Counts::Calls(calls) });
    }
    Ok(out)
}

/// The same of a GGUF file.
fn gguf_entries(raw: &[u8]) -> Result<BTreeMap<String, Entry<'_>>> {
    let tensors = gguf::floats(raw)?;
    let mut out = BTreeMap::new();
    for (name, &sums) in &tensors {
        let Some(name) = name.strip_suffix(".in_sum2") else { continue };
        if let Some(&counts) = tensors.get(&format!("{name}.counts")) {
            out.insert(name.to_owned(), Entry { sums, counts: Counts::Each(counts) });
        }
    }
    Ok(out)
}

/// The means with a least value, because a column that the text never used still has to be stored;
/// `None` if the text used none.
pub fn with_floor(means: Vec<f32>) -> Option<Vec<f32>> {
    let least = means.iter().sum::<f32>() / means.len().max(1) as f32 * 1e-6;
    (least > 0.0).then(|| means.into_iter().map(|x| x.max(least)).collect())
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else {
            bail!("truncated or not an imatrix file: {n} bytes are wanted, {} are left", self.rest.len())
        };
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, what: &str) -> Result<usize> {
        let raw = self.bytes(4)?;
        let n = i32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        usize::try_from(n).ok().with_context(|| format!("not an imatrix file: the {what} is {n}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Checkpoint, Family};

    fn entry(name: &str, calls: i32, values: &[f32]) -> Vec<u8> {
        let numbers = |n: i32| n.to_le_bytes().to_vec();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        [numbers(name.len() as i32), name.into(), numbers(calls), numbers(values.len() as i32), bytes].concat()
    }

    fn file(entries: &[Vec<u8>]) -> Vec<u8> {
        [(entries.len() as i32).to_le_bytes().to_vec(), entries.concat()].concat()
    }

    #[test]
    fn means_are_taken_by_the_names_of_llama_cpp() {
        let config = Checkpoint::shape("smollm2-135m").unwrap();
        let mut values = vec![8.0; 1536];
        values[3] = 0.0;
        let raw = file(&[entry("blk.7.ffn_down.weight", 4, &values), entry("blk.7.ffn_gate_exps.weight", 1, &[1.0])]);
        // Newer versions append the name of the text.
        let read = importance(&[raw.clone(), b"tail".to_vec()].concat(), &config).unwrap();
        let columns = &read["model.layers.7.mlp.down_proj.weight"];
        assert_eq!((read.len(), columns.len(), columns[0]), (1, 1536, 2.0));
        assert!(columns[3] > 0.0 && columns[3] < 1e-5);
    }

    /// llama.cpp has one entry for q, k and v of Phi, and one for gate and up.
    #[test]
    fn parts_of_a_fused_matrix_share_its_importance() {
        let family = Family::named("phi3").unwrap();
        let config = ModelConfig { family, ..Checkpoint::shape("smollm2-135m").unwrap() };
        let values = vec![2.0; 576];
        let raw = file(&[entry("blk.3.attn_qkv.weight", 1, &values), entry("blk.3.ffn_up.weight", 1, &values)]);
        let read = importance(&raw, &config).unwrap();
        let parts = ["mlp.gate_proj", "mlp.up_proj", "self_attn.k_proj", "self_attn.q_proj", "self_attn.v_proj"];
        assert!(read.keys().eq(&parts.map(|part| format!("model.layers.3.{part}.weight"))), "{:?}", read.keys());
    }

    #[test]
    fn what_is_written_is_read() {
        let config = Checkpoint::shape("smollm2-135m").unwrap();
        let columns: Vec<f32> = (0..576).map(|i| 0.5 + i as f32).collect();
        let name = "model.layers.29.self_attn.q_proj.weight".to_owned();
        let other = ("model.layers.0.self_attn.dms_proj_alpha.weight".to_owned(), columns.clone());
        let raw = to_bytes(&Importance::from([(name.clone(), columns.clone()), other]));
        assert_eq!(importance(&raw, &config).unwrap(), Importance::from([(name, columns)]));
    }

    /// A GGUF file of F32 tensors with one dimension, written by hand.
    fn gguf(tensors: &[(&str, &[f32])]) -> Vec<u8> {
        let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
        let mut out = [b"GGUF", &3u32.to_le_bytes()[..]].concat();
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(0u64.to_le_bytes());
        let mut data = Vec::new();
        for (name, values) in tensors {
            out.extend(text(name));
            out.extend([&1u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &0u32.to_le_bytes()].concat());
            out.extend((data.len() as u64).to_le_bytes());
            values.iter().for_each(|v| data.extend(v.to_le_bytes()));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        [out, data].concat()
    }

    #[test]
    fn the_newer_form_is_read_too() {
        let config = Checkpoint::shape("smollm2-135m").unwrap();
        let name = "blk.2.attn_q.weight";
        let (sums, counts) = (format!("{name}.in_sum2"), format!("{name}.counts"));
        let raw = gguf(&[(&sums, &[6.0; 576]), (&counts, &[3.0])]);
        let read = importance(&raw, &config).unwrap();
        assert_eq!(read["model.layers.2.self_attn.q_proj.weight"], [2.0; 576]);
        let error = importance(&raw[..raw.len() - 40], &config).unwrap_err();
        assert!(!format!("{error:#}").contains('\n'));
    }

    fn config(changes: serde_json::Value) -> ModelConfig {
        let mut config = serde_json::json!({
            "num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 6, "num_attention_heads": 1,
            "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 8, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 64, "rope_theta": 1e4
        });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::from_json("x", config.to_string().as_bytes()).unwrap()
    }

    /// The older form has one number of calls, the newer one a count for each expert.
    #[test]
    fn each_expert_has_its_own_importance() {
        let config = config(serde_json::json!({
            "model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 2,
            "norm_topk_prob": true
        }));
        let name = "blk.1.ffn_down_exps.weight";
        let old = importance(&file(&[entry(name, 2, &[2.0, 4.0, 6.0, 8.0, 0.0, 0.0])]), &config).unwrap();
        let (sums, counts) = (format!("{name}.in_sum2"), format!("{name}.counts"));
        let sums = (&*sums, &[2.0, 4.0, 18.0, 24.0, 0.0, 0.0][..]);
        let new = importance(&gguf(&[sums, (&counts, &[2.0, 6.0, 0.0])]), &config).unwrap();
        let of = |expert: usize| format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        // The text has never reached the last one.
        let wanted = Importance::from([(of(0), vec![1.0, 2.0]), (of(1), vec![3.0, 4.0])]);
        assert!(old == wanted && new == wanted, "{old:?} {new:?}");
        let error = importance(&gguf(&[sums, (&counts, &[2.0, 6.0])]), &config).unwrap_err().to_string();
        assert_eq!(error, format!("{name} has 2 counts for 3 matrices"));
        let error = importance(&file(&[entry(name, 2, &[1.0; 4])]), &config).unwrap_err().to_string();
        assert_eq!(error, format!("it is of another model: {name} has 4 columns, and the model's 6"));
    }

    /// llama.cpp has the value heads of a delta net in another order than a folder.
    #[test]
    fn columns_of_a_delta_net_are_those_of_the_folder() {
        let sizes = |tiled: bool| {
            config(serde_json::json!({
                "model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 2,
                "linear_value_head_dim": 2, "linear_conv_kernel_dim": 4, "linear_value_heads_are_tiled": tiled
            }))
        };
        let raw = file(&[entry("blk.0.ssm_out.weight", 1, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])]);
        let columns = |tiled| importance(&raw, &sizes(tiled)).unwrap().into_values().next().unwrap();
        assert_eq!(columns(true), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(columns(false), [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0]);
    }

    #[test]
    fn a_file_that_is_not_one_is_refused_in_one_line() {
        let config = Checkpoint::shape("smollm2-135m").unwrap();
        let good = file(&[entry("blk.0.attn_q.weight", 1, &[1.0; 576])]);
        let nan = file(&[entry("blk.0.attn_q.weight", 1, &[f32::NAN; 576])]);
        let many = [i32::MAX.to_le_bytes().to_vec(), good[4..].to_vec()].concat();
        let cases: [(Vec<u8>, &str); 8] = [
            (good[..good.len() - 1].to_vec(), "truncated or not an imatrix file: 2304 bytes are wanted, 2303 are left"),
            (many, "truncated or not an imatrix file: 4 bytes are wanted, 0 are left"),
            (b"GGUF0000".to_vec(), "GGUF version 808464432 is not supported (2 and 3 are)"),
            (vec![0xff; 64], "not an imatrix file: the number of matrices is -1"),
            (nan, "blk.0.attn_q.weight: its importance is not a mean of squares"),
            (file(&[]), "it has none of the model's matrices"),
            (
                file(&[entry("blk.0.attn_q.weight", 1, &[1.0; 64])]),
                "it is of another model: blk.0.attn_q.weight has 64",
            ),
            (vec![], "truncated or not an imatrix file: 4 bytes are wanted, 0 are left"),
        ];
        for (raw, wanted) in cases {
            let error = importance(&raw, &config).unwrap_err().to_string();
            assert!(error.starts_with(wanted) && !error.contains('\n'), "{error}");
        }
    }
}
