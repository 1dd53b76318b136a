//! Sessions on disk: what is written is read back, whatever happened in between.

use crate::harness::edited;
use crate::template::report;
use dmschat::chat::Conversation;
use dmschat::chat::session::{Policies, Session, Store, load, markdown, write_atomically};
use dmschat::codec::Codec;
use dmschat::policy::PolicyKind;
use dmschat::protocol::*;
use std::fs;
use std::io::Write;
use std::path::Path;

pub fn info() -> ModelInfo {
    ModelInfo {
        identity: ModelIdentity {
            name: "demo".into(),
            reference: Some(ModelReference { model: "demo".into(), adapter: "auto".into(), ..Default::default() }),
            model_fingerprint: "m1".into(),
            tokenizer_fingerprint: "t1".into(),
            device: "cpu, 2 threads".into(),
            weights: Some("f32".into()),
            decisions: None,
        },
        n_layers: 2,
        n_kv_heads: 2,
        vocab: 300,
        context: 8192,
        codec: Codec::F32,
        policy: PolicyKind::Dms,
        window: Some(64),
        dms: "borrowed".into(),
        weights: WeightsInfo { format: "f32".into(), bits: 32.0, bytes: 1, cached: false },
        template: TemplateSpec {
            control: ["<|im_start|>", "<|im_end|>", "<think>", "</think>"].map(str::to_owned).to_vec(),
            trusted: true,
            ..TemplateSpec::default()
        },
        think_tags: Some(("<think>".into(), "</think>".into())),
        ..ModelInfo::default()
    }
}

/// Asks and answers; the log of turn n is the tokens n, n, n.
pub fn turn(chat: &mut Conversation, question: Option<&str>, answer: &str, log_base: usize) {
    if let Some(question) = question {
        chat.push_user(question);
    }
    let turn = chat.begin_reply(true, None);
    chat.append(turn, TextKind::Reasoning, "\nhm\n");
    chat.append(turn, TextKind::Answer, answer);
    let mut done = report(turn, 4);
    let token = u32::try_from(turn).unwrap();
    done.log_base = log_base;
    done.log = vec![LogEntry::Token(token); 3];
    done.kv =
        KvStats { live: vec![vec![2, 3], vec![1, 3]], ratio: Some(4.0 / 3.0), ..KvStats::empty(Codec::F32, 2, 2) };
    chat.finish(done);
}

/// A conversation with an edit, a second answer, a toggle and an undo.
pub fn branchy(session: &mut Session) -> Conversation {
    let mut chat = Conversation::new(Some("be brief".into()));
    turn(&mut chat, Some("first"), "one", 0);
    session.sync(&mut chat, &info()).unwrap();
    chat.mark_toggle(false, 3, 0);
    turn(&mut chat, Some("second"), "two", 4);
    session.sync(&mut chat, &info()).unwrap();
    chat.regenerate();
    turn(&mut chat, None, "two again", 4);
    let second = chat.path()[2].id;
    chat.edit(second, "second, edited");
    turn(&mut chat, None, "three", 4);
    chat.undo();
    chat.rename("a title");
    session.sync(&mut chat, &info()).unwrap();
    chat
}

fn texts(chat: &Conversation) -> Vec<String> {
    let text =
        |m: &dmschat::chat::Message| format!("{} {:?} {} {:?} {:?}", m.id, m.parent, m.text, m.reasoning, m.replaces);
    chat.messages().iter().map(text).collect()
}

