//! Names of tensors, and where each goes. Loading checks every shape against the configuration.

use crate::backend::{AdapterHead, Alpha, Backend};
use crate::checkpoint::{Checkpoint, DmsVariant, ModelConfig};
use crate::policy::Policy;
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

pub struct Model<B: Backend> {
    pub config: ModelConfig,
    /// `[vocab, hidden]`
    pub(super) embed: B::Weight,
    pub(super) layers: Vec<Layer<B>>,
    /// `[hidden]`
    pub(super) norm: B::Buf<f32>,
    /// `[vocab, hidden]`; absent when the embedding serves.
    pub(super) head: Option<B::Weight>,
    /// `[head_dim / 2]`
    pub(super) inv_freq: B::Buf<f32>,
    pub(super) rope_scale: f32,
}

pub(super) struct Layer<B: Backend> {
    pub input_norm: B::Buf<f32>,
    /// `[(n_q_heads + 2 n_kv_heads) * head_dim, hidden]`
    pub qkv: B::Weight,
    pub qkv_bias: Option<B::Buf<f32>>,
    pub qk_norm: Option<(B::Buf<f32>, B::Buf<f32>)>,
    /// `[hidden, n_q_heads * head_dim]`
    pub o: B::Weight,
    pub o_bias: Option<B::Buf<f32>>,
    pub post_norm: B::Buf<f32>,
    /// `[2 ffn, hidden]`
    pub gate_up: B::Weight,
    pub gate_up_bias: Option<B::Buf<f32>>,
    /// `[hidden, ffn]`
    pub down: B::Weight,
    pub down_bias: Option<B::Buf<f32>>,
    adapter: Option<Adapter<B>>,
}

struct Adapter<B: Backend> {
    norm: B::Buf<f32>,
    proj: B::Weight,
    bias: Option<B::Buf<f32>>,
}

impl<B: Backend> Layer<B> {
    pub(super) fn adapter_head<'a>(&'a self, model: &'a Model<B>) -> Option<AdapterHead<'a, B>> {
        let adapter = self.adapter.as_ref()?;
        Some(AdapterHead {
            norm: &adapter.norm,
            proj: &adapter.proj,
            bias: adapter.bias.as_ref(),
            rms_eps: model.config.rms_eps,
            alpha: model.alpha()?,
        })
    }
}

impl<B: Backend> Model<B> {
    /// `[vocab, hidden]` of the output.
    pub(super) fn head(&self) -> &B::Weight {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// That weight of every layer.
    pub(super) fn each<'a>(&'a self, of: impl Fn(&'a Layer<B>) -> &'a B::Weight) -> Vec<&'a B::Weight> {
        self.layers.iter().map(of).collect()
    }

    /// What decides in every layer, where layers have weights of their own for that.
    pub(super) fn adapters(&self) -> Vec<&B::Weight> {
        self.layers.iter().filter_map(|l| l.adapter.as_ref()).map(|a| &a.proj).collect()
    }

    /// Loads every weight. `progress` gets the bytes done and the bytes in all, and returns whether to go on.
    pub fn load(b: &B, checkpoint: &Checkpoint, mut progress: impl FnMut(u64, u64) -> bool) -> Result<Self> {
        let c = &checkpoint.config;
        let mut loader = Loader { b, checkpoint, done: 0, progress: &mut progress };
        let embed = loader.matrix(&["model.embed_tokens"], &[c.vocab], c.hidden)?;
        let layers = (0..c.n_layers).map(|l| loader.layer(l)).collect::<Result<Vec<_>>>()?;
        let norm = loader.vector("model.norm.weight", c.hidden)?;
        let head = if c.tied { None } else { Some(loader.matrix(&["lm_head"], &[c.vocab], c.hidden)?) };
        let (inv_freq, rope_scale) = c.rope.frequencies(c.head_dim);
        let inv_freq: Vec<f32> = inv_freq.iter().map(|&f| f as f32).collect();
        let mut buffer = b.alloc(inv_freq.len())?;
        b.write(&mut buffer, 0, &inv_freq);
        Ok(Self { config: c.clone(), embed, layers, norm, head, inv_freq: buffer, rope_scale })
    }

    pub fn policy(&self) -> Policy {
        self.config.dms.as_ref().map_or(Policy::Dense, |d| Policy::Dms(d.rule))
    }

