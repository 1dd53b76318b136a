//! A loaded model: its runner, its vocabulary and its description for front ends.

use super::EngineOptions;
use super::context::Context;
use super::draft::Drafts;
use super::reply::Vocabulary;
use super::runner::Runner;
use super::snapshots::{Snapshots, Worth, shared_states};
use super::think::ThinkTags;
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::cache::file::Identity;
use crate::checkpoint::{Checkpoint, DmsConfig, GenerationDefaults};
use crate::policy::DialTable;
use crate::protocol::{
    Decisions, LogEntry, ModelIdentity, ModelInfo, Plan, SamplingOverrides, SamplingParams, TemplateSpec, TextLimit,
    Token, WeightsInfo, WhenFull, count,
};
use crate::tokenizer::Tokenizer;
use anyhow::Result;
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::Arc;

/// The user's next line in the plain template, which a model that only continues text writes
/// itself.
const NEXT_QUESTION: &str = "\nUser:";

/// The state that all conversations share.
pub(super) struct Loaded<B: Backend> {
    pub runner: Runner<B>,
    pub vocabulary: Vocabulary,
    pub info: Arc<ModelInfo>,
    /// Identity that a cache on disk has to match.
    pub identity: Identity,
    /// States that conversations can go back to.
    pub snapshots: Snapshots,
    /// Whether the user was notified that chains of a greedy model sample.
    pub said_that_chains_sample: bool,
    /// Whether new conversations evict.
    pub eviction: bool,
    /// The dial of new conversations.
    pub dial: f32,
    /// Share that the model keeps at each setting of the dial, once it is known, and the folder of
    /// its file.
    pub dials: Option<DialTable>,
    pub dial_folder: Option<PathBuf>,
    pub when_full: WhenFull,
    pub drafts: Drafts,
    /// Whether at most one conversation has work.
    pub alone: bool,
}

impl<B: Backend> Loaded<B> {
    /// Counts the tokens of a saved log. Fails with the reason if this model cannot have been fed
    /// it.
    pub fn check_log(&self, log: &[LogEntry]) -> Result<usize, String> {
        let tokens = || log.iter().filter_map(LogEntry::token);
        let (total, context, vocab) = (tokens().count(), self.runner.context(), self.runner.config().vocab);
        if total > context {
            return Err(format!("it has {} tokens, and the context holds {}", count(total), count(context)));
        }
        if tokens().any(|token| token as usize >= vocab) {
            return Err("its log names tokens that this model does not have".to_owned());
        }
        Ok(total)
    }

    pub fn new(runner: Runner<B>, checkpoint: &Checkpoint, options: &EngineOptions, plan: Plan) -> Result<Self> {
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
        let think = ThinkTags::of(&tokenizer, checkpoint.chat_template.as_deref());
        let disabled = checkpoint.config.dms.as_ref().is_some_and(|d| d.disabled);
        let policy = runner.cache.geometry().policy;
        let window_is_models = policy.models_window().is_some();
        let eviction = options.eviction.unwrap_or(!disabled) || window_is_models;
        let info = model_info(&runner, checkpoint, &tokenizer, options, plan, &think);
        let switchable = policy.evicts() && !window_is_models;
        let info = Arc::new(ModelInfo { eviction: switchable.then_some(eviction), ..info });
        Ok(Self {
            identity: identity(&runner, checkpoint, options, &info),
            snapshots: Snapshots::new(options.max_older, options.checkpoint_bytes, shared_states(options.slots)),
            said_that_chains_sample: false,
            vocabulary: Vocabulary {
                tokenizer: Arc::new(tokenizer),
                eos: checkpoint.generation.eos.clone(),
                stop: info.template.is_plain().then_some(NEXT_QUESTION),
                think,
                compiler: Default::default(),
            },
            eviction,
            dial: 0.0,
            dials: None,
            dial_folder: options.dial_folder.clone(),
            when_full: options.when_full,
            drafts: options.drafts,
            alone: true,
            info,
            runner,
        })
    }

    /// Whether the cache's policy evicts.
    pub fn has_policy(&self) -> bool {
        self.runner.cache.geometry().policy.evicts()
    }

    /// Returns unused pool memory to the system, unless other conversations run that would map it
    /// again.
    pub fn trim(&mut self) {
        if self.alone {
            self.runner.trim();
        }
    }

