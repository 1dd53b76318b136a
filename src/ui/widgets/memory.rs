//! The memory page: the conversation as it was fed, each token tinted by the share of heads that
//! still store it, and details of the token under the cursor.

use super::heatmap::{SCALE_ROWS, draw_scale_between};
use super::prelude::*;
use crate::policy::PolicyKind;
use crate::protocol::{LaneFilter, Presence};
use crate::ui::action::Action;
use crate::ui::heat;
use crate::ui::memory::{Memory, MemoryPage, PageRecall, Spelled, shown};
use crate::ui::numbers::{self, percent};
use crate::ui::overlay::{below, draw_lines, inside};
use crate::ui::text::{count, grapheme_width, plural, truncate, width, wrap_plain};
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
    result: Rect,
    scale: Rect,
    keys: Rect,
}

/// Divides the screen above the status line. `result`: rows that a recall test wants.
pub fn places(area: Rect, result: u16) -> Places {
    let inner = inside(area);
    let result_rows = result.min(area.height / 2);
    let scale_rows = if area.height >= TALL && result_rows == 0 { SCALE_ROWS } else { 0 };
    let text_rows = area.height.saturating_sub(2 + ABOUT + result_rows + scale_rows);
    let text = Rect { y: area.y + 1, height: text_rows, ..inner };
    let about = Rect { y: text.bottom(), height: ABOUT.min(area.bottom().saturating_sub(text.bottom())), ..inner };
    let result = Rect { y: about.bottom(), height: result_rows, ..inner };
    let scale = Rect { y: result.bottom(), height: scale_rows, ..inner };
    let keys = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..inner };
    Places { text, about, result, scale, keys }
}

/// Rows of text that fit, where each row has marks below it if the terminal has no colours.
pub fn text_rows(app: &App, text: Rect) -> usize {
    usize::from(text.height) / if app.depth().has_colour() { 1 } else { 2 }
}

/// Columns of the text.
pub fn columns(area: Rect) -> usize {
    usize::from(places(area, 0).text.width)
}

pub fn draw(buffer: &mut Buffer, area: Rect, app: &App, page: &MemoryPage, recalled: Option<&PageRecall>) {
    let (theme, memory) = (&app.theme, &app.memory);
    let at = places(area, result_rows(app, recalled));
    let line = |buffer: &mut Buffer, row: Rect, text: &str, role: Role| {
        if row.height > 0 {
            buffer.set_string(row.x, row.y, truncate(text, usize::from(row.width)), theme.style(role));
        }
    };
    line(buffer, Rect { height: area.height.min(1), y: area.y, ..at.text }, &title(app, page), Role::Title);
    let close = app.key(Action::Stop);
    line(buffer, at.keys, &keys_that_fit(&close, usize::from(at.keys.width)), Role::Dim);
    if memory.is_empty() {
        line(buffer, at.text, "nothing is in the cache yet", Role::Text);
        return;
    }
    // The newest token is the one whose layers were asked for.
    let cursor = page.cursor.unwrap_or(memory.presence().position).min(memory.len() - 1);
    let under_cursor = memory.spelled(cursor);
    let chosen = page.anchor.map(|anchor| memory.passage(cursor, Some(anchor.min(memory.len() - 1))));
    draw_text(buffer, at.text, app, &under_cursor, chosen.as_ref().unwrap_or(&(0..0)));
    let rule = theme.glyphs().horizontal.repeat(usize::from(at.about.width));
    line(buffer, at.about, &rule, Role::Border);
    for (n, text) in about(app, &under_cursor, chosen).iter().enumerate() {
        line(buffer, below(at.about, 1 + n as u16), text, if n == 0 { Role::Value } else { Role::Text });
    }
    draw_lines(buffer, at.result, &result_lines(app, recalled, usize::from(at.result.width)));
    draw_scale_between(buffer, at.scale, theme, app.depth(), ["dropped ", " kept"]);
}

/// The keys of the page. Those of the lowest rank leave a narrow row first.
const KEYS: [(u8, &str); 10] = [
    (0, "arrows move"),
    (6, "Space choose"),
    (9, "r recall"),
    (8, "p pin"),
    (5, "+ best"),
    (4, "- least"),
    (3, "l layer"),
    (2, "h head"),
    (1, "a all"),
    (7, "Tab heads"),
];

