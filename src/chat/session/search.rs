//! Full-text search over the saved sessions: reads each file line by line, without an index, so
//! that memory does not grow with the files. Lines that cannot be read are counted and skipped.

use super::record::MessageId;
use super::store::{Store, one_title};
use crate::chat::places::short_title;
use crate::regular_file;
use crate::unicode::one_line;
use nucleo_matcher::chars::{normalize, to_lower_case};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A longer line is not searched.
const MAX_LINE: usize = 32 << 20;
/// Most passages of one session that are returned.
const MAX_PASSAGES: usize = 20;
/// Characters of a passage before the first word, and in all.
const BEFORE: usize = 40;
const PASSAGE: usize = 160;

/// What to look for: words, and phrases in double quotes. All of them occur in one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    parts: Vec<String>,
}

impl Query {
    /// `None` if there is no word.
    pub fn new(text: &str) -> Option<Self> {
        let quoted = text.split('"').enumerate();
        let parts = quoted.flat_map(|(n, part)| match n % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.split_whitespace().collect::<Vec<_>>().join(" ")],
        });
        let parts: Vec<String> = parts.map(|part| fold(&part)).filter(|part| !part.is_empty()).collect();
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Where the first part begins in a text that has all of them, in bytes.
    fn find(&self, text: &str) -> Option<usize> {
        let folded = fold(text);
        let first = folded.find(&self.parts[0])?;
        if !self.parts[1..].iter().all(|part| folded.contains(part)) {
            return None;
        }
        let kept = folded[..first].chars().count();
        text.char_indices().filter(|(_, c)| !is_mark(*c)).nth(kept).map(|(at, _)| at)
    }
}

/// Combining marks of Latin, Greek and Cyrillic letters, which the search does not tell apart.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// A text by Unicode's simple case folding and without diacritics: character by character, a line
/// end as a blank.
fn fold(text: &str) -> String {
    let folded = |c: char| match c {
        '\n' | '\t' | '\u{a0}' => ' ',
        // Its lower case, and that of the ordinary sigma.
        'ς' => 'σ',
        c if c.is_ascii() => c.to_ascii_lowercase(),
        c => to_lower_case(normalize(c)),
    };
    text.chars().filter(|c| !is_mark(*c)).map(folded).collect()
}

/// Who wrote a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Title,
    User,
    Thought,
    Assistant,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::User => "user",
            Self::Thought => "thought",
            Self::Assistant => "assistant",
        }
    }
}

/// A place with the words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passage {
    /// `None` for the title.
    pub message: Option<MessageId>,
    pub part: Part,
    /// The text around the first word, as one line.
    pub text: String,
}

/// A session with the words.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: String,
    pub title: String,
    pub modified: SystemTime,
    pub path: PathBuf,
    pub passages: Vec<Passage>,
    /// Texts with the words beyond those.
    pub more: usize,
}

/// Counts of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Searched {
    pub sessions: usize,
    /// Lines and files that could not be read.
    pub unread: usize,
}

impl Store {
    /// Searches all sessions, the newest first, and reports each that has the words until `each`
    /// says no.
    pub fn search_texts(&self, query: &Query, mut each: impl FnMut(Found) -> bool) -> Searched {
        let mut searched = Searched::default();
        for path in self.newest_files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl")) {
            searched.sessions += 1;
            match search_file(&path, query, &mut searched.unread) {
                Ok(found) => {
                    if found.is_some_and(|found| !each(found)) {
                        break;
                    }
                }
                Err(_) => searched.unread += 1,
            }
        }
        searched
    }
}

/// The texts of a record.
#[derive(Deserialize)]
struct Texts<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    id: MessageId,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user: Option<Asked<'a>>,
}

#[derive(Deserialize)]
struct Asked<'a> {
    id: MessageId,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

