//! `/cost`: what the last (or the chosen) answer cost in time, memory and energy.

use super::prelude::*;
use crate::chat::Role;
use crate::protocol::{KvStats, TurnReport};
use crate::ui::text::{duration, ratio};

/// Said of a figure that nothing measured.
const NOT_REPORTED: &str = "not reported";

pub fn run(app: &mut App, _: &str) -> Done {
    let (none, unknown) = ("no answer yet", "this answer has no numbers: it was stopped, or is still running");
    let message = app.target().filter(|m| m.role == Role::Assistant).ok_or(none)?;
    let report = message.report.as_deref().ok_or(unknown)?;
    // The cache as the answer before has left it.
    let path = app.chat.path();
    let earlier = path.iter().take_while(|m| m.id != message.id);
    let before = earlier.filter_map(|m| m.report.as_deref()).last().map(|report| &report.kv);
    let text = table(report, before);
    app.result(LocalKind::Table, text);
    Ok(())
}

fn table(report: &TurnReport, before: Option<&KvStats>) -> String {
    let rows = rows(report, before);
    let lines = rows.into_iter().map(|(name, value)| format!("{name:<14} {value}"));
    let which = if report.in_context { "" } else { " (not part of the context)" };
    std::iter::once(format!("what the answer cost{which}")).chain(lines).collect::<Vec<_>>().join("\n")
}

fn rows(report: &TurnReport, before: Option<&KvStats>) -> Vec<(&'static str, String)> {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| NOT_REPORTED.to_owned());
    let speed = |tok_s: Option<f64>| tok_s.filter(|v| v.is_finite()).map(|v| format!("{v:.1} tok/s"));
    let tokens = |n: usize| plural(n as u64, "token");
    let prompt = match report.reused_tokens {
        0 => tokens(report.prompt_tokens),
        n => format!("{}, {} of them cached", tokens(report.prompt_tokens), count(n as u64)),
    };
    let thought = match report.reasoning_tokens {
        0 => String::new(),
        n => format!(" and {} of thought", tokens(n)),
    };
    let mut rows = vec![
        ("first token", or_none(report.ttft_ms.map(|ms| format!("after {}", seconds(ms / 1e3))))),
        ("prompt", prompt),
        ("prompt speed", or_none(speed(report.prefill_tok_s))),
        ("answer", tokens(report.answer_tokens) + &thought),
        ("answer speed", or_none(speed(report.decode_tok_s))),
        ("cache before", before.map_or("empty".to_owned(), cache)),
        ("cache after", cache(&report.kv)),
    ];
    if report.forgotten_slots > 0 {
        rows.push(("forgotten", format!("{} because memory ran out", plural(report.forgotten_slots, "slot"))));
    }
    if let Some(chains) = &report.chains {
        rows.push(("chains", count(chains.chains.len() as u64)));
    }
    rows.push(match &report.draft {
        Some(d) => {
            let gain = d.gain().map_or(String::new(), |gain| format!(", {:+.0} % speed", (gain - 1.0) * 100.0));
            ("drafts", format!("{} proposed, {} accepted{gain}", count(d.drafted), count(d.accepted)))
        }
        None => ("drafts", "none".to_owned()),
    });
    if let Some(n) = report.device_bytes {
        rows.push(("GPU memory", bytes(n)));
    }
    let all = report.answer_tokens + report.reasoning_tokens;
    let energy = report.joules.filter(|joules| joules.is_finite()).map(|joules| match all {
        0 => format!("{joules:.0} J"),
        n => format!("{joules:.0} J, {:.2} J a token", joules / n as f64),
    });
    rows.push(("energy", energy.unwrap_or_else(|| format!("{NOT_REPORTED} (needs an NVIDIA GPU)"))));
    rows
}

fn cache(kv: &KvStats) -> String {
    format!("{} for {}, {}", bytes(kv.live_bytes), plural(kv.tokens(), "token"), ratio(kv.ratio))
}

fn seconds(s: f64) -> String {
    if s < 60.0 { format!("{s:.2} s") } else { duration(s) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DraftReport, StopReason};
    use crate::ui::testing::*;

    #[test]
    fn a_row_says_each_cost_and_what_is_not_reported() {
        let mut app = app(100, 40, 2, 2);
        say(&mut app, "/cost");
        assert!(screen(&mut app).contains("/cost: no answer yet"), "{}", screen(&mut app));
        app.input.set("");
        turn(&mut app, "q", "hm", "Fine.");
        say(&mut app, "/cost");
        let text = app.feed.locals.last().unwrap().text.clone();
        for part in ["first token    ", "cache before   empty", "drafts         none", "energy         not reported"] {
            assert!(text.contains(part), "{text}");
        }
        let draft = DraftReport { rounds: 4, drafted: 20, accepted: 12, tokens: 16, cost: 8.0 };
        let base = report(1, StopReason::End);
        let one = TurnReport {
            ttft_ms: Some(1234.0),
            decode_tok_s: Some(45.25),
            prompt_tokens: 1000,
            reused_tokens: 600,
            answer_tokens: 40,
            reasoning_tokens: 10,
            joules: Some(100.0),
            draft: Some(draft),
            ..base.clone()
        };
        let text = table(&one, Some(&base.kv));
        for part in [
            "first token    after 1.23 s",
            "prompt         1,000 tokens, 600 of them cached",
            "answer         40 tokens and 10 tokens of thought",
            "answer speed   45.2 tok/s",
            "drafts         20 proposed, 12 accepted, +100 % speed",
            "energy         100 J, 2.00 J a token",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let odd = TurnReport { decode_tok_s: None, ttft_ms: None, joules: Some(f64::NAN), ..base };
        assert_eq!(table(&odd, None).matches(NOT_REPORTED).count(), 3 + usize::from(odd.prefill_tok_s.is_none()));
    }
}
