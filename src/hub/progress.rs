//! What a download reports: its progress and speed, notices, and why it ended. Progress never
//! decreases: bytes that are downloaded again do not count twice.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Progress of a download.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The file in flight.
    pub file: String,
    pub file_done: u64,
    pub file_bytes: u64,
    /// Bytes of all files, including those that were in the cache.
    pub done: u64,
    pub bytes: u64,
    /// Bytes per second over the last seconds; `None` until it is known.
    pub bytes_per_s: Option<f64>,
}

impl Progress {
    /// Seconds left at this speed.
    pub fn left_s(&self) -> Option<f64> {
        let speed = self.bytes_per_s.filter(|s| *s > 0.0)?;
        Some(self.bytes.saturating_sub(self.done) as f64 / speed)
    }
}

/// Receives the reports of a download.
pub trait Observer {
    /// Whether to stop. Called several times per second.
    fn stopped(&self) -> bool;
    /// Receives progress, at most ten times per second and after each file.
    fn progress(&mut self, progress: &Progress);
    /// Receives a sentence for the user.
    fn notice(&mut self, text: &str);
}

/// Why a model was not downloaded. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The model, its name, the token or a setting is wrong: a retry would fail in the same way.
    #[error("{0}")]
    Wrong(String),
    /// A retry may succeed; the bytes received so far are kept.
    #[error("{0}")]
    Failed(String),
    /// [`Observer::stopped`] returned true.
    #[error("stopped; the next download continues from here")]
    Stopped,
}

const EVERY: Duration = Duration::from_millis(100);
const SPAN: Duration = Duration::from_secs(5);

/// Computes the progress of one download.
#[derive(Default)]
pub struct Meter {
    shown: Progress,
    /// Bytes of complete files.
    before: u64,
    reported: Option<Instant>,
    /// Times, and the bytes received until then.
    seen: VecDeque<(Instant, u64)>,
    fetched: u64,
}

impl Meter {
    /// Sets the bytes of all files and starts at 0.
    pub fn expect(&mut self, bytes: u64) {
        self.shown = Progress { bytes, ..Progress::default() };
        self.before = 0;
    }

    /// Starts a file.
    pub fn file(&mut self, name: &str, bytes: u64) {
        self.shown.file = name.to_owned();
        (self.shown.file_done, self.shown.file_bytes) = (0, bytes);
    }

    /// Counts bytes from the network.
    pub fn fetch(&mut self, n: usize) {
        self.fetched += n as u64;
        let now = Instant::now();
        if self.seen.back().is_none_or(|(at, _)| now.duration_since(*at) >= EVERY) {
            self.seen.push_back((now, self.fetched));
            while self.seen.front().is_some_and(|(at, _)| now.duration_since(*at) > SPAN) && self.seen.len() > 2 {
                self.seen.pop_front();
            }
        }
        if let (Some((begin, from)), Some((end, to))) = (self.seen.front(), self.seen.back())
            && end > begin
        {
            self.shown.bytes_per_s = Some((to - from) as f64 / end.duration_since(*begin).as_secs_f64());
        }
    }

    /// Sets the bytes of the current file that are complete.
    pub fn at(&mut self, file_done: u64, observer: &mut (impl Observer + ?Sized)) {
        self.shown.file_done = self.shown.file_done.max(file_done.min(self.shown.file_bytes));
        self.shown.done = self.shown.done.max(self.before + self.shown.file_done);
        if self.reported.is_none_or(|t| t.elapsed() >= EVERY) {
            self.report(observer);
        }
    }

    /// Ends the current file.
    pub fn file_done(&mut self, observer: &mut (impl Observer + ?Sized)) {
        self.before += self.shown.file_bytes;
        self.shown.file_done = self.shown.file_bytes;
        self.shown.done = self.shown.done.max(self.before);
        self.report(observer);
    }

    fn report(&mut self, observer: &mut (impl Observer + ?Sized)) {
        self.reported = Some(Instant::now());
        // Before the plan, the total is unknown.
        if self.shown.bytes > 0 {
            observer.progress(&self.shown);
        }
    }
}
