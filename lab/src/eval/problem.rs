//! One problem: the messages before its answer, and which answers are right.

use dmschat::chat::Conversation;
use dmschat::vote::{self, Expression};
use serde::Deserialize;

/// A message of a problem, as files of problems write it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct ProblemMessage {
    pub role: String,
    pub content: String,
    pub reasoning_content: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// System first if there is one, then user and assistant; the last one is the user's question.
    pub messages: Vec<ProblemMessage>,
    pub goal: Goal,
}

/// Definition of a right answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// The extracted answer has this value.
    Value(String),
    /// The answer ends in this text.
    Ends(String),
    /// Some of these numbers, each at most once, combined with + - * to a target.
    Countdown { numbers: Vec<i64>, target: i64 },
    /// Some of these numbers whose sum is the target: `a+b+c`.
    Subset { numbers: Vec<i64>, target: i64 },
    /// Two factors above 1: `a*b`.
    Factor(i64),
    /// A path along these edges: `a-b-c`.
    Path { edges: Vec<(String, String)>, from: String, to: String },
}

impl Problem {
    /// A question, after earlier turns of (user, reasoning, answer).
    pub fn ask(earlier: &[[String; 3]], question: String, goal: Goal) -> Self {
        let message = |role: &str, content: &str| ProblemMessage {
            role: role.to_owned(),
            content: content.to_owned(),
            reasoning_content: None,
        };
        let mut messages = Vec::new();
        for [user, reasoning, answer] in earlier {
            messages.push(message("user", user));
            let reply = message("assistant", answer);
            messages.push(ProblemMessage { reasoning_content: Some(reasoning.clone()), ..reply });
        }
        messages.push(message("user", &question));
        Self { messages, goal }
    }

    /// The conversation that the messages make. `system` is used where they bring none.
    pub fn conversation(messages: &[ProblemMessage], system: Option<String>) -> Result<Conversation, String> {
        let mut chat = Conversation::new(system);
        for message in messages {
            match message.role.as_str() {
                "system" if chat.is_empty() => chat.set_system(&message.content),
                "user" => drop(chat.push_user(&message.content)),
                "assistant" => drop(chat.push_assistant(&message.content, message.reasoning_content.clone())),
                other => {
                    return Err(format!("unexpected role {other:?}; expected system first, then user and assistant"));
                }
            }
        }
        match messages.last() {
            Some(last) if last.role == "user" => Ok(chat),
            _ => Err("the last message is not the user's".to_owned()),
        }
    }
}

impl Goal {
    /// The answer that a reply gives, for the vote. `None`: it gives none, and abstains.
    pub fn read(&self, answer: &str, reasoning: &str) -> Option<String> {
        match self {
            Goal::Value(_) => vote::extract(answer, reasoning, true),
            Goal::Ends(_) => last_line(answer),
            _ => last_line(answer).map(|line| match line.rsplit_once(':') {
                Some((_, after)) => after.trim().to_owned(),
                None => line,
            }),
        }
        .filter(|text| !text.is_empty())
    }

    /// Whether an answer as [`Self::read`] gives it is right.
    pub fn is_right(&self, answer: &str) -> bool {
        match self {
            Goal::Value(expected) => vote::key(answer) == vote::key(expected),
            Goal::Ends(expected) => ends_in(answer, expected),
            Goal::Countdown { numbers, target } => {
                let calculation = Expression::parse(answer);
                let used = calculation.as_ref().map_or(Vec::new(), Expression::numbers);
                let value = calculation.and_then(|calculation| calculation.value());
                value == Some(*target) && used.len() > 1 && is_part_of(&used, numbers)
            }
            Goal::Subset { numbers, target } => {
                let parts = terms(answer, '+').unwrap_or_default();
                let sum = parts.iter().try_fold(0i64, |sum, part| sum.checked_add(*part));
                sum == Some(*target) && !parts.is_empty() && is_part_of(&parts, numbers)
            }
            Goal::Factor(number) => match terms(answer, '*').as_deref() {
                Some(&[a, b]) => a > 1 && b > 1 && a.checked_mul(b) == Some(*number),
                _ => false,
            },
            Goal::Path { edges, from, to } => {
                let nodes: Vec<&str> = answer.split('-').map(str::trim).collect();
                let is_edge = |step: &[&str]| edges.iter().any(|(a, b)| a == step[0] && b == step[1]);
                nodes.len() > 1 && nodes[0] == from && nodes[nodes.len() - 1] == to && nodes.windows(2).all(is_edge)
            }
        }
    }
}

