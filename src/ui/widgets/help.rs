//! The help: every key and every command, from the tables that define them.

use crate::ui::action::{Action, Group};
use crate::ui::commands::{ALIASES, SPECS};
use crate::ui::state::App;
use crate::ui::text::{wrap, wrap_plain};
use crate::ui::theme::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// What happens to texts that are not sent yet.
const DRAFTS: &[(&str, &str)] = &[
    ("Enter", "while a model loads or an answer runs: the message waits, and is sent when its turn comes"),
    ("Enter, input empty", "sends the next waiting message, where a stop or an error has held them up"),
    ("Esc, input empty", "takes the newest waiting message back into the input"),
    ("/ before a draft", "sets the draft aside for a command; it returns when the command has run"),
    ("/undo", "puts the text back into the input; / right after it begins a command and sets the text aside"),
];

/// Keys of the memory page.
const MEMORY: &[(&str, &str)] = &[
    ("arrows, PageUp, PageDown", "move over the tokens; Home to the first, End to the newest, and follows"),
    ("l, L", "count one layer: the next, the one before; after the last one all"),
    ("h, H", "count one KV head of each layer"),
    ("a", "count all layers and KV heads"),
    ("+, -", "to the next of the best, of the least remembered passages"),
    ("r", "ask whether the model still knows the sentence under the cursor, or the chosen passage"),
    ("Space", "begin to choose a passage, or give it up; the arrows move its end"),
    ("Tab", "the page of heads, and back"),
];

/// Draws the help from row `scroll` on.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, scroll: usize) {
    let width = usize::from(area.width).saturating_sub(2);
    let lines = lines(app, width, true);
    let room = usize::from(area.height).saturating_sub(1);
    let top = scroll.min(lines.len().saturating_sub(room));
    for (n, line) in lines.iter().skip(top).take(room).enumerate() {
        buffer.set_line(area.x + 1, area.y + n as u16, line, area.width - 2);
    }
    let more = lines.len().saturating_sub(top + room);
    let text = if more > 0 { format!("{more} more lines, arrows scroll, Esc closes") } else { "Esc closes".to_owned() };
    buffer.set_stringn(area.x + 1, area.bottom() - 1, text, width, app.theme.style(Role::Dim));
}

/// The whole help as rows; without `keys` for terminals that have none.
pub fn lines(app: &App, width: usize, keys: bool) -> Vec<Line<'static>> {
    let theme = &app.theme;
    let mut out = Vec::new();
    let title = |out: &mut Vec<Line<'static>>, text: &str| {
        if !out.is_empty() {
            out.push(Line::default());
        }
        out.push(Line::styled(text.to_owned(), theme.style(Role::Title)));
    };
    let row = |out: &mut Vec<Line<'static>>, left: String, right: &str| {
        let column = 26.min(width / 2);
        let key = Span::styled(format!("{left:<column$} "), theme.style(Role::Key));
        let rest = Span::raw(" ".repeat(column + 1));
        out.extend(wrap(&[Span::styled(right.to_owned(), theme.style(Role::Text))], width, &[key], &[rest]));
    };
    title(&mut out, "Commands");
    for spec in SPECS {
        let also: Vec<String> =
            ALIASES.iter().filter(|(_, name)| *name == spec.name).map(|(alias, _)| format!("/{alias}")).collect();
        let also = if also.is_empty() { String::new() } else { format!(" (also {})", also.join(", ")) };
        row(&mut out, format!("/{} {}", spec.name, spec.usage), &format!("{}{also}", spec.help));
    }
    let groups = [(Group::Chat, "Keys"), (Group::Edit, "Keys in the input")];
    for (group, name) in groups.into_iter().filter(|_| keys) {
        title(&mut out, name);
        for action in Action::ALL.iter().filter(|a| a.group() == group) {
            let keys = app.setup.keymap.keys_of(*action).join(", ");
            row(&mut out, if keys.is_empty() { "no key".to_owned() } else { keys }, action.help());
        }
    }
    if keys {
        let page = format!("Memory page ({})", app.setup.keymap.key_of(Action::Inspect));
        title(&mut out, &page);
        MEMORY.iter().for_each(|(keys, words)| row(&mut out, (*keys).to_owned(), words));
    }
    title(&mut out, "Drafts and waiting messages");
    for (what, words) in DRAFTS {
        row(&mut out, (*what).to_owned(), words);
    }
    title(&mut out, "Files");
    let dirs = &app.setup.settings.dirs;
    for (name, path) in
        [("Conversations", dirs.sessions()), ("Configuration", dirs.config_file()), ("Themes", dirs.themes())]
    {
        row(&mut out, name.to_owned(), &crate::ui::text::clean_line(&path.display().to_string()));
    }
    row(
        &mut out,
        "Keys".to_owned(),
        &crate::ui::text::clean_line(&dirs.config.join("keymap.toml").display().to_string()),
    );
    title(&mut out, "What the panel shows");
    let text = "Every layer of the model keeps keys and values of earlier tokens, in slots, for each of its heads. \
                A model trained with DMS marks tokens it will not need; with eviction on, their slots are given to \
                new tokens once they leave the window. A cell of the heatmap is one head: how many percent of the \
                tokens it still keeps; few is good, and drawn quietly. The ratio is dense slots over live slots.";
    out.extend(wrap_plain(text, theme.style(Role::Text), width, &[]));
    out
}