fn search_file(path: &Path, query: &Query, unread: &mut usize) -> io::Result<Option<Found>> {
    let Some(id) = path.file_stem().and_then(|stem| stem.to_str()) else { return Ok(None) };
    let file = regular_file::open(path)?;
    let modified = file.metadata()?.modified()?;
    let (mut reader, mut line) = (BufReader::with_capacity(64 << 10, file), Vec::new());
    let (mut title, mut first, mut passages, mut more) = (None, None, Vec::new(), 0);
    let mut look = |message, part, text: &str| {
        if let Some(at) = query.find(text) {
            match passages.len() < MAX_PASSAGES {
                true => passages.push(Passage { message: Some(message), part, text: around(text, at) }),
                false => more += 1,
            }
        }
    };
    while let Some(whole) = next_line(&mut reader, &mut line)? {
        let Some(record) = whole.then(|| serde_json::from_slice::<Texts>(&line).ok()).flatten() else {
            *unread += usize::from(!line.is_empty());
            continue;
        };
        let Texts { kind, id, text, reasoning, title: named, user } = record;
        match kind.as_ref() {
            "title" => title = one_title(named),
            "turn" => {
                if let Some(user) = user {
                    first.get_or_insert_with(|| short_title(&user.text));
                    look(user.id, Part::User, &user.text);
                }
                reasoning.iter().for_each(|text| look(id, Part::Thought, text));
                text.iter().for_each(|text| look(id, Part::Assistant, text));
            }
            "message" | "edit" => text.iter().for_each(|text| look(id, Part::User, text)),
            _ => {}
        }
    }
    let title = title.or(first).unwrap_or_default();
    if query.find(&title).is_some() {
        passages.insert(0, Passage { message: None, part: Part::Title, text: title.clone() });
    }
    let found = Found { id: id.to_owned(), title, modified, path: path.to_owned(), passages, more };
    Ok((!found.passages.is_empty()).then_some(found))
}

/// Reads the next line without its newline; false for one that is too long, which is skipped.
/// `None` at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let read = reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(true));
    }
    if read < MAX_LINE {
        return Ok((read > 0).then_some(true));
    }
    loop {
        let buffer = reader.fill_buf()?;
        let (used, ended) = match buffer.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(used);
        if ended {
            return Ok(Some(false));
        }
    }
}

/// The text around a byte, as one line.
fn around(text: &str, at: usize) -> String {
    let from = text[..at].char_indices().rev().nth(BEFORE - 1).map_or(0, |(i, _)| i);
    // From the beginning of a word on, if there is one before the place.
    let word = text[from..at].find(char::is_whitespace).filter(|_| from > 0).map_or(from, |i| from + i);
    let to = text[word..].char_indices().nth(PASSAGE).map_or(text.len(), |(i, _)| word + i);
    let (before, after) = (if word > 0 { "…" } else { "" }, if to < text.len() { "…" } else { "" });
    format!("{before}{}{after}", one_line(text[word..to].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_any_case_and_with_or_without_marks() {
        let at = |words: &str, text: &str| Query::new(words).unwrap().find(text);
        for (words, text, place) in [
            ("cafe", "Das CAFÉ", Some(4)),
            ("CAFÉ", "das cafe\u{301} dort", Some(4)),
            ("naïve", "Naive", Some(0)),
            ("ΣΟΦΟΣ", "ένας σοφος", Some(9)),
            ("сергей", "пишет Сергей", Some(11)),
            ("ſ", "S", Some(0)),
            ("日本", "in 日本", Some(3)),
            ("two words", "words, one and two", Some(15)),
            ("two words", "two of them", None),
            ("\"two words\"", "two\nwords", Some(0)),
            ("\"two words\"", "words, one and two", None),
        ] {
            assert_eq!(at(words, text), place, "{words:?} in {text:?}");
        }
        for empty in ["", "  ", "\"\"", "\u{301}"] {
            assert_eq!(Query::new(empty), None, "{empty:?}");
        }
    }

    #[test]
    fn a_passage_is_one_line_around_the_first_word() {
        let text = format!("{}the needle\nlies here{}", "hay ".repeat(100), " hay".repeat(100));
        let at = Query::new("needle").unwrap().find(&text).unwrap();
        let passage = around(&text, at);
        assert!(passage.starts_with("…hay ") && passage.contains("the needle lies here") && passage.ends_with('…'));
        assert!(passage.chars().count() <= PASSAGE + 2);
        assert_eq!(around("needle", 0), "needle");
    }

    #[test]
    fn a_line_without_an_end_and_one_that_is_too_long_are_skipped_in_bounded_memory() {
        let mut line = Vec::new();
        let long = io::repeat(b'x').take(MAX_LINE as u64 + 5);
        let mut reader = BufReader::new(long.chain(&b"\nshort\n\nhalf"[..]));
        let mut read = || next_line(&mut reader, &mut line).unwrap().map(|whole| (whole, line.len()));
        assert_eq!(read(), Some((false, MAX_LINE)));
        assert_eq!(read(), Some((true, 5)));
        assert_eq!(read(), Some((true, 0)));
        assert_eq!(read(), Some((true, 4)));
        assert_eq!(read(), None);
    }
}
