//! Formulas and other TeX in an answer, shown as Unicode or as written. Markdown would interpret
//! their backslashes, underscores and asterisks, so each formula is one character while Markdown is
//! parsed.

use super::latex;
use pulldown_cmark::{Event, Options, Parser, Tag};
use std::borrow::Cow;
use std::ops::Range;

/// The characters that stand for parts, which a text may hold itself: plane 15, for private use.
const STANDS: std::ops::RangeInclusive<char> = '\u{f0000}'..='\u{ffffd}';

/// Punctuation that TeX escapes and Markdown has no need to: its backslash stays.
const ESCAPED: &str = ",;:{}%&^=!()[]\\";

/// Longest formula, in bytes.
const LONGEST: usize = 4096;

/// A text in which characters stand for formulas.
pub struct Shielded<'a> {
    pub text: Cow<'a, str>,
    parts: Vec<&'a str>,
}

impl<'a> Shielded<'a> {
    pub fn new(text: &'a str, options: Options) -> Self {
        if !text.contains(['$', '\\']) && !text.contains(|c| STANDS.contains(&c)) {
            return Self { text: Cow::Borrowed(text), parts: Vec::new() };
        }
        let (mut out, mut parts) = (String::with_capacity(text.len()), Vec::new());
        let mut code = code_ranges(text, options).into_iter().peekable();
        let (mut at, mut blank) = (0, 0);
        while at < text.len() {
            while code.next_if(|range| range.end <= at).is_some() {}
            let limit = match code.peek() {
                Some(range) if range.start <= at => {
                    out.push_str(&text[at..range.end]);
                    at = range.end;
                    continue;
                }
                Some(range) => range.start,
                None => text.len(),
            };
            if at >= blank {
                blank = at + paragraph_end(&text[at..]);
            }
            let (n, is_part) = piece(text, at, limit.min(blank.max(at + 1)));
            let stands = STANDS.clone().nth(parts.len()).filter(|_| is_part);
            match stands {
                Some(stands) => {
                    out.push(stands);
                    parts.push(&text[at..at + n]);
                }
                None => out.push_str(&text[at..at + n]),
            }
            at += n;
        }
        Self { text: Cow::Owned(out), parts }
    }

    /// A piece of the text, with its formulas as written.
    pub fn restored<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.with_parts(text, Cow::Borrowed)
    }

    /// A piece of the text as it is shown: formulas in Unicode where that loses nothing.
    pub fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.with_parts(text, |part| latex::shown(part).map_or(Cow::Borrowed(part), Cow::Owned))
    }

    fn with_parts<'t>(&self, text: &'t str, show: impl Fn(&'a str) -> Cow<'a, str>) -> Cow<'t, str> {
        if self.parts.is_empty() || !text.contains(|c| STANDS.contains(&c)) {
            return Cow::Borrowed(text);
        }
        let mut out = String::new();
        for c in text.chars() {
            let n = (u32::from(c)).checked_sub(u32::from(*STANDS.start()));
            match n.and_then(|n| self.parts.get(n as usize)) {
                Some(part) => out.push_str(&show(part)),
                None => out.push(c),
            }
        }
        Cow::Owned(out)
    }
}

/// Where the text is code, in order.
fn code_ranges(text: &str, options: Options) -> Vec<Range<usize>> {
    let events = Parser::new_ext(text, options).into_offset_iter();
    let code = |(event, range)| matches!(event, Event::Code(_) | Event::Start(Tag::CodeBlock(_))).then_some(range);
    events.filter_map(code).collect()
}

/// Bytes of what begins at `at`, and whether it is shown as written. A formula ends before `limit`.
fn piece(text: &str, at: usize, limit: usize) -> (usize, bool) {
    let first = text[at..].chars().next().unwrap_or_default();
    if !matches!(first, '$' | '\\') {
        return (first.len_utf8(), STANDS.contains(&first));
    }
    let end = (at..=limit.min(at + LONGEST)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(limit);
    let rest = &text[at..end];
    let to = |close: &str| rest[2..].find(close).map(|end| 2 + end + close.len());
    match rest.as_bytes() {
        [b'\\', b'[', ..] => (to("\\]").unwrap_or(rest.trim_end().len()), true),
        [b'\\', b'(', ..] => (to("\\)").unwrap_or(2), true),
        [b'\\', letter, ..] if letter.is_ascii_alphabetic() => (tex(rest), true),
        [b'\\', escaped, ..] if ESCAPED.as_bytes().contains(escaped) => (2, true),
        // An escape of Markdown's own.
        [b'\\', escaped, ..] if escaped.is_ascii_punctuation() => (2, false),
        [b'$', b'$', b'$', ..] => (rest.bytes().take_while(|b| *b == b'$').count(), false),
        [b'$', b'$', ..] => {
            let before = text[..at].bytes().rev().take_while(|b| *b != b'\n');
            let opens_line = before.into_iter().all(|b| b.is_ascii_whitespace());
            let end = to("$$").or(opens_line.then_some(rest.trim_end().len()));
            end.map_or((2, false), |end| (end, true))
        }
        [b'$', ..] => inline(text, at, rest).map_or((1, false), |end| (end, true)),
        _ => (1, false),
    }
}

/// Bytes up to the first blank line, over which no formula goes; at least 1.
fn paragraph_end(text: &str) -> usize {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        if end > 0 && line.trim().is_empty() {
            break;
        }
        end += line.len();
    }
    end
}

