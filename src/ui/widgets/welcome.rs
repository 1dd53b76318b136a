//! An empty conversation: what this program is, three things to try and to look at, the important
//! keys, and where conversations are saved.

use super::prelude::*;
use crate::ui::action::Action;
use crate::ui::examples::{forgetting, offered};
use crate::ui::keymap::EXAMPLES;
use crate::ui::models::OFFLINE;
use crate::ui::overlay::draw_lines;
use crate::ui::text::{clean_line, count, wrap, wrap_plain};

/// Purpose of the program.
const PURPOSE: &str = "watch a model decide what to forget";

pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let (width, room) = (usize::from(area.width).saturating_sub(3).min(88), usize::from(area.height));
    let mut lines = lines(app, width, true);
    // Empty rows go before words do, and the place of files before the keys.
    while lines.len() > room
        && let Some(empty) = lines.iter().rposition(|line| line.width() == 0)
    {
        lines.remove(empty);
    }
    let more = lines.len().saturating_sub(room);
    if more > 0 {
        let saved = saved(app, width).len();
        lines.truncate(lines.len() - saved.min(more));
    }
    let more = lines.len().saturating_sub(room);
    if more > 0 {
        // Suggestions are dropped last, except for the keys.
        let keys = key_rows(app, width).len();
        let end = lines.len().saturating_sub(keys);
        lines.drain(end.saturating_sub(more)..end);
    }
    let height = lines.len().min(usize::from(area.height));
    let y = area.y + (usize::from(area.height) - height) as u16 / 2;
    let place = Rect::new(area.x + 3, y, area.width.saturating_sub(3), height as u16);
    draw_lines(buffer, place, &lines);
}

/// The welcome as rows; without `keys` for terminals that have none.
pub fn lines(app: &App, width: usize, keys: bool) -> Vec<Line<'static>> {
    let theme = &app.theme;
    let text = theme.style(Role::Text);
    let dim = theme.style(Role::Dim);
    let key = theme.style(Role::Key);
    let what = [
        Span::styled("dmschat", theme.style(Role::Title)),
        Span::styled(format!(" {} {PURPOSE}", theme.glyphs().separator), text),
    ];
    let mut out = wrap(&what, width, &[], &[]);
    out.extend(wrap_plain(&model(app), dim, width, &[]));
    if is_demo(app) {
        out.extend(wrap_plain(&road(app, keys), text, width, &[]));
    }
    if app.engine.info.as_ref().is_some_and(|info| info.template.is_plain()) {
        let text = "no chat template: this model continues text; an instruct version answers";
        out.extend(wrap_plain(text, dim, width, &[]));
    }
    out.push(Line::default());
    let how = match keys {
        true => format!("{} or {EXAMPLES} puts it into the input", app.key(Action::Complete)),
        false => "its number sends it; /help lists commands".to_owned(),
    };
    out.extend(wrap_plain(&format!("Try one of these ({how}):"), text, width, &[]));
    for (n, example) in offered(&app.engine).iter().enumerate() {
        let first = Span::styled(format!("  {}  ", n + 1), key);
        out.extend(wrap(&[Span::styled(*example, text)], width, &[first], &[Span::raw("     ")]));
    }
    if app.engine.info.as_ref().is_none_or(|info| !info.policy.keeps_all()) && keys {
        let hint = forgetting(&app.engine, &app.key(Action::Inspect));
        out.extend(wrap_plain(&hint, dim, width, &[Span::raw("     ")]));
    }
    if keys {
        out.push(Line::default());
        out.extend(key_rows(app, width));
    }
    out.push(Line::default());
    out.extend(saved(app, width));
    out
}

/// Whether the screen leads from the built-in model to others.
fn is_demo(app: &App) -> bool {
    app.engine.info.as_ref().map_or(app.engine.loading.is_none(), |info| info.is_builtin())
}

/// Whether Enter opens the list of models: on the first screen, with nothing typed.
pub fn leads_to_models(app: &App) -> bool {
    let empty = app.chat.is_empty() && app.queue.is_empty() && app.editing.is_none();
    empty && !app.resuming && is_demo(app) && !app.is_busy()
}

/// Leads to other models than the built-in one.
fn road(app: &App, keys: bool) -> String {
    let how = match keys {
        true => format!("{} or {}", app.key(Action::Models), app.key(Action::Send)),
        false => "/models".to_owned(),
    };
    match &app.models.best {
        _ if app.models.offline => format!("A demo, offline: {how} lists the models on this machine. {OFFLINE}."),
        Some(best) => format!("A demo that only does small tasks. {how} lists real models; {best} suits this machine."),
        None => format!("A demo that only does small tasks. {how} lists real models."),
    }
}

/// Where the conversation is saved.
fn saved(app: &App, width: usize) -> Vec<Line<'static>> {
    let saved = if app.setup.no_session {
        "This conversation is not saved.".to_owned()
    } else {
        let folder = clean_line(&app.setup.settings.dirs.sessions().display().to_string());
        format!("Conversations are saved in {folder}")
    };
    wrap_plain(&saved, app.theme.style(Role::Dim), width, &[])
}

/// The model, how long a conversation may be, and who evicts; the rest is in /stats.
fn model(app: &App) -> String {
    let tokens = |n: usize| count(n as u64);
    let Some(info) = &app.engine.info else {
        let downloads = app.engine.loading.as_ref().is_some_and(|l| l.download().is_some());
        return match &app.engine.loading {
            Some(_) if downloads => "the model is being downloaded; messages wait for it".to_owned(),
            Some(_) => "loading the model".to_owned(),
            None => "no model is loaded; /model NAME loads one".to_owned(),
        };
    };
    let plan = &info.plan;
    let fits = match plan.certain_context {
        _ if plan.kv_budget_bytes.is_none() => String::new(),
        fits if fits >= info.context => String::new(),
        fits => format!(", at least {} tokens of it fit", tokens(fits)),
    };
    let separator = app.theme.glyphs().separator;
    // A line below may have said so.
    let said = |text: &&String| app.feed.locals.iter().any(|local| local.text.starts_with(text.as_str()));
    let evicts = info.evicts_by.as_ref().filter(|text| !said(text));
    let evicts = evicts.map_or(String::new(), |text| format!(" {separator} {}", clean_line(text)));
    format!("{} {separator} {}-token context{fits}{evicts}", clean_line(&info.identity.name), tokens(info.context))
}

/// The keys that matter, in one column or two.
fn key_rows(app: &App, width: usize) -> Vec<Line<'static>> {
    let (text, key) = (app.theme.style(Role::Text), app.theme.style(Role::Key));
    let mut out = Vec::new();
    let keys = [
        (Action::Help, "all keys and commands"),
        (Action::Inspect, "what it remembers"),
        (Action::Panel, "cache panel"),
        (Action::Eviction, "eviction on or off"),
        (Action::Stop, "stop an answer"),
        (Action::Newline, "new line"),
    ];
    let mut row: Vec<Span<'static>> = Vec::new();
    for (n, (action, what)) in keys.into_iter().enumerate() {
        row.push(Span::styled(format!("{:<12}", app.key(action)), key));
        row.push(Span::styled(format!("{what:<22}"), text));
        if width < 70 || n % 2 == 1 {
            out.push(Line::from(std::mem::take(&mut row)));
        }
    }
    out
}