    /// Default behaviour when memory runs out: models trained to evict forget.
    pub fn usual_when_full(&self) -> WhenFull {
        if self.runner.config().dms.is_some() { WhenFull::Forget } else { WhenFull::Stop }
    }

    /// Makes what takes a sequence. If none is free, earlier states give theirs up, and then
    /// beginnings of prompts.
    pub fn with_sequence<T>(
        &mut self,
        make: impl Fn(&mut Runner<B>) -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        loop {
            match make(&mut self.runner) {
                Err(CacheError::Sequences(_)) if self.snapshots.give_up(&mut self.runner, Worth::Shared) => {}
                made => return made,
            }
        }
    }

    /// Returns a context for a conversation that begins with `tokens`: a fork of any conversation's
    /// context that was fed the first of them, or an empty one. The answer is the same: if results
    /// depend on the chunks of a prefill, the context was fed in the same ones.
    pub fn begin_context(&mut self, eviction: bool, dial: f32, tokens: &[Token]) -> Result<Context, CacheError> {
        let mut fresh = self.with_sequence(|runner| Context::new(runner, eviction))?;
        fresh.set_dial(&mut self.runner, dial);
        if tokens.is_empty() {
            return Ok(fresh);
        }
        let log = fresh.log_of_prompt(&self.runner, tokens);
        let runner = &self.runner;
        // On a GPU a choice of far pages stays: what follows depends on where chunks begin.
        let fits = |context: &Context, entries: usize| {
            let whole = entries == context.log.len() || runner.chunk().is_none();
            entries > fresh.log.len() && whole && context.is_everybodys(runner)
        };
        let Some((shared, entries)) = self.snapshots.longest_begun(&log, fits) else { return Ok(fresh) };
        self.runner.release(fresh.seq);
        let mut begun = shared.fork(&mut self.runner)?;
        self.snapshots.used(&begun.log);
        if entries < begun.log.len() {
            begun.take_choice_back(&mut self.runner)?;
        }
        Ok(begun)
    }

    /// Releases the cheapest snapshot. Returns false if there is none.
    pub fn give_up_snapshot(&mut self) -> bool {
        self.snapshots.give_up(&mut self.runner, Worth::TurnStart)
    }
}

fn identity<B: Backend>(
    runner: &Runner<B>,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    info: &ModelInfo,
) -> Identity {
    let c = runner.config();
    let dmc = c.dmc.map(|dmc| format!(" {dmc:?}")).unwrap_or_default();
    let gates = c.gates.map(|gates| format!(" {gates:?}")).unwrap_or_default();
    let parameters = format!("{:?} {:?}{dmc}{gates}", c.rope.frequencies(c.deciding_heads().dim), c.dms);
    let digests = [
        info.identity.model_fingerprint.clone(),
        info.identity.tokenizer_fingerprint.clone(),
        checkpoint.weights_digest(),
        hex_digest(parameters.as_bytes()),
    ];
    let data = options.codec_data.as_ref().map(|data| hex_digest(&data.bytes));
    Identity::new(runner.cache.geometry(), digests).with_codec_data(data.as_deref())
}

/// The first half of a SHA-256 in hex digits.
pub(super) fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(16).map(|b| format!("{b:02x}")).collect()
}

fn model_info<B: Backend>(
    runner: &Runner<B>,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    options: &EngineOptions,
    plan: Plan,
    think: &ThinkTags,
) -> ModelInfo {
    let (c, g) = (&checkpoint.config, runner.cache.geometry());
    ModelInfo {
        is_remote: false,
        eviction: None,
        has_memory: false,
        identity: ModelIdentity {
            name: checkpoint.name.clone(),
            reference: options.reference.clone(),
            model_fingerprint: checkpoint.fingerprint.clone(),
            tokenizer_fingerprint: tokenizer.fingerprint().to_owned(),
            device: runner.backend().about().name,
            weights: Some(weight_format(checkpoint).to_owned()),
            decisions: decisions(checkpoint),
        },
        family: c.family.name.to_owned(),
        n_params: checkpoint.n_params,
        n_layers: g.n_layers,
        state_layers: c.delta_layers(),
        state_bytes: g.delta.map_or(0, |delta| delta.seq_bytes() as u64),
        lanes: g.layers().collect(),
        n_q_heads: c.n_q_heads,
        n_kv_heads: g.n_kv_heads,
        head_dim: g.head_dim,
        vocab: c.vocab,
        context: runner.context(),
        codec: options.codec,
        policy: g.policy.kind(),
        budget: g.policy.budget(),
        window: g.policy.dropping().map(|rule| rule.window),
        dms: c.decided_by().to_owned(),
        adapter: checkpoint.adapter.as_ref().and_then(|source| source.base.clone()),
        evicts_by: checkpoint.evicts_by().filter(|_| g.policy.kind().is_steered() || g.policy.is_gated()),
        weights: weights_info(checkpoint),
        slot_bytes: g.slot_bytes(),
        page_slots: g.page_slots,
        kv_limit: options.kv_limit,
        plan,
        template: template_spec(checkpoint, tokenizer, runner.context()),
        think_tags: think.literals(),
        most_drafts: runner.most_rows().saturating_sub(1),
        default_sampling: default_sampling(&checkpoint.generation),
    }
}

