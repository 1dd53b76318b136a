//! `/train`: runs `dmschat adapter train` as a child process beside the chat, which keeps its
//! memory, its notices and its end apart, and reads its reports.

use crate::config::Settings;
use crate::system::children::{Children, Runner};
use crate::system::process;
use crate::ui::training::{Report, Work};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Bytes of the child's stderr that are read: its last line is an error.
const MAX_STDERR: u64 = 64 << 10;

/// A line of `adapter train --progress`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Takes { takes_s: f64 },
    Done { doing: String, share: f64, left_s: u64 },
    Made { ratio: f64, kl: f64 },
}

impl From<Line> for Report {
    fn from(line: Line) -> Self {
        match line {
            Line::Takes { takes_s } => Self::Takes(takes_s),
            Line::Done { doing, share, left_s } => Self::Done { doing, share, left_s },
            Line::Made { ratio, kl } => Self::Made { ratio, kl },
        }
    }
}

/// Starts the work. `config` is the file of `--config`.
pub fn start(settings: &Settings, config: Option<&Path>, estimate: bool) -> Result<Work> {
    let program = std::env::current_exe().context("the program's own path is not known")?;
    let mut command = Command::new(program);
    command.args(["adapter", "train", "--progress", "--model", &settings.model]);
    command.args(["--device", &settings.device.to_string(), "--weights", settings.weights.name()]);
    command.args(config.into_iter().flat_map(|path| [Path::new("--config"), path]));
    command.args(estimate.then_some("--estimate"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (children, cannot) = (Children::default(), "the training cannot be started");
    let runner = children.runner();
    let child = runner.spawn(process::in_group_of_its_own(&mut command)).context(cannot)?.context(cannot)?;
    let (sender, reports) = unbounded_channel();
    let follow = move || follow(child, &sender, &runner);
    std::thread::Builder::new().name("training".into()).spawn(follow).context("no thread for the training")?;
    Ok(Work { reports, running: Box::new(children) })
}

/// Passes the reports of the child on until it ends.
fn follow(mut child: Child, sender: &UnboundedSender<Report>, runner: &Runner) {
    let stderr = child.stderr.take();
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr.by_ref().take(MAX_STDERR).read_to_end(&mut text);
            // What is over the bound must not block the child.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut made = false;
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()).map_while(Result::ok)
    {
        let Ok(line) = serde_json::from_str::<Line>(&line) else { continue };
        made |= matches!(line, Line::Made { .. });
        let _ = sender.send(line.into());
    }
    runner.forget();
    let status = child.wait();
    let errors = errors.join().unwrap_or_default();
    if !made && !status.is_ok_and(|status| status.success()) {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it ended without a reason");
        let _ = sender.send(Report::Failed(last.trim_start_matches("dmschat: ").to_owned()));
    }
}
