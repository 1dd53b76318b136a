//! Opening, leaving and a disk that stalls, with real files.

use super::*;
use crate::config::Settings;
use crate::protocol::ModelReference;
use crate::ui::history::HistoryFile;
use crate::ui::models::{Given, Known, ModelEntry};
use crate::ui::testing::{self, app, turn};
use crate::ui::update::update;
use crate::ui::worker::Outcomes;

struct Gone;

impl Models for Gone {
    fn find(&self, _: &crate::protocol::ModelIdentity) -> Result<ModelReference, String> {
        Err("it is gone".into())
    }

    fn settings(&self, _: &ModelReference, settings: &Settings, _: Given) -> Settings {
        settings.clone()
    }

    fn full_name(&self, name: &str) -> String {
        name.to_owned()
    }

    fn known(&self, _: &Settings) -> Known {
        Known::default()
    }

    fn list(&self, _: &Settings, _: &[String]) -> Vec<ModelEntry> {
        Vec::new()
    }
}

fn start(dir: &Path, app: &App) -> (Sessions, Outcomes) {
    let (worker, outcomes) = Worker::start().unwrap();
    let mut sessions = Sessions::new(dir.join("sessions"), false, worker, Arc::new(Gone), false);
    sessions.info = app.engine.info.clone();
    (sessions, outcomes)
}

fn open(which: &Which, with_current: bool) -> Store {
    Store::Open { which: which.clone(), with_current }
}

/// The events after the write that runs.
fn written(sessions: &mut Sessions, outcomes: &mut Outcomes, app: &App) -> Vec<AppEvent> {
    match outcomes.blocking_recv() {
        Some(Outcome::Written(written)) => sessions.written(app, written),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stalled_disk_holds_neither_the_screen_nor_the_end() {
    let (dir, mut app) = (tempfile::tempdir().unwrap(), app(100, 24, 8, 4));
    let lock = std::fs::File::create(dir.path().join("history.jsonl")).unwrap();
    lock.lock().unwrap();
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    // Each waits half a second for the lock: the writer is busy for 40 s.
    let history = HistoryFile::new(Some(dir.path().join("history.jsonl")));
    for n in 0..80 {
        let history = history.clone();
        sessions.worker.write(move || {
            history.append(&n.to_string());
            None
        });
    }
    turn(&mut app, "q", "", "a");
    sessions.record(&app.chat.clone(), app.chat.take_changes());
    let begin = Instant::now();
    assert!(sessions.run(&app, Store::Sync).is_empty());
    assert!(sessions.run(&app, Store::Close).is_empty() && sessions.overdue_at().is_some());
    sessions.run(&app, Store::List);
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
        // Other files are read meanwhile.
        assert!(matches!(outcomes.recv().await, Some(Outcome::Events(_))));
        let line = sessions.leave(&mut outcomes).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30), "it waited for the disk");
        assert!(line.starts_with("the disk does not answer; conversation "), "{line}");
        let path = line.split_once(" is kept in ").unwrap().1.split_once(';').unwrap().0;
        let kept = session::load(&std::fs::read(path).unwrap(), "s").unwrap();
        assert_eq!(kept.conversation.turns(), 1);
        std::fs::remove_file(path).unwrap();
        drop(lock);
        sessions.worker.end(&mut outcomes, Duration::from_secs(30)).await;
    });
}

#[test]
fn a_conversation_is_read_once_and_waits_for_the_decision_about_its_model() {
    let (dir, mut app) = (tempfile::tempdir().unwrap(), app(100, 24, 8, 4));
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    turn(&mut app, "q", "", "a");
    sessions.record(&app.chat.clone(), app.chat.take_changes());
    let which = Which::Id(sessions.session.id().to_owned());
    assert!(sessions.run(&app, Store::Close).is_empty());
    let events = written(&mut sessions, &mut outcomes, &app);
    assert!(matches!(events[..], [AppEvent::NewConversation(_)]), "{events:?}");

    let mut answer = || match outcomes.blocking_recv() {
        Some(Outcome::Read(read)) => read,
        other => panic!("{other:?}"),
    };
    // Stopped: what comes all the same is nobody's.
    assert!(sessions.run(&app, open(&which, false)).is_empty());
    sessions.run(&app, Store::StopOpening);
    assert!(sessions.expect(answer()).is_none());
    // Held with another model, which is gone: it is kept, locked, until the user has decided.
    let mut other = crate::ui::testing::model(8, 4);
    other.identity.model_fingerprint = "other".into();
    app.engine.info = Some(Arc::new(other));
    assert!(sessions.run(&app, open(&which, false)).is_empty());
    let read = sessions.expect(answer()).unwrap();
    let events = sessions.was_read(&app, read);
    assert!(matches!(&events[..], [AppEvent::OpenLacksModel { why, .. }] if why == "it is gone"), "{events:?}");
    let events = sessions.run(&app, open(&which, true));
    assert!(matches!(&events[..], [AppEvent::Opened(o)] if o.chat.turns() == 1), "{events:?}");
    let events = sessions.run(&app, open(&which, false));
    assert!(matches!(&events[..], [AppEvent::NotOpened(..)]), "{events:?}");
}

