//! New, saved, opened and exported conversations: the state's side.

use super::{texts, turns};
use crate::chat::{Conversation, MessageId, Role};
use crate::protocol::{Command, ModelReference};
use crate::ui::action::Action;
use crate::ui::commands::command;
use crate::ui::effect::{Effect, Store, Which};
use crate::ui::event::{NewSession, Opened};
use crate::ui::feed::{Local, LocalKind};
use crate::ui::state::{App, Level, Loading, RatioHistory, Restore, SessionView};
use crate::ui::text::{clean_line, count, on_or_off};
use std::path::PathBuf;

/// Most lines of switches of eviction that are shown of a conversation that was opened.
const MAX_MARKS: usize = 1_000;

/// Notes the session that the conversation is saved in.
pub fn began(app: &mut App, NewSession { id, date }: NewSession) {
    (app.session.id, app.date) = (Some(id), date);
}

/// Shows the new, empty conversation.
pub fn began_new(app: &mut App, session: NewSession) {
    let system = app.chat.system().map(str::to_owned);
    show(app, Conversation::new(system));
    began(app, session);
    app.info("a new conversation");
    app.send(Command::Clear);
}

/// Reports that another program changed the session's file.
pub fn moved(app: &mut App, from: &str, to: String) {
    let text = format!("another program has changed the file of session {from}; this conversation continues in {to}");
    if app.session.id.as_deref() == Some(from) {
        app.session.id = Some(to);
    }
    app.note(LocalKind::Warning, text);
}

/// Replaces the conversation on the screen.
pub fn show(app: &mut App, chat: Conversation) {
    app.chat = chat;
    app.feed.clear();
    app.editing = None;
    if !app.resuming {
        // They were meant for the old conversation; Up recalls them.
        app.queue.clear();
        app.shell.running = None;
    }
    app.session = SessionView::default();
    (app.engine.eviction_asked, app.engine.eviction_later) = (None, None);
    let keeps_far = texts::keeps_far(app);
    // They are the figures of the conversation before.
    app.engine.snapshot = None;
    app.panel.ratios = RatioHistory::default();
    let marks = app.chat.shown_marks();
    let more = marks.len().saturating_sub(MAX_MARKS);
    if more > 0 {
        let text = format!("{} earlier switches of eviction are not shown", count(more as u64));
        app.feed.locals.push(Local::new(None, LocalKind::Note, text));
    }
    for mark in &marks[more..] {
        let text = match app.engine.info.as_ref().is_some_and(|info| info.is_remote) {
            true => texts::mark_on_server(mark.eviction).to_owned(),
            false => texts::mark(keeps_far, mark.eviction, mark.at_token, mark.dropped_slots),
        };
        app.feed.locals.push(Local::of_mark(mark, text));
    }
    app.feed.arrange(&app.chat);
}

/// Shows a saved conversation, and loads its cache if that is quick; else the first message does.
pub fn opened(app: &mut App, opened: Opened) {
    app.opening = false;
    let wanted = app.session.wanted.take();
    show(app, opened.chat);
    app.overlays.clear();
    let restore = Restore::Waiting(opened.restore);
    app.session = SessionView { id: Some(opened.id), restore, ..SessionView::default() };
    app.date = opened.date;
    let asked: Vec<String> =
        app.chat.messages().iter().filter(|m| m.role == Role::User).map(|m| m.text.clone()).collect();
    for text in &asked {
        app.history.add_old(text);
    }
    let reports: Vec<_> = app.chat.path().iter().filter_map(|m| m.report.clone()).collect();
    for report in reports {
        app.panel.ratios.push(report.kv.tokens() as usize, report.kv.ratio);
    }
    for text in opened.notices {
        app.note(LocalKind::Warning, text);
    }
    if let Some(id) = app.chat.continues().map(clean_line) {
        app.note(LocalKind::Note, format!("continues conversation {id} from a summary; /resume {id} opens it"));
    }
    if !opened.loads {
        app.note(LocalKind::Note, "opened; the cache loads when you send");
    }
    app.send(Command::Clear);
    if let Some(eviction) = opened.eviction.filter(|e| *e != app.engine.eviction) {
        if app.setup.settings.eviction.is_none() {
            app.send(Command::SetEviction(eviction));
        } else {
            app.note(
                LocalKind::Warning,
                format!(
                    "this conversation ended with eviction {}; it is {} now",
                    on_or_off(eviction),
                    on_or_off(!eviction)
                ),
            );
        }
    }
    if opened.loads {
        load_cache(app);
    }
    if let Some(id) = wanted {
        show_message(app, id);
    }
    if app.resuming {
        turns::send_next(app);
        app.resuming = false;
    }
}

/// Chooses a message and scrolls to it.
pub fn show_message(app: &mut App, id: MessageId) {
    if app.chat.path().iter().any(|message| message.id == id) {
        return app.feed.show_message(id);
    }
    let keys = [Action::BranchOlder, Action::BranchNewer].map(|action| app.key(action)).join(" and ");
    app.info(format!("that message is in another version of the conversation; {keys} switch versions"));
}

/// Loads a conversation that was opened into the cache. Its file is not written before the
/// conversation continues.
pub fn load_cache(app: &mut App) {
    if let Some(request) = app.session.load() {
        app.send(Command::KeepCache(None));
        app.send(Command::Restore(request));
    }
}

/// Loads the conversation's model, which then opens it.
pub fn open_needs_model(app: &mut App, which: Which, reference: ModelReference) {
    app.overlays.clear();
    app.opening = false;
    let stop = app.key(Action::Stop);
    let text = format!("loading {}, the model of this conversation; {stop} twice stops", reference.model);
    app.info(text);
    app.engine.loading = Some(Loading { then_open: Some(which), ..Loading::new(&reference.name()) });
    app.emit(Effect::LoadReference(reference));
}

