//! Places in texts: a line outside of code blocks, the first line as a title.

use crate::unicode::one_line;

/// Returns the start of the first line outside code blocks at or after byte `at`, else the end: the
/// place to show a toggle in the middle of an answer.
pub fn line_after(text: &str, at: usize) -> usize {
    let (mut start, mut code) = (0, false);
    for line in text.split_inclusive('\n') {
        if start >= at && !code {
            return start;
        }
        let line_text = line.trim_start();
        code ^= line_text.starts_with("```") || line_text.starts_with("~~~");
        start += line.len();
    }
    text.len()
}

/// The first line of a text, at most 60 characters of it.
pub(in crate::chat) fn short_title(text: &str) -> String {
    let line = one_line(text.trim().lines().next().unwrap_or(""));
    if line.chars().count() <= 60 {
        return line;
    }
    let mut short: String = line.chars().take(59).collect();
    short.push('…');
    short
}
