//! New, saved, opened and exported conversations: the state's side.

use super::{Effect, Opened, Store, Which, note, texts, turns};
use crate::chat::{Conversation, Role};
use crate::protocol::{Command, ModelReference};
use crate::ui::action::Action;
use crate::ui::feed::{Local, LocalKind};
use crate::ui::state::{App, Confirmed, Level, Loading, Overlay, Picker, RatioHistory, SessionEntry, SessionView};
use crate::ui::text::{clean_line, count};
use std::path::PathBuf;

/// Most lines of switches of eviction that are shown of a conversation that was opened.
const MAX_MARKS: usize = 1_000;

/// Begins an empty conversation once the old one is written (/new).
pub fn new_conversation(app: &mut App) -> Vec<Effect> {
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    vec![Effect::Store(Store::Close)]
}

/// Shows the new, empty conversation.
pub fn began_new(app: &mut App, id: String, date: jiff::civil::DateTime) -> Vec<Effect> {
    let system = app.chat.system().map(str::to_owned);
    show(app, Conversation::new(system));
    app.session.id = Some(id);
    app.date = date;
    app.say(Level::Info, "a new conversation");
    vec![Effect::Engine(Command::Clear)]
}

/// Reports that another program changed the session's file.
pub fn moved(app: &mut App, from: &str, to: String) -> Vec<Effect> {
    let text = format!("another program has changed the file of session {from}; this conversation goes on in {to}");
    if app.session.id.as_deref() == Some(from) {
        app.session.id = Some(to);
    }
    note(app, LocalKind::Warning, text)
}

/// Replaces the conversation on the screen.
pub fn show(app: &mut App, chat: Conversation) {
    app.chat = chat;
    app.feed.clear();
    app.editing = None;
    if !app.resuming {
        // They were meant for the old conversation; Up recalls them.
        app.queue.clear();
    }
    app.session = SessionView::default();
    // They are the figures of the conversation before.
    app.engine.snapshot = None;
    app.panel.ratios = RatioHistory::default();
    let more = app.chat.marks().len().saturating_sub(MAX_MARKS);
    if more > 0 {
        let text = format!("{} switches of eviction before these are not shown", count(more as u64));
        app.feed.locals.push(Local::new(None, LocalKind::Note, text));
    }
    for mark in &app.chat.marks()[more..] {
        let text = texts::mark(mark.eviction, mark.at_token, mark.dropped_slots);
        app.feed.locals.push(Local::of_mark(mark, text));
    }
    app.feed.arrange(&app.chat);
}

/// Shows a saved conversation, and loads its cache if that is quick; else the first message does.
pub fn opened(app: &mut App, opened: Opened) -> Vec<Effect> {
    app.opening = false;
    show(app, opened.chat);
    app.overlays.clear();
    app.session = SessionView { id: Some(opened.id), unrestored: true, ..SessionView::default() };
    app.date = opened.date;
    let asked: Vec<String> =
        app.chat.messages().iter().filter(|m| m.role == Role::User).map(|m| m.text.clone()).collect();
    for text in &asked {
        app.history.add_old(text);
    }
    let reports: Vec<_> = app.chat.path().iter().filter_map(|m| m.report.clone()).collect();
    for report in reports {
        let heads: usize = report.kv.live.iter().map(Vec::len).sum();
        app.panel.ratios.push(report.kv.dense_slots as usize / heads.max(1), report.kv.ratio);
    }
    for text in opened.notices {
        note(app, LocalKind::Warning, text);
    }
    if let Some(id) = app.chat.continues().map(clean_line) {
        note(app, LocalKind::Note, format!("continues conversation {id} from a summary; /resume {id} opens it"));
    }
    if !opened.loads {
        note(app, LocalKind::Note, "opened; the cache loads when you send");
    }
    let mut effects = vec![Effect::Engine(Command::Clear)];
    if let Some(eviction) = opened.eviction.filter(|e| *e != app.engine.eviction) {
        let word = if eviction { "on" } else { "off" };
        if app.setup.settings.eviction.is_none() {
            effects.push(Effect::Engine(Command::SetEviction(eviction)));
        } else {
            note(app, LocalKind::Warning, format!("this conversation ended with eviction {word}; now it is not"));
        }
    }
    if opened.loads {
        app.engine.restoring = true;
        effects.push(Effect::Restore);
    }
    if app.resuming {
        effects.extend(turns::send_next(app));
        app.resuming = false;
    }
    effects
}

/// Loads the conversation's model, which then opens it.
pub fn open_needs_model(app: &mut App, which: Which, reference: ModelReference) -> Vec<Effect> {
    app.overlays.clear();
    app.opening = false;
    let stop = app.key(Action::Stop);
    let text = format!("loading {}, which this conversation was held with; {stop} twice stops", reference.model);
    app.say(Level::Info, text);
    app.engine.loading = Some(Loading { then_open: Some(which), ..Loading::new(&reference.name()) });
    vec![Effect::LoadReference(reference)]
}

