//! GPTQ: 4-bit codes chosen from the inputs of a matrix on a text, where that lowers the error on
//! inputs of the same text that were held out. A matrix at a time: its inputs, its Hessian and its
//! codes are all that is in memory, beside the codes of the matrices before it.

use super::calibration::Guide;
use super::convert::{self, Importance};
use super::hessian::{self, OpenTriangle, Sums};
use super::imatrix;
use crate::checkpoint::names::{self, LayerSpec};
use crate::checkpoint::{Checkpoint, ModelConfig, mapped, pack};
use crate::cores;
use crate::quant::{Code, Column, Factor, TILE_ROWS, Weights};
use crate::tensor::{Format, Tensor};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of a run of inputs; one run in [`HELD_EACH`] is held out.
const RUN: usize = 32;
const HELD_EACH: usize = 5;
/// Strips of a matrix whose codes are compared on the inputs that were held out.
const TRIED: usize = 32;
/// Least number of inputs that show a matrix.
const LEAST_INPUTS: usize = RUN * HELD_EACH;
/// Largest Hessian and factor of a matrix; wider ones are left to importance.
const MAX_HESSIAN_BYTES: u64 = 1700 << 20;
/// Operations of a whole model up to which `auto` uses GPTQ, some three minutes of two cores: of
/// models of up to about 0.6 billion weights. A number, not a time, so that every machine makes the
/// same weights.
const QUICK: f64 = 1e13;

/// Whether codes of that matrix are chosen so: not experts', of which a text reaches few often
/// enough.
fn takes(name: &str, code: Code, cols: usize) -> bool {
    code.is_corrected() && !name.contains(".mlp.experts.") && hessian::bytes(cols) <= MAX_HESSIAN_BYTES
}

/// About how many operations the processor takes to choose a model's codes on that many tokens,
/// with the Hessians or without.
pub fn operations(c: &ModelConfig, weights: Weights, tokens: usize, hessians: bool) -> f64 {
    let codes = convert::codes(c, weights);
    let taken = |name: &str, cols: usize| codes.get(name).is_some_and(|code| takes(name, *code, cols));
    let (tokens, mut sum) = (tokens as f64, 0.0);
    for layer in (0..c.n_layers).map(|l| LayerSpec::new(c, l)) {
        for stack in layer.stacks() {
            let mut shared = false;
            for matrix in &stack {
                let (rows, cols) = (matrix.shape[0] as f64, matrix.shape[1] as f64);
                // All experts, although a token passes few.
                sum += 2.0 * tokens * rows * cols;
                if taken(&matrix.name, matrix.shape[1]) {
                    let tried = rows.min((TRIED * TILE_ROWS) as f64);
                    sum += (rows + tried) * cols * cols + 4.0 * tried * cols * tokens / HELD_EACH as f64;
                    shared = true;
                }
            }
            let cols = stack.first().map_or(0.0, |matrix| matrix.shape[1] as f64);
            sum += if shared && hessians { cols * cols * (tokens + 2.0 * cols / 3.0) } else { 0.0 };
        }
    }
    sum
}

/// Whether `auto` uses it for a model: minutes on two cores.
pub fn is_quick(c: &ModelConfig, tokens: usize) -> bool {
    operations(c, Weights::Int4, tokens, true) <= QUICK
}

/// What was chosen for a model.
#[derive(Default)]
struct Made {
    importance: Importance,
    /// Of matrices whose error falls.
    chosen: BTreeMap<String, Tensor>,
    /// Matrices that were tried.
    tried: usize,
    /// Sums over the tried matrices of the logarithm of how the error changes; 0 where it rises.
    gain: f64,
    /// V of the last stack, with its inputs, until the layer's attention is shown.
    values: Option<(Tensor, Vec<f32>)>,
    /// Inputs that are shown a few at a time, as the head's are, with their stack, by the name of
    /// its first matrix: used at the end.
    few: BTreeMap<String, (Vec<Tensor>, Vec<f32>)>,
    failed: Option<anyhow::Error>,
}

