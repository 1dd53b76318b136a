//! `/parallel`: how many chains answer. `/chains`: what the chains of an answer said.

use super::prelude::*;
use crate::config::Width;
use crate::protocol::ChainsReport;
use crate::ui::text::{clean, stop_words};

pub fn parallel(app: &mut App, argument: &str) -> Done {
    let (width, question) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    if width.is_empty() {
        return app.tell(match app.options.width {
            Width::Chains(1) => "one chain answers; /parallel 8 lets eight answer and vote".to_owned(),
            width => format!("{} answer; /parallel 1 is off", words(width)),
        });
    }
    let width: Width = width.parse().map_err(|_| Refusal::Takes)?;
    if !question.trim().is_empty() {
        turns::ask_chains(app, question.trim(), width);
        return Ok(());
    }
    app.options.width = width;
    app.tell(match width {
        Width::Chains(1) => "one chain answers, from the next question on".to_owned(),
        width => format!("{} answer from the next question on, and vote", words(width)),
    })
}

fn words(width: Width) -> String {
    match width {
        Width::Auto => "as many chains as fit".to_owned(),
        Width::Chains(n) => format!("{n} chains"),
    }
}

pub fn show(app: &mut App, argument: &str) -> Done {
    let chosen = app.feed.selected.and_then(|id| app.chat.get(id)).and_then(|m| m.report.as_ref()?.chains.clone());
    let last = || app.chat.path().iter().rev().find_map(|m| m.report.as_ref()?.chains.clone());
    let none = "no answer of several chains yet; /parallel 8 lets eight answer";
    let chains = chosen.or_else(last).ok_or(none)?;
    if argument.is_empty() {
        app.result(LocalKind::Table, table(&chains));
        return Ok(());
    }
    let number = argument.parse::<usize>().ok().and_then(|n| Some((n, chains.chains.get(n.checked_sub(1)?)?)));
    let (n, chain) = number.ok_or(Refusal::Takes)?;
    let parts = [&chain.reasoning, &chain.answer].map(|part| clean(part.trim()).into_owned());
    let said: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let text = format!("chain {n}, seed {}, {}:\n{}", chain.seed, stop_words(chain.stop_reason), said.join("\n\n"));
    app.result(LocalKind::Note, text);
    Ok(())
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
