//! Everything the screen is drawn from, as plain data. `update` alone writes it, but for the rows
//! that drawing caches in [`Feed`]; nothing here reads a file, a clock or a terminal.

use super::action::Action;
pub use super::active_turn::ActiveTurn;
use super::burst::Burst;
use super::completion::Completion;
use super::depth::Depth;
use super::editor::{Editor, History};
use super::effect::{Effect, Store, Which};
use super::feed::{Feed, Local, LocalKind};
use super::keymap::Keymap;
use super::memory::Memory;
use super::models::Known;
use super::overlay::{Field, Overlay};
pub use super::ratios::RatioHistory;
use super::refusal::{Done, Refusal};
pub use super::restore::{Restore, SessionView};
use super::shell::Shell;
use super::theme::{Theme, Themes};
use super::training::Training;
use super::vim::{Mode, Vim};
use crate::chat::{Conversation, Message, MessageId};
use crate::config::{Settings, Width};
use crate::protocol::{
    Command, Download, DraftSource, Event, MAX_DRAFTS, ModelInfo, Phase, SamplingOverrides, SamplingParams, Snapshot,
    WhenFull,
};
use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Lifetime of an information notice.
const INFO_MS: u64 = 6_000;
/// Most queued messages.
pub const MAX_QUEUE: usize = 20;
/// How long a frame of the spinner is shown.
pub const SPINNER_MS: u64 = 100;
/// Message of commands that need a model: what is missing, and what to do.
pub const NO_MODEL: &str = "no model is loaded; /model NAME loads one";
/// Smaller screens show a notice instead.
pub const MIN_SIZE: (u16, u16) = (30, 8);

/// The whole state of the chat.
pub struct App {
    pub setup: Setup,
    pub theme: Theme,
    pub engine: EngineView,
    pub chat: Conversation,
    /// "Now" to templates, fixed when the conversation begins.
    pub date: jiff::civil::DateTime,
    pub options: ChatOptions,
    pub feed: Feed,
    pub input: Editor,
    /// The mode of the input, where the keymap has modes.
    pub vim: Vim,
    pub history: History,
    pub unsent_count: UnsentCount,
    pub burst: Burst,
    pub completion: Option<Completion>,
    /// The revision of the input that was typed here, key by key.
    pub typed_revision: Option<u64>,
    /// Commands of the shell.
    pub shell: Shell,
    /// Files that are still to be read before the input is sent.
    pub attaching: usize,
    /// The user's message that the input will replace.
    pub editing: Option<MessageId>,
    /// The last one has the keys.
    pub overlays: Vec<Box<dyn Overlay<Self>>>,
    /// When a question was answered by a letter, and the rest of the word that may follow.
    pub answered: Option<(u64, &'static str)>,
    pub turn: Option<ActiveTurn>,
    pub panel: Panel,
    pub memory: Memory,
    pub notice: Option<Notice>,
    /// Messages that wait for the model or for the running answer.
    pub queue: VecDeque<Queued>,
    /// The unsent text set aside while a command is typed; it returns afterwards.
    pub aside: Option<String>,
    /// The text that the program put into the input last; `/` sets it aside.
    pub given_back: Option<String>,
    /// The command whose price was said, and whether the one that runs is that one again.
    pub priced: Option<String>,
    pub paid: bool,
    /// The name and the line of the command that was typed last: a failure that comes later gives
    /// the line back.
    pub ran: Option<(&'static str, String)>,
    /// A conversation is still to be opened; messages sent meanwhile belong to it.
    pub resuming: bool,
    /// A saved conversation is being read.
    pub opening: bool,
    pub mouse: bool,
    /// A predictor that is being made (/train).
    pub training: Option<Training>,
    /// Names of models, read when the chat begins.
    pub models: Known,
    /// Model folders and files of earlier conversations, newest first.
    pub used_models: Vec<String>,
    /// Where this conversation is saved; absent before the first turn and with `--no-session`.
    pub session: SessionView,
    /// Prompts of which was said that a command hides them.
    pub hidden_prompts: HashSet<String>,
    /// When a command was typed last into a page that takes no text.
    pub mistyped_ms: Option<u64>,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// Milliseconds since the start, as of the event being handled.
    pub now_ms: u64,
    /// Requests of the event being handled to the runtime.
    pub effects: Vec<Effect>,
}

/// Settings of the program. All but `settings`, which /profile replaces, are fixed at startup.
pub struct Setup {
    pub settings: Settings,
    pub themes: Themes,
    pub keymap: Keymap,
    pub depth: Depth,
    /// URLs may be written as links.
    pub links: bool,
    /// Lines are read and printed one by one, so that no key does anything.
    pub by_lines: bool,
    /// Nothing is written to the sessions folder.
    pub no_session: bool,
}

/// The engine as the UI knows it.
#[derive(Default)]
pub struct EngineView {
    pub info: Option<Arc<ModelInfo>>,
    pub loading: Option<Loading>,
    /// The model asked for last, and the one in use, as the user named them.
    pub chosen: String,
    pub loaded: String,
    pub snapshot: Option<Arc<Snapshot>>,
    /// Eviction as last reported.
    pub eviction: bool,
    /// As it was asked for since, until the engine has answered.
    pub eviction_asked: Option<bool>,
    /// As it is to be once what runs has ended: several chains, or a conversation that is loaded.
    pub eviction_later: Option<bool>,
    /// The compression ratio expected since it was set, and the one of training.
    pub dial: Option<(f64, f64)>,
    /// Done and total tokens of a running rebuild or restore.
    pub rebuilding: Option<(usize, usize)>,
    /// The model is being asked for a text (/recall).
    pub recalling: bool,
    /// The summary that is being written (/compact), so far.
    pub compacting: Option<Compacting>,
    /// The answer without eviction that is being written (/compare).
    pub comparing: Option<Comparison>,
    /// Answers are compared with a twin (/twin).
    pub twin: bool,
    /// Why the engine has ended.
    pub failed: Option<String>,
}

/// An answer that is written again without eviction: the first one, and the text so far.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub answer: MessageId,
    pub text: String,
}

impl EngineView {
    pub fn phase(&self) -> Phase {
        self.snapshot.as_ref().map(|s| s.phase.clone()).unwrap_or_default()
    }
}

/// A summary that is being written.
#[derive(Clone, Debug)]
pub struct Compacting {
    pub text: String,
    /// The last message that it covers.
    pub upto: MessageId,
}

/// A model that is being loaded.
#[derive(Clone, Debug)]
pub struct Loading {
    pub name: String,
    /// The last report of what runs now, and how far it is: one of the first events of [`Event`].
    pub progress: Option<Event>,
    /// The conversation to open with it.
    pub then_open: Option<Which>,
    /// Files of it were downloaded.
    pub downloaded: bool,
}

impl Loading {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), progress: None, then_open: None, downloaded: false }
    }

    pub fn download(&self) -> Option<&Download> {
        match &self.progress {
            Some(Event::Downloading(download)) => Some(download),
            _ => None,
        }
    }
}

