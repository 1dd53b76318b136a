//! The folder of sessions: list, find, open, rename, delete. [`Store::find`] reads what a user
//! typed and never guesses; all other operations need an id, which names exactly one file. No name
//! leads out of the folder.

use super::file::{LineFile, MAX_BYTES, part_of};
use super::load::{Loaded, load};
use super::record::{Header, Record, with_session_name};
use super::{Session, new_id};
use crate::chat::conversation::{Change, Conversation};
use crate::chat::places::short_title;
use crate::chat::tags::Tags;
use crate::protocol::StopReason;
use crate::regular_file;
use crate::unicode::one_line;
use anyhow::{Context, Result, anyhow, bail};
use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher};
use serde::Deserialize;
use std::borrow::Cow;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Extension of the file beside a session that holds its cache.
pub const CACHE_EXTENSION: &str = "cache";

/// The file of a session's cache, which need not exist.
pub fn cache_of(session: &Path) -> PathBuf {
    session.with_extension(CACHE_EXTENSION)
}

/// Most sessions whose models are looked up.
const MAX_LOOKED_AT: usize = 200;
/// A longer first line is not read for that.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Sessions that an error names.
const CANDIDATES: usize = 5;
/// Fewest characters that count as the end of an id.
const ID_END: usize = 3;
/// Words of a name that are compared with a typing error.
const MAX_WORDS: usize = 8;

/// The sessions of one data folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A session in a list.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: String,
    pub title: String,
    pub tags: Tags,
    pub model: String,
    /// Turns with an answer, complete or not. Refused prompts do not count.
    pub turns: usize,
    /// The last question and answer.
    pub preview: String,
    /// Compression ratio of the cache after the last turn.
    pub ratio: Option<f64>,
    pub bytes: u64,
    /// The session that this one continues from a summary.
    pub continues: Option<String>,
    /// When it was last written.
    pub modified: SystemTime,
    pub path: PathBuf,
    /// Text that a fuzzy search looks at.
    text: String,
    /// Title and first message in lower case.
    words: String,
}

impl Entry {
    /// `2026-11-21 04:15`, local time.
    pub fn date(&self) -> String {
        local_time(self.modified)
    }

    /// Whether a word, in lower case, begins in the title or the first message. Scripts without
    /// spaces have no beginnings.
    fn has_word(&self, word: &str) -> bool {
        let mut places = self.words.match_indices(word);
        places.any(|(at, _)| !word.is_ascii() || !self.words[..at].ends_with(char::is_alphanumeric))
    }

    /// Whether `wanted`, in lower case, could be its id or words of its title or first message with
    /// a typo.
    fn is_similar(&self, wanted: &str) -> bool {
        let near = |a: &str, b: &str| strsim::osa_distance(a, b) <= a.chars().count() / 4;
        let has_similar = |word: &str| self.words.split(|c: char| !c.is_alphanumeric()).any(|own| near(word, own));
        let mut words = wanted.split_whitespace().take(MAX_WORDS).peekable();
        near(wanted, &self.id) || words.peek().is_some() && words.all(has_similar)
    }

    /// `ID "title"`, for messages.
    fn named(&self) -> String {
        let title: String = self.title.chars().take(40).collect();
        format!("{} {title:?}", self.id)
    }
}

