//! `/logprobs`: how probable each token of the last answer was, and what the model would have said
//! instead.

use super::prelude::*;
use crate::protocol::{Likely, Probe, TokenChoice};
use crate::ui::memory::shown;
use crate::ui::overlay::prelude::*;
use ratatui::text::{Line, Span};

/// Tokens that were less probable are marked.
const UNSURE: f64 = 0.5;
/// Columns of a token.
const TOKEN: usize = 18;
/// Rows above the list, and with the line below it.
const TITLE: u16 = 2;

pub fn run(app: &mut App, _: &str) -> Done {
    open(app, EveryToken)
}

/// What a page shows of an answer's tokens.
pub trait View: 'static {
    /// The command's name.
    fn name(&self) -> &'static str;
    /// The tokens that are shown, in order.
    fn chosen(&self, tokens: &[TokenChoice]) -> Vec<usize>;
    /// Says what is known of all tokens.
    fn title(&self, tokens: &[TokenChoice]) -> String;
    /// Names the columns.
    fn head(&self, columns: usize) -> String;
    fn row(&self, app: &App, tokens: &[TokenChoice], at: usize, columns: usize) -> Line<'static>;
}

/// Asks for the last answer's tokens once more, and opens the page that waits for them.
pub fn open(app: &mut App, view: impl View) -> Done {
    turns::idle(app)?;
    app.model()?;
    let last = app.chat.context_path().last().and_then(|message| message.report.as_ref());
    let answer = last.map(|report| report.generated.clone()).filter(|tokens| !tokens.is_empty());
    app.send(Engine::Probe(Probe::Logprobs(answer.ok_or("there is no answer yet")?)));
    app.open(TokenPage { view: Box::new(view), found: None, shown: Vec::new(), top: 0 });
    Ok(())
}

/// Fills the page, if it is still open.
pub fn found(app: &mut App, found: Result<Vec<TokenChoice>, String>) {
    if let Some(page) = app.overlay_mut::<TokenPage>() {
        page.shown = found.as_ref().map_or_else(|_| Vec::new(), |tokens| page.view.chosen(tokens));
        page.found = Some(found);
    }
}

struct TokenPage {
    view: Box<dyn View>,
    /// `None` while the engine reads the answer again.
    found: Option<Result<Vec<TokenChoice>, String>>,
    /// The tokens of the rows.
    shown: Vec<usize>,
    /// First row shown.
    top: usize,
}

impl TokenPage {
    /// What is known of all tokens, or why there are none.
    fn title(&self, app: &App) -> String {
        match &self.found {
            None => format!("reading the answer again ({} stops)", app.key(Action::Stop)),
            Some(Err(why)) => why.clone(),
            Some(Ok(tokens)) => self.view.title(tokens),
        }
    }

    fn rows(&self, app: &App, columns: usize) -> impl Iterator<Item = Line<'static>> {
        let tokens = self.found.as_ref().and_then(|found| found.as_deref().ok()).unwrap_or_default();
        self.shown.iter().map(move |&at| self.view.row(app, tokens, at, columns))
    }

    /// The last row that the list can begin with.
    fn last(&self, app: &App) -> usize {
        self.shown.len().saturating_sub(page_rows(app))
    }
}

fn page_rows(app: &App) -> usize {
    usize::from(app.size.1.saturating_sub(TITLE + 2)).max(1)
}

/// The text of tokens in one line.
pub fn one_line(app: &App, text: &str) -> String {
    shown(text, if app.theme.ascii { "$" } else { "↵" })
}

/// `"text"`, in one line.
pub fn quoted(app: &App, token: &Likely) -> String {
    format!("\"{}\"", one_line(app, &token.text))
}

pub fn percent(token: &Likely) -> String {
    format!("{:.1} %", 100.0 * token.logprob.exp())
}

/// How probable an answer was.
pub fn summary(tokens: &[TokenChoice]) -> String {
    let mean = tokens.iter().map(|t| t.said.logprob).sum::<f64>() / tokens.len().max(1) as f64;
    let n = plural(tokens.len() as u64, "token");
    format!("{n}, mean {:.3}, perplexity {:.2}", thousandths(mean), (-mean).exp())
}

/// Rounded, so that almost nothing is shown as 0.000 and not as -0.000.
fn thousandths(x: f64) -> f64 {
    (1000.0 * x).round() / 1000.0 + 0.0
}

/// Every token with its log-probability and its probability, and the most probable others.
struct EveryToken;

fn is_unsure(token: &TokenChoice) -> bool {
    token.said.logprob.exp() < UNSURE
}