#[test]
fn a_session_comes_back_with_its_branches_log_and_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("data/sessions"));
    let mut session = store.create();
    session.sync(&mut Conversation::new(None), &info()).unwrap();
    assert!(!dir.path().join("data").exists(), "no file before the first turn");
    let chat = branchy(&mut session);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(session.path().unwrap()), mode(&dir.path().join("data/sessions"))), (0o600, 0o700));
    }
    let id = session.id().to_owned();
    let written = session.jsonl().to_owned();
    let refused = format!("{:#}", store.resume("a title").unwrap_err());
    assert!(refused.contains(&id) && refused.contains("open in another dmschat"), "{refused}");
    drop(session);
    let listed = store.list();
    assert_eq!((listed.len(), listed[0].turns, listed[0].title.as_str()), (1, 4, "a title"));
    assert_eq!(store.search("titl dem").len(), 1);
    let (mut session, mut loaded) = store.resume(&id[..12]).unwrap();
    assert_eq!((texts(&loaded.conversation), loaded.conversation.head()), (texts(&chat), chat.head()));
    assert_eq!((loaded.problems.len(), loaded.eviction), (0, Some(true)));
    assert_eq!(loaded.conversation.system(), Some("be brief"));
    let (restore, notice) = loaded.restore_for(&info());
    assert_eq!(notice, None);
    // The last turn was undone: its tokens are not what the model is to remember.
    let log = [1, 1, 1].map(LogEntry::Token).into_iter().chain([LogEntry::Toggle { eviction: false }]);
    assert_eq!((restore.log, restore.cache), (log.collect::<Vec<_>>(), None));
    assert_eq!(restore.replies.len(), 4);

    // Going on appends; what was there stays byte for byte.
    let mut chat = loaded.conversation;
    turn(&mut chat, Some("later"), "five", 0);
    session.sync(&mut chat, &info()).unwrap();
    assert!(session.jsonl().starts_with(&*written) && session.jsonl().len() > written.len());
    assert_eq!(fs::read_to_string(session.path().unwrap()).unwrap(), session.jsonl());

    // An export is a session too.
    let exported = dir.path().join("x.jsonl");
    write_atomically(&exported, session.jsonl().as_bytes()).unwrap();
    let (copy, again) = store.resume(exported.to_str().unwrap()).unwrap();
    assert_ne!(copy.id(), session.id());
    assert_eq!(texts(&again.conversation), texts(&chat));
    let text = markdown(&chat, &info(), session.policies(), None);
    assert!(
        text.starts_with("---\ntitle: \"a title\"\n") && text.contains("\nratio: 1.33") && text.contains("five"),
        "{text}"
    );

    drop((session, copy));
    store.rename(&id, "new name").unwrap();
    assert_eq!(store.find("new name").unwrap().id, id);
    store.delete(&id).unwrap();
    assert!(store.find(&id).is_err());
}

#[test]
fn a_transcript_names_the_policy_of_each_turn_also_of_a_session_that_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let (mut chat, mut session) = (Conversation::new(None), store.create());
    turn(&mut chat, Some("a"), "b", 0);
    session.sync(&mut chat, &info()).unwrap();
    let id = session.id().to_owned();
    drop(session);
    // Opened under a third policy, in which nothing was said.
    let (mut session, loaded) = store.resume(&id).unwrap();
    let mut chat = loaded.conversation;
    let under = |policy| ModelInfo { policy, budget: "4x".parse().ok(), window: None, ..info() };
    turn(&mut chat, Some("c"), "d", 3);
    session.sync(&mut chat, &under(PolicyKind::Pool)).unwrap();
    drop(session);
    let (session, loaded) = store.resume(&id).unwrap();
    let text = markdown(&loaded.conversation, &under(PolicyKind::Tova), session.policies(), None);
    assert!(text.contains("\npolicy: \"pool\"\nbudget: \"4x\"\nwindow: null\n"), "{text}");
    assert!(text.contains(", policy dms |") && text.contains(", policy pool 4x |") && !text.contains("tova"), "{text}");
}

#[test]
fn a_transcript_keeps_the_memory_of_the_gpu_and_the_revision_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let (mut chat, mut session) = (Conversation::new(None), store.create());
    chat.push_user("a");
    let id = chat.begin_reply(true, None);
    chat.finish(TurnReport { device_bytes: Some(12_345), ..report(id, 4) });
    let reference = ModelReference { model: "org/name".into(), revision: Some("c0ffee".into()), ..Default::default() };
    let mut on_gpu = info();
    on_gpu.identity.reference = Some(reference);
    session.sync(&mut chat, &on_gpu).unwrap();
    let loaded = load(session.jsonl().as_bytes(), "x").unwrap();
    let text = markdown(&loaded.conversation, &on_gpu, session.policies(), None);
    assert!(text.contains("\nrevision: \"c0ffee\"\n") && text.contains("\ndevice_bytes: 12345\n"), "{text}");
}

/// Regenerating after a toggle begins with it, before the end of the log that the turn's report
/// continues from.
#[test]
fn a_toggle_within_a_turn_cuts_nothing_off_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = Store::new(dir.path()).create();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("first"), "one", 0);
    turn(&mut chat, Some("second"), "two", 3);
    chat.regenerate();
    let again = chat.begin_reply(true, None);
    chat.mark_toggle(false, 4, 0);
    chat.finish(TurnReport { log_base: 6, log: Vec::new(), ..report(again, 4) });
    // Nor does one while the cache is rebuilt: here at its second token.
    chat.mark_toggle_in_rebuild(true, 2, 0);
    session.sync(&mut chat, &info()).unwrap();
    let mut read = load(session.jsonl().as_bytes(), "x").unwrap();
    let (restore, notice) = read.restore_for(&info());
    assert_eq!((restore.log.len(), notice), (6, None));
}

