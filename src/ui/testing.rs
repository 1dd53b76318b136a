//! For tests: a state without files, and the engine's side of a conversation.

pub use super::depth::Depth;
pub use super::effect::{Effect, Store};
pub use super::event::AppEvent;
use super::keymap::Keymap;
use super::state::{App, Setup};
use super::theme::Themes;
pub use super::update::update;
use crate::chat::Conversation;
use crate::codec::Codec;
use crate::config::{Dirs, Layer, Settings};
use crate::policy::{KvHeads, LayerLanes, PolicyKind};
use crate::protocol::*;
use crate::ui::event::Opened;
pub use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
pub use std::sync::Arc;

pub fn settings() -> Settings {
    let dirs = Dirs { config: "/config".into(), data: "/data".into(), cache: "/cache".into() };
    Settings::from_layer(dirs, Layer::default()).unwrap()
}

/// The chat before any model is loaded.
pub fn unloaded(columns: u16, rows: u16, depth: Depth, theme: &str) -> App {
    unloaded_with(settings(), columns, rows, depth, theme)
}

/// Like [`unloaded`], with these settings.
pub fn unloaded_with(settings: Settings, columns: u16, rows: u16, depth: Depth, theme: &str) -> App {
    let themes = Themes::default();
    let theme = themes.load(theme).unwrap();
    let keymap = Keymap::load(settings.keymap, None).unwrap();
    let setup = Setup { settings, themes, keymap, depth, links: false, by_lines: false, no_session: false };
    let mut app = App::new(setup, theme);
    app.size = (columns, rows);
    app
}

/// The chat with a model of these layers and heads.
pub fn app(columns: u16, rows: u16, layers: usize, heads: usize) -> App {
    loaded(columns, rows, Depth::Rgb, "dark", model(layers, heads))
}

/// The chat with this model, on a terminal of this depth.
pub fn loaded(columns: u16, rows: u16, depth: Depth, theme: &str, info: ModelInfo) -> App {
    let mut app = unloaded(columns, rows, depth, theme);
    ready(&mut app, info);
    app
}

/// The model is loaded.
pub fn ready(app: &mut App, info: ModelInfo) -> Vec<Effect> {
    update(app, AppEvent::ModelReady(Arc::new(info)))
}

/// The figures of the panels change.
pub fn figures(app: &mut App, snapshot: Snapshot) -> Vec<Effect> {
    update(app, AppEvent::Snapshot(Arc::new(snapshot)))
}

/// A saved conversation is opened.
pub fn open(app: &mut App, chat: Conversation, restore: Option<RestoreRequest>) -> Vec<Effect> {
    let (date, notices, loads) = (Default::default(), Vec::new(), restore.is_some());
    let restore = restore.map(Box::new);
    let opened = Opened { id: "x".into(), chat, date, eviction: None, notices, restore, loads };
    update(app, AppEvent::Opened(Box::new(opened)))
}

/// The engine has no room for the prompt of the turn.
pub fn refuse(app: &mut App, detail: &str) {
    let turn = app.turn.as_ref().unwrap().turn;
    let (detail, report) = (Some(detail.into()), report(turn, StopReason::ContextFull));
    let refused = TurnReport { in_context: false, generated: Vec::new(), detail, ..report };
    engine(app, Event::TurnDone(Box::new(refused)));
}

pub fn model(n_layers: usize, n_kv_heads: usize) -> ModelInfo {
    ModelInfo {
        identity: ModelIdentity {
            name: "demo".into(),
            reference: Some(ModelReference {
                model: "demo".into(),
                adapter: "auto".into(),
                ..ModelReference::default()
            }),
            model_fingerprint: "m".into(),
            tokenizer_fingerprint: "t".into(),
            device: "cpu, 2 threads".into(),
            weights: Some("f32".into()),
            ..ModelIdentity::default()
        },
        family: "qwen3".into(),
        n_params: 1,
        n_layers,
        lanes: vec![LayerLanes { window: None, heads: KvHeads { count: n_kv_heads, dim: 32 } }; n_layers],
        n_q_heads: n_kv_heads,
        n_kv_heads,
        head_dim: 32,
        vocab: 100,
        context: 8192,
        codec: Codec::F32,
        policy: PolicyKind::Dms,
        window: Some(64),
        dms: "borrowed".into(),
        weights: WeightsInfo { format: "f32".into(), bits: 32.0, bytes: 1000, cached: false },
        slot_bytes: 260,
        page_slots: 16,
        template: TemplateSpec {
            trusted: true,
            source: Some("{{ enable_thinking }}".into()),
            ..TemplateSpec::default()
        },
        think_tags: Some(("<think>".into(), "</think>".into())),
        most_drafts: 15,
        ..ModelInfo::default()
    }
}

