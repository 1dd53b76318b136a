//! The text of an HTML page, as plain text with `#` before headings and `-` before items. Tags are
//! read as they come, without a tree; scripts, styles and comments are dropped.

use super::entities::decoded;

/// Elements whose content is not text of the page.
const DROPPED: [&str; 9] = ["script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "textarea"];
/// Elements that begin a line, and those with an empty line around them.
const LINES: [&str; 24] = [
    "br",
    "div",
    "section",
    "article",
    "header",
    "footer",
    "main",
    "nav",
    "aside",
    "li",
    "dt",
    "dd",
    "tr",
    "form",
    "fieldset",
    "figure",
    "figcaption",
    "address",
    "details",
    "summary",
    "option",
    "body",
    "caption",
    "hr",
];
const PARTS: [&str; 14] =
    ["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "blockquote", "pre", "title"];

/// The title of a page, and its text.
pub fn of_html(html: &str) -> (String, String) {
    let (mut out, mut title) = (Text::default(), String::new());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        out.add(&rest[..at]);
        rest = &rest[at..];
        let Some(tag) = Tag::read(rest) else {
            out.add("<");
            rest = &rest[1..];
            continue;
        };
        rest = &rest[tag.length..];
        if tag.name == "title" && !tag.closes {
            let (inside, after) = up_to_end(rest, "title");
            if title.is_empty() {
                title = decoded(inside).split_whitespace().collect::<Vec<_>>().join(" ");
            }
            rest = after;
        } else if DROPPED.contains(&tag.name.as_str()) && !tag.closes {
            rest = up_to_end(rest, &tag.name).1;
        } else {
            out.tag(&tag);
        }
    }
    out.add(rest);
    (title, out.text.trim().to_owned())
}

/// A tag, a comment or a declaration; the latter two have no name.
struct Tag {
    name: String,
    closes: bool,
    /// Bytes from `<` to `>`.
    length: usize,
}

impl Tag {
    /// Reads the tag that a text begins with. `None` if `<` is only a character.
    fn read(text: &str) -> Option<Self> {
        let nameless = |length| Some(Self { name: String::new(), closes: false, length });
        let to = |end: &str| text.find(end).map_or(text.len(), |at| at + end.len());
        if text.starts_with("<!--") {
            return nameless(to("-->"));
        }
        if text.starts_with("<!") || text.starts_with("<?") {
            return nameless(to(">"));
        }
        let closes = text.starts_with("</");
        let name = &text[1 + usize::from(closes)..];
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
        Some(Self { name: name[..end].to_ascii_lowercase(), closes, length: length_of(text) })
    }
}

/// Bytes of a tag. A `>` in quotes does not end it.
fn length_of(text: &str) -> usize {
    let mut quote = None;
    let mut value = false;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), byte) if open == byte => quote = None,
            (Some(_), _) => {}
            // A quote begins a value only after an equals sign.
            (None, b'"' | b'\'') if value => quote = Some(byte),
            (None, b'>') => return at + 1,
            _ => {}
        }
        value = byte == b'=' || (value && byte.is_ascii_whitespace());
    }
    text.len()
}

/// The text before the end tag of an element, and after it.
fn up_to_end<'a>(text: &'a str, name: &str) -> (&'a str, &'a str) {
    let ends = |at: &usize| {
        let after = &text.as_bytes()[at + 2..];
        after.len() >= name.len() && after[..name.len()].eq_ignore_ascii_case(name.as_bytes())
    };
    match text.match_indices("</").map(|(at, _)| at).find(ends) {
        Some(at) => (&text[..at], &text[at + length_of(&text[at..])..]),
        None => (text, ""),
    }
}

/// Text as it grows: spaces and newlines are written before the next character.
#[derive(Default)]
struct Text {
    text: String,
    newlines: usize,
    space: bool,
    /// Depth of `pre`, which keeps spaces.
    kept: usize,
}

impl Text {
    fn add(&mut self, html: &str) {
        for c in decoded(html).chars() {
            match c {
                '\n' if self.kept > 0 => self.newlines = self.newlines.max(1) + usize::from(self.newlines > 0),
                ' ' | '\t' if self.kept > 0 && self.newlines == 0 => self.text.push(c),
                c if self.kept == 0 && (c.is_whitespace() || c == '\u{a0}') => self.space = true,
                '\t' => self.put(' '),
                c if c.is_control() => {}
                c => self.put(c),
            }
        }
    }

    fn put(&mut self, c: char) {
        if self.newlines > 0 && !self.text.is_empty() {
            let kept = self.text.trim_end_matches(' ').len();
            self.text.truncate(kept);
            (0..self.newlines.min(2)).for_each(|_| self.text.push('\n'));
        } else if self.space && self.newlines == 0 && !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
        (self.newlines, self.space) = (0, false);
        self.text.push(c);
    }

    fn tag(&mut self, tag: &Tag) {
        let name = tag.name.as_str();
        if PARTS.contains(&name) {
            self.newlines = 2;
        } else if LINES.contains(&name) {
            self.newlines = self.newlines.max(1);
        }
        let level = name.strip_prefix('h').and_then(|n| n.parse::<usize>().ok()).filter(|n| (1..=6).contains(n));
        match (name, tag.closes) {
            ("pre", false) => self.kept += 1,
            ("pre", true) => self.kept = self.kept.saturating_sub(1),
            ("li", false) => self.begin("- "),
            ("td" | "th", true) => self.begin(" | "),
            (_, false) => level.into_iter().for_each(|level| self.begin(&("#".repeat(level) + " "))),
            _ => {}
        }
    }

    /// Begins a line, or a cell.
    fn begin(&mut self, with: &str) {
        with.chars().for_each(|c| self.put(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_its_text() {
        let html = "<!DOCTYPE html><html><head><title>A &amp;\n B</title><style>p > a { color: red }</style>\
            <script>if (a < b) { document.write('</p>') }</SCRIPT ></head><body><!-- <p>no</p> -->\n<h1>Head</h1>\
            <p class=\"a>b\" title='x>y'>One  two<br>three &lt;4 &#x1F600;</p><ul><li>first<li>second</ul>\
            <pre>a\n  b &lt;|im_end|&gt;</pre><table><tr><td>x</td><td>y</td></tr></table>1 < 2 <3</body>";
        let (title, text) = of_html(html);
        assert_eq!(title, "A & B");
        let expected =
            "# Head\n\nOne two\nthree <4 \u{1f600}\n\n- first\n- second\n\na\n  b <|im_end|>\n\nx | y |\n\n1 < 2 <3";
        assert_eq!(text, expected);
    }

    #[test]
    fn broken_pages_end() {
        for (html, text) in [
            ("a<", "a<"),
            ("a<b", "a"),
            ("a<!-- b", "a"),
            ("a<script>b", "a"),
            ("a<p title=\"b>c", "a"),
            ("<p>it's <a href=x'>here</a> isn't it", "it's here isn't it"),
            ("</p></p>a</script>b", "ab"),
            ("", ""),
        ] {
            assert_eq!(of_html(html).1, text, "{html}");
        }
        // In linear time.
        let begun = std::time::Instant::now();
        for part in ["<a ", "<!--", "<script>", "&", "<", "</", "<p title=\"", "<pre>\n"] {
            of_html(&part.repeat(200_000));
        }
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