/// Chooses codes from the inputs that a forward pass shows.
#[derive(Clone)]
pub struct Chooser {
    tensors: Arc<BTreeMap<String, Tensor>>,
    codes: Arc<BTreeMap<String, Code>>,
    /// Importance from a file; else it is measured on the same inputs.
    given: Option<Arc<Importance>>,
    threads: usize,
    /// A device that factors Hessians.
    open: Option<OpenTriangle>,
    made: Arc<Mutex<Made>>,
}

impl Chooser {
    /// `threads` is 0 for one per core.
    pub fn new(source: &Checkpoint, weights: Weights, given: Option<Arc<Importance>>, threads: usize) -> Self {
        let codes = convert::codes(&source.config, weights);
        let tensors = source.tensors.iter().filter(|(name, _)| codes.contains_key(*name));
        let tensors = tensors.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        Self { tensors: Arc::new(tensors), codes: Arc::new(codes), given, threads, open: None, made: Arc::default() }
    }

    /// The same, with a device that factors Hessians.
    pub fn with(self, open: Option<OpenTriangle>) -> Self {
        Self { open, ..self }
    }

    /// Takes the inputs `x [n, cols]` of stacked matrices. Inputs that are shown a second time
    /// change nothing; few of them are kept until the end. Returns whether to continue.
    pub fn see(&self, parts: &[Tensor], x: &[f32]) -> bool {
        let cols = parts[0].shape[1];
        let is_taken = |part: &Tensor| self.codes.get(&part.name).is_some_and(|code| takes(&part.name, *code, cols));
        if x.len() < LEAST_INPUTS * cols && parts.iter().any(is_taken) {
            let mut made = self.made();
            let few = made.few.entry(parts[0].name.clone()).or_insert_with(|| (parts.to_vec(), Vec::new()));
            few.1.extend_from_slice(x);
            return true;
        }
        let (values, others): (Vec<Tensor>, Vec<Tensor>) =
            parts.iter().cloned().partition(|part| names::is_value(&part.name));
        if let Some(value) = values.iter().find(|part| self.is_new(part)) {
            self.made().values = Some((value.clone(), x.to_vec()));
        }
        others.is_empty() || self.choose(&others, x)
    }

    /// Takes the attention of the layer whose q, k and v were seen last. What counts of V's errors
    /// are their averages by attention, most of which the first token has in many heads: its
    /// inputs are averaged likewise.
    pub fn see_attention(&self, average: &dyn Fn(&[f32], usize) -> Vec<f32>) -> bool {
        let values = self.made().values.take();
        values.is_none_or(|(value, x)| {
            let averages = average(&x, value.shape[1]);
            self.choose(&[value], &averages)
        })
    }

    /// Whether the inputs of a matrix were not shown yet.
    fn is_new(&self, part: &Tensor) -> bool {
        !self.made().importance.contains_key(&part.name)
    }

    fn choose(&self, parts: &[Tensor], x: &[f32]) -> bool {
        let cols = parts[0].shape[1];
        let parts: Vec<&Tensor> = parts.iter().filter(|part| self.is_new(part)).collect();
        if parts.is_empty() {
            return true;
        }
        let (measured, mut inputs) = (means(x, cols, self.threads), None);
        for part in parts {
            if let Some(measured) = &measured {
                self.made().importance.insert(part.name.clone(), measured.clone());
            }
            let (Some(tensor), Some(code)) = (self.tensors.get(&part.name), self.codes.get(&part.name)) else {
                continue;
            };
            if !takes(&part.name, *code, cols) || tensor.shape != [part.shape[0], cols] || keeps(tensor, *code) {
                continue;
            }
            let importance = match &self.given {
                Some(given) => given.get(&part.name),
                None => measured.as_ref(),
            };
            let tried = self.once(&mut inputs, x, cols).and_then(|inputs| match inputs {
                Some(inputs) => inputs.choose(tensor, *code, importance.map(Vec::as_slice), self.threads),
                None => Ok(None),
            });
            let mut made = self.made();
            match tried {
                Ok(Some((packed, share))) => {
                    made.tried += 1;
                    made.gain += share.min(1.0).ln();
                    made.chosen.extend(packed.map(|packed| (part.name.clone(), packed)));
                }
                Ok(None) => {}
                Err(why) => {
                    made.failed = Some(why);
                    return false;
                }
            }
        }
        true
    }

