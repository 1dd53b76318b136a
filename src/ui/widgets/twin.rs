//! The rows of a comparison with a twin, under its answer: where the two differ first, and the KL
//! divergence of each token as a thin line of bars.

use super::prelude::*;
use crate::protocol::{TwinDifference, TwinReport};
use crate::ui::heat;
use crate::ui::text::{clean_line, count, plural, wrap_plain};
use unicode_segmentation::UnicodeSegmentation;

/// Columns of the longest line of bars.
const MAX_BARS: usize = 60;

/// Result of a comparison, in words.
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

/// Combining mark that carries the place of a difference through the renderer: it has no width and
/// is part of its character.
const CARRIER: char = '\u{332}';
/// Words that are tried from the difference on.
const TRIED: usize = 4;

/// Renders an answer with its first difference marked: the part of the token that is a word, or the
/// next word where marking would change the Markdown. `at`: its bytes in the text; `said`: its
/// text.
pub fn render_marked(
    text: &str,
    first: &TwinDifference,
    at: usize,
    style: Style,
    mut render: impl FnMut(&str) -> Vec<Line<'static>>,
) -> Vec<Line<'static>> {
    let plain = render(text);
    if text.contains(CARRIER) || !text.is_char_boundary(at) || at >= text.len() {
        return plain;
    }
    let end = at + first.said.len().max(1);
    for (from, to) in words_from(text, at, end).into_iter().take(TRIED) {
        let first_char = text[from..].chars().next().map_or(0, char::len_utf8);
        let carried: String =
            [&text[..from + first_char], "\u{332}", &text[from + first_char..to], "\u{332}", &text[to..]].concat();
        let marked = render(&carried);
        if let Some(lines) = without_carriers(&marked, style).filter(|lines| same_text(lines, &plain)) {
            return lines;
        }
    }
    plain
}

/// Words of a text from byte `at` on. The first ends at `end`, where its token does.
fn words_from(text: &str, at: usize, end: usize) -> Vec<(usize, usize)> {
    let mut words = Vec::new();
    let mut start = None;
    let ends = text[at..].char_indices().map(|(i, c)| (at + i, c.is_alphanumeric())).chain([(text.len(), false)]);
    for (i, is_word) in ends {
        match start {
            None if is_word => start = Some(i),
            Some(from) if !is_word || (words.is_empty() && i == end) => {
                words.push((from, i));
                start = is_word.then_some(i);
            }
            _ => {}
        }
        if words.len() == TRIED {
            break;
        }
    }
    words
}

/// The lines without the carriers, with the text between them in `style`. `None` unless there are
/// two, or they are in one character.
fn without_carriers(lines: &[Line<'static>], style: Style) -> Option<Vec<Line<'static>>> {
    let (mut seen, mut out) = (0, Vec::with_capacity(lines.len()));
    for line in lines {
        let mut spans: Vec<Span<'static>> = Vec::new();
        for span in &line.spans {
            for grapheme in span.content.graphemes(true) {
                let carriers = grapheme.matches(CARRIER).count();
                let inside = seen == 1 || carriers > 0;
                seen += carriers;
                let own = if inside { span.style.patch(style) } else { span.style };
                let text: String = grapheme.chars().filter(|c| *c != CARRIER).collect();
                match spans.last_mut().filter(|last| last.style == own) {
                    Some(last) => last.content.to_mut().push_str(&text),
                    None => spans.push(Span::styled(text, own)),
                }
            }
        }
        out.push(Line { spans, ..line.clone() });
    }
    (seen == 2).then_some(out)
}

fn same_text(a: &[Line], b: &[Line]) -> bool {
    let text = |line: &Line| line.spans.iter().map(|span| span.content.as_ref()).collect::<String>();
    a.iter().map(text).eq(b.iter().map(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, StopReason};
    use crate::ui::testing::*;
    use ratatui::style::Modifier;

    #[test]
    fn a_comparison_is_drawn_under_its_answer() {
        let kl: Vec<f32> = (0..90).map(|i| if i < 40 { 0.0001 } else { (i - 40) as f32 / 60.0 }).collect();
        let first = TwinDifference {
            at: 45,
            answer_bytes: Some(4),
            after: "to the right:".into(),
            said: " 19".into(),
            instead: " 20".into(),
        };
        let twin = TwinReport { kl, differences: 3, first: Some(first), bytes: 1000 };
        for (name, depth, theme) in [("twin", Depth::Rgb, "dark"), ("twin_ascii", Depth::Ascii, "ascii")] {
            let mut app = loaded(120, 24, depth, theme, model(8, 4));
            app.panel.hidden = true;
            say(&mut app, "q");
            let turn = app.turn.as_ref().unwrap().turn;
            stream(&mut app, crate::protocol::TextKind::Answer, "Fine.");
            let report =
                crate::protocol::TurnReport { twin: Some(Box::new(twin.clone())), ..report(turn, StopReason::End) };
            engine(&mut app, Event::TurnDone(Box::new(report)));
            insta::assert_snapshot!(name, screen(&mut app));
        }
        // In the text: the word, and never at the price of the Markdown.
        let style = Style::new().add_modifier(Modifier::UNDERLINED);
        let marked = |text: &str, at: usize, said: &str| {
            let first = TwinDifference { said: said.into(), ..TwinDifference::default() };
            let theme = crate::ui::testing::app(80, 24, 8, 4).theme;
            let render = |text: &str| crate::ui::markdown::render(text, 60, &theme, &mut Vec::new(), &mut 0);
            let lines = render_marked(text, &first, at, style, render);
            assert!(same_text(&lines, &render(text)));
            let spans = lines.iter().flat_map(|line| &line.spans);
            let found =
                spans.filter(|span| span.style.add_modifier.contains(Modifier::UNDERLINED) && span.content.len() < 20);
            found.map(|span| span.content.to_string()).collect::<String>()
        };
        assert_eq!(marked("It is **very** cold.", 8, "very"), "very");
        assert_eq!(marked("It is cold today.", 5, " cold to"), "cold");
        assert_eq!(marked("It is cold.", 6, "co"), "co");
        assert_eq!(marked("one\n\n1. first\n2. second", 5, "1"), "1");
        assert_eq!(marked("one\n\n```\ncode\n```", 5, "```"), "code");
        assert_eq!(marked("x = `y + 1`", 5, "y"), "y");
        assert_eq!(marked("end.", 3, "."), "");
        assert_eq!(marked("short", 90, "x"), "");
        assert_eq!(
            words(&TwinReport { kl: vec![0.0; 4], ..TwinReport::default() }),
            "without eviction: the same choice at all of 4 tokens; mean KL 0.0000"
        );
    }
}