    fn alpha(&self) -> Option<Alpha> {
        let dms = self.config.dms.as_ref()?;
        Some(Alpha { scale: dms.alpha_scale, offset: dms.alpha_offset, per_layer: dms.per_layer })
    }

    pub(super) fn borrowed_alpha(&self) -> Option<Alpha> {
        let borrowed = self.config.dms.as_ref().is_some_and(|d| d.variant == DmsVariant::Borrowed);
        if borrowed { self.alpha() } else { None }
    }
}

struct Loader<'a, B: Backend> {
    b: &'a B,
    checkpoint: &'a Checkpoint,
    done: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, l: usize) -> Result<Layer<B>> {
        let checkpoint = self.checkpoint;
        let c = &checkpoint.config;
        let p = |name: &str| format!("model.layers.{l}.{name}");
        let a = |name: &str| p(&format!("self_attn.{name}"));
        let m = |name: &str| p(&format!("mlp.{name}"));
        let (q_dim, kv_dim) = (c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let (qkv, qkv_rows) = ([a("q_proj"), a("k_proj"), a("v_proj")], [q_dim, kv_dim, kv_dim]);
        let gate_up = [m("gate_proj"), m("up_proj")];
        Ok(Layer {
            input_norm: self.vector(&p("input_layernorm.weight"), c.hidden)?,
            qkv: self.matrix(&qkv, &qkv_rows, c.hidden)?,
            qkv_bias: self.bias(c.attention_bias, &qkv, &qkv_rows)?,
            qk_norm: if c.qk_norm {
                Some((self.vector(&a("q_norm.weight"), c.head_dim)?, self.vector(&a("k_norm.weight"), c.head_dim)?))
            } else {
                None
            },
            o: self.matrix(&[a("o_proj")], &[c.hidden], q_dim)?,
            o_bias: self.bias(c.attention_bias, &[a("o_proj")], &[c.hidden])?,
            post_norm: self.vector(&p("post_attention_layernorm.weight"), c.hidden)?,
            gate_up: self.matrix(&gate_up, &[c.ffn, c.ffn], c.hidden)?,
            gate_up_bias: self.bias(c.mlp_bias, &gate_up, &[c.ffn, c.ffn])?,
            down: self.matrix(&[m("down_proj")], &[c.hidden], c.ffn)?,
            down_bias: self.bias(c.mlp_bias, &[m("down_proj")], &[c.hidden])?,
            adapter: match &c.dms {
                Some(dms) if dms.variant == DmsVariant::Adapter => Some(Adapter {
                    norm: self.vector(&a("dms_proj_alpha_norm.weight"), c.hidden)?,
                    proj: self.matrix(&[a("dms_proj_alpha")], &[c.n_kv_heads], c.hidden)?,
                    bias: self.bias(c.attention_bias, &[a("dms_proj_alpha")], &[c.n_kv_heads])?,
                }),
                _ => None,
            },
        })
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.checkpoint.tensor(name, shape)?;
        self.done += tensor.bytes().len() as u64;
        ensure!((self.progress)(self.done, self.checkpoint.weight_bytes), "loading was stopped");
        Ok(tensor)
    }

    /// Matrices `name.weight [rows, cols]`, stacked by rows.
    fn matrix(&mut self, names: &[impl AsRef<str>], rows: &[usize], cols: usize) -> Result<B::Weight> {
        let parts = names
            .iter()
            .zip(rows)
            .map(|(name, &rows)| self.tensor(&format!("{}.weight", name.as_ref()), &[rows, cols]))
            .collect::<Result<Vec<_>>>()?;
        Ok(self.b.weight(&parts)?)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<B::Buf<f32>> {
        let values = self.tensor(name, &[len])?.to_f32();
        self.upload(&values)
    }

    /// Biases `name.bias [rows]`, stacked, where the configuration has any.
    fn bias(&mut self, present: bool, names: &[String], rows: &[usize]) -> Result<Option<B::Buf<f32>>> {
        if !present {
            return Ok(None);
        }
        let mut values = Vec::new();
        for (name, &rows) in names.iter().zip(rows) {
            values.extend(self.tensor(&format!("{name}.bias"), &[rows])?.to_f32());
        }
        Ok(Some(self.upload(&values)?))
    }

    fn upload(&self, values: &[f32]) -> Result<B::Buf<f32>> {
        let mut buffer = self.b.alloc(values.len())?;
        self.b.write(&mut buffer, 0, values);
        Ok(buffer)
    }
}
