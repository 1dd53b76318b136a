//! Caches kept on disk: written after a turn, loaded in place of a replay, and refused where they
//! are not of the log.

use crate::harness::{Exchange, STEP, Session, prompt_of, spelled};
use crate::pty::{Chat, PATIENCE, answer};
use crate::tiny::{Form, Spec, Tiny};
use dmschat::cache::file::{Header, Opened, Room, Writer};
use dmschat::policy::{Budget, PolicyKind, PolicyRequest};
use dmschat::protocol::{CacheFile, Command, Event, LogEntry, RestoreRequest, WhenFull};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const QUESTION: &str = "a question of some forty characters or so";
const LIMIT: u64 = 1 << 30;

fn talker(form: Form, seed: u64) -> Tiny {
    Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, form) }, seed)
}

fn keep(s: &mut Session, path: &Path, limit_bytes: u64) {
    s.send(Command::KeepCache(Some(CacheFile { path: path.to_owned(), limit_bytes, has_log: false })));
}

/// A session that keeps its cache in a file of a new folder and was asked one question.
fn asked_once(tiny: &Tiny) -> (tempfile::TempDir, PathBuf, Session<'_>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    let mut s = Session::new(tiny);
    keep(&mut s, &path, LIMIT);
    s.ask(QUESTION);
    (folder, path, s)
}

