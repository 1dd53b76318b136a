//! How a line is read as a command or a message.

/// Reads a line as a command: its name and the rest. `None` when it is a message: no slash in
/// front, a second slash in the first word (a path), or `//` to say something with a slash.
pub fn parse(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('/')?;
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    plain.then_some((name, argument.trim()))
}

/// Reads a line whose first word is the name of a command and more behind a slash, such as
/// `/undo/undo`. Returns the name.
pub fn glued(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix('/')?.split(char::is_whitespace).next()?.split_once('/')?;
    (!name.is_empty()).then_some(name)
}

/// The text of a line that is not a command: `//x` is `/x`, and `!!x` is `!x`.
pub fn message(line: &str) -> &str {
    match line.starts_with("//") || line.starts_with("!!") {
        true => &line[1..],
        false => line,
    }
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
        assert_eq!((message("//help"), message("!!x"), message("!x")), ("/help", "!x", "!x"));
        assert_eq!((glued("/undo/undo 2"), glued("//undo"), glued("/undo a/b")), (Some("undo"), None, None));
    }
}
