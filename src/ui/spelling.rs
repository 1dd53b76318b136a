//! How a line is read as a command or a message, and which name was meant.

use std::borrow::Cow;
use strsim::osa_distance;

/// Reads a line as a command: its name and the rest. `None` when it is a message: no slash in
/// front, a second slash in the first word (a path), or `//` to say something with a slash.
pub fn parse(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('/')?;
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    plain.then_some((name, argument.trim()))
}

/// What a line says when it is not a command: `//x` is `/x`.
pub fn message(line: &str) -> Cow<'_, str> {
    match line.strip_prefix("//") {
        Some(rest) => Cow::Owned(format!("/{rest}")),
        None => Cow::Borrowed(line),
    }
}

/// The name nearest to a mistyped one, when one is near.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No command is as long, and a pasted line may be any length.
    let name: String = name.to_lowercase().chars().take(40).collect();
    names
        .map(|n| (if n.starts_with(&name) { 1 } else { osa_distance(&name, n) }, n))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, n)| *d <= 1 + n.len() / 5)
        .map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        assert_eq!(parse("/help"), Some(("help", "")));
        assert_eq!(parse("/system  be brief "), Some(("system", "be brief")));
        for line in ["/usr/bin/env", "// comment", "/ x", "help"] {
            assert_eq!(parse(line), None);
        }
        assert_eq!(message("//help"), "/help");
    }
}
