//! The banner over the input (current work, effect of a key) and the status line at the bottom.

use super::input::PROMPT_WIDTH;
use super::prelude::*;
use crate::protocol::{Event, Phase, StopReason};
use crate::ui::action::Action;
use crate::ui::numbers;
use crate::ui::state::{Level, Queued, SPINNER_MS};
use crate::ui::text::{bytes, clean, clean_line, count, plural, ratio, truncate, width, wrap_plain};
use ratatui::widgets::{Clear, Widget};

const MAX_BANNER: usize = 4;
/// Gain of drafts from which it is shown.
const WORTH_SAYING: f64 = 1.05;
/// Most waiting messages that are shown.
const MAX_QUEUE_ROWS: usize = 3;

/// Returns the text of the banner: a notice, else progress, else a hint.
fn banner_text(app: &App) -> Option<(String, Role)> {
    let stop = app.key(Action::Stop);
    if let Some(notice) = &app.notice {
        return Some((notice.text.clone(), notice_role(notice.level)));
    }
    if let Some(text) = progress(app, &stop) {
        return Some((text, Role::Mark));
    }
    if app.aside.is_some() {
        return Some((format!("your text is set aside until the command has run ({stop}: now)"), Role::Note));
    }
    if app.editing.is_some() {
        return Some((format!("changing an earlier message; Enter sends it, {stop} leaves it"), Role::Mark));
    }
    if let Some(text) = chosen(app) {
        return Some((text, Role::Mark));
    }
    let columns = usize::from(super::chat_width(app)).saturating_sub(PROMPT_WIDTH);
    let note = super::input::size_note(app, columns).or_else(|| numbers::offer_to_compact(app));
    note.map(|text| (text, Role::Note))
}

/// Actions on the chosen message.
fn chosen(app: &App) -> Option<String> {
    let id = app.feed.selected?;
    let path = app.chat.path();
    let at = path.iter().position(|m| m.id == id)?;
    let keys = [Action::Copy, Action::Fold, Action::Stop].map(|action| app.key(action));
    let [copy, fold, stop] = &keys;
    let (at, all) = (count(at as u64 + 1), count(path.len() as u64));
    Some(format!("message {at} of {all} chosen: /pin, /recall, /edit; {copy} copies, {fold} folds, {stop} deselects"))
}

fn notice_role(level: Level) -> Role {
    match level {
        Level::Info => Role::Note,
        Level::Warning => Role::Warning,
        Level::Error => Role::Error,
    }
}

/// Returns the rows of queued messages, newest last, with the keys that act on them.
fn queue_rows(app: &App, columns: u16) -> Vec<String> {
    let Some(last) = app.queue.len().checked_sub(1) else { return Vec::new() };
    let first = app.queue.len().saturating_sub(MAX_QUEUE_ROWS);
    let paused = !app.is_busy() && app.engine.loading.is_none();
    let stop = app.key(Action::Stop);
    let send = app.key(Action::Send);
    let row = |(n, queued): (usize, &Queued)| {
        let keys = match (n == last && app.input.is_empty(), paused) {
            (false, _) => String::new(),
            (true, false) => format!("  ({stop} takes it back)"),
            (true, true) => format!("  ({send} sends, {stop} takes it back)"),
        };
        let more = if n == first && first > 0 { format!("{first} more, ") } else { String::new() };
        let room = usize::from(columns).saturating_sub(4 + width(&more) + "queued: ".len() + width(&keys));
        format!("{more}queued: {}{keys}", truncate(&clean_line(&with_labels(app, &queued.text)), room))
    };
    app.queue.iter().enumerate().skip(first).map(row).collect()
}

/// A text with its pastes and attached files as they are in the input.
fn with_labels(app: &App, text: &str) -> String {
    let (mut out, mut from) = (String::new(), 0);
    for fold in app.input.folds(text) {
        out.push_str(text[from..fold.range.start].trim_end_matches('\n'));
        out.push_str(&fold.label);
        from = fold.range.end;
    }
    out + &text[from..]
}

