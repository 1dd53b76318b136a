//! The event loop: waits for keys, engine events, snapshots, signals and timers, passes them to
//! `update`, runs the effects and draws. All pending events are handled before a frame is drawn; at
//! most 60 frames a second, none when nothing changed.

mod loading;
mod saving;
mod sending;
mod terminal_loop;

pub use terminal_loop::Runtime;
pub(super) use terminal_loop::Woken;
