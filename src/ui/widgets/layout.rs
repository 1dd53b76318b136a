//! Where the parts of the screen are.

use super::super::state::App;
use super::columns::{CHAT, chat_width, columns_beside};
use super::input;
use super::panel;
use super::status;
use ratatui::layout::Rect;
use std::ops::RangeInclusive;

/// Rows of a panel below the chat.
pub(super) const BELOW: RangeInclusive<u16> = 8..=18;

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
