//! Progress of a run on stderr: one line that is redrawn on a terminal, else a line now and then.

use dmschat::cli::output::{self, StatusLine, notice};
use dmschat::ui::text::duration;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval between two lines.
const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(30);

pub struct Progress {
    terminal: bool,
    started: Instant,
    shown: Instant,
    line: StatusLine,
    /// Estimated work in tokens: in total, finished before, and finished now.
    total: f64,
    before: f64,
    done: f64,
    /// Tokens sampled.
    tokens: usize,
}

impl Progress {
    /// `total` is the work of everything that is to be answered, and `before` of what already is.
    pub fn new(total: f64, before: f64) -> Self {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, started: now, shown: now, line: StatusLine::default(), total, before, done: 0.0, tokens: 0 }
    }

    /// Tells that `n` chains have sampled a token of `doing`.
    pub fn step(&mut self, doing: &str, n: usize) {
        self.tokens += n;
        if self.shown.elapsed() < if self.terminal { ON_TERMINAL } else { ELSEWHERE } {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64();
        let share = 100.0 * (self.before + self.done) / self.total.max(1.0);
        let left = match self.done > 0.0 {
            true => format!(", {} left", duration((self.total - self.before - self.done) * seconds / self.done)),
            false => String::new(),
        };
        let line = format!("{doing}: {share:.0} %, {:.0} tokens/s{left}", self.tokens as f64 / seconds);
        if self.terminal {
            self.line.show(&format!("{}: {line}", output::program()));
        } else {
            notice(&line);
        }
    }

    /// Tells that work is done.
    pub fn done(&mut self, work: f64) {
        self.done += work;
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        self.line.clear();
    }
}
