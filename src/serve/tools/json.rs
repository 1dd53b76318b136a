//! JSON at the start of a text that may continue.

use super::format::Call;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// Result of looking for a JSON value at the start of a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Scan {
    /// There is one; it ends at this byte.
    Ends(usize),
    /// The text may be the start of one.
    Open,
    /// There is none.
    Not,
}

/// Bytes of leading white space.
pub fn spaces(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

pub fn scan_as<'a, T: Deserialize<'a>>(text: &'a str) -> (Scan, Option<T>) {
    let mut values = Deserializer::from_str(text).into_iter::<T>();
    match values.next() {
        None => (Scan::Open, None),
        Some(Ok(value)) => (Scan::Ends(values.byte_offset()), Some(value)),
        Some(Err(error)) if error.is_eof() || is_at_end(&error, text) => (Scan::Open, None),
        Some(Err(_)) => (Scan::Not, None),
    }
}

/// Whether an error is at the end of an incomplete number, such as `1.`.
fn is_at_end(error: &serde_json::Error, text: &str) -> bool {
    let last = text.rsplit('\n').next().unwrap_or_default();
    error.line() > text.matches('\n').count()
        && error.column() >= last.len()
        && last.ends_with(['.', 'e', 'E', '+', '-'])
}

/// Looks for an object at the start of a text.
pub fn object(text: &str) -> Scan {
    if text.is_empty() {
        return Scan::Open;
    }
    if text.starts_with('{') { scan_as::<IgnoredAny>(text).0 } else { Scan::Not }
}

/// Looks for an array at the start of a text.
pub fn array(text: &str) -> Scan {
    if text.is_empty() {
        return Scan::Open;
    }
    if text.starts_with('[') { scan_as::<IgnoredAny>(text).0 } else { Scan::Not }
}

/// Returns the members of a complete object with the text of each value. `None` if a name repeats.
fn members(object: &str) -> Option<Vec<(String, &str)>> {
    let mut out: Vec<(String, &str)> = Vec::new();
    let mut rest = object.strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (Scan::Ends(end), Some(name)) = scan_as::<String>(rest) else { return None };
        rest = rest[end..].trim_start().strip_prefix(':')?.trim_start();
        let (Scan::Ends(end), _) = scan_as::<IgnoredAny>(rest) else { return None };
        if out.iter().any(|(known, _)| *known == name) {
            return None;
        }
        out.push((name, &rest[..end]));
        rest = rest[end..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(out)
}

/// Returns the texts of a complete array's elements.
pub fn elements(array: &str) -> Option<Vec<&str>> {
    let mut out = Vec::new();
    let mut rest = array.strip_prefix('[')?.trim_start();
    while !rest.starts_with(']') {
        let (Scan::Ends(end), _) = scan_as::<IgnoredAny>(rest) else { return None };
        out.push(&rest[..end]);
        rest = rest[end..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(out)
}

/// Returns arguments as they are sent: the text of an object, which may be inside a JSON string.
/// `null` counts as `{}`.
pub fn arguments(text: &str) -> Option<String> {
    match serde_json::from_str(text).ok()? {
        Value::Object(_) => {
            // Fails if a name repeats.
            members(text)?;
            Some(text.to_owned())
        }
        Value::String(inner) if inner.trim_start().starts_with('{') => arguments(inner.trim()),
        Value::Null => Some("{}".to_owned()),
        _ => None,
    }
}

/// Reads a call from an object with a name and `arguments` or `parameters`. `needs_arguments`: an
/// object without them is not a call.
pub fn call(object: &str, needs_arguments: bool) -> Option<Call> {
    let members = members(object)?;
    let find = |name: &str| members.iter().find(|(known, _)| known == name).map(|(_, text)| *text);
    let name: String = serde_json::from_str(find("name")?).ok().filter(|name: &String| !name.is_empty())?;
    let arguments = match find("arguments").or_else(|| find("parameters")) {
        Some(text) => arguments(text)?,
        None if needs_arguments => return None,
        None => "{}".to_owned(),
    };
    Some(Call { name, arguments })
}

/// Reads the calls of an array. `None` if any element is not a call, or if there are none.
pub fn calls(array: &str) -> Option<Vec<Call>> {
    let calls: Vec<Call> = elements(array)?.into_iter().map(|element| call(element, false)).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_stay_as_they_were_written() {
        let text = r#"{"arguments": {"n": 12345678901234567890123, "x": 1.50}, "name": "f"}"#;
        assert_eq!(object(&format!("{text} more")), Scan::Ends(text.len()));
        let found = call(text, true).unwrap();
        assert_eq!((&*found.name, &*found.arguments), ("f", r#"{"n": 12345678901234567890123, "x": 1.50}"#));
        assert_eq!(call(r#"{"name": "f", "parameters": "{\"a\": 1}"}"#, true).unwrap().arguments, r#"{"a": 1}"#);
        for wrong in [
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "arguments": {"a": 1, "a": 2}}"#,
            r#"{"name": 7, "arguments": {}}"#,
            r#"{"arguments": {}}"#,
            r#"{"name": "", "arguments": {}}"#,
        ] {
            assert_eq!(call(wrong, false), None, "{wrong}");
        }
        let deep = "[".repeat(100_000);
        // Scanning does not recurse. A nesting this deep is not read as arguments.
        assert_eq!(
            (object(&format!("{{\"a\": {deep}")), object("{\"a\": "), object("{'a'")),
            (Scan::Open, Scan::Open, Scan::Not)
        );
    }
}
