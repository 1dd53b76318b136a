//! The head of [`Eagle`], which guesses the next tokens: one decoder layer over the embedding of a token and the hidden state of the
//! row before it. The model's forward leaves [`Workspace::features`](super::Workspace) for it; everything else is here.

use super::Model;
use crate::backend::{
    After, Backend, KvGeometry, Linear, Norm, OutOfMemory, QkvRopeArgs, SampleArgs, SamplingState, Span,
};
use crate::backend::{Use, seen_words};
use crate::cache::KvCache;
use crate::checkpoint::eagle::{Eagle, EagleConfig, EagleWeights};
use crate::policy::Window;
use crate::protocol::{SamplingParams, Token};
use crate::tensor::Tensor;
use anyhow::Result;

/// Rows that go through a head at a time.
pub const ROWS: usize = 256;

/// Weights, cache and workspace of a head.
pub struct Head<B: Backend> {
    pub config: EagleConfig,
    /// The model's token of each one of the head's.
    tokens_of: Vec<Token>,
    input_norm: B::Buf<f32>,
    hidden_norm: B::Buf<f32>,
    /// q, k and v from the token's embedding, and from the hidden state.
    of_embedding: B::Weight,
    of_hidden: B::Weight,
    qk_norm: Option<[B::Buf<f32>; 2]>,
    o: B::Weight,
    post_norm: B::Buf<f32>,
    gate_up: B::Weight,
    down: B::Weight,
    norm: B::Buf<f32>,
    lm_head: B::Weight,
    /// `None`: the model's.
    embed: Option<B::Weight>,
    inv_freq: B::Buf<f32>,
    rope_scale: f32,
    /// One layer; the sequences are the caller's.
    pub cache: KvCache<B>,
    /// The residual stream `[rows, hidden]`: at first the hidden states that come in.
    x: B::Acts,
    other: B::Acts,
    embedded: B::Acts,
    normed: B::Acts,
    qkv: B::Acts,
    qkv_sum: B::Acts,
    att: B::Acts,
    sum: B::Acts,
    behind: B::Acts,
    gate_up_rows: B::Acts,
    act: B::Acts,
    out: B::Acts,
    logits: B::Acts,
    tokens: B::Buf<Token>,
    sampled: B::Buf<Token>,
    decisions: B::Buf<f32>,
    seen: B::Buf<u32>,
    draws: B::Buf<SamplingState>,
    non_finite: B::Buf<i32>,
}

fn upload<B: Backend>(b: &B, values: &[f32]) -> Result<B::Buf<f32>, OutOfMemory> {
    let mut buffer = b.alloc(values.len())?;
    b.write(&mut buffer, 0, values);
    Ok(buffer)
}

/// Bytes of workspace, counted in f32.
pub fn workspace_bytes(c: &EagleConfig, logits: usize) -> u64 {
    let qkv = (c.n_q_heads + 2 * c.n_kv_heads) * c.head_dim;
    let row = 7 * c.hidden + 2 * qkv + c.n_q_heads * c.head_dim + 3 * c.ffn;
    (size_of::<f32>() * (ROWS * row + logits * c.draft_vocab)) as u64
}