/// Offers the loaded model for a conversation whose own model cannot be loaded.
pub fn open_lacks_model(app: &mut App, which: Which, model: &str, why: &str) -> Vec<Effect> {
    (app.opening, app.resuming) = (false, false);
    let (model, why) = (clean_line(model), clean_line(why));
    let Some(info) = &app.engine.info else {
        app.say(Level::Error, format!("this conversation was held with {model}, which cannot be loaded: {why}"));
        return Vec::new();
    };
    let question = format!(
        "This conversation was held with {model}, which cannot be loaded: {why}. Open it with {}? Its texts are encoded \
         again.",
        info.name
    );
    app.ask(question, Confirmed::OpenWithCurrent(which));
    Vec::new()
}

/// /save [FILE]
pub fn save(app: &mut App, argument: &str) -> Vec<Effect> {
    let path = (!argument.is_empty()).then(|| PathBuf::from(argument));
    match write_refused(app, "save") {
        true => Vec::new(),
        false => vec![Effect::Store(Store::Save { path, overwrite: false })],
    }
}

/// /export FILE
pub fn export(app: &mut App, argument: &str) -> Vec<Effect> {
    if !(argument.ends_with(".md") || argument.ends_with(".jsonl")) {
        app.say(Level::Error, "/export takes a file name that ends in .md or .jsonl");
        return Vec::new();
    }
    match write_refused(app, "export") {
        true => Vec::new(),
        false => vec![Effect::Store(Store::Export { path: PathBuf::from(argument), overwrite: false })],
    }
}

fn write_refused(app: &mut App, name: &str) -> bool {
    let nothing = app.chat.turns() == 0;
    if nothing {
        app.say(Level::Info, format!("/{name}: nothing to save yet, no answer so far"));
    }
    nothing
}

/// /sessions [WORDS]: lists the conversations, those that match the words first.
pub fn list(app: &mut App, words: &str) -> Vec<Effect> {
    app.session.search = Some(words.to_owned());
    vec![Effect::Store(Store::List)]
}

/// /resume [NAME]
pub fn resume(app: &mut App, argument: &str) -> Vec<Effect> {
    match argument {
        "" if turns::refuse_busy(app) => Vec::new(),
        "" => vec![Effect::Store(Store::List)],
        name => open(app, Which::Named(name.to_owned())),
    }
}

/// Opens a saved conversation in place of this one.
pub fn open(app: &mut App, which: Which) -> Vec<Effect> {
    if turns::refuse_busy(app) {
        return Vec::new();
    }
    begin_opening(app);
    vec![Effect::Store(Store::Open(which))]
}

/// Messages sent from now on belong to the conversation that is being opened.
fn begin_opening(app: &mut App) {
    app.queue.clear();
    (app.opening, app.resuming) = (true, true);
}

/// Opens a conversation with the loaded model, even if its own is another.
pub fn open_with_current(app: &mut App, which: Which) -> Vec<Effect> {
    (app.opening, app.resuming) = (true, true);
    vec![Effect::Store(Store::OpenWithCurrent(which))]
}

/// Reports why a conversation was not opened; the one on the screen stays.
pub fn not_opened(app: &mut App, level: Level, why: &str) -> Vec<Effect> {
    (app.opening, app.resuming) = (false, false);
    app.say(level, why);
    turns::send_next(app)
}

/// Stops reading a conversation.
pub fn stop_opening(app: &mut App) -> Vec<Effect> {
    (app.opening, app.resuming) = (false, false);
    app.say(Level::Info, "stopped: no conversation was opened");
    vec![Effect::Store(Store::StopOpening)]
}

/// /rename TITLE
pub fn rename(app: &mut App, title: &str) -> Vec<Effect> {
    if title.is_empty() {
        app.say(Level::Error, "/rename takes a title");
        return Vec::new();
    }
    app.chat.rename(title);
    app.say(Level::Info, "renamed");
    vec![Effect::Store(Store::Sync)]
}

/// Renames a conversation of the list, which may be the open one.
pub fn rename_saved(app: &mut App, id: String, title: String) -> Vec<Effect> {
    let rename = if app.session.id.as_ref() == Some(&id) {
        app.chat.rename(&title);
        Store::Sync
    } else {
        Store::Rename { id, title }
    };
    vec![Effect::Store(rename), Effect::Store(Store::List)]
}

/// Shows the list of saved conversations.
pub fn listed(app: &mut App, entries: Vec<SessionEntry>) -> Vec<Effect> {
    let open =
        app.overlays.iter_mut().find_map(|o| if let Overlay::Sessions(picker) = o { Some(picker) } else { None });
    if let Some(picker) = open {
        picker.entries = entries;
        picker.clamp_selection();
    } else if entries.is_empty() {
        app.say(Level::Info, "no conversation is saved yet");
    } else {
        let mut picker = Picker { entries, ..Picker::default() };
        picker.query.set(&app.session.search.take().unwrap_or_default());
        app.overlays.push(Overlay::Sessions(picker));
    }
    Vec::new()
}

