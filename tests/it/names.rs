//! Which session a name means.

use crate::session::{branchy, info, turn};
use dmschat::chat::Conversation;
use dmschat::chat::session::Store;

#[test]
fn words_name_the_only_session_that_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut first = store.create();
    let id = first.id().to_owned();
    drop((branchy(&mut first), first));
    for words in ["tit", "TITLE a", "fir"] {
        assert_eq!(store.find(words).unwrap().id, id, "{words}");
    }
    for guess in ["ttl", "itle", "demo", "title nosuch"] {
        assert!(store.find(guess).is_err(), "{guess}");
    }
    let mut second = store.create();
    drop((branchy(&mut second), second));
    let many = format!("{:#}", store.find("title").unwrap_err());
    assert!(many.contains("fits 2 conversations") && many.contains(&id) && many.contains("\"a title\""), "{many}");
}

#[test]
fn an_id_from_a_list_names_one_session_whatever_others_are_titled() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("sessions"));
    let begin = |title: Option<&str>| {
        let (mut session, mut chat) = (store.create(), Conversation::new(None));
        turn(&mut chat, Some("question"), "answer", 0);
        if let Some(title) = title {
            chat.rename(title);
        }
        session.sync(&mut chat, &info()).unwrap();
        session.id().to_owned()
    };
    let wanted = begin(None);
    // Newer, and titled with the other's id.
    let other = begin(Some(&wanted));
    assert_eq!(store.find(&wanted).unwrap().id, wanted);
    assert_eq!(store.open(&wanted).unwrap().0.id(), wanted);
    store.rename(&wanted, "renamed").unwrap();
    store.delete(&wanted).unwrap();
    let left: Vec<_> = store.list().into_iter().map(|e| (e.id, e.title)).collect();
    assert_eq!(left, [(other.clone(), wanted.clone())]);
    // The id is gone: nothing that resembles it is touched in its place.
    for id in [wanted.as_str(), "", "..", "../sessions", &other[..12]] {
        assert!(store.delete(id).is_err() && store.open(id).is_err() && store.rename(id, "x").is_err(), "{id}");
    }
    assert_eq!(store.list().len(), 1);
}

/// What is called similar is spelled alike; the end of an id, as lists show it, is enough.
#[test]
fn similar_names_are_spelled_alike_and_the_end_of_an_id_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let begin = |question: &str| {
        let (mut session, mut chat) = (store.create(), Conversation::new(None));
        turn(&mut chat, Some(question), "answer", 0);
        session.sync(&mut chat, &info()).unwrap();
        session.id().to_owned()
    };
    let id = begin("Hello! I am Jakob and I like long walks");
    let end = &id[id.len() - 4..];
    assert_eq!(store.find(end).unwrap().id, id);
    let said = |name: &str| format!("{:#}", store.find(name).unwrap_err());
    assert!(!said("nosuch").contains("similar") && !said("kob").contains("similar"), "{}", said("nosuch"));
    assert!(said("Jakbo").contains(&format!("; similar: {id} \"Hello! I am Jakob")), "{}", said("Jakbo"));
}
