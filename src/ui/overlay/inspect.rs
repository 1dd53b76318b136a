//! The cache on the whole screen: the page of the memory, and the page of heads, which has the
//! heatmap with a chosen head, that head's numbers, and where in the conversation the positions are
//! that it kept.

use super::prelude::*;
use crate::protocol::{Command, Recalled, SlotInfo};
use crate::ui::commands::recall;
use crate::ui::memory::{MemoryPage, PageRecall};
use crate::ui::numbers;
use crate::ui::picker::PAGE;
use crate::ui::state::{App, Shown};
use crate::ui::text::{count, plural, truncate};
use crate::ui::update::{stop, turns};
use crate::ui::widgets::heatmap::SCALE_ROWS;
use crate::ui::widgets::memory;
use crate::ui::widgets::panel::{draw_history, draw_numbers, heatmap, strip_cell};
use std::ops::Range;

/// Rows of the strip of positions, at most.
const STRIP: u16 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// The text and which of its tokens are kept.
    #[default]
    Memory,
    /// Layers and heads, and the positions that one head keeps.
    Heads(Shown),
}

impl Page {
    fn is_of_heads(self) -> bool {
        self != Self::Memory
    }

    /// The page that Tab shows next: what heads fetched, if they have far pages, after what they
    /// keep.
    fn next(self, app: &App) -> Self {
        match self {
            Self::Memory => Self::Heads(Shown::Kept),
            Self::Heads(Shown::Kept) if numbers::fetched(app).is_some() => Self::Heads(Shown::Fetched),
            Self::Heads(_) => Self::Memory,
        }
    }
}

#[derive(Default)]
pub struct Inspect {
    pub page: Page,
    pub memory: MemoryPage,
    layer: usize,
    head: usize,
    /// The chosen head's slots, and tokens fed when they were read.
    slots: Option<HeadSlots>,
    /// A recall test that was asked for on the memory page.
    pub recalled: Option<PageRecall>,
}

struct HeadSlots {
    layer: usize,
    head: usize,
    tokens: usize,
    slots: Vec<SlotInfo>,
}

/// Reads the chosen head again while the page of heads is open.
pub fn read_again(app: &mut App) {
    if let Some(command) = app.overlay::<Inspect>().and_then(Inspect::wants).filter(|_| app.engine.info.is_some()) {
        app.send(command);
    }
}

/// Takes in the slots of a head.
pub fn was_read(app: &mut App, layer: usize, head: usize, slots: Vec<SlotInfo>) {
    let tokens = app.tokens();
    if let Some(inspect) = app.overlay_mut::<Inspect>() {
        inspect.slots = Some(HeadSlots { layer, head, tokens, slots });
    }
}

/// Shows the result of a recall test on the page that asked for it, else in the conversation.
pub fn recalled(app: &mut App, result: Result<Box<Recalled>, String>) {
    app.engine.recalling = false;
    match app.overlay_mut::<Inspect>().and_then(|inspect| inspect.recalled.as_mut()) {
        None => recall::answered(app, result),
        Some(page) => {
            *page = match result {
                Ok(recalled) => PageRecall { words: recall::summary(&recalled), recalled: Some(recalled) },
                Err(why) => PageRecall { words: format!("recall: {why}"), recalled: None },
            }
        }
    }
    turns::send_next(app);
}

impl Overlay<App> for Inspect {
    fn draw(&self, frame: &mut Frame, area: Rect, app: &App) {
        match self.page {
            Page::Memory => memory::draw(frame.buffer_mut(), area, app, &self.memory, self.recalled.as_ref()),
            Page::Heads(shown) => draw_heads(frame.buffer_mut(), area, app, self, shown),
        }
    }

    fn key(&mut self, app: &mut App, key: Key, action: Option<Action>) -> After {
        let is_remote = app.engine.info.as_ref().is_some_and(|info| info.is_remote);
        match (key.code, action) {
            (_, Some(Action::Inspect)) if is_remote => return After::Close,
            (KeyCode::Tab | KeyCode::Char('l' | 'L' | 'h' | 'H'), _) if is_remote => {
                app.info(format!("what single heads keep is {}", numbers::NOT_REPORTED));
            }
            (KeyCode::Tab, _) | (_, Some(Action::Inspect)) => {
                self.page = self.page.next(app);
                self.read(app);
            }
            (KeyCode::Char('q') | KeyCode::Enter, _) | (_, Some(Action::Panel)) => return After::Close,
            (_, Some(action @ (Action::Eviction | Action::Help))) => return After::Act(action),
            (KeyCode::Char(_), _) if self.page.is_of_heads() => return After::Ignored,
            _ if self.page.is_of_heads() => {
                self.choose_head(app, key.code);
                self.read(app);
            }
            (KeyCode::Char('r'), _) => self.recall(app),
            (KeyCode::Char('p'), _) => self.pin(app),
            (KeyCode::Char(c), _) if !"lLhHa +=-_".contains(c) => return After::Ignored,
            _ => self.memory_key(app, key),
        }
        After::Stay
    }