/// Options that /set, /think and similar commands change.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    pub think: bool,
    pub keep_thinking: Option<bool>,
    /// Values that the user set; [`App::sampling`] has all of them.
    pub sampling: SamplingOverrides,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    /// Tokens after which a thought is closed; 0 never, `None`: the model's default.
    pub max_think: Option<usize>,
    /// Most tokens that a step tries beside its own.
    pub drafts: usize,
    /// How many chains answer.
    pub width: Width,
    pub kv_limit: Option<u64>,
    /// Behaviour when memory runs out; `None`: the default of the model's kind of cache.
    pub when_full: Option<WhenFull>,
}

impl ChatOptions {
    /// The options that a chat begins with.
    pub fn of(settings: &Settings) -> Self {
        Self {
            think: settings.think,
            keep_thinking: settings.keep_thinking,
            sampling: settings.sampling,
            seed: settings.seed,
            max_tokens: settings.max_tokens,
            max_think: settings.max_think,
            drafts: if settings.draft == DraftSource::Off { 0 } else { MAX_DRAFTS },
            width: settings.width,
            kv_limit: settings.kv_limit,
            when_full: settings.when_full,
        }
    }
}

/// The token count of the unsent text.
#[derive(Clone, Debug, Default)]
pub struct UnsentCount {
    /// The revision of the text; 0 if it is not counted.
    pub id: u64,
    pub changed_ms: u64,
    pub asked: bool,
    pub tokens: Option<usize>,
}

impl UnsentCount {
    /// Returns the number to show: of this text, or of the previous one while this one is counted.
    pub fn shown(&self) -> Option<usize> {
        self.tokens.filter(|_| self.id != 0)
    }

    pub fn counted(&mut self, id: u64, tokens: usize) {
        if self.id == id {
            self.tokens = Some(tokens);
        }
    }
}

/// A queued message.
#[derive(Clone, Debug, PartialEq)]
pub struct Queued {
    pub text: String,
    /// The message that it replaces.
    pub replaces: Option<MessageId>,
    /// Number of chains that answer it, if it differs from the setting.
    pub width: Option<Width>,
}

