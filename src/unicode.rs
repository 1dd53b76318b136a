//! Characters that control a terminal or are invisible: the list of them, JSON with them escaped,
//! and messages of one line. Knows no terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// The effect of a character on a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has a glyph, or combines with one.
    Shown,
    /// C0, DEL and C1.
    Control,
    /// Line and paragraph separator.
    Separator,
    /// Bidi overrides, embeddings and isolates, which reorder the text around them.
    Bidi,
    /// The zero-width joiner; see [`keeps`].
    Joiner,
    /// A selector of the text or emoji form of the previous character.
    Selector,
    /// Invisible: direction marks, zero width, fillers, tags, variation selectors.
    Hidden,
}

/// The last bytes of a text: at most `bytes`, and whole characters.
pub fn end_of(text: &str, bytes: usize) -> &str {
    let mut from = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Returns the kind of a character. The list: Unicode's default-ignorable characters, and those
/// that control a terminal.
pub fn kind(c: char) -> Kind {
    match c {
        ' '..='~' => Kind::Shown,
        c if c.is_control() => Kind::Control,
        '\u{2028}' | '\u{2029}' => Kind::Separator,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Kind::Bidi,
        '\u{200d}' => Kind::Joiner,
        '\u{fe0e}' | '\u{fe0f}' => Kind::Selector,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0d}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => Kind::Hidden,
        _ => Kind::Shown,
    }
}

/// Whether a joiner or a selector between these two is visible: a joiner between two emoji, a
/// selector after a character with a glyph.
pub fn keeps(before: Option<char>, c: char, after: Option<char>) -> bool {
    match kind(c) {
        Kind::Shown => true,
        Kind::Joiner => before.is_some_and(joins_emoji) && after.is_some_and(joins_emoji),
        Kind::Selector => before.is_some_and(|b| kind(b) == Kind::Shown),
        _ => false,
    }
}

/// Whether a joiner next to this character is part of an emoji sequence.
fn joins_emoji(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{fe0f}'
        | '\u{1f000}'..='\u{1faff}')
}

/// Escapes every invisible or control character in a JSON text as `\uXXXX`. It parses to the same
/// strings, because JSON has such characters inside strings only.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let hides = |c: char| c >= '\u{7f}' && kind(c) != Kind::Shown;
    if !json.contains(hides) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if hides(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Longest message: a hostile file could fill the screen with a name.
const MAX_MESSAGE: usize = 2_000;

/// Makes a message with text of a file one line, cut if it is too long.
pub fn one_line(text: &str) -> String {
    let mut out = String::new();
    let mut n = 0;
    for word in text.split_whitespace() {
        if n > 0 {
            out.push(' ');
        }
        for c in word.chars() {
            if n >= MAX_MESSAGE {
                out.push_str(" [cut]");
                return out;
            }
            out.push(c);
            n += 1;
        }
        n += 1;
    }
    out
}

/// The error if its message is one line, else an error with [`one_line`] of it.
pub fn one_line_error(error: anyhow::Error) -> anyhow::Error {
    let message = format!("{error:#}");
    let short = message.len() <= MAX_MESSAGE && !message.contains(['\n', '\r']);
    if short { error } else { anyhow::anyhow!("{}", one_line(&message)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One or more of each kind that was seen to hide text or to steer a terminal.
    const NASTY: &str = "\u{1}\u{1b}\u{7f}\u{80}\u{9b}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{180e}\u{200b}\u{200c}\
        \u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{206f}\u{3164}\u{fe00}\
        \u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{fffb}\u{1d173}\u{e0001}\u{e0041}\u{e007f}\u{e0100}\u{e01ef}";

    #[test]
    fn the_end_of_a_text_has_whole_characters() {
        assert_eq!([0, 1, 2, 3, 9].map(|bytes| end_of("a\u{e9}b", bytes)), ["", "b", "b", "\u{e9}b", "a\u{e9}b"]);
    }

    #[test]
    fn json_has_no_hidden_character_and_means_the_same() {
        let text = format!("a\"\\\n{NASTY}é한👩\u{200d}🚀❤\u{fe0f}z");
        for json in [serde_json::to_string(&text), serde_json::to_string_pretty(&[[&text]])] {
            let json = json.unwrap();
            let escaped = escape_json(&json);
            let seen = |c: char| c == '\n' || kind(c) == Kind::Shown;
            assert!(escaped.chars().all(seen), "{escaped:?}");
            assert!(escaped.contains("\\udb40\\udc41") && escaped.contains("\\u202e") && escaped.contains("é한👩"));
            let back: serde_json::Value = serde_json::from_str(&escaped).unwrap();
            assert!(back == text.as_str() || back[0][0] == text.as_str());
        }
        assert!(matches!(escape_json("{\"a\": \"plain é\"}"), Cow::Borrowed(_)));
    }

    #[test]
    fn messages_are_one_line_and_end() {
        assert_eq!(one_line(" a\n\tb  c\r\n"), "a b c");
        for word in ["a ", "ab ", "abc "] {
            let long = one_line(&word.repeat(10_000));
            assert!(long.chars().count() < 2_010 && long.ends_with(" [cut]"), "{long}");
        }
        let error = anyhow::Error::from(std::io::Error::other("x")).context("file");
        assert!(one_line_error(error).downcast_ref::<std::io::Error>().is_some());
        assert_eq!(format!("{:#}", one_line_error(anyhow::anyhow!("x\ny").context("file"))), "file: x y");
    }

    #[test]
    fn joiners_and_selectors_stay_inside_emoji_only() {
        assert!(keeps(Some('👩'), '\u{200d}', Some('🚀')) && keeps(Some('❤'), '\u{fe0f}', None));
        assert!(!keeps(Some('a'), '\u{200d}', Some('b')) && !keeps(Some('👩'), '\u{200d}', None));
        assert!(!keeps(None, '\u{fe0f}', None) && !keeps(Some('\u{fe0f}'), '\u{fe0f}', None));
        assert!(
            NASTY.chars().all(|c| kind(c) != Kind::Shown && (kind(c) == Kind::Selector || !keeps(Some('a'), c, None)))
        );
    }
}