/// Where the model's decisions come from.
fn decisions(checkpoint: &Checkpoint) -> Option<Decisions> {
    let (c, source) = (&checkpoint.config, checkpoint.adapter.as_ref());
    let dms = c.dms.as_ref();
    (dms.is_some() || c.gates.is_some()).then(|| Decisions {
        kind: source.map_or(c.decided_by(), |source| source.kind).to_owned(),
        name: source.map_or(&checkpoint.name, |source| &source.name).clone(),
        hash: source.map(|source| source.hash.clone()),
        threshold: dms.and_then(DmsConfig::threshold),
        window: dms.map_or(0, |dms| dms.rule.window),
        sinks: dms.map_or(0, |dms| dms.rule.sinks),
    })
}

/// Data for rendering prompts of at most `context` tokens.
pub fn template_spec(checkpoint: &Checkpoint, tokenizer: &Tokenizer, context: usize) -> TemplateSpec {
    TemplateSpec {
        source: checkpoint.chat_template.clone(),
        bos_token: checkpoint.bos_token.clone(),
        prompt_bos: checkpoint.prompt_bos,
        eos_token: checkpoint.eos_token.clone(),
        special_tokens: checkpoint.special_tokens.clone(),
        control: tokenizer.control_literals(),
        trusted: checkpoint.builtin,
        limit: Some(TextLimit { context, token_bytes: tokenizer.longest_token_bytes() }),
    }
}

/// Describes how the weights of a checkpoint are stored.
pub fn weights_info(checkpoint: &Checkpoint) -> WeightsInfo {
    let (bytes, n_params) = (checkpoint.weight_bytes, checkpoint.n_params);
    WeightsInfo {
        format: weight_format(checkpoint).to_owned(),
        bits: (800.0 * bytes as f64 / n_params.max(1) as f64).round() / 100.0,
        bytes,
        cached: checkpoint.cached,
    }
}

/// Returns the format of the matrices. Norms and adapters may differ.
fn weight_format(checkpoint: &Checkpoint) -> &str {
    match checkpoint.weights.is_packed() {
        true => checkpoint.weights.name(),
        false => checkpoint.tensors.values().max_by_key(|t| t.len()).map_or("f32", |t| t.format.name()),
    }
}

/// Returns the sampling parameters that the model recommends. If it recommends none, common
/// defaults of chats: sampling from the unfiltered distribution makes small models ramble.
pub fn default_sampling(generation: &GenerationDefaults) -> SamplingParams {
    let (sampling, do_sample) = (generation.sampling, generation.do_sample);
    let filters = SamplingOverrides { repetition_penalty: None, ..sampling };
    let usual = match do_sample.is_none() && filters == SamplingOverrides::default() {
        true => SamplingParams { temperature: 0.7, top_k: 40, top_p: 0.95, ..SamplingParams::default() },
        false => SamplingParams { temperature: 1.0, ..SamplingParams::default() },
    };
    let own = sampling.over(&usual);
    SamplingParams { temperature: if do_sample == Some(false) { 0.0 } else { own.temperature }, ..own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_recommends_nothing_is_not_drawn_from_as_it_is() {
        let says = |do_sample, temperature| {
            let sampling = SamplingOverrides { temperature, ..SamplingOverrides::default() };
            let says = GenerationDefaults { do_sample, sampling, ..GenerationDefaults::default() };
            let p = default_sampling(&says);
            (p.temperature, p.top_k, p.top_p)
        };
        assert_eq!(says(None, None), (0.7, 40, 0.95));
        assert_eq!(says(Some(true), Some(0.6)), (0.6, 0, 1.0));
        assert_eq!(says(Some(false), Some(0.6)).0, 0.0);
    }
}
