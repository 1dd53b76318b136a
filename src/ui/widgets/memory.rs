//! The memory page: the conversation as it was fed, each token tinted by the share of heads that still store it, and what is
//! known of the token under the cursor.

use super::heatmap::{SCALE_ROWS, draw_scale_between};
use super::panel::below;
use crate::protocol::{LaneFilter, Presence, merges};
use crate::ui::action::Action;
use crate::ui::heat;
use crate::ui::memory::{Memory, MemoryPage, Spelled, shown};
use crate::ui::numbers::percent;
use crate::ui::state::App;
use crate::ui::text::{count, grapheme_width, plural, truncate};
use crate::ui::theme::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use std::ops::Range;
use unicode_segmentation::UnicodeSegmentation;

/// Rows about the token under the cursor, with the line above them.
const ABOUT: u16 = 4;
/// Screens of fewer rows do without the scale.
const TALL: u16 = 30;

/// Where the parts of the page are.
pub struct Places {
    pub text: Rect,
    about: Rect,
    scale: Rect,
    keys: Rect,
}

/// Divides the screen above the status line.
pub fn places(area: Rect) -> Places {
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let scale_rows = if area.height >= TALL { SCALE_ROWS } else { 0 };
    let text_rows = area.height.saturating_sub(2 + ABOUT + scale_rows);
    let text = Rect { y: area.y + 1, height: text_rows, ..inner };
    let about = Rect { y: text.bottom(), height: ABOUT.min(area.bottom().saturating_sub(text.bottom())), ..inner };
    let scale = Rect { y: about.bottom(), height: scale_rows, ..inner };
    let keys = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..inner };
    Places { text, about, scale, keys }
}

/// Rows of text that fit, where each row has marks below it if the terminal has no colours.
pub fn text_rows(app: &App, text: Rect) -> usize {
    usize::from(text.height) / if app.depth().has_colour() { 1 } else { 2 }
}

/// Columns of the text.
pub fn columns(area: Rect) -> usize {
    usize::from(places(area).text.width)
}

pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, page: &MemoryPage) {
    let (theme, memory) = (&app.theme, &app.memory);
    let at = places(area);
    let line = |buffer: &mut Buffer, row: Rect, text: &str, role: Role| {
        if row.height > 0 {
            buffer.set_string(row.x, row.y, truncate(text, usize::from(row.width)), theme.style(role));
        }
    };
    line(buffer, Rect { height: area.height.min(1), y: area.y, ..at.text }, &title(app, page), Role::Title);
    line(buffer, at.keys, &format!("{KEYS}  {}", app.key(Action::Stop)), Role::Dim);
    if memory.is_empty() {
        line(buffer, at.text, "nothing is in the cache yet", Role::Text);
        return;
    }
    // The newest token is the one whose layers were asked for.
    let cursor = page.cursor.unwrap_or(memory.presence().position).min(memory.len() - 1);
    let under_cursor = memory.spelled(cursor);
    let chosen = page.anchor.map(|anchor| memory.passage(cursor, Some(anchor.min(memory.len() - 1))));
    draw_text(buffer, at.text, app, &under_cursor, &chosen.unwrap_or(0..0));
    let rule = theme.glyphs().horizontal.repeat(usize::from(at.about.width));
    line(buffer, at.about, &rule, Role::Border);
    for (n, text) in about(app, &under_cursor).iter().enumerate() {
        line(buffer, below(at.about, 1 + n as u16), text, if n == 0 { Role::Value } else { Role::Text });
    }
    draw_scale_between(buffer, at.scale, theme, app.depth(), ["dropped ", " kept"]);
}

const KEYS: &str = "arrows move  l layer  h head  a all  + best  - least  r recall  Tab heads";

