//! How many columns the chat and the panel beside it have.

use super::super::state::App;
use super::panel;

/// Columns of the panel beside the chat: at least, and in its compact form on a small screen.
pub(super) const PANEL: u16 = 42;

pub(super) const COMPACT: u16 = 28;

/// Narrower screens have the compact panel.
pub(super) const WIDE: u16 = 100;

/// Columns and rows that the panel always leaves to the conversation.
pub(super) const CHAT: (u16, u16) = (44, 8);

/// Columns that the conversation fills; a wider screen gives the rest to the panel.
pub(super) const CHAT_FILLS: u16 = crate::ui::markdown::PROSE as u16 + 5;

/// Columns of the panel beside the chat; 0 where it is not beside it.
pub(super) fn columns_beside(app: &App) -> u16 {
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
pub(super) fn chat_width(app: &App) -> u16 {
    match columns_beside(app) {
        0 => app.size.0,
        beside => app.size.0 - beside - 1,
    }
}
