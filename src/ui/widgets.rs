//! The parts of the screen, and where they are. Each part draws from the state and changes nothing
//! but the conversation's cached rows.

pub mod conversation;
pub mod frame;
pub mod heatmap;
pub mod help;
pub mod input;
pub mod inspect;
pub mod lists;
pub mod message;
pub mod panel;
pub mod status;
#[cfg(test)]
mod tests;
pub mod welcome;

use super::state::App;
use ratatui::layout::Rect;

/// Columns of the panel beside the chat.
const PANEL: u16 = 38;

/// Where everything is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    pub conversation: Rect,
    /// The line between conversation and panel.
    pub rule: Rect,
    pub panel: Option<Rect>,
    pub banner: Rect,
    pub input: Rect,
    pub status: Rect,
}

impl Layout {
    /// Columns of the input's text, behind its prompt.
    pub fn input_width(&self) -> usize {
        usize::from(self.input.width).saturating_sub(input::PROMPT_WIDTH)
    }
}

/// Divides the screen.
pub fn layout(app: &App) -> Layout {
    let (columns, rows) = app.size;
    let beside = app.is_wide() && !app.panel.hidden;
    let panel_width = if beside { PANEL.min(columns / 2) } else { 0 };
    let chat_width = if beside { columns - panel_width - 1 } else { columns };
    let body = rows.saturating_sub(1);
    let mut at = Layout {
        status: Rect::new(0, body, columns, rows.min(1)),
        rule: Rect::new(chat_width, 0, u16::from(beside), body),
        panel: beside.then(|| Rect::new(chat_width + 1, 0, panel_width, body)),
        input: Rect::new(0, 0, chat_width, 1),
        ..Layout::default()
    };
    let most = (rows / 3).max(1);
    let wanted = app.input.rows(at.input_width()).len().min(usize::from(most)) as u16;
    at.input = Rect::new(0, body - wanted, chat_width, wanted);
    let banner = status::banner_height(app, chat_width).min(body - wanted);
    at.banner = Rect::new(0, at.input.y - banner, chat_width, banner);
    at.conversation = Rect::new(0, 0, chat_width, at.banner.y);
    at
}

/// Columns of the input's text, for those who are asked while the layout is being made.
fn layout_width(app: &App) -> usize {
    let beside = app.is_wide() && !app.panel.hidden;
    let columns = if beside { app.size.0 - PANEL.min(app.size.0 / 2) - 1 } else { app.size.0 };
    usize::from(columns).saturating_sub(input::PROMPT_WIDTH)
}
