//! Checks of whole models with random weights: steps on a card against steps on the CPU, and prefills
//! against decodes. Random decisions leave no margin around 0, so these are not exact: exact are the
//! histories of the cache beside this file. A card rounds activations in front of bf16 weights, which moves a
//! decision by hundredths; there every token is marked, so that slots can be compared, and weights in f32 leave
//! decisions to the model.

use super::{CODECS, Finding, widen};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::engine::{EngineOptions, Runner};
use crate::policy::SlotMeta;
use crate::protocol::Token;
use crate::sampler::argmax;
use anyhow::Result;
use std::time::Instant;

const PROMPT: usize = 150;
const ANSWER: usize = 60;
/// Logits may differ by so much, as a share of the largest: a decision near 0 or a rounding of K and V
/// that falls the other way changes what follows.
const LIMIT: f32 = 5e-2;
/// One head in so many may therefore hold other slots. In fp8, whose steps are a sixteenth of a value,
/// up to half of them did on an H200: there slots are left to the exact histories of the cache.
const OTHER_SLOTS: usize = 4;
/// An offset below every decision.
const MARKS_ALL: f32 = -1e6;

/// What a run leaves behind.
struct Trace {
    /// The row after the prompt, and after each token.
    logits: Vec<Vec<f32>>,
    tokens: Vec<Token>,
    slots: Vec<Vec<SlotMeta>>,
}

/// `open` gives a fresh backend for each model.
pub fn run_all<B: Backend, E: std::error::Error + Send + Sync + 'static>(
    open: impl Fn() -> Result<B, E>,
    tell: &mut impl FnMut(Finding),
) -> Result<()> {
    for (shape, in_f32) in [("demo", true), ("demo", false), ("smollm2-135m", false)] {
        let mut checkpoint = Checkpoint::random(shape)?;
        if in_f32 {
            widen(&mut checkpoint);
        } else if let Some(dms) = &mut checkpoint.config.dms {
            dms.alpha_offset = MARKS_ALL;
        }
        let (name, decides) = (if in_f32 { format!("{shape} in f32") } else { shape.to_owned() }, in_f32);
        for &codec in CODECS {
            let expected = trace(Cpu::new(0), &checkpoint, codec, &[PROMPT], None)?;
            let started = Instant::now();
            let got = trace(open()?, &checkpoint, codec, &[PROMPT], Some(&expected.tokens))?;
            let what = format!("model {name} {}: prefill, {ANSWER} decodes", codec.name());
            tell(finding(what, codec, decides, &got, &expected, started));
            let started = Instant::now();
            let parts = trace(open()?, &checkpoint, codec, &[1, 70, 1, 1, 9, 68], Some(&expected.tokens))?;
            let what = format!("model {name} {}: the same in parts", codec.name());
            tell(finding(what, codec, decides, &parts, &got, started));
        }
    }
    Ok(())
}

/// Feeds a prompt in the given parts, then the likeliest tokens or those that are forced.
fn trace<B: Backend>(
    b: B,
    checkpoint: &Checkpoint,
    codec: Codec,
    parts: &[usize],
    forced: Option<&[Token]>,
) -> Result<Trace> {
    let options = EngineOptions { context: Some(512), max_step: Some(256), ..EngineOptions::new(codec) };
    let mut runner = Runner::new(b, checkpoint, &options, |_, _| true)?;
    let vocab = checkpoint.config.vocab;
    let prompt: Vec<Token> = (0..PROMPT).map(|i| (i * 7919 % vocab) as Token).collect();
    let seq = runner.create(true)?;
    let (mut at, mut trace) = (0, Trace { logits: vec![], tokens: vec![], slots: vec![] });
    for &n in parts {
        runner.feed(seq, &prompt[at..at + n])?;
        at += n;
    }
    let mut last = parts.last().copied().unwrap_or(1) - 1;
    for i in 0..=ANSWER {
        runner.logits(last..last + 1, |_, row| trace.logits.push(row.to_vec()))?;
        let likeliest = argmax(trace.logits.last().expect("a row was read"));
        let token = forced.map_or(likeliest, |f| f[i]);
        trace.tokens.push(token);
        if i < ANSWER {
            runner.feed(seq, &[token])?;
            last = 0;
        }
    }
    let c = runner.config();
    for (layer, head) in (0..c.n_layers).flat_map(|l| (0..c.n_kv_heads).map(move |h| (l, h))) {
        trace.slots.push(runner.cache.slot_metas(runner.backend(), seq, layer, head));
    }
    Ok(trace)
}

fn finding(name: String, codec: Codec, decides: bool, got: &Trace, expected: &Trace, started: Instant) -> Finding {
    let rows = got.logits.iter().flatten().zip(expected.logits.iter().flatten());
    let largest = expected.logits.iter().flatten().fold(1e-6f32, |m, x| m.max(x.abs()));
    let apart = rows.map(|(a, b)| (a - b).abs()).fold(0.0, |m, x| if x.is_nan() { f32::INFINITY } else { x.max(m) });
    let lanes = got.slots.iter().zip(&expected.slots).filter(|(a, b)| a != b).count();
    let most = match (decides, codec) {
        (false, _) => 0,
        (true, Codec::Fp8 | Codec::Int8) => expected.slots.len(),
        (true, _) => expected.slots.len() / OTHER_SLOTS,
    };
    let broken = (lanes > most).then(|| format!("{lanes} of {} heads hold other slots", expected.slots.len()));
    Finding { name, error: apart / largest, limit: LIMIT, broken, time: started.elapsed() }
}
