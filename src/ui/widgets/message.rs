//! Makes the rows of an item of the conversation: a message with its think block and last line, or
//! a local line.

use super::prelude::*;
use crate::chat::summary::WAY_OUT;
use crate::chat::{Message, Role as Who, line_after};
use crate::protocol::{StopReason, TurnReport, count};
use crate::ui::declined;
use crate::ui::feed::{Finished, ItemKey, LocalKind, Rows};
use crate::ui::folded;
use crate::ui::heat;
use crate::ui::markdown;
use crate::ui::numbers;
use crate::ui::text::{NO_ANSWER, ONLY_THOUGHT, append, clean, plural, ratio, seconds, stop_words, wrap, wrap_plain};
use crate::unicode::end_of;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Columns before the text and after it.
const MARGIN: usize = 3;
pub const RIGHT_MARGIN: usize = 2;
/// Compression from which it is said.
const WORTH_SAYING: f64 = 1.05;
/// Rows of a think block while it streams.
const TAIL: usize = 4;
/// Bytes of a streaming think block that are looked at for its tail.
const TAIL_BYTES: usize = 4_000;

/// Describes how a turn ended. The detail of a full cache or context is shown alone.
pub fn ending(report: &TurnReport) -> String {
    if let Some(words) = report.chains.as_ref().and_then(|chains| chains.stop_in_words()) {
        return words;
    }
    let words = stop_words(report.stop_reason);
    match (&report.detail, report.stop_reason) {
        (None, _) | (_, StopReason::End) => words.to_owned(),
        (Some(detail), StopReason::ContextFull | StopReason::CacheFull) => detail.replace('\n', " "),
        (Some(detail), _) => format!("{words}: {}", detail.replace('\n', " ")),
    }
}

/// Returns what the user can do about the way a turn ended.
pub fn advice(report: &TurnReport) -> String {
    let text = match report.stop_reason {
        StopReason::ContextFull => return format!(": {WAY_OUT}"),
        StopReason::CacheFull if report.forgotten_slots > 0 => {
            let slots = plural(report.forgotten_slots, "slot");
            return format!("; {slots} were dropped first, and nothing else may be; /set kv_limit raises the limit");
        }
        StopReason::CacheFull if report.eviction => "; /set kv_limit raises the limit, /new starts over",
        StopReason::CacheFull => "; /set kv_limit raises the limit, /eviction on saves room, /new starts over",
        StopReason::MaxTokens => "; /set max_tokens raises it",
        _ => "",
    };
    text.to_owned()
}

/// Makes the rows of an item, reusing the finished part of `old`. They have its `fingerprint`.
pub fn rows(app: &App, key: ItemKey, width: usize, first: bool, fingerprint: u64, old: Option<Rows>) -> Rows {
    let full = width.saturating_sub(RIGHT_MARGIN);
    let prose = full.min(markdown::PROSE + MARGIN);
    let mut made = match key {
        ItemKey::Local(at) => local(app, at, width, prose),
        ItemKey::Message(id) => match app.chat.get(id) {
            Some(message) if message.role == Who::User => user(app, message, prose),
            Some(message) => reply(app, message, prose, full, old),
            None => Rows::default(),
        },
    };
    if let ItemKey::Message(id) = key
        && app.feed.pinned.contains(&id)
    {
        let text = "pinned: every head keeps it; /unpin takes the pin back";
        made.lines.extend(wrap_plain(text, app.theme.style(Role::Mark), prose, &margin()));
    }
    for (row, line) in made.lines.iter_mut().enumerate() {
        let Some(bar) = bar(app, key, row) else { break };
        if let Some(margin) = line.spans.first_mut().filter(|s| s.content.starts_with(' ')) {
            margin.content.to_mut().remove(0);
        }
        line.spans.insert(0, bar);
    }
    if !first {
        made.lines.insert(0, Line::default());
        made.fold_row = made.fold_row.map(|r| r + 1);
    }
    made.fingerprint = fingerprint;
    made
}

