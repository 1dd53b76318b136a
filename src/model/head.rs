//! A draft head ([`DraftHead`]): one decoder layer that guesses the next tokens from a token's
//! embedding and the hidden state of the row before it. The model's forward leaves that state in
//! [`Workspace::features`]. The layer itself runs the model's code; this file computes only its
//! input.

use super::{Model, Step, Workspace, logits, step_token_bytes};
use crate::backend::{After, Backend, KvGeometry, Linear, SampleArgs, SamplingState, Span, Use};
use crate::cache::KvCache;
use crate::checkpoint::draft_head::{self, DraftHead};
use crate::checkpoint::{LayerKind, ModelConfig};
use crate::policy::Window;
use crate::protocol::{SamplingParams, Token};
use anyhow::Result;

/// Maximum rows that a head processes at a time.
pub const ROWS: usize = 256;

/// Weights, cache and workspace of a head.
pub struct Head<B: Backend> {
    /// The head's layer. Its embeddings and its output matrix may be the target model's.
    model: Model<B>,
    ws: Workspace<B>,
    /// KV cache of one layer. The caller manages the sequences.
    pub cache: KvCache<B>,
    embedding: Input<B>,
    hidden: Option<Input<B>>,
    norm_before_residual: bool,
    norm_output: bool,
    /// Target model's token for each token of the head; `None` if they are the same.
    tokens_of: Option<Vec<Token>>,
    /// Hidden states, and embeddings of the tokens that follow them `[ROWS, hidden]`.
    states: B::Acts,
    embedded: B::Acts,
    /// Either of them after its norm.
    normed: B::Acts,
    /// Scratch to sum two projections of q, k and v.
    sum: B::Acts,
    sampled: B::Buf<Token>,
    draws: B::Buf<SamplingState>,
}

/// A norm followed by a linear map.
struct Input<B: Backend> {
    norm: B::Buf<f32>,
    map: B::Weight,
}

impl<B: Backend> Input<B> {
    fn new(b: &B, input: &draft_head::Input, offset: f32) -> Result<Self> {
        let values: Vec<f32> = input.norm.to_f32().iter().map(|value| value + offset).collect();
        let mut norm = b.alloc(values.len())?;
        b.write(&mut norm, 0, &values);
        Ok(Self { norm, map: b.weight(&input.map)? })
    }
}

/// Bytes of workspace, counted in f32, for guesses from at most `logits` rows in one step.
pub fn workspace_bytes(c: &ModelConfig, logits: usize) -> u64 {
    let inputs = 3 * c.hidden + c.qkv_width(LayerKind::ATTENTION);
    (ROWS * (step_token_bytes(c) + size_of::<f32>() * inputs) + size_of::<f32>() * logits * c.vocab) as u64
}

impl<B: Backend> Head<B> {
    /// Creates a head. `geometry` is the geometry of its cache, of one layer. `logits` is the
    /// maximum number of rows to guess from in one step.
    pub fn new(
        b: &B,
        target: &Model<B>,
        head: &DraftHead,
        geometry: KvGeometry,
        context: usize,
        logits: usize,
    ) -> Result<Self> {
        let model = target.of_head(b, head)?;
        let c = &model.config;
        let input = |input| Input::new(b, input, c.spec.norm_offset);
        let (embedding, hidden) = (input(&head.embedding)?, head.hidden.as_ref().map(input).transpose()?);
        let maps: Vec<&B::Weight> = hidden.iter().chain([&embedding]).map(|input| &input.map).collect();
        let normed = b.acts(ROWS, c.hidden, Use::Input(&maps))?;
        let mut ws = Workspace::new(b, &model, ROWS, logits, 0)?;
        ws.fill_decisions(b, Window::DECISION);
        let mut draws = b.alloc(logits)?;
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        b.write(&mut draws, 0, &vec![SamplingState::new(0, 0, &greedy); logits]);
        Ok(Self {
            cache: KvCache::new(b, geometry, context, ROWS.max(logits))?,
            norm_before_residual: head.norm_before_residual,
            norm_output: head.norm_output,
            tokens_of: head.tokens.clone(),
            states: b.acts(ROWS.max(logits), c.hidden, Use::Any)?,
            embedded: b.acts(ROWS, c.hidden, Use::Any)?,
            normed,
            sum: b.acts(if hidden.is_none() { ROWS } else { 0 }, c.qkv_width(LayerKind::ATTENTION), Use::Any)?,
            sampled: b.alloc(logits)?,
            draws,
            embedding,
            hidden,
            ws,
            model,
        })
    }

