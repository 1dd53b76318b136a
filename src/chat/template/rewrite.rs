//! Rewrites what Jinja reads and minijinja does not: blocks for training, `'%s' % x`, and `+1`.

use std::ops::Range;

/// The template in minijinja's words.
pub fn rewritten(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let begins_raw = |inner: &str| word_of(inner) == "raw";
        let (end, written) = match &tag[..2] {
            "{#" => (tag.find("#}").map(|end| end + 2), None),
            open => {
                let (tokens, end) = tokens(tag, if open == "{{" { "}}" } else { "%}" });
                let inner = end.map(|end| &tag[2..end - 2]);
                match inner.filter(|_| open == "{%") {
                    Some(inner) if begins_raw(inner) => (end_of_raw(tag), None),
                    Some(inner) if word_of(inner) == "generation" => {
                        (end, Some(replaced(inner, "generation", "if true")))
                    }
                    Some(inner) if word_of(inner) == "endgeneration" => {
                        (end, Some(replaced(inner, "endgeneration", "endif")))
                    }
                    _ => (end, end.map(|end| expressions(&tag[..end], &tokens))),
                }
            }
        };
        let end = end.unwrap_or(tag.len());
        out.push_str(written.as_deref().unwrap_or(&tag[..end]));
        rest = &tag[end..];
    }
    out + rest
}

/// The text of a tag without its signs of white space.
fn word_of(inner: &str) -> &str {
    inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+')
}

/// `{% generation %}` marks the assistant's text for training. It becomes a block that is always
/// rendered.
fn replaced(inner: &str, word: &str, by: &str) -> String {
    format!("{{%{}%}}", inner.replace(word, &format!(" {by} ")))
}

/// The end of a block whose text is no template.
fn end_of_raw(tag: &str) -> Option<usize> {
    let mut at = 2;
    while let Some(start) = tag[at..].find("{%").map(|start| at + start) {
        let end = start + tag[start..].find("%}")?;
        if word_of(&tag[start + 2..end]) == "endraw" {
            return Some(end + 2);
        }
        at = end;
    }
    None
}

/// The tokens of a tag, and where it ends.
fn tokens(tag: &str, close: &str) -> (Vec<Range<usize>>, Option<usize>) {
    let (mut out, mut at, mut depth) = (Vec::new(), 2, 0usize);
    while let Some(c) = tag[at..].chars().next() {
        if depth == 0 && tag[at..].starts_with(close) {
            return (out, Some(at + 2));
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = match c {
            '\'' | '"' => string_len(&tag[at..], c),
            c if is_word(c) => tag[at..].find(|c| !is_word(c)).unwrap_or(tag.len() - at),
            c => c.len_utf8(),
        };
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if !c.is_whitespace() {
            out.push(at..at + len);
        }
        at += len;
    }
    (out, None)
}

/// Bytes of a string literal with its quotes.
fn string_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// Words after which an operand follows.
const BEFORE_OPERANDS: [&str; 9] = ["in", "not", "and", "or", "if", "elif", "else", "is", "return"];

/// The tag with `'%s' % x` as a filter, and without signs in front of positive operands.
fn expressions(tag: &str, tokens: &[Range<usize>]) -> String {
    let text = |n: usize| tokens.get(n).map_or("", |token| &tag[token.clone()]);
    let (mut out, mut at) = (String::new(), 0);
    let mut n = 0;
    while n < tokens.len() {
        let token = tokens[n].clone();
        let before = n.checked_sub(1).map(text);
        let is_string = before.is_some_and(|before| before.starts_with(['\'', '"']));
        if text(n) == "%" && is_string {
            let end = operand_end(n + 1, &text);
            if let (Some(first), Some(last)) =
                (tokens.get(n + 1), tokens.get(end.wrapping_sub(1)).filter(|_| end > n + 1))
            {
                let operand = &tag[first.start..last.end];
                let is_group = text(n + 1) == "(" && group_end(n + 1, &text) == end;
                let inner = if is_group { operand[1..operand.len() - 1].trim().trim_end_matches(',') } else { operand };
                let named = if text(n + 1) == "{" { "**" } else { "" };
                out += tag[at..token.start].trim_end();
                out += &format!("|format({named}{inner})");
                (at, n) = (last.end, end);
                continue;
            }
        }
        let operand_follows = before.map_or(token.start > 2, |before| {
            BEFORE_OPERANDS.contains(&before)
                || matches!(
                    before,
                    "(" | "[" | "{" | "," | "=" | ":" | "~" | "*" | "/" | "%" | "<" | ">" | "+" | "-" | "|"
                )
        });
        // A sign right behind the opening of a tag is about white space.
        if text(n) == "+" && operand_follows && n + 1 < tokens.len() {
            out += &tag[at..token.start];
            at = token.end;
        }
        n += 1;
    }
    out + &tag[at..]
}

/// The token after the group that token `n` opens.
fn group_end<'a>(n: usize, text: &impl Fn(usize) -> &'a str) -> usize {
    let (mut depth, mut at) = (0usize, n);
    loop {
        match text(at) {
            "" => return at,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
}

/// The token after the operand that begins at token `n`, with its attributes, calls and filters.
fn operand_end<'a>(n: usize, text: &impl Fn(usize) -> &'a str) -> usize {
    let mut at = n;
    while matches!(text(at), "-" | "+") {
        at += 1;
    }
    at = if matches!(text(at), "(" | "[" | "{") { group_end(at, text) } else { at + 1 };
    loop {
        match text(at) {
            "." | "|" => at += 2,
            "(" | "[" => at = group_end(at, text),
            _ => return at,
        }
    }
}
