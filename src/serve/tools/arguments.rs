//! Arguments that are sent while they arrive: where those of a call begin, and where their JSON
//! ends.

use super::format::{Begun, Tool};
use super::json::{Scan, scan_as, spaces};
use serde::de::IgnoredAny;

/// Skips white space as JSON has it.
fn skip(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r'])
}

/// Finds the call that an incomplete object at byte `start` begins: its name, a tool's, precedes
/// its arguments, and these are an object.
pub fn of_object(text: &str, start: usize, tools: &[Tool]) -> Option<Begun> {
    let mut name: Option<String> = None;
    let mut rest = skip(text[start..].strip_prefix('{')?);
    loop {
        let (Scan::Ends(end), Some(member)) = scan_as::<String>(rest) else { return None };
        rest = skip(skip(&rest[end..]).strip_prefix(':')?);
        match &*member {
            "arguments" | "parameters" => {
                let name = name.filter(|name| rest.starts_with('{') && tools.iter().any(|tool| tool.name == *name))?;
                return Some(Begun { name, start: text.len() - rest.len() });
            }
            "name" if name.is_some() => return None,
            "name" => {
                let (Scan::Ends(end), Some(value)) = scan_as::<String>(rest) else { return None };
                name = Some(value);
                rest = &rest[end..];
            }
            _ => {
                let (Scan::Ends(end), _) = scan_as::<IgnoredAny>(rest) else { return None };
                rest = &rest[end..];
            }
        }
        rest = skip(skip(rest).strip_prefix(',')?);
    }
}

/// Finds the `nth` call of an incomplete array at byte `start`.
pub fn of_element(text: &str, start: usize, tools: &[Tool], nth: usize) -> Option<Begun> {
    let mut rest = skip(text[start..].strip_prefix('[')?);
    for _ in 0..nth {
        let (Scan::Ends(end), _) = scan_as::<IgnoredAny>(rest) else { return None };
        rest = skip(skip(&rest[end..]).strip_prefix(',')?);
    }
    of_object(text, text.len() - rest.len(), tools)
}

/// Finds arguments of a tool's call at byte `start`, or after white space.
pub fn of_call(name: &str, text: &str, start: usize, tools: &[Tool]) -> Option<Begun> {
    let start = start + spaces(&text[start..]);
    let is_call = text[start..].starts_with('{') && tools.iter().any(|tool| tool.name == name);
    is_call.then(|| Begun { name: name.to_owned(), start })
}

/// The value or the mark that JSON needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Value,
    /// A value, or the end of an empty array.
    ValueOrEnd,
    Key,
    /// A key, or the end of an empty object.
    KeyOrEnd,
    Colon,
    /// A comma, or the end of the object or the array.
    Comma,
    /// The rest of a string, which is a key or a value.
    Text {
        is_key: bool,
        escape: Escape,
    },
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    Begun,
    /// So many hexadecimal digits follow.
    Digits(u8),
}

/// What a number consists of so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    /// `None`: the number does not go on with this byte.
    fn push(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Whole, b'0'..=b'9') => Self::Whole,
            (Self::Zero | Self::Whole, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Whole | Self::Fraction, b'e' | b'E') => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Self::Exponent,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Exponent)
    }
}

/// Finds the end of a JSON object in a text that comes in parts.
#[derive(Clone, Debug)]
pub struct Object {
    next: Next,
    /// The objects (true) and arrays that are open.
    open: Vec<bool>,
}

impl Object {
    /// Of a text that begins with `{`.
    pub fn new() -> Self {
        Self { next: Next::Value, open: Vec::new() }
    }

    /// Takes the next part. An end is a byte of it.
    pub fn push(&mut self, text: &str) -> Scan {
        for (at, byte) in text.bytes().enumerate() {
            match self.byte(byte) {
                None => return Scan::Not,
                Some(next) => self.next = next,
            }
            if self.open.is_empty() {
                return Scan::Ends(at + 1);
            }
        }
        Scan::Open
    }

    fn close(&mut self, is_object: bool) -> Option<Next> {
        (self.open.pop()? == is_object).then_some(Next::Comma)
    }

    fn byte(&mut self, byte: u8) -> Option<Next> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match (self.next, byte) {
            (Next::Text { is_key, escape }, _) => text(is_key, escape, byte),
            (Next::Word(rest), _) => match rest.split_first() {
                Some((first, rest)) if *first == byte => {
                    Some(if rest.is_empty() { Next::Comma } else { Next::Word(rest) })
                }
                _ => None,
            },
            (Next::Number(number), _) => match number.push(byte) {
                Some(number) => Some(Next::Number(number)),
                None if number.may_end() => {
                    self.next = Next::Comma;
                    self.byte(byte)
                }
                None => None,
            },
            (next, _) if is_space => Some(next),
            (Next::Colon, b':') => Some(Next::Value),
            (Next::Comma, b',') => Some(if *self.open.last()? { Next::Key } else { Next::Value }),
            (Next::Comma | Next::KeyOrEnd, b'}') => self.close(true),
            (Next::Comma | Next::ValueOrEnd, b']') => self.close(false),
            (Next::Key | Next::KeyOrEnd, b'"') => Some(Next::Text { is_key: true, escape: Escape::No }),
            (Next::Value | Next::ValueOrEnd, _) => self.value(byte),
            _ => None,
        }
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8) -> Option<Next> {
        Some(match byte {
            b'{' | b'[' => {
                self.open.push(byte == b'{');
                if byte == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd }
            }
            b'"' => Next::Text { is_key: false, escape: Escape::No },
            b't' => Next::Word(b"rue"),
            b'f' => Next::Word(b"alse"),
            b'n' => Next::Word(b"ull"),
            b'-' => Next::Number(Number::Minus),
            b'0' => Next::Number(Number::Zero),
            b'1'..=b'9' => Next::Number(Number::Whole),
            _ => return None,
        })
    }
}

