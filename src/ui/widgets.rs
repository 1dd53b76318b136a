//! The widgets of the screen and their layout. Widgets draw from the state and change only the
//! conversation's cached rows.

pub mod chains;
pub mod conversation;
pub mod frame;
pub mod heatmap;
pub mod input;
pub mod memory;
pub mod message;
pub mod panel;
mod prelude;
pub mod recall;
pub mod status;
#[cfg(test)]
mod tests;
pub mod twin;
pub mod welcome;

use super::state::App;
use ratatui::layout::Rect;
use std::ops::RangeInclusive;

/// Columns of the panel beside the chat: at least, and in its compact form on a small screen.
const PANEL: u16 = 42;
const COMPACT: u16 = 28;
/// Narrower screens have the compact panel.
const WIDE: u16 = 100;
/// Columns and rows that the panel always leaves to the conversation.
const CHAT: (u16, u16) = (44, 8);
/// Columns that the conversation fills; a wider screen gives the rest to the panel.
const CHAT_FILLS: u16 = crate::ui::markdown::PROSE as u16 + 5;
/// Rows of a panel below the chat.
const BELOW: RangeInclusive<u16> = 8..=18;

/// Where everything is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    pub conversation: Rect,
    /// The line between conversation and panel: a column, or a row where the panel is below.
    pub rule: Rect,
    pub panel: Option<Rect>,
    pub banner: Rect,
    pub input: Rect,
    pub status: Rect,
}

impl Layout {
    /// Columns of the input's text, after its prompt.
    pub fn input_width(&self) -> usize {
        usize::from(self.input.width).saturating_sub(input::PROMPT_WIDTH)
    }
}

/// Divides the screen. The panel never covers the conversation: it is beside it, or below it on a
/// narrow screen, or not shown where neither leaves enough to the conversation.
pub fn layout(app: &App) -> Layout {
    let (columns, rows) = app.size;
    let (beside, chat_width) = (columns_beside(app), chat_width(app));
    let body = rows.saturating_sub(1);
    let mut at = Layout { status: Rect::new(0, body, columns, rows.min(1)), ..Layout::default() };
    if beside > 0 {
        at.rule = Rect::new(chat_width, 0, 1, body);
        at.panel = Some(Rect::new(chat_width + 1, 0, beside, body));
    }
    at.input = Rect::new(0, 0, chat_width, 1);
    let most = (rows / 3).max(1);
    let wanted = app.input.rows(at.input_width()).len().min(usize::from(most)) as u16;
    at.input = Rect::new(0, body - wanted, chat_width, wanted);
    let banner = status::banner_height(app, chat_width).min(body - wanted);
    at.banner = Rect::new(0, at.input.y - banner, chat_width, banner);
    let mut conversation = at.banner.y;
    let below = conversation.saturating_sub(CHAT.1).min(*BELOW.end());
    if beside == 0 && panel::is_open(app) && below >= *BELOW.start() {
        conversation -= below;
        at.rule = Rect::new(0, conversation, columns, 1);
        at.panel = Some(Rect::new(0, conversation + 1, columns, below - 1));
    }
    at.conversation = Rect::new(0, 0, chat_width, conversation);
    at
}

/// Columns of the panel beside the chat; 0 where it is not beside it.
fn columns_beside(app: &App) -> u16 {
    let (columns, rows) = app.size;
    if !panel::is_open(app) || columns < CHAT.0 + COMPACT + 1 {
        return 0;
    }
    if columns < WIDE {
        return COMPACT;
    }
    let most = columns.saturating_sub(CHAT_FILLS + 1).max(columns * 7 / 20).clamp(PANEL, columns / 2);
    panel::wanted_width(app, most, rows.saturating_sub(1)).clamp(PANEL, most)
}

/// Columns of the chat: all but the panel beside it and the line between them.
fn chat_width(app: &App) -> u16 {
    match columns_beside(app) {
        0 => app.size.0,
        beside => app.size.0 - beside - 1,
    }
}