    /// The inputs of a stack, which are made for its first matrix. `None` if it has none.
    fn once<'a>(&self, made: &'a mut Option<Option<Inputs>>, x: &[f32], cols: usize) -> Result<Option<&'a mut Inputs>> {
        if made.is_none() {
            *made = Some(Inputs::new(x, cols, self.threads, self.open.as_ref())?);
        }
        Ok(made.as_mut().and_then(Option::as_mut))
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was chosen, and a sentence about it.
    pub fn end(&self) -> Result<(Guide, String)> {
        let few = std::mem::take(&mut self.made().few);
        few.into_values().all(|(parts, x)| self.choose(&parts, &x));
        let made = std::mem::take(&mut *self.made());
        made.failed.map_or(Ok(()), Err)?;
        let chooses = |(name, code): (&String, &Code)| {
            (code.uses_importance() || made.chosen.contains_key(name)) && self.tensors.contains_key(name)
        };
        let all = self.codes.iter().filter(|&entry| chooses(entry)).count();
        let fall = 100.0 * (1.0 - (made.gain / made.tried.max(1) as f64).exp());
        let about = format!(
            "GPTQ chose the codes of {} of {all} matrices, whose error on held-out text it lowers (all tried: by \
             {fall:.0} %), and importance the others'",
            made.chosen.len()
        );
        let importance = self.given.clone().unwrap_or_else(|| Arc::new(made.importance));
        Ok((Guide { importance, chosen: made.chosen }, about))
    }
}

/// The mean of squares of each column; `None` if none is above 0, or one is not finite.
fn means(x: &[f32], cols: usize, threads: usize) -> Option<Vec<f32>> {
    const SHARE: usize = 256;
    let mut sums = vec![0.0f64; cols];
    cores::each(sums.chunks_mut(SHARE).enumerate().collect(), threads, |(share, sums): (usize, &mut [f64])| {
        for row in x.chunks_exact(cols) {
            sums.iter_mut().zip(&row[share * SHARE..]).for_each(|(sum, x)| *sum += f64::from(x * x));
        }
    });
    let n = (x.len() / cols.max(1)) as f64;
    let means: Vec<f32> = sums.iter().map(|sum| (sum / n) as f32).collect();
    imatrix::with_floor(means).filter(|means| means.iter().all(|x| x.is_finite()))
}

/// Whether the codes are those of the file.
fn keeps(tensor: &Tensor, code: Code) -> bool {
    match &tensor.format {
        Format::Rows(rows) => rows.exact_strip(code, 0, &mut vec![0; code.strip_bytes(tensor.shape[1])]),
        Format::Plain(_) => false,
        Format::Packed(_) => true,
    }
}

/// The inputs of a stack of matrices.
struct Inputs {
    /// The factor of those that were not held out.
    factor: Factor,
    held: Vec<f32>,
    /// The sums of those that were not held out, until `whole` is made of them.
    shown: Option<Sums>,
    /// The factor of all, for codes that are better on those that were held out.
    whole: Option<Factor>,
}

impl Inputs {
    /// `None` if there are too few, or they have no factor.
    fn new(x: &[f32], cols: usize, threads: usize, open: Option<&OpenTriangle>) -> Result<Option<Self>> {
        if x.len() < LEAST_INPUTS * cols {
            return Ok(None);
        }
        let (mut rows, mut held) = (Vec::with_capacity(x.len() / cols), Vec::new());
        for (i, run) in x.chunks(RUN * cols).enumerate() {
            match i % HELD_EACH == HELD_EACH - 1 {
                true => held.extend_from_slice(run),
                false => rows.extend(run.chunks_exact(cols)),
            }
        }
        let mut shown = Sums::new(cols, rows.len(), threads, open);
        shown.add(&rows, threads)?;
        let factor = shown.factor(threads)?;
        Ok(factor.map(|factor| Self { factor, held, shown: Some(shown), whole: None }))
    }

    /// The factor of all inputs.
    fn whole(&mut self, threads: usize) -> Result<Option<&Factor>> {
        if let Some(mut sums) = self.shown.take() {
            sums.add(&self.held.chunks_exact(self.factor.cols()).collect::<Vec<_>>(), threads)?;
            self.whole = sums.factor(threads)?;
        }
        Ok(self.whole.as_ref())
    }

