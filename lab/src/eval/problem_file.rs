//! `dmslab eval --problems FILE` without a folder for results: answers a file of problems greedily,
//! each in its own conversation, and prints the answers.

use crate::eval::problem::{Problem, ProblemMessage};
use crate::eval::tasks::MAX_BYTES;
use anyhow::{Context, Result, bail, ensure};
use dmschat::chat::Conversation;
use dmschat::cli::client::{Client, Sampling, answer_json};
use dmschat::cli::output::{self, wrong_use};
use dmschat::config::Settings;
use dmschat::protocol::{SamplingParams, StopReason};
use dmschat::regular_file;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

const EXAMPLE: &str = r#"{"messages": [{"role": "user", "content": "2+2?"}]}"#;

/// One line of the file.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    task: Value,
    messages: Vec<ProblemMessage>,
    #[serde(default)]
    expected: Value,
}

pub fn run(settings: &Settings, path: &Path) -> Result<u8> {
    let problems = read(settings, path)?;
    let mut client = Client::start(settings)?;
    let sampling = Sampling {
        params: settings.sampling.over(&SamplingParams::default()),
        seed: settings.seed,
        max_tokens: settings.max_tokens,
        max_think: settings.max_think.filter(|&tokens| tokens > 0),
        drafts: client.info.most_drafts,
        chains: None,
        check: None,
    };
    for (place, line, mut chat) in problems {
        client.clear()?;
        let report = client.answer(&mut chat, &sampling, |_, _| Ok(()))?;
        let mut object = answer_json(&chat, &report, &client.info);
        object["task"] = line.task;
        object["expected"] = line.expected;
        output::out_json(&object)?;
        if report.stop_reason == StopReason::Cancelled {
            return Ok(output::INTERRUPTED);
        }
        if report.stop_reason == StopReason::Error {
            bail!("{place}: {}", report.detail.as_deref().unwrap_or("the engine failed"));
        }
    }
    Ok(output::OK)
}

/// The problems of the whole file, each with its place for messages, so that a broken line is found
/// before any is answered.
fn read(settings: &Settings, path: &Path) -> Result<Vec<(String, Line, Conversation)>> {
    let file = path.display();
    let text =
        regular_file::read_text(path, MAX_BYTES).with_context(|| file.to_string()).map_err(output::as_wrong_use)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let problem = |(index, line): (usize, &str)| {
        let place = format!("{file}:{}", index + 1);
        ensure!(
            line.trim_start().starts_with('{'),
            wrong_use(format!("{place}: expected an object such as {EXAMPLE}"))
        );
        let problem: Line = serde_json::from_str(line).map_err(|e| wrong_use(format!("{place}: {e}")))?;
        let chat = Problem::conversation(&problem.messages, settings.system.clone());
        let chat = chat.map_err(|e| wrong_use(format!("{place}: {e}")))?;
        Ok((place, problem, chat))
    };
    let problems: Vec<_> = lines.map(problem).collect::<Result<_>>()?;
    ensure!(!problems.is_empty(), wrong_use(format!("{file} has no problems")));
    Ok(problems)
}
