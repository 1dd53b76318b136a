//! The rows of several chains: one for each while they answer, their votes and reads; and the line
//! under the answer.

use super::prelude::*;
use crate::protocol::{ChainFigures, ChainState, ChainsReport, VoteCount};
use crate::ui::active_turn::{Chain, Chains};
use crate::ui::text::{clean_line, count, stop_words, truncate, width as columns};
use unicode_segmentation::UnicodeSegmentation;

/// Most chains and answers that have a row of their own.
const MAX_ROWS: usize = 16;
const MAX_ANSWERS: usize = 4;
/// Narrower panes show no live slots.
const NARROW: usize = 64;
/// Columns of the longest bar of votes.
const BAR: usize = 24;
const MARGIN: &str = "   ";

/// Makes the rows of chains that answer. `lanes`: KV heads of all layers.
pub fn rows(chains: &Chains, figures: &[ChainFigures], lanes: u64, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines: Vec<Line> = Vec::new();
    for (n, chain) in chains.each.iter().enumerate().take(MAX_ROWS) {
        lines.push(row(n, chain, figures.get(n), lanes, width, theme));
    }
    let dim = theme.style(Role::Dim);
    if let Some(more) = chains.each.len().checked_sub(MAX_ROWS + 1) {
        lines.push(Line::styled(format!("{MARGIN}and {} more", more + 1), dim));
    }
    lines.extend(votes(&chains.votes, chains.each.len(), width, theme));
    let (reads, dense) = figures.iter().fold((0.0, 0.0), |(r, d), f| (r + f.reads, d + f.dense_reads));
    if let Some(words) = reads_words(reads, dense) {
        lines.push(Line::styled(format!("{MARGIN}{words}"), dim));
    }
    lines
}

fn row(
    n: usize,
    chain: &Chain,
    figures: Option<&ChainFigures>,
    lanes: u64,
    width: usize,
    theme: &Theme,
) -> Line<'static> {
    let dim = theme.style(Role::Dim);
    let state = match figures.map(|f| f.state) {
        _ if chain.report.is_some() => "ended",
        Some(ChainState::Waiting) => "waits",
        Some(ChainState::Ended) => "ended",
        Some(ChainState::Running) | None => "runs",
    };
    let tokens = chain.report.as_ref().map_or(figures.map_or(0, |f| f.tokens), |report| report.tokens);
    let mut spans = vec![
        Span::styled(format!("{MARGIN}{:>3} ", n + 1), theme.style(Role::Key)),
        Span::styled(format!("{state:<5} {:>6} tok", count(tokens as u64)), dim),
    ];
    if width >= NARROW {
        let live = figures.filter(|f| f.live_slots > 0).map(|f| count(f.live_slots / lanes.max(1)));
        spans.push(Span::styled(format!(" {:>6} live", live.unwrap_or_else(|| "-".to_owned())), dim));
    }
    spans.push(Span::raw("  "));
    let used: usize = spans.iter().map(|span| columns(&span.content)).sum();
    let room = width.saturating_sub(used);
    spans.push(match &chain.report {
        None => Span::styled(last_words(&chain.tail, room), theme.style(Role::Thought)),
        Some(report) => match &report.extracted {
            Some(answer) => Span::styled(truncate(&clean_line(answer), room), theme.style(Role::Strong)),
            None => Span::styled(truncate(&format!("no answer: {}", stop_words(report.stop_reason)), room), dim),
        },
    });
    Line::from(spans)
}

