//! Inputs of a model's matrices on a text, from a forward pass on the CPU that has the same bits on
//! every machine: the mean of x^2 of each input column, by which 4-bit codes are chosen, and whole
//! inputs for GPTQ.

use super::devices::{cuda_options, hessians};
use crate::backend::cpu::{Cpu, Watch};
use crate::checkpoint::{Checkpoint, names};
use crate::codec::Codec;
use crate::config::Gemm;
use crate::cores;
use crate::engine::{EngineOptions, Runner};
use crate::predictor::texts;
use crate::protocol::Token;
use crate::quant::{Code, Part, Weights};
use crate::quantize::calibration::Guide;
use crate::quantize::convert::{Importance, OnReport, Report};
use crate::quantize::gptq::{self, Chooser};
use crate::quantize::hessian::OpenTriangle;
use crate::quantize::imatrix;
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

/// Prose, code, tables and dialogues in several languages. Quantized files name the version of this
/// procedure ([`crate::quantize::calibration`]): it changes with the text.
const TEXT: &str = include_str!("../../assets/calibration.txt");
/// Tokens of the built-in text that are used: 3.6 TFLOP and 140 MB for a model of 8 billion
/// weights. Ten times this number reduces the divergence of a quantized model by 6 %.
const BUILT_IN_TOKENS: usize = 256;
/// Tokens of the built-in texts that GPTQ uses, in one step.
const CORRECTED_TOKENS: usize = 4096;
/// Of those, the tokens whose inputs of the head are shown.
const HEAD_TOKENS: usize = 1024;
/// Tokens of each text after the first.
const PIECE: usize = 256;
/// Operations of GPTQ in a second on one core, about.
const RATE: f64 = 34e9;
/// Tokens of a step.
const STEP: usize = 512;

/// The importance on the built-in text. The same bits on every machine.
pub fn measure(checkpoint: &Checkpoint, report: OnReport<'_>) -> Result<Importance> {
    let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
    let mut tokens = tokenizer.encode_text(TEXT)?;
    tokens.truncate(BUILT_IN_TOKENS.min(checkpoint.config.context));
    importance(checkpoint, &tokens, 0, report)
}

/// The importance on some tokens; `threads` as for [`Cpu`].
pub fn importance(
    checkpoint: &Checkpoint,
    tokens: &[Token],
    threads: usize,
    report: OnReport<'_>,
) -> Result<Importance> {
    let squares = Arc::new(Mutex::new(Squares::default()));
    let all = squares.clone();
    let on_input = move |parts: &[Tensor], x: &[f32]| {
        all.lock().unwrap_or_else(PoisonError::into_inner).add(parts, x);
        true
    };
    show(checkpoint, tokens, [STEP, 1], threads, report, on_input)?;
    let squares = squares.lock().unwrap_or_else(PoisonError::into_inner);
    squares.means()
}

/// Whether `auto` uses GPTQ for a model.
pub fn is_quickly_corrected(checkpoint: &Checkpoint) -> bool {
    gptq::is_quick(&checkpoint.config, CORRECTED_TOKENS)
}

/// Chooses codes by GPTQ on the built-in texts. The same bits on every machine.
pub fn correct(
    checkpoint: &Checkpoint,
    weights: Weights,
    given: Option<Arc<Importance>>,
    gpu: Option<u32>,
    report: OnReport<'_>,
) -> Result<Guide> {
    let tokens = texts_of(checkpoint)?;
    let cores = cores::count();
    let operations = gptq::operations(&checkpoint.config, weights, tokens.len(), gpu.is_none());
    let seconds = operations / (RATE * cores as f64);
    let time = if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} minutes", seconds / 60.0) };
    let about = format!(
        "GPTQ chooses 4-bit codes on {} tokens, about {time} on {cores} cores{}; --importance measured is faster",
        tokens.len(),
        if gpu.is_some() { " and the GPU" } else { "" }
    );
    ensure!(report(Report::Notice(about)), "loading was stopped");
    let open = gpu.map(|index| hessians::on_gpu(index, cuda_options(false, Gemm::Own), hessians::WIDE));
    corrected(checkpoint, weights, given, &tokens, 0, open, report)
}

/// Chooses codes by GPTQ on some tokens; `threads` as for [`Cpu`]. `open` is of a device that
/// factors Hessians.
pub fn corrected(
    checkpoint: &Checkpoint,
    weights: Weights,
    given: Option<Arc<Importance>>,
    tokens: &[Token],
    threads: usize,
    open: Option<OpenTriangle>,
    report: OnReport<'_>,
) -> Result<Guide> {
    let chooser = Chooser::new(checkpoint, weights, given, threads).with(open);
    let of_head = if weights.code(Part::End).is_some_and(Code::is_corrected) { HEAD_TOKENS } else { 1 };
    show(checkpoint, tokens, [tokens.len(), of_head], threads, report, chooser.clone())?;
    let (guide, about) = chooser.end()?;
    ensure!(report(Report::Notice(about)), "loading was stopped");
    Ok(guide)
}

