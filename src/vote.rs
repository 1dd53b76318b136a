//! A vote over several answers to one question: finds the answer in a text, compares answers by
//! value, counts them.
//!
//! The texts are a model's and may be anything: only their ends are searched, and an answer is
//! short.

mod expression;

pub use expression::Expression;

use crate::unicode::end_of;
use std::cmp::Reverse;
use std::ops::Range;

/// Bytes at the end of a text that are searched.
const SEARCHED: usize = 64 << 10;
/// Most characters of an answer.
const LONGEST: usize = 200;

/// Finds the answer in a reply: in its answer part, or else in its reasoning. Looks for
/// `\boxed{X}`, "answer is X" and "Answer: X", `#### X`, `name = X` at the end of a line, a single
/// line of words or of several numbers, and the last number, in this order. The last place of a
/// kind counts. A reply that is not `complete` has no answer but one of the first three kinds.
pub fn extract(answer: &str, reasoning: &str, complete: bool) -> Option<String> {
    [(answer, true), (reasoning, false)].into_iter().find_map(|(part, is_answer)| {
        let part = end_of(part, SEARCHED).trim();
        let found = boxed(part).or_else(|| said(part)).or_else(|| marked(part));
        let found = found.or_else(|| assigned(part).filter(|_| complete));
        let found = found.or_else(|| whole_line(part).filter(|_| complete && is_answer));
        found.or_else(|| numbers(part).last().filter(|_| complete).map(|at| part[at].to_owned()))
    })
}

/// Text without the signs around an answer, unless it is empty or too long.
fn trimmed(text: &str) -> Option<String> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || "*_`$\"'".contains(c));
    let text = text.trim_end_matches(['.', ',', ';', ':', '!', '*', '$']).trim();
    let short = text.chars().nth(LONGEST).is_none();
    (short && !text.is_empty()).then(|| text.to_owned())
}

/// The content of the last `\boxed{..}` whose braces are balanced.
fn boxed(text: &str) -> Option<String> {
    text.rmatch_indices("\\boxed{").find_map(|(at, opening)| {
        let inner = &text[at + opening.len()..];
        let mut depth = 1;
        // An answer has at most four bytes a character.
        let end = inner.bytes().take(4 * LONGEST).position(|byte| {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        trimmed(&inner[..end])
    })
}

/// Text after the last "answer is" or "answer:" in its line. A choice is its letter; a single
/// number is that number.
fn said(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let mut places: Vec<usize> = ["answer is", "answer:", "answer**:"]
        .iter()
        .flat_map(|s| lower.rmatch_indices(s).map(|(at, s)| at + s.len()))
        .collect();
    places.sort_unstable_by_key(|&at| Reverse(at));
    places.into_iter().take(64).find_map(|at| {
        let line = text[at..].lines().next()?;
        let line = line.split(". ").next()?.trim_start_matches([':', '*', ' ', '(', '$']);
        let mut chars = line.chars();
        let letter = chars.next().filter(|c| ('A'..='E').contains(c));
        if let Some(letter) = letter.filter(|_| chars.next().is_none_or(|c| !c.is_alphanumeric() && c != ' ')) {
            return Some(letter.to_string());
        }
        let mut found = numbers(line);
        match (found.next(), found.next()) {
            (Some(at), None) => Some(line[at].to_owned()),
            _ => trimmed(line),
        }
    })
}

/// Text after the last `####`.
fn marked(text: &str) -> Option<String> {
    text.rmatch_indices("####").find_map(|(at, mark)| trimmed(text[at + mark.len()..].lines().next()?))
}

/// X of the last line that ends in `name = X`, where X is a word or a number.
fn assigned(text: &str) -> Option<String> {
    text.lines().rev().find_map(|line| {
        let (name, value) = line.rsplit_once('=')?;
        let name = name.trim_end_matches(['*', ' ']).rsplit([' ', '*', '$', '(']).next()?;
        let value = trimmed(value)?;
        let is_name = name.starts_with(char::is_alphabetic) && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        (is_name && !value.contains(' ')).then_some(value)
    })
}

/// A short one-line text without a number, or of several numbers only.
fn whole_line(text: &str) -> Option<String> {
    let found = numbers(text).count();
    let others = |c: char| !c.is_ascii_digit() && !c.is_whitespace() && !",;.-+/[]()".contains(c);
    let fits = found == 0 || (found > 1 && !text.contains(others));
    if text.contains('\n') || !fits { None } else { trimmed(text) }
}

/// The numbers of a text that are short enough for an answer: with a sign, thousands separators, a
/// fraction or decimals.
fn numbers(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = 0;
    let all = std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(u8::is_ascii_digit)?;
        let mut end = start + digits(start);
        // Without a point, "1 000" may be one number; "0 100" and "2020 100" are two.
        let first = end - start;
        let mut grouped = first <= 3 && bytes[start] != b'0';
        while end - start <= LONGEST {
            let n = digits(end + 1);
            let separator = SEPARATORS.iter().find(|s| text[end..].starts_with(**s)).map_or(0, |s| s.len());
            if separator > 0 && digits(end + separator) == 3 && (grouped || separator == 1 && bytes[end] == b',') {
                end += separator + 3;
            } else if n > 0 && matches!(bytes.get(end), Some(b'.' | b'/')) {
                grouped = false;
                end += 1 + n;
            } else {
                break;
            }
        }
        at = end;
        let sign = start.checked_sub(1).filter(|&i| bytes[i] == b'-');
        // A hyphen after a word or a number is none of a negative number.
        let sign = sign.filter(|&i| i == 0 || !bytes[i - 1].is_ascii_alphanumeric());
        Some(sign.unwrap_or(start)..end)
    });
    all.filter(|number| number.len() <= LONGEST)
}

