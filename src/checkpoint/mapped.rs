//! Maps files and buffers as shared bytes, so that weights are not copied. Only this file maps
//! memory.

use crate::regular_file;
use crate::tensor::SharedBytes;
use anyhow::{Context, Result, ensure};
use memmap2::{Mmap, MmapMut, MmapOptions};
use std::path::Path;
use std::sync::Arc;

/// Maps a regular, non-empty file read-only.
pub fn map_file(path: &Path) -> Result<SharedBytes> {
    let named = || path.display().to_string();
    let file = regular_file::open(path).with_context(named)?;
    ensure!(file.metadata().with_context(named)?.len() > 0, "{} is empty", path.display());
    // SAFETY: the map is private to this process's reads and never handed out as anything but
    // `&[u8]` whose lifetime the owner bounds. The one hazard a mapping has is another process
    // that shortens the file while it is in use; then the access ends the process with SIGBUS, and
    // no wrong value is read. Nobody rewrites model files in place (the hub writes new blobs), and
    // copying gigabytes to be safe from it is what this program exists to avoid.
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("mapping {}", path.display()))?;
    #[cfg(target_os = "linux")]
    want_huge_pages(|advice| map.advise(advice));
    Ok(Arc::new(map))
}

/// Requests pages of 2 MiB: decoding reads all weights for every token, and with pages of 4 KiB it
/// spends up to half of its time on address translation. A refusal has no other effect.
#[cfg(target_os = "linux")]
fn want_huge_pages(advise: impl FnOnce(memmap2::Advice) -> std::io::Result<()>) {
    let _ = advise(memmap2::Advice::HugePage);
}

/// Address space that reads as zeros and takes no memory, for tensors that are described and not
/// read.
pub fn reserved(len_bytes: usize) -> Result<SharedBytes> {
    let map = MmapOptions::new().len(len_bytes.max(1)).no_reserve_swap().map_anon();
    let map = map.and_then(MmapMut::make_read_only).with_context(|| format!("reserving {len_bytes} bytes"))?;
    Ok(Arc::new(map))
}

/// A page-aligned, zeroed buffer that `fill` writes, shared afterwards.
pub fn buffer(len_bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<SharedBytes> {
    let wanted = || format!("taking {len_bytes} bytes of memory");
    let mut map = MmapMut::map_anon(len_bytes.max(1)).with_context(wanted)?;
    #[cfg(target_os = "linux")]
    want_huge_pages(|advice| map.advise(advice));
    fill(&mut map[..len_bytes]);
    let map = map.make_read_only().with_context(wanted)?;
    Ok(Arc::new(map))
}