    fn has_letter_keys(&self) -> bool {
        true
    }

    /// Stops a recall test of this page, removes its result, or closes.
    fn escape(&mut self, app: &mut App) -> After {
        if self.page == Page::Memory && app.engine.recalling {
            stop::stop_or_close(app);
        } else if self.page.is_of_heads() || self.recalled.take().is_none() {
            return After::Close;
        }
        After::Stay
    }

    fn scroll(&mut self, app: &mut App, down: bool) {
        if self.page == Page::Memory {
            self.rows_away(app, down, WHEEL_ROWS as usize);
        }
    }

    fn plain_lines(&self, app: &App, _: usize) -> Option<Vec<String>> {
        Some(numbers::stats_note(app).split('\n').map(str::to_owned).collect())
    }
}

impl Inspect {
    fn wants(&self) -> Option<Command> {
        (self.page.is_of_heads()).then_some(Command::Inspect { layer: self.layer, head: self.head })
    }

    fn read(&self, app: &mut App) {
        if let Some(command) = self.wants().filter(|_| app.engine.info.is_some()) {
            app.send(command);
        }
    }

    fn choose_head(&mut self, app: &App, code: KeyCode) {
        let (layers, heads) = shape(app);
        match code {
            KeyCode::Up => self.layer = self.layer.saturating_sub(1),
            KeyCode::Down => self.layer = (self.layer + 1).min(layers - 1),
            KeyCode::Left => self.head = self.head.saturating_sub(1),
            KeyCode::Right => self.head = (self.head + 1).min(heads - 1),
            KeyCode::PageUp => self.layer = self.layer.saturating_sub(PAGE),
            KeyCode::PageDown => self.layer = (self.layer + PAGE).min(layers - 1),
            KeyCode::Home => (self.layer, self.head) = (0, 0),
            KeyCode::End => (self.layer, self.head) = (layers - 1, heads - 1),
            _ => {}
        }
    }

    fn memory_key(&mut self, app: &mut App, key: Key) {
        let (layers, heads) = shape(app);
        let rows = self.page_rows(app);
        let filter = &mut self.memory.filter;
        match key.code {
            KeyCode::Char('l') => filter.layer = next(filter.layer, layers),
            KeyCode::Char('L') => filter.layer = previous(filter.layer, layers),
            KeyCode::Char('h') => filter.head = next(filter.head, heads),
            KeyCode::Char('H') => filter.head = previous(filter.head, heads),
            KeyCode::Char('a') => *filter = Default::default(),
            // Begins to choose a passage at the cursor, or gives the choice up.
            KeyCode::Char(' ') if self.memory.anchor.take().is_some() => {}
            KeyCode::Char(' ') => self.memory.anchor = self.cursor(app),
            KeyCode::Char('+' | '=') => self.jump(app, true),
            KeyCode::Char('-' | '_') => self.jump(app, false),
            KeyCode::Left => self.step(app, false),
            KeyCode::Right => self.step(app, true),
            KeyCode::Up => self.rows_away(app, false, 1),
            KeyCode::Down => self.rows_away(app, true, 1),
            KeyCode::PageUp => self.rows_away(app, false, rows),
            KeyCode::PageDown => self.rows_away(app, true, rows),
            KeyCode::Home => self.memory.cursor = Some(0),
            KeyCode::End => self.memory.cursor = None,
            _ => {}
        }
    }

    /// Rows of text on the screen, but one.
    fn page_rows(&self, app: &App) -> usize {
        let area = Rect::new(0, 0, app.size.0, app.size.1.saturating_sub(1));
        let text = memory::places(area, memory::result_rows(app, self.recalled.as_ref())).text;
        memory::text_rows(app, text).saturating_sub(1).max(1)
    }

    /// The token under the cursor; `None` before the first answer.
    fn cursor(&self, app: &App) -> Option<usize> {
        let last = app.memory.len().checked_sub(1)?;
        Some(self.memory.cursor.unwrap_or(last).min(last))
    }

    /// Moves the cursor; at the last token it follows the newest.
    fn set_cursor(&mut self, app: &App, token: usize) {
        self.memory.cursor = Some(token).filter(|&token| token + 1 < app.memory.len());
    }