#[test]
fn a_change_of_the_log_after_the_last_turn_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().to_owned());
    let mut session = store.create();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("first"), "one", 0);
    turn(&mut chat, Some("second"), "two", 3);
    let pin = LogEntry::Pin { pin: [1, 2] };
    chat.log_changed(LogChange { log_base: 4, log: vec![pin], pending: Some(7) });
    session.sync(&mut chat, &info()).unwrap();
    let loaded = |text: &str| load(text.as_bytes(), "x").unwrap();
    let mut read = loaded(session.jsonl());
    let (restore, _) = read.restore_for(&info());
    let tokens = [1, 1, 1, 2].map(LogEntry::Token);
    assert_eq!((restore.log, restore.pending, read.problems.len()), ([&tokens[..], &[pin]].concat(), Some(7), 0));
    // A toggle of a conversation that was not in the cache does not change its log; a toggle after
    // an undo truncates it.
    chat.mark_toggle(false, 0, 0);
    session.sync(&mut chat, &info()).unwrap();
    let mut read = loaded(session.jsonl());
    assert_eq!(read.restore_for(&info()).0.log, [&tokens[..], &[pin]].concat());
    assert_eq!(read.eviction, Some(false));
    chat.mark_toggle(true, 3, 0);
    session.sync(&mut chat, &info()).unwrap();
    let toggled = [LogEntry::Toggle { eviction: true }];
    assert_eq!(loaded(session.jsonl()).restore_for(&info()).0.log, [&tokens[..3], &toggled].concat());
    // One that does not join up, and an entry that says nothing.
    for (from, to) in [("\"log_base\":4", "\"log_base\":400"), ("{\"pin\":[1,2]}", "{\"pin\":[2,1]}")] {
        let text = session.jsonl().replace(from, to);
        let mut read = loaded(&text);
        let (restore, notice) = read.restore_for(&info());
        assert!(!restore.log.contains(&pin) && notice.is_some() | (read.problems.len() == 1), "{notice:?}");
    }
}

#[test]
fn models_of_earlier_sessions_are_listed_newest_first_while_they_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("sessions"));
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::write(path("file.gguf"), "GGUF").unwrap();
    let models = [path("folder"), path("gone"), "org/name".to_owned(), path("file.gguf"), path("folder")];
    for (n, model) in models.into_iter().enumerate() {
        let reference = ModelReference { model, adapter: "auto".into(), ..ModelReference::default() };
        let mut session = store.create();
        let mut chat = Conversation::new(None);
        turn(&mut chat, Some("q"), "a", 0);
        let mut info = info();
        info.identity.reference = Some(reference);
        session.sync(&mut chat, &info).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000 + n as u64);
        std::fs::File::options().append(true).open(session.path().unwrap()).unwrap().set_modified(time).unwrap();
    }
    assert_eq!(store.models(), [path("folder"), path("file.gguf")]);
}

#[test]
fn another_model_encodes_the_texts_anew() {
    let mut session = Session::unsaved();
    branchy(&mut session);
    let mut other = info();
    other.identity.model_fingerprint = "m2".into();
    let mut loaded = load(session.jsonl().as_bytes(), "s").unwrap();
    let (restore, notice) = loaded.restore_for(&other);
    assert!(restore.log.is_empty() && restore.replies.is_empty());
    assert!(notice.unwrap().contains("another model (demo)"));
    assert!(loaded.conversation.messages().iter().all(|m| !m.own));
}

