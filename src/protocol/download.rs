//! How far a download is.

/// Progress of a download.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Download {
    /// The current file.
    pub file: String,
    pub file_done_bytes: u64,
    pub file_bytes: u64,
    /// Bytes of all files.
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_s: Option<f64>,
    pub left_s: Option<f64>,
}
