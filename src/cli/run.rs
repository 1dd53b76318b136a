//! `dmschat -p TEXT`, `dmschat "TEXT"` or `echo TEXT | dmschat`: prints one answer to stdout.
//! Writes no session.

use super::args::Common;
use super::client::{Client, Sampling, answer_json};
use super::output::{self, wrong_use};
use super::reference;
use crate::chat::session::{Loaded, Store};
use crate::chat::shown::Shown;
use crate::chat::summary::WAY_OUT;
use crate::chat::{Conversation, Message};
use crate::config::Settings;
use crate::protocol::{ChainsReport, StopReason, TextKind, Thinking, TurnReport};
use crate::system::process;
use crate::ui::declined;
use crate::ui::models::Given;
use crate::ui::text::{FULL, NO_ANSWER, ONLY_THOUGHT};
use anyhow::Result;
use std::io::{IsTerminal, Read};

/// Maximum answers of a vote that are shown.
const VOTES: usize = 5;
/// Most bytes read from stdin: more than any context holds.
const STDIN_BYTES: u64 = 256 << 20;

pub fn run(settings: &Settings, common: &Common) -> Result<u8> {
    let prompt = prompt(common)?;
    let saved = saved(settings, common)?;
    let settings = &own_model(settings, common, saved.as_ref());
    let mut client = Client::start(settings)?;
    if common.think.is_some() {
        let name = &client.info.identity.name;
        match client.info.thinking() {
            Thinking::None => output::notice(&format!("--think: {name} does not think")),
            Thinking::Fixed => output::notice(&format!("--think: {name} decides by itself whether it thinks")),
            Thinking::Switchable => {}
        }
    }
    let mut chat = match saved {
        Some(loaded) => client.restore(loaded)?,
        None => Conversation::new(settings.system.clone()),
    };
    if let Some(system) = common.system.as_deref().filter(|s| chat.system() != Some(s)) {
        chat.set_system(system);
    }
    chat.push_user(prompt);
    let sampling = Sampling {
        params: settings.sampling.over(&client.info.default_sampling),
        seed: settings.seed,
        max_tokens: settings.max_tokens,
        max_think: client.info.max_think(settings.max_think),
        drafts: client.info.most_drafts,
        chains: settings.width.request(settings.early_stop, common.check.is_some()),
        check: common.check.clone(),
    };
    let mut stream = Stream::new(std::io::stdout().is_terminal());
    let report = client.answer(&mut chat, &sampling, |kind, text| match kind {
        TextKind::Answer if !common.json => stream.push(text),
        _ => Ok(()),
    });
    let stopped = match &report {
        Ok(report) => report.stop_reason == StopReason::Cancelled,
        Err(error) => error.is::<output::Interrupted>() || error.is::<output::Killed>(),
    };
    // Nobody reads on. However the answer ends, and whether or not more was to be written, that is
    // no failure.
    let is_unread = || !stopped && process::stdout_is_closed();
    if is_unread() {
        return Ok(output::OK);
    }
    let report = report?;
    if common.json {
        output::out_json(&answer_json(&chat, &report, &client.info))?;
    } else {
        stream.finish()?;
        if let Some(chains) = &report.chains {
            output::notice(&said_by(chains));
        }
    }
    if let Some(at) = report.thought_closed_at {
        output::notice(&format!("the thought was closed after {at} tokens (--max-think)"));
    }
    if client.info.is_builtin() && chat.reply(report.turn).is_some_and(|reply| declined::is(reply.shown())) {
        output::notice(
            "the built-in model only does small tasks; dmschat run NAME \"QUESTION\" asks another (dmschat models list --known)",
        );
    }
    let resumed = common.continue_ || common.resume.is_some();
    let code = ending(&report, chat.reply(report.turn), resumed);
    // Closed since, as by a reader that leaves at the first byte of a short answer.
    Ok(if code == output::FAILED && is_unread() { output::OK } else { code })
}

/// The result of a vote in one line.
fn said_by(chains: &ChainsReport) -> String {
    let votes = chains.votes_in_words(VOTES, str::to_owned);
    let checked = if chains.checked { ", checked" } else { "" };
    let stopped = chains.stop_in_words().map_or(String::new(), |words| format!("{words}; "));
    format!("{stopped}{votes}; chain {} is shown{checked}", chains.winner + 1)
}