impl View for EveryToken {
    fn name(&self) -> &'static str {
        "logprobs"
    }

    fn chosen(&self, tokens: &[TokenChoice]) -> Vec<usize> {
        (0..tokens.len()).collect()
    }

    fn title(&self, tokens: &[TokenChoice]) -> String {
        let unsure = tokens.iter().filter(|t| is_unsure(t)).count();
        format!("{}; {unsure} below {:.0} %", summary(tokens), UNSURE * 100.0)
    }

    fn head(&self, _: usize) -> String {
        format!("  {:<TOKEN$} {:>8} {:>8}   instead", "token", "log p", "p")
    }

    fn row(&self, app: &App, tokens: &[TokenChoice], at: usize, columns: usize) -> Line<'static> {
        let (theme, token) = (&app.theme, &tokens[at]);
        let (sign, role) = if is_unsure(token) { ("?", Role::Warning) } else { (" ", Role::Text) };
        let text = truncate(&quoted(app, &token.said), TOKEN);
        let pad = " ".repeat(TOKEN - width(&text));
        let said = format!("{sign} {text}{pad} {:>8.3} {:>8}", thousandths(token.said.logprob), percent(&token.said));
        let others = token.others.iter().map(|other| format!("{} {}", quoted(app, other), percent(other)));
        let room = columns.saturating_sub(width(&said) + 3);
        let others = truncate(&others.collect::<Vec<_>>().join("  "), room);
        Line::from(vec![
            Span::styled(said, theme.style(role)),
            Span::styled(format!("   {others}"), theme.style(Role::Dim)),
        ])
    }
}

impl Overlay<App> for TokenPage {
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let (inside, buffer, theme) = (inside(area), frame.buffer_mut(), &app.theme);
        let columns = usize::from(inside.width);
        let mut line = |at: Rect, text: &str, role| {
            buffer.set_string(at.x, at.y, truncate(text, columns), theme.style(role));
        };
        line(row(inside, 0), &format!("{}: {}", self.view.name(), self.title(app)), Role::Title);
        let close = app.key(Action::Stop);
        line(row(inside, -1), &format!("arrows, PageUp, PageDown scroll, {close} closes"), Role::Dim);
        if self.shown.is_empty() {
            return;
        }
        line(row(inside, 1), &self.view.head(columns), Role::Dim);
        for (n, line) in self.rows(app, columns).skip(self.top).take(page_rows(app)).enumerate() {
            let at = row(inside, (TITLE + n as u16) as i16);
            buffer.set_line(at.x, at.y, &line, inside.width);
        }
    }

    fn key(&mut self, app: &mut App, key: Key, _: Option<Action>) -> After {
        if matches!(key.code, KeyCode::Enter | KeyCode::Char('q')) {
            return self.escape(app);
        }
        match scrolled(self.top, key.code, page_rows(app), self.last(app)) {
            Some(top) => self.top = top,
            None => return After::Ignored,
        }
        After::Stay
    }

    fn has_letter_keys(&self) -> bool {
        true
    }

    fn escape(&mut self, app: &mut App) -> After {
        if self.found.is_none() {
            app.send(Engine::Cancel);
        }
        After::Close
    }

    fn scroll(&mut self, app: &mut App, down: bool) {
        self.top = wheeled(self.top, down, self.last(app));
    }

    fn plain_lines(&self, app: &App, columns: usize) -> Option<Vec<String>> {
        self.found.as_ref()?;
        let rows = self.rows(app, columns).map(|row| row.to_string());
        Some(std::iter::once(self.title(app)).chain(rows).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Finding};
    use crate::ui::testing::*;

    #[test]
    fn an_answers_tokens_are_listed_with_what_was_likelier() {
        let mut app = app(80, 12, 8, 4);
        assert!(say(&mut app, "/logprobs").is_empty());
        assert_eq!(notice(&app), "/logprobs: there is no answer yet");
        turn(&mut app, "q", "hm", "Fine.");
        let effects = say(&mut app, "/logprobs");
        assert!(matches!(&effects[..], [Effect::Engine(Engine::Probe(Probe::Logprobs(tokens)))] if *tokens == [1, 2]));
        assert!(screen(&mut app).contains("reading the answer again (Esc stops)"));
        // Closed before it has ended.
        assert!(matches!(press(&mut app, KeyCode::Esc)[..], [Effect::Engine(Engine::Cancel)]));
        engine(&mut app, Event::Found(Finding::Logprobs(Err("stopped".into()))));
        assert!(app.overlays.is_empty());

        say(&mut app, "/logprobs");
        let likely = |text: &str, p: f64| Likely { text: text.into(), logprob: p.ln() };
        let token = |n: usize| TokenChoice {
            said: likely(&format!(" word{n}\n"), if n % 4 == 1 { 0.25 } else { 0.9 }),
            others: vec![likely(" other", 0.05), likely("\u{1b}[2J", 0.03), likely("日本", 0.01)],
        };
        engine(&mut app, Event::Found(Finding::Logprobs(Ok((0..20).map(token).collect()))));
        insta::assert_snapshot!(screen(&mut app));
        press(&mut app, KeyCode::End);
        assert!(screen(&mut app).contains("word19") && !screen(&mut app).contains("word0"));
        assert!(press(&mut app, KeyCode::Esc).is_empty() && app.overlays.is_empty());
        assert_eq!(format!("{:.3}", thousandths(-0.0001)), "0.000");
    }
}
