//! Session files: the open conversation, the list of saved ones, transcripts. Carries out [`Store`]
//! operations and returns events. The UI thread touches no file: the [`Worker`] does. A
//! conversation is left only once its records are written, or if the user confirms.

mod keeper;
mod leave;

pub use keeper::{Sessions, render_options};
