//! An opened model: its configuration, texts and tensors, and the head that drafts for it.

use super::adapter;
use super::config::ModelConfig;
use super::identity::fingerprint;
use super::known::Published;
use super::names::TensorSpec;
use super::origin::Origin;
use crate::hub::model_names::Names;
use crate::protocol::SamplingOverrides;
use crate::quant;
use crate::tensor::Tensor;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An opened checkpoint: configuration, mapped tensors, tokenizer and template. A clone shares the
/// tensors' bytes.
#[derive(Clone)]
pub struct Checkpoint {
    /// `demo`, the name of the folder, or `ORG/NAME`.
    pub name: String,
    pub config: ModelConfig,
    /// The content of `tokenizer.json`; empty if there is none.
    pub tokenizer_json: Vec<u8>,
    /// Jinja source of the chat template, if there is one.
    pub chat_template: Option<String>,
    pub bos_token: String,
    /// Whether a prompt begins with the BOS even where the template does not write it.
    pub prompt_bos: bool,
    pub eos_token: String,
    /// All special tokens by the names that templates have for them, those two included.
    pub special_tokens: BTreeMap<String, String>,
    pub generation: GenerationDefaults,
    /// A notice about values of `generation_config.json` that are out of range and ignored.
    pub ignored: Option<String>,
    /// The source of decisions outside the model's files, if one is in use.
    pub adapter: Option<adapter::Source>,
    /// Possible downloads for the model: a predictor, if no source of decisions is in use and none
    /// was forbidden, and the head that [`Self::find_draft_head`] looked for.
    pub published: Vec<Published>,
    pub(crate) names: Names,
    /// The head that guesses its next tokens, if one is in use.
    pub draft_head: Option<DraftHead>,
    pub builtin: bool,
    /// Format that [`quantize`](crate::quantize) gave the matrices; `Bf16` is as in the files.
    pub weights: quant::Weights,
    /// Whether the weights are mapped from a file of the weight cache.
    pub cached: bool,
    /// `None` for the built-in model and for random weights.
    pub origin: Option<Origin>,
    /// A notice about matrices that [`quantize`](crate::quantize) left as they are.
    pub kept: Option<String>,
    /// Formats of the matrices in the files, largest share of bytes first: `bf16`, or `Q4_K, Q6_K`.
    pub stored_as: String,
    /// Whether its tensors have no bytes to read: [`Checkpoint::described`].
    pub is_description: bool,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    pub n_params: u64,
    /// Hex digest over config, tensor names, shapes, sizes and a sample of the weights.
    pub fingerprint: String,
    pub tensors: BTreeMap<String, Tensor>,
}

/// Defaults in `generation_config.json`, else in `config.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Every token that ends a turn.
    pub eos: Vec<u32>,
    pub do_sample: Option<bool>,
    pub sampling: SamplingOverrides,
}

/// The adapter to use with a model without DMS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// A built-in one, or a published one that is downloaded, if one fits.
    Auto,
    /// An adapter in a folder that was made for the model, else a built-in one, else a published
    /// one that is downloaded.
    In(PathBuf),
    None,
    /// A file, a folder or a hub id.
    File(PathBuf),
}

impl Checkpoint {
    /// A digest that differs where the weights in memory do: other than the fingerprint, also with
    /// their format.
    pub fn weights_digest(&self) -> String {
        fingerprint("", &self.tensors)
    }

    /// The tensor of that name, which must have that shape.
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Tensor> {
        spec.check(self.tensors.get(&spec.name).cloned(), &self.name)
    }

    pub(crate) fn empty(name: &str, config: ModelConfig) -> Self {
        Self {
            name: name.to_owned(),
            config,
            tokenizer_json: Vec::new(),
            chat_template: None,
            bos_token: String::new(),
            prompt_bos: false,
            eos_token: String::new(),
            special_tokens: BTreeMap::new(),
            generation: GenerationDefaults::default(),
            ignored: None,
            adapter: None,
            published: Vec::new(),
            names: Names::default(),
            draft_head: None,
            builtin: false,
            weights: quant::Weights::default(),
            cached: false,
            origin: None,
            kept: None,
            stored_as: String::new(),
            is_description: false,
            weight_bytes: 0,
            n_params: 0,
            fingerprint: String::new(),
            tensors: BTreeMap::new(),
        }
    }

    /// Replaces matrices by the ones in a file of converted weights.
    pub(crate) fn with_converted(mut self, weights: quant::Weights, converted: BTreeMap<String, Tensor>) -> Self {
        let n_params = self.n_params;
        let mut tensors = std::mem::take(&mut self.tensors);
        tensors.extend(converted);
        self.take_tensors(tensors.into_values().collect());
        Self { weights, cached: true, n_params, ..self }
    }

    pub(crate) fn take_tensors(&mut self, tensors: Vec<Tensor>) {
        self.n_params = tensors.iter().map(|t| t.len() as u64).sum();
        self.weight_bytes = tensors.iter().map(|t| t.stored_bytes() as u64).sum();
        self.tensors = tensors.into_iter().map(|t| (t.name.clone(), t)).collect();
    }
}

/// An opened head. A clone shares its tensors.
#[derive(Clone)]
pub struct DraftHead {
    /// Name shown to users.
    pub name: String,
    /// The model that it was made for, if its files say that.
    pub base: Option<String>,
    /// Layer and final norm, as a model of one layer whose vocabulary is the tokens that the head
    /// can guess. Embeddings `[vocab, hidden]` and output matrix are the target model's if they are
    /// not among the tensors.
    pub layer: Box<Checkpoint>,
    /// Tokens of the model that it guesses for.
    pub vocab: usize,
    pub reads: Reads,
    /// The token's embedding.
    pub embedding: Input,
    /// Input from the hidden state. Its map and the embedding's map add up to the layer's input.
    /// `None`: the hidden state is the layer's input, and the embedding's map adds to q, k and v.
    pub hidden: Option<Input>,
    /// Whether the residual stream begins with the normed input.
    pub norm_before_residual: bool,
    /// Whether the normed output is fed back, and not the residual stream.
    pub norm_output: bool,
    /// The model's token of each one of the head's; `None`: the same.
    pub tokens: Option<Vec<u32>>,
}

/// The hidden states of the model that a head reads.
#[derive(Clone)]
pub enum Reads {
    /// Sum of maps of the inputs of some layers, in order. The number of layers stands for the
    /// output of the last layer.
    Layers(Vec<Tap>),
    /// The model's output after its final norm.
    Output,
}

/// A map `[hidden, hidden]` of the input of a layer, which is normed first where there is a norm.
#[derive(Clone)]
pub struct Tap {
    pub layer: usize,
    pub map: Tensor,
    pub norm: Option<Tensor>,
}

/// A norm `[hidden]`, and a matrix `[out, hidden]` of its output, in parts stacked by rows.
#[derive(Clone)]
pub struct Input {
    pub norm: Tensor,
    pub map: Vec<Tensor>,
}
