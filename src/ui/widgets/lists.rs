//! Lists and questions over the chat: saved conversations, the history search, yes or no.

use crate::ui::action::Action;
use crate::ui::editor::Editor;
use crate::ui::find::Find;
use crate::ui::models::{ModelEntry, ModelPicker};
use crate::ui::state::{App, Picker, Question, SessionEntry};
use crate::ui::text::{bytes, clean_line, plural, ratio, truncate, width, wrap_plain};
use crate::ui::theme::Role;
use ratatui::Frame;
use ratatui::layout::{Position, Rect};

/// A one-line field with its name; puts the cursor into it.
pub(super) fn field(frame: &mut Frame, area: Rect, app: &App, name: &str, value: &Editor) {
    let label = format!("{name} ");
    frame.buffer_mut().set_string(area.x, area.y, &label, app.theme.style(Role::Prompt));
    let room = usize::from(area.width).saturating_sub(width(&label) + 1);
    let before = clean_line(&value.text()[..value.caret()]);
    let shown = clean_line(value.text());
    let skip = width(&before).saturating_sub(room);
    let mut columns = 0;
    let visible: String = unicode_segmentation::UnicodeSegmentation::graphemes(shown.as_str(), true)
        .skip_while(|g| {
            columns += width(g);
            columns <= skip
        })
        .collect();
    let x = area.x + width(&label) as u16;
    frame.buffer_mut().set_stringn(x, area.y, visible, room, app.theme.style(Role::Input));
    frame.set_cursor_position(Position { x: x + (width(&before) - skip).min(room) as u16, y: area.y });
}

/// First entry shown so that the selected one is in view.
fn first(selected: usize, count: usize, rows: usize) -> usize {
    (selected + 1).saturating_sub(rows).min(count.saturating_sub(rows))
}

/// Most columns of a model's name in the list of conversations.
const MAX_NAME: usize = 24;

/// The columns of a conversation, equally wide in all rows: `names` columns for the model's name.
fn facts(entry: &SessionEntry, names: usize) -> String {
    let name = truncate(&clean_line(&entry.model), names);
    format!(
        "{}  {:>9}  {:>6}  {:>7}  {name}{}",
        clean_line(&entry.when),
        plural(entry.turns as u64, "turn"),
        entry.ratio.map_or_else(String::new, |r| ratio(Some(r))),
        bytes(entry.bytes),
        " ".repeat(names.saturating_sub(width(&name)))
    )
}

/// The saved conversations.
pub fn draw_sessions(frame: &mut Frame, area: Rect, app: &App, picker: &Picker) {
    let theme = &app.theme;
    let top = Rect { x: area.x + 1, width: area.width.saturating_sub(2), height: 1, ..area };
    match &picker.renaming {
        Some((_, title)) => field(frame, top, app, "new title:", title),
        None => field(frame, top, app, "conversations:", &picker.query),
    }
    let matching = picker.matching();
    // The bottom shows what was said last in the chosen one, where there is room.
    let preview_rows = if area.height >= 12 { 3 } else { 0 };
    let rows = usize::from(area.height).saturating_sub(3 + preview_rows);
    let start = first(picker.selected, matching.len(), rows);
    let room = usize::from(top.width);
    let buffer = frame.buffer_mut();
    let shown = matching.iter().skip(start).take(rows);
    let names = shown.clone().map(|entry| width(&clean_line(&entry.model))).max().unwrap_or(0).min(MAX_NAME);
    for (n, entry) in shown.enumerate() {
        let y = area.y + 2 + n as u16;
        let facts = truncate(&facts(entry, names), room * 2 / 3);
        let title_room = room.saturating_sub(width(&facts) + 2);
        let title = truncate(&clean_line(&entry.title), title_room);
        // Equal questions differ in their answers.
        let answer = entry.preview.lines().nth(1).map(|line| format!("  {}", clean_line(line))).unwrap_or_default();
        let answer = truncate(&answer, title_room.saturating_sub(width(&title)));
        let chosen = start + n == picker.selected;
        let role = |usual| theme.style(if chosen { Role::Selected } else { usual });
        buffer.set_string(top.x, y, " ".repeat(room), role(Role::Text));
        buffer.set_string(top.x, y, &title, role(Role::Text));
        buffer.set_string(top.x + width(&title) as u16, y, answer, role(Role::Dim));
        buffer.set_string(top.x + room.saturating_sub(width(&facts)) as u16, y, facts, role(Role::Dim));
    }
    if matching.is_empty() {
        buffer.set_stringn(top.x, area.y + 2, "nothing fits", room, theme.style(Role::Dim));
    }
    if let Some(entry) = matching.get(picker.selected).filter(|_| preview_rows > 0) {
        let signs = [theme.glyphs().prompt, " "];
        for ((n, line), sign) in entry.preview.lines().take(2).enumerate().zip(signs) {
            let line = truncate(&format!("{sign} {}", clean_line(line)), room);
            buffer.set_string(top.x, area.bottom() - 3 + n as u16, line, theme.style(Role::Dim));
        }
    }
    let (rename, close) = (app.key(Action::SearchHistory), app.key(Action::Stop));
    let keys = format!("Enter opens, {rename} renames, Delete deletes, {close} closes");
    let old = matching.get(picker.selected).and_then(|entry| entry.continues.as_deref());
    let keys = old.map_or_else(|| keys.clone(), |id| format!("continues {}; {keys}", clean_line(id)));
    buffer.set_stringn(top.x, area.bottom() - 1, keys, room, theme.style(Role::Dim));
}