/// Tokens that the file at `path` holds, once there is one of at least `tokens`.
pub fn written(path: &Path, tokens: usize) -> usize {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = Opened::open(path).ok().flatten().map(|file| file.header.sequence.len);
        match found.filter(|&n| n >= tokens) {
            Some(n) => return n,
            None => assert!(Instant::now() < until, "a file of {tokens} tokens is written; there is {found:?}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A request that continues the conversation of `s`.
fn resume(s: &Session, cache: PathBuf) -> RestoreRequest {
    let replies: Vec<_> = s.exchanges.iter().map(|e| (e.turn, e.reply.clone())).collect();
    let pending = replies.last().and_then(|(_, ids)| ids.last().copied());
    RestoreRequest { log: s.log.clone(), replies, pending, cache: Some(cache) }
}

/// Restores in a new engine. Returns it and the number of tokens that were fed for it.
fn restored<'a>(tiny: &'a Tiny, from: &Session, request: RestoreRequest) -> (Session<'a>, usize) {
    restored_under(PolicyRequest::default(), tiny, from, request)
}

fn restored_under<'a>(
    policy: PolicyRequest,
    tiny: &'a Tiny,
    from: &Session,
    request: RestoreRequest,
) -> (Session<'a>, usize) {
    let mut s = Session::with(tiny, |o| o.policy = policy);
    s.exchanges = from.exchanges.clone();
    s.log = from.log.clone();
    s.turns = from.turns;
    s.max_tokens = 50;
    s.send(Command::Restore(Box::new(request)));
    let cancelled = s.wait(|e| if let Event::RebuildDone { cancelled, .. } = e { Some(*cancelled) } else { None });
    assert!(!cancelled);
    let fed = s.watch.seen().steps.iter().sum();
    (s, fed)
}

#[test]
fn a_cache_from_disk_goes_on_as_the_one_that_was_written() {
    let predictor = Form::Predictor { linear: true, units: 8 };
    let own = [Form::Borrowed, Form::Metadata, Form::Plain, Form::Dmc, predictor];
    let own = own.map(|form| (form, PolicyRequest::default()));
    let pooled = (Form::Plain, PolicyKind::Pool.with(Budget::of_ratio(5.0)));
    let hybrid = (Form::Borrowed, PolicyRequest::default());
    for (i, (form, policy)) in own.iter().copied().chain([pooled, hybrid]).enumerate() {
        let mut tiny = talker(form, 900 + i as u64);
        if i > own.len() {
            tiny = Tiny::new(Spec { hybrid: true, n_layers: 5, ..tiny.spec }, 900 + i as u64);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions").join("a.cache");
        let mut s = Session::with(&tiny, |o| o.policy = policy);
        keep(&mut s, &path, LIMIT);
        s.after_steps(5, Command::SetEviction(false));
        s.ask(QUESTION);
        s.ask(QUESTION);
        s.send(Command::SetEviction(true));
        s.ask(QUESTION);
        written(&path, s.tokens().len());
        // The log gives the same sequence as the file.
        let (mut replayed, fed) =
            restored_under(policy, &tiny, &s, RestoreRequest { cache: None, ..resume(&s, path.clone()) });
        assert_eq!((fed, replayed.stored()), (s.tokens().len(), s.stored()), "{form:?}");
        let request = resume(&s, path);
        let (mut other, fed) = restored_under(policy, &tiny, &s, request);
        assert_eq!((fed, other.notices()), (0, vec![]), "{form:?}: nothing is fed");
        let (a, b) = (s.snapshot(), other.snapshot());
        assert_eq!((&a.kv.live, a.tokens, a.eviction), (&b.kv.live, b.tokens, b.eviction), "{form:?}");
        assert!(a.kv.reads > 0.0 && b.kv.reads <= 0.0, "{form:?}: {} of an answer that is not its own", b.kv.reads);
        // The same sampled tokens from bit-equal logits, and both as the reference has them (which
        // `ask` checks).
        s.max_tokens = 50;
        let first = s.watch.seen().logits.len();
        let (a, b) = (s.ask("and what now?"), other.ask("and what now?"));
        assert_eq!((&a.generated, a.kv.live), (&b.generated, b.kv.live), "{form:?}");
        assert_eq!(b.reused_tokens, a.reused_tokens);
        let logits = |s: &Session, from: usize| s.watch.seen().logits[from..].to_vec();
        assert!(logits(&s, first) == logits(&other, 0) && a.generated.len() > STEP, "{form:?}: bit-equal logits");
    }
}

#[test]
fn a_dense_cache_that_dropped_its_oldest_tokens_is_kept_too() {
    let tiny = talker(Form::Plain, 905);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    let limit = 4 * 8 * 16 * 260;
    let mut s = Session::with(&tiny, |o| (o.when_full, o.kv_limit) = (WhenFull::Window, Some(limit)));
    keep(&mut s, &path, LIMIT);
    s.ask(&QUESTION.repeat(4));
    assert!(s.log.iter().any(|e| matches!(e, LogEntry::Drop { .. })));
    written(&path, s.tokens().len());
    let request = resume(&s, path);
    let (mut other, fed) = restored(&tiny, &s, request);
    assert_eq!((fed, other.notices()), (0, vec![]));
    assert_eq!(other.stored(), s.stored());
}

#[test]
fn a_cache_that_is_not_of_the_log_is_replayed_with_one_notice() {
    let tiny = talker(Form::Borrowed, 910);
    let (folder, path, s) = asked_once(&tiny);
    let tokens = s.tokens().len();
    written(&path, tokens);
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut longer = resume(&s, path.clone());
    longer.log.push(LogEntry::Token(65));
    let mut toggled = resume(&s, path.clone());
    toggled.log.insert(3, LogEntry::Toggle { eviction: false });
    let other = talker(Form::Borrowed, 911);
    let cases = [
        (&tiny, damaged, resume(&s, path.clone()), tokens, Some("it is damaged")),
        (&tiny, whole[..whole.len() / 2].to_vec(), resume(&s, path.clone()), tokens, Some("it is damaged")),
        (&tiny, whole.clone(), longer, tokens + 1, Some("it is out of date")),
        (&tiny, whole.clone(), toggled, tokens, Some("it is out of date")),
        (&other, whole.clone(), resume(&s, path.clone()), tokens, Some("another model")),
        (&tiny, whole, resume(&s, folder.path().join("none.cache")), tokens, None),
    ];
    for (i, (tiny, bytes, request, wanted, why)) in cases.into_iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        let (mut got, fed) = restored(tiny, &s, request);
        let notices = got.notices();
        assert_eq!((fed, notices.len()), (wanted, usize::from(why.is_some())), "case {i}: {notices:?}");
        assert!(why.is_none_or(|why| notices[0].contains(why)), "case {i}: {notices:?}");
        assert_eq!(got.snapshot().tokens, wanted);
    }
}

/// Writes another file over that at `path`, with right checksums.
fn forge(path: &Path, change: impl FnOnce(&mut Header, &mut Vec<Vec<u8>>)) {
    let opened = Opened::open(path).unwrap().unwrap();
    let mut header = opened.header.clone();
    let mut reader = opened.read(|layer, image| Ok((layer, image))).unwrap();
    let mut layers = vec![Vec::new(); reader.left()];
    while reader.left() > 0 {
        let (layer, image) = reader.next(PATIENCE).unwrap().unwrap();
        layers[layer] = image;
    }
    change(&mut header, &mut layers);
    header.layer_bytes = layers.iter().map(|l| l.len() as u64).collect();
    let writer = Writer::start(path.to_owned(), Room { limit_bytes: LIMIT }, header).unwrap();
    for mut image in layers {
        while let Err(back) = writer.offer(image) {
            image = back;
        }
    }
    while writer.outcome().is_none() {}
}

/// A file whose checksums are right is not believed where it says what no sequence has.
#[test]
fn a_forged_cache_is_replayed_with_one_notice() {
    let tiny = talker(Form::Borrowed, 915);
    let (_folder, path, s) = asked_once(&tiny);
    let tokens = s.tokens().len();
    written(&path, tokens);
    let whole = std::fs::read(&path).unwrap();
    let lanes = Opened::open(&path).unwrap().unwrap().header;
    let lanes = (lanes.identity.n_layers * lanes.identity.n_kv_heads) as u64;
    type Change = Box<dyn Fn(&mut Header, &mut Vec<Vec<u8>>)>;
    let head = |change: fn(&mut Header)| -> Change { Box::new(move |header, _| change(header)) };
    let counters = "it is damaged (counters that such a sequence cannot have)";
    let n = tokens as u64;
    // The first value of K: tables are shorter than a page.
    let nan: Change = Box::new(|header, layers| {
        let page = header.identity.page_slots * (8 * header.identity.head_dim + 4);
        let begin = layers[1].len() % page;
        layers[1][begin..begin + 4].copy_from_slice(&f32::NAN.to_ne_bytes());
    });
    let reads: Change = Box::new(move |header, _| header.sequence.reads = lanes * n * n + 1);
    let peak: Change = Box::new(move |header, _| header.sequence.peak = (lanes * n + 1) as u32);
    let cases: [(Change, Option<&str>); 9] = [
        (Box::new(|_, _| {}), None),
        (Box::new(|_, layers| layers.swap(0, 1)), Some("it is the image of another layer")),
        (nan, Some("layer 1: K or V has values that are not numbers")),
        (head(|h| h.sequence.reads = u64::MAX), Some(counters)),
        (reads, Some(counters)),
        (peak, Some(counters)),
        (head(|h| h.sequence.dial = 1e30), Some("it is out of date")),
        (head(|h| h.sequence.pins = vec![3..9, 5..7]), Some("it is damaged (a dial or pins that no sequence has)")),
        (head(|h| h.sequence.pins = vec![3..5, 9..9]), Some("it is damaged (a dial or pins that no sequence has)")),
    ];
    for (i, (change, why)) in cases.into_iter().enumerate() {
        std::fs::write(&path, &whole).unwrap();
        forge(&path, change);
        let (got, fed) = restored(&tiny, &s, resume(&s, path.clone()));
        let notices = got.notices();
        assert_eq!((fed, notices.len()), if why.is_some() { (tokens, 1) } else { (0, 0) }, "case {i}: {notices:?}");
        assert!(why.is_none_or(|why| notices[0].contains(why)), "case {i}: {notices:?}");
    }
}

/// The file is that of the last turn, also if the front end leaves at once or goes on with another
/// conversation; without room there is one notice.
#[test]
fn what_is_left_to_write_is_written_at_the_end() {
    let tiny = talker(Form::Borrowed, 920);
    let (folder, path, mut s) = asked_once(&tiny);
    s.ask(QUESTION);
    let tokens = s.tokens().len();
    drop(s);
    assert_eq!(written(&path, tokens), tokens);

    let (_other, left, mut s) = asked_once(&tiny);
    s.ask(QUESTION);
    let tokens = s.tokens().len();
    s.send(Command::Clear);
    assert_eq!(written(&left, tokens), tokens);

    let mut s = Session::new(&tiny);
    keep(&mut s, &folder.path().join("b.cache"), 100);
    s.ask(QUESTION);
    let notice = |e: &Event| if let Event::Notice(text) = e { Some(text.clone()) } else { None };
    let said = s.notices().first().map(|text| (*text).to_owned());
    let said = said.unwrap_or_else(|| s.wait(notice));
    assert!(said.contains("not kept on disk (it is larger than cache_disk allows)"), "{said}");
    s.ask(QUESTION);
    s.ask(QUESTION);
    assert_eq!(s.notices(), [""; 0], "it is said once");
    assert!(path.exists(), "nothing is removed for a file that does not fit");
}

/// Names of the files of a folder, once no write is under way.
fn names(folder: &Path) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.collect();
        names.sort();
        if Instant::now() > until || !names.iter().any(|name| name.ends_with(".tmp")) {
            return names;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_gpu_lost_while_a_cache_comes_or_goes_leaves_the_file_as_it_was() {
    let tiny = talker(Form::Borrowed, 930);
    let (folder, path, mut s) = asked_once(&tiny);
    let tokens = s.tokens().len();
    written(&path, tokens);
    let whole = std::fs::read(&path).unwrap();
    let failed = |e: &Event| if let Event::Failed(why) = e { Some(why.clone()) } else { None };
    let mut other = Session::new(&tiny);
    other.watch.seen().lose_at = Some(("import_pages", 1));
    other.send(Command::Restore(Box::new(resume(&s, path.clone()))));
    assert!(other.wait(failed).contains("the GPU failed"));
    let (_other, fed) = restored(&tiny, &s, resume(&s, path.clone()));
    assert_eq!(fed, 0, "it is still there for the next engine");
    s.watch.seen().lose_at = Some(("export_pages", 1));
    let prompt = s.prompt(QUESTION);
    let request = s.request(prompt);
    s.send(Command::Generate(Box::new(request)));
    assert!(s.wait(failed).contains("the GPU failed"));
    assert_eq!(names(folder.path()), ["a.cache"]);
    assert!(std::fs::read(&path).unwrap() == whole);
}

#[test]
fn of_two_programs_with_one_file_each_finds_its_own_cache_or_replays() {
    let tiny = talker(Form::Borrowed, 940);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.cache");
    let mut both = [Session::new(&tiny), Session::new(&tiny)];
    both.iter_mut().for_each(|s| keep(s, &path, LIMIT));
    for round in 0..3 {
        for (i, s) in both.iter_mut().enumerate() {
            s.ask(&format!("question {round} of program {i}, of some forty characters"));
        }
        written(&path, 1);
        for s in &both {
            let (got, fed) = restored(&tiny, s, resume(s, path.clone()));
            let notices = got.notices();
            let replayed = fed == s.tokens().len() && notices.len() == 1 && notices[0].contains("out of date");
            assert!((fed == 0 && notices.is_empty()) || replayed, "{fed} fed, {notices:?}");
        }
    }
    drop(both);
    assert_eq!(names(folder.path()), ["a.cache"]);
}

/// A full disk is played by a limit on the size of files, in a process of its own.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_the_cache_and_one_notice() {
    let dir = tempfile::tempdir().unwrap();
    crate::harness::run_alone("kept::full_disk", "", ["CACHE_TEST_FOLDER", dir.path().to_str().unwrap()]);
}

#[cfg(unix)]
#[test]
#[ignore = "run by a_full_disk_costs_the_cache_and_one_notice"]
fn full_disk() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Some(folder) = std::env::var_os("CACHE_TEST_FOLDER").map(PathBuf::from) else { return };
    let tiny = talker(Form::Borrowed, 950);
    let path = folder.join("a.cache");
    let mut s = Session::new(&tiny);
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: Some(2048), maximum }).unwrap();
    keep(&mut s, &path, LIMIT);
    s.ask(QUESTION);
    let notice = |e: &Event| if let Event::Notice(text) = e { Some(text.clone()) } else { None };
    let said = s.notices().first().map(|text| (*text).to_owned());
    let said = said.unwrap_or_else(|| s.wait(notice));
    assert!(said.contains("not kept on disk (File too large"), "{said}");
    s.ask(QUESTION);
    s.ask(QUESTION);
    assert_eq!((s.notices(), names(&folder)), (vec![], vec![]), "it is said once, and nothing half is left");
    setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).unwrap();
    s.ask(QUESTION);
    written(&path, s.tokens().len());
}

