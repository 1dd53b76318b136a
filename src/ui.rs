//! The terminal chat: state, update, view, keys and themes. Knows the engine only as commands,
//! events and snapshots ([`crate::protocol`]), and conversations and settings as plain data.
//!
//! Data flows one way: the [`runtime`] receives an [`event`] and passes it to [`update::update`],
//! which changes [`state::App`] and returns [`effect`]s; the runtime carries them out and draws
//! ([`widgets::frame`]). An [`overlay`] over the conversation is one file with its state, keys and
//! drawing. The [`worker`] and the [`outbox`] keep files and templates off the UI thread.

pub mod action;
pub mod active_turn;
mod attach;
pub mod burst;
mod by_hand;
pub mod capabilities;
pub mod clipboard;
pub mod colour;
pub mod commands;
pub mod completion;
pub mod declined;
pub mod depth;
pub mod editor;
pub mod editor_program;
pub mod effect;
mod ends;
pub mod event;
pub mod examples;
pub mod feed;
pub mod find;
pub mod folded;
pub mod heat;
pub mod highlight;
pub mod history;
pub mod keyboard;
pub mod keymap;
pub mod lines;
pub mod links;
pub mod markdown;
pub mod memory;
pub mod models;
pub mod numbers;
mod outbox;
pub mod overlay;
pub mod paths;
pub mod picker;
pub mod prompts;
pub mod ratios;
pub mod refusal;
pub mod restore;
pub mod runtime;
pub mod sessions;
pub mod shell;
pub mod spelling;
pub mod state;
pub mod terminal;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod theme;
pub mod training;
pub mod update;
pub mod vim;
pub mod widgets;
mod worker;

pub use ends::{ExitKind, LoadParts, Loader, Resume};

use crate::config::Settings;
use anyhow::{Context, Result};
use depth::Depth;
use history::HistoryFile;
use keymap::Keymap;
use models::{Given, Models};
use runtime::Runtime;
use sessions::Sessions;
use state::{App, Setup};
use std::sync::Arc;
use theme::Themes;
use training::Trainer;
use worker::Worker;

/// Options of the chat from the command line.
pub struct UiOptions {
    pub settings: Settings,
    pub resume: Resume,
    /// Keep this conversation out of the data folder.
    pub no_session: bool,
    /// `-m` was given: the first conversation is opened with that model.
    pub model_given: bool,
    /// Data kept for every model and conversation.
    pub given: Given,
    pub models: Arc<dyn Models>,
    /// Starts the work of `/train`.
    pub train: Trainer,
}

/// The chat, ready to begin; the terminal is not touched yet.
pub struct Chat {
    runtime: Runtime,
    /// Line by line, for terminals that cannot place a cursor.
    lines: bool,
}

/// Reads themes and keymap. Errors are one line: an unknown theme, a fault in the keymap.
pub fn prepare(options: UiOptions, load: Loader) -> Result<Chat> {
    let mut settings = options.settings;
    let env = |name: &str| std::env::var(name).ok();
    let lines = env("TERM").as_deref() == Some("dumb");
    let background = capabilities::background(&env);
    let themes = Themes { folder: Some(settings.dirs.themes()), background: background.unwrap_or_default() };
    let keymap = Keymap::load(settings.keymap, settings.keymap_file().as_deref())?;
    let depth = if settings.plain { Depth::Ascii } else { Depth::detect(&env) };
    settings.ascii |= !capabilities::unicode(&env);
    let usual = if settings.plain || lines { "ascii" } else { theme::AUTO };
    let named = settings.theme.as_deref().unwrap_or(usual);
    let theme = themes.load(named)?;
    let ask_background = named == theme::AUTO && depth.has_colour() && capabilities::answers(&env);
    let models = options.models;
    let history = HistoryFile::new((!options.no_session).then(|| settings.dirs.data.join("history.jsonl")));
    let (worker, outcomes) = Worker::start().context("cannot start the threads that read and write files")?;
    let folder = settings.dirs.sessions();
    let known = Arc::clone(&models);
    let mut sessions = Sessions::new(folder, options.no_session, worker, known, options.model_given);
    (sessions.cache_disk, sessions.policy_given) = (settings.cache_disk, options.given.policy);
    let loading = LoadParts { load, models, given: options.given, train: options.train };
    let (links, no_session) = (capabilities::links(&env), options.no_session);
    let setup = Setup { settings, themes, keymap, depth, links, by_lines: false, no_session };
    let app = App::new(setup, theme);
    let mut runtime = Runtime::new(app, loading, sessions, history, options.resume, outcomes);
    runtime.follow_background = ask_background;
    Ok(Chat { runtime, lines })
}

impl Chat {
    /// Chats until the user leaves. Returns how it ended, and the id of the open conversation if it
    /// is saved.
    pub fn run(mut self) -> Result<(ExitKind, Option<String>)> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let runtime = &mut self.runtime;
        let exit = if self.lines { tokio.block_on(runtime.run_lines()) } else { tokio.block_on(runtime.run()) }?;
        Ok((exit, self.runtime.sessions.saved.take()))
    }
}