/// The text after `-p`, followed by the text of stdin if it is a pipe or a file. `-p -` reads only
/// stdin, whatever it is.
fn prompt(common: &Common) -> Result<String> {
    let given = common.prompt.as_deref();
    let mut prompt = given.filter(|text| *text != "-").unwrap_or_default().to_owned();
    if given == Some("-") || process::stdin_is_given() {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(STDIN_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > STDIN_BYTES {
            return Err(wrong_use(format!("stdin has more than {STDIN_BYTES} bytes, more than any context holds")));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            wrong_use(format!("stdin: byte {at} is not UTF-8; give text, or convert it first (iconv -t utf-8)"))
        })?;
        let text = text.trim_end_matches(['\r', '\n']);
        if !prompt.is_empty() && !text.is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str(text);
    }
    if prompt.trim().is_empty() {
        return Err(wrong_use("the prompt is empty; give a text: dmschat -p TEXT"));
    }
    Ok(prompt)
}

/// Reads the conversation to continue. Its file is not changed.
fn saved(settings: &Settings, common: &Common) -> Result<Option<Loaded>> {
    let store = Store::new(settings.dirs.sessions());
    let loaded = match &common.resume {
        Some(Some(name)) => store.read_named(name),
        Some(None) => return Err(wrong_use("--resume needs an id or a title with -p")),
        None if common.continue_ => store.newest().and_then(|id| store.read(&id)),
        None => return Ok(None),
    };
    loaded.map(Some).map_err(output::as_wrong_use)
}

/// The settings with the conversation's model, unless `-m` names another one.
fn own_model(settings: &Settings, common: &Common, saved: Option<&Loaded>) -> Settings {
    let flags = common.layer();
    let Some(model) = saved.map(Loaded::model).filter(|_| flags.model.is_none()) else { return settings.clone() };
    match reference::find(model) {
        Ok(found) => reference::settings(
            &found,
            settings,
            Given { adapter: flags.adapter.is_some(), policy: flags.names_policy() },
        ),
        Err(why) => {
            output::notice(&format!(
                "{}: the model of this conversation is not available ({why}); using {} (-m selects another)",
                model.name, settings.model
            ));
            settings.clone()
        }
    }
}

/// Streams an answer to stdout.
struct Stream {
    visible: output::Visible,
    shown: Shown,
}

impl Stream {
    fn new(terminal: bool) -> Self {
        Self { visible: output::Visible::new(terminal), shown: Shown::default() }
    }

    fn push(&mut self, text: &str) -> Result<()> {
        let text = self.shown.push(text);
        if !text.is_empty() {
            output::out(&self.visible.push(&text))?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        if self.shown.has_begun() {
            output::out("\n")?;
        }
        Ok(())
    }
}

/// Reports why an answer ended, unless it is complete, and returns the exit code.
fn ending(report: &TurnReport, reply: Option<&Message>, resumed: bool) -> u8 {
    let answered = reply.is_some_and(|m| !m.shown().trim().is_empty());
    let mut detail = report.detail.as_deref().map(|d| format!(": {d}")).unwrap_or_default();
    let (message, code) = match report.stop_reason {
        StopReason::End if answered => return output::OK,
        StopReason::End if report.reasoning_tokens > 0 => (ONLY_THOUGHT, output::FAILED),
        StopReason::End => ("the answer is empty", output::OK),
        StopReason::MaxTokens if answered => ("stopped at the token limit (--max-tokens)", output::OK),
        StopReason::MaxTokens => {
            detail += "; raise --max-tokens, or close the thought before it with --max-think";
            (NO_ANSWER, output::FAILED)
        }
        StopReason::ContextFull if answered => (FULL, output::OK),
        StopReason::ContextFull => {
            detail += &match resumed {
                true => format!("; in a chat (dmschat --resume), {WAY_OUT}"),
                false => "; shorten the prompt, or raise --ctx-size if the model allows it".to_owned(),
            };
            let message = match report.reasoning_tokens {
                0 => "not answered: context full",
                _ => "no answer: context full while the model was still thinking",
            };
            (message, output::FAILED)
        }
        StopReason::CacheFull => {
            detail += match report.eviction {
                true => "; raise --kv-limit, or shorten the prompt",
                false => "; raise --kv-limit, shorten the prompt, or use --eviction on",
            };
            ("stopped", output::FAILED)
        }
        StopReason::Cancelled => ("interrupted", output::INTERRUPTED),
        StopReason::Error => ("failed", output::FAILED),
    };
    output::notice(&format!("{message}{detail}"));
    code
}