/// The text of [`measure`] and, as long as there is room, pieces of the texts that predictors are
/// fitted to.
fn texts_of(checkpoint: &Checkpoint) -> Result<Vec<Token>> {
    let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
    let most = CORRECTED_TOKENS.min(checkpoint.config.context);
    let mut tokens = tokenizer.encode_text(TEXT)?;
    for text in texts::built_in()?.iter().filter(|text| !text.held_out) {
        if tokens.len() >= most {
            break;
        }
        let piece = tokenizer.encode_text(&text.text)?;
        tokens.extend(piece.into_iter().take(PIECE));
    }
    tokens.truncate(most);
    Ok(tokens)
}

impl Watch for Chooser {
    fn input(&mut self, parts: &[Tensor], x: &[f32]) -> bool {
        self.see(parts, x)
    }

    fn attention(&mut self, average: &dyn Fn(&[f32], usize) -> Vec<f32>) -> bool {
        self.see_attention(average)
    }
}

/// A watch that tells the layers as they pass.
struct Counted<W> {
    watch: W,
    layer_done: mpsc::Sender<()>,
}

impl<W: Watch> Watch for Counted<W> {
    fn input(&mut self, parts: &[Tensor], x: &[f32]) -> bool {
        let goes_on = self.watch.input(parts, x);
        // The receiver is gone once nobody wants the result.
        let ends = ["mlp.gate_proj.weight", "mlp.gate.weight"];
        goes_on && (!ends.iter().any(|end| parts[0].name.ends_with(end)) || self.layer_done.send(()).is_ok())
    }

    /// Nothing is computed of the logits.
    fn wants_product(&self, parts: &[Tensor]) -> bool {
        !names::is_head(&parts[0].name)
    }

    fn attention(&mut self, average: &dyn Fn(&[f32], usize) -> Vec<f32>) -> bool {
        self.watch.attention(average)
    }
}

/// Feeds tokens to a model, so many in a step, and shows its forward pass to `watch`; of the head
/// the inputs of the last `of_head` tokens of the last step. Reports the layers as they pass.
fn show(
    checkpoint: &Checkpoint,
    tokens: &[Token],
    [step, of_head]: [usize; 2],
    threads: usize,
    report: OnReport<'_>,
    watch: impl Watch + 'static,
) -> Result<()> {
    let (steps, layers) = (tokens.len().div_ceil(step.max(1)), checkpoint.config.n_layers);
    let (sender, layer_done) = mpsc::channel();
    let mut wanted = true;
    let mut begun = 0;
    let watch = Counted { watch, layer_done: sender };
    thread::scope(|scope| {
        let work = scope.spawn(|| feed(Cpu::observing(threads, Box::new(watch)), checkpoint, tokens, [step, of_head]));
        for () in &layer_done {
            wanted = report(Report::Measuring { done: begun / steps.max(1), total: layers });
            begun += 1;
            if !wanted {
                break;
            }
        }
        drop(layer_done);
        let fed = work.join().unwrap_or_else(|panic| resume_unwind(panic));
        ensure!(wanted, "loading was stopped");
        fed
    })
}

/// Feeds the tokens in as few steps as there are.
fn feed(cpu: Cpu, checkpoint: &Checkpoint, tokens: &[Token], [step, of_head]: [usize; 2]) -> Result<()> {
    ensure!(!tokens.is_empty(), "the text has no tokens");
    let step = step.min(tokens.len());
    let options =
        EngineOptions { context: Some(tokens.len()), max_step: Some(step), ..EngineOptions::new(Codec::default()) };
    let mut runner = Runner::new(cpu, checkpoint, &options, |_, _| true)?;
    let seq = runner.create(false)?;
    let mut rows = 0;
    for tokens in tokens.chunks(step) {
        runner.feed(seq, tokens)?;
        rows = tokens.len();
    }
    runner.check_finite()?;
    runner.logits(rows.saturating_sub(of_head)..rows, |_, _| {})?;
    Ok(())
}

/// Sums of squares of the inputs of matrices.
#[derive(Default)]
struct Squares(BTreeMap<String, (usize, Vec<f64>)>);

