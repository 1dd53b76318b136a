//! Links in answers: finds URLs, and writes the sequences (OSC 8) by which a terminal opens them. A
//! span carries the number of its link in its underline colour, which nothing else uses, so that
//! wrapping and tables keep it; drawing turns the number into the sequence.

use super::text::grapheme_width;
use ratatui::buffer::{Buffer, CellDiffOption};
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Span;
use std::num::NonZeroU16;
use std::ops::Range;

/// Longer URLs are text only: every cell of a link repeats its URL.
const LONGEST: usize = 1_000;
const SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

/// The style with a link to `url`, which is added to `links`; unchanged where it is not a URL that
/// a terminal may open.
pub fn linked(style: Style, url: &str, links: &mut Vec<String>) -> Style {
    let Some(url) = safe(url).filter(|_| links.len() < 1 << 24) else { return style };
    let number = links.iter().position(|l| *l == url).unwrap_or_else(|| {
        links.push(url);
        links.len() - 1
    });
    let [_, r, g, b] = (number as u32).to_be_bytes();
    style.underline_color(Color::Rgb(r, g, b))
}

/// The URL in printable ASCII: controls dropped, other characters percent-encoded. `None` for other
/// schemes than http, https and mailto.
fn safe(url: &str) -> Option<String> {
    let known = |s: &str| url.get(..s.len()).is_some_and(|u| u.eq_ignore_ascii_case(s)) && url.len() > s.len();
    if !SCHEMES.iter().any(|s| known(s)) {
        return None;
    }
    let mut out = String::with_capacity(url.len());
    for c in url.chars().filter(|c| !c.is_control()) {
        if c.is_ascii_graphic() {
            out.push(c);
        } else {
            out.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|b| format!("%{b:02X}")));
        }
    }
    (out.len() <= LONGEST).then_some(out)
}

/// Styles the URLs of a line of text as links. Spans that are links already stay as they are.
pub fn mark(spans: Vec<Span<'static>>, style: Style, links: &mut Vec<String>) -> Vec<Span<'static>> {
    let text: String = spans.iter().map(|s| s.content.as_ref()).collect();
    let found = urls(&text);
    if found.is_empty() {
        return spans;
    }
    let mut out = Vec::new();
    let mut at = 0;
    for span in spans {
        let (from, to) = (at, at + span.content.len());
        at = to;
        if span.style.underline_color.is_some() {
            out.push(span);
            continue;
        }
        let mut done = from;
        for range in found.iter().filter(|r| r.start < to && r.end > from) {
            let (start, end) = (range.start.max(from), range.end.min(to));
            let own = linked(span.style.patch(style), &text[range.clone()], links);
            out.push(Span::styled(text[done..start].to_owned(), span.style));
            out.push(Span::styled(text[start..end].to_owned(), own));
            done = end;
        }
        out.push(Span::styled(text[done..to].to_owned(), span.style));
    }
    out.retain(|s| !s.content.is_empty());
    out
}

/// Where the http and https URLs of a text are.
fn urls(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (start, _) in text.match_indices("http") {
        let begins = !text[..start].ends_with(|c: char| c.is_alphanumeric());
        let after_last = found.last().is_none_or(|last| last.end <= start);
        let Some(scheme) = SCHEMES[..2].iter().find(|s| text[start..].starts_with(**s)) else { continue };
        let ends = |c: char| !c.is_ascii_graphic() || matches!(c, '<' | '>' | '"' | '`' | '|' | '\\' | '^' | '{' | '}');
        let mut url = text[start..].split(ends).next().unwrap_or_default();
        // Punctuation after a URL is the sentence's, and so is a bracket that it does not open.
        while let Some(last) = url.chars().next_back() {
            let (open, close) = if last == ')' { ('(', ')') } else { ('[', ']') };
            let unbalanced = last == close && url.matches(close).count() > url.matches(open).count();
            if !matches!(last, '.' | ',' | ';' | ':' | '!' | '?' | '\'' | '*' | '_' | '~') && !unbalanced {
                break;
            }
            url = &url[..url.len() - 1];
        }
        if begins && after_last && url.len() > scheme.len() {
            found.push(start..start + url.len());
        }
    }
    found
}

/// Turns the numbers of links in a drawn area into their sequences, or takes them away.
pub fn draw(buffer: &mut Buffer, area: Rect, links: &[String], on: bool) {
    if links.is_empty() {
        return;
    }
    for position in area.intersection(buffer.area).positions() {
        let cell = &mut buffer[position];
        let Color::Rgb(r, g, b) = cell.underline_color else { continue };
        cell.underline_color = Color::Reset;
        let number = u32::from_be_bytes([0, r, g, b]) as usize;
        let width = NonZeroU16::new(grapheme_width(cell.symbol()) as u16);
        if let (true, Some(url), Some(width)) = (on, links.get(number), width) {
            // Every cell has the whole sequence: the terminal may be sent any part of a row.
            let symbol = format!("\x1b]8;id={number};{url}\x1b\\{}\x1b]8;;\x1b\\", cell.symbol());
            cell.set_symbol(&symbol).set_diff_option(CellDiffOption::ForcedWidth(width));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_a_terminal_may_open_become_links() {
        assert_eq!(safe("https://a.b/c d?é").as_deref(), Some("https://a.b/c%20d?%C3%A9"));
        assert_eq!(safe("HTTP://a.b/\x1b\\\x07x\u{9c}").as_deref(), Some("HTTP://a.b/\\x"));
        assert_eq!(safe("mailto:a@b.c").as_deref(), Some("mailto:a@b.c"));
        let long = format!("https://{}", "a".repeat(LONGEST));
        for no in ["javascript:alert(1)", "file:///etc/passwd", "https://", "ftp://a", "", "ünï", &long] {
            assert_eq!(safe(no), None, "{no}");
        }
    }

    #[test]
    fn urls_end_where_the_sentence_goes_on() {
        let of = |text: &'static str| urls(text).into_iter().map(|r| &text[r]).collect::<Vec<_>>();
        assert_eq!(of("See https://a.b/c_d(e), or (http://x.y/z)."), ["https://a.b/c_d(e)", "http://x.y/z"]);
        assert_eq!(of("<https://a.b>https://c.d…"), ["https://a.b", "https://c.d"]);
        assert_eq!(of("xhttps://a.b http:// https"), Vec::<&str>::new());
        assert_eq!(of("https://a.b/?u=http://c.d"), ["https://a.b/?u=http://c.d"]);
    }

    #[test]
    fn a_url_over_several_spans_is_one_link() {
        let spans = vec![Span::raw("at https://a.b/"), Span::raw("_"), Span::raw("c now")];
        let mut links = Vec::new();
        let marked = mark(spans, Style::new(), &mut links);
        let text: String = marked.iter().map(|s| s.content.as_ref()).collect();
        assert_eq!((text.as_str(), links), ("at https://a.b/_c now", vec!["https://a.b/_c".to_owned()]));
        assert_eq!(marked.iter().filter(|s| s.style.underline_color.is_some()).count(), 3);
    }
}