/// Describes what runs, its progress, and the key that stops it.
fn progress(app: &App, stop: &str) -> Option<String> {
    if let Some(run) = &app.shell.running {
        let seconds = app.now_ms.saturating_sub(run.since_ms) / 1000;
        return Some(format!("running {}: {seconds} s ({stop} stops)", truncate(&clean_line(&run.command), 60)));
    }
    if app.attaching > 0 {
        return Some(format!("reading what is attached ({stop} stops)"));
    }
    if let Some(loading) = &app.engine.loading {
        let name = clean_line(&loading.name);
        return Some(match &loading.progress {
            Some(Event::Downloading(download)) => {
                format!("downloading {name}: {} ({stop} twice stops)", numbers::download(download))
            }
            Some(Event::CompilingKernels { done, total, seconds }) => {
                format!("compiling kernels for this GPU (once), {seconds} s: {done} of {total} ({stop} twice stops)")
            }
            Some(Event::Quantizing { measuring, done, total }) => {
                let what = if *measuring { "measuring which weights matter" } else { "packing the weights" };
                format!("loading {name}: {what}, layer {done} of {total} ({stop} twice stops)")
            }
            Some(Event::Loading { done_bytes, total_bytes: total @ 1.. }) => {
                let percent = done_bytes.min(total) * 100 / total;
                format!("loading {name}: {percent} % of {} ({stop} twice stops)", bytes(*total))
            }
            _ => format!("loading {name}"),
        });
    }
    if app.turn.as_ref().is_some_and(|t| t.stopping) {
        return Some("stopping".to_owned());
    }
    if app.opening {
        return Some(format!("reading the conversation ({stop} stops)"));
    }
    if let Some((asked, Phase::Prefill { done, total })) = probing(app).zip(Some(app.engine.phase())) {
        return Some(format!("{asked}: reading {} ({stop} stops)", share(done, total)));
    }
    if let Some(summary) = &app.engine.compacting {
        let words = plural(summary.text.split_whitespace().count() as u64, "word");
        return Some(format!("writing a summary: {words} ({stop} stops)"));
    }
    if let Some(comparison) = &app.engine.comparing {
        let words = plural(comparison.text.split_whitespace().count() as u64, "word");
        return Some(format!("answering without eviction: {words} ({stop} stops)"));
    }
    if app.engine.recalling {
        return Some(format!("asking for the text ({stop} stops)"));
    }
    let (what, done, total) = match (app.engine.phase(), app.engine.rebuilding) {
        (Phase::Rebuild { done, total }, _) | (_, Some((done, total))) if app.session.is_restoring() => {
            ("loading the conversation", done, total)
        }
        (Phase::Rebuild { done, total }, _) | (_, Some((done, total))) => ("rebuilding the cache", done, total),
        (Phase::Prefill { done, total }, _) => ("reading the prompt", done, total),
        _ if app.turn.as_ref().is_some_and(|t| t.is_preparing(app.now_ms)) => {
            return Some(format!("preparing the prompt ({stop} stops)"));
        }
        _ => return None,
    };
    Some(format!("{what}: {} ({stop} stops)", share(done, total)))
}

/// The question asked beside the conversation, if any.
fn probing(app: &App) -> Option<&'static str> {
    let engine = &app.engine;
    let asked = [
        (engine.compacting.is_some(), "writing a summary"),
        (engine.comparing.is_some(), "answering without eviction"),
        (engine.recalling, "asking for the text"),
    ];
    asked.into_iter().find_map(|(runs, what)| runs.then_some(what))
}

/// `1,234 of 6,283 tokens, 19 %`
fn share(done: usize, total: usize) -> String {
    let percent = done.min(total) * 100 / total.max(1);
    format!("{} of {}, {percent} %", count(done as u64), plural(total as u64, "token"))
}

/// Rows that the banner needs.
pub fn banner_height(app: &App, columns: u16) -> u16 {
    (text_rows(app, columns) + queue_rows(app, columns).len()) as u16
}

