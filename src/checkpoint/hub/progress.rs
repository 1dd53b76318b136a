//! How far a download is and how fast it goes. What it says never goes back: bytes that have to be
//! fetched again are not counted again.

use super::Observer;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The file that is on its way.
    pub file: String,
    pub file_done: u64,
    pub file_bytes: u64,
    /// All files, those that were here already included.
    pub done: u64,
    pub bytes: u64,
    /// Over the last seconds; absent until there is something to tell from.
    pub bytes_per_s: Option<f64>,
}

impl Progress {
    /// Seconds until it is done at this speed.
    pub fn left_s(&self) -> Option<f64> {
        let speed = self.bytes_per_s.filter(|s| *s > 0.0)?;
        Some(self.bytes.saturating_sub(self.done) as f64 / speed)
    }
}

const EVERY: Duration = Duration::from_millis(100);
const SPAN: Duration = Duration::from_secs(5);

/// Keeps the figures of one download.
#[derive(Default)]
pub(super) struct Meter {
    shown: Progress,
    /// Bytes of files that are whole.
    before: u64,
    told: Option<Instant>,
    /// When so many bytes had come over the network.
    seen: VecDeque<(Instant, u64)>,
    fetched: u64,
}

impl Meter {
    /// All files have so many bytes. What came before that was known counts when its turn comes.
    pub fn expect(&mut self, bytes: u64) {
        self.shown = Progress { bytes, ..Progress::default() };
        self.before = 0;
    }

    /// A file begins.
    pub fn file(&mut self, name: &str, bytes: u64) {
        self.shown.file = name.to_owned();
        (self.shown.file_done, self.shown.file_bytes) = (0, bytes);
    }

    /// So many more bytes came over the network.
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

    /// The file is so far.
    pub fn at(&mut self, file_done: u64, observer: &mut dyn Observer) {
        self.shown.file_done = self.shown.file_done.max(file_done.min(self.shown.file_bytes));
        self.shown.done = self.shown.done.max(self.before + self.shown.file_done);
        if self.told.is_none_or(|t| t.elapsed() >= EVERY) {
            self.tell(observer);
        }
    }

    /// The file is whole.
    pub fn file_done(&mut self, observer: &mut dyn Observer) {
        self.before += self.shown.file_bytes;
        self.shown.file_done = self.shown.file_bytes;
        self.shown.done = self.shown.done.max(self.before);
        self.tell(observer);
    }

    fn tell(&mut self, observer: &mut dyn Observer) {
        self.told = Some(Instant::now());
        // Nothing to hold it against before the plan.
        if self.shown.bytes > 0 {
            observer.progress(&self.shown);
        }
    }
}
