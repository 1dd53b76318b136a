//! Far rows that are still to come from the file of a saved cache. Its sequence goes on without
//! them: a step needs none, the next choice of far pages does.

use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::file::Reader;
use crate::cache::{CheckedLayer, FarRest};
use std::time::Duration;

/// How long a wait for all images waits for each.
const WAIT: Duration = Duration::from_millis(100);

/// Far pages that await their rows.
pub(super) struct FarLoad<B: Backend> {
    awaited: Vec<FarRest<B>>,
    /// `None` while nothing is read.
    reader: Option<Reader<CheckedLayer>>,
    /// Entries of the log of the file.
    entries: usize,
    /// Why the rows cannot be used, until the log is replayed.
    failed: Option<String>,
}

impl<B: Backend> Default for FarLoad<B> {
    fn default() -> Self {
        Self { awaited: Vec::new(), reader: None, entries: 0, failed: None }
    }
}

impl<B: Backend> FarLoad<B> {
    /// Adds pages of a layer that was imported.
    pub fn add(&mut self, rest: Option<FarRest<B>>) {
        self.awaited.extend(rest);
    }

    /// Begins to read the rows of all pages that were added, of a cache whose log has so many
    /// entries.
    pub fn begin(&mut self, reader: Reader<CheckedLayer>, entries: usize) {
        (self.reader, self.entries) = (Some(reader), entries);
    }

    /// Whether rows are still to come.
    pub fn is_pending(&self) -> bool {
        self.reader.is_some() || self.failed.is_some()
    }

    /// Whether the log has to be replayed.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Fills pages from the next image, if it arrives within that time.
    pub fn go_on(&mut self, runner: &mut Runner<B>, within: Duration) {
        if let Err(why) = self.fill(runner, within) {
            *self = Self { entries: self.entries, failed: Some(why), ..Self::default() };
        }
    }

    fn fill(&mut self, runner: &mut Runner<B>, within: Duration) -> Result<(), String> {
        let Some(reader) = self.reader.as_mut().filter(|reader| reader.left() > 0) else {
            self.reader = None;
            return Ok(());
        };
        let Some(next) = reader.next(within) else { return Ok(()) };
        let image = next.map_err(|e| e.to_string())?;
        runner.import_rest(&mut self.awaited, &image).map_err(|e| e.to_string())?;
        reader.recycle(image.into_bytes());
        self.reader.take_if(|reader| reader.left() == 0);
        Ok(())
    }

    /// Waits until all are there, or one cannot be used.
    pub fn wait(&mut self, runner: &mut Runner<B>) {
        while self.reader.is_some() {
            self.go_on(runner, WAIT);
        }
    }

    /// Ends a load that waits for nothing: returns the entries of the log that was loaded, and why
    /// the rows cannot be used, if so. `None` while it waits.
    pub fn end(&mut self) -> Option<(usize, Option<String>)> {
        let Self { entries, failed, .. } = self.reader.is_none().then(|| std::mem::take(self))?;
        Some((entries, failed))
    }

    /// Waits until all are there. Fails with the reason why they cannot be used.
    pub fn finish(&mut self, runner: &mut Runner<B>) -> Result<(), String> {
        self.wait(runner);
        self.failed.take().map_or(Ok(()), Err)
    }
}