fn text_rows(app: &App, columns: u16) -> usize {
    banner_text(app).map_or(1, |(text, _)| wrapped(&text, columns).len().clamp(1, MAX_BANNER))
}

/// A notice over an overlay that hides the banner: in the lowest rows of `area`.
pub fn draw_notice(buffer: &mut Buffer, area: Rect, app: &App) {
    let Some(notice) = &app.notice else { return };
    let rows = wrapped(&notice.text, area.width);
    let height = rows.len().min(MAX_BANNER).min(usize::from(area.height)) as u16;
    let area = Rect { y: area.bottom() - height, height, ..area };
    Clear.render(area, buffer);
    for (n, row) in rows.iter().take(usize::from(height)).enumerate() {
        let row: String = row.spans.iter().map(|s| s.content.as_ref()).collect();
        buffer.set_string(area.x + 1, area.y + n as u16, row, app.theme.style(notice_role(notice.level)));
    }
}

fn wrapped(text: &str, columns: u16) -> Vec<Line<'static>> {
    let room = usize::from(columns).saturating_sub(8).max(10);
    wrap_plain(&clean(text).replace('\n', " "), Default::default(), room, &[])
}

/// The line over the input, with what there is to say in it.
pub fn draw_banner(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let line = theme.glyphs().horizontal;
    let border = theme.style(Role::Border);
    buffer.set_string(area.x, area.y, line.repeat(usize::from(area.width)), border);
    if let Some((text, role)) = banner_text(app) {
        for (n, row) in wrapped(&text, area.width).into_iter().take(usize::from(area.height)).enumerate() {
            let row: String = row.spans.iter().map(|s| s.content.as_ref()).collect();
            let row = format!(" {row} ");
            buffer.set_string(area.x + 1, area.y + n as u16, row, theme.style(role));
        }
    }
    let above = text_rows(app, area.width);
    for (n, row) in queue_rows(app, area.width).iter().enumerate().take(usize::from(area.height).saturating_sub(above))
    {
        buffer.set_string(area.x + 2, area.y + (above + n) as u16, row, theme.style(Role::Note));
    }
    if app.feed.is_following() {
        draw_unsent_count(buffer, area, app);
    } else {
        draw_badge(buffer, area, app);
    }
}

/// Columns of the banner's first row that its text takes.
fn text_columns(app: &App, columns: u16) -> usize {
    banner_text(app).map_or(0, |(text, _)| 4 + wrapped(&text, columns).first().map_or(0, Line::width))
}

/// Notice of text below the pane, and the key that goes there, at the right end of the banner if
/// its text leaves room.
fn draw_badge(buffer: &mut Buffer, area: Rect, app: &App) {
    let key = app.key(Action::LineEnd);
    let new = Some(app.feed.unseen()).filter(|n| *n > 0).map(|n| plural(n as u64, "new line"));
    let long = new.map(|new| format!(" {new}, {key} to follow "));
    let texts = [long, Some(format!(" {key} to follow ")), Some(format!(" {} ", app.theme.glyphs().more))];
    let room = usize::from(area.width).saturating_sub(text_columns(app, area.width) + 1);
    if let Some(text) = texts.into_iter().flatten().find(|text| width(text) <= room) {
        let x = area.right() - width(&text) as u16 - 1;
        buffer.set_string(x, area.y, text, app.theme.style(Role::Badge));
    }
}

/// The tokens of the unsent text, at the right end of the banner where that is free.
fn draw_unsent_count(buffer: &mut Buffer, area: Rect, app: &App) {
    let Some(tokens) = app.unsent_count.shown() else { return };
    let about = if app.theme.ascii { "about" } else { "≈" };
    let text = format!(" {about} {} ", plural(tokens as u64, "token"));
    if text_columns(app, area.width) + width(&text) + 2 > usize::from(area.width) {
        return;
    }
    let full = app.engine.info.as_ref().is_some_and(|i| app.tokens() + tokens >= i.context);
    let role = if full { Role::Warning } else { Role::Dim };
    let x = area.right() - width(&text) as u16 - 1;
    buffer.set_string(x, area.y, text, app.theme.style(role));
}