/// Signs between groups of three digits: commas, as LaTeX writes them too, and spaces.
const SEPARATORS: [&str; 9] = [",", "{,}", "\\,", " ", "\u{a0}", "\u{202f}", "\u{2009}", "'", "_"];

/// The value of an answer. Answers with equal keys are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A reduced fraction, the denominator positive.
    Number(i128, i128),
    Text(String),
}

/// Returns the value of an answer: integers, decimals and fractions as numbers, however they are
/// spelled and whatever their currency; calculations with + or * without the order of their terms
/// and factors, anything else as text in small letters. A percentage is its number.
pub fn key(answer: &str) -> Key {
    const SPELLINGS: [(&str, &str); 14] = [
        ("\u{2212}", "-"),
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("{,}", ","),
        ("\\,", " "),
        ("\\!", ""),
        ("\\;", " "),
        ("\\ ", " "),
        ("\\%", "%"),
        ("\\$", "$"),
        ("\\(", ""),
        ("\\)", ""),
        ("\\[", ""),
        ("\\]", ""),
    ];
    let text = SPELLINGS.iter().fold(answer.to_owned(), |text, (from, to)| text.replace(from, to));
    let text = plain(&text);
    let text = text.rsplit_once('=').map_or(text, |(_, value)| plain(value));
    match number(text) {
        Some((n, d)) => Key::Number(n, d),
        None => Key::Text(match Expression::parse(text).filter(|_| text.contains(['+', '*'])) {
            // Numbers between hyphens may be a path or a date: their order is theirs.
            Some(calculation) => calculation.unordered(),
            None => text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase(),
        }),
    }
}

/// Currencies that stand before or after a number.
const CURRENCIES: [char; 4] = ['$', '\u{20ac}', '\u{a3}', '\u{a5}'];

/// Text without the signs around it.
fn plain(text: &str) -> &str {
    let around = |c: char| c.is_whitespace() || ",.*".contains(c) || CURRENCIES.contains(&c);
    text.trim_matches(around).trim_start_matches('+').trim()
}

fn number(text: &str) -> Option<(i128, i128)> {
    let lower = text.to_ascii_lowercase();
    let text = ["%", "percent", "per cent"].iter().find_map(|unit| lower.strip_suffix(unit)).unwrap_or(&lower);
    let (sign, size) = text.strip_prefix('-').map_or(("", text), |size| ("-", size));
    fraction(&format!("{sign}{}", plain(size)))
}

fn fraction(text: &str) -> Option<(i128, i128)> {
    let latex = text.strip_prefix('-').unwrap_or(text).strip_prefix("\\frac{").and_then(|rest| rest.strip_suffix('}'));
    let (negative, parts) = match latex.and_then(|inner| inner.split_once("}{")) {
        Some(parts) => (text.starts_with('-'), parts),
        None => (false, text.split_once('/').unwrap_or((text, "1"))),
    };
    let ((n, n_scale), (d, d_scale)) = (decimal(parts.0.trim())?, decimal(parts.1.trim())?);
    let (n, d) = (n.checked_mul(d_scale)?, d.checked_mul(n_scale)?);
    let divisor = gcd(n.unsigned_abs(), d.unsigned_abs());
    let divisor = i128::try_from(divisor).ok().filter(|_| d != 0)?;
    let sign = if (d < 0) != negative { -1 } else { 1 };
    Some((sign * (n / divisor), (d / divisor).checked_abs()?))
}