    /// The error of a matrix's codes on held-out inputs as a share of what codes chosen by
    /// importance have, and if it is less, the codes chosen once more on all inputs. At most
    /// [`TRIED`] strips, evenly spaced, are tried. `None` for a matrix with values that are not
    /// finite.
    fn choose(
        &mut self,
        tensor: &Tensor,
        code: Code,
        importance: Option<&[f32]>,
        threads: usize,
    ) -> Result<Option<(Option<Tensor>, f64)>> {
        let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
        let importance = importance.filter(|w| w.len() == cols);
        let strips = rows.div_ceil(TILE_ROWS);
        let tried: Vec<usize> = (0..strips.min(TRIED)).map(|i| i * strips / strips.min(TRIED)).collect();
        // Of each: by importance, and corrected.
        let errors = cores::map_on(threads, &tried, |&strip| {
            let (mut values, mut packed) = (Vec::new(), vec![0; code.strip_bytes(cols)]);
            pack::decode_strip(tensor, strip, &mut values);
            if !values.iter().all(|v| v.is_finite()) {
                return [f64::NAN; 2];
            }
            code.pack_strip(&values, cols, importance, &mut packed);
            let by_importance = self.error(&values, code, &packed);
            code.pack_corrected(&values, &self.factor, &mut packed);
            [by_importance, self.error(&values, code, &packed)]
        });
        let [by_importance, corrected] = errors.iter().fold([0.0; 2], |sum, e| [sum[0] + e[0], sum[1] + e[1]]);
        if !by_importance.is_finite() || !corrected.is_finite() {
            return Ok(None);
        }
        let share = if by_importance > 0.0 { corrected / by_importance } else { 1.0 };
        if share >= 1.0 {
            return Ok(Some((None, share)));
        }
        let Some(factor) = self.whole(threads)? else { return Ok(Some((None, share))) };
        Ok(corrected_by(factor, tensor, code, threads)?.map(|packed| (Some(packed), share)))
    }

    /// Squared error of a strip's outputs on the held-out inputs.
    fn error(&self, values: &[f32], code: Code, packed: &[u8]) -> f64 {
        let cols = self.factor.cols();
        let (mut errors, mut row) = (vec![Column::default(); cols], vec![0.0; cols]);
        for r in 0..TILE_ROWS {
            code.unpack_row(packed, TILE_ROWS, cols, r, &mut row);
            let values = &values[r * cols..][..cols];
            errors.iter_mut().zip(values).zip(&row).for_each(|((e, v), q)| e[r] = v - q);
        }
        hessian::output_error(&self.held, &errors)
    }
}