/// The row of keys, limited to this many columns. The key that closes is always there.
fn keys_that_fit(close: &str, columns: usize) -> String {
    let mut keys = KEYS.to_vec();
    loop {
        let row: String = keys.iter().map(|(_, key)| format!("{key}  ")).collect::<String>() + close + " closes";
        let least = keys.iter().enumerate().min_by_key(|(_, (rank, _))| *rank).map(|(n, _)| n);
        match least {
            Some(least) if width(&row) > columns => keys.remove(least),
            _ => return row,
        };
    }
}

/// Rows of the recall test that was asked for on this page.
pub fn result_rows(app: &App, recalled: Option<&PageRecall>) -> u16 {
    result_lines(app, recalled, usize::from(app.size.0).saturating_sub(2)).len() as u16
}

/// The recall test that was asked for on this page, or that it runs.
fn result_lines(app: &App, recalled: Option<&PageRecall>, width: usize) -> Vec<Line<'static>> {
    let Some(page) = recalled else { return Vec::new() };
    let stop = app.key(Action::Stop);
    let words = if page.words.is_empty() { format!("asking for the text ({stop} stops)") } else { page.words.clone() };
    let mut lines = wrap_plain(&words, app.theme.style(Role::Note), width, &[]);
    if let Some(recalled) = &page.recalled {
        lines.extend(super::recall::rows(recalled, width, &app.theme, app.depth()));
    }
    lines
}

/// `memory: 1,234 tokens, 37 % kept, mean of all heads; untinted: still in the window`
fn title(app: &App, page: &MemoryPage) -> String {
    let memory = &app.memory;
    let lanes = match page.filter {
        LaneFilter { layer: None, head: None } => "mean of all heads".to_owned(),
        LaneFilter { layer: Some(layer), head: None } => format!("mean of layer {layer}"),
        LaneFilter { layer: None, head: Some(head) } => format!("mean of KV head {head} of all layers"),
        LaneFilter { layer: Some(layer), head: Some(head) } => format!("layer {layer}, KV head {head}"),
    };
    let kept = percent(memory.share(0..memory.len()));
    let far = match percent(memory.presence().far_share()) {
        0 => String::new(),
        far => format!(", {far} % far (italic: found again)"),
    };
    let mut title = format!("memory: {}, {kept} % kept{far}, {lanes}", plural(memory.len() as u64, "token"));
    title += &match numbers::undecided(app) {
        0 => String::new(),
        usize::MAX => "; nothing is dropped".to_owned(),
        _ => "; untinted: still in the window".to_owned(),
    };
    if app.turn.as_ref().is_some_and(|turn| turn.chains.is_some()) {
        title += "; the prompt only, while its chains answer";
    }
    let pinned: usize = memory.presence().pins.iter().map(ExactSizeIterator::len).sum();
    if pinned > 0 {
        title += &format!("; bold: {} pinned", count(pinned as u64));
    }
    title
}

/// The rows around the cursor.
fn draw_text(buffer: &mut Buffer, area: Rect, app: &App, cursor: &Spelled, chosen: &Range<usize>) {
    let (memory, theme, depth) = (&app.memory, &app.theme, app.depth());
    let rows = text_rows(app, area);
    let at_cursor = memory.row_of(cursor.tokens.start);
    let first = at_cursor.saturating_sub(rows / 2).min(memory.rows().saturating_sub(rows));
    let undecided = memory.len().saturating_sub(numbers::undecided(app));
    for row in first..memory.rows().min(first + rows) {
        let y = area.y + ((row - first) * if depth.has_colour() { 1 } else { 2 }) as u16;
        let mut x = area.x;
        for spelled in memory.row(row) {
            let share = memory.share(spelled.tokens.clone());
            let plain = spelled.tokens.start >= undecided && share == 1.0;
            let mut style = match plain {
                true => heat::undecided(theme, depth),
                false => heat::text_on(theme, depth, heat::level(share)),
            };
            style = style.add_modifier(marks(memory.presence(), spelled.tokens.start));
            if spelled.tokens == cursor.tokens {
                style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
            }
            if chosen.contains(&spelled.tokens.start) {
                style = style.add_modifier(Modifier::UNDERLINED);
            }
            let from = x;
            x = draw_piece(buffer, Rect { x, y, width: area.right() - x, height: 1 }, &spelled, newline(app), style);
            if !depth.has_colour() {
                let mark = if plain { " " } else { heat::shade(theme, depth, share) };
                for x in from..x {
                    buffer.set_string(x, y + 1, mark, theme.style(Role::Dim));
                }
            }
        }
    }
}