impl<B: Backend> Head<B> {
    /// `geometry`: of its cache, one layer. `logits`: rows that can be guessed from in one step.
    pub fn new(b: &B, eagle: &Eagle, geometry: KvGeometry, context: usize, logits: usize) -> Result<Self> {
        let (c, w): (&EagleConfig, &EagleWeights) = (&eagle.config, &eagle.weights);
        let one = |t: &Tensor| b.weight(std::slice::from_ref(t));
        let vector = |t: &Tensor| upload(b, &t.to_f32());
        let (of_embedding, of_hidden) = (b.weight(&w.of_embedding)?, b.weight(&w.of_hidden)?);
        let (o, gate_up, down, lm_head) = (one(&w.o)?, b.weight(&w.gate_up)?, one(&w.down)?, one(&w.lm_head)?);
        let qk_norm = match &w.qk_norm {
            Some([q, k]) => Some([vector(q)?, vector(k)?]),
            None => None,
        };
        let (inv_freq, rope_scale) = c.rope.frequencies(c.head_dim);
        let (h, q) = (c.hidden, c.n_q_heads * c.head_dim);
        let qkv = q + 2 * c.n_kv_heads * c.head_dim;
        let any = |width| b.acts(ROWS, width, Use::Any);
        let (in_qkv, in_mlp) = ([&of_embedding, &of_hidden], [&gate_up, &down]);
        let mut decisions = b.alloc(ROWS * c.n_kv_heads)?;
        b.write(&mut decisions, 0, &vec![Window::DECISION; ROWS * c.n_kv_heads]);
        let mut draws = b.alloc(logits)?;
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        b.write(&mut draws, 0, &vec![SamplingState::new(0, 0, &greedy); logits]);
        let mut non_finite = b.alloc(1)?;
        b.write(&mut non_finite, 0, &[i32::MAX]);
        Ok(Self {
            tokens_of: w.tokens.clone(),
            input_norm: vector(&w.input_norm)?,
            hidden_norm: vector(&w.hidden_norm)?,
            qk_norm,
            post_norm: vector(&w.post_norm)?,
            norm: vector(&w.norm)?,
            embed: w.embed.as_ref().map(one).transpose()?,
            inv_freq: upload(b, &inv_freq.iter().map(|&f| f as f32).collect::<Vec<_>>())?,
            rope_scale,
            cache: KvCache::new(b, geometry, context, ROWS.max(logits))?,
            x: any(h)?,
            other: any(h)?,
            embedded: any(h)?,
            normed: b.acts(ROWS, h, Use::Input(&in_qkv))?,
            qkv: any(qkv)?,
            qkv_sum: any(qkv)?,
            att: b.acts(ROWS, q, Use::Input(&[&o]))?,
            sum: any(h)?,
            behind: b.acts(ROWS, h, Use::Input(&[&gate_up]))?,
            gate_up_rows: b.acts(ROWS, 2 * c.ffn, Use::GateUp(&in_mlp))?,
            act: b.acts(ROWS, c.ffn, Use::Input(&[&down]))?,
            out: b.acts(logits, h, Use::Input(&[&lm_head]))?,
            logits: b.acts(logits, c.draft_vocab, Use::Logits)?,
            tokens: b.alloc(ROWS)?,
            sampled: b.alloc(logits)?,
            decisions,
            seen: b.alloc(seen_words(c.draft_vocab))?,
            draws,
            non_finite,
            config: c.clone(),
            of_embedding,
            of_hidden,
            o,
            gate_up,
            down,
            lm_head,
        })
    }

    /// Feeds tokens with the hidden states of the rows before them: `rows` of `features`. The caller has reserved the pages.
    pub fn feed(
        &mut self,
        b: &B,
        model: &Model<B>,
        features: &B::Acts,
        rows: &[usize],
        tokens: &[Token],
        spans: &[Span],
    ) {
        b.select_rows(&mut self.x, features, rows);
        self.step(b, model, tokens, spans);
    }

    /// Feeds one more token to each of the sequences, with the head's own hidden states.
    pub fn feed_own(&mut self, b: &B, model: &Model<B>, tokens: &[Token], spans: &[Span]) {
        self.step(b, model, tokens, spans);
    }

