//! Checks the answers of the built-in model on a GPU: feeds it the CPU's greedy tokens one by one.
//! Before each, the argmax must be the CPU's token, unless the CPU's logits of the two are nearly
//! equal.

use super::{CODECS, Finding, Report};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::engine::{EngineOptions, Runner};
use dmschat::protocol::{Piece, Token};
use dmschat::sampler::argmax;
use dmschat::tokenizer::Tokenizer;
use std::time::Instant;

const QUESTIONS: [&str; 4] = [
    "Solve 5*b - 2355 = -50*b - 2740 for b.",
    "What is 4827 + 3951?",
    "Sort these numbers: 83, 12, 57, 94, 31, 76, 45, 20, 68.",
    "Hello! What can you do?",
];
/// Longest answer in tokens, with its reasoning.
const TOKENS: usize = 200;
/// The same, and the number of questions, in a short run.
const SHORT: (usize, usize) = (6, 1);
/// Largest difference between the CPU's logits of its own token and the GPU's: the effect of one
/// bf16 rounding before the head.
const EVEN: f32 = 0.05;

/// Runs the checks. `open` opens a backend for each setting.
pub fn run_all<B: Measure, E: std::error::Error + Send + Sync + 'static>(
    open: impl Fn() -> Result<B, E>,
    report: &mut Report<'_>,
) -> Result<()> {
    let checkpoint = Checkpoint::open(&ModelRef::BuiltIn, &AdapterChoice::Auto)?;
    let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
    let (longest, questions) = if report.is_short() { SHORT } else { (TOKENS, QUESTIONS.len()) };
    for (codec, eviction) in CODECS.iter().flat_map(|&codec| [(codec, true), (codec, false)]) {
        if !report.takes() {
            continue;
        }
        let options = EngineOptions { context: Some(1024), ..EngineOptions::new(codec) };
        let mut cpu = Runner::new(Cpu::new(0), &checkpoint, &options, |_, _| true)?;
        let mut gpu = Runner::new(open()?, &checkpoint, &options, |_, _| true)?;
        let started = Instant::now();
        let (mut seen, mut others, mut most) = (0, 0, 0f32);
        for question in &QUESTIONS[..questions] {
            let prompt = tokenizer.encode_pieces(&chat(question))?;
            let expected = answer(&mut cpu, &prompt, eviction, longest, None, &checkpoint.generation.eos)?;
            let tokens: Vec<Token> = expected.iter().map(|row| argmax(row)).collect();
            let got = answer(&mut gpu, &prompt, eviction, longest, Some(&tokens), &[])?;
            for (row, got) in expected.iter().zip(&got) {
                let (best, chosen) = (argmax(row), argmax(got));
                seen += 1;
                others += (best != chosen) as usize;
                most = most.max(row[best as usize] - row[chosen as usize]);
            }
        }
        let name = format!(
            "answers {}, eviction {}: {} of {seen} tokens the CPU's",
            codec.name(),
            if eviction { "on" } else { "off" },
            seen - others
        );
        report.add(Finding { name, error: most, limit: EVEN, broken: None, time: started.elapsed() });
    }
    Ok(())
}

fn chat(question: &str) -> [Piece; 6] {
    let control = |literal: &str| Piece::Control(literal.to_owned());
    let text = |text: String| Piece::Text(text);
    [
        control("<|im_start|>"),
        text(format!("user\n{question}")),
        control("<|im_end|>"),
        text("\n".to_owned()),
        control("<|im_start|>"),
        text("assistant\n".to_owned()),
    ]
}

/// The logits before each token. Decodes greedily until an end token, or feeds the given tokens.
fn answer<B: Measure>(
    runner: &mut Runner<B>,
    prompt: &[Token],
    eviction: bool,
    longest: usize,
    forced: Option<&[Token]>,
    ends: &[Token],
) -> Result<Vec<Vec<f32>>> {
    let seq = runner.create(eviction)?;
    runner.feed(seq, prompt)?;
    let (mut rows, mut last) = (Vec::new(), prompt.len() - 1);
    while rows.len() < forced.map_or(longest, <[Token]>::len) {
        runner.logits(last..last + 1, |_, row| rows.push(row.to_vec()))?;
        let token = forced.map_or_else(|| argmax(&rows[rows.len() - 1]), |tokens| tokens[rows.len() - 1]);
        if ends.contains(&token) {
            break;
        }
        runner.feed(seq, &[token])?;
        last = 0;
    }
    runner.release(seq);
    Ok(rows)
}