    fn step(&mut self, app: &App, forward: bool) {
        let Some(cursor) = self.cursor(app) else { return };
        let tokens = app.memory.spelled(cursor).tokens;
        let to = if forward { tokens.end } else { tokens.start.saturating_sub(1) };
        self.set_cursor(app, app.memory.spelled(to).tokens.end - 1);
    }

    fn rows_away(&mut self, app: &App, down: bool, rows: usize) {
        let Some(cursor) = self.cursor(app) else { return };
        let (row, last) = (app.memory.row_of(cursor), app.memory.rows().saturating_sub(1));
        let to = if down { row + rows } else { row.saturating_sub(rows) };
        let token = match to {
            to if down && to > last => app.memory.len() - 1,
            to if to == row => 0,
            to => app.memory.in_row(cursor, to),
        };
        self.set_cursor(app, token);
    }

    fn jump(&mut self, app: &mut App, best: bool) {
        let Some(cursor) = self.cursor(app) else { return };
        let evicting = app.engine.info.as_ref().filter(|info| !info.policy.keeps_all());
        let window = evicting.map(|info| info.window.unwrap_or(0));
        match window.and_then(|window| app.memory.next_passage(cursor, best, window)) {
            // The passage is chosen, so that it can be seen.
            Some(passage) => {
                self.set_cursor(app, passage.end - 1);
                self.memory.anchor = Some(passage.start);
            }
            None if window.is_none() => app.info("a dense cache keeps every token"),
            None => app.info("all tokens are inside the window so far"),
        }
    }

    /// The chosen passage, or the sentence under the cursor, without control tokens at its ends;
    /// `None` after a notice.
    fn passage(&self, app: &mut App) -> Option<Range<usize>> {
        let cursor = self.cursor(app)?;
        let passage = app.memory.without_edges(app.memory.passage(cursor, self.memory.anchor));
        if passage.is_empty() {
            app.info("there is no text under the cursor");
        }
        (!passage.is_empty()).then_some(passage)
    }

    /// Asks for the chosen passage, or for the sentence under the cursor.
    fn recall(&mut self, app: &mut App) {
        let Some(tokens) = self.passage(app) else { return };
        let text = app.memory.text_of(tokens.clone()).trim().to_owned();
        if recall::ask_on_page(app, &text, tokens) {
            self.recalled = Some(PageRecall::default());
        }
    }

    /// Pins the chosen passage or the sentence under the cursor, or takes the pin under the cursor
    /// back.
    fn pin(&mut self, app: &mut App) {
        let Some(cursor) = self.cursor(app) else { return };
        if app.engine.info.as_ref().is_some_and(|info| info.policy.keeps_all()) {
            return app.info("this cache keeps everything: there is nothing to pin");
        }
        let pinned = app.memory.presence().pins.iter().find(|pin| pin.contains(&cursor)).cloned();
        let pin = pinned.is_none();
        let Some(tokens) = pinned.or_else(|| self.passage(app)) else { return };
        if turns::idle(app).is_ok() {
            app.send(Command::PinTokens { tokens, pin });
        }
    }
}

/// Number of layers and KV heads, at least 1 each.
fn shape(app: &App) -> (usize, usize) {
    app.engine.info.as_ref().map_or((1, 1), |i| (i.n_layers.max(1), i.n_kv_heads.max(1)))
}

/// All, then one after the other, then all again.
fn next(chosen: Option<usize>, n: usize) -> Option<usize> {
    Some(chosen.map_or(0, |at| at + 1)).filter(|&at| at < n)
}

fn previous(chosen: Option<usize>, n: usize) -> Option<usize> {
    chosen.map_or(Some(n - 1), |at| at.checked_sub(1))
}

fn draw_heads(buffer: &mut Buffer, area: Rect, app: &App, inspect: &Inspect, shown: Shown) {
    let theme = &app.theme;
    buffer.set_string(area.x + 1, area.y, "cache", theme.style(Role::Title));
    let next = if inspect.page.next(app).is_of_heads() { "what was fetched" } else { "the memory" };
    let keys = format!("arrows choose a head, Tab shows {next}, {} closes", app.key(Action::Stop));
    let keys = truncate(&keys, usize::from(area.width).saturating_sub(8));
    buffer.set_string(area.x + 7, area.y, keys, theme.style(Role::Dim));
    let body = below(inside(area), 1);
    if body.width < 20 || body.height < 4 {
        return;
    }
    let map = heatmap(app, shown, Some((inspect.layer, inspect.head)));
    let (most, rows) = (usize::from(body.width / 2), usize::from(body.height));
    let width = map.shape().width(most, rows) as u16;
    map.draw(buffer, Rect { width, height: body.height.min(map.shape().height(most, rows) as u16), ..body }, 0);
    let x = body.x + width + 3;
    let right = Rect { x, width: body.right().saturating_sub(x), ..body };
    let mut y = 0;
    for line in head_lines(app, inspect) {
        let row = below(right, y);
        if row.height == 0 {
            return;
        }
        let role = if y == 0 { Role::Value } else { Role::Text };
        buffer.set_string(row.x, row.y, truncate(&line, usize::from(row.width)), theme.style(role));
        y += 1;
    }
    let slots = inspect.slots.as_ref().filter(|s| (s.layer, s.head) == (inspect.layer, inspect.head));
    if let Some(slots) = slots {
        y += 1;
        y += strip(buffer, below(right, y), app, slots);
    }
    let scale = below(right, y + 1);
    map.draw_scale(buffer, scale);
    let rest = below(scale, SCALE_ROWS + 1);
    let used = draw_numbers(buffer, rest, app);
    draw_history(buffer, below(rest, used + 1), app);
}