/// `memory: 1,234 tokens, 37 % kept by all layers, KV head 3`
fn title(app: &App, page: &MemoryPage) -> String {
    let memory = &app.memory;
    let LaneFilter { layer, head } = page.filter;
    let layers = layer.map_or("all layers".to_owned(), |l| format!("layer {l}"));
    let heads = head.map_or("all KV heads".to_owned(), |h| format!("KV head {h}"));
    let kept = percent(memory.share(0..memory.len()));
    format!("memory: {}, {kept} % kept by {layers}, {heads}", plural(memory.len() as u64, "token"))
}

/// The rows around the cursor.
fn draw_text(buffer: &mut Buffer, area: Rect, app: &App, cursor: &Spelled, chosen: &Range<usize>) {
    let (memory, theme, depth) = (&app.memory, &app.theme, app.depth());
    let rows = text_rows(app, area);
    let at_cursor = memory.row_of(cursor.tokens.start);
    let first = at_cursor.saturating_sub(rows / 2).min(memory.rows().saturating_sub(rows));
    for row in first..memory.rows().min(first + rows) {
        let y = area.y + ((row - first) * if depth.has_colour() { 1 } else { 2 }) as u16;
        let mut x = area.x;
        for spelled in memory.row(row) {
            let share = memory.share(spelled.tokens.clone());
            let mut style = heat::text_on(theme, depth, heat::level(share));
            if spelled.tokens == cursor.tokens {
                style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
            }
            if chosen.contains(&spelled.tokens.start) {
                style = style.add_modifier(Modifier::UNDERLINED);
            }
            let from = x;
            x = draw_piece(buffer, Rect { x, y, width: area.right() - x, height: 1 }, &spelled, newline(app), style);
            if !depth.has_colour() {
                let mark = heat::shade(theme, depth, share);
                for x in from..x {
                    buffer.set_string(x, y + 1, mark, theme.style(Role::Dim));
                }
            }
        }
    }
}

fn newline(app: &App) -> &'static str {
    if app.theme.ascii { "$" } else { "↵" }
}

/// Draws as much of a piece as fits, and returns the column after it.
fn draw_piece(buffer: &mut Buffer, area: Rect, spelled: &Spelled, newline: &str, style: Style) -> u16 {
    let mut x = area.x;
    for grapheme in shown(spelled.text, newline).graphemes(true) {
        let columns = grapheme_width(grapheme) as u16;
        if x + columns > area.right() {
            break;
        }
        buffer.set_string(x, area.y, grapheme, style);
        x += columns;
    }
    x
}

/// What is known of the token under the cursor, a line each.
fn about(app: &App, spelled: &Spelled) -> Vec<String> {
    let memory = &app.memory;
    let presence = memory.presence();
    let (first, last) = (spelled.tokens.start, spelled.tokens.end.saturating_sub(1));
    let name = if first == last { format!("token {}", count(last as u64)) } else { format!("tokens {first}-{last}") };
    let text = truncate(&shown(spelled.text, newline(app)), 30);
    let kept = usize::from(presence.kept.get(last).copied().unwrap_or(0));
    let share = percent(memory.share(spelled.tokens.clone()));
    let mut lines =
        vec![format!("{name} of {}: \"{text}\"  {kept} of {} KV heads, {share} %", memory.len(), presence.lanes)];
    if presence.position == last {
        lines.push(match memory.layers_that_keep().as_str() {
            "" => "stored in no layer".to_owned(),
            layers => format!("stored in layers {layers}"),
        });
    } else {
        lines.push("reading the layers".to_owned());
    }
    lines.push(fate(app, memory, last));
    lines
}