/// One part of the status line; the last to leave when it is narrow has the highest rank.
struct Part {
    text: String,
    role: Role,
    rank: u8,
}

fn parts(app: &App) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |rank: u8, role: Role, text: String| parts.push(Part { text, role, rank });
    if app.setup.keymap.is_vim() {
        add(9, Role::Status, app.mode());
    }
    match &app.engine.info {
        Some(info) => {
            add(8, Role::StatusValue, clean_line(&info.identity.name));
            add(2, Role::Status, clean_line(&info.identity.device));
            add(7, Role::Status, format!("eviction {}", numbers::eviction_word(app)));
        }
        None if app.engine.loading.is_some() || app.opening => {}
        None => add(8, Role::Warning, "no model".to_owned()),
    }
    if let Some(text) = app.training.as_ref().and_then(|training| training.status()) {
        add(7, Role::StatusValue, text);
    }
    if let Some(s) = &app.engine.snapshot {
        if s.kv.ratio.is_some() {
            add(6, Role::StatusValue, ratio(s.kv.ratio));
        }
        let (role, word) = match &app.engine.info {
            Some(info) if s.tokens >= info.context => (Role::Warning, " full"),
            _ if numbers::context_is_short(app) => (Role::Warning, " nearly full"),
            _ => (Role::Status, ""),
        };
        add(5, role, format!("context {}{word}", numbers::context_use(app)));
        if app.turn.is_none() && app.has_to_refill() && !app.session.is_restoring() {
            add(5, Role::Status, "loads when you send".to_owned());
        }
        if let Some(unread) = numbers::unread(app) {
            add(5, Role::Status, unread);
        }
        // Between turns that of the answer shown: another version may have been chosen.
        let last = app.chat.path().last().and_then(|m| m.report.as_ref()).filter(|_| app.session.answered);
        let shown = last.and_then(|r| r.decode_tok_s);
        if let Some(speed) = if app.turn.is_some() { s.decode_tok_s } else { shown } {
            // The answer's own speed follows when they have ended.
            let whose = if app.turn.is_some() && !s.chains.is_empty() { " in all" } else { "" };
            add(4, Role::Status, format!("{} tok/s{whose}", count(speed.round() as u64)));
            let running = s.draft_gain.filter(|_| app.turn.is_some());
            let gain = running.or_else(|| last.filter(|_| app.turn.is_none())?.draft?.gain());
            if let Some(gain) = gain.filter(|gain| *gain >= WORTH_SAYING) {
                add(3, Role::Status, format!("drafts +{:.0} %", 100.0 * (gain - 1.0)));
            }
        }
    }
    let last = app.chat.path().iter().rev().find_map(|m| m.stop_reason()).filter(|_| app.session.answered);
    if let (None, Some(reason)) = (&app.turn, last.filter(|reason| *reason != StopReason::End)) {
        add(3, Role::Status, crate::ui::text::stop_words(reason).to_owned());
    }
    parts
}

/// Returns one word for what runs; `None` if nothing does.
fn state(app: &App) -> Option<&'static str> {
    let turn = app.turn.as_ref();
    Some(match (app.engine.phase(), &app.engine.loading) {
        _ if turn.is_some_and(|t| t.stopping) => "stopping",
        (_, Some(loading)) if loading.download().is_some() => "downloading",
        (_, Some(_)) => "loading",
        _ if app.opening => "opening",
        _ if app.session.is_restoring() => "loading",
        _ if app.engine.rebuilding.is_some() => "rebuilding",
        _ if app.engine.recalling => "asking",
        _ if app.engine.comparing.is_some() => "comparing",
        _ if app.engine.compacting.is_some() => "summarizing",
        (Phase::Prefill { .. }, _) if turn.is_some() => "reading",
        _ if turn.is_some_and(|t| t.thinking_since_ms.is_some() && t.thought.is_none()) => "thinking",
        _ if turn.is_some() => "answering",
        _ => return None,
    })
}