/// The first column of a message's rows: the mark of the chosen message, else how much of the
/// message is remembered, which takes one row where there are no colours.
fn bar(app: &App, key: ItemKey, row: usize) -> Option<Span<'static>> {
    let ItemKey::Message(id) = key else { return None };
    let theme = &app.theme;
    if app.feed.selected == Some(id) {
        return Some(Span::styled(theme.glyphs().quote, theme.style(Role::Key)));
    }
    let share = f64::from(*app.feed.remembered.get(&id)?) / 100.0;
    if all_kept(app) {
        return Some(Span::styled(theme.glyphs().quote, theme.style(Role::Border)));
    }
    match heat::colour(theme, app.depth(), heat::level(share)) {
        Some(colour) => Some(Span::styled(theme.glyphs().quote, Style::new().fg(colour))),
        None if row == 0 => Some(Span::styled(heat::mark(theme, app.depth(), share), theme.style(Role::Dim))),
        None => None,
    }
}

/// Whether nothing of the conversation can have been dropped yet.
fn all_kept(app: &App) -> bool {
    app.tokens() <= numbers::undecided(app)
}

/// Hash of everything that the rows depend on.
pub fn fingerprint(app: &App, key: ItemKey, width: usize, first: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (width, first, app.feed.generation).hash(&mut hasher);
    if let ItemKey::Message(id) = key
        && let Some(m) = app.chat.get(id)
    {
        let open = app.feed.is_open(id);
        let chosen = app.feed.selected == Some(id);
        let reasoning = m.reasoning.as_ref().map(String::len);
        let remembered = app.feed.remembered.get(&id);
        (m.text.len(), reasoning, m.report.is_some(), m.in_context, open, chosen, remembered).hash(&mut hasher);
        let asked = m.parent.map_or(0, |asked| app.chat.sibling_count(asked));
        (app.chat.sibling_count(id), asked, app.feed.within(id).count()).hash(&mut hasher);
        (app.feed.pinned.contains(&id), all_kept(app)).hash(&mut hasher);
        declined::number(app, m).map(|number| (number, &app.models.best)).hash(&mut hasher);
        let turn = app.turn.as_ref().filter(|t| t.message == id);
        turn.and_then(|t| t.chains.as_ref()).map(|chains| chains.revision).hash(&mut hasher);
        turn.map(|t| (t.thought, thinking_tenths(app, t.thinking_since_ms))).hash(&mut hasher);
    }
    // Never the value of rows that were not made yet.
    hasher.finish() | 1
}

/// Tenths of a second of thinking so far. Changes only with the events that redraw anyway.
fn thinking_tenths(app: &App, since: Option<u64>) -> Option<u64> {
    since.map(|s| app.now_ms.saturating_sub(s) / 100)
}

fn margin() -> Vec<Span<'static>> {
    vec![Span::raw("   ")]
}

fn user(app: &App, message: &Message, width: usize) -> Rows {
    let theme = &app.theme;
    let mut lines = Vec::new();
    let first = [Span::raw(" "), Span::styled(format!("{} ", theme.glyphs().prompt), theme.style(Role::User))];
    let (text, fold_line) = user_lines(app, message);
    let (indent, mut fold_row) = (margin(), None);
    for (n, spans) in text.iter().enumerate() {
        if fold_line == Some(n) {
            fold_row = Some(lines.len());
        }
        lines.extend(wrap(spans, width, if n == 0 { &first } else { &indent }, &indent));
    }
    if let Some(version) = version(app, message) {
        lines.extend(wrap_plain(&version, theme.style(Role::Dim), width, &margin()));
    }
    Rows { lines, fold_row, ..Rows::default() }
}

/// Returns the lines of a user's message, with pastes and files folded as in the input, or the
/// middle of another long text; and the line that opens and folds them.
fn user_lines(app: &App, message: &Message) -> (Vec<Vec<Span<'static>>>, Option<usize>) {
    let text = message.shown();
    let stored = app.feed.folds.get(&message.id).cloned();
    let folds = stored.unwrap_or_else(|| folded::middle(text).into_iter().collect());
    let open = app.feed.is_open(message.id);
    let mut lines = vec![Vec::new()];
    let mut add = |text: &str, role: Role| {
        append(&mut lines, &clean(text), app.theme.style(role));
        lines.len() - 1
    };
    let (mut at, mut fold_line) = (0, (open && !folds.is_empty()).then_some(0));
    for fold in folds.iter().filter(|_| !open) {
        let Some(before) = text.get(at..fold.range.start) else { continue };
        add(before, Role::UserText);
        let line = add(&fold.label, Role::Key);
        fold_line.get_or_insert(line);
        at = fold.range.end;
    }
    add(text.get(at..).unwrap_or(""), Role::UserText);
    (lines, fold_line)
}