impl Squares {
    /// Adds the input `x [n, cols]` of matrices.
    fn add(&mut self, parts: &[Tensor], x: &[f32]) {
        let cols = parts[0].shape[1];
        for part in parts {
            let (n, sums) = self.0.entry(part.name.clone()).or_insert_with(|| (0, vec![0.0; cols]));
            *n += x.len() / cols;
            for row in x.chunks_exact(cols) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += (x * x) as f64);
            }
        }
    }

    fn means(&self) -> Result<Importance> {
        let mut out = Importance::new();
        for (name, (n, sums)) in &self.0 {
            let means: Vec<f32> = sums.iter().map(|sum| (sum / *n as f64) as f32).collect();
            ensure!(means.iter().all(|x| x.is_finite()), "{name} multiplies values that are not finite");
            out.extend(imatrix::with_floor(means).map(|means| (name.clone(), means)));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Experts, LayerKind, Mlp, ModelConfig};
    use crate::quant::Weights;
    use crate::quantize::convert::convert;

    fn checkpoint() -> Checkpoint {
        let small = Checkpoint::shape("demo").unwrap();
        let config = ModelConfig { n_layers: 2, hidden: 64, ffn: 128, vocab: 500, ..small };
        Checkpoint::random_of("random", config).unwrap()
    }

    #[test]
    fn the_importance_is_the_mean_of_squares_whatever_the_threads() {
        let tokens: Vec<Token> = (0..70).map(|i| i * 37 % 500).collect();
        let source = checkpoint();
        let of = |threads| importance(&source, &tokens, threads, &mut |_| true).unwrap();
        let (one, three) = (of(1), of(3));
        assert_eq!(one, three);
        let matrix = |name: &str| &one[&format!("model.layers.1.{name}.weight")];
        assert_eq!(matrix("self_attn.q_proj"), matrix("self_attn.v_proj"));
        assert_eq!(matrix("mlp.down_proj").len(), source.config.ffn);
        // The input of q is normalised, with the norm's weights near 1.
        let q = matrix("self_attn.q_proj");
        let mean = q.iter().sum::<f32>() / q.len() as f32;
        assert!((0.5..2.0).contains(&mean), "{mean}");
    }

    #[test]
    fn experts_have_the_importance_of_the_tokens_that_reach_them() {
        let mut config = checkpoint().config;
        config.spec.experts = Some(Experts {
            count: 9,
            per_token: 2,
            width: 64,
            normalized: true,
            shared: false,
            bias: false,
            clamped: false,
        });
        config.spec.layers = vec![LayerKind { mlp: Mlp::Experts, ..LayerKind::ATTENTION }];
        let source = Checkpoint::random_of("experts", config).unwrap();
        let one = importance(&source, &[3], 1, &mut |_| true).unwrap();
        let of = |part: &str| {
            one.keys().filter(|name| name.contains("layers.0.mlp.experts.") && name.contains(part)).count()
        };
        assert_eq!(["gate_proj", "up_proj", "down_proj"].map(of), [2; 3]);
        let made = convert(source, Weights::Int4, &one, 1, |_, _| true).unwrap();
        let unreached = made.tensors.iter().filter(|(name, tensor)| {
            !one.contains_key(*name) && name.contains("experts.") && tensor.format.name() == "q4h"
        });
        assert!(unreached.count() >= 7 * 3, "experts without statistics are packed too");
    }

    #[test]
    fn gptq_makes_the_same_weights_with_any_threads() {
        let tokens: Vec<Token> = (0..192).map(|i| i * 37 % 500).collect();
        let source = checkpoint();
        for (weights, threads) in [(Weights::Int4, [1, 3]), (Weights::Int4Fast, [2, 2])] {
            let made = threads.map(|threads| {
                let mut said = Vec::new();
                let guide = corrected(&source, weights, None, &tokens, threads, None, &mut |report| {
                    if let Report::Notice(text) = report {
                        said.push(text);
                    }
                    true
                });
                assert!(said.len() == 1 && said[0].starts_with("GPTQ chose the codes of "), "{said:?}");
                guide.unwrap()
            });
            assert_eq!(made[0].importance, made[1].importance);
            let bytes = |guide: &Guide| -> Vec<(String, Vec<u8>)> {
                guide.chosen.iter().map(|(name, t)| (name.clone(), t.bytes().to_vec())).collect()
            };
            assert!(bytes(&made[0]) == bytes(&made[1]), "{weights}");
            let chosen = &made[0].chosen;
            assert!(chosen.len() >= 4 && chosen.keys().any(|name| name.contains("v_proj")), "{:?}", chosen.keys());
            assert!(made[0].importance.contains_key("model.layers.0.self_attn.v_proj.weight"));
        }
    }

    #[test]
    fn a_stop_ends_the_forward_pass() {
        let mut layers = 0;
        let stopped = importance(&checkpoint(), &[1, 2, 3], 1, &mut |_| {
            layers += 1;
            false
        });
        assert_eq!((stopped.err().unwrap().to_string(), layers), ("loading was stopped".to_owned(), 1));
    }
}