/// The bar that finds in the conversation, over the input.
pub fn draw_find(frame: &mut Frame, area: Rect, app: &App, find: &Find) {
    rule(frame, area, app);
    let found = match (find.query.text().trim().is_empty(), find.count) {
        (true, _) => format!("Enter next, Up previous, {} closes", app.key(Action::Stop)),
        (false, 0) => "not found".to_owned(),
        (false, n) => format!("{} of {n}", find.current + 1),
    };
    let key = app.key(Action::FoldAll);
    let hidden = match find.hidden {
        0 => String::new(),
        n => format!("; {n} more in folded parts ({key} opens them)"),
    };
    let said = truncate(&format!("  {found}{hidden}"), usize::from(area.width) * 2 / 3);
    let room = area.width.saturating_sub(width(&said) as u16 + 2);
    let line = Rect { x: area.x + 1, y: area.bottom() - 1, width: room, height: 1 };
    field(frame, line, app, "find:", &find.query);
    frame.buffer_mut().set_string(line.right(), line.y, said, app.theme.style(Role::Dim));
}

/// The models of this machine: one a row, and more about the chosen one at the bottom.
pub fn draw_models(frame: &mut Frame, area: Rect, app: &App, picker: &ModelPicker) {
    let theme = &app.theme;
    let top = Rect { x: area.x + 1, width: area.width.saturating_sub(2), height: 1, ..area };
    field(frame, top, app, "models:", &picker.query);
    let matching = picker.matching();
    let rows = usize::from(area.height).saturating_sub(6);
    let start = first(picker.selected, matching.len(), rows);
    let room = usize::from(top.width);
    let buffer = frame.buffer_mut();
    for (n, entry) in matching.iter().skip(start).take(rows).enumerate() {
        let y = area.y + 2 + n as u16;
        let facts =
            format!("{:>9}  {:<18}  {:<12}", model_size(entry), truncate(&clean_line(&entry.dms), 18), fit(entry));
        let name_room = room.saturating_sub(width(&facts) + 2);
        let name = truncate(&clean_line(&entry.name), name_room);
        let pad = " ".repeat(room.saturating_sub(width(&name) + width(&facts)));
        let chosen = start + n == picker.selected;
        let role = |usual| theme.style(if chosen { Role::Selected } else { usual });
        buffer.set_stringn(top.x, y, format!("{name}{pad}"), room, role(Role::Text));
        let warn = !chosen && (entry.fits == Some(false) || !entry.complete);
        let x = top.x + width(&name) as u16 + pad.len() as u16;
        buffer.set_stringn(x, y, facts, room, role(if warn { Role::Warning } else { Role::Dim }));
    }
    let said = match (&picker.entries, matching.is_empty()) {
        (None, _) => Some("reading the models on this machine"),
        (_, true) => Some("nothing fits"),
        _ => None,
    };
    if let Some(said) = said {
        buffer.set_stringn(top.x, area.y + 2, said, room, theme.style(Role::Dim));
    }
    if let Some(entry) = matching.get(picker.selected) {
        let licence = entry.licence.as_deref().map_or("licence not recorded".to_owned(), |l| format!("licence {l}"));
        let about = [
            format!("{}; {}", entry.shape, entry.dms),
            [Some(licence), entry.path.clone()].into_iter().flatten().collect::<Vec<_>>().join("; "),
        ];
        for (n, line) in about.iter().enumerate() {
            let y = area.bottom() - 3 + n as u16;
            buffer.set_stringn(top.x, y, truncate(&clean_line(line), room), room, theme.style(Role::Text));
        }
    }
    let keys = format!("Enter loads, {} closes", app.key(Action::Stop));
    buffer.set_stringn(top.x, area.bottom() - 1, keys, room, theme.style(Role::Dim));
}