/// What a token's letters say beside the tint: pinned, found again, gone.
fn marks(presence: &Presence, token: usize) -> Modifier {
    let mark = |holds: bool, modifier| if holds { modifier } else { Modifier::empty() };
    mark(presence.is_pinned(token), Modifier::BOLD)
        | mark(presence.is_found(token), Modifier::ITALIC)
        | mark(presence.is_gone(token), Modifier::CROSSED_OUT)
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

/// Facts about the token under the cursor and about the chosen passage, a line each.
fn about(app: &App, spelled: &Spelled, chosen: Option<Range<usize>>) -> Vec<String> {
    let memory = &app.memory;
    let presence = memory.presence();
    let (first, last) = (spelled.tokens.start, spelled.tokens.end.saturating_sub(1));
    let at = |token: usize| count(token as u64 + 1);
    let name = if first == last { format!("token {}", at(last)) } else { format!("tokens {}-{}", at(first), at(last)) };
    let text = truncate(&shown(spelled.text, newline(app)), 30);
    let kept = usize::from(presence.kept.get(last).copied().unwrap_or(0));
    let share = percent(memory.share(spelled.tokens.clone()));
    let all = count(memory.len() as u64);
    let mut first = format!("{name} of {all}: \"{text}\"  {kept} of {} KV heads, {share} %", presence.lanes);
    let [far, near] = [&presence.far, &presence.near].map(|counts| counts.get(last).copied().unwrap_or(0));
    if far > 0 {
        first += &format!(", far in {far}, read in {near} of them");
    }
    if let Some(passage) = chosen {
        let (tokens, share) = (plural(passage.len() as u64, "token"), percent(memory.share(passage)));
        first += &format!("; chosen: {tokens}, {share} %");
    }
    let mut lines = vec![first];
    if presence.of_position.is_empty() {
        lines.push(format!("which layers store it is {}", numbers::NOT_REPORTED));
    } else if presence.position == last {
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

/// Since when the token is marked and when it leaves: a slot has the mark but not its time, which
/// follows from the rule. A token is marked by the decision of one certain token, and leaves W
/// tokens after it was read.
fn fate(app: &App, memory: &Memory, token: usize) -> String {
    let presence = memory.presence();
    let info = app.engine.info.as_ref();
    let Some(window) = info.and_then(|info| info.window) else {
        return fate_without_marks(info.map_or(PolicyKind::Auto, |info| info.policy), presence, token);
    };
    let (marked, leaves) = (presence.marked.get(token).copied().unwrap_or(0), token + window + 1);
    let kept = usize::from(presence.kept.get(token).copied().unwrap_or(0));
    let dropped = presence.lanes.saturating_sub(kept);
    let decided = token + presence.decided_after;
    // Counted from 1, as the tokens are.
    let (decided_at, leaves_at) = (count(decided as u64 + 1), count(leaves as u64 + 1));
    let heads = |n: usize| plural(n as u64, "head");
    match (marked, dropped) {
        (0, 0) if presence.is_pinned(token) => "pinned: it stays".to_owned(),
        (0, 0) if decided >= memory.len() => "inside the window; not decided yet".to_owned(),
        (0, 0) => "marked by no head: it stays".to_owned(),
        (0, _) if presence.forgot.is_some_and(|forgot| forgot > leaves) => format!(
            "dropped by {}: marked at token {decided_at}, or for lack of memory by token {}",
            heads(dropped),
            presence.forgot.unwrap_or(leaves)
        ),
        (0, _) => format!("{} marked it at token {decided_at} and dropped it at token {leaves_at}", heads(dropped)),
        _ if memory.len() <= leaves && app.engine.eviction => {
            format!("{} marked it at token {decided_at} and will drop it at token {leaves_at}", heads(marked.into()))
        }
        _ => format!("{} marked it at token {decided_at}; it stays while eviction is off", heads(marked.into())),
    }
}

/// Describes a token under a policy that marks none ahead of time.
fn fate_without_marks(policy: PolicyKind, presence: &Presence, token: usize) -> String {
    let kept = presence.kept.get(token).copied().map_or(presence.lanes, usize::from);
    let gone = presence.lanes.saturating_sub(kept);
    match presence.forgot {
        Some(forgot) if kept == 0 => format!("dropped for lack of memory by token {forgot}"),
        _ => policy.fate((gone > 0).then(|| plural(gone as u64, "head")).as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::{Command, Event, Finding, LaneFilter, ModelInfo, PresenceRequest, Recalled};
    use crate::ui::state::App;
    use crate::ui::testing::*;

    const FACTS: &str = "<|im_start|> user\nMy name is Ada. I live in Oslo, at 42 Elm Street. My cat is called Tom. \
        I was born in 1815. The door code is 7731. <|im_end|> \n<|im_start|> assistant\ngood to know, thank you for telling \
        me all of that about yourself \n<|im_start|> user\nwhat is the weather like, do you think, and is it not a pity that \
        \u{65e5}\u{672c} is so far away from everything else in the world? \n<|im_start|> assistant\nyes, ";
    const CHATTER: &str =
        "one could talk about that for quite a while without ever saying anything of importance, and ";

    fn opened(columns: u16, rows: u16, depth: Depth, theme: &str) -> App {
        let mut app = loaded(columns, rows, depth, theme, model(8, 4));
        let presence = presence(&(FACTS.to_owned() + &CHATTER.repeat(6)), 8, 4);
        figures(&mut app, snapshot(presence.kept.len(), 8, 4));
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
            let info = ModelInfo { policy: policy.parse().unwrap(), window: None, ..model(8, 4) };
            ready(&mut app, info);
            let mut presence = presence(FACTS, 8, 4);
            (presence.lanes, presence.forgot) = (32, None);
            presence.kept.fill(kept);
            figures(&mut app, snapshot(presence.kept.len(), 8, 4));
            press(&mut app, KeyCode::F(3));
            engine(&mut app, Event::Presence(Arc::new(presence)));
            let screen = screen(&mut app);
            assert!(screen.contains(words), "{policy}: {screen}");
        }
    }

    #[test]
    fn the_key_that_closes_is_never_cut() {
        for columns in [30, 60, 80, 100, 120] {
            let mut app = opened(columns, 20, Depth::Rgb, "dark");
            let keys = |app: &mut App| screen(app).lines().rev().nth(1).unwrap_or_default().to_owned();
            assert!(keys(&mut app).ends_with("Esc closes"), "{columns}: {}", screen(&mut app));
            // A notice covers neither them nor the status line.
            app.info("cache loaded: 497 tokens");
            let shown = screen(&mut app);
            assert!(shown.contains("cache loaded") && keys(&mut app).ends_with("Esc closes"), "{shown}");
            assert!(status(&mut app).contains("demo"), "{shown}");
        }
    }

    #[test]
    fn while_chains_answer_the_page_says_what_it_shows() {
        let mut app = opened(140, 40, Depth::Rgb, "dark");
        press(&mut app, KeyCode::Esc);
        say(&mut app, "q");
        let turn = app.turn.as_ref().unwrap().turn;
        assert!(!screen(&mut app).contains("the prompt only"));
        engine(&mut app, Event::Chain { turn, event: crate::protocol::ChainEvent::Started(4) });
        press(&mut app, KeyCode::F(3));
        assert!(screen(&mut app).contains("; the prompt only, while its chains answer"), "{}", screen(&mut app));
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
            shown.contains("token 5 of ") && shown.contains("\"is \"") && shown.contains("reading the layers"),
            "{shown}"
        );
        assert!(shown.contains("heads marked it at token 6 and dropped it at token 70"), "{shown}");
        // The best passage is the one with the facts; two tokens that spell one character are one
        // place.
        press(&mut app, KeyCode::Char('+'));
        let best = screen(&mut app);
        assert!(best.contains("token 32 of") && best.contains("; chosen: 16 tokens, "), "{best}");
        press(&mut app, KeyCode::Char('-'));
        assert!(!screen(&mut app).contains("100 %\n"));
        let mut pair = app.memory.presence().clone();
        (pair.text, pair.ends, pair.kept) = ("a\u{65e5}!".into(), vec![1, 1, 1, 4, 5], vec![32, 0, 16, 32, 32]);
        pair.revision = 2;
        engine(&mut app, Event::Presence(Arc::new(pair)));
        press(&mut app, KeyCode::Home);
        press(&mut app, KeyCode::Right);
        let shown = screen(&mut app);
        assert!(shown.contains("tokens 2-4 of 5: \"\u{65e5}\"  32 of 32 KV heads, 50 %"), "{shown}");
    }

    #[test]
    fn a_sentence_or_a_chosen_passage_is_recalled_below_the_text() {
        let mut app = opened(120, 40, Depth::Rgb, "dark");
        press(&mut app, KeyCode::Esc);
        turn(&mut app, "q", "hm", "Fine.");
        let mut asked = |keys: &[KeyCode]| {
            press(&mut app, KeyCode::F(3));
            press(&mut app, KeyCode::Home);
            keys.iter().for_each(|key| drop(press(&mut app, *key)));
            let effects = press(&mut app, KeyCode::Char('r'));
            let [Effect::Recall { text, tokens: Some(tokens) }, ..] = &effects[..] else { panic!("{effects:?}") };
            assert!(app.engine.recalling && screen(&mut app).contains("asking for the text (Esc stops)"));
            let effects = press(&mut app, KeyCode::Esc);
            assert!(effects.iter().any(|e| matches!(e, Effect::Engine(Command::Cancel))), "Esc stops what runs");
            engine(
                &mut app,
                Event::Found(Finding::Recalled(Ok(Box::new(Recalled { times: 1, ..Recalled::default() })))),
            );
            let shown = screen(&mut app);
            assert!(shown.contains("recall: remembers 0 of 0 tokens") && shown.contains("memory: "), "{shown}");
            assert!(app.feed.locals.is_empty(), "the result is on the page");
            // The first Esc removes the result, the second closes the page.
            press(&mut app, KeyCode::Esc);
            assert!(!screen(&mut app).contains("recall: remembers") && app.overlays.len() == 1);
            press(&mut app, KeyCode::Esc);
            assert!(app.overlays.is_empty());
            (text.clone(), tokens.clone())
        };
        let right = |n: usize| vec![KeyCode::Right; n];
        assert_eq!(asked(&right(7)).0, "I live in Oslo, at 42 Elm Street.");
        assert_eq!(asked(&right(2)), ("My name is Ada.".to_owned(), 2..6));
        let chosen = [right(3), vec![KeyCode::Char(' ')], right(5)].concat();
        assert_eq!(asked(&chosen), ("name is Ada. I live in".to_owned(), 3..9));
        assert_eq!(asked(&[&chosen[..], &[KeyCode::Char(' ')]].concat()).0, "I live in Oslo, at 42 Elm Street.");
        // Over the border of a message: by its place, whatever it is spelled like, without control
        // tokens at the ends.
        let border = [right(28), vec![KeyCode::Char(' ')], right(7)].concat();
        let (text, tokens) = asked(&border);
        assert!(text.starts_with("7731. <|im_end|>") && text.ends_with("good to know,"), "{text}");
        assert_eq!(tokens, 28..36);
        assert!(!crate::ui::commands::recall::question(&text).contains("<|"), "no control token is asked for by name");
    }

    #[test]
    fn a_key_pins_a_passage_and_takes_the_pin_back() {
        let mut app = opened(120, 40, Depth::Rgb, "dark");
        press(&mut app, KeyCode::Home);
        (0..3).for_each(|_| drop(press(&mut app, KeyCode::Right)));
        let pin = |app: &mut App| {
            let effects = press(app, KeyCode::Char('p'));
            let found = effects.into_iter().find_map(|e| match e {
                Effect::Engine(Command::PinTokens { tokens, pin }) => Some((tokens, pin)),
                _ => None,
            });
            found.expect("a request")
        };
        assert_eq!(pin(&mut app), (2..6, true));
        let mut answer = app.memory.presence().clone();
        (answer.from, answer.pins) = (answer.kept.len(), Vec::from_iter(Some(2..6)));
        engine(&mut app, Event::Presence(Arc::new(answer)));
        assert!(screen(&mut app).contains("bold: 4 pinned"), "{}", screen(&mut app));
        assert_eq!(pin(&mut app), (2..6, false));
    }

    /// A pin leaves a mark in the conversation: the cache is asked what is pinned when that has
    /// changed.
    #[test]
    fn a_pinned_message_says_so_in_the_conversation() {
        let mut app = loaded(100, 30, Depth::Rgb, "dark", model(8, 4));
        turn(&mut app, "My name is Ada.", "hm", "Fine.");
        let mut answer = presence("<|im_start|> user\nMy name is Ada. <|im_end|> \n", 8, 4);
        let pinned = |app: &mut App, n| {
            let snapshot = crate::protocol::Snapshot { pinned: n, ..snapshot(answer.kept.len(), 8, 4) };
            requests(figures(app, snapshot)).len()
        };
        assert_eq!((pinned(&mut app, 0), pinned(&mut app, 4), pinned(&mut app, 4)), (0, 1, 0));
        answer.pins = Vec::from_iter(Some(2..6));
        engine(&mut app, Event::Presence(Arc::new(answer.clone())));
        let shown = screen(&mut app);
        assert!(shown.contains("pinned: every head keeps it"), "{shown}");
        answer.pins.clear();
        engine(&mut app, Event::Presence(Arc::new(answer)));
        assert!(!screen(&mut app).contains("pinned: every"));
    }

    /// A young cache, and one that drops nothing, have the text's own colour: yellow would say that
    /// it was decided.
    #[test]
    fn what_no_head_may_drop_is_drawn_plainly() {
        for (policy, plain) in [("dense", true), ("dms", false)] {
            let mut app = unloaded(120, 40, Depth::Rgb, "dark");
            let window = (policy == "dms").then_some(64);
            let info = ModelInfo { policy: policy.parse().unwrap(), window, ..model(8, 4) };
            ready(&mut app, info);
            let mut presence = presence(&FACTS.repeat(3), 8, 4);
            presence.kept.fill(32);
            figures(&mut app, snapshot(presence.kept.len(), 8, 4));
            press(&mut app, KeyCode::F(3));
            press(&mut app, KeyCode::Home);
            engine(&mut app, Event::Presence(Arc::new(presence)));
            let tinted = tinted_screen(&mut app);
            // The colour of a token that all heads keep by decision is the top of the scale.
            assert_eq!(tinted.contains("#FDE725"), !plain, "{policy}: {tinted}");
        }
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
        assert!(text.contains("or for lack of memory by token"), "{text}");
        (answer.pins, answer.position) = (Vec::from_iter(Some(1..2)), 1);
        (answer.kept[1], answer.marked[1]) = (32, 0);
        let text = shown(&answer, 1);
        assert!(text.contains("pinned: it stays"), "{text}");
    }

    /// Five times a second while the answer streams, the text only once; never while the page is
    /// closed or up to date.
    #[test]
    fn the_page_asks_at_most_five_times_a_second() {
        let mut app = opened(80, 24, Depth::Rgb, "dark");
        let n = app.memory.len();
        app.now_ms += 1_000;
        let mut asked = Vec::new();
        for step in 0..60 {
            app.now_ms += 33;
            asked.extend(requests(figures(&mut app, snapshot(n + 1 + step, 8, 4))));
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
        assert!(requests(figures(&mut app, snapshot(900, 8, 4))).is_empty());
        assert!(app.wants_tick().is_none());
    }
}
