//! A message that begins with `!` is a command of the shell, whose output is the message. The state
//! of such commands.

use crate::system::children::Children;
use std::collections::HashSet;

/// The commands of a session.
#[derive(Debug, Default)]
pub struct Shell {
    /// One was confirmed.
    pub confirmed: bool,
    /// Those that have run, which are not confirmed again.
    pub allowed: HashSet<String>,
    pub running: Option<Running>,
    pub last_id: u64,
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    pub id: u64,
    pub command: String,
    /// As it was typed, and the lines after the command.
    pub text: String,
    pub question: String,
    pub since_ms: u64,
    /// The command's process, which ends when this is dropped.
    pub children: Children,
}

/// The command of a message, and the lines after it. A message that begins with `!` itself has two.
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