    /// Feeds tokens with the hidden states of the rows before them: `rows` of `features`. The
    /// caller has reserved the pages.
    pub fn feed(&mut self, b: &B, features: &B::Acts, rows: &[usize], tokens: &[Token], spans: &[Span]) {
        b.select_rows(&mut self.states, features, rows);
        self.feed_own(b, tokens, spans);
    }

    /// Guesses the most likely token after each of these rows of the last step, and keeps their
    /// hidden states as the first rows of `states`. Returns `None` for rows without a guess.
    pub fn guess(&mut self, b: &B, rows: &[usize]) -> Vec<Option<Token>> {
        let (n, ws, model) = (rows.len(), &mut self.ws, &self.model);
        b.select_rows(&mut self.states, &ws.x, rows);
        std::mem::swap(&mut self.states, &mut ws.x);
        b.rms_norm(&mut ws.h, &ws.x, model.final_norm(&mut ws.non_finite), None, n);
        match self.norm_output {
            true => b.rms_norm(&mut self.states, &ws.x, model.final_norm(&mut ws.non_finite), None, n),
            false => std::mem::swap(&mut self.states, &mut ws.x),
        }
        logits(b, model, ws, n);
        let args = SampleArgs {
            draws: &self.draws,
            kv: self.cache.tables(),
            non_finite: &ws.non_finite,
            staged: None,
            greedy: true,
            adjusts: None,
            masks: None,
        };
        b.sample(&mut self.sampled, &mut ws.logits, &args, n);
        let result = b.read_step(&self.sampled, &ws.non_finite, self.cache.tables(), n);
        if result.non_finite.is_some() {
            b.write(&mut ws.non_finite, 0, &[i32::MAX]);
            return vec![None; n];
        }
        let token = |token: Token| match &self.tokens_of {
            Some(tokens) => tokens.get(token as usize).copied(),
            None => Some(token),
        };
        result.tokens.into_iter().map(token).collect()
    }

    /// Reads the residual stream of the first rows of the last step, for tests.
    pub fn read_hidden(&self, b: &B, n: usize) -> Vec<f32> {
        let mut rows = vec![0.0; n * self.model.config.hidden];
        b.read_acts(&self.ws.x, &mut rows);
        rows
    }

    /// Feeds tokens with the hidden states that [`Self::guess`] left in `states`. Runs the decoder
    /// layer up to the residual stream.
    pub fn feed_own(&mut self, b: &B, tokens: &[Token], spans: &[Span]) {
        let Self { model, ws, cache, embedding, hidden, states, embedded, normed, sum, .. } = self;
        let n = tokens.len();
        let [layer] = &model.layers[..] else { return };
        let (input_norm, Some(mixer)) = (&layer.input_norm, layer.mixer.attention()) else { return };
        b.write(&mut ws.tokens, 0, tokens);
        b.embed(embedded, &model.embed, &ws.tokens, model.embedding_scale(), n);
        let norm = model.norm(0, &embedding.norm, &mut ws.non_finite);
        let of_embedding = Linear { before: Some((norm, normed)), ..Linear::plain(&embedding.map) };
        let after = match hidden {
            Some(Input { norm, map }) => {
                b.linear(&mut ws.x, embedded, of_embedding, n);
                let norm = model.norm(0, norm, &mut ws.non_finite);
                let before = Some((norm, normed));
                let of_hidden = Linear { before, after: After::Add(&mut ws.proj), ..Linear::plain(map) };
                b.linear(&mut ws.x, states, of_hidden, n);
                After::Store
            }
            None => {
                b.linear(ws.qkv.of(model.qkv_width(mixer)), embedded, of_embedding, n);
                std::mem::swap(&mut ws.x, states);
                After::Add(sum)
            }
        };
        let mut step = Step { b, model, ws, cache, spans, staged: false };
        step.project((0, layer, mixer), after);
        if self.norm_before_residual {
            let ws = &mut *step.ws;
            let norm = model.norm(0, input_norm, &mut ws.non_finite);
            b.rms_norm(states, &ws.x, norm, None, n);
            std::mem::swap(&mut ws.x, states);
        }
        step.attention((0, layer, mixer));
        step.mlp((0, layer));
        cache.finish(b, spans);
    }
}