/// `2026-11-21 04:15`, local time.
pub fn local_time(time: SystemTime) -> String {
    let zoned = jiff::Timestamp::try_from(time).map(|t| t.to_zoned(jiff::tz::TimeZone::system()));
    zoned.map(|z| z.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default()
}

impl AsRef<str> for Entry {
    /// The text for a fuzzy search.
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl Store {
    /// `folder`: `Dirs::sessions()`. Creates nothing.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// A new session. Its first turn creates the file.
    pub fn create(&self) -> Session {
        let id = new_id();
        let file = LineFile::new(self.path_of(&id));
        Session::with_file(id, Some(file))
    }

    fn path_of(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.jsonl"))
    }

    /// All readable sessions, newest first.
    pub fn list(&self) -> Vec<Entry> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut entries: Vec<Entry> = files.filter_map(|path| entry(&path)).collect();
        entries.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| b.id.cmp(&a.id)));
        entries
    }

    /// The sessions whose title, question, model or date match a fuzzy pattern, best first.
    pub fn search(&self, query: &str) -> Vec<Entry> {
        let entries = self.list();
        if query.trim().is_empty() {
            return entries;
        }
        let pattern = Pattern::parse(query, CaseMatching::Ignore, Normalization::Smart);
        let matched = pattern.match_list(entries, &mut Matcher::new(Config::DEFAULT));
        matched.into_iter().map(|(entry, _)| entry).collect()
    }

    /// Files in the folder, newest first.
    pub(super) fn newest_files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut files: Vec<(SystemTime, PathBuf)> =
            files.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).collect();
        files.sort_by(|a, b| b.cmp(a));
        files.into_iter().map(|(_, path)| path).collect()
    }

    /// Model folders and files that the newest sessions began with and that are still there, each
    /// once. Reads only the first line of each session.
    pub fn models(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let files = self.newest_files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl"));
        for header in files.take(MAX_LOOKED_AT).filter_map(|path| header(&path)) {
            let Some(model) = header.model.reference.map(|reference| reference.model) else { continue };
            let path = Path::new(&model);
            if path.is_absolute() && !found.contains(&model) && path.exists() {
                found.push(model);
            }
        }
        found
    }

    /// The id of the session with a turn that was written last.
    pub fn newest(&self) -> Result<String> {
        let files = self.newest_files();
        let mut ids = files.iter().filter_map(|path| id_with_a_turn(path));
        ids.next().ok_or_else(|| anyhow!("there is no session to continue yet"))
    }

    /// The file of the session with this id, or an error if there is none.
    fn file_of(&self, id: &str) -> Result<PathBuf> {
        let path = self.path_of(id);
        let is_name = Path::new(id).file_name().is_some_and(|name| name == id);
        if !is_name || !path.is_file() {
            bail!("there is no session {id}");
        }
        Ok(path)
    }

    /// Finds the session that a user typed: its id, else its whole title, else the beginning or the
    /// end of its id, else words that its title or first message has. The error names candidates,
    /// unless exactly one session fits.
    pub fn find(&self, name: &str) -> Result<Entry> {
        if name.trim().is_empty() {
            bail!("the name of the session is empty; dmschat sessions list names the sessions");
        }
        let entries = self.list();
        let wanted = name.to_lowercase();
        let rules: [&dyn Fn(&Entry) -> bool; 5] = [
            &|e| e.id == name,
            &|e| e.title == name,
            &|e| e.id.starts_with(name),
            &|e| name.len() >= ID_END && e.id.ends_with(name),
            &|e| wanted.split_whitespace().all(|word| e.has_word(word)),
        ];
        let found = rules.iter().map(|rule| entries.iter().filter(|e| rule(e)).collect::<Vec<_>>());
        let found = found.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
        if let [entry] = found[..] {
            return Ok(entry.clone());
        }
        let list = |entries: &[Entry]| entries.iter().take(CANDIDATES).map(Entry::named).collect::<Vec<_>>().join(", ");
        if !found.is_empty() {
            let found: Vec<Entry> = found.into_iter().cloned().collect();
            let more = if found.len() > CANDIDATES { ", ..." } else { "" };
            bail!("{name:?} fits {} conversations, give the id of one: {}{more}", found.len(), list(&found));
        }
        let kind = if name.ends_with(".jsonl") { "no file and no session is called" } else { "no session matches" };
        let similar: Vec<Entry> = entries.into_iter().filter(|entry| entry.is_similar(&wanted)).collect();
        let similar = if similar.is_empty() { String::new() } else { format!("; similar: {}", list(&similar)) };
        bail!("{kind} {name:?}{similar}; dmschat sessions list names the sessions")
    }

    /// Finds the id of the session that a user typed. A file too damaged to be listed keeps its id,
    /// so that the error describes its fault and no other session is taken for it.
    fn id_of(&self, name: &str) -> Result<String> {
        match self.file_of(name) {
            Ok(_) => Ok(name.to_owned()),
            Err(_) => Ok(self.find(name)?.id),
        }
    }

    /// Opens a session to continue it; it is locked until the returned [`Session`] is dropped.
    /// `name` is as for [`Store::find`], or a file written by `/save` or `/export`, which becomes a
    /// new session. [`Loaded::problems`] lists what could not be read.
    pub fn resume(&self, name: &str) -> Result<(Session, Loaded)> {
        if is_file_name(name) {
            let text = read_text(Path::new(name))?;
            let loaded = load(text.as_bytes(), name)?;
            let id = new_id();
            let file = LineFile::new(self.path_of(&id));
            let text = with_session_name(&text, &id);
            return Ok((Session::of_loaded(id, Some(file), text, false, &loaded), loaded));
        }
        self.open(&self.id_of(name)?)
    }

    /// Like [`Store::resume`], for the session with this id.
    pub fn open(&self, id: &str) -> Result<(Session, Loaded)> {
        let path = self.file_of(id)?;
        let opened = match LineFile::open(&path, id) {
            Ok(opened) => opened,
            Err(e) if is_read_only(&e) => {
                let mut loaded = self.read(id)?;
                loaded.problems.push(format!("{e:#}: it is read-only: new messages are not saved"));
                return Ok((Session::unsaved(), loaded));
            }
            Err(e) => return Err(e),
        };
        let mut file = opened.file;
        let whole = whole_lines(&opened.bytes);
        // A refused file is not touched.
        let mut loaded = load(&opened.bytes[..whole], id)?;
        loaded.cache = Some(cache_of(&path));
        let half = &opened.bytes[whole..];
        if !half.is_empty() {
            let aside = file.cut_off(half).with_context(|| format!("session {id}"))?;
            loaded.problems.push(format!(
                "session {id}: its last line was half written; {} bytes were cut off and are kept in {}",
                half.len(),
                aside.display()
            ));
        }
        let mut text = String::from_utf8_lossy(&opened.bytes[..whole]).into_owned();
        if !text.ends_with('\n') {
            text.push('\n');
            file.end_line_later();
        }
        let session = Session::of_loaded(id.to_owned(), Some(file), text, true, &loaded);
        Ok((session, loaded))
    }

    /// Reads a session without locking or changing it (`-p --resume NAME`). `name` is as for
    /// [`Store::resume`].
    pub fn read_named(&self, name: &str) -> Result<Loaded> {
        if is_file_name(name) {
            return read_whole_lines(Path::new(name), name);
        }
        self.read(&self.id_of(name)?)
    }

    /// The complete lines of the session with this id, as they are in its file.
    pub fn lines(&self, id: &str) -> Result<Vec<u8>> {
        let path = self.file_of(id)?;
        let mut bytes = regular_file::read(&path, MAX_BYTES).with_context(|| format!("session {}", path.display()))?;
        bytes.truncate(whole_lines(&bytes));
        if !bytes.ends_with(b"\n") {
            bytes.push(b'\n');
        }
        Ok(bytes)
    }

    /// The folder of the sessions.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Reads the session with this id without locking or changing it.
    pub fn read(&self, id: &str) -> Result<Loaded> {
        let path = self.file_of(id)?;
        let mut loaded = read_whole_lines(&path, id)?;
        loaded.cache = Some(cache_of(&path));
        Ok(loaded)
    }

    /// Sets the title of the session with this id, which must not be open.
    pub fn rename(&self, id: &str, title: &str) -> Result<()> {
        self.change(id, |conversation| conversation.rename(title))
    }

    /// Sets the tags of the session with this id, which must not be open.
    pub fn set_tags(&self, id: &str, tags: Tags) -> Result<()> {
        self.change(id, |conversation| conversation.set_tags(tags))
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Conversation)) -> Result<()> {
        let (mut session, Loaded { mut conversation, .. }) = self.open(id)?;
        change(&mut conversation);
        for change in conversation.take_changes() {
            if let Change::Record(record) = change {
                session.note(&conversation, &record);
            }
        }
        session.flush().map(|_| ())
    }

    /// Deletes the session with this id, which must not be open, and the files beside it.
    pub fn delete(&self, id: &str) -> Result<()> {
        let path = self.file_of(id)?;
        // Locked, because another process may have it open.
        let _lock = LineFile::open(&path, id)?;
        fs::remove_file(&path).with_context(|| format!("session {id}"))?;
        for beside in [cache_of(&path), part_of(&path)] {
            match fs::remove_file(beside) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("session {id}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads a file without an incomplete last line.
fn read_whole_lines(path: &Path, name: &str) -> Result<Loaded> {
    let bytes = regular_file::read(path, MAX_BYTES).with_context(|| format!("session {}", path.display()))?;
    let whole = whole_lines(&bytes);
    let mut loaded = load(&bytes[..whole], name)?;
    if whole < bytes.len() {
        let half = bytes.len() - whole;
        loaded.problems.push(format!("session {name}: its last line was half written; {half} bytes are left out"));
    }
    Ok(loaded)
}

/// Bytes up to the end of the last complete line. A line that lacks only its newline is complete.
fn whole_lines(bytes: &[u8]) -> usize {
    let ended = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let is_record = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes[ended..]).is_ok();
    if is_record { bytes.len() } else { ended }
}

fn is_read_only(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(PermissionDenied | ReadOnlyFilesystem))
}

/// Whether a name is the path of a transcript rather than a session.
fn is_file_name(name: &str) -> bool {
    name.ends_with(".jsonl") && Path::new(name).is_file()
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = regular_file::read(path, MAX_BYTES).with_context(|| path.display().to_string())?;
    let Ok(mut text) = String::from_utf8(bytes) else { bail!("{}: not UTF-8 text", path.display()) };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// The fields of a record that the list needs.
#[derive(Deserialize)]
struct Glance<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    title: Option<Cow<'a, str>>,
    tags: Option<Vec<String>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user: Option<GlanceUser<'a>>,
    #[serde(borrow)]
    model: Option<GlanceModel<'a>>,
    report: Option<GlanceReport>,
}

#[derive(Deserialize)]
struct GlanceUser<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct GlanceModel<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct GlanceReport {
    stop_reason: StopReason,
    answer_tokens: u64,
    reasoning_tokens: u64,
    in_context: bool,
    kv: GlanceKv,
}

#[derive(Deserialize)]
struct GlanceKv {
    ratio: Option<f64>,
}

impl GlanceReport {
    /// Whether the prompt was refused before generation.
    fn is_refused(&self) -> bool {
        let nothing = self.answer_tokens == 0 && self.reasoning_tokens == 0;
        nothing && !self.in_context && self.stop_reason != StopReason::Cancelled
    }
}

/// The id of a session, if the file has an answered turn.
fn id_with_a_turn(path: &Path) -> Option<String> {
    let id = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.to_owned();
    let bytes = regular_file::read(path, MAX_BYTES).ok()?;
    let mut lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    Record::parse(lines.next()?).ok().filter(|first| matches!(first, Record::Header(_)))?;
    let mut glances = lines.filter_map(|line| serde_json::from_slice::<Glance>(line).ok());
    let answered = |g: &Glance| g.kind == "turn" && g.report.as_ref().is_some_and(|r| !r.is_refused());
    glances.any(|g| answered(&g)).then_some(id)
}

/// The id in the first line of a session or of a copy of one.
pub fn session_in(path: &Path) -> Option<String> {
    header(path).map(|header| header.session)
}

/// Reads the first line of a session.
fn header(path: &Path) -> Option<Header> {
    let mut line = Vec::new();
    let file = regular_file::open(path).ok()?;
    BufReader::new(file.take(MAX_HEADER_BYTES)).read_until(b'\n', &mut line).ok()?;
    match Record::parse(&line) {
        Ok(Record::Header(header)) => Some(*header),
        _ => None,
    }
}

/// Reads the part of a file that the list shows; `None` if it is not a session.
fn entry(path: &Path) -> Option<Entry> {
    let id = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.to_owned();
    let meta = fs::metadata(path).ok()?;
    let bytes = regular_file::read(path, MAX_BYTES).ok()?;
    let mut lines = bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    let Ok(Record::Header(header)) = Record::parse(lines.next()?) else { return None };
    let modified = meta.modified().ok()?;
    let (mut title, mut first, mut preview, mut text) = (None, None, String::new(), String::new());
    let mut asked = None;
    let mut entry = Entry {
        id,
        title: String::new(),
        tags: Tags::default(),
        model: header.model.name,
        turns: 0,
        preview: String::new(),
        ratio: None,
        bytes: meta.len(),
        continues: header.continues,
        modified,
        path: path.to_owned(),
        text: String::new(),
        words: String::new(),
    };
    for line in lines {
        let Ok(glance) = serde_json::from_slice::<Glance>(line) else { continue };
        match (glance.kind.as_ref(), &glance.report) {
            ("title", _) => {
                title = one_title(glance.title);
                if let Some(tags) = glance.tags {
                    entry.tags = Tags::read(tags);
                }
            }
            ("turn", Some(report)) if !report.is_refused() => {
                entry.turns += 1;
                entry.ratio = report.kv.ratio.or(entry.ratio);
                if let Some(model) = glance.model {
                    entry.model = model.name.into_owned();
                }
                if let Some(user) = &glance.user {
                    preview = beginning(&user.text);
                    first.get_or_insert_with(|| short_title(&user.text));
                    asked.get_or_insert_with(|| user.text.to_lowercase());
                }
                text = beginning(glance.text.as_deref().unwrap_or(""));
            }
            _ => {}
        }
    }
    let first = first.unwrap_or_default();
    entry.title = title.unwrap_or_else(|| first.clone());
    entry.words = format!("{}\n{}", entry.title.to_lowercase(), asked.unwrap_or_default());
    entry.text = format!("{} {} {} {first}{}", entry.title, entry.model, entry.date(), entry.tags.shown());
    entry.preview = format!("{preview}\n{text}");
    Some(entry)
}

/// The title of a record, as one line.
pub(super) fn one_title(title: Option<Cow<str>>) -> Option<String> {
    title.map(|title| one_line(&title)).filter(|title| !title.is_empty())
}

/// The beginning of a text, as one line.
fn beginning(text: &str) -> String {
    one_line(&text.chars().take(400).collect::<String>())
}