#[test]
fn token_ids_that_the_model_does_not_have_are_not_handed_to_it() {
    let mut session = Session::unsaved();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("a"), "b", 0);
    session.sync(&mut chat, &info()).unwrap();
    let (text, vocab) = (session.jsonl().to_owned(), info().vocab);
    let restored = |text: &str| load(text.as_bytes(), "s").unwrap().restore_for(&info());
    let with = |old: &str, new: &str| restored(&edited(&text, &[(old, new)]));
    let (request, notice) = with("\"pending\":null", "\"pending\":7");
    assert_eq!((request.log.len(), request.pending, notice), (3, Some(7), None));
    for (old, new) in [
        ("\"log\":[1,", format!("\"log\":[{vocab},")),
        ("\"pending\":null", format!("\"pending\":{vocab}")),
        ("\"generated\":[", format!("\"generated\":[{vocab},")),
    ] {
        let (request, notice) = with(old, &new);
        assert!(request.log.is_empty() && request.pending.is_none(), "{new}");
        assert!(request.replies.iter().flat_map(|(_, ids)| ids).all(|id| (*id as usize) < vocab), "{new}");
        assert!(notice.unwrap().contains(&format!("token {vocab}")), "{new}");
    }
    // Files from before the field: the reply that ends the log says it.
    let (request, _) = restored(&edited(&text, &[("\"pending\":null,", ""), ("\"generated\":[", "\"generated\":[1,")]));
    assert_eq!((request.log.len(), request.pending), (3, request.replies[0].1.last().copied()));

    // Impossible ids and counts are refused by line, also if adding to them would overflow.
    for (old, new) in [("\"id\":2", "\"id\":18446744073709551615"), ("\"turn\":1", "\"turn\":18446744073709551615")] {
        let loaded = load(edited(&text, &[(old, new)]).as_bytes(), "s").unwrap();
        assert!(loaded.problems[0].contains("line 2") && loaded.problems[0].contains("larger than any"), "{new}");
        let mut chat = loaded.conversation;
        turn(&mut chat, Some("later"), "works", 0);
    }
}

