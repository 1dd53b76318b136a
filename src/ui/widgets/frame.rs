//! The whole screen, from the state.

use super::prelude::*;
use super::{conversation, input, layout, memory, panel, status, welcome};
use crate::ui::action::Action;
use crate::ui::overlay::inspect::Inspect;
use crate::ui::overlay::{Field, Overlay};
use crate::ui::state::MIN_SIZE;
use crate::ui::text::{truncate, width};
use ratatui::buffer::CellDiffOption;
use ratatui::widgets::{Clear, Widget};

/// Rows that the welcome needs to make sense.
const WELCOME: u16 = 5;

/// Draws everything. The state changes in its cached rows only.
pub fn draw(frame: &mut Frame, app: &mut App) {
    let area = frame.area();
    app.size = (area.width, area.height);
    if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 {
        return too_small(frame, area, app);
    }
    let at = layout(app);
    conversation::prepare(app, at.conversation);
    if app.overlay::<Inspect>().is_some() {
        app.memory.lay_out(memory::columns(area));
    }
    let app = &*app;
    let buffer = frame.buffer_mut();
    conversation::draw(buffer, at.conversation, app);
    let free = at.conversation.height.saturating_sub(app.feed.total().min(usize::from(u16::MAX)) as u16);
    if app.chat.path().is_empty() && free >= WELCOME {
        welcome::draw(buffer, Rect { height: free, ..at.conversation }, app);
    }
    if let Some(panel) = at.panel {
        draw_rule(buffer, at.rule, app);
        panel::draw(buffer, panel, app);
    }
    status::draw_banner(buffer, at.banner, app);
    status::draw_status(buffer, at.status, app);
    let chat_has_keys = app.overlays.is_empty();
    input::draw(frame, at.input, app, chat_has_keys);
    for overlay in &app.overlays {
        let height = overlay.rows().min(at.status.y);
        let area = Rect { y: at.status.y - height, height, ..area };
        Clear.render(area, frame.buffer_mut());
        overlay.draw(frame, area, app);
        if let Some(hint) = vim_hint(app, &**overlay) {
            let hint = format!(" {hint}");
            let x = area.right().saturating_sub(width(&hint) as u16 + 1);
            frame.buffer_mut().set_string(x, area.y, hint, app.theme.style(Role::Dim));
        }
    }
    if app.overlays.last().is_some_and(|top| top.hides_banner()) {
        // Above the keys of the page and the status line.
        let above = Rect { height: at.status.y.saturating_sub(1), ..area };
        status::draw_notice(frame.buffer_mut(), above, app);
    }
    if chat_has_keys {
        input::draw_completion(frame, at.banner.y, app);
    }
    repaint_behind_joined_emoji(frame.buffer_mut());
}

/// With Vim's keys: how to type into the field of an overlay, and how to leave it.
fn vim_hint(app: &App, overlay: &dyn Overlay<App>) -> Option<String> {
    let types = app.vim.field_of == app.overlays.len();
    let filters = app.setup.keymap.is_vim() && overlay.field() == Field::Filter;
    let keys = || format!("{}: keys", app.setup.keymap.key_of(Action::Stop));
    filters.then(|| if types { keys() } else { "/: filter".to_owned() })
}

/// The line between the conversation and the panel.
fn draw_rule(buffer: &mut Buffer, rule: Rect, app: &App) {
    let glyphs = app.theme.glyphs();
    let line = match rule.height {
        1 => glyphs.horizontal,
        _ => glyphs.vertical,
    };
    for position in rule.positions() {
        buffer.set_string(position.x, position.y, line, app.theme.style(Role::Border));
    }
}

/// Terminals that do not join emoji draw their parts one after another, over the following text,
/// which is therefore painted again with every frame.
fn repaint_behind_joined_emoji(buffer: &mut Buffer) {
    let area = buffer.area;
    for y in area.y..area.bottom() {
        for x in area.x..area.right() {
            let symbol = buffer[(x, y)].symbol();
            if symbol.len() < 8 || !symbol.contains('\u{200d}') {
                continue;
            }
            let parts = 2 * symbol.chars().filter(|c| *c == '\u{200d}').count() as u16;
            for behind in x + 2..(x + 3 + parts).min(area.right()) {
                let cell = &mut buffer[(behind, y)];
                // The width of a link differs from its symbol's.
                if !matches!(cell.diff_option, CellDiffOption::ForcedWidth(_)) {
                    cell.set_diff_option(CellDiffOption::AlwaysUpdate);
                }
            }
        }
    }
}

fn too_small(frame: &mut Frame, area: Rect, app: &App) {
    let text = [
        "terminal too small".to_owned(),
        format!("(needs {}x{})", MIN_SIZE.0, MIN_SIZE.1),
        "nothing is lost".to_owned(),
    ];
    for (n, line) in text.iter().take(usize::from(area.height)).enumerate() {
        let line = truncate(line, usize::from(area.width));
        frame.buffer_mut().set_string(area.x, area.y + n as u16, line, app.theme.style(Role::Warning));
    }
}
