//! Counters of the server, in the text format of Prometheus.

use crate::protocol::{ChainReport, TurnReport};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct Metrics {
    pub requests: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    /// Answers whose client hung up.
    pub abandoned: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    prompt_us: AtomicU64,
    generated_us: AtomicU64,
}

/// Seconds of the prompt and of the answer.
pub fn seconds(report: &TurnReport) -> (f64, f64) {
    let prefilled = report.prompt_tokens.saturating_sub(report.reused_tokens) as f64;
    let prompt = report.prefill_tok_s.map_or(0.0, |speed| prefilled / speed);
    // The first token is sampled at the end of the prompt.
    let generated = report.generated.len().saturating_sub(1) as f64;
    (prompt, report.decode_tok_s.map_or(0.0, |speed| generated / speed))
}

/// Tokens of the answer, of all if there are several, and those of them in thoughts.
pub fn generated(report: &TurnReport) -> (usize, usize) {
    match &report.chains {
        Some(chains) => {
            let sum = |of: fn(&ChainReport) -> usize| chains.chains.iter().map(of).sum();
            (sum(|chain| chain.tokens), sum(|chain| chain.reasoning_tokens))
        }
        None => (report.generated.len(), report.reasoning_tokens),
    }
}

impl Metrics {
    /// Counts an answer.
    pub fn answered(&self, report: &TurnReport) {
        let (prompt, seconds) = seconds(report);
        self.prompt_tokens.fetch_add(report.prompt_tokens as u64, Relaxed);
        self.cached_tokens.fetch_add(report.reused_tokens as u64, Relaxed);
        self.generated_tokens.fetch_add(generated(report).0 as u64, Relaxed);
        self.prompt_us.fetch_add((prompt * 1e6) as u64, Relaxed);
        self.generated_us.fetch_add((seconds * 1e6) as u64, Relaxed);
    }

    /// `load`: requests that are answered, and that wait.
    pub fn text(&self, load: (usize, usize), n_slots: usize) -> String {
        let count = |value: &AtomicU64| value.load(Relaxed) as f64;
        let seconds = |value: &AtomicU64| value.load(Relaxed) as f64 / 1e6;
        let rows = [
            ("requests_total", "counter", "Requests for an answer", count(&self.requests)),
            ("requests_refused_total", "counter", "Requests that were refused", count(&self.refused)),
            ("requests_failed_total", "counter", "Answers that failed", count(&self.failed)),
            ("requests_abandoned_total", "counter", "Answers whose client hung up", count(&self.abandoned)),
            ("prompt_tokens_total", "counter", "Tokens of prompts", count(&self.prompt_tokens)),
            ("cached_tokens_total", "counter", "Tokens of prompts that were in the cache", count(&self.cached_tokens)),
            ("generated_tokens_total", "counter", "Generated tokens", count(&self.generated_tokens)),
            ("prompt_seconds_total", "counter", "Time in which prompts were read", seconds(&self.prompt_us)),
            ("generated_seconds_total", "counter", "Time in which answers were generated", seconds(&self.generated_us)),
            ("slots", "gauge", "Requests that can be answered at once", n_slots as f64),
            ("slots_busy", "gauge", "Requests that are being answered", load.0 as f64),
            ("requests_waiting", "gauge", "Requests that wait for a slot", load.1 as f64),
        ];
        let mut out = String::new();
        for (name, kind, help, value) in rows {
            let _ =
                writeln!(out, "# HELP dmschat_{name} {help}.\n# TYPE dmschat_{name} {kind}\ndmschat_{name} {value}");
        }
        out
    }
}
