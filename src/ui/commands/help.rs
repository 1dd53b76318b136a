//! `/help`: ten keys, the words of the panel, every command and every key, from the tables that
//! define them. What is typed filters the rows.

use super::command::{Command, Group};
use super::prelude::*;
use crate::ui::action::Group as Keys;
use crate::ui::editor::Editor;
use crate::ui::keymap::VIM_KEYS;
use crate::ui::numbers::LEGEND;
use crate::ui::overlay::prelude::*;
use crate::ui::picker::NOTHING;
use crate::ui::prompts;
use crate::ui::text::wrap;
use crate::ui::widgets::message::plain_lines;
use ratatui::text::{Line, Span};

/// Opens the help of these commands with words in its field.
pub fn open(app: &mut App, words: &str, commands: &'static [Command]) {
    let mut prompts = prompts::listed(&app.setup.settings.dirs.prompts());
    prompts.retain(|name| {
        !commands.iter().any(|command| command.name == name || command.aliases.contains(&name.as_str()))
    });
    app.open(Help { query: words.into(), scroll: 0, commands, prompts });
}

/// The keys that matter most.
const FIRST: [Action; 10] = [
    Action::Send,
    Action::Newline,
    Action::Stop,
    Action::Complete,
    Action::HistoryOlder,
    Action::SelectOlder,
    Action::PageUp,
    Action::Inspect,
    Action::Eviction,
    Action::QuitWhenEmpty,
];

/// Keys of the memory page.
const MEMORY: &[(&str, &str)] = &[
    ("arrows, PageUp, PageDown", "move over the tokens; Home to the first, End to the newest, and follows"),
    ("l, L", "count one layer: the next, the one before; after the last one all"),
    ("h, H", "count one KV head of each layer"),
    ("a", "count all layers and KV heads"),
    ("+, -", "choose the next of the best, of the least remembered passages"),
    (
        "r",
        "ask whether the model still knows the chosen passage, or the sentence under the cursor; the result is below the text",
    ),
    ("p", "pin the chosen passage or the sentence under the cursor, or take the pin under the cursor back"),
    ("Space", "begin to choose a passage, or give it up; the arrows move its end"),
    ("Tab", "the page of heads, and back"),
];

/// Rows under one title.
struct Section {
    title: String,
    rows: Vec<(String, String)>,
}

fn section(title: impl Into<String>, rows: impl IntoIterator<Item = (String, String)>) -> Section {
    Section { title: title.into(), rows: rows.into_iter().collect() }
}

/// The help on the screen.
pub struct Help {
    /// Only rows with these words are shown.
    query: Editor,
    scroll: usize,
    commands: &'static [Command],
    /// Names of the user's prompts.
    prompts: Vec<String>,
}