#[test]
fn an_unsaved_conversation_stays_until_another_one_is_open() {
    let (dir, mut app) = (tempfile::tempdir().unwrap(), app(100, 24, 8, 4));
    // A file where the folder should be: nothing can be written.
    std::fs::write(dir.path().join("sessions"), "").unwrap();
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    turn(&mut app, "q", "", "a");
    sessions.record(&app.chat.clone(), app.chat.take_changes());
    let id = sessions.session.id().to_owned();
    let open = open(&Which::Named("none".to_owned()), false);
    assert!(sessions.run(&app, open.clone()).is_empty());
    let events = written(&mut sessions, &mut outcomes, &app);
    assert!(matches!(&events[..], [AppEvent::NotSaved { then, .. }] if *then == open), "{events:?}");

    assert!(sessions.run(&app, Store::Leave(Box::new(open))).is_empty());
    let Some(Outcome::Read(read)) = outcomes.blocking_recv() else { panic!("it was not read") };
    let read = sessions.expect(read).unwrap();
    let events = sessions.was_read(&app, read);
    assert!(matches!(&events[..], [AppEvent::NotOpened(Level::Error, _)]), "{events:?}");
    assert_eq!(sessions.session.id(), id, "the conversation on the screen is still the open one");

    let events = sessions.run(&app, Store::Leave(Box::new(Store::Close)));
    assert!(matches!(events[..], [AppEvent::NewConversation(_)]), "{events:?}");
    assert!(sessions.session.id() != id && sessions.left.len() == 1);
}

#[test]
fn a_compacted_conversation_names_the_old_one_and_leaves_its_file_untouched() {
    let (dir, mut app) = (tempfile::tempdir().unwrap(), app(100, 24, 8, 4));
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    turn(&mut app, "the code is seven", "", "Noted.");
    sessions.record(&app.chat.clone(), app.chat.take_changes());
    sessions.run(&app, Store::Sync);
    assert!(written(&mut sessions, &mut outcomes, &app).is_empty());
    let (old, path) = (sessions.session.id().to_owned(), sessions.session.path().unwrap().to_owned());
    let before = std::fs::read(&path).unwrap();

    let report = crate::ui::testing::report(0, crate::protocol::StopReason::End);
    let (question, answer) = (crate::ui::commands::compact::QUESTION.to_owned(), "The code is seven.".to_owned());
    let turns = vec![crate::ui::effect::TakenOver { question, reasoning: None, answer, report }];
    let summary = crate::ui::effect::Summary { turns, what: "from this summary".into() };
    let mut events = sessions.run(&app, Store::Compact(Box::new(summary)));
    let event = events.pop().expect("nothing waits for the disk");
    assert!(matches!(&event, AppEvent::Compacted { continues: Some(id), .. } if *id == old), "{event:?}");
    update(&mut app, event);
    sessions.record(&app.chat.clone(), app.chat.take_changes());
    sessions.run(&app, Store::Sync);
    assert!(written(&mut sessions, &mut outcomes, &app).is_empty());
    assert_eq!(std::fs::read(&path).unwrap(), before);

    // In the list, and when it is read again.
    sessions.run(&app, Store::List);
    let Some(Outcome::Events(events)) = outcomes.blocking_recv() else { panic!("no list") };
    let [AppEvent::Sessions(entries)] = &events[..] else { panic!("{events:?}") };
    let link = |entry: &SessionEntry| (entry.title.clone(), entry.continues.clone());
    let mut links: Vec<_> = entries.iter().map(link).collect();
    links.sort();
    let title = "the code is seven".to_owned();
    assert_eq!(links, [(title.clone(), None), (format!("{title}, continued"), Some(old.clone()))]);
    update(&mut app, AppEvent::Sessions(entries.iter().filter(|e| e.continues.is_some()).cloned().collect()));
    assert!(crate::ui::testing::screen(&mut app).contains(&format!("continues {old}; Enter opens")));
    let mut loaded = session::load(sessions.session.jsonl().as_bytes(), "s").unwrap();
    assert_eq!((loaded.problems.len(), loaded.conversation.continues()), (0, Some(&*old)));
    let texts: Vec<&str> = loaded.conversation.path().iter().map(|m| &*m.text).collect();
    assert_eq!(texts, [crate::ui::commands::compact::QUESTION, "The code is seven."]);
    let (request, notice) = loaded.restore_for(app.engine.info.as_ref().unwrap());
    assert_eq!((request.log.len(), request.pending, notice), (0, None, None));
}