#[test]
fn half_lines_are_cut_off_and_broken_ones_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut session = store.create();
    branchy(&mut session);
    let (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    let whole = session.jsonl().to_owned();
    drop(session);
    // Killed in the middle of a record.
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"type\":\"turn\",\"id\":99,\"te").unwrap();
    let (session, loaded) = store.resume(&id).unwrap();
    assert!(
        loaded.problems[0].contains("half written") && loaded.problems[0].contains(".part"),
        "{:?}",
        loaded.problems
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), whole);
    assert!(fs::read_to_string(format!("{}.part", path.display())).unwrap().contains("99"));
    drop(session);
    // A line in the middle is broken: it alone is missing.
    let broken: String =
        whole.lines().enumerate().map(|(n, l)| if n == 2 { "{oops}\n".into() } else { format!("{l}\n") }).collect();
    fs::write(&path, &broken).unwrap();
    let (_session, loaded) = store.resume(&id).unwrap();
    assert!(loaded.problems[0].contains("line 3"), "{:?}", loaded.problems);
    assert_eq!(loaded.conversation.turns(), 4);
    assert_eq!(fs::read_to_string(&path).unwrap(), broken, "nothing is rewritten");

    for (text, said) in
        [("", "no complete line"), ("hello\n", "line 1"), ("{\"type\":\"header\",\"version\":7}\n", "version 7")]
    {
        let line = format!("{:#}", load(text.as_bytes(), "s").unwrap_err());
        assert!(line.contains(said) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn a_file_that_somebody_else_has_changed_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut session = store.create();
    let mut chat = branchy(&mut session);
    let (mut path, mut id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    // Longer, shorter, another file in its place, none at all: each time it continues in a new,
    // complete file.
    let changes: [&dyn Fn(&Path); 4] = [
        &|p| fs::OpenOptions::new().append(true).open(p).unwrap().write_all(b"{\"type\":\"title\"}\n").unwrap(),
        &|p| fs::OpenOptions::new().write(true).open(p).unwrap().set_len(40).unwrap(),
        &|p| {
            fs::copy(p, p.with_extension("new")).unwrap();
            fs::rename(p.with_extension("new"), p).unwrap();
        },
        &|p| fs::remove_file(p).unwrap(),
    ];
    for change in changes {
        change(&path);
        let theirs = fs::read(&path).ok();
        turn(&mut chat, Some("more"), "answer", 0);
        let moved = session.sync(&mut chat, &info()).unwrap().unwrap();
        assert_eq!((moved.from.as_str(), moved.to.as_str()), (id.as_str(), session.id()));
        assert_eq!(fs::read(&path).ok(), theirs);
        (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text == session.jsonl() && text.lines().next().unwrap().contains(&id));
        assert_eq!(load(text.as_bytes(), "s").unwrap().conversation.turns(), chat.turns());
    }
}

#[test]
fn a_refused_file_is_not_touched_and_a_record_without_newline_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let newer = "{\"type\":\"header\",\"format\":\"dmschat-session\",\"version\":2}\n{\"half";
    for (id, text) in [("newer", newer), ("other", "notes of mine\nwithout an end"), ("half", "{\"type\":\"head")] {
        let path = dir.path().join(format!("{id}.jsonl"));
        fs::write(&path, text).unwrap();
        let refused = store.open(id).unwrap_err().to_string();
        for named in [store.resume(id).unwrap_err(), store.read_named(id).unwrap_err()] {
            assert_eq!(named.to_string(), refused, "a file that is not listed is named by its id");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    assert!(store.read_named(" ").unwrap_err().to_string().contains("is empty"), "it matches no session");

    let mut session = store.create();
    branchy(&mut session);
    let (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    drop(session);
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, whole.trim_end()).unwrap();
    let (mut session, loaded) = store.open(&id).unwrap();
    assert_eq!((loaded.problems.len(), loaded.conversation.title()), (0, Some("a title")));
    assert_eq!(fs::read_to_string(&path).unwrap(), whole.trim_end());
    let mut chat = loaded.conversation;
    turn(&mut chat, Some("later"), "five", 0);
    session.sync(&mut chat, &info()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), session.jsonl());
    assert!(session.jsonl().starts_with(&whole));
}

#[cfg(unix)]
#[test]
fn links_in_the_way_are_not_followed() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine");
    fs::write(&mine, "mine").unwrap();
    let store = Store::new(dir.path().join("sessions"));
    let mut session = store.create();
    branchy(&mut session);
    let (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    drop(session);
    // Where a half line is kept.
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"half").unwrap();
    symlink(&mine, format!("{}.part", path.display())).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(store.open(&id).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
    // Where a new session, or a transcript, would be.
    let mut session = store.create();
    symlink(&mine, session.path().unwrap()).unwrap();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("a"), "b", 0);
    assert!(session.sync(&mut chat, &info()).unwrap().is_some(), "it goes on in a new file");
    let target = dir.path().join("x.jsonl");
    symlink(&mine, &target).unwrap();
    write_atomically(&target, b"transcript").unwrap();
    assert!(!fs::symlink_metadata(&target).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
}

#[test]
fn the_list_reads_any_json_and_passes_over_refused_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut session = store.create();
    branchy(&mut session);
    let (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    drop(session);
    let entry = &store.list()[0];
    assert_eq!((entry.ratio, entry.preview.as_str()), (Some(4.0 / 3.0), "second, edited\nthree"));
    assert_eq!(entry.bytes, fs::metadata(&path).unwrap().len());
    // The same records with their fields in another order, as another program may write them.
    let sorted = |line: &str| {
        let value: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let sorted: std::collections::BTreeMap<_, _> = value.into_iter().collect();
        serde_json::to_string(&sorted).unwrap().replace(':', " : ") + "\n"
    };
    fs::write(&path, fs::read_to_string(&path).unwrap().lines().map(sorted).collect::<String>()).unwrap();
    let again = &store.list()[0];
    assert_eq!((again.turns, &again.title, &again.preview), (entry.turns, &entry.title, &entry.preview));

    // A file of an older version whose only prompt was refused, and one without any turn.
    let mut empty = Session::unsaved();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("too long"), "", 0);
    empty.sync(&mut chat, &info()).unwrap();
    let edits = [
        ("\"in_context\":true", "\"in_context\":false"),
        ("\"end\"", "\"context_full\""),
        ("\"answer_tokens\":3", "\"answer_tokens\":0"),
        ("\"reasoning_tokens\":4", "\"reasoning_tokens\":0"),
    ];
    let refused = edited(empty.jsonl(), &edits);
    fs::write(dir.path().join("99990101-000000-0000.jsonl"), &refused).unwrap();
    fs::write(dir.path().join("99990101-000000-0001.jsonl"), refused.lines().next().unwrap()).unwrap();
    let turns: Vec<usize> = store.list().iter().map(|e| e.turns).collect();
    assert_eq!((turns.len(), turns.iter().sum::<usize>()), (3, entry.turns));
    assert_eq!(store.newest().unwrap(), id);
}

#[test]
fn titles_are_one_line_wherever_they_come_from() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path());
    let mut session = store.create();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("first\u{2028}still\rfirst\nsecond"), "an answer", 0);
    session.sync(&mut chat, &info()).unwrap();
    let title = || store.list()[0].title.clone();
    assert_eq!((title(), chat.title_or_first_line()), ("first still first".to_owned(), title()));
    chat.rename("a\nb\r\n c");
    session.sync(&mut chat, &info()).unwrap();
    assert_eq!(title(), "a b c");
    // A record of another program.
    let (path, id) = (session.path().unwrap().to_owned(), session.id().to_owned());
    drop(session);
    let text = edited(&fs::read_to_string(&path).unwrap(), &[("\"a b c\"", "\"x\\n---\\u2028y\"")]);
    fs::write(&path, text).unwrap();
    assert_eq!(title(), "x --- y");
    let loaded = store.read(&id).unwrap();
    let page = markdown(&loaded.conversation, &info(), &loaded.policies(), None);
    assert!(page.contains("\n# x --- y\n") && page.starts_with("---\ntitle: \"x --- y\"\n"), "{page}");
}