/// Since when the token is marked and when it leaves: a slot has the mark but not its time, which follows from the rule. A
/// token is marked by the decision of one certain token, and leaves W tokens after it was read.
fn fate(app: &App, memory: &Memory, token: usize) -> String {
    let presence = memory.presence();
    let info = app.engine.info.as_ref();
    let Some(window) = info.and_then(|info| info.window) else {
        return fate_without_marks(info.map_or("", |info| &info.policy), presence, token);
    };
    let (marked, leaves) = (presence.marked.get(token).copied().unwrap_or(0), token + window + 1);
    let kept = usize::from(presence.kept.get(token).copied().unwrap_or(0));
    let dropped = presence.lanes.saturating_sub(kept);
    let decided = token + presence.decided_after;
    let heads = |n: usize| plural(n as u64, "head");
    match (marked, dropped) {
        (0, 0) if presence.pinned && presence.position == token => "pinned: it stays".to_owned(),
        (0, 0) if decided >= memory.len() => "inside the window; not decided yet".to_owned(),
        (0, 0) => "marked by no head: it stays".to_owned(),
        (0, _) if presence.forgot.is_some_and(|forgot| forgot > leaves) => format!(
            "dropped by {}: marked at token {decided}, or for want of memory by token {}",
            heads(dropped),
            presence.forgot.unwrap_or(leaves)
        ),
        (0, _) => format!("{} marked it at token {decided} and dropped it at token {leaves}", heads(dropped)),
        _ if memory.len() <= leaves && app.engine.eviction => {
            format!("{} marked it at token {decided} and will drop it at token {leaves}", heads(marked.into()))
        }
        _ => format!("{} marked it at token {decided}; it stays while eviction is off", heads(marked.into())),
    }
}