/// An open conversation is exported as the status line says, not as it was after its last turn.
#[test]
fn an_export_has_the_figures_of_now() {
    let mut app = testing::app(100, 24, 8, 4);
    testing::turn(&mut app, "question", "hm", "answer");
    let info = app.engine.info.clone().unwrap();
    let export = |now: Option<&Snapshot>| session::markdown(&app.chat, &info, &session::Policies::new(), now);
    let now = testing::snapshot(900, 8, 4);
    let kv = crate::protocol::KvStats { ratio: Some(6.765_446_559_297_218), live_slots: 10_245, ..now.kv.clone() };
    let text = export(Some(&Snapshot { eviction: false, kv, ..now }));
    for field in ["eviction: false", "ratio: 6.77", "live_slots: 10245", "decode_tok_s: 312.4"] {
        assert!(text.contains(&format!("\n{field}\n")), "{field}: {text}");
    }
    // Of a conversation that is not in the cache the last turn says what there is to say.
    assert!(export(None).contains("\neviction: true\n"));
}

/// A link where a conversation is to be saved counts as a file: it is asked about, then replaced
/// itself. What it leads to stays as it was.
#[cfg(unix)]
#[test]
fn a_file_is_not_written_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let mut app = testing::app(100, 24, 8, 4);
    testing::turn(&mut app, "question", "hm", "answer");
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    let (victim, gone) = (dir.path().join("victim"), dir.path().join("gone"));
    std::fs::write(&victim, "mine").unwrap();
    for (name, to) in [("a.md", &victim), ("b.jsonl", &victim), ("c.md", &gone), ("d.jsonl", &gone)] {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(to, &path).unwrap();
        for overwrite in [false, true] {
            let mut events = Vec::new();
            match name {
                "a.md" | "c.md" => sessions.export(&app, path.clone(), overwrite, true),
                _ => sessions.save(&app, Some(path.clone()), overwrite, &mut events),
            }
            match outcomes.blocking_recv() {
                Some(Outcome::Events(all)) => events.extend(all),
                Some(Outcome::Written(written)) => events.extend(sessions.written(&app, written)),
                other => panic!("{other:?}"),
            }
            let asked = events.iter().any(|event| matches!(event, AppEvent::Exists { .. }));
            assert_eq!((asked, path.is_symlink()), (!overwrite, !overwrite), "{name}");
        }
        assert_eq!((std::fs::read_to_string(&victim).unwrap().as_str(), gone.exists()), ("mine", false), "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_written_names_its_command() {
    let (dir, mut app) = (tempfile::tempdir().unwrap(), app(100, 24, 8, 4));
    let (mut sessions, mut outcomes) = start(dir.path(), &app);
    turn(&mut app, "question", "hm", "answer");
    let path = dir.path().join("nosuch/x.md");
    let export = Store::Export { path: path.clone(), overwrite: false };
    for (what, name) in [(export, "export"), (Store::Save { path: Some(path), overwrite: false }, "save")] {
        sessions.run(&app, what);
        let Some(Outcome::Events(events)) = outcomes.blocking_recv() else { panic!("{name}") };
        assert!(matches!(&events[..], [AppEvent::CommandFailed(of, _)] if *of == name), "{events:?}");
    }
}