/// One line above the input.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    pub text: String,
    pub level: Level,
    /// When it disappears; warnings and errors stay until the next key that does something.
    pub until_ms: Option<u64>,
    pub about: About,
}

/// The subject of a notice, with which it disappears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    Nothing,
    /// The running answer or rebuild.
    Busy,
    /// The same key again quits.
    Quit,
    /// The same key again stops the loading of a model.
    StopLoading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// What a heatmap of layers and KV heads shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The share of the tokens that each head still keeps.
    #[default]
    Kept,
    /// The far pages that each head fetched in the newest turn.
    Fetched,
}

/// The cache panel.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Hidden by the user; else shown wherever it fits.
    pub hidden: bool,
    /// What its heatmap shows, where there is something of it.
    pub shown: Shown,
    pub ratios: RatioHistory,
    /// First row of the heatmap shown, where it does not fit.
    pub scroll: usize,
}

impl App {
    pub fn new(setup: Setup, theme: Theme) -> Self {
        let settings = &setup.settings;
        let options = ChatOptions::of(settings);
        let engine = EngineView {
            eviction: settings.eviction.unwrap_or(true),
            chosen: settings.model.clone(),
            ..EngineView::default()
        };
        let mut app = Self {
            chat: Conversation::new(settings.system.clone()),
            date: jiff::civil::DateTime::default(),
            mouse: settings.mouse,
            options,
            engine,
            theme: theme.clone(),
            feed: Feed::default(),
            input: Editor::default(),
            vim: Vim::default(),
            history: History::default(),
            unsent_count: UnsentCount::default(),
            burst: Burst::default(),
            completion: None,
            typed_revision: None,
            shell: Shell::default(),
            attaching: 0,
            editing: None,
            overlays: Vec::new(),
            answered: None,
            turn: None,
            panel: Panel::default(),
            memory: Memory::default(),
            notice: None,
            training: None,
            models: Known::default(),
            used_models: Vec::new(),
            queue: VecDeque::new(),
            aside: None,
            given_back: None,
            priced: None,
            paid: false,
            ran: None,
            resuming: false,
            opening: false,
            session: SessionView::default(),
            hidden_prompts: HashSet::new(),
            mistyped_ms: None,
            size: (80, 24),
            now_ms: 0,
            effects: Vec::new(),
            setup,
        };
        app.set_theme(theme);
        app
    }

    /// How the next answer is sampled: as set by the user, else as the model recommends.
    pub fn sampling(&self) -> SamplingParams {
        let model = self.engine.info.as_ref().map(|info| info.default_sampling.clone());
        self.options.sampling.over(&model.unwrap_or_default())
    }

    /// True while an answer, a rebuild, a restore, a recall test or a summary runs, or a
    /// conversation is being read.
    pub fn is_busy(&self) -> bool {
        let EngineView { rebuilding, recalling, compacting, comparing, .. } = &self.engine;
        let asks = *recalling || compacting.is_some() || comparing.is_some();
        self.turn.is_some() || rebuilding.is_some() || self.session.is_restoring() || asks || self.opening
    }

    /// Whether a switch of eviction has to wait: the engine feeds or answers on copies of the
    /// conversation, or has not answered the previous switch.
    pub fn defers_switches(&self) -> bool {
        let chains = self.turn.as_ref().is_some_and(|turn| turn.chains.is_some());
        self.session.is_restoring() || chains || self.engine.eviction_asked.is_some()
    }

    /// True if the cache is empty and the conversation is not: the next message prefills all of it.
    pub fn has_to_refill(&self) -> bool {
        self.engine.snapshot.as_ref().is_some_and(|s| s.tokens == 0) && !self.chat.context_path().is_empty()
    }

    /// Sets the theme, reduced to the colours of the terminal.
    pub fn set_theme(&mut self, theme: Theme) {
        let settings = &self.setup.settings;
        self.theme = theme.at_depth(if settings.plain { Depth::Mono } else { self.setup.depth });
        self.theme.ascii |= settings.plain || settings.ascii;
        self.feed.generation += 1;
    }

    /// Returns the name of an action's first key, for texts.
    pub fn key(&self, action: Action) -> String {
        let types = match self.overlays.len() {
            0 => self.vim.mode == Mode::Insert,
            open => self.vim.field_of == open,
        };
        let keymap = &self.setup.keymap;
        if types { keymap.key_while_typing(action) } else { keymap.key_of(action) }
    }

    /// With Vim's keys: the mode of the input, or of the field of a page, for the status line.
    pub fn mode(&self) -> String {
        let typed = match self.overlays.last().map(|top| top.field()) {
            None => return self.vim.label(),
            Some(Field::Text) => true,
            Some(_) => self.vim.field_of == self.overlays.len(),
        };
        if typed { "insert" } else { "normal" }.to_owned()
    }