/// Facts about the chosen head.
fn head_lines(app: &App, inspect: &Inspect) -> Vec<String> {
    let mut lines = vec![format!("layer {}, head {}", inspect.layer, inspect.head)];
    let Some(s) = &app.engine.snapshot else { return lines };
    let live = s.kv.live.get(inspect.layer).and_then(|l| l.get(inspect.head)).copied().unwrap_or(0);
    let dense = s.kv.dense_of(inspect.layer);
    lines.push(match s.kv.retention(inspect.layer, inspect.head) {
        Some(r) => format!("{} of {} slots kept, {} %", count(live.into()), count(dense), numbers::percent(r)),
        None => "nothing is stored yet".to_owned(),
    });
    let fetched = numbers::fetched(app).and_then(|cells| *cells.get(inspect.layer)?.get(inspect.head)?);
    lines.extend(fetched.map(|pages| format!("{} fetched by the newest turn", plural(pages.into(), "page"))));
    let slots = inspect.slots.as_ref().filter(|h| (h.layer, h.head) == (inspect.layer, inspect.head));
    if let Some(h) = slots.filter(|h| !h.slots.is_empty()) {
        let layer = app.engine.info.as_ref().and_then(|info| info.lanes.get(inspect.layer));
        lines.push(match layer.and_then(|layer| layer.window) {
            Some(window) => format!("sees the newest {}, as trained", plural(window as u64, "token")),
            None => {
                let marked = h.slots.iter().filter(|s| s.marked).count();
                format!("{} marked for eviction", count(marked as u64))
            }
        });
        let gap =
            h.slots.windows(2).map(|w| w[1].position - w[0].position - u32::from(w[1].position > w[0].position)).max();
        lines.push(format!("longest gap: {}", plural(gap.unwrap_or(0).into(), "token")));
    }
    lines
}

/// The conversation's positions from left to right and top to bottom; how bright a cell is says how
/// many of its positions are kept. Returns the rows it took.
fn strip(buffer: &mut Buffer, area: Rect, app: &App, head: &HeadSlots) -> u16 {
    let last = head.slots.iter().map(|s| s.position as usize + 1).max().unwrap_or(0);
    let total = head.tokens.max(last);
    let names = total.to_string().len() as u16 + 1;
    if total == 0 || area.height < 2 || area.width < names + 8 {
        return 0;
    }
    let columns = usize::from(area.width - names);
    let rows = usize::from(area.height.saturating_sub(1).min(STRIP)).min(total.div_ceil(columns)).max(1);
    let per_cell = total.div_ceil(columns * rows).max(1);
    // Cells round up, so that the last rows may have none.
    let rows = total.div_ceil(columns * per_cell);
    let mut kept = vec![0usize; columns * rows];
    for slot in &head.slots {
        if let Some(cell) = kept.get_mut(slot.position as usize / per_cell) {
            *cell += 1;
        }
    }
    let title = match per_cell {
        1 => "tokens kept, one cell per token".to_owned(),
        n => format!("tokens kept, {n} tokens per cell"),
    };
    buffer.set_string(area.x, area.y, truncate(&title, usize::from(area.width)), app.theme.style(Role::Dim));
    for row in 0..rows {
        let y = area.y + 1 + row as u16;
        buffer.set_string(area.x, y, (row * columns * per_cell).to_string(), app.theme.style(Role::Dim));
        for column in 0..columns {
            let cell = row * columns + column;
            let from = cell * per_cell;
            if from >= total {
                break;
            }
            let size = per_cell.min(total - from);
            let (text, style) = strip_cell(app, kept[cell] as f64 / size as f64);
            buffer.set_string(area.x + names + column as u16, y, text, style);
        }
    }
    rows as u16 + 1
}
