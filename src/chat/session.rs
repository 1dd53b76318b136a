//! Sessions: a conversation on disk, one record per event, so that it can be continued and its
//! cache statistics read later. The schema is in `docs/session.md`.
//!
//! A session appends the changes of its conversation. Records that could not be written are kept
//! for the next write, so that nothing is lost while the program runs. Writing is a separate step
//! ([`Session::begin_write`]), so that a thread can wait for the disk. Knows no widget and no
//! engine.

mod appended;
mod export;
mod file;
mod load;
pub(in crate::chat) mod record;
mod search;
mod store;
mod whole;

use appended::new_id;
pub use appended::{Moved, Session, Write, Written};
pub use export::{markdown, markdown_of};
pub use load::{Loaded, load};
pub use record::Policies;
pub use record::{FORMAT, Policy, Record, VERSION};
pub use search::{Found, Part, Passage, Query, Searched};
pub use store::{CACHE_EXTENSION, Entry, Store, cache_of, local_time, session_in};
pub use whole::{Output, create_new, open_stream, write_atomically};
