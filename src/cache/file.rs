//! A sequence's image in a file: a header that says what it is of, then the layers, each with a
//! checksum.
//!
//! ```text
//! | MAGIC | u32 version | u32 bytes of the header | header, JSON | u64 checksum of all before | layer 0 | u64 checksum | ...
//! ```
//!
//! Numbers are in the machine's byte order; a machine of the other byte order refuses the version.
//! A file is written under another name, synced and renamed, so that its name always belongs to a
//! complete file. Reading and writing run on their own threads (several read, one layer at a time
//! each) and hold a few layers in memory. Checksums find accidents;
//! [`LayerCheck`](super::LayerCheck) checks the image itself, on the threads that read.

mod header;
mod read;
mod room;
mod write;

pub use header::{FileError, Header, Identity, Opened, SlotLog};
pub use read::Reader;
pub use room::{Kept, Room};
pub use write::Writer;

use header::{CHECKSUM_BYTES, MAGIC, layer_checksum, whole};

#[cfg(test)]
mod tests;