/// `version 2 of 3`; `None` if there is only one.
fn version(app: &App, message: &Message) -> Option<String> {
    if app.chat.sibling_count(message.id) < 2 {
        return None;
    }
    let versions = app.chat.versions(message.id);
    let at = versions.iter().position(|id| *id == message.id).unwrap_or(0);
    (versions.len() > 1).then(|| format!("version {} of {}", at + 1, versions.len()))
}

fn reply(app: &App, message: &Message, width: usize, full: usize, old: Option<Rows>) -> Rows {
    let mut lines = Vec::new();
    let mut links = Vec::new();
    let fold_row = thoughts(app, message, width, &mut lines);
    let text = message.text.trim_start_matches('\n');
    let lead = message.text.len() - text.len();
    let declined = declined::shown(app, message);
    let cuts = |text: &str| -> Vec<(usize, &str)> {
        app.feed.within(message.id).map(|(at, words)| (line_after(text, at.saturating_sub(lead)), words)).collect()
    };
    let finished = if let Some(text) = declined {
        lines.extend(with_marks(app, &text, 0..text.len(), &[], full, (&mut links, &mut 0)));
        None
    } else if message.is_open() && !text.trim().is_empty() {
        let (finished, all) = streaming(app, text, &cuts(text), full, old, &mut lines);
        links = all;
        Some(finished)
    } else {
        let text = message.shown();
        let cuts = cuts(text);
        let first = message.report.as_ref().and_then(|report| report.twin.as_ref()?.first.as_ref());
        let at = first.and_then(|first| first.answer_bytes?.checked_sub(lead)).filter(|_| cuts.is_empty());
        match first.zip(at) {
            Some((first, at)) => {
                let style = app.theme.style(Role::Mark).add_modifier(Modifier::UNDERLINED);
                lines.extend(super::twin::render_marked(text, first, at, style, |text| {
                    links.clear();
                    with_marks(app, text, 0..text.len(), &[], full, (&mut links, &mut 0))
                }));
            }
            None => lines.extend(with_marks(app, text, 0..text.len(), &cuts, full, (&mut links, &mut 0))),
        }
        None
    };
    let turn = app.turn.as_ref().filter(|turn| turn.message == message.id);
    if let Some(chains) = turn.and_then(|turn| turn.chains.as_ref()) {
        let figures = app.engine.snapshot.as_ref().map_or(&[][..], |s| &s.chains);
        let lanes = app.engine.info.as_ref().map_or(1, |info| info.heads() as u64);
        lines.extend(super::chains::rows(chains, figures, lanes, full, &app.theme));
    }
    if message.report.is_some() {
        last_line(app, message, width, &mut lines);
    }
    Rows { lines, fold_row, links, finished, ..Rows::default() }
}

/// Makes the rows of a stretch of an answer, with the lines of toggles at their `cuts`. A cut at
/// the end of the stretch belongs to the next one. Adds its links, and counts its code blocks.
fn with_marks(
    app: &App,
    text: &str,
    stretch: Range<usize>,
    cuts: &[(usize, &str)],
    full: usize,
    (links, blocks): (&mut Vec<String>, &mut usize),
) -> Vec<Line<'static>> {
    let (mut lines, mut from) = (Vec::new(), stretch.start);
    let mut write = |lines: &mut Vec<Line<'static>>, part: &str| {
        if !part.trim().is_empty() {
            lines.extend(indented(markdown::render(part, full.saturating_sub(MARGIN), &app.theme, links, blocks)));
        }
    };
    let last = stretch.end == text.len();
    for (at, words) in cuts.iter().filter(|(at, _)| stretch.contains(at) || (last && *at == stretch.end)) {
        write(&mut lines, &text[from..*at]);
        lines.extend(mark(words, full, &app.theme));
        from = *at;
    }
    write(&mut lines, &text[from..stretch.end]);
    lines
}