/// Bytes of a formula in single dollars. Prices are not formulas: a dollar opens a formula if no
/// space follows it and no word ends before it. The next one closes it if no space precedes it and
/// no digit follows, and the text between does not read like `5 dollars`.
fn inline(text: &str, at: usize, rest: &str) -> Option<usize> {
    let before = text[..at].chars().next_back();
    if before.is_some_and(char::is_alphanumeric) || rest[1..].starts_with(char::is_whitespace) {
        return None;
    }
    let mut escaped = false;
    let close = rest[1..].char_indices().find(|(_, c)| {
        let is_it = *c == '$' && !escaped;
        escaped = *c == '\\' && !escaped;
        is_it
    });
    let end = 1 + close?.0;
    let (inner, after) = (&rest[1..end], rest[end + 1..].chars().next());
    let spaced = inner.is_empty() || inner.ends_with(char::is_whitespace);
    if spaced || after.is_some_and(char::is_alphanumeric) {
        return None;
    }
    let words = inner.split(|c: char| !c.is_alphabetic()).any(|word| word.chars().count() > 1);
    let price = inner.starts_with(|c: char| c.is_ascii_digit()) && words && !inner.contains('\\');
    (!price).then_some(end + 1)
}

/// Bytes of a TeX command with its arguments, subscripts and superscripts, or of an environment.
fn tex(text: &str) -> usize {
    let name = |text: &str| 1 + text[1..].bytes().take_while(u8::is_ascii_alphabetic).count();
    if let Some(environment) = text.strip_prefix("\\begin{").and_then(|rest| rest.split('}').next()) {
        let end = format!("\\end{{{environment}}}");
        return text.find(&end).map_or(text.len(), |at| at + end.len());
    }
    let mut at = name(text);
    loop {
        let rest = &text[at..];
        let script = usize::from(rest.starts_with(['_', '^']));
        let argument = &rest[script..];
        at += script
            + match argument.chars().next() {
                Some('{') => match group(argument) {
                    Some(bytes) => bytes,
                    None => return at,
                },
                Some('\\') if script > 0 => name(argument),
                Some(c) if script > 0 && c.is_alphanumeric() => c.len_utf8(),
                _ => return at,
            };
    }
}

/// Bytes of a group in braces, on one line.
fn group(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            '\n' => return None,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::ui::markdown::render;
    use crate::ui::theme::Themes;

    fn plain(text: &str) -> String {
        let lines = render(text, 90, &Themes::default().load("dark").unwrap(), &mut Vec::new(), &mut 0);
        let rows = lines.iter().map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect::<String>());
        rows.map(|r| r.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn formulas_are_shown_as_written() {
        for text in [
            r"$\int_0^b x\,dx^q$ and \(a_b\), \(c_d\)",
            r"\[ x = \boxed{5} \]",
            "\\[\n- a*b*c_d\n= d\n\\]",
            "$$\nx_{1}*y_{2} \\\\\n# no heading\n$$",
            r"$$\left\{ x_{b}*y_{c}*z_{d} \right\}$$",
            r"$P_{b}, Q_{c}$ and $R_{d}$",
            r"\[ \begin{matrix} 1 \\ 2 \end{matrix} \]",
            r"\begin{matrix} a_{1} & *b* \\ _c_ \end{matrix}",
            r"\int_0^1 x\,dx \{1\} \frac{a}_{b} c_{d}",
            // Still streaming, or cut off.
            r"\[ \{1, a_{b}_{c}",
        ] {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn formulas_without_loss_are_shown_in_unicode() {
        for (text, expected) in [
            (r"so $\alpha_1 \leq 2^{10}$ and \(x \to \infty\).", "so α₁ ≤ 2¹⁰ and x → ∞."),
            ("- one: \\[ E = mc^2 \\]", "• one: E = mc²"),
            ("**$x^2$** costs $5 and $6", "x² costs $5 and $6"),
            ("`$x^2$`\n\n    $y^2$", "$x^2$\n\n  code 1\n  $y^2$"),
            (r"$a\;b\,c\!d$ and $|x|$", r"$a\;b\,c\!d$ and $|x|$"),
        ] {
            assert_eq!(plain(text), expected);
        }
        assert_eq!(plain("| a | b |\n|---|---|\n| $|x|$ | \\(y^2\\) |").lines().last(), Some("$|x|$ │ y²"));
    }

    #[test]
    fn what_is_no_formula_is_markdown() {
        assert_eq!(plain("from $5 and **$6** to *about* $7"), "from $5 and $6 to about $7");
        assert_eq!(plain("$5 or *more* dollars, US$"), "$5 or more dollars, US$");
        assert_eq!(plain("`$HOME/*a*` and `$PATH` are *set*"), "$HOME/*a* and $PATH are set");
        assert_eq!(plain("a \\*star\\* and 5\\$"), "a *star* and 5$");
        assert_eq!(plain("```\n$a_b$ \\[\n```\n*x*"), "  code 1\n  $a_b$ \\[\n\nx");
        let own = "a\u{f0000}b $x_d$ \u{f0001}";
        assert_eq!(plain(own), own);
    }
}
