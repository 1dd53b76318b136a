//! Writes a file of a cache on a thread: beside its place, synced, then renamed.

use super::{Header, Room, layer_checksum};
use crate::regular_file::temporary::Temporary;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel};

/// A file that is being written. Dropped before it is whole, it is removed.
pub struct Writer {
    layers: SyncSender<Vec<u8>>,
    spares: Receiver<Vec<u8>>,
    outcome: Receiver<io::Result<()>>,
    dropped: Arc<AtomicBool>,
}

impl Writer {
    /// Starts to write `path`, once older files have made room for it in its folder.
    pub fn start(path: PathBuf, room: Room, header: Header) -> io::Result<Self> {
        let (layers, received) = sync_channel(1);
        let (spare, spares) = channel();
        let (done, outcome) = channel();
        let dropped = Arc::new(AtomicBool::new(false));
        let is_dropped = Arc::clone(&dropped);
        std::thread::Builder::new().name("cache-write".into()).spawn(move || {
            let _ = done.send(write(&path, room, &header, &received, &spare, &is_dropped));
        })?;
        Ok(Self { layers, spares, outcome, dropped })
    }

    /// A buffer for the next layer's image.
    pub fn buffer(&self) -> Vec<u8> {
        self.spares.try_recv().unwrap_or_default()
    }

    /// Hands over the next layer's image, or returns it if the disk is not ready for it.
    pub fn offer(&self, image: Vec<u8>) -> Result<(), Vec<u8>> {
        match self.layers.try_send(image) {
            // A writer that has failed takes everything; `outcome` tells why.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(image)) => Err(image),
        }
    }

    /// The end of the write; `None` before.
    pub fn outcome(&self) -> Option<io::Result<()>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("its writer ended"))),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

fn write(
    path: &Path,
    room: Room,
    header: &Header,
    layers: &Receiver<Vec<u8>>,
    spare: &Sender<Vec<u8>>,
    dropped: &AtomicBool,
) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("no folder"))?;
    let head = header.encode()?;
    let bytes = header.file_bytes(head.len() as u64).ok_or_else(|| io::Error::other("too large"))?;
    room.make(folder, path, bytes)?;
    let mut new = Temporary::in_own_folder(folder)?;
    new.file.write_all(&head)?;
    let seed = u64::from_ne_bytes(head[head.len() - 8..].try_into().map_err(io::Error::other)?);
    for layer in 0..header.layer_bytes.len() {
        let image = layers.recv().map_err(|_| io::Error::other("given up"))?;
        new.file.write_all(&image)?;
        new.file.write_all(&layer_checksum(seed, layer, &image).to_ne_bytes())?;
        let _ = spare.send(image);
    }
    // Takes long: who has given up by then gets no file.
    new.file.sync_all()?;
    if dropped.load(Ordering::Relaxed) {
        return Err(io::Error::other("given up"));
    }
    new.rename(path)
}