/// Makes the rows of a streaming answer, reusing its finished blocks. Also returns its links.
fn streaming(
    app: &App,
    text: &str,
    cuts: &[(usize, &str)],
    full: usize,
    old: Option<Rows>,
    lines: &mut Vec<Line<'static>>,
) -> (Finished, Vec<String>) {
    let same_width = app.feed.width == full + RIGHT_MARGIN;
    let (mut links, mut done) = match old {
        Some(Rows { links, finished: Some(done), .. })
            if same_width && done.bytes <= text.len() && text.is_char_boundary(done.bytes) =>
        {
            (links, done)
        }
        _ => (Vec::new(), Finished::default()),
    };
    links.truncate(done.links);
    let more = markdown::finished_prefix(&text[done.bytes..]);
    if more > 0 {
        if !done.lines.is_empty() {
            done.lines.push(Line::default());
        }
        let stretch = done.bytes..done.bytes + more;
        done.lines.extend(with_marks(app, text, stretch, cuts, full, (&mut links, &mut done.blocks)));
        done.bytes += more;
        done.links = links.len();
    }
    lines.extend(done.lines.iter().cloned());
    if !done.lines.is_empty() {
        lines.push(Line::default());
    }
    let mut blocks = done.blocks;
    lines.extend(with_marks(app, text, done.bytes..text.len(), cuts, full, (&mut links, &mut blocks)));
    (done, links)
}

