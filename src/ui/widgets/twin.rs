//! The rows of a comparison with a twin, under its answer: where the two differ first, and the KL divergence of each token
//! as a thin line of bars.

use crate::protocol::TwinReport;
use crate::ui::depth::Depth;
use crate::ui::heat;
use crate::ui::text::{clean_line, count, plural, wrap_plain};
use crate::ui::theme::{Role, Theme};
use ratatui::text::{Line, Span};

/// Columns of the longest line of bars.
const MAX_BARS: usize = 60;

/// What a comparison found, in words.
pub fn words(report: &TwinReport) -> String {
    let compared = plural(report.kl.len() as u64, "token");
    let kl = report.mean_kl().map_or(String::new(), |kl| format!("; mean KL {kl:.4}"));
    let quoted = |text: &str| format!("\"{}\"", clean_line(text));
    match &report.first {
        None => format!("without eviction: the same choice at all of {compared}{kl}"),
        Some(first) => format!(
            "without eviction: {} of {compared} differ, first token {}: after {} it chooses {}, not {}{kl}",
            count(report.differences as u64),
            count(first.at as u64 + 1),
            quoted(&first.after),
            quoted(&first.instead),
            quoted(&first.said),
        ),
    }
}

/// Makes the rows, for a pane of `width` columns that begins with `margin`.
pub fn rows(
    report: &TwinReport,
    width: usize,
    margin: &[Span<'static>],
    theme: &Theme,
    depth: Depth,
) -> Vec<Line<'static>> {
    let dim = theme.style(Role::Dim);
    let mut lines = wrap_plain(&words(report), dim, width, margin);
    let columns = width.saturating_sub(8).clamp(1, MAX_BARS).min(report.kl.len());
    let mut line = margin.to_vec();
    for column in 0..columns {
        // Each bar shows the largest divergence of its tokens.
        let from = column * report.kl.len() / columns;
        let to = (column + 1) * report.kl.len() / columns;
        let most = report.kl[from..to].iter().copied().fold(0.0, f32::max);
        let differs = report.first.as_ref().is_some_and(|first| (from..to).contains(&first.at));
        let style = if differs { theme.style(Role::Mark) } else { dim };
        // One nat is a full bar; the square root spreads the low end.
        let bar = heat::bar(theme, depth, heat::level(f64::from(most)));
        line.push(Span::styled(bar, style));
    }
    lines.push(Line::from(line));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, StopReason, TwinDifference};
    use crate::ui::event::AppEvent;
    use crate::ui::testing::*;
    use crate::ui::update::update;
    use std::sync::Arc;

    #[test]
    fn a_comparison_is_drawn_under_its_answer() {
        let kl: Vec<f32> = (0..90).map(|i| if i < 40 { 0.0001 } else { (i - 40) as f32 / 60.0 }).collect();
        let first = TwinDifference { at: 45, after: "to the right:".into(), said: " 19".into(), instead: " 20".into() };
        let twin = TwinReport { kl, differences: 3, first: Some(first), bytes: 1000 };
        for (name, depth, theme) in [("twin", Depth::Rgb, "dark"), ("twin_ascii", Depth::Ascii, "ascii")] {
            let mut app = unloaded(120, 24, depth, theme);
            update(&mut app, AppEvent::ModelReady(Arc::new(model(8, 4))));
            app.panel.hidden = true;
            say(&mut app, "q");
            let turn = app.turn.as_ref().unwrap().turn;
            stream(&mut app, crate::protocol::TextKind::Answer, "Fine.");
            let report =
                crate::protocol::TurnReport { twin: Some(Box::new(twin.clone())), ..report(turn, StopReason::End) };
            engine(&mut app, Event::TurnDone(Box::new(report)));
            insta::assert_snapshot!(name, screen(&mut app));
        }
        assert_eq!(
            words(&TwinReport { kl: vec![0.0; 4], ..TwinReport::default() }),
            "without eviction: the same choice at all of 4 tokens; mean KL 0.0000"
        );
    }
}