/// Asks before a conversation is left whose records could not be written.
pub fn ask_leave(app: &mut App, why: &str, then: Store) -> Vec<Effect> {
    let question = format!(
        "{why}. Leave this conversation all the same? It is tried again with every answer; what is not saved when you \
         quit goes to a file in {}.",
        clean_line(&std::env::temp_dir().display().to_string())
    );
    app.ask(question, Confirmed::Leave(then));
    Vec::new()
}

/// Asks before an existing file is replaced.
pub fn ask_overwrite(app: &mut App, path: PathBuf, export: bool) -> Vec<Effect> {
    let question = format!("{} exists. Replace it?", clean_line(&path.display().to_string()));
    app.ask(question, Confirmed::OverwriteFile { path, export });
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::event::AppEvent;
    use crate::ui::testing::{app, model, press, press_with, say, screen};
    use crate::ui::update::update;
    use crossterm::event::{KeyCode, KeyModifiers};
    use std::sync::Arc;

    #[test]
    fn a_conversations_model_is_loaded_before_it_is_opened_or_the_current_one_offered() {
        let mut app = app(100, 24, 8, 4);
        let which = Which::Named("x".into());
        let reference =
            ModelReference { model: "/models/other".into(), adapter: "auto".into(), ..ModelReference::default() };
        let needs = || AppEvent::OpenNeedsModel { which: which.clone(), reference: reference.clone() };
        let opens = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::Store(Store::OpenWithCurrent(_))));
        assert!(matches!(&update(&mut app, needs())[..], [Effect::LoadReference(r)] if *r == reference));
        assert!(screen(&mut app).contains("/models/other"));
        assert!(opens(&update(&mut app, AppEvent::ModelReady(Arc::new(model(8, 4))))) && app.opening);

        update(&mut app, needs());
        assert!(!opens(&update(&mut app, AppEvent::LoadFailed("no room".into()))));
        assert!(screen(&mut app).contains("no room. Open it with demo?"), "{}", screen(&mut app));
        assert!(opens(&press(&mut app, KeyCode::Char('y'))));

        // Stopped: the conversation that is open stays.
        update(&mut app, needs());
        press(&mut app, KeyCode::Esc);
        let effects = press(&mut app, KeyCode::Esc);
        assert!(matches!(effects[..], [Effect::CancelLoad]) && app.engine.loading.is_none(), "{effects:?}");
        assert!(!opens(&update(&mut app, AppEvent::ModelReady(Arc::new(model(8, 4))))));

        // Ctrl+D ends the chat, also where something is asked.
        let why = "/dev/zero is not a regular file but a device".to_owned();
        update(&mut app, AppEvent::OpenLacksModel { which, model: "zero".into(), why });
        assert!(screen(&mut app).contains("/dev/zero"), "{}", screen(&mut app));
        let effects = press_with(&mut app, KeyCode::Char('d'), KeyModifiers::CONTROL);
        assert!(matches!(effects[..], [Effect::Quit]), "{effects:?}");
    }

    #[test]
    fn a_file_of_many_switches_shows_the_last_ones() {
        let mut app = app(100, 24, 8, 4);
        let mut chat = Conversation::new(None);
        for n in 0..3 * MAX_MARKS {
            chat.mark_toggle(n % 2 != 0, n, 0);
        }
        show(&mut app, chat);
        assert_eq!(app.feed.locals.len(), MAX_MARKS + 1);
        assert!(app.feed.locals[0].text.starts_with("2,000 switches"), "{}", app.feed.locals[0].text);
        assert!(app.feed.locals.last().unwrap().text.contains(&count(3 * MAX_MARKS as u64 - 1)));
    }

    #[test]
    fn a_conversation_is_opened_beside_the_screen_and_esc_stops_that() {
        let mut app = app(100, 24, 8, 4);
        assert!(matches!(say(&mut app, "/resume x")[..], [Effect::Store(Store::Open(_))]));
        assert!(screen(&mut app).contains("reading the conversation (Esc stops)"), "{}", screen(&mut app));
        // What is sent meanwhile is meant for that conversation.
        assert!(say(&mut app, "hello").is_empty() && app.queue.len() == 1);
        press(&mut app, KeyCode::Esc);
        assert!(app.opening && app.queue.is_empty(), "Esc takes the message back first");
        app.input.set("");
        assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Store(Store::StopOpening)]));
        assert!(!app.opening);
        say(&mut app, "/resume x");
        update(&mut app, AppEvent::NotOpened(Level::Error, "no session matches \"x\"".into()));
        assert!(!app.opening && screen(&mut app).contains("no session matches"));
    }
}