/// A matrix whose codes are chosen by a factor; `None` if it has values that are not finite.
fn corrected_by(factor: &Factor, tensor: &Tensor, code: Code, threads: usize) -> Result<Option<Tensor>> {
    let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
    let (len, is_finite) = (code.bytes(rows, cols), AtomicBool::new(true));
    let bytes = mapped::buffer(len, |out| {
        let strips: Vec<_> = out.chunks_exact_mut(code.strip_bytes(cols)).enumerate().collect();
        cores::each(strips, threads, |(strip, out)| {
            let mut values = Vec::new();
            pack::decode_strip(tensor, strip, &mut values);
            if !values.iter().all(|v| v.is_finite()) {
                return is_finite.store(false, Ordering::Relaxed);
            }
            code.pack_corrected(&values, factor, out);
        });
    })?;
    let packed = || Tensor::packed(&tensor.name, code, [rows, cols], bytes, 0..len);
    Ok(is_finite.into_inner().then(packed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::hessian::tests::inputs;

    fn matrix(rows: usize, cols: usize) -> Tensor {
        let values: Vec<f32> = inputs(rows, cols).iter().map(|v| v * 0.05).collect();
        Tensor::from_f32("w", vec![rows, cols], &values)
    }

    /// Errors of a matrix's outputs, in f64 loops.
    fn error(x: &[f32], want: &Tensor, got: &Tensor) -> f64 {
        let cols = want.shape[1];
        let e: Vec<f64> = want.to_f32().iter().zip(got.to_f32()).map(|(w, q)| (w - q) as f64).collect();
        let output = |x: &[f32], e: &[f64]| x.iter().zip(e).map(|(x, e)| *x as f64 * e).sum::<f64>().powi(2);
        x.chunks(cols).flat_map(|x| e.chunks(cols).map(move |e| output(x, e))).sum()
    }

    fn importance_alone(tensor: &Tensor, code: Code, importance: &[f32]) -> Tensor {
        let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
        let mut bytes = vec![0; code.bytes(rows, cols)];
        crate::checkpoint::pack::pack(tensor, code, Some(importance), 1, 0, &mut bytes);
        let len = bytes.len();
        Tensor::packed("w", code, [rows, cols], Arc::new(bytes), 0..len)
    }

    #[test]
    fn corrected_codes_have_the_error_that_is_said_and_the_same_bytes_with_any_threads() {
        for code in [Code::Q4, Code::Q4H] {
            for (rows, cols) in [(40, 64), (16, 320), (33, 576)] {
                let (x, tensor) = (inputs(400, cols), matrix(rows, cols));
                let importance = means(&x, cols, 1).unwrap();
                let made = [1, 8].map(|threads| {
                    let mut inputs = Inputs::new(&x, cols, threads, None).unwrap().unwrap();
                    assert_eq!(inputs.held.len(), 2 * RUN * cols);
                    let (packed, share) = inputs.choose(&tensor, code, Some(&importance), threads).unwrap().unwrap();
                    let by_importance = importance_alone(&tensor, code, &importance);
                    let shown = corrected_by(&inputs.factor, &tensor, code, threads).unwrap().unwrap();
                    let want = error(&inputs.held, &tensor, &shown) / error(&inputs.held, &tensor, &by_importance);
                    assert!((share / want - 1.0).abs() < 1e-3 && share < 0.8, "{code:?} {rows}x{cols}: {share} {want}");
                    let packed = packed.unwrap();
                    let errors = [&packed, &shown].map(|packed| error(&x, &tensor, packed));
                    assert!(errors[0] < 1.05 * errors[1], "{code:?} {rows}x{cols}: on all inputs {errors:?}");
                    packed
                });
                assert!(made[0].bytes() == made[1].bytes(), "{code:?} {rows}x{cols}");
            }
        }
    }

    #[test]
    fn of_a_tall_matrix_some_strips_are_tried_and_all_are_checked() {
        let (rows, cols, code) = (2 * TRIED * TILE_ROWS, 64, Code::Q4H);
        let x = inputs(320, cols);
        let chosen =
            |tensor: &Tensor| Inputs::new(&x, cols, 2, None).unwrap().unwrap().choose(tensor, code, None, 2).unwrap();
        let mut values = matrix(rows, cols).to_f32();
        let (first, share) = chosen(&Tensor::from_f32("w", vec![rows, cols], &values)).unwrap();
        assert!(first.is_some());
        // Every second strip is compared.
        let odd = |v: &mut [f32]| v.iter_mut().for_each(|v| *v = v.abs());
        values.chunks_exact_mut(TILE_ROWS * cols).skip(1).step_by(2).for_each(odd);
        let (second, same) = chosen(&Tensor::from_f32("w", vec![rows, cols], &values)).unwrap();
        assert!(same == share && second.unwrap().bytes() != first.unwrap().bytes());
        values[3 * TILE_ROWS * cols + 5] = f32::NAN;
        assert!(chosen(&Tensor::from_f32("w", vec![rows, cols], &values)).is_none());
    }

    /// Column by column in f64, with the inverse of the Hessian as the paper has it.
    #[test]
    fn codes_are_those_of_the_papers_form() {
        let (cols, code) = (64, Code::Q4);
        let (x, tensor) = (inputs(400, cols), matrix(16, cols));
        let mut inputs = Inputs::new(&x, cols, 1, None).unwrap().unwrap();
        let packed = inputs.choose(&tensor, code, None, 1).unwrap().unwrap().0.unwrap();
        let mut h = vec![vec![0.0f64; cols]; cols];
        for x in x.chunks(cols) {
            (0..cols).for_each(|i| (0..cols).for_each(|j| h[i][j] += x[i] as f64 * x[j] as f64 / 400.0));
        }
        let damping = 0.02 * (0..cols).map(|i| h[i][i]).sum::<f64>() / cols as f64;
        (0..cols).for_each(|i| h[i][i] += damping);
        let inverse = inverse(h);
        let (values, quantized) = (tensor.to_f32(), packed.to_f32());
        for row in 0..16 {
            let mut w: Vec<f64> = values[row * cols..][..cols].iter().map(|v| *v as f64).collect();
            let q = &quantized[row * cols..][..cols];
            let mut rest = inverse.clone();
            // Distinct levels of the row's grid.
            let mut levels: Vec<f64> = q.iter().map(|v| *v as f64).collect();
            levels.sort_by(f64::total_cmp);
            levels.dedup();
            for k in 0..cols {
                let nearest = levels.iter().map(|l| (l - w[k]).abs()).fold(f64::INFINITY, f64::min);
                assert!((q[k] as f64 - w[k]).abs() < nearest + 1e-4, "row {row}, column {k}: {} for {}", q[k], w[k]);
                let e = (w[k] - q[k] as f64) / rest[k][k];
                (k..cols).for_each(|j| w[j] -= e * rest[k][j]);
                let pivot = rest[k].clone();
                for row in &mut rest[k + 1..] {
                    let share = row[k] / pivot[k];
                    row.iter_mut().zip(&pivot).for_each(|(v, p)| *v -= share * p);
                }
            }
        }
    }

    /// Gauss and Jordan.
    fn inverse(mut a: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let n = a.len();
        for (i, row) in a.iter_mut().enumerate() {
            row.extend((0..n).map(|j| f64::from(u8::from(i == j))));
        }
        for i in 0..n {
            let pivot: Vec<f64> = a[i].iter().map(|v| v / a[i][i]).collect();
            for (j, row) in a.iter_mut().enumerate() {
                let share = if j == i { 0.0 } else { row[i] };
                row.iter_mut().zip(&pivot).for_each(|(v, p)| *v = if j == i { *p } else { *v - share * p });
            }
        }
        a.into_iter().map(|row| row[n..].to_vec()).collect()
    }

    #[test]
    fn a_matrix_whose_error_would_rise_is_left_to_importance() {
        let c = Checkpoint::shape("demo").unwrap();
        let source = Checkpoint::random_of("random", ModelConfig { n_layers: 1, hidden: 64, ffn: 128, ..c }).unwrap();
        let [o, v, q] = ["o", "v", "q"].map(|m| format!("model.layers.0.self_attn.{m}_proj.weight"));
        let part = |name: &str| source.tensors[name].clone();
        let cols = part(&o).shape[1];
        let mut odd = inputs(320, cols);
        for (_, run) in odd.chunks_mut(RUN * cols).enumerate().filter(|(i, _)| i % HELD_EACH == HELD_EACH - 1) {
            // What cancels in the others adds up here.
            run.iter_mut().enumerate().filter(|(i, _)| i % cols / 3 % 2 == 1).for_each(|(_, x)| *x = -*x);
        }
        let chooser = Chooser::new(&source, Weights::Int4, None, 2);
        let alike = inputs(320, 64);
        assert!(chooser.see(&[part(&q), part(&v)], &alike) && chooser.see(&[part(&o)], &odd));
        // V is chosen by what attention makes of its inputs, here their negatives with one more.
        let seen = std::cell::Cell::new(0);
        assert!(chooser.see_attention(&|x, cols| {
            seen.set(x.len() / cols);
            x.iter().map(|x| 1.0 - x).collect()
        }));
        assert!(chooser.see_attention(&|_, _| panic!("V is waiting once")));
        assert_eq!(seen.get(), 320);
        let (guide, about) = chooser.end().unwrap();
        assert_eq!(guide.chosen.keys().collect::<Vec<_>>(), [&q, &v], "{about}");
        assert!([&o, &v, &q].iter().all(|name| guide.importance.contains_key(*name)));
        // Too few inputs.
        let chooser = Chooser::new(&source, Weights::Int4, None, 2);
        assert!(chooser.see(&[part(&q)], &alike[..(LEAST_INPUTS - 1) * 64]));
        assert!(chooser.end().unwrap().0.chosen.is_empty());
    }
}
