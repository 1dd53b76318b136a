//! Caches of slots in files, from which a server goes on after a restart.
//!
//! Each slot has a file of a number, which [`disk`](super::disk) writes while the slot is idle,
//! with its log. A file belongs to the slot until the slot is given up.

use super::conversation::Conversation;
use super::slots::KeptSlots;
use super::worker::Worker;
use crate::backend::Backend;
use crate::cache::file::Room;
use crate::protocol::{CacheFile, Event, Outlet};
use std::path::PathBuf;

const EXTENSION: &str = "slot";

impl<B: Backend> Worker<B> {
    /// See [`EngineMessage::KeepSlots`](crate::protocol::EngineMessage::KeepSlots). A file that
    /// cannot be used stays until a slot of its number is written.
    pub fn keep_slots(&mut self, outlets: Vec<Outlet>, folder: PathBuf, limit_bytes: u64) {
        let (kept, found) = (KeptSlots { folder, limit_bytes }, outlets.len());
        let files = Room::list(&kept.folder, EXTENSION);
        let (mut slots, mut tokens) = (0, 0);
        // The newest, of which the oldest is the least recently used slot.
        for (file, outlet) in files.iter().skip(files.len().saturating_sub(found)).zip(outlets) {
            let Ok(mut slot) = Conversation::new(&mut self.model, outlet) else { break };
            match slot.load_slot(&mut self.model, &file.path) {
                Ok(n) => {
                    (slots, tokens) = (slots + 1, tokens + n);
                    slot.disk.set_file(Some(kept.file(file.path.clone())));
                    self.slots.take(None, slot.id());
                    self.slots.free(slot.id());
                    self.conversations.insert(slot.id(), slot);
                }
                Err(why) => {
                    slot.close(&mut self.model);
                    let name = file.path.display();
                    self.broadcast(&Event::Notice(format!("the cache of a slot is not used: {name}: {why}")));
                }
            }
        }
        self.kept_slots = Some(kept);
        self.broadcast(&Event::SlotsLoaded { slots, tokens });
    }

    /// A file for a new slot, if slots are kept.
    pub fn file_of_slot(&self) -> Option<CacheFile> {
        let kept = self.kept_slots.as_ref()?;
        let path = |number: usize| kept.folder.join(format!("{number}.{EXTENSION}"));
        let is_taken = |path: &PathBuf| self.conversations.values().any(|c| c.disk.path() == Some(path));
        (0..).map(path).find(|path| !is_taken(path)).map(|path| kept.file(path))
    }

    /// Writes what is not written yet, at the end.
    pub fn write_slots(&mut self) {
        self.conversations.values_mut().for_each(|c| c.write_cache_at_close(&mut self.model));
    }
}