/// A decimal number as an integer over a power of ten.
fn decimal(text: &str) -> Option<(i128, i128)> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (digits, exponent) = digits.split_once('e').unwrap_or((digits, "0"));
    let exponent: i32 = exponent.parse().ok().filter(|e| (-30..=30).contains(e))?;
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let groups: Vec<&str> = whole.split(|c: char| c.is_whitespace() || ",'_".contains(c)).collect();
    let grouped = groups.len() == 1 || (groups[0].len() <= 3 && groups[1..].iter().all(|g| g.len() == 3));
    let joined = groups.concat() + decimals;
    // 30 digits: products of two that are shorter fit, others are checked.
    let number = grouped && !groups[0].is_empty() && joined.len() <= 30 && joined.bytes().all(|b| b.is_ascii_digit());
    let value: i128 = if number { joined.parse().ok()? } else { return None };
    let scale = i32::try_from(decimals.len()).ok()? - exponent;
    let power = 10i128.checked_pow(scale.unsigned_abs())?;
    if scale < 0 { Some((sign * value.checked_mul(power)?, 1)) } else { Some((sign * value, power)) }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// An answer and the chains that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// As the first of the chains wrote it.
    pub answer: String,
    /// Numbers of the chains, in order.
    pub chains: Vec<usize>,
}

/// Counts the votes of chains. Those without an answer abstain. Most votes first, and of equal
/// numbers the answer of the lowest chain, whatever the order of `answers`.
pub fn tally<'a>(answers: impl IntoIterator<Item = (usize, Option<&'a str>)>) -> Vec<Vote> {
    let mut answers: Vec<_> = answers.into_iter().filter_map(|(chain, answer)| Some((chain, answer?))).collect();
    answers.sort_by_key(|(chain, _)| *chain);
    let mut votes: Vec<(Key, Vote)> = Vec::new();
    for (chain, answer) in answers {
        let key = key(answer);
        match votes.iter_mut().find(|(of, _)| *of == key) {
            Some((_, vote)) => vote.chains.push(chain),
            None => votes.push((key, Vote { answer: answer.to_owned(), chains: vec![chain] })),
        }
    }
    votes.sort_by_key(|(_, vote)| Reverse(vote.chains.len()));
    votes.into_iter().map(|(_, vote)| vote).collect()
}