/// Offers the loaded model for a conversation whose own model cannot be loaded.
pub fn open_lacks_model(app: &mut App, which: Which, model: &str, why: &str) {
    (app.opening, app.resuming) = (false, false);
    let (model, why) = (clean_line(model), clean_line(why));
    let Some(info) = &app.engine.info else {
        return app.error(format!("this conversation was held with {model}, which cannot be loaded: {why}"));
    };
    let question = format!(
        "This conversation was held with {model}, which cannot be loaded: {why}. Open it with {}? Its texts are encoded \
         again.",
        info.identity.name
    );
    app.ask(question, |app| open_with_current(app, which));
}

/// Opens a saved conversation in place of this one. Messages sent from now on belong to it.
pub fn open(app: &mut App, which: Which) {
    app.queue.clear();
    // From a list, not by the command that was typed last.
    app.ran.take_if(|_| matches!(which, Which::Id(_)));
    begin_to_open(app, which, false);
}

/// Opens a conversation with the loaded model, even if its own is another.
pub fn open_with_current(app: &mut App, which: Which) {
    begin_to_open(app, which, true);
}

fn begin_to_open(app: &mut App, which: Which, with_current: bool) {
    (app.opening, app.resuming) = (true, true);
    app.store(Store::Open { which, with_current });
}

/// Reports why a conversation was not opened; the one on the screen stays.
pub fn not_opened(app: &mut App, level: Level, why: &str) {
    (app.opening, app.resuming) = (false, false);
    match level {
        Level::Error => command::failed(app, "resume", why),
        level => app.say(level, why),
    }
    turns::send_next(app);
}

/// Stops reading a conversation.
pub fn stop_opening(app: &mut App) {
    (app.opening, app.resuming) = (false, false);
    app.info("stopped: no conversation was opened");
    app.store(Store::StopOpening);
}

/// Renames a conversation of the list, which may be the open one.
pub fn rename_saved(app: &mut App, id: String, title: String) {
    if app.session.id.as_ref() == Some(&id) {
        app.chat.rename(&title);
        app.store(Store::Sync);
    } else {
        app.store(Store::Rename { id, title });
    }
    app.store(Store::List);
}

/// Asks before a conversation is left whose records could not be written.
pub fn ask_leave(app: &mut App, why: &str, then: Store) {
    let question = format!(
        "{why}. Leave this conversation anyway? Saving is tried again after every answer; text that is not saved when \
         you quit goes to a file in {}.",
        clean_line(&std::env::temp_dir().display().to_string())
    );
    app.ask(question, |app| app.store(Store::Leave(Box::new(then))));
}

/// Asks before an existing file is replaced.
pub fn ask_overwrite(app: &mut App, path: PathBuf, export: bool) {
    let question = format!("{} exists. Replace it?", clean_line(&path.display().to_string()));
    app.ask(question, move |app| {
        app.store(match export {
            true => Store::Export { path, overwrite: true },
            false => Store::Save { path: Some(path), overwrite: true },
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::*;

    #[test]
    fn a_conversations_model_is_loaded_before_it_is_opened_or_the_current_one_offered() {
        let mut app = app(100, 24, 8, 4);
        let which = Which::Named("x".into());
        let reference =
            ModelReference { model: "/models/other".into(), adapter: "auto".into(), ..ModelReference::default() };
        let needs = || AppEvent::OpenNeedsModel { which: which.clone(), reference: reference.clone() };
        let opens = |effects: &[Effect]| {
            effects.iter().any(|e| matches!(e, Effect::Store(Store::Open { with_current: true, .. })))
        };
        assert!(matches!(&update(&mut app, needs())[..], [Effect::LoadReference(r)] if *r == reference));
        assert!(screen(&mut app).contains("/models/other"));
        assert!(opens(&ready(&mut app, model(8, 4))) && app.opening);

        update(&mut app, needs());
        assert!(!opens(&update(&mut app, AppEvent::LoadFailed("no room".into()))));
        assert!(screen(&mut app).contains("no room. Open it with demo?"), "{}", screen(&mut app));
        assert!(opens(&press(&mut app, KeyCode::Char('y'))));

        // Stopped: the conversation that is open stays.
        update(&mut app, needs());
        press(&mut app, KeyCode::Esc);
        let effects = press(&mut app, KeyCode::Esc);
        assert!(matches!(effects[..], [Effect::CancelLoad]) && app.engine.loading.is_none(), "{effects:?}");
        assert!(!opens(&ready(&mut app, model(8, 4))));

        // Ctrl+D ends the chat, also where something is asked.
        let why = "/dev/zero is not a regular file but a device".to_owned();
        update(&mut app, AppEvent::OpenLacksModel { which, model: "zero".into(), why });
        assert!(screen(&mut app).contains("/dev/zero"), "{}", screen(&mut app));
        let effects = ctrl(&mut app, 'd');
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
        assert!(app.feed.locals[0].text.starts_with("2,000 earlier switches"), "{}", app.feed.locals[0].text);
        assert!(app.feed.locals.last().unwrap().text.contains(&count(3 * MAX_MARKS as u64 - 1)));
    }

    #[test]
    fn a_conversation_is_opened_beside_the_screen_and_esc_stops_that() {
        let mut app = app(100, 24, 8, 4);
        assert!(matches!(say(&mut app, "/resume x")[..], [Effect::Store(Store::Open { with_current: false, .. })]));
        assert!(screen(&mut app).contains("reading the conversation (Esc stops)"), "{}", screen(&mut app));
        // Text sent meanwhile is meant for that conversation.
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
