//! The rows that a predictor is fitted to: each token's hidden state and its importance to each KV
//! head. The importance is measured by letting the model repeat the text.

use super::random::Random;
use crate::backend::Measure;
use crate::checkpoint::ModelConfig;
use crate::cores;
use crate::engine::Runner;
use crate::model::{Observed, Text};
use crate::policy::KvHeads;
use crate::protocol::Token;
use anyhow::{Result, ensure};
use half::bf16;
use nalgebra::{DMatrix, DMatrixView};
use std::ops::Range;

/// Floor of the log importance; smaller values are treated as equal.
const LOG_FLOOR: f32 = -16.0;

/// A prompt that quotes a text and asks to repeat it, followed by the answer, which is the text
/// again.
pub struct Repetition {
    pub tokens: Vec<Token>,
    /// Tokens of the quoted text.
    pub text: Range<usize>,
    /// Tokens of the answer.
    pub answer: Range<usize>,
}

/// Tokens of the chat template before and after a text that is to be repeated.
#[derive(Clone, Debug)]
pub struct Frame {
    pub before: Vec<Token>,
    pub after: Vec<Token>,
}

impl Frame {
    /// Builds the prompt for a text, with the answer.
    pub fn around(&self, text: &[Token]) -> Repetition {
        let tokens = [&self.before, text, &self.after, text].concat();
        let (start, end) = (self.before.len(), tokens.len());
        Repetition { text: start..start + text.len(), answer: end - text.len()..end, tokens }
    }
}

/// Rows of all layers with attention. Local layers have none.
pub struct Rows {
    pub hidden: usize,
    pub heads: usize,
    pub layers: Vec<LayerRows>,
}

/// Rows of one layer.
#[derive(Default)]
pub struct LayerRows {
    /// `[rows, hidden]`: input of the layer after its norm.
    pub x: Vec<bf16>,
    /// `[rows, n_kv_heads]`: log importance.
    pub y: Vec<f32>,
}

impl Rows {
    /// Bytes that one token takes in all layers.
    pub fn bytes(config: &ModelConfig) -> usize {
        config.attention_layers()
            * (config.hidden * size_of::<bf16>() + config.deciding_heads().count * size_of::<f32>())
    }
}

/// Collects rows from one text after the other.
pub struct Collector {
    rows: Rows,
    /// Maximum rows taken from each text.
    rows_per_text: usize,
    head_dim: usize,
    /// Gram matrix `[head_dim, head_dim]` of the output projection's columns, for each layer and
    /// query head: the norm of a projected value v is sqrt(v^T G v).
    grams: Vec<Vec<DMatrix<f32>>>,
    random: Random,
}

impl Collector {
    pub fn new<B: Measure>(runner: &mut Runner<B>, rows_per_text: usize) -> Self {
        let c = runner.config().clone();
        let KvHeads { count: heads, dim } = c.deciding_heads();
        let lanes: Vec<_> = c.lanes().collect();
        let grams = |layer: usize| {
            if !lanes[layer].decides() {
                return Vec::new();
            }
            let columns = runner.output_columns(layer);
            let of_head = |columns: &[f32]| {
                let columns = DMatrixView::from_slice(columns, c.hidden, dim);
                columns.transpose() * columns
            };
            let columns: Vec<&[f32]> = columns.chunks_exact(dim * c.hidden).collect();
            cores::map(&columns, |columns| of_head(columns))
        };
        let layers = (0..c.attention_layers()).map(|_| LayerRows::default()).collect();
        Self {
            grams: (0..c.attention_layers()).map(grams).collect(),
            rows: Rows { hidden: c.hidden, heads, layers },
            rows_per_text,
            head_dim: dim,
            random: Random::new(1),
        }
    }

    /// Feeds a text with its repetition, and keeps rows of a random choice of its tokens.
    pub fn add<B: Measure>(&mut self, runner: &mut Runner<B>, repetition: &Repetition) -> Result<()> {
        let text = Text { tokens: repetition.text.clone(), queries: repetition.answer.clone() };
        let chosen = self.random.choose(text.tokens.len(), self.rows_per_text);
        let seq = runner.create(false)?;
        let fed = runner.observe(seq, &repetition.tokens, &text, |observed| self.add_layer(&observed, &chosen));
        runner.release(seq);
        Ok(fed?)
    }

    /// Computes the importance of a text's tokens in one layer, and keeps the rows of the chosen
    /// tokens.
    fn add_layer(&mut self, observed: &Observed<'_>, chosen: &[usize]) {
        let (hidden, heads, d) = (self.rows.hidden, self.rows.heads, self.head_dim);
        let (grams, rows) = (&self.grams[observed.layer], &mut self.rows.layers[observed.layer]);
        let (tokens, group) = (observed.hidden.len() / hidden, grams.len() / heads);
        let values = DMatrixView::from_slice(observed.values, heads * d, tokens);
        // The importance to a KV head is the maximum over its query heads.
        let of_head = |(head, grams): (usize, &[DMatrix<f32>])| {
            let values = values.rows(head * d, d);
            let mut importance = vec![f32::MIN_POSITIVE; tokens];
            for (gram, attention) in grams.iter().zip(observed.attention[head * group * tokens..].chunks(tokens)) {
                let projected = gram * values;
                for (t, (importance, attention)) in importance.iter_mut().zip(attention).enumerate() {
                    let norm = projected.column(t).dot(&values.column(t)).max(0.0).sqrt();
                    *importance = importance.max(attention * norm);
                }
            }
            importance
        };
        let heads: Vec<_> = grams.chunks(group).enumerate().collect();
        let importance = cores::map(&heads, |&head| of_head(head));
        for &t in chosen {
            rows.x.extend(observed.hidden[t * hidden..][..hidden].iter().map(|&x| bf16::from_f32(x)));
            rows.y.extend(importance.iter().map(|of_head| of_head[t].ln().max(LOG_FLOOR)));
        }
    }

    /// Returns the rows. Fails if there are none, or a number is not finite.
    pub fn finish(self) -> Result<Rows> {
        ensure!(self.rows.layers.iter().any(|layer| !layer.y.is_empty()), "the texts have no tokens");
        for (l, layer) in self.rows.layers.iter().enumerate() {
            let finite = layer.y.iter().all(|y| y.is_finite()) && layer.x.iter().all(|x| x.is_finite());
            ensure!(finite, "layer {l} has numbers that are not finite, so no predictor can be fitted");
        }
        Ok(self.rows)
    }
}
