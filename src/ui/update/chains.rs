//! `/parallel`: how many chains answer. `/chains`: what the chains of an answer said.

use super::{Effect, result, turns};
use crate::config::Width;
use crate::protocol::ChainsReport;
use crate::ui::feed::LocalKind;
use crate::ui::state::{App, Level};
use crate::ui::text::{clean, clean_line, count, stop_words, truncate};

/// /parallel [N|auto [TEXT]]
pub fn parallel(app: &mut App, argument: &str) -> Vec<Effect> {
    let (width, question) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    if width.is_empty() {
        let text = match app.options.width {
            Width::Chains(1) => "one chain answers; /parallel 8 lets eight answer and vote".to_owned(),
            width => format!("{} answer; /parallel 1 is off", words(width)),
        };
        app.say(Level::Info, text);
        return Vec::new();
    }
    let width: Width = match width.parse() {
        Ok(width) => width,
        Err(why) => {
            app.say(Level::Error, format!("/parallel: {}", clean_line(&why)));
            return Vec::new();
        }
    };
    if !question.trim().is_empty() {
        return turns::ask_chains(app, question.trim(), width);
    }
    app.options.width = width;
    let text = match width {
        Width::Chains(1) => "one chain answers, from the next question on".to_owned(),
        width => format!("{} answer from the next question on, and vote", words(width)),
    };
    app.say(Level::Info, text);
    Vec::new()
}

fn words(width: Width) -> String {
    match width {
        Width::Auto => "as many chains as fit".to_owned(),
        Width::Chains(n) => format!("{n} chains"),
    }
}

/// /chains [N]
pub fn show(app: &mut App, argument: &str) -> Vec<Effect> {
    let chosen = app.feed.selected.and_then(|id| app.chat.get(id)).and_then(|m| m.report.as_ref()?.chains.clone());
    let last = || app.chat.path().iter().rev().find_map(|m| m.report.as_ref()?.chains.clone());
    let Some(chains) = chosen.or_else(last) else {
        app.say(Level::Info, "/chains: no answer of several chains yet; /parallel 8 lets eight answer");
        return Vec::new();
    };
    if argument.is_empty() {
        return result(app, LocalKind::Table, table(&chains));
    }
    let number = argument.parse::<usize>().ok().and_then(|n| Some((n, chains.chains.get(n.checked_sub(1)?)?)));
    let Some((n, chain)) = number else {
        let text = format!("/chains takes a number from 1 to {}, not {:?}", chains.chains.len(), clean_line(argument));
        app.say(Level::Error, text);
        return Vec::new();
    };
    let parts = [&chain.reasoning, &chain.answer].map(|part| clean(part.trim()).into_owned());
    let said: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let text = format!("chain {n}, seed {}, {}:\n{}", chain.seed, stop_words(chain.stop_reason), said.join("\n\n"));
    result(app, LocalKind::Note, text)
}

fn table(chains: &ChainsReport) -> String {
    let mut lines = vec![format!("{:>5} {:>7} {:>9}  {:<12} answer", "chain", "tokens", "reads", "ended by")];
    for (n, chain) in chains.chains.iter().enumerate() {
        let won = if n == chains.winner { " (shown)" } else { "" };
        let answer = chain.extracted.as_deref().map_or("-".to_owned(), |answer| truncate(&clean_line(answer), 40));
        let (tokens, reads) = (count(chain.tokens as u64), count(chain.reads as u64));
        lines.push(format!("{:>5} {tokens:>7} {reads:>9}  {:<12} {answer}{won}", n + 1, stop_words(chain.stop_reason)));
    }
    lines.join("\n")
}
