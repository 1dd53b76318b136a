//! Encodes pieces of a rendered conversation to token ids, and decodes ids to whole characters.
//! Owns the rule that content never becomes a control token. Knows nothing of models, templates or
//! files.
//!
//! It holds two instances of the tokenizer: the complete one, and [`content`]'s, for which control
//! tokens have spellings that nobody can type.

mod content;
pub mod decoder;
mod encoder;
pub mod flat;
mod guard;
mod parts;
mod stages;

pub use decoder::Decoder;
pub use encoder::Tokenizer;
pub use flat::{flatten, unflatten};
pub use stages::begun;