/// The bytes of a model's files, in words.
pub fn model_size(entry: &ModelEntry) -> String {
    if entry.path.is_some() { bytes(entry.bytes) } else { "built in".to_owned() }
}

fn fit(entry: &ModelEntry) -> &'static str {
    match (entry.complete, entry.fits) {
        (false, _) => "not all here",
        (true, Some(true)) => "fits",
        (true, Some(false)) => "does not fit",
        (true, None) => "",
    }
}

/// The line that parts a list from the chat above it.
fn rule(frame: &mut Frame, area: Rect, app: &App) {
    let line = app.theme.glyphs().horizontal;
    let style = app.theme.style(Role::Border);
    frame.buffer_mut().set_string(area.x, area.y, line.repeat(usize::from(area.width)), style);
}

/// Rows of the history search's list.
pub fn history_rows(app: &App, query: &Editor) -> usize {
    app.history.search(query.text()).len().clamp(1, 10)
}

/// Earlier messages, filtered.
pub fn draw_history(frame: &mut Frame, area: Rect, app: &App, query: &Editor, selected: usize) {
    let theme = &app.theme;
    let found = app.history.search(query.text());
    let rows = history_rows(app, query).min(usize::from(area.height).saturating_sub(2));
    let start = first(selected, found.len(), rows);
    let room = usize::from(area.width).saturating_sub(2);
    rule(frame, area, app);
    let top = area.bottom() - rows as u16 - 1;
    for n in 0..rows {
        let y = top + n as u16;
        let Some(entry) = found.get(start + n) else {
            frame.buffer_mut().set_stringn(area.x + 1, y, "nothing fits", room, theme.style(Role::Dim));
            continue;
        };
        let chosen = start + n == selected;
        let style = theme.style(if chosen { Role::Selected } else { Role::Text });
        let text = truncate(&clean_line(entry), room);
        frame.buffer_mut().set_string(area.x + 1, y, text, style);
    }
    let line = Rect { x: area.x + 1, y: area.bottom() - 1, width: area.width.saturating_sub(2), height: 1 };
    field(frame, line, app, "search history:", query);
}

/// A question with yes and no.
pub fn draw_confirm(frame: &mut Frame, area: Rect, app: &App, question: &Question) {
    let room = usize::from(area.width).saturating_sub(2);
    let lines = wrap_plain(&question.text, app.theme.style(Role::Warning), room, &[]);
    rule(frame, area, app);
    let buffer = frame.buffer_mut();
    let mut y = area.y + 1;
    for line in lines.iter().take(usize::from(area.height).saturating_sub(2)) {
        buffer.set_line(area.x + 1, y, line, area.width.saturating_sub(2));
        y += 1;
    }
    let other = question.other.as_ref().map_or(String::new(), |(key, words, _)| format!("    {key}: {words}"));
    let keys = format!("y or Enter: yes    n or {}: no{other}", app.key(Action::Stop));
    buffer.set_stringn(area.x + 1, y, keys, room, app.theme.style(Role::Text));
}
