//! Shell commands in the chat: `!COMMAND` runs one and sends its output as the message. Parses such
//! messages and holds the state of their commands.

use crate::system::children::Children;
use std::collections::HashSet;

/// State of a session's commands.
#[derive(Debug, Default)]
pub struct Shell {
    /// Whether the user has confirmed a command.
    pub confirmed: bool,
    /// Commands that have run. They run again without confirmation.
    pub allowed: HashSet<String>,
    pub running: Option<Running>,
    pub last_id: u64,
}

/// A running command.
#[derive(Debug)]
pub struct Running {
    pub id: u64,
    pub command: String,
    /// The message as it was typed.
    pub text: String,
    /// The lines after the command.
    pub question: String,
    pub since_ms: u64,
    /// The command's process. Dropping this ends it.
    pub children: Children,
}

/// Returns the command of a message and the lines after it; `None` for other messages. `!!` begins
/// a message with a literal `!`.
pub fn parse(text: &str) -> Option<(&str, &str)> {
    let (command, question) = text.trim().strip_prefix('!')?.split_once('\n').unwrap_or((text.trim().get(1..)?, ""));
    let is_command = !command.is_empty() && !command.starts_with(|c: char| c == '!' || c.is_whitespace());
    is_command.then_some((command.trim_end(), question.trim_matches('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_with_an_exclamation_mark_are_commands() {
        assert_eq!(parse("!ls -l"), Some(("ls -l", "")));
        assert_eq!(parse(" !git diff \n\nWhat is new?\nSay it.\n"), Some(("git diff", "What is new?\nSay it.")));
        for text in ["ls", "! ls", "!", "!\nls", "!!ls", "a !ls", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