/// The end of a text that fits into `room` columns.
fn last_words(text: &str, room: usize) -> String {
    let text = clean_line(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut used = 0;
    let fits = |g: &&str| {
        used += columns(g);
        used <= room
    };
    let mut end: Vec<&str> = text.graphemes(true).rev().take_while(fits).collect();
    end.reverse();
    end.concat()
}

/// A bar for each of the answers with the most votes.
fn votes(votes: &[VoteCount], chains: usize, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let glyph = theme.glyphs().bars.last().copied().unwrap_or("#");
    let room = width.saturating_sub(MARGIN.len() + BAR + 6).clamp(4, 24);
    let answers: Vec<String> =
        votes.iter().take(MAX_ANSWERS).map(|vote| truncate(&clean_line(&vote.answer), room)).collect();
    let widest = answers.iter().map(|answer| columns(answer)).max().unwrap_or(0);
    let line = |(n, (vote, answer)): (usize, (&VoteCount, &String))| {
        let bar = glyph.repeat((vote.count * BAR).div_ceil(chains.max(1)).min(BAR));
        let role = if n == 0 { Role::Strong } else { Role::Dim };
        let gap = " ".repeat(widest - columns(answer));
        Line::from(vec![
            Span::styled(format!("{MARGIN}{answer}{gap} "), theme.style(role)),
            Span::styled(format!("{bar} {}", vote.count), theme.style(role)),
        ])
    };
    votes.iter().zip(&answers).enumerate().map(line).collect()
}

/// `8.0x fewer cache reads than dense`, if they are fewer.
fn reads_words(reads: f64, dense: f64) -> Option<String> {
    let times = Some(dense / reads).filter(|times| times.is_finite() && *times >= 1.05)?;
    Some(format!("{times:.1}x fewer cache reads than dense"))
}

/// The line under an answer of several chains: the votes, whose reply it is, and the reads.
pub fn words(report: &ChainsReport, reads: f64) -> String {
    let fewer = reads_words(reads, report.dense_reads).map_or(String::new(), |words| format!("; {words}"));
    format!(
        "{}; this is chain {}{fewer}; /chains shows them",
        report.votes_in_words(MAX_ANSWERS, |answer| truncate(&clean_line(answer), 24)),
        report.winner.saturating_add(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ChainEvent, ChainReport, Command, Event, StopReason, TextKind};
    use crate::ui::testing::*;

    fn chain_report(answer: Option<&str>, seed: u64) -> ChainReport {
        ChainReport {
            answer: format!("It is {}.", answer.unwrap_or("unclear")),
            reasoning: String::new(),
            extracted: answer.map(str::to_owned),
            stop_reason: if answer.is_some() { StopReason::End } else { StopReason::MaxTokens },
            tokens: 120,
            reasoning_tokens: 0,
            reads: 5_000.0,
            seed,
        }
    }

    #[test]
    fn chains_are_seen_while_they_answer_and_can_be_opened() {
        let sizes = [(80, 24, Depth::Rgb, "dark"), (120, 40, Depth::Rgb, "dark"), (80, 24, Depth::Ascii, "ascii")];
        for (w, h, depth, theme) in sizes {
            let mut app = loaded(w, h, depth, theme, model(8, 4));
            let effects = say(&mut app, "/parallel 4 reach 24 from 3, 5, 7, 9");
            assert!(matches!(effects[..], [Effect::Generate { turn: 1 }]));
            let request = app.turn.as_ref().unwrap().width.request(true, false).unwrap();
            assert_eq!((request.width, app.options.width), (Some(4), crate::config::Width::Chains(1)));
            engine(&mut app, Event::TurnStarted { turn: 1, prompt_tokens: 40, reused: 0, todo: 40 });
            let event = |app: &mut _, event| drop(engine(app, Event::Chain { turn: 1, event }));
            event(&mut app, ChainEvent::Started(4));
            for chain in 0..4 {
                let text =
                    format!("\u{1b}[31mlet me\ntry {chain} plus 5 times 7 minus 9 and see where\n\nthat leads me");
                event(&mut app, ChainEvent::Text { chain, kind: TextKind::Reasoning, text });
            }
            let votes = vec![VoteCount { answer: "24".into(), count: 1 }, VoteCount { answer: "23".into(), count: 1 }];
            let ended = |chain, answer| ChainEvent::Ended {
                chain,
                report: Box::new(chain_report(answer, 7)),
                votes: votes.clone(),
            };
            event(&mut app, ended(1, Some("24")));
            event(&mut app, ended(2, Some("23")));
            let mut s = snapshot(472, 8, 4);
            let states = [ChainState::Running, ChainState::Ended, ChainState::Ended, ChainState::Waiting];
            s.chains = states
                .map(|state| {
                    let live_slots = if state == ChainState::Ended { 0 } else { 64 * 32 };
                    ChainFigures { state, tokens: 120, live_slots, reads: 5_000.0, dense_reads: 20_000.0 }
                })
                .to_vec();
            figures(&mut app, s);
            let name = format!("chains_{theme}_{w}x{h}");
            insta::assert_snapshot!(name, screen(&mut app));
            // Esc asks the engine to end them; the winner's text is the message's.
            let effects = press(&mut app, ratatui::crossterm::event::KeyCode::Esc);
            assert!(effects.iter().any(|e| matches!(e, Effect::Engine(Command::Cancel))));
            event(&mut app, ChainEvent::Elected(1));
            engine(&mut app, Event::Text { turn: 1, kind: TextKind::Answer, text: "It is 24.".into() });
            let chains = ChainsReport {
                chains: [None, Some("24"), Some("23"), None].map(|a| chain_report(a, 7)).to_vec(),
                votes,
                winner: 1,
                checked: false,
                stopped: true,
                dense_reads: 80_000.0,
            };
            let done =
                crate::protocol::TurnReport { chains: Some(Box::new(chains)), ..report(1, StopReason::Cancelled) };
            engine(&mut app, Event::TurnDone(Box::new(done)));
            let shown = screen(&mut app);
            assert!(shown.contains("4 chains: 1 x 24, 1 x 23") && shown.contains("stopped, 2 votes"), "{shown}");
            say(&mut app, "/chains");
            assert!(app.feed.locals.last().unwrap().text.contains("    2     120     5,000  end          24 (shown)"));
            say(&mut app, "/chains 3");
            assert!(app.feed.locals.last().unwrap().text.contains("It is 23."));
        }
        let mut app = app(80, 24, 8, 4);
        for (typed, shown) in [
            ("/chains", "no answer of several chains"),
            ("/parallel 0", "1 to 1024 chains, or auto"),
            ("/parallel x", "1 to 1024 chains, or auto"),
            ("/parallel", "one chain answers"),
            ("/parallel auto", "as many chains as fit answer"),
        ] {
            say(&mut app, typed);
            assert!(screen(&mut app).contains(shown), "{typed}: {}", screen(&mut app));
            app.input.set("");
        }
    }
}
