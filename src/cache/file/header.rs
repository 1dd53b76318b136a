//! The header of a file, and what is wrong with one.

use super::super::{InvalidImage, SeqHead};
use crate::backend::KvGeometry;
use crate::policy::SlotMeta;
use crate::protocol::{LogEntry, Token};
use crate::regular_file::{self, checksum::checksum};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

pub(super) const MAGIC: [u8; 8] = *b"dmschatC";

/// Increases with every change of the header, of the layers' images or of what the checksums cover.
pub(super) const VERSION: u32 = 4;

/// Its lanes have one image of all their far rows. It is read if it has none.
pub(super) const FAR_WHOLE: u32 = 3;

/// Its images are those of a cache without far rows.
const WITHOUT_FAR: u32 = 2;

/// Its images do not begin with the layer's number either. It is read as if they did.
pub(super) const UNNUMBERED: u32 = 1;

/// Bytes before the header.
pub(super) const FIXED_BYTES: usize = MAGIC.len() + 2 * size_of::<u32>();

/// Bound of a header. Only that of a slot, with its log, is longer than 64 KiB.
pub(super) const MAX_HEADER_BYTES: usize = 32 << 20;

pub(super) const CHECKSUM_BYTES: usize = size_of::<u64>();

/// Everything but the fed tokens that a cache depends on. A file is used only if all of it is
/// equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Digests of the model and of its tokenizer, as in session files, and of the weights as they
    /// are in memory.
    pub model: String,
    pub tokenizer: String,
    pub weights: String,
    /// Digest of the rotary embedding and of the eviction decisions' parameters.
    pub parameters: String,
    pub codec: String,
    pub policy: String,
    pub n_layers: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub page_slots: usize,
    /// The metadata of a marked slot of position 5 and strength 3: differs between layouts of it.
    pub slot_meta: u32,
    /// Sizes of the states beside, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
    /// Heads of local layers and of the others, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// Pages that a choice makes near, if far rows are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<usize>,
}

impl Identity {
    pub fn new(g: &KvGeometry, [model, tokenizer, weights, parameters]: [String; 4]) -> Self {
        Self {
            model,
            tokenizer,
            weights,
            parameters,
            codec: g.codec.name().to_owned(),
            policy: g.policies_text(),
            n_layers: g.n_layers,
            n_kv_heads: g.n_kv_heads,
            head_dim: g.head_dim,
            page_slots: g.page_slots,
            slot_meta: SlotMeta::new(5, 3, true).0,
            delta: g.delta.map(|delta| format!("{delta:?}")),
            heads: g
                .heads
                .map(|heads| format!("{heads:?}{}", if g.same_slots { " in pages of the same slots" } else { "" })),
            far: g.kept_far().map(|far| far.pages),
        }
    }

    /// Adds the digest of the codec's data, if it needs some.
    pub fn with_codec_data(mut self, digest: Option<&str>) -> Self {
        if let Some(digest) = digest {
            self.codec += &format!(" {digest}");
        }
        self
    }
}

/// The log of a slot, which no session has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotLog {
    pub entries: Vec<LogEntry>,
    /// The last sampled token, which is not fed yet.
    pub pending: Option<Token>,
    /// The text ends inside a prompt that was not read to its end.
    pub is_cut: bool,
}

/// Header of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub identity: Identity,
    pub sequence: SeqHead,
    /// Digest of the token log that was fed, with all its entries.
    pub log: String,
    /// Bytes of each image: of layers, of states, and of far rows.
    pub layer_bytes: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotLog>,
}

impl Header {
    /// The file's bytes before the layers.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        if json.len() > MAX_HEADER_BYTES {
            return Err(io::Error::other("the header is too long"));
        }
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_ne_bytes());
        out.extend((json.len() as u32).to_ne_bytes());
        out.extend(json);
        out.extend(checksum(0, &out).to_ne_bytes());
        Ok(out)
    }

    /// Bytes of the whole file; `None` if that is more than any file has.
    pub(super) fn file_bytes(&self, head_bytes: u64) -> Option<u64> {
        let layer = |sum: u64, bytes: &u64| sum.checked_add(bytes.checked_add(CHECKSUM_BYTES as u64)?);
        self.layer_bytes.iter().try_fold(head_bytes, layer)
    }
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("it is damaged ({0})")]
    Damaged(&'static str),
    #[error("it is of another version of dmschat")]
    Version,
    #[error("it cannot be read ({0})")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Image(#[from] InvalidImage),
}

/// Says what of a file is damaged, unless it is `fine`.
pub(super) fn require(fine: bool, what: &'static str) -> Result<(), FileError> {
    if fine { Ok(()) } else { Err(FileError::Damaged(what)) }
}

/// A file whose header was read and whose length is what the header says.
pub struct Opened {
    pub(super) file: Arc<File>,
    pub header: Header,
    /// The checksum before the first layer, and where that begins.
    pub(super) seed: u64,
    pub(super) begin: u64,
    pub(super) numbered: bool,
}

impl Opened {
    /// Opens a file and reads its header. `Ok(None)` if there is no such file.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let mut file = match regular_file::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut fixed = [0; FIXED_BYTES];
        whole(file.read_exact(&mut fixed))?;
        let word = |at: usize| u32::from_ne_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let (version, length) = (word(MAGIC.len()), word(MAGIC.len() + 4) as usize);
        require(fixed[..MAGIC.len()] == MAGIC, "it does not begin as one")?;
        if ![VERSION, FAR_WHOLE, WITHOUT_FAR, UNNUMBERED].contains(&version) {
            return Err(FileError::Version);
        }
        require(length <= MAX_HEADER_BYTES, "the length of its header")?;
        let mut head = fixed.to_vec();
        head.resize(FIXED_BYTES + length, 0);
        whole(file.read_exact(&mut head[FIXED_BYTES..]))?;
        let mut sum = [0; CHECKSUM_BYTES];
        whole(file.read_exact(&mut sum))?;
        let seed = u64::from_ne_bytes(sum);
        require(checksum(0, &head) == seed, "the checksum of its header")?;
        let header: Header =
            serde_json::from_slice(&head[FIXED_BYTES..]).map_err(|_| FileError::Damaged("its header"))?;
        if version == FAR_WHOLE && header.identity.far.is_some() {
            return Err(FileError::Version);
        }
        let begin = (head.len() + CHECKSUM_BYTES) as u64;
        require(header.file_bytes(begin) == Some(file.metadata()?.len()), "another length than its header says")?;
        let file = Arc::new(file);
        Ok(Some(Self { file, header, seed, begin, numbered: version != UNNUMBERED }))
    }
}

/// An end of file before what was expected is damage.
pub(super) fn whole<T>(read: io::Result<T>) -> Result<T, FileError> {
    read.map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => FileError::Damaged("its end is missing"),
        _ => FileError::Io(e),
    })
}

/// Layers differ in their checksums' seeds, so that none passes for another.
pub(super) fn layer_checksum(seed: u64, layer: usize, image: &[u8]) -> u64 {
    checksum(seed.wrapping_add(layer as u64 + 1), image)
}
