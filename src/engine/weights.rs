//! Chooses the format of a model's weights by what fits in memory, and converts a checkpoint to it.

use super::options::{EngineOptions, WeightOptions};
use super::plan::{beside, resolve_context};
use super::planner;
use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::protocol::{Plan, bytes, count};
use crate::quant::{EXACT_FIRST, Weights};
use crate::quantize::convert::{OnReport, Report};
use crate::quantize::weight_cache::convert_in_memory;
use anyhow::{Context, Result};

/// Room that a format of the weights leaves.
#[derive(Clone, Debug)]
pub struct Fit {
    pub weights: Weights,
    pub plan: Plan,
    /// Tokens that were planned for.
    pub context: usize,
    /// Total bytes, including the share left free for other programs.
    pub needed_bytes: u64,
    /// Whether `--kv-limit` bounds the cache, and not the memory: a smaller format would leave it
    /// no more.
    limited: bool,
}

impl Fit {
    /// Plans a model with its weights in one format, for `options.context` tokens or the model's
    /// own.
    pub fn new<B: Backend>(b: &B, source: &Checkpoint, options: &EngineOptions, weights: Weights) -> Result<Self> {
        let described = source.described(weights)?;
        let context = options.context.unwrap_or(described.config.usual_context());
        let mut options = EngineOptions { context: Some(context), ..options.clone() };
        options.workspace_bytes = beside(b, &described, &options, context).0;
        let plan = planner::plan(&described, &options, context, options.kv_limit);
        let spare = planner::spare_bytes(options.memory_bytes);
        let kv_bytes = plan.expected_kv_bytes.min(options.kv_limit.unwrap_or(u64::MAX));
        let needed_bytes = plan.weight_bytes + plan.workspace_bytes + kv_bytes + spare;
        let limited = options.kv_limit.is_some() && plan.kv_budget_bytes == options.kv_limit;
        Ok(Self { weights, plan, context, needed_bytes, limited })
    }

    /// Whether the context is expected to fit, or as much of it as `--kv-limit` allows.
    pub fn fits(&self) -> bool {
        self.limited || self.plan.expected_context >= self.context
    }
}

/// Chooses the format of the weights; a notice says so where it is not the most exact one.
fn choose<B: Backend>(
    b: &B,
    source: &Checkpoint,
    options: &EngineOptions,
    notice: &mut dyn FnMut(String),
) -> Result<Weights> {
    let asked = options.weights.choice.asked();
    if source.weights.is_packed() {
        if asked.is_some_and(|asked| asked != source.weights) {
            let (name, is) = (&source.name, source.weights.name());
            let asked = options.weights.choice;
            notice(format!("the weights of {name} are {is} and stay so; --weights {asked} is not used"));
        }
        return Ok(source.weights);
    }
    if let Some(asked) = asked {
        return Ok(asked);
    }
    if source.builtin {
        return Ok(Weights::default());
    }
    let wanted = options.context.unwrap_or_else(|| source.config.usual_context().min(planner::USUAL_CONTEXT));
    let options = EngineOptions { context: Some(wanted), ..options.clone() };
    // Another format than the file's own only where that does not fit.
    let keeps = |own| match b.about().codes_of_experts {
        Some(codes) => source.described(own).is_ok_and(|made| made.misplaced_code(codes).is_none()),
        None => true,
    };
    let own = source.own_format().filter(|own| keeps(*own));
    let least = if own.is_some() { EXACT_FIRST[EXACT_FIRST.len() - 1] } else { source.natural_weights() };
    let smaller =
        EXACT_FIRST.into_iter().filter(|weights| weights.estimated_bytes(1 << 20) < least.estimated_bytes(1 << 20));
    let candidates = own.into_iter().chain([least]).chain(smaller).filter(|w| source.can_be(*w));
    let mut fits = Vec::new();
    for weights in candidates {
        fits.push(Fit::new(b, source, &options, weights)?);
        if fits.last().is_some_and(Fit::fits) {
            break;
        }
    }
    let Some((chosen, refused)) = fits.split_last() else { return Ok(Weights::default()) };
    // A model that does not fit at all is an error of its own.
    let told = !refused.is_empty() && chosen.plan.expected_context > 0;
    if let (true, Some(free)) = (told, options.memory_bytes) {
        let refused: Vec<String> =
            refused.iter().map(|f| format!("{} would take {}", f.weights.name(), bytes(f.needed_bytes))).collect();
        let enough = if chosen.fits() { String::new() } else { format!(" of {} needed", bytes(chosen.needed_bytes)) };
        notice(format!(
            "weights {} ({}): {} with {} tokens of context, {} are free{enough}; --weights overrides it",
            chosen.weights.name(),
            bytes(chosen.plan.weight_bytes),
            refused.join(" and "),
            count(wanted),
            bytes(free)
        ));
    }
    Ok(chosen.weights)
}