/// Numbers after so many tokens: head h of layer l keeps a part of its own.
pub fn snapshot(tokens: usize, layers: usize, heads: usize) -> Snapshot {
    let keep = |l: usize, h: usize| tokens as u32 * (10 + (l * 7 + h * 13) as u32 % 90) / 100;
    let live: Vec<Vec<u32>> = (0..layers).map(|l| (0..heads).map(|h| keep(l, h)).collect()).collect();
    let live_slots: u64 = live.iter().flatten().map(|n| u64::from(*n)).sum();
    let dense_slots = (tokens * layers * heads) as u64;
    Snapshot {
        phase: Phase::Idle,
        tokens,
        pinned: 0,
        eviction: true,
        kv: KvStats {
            codec: Codec::F32,
            live_slots,
            dense_slots,
            dense: vec![tokens as u32; layers],
            ratio: (live_slots > 0).then(|| dense_slots as f64 / live_slots as f64),
            bytes: live_slots * 300,
            live_bytes: live_slots * 260,
            dense_bytes: dense_slots * 260,
            live,
            reads: 12_000.0,
            peak_slots: 95.0,
            peak_shared: None,
            far: None,
        },
        checkpoint_bytes: 1234,
        twin_bytes: 0,
        chain_bytes: 0,
        mapped_bytes: live_slots * 300,
        draft_gain: None,
        decode_tok_s: Some(312.4),
        chains: Vec::new(),
        device_bytes: None,
        kept: vec![tokens],
        unread: 0,
    }
}

pub fn report(turn: u64, stop_reason: StopReason) -> TurnReport {
    TurnReport {
        stop_reason,
        prompt_tokens: 40,
        answer_tokens: 20,
        reasoning_tokens: 412,
        ttft_ms: Some(20.0),
        prefill_tok_s: Some(2000.0),
        decode_tok_s: Some(312.4),
        reasoning_ms: Some(3200.0),
        seed: 7,
        eviction: true,
        kv: snapshot(472, 8, 4).kv,
        generated: vec![1, 2],
        pending: Some(None),
        ..TurnReport::empty(turn)
    }
}

pub fn press(app: &mut App, code: KeyCode) -> Vec<Effect> {
    press_with(app, code, KeyModifiers::NONE)
}

/// A key, half a second after the last one.
pub fn press_with(app: &mut App, code: KeyCode, modifiers: KeyModifiers) -> Vec<Effect> {
    app.now_ms += 500;
    update(app, AppEvent::Key(KeyEvent::new(code, modifiers)))
}

/// Types a text as a person does, and Enter.
pub fn say(app: &mut App, text: &str) -> Vec<Effect> {
    type_in(app, text);
    press(app, KeyCode::Enter)
}

pub fn engine(app: &mut App, event: Event) -> Vec<Effect> {
    update(app, AppEvent::Engine(event))
}

pub fn stream(app: &mut App, kind: TextKind, text: &str) {
    let turn = app.turn.as_ref().unwrap().turn;
    engine(app, Event::Text { turn, kind, text: text.into() });
}

/// Asks, thinks and answers.
pub fn turn(app: &mut App, question: &str, thought: &str, answer: &str) {
    say(app, question);
    let turn = app.turn.as_ref().unwrap().turn;
    engine(app, Event::TurnStarted { turn, prompt_tokens: 40, reused: 0, todo: 40 });
    stream(app, TextKind::Reasoning, thought);
    app.now_ms += 3200;
    stream(app, TextKind::Answer, answer);
    update(app, AppEvent::Snapshot(Arc::new(snapshot(472, 8, 4))));
    engine(app, Event::TurnDone(Box::new(report(turn, StopReason::End))));
}

/// The notice on the screen.
pub fn notice(app: &App) -> &str {
    app.notice.as_ref().map_or("", |n| &n.text)
}