impl Help {
    fn rows(&self, app: &App) -> Vec<Line<'static>> {
        self.lines(app, usize::from(app.size.0).saturating_sub(2), true)
    }

    /// The rows of the help that contain all words of the query; without `keys` for terminals that
    /// have none.
    fn lines(&self, app: &App, width: usize, keys: bool) -> Vec<Line<'static>> {
        let theme = &app.theme;
        let words: Vec<String> = self.query.text().to_lowercase().split_whitespace().map(str::to_owned).collect();
        let column = 26.min(width / 2);
        let mut out = Vec::new();
        for Section { title, rows } in self.sections(app, keys) {
            let fits = |(left, right): &&(String, String)| {
                let text = format!("{title} {left} {right}").to_lowercase();
                words.iter().all(|word| text.contains(word))
            };
            let rows: Vec<_> = rows.iter().filter(fits).collect();
            if rows.is_empty() {
                continue;
            }
            if !out.is_empty() {
                out.push(Line::default());
            }
            out.push(Line::styled(title.clone(), theme.style(Role::Title)));
            for (left, right) in rows {
                let key = Span::styled(format!("{left:<column$} "), theme.style(Role::Key));
                let rest = Span::raw(" ".repeat(column + 1));
                out.extend(wrap(&[Span::styled(right.clone(), theme.style(Role::Text))], width, &[key], &[rest]));
            }
        }
        out
    }

    fn sections(&self, app: &App, keys: bool) -> Vec<Section> {
        let owned = |rows: &[(&str, &str)]| -> Vec<_> {
            rows.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect()
        };
        let mut out = Vec::new();
        let mut begin = if keys { FIRST.map(|action| key_row(app, action)).to_vec() } else { Vec::new() };
        begin.extend(owned(&[
            ("/", "a list of the commands; letters narrow it"),
            ("@FILE", "attaches a text file, or the list of a folder; @\"my file\" with spaces"),
            ("@https://...", "attaches the text of a web page"),
            ("!COMMAND", "runs a command in the shell and sends its output, and your next lines"),
        ]));
        out.push(section("To begin", begin));
        out.push(section("What the panel shows", owned(LEGEND)));
        out.push(section("Words", glossary()));
        for (group, title) in Group::LISTED {
            let commands = self.commands.iter().filter(|command| command.group == group);
            out.push(section(format!("Commands: {title}"), commands.map(|c| (c.label(), c.help.to_owned()))));
        }
        let prompt =
            |name: &String| (format!("/{name} [TEXT]"), format!("sends prompts/{name}.md with the text in it"));
        let how = "beside the config file: /NAME TEXT sends it, with TEXT in the place of {{input}}";
        let how = ("prompts/NAME.md".to_owned(), how.to_owned());
        out.push(section("Your prompts", self.prompts.iter().map(prompt).chain([how])));
        let keys_of = |group| Action::ALL.iter().filter(move |a| a.group() == group && !FIRST.contains(a));
        if keys {
            out.push(section("More keys", keys_of(Keys::Chat).map(|action| key_row(app, *action))));
            out.push(section(format!("Memory page ({})", app.key(Action::Inspect)), owned(MEMORY)));
        }
        out.push(section("Unsent text and waiting messages", unsent(app)));
        out.push(section("Files", files(app)));
        if keys && app.setup.keymap.is_vim() {
            out.push(section("Vim keys", owned(VIM_KEYS)));
        }
        if keys {
            out.push(section("Keys in the input", keys_of(Keys::Edit).map(|action| key_row(app, *action))));
        }
        out
    }

    /// The last row that the help can begin with.
    fn last(&self, app: &App) -> usize {
        self.rows(app).len().saturating_sub(page_rows(app))
    }
}

/// Rows of text that fit beside the field at the top and the line at the bottom.
fn page_rows(app: &App) -> usize {
    usize::from(app.size.1).saturating_sub(3).max(1)
}

impl Overlay<App> for Help {
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        let inside = inside(area);
        let (lines, room) = (self.rows(app), page_rows(app));
        let top = self.scroll.min(lines.len().saturating_sub(room));
        let buffer = frame.buffer_mut();
        draw_lines(buffer, Rect { y: area.y + 1, height: room as u16, ..inside }, lines.get(top..).unwrap_or_default());
        let close = app.key(Action::Stop);
        let more = count(lines.len().saturating_sub(top + room) as u64);
        let filter = if app.setup.keymap.is_vim() { "/ filters" } else { "type to filter" };
        let texts = match more.as_str() {
            _ if lines.is_empty() => vec![format!("{NOTHING}; {close} closes")],
            "0" => vec![format!("{filter}, {close} closes")],
            _ => vec![
                format!("{more} more lines; PageDown or the arrows scroll, {filter}, {close} closes"),
                format!("{more} more (PageDown); {filter}, {close} closes"),
                format!("{more} more; {close} closes"),
            ],
        };
        let text = texts.iter().find(|text| width(text) <= usize::from(inside.width)).or(texts.last());
        let text = text.cloned().unwrap_or_default();
        let style = app.theme.style(Role::Dim);
        buffer.set_stringn(inside.x, area.bottom() - 1, text, usize::from(inside.width), style);
        field(frame, row(inside, 0), &app.theme, "help:", &self.query);
    }

    /// Scrolls; any other key edits what the rows are filtered by.
    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        if key.code == KeyCode::Enter || action == Some(Action::Help) {
            return After::Close;
        }
        self.scroll = scrolled(self.scroll, key.code, page_rows(app), self.last(app)).unwrap_or_else(|| {
            edit_line(&mut self.query, key, action);
            0
        });
        After::Stay
    }

    fn field(&self) -> Field {
        Field::Filter
    }

    fn paste(&mut self, _: &mut App, line: &str) {
        self.query.insert(line);
        self.scroll = 0;
    }

    fn scroll(&mut self, app: &mut App, down: bool) {
        self.scroll = wheeled(self.scroll, down, self.last(app));
    }

    fn plain_lines(&self, app: &App, columns: usize) -> Option<Vec<String>> {
        Some(plain_lines(&self.lines(app, columns, false)))
    }
}