/// The spinner and the state, at the right end of the status line.
fn busy(app: &App) -> Option<String> {
    let frames = app.theme.glyphs().spinner;
    let frame = frames[(app.now_ms / SPINNER_MS) as usize % frames.len()];
    state(app).map(|word| format!("{frame} {word} "))
}

/// The status line.
pub fn draw_status(buffer: &mut Buffer, area: Rect, app: &App) {
    let theme = &app.theme;
    let separator = format!(" {} ", theme.glyphs().separator);
    // The state and the key of the help are never cut; the parts leave by rank.
    let (right, role) = match busy(app) {
        Some(busy) => (busy, Role::StatusValue),
        None => (format!("{} help ", app.key(Action::Help)), Role::Dim),
    };
    let room = usize::from(area.width).saturating_sub(3 + width(&right));
    let mut parts = parts(app);
    let total = |parts: &[Part]| {
        parts.iter().map(|p| width(&p.text)).sum::<usize>() + parts.len().saturating_sub(1) * width(&separator)
    };
    while total(&parts) > room && parts.len() > 1 {
        let least = parts.iter().enumerate().min_by_key(|(_, p)| p.rank).map_or(0, |(i, _)| i);
        parts.remove(least);
    }
    let mut spans = vec![Span::raw(" ")];
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            spans.push(Span::styled(separator.clone(), theme.style(Role::Border)));
        }
        spans.push(Span::styled(truncate(&part.text, room), theme.style(part.role)));
    }
    buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
    let right = truncate(&right, usize::from(area.width));
    let x = area.right() - width(&right) as u16;
    buffer.set_string(x, area.y, right, theme.style(role));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::depth::Depth;
    use crate::ui::event::AppEvent;
    use crate::ui::state::Loading;
    use crate::ui::testing::{self, unloaded};
    use crate::ui::update::update;

    /// This takes longest for a long conversation.
    #[test]
    fn what_is_read_beside_the_conversation_shows_how_far_it_is() {
        let mut app = testing::app(100, 24, 8, 4);
        testing::turn(&mut app, "question", "hm", "answer");
        testing::say(&mut app, "/compare");
        let phase = Phase::Prefill { done: 628, total: 6_283 };
        testing::figures(&mut app, crate::protocol::Snapshot { phase, ..testing::snapshot(472, 8, 4) });
        let text = banner_text(&app).unwrap().0;
        assert_eq!(text, "answering without eviction: reading 628 of 6,283 tokens, 9 % (Esc stops)");
        let gain = Some(1.204);
        app.engine.comparing = None;
        testing::say(&mut app, "next");
        testing::figures(&mut app, crate::protocol::Snapshot { draft_gain: gain, ..testing::snapshot(472, 8, 4) });
        assert!(testing::status(&mut app).contains("drafts +20 %"), "{}", testing::status(&mut app));
    }

    #[test]
    fn kernels_that_are_compiled_are_told_until_weights_are_read() {
        let mut app = unloaded(80, 24, Depth::Rgb, "dark");
        app.engine.loading = Some(Loading::new("demo"));
        update(&mut app, AppEvent::Progress(Event::CompilingKernels { done: 4, total: 13, seconds: 3 }));
        let said = |app: &App| banner_text(app).unwrap().0;
        assert_eq!(said(&app), "compiling kernels for this GPU (once), 3 s: 4 of 13 (Esc twice stops)");
        update(&mut app, AppEvent::Progress(Event::Quantizing { measuring: true, done: 2, total: 36 }));
        assert_eq!(said(&app), "loading demo: measuring which weights matter, layer 2 of 36 (Esc twice stops)");
        update(&mut app, AppEvent::Progress(Event::Quantizing { measuring: false, done: 12, total: 36 }));
        assert_eq!(said(&app), "loading demo: packing the weights, layer 12 of 36 (Esc twice stops)");
        update(&mut app, AppEvent::Progress(Event::Loading { done_bytes: 1, total_bytes: 2 }));
        assert!(said(&app).starts_with("loading demo: 50 %"));
    }
}