    /// Returns the colour depth of the heatmap.
    pub fn depth(&self) -> Depth {
        if self.theme.ascii { Depth::Ascii } else { self.setup.depth }
    }

    pub fn say(&mut self, level: Level, text: impl Into<String>) {
        self.say_about(About::Nothing, level, text);
    }

    pub fn info(&mut self, text: impl Into<String>) {
        self.say(Level::Info, text);
    }

    /// Like [`Self::info`], as the end of a command.
    pub fn tell(&mut self, text: impl Into<String>) -> Done {
        self.info(text);
        Ok(())
    }

    pub fn error(&mut self, text: impl Into<String>) {
        self.say(Level::Error, text);
    }

    /// Asks the runtime for something.
    pub fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub fn send(&mut self, command: Command) {
        self.emit(Effect::Engine(command));
    }

    pub fn store(&mut self, what: Store) {
        self.emit(Effect::Store(what));
    }

    /// Adds a line of the program to the conversation. What went wrong is also said over the input
    /// while the end of the conversation is out of view.
    pub fn note(&mut self, kind: LocalKind, text: impl Into<String>) {
        let text = text.into();
        let level = match kind {
            LocalKind::Warning => Some(Level::Warning),
            LocalKind::Error => Some(Level::Error),
            LocalKind::Mark | LocalKind::Note | LocalKind::Table => None,
        };
        let covered = self.overlays.iter().any(|overlay| overlay.hides_banner());
        if let Some(level) = level.filter(|_| covered || !self.feed.is_following()) {
            self.say(level, text.clone());
        }
        self.feed.push_local(&self.chat, kind, text);
    }

    /// Adds a line that the user asked for, and scrolls it into view.
    pub fn result(&mut self, kind: LocalKind, text: impl Into<String>) {
        self.feed.push_result(&self.chat, Local::new(self.chat.head(), kind, text));
    }

    /// The loaded model; most commands need one.
    pub fn model(&self) -> Result<Arc<ModelInfo>, Refusal> {
        self.engine.info.clone().ok_or_else(|| NO_MODEL.into())
    }

    /// Opens an overlay over the others.
    pub fn open(&mut self, overlay: impl Overlay<Self>) {
        self.overlays.push(Box::new(overlay));
    }

    /// Returns the open overlay of this type.
    pub fn overlay<T: Overlay<Self>>(&self) -> Option<&T> {
        self.overlays.iter().find_map(|overlay| (&**overlay as &dyn Any).downcast_ref())
    }

    pub fn overlay_mut<T: Overlay<Self>>(&mut self) -> Option<&mut T> {
        self.overlays.iter_mut().find_map(|overlay| (&mut **overlay as &mut dyn Any).downcast_mut())
    }

    /// Shows a notice that disappears with its subject.
    pub fn say_about(&mut self, about: About, level: Level, text: impl Into<String>) {
        let until_ms = (level == Level::Info).then_some(self.now_ms + INFO_MS);
        self.notice = Some(Notice { text: text.into(), level, until_ms, about });
    }

    /// Removes a notice that has expired or whose subject is over.
    pub fn expire_notice(&mut self) {
        let Some(notice) = &self.notice else { return };
        let over = match notice.about {
            About::Busy => !self.is_busy(),
            About::StopLoading => self.engine.loading.is_none(),
            About::Nothing | About::Quit => false,
        };
        if over || notice.until_ms.is_some_and(|until| self.now_ms >= until) {
            self.notice = None;
        }
    }

    /// Returns the subject of the notice on the screen: the same key again confirms it.
    pub fn asked(&self) -> About {
        self.notice.as_ref().map_or(About::Nothing, |n| n.about)
    }

    /// Returns the message that fold and copy act on: the selected one, else the last answer.
    pub fn target(&self) -> Option<&Message> {
        if let Some(id) = self.feed.selected {
            return self.chat.get(id);
        }
        self.chat.path().into_iter().rev().find(|m| m.role == crate::chat::Role::Assistant)
    }

    /// Returns the terminal's title.
    pub fn title(&self) -> String {
        let title = super::text::clean_line(&self.chat.title_or_first_line());
        match title.trim() {
            "" => "dmschat".to_owned(),
            title => super::text::truncate(&format!("{title} - dmschat"), 80),
        }
    }

    /// Tokens fed, as of the last snapshot.
    pub fn tokens(&self) -> usize {
        self.engine.snapshot.as_ref().map_or(0, |s| s.tokens)
    }
}
