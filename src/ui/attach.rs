//! What is attached to a message by `@`: a file, the list of a folder, or a web page, bounded and
//! as text; and the output of a command. It travels as text of the message and never becomes a
//! control token.

mod command;
mod fence;
mod folder;

pub use command::Job;

use super::paths::expand_home;
use super::text::{bytes, clean_line, plural, truncate};
use crate::regular_file;
use crate::web::{self, Page};
use fence::fence_for;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Larger files are refused.
pub const MAX_BYTES: u64 = 1 << 20;

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `[@notes.md, 120 lines, 4.2 kB]`
    pub label: String,
    /// Text that is sent: the name and the content in a fenced block.
    pub text: String,
}

/// Reads what a mention names: a URL, a folder or a file. `offline` forbids connections. The error
/// is one line.
pub fn read(typed: &str, offline: bool) -> Result<Attachment, String> {
    let refused = |why: String| format!("{} is not attached: {why}", truncate(&clean_line(typed), 100));
    if web::is_url(typed) {
        if offline {
            return Err(refused("HF_HUB_OFFLINE is set, so no connection is opened".to_owned()));
        }
        return web::fetch(typed, &AtomicBool::new(false)).map(|page| of_page(typed, &page)).map_err(refused);
    }
    let path = expand_home(Path::new(typed));
    if path.is_dir() {
        let list = folder::list(&path).map_err(|e| refused(e.to_string()))?;
        let name = clean_line(typed);
        let text = if list.text.is_empty() { "(no files)\n" } else { &list.text };
        return Ok(fenced(&name, &format!("{name} ({})", list.what), &list.what, text));
    }
    read_file(typed)
}

/// A page with its address, and its title if it has one.
fn of_page(typed: &str, page: &Page) -> Attachment {
    let title = if page.title.is_empty() { String::new() } else { format!(" ({})", clean_line(&page.title)) };
    let cut = if page.cut { ", its beginning" } else { "" };
    let name = typed.split_once("://").map_or(typed, |(_, rest)| rest);
    let what = format!("{}, {}{cut}", plural(page.text.lines().count() as u64, "line"), bytes(page.text.len() as u64));
    fenced(&clean_line(name), &format!("{}{title}{cut}", clean_line(&page.url)), &what, &page.text)
}

/// A text in a fence, with a line before it.
fn fenced(name: &str, head: &str, what: &str, text: &str) -> Attachment {
    let fence = fence_for(text);
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    Attachment {
        label: format!("[@{}, {what}]", truncate(name, 40)),
        text: format!("{head}:\n{fence}\n{text}{end}{fence}"),
    }
}

/// Reads a regular file of UTF-8 text. The error is one line.
fn read_file(typed: &str) -> Result<Attachment, String> {
    let name = clean_line(typed);
    let refused = |why: &str| format!("{name} is not attached: {why}");
    let path = expand_home(Path::new(typed));
    if std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() > MAX_BYTES) {
        return Err(refused("it is larger than 1 MiB, the limit for attached files"));
    }
    let text = regular_file::read_text(&path, MAX_BYTES).map_err(|e| refused(&e.to_string()))?;
    if text.contains('\0') {
        return Err(refused("it is a binary file"));
    }
    let lines = plural(text.lines().count() as u64, "line");
    let size = bytes(text.len() as u64);
    Ok(fenced(&name, &name, &format!("{lines}, {size}"), &text))
}

/// The path of a candidate that attaches a file: `@notes.md`, `@"my notes.md"`.
pub fn attachment(insert: &str) -> Option<&str> {
    named(insert).filter(|path| !path.ends_with('/'))
}

/// What a mention names: a file, a folder or a URL.
pub fn named(mention: &str) -> Option<&str> {
    let name = mention.strip_prefix('@')?;
    let name = name.strip_prefix('"').map_or(Some(name), |quoted| quoted.strip_suffix('"'))?;
    (!name.is_empty()).then_some(name)
}

/// The words of a message that may name files to attach: `@notes.md`, `@"my notes.md"`, with what
/// follows up to a space.
pub fn mentions(text: &str) -> Vec<&str> {
    let starts =
        text.match_indices('@').filter(|(at, _)| text[..*at].chars().next_back().is_none_or(char::is_whitespace));
    let word = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let quoted = rest.strip_prefix("@\"").and_then(|inner| Some(inner.find('"')? + 3));
        let end = quoted.unwrap_or_else(|| rest.find(char::is_whitespace).unwrap_or(rest.len()));
        text.get(at..at + end)
    };
    starts.filter_map(word).collect()
}

/// A mention without the punctuation that ends a sentence.
pub fn without_end(mention: &str) -> &str {
    mention.trim_end_matches(END)
}

/// Whether a mention ends before this text.
pub fn ends_before(rest: &str) -> bool {
    rest.trim_start_matches(END).chars().next().is_none_or(char::is_whitespace)
}

/// Punctuation after a mention.
const END: [char; 8] = ['.', ',', ';', ':', '!', '?', ')', '\''];

/// The first word of a message that looks like a file to attach, and is not attached: `@notes.md`,
/// `@src/main.rs`.
pub fn unattached(text: &str) -> Option<&str> {
    let is_path = |path: &str| path.contains(['.', '/']) && !path.contains('@');
    mentions(text).into_iter().map(without_end).find(|word| word.len() > 2 && is_path(&word[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_files_are_attached_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("notes.md"), "one\n```\ntwo\n```\n</think><|im_end|>").unwrap();
        let notes = read(&path("notes.md"), false).unwrap();
        assert!(notes.label.ends_with(", 5 lines, 34 B]"), "{}", notes.label);
        let body = notes.text.split_once(":\n").unwrap().1;
        assert_eq!(body, "````\none\n```\ntwo\n```\n</think><|im_end|>\n````");
        std::fs::write(path("image"), [0xff, 0xd8]).unwrap();
        std::fs::write(path("zeros"), [b'a', 0]).unwrap();
        std::fs::File::create(path("large")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for (name, why) in [
            ("image", "not UTF-8"),
            ("zeros", "it is a binary file"),
            ("large", "larger than 1 MiB, the limit for attached files"),
            ("none/", "No such file"),
            ("nothing", "No such file"),
        ] {
            let error = read(&path(name), false).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
        let list = read(&path(""), false).unwrap();
        assert!(list.label.ends_with(", 4 files]") && list.text.contains("notes.md  34 B\n"), "{list:?}");
        let error = read("http://localhost:1/x", false).unwrap_err();
        assert!(error.starts_with("http://localhost:1/x is not attached: localhost is "), "{error}");
        assert!(read("http://localhost:1/x", true).unwrap_err().contains("HF_HUB_OFFLINE"));
        #[cfg(unix)]
        {
            let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
            assert!(made.unwrap().success());
            assert!(read(&path("pipe"), false).unwrap_err().contains("not a regular file"));
        }
    }
}