fn indented(lines: Vec<Line<'static>>) -> impl Iterator<Item = Line<'static>> {
    lines.into_iter().map(|mut line| {
        line.spans.insert(0, Span::raw("   "));
        line
    })
}

/// Makes the rows of the think block: folded to one line, open, or its tail while it streams.
/// Returns the row that opens and folds it.
fn thoughts(app: &App, message: &Message, width: usize, lines: &mut Vec<Line<'static>>) -> Option<usize> {
    let theme = &app.theme;
    let text = message.shown_reasoning()?;
    let style = theme.style(Role::Thought);
    let open = app.feed.is_open(message.id);
    let streams = message.is_open() && message.text.trim().is_empty();
    let sign = if open || streams { theme.glyphs().open } else { theme.glyphs().folded };
    let row = lines.len();
    lines.extend(wrap_plain(&format!("{sign} {}", thought_words(app, message)), style, width, &margin()));
    let bar = vec![Span::raw("   "), Span::styled(format!("{} ", theme.glyphs().vertical), theme.style(Role::Border))];
    if open {
        lines.extend(wrap_plain(text, style, width, &bar));
    } else if streams {
        let rows = wrap_plain(end_of(text, TAIL_BYTES), style, width, &bar);
        let skip = rows.len().saturating_sub(TAIL);
        lines.extend(rows.into_iter().skip(skip));
    }
    if !message.text.trim().is_empty() {
        lines.push(Line::default());
    }
    Some(row)
}

/// `thought for 3.2 s, 412 tokens`
fn thought_words(app: &App, message: &Message) -> String {
    if let Some(report) = &message.report {
        // Cut off while thinking, the time follows from the speed.
        let measured = report.decode_tok_s.filter(|s| *s > 0.0).map(|s| report.reasoning_tokens as f64 / s * 1000.0);
        let time = report.reasoning_ms.or(measured).map_or(String::new(), |ms| format!(" for {}", seconds(ms)));
        let comma = if time.is_empty() { "" } else { "," };
        return format!("thought{time}{comma} {}", plural(report.reasoning_tokens as u64, "token"));
    }
    match app.turn.as_ref().filter(|t| t.message == message.id) {
        Some(turn) => match (turn.thought, turn.thinking_since_ms) {
            (Some((ms, tokens)), _) => {
                format!("thought for {}, {}", seconds(ms as f64), plural(tokens as u64, "token"))
            }
            (None, Some(since)) => format!("thinking, {}", seconds(app.now_ms.saturating_sub(since) as f64)),
            (None, None) => "thinking".to_owned(),
        },
        None => "thoughts".to_owned(),
    }
}

/// How the answer ended, and its numbers.
fn last_line(app: &App, message: &Message, width: usize, lines: &mut Vec<Line<'static>>) {
    let theme = &app.theme;
    let Some(report) = &message.report else { return };
    let plain = report.stop_reason == StopReason::End;
    let style = theme.style(if plain { Role::Dim } else { Role::Warning });
    if message.shown().trim().is_empty() && message.shown_reasoning().is_some() {
        let text = if plain { ONLY_THOUGHT } else { NO_ANSWER };
        lines.extend(wrap_plain(text, theme.style(Role::Warning), width, &margin()));
    }
    if let Some(at) = report.thought_closed_at {
        let text = format!("the thought was closed after {}; /set max_think changes that", plural(at as u64, "token"));
        lines.extend(wrap_plain(&text, theme.style(Role::Dim), width, &margin()));
    }
    // That an answer ended is what one expects.
    let mut text = if plain && report.detail.is_none() { String::new() } else { ending(report) };
    if !report.in_context {
        text += if text.is_empty() { "not part of the context" } else { "; not part of the context" };
    }
    text += &advice(report);
    let separator = format!(" {} ", theme.glyphs().separator);
    let mut facts = Vec::new();
    let tokens = report.answer_tokens + report.reasoning_tokens;
    if tokens > 0 {
        facts.push(plural(tokens as u64, "token"));
    }
    if let Some(speed) = report.decode_tok_s {
        facts.push(format!("{} tok/s", count(speed.round() as usize)));
    }
    if report.kv.ratio.is_some_and(|ratio| ratio >= WORTH_SAYING) {
        facts.push(format!("{} smaller", ratio(report.kv.ratio)));
    }
    // That of the question, if that was edited and has one answer.
    let question = message.parent.and_then(|id| app.chat.get(id));
    facts.extend(version(app, message).or_else(|| version(app, question?)));
    let mut spans = Vec::new();
    if !text.is_empty() {
        spans.push(Span::styled(clean(&text).into_owned(), style));
    }
    for fact in facts {
        let before = if spans.is_empty() { "" } else { separator.as_str() };
        spans.push(Span::styled(format!("{before}{fact}"), theme.style(Role::Dim)));
    }
    lines.extend(wrap(&spans, width, &margin(), &margin()));
    if let Some(chains) = &report.chains {
        let text = super::chains::words(chains, report.kv.reads);
        lines.extend(wrap_plain(&text, theme.style(Role::Dim), width, &margin()));
    }
    if let Some(report) = &report.twin {
        lines.extend(super::twin::rows(report, width, &margin(), theme, app.depth()));
    }
}

fn local(app: &App, at: usize, width: usize, prose: usize) -> Rows {
    let theme = &app.theme;
    let Some(local) = app.feed.locals.get(at) else { return Rows::default() };
    let plain = |role, width| wrap_plain(&local.text, theme.style(role), width, &margin());
    let mut lines = match local.kind {
        LocalKind::Mark => mark(&local.text, width, theme),
        LocalKind::Note => plain(Role::Note, prose),
        LocalKind::Table => plain(Role::Text, width),
        LocalKind::Warning => plain(Role::Warning, prose),
        LocalKind::Error => plain(Role::Error, prose),
    };
    if let Some(recalled) = &local.recalled {
        lines.extend(super::recall::rows(recalled, prose, theme, app.depth()));
    }
    Rows { lines, ..Rows::default() }
}

/// The thin line of a toggle, with its words in it.
fn mark(text: &str, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let style: Style = theme.style(Role::Mark);
    let line = theme.glyphs().horizontal;
    let lead = Span::styled(format!(" {} ", line.repeat(2)), style);
    let mut lines = wrap_plain(text, style, width, std::slice::from_ref(&lead));
    for row in &mut lines {
        let used: usize = row.spans.iter().map(|s| crate::ui::text::width(&s.content)).sum();
        if used + 2 < width {
            row.spans.push(Span::styled(format!(" {}", line.repeat(width - used - 2)), style));
        }
    }
    lines
}

/// The lines of an item as text, without padding: for terminals that show one line after the other.
pub fn plain_lines(lines: &[Line]) -> Vec<String> {
    let text = |l: &Line| l.spans.iter().map(|s| s.content.as_ref()).collect::<String>().trim_end().to_owned();
    lines.iter().map(text).collect()
}