/// What becomes of a token under a policy that marks none ahead of time.
fn fate_without_marks(policy: &str, presence: &Presence, token: usize) -> String {
    let kept = presence.kept.get(token).copied().map_or(presence.lanes, usize::from);
    let gone = plural(presence.lanes.saturating_sub(kept) as u64, "head");
    match (policy, presence.forgot) {
        (_, Some(forgot)) if kept == 0 => format!("dropped for want of memory by token {forgot}"),
        _ if merges(policy) && kept == presence.lanes => "the newest token of its slots".to_owned(),
        _ if merges(policy) => format!("merged by {gone} into the slot of a later token"),
        ("tova" | "h2o", _) if kept == presence.lanes => "it stays while queries attend to it".to_owned(),
        ("tova" | "h2o", _) => format!("dropped by {gone}, whose queries attended to it least"),
        _ => "a dense cache: it stays while there is memory".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::{Command, Event, LaneFilter, ModelInfo, PresenceRequest};
    use crate::ui::depth::Depth;
    use crate::ui::effect::Effect;
    use crate::ui::event::AppEvent;
    use crate::ui::state::App;
    use crate::ui::testing::*;
    use crate::ui::update::update;
    use crossterm::event::KeyCode;
    use std::sync::Arc;

    const FACTS: &str = "<|im_start|> user\nMy name is Ada. I live in Oslo, at 42 Elm Street. My cat is called Tom. \
        I was born in 1815. The door code is 7731. <|im_end|> \n<|im_start|> assistant\ngood to know, thank you for telling \
        me all of that about yourself \n<|im_start|> user\nwhat is the weather like, do you think, and is it not a pity that \
        \u{65e5}\u{672c} is so far away from everything else in the world? \n<|im_start|> assistant\nyes, ";
    const CHATTER: &str =
        "one could talk about that for quite a while without ever saying anything of importance, and ";

    fn opened(columns: u16, rows: u16, depth: Depth, theme: &str) -> App {
        let mut app = unloaded(columns, rows, depth, theme);
        update(&mut app, AppEvent::ModelReady(Arc::new(model(8, 4))));
        let presence = presence(&(FACTS.to_owned() + &CHATTER.repeat(6)), 8, 4);
        update(&mut app, AppEvent::Snapshot(Arc::new(snapshot(presence.kept.len(), 8, 4))));
        let asked = requests(press(&mut app, KeyCode::F(3)));
        assert_eq!(asked.len(), 1, "opening the page asks once");
        engine(&mut app, Event::Presence(Arc::new(presence)));
        app
    }

    fn requests(effects: Vec<Effect>) -> Vec<PresenceRequest> {
        let presence =
            |effect| if let Effect::Engine(Command::Presence(request)) = effect { Some(request) } else { None };
        effects.into_iter().filter_map(presence).collect()
    }

    #[test]
    fn the_fate_of_a_token_is_told_in_the_policy_s_words() {
        for (policy, kept, words) in [
            ("dense", 32, "a dense cache: it stays while there is memory"),
            ("pool", 32, "the newest token of its slots"),
            ("dmc", 3, "merged by 29 heads into the slot of a later token"),
            ("tova", 32, "it stays while queries attend to it"),
            ("h2o", 31, "dropped by 1 head, whose queries attended to it least"),
        ] {
            let mut app = unloaded(120, 40, Depth::Rgb, "dark");
            let info = ModelInfo { policy: policy.into(), window: None, ..model(8, 4) };
            update(&mut app, AppEvent::ModelReady(Arc::new(info)));
            let mut presence = presence(FACTS, 8, 4);
            (presence.lanes, presence.forgot) = (32, None);
            presence.kept.fill(kept);
            update(&mut app, AppEvent::Snapshot(Arc::new(snapshot(presence.kept.len(), 8, 4))));
            press(&mut app, KeyCode::F(3));
            engine(&mut app, Event::Presence(Arc::new(presence)));
            let screen = screen(&mut app);
            assert!(screen.contains(words), "{policy}: {screen}");
        }
    }

    #[test]
    fn the_memory_page_in_every_kind_of_terminal() {
        for (name, columns, rows, depth, theme) in [
            ("dark_120x40", 120, 40, Depth::Rgb, "dark"),
            ("light_120x40", 120, 40, Depth::Rgb, "light"),
            ("dark_80x24_indexed", 80, 24, Depth::Indexed, "dark"),
            ("dark_80x24_sixteen", 80, 24, Depth::Sixteen, "dark"),
            ("light_80x24_sixteen", 80, 24, Depth::Sixteen, "light"),
            ("mono_80x24", 80, 24, Depth::Mono, "dark"),
            ("ascii_80x24", 80, 24, Depth::Ascii, "ascii"),
        ] {
            let mut app = opened(columns, rows, depth, theme);
            press(&mut app, KeyCode::Home);
            insta::assert_snapshot!(name, tinted_screen(&mut app));
        }
    }

    #[test]
    fn the_cursor_says_what_is_known_of_its_token() {
        let mut app = opened(120, 40, Depth::Rgb, "dark");
        let end = screen(&mut app);
        assert!(end.contains("16 heads marked it at token") && end.contains("and will drop it at token"), "{end}");
        press(&mut app, KeyCode::Home);
        (0..4).for_each(|_| drop(press(&mut app, KeyCode::Right)));
        let shown = screen(&mut app);
        assert!(
            shown.contains("token 4 of ") && shown.contains("\"is \"") && shown.contains("reading the layers"),
            "{shown}"
        );
        assert!(shown.contains("heads marked it at token 5 and dropped it at token 69"), "{shown}");
        // The best passage is the one with the facts; two tokens that spell one character are one place.
        press(&mut app, KeyCode::Char('+'));
        assert!(screen(&mut app).contains("token 16 of"), "{}", screen(&mut app));
        press(&mut app, KeyCode::Char('-'));
        assert!(!screen(&mut app).contains("100 %\n"));
        let mut pair = app.memory.presence().clone();
        (pair.text, pair.ends, pair.kept) = ("a\u{65e5}!".into(), vec![1, 1, 1, 4, 5], vec![32, 0, 16, 32, 32]);
        pair.revision = 2;
        engine(&mut app, Event::Presence(Arc::new(pair)));
        press(&mut app, KeyCode::Home);
        press(&mut app, KeyCode::Right);
        let shown = screen(&mut app);
        assert!(shown.contains("tokens 1-3 of 5: \"\u{65e5}\"  32 of 32 KV heads, 50 %"), "{shown}");
    }

    #[test]
    fn a_sentence_or_a_chosen_passage_is_recalled_by_a_key() {
        let recalled = |keys: &[KeyCode]| {
            let mut app = opened(120, 40, Depth::Rgb, "dark");
            press(&mut app, KeyCode::Esc);
            turn(&mut app, "q", "hm", "Fine.");
            press(&mut app, KeyCode::F(3));
            press(&mut app, KeyCode::Home);
            keys.iter().for_each(|key| drop(press(&mut app, *key)));
            let effects = press(&mut app, KeyCode::Char('r'));
            let text =
                effects.iter().find_map(|e| if let Effect::Recall(text) = e { Some(text.clone()) } else { None });
            assert_eq!(app.overlays.is_empty(), text.is_some(), "the result is shown in the chat");
            text
        };
        let right = |n: usize| vec![KeyCode::Right; n];
        assert_eq!(recalled(&right(7)).as_deref(), Some("I live in Oslo, at 42 Elm Street."));
        assert_eq!(recalled(&right(2)).as_deref(), Some("My name is Ada."));
        let chosen = [right(3), vec![KeyCode::Char(' ')], right(5)].concat();
        assert_eq!(recalled(&chosen).as_deref(), Some("name is Ada. I live in"));
        assert_eq!(
            recalled(&[&chosen[..], &[KeyCode::Char(' ')]].concat()).as_deref(),
            Some("I live in Oslo, at 42 Elm Street.")
        );
    }

    #[test]
    fn what_became_of_a_token_names_pins_and_want_of_memory() {
        let mut app = opened(120, 40, Depth::Rgb, "dark");
        press(&mut app, KeyCode::Home);
        let mut answer = app.memory.presence().clone();
        let dropped = answer.kept.iter().position(|kept| *kept < 8).unwrap();
        (answer.from, answer.revision) = (answer.kept.len(), 1);
        let mut shown = |answer: &crate::protocol::Presence, token: usize| {
            engine(&mut app, Event::Presence(Arc::new(answer.clone())));
            press(&mut app, KeyCode::Home);
            (0..token).for_each(|_| drop(press(&mut app, KeyCode::Right)));
            screen(&mut app)
        };
        answer.forgot = Some(answer.kept.len());
        let text = shown(&answer, dropped);
        assert!(text.contains("or for want of memory by token"), "{text}");
        (answer.pinned, answer.position) = (true, 1);
        (answer.kept[1], answer.marked[1]) = (32, 0);
        let text = shown(&answer, 1);
        assert!(text.contains("pinned: it stays"), "{text}");
    }

    /// Five times a second while the answer streams, the text only once; never while the page is closed or up to date.
    #[test]
    fn the_page_asks_at_most_five_times_a_second() {
        let mut app = opened(80, 24, Depth::Rgb, "dark");
        let n = app.memory.len();
        app.now_ms += 1_000;
        let mut asked = Vec::new();
        for step in 0..60 {
            app.now_ms += 33;
            asked.extend(requests(update(&mut app, AppEvent::Snapshot(Arc::new(snapshot(n + 1 + step, 8, 4))))));
            let mut answer = app.memory.presence().clone();
            (answer.from, answer.text) = (app.memory.presence().kept.len(), "x".into());
            answer.ends = vec![1];
            answer.kept.push(32);
            answer.marked.push(0);
            engine(&mut app, Event::Presence(Arc::new(answer)));
        }
        assert!((9..=11).contains(&asked.len()), "{} in two seconds", asked.len());
        assert!(asked.iter().all(|r| r.known >= n && r.revision == 1));
        let filter = |code, app: &mut App| requests(press(app, code)).first().map(|r| r.filter);
        let at = |layer, head| Some(LaneFilter { layer, head });
        assert_eq!(filter(KeyCode::Char('l'), &mut app), at(Some(0), None));
        engine(&mut app, Event::Presence(Arc::new(crate::protocol::Presence::default())));
        app.memory = Default::default();
        assert_eq!(filter(KeyCode::Char('H'), &mut app), at(Some(0), Some(3)));
        press(&mut app, KeyCode::Esc);
        app.now_ms += 1_000;
        assert!(requests(update(&mut app, AppEvent::Snapshot(Arc::new(snapshot(900, 8, 4))))).is_empty());
        assert!(app.wants_tick().is_none());
    }
}
