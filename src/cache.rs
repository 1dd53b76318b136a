//! The paged KV cache: sequences, lanes and pages. One cache serves every policy, codec and
//! backend.
//!
//! A *sequence* is one row of the tables: a conversation, a checkpoint of one, a rebuild beside the
//! old cache. A *lane* is one KV head of one sequence in one layer; its slots are numbered from 0
//! without holes. Forks share pages copy-on-write.
//! [`KvTables`](crate::backend::KvTables) documents the layout of a page.
//!
//! The cache does not know models, the meaning of tokens or conversations.

mod audit;
mod error;
mod far;
mod far_image;
pub mod file;
mod image;
mod kv_cache;
mod state;
mod stats;

pub use error::CacheError;
pub use far_image::{FarRest, RestError};
pub use image::{CheckedLayer, InvalidImage, LayerCheck, SeqHead};
pub use kv_cache::{KvCache, PAGE_SLOTS, SeqId};
pub use stats::SeqStats;
