//! Progress of `adapter train`: an estimate before it begins, then one line that is redrawn on a
//! terminal, occasional lines in a file, or lines of JSON for the chat.

use super::super::output::{self, StatusLine, notice};
use crate::predictor::Progress;
use crate::ui::training::about;
use anyhow::Result;
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Longest time between two lines in a file.
const EACH: Duration = Duration::from_secs(60);
/// Shortest time between two lines for the chat.
const CHAT_EACH: Duration = Duration::from_millis(250);
/// Number of texts, layers or passes between two lines in a file.
const EACH_ITEMS: usize = 10;
/// Share of the work after which the time that it took says how long the rest takes.
const MEASURED: f64 = 0.05;

/// Progress over the parts of the work.
pub struct Work {
    line: StatusLine,
    terminal: bool,
    /// Lines of JSON on stdout instead.
    for_chat: bool,
    /// Estimated seconds of each part, and when the first one began.
    parts: [f64; 3],
    started: Instant,
    /// Time, work and item of the last line in a file.
    said: Option<(Instant, &'static str, usize)>,
}

impl Work {
    pub fn new(for_chat: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { line: StatusLine::default(), terminal, for_chat, parts: [1.0; 3], started: Instant::now(), said: None }
    }

    /// Reports how long the work will take. `parts`: estimated seconds of measuring attention,
    /// fitting and searching the threshold.
    pub fn begin(&mut self, parts: [f64; 3], what: &str) -> Result<()> {
        (self.parts, self.started) = (parts, Instant::now());
        let all: f64 = parts.iter().sum();
        if self.for_chat {
            return output::out_json(&json!({"takes_s": all}));
        }
        notice(&format!("{what}: {}", about(all)));
        Ok(())
    }

    /// Share of the work that is done.
    fn share(&self, part: usize, progress: Progress) -> f64 {
        let total: f64 = self.parts.iter().sum();
        let before: f64 = self.parts[..part].iter().sum();
        let done = before + self.parts[part] * progress.done as f64 / progress.total.max(1) as f64;
        done / total.max(f64::MIN_POSITIVE)
    }

    /// Estimated seconds that are left.
    fn left(&self, part: usize, progress: Progress, elapsed: f64) -> f64 {
        let (total, share): (f64, f64) = (self.parts.iter().sum(), self.share(part, progress));
        (1.0 - share) * if share > MEASURED { elapsed / share } else { total }
    }

    pub fn show(&mut self, part: usize, progress: Progress) {
        let Progress { doing, done, total } = progress;
        let now = Instant::now();
        if self.for_chat {
            self.tell_chat(part, progress, now);
            return;
        }
        if !self.terminal && !self.is_due(now, progress) {
            return;
        }
        let left = self.left(part, progress, (now - self.started).as_secs_f64()) as u64;
        let text = format!("{doing} {} of {total}, about {}:{:02} left", (done + 1).min(total), left / 60, left % 60);
        if self.terminal {
            return self.line.show(&format!("dmschat: {text}"));
        }
        notice(&text);
        self.said = Some((now, doing, done));
    }

    /// A line for the chat, a few times a second at most.
    fn tell_chat(&mut self, part: usize, progress: Progress, now: Instant) {
        let Progress { doing, done, total } = progress;
        if self.said.is_some_and(|(at, before, _)| before == doing && now - at < CHAT_EACH) {
            return;
        }
        let (share, left) = (self.share(part, progress), self.left(part, progress, (now - self.started).as_secs_f64()));
        let doing_now = format!("{doing} {} of {total}", (done + 1).min(total));
        let line = json!({"doing": doing_now, "share": share.clamp(0.0, 1.0), "left_s": left as u64});
        if output::out_json(&line).is_err() {
            // The chat is gone, and nobody waits for the predictor.
            crate::system::exit_now(output::FAILED);
        }
        self.said = Some((now, doing, done));
    }

    /// Whether it is time for a line in a file.
    fn is_due(&self, now: Instant, Progress { doing, done, .. }: Progress) -> bool {
        self.said.is_none_or(|(at, before, item)| {
            before != doing || now - at >= EACH || done > item && done.is_multiple_of(EACH_ITEMS)
        })
    }

    pub fn end(&mut self) {
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_a_line_for_each_tenth_item_and_each_minute() {
        let mut work = Work { terminal: false, ..Work::new(false) };
        let at = |done| Progress { doing: "text", done, total: 30 };
        let mut now = Instant::now();
        let mut lines = Vec::new();
        for done in 0..30 {
            // Text 13 takes two minutes.
            now += Duration::from_secs(if done == 13 { 120 } else { 1 });
            if work.is_due(now, at(done)) {
                work.said = Some((now, "text", done));
                lines.push(done);
            }
        }
        assert_eq!(lines, [0, 10, 13, 20]);
        assert!(work.is_due(now, Progress { doing: "layer", done: 0, total: 4 }));
        // Nothing is done for a minute, which is worth a line.
        assert!(!work.is_due(now, at(20)) && work.is_due(now + EACH, at(20)));
    }

    #[test]
    fn what_is_left_follows_the_estimate_first_and_then_the_clock() {
        let work = Work { parts: [60.0, 30.0, 10.0], ..Work::new(false) };
        let at = |done| Progress { doing: "text", done, total: 20 };
        assert_eq!(work.left(0, at(0), 50.0), 100.0);
        // Half of the first part took a minute.
        assert!((work.left(0, at(10), 60.0) - 140.0).abs() < 1e-9);
        assert!(work.left(2, at(20), 300.0) < 1e-9);
        assert_eq!(
            [12.0, 100.0, 420.0, 9000.0].map(about).join(", "),
            "about 20 seconds, about 2 minutes, about 7 minutes, about 3 hours"
        );
    }
}