    /// The most likely token behind each of these rows of the last step; they become the first rows. `None` of rows that have
    /// none.
    pub fn guess(&mut self, b: &B, rows: &[usize]) -> Vec<Option<Token>> {
        let (n, eps) = (rows.len(), self.config.rms_eps);
        b.select_rows(&mut self.other, &self.x, rows);
        std::mem::swap(&mut self.x, &mut self.other);
        let norm = Norm { weight: &self.norm, eps, layer: 1, non_finite: &mut self.non_finite };
        b.rms_norm(&mut self.out, &self.x, norm, n);
        if self.config.norm_output {
            let norm = Norm { weight: &self.norm, eps, layer: 1, non_finite: &mut self.non_finite };
            b.rms_norm(&mut self.other, &self.x, norm, n);
            std::mem::swap(&mut self.x, &mut self.other);
        }
        b.linear(&mut self.logits, &self.out, Linear::plain(&self.lm_head), n);
        let args = SampleArgs {
            draws: &self.draws,
            seen: &self.seen,
            seq_len: self.cache.seq_len(),
            staged: None,
            greedy: true,
        };
        b.sample(&mut self.sampled, &mut self.logits, &args, n);
        b.copy_to_host(&self.sampled, &self.non_finite, self.cache.tables(), n);
        let result = b.read_step(&self.sampled, &self.non_finite, self.cache.tables(), n);
        if result.non_finite.is_some() {
            b.write(&mut self.non_finite, 0, &[i32::MAX]);
            return vec![None; n];
        }
        result.tokens.iter().map(|&token| self.tokens_of.get(token as usize).copied()).collect()
    }

    /// The residual stream of the first rows, for tests.
    pub fn read_hidden(&self, b: &B, n: usize) -> Vec<f32> {
        let mut rows = vec![0.0; n * self.config.hidden];
        b.read_acts(&self.x, &mut rows);
        rows
    }

    /// The decoder layer, from hidden states in `x` to the residual stream in `x`.
    fn step(&mut self, b: &B, model: &Model<B>, tokens: &[Token], spans: &[Span]) {
        let (n, eps) = (tokens.len(), self.config.rms_eps);
        b.write(&mut self.tokens, 0, tokens);
        b.embed(&mut self.embedded, self.embed.as_ref().unwrap_or(&model.embed), &self.tokens, 1.0, n);
        let norm = Norm { weight: &self.input_norm, eps, layer: 0, non_finite: &mut self.non_finite };
        let of_embedding = Linear { before: Some((norm, &mut self.normed)), ..Linear::plain(&self.of_embedding) };
        b.linear(&mut self.qkv, &self.embedded, of_embedding, n);
        let norm = Norm { weight: &self.hidden_norm, eps, layer: 0, non_finite: &mut self.non_finite };
        let of_hidden = Linear {
            before: Some((norm, &mut self.normed)),
            after: After::Add(&mut self.qkv_sum),
            ..Linear::plain(&self.of_hidden)
        };
        b.linear(&mut self.qkv, &self.x, of_hidden, n);
        if self.config.norm_before_residual {
            let norm = Norm { weight: &self.hidden_norm, eps, layer: 0, non_finite: &mut self.non_finite };
            b.rms_norm(&mut self.other, &self.x, norm, n);
            std::mem::swap(&mut self.x, &mut self.other);
        }
        let args = QkvRopeArgs {
            qk_norm: self.qk_norm.as_ref().map(|[q, k]| [q, k]),
            rms_eps: eps,
            rope_scale: self.rope_scale,
            ..QkvRopeArgs::plain(&self.inv_freq)
        };
        self.cache.attention(b, &mut self.att, &mut self.qkv, &mut self.decisions, 0, spans, &args);
        b.linear(&mut self.x, &self.att, Linear { after: After::Add(&mut self.sum), ..Linear::plain(&self.o) }, n);
        let norm = Norm { weight: &self.post_norm, eps, layer: 0, non_finite: &mut self.non_finite };
        let gate_up = Linear {
            before: Some((norm, &mut self.behind)),
            after: After::Swiglu(&mut self.gate_up_rows),
            ..Linear::plain(&self.gate_up)
        };
        b.linear(&mut self.act, &self.x, gate_up, n);
        b.linear(&mut self.x, &self.act, Linear { after: After::Add(&mut self.sum), ..Linear::plain(&self.down) }, n);
        self.cache.finish(b, spans);
    }
}
