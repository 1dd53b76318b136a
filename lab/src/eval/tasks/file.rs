//! Problems of a file: JSON lines of `{"task", "messages", "expected"}`.

use crate::eval::problem::{Goal, Problem, ProblemMessage};
use anyhow::{Context, Result, bail};
use dmschat::regular_file;
use dmschat::unicode;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;

/// Largest file of problems.
pub const MAX_BYTES: u64 = 1 << 30;

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    task: Option<String>,
    messages: Vec<ProblemMessage>,
    #[serde(default)]
    expected: Value,
}

/// Problems by task, in the order of the file.
pub type FileProblems = Vec<(String, Vec<Problem>)>;

/// A file of problems.
pub struct ProblemFile {
    pub problems: FileProblems,
    /// Number of problems that were left out.
    pub more: usize,
    /// SHA-256 of the file in hex digits.
    pub digest: String,
}

/// Reads at most `n` problems of each task. Each error is one line of bounded length.
pub fn read_file(path: &Path, n: usize) -> Result<ProblemFile> {
    read_lines(path, n).map_err(unicode::one_line_error)
}

fn read_lines(path: &Path, n: usize) -> Result<ProblemFile> {
    let file = path.display();
    let text = regular_file::read_text(path, MAX_BYTES).with_context(|| file.to_string())?;
    let (mut out, mut more) = (FileProblems::new(), 0);
    let mut places = HashMap::new();
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let at = || format!("{file}:{}", index + 1);
        let line: Line = serde_json::from_str(line).with_context(at)?;
        if let Err(why) = Problem::conversation(&line.messages, None) {
            bail!("{}: {why}", at());
        }
        let expected = match line.expected {
            Value::String(text) if !text.trim().is_empty() => text,
            Value::Number(number) => number.to_string(),
            _ => bail!("{}: \"expected\" is missing: a text or a number that the answer is compared with", at()),
        };
        let task = line.task.unwrap_or_else(|| "file".to_owned());
        let known = *places.entry(task).or_insert_with_key(|task| {
            out.push((task.clone(), Vec::new()));
            out.len() - 1
        });
        let problems = &mut out[known].1;
        match problems.len() < n {
            true => problems.push(Problem { messages: line.messages, goal: goal(expected) }),
            false => more += 1,
        }
    }
    if out.is_empty() {
        bail!("{file} has no problems");
    }
    let digest = Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect();
    Ok(ProblemFile { problems: out, more, digest })
}

/// A number is compared by its value, words by the end of the answer.
fn goal(expected: String) -> Goal {
    match dmschat::vote::key(&expected) {
        dmschat::vote::Key::Number(..) => Goal::Value(expected),
        dmschat::vote::Key::Text(_) => Goal::Ends(expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_problems_and_mistakes_name_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.jsonl");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_file(&path, 2).map(|file| (file.problems, file.more))
        };
        let line = |task: &str, expected: &str| {
            format!(
                "{{\"task\":\"{task}\",\"messages\":[{{\"role\":\"user\",\"content\":\"q\"}}],\"expected\":{expected}}}\n"
            )
        };
        let three = line("a", "\"1,000\"") + &line("b", "\"Paris\"") + &line("a", "7") + &line("a", "8");
        let (problems, more) = read(&three).unwrap();
        assert_eq!(more, 1);
        assert_eq!(problems.iter().map(|(t, p)| (t.as_str(), p.len())).collect::<Vec<_>>(), [("a", 2), ("b", 1)]);
        assert_eq!(problems[0].1[1].goal, Goal::Value("7".into()));
        assert_eq!(problems[1].1[0].goal, Goal::Ends("Paris".into()));
        for (text, parts) in [
            ("\n", &["no problems"][..]),
            (&line("a", "null"), &["p.jsonl:1", "expected"]),
            ("{\"messages\":[]}", &["p.jsonl:1", "user's"]),
            ("nonsense", &["p.jsonl:1"]),
            (
                &format!("{{\"messages\":[{{\"role\":\"{}\",\"content\":\"\"}}]}}", "x".repeat(9000)),
                &["p.jsonl:1: unexpected role \"xxx"],
            ),
        ] {
            let said = format!("{:#}", read(text).unwrap_err());
            assert!(
                said.len() < 2_100 && parts.iter().all(|part| said.contains(part)) && !said.contains('\n'),
                "{said}"
            );
        }
    }
}