/// The rows of the page docs/glossary.md.
fn glossary() -> impl Iterator<Item = (String, String)> {
    let rows = include_str!("../../../docs/glossary.md").lines().filter_map(|line| {
        line.strip_prefix("| ")?
            .strip_suffix(" |")?
            .split_once(" | ")
            .map(|(word, meaning)| (word, meaning.replace('`', "")))
    });
    rows.skip(2).map(|(word, meaning)| (word.to_owned(), meaning))
}

fn key_row(app: &App, action: Action) -> (String, String) {
    let keys = app.setup.keymap.keys_of(action).join(", ");
    (if keys.is_empty() { "no key".to_owned() } else { keys }, action.help().to_owned())
}

/// Fate of texts that are not sent yet.
fn unsent(app: &App) -> Vec<(String, String)> {
    let (send, stop) = (app.key(Action::Send), app.key(Action::Stop));
    let rows = [
        (send.clone(), "while a model loads or an answer runs: the message waits, and is sent when its turn comes"),
        (format!("{send}, input empty"), "sends the next waiting message, where a stop or an error has held them up"),
        (format!("{stop}, input empty"), "takes the newest waiting message back into the input"),
        ("/ before your text".to_owned(), "sets the text aside for a command; it returns when the command has run"),
        (
            "/undo".to_owned(),
            "puts the text back into the input; / right after it begins a command and sets the text aside",
        ),
    ];
    rows.into_iter().map(|(left, right)| (left, right.to_owned())).collect()
}

fn files(app: &App) -> Vec<(String, String)> {
    let dirs = &app.setup.settings.dirs;
    let paths = [
        ("Conversations", dirs.sessions()),
        ("Configuration", dirs.config_file()),
        ("Profiles", dirs.profiles()),
        ("Prompts", dirs.prompts()),
        ("Themes", dirs.themes()),
        ("Keys", dirs.config.join("keymap.toml")),
    ];
    paths.map(|(name, path)| (name.to_owned(), clean_line(&path.display().to_string()))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::testing::*;

    #[test]
    fn the_help_shows_every_word_of_the_glossary() {
        let words: Vec<(String, String)> = glossary().collect();
        assert!(words.len() >= 20 && words[0].0 == "adapter", "{words:?}");
        let sorted = words.is_sorted_by_key(|(word, _)| word.to_lowercase());
        assert!(sorted && words.iter().all(|(_, meaning)| meaning.len() > 20 && !meaning.contains(['|', '`'])));
        let page = include_str!("../../../docs/glossary.md");
        assert_eq!(page.lines().filter(|line| line.starts_with("| ")).count(), words.len() + 2);
        let mut app = app(200, 60, 2, 2);
        for (word, meaning) in words {
            app.overlays.clear();
            app.input.set("");
            say(&mut app, &format!("/help words {word}"));
            let shown = screen(&mut app);
            assert!(shown.contains(&meaning), "{word}: {shown}");
        }
    }
}