fn last_line(answer: &str) -> Option<String> {
    answer.trim().lines().next_back().map(|line| line.trim().trim_end_matches(['.', '!']).to_owned())
}

/// Whether a text ends in a value that is not cut from a longer one.
fn ends_in(text: &str, value: &str) -> bool {
    let marks = ['.', '!'];
    let (text, value) = (text.trim().trim_end_matches(marks), value.trim().trim_end_matches(marks));
    let Some(before) = text.strip_suffix(value) else { return false };
    let last = before.chars().next_back();
    let cut =
        last.is_some_and(|c| c.is_alphanumeric() || (c == '-' && value.starts_with(|v: char| v.is_ascii_digit())));
    !cut
}

/// Whether `used` are some of `numbers`, each as often at most.
fn is_part_of(used: &[i64], numbers: &[i64]) -> bool {
    let mut left = numbers.to_vec();
    used.iter().all(|n| left.iter().position(|m| m == n).map(|at| left.swap_remove(at)).is_some())
}

/// Whole numbers between signs.
fn terms(text: &str, sign: char) -> Option<Vec<i64>> {
    text.split(sign).map(|part| part.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(goal: &Goal, answer: &str) -> bool {
        goal.read(answer, "").is_some_and(|read| goal.is_right(&read))
    }

    #[test]
    fn answers_are_checked_by_what_they_say() {
        let countdown = Goal::Countdown { numbers: vec![3, 7, 20, 7], target: 70 };
        for (answer, is) in [
            ("Answer: (3+7)*7", true),
            ("Answer: 20 * 3 + 7 + 3", false),
            ("Answer: 7*7+20", false),
            ("Answer: (3+7)*7)", false),
            ("Answer: 70", false),
            ("Answer: ((((((((((((((((((((((3+7))))))))))))))))))))))*7", false),
            ("", false),
        ] {
            assert_eq!(right(&countdown, answer), is, "{answer}");
        }
        assert!(!right(&countdown, "Answer: 20*3+7+7-4"));
        assert!(right(&Goal::Subset { numbers: vec![5, 9, 30], target: 14 }, "Answer: 9+5"));
        assert!(!right(&Goal::Subset { numbers: vec![5, 9, 30], target: 14 }, "Answer: 7+7"));
        let most = Goal::Subset { numbers: vec![i64::MAX, 1], target: i64::MIN };
        assert!(!right(&most, "Answer: 9223372036854775807+1"));
        assert!(right(&Goal::Factor(1111), "Answer: 11*101") && !right(&Goal::Factor(1111), "Answer: 1*1111"));
        let edges = [("a", "b"), ("b", "c"), ("a", "d")].map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec();
        let path = Goal::Path { edges, from: "a".into(), to: "c".into() };
        assert!(right(&path, "Answer: a-b-c"));
        assert!(!right(&path, "Answer: a-c") && !right(&path, "Answer: a-d-c") && !right(&path, "Answer: c"));
        assert!(right(&Goal::Value("1,234".into()), "The sum is 1234"));
        assert!(right(&Goal::Ends("3, 20".into()), "Sorted: 3, 20") && !right(&Goal::Ends("3, 20".into()), "13, 20"));
        assert!(!right(&Goal::Ends("7".into()), "x = -7"));
    }
}
