//! Reads the layers of a file ahead, on several threads: copies from the system's page cache and
//! checksums of one thread are slower than a GPU takes the layers.

use super::super::InvalidImage;
use super::super::state::LAYER_BYTES;
use super::{CHECKSUM_BYTES, FileError, Opened, layer_checksum, whole};
use crate::cores;
use crate::regular_file;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most threads of a file. Where a read moves the file's one cursor there is one.
const MOST_THREADS: usize = if cfg!(unix) { 4 } else { 1 };
/// Bytes of layers in memory at once that fewer threads keep to, if the layers are so large.
const MOST_BYTES: u64 = 256 << 20;

/// Layers of a file, read ahead and checked by threads, which make a `T` of each.
pub struct Reader<T> {
    layers: Receiver<Result<T, FileError>>,
    shared: Arc<Shared>,
    left: usize,
}

/// State that the threads of a file share.
struct Shared {
    file: Arc<File>,
    seed: u64,
    /// Whether the images in the file begin with the layer's number.
    numbered: bool,
    /// Bytes of each layer's image in the file; its checksum follows.
    images: Vec<Range<u64>>,
    /// The next layer that nobody reads yet, and the end of those that are wanted.
    next: AtomicUsize,
    end: usize,
    spares: Mutex<Vec<Vec<u8>>>,
}

impl Opened {
    /// Starts to read all layers: [`Self::read_some`].
    pub fn read<T: Send + 'static>(
        &self,
        check: impl Fn(usize, Vec<u8>) -> Result<T, InvalidImage> + Send + Copy + 'static,
    ) -> io::Result<Reader<T>> {
        self.read_some(0..self.header.layer_bytes.len(), check)
    }

    /// Starts to read layers of these numbers. `check` gets the number and the image of each, if
    /// its checksum is right. The caller has compared their sizes with what such a sequence may
    /// need. The open file is read, whatever has its name by then.
    pub fn read_some<T: Send + 'static>(
        &self,
        layers: Range<usize>,
        check: impl Fn(usize, Vec<u8>) -> Result<T, InvalidImage> + Send + Copy + 'static,
    ) -> io::Result<Reader<T>> {
        let mut begin = self.begin;
        let place = |&bytes: &u64| {
            let image = begin..begin + bytes;
            begin = image.end + CHECKSUM_BYTES as u64;
            image
        };
        let images: Vec<_> = self.header.layer_bytes.iter().map(place).collect();
        let Range { start, end } = layers;
        let (largest, left) = (self.header.layer_bytes[layers].iter().copied().max().unwrap_or(0).max(1), end - start);
        let threads = MOST_THREADS.min(cores::count()).min((MOST_BYTES / largest) as usize).min(left).max(1);
        let (sender, layers) = sync_channel(1);
        let (next, spares) = (AtomicUsize::new(start), Mutex::default());
        let (file, seed, numbered) = (Arc::clone(&self.file), self.seed, self.numbered);
        let shared = Arc::new(Shared { file, seed, numbered, images, next, end, spares });
        for number in 0..threads {
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            let started =
                std::thread::Builder::new().name("cache-read".into()).spawn(move || shared.send(&sender, check));
            // One is enough.
            if number == 0 {
                started?;
            }
        }
        Ok(Reader { layers, shared, left })
    }
}

impl Shared {
    /// Reads layers that no other thread reads, until none is left or the reader is dropped.
    fn send<T>(
        &self,
        layers: &SyncSender<Result<T, FileError>>,
        check: impl Fn(usize, Vec<u8>) -> Result<T, InvalidImage>,
    ) {
        loop {
            let layer = self.next.fetch_add(1, Ordering::Relaxed);
            if layer >= self.end {
                return;
            }
            let mut image = self.spares().pop().unwrap_or_default();
            let read = self.read(layer, &mut image).and_then(|()| Ok(check(layer, image)?));
            let failed = read.is_err();
            if layers.send(read).is_err() || failed {
                return;
            }
        }
    }

    fn read(&self, layer: usize, image: &mut Vec<u8>) -> Result<(), FileError> {
        let Range { start, end } = self.images[layer];
        let number = if self.numbered { 0 } else { LAYER_BYTES };
        let bytes = number + (end - start) as usize;
        if image.capacity() < bytes {
            // Zeroed by the system, if at all.
            *image = vec![0; bytes];
        }
        image.resize(bytes, 0);
        image[..number].copy_from_slice(&(layer as u32).to_ne_bytes()[..number]);
        let image = &mut image[number..];
        whole(regular_file::read_exact_at(&self.file, start, image))?;
        let mut sum = [0; CHECKSUM_BYTES];
        whole(regular_file::read_exact_at(&self.file, end, &mut sum))?;
        if u64::from_ne_bytes(sum) != layer_checksum(self.seed, layer, image) {
            return Err(FileError::Damaged("the checksum of a layer"));
        }
        Ok(())
    }

    fn spares(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Reader<T> {
    /// Another layer, in any order; `None` if none is there `within` that time.
    pub fn next(&mut self, within: Duration) -> Option<Result<T, FileError>> {
        match self.layers.recv_timeout(within) {
            Ok(layer) => {
                self.left -= 1;
                Some(layer)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(FileError::Damaged("its reader ended"))),
        }
    }

    /// Layers that are still to come.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Lends a buffer for a later layer.
    pub fn recycle(&self, image: Vec<u8>) {
        self.shared.spares().push(image);
    }
}