pub fn type_in(app: &mut App, text: &str) {
    for c in text.chars() {
        press(app, KeyCode::Char(c));
    }
}

pub fn ctrl(app: &mut App, c: char) -> Vec<Effect> {
    press_with(app, KeyCode::Char(c), KeyModifiers::CONTROL)
}

/// The answer that runs ends.
pub fn end(app: &mut App, stop_reason: StopReason) -> Vec<Effect> {
    let turn = app.turn.as_ref().unwrap().turn;
    engine(app, Event::TurnDone(Box::new(report(turn, stop_reason))))
}

pub fn sent(effects: &[Effect]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::Generate { .. }))
}

pub fn quits(effects: &[Effect]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::Quit))
}

/// The cells of the screen.
pub fn cells(app: &mut App) -> ratatui::buffer::Buffer {
    let (columns, rows) = app.size;
    let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|f| super::widgets::frame::draw(f, app)).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as text.
pub fn screen(app: &mut App) -> String {
    let (buffer, (columns, rows)) = (cells(app), app.size);
    let row = |y: u16| -> String {
        let mut text = String::new();
        let mut x = 0;
        while x < columns {
            let symbol = buffer[(x, y)].symbol();
            text.push_str(symbol);
            x += super::text::width(symbol).max(1) as u16;
        }
        text.trim_end().to_owned()
    };
    (0..rows).map(row).collect::<Vec<_>>().join("\n")
}

/// The last line of the screen.
pub fn status(app: &mut App) -> String {
    screen(app).lines().last().unwrap_or_default().to_owned()
}

/// What the cache of a model of `layers` x `heads` holds of a text: a token a word, with the share
/// of the heads that store it. Words with a digit or a capital are remembered, and so are the
/// newest 65 tokens. The first character of two and more bytes is spelled by two tokens.
pub fn presence(text: &str, layers: usize, heads: usize) -> Presence {
    let lanes = (layers * heads) as u16;
    let mut presence = Presence {
        lanes: lanes.into(),
        revision: 1,
        decided_after: 1,
        of_position: (0..layers)
            .map(|l| vec![if l % 3 == 0 { LaneState::Kept } else { LaneState::Dropped }; heads])
            .collect(),
        ..Presence::default()
    };
    for word in text.split_inclusive([' ', '\n']) {
        if !word.is_ascii() {
            presence.ends.push(presence.text.len() as u32);
        }
        presence.text += word;
        presence.ends.push(presence.text.len() as u32);
    }
    let n = presence.ends.len();
    let mut start = 0;
    for (token, &end) in presence.ends.iter().enumerate() {
        let word = &presence.text[start..end as usize];
        let fact = word.contains(|c: char| c.is_uppercase() || c.is_ascii_digit());
        let kept = if token + 65 >= n || fact { lanes } else { lanes * (token % 7) as u16 / 20 };
        presence.kept.push(kept);
        presence.marked.push(if token + 65 >= n && !fact { lanes / 2 } else { 0 });
        start = end as usize;
    }
    presence.position = n.saturating_sub(1);
    presence
}

/// The screen, and below it which background each cell has: a letter for each colour, in the order
/// of their appearance.
pub fn tinted_screen(app: &mut App) -> String {
    let (buffer, (columns, rows)) = (cells(app), app.size);
    let mut colours = Vec::new();
    let mut tints = String::new();
    let shown = screen(app);
    for (y, text) in (0..rows).zip(shown.lines()) {
        // The scale has all colours there are.
        if text.contains(" keeps all") || text.contains("dropped   ") {
            continue;
        }
        let row: String = (0..columns)
            .map(|x| match buffer[(x, y)].bg {
                ratatui::style::Color::Reset => ' ',
                colour => {
                    let at = colours.iter().position(|c| *c == colour).unwrap_or(colours.len());
                    if at == colours.len() {
                        colours.push(colour);
                    }
                    char::from(b'a' + at as u8)
                }
            })
            .collect();
        if !row.trim().is_empty() {
            tints += &format!("{y:2} {}\n", row.trim_end());
        }
    }
    let legend: Vec<String> =
        colours.iter().enumerate().map(|(i, c)| format!("{} {c}", char::from(b'a' + i as u8))).collect();
    format!("{shown}\n\n{tints}\n{}", legend.join("\n"))
}