/// The next byte of a string.
fn text(is_key: bool, escape: Escape, byte: u8) -> Option<Next> {
    let escape = match (escape, byte) {
        (Escape::No, b'"') => return Some(if is_key { Next::Colon } else { Next::Comma }),
        (Escape::No, b'\\') => Escape::Begun,
        (Escape::No, 0x20..) => Escape::No,
        (Escape::Begun, b'u') => Escape::Digits(4),
        (Escape::Begun, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::No,
        (Escape::Digits(n), _) if byte.is_ascii_hexdigit() => match n {
            1 => Escape::No,
            n => Escape::Digits(n - 1),
        },
        _ => return None,
    };
    Some(Next::Text { is_key, escape })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Deserializer, Value};

    /// The scan of a text in two parts, with its end in the whole.
    fn in_parts(a: &str, b: &str) -> Scan {
        let mut object = Object::new();
        match object.push(a) {
            Scan::Open => match object.push(b) {
                Scan::Ends(end) => Scan::Ends(a.len() + end),
                other => other,
            },
            other => other,
        }
    }

    /// What another parser of JSON finds.
    fn by_serde(text: &str) -> Scan {
        let mut values = Deserializer::from_str(text).into_iter::<Value>();
        match values.next() {
            Some(Ok(_)) => Scan::Ends(values.byte_offset()),
            Some(Err(error)) if !error.is_eof() => Scan::Not,
            _ => Scan::Open,
        }
    }

    #[test]
    fn objects_end_where_serde_finds_it() {
        let texts = [
            r#"{}"#,
            r#"{"a": [1, -0, 0.5, 1e9, 2.5E-3, -17.25e+2], "b": {"c": [[], {}]}} {"#,
            "{ \"ü\\u00e9\\n\\\"}\" : \"]\\\\\" ,\n\t\"n\":null,\"t\" : true , \"f\":false }x",
            r#"{"a": 01}"#,
            r#"{"a": -x}"#,
            r#"{"a": +1}"#,
            r#"{"a": 1,}"#,
            r#"{"a" 1}"#,
            r#"{"a": [1,]}"#,
            r#"{"a": [1}}"#,
            r#"{"a": nul}"#,
            r#"{'a': 1}"#,
            r#"{"a": "\x"}"#,
            r#"{"a": "\u12g4"}"#,
            "{\"a\": \"b\nc\"}",
            r#"{,}"#,
            r#"{"a": 1 2}"#,
        ];
        for text in texts {
            for (at, _) in text.char_indices() {
                let (a, b) = text.split_at(at);
                assert_eq!(in_parts(a, b), by_serde(text), "{a:?} | {b:?}");
                // The start of a text. A number at its end may be incomplete, and serde reads the
                // four digits of an escape at once.
                if !a.is_empty() && !a.ends_with(|c: char| "+-.eE0123456789".contains(c)) && !a.ends_with("12g") {
                    assert_eq!(in_parts(a, ""), by_serde(a), "{a:?}");
                }
            }
        }
        let deep = "{\"a\": ".to_owned() + &"[".repeat(1 << 20);
        assert_eq!(in_parts(&deep, "x"), Scan::Not);
    }

    #[test]
    fn a_call_begins_behind_its_name_alone() {
        let tools = [Tool { name: "f".to_owned(), parameters: Value::Null }];
        let found = |text: &str| of_object(text, 0, &tools).map(|begun| text[begun.start..].to_owned());
        assert_eq!(found(r#"{"name": "f", "id": [7], "parameters": {"a"#).as_deref(), Some("{\"a"));
        for none in [
            r#"{"name": "f"#,
            r#"{"name": "f", "arguments": "#,
            r#"{"name": "f", "arguments": "{"#,
            r#"{"name": "g", "arguments": {"#,
            r#"{"arguments": {}, "name": "f", "parameters": {"#,
            r#"{"name": "f", "name": "f", "arguments": {"#,
            r#"{"name": "f" "arguments": {"#,
        ] {
            assert_eq!(found(none), None, "{none}");
        }
        let array = r#"[{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"#;
        assert_eq!(of_element(array, 0, &tools, 1).map(|begun| begun.start), Some(array.len() - 1));
        assert_eq!(of_element(array, 0, &tools, 2), None);
    }
}