/// Says what becomes of a quantized model file whose codes the engine does not keep, before its
/// weights are made.
fn requantized(source: &Checkpoint, weights: Weights, made: &Checkpoint, options: &WeightOptions) -> Option<String> {
    let again = weights.chooses_codes() && !source.weights.is_packed() && source.stored_as.contains('Q');
    let cache = options.cache.as_ref();
    let cached = cache.and_then(|cache| cache.file_of(source, weights, &options.calibration));
    (again && cached.is_none()).then(|| {
        let place = if cache.is_some() { "the weight cache" } else { "memory" };
        let (from, to) = (bytes(source.weight_bytes), bytes(made.weight_bytes));
        format!("{}: {from} {} -> {}, {to} in {place}", source.name, source.stored_as, weights.name())
    })
}

/// Decides format and context, and returns the checkpoint as it is to be loaded. Fails before
/// anything of the model's size is allocated if it does not fit.
pub fn prepare<B: Backend>(
    b: &B,
    mut checkpoint: Checkpoint,
    options: &mut EngineOptions,
    report: OnReport,
) -> Result<(Checkpoint, Plan)> {
    let mut notices = Vec::new();
    let weights = choose(b, &checkpoint, options, &mut |text| notices.push(text))?;
    if let Some(head) = &mut checkpoint.draft_head {
        head.adapt(weights.is_packed(), None)?;
    }
    let mut described = checkpoint.described(weights)?;
    let resolved = resolve_context(b, &mut described, options, |text| notices.push(text));
    notices.extend(requantized(&checkpoint, weights, &described, &options.weights));
    let plan = match weights.is_packed() {
        true => resolved.with_context(|| format!("weights {}", weights.name()))?,
        false => resolved?,
    };
    let WeightOptions { cache, calibration, .. } = &options.weights;
    // Files that turn out to be damaged are an error without notices before it.
    let mut report = |next: Option<Report>| {
        for text in notices.drain(..) {
            report(Report::Notice(text));
        }
        next.is_none_or(&mut *report)
    };
    let on_report: OnReport = &mut |next| report(Some(next));
    // Sizes as in the files: bytes do not depend on the context of this start.
    let mut converted = match cache {
        Some(cache) => cache.convert(checkpoint, weights, calibration, on_report)?,
        None => convert_in_memory(checkpoint, weights, calibration, on_report)?,
    };
    report(None);
    converted.config = described.config;
    Ok((converted, plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::checkpoint::RopeScaling;
    use crate::checkpoint::adapter::Source;
    use crate::codec::Codec;
    use crate::quantize::calibration::Calibration;

    fn options(memory_bytes: Option<u64>, choice: Weights) -> EngineOptions {
        let weights = WeightOptions { choice, ..WeightOptions::default() };
        EngineOptions { memory_bytes, weights, ..EngineOptions::new(Codec::F32) }
    }

    fn chosen(source: &Checkpoint, options: &EngineOptions) -> (Weights, Vec<String>) {
        let mut notices = Vec::new();
        let weights = choose(&Cpu::new(1), source, options, &mut |text| notices.push(text)).unwrap();
        (weights, notices)
    }

    #[test]
    fn auto_takes_the_most_exact_format_that_is_expected_to_fit() {
        let b = Cpu::new(1);
        let source = Checkpoint::random("smollm2-135m").unwrap();
        // The smallest memory in which a format fits, to a percent.
        let least = |weights| {
            let fits = |memory| Fit::new(&b, &source, &options(Some(memory), weights), weights).unwrap().fits();
            (1..4000).map(|mb| mb * 1_000_000).find(|memory| fits(*memory)).unwrap()
        };
        let memory = EXACT_FIRST.map(least);
        assert!(memory.is_sorted_by(|a, b| a > b), "{memory:?}");
        assert_eq!(chosen(&source, &options(None, Weights::Auto)), (Weights::Bf16, Vec::new()));
        assert_eq!(chosen(&source, &options(Some(memory[0]), Weights::Auto)), (Weights::Bf16, Vec::new()));
        for (weights, at) in [(Weights::Int8, memory[1]), (Weights::Int4, memory[2])] {
            let (is, notices) = chosen(&source, &options(Some(at), Weights::Auto));
            assert_eq!((is, notices.len()), (weights, 1), "{notices:?}");
            let wanted = ["bf16 would take ", "with 8,192 tokens of context, ", " are free; --weights overrides it"];
            assert!(wanted.iter().all(|w| notices[0].contains(w)), "{}", notices[0]);
        }
        // Less context needs less.
        let few = EngineOptions { context: Some(64), ..options(Some(memory[0] - 1_000_000), Weights::Auto) };
        assert_eq!(chosen(&source, &few).0, Weights::Bf16);
        // A limit of the cache is none of the weights, which are smaller only where memory is short
        // for them.
        let limited = |memory| EngineOptions { kv_limit: Some(1 << 20), ..options(Some(memory), Weights::Auto) };
        assert_eq!(chosen(&source, &limited(memory[0])), (Weights::Bf16, Vec::new()));
        let (is, notices) = chosen(&source, &limited(200_000_000));
        assert!(is == Weights::Int8 && !notices[0].contains(" needed"), "{notices:?}");
        // An explicit request is taken.
        let asked = options(Some(memory[2]), Weights::Bf16);
        assert_eq!(chosen(&source, &asked), (Weights::Bf16, Vec::new()));
        // A part of the context is better than none, and none is an error.
        let (is, notices) = chosen(&source, &options(Some(memory[2] - 20_000_000), Weights::Auto));
        assert!(is == Weights::Int4 && notices[0].contains(" needed; --weights overrides it"), "{notices:?}");
        assert_eq!(chosen(&source, &options(Some(90_000_000), Weights::Auto)), (Weights::Int4, Vec::new()));
        let mut tight = options(Some(90_000_000), Weights::Auto);
        let refused = format!("{:#}", prepare(&b, source, &mut tight, &mut |_| true).err().unwrap());
        assert!(refused.starts_with("weights int4: the model does not fit: it needs 87 MB of weights"), "{refused}");
    }

    /// Rings of its window are what does not fit: the message leads to the adapter that nobody has
    /// named.
    #[test]
    fn an_adapter_that_does_not_fit_is_named_where_nobody_asked_for_it() {
        let b = Cpu::new(1);
        let mut found = Checkpoint::random_evicting("demo", 8.0).unwrap();
        found.config.dms.as_mut().unwrap().rule.window = 1 << 20;
        let (label, base) = ("/data/adapters/x.safetensors".to_owned(), None);
        let (name, hash, card) = ("x".to_owned(), String::new(), None);
        let source = Source { kind: "adapter", name, label, base, hash, card, found: true, is_anothers: false };
        let asked = Checkpoint { adapter: Some(Source { found: false, ..source.clone() }), ..found.clone() };
        found.adapter = Some(source);
        let refused = |checkpoint: &Checkpoint, memory| {
            let limits = EngineOptions { memory_bytes: Some(memory), max_seqs: 64, ..EngineOptions::new(Codec::F32) };
            let refused = resolve_context(&b, &mut checkpoint.clone(), &mut { limits }, |_| ());
            refused.err().map_or(String::new(), |why| why.to_string())
        };
        let end =
            "; it fits without /data/adapters/x.safetensors, which was found by itself: --adapter none leaves it out";
        let memory = (10..300).map(|mb| mb * 1_000_000).find(|memory| refused(&found, *memory).ends_with(end)).unwrap();
        assert!(!refused(&asked, memory).is_empty() && !refused(&asked, memory).contains("fits without"));
        // The weights alone do not fit here.
        assert!(!refused(&found, 1_000_000).is_empty() && !refused(&found, 1_000_000).contains("fits without"));
    }

    /// Stored keys keep the factors that they were rotated by, so that the user has to choose.
    #[test]
    fn the_factors_of_longrope_are_told_unless_a_context_is_asked_for() {
        let mut source = Checkpoint::random("demo").unwrap();
        source.config.context = 131_072;
        let short = vec![1.0; source.config.head_dim / 2];
        let (long, original_context, attention_factor) = (short.clone(), 4096, 1.0);
        source.config.rope.scaling =
            RopeScaling::LongRope { short, long, original_context, attention_factor, is_long: false };
        let told = |context| {
            let mut options = EngineOptions { context, ..EngineOptions::new(Codec::F32) };
            let mut notices = Vec::new();
            resolve_context(&Cpu::new(1), &mut source.clone(), &mut options, |text| notices.push(text)).unwrap();
            (options.context, notices)
        };
        let said = "the context is 4096 tokens: RoPE factors for short contexts up to 4,096 tokens, those for long ones \
                    up to 131,072; --ctx-size N takes a longer one";
        assert_eq!(told(None), (Some(4096), vec![said.to_owned()]));
        assert_eq!(told(Some(8192)), (Some(8192), Vec::new()));
    }

    #[test]
    fn a_quantized_file_that_is_quantized_again_is_told() {
        let source = Checkpoint::random("demo").unwrap();
        let made = source.described(Weights::Int8).unwrap();
        let said = |source| requantized(source, Weights::Int8, &made, &WeightOptions::default());
        assert_eq!(said(&source), None);
        let text = said(&Checkpoint { stored_as: "Q4_1, Q8_0".to_owned(), ..source.clone() }).unwrap();
        assert!(text.contains(" Q4_1, Q8_0 -> int8, ") && text.ends_with(" in memory"), "{text}");
    }

    #[test]
    fn the_plan_counts_what_conversion_makes() {
        let source = Checkpoint::random("demo").unwrap();
        for weights in EXACT_FIRST {
            let planned = source.described(weights).unwrap();
            let made = convert_in_memory(source.clone(), weights, &Calibration::Equal, &mut |_| true).unwrap();
            let formats = |c: &Checkpoint| c.tensors.values().map(|t| format!("{t:?}")).collect::<Vec<_>>();
            assert_eq!((planned.weight_bytes, formats(&planned)), (made.weight_bytes, formats(&made)));
            assert_eq!((planned.n_params, planned.weights), (made.n_params, made.weights));
        }
    }
}