/// The only session under that home, once it is there.
fn session_file(home: &Path) -> PathBuf {
    let until = Instant::now() + PATIENCE;
    loop {
        let files = std::fs::read_dir(home.join("data/sessions")).into_iter().flatten().map(|e| e.unwrap().path());
        match files.into_iter().find(|path| path.extension().is_some_and(|e| e == "jsonl")) {
            Some(path) => return path,
            None => assert!(Instant::now() < until, "a session is saved"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_cache_comes_back_from_disk() {
    let home = tempfile::tempdir().unwrap();
    let short = ["--max-tokens", "6"];
    let mut chat = Chat::start(home.path(), 120, 40, &[], &short);
    chat.until_shows("Try one of these");
    chat.say("What can you do?");
    answer(&chat, 1);
    // An exit waits for the disk for a bounded time only.
    let tokens = written(&session_file(home.path()).with_extension("cache"), 1);
    chat.say("/quit");
    let code = chat.end();
    let drawn = chat.written();
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&drawn[drawn.len() - 900..]));
    let mut files: Vec<_> =
        std::fs::read_dir(home.path().join("data/sessions")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let ends: Vec<_> = files.iter().map(|f| f.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(ends, ["cache", "jsonl"]);
    let mut chat = Chat::start(home.path(), 120, 40, &[], &[&short[..], &["--continue"]].concat());
    // At once, before any message: the memory page shows it.
    chat.until_shows("cache loaded: ");
    chat.keys("\x1bOR");
    chat.until_shows("memory: ");
    chat.keys("q");
    chat.say("What can you do?");
    answer(&chat, 2);
    written(&files[0], tokens + 1);
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);

    // One answer uses it too, and a damaged one is no obstacle.
    let once = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dmschat"));
        command.env_clear().env("HOME", home.path()).env("DMSCHAT_DATA_DIR", home.path().join("data"));
        command.env("DMSCHAT_CONFIG_DIR", home.path()).args(args).stdin(std::process::Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success());
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let ask = ["--continue", "--max-tokens", "60", "--temperature", "0", "-p", "What can you do?"];
    let [first, said] = once(&ask);
    assert!(!said.contains("cache"), "{said}");
    let mut bytes = std::fs::read(&files[0]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    let [second, said] = once(&ask);
    assert_eq!(said.matches("the saved cache is not used: it is damaged").count(), 1, "{said}");
    assert_eq!(first, second);
    let [list, _] = once(&["sessions", "list"]);
    assert!(list.starts_with("ID ") && list.contains("TURNS") && list.lines().count() == 2, "{list}");
    let [pruned, _] = once(&["sessions", "prune"]);
    assert!(pruned.starts_with("removed 0 caches of 0 B; 1 cache of "), "{pruned}");
    let [pruned, _] = once(&["sessions", "prune", "--all"]);
    assert!(pruned.starts_with("removed 1 cache of ") && !files[0].exists() && files[1].exists(), "{pruned}");
}

/// A dial and a pin that were set after the last answer are there after a kill.
#[test]
fn steering_after_the_last_answer_outlives_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let short = ["--max-tokens", "6"];
    let mut chat = Chat::start(home.path(), 120, 40, &[], &short);
    chat.until_shows("Try one of these");
    chat.say("What can you do?");
    answer(&chat, 1);
    chat.say("/forget 2");
    chat.until_shows("from now on keeps");
    chat.say("/pin");
    chat.until_shows("Never forget this message?");
    chat.decide("y");
    chat.until_shows("pinned: ");
    let path = session_file(home.path());
    let session = || std::fs::read_to_string(&path).unwrap();
    let until = Instant::now() + PATIENCE;
    while !session().contains("\"pin\":") {
        assert!(Instant::now() < until, "the pin is saved");
        std::thread::sleep(Duration::from_millis(5));
    }
    chat.kill();
    let steering = |text: &str| -> Vec<LogEntry> {
        let mut loaded = dmschat::chat::session::load(text.as_bytes(), "x").unwrap();
        assert_eq!(loaded.problems.len(), 0);
        let mut info = crate::session::info();
        info.vocab = usize::MAX;
        info.identity = loaded.model().clone();
        let (request, notice) = loaded.restore_for(&info);
        assert_eq!(notice, None);
        request.log.into_iter().filter(|e| !matches!(e, LogEntry::Token(_))).collect()
    };
    let saved = steering(&session());
    assert!(matches!(saved[..], [LogEntry::Dial { .. }, LogEntry::Pin { .. }]), "{saved:?}");
    let mut chat = Chat::start(home.path(), 120, 40, &[], &[&short[..], &["--continue"]].concat());
    chat.until_shows("cache loaded: ");
    chat.say("/unpin");
    chat.until_shows("Take back the pin of");
    chat.decide("y");
    chat.until_shows("unpinned ");
    chat.say("What can you do?");
    answer(&chat, 2);
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    let now = steering(&session());
    assert!(now.starts_with(&saved) && matches!(now[2..], [LogEntry::Unpin { .. }]), "{now:?}");
}

/// Checkpoints of earlier turns are bounded by number, bytes and the memory there is.
#[test]
fn undo_of_five_turns_and_the_way_back_feed_no_token_again() {
    let tiny = talker(Form::Borrowed, 235);
    let many = |bytes: u64| {
        move |o: &mut dmschat::engine::EngineOptions| {
            (o.max_seqs, o.max_older, o.checkpoint_bytes) = (9, 5, bytes);
        }
    };
    let mut s = Session::with(&tiny, many(1 << 30));
    let mut ends = Vec::new();
    for turn in 0..6 {
        s.ask(&format!("question {turn} of some forty characters or so"));
        ends.push(s.tokens().len());
    }
    let tip = s.exchanges.clone();
    let rewind = |s: &mut Session, exchanges: &[Exchange]| {
        s.exchanges = exchanges.to_vec();
        let mut pieces = prompt_of(&exchanges[..exchanges.len() - 1], &exchanges[exchanges.len() - 1].question);
        pieces.extend(spelled(&exchanges[exchanges.len() - 1].reply));
        s.send(Command::Rewind(pieces));
    };
    // The harness compares log, slots and page counts with the reference after every turn.
    rewind(&mut s, &tip[..1]);
    assert_eq!(s.ask("another second question").reused_tokens, ends[0], "five turns back");
    s.exchanges = tip[..3].to_vec();
    assert_eq!(s.ask("an edited fourth question").reused_tokens, ends[2], "another branch, without a rewind");
    s.exchanges = tip.clone();
    assert_eq!(s.ask("a seventh").reused_tokens, ends[5], "and back to its tip");
    assert_eq!(s.notices(), [""; 0]);

    let mut s = Session::with(&tiny, many(1));
    (0..3).for_each(|_| drop(s.ask(QUESTION)));
    s.exchanges.truncate(1);
    assert_eq!(s.ask("another second question").reused_tokens, 0, "over the budget");
}