/// Whether the first of these votes wins whatever `running` more chains say.
pub fn is_decided(votes: &[Vote], running: usize) -> bool {
    let count = |i: usize| votes.get(i).map_or(0, |vote| vote.chains.len());
    count(0) > count(1) + running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_where_models_write_them() {
        let found = |answer: &str, reasoning: &str| extract(answer, reasoning, true).unwrap_or_default();
        for (text, answer) in [
            (r"so \boxed{1} or rather \boxed{\frac{1}{2}}. 3", r"\frac{1}{2}"),
            (r"\boxed{7} and \boxed{unclosed 8", "7"),
            ("The answer is 3.\nWait. The final answer is **42** apples. See 5.", "42"),
            ("Answer: (B) because 3 < 4", "B"),
            ("**Answer:** Paris.", "Paris"),
            ("3 + 4 = 7\n#### 1,234", "1,234"),
            ("3x = 15\nx = 5\nDone: 1 step", "5"),
            ("9, 12, 30", "9, 12, 30"),
            ("Paris", "Paris"),
            ("It costs 5 - 2 = -3.5 coins", "-3.5"),
            ("page-7 has 3/4 of 1,000,000", "1,000,000"),
            ("That makes 1 000 euros", "1 000"),
            ("That makes $1{,}000$ euros", "1{,}000"),
            ("in 2020 100 of them", "100"),
            ("it is -\u{1f600}12\u{e9}", "12"),
        ] {
            assert_eq!(found(text, ""), answer, "{text}");
        }
        assert_eq!(found("", "I think that x = 4\nor 5"), "4");
        assert_eq!(found("12", r"\boxed{13}"), "12", "the answer comes before the reasoning");
        assert_eq!(extract("", "no number", true), None, "reasoning is not an answer");
        assert_eq!(extract("so far 12", "x = 12", false), None, "cut off");
        assert_eq!(extract("", r"\boxed{12} or", false).as_deref(), Some("12"));
        assert_eq!(extract(" \n", "", true), None);
        assert_eq!(extract(&"x".repeat(1000), "", true), None, "too long");
    }

    #[test]
    fn any_text_is_read_in_time_and_without_a_panic() {
        let pieces =
            ["\\boxed{", "}", "answer is ", "####", "= ", "1", ",", "/0", "-", ".", "\u{e9}", "\n", "{", "9999999"];
        let mut state = 7u64;
        for _ in 0..500 {
            let mut text = String::new();
            for _ in 0..40 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text += pieces[(state >> 33) as usize % pieces.len()];
            }
            if let Some(answer) = extract(&text, &text, true) {
                assert!(answer.chars().count() <= LONGEST + 16, "{answer}");
                key(&answer);
            }
        }
        for piece in pieces {
            extract(&piece.repeat(100_000), "", true);
        }
        assert!(matches!(key(&"9".repeat(100)), Key::Text(_)));
    }

    #[test]
    fn a_number_is_no_longer_than_an_answer() {
        let digits = |n: usize| "7".repeat(n);
        let read = |text: String| extract(&text, "", true);
        assert_eq!(read(format!("It is {} of them", digits(LONGEST))), Some(digits(LONGEST)));
        assert_eq!(read(format!("3 or {} of them", digits(LONGEST + 1))), Some("3".to_owned()));
        assert_eq!(read(format!("The answer is {}", digits(LONGEST + 1))), None);
    }

    #[test]
    fn numbers_are_equal_by_value_and_words_by_letters() {
        let same = [["1,234", "$1234.00"], ["+0.50", r"\frac{1}{2}"], ["-2/4", r"-\dfrac{1}{2}"], ["x = 5", "5"]];
        same.iter().for_each(|[a, b]| assert_eq!(key(a), key(b), "{a} {b}"));
        let thousand = [
            "1000",
            "1,000",
            "1000.0",
            "1 000",
            "1{,}000",
            "$1000$",
            "$1,000.00",
            "\\$1000",
            "1\\,000",
            "1\u{202f}000",
            "1\u{a0}000",
            "1_000",
            "1'000",
            "+1000",
            "1000.",
            "**1,000**",
            "\u{20ac}1000",
            "1000 \u{20ac}",
            "x = 1{,}000",
            "1e3",
            "2000/2",
            "\\frac{2000}{2}",
            "\\(1000\\)",
        ];
        thousand.iter().for_each(|text| assert_eq!(key(text), Key::Number(1000, 1), "{text}"));
        ["50%", "50 %", "50\\%", "50 percent", "$50\\%$"].iter().for_each(|t| assert_eq!(key(t), key("50"), "{t}"));
        ["-$5", "-5", "$-5$", "\u{2212}5.0"]
            .iter()
            .for_each(|text| assert_eq!(key(text), Key::Number(-5, 1), "{text}"));
        assert_eq!(key("0/5"), Key::Number(0, 1));
        assert_eq!(key(" New  York."), key("new york"));
        assert_eq!((key("8*24-6"), key("5+2*3")), (key("24*8 - 6"), key("3*2+5")));
        for (a, b) in
            [("24*8-6", "24*6-8"), ("1-2-3", "1-3-2"), ("1,2", "12"), ("1/0", "0"), ("1/3", "0.33"), ("3 dogs", "3")]
        {
            assert_ne!(key(a), key(b), "{a} {b}");
        }
    }

    #[test]
    fn the_result_does_not_depend_on_who_ends_first() {
        let mut answers =
            vec![(0, None), (1, Some("4")), (2, Some("5")), (3, Some("5.0")), (4, Some("4")), (5, Some("six"))];
        let votes = tally(answers.clone());
        assert_eq!(votes[0], Vote { answer: "4".into(), chains: vec![1, 4] }, "a tie goes to the lowest chain");
        assert_eq!((votes[1].answer.as_str(), votes.len()), ("5", 3));
        for _ in 0..answers.len() {
            answers.rotate_left(1);
            assert_eq!(tally(answers.clone()), votes);
            answers.swap(0, 3);
            assert_eq!(tally(answers.clone()), votes);
        }
        assert!(tally([(0, None)]).is_empty());
    }

    #[test]
    fn a_vote_is_decided_once_no_other_answer_can_catch_up() {
        let votes = tally([(0, Some("1")), (1, Some("1")), (2, Some("1")), (3, Some("2"))]);
        assert!(is_decided(&votes, 1) && !is_decided(&votes, 2));
        assert!(!is_decided(&[], 0) && !is_decided(&[], 1));
        assert!(is_decided(&votes[..1], 2) && !is_decided(&votes[..1], 3));
    }
}
