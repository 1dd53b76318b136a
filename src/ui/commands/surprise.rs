//! `/surprise [N]`: the tokens of the last answer that the model expected least, in their text, and
//! what it expected instead.

use super::logprobs::{View, one_line, open, percent, quoted, summary};
use super::prelude::*;
use crate::protocol::TokenChoice;
use crate::ui::overlay::prelude::*;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;

/// Tokens that are listed if no number is given, and at most.
const USUAL: usize = 8;
const MOST: usize = 50;
/// Columns of a probability, and of the token that was expected with its own.
const PERCENT: usize = 8;
const EXPECTED: usize = 28;
/// Columns of the listed token at most.
const TOKEN: usize = 18;

/// Asks for the answer's tokens once more, and opens the page that lists the least expected ones.
pub fn run(app: &mut App, argument: &str) -> Done {
    let n = match argument {
        "" => USUAL,
        n => n.parse().ok().filter(|n| (1..=MOST).contains(n)).ok_or(Refusal::Takes)?,
    };
    open(app, LeastExpected(n))
}

/// As many tokens of the lowest probability.
struct LeastExpected(usize);

/// Columns of the text around a token.
fn text_columns(columns: usize) -> usize {
    columns.saturating_sub(PERCENT + EXPECTED + 4)
}

/// The end of a clean one-line text, in `max` columns.
fn tail(text: &str, max: usize) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let (mut start, mut used) = (text.len(), 1);
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += width(grapheme);
        if used > max {
            break;
        }
        start = at;
    }
    if max > 0 { format!("~{}", &text[start..]) } else { String::new() }
}

/// The text before a token, the token in brackets, and the text after it, in `columns` in all.
fn in_text(app: &App, tokens: &[TokenChoice], at: usize, columns: usize) -> [String; 3] {
    // A column takes at most a few tokens: several may spell one character.
    let join = |tokens: &[TokenChoice]| {
        let text: String = tokens.iter().map(|token| token.said.text.as_str()).collect();
        one_line(app, &text)
    };
    let far = 4 * columns;
    let token = format!("[{}]", truncate(&join(&tokens[at..=at]), TOKEN.min(columns.saturating_sub(2))));
    let around = columns.saturating_sub(width(&token));
    let before = tail(&join(&tokens[at.saturating_sub(far)..at]), around / 2);
    let after = join(&tokens[at + 1..tokens.len().min(at + 1 + far)]);
    let after = truncate(&after, around - width(&before));
    [before, token, after]
}

impl View for LeastExpected {
    fn name(&self) -> &'static str {
        "surprise"
    }

    fn chosen(&self, tokens: &[TokenChoice]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by(|&a, &b| tokens[a].said.logprob.total_cmp(&tokens[b].said.logprob));
        order.truncate(self.0);
        order
    }

    fn title(&self, tokens: &[TokenChoice]) -> String {
        format!("the {} least expected of {}", self.0.min(tokens.len()), summary(tokens))
    }

    fn head(&self, columns: usize) -> String {
        format!("{:>PERCENT$}  {:<text$}  instead", "p", "in the text", text = text_columns(columns))
    }

    fn row(&self, app: &App, tokens: &[TokenChoice], at: usize, columns: usize) -> Line<'static> {
        let (theme, token) = (&app.theme, &tokens[at]);
        let room = text_columns(columns);
        let [before, said, after] = in_text(app, tokens, at, room);
        let pad = " ".repeat(room.saturating_sub(width(&before) + width(&said) + width(&after)));
        let likelier = token.others.first().filter(|other| other.logprob > token.said.logprob);
        let instead = likelier.map_or_else(
            || "nothing was likelier".to_owned(),
            |other| {
                let p = percent(other);
                format!("{} {p}", truncate(&quoted(app, other), EXPECTED - 1 - width(&p)))
            },
        );
        Line::from(vec![
            Span::styled(format!("{:>PERCENT$}  ", percent(&token.said)), theme.style(Role::Text)),
            Span::styled(before, theme.style(Role::Dim)),
            Span::styled(said, theme.style(Role::Warning)),
            Span::styled(format!("{after}{pad}  "), theme.style(Role::Dim)),
            Span::styled(instead, theme.style(Role::Text)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Finding, Likely, Probe};
    use crate::ui::testing::*;

    fn answer() -> Vec<TokenChoice> {
        let likely = |text: &str, p: f64| Likely { text: text.into(), logprob: p.ln() };
        let words =
            "The capital of France is Paris , which has many bridges\nand 日本 cafés that never close .".split(' ');
        let token = |(n, word): (usize, &str)| {
            let p = [0.9, 0.02, 0.8, 0.31, 0.9, 0.01, 0.97, 0.6][n % 8];
            let other = if n == 3 { 0.2 } else { 0.05 + p / 2.0 };
            TokenChoice {
                said: likely(&format!(" {word}"), p),
                others: vec![likely(" \u{1b}[2Ja longer word", other), likely(" other", 0.001)],
            }
        };
        words.enumerate().map(token).collect()
    }

    #[test]
    fn the_least_expected_tokens_are_shown_in_their_text() {
        let mut app = app(80, 12, 8, 4);
        assert!(say(&mut app, "/surprise").is_empty());
        assert_eq!(notice(&app), "/surprise: there is no answer yet");
        turn(&mut app, "q", "hm", "Fine.");
        for wrong in ["0", "51", "-1", "1.5", "many", "99999999999999999999"] {
            app.input.set("");
            assert!(say(&mut app, &format!("/surprise {wrong}")).is_empty() && app.overlays.is_empty(), "{wrong}");
            assert!(notice(&app).starts_with("/surprise takes a number from 1 to 50, not"), "{wrong}");
        }
        app.input.set("");
        let effects = say(&mut app, "/surprise 5");
        assert!(matches!(&effects[..], [Effect::Engine(Engine::Probe(Probe::Logprobs(tokens)))] if *tokens == [1, 2]));
        engine(&mut app, Event::Found(Finding::Logprobs(Ok(answer()))));
        insta::assert_snapshot!(screen(&mut app));
        press(&mut app, KeyCode::Esc);
        // More than there are, from the least probable one on.
        let order = LeastExpected(50).chosen(&answer());
        assert_eq!((order.len(), &order[..5]), (17, &[5, 13, 1, 9, 3][..]));
    }

    #[test]
    fn rows_fit_whatever_their_tokens_are() {
        let app = app(80, 12, 8, 4);
        let mut tokens = answer();
        tokens[7].said.text = "日本語".repeat(30);
        tokens[8].said.text.clear();
        for columns in [0, 1, 20, 39, 40, 41, 45, 60, 78, 300] {
            for at in 0..tokens.len() {
                let row = LeastExpected(8).row(&app, &tokens, at, columns).to_string();
                assert!(width(&row) <= columns.max(PERCENT + EXPECTED + 6), "{columns}: {row:?}");
            }
        }
        let row = |at| LeastExpected(8).row(&app, &tokens, at, 78).to_string();
        assert!(row(3).contains("of[ France] is") && row(3).ends_with("nothing was likelier"), "{}", row(3));
        assert_eq!(tail("a 日本", 4), "~本");
    }
}