#[test]
fn every_prefix_of_a_file_loads() {
    let mut session = Session::unsaved();
    branchy(&mut session);
    let text = session.jsonl();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for n in 1..=lines.len() {
        let loaded = load(lines[..n].concat().as_bytes(), "s").unwrap();
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    }
}

#[test]
fn a_folder_that_cannot_be_written_costs_one_line_and_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("data");
    fs::write(&blocked, "a file where the folder should be").unwrap();
    let store = Store::new(blocked.join("sessions"));
    let mut session = store.create();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("a"), "b", 0);
    let line = format!("{:#}", session.sync(&mut chat, &info()).unwrap_err());
    assert!(line.contains("not saved") && line.contains("data") && !line.contains('\n'), "{line}");
    assert!(session.is_behind());
    fs::remove_file(&blocked).unwrap();
    turn(&mut chat, Some("c"), "d", 3);
    session.sync(&mut chat, &info()).unwrap();
    assert_eq!(load(&fs::read(session.path().unwrap()).unwrap(), "s").unwrap().conversation.turns(), 2);
}

/// A full disk is played by a limit on the size of files, in a process of its own.
#[cfg(unix)]
#[test]
fn a_full_disk_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    crate::harness::run_alone(
        "session::full_disk",
        "ulimit -S -f 16; ",
        ["SESSION_TEST_FOLDER", dir.path().to_str().unwrap()],
    );
}

#[cfg(unix)]
#[test]
#[ignore = "run by a_full_disk_loses_nothing"]
fn full_disk() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(folder) = std::env::var_os("SESSION_TEST_FOLDER") else { return };
    let mut session = Store::new(folder).create();
    let mut chat = Conversation::new(None);
    turn(&mut chat, Some("a"), "b", 0);
    session.sync(&mut chat, &info()).unwrap();
    let before = fs::read(session.path().unwrap()).unwrap();
    turn(&mut chat, Some("c"), &"long ".repeat(10_000), 3);
    let line = format!("{:#}", session.sync(&mut chat, &info()).unwrap_err());
    assert!(line.contains("not saved") && !line.contains('\n'), "{line}");
    assert_eq!(fs::read(session.path().unwrap()).unwrap(), before, "no half record stays");
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
    turn(&mut chat, Some("e"), "f", 6);
    session.sync(&mut chat, &info()).unwrap();
    assert_eq!(fs::read_to_string(session.path().unwrap()).unwrap(), session.jsonl());
    assert_eq!(load(session.jsonl().as_bytes(), "s").unwrap().conversation.turns(), 3);
}

#[test]
fn a_transcript_says_where_a_toggle_was_and_a_reader_what_is_missing() {
    let mut chat = Conversation::new(None);
    chat.push_user("q");
    let turn = chat.begin_reply(true, None);
    chat.append(turn, TextKind::Answer, "one\n\ntwo ");
    chat.mark_toggle(false, 7, 0);
    chat.append(turn, TextKind::Answer, "more\n\nthree");
    let mut done = report(turn, 4);
    done.kv = KvStats { bytes: 999, live_bytes: 5, ..done.kv };
    chat.finish(done);
    let text = markdown(&chat, &info(), &Policies::new(), None);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!([at("two more"), at("*eviction off at token 7"), at("three")].is_sorted(), "{text}");
    // As the ratio: of live slots.
    assert!(text.contains("\nkv_bytes: 5\n") && text.contains("| 5 KV bytes |"), "{text}");

    let dir = tempfile::tempdir().unwrap();
    let mut session = Session::unsaved();
    session.sync(&mut chat, &info()).unwrap();
    let path = dir.path().join("x.jsonl");
    fs::write(&path, format!("{}{{\"type\":\"tu", session.jsonl())).unwrap();
    let loaded = Store::new(dir.path()).read_named(path.to_str().unwrap()).unwrap();
    assert!(
        loaded.problems[0].ends_with("its last line was half written; 11 bytes are left out"),
        "{:?}",
        loaded.problems
    );
}
