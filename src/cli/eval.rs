//! `dmschat eval` (hidden): answers a file of problems greedily, each in its own conversation, to evaluate a model with the
//! release binary.

use super::args::EvalArgs;
use super::client::{Client, Sampling, answer_json};
use super::output::{self, wrong_use};
use crate::chat::Conversation;
use crate::config::Settings;
use crate::protocol::{SamplingParams, StopReason};
use crate::regular_file;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// Largest file of problems.
const MAX_BYTES: u64 = 1 << 30;

/// One line of the file.
#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    task: Value,
    messages: Vec<ProblemMessage>,
    #[serde(default)]
    expected: Value,
}

#[derive(Deserialize)]
struct ProblemMessage {
    role: String,
    content: String,
    reasoning_content: Option<String>,
}

pub fn run(settings: &Settings, args: &EvalArgs) -> Result<u8> {
    let file = args.problems.display();
    let text = regular_file::read_text(&args.problems, MAX_BYTES)
        .with_context(|| file.to_string())
        .map_err(output::as_wrong_use)?;
    let mut client = Client::start(settings)?;
    let sampling = Sampling {
        params: SamplingParams::default(),
        seed: settings.seed,
        max_tokens: settings.max_tokens,
        chains: None,
        check: None,
    };
    for (index, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let problem: Problem =
            serde_json::from_str(line).map_err(|e| wrong_use(format!("{file}:{}: {e}", index + 1)))?;
        let mut chat = conversation(settings, &problem).map_err(|e| wrong_use(format!("{file}:{}: {e}", index + 1)))?;
        client.clear()?;
        let report = client.answer(&mut chat, &sampling, |_, _| Ok(()))?;
        let mut object = answer_json(&chat, &report, &client.info);
        object["task"] = problem.task;
        object["expected"] = problem.expected;
        output::out_json(&object)?;
        if report.stop_reason == StopReason::Cancelled {
            return Ok(output::INTERRUPTED);
        }
        if report.stop_reason == StopReason::Error {
            bail!("{file}:{}: {}", index + 1, report.detail.as_deref().unwrap_or("the engine failed"));
        }
    }
    Ok(output::OK)
}

/// The conversation of a problem. Its last message is the question.
fn conversation(settings: &Settings, problem: &Problem) -> Result<Conversation, String> {
    let mut chat = Conversation::new(settings.system.clone());
    for message in &problem.messages {
        match message.role.as_str() {
            "system" if chat.is_empty() => chat.set_system(&message.content),
            "user" => drop(chat.push_user(&message.content)),
            "assistant" => drop(chat.push_assistant(&message.content, message.reasoning_content.clone())),
            other => {
                return Err(format!("unexpected role {other:?}; expected system first, then user and assistant"));
            }
        }
    }
    match problem.messages.last() {
        Some(last) if last.role == "user" => Ok(chat),
        _ => Err("the last message is not the user's".to_owned()),
    }
}
