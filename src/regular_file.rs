//! Reads files from outside: regular files only, with a bound on their size. A named pipe would
//! block its reader, and a device never ends. Writes whole files ([`temporary`]). Knows nothing of
//! their content.

pub mod checksum;
mod open;
pub mod temporary;

pub use open::{
    check, free_bytes, is_at, is_same_file, link, make_private_folder, open, open_no_follow, open_with, private, read,
    read_at_most, read_exact_at, read_text, without_mark,
};
