//! The heatmap of layers and heads, in the densest form that fits and reads well: numbered tiles,
//! half blocks (two layers a row), or bars and shades without colour. Always with its scale.

use crate::ui::heat::{self, Depth, level, retention_at};
use crate::ui::numbers::percent;
use crate::ui::theme::{Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// What is drawn: retention of every head, and the chosen cell.
pub struct Heatmap<'a> {
    pub theme: &'a Theme,
    pub depth: Depth,
    /// `[n_layers][n_heads]`; `None` before the first token.
    pub retention: Vec<Vec<Option<f64>>>,
    pub chosen: Option<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Cells of `width` columns (a gap included) and `height` rows, with their percentage.
    Tiles { width: usize, height: usize },
    /// Two layers a row; cells of `width` columns.
    Halves { width: usize },
    /// One character's worth per cell, side by side in `blocks` of layers.
    Shades { width: usize, blocks: usize },
}

impl Heatmap<'_> {
    fn layers(&self) -> usize {
        self.retention.len()
    }

    fn heads(&self) -> usize {
        self.retention.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Columns of the layer's name.
    fn label(&self) -> usize {
        2 + self.layers().saturating_sub(1).to_string().len()
    }

    fn form(&self, columns: usize, rows: usize) -> Form {
        let (layers, heads) = (self.layers().max(1), self.heads().max(1));
        let room = columns.saturating_sub(self.label());
        let tile = room / heads;
        if tile >= 4 && layers <= rows {
            let height = if rows >= 2 * layers && layers <= 12 { 2 } else { 1 };
            return Form::Tiles { width: tile.min(8), height };
        }
        if self.depth.has_colour() {
            return Form::Halves { width: tile.clamp(1, 3) };
        }
        let blocks = layers.div_ceil(rows.max(1));
        let fits = blocks * (self.label() + heads + 1) <= columns + 1;
        if fits && blocks > 1 {
            let width = ((columns + 1) / blocks - self.label() - 1) / heads;
            return Form::Shades { width: width.clamp(1, 3), blocks };
        }
        Form::Shades { width: tile.clamp(1, 3), blocks: 1 }
    }

    /// Columns that the map takes of at most `columns`.
    pub fn width(&self, columns: usize, rows: usize) -> usize {
        let heads = self.heads();
        match self.form(columns, rows.saturating_sub(1)) {
            Form::Tiles { width, .. } => self.label() + heads * width,
            Form::Halves { width } => self.label() + heads * width,
            Form::Shades { width, blocks } => blocks * (self.label() + heads * width + 1) - 1,
        }
        .min(columns)
    }

    /// Rows that the map wants with this many columns, its head included.
    pub fn height(&self, columns: usize, rows: usize) -> usize {
        let layers = self.layers();
        1 + match self.form(columns, rows.saturating_sub(1)) {
            Form::Tiles { height, .. } => layers * height,
            Form::Halves { .. } => layers.div_ceil(2),
            Form::Shades { blocks, .. } => layers.div_ceil(blocks),
        }
    }

    /// Draws the head and as many layers as fit, from `scroll` on or around the chosen one.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, scroll: usize) {
        if area.height < 2 || self.layers() == 0 {
            return;
        }
        let (columns, rows) = (usize::from(area.width), usize::from(area.height) - 1);
        let form = self.form(columns, rows);
        let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
        match form {
            Form::Tiles { width, height } => self.tiles(buffer, area, body, width, height),
            Form::Halves { width } => self.halves(buffer, area, body, width, scroll),
            Form::Shades { width, blocks } => self.shades(buffer, area, body, width, blocks, scroll),
        }
    }

    fn dim(&self) -> Style {
        self.theme.style(Role::Dim)
    }

    fn head(&self, buffer: &mut Buffer, x: u16, y: u16, right: u16, width: usize) {
        for head in 0..self.heads() {
            let at = x + (head * width) as u16;
            if at + width as u16 > right {
                break;
            }
            let name = if width >= 3 { format!("h{head}") } else { (head % 10).to_string() };
            let name = format!("{name:^w$}", w = width.min(if width >= 4 { width - 1 } else { width }));
            let chosen = self.chosen.is_some_and(|(_, h)| h == head);
            let style = if chosen { self.theme.style(Role::Key) } else { self.dim() };
            buffer.set_stringn(at, y, name, width, style);
        }
    }

    fn layer_name(&self, buffer: &mut Buffer, x: u16, y: u16, layer: usize) {
        let chosen = self.chosen.is_some_and(|(l, _)| l == layer);
        let style = if chosen { self.theme.style(Role::Key) } else { self.dim() };
        buffer.set_string(x, y, format!("L{layer}"), style);
    }

    /// The first layer shown, where only `visible` fit.
    fn first(&self, visible: usize, scroll: usize, step: usize) -> usize {
        let last = self.layers().saturating_sub(visible);
        let first = match self.chosen {
            Some((layer, _)) => layer.saturating_sub(visible / 2).min(last),
            None => scroll.min(last),
        };
        first / step * step
    }

    /// Says on the last row that there is more above or below.
    fn more_mark(&self, buffer: &mut Buffer, body: Rect, first: usize, visible: usize) {
        let layers = self.layers();
        if visible < layers && body.height > 0 {
            let text = format!("L{first}-L{} of {layers}", (first + visible).min(layers) - 1);
            let y = body.bottom() - 1;
            buffer.set_stringn(body.x, y, " ".repeat(usize::from(body.width)), usize::from(body.width), Style::new());
            buffer.set_stringn(body.x, y, text, usize::from(body.width), self.theme.style(Role::Key));
        }
    }

    fn tiles(&self, buffer: &mut Buffer, area: Rect, body: Rect, width: usize, height: usize) {
        let x = area.x + self.label() as u16;
        self.head(buffer, x, area.y, area.right(), width);
        for (layer, cells) in self.retention.iter().enumerate() {
            let y = body.y + (layer * height) as u16;
            self.layer_name(buffer, area.x, y, layer);
            for (head, cell) in cells.iter().enumerate() {
                let at = x + (head * width) as u16;
                let text = cell.map_or("-".to_owned(), |r| percent(r).to_string());
                let inner = width - 1;
                let mut style = match cell {
                    Some(r) => heat::text_on(self.theme, self.depth, level(*r)),
                    None => self.dim(),
                };
                let chosen = self.chosen == Some((layer, head));
                if chosen {
                    style = style.add_modifier(Modifier::BOLD | Modifier::REVERSED);
                }
                let bar = match cell {
                    Some(r) if style.bg.is_none() && inner >= 4 && !chosen => {
                        heat::shade(self.theme, self.depth, level(*r))
                    }
                    _ => "",
                };
                let text =
                    if bar.is_empty() { format!("{text:^inner$}") } else { format!("{bar} {text:>w$}", w = inner - 2) };
                buffer.set_stringn(at, y, &text, inner, style);
                if height == 2 && style.bg.is_some() {
                    buffer.set_stringn(at, y + 1, " ".repeat(inner), inner, style);
                }
            }
        }
    }

    fn halves(&self, buffer: &mut Buffer, area: Rect, body: Rect, width: usize, scroll: usize) {
        let x = area.x + self.label() as u16;
        self.head(buffer, x, area.y, area.right(), width);
        let all = 2 * usize::from(body.height) >= self.layers();
        let visible = if all { self.layers() } else { 2 * usize::from(body.height - 1) };
        let first = self.first(visible, scroll, 2);
        let background = |cell: Option<f64>| cell.and_then(|r| heat::colour(self.theme, self.depth, level(r)));
        for (n, pair) in (first..(first + visible).min(self.layers())).step_by(2).enumerate() {
            let y = body.y + n as u16;
            let named = self.chosen.map_or(pair, |(l, _)| if l == pair + 1 { l } else { pair });
            self.layer_name(buffer, area.x, y, named);
            for head in 0..self.heads() {
                let cell = |layer: usize| self.retention.get(layer).and_then(|l| l.get(head).copied().flatten());
                let (upper, lower) = (cell(pair), cell(pair + 1));
                let mut style = Style::new();
                style.fg = background(upper);
                style.bg = background(lower);
                let mut block = if upper.is_none() && lower.is_none() { "·" } else { "▀" };
                if upper.is_none() && lower.is_some() {
                    (style.fg, block) = (style.bg.take(), "▄");
                }
                for column in 0..width {
                    let at = x + (head * width + column) as u16;
                    let edge = self.chosen.filter(|c| c.1 == head && (c.0 == pair || c.0 == pair + 1));
                    if at < area.right() {
                        let (text, style) = match edge {
                            // The chosen one has a sign on it, in the half that it is.
                            Some((layer, _)) if column == width / 2 => {
                                let on = level(cell(layer).unwrap_or(0.0));
                                let sign = if layer == pair { "▴" } else { "▾" };
                                (sign, heat::text_on(self.theme, self.depth, on).add_modifier(Modifier::BOLD))
                            }
                            _ => (block, style),
                        };
                        buffer.set_string(at, y, text, style);
                    }
                }
            }
        }
        self.more_mark(buffer, body, first, visible);
    }

    fn shades(&self, buffer: &mut Buffer, area: Rect, body: Rect, width: usize, blocks: usize, scroll: usize) {
        let per_block = if blocks > 1 {
            self.layers().div_ceil(blocks)
        } else if self.layers() > usize::from(body.height) {
            usize::from(body.height) - 1
        } else {
            self.layers()
        };
        let visible = (per_block * blocks).min(self.layers());
        let first = self.first(visible, scroll, 1);
        let step = self.label() + self.heads() * width + 1;
        for block in 0..blocks {
            let left = area.x + (block * step) as u16;
            let x = left + self.label() as u16;
            self.head(buffer, x, area.y, area.right(), width);
            for n in 0..per_block {
                let layer = first + block * per_block + n;
                let Some(cells) = self.retention.get(layer).filter(|_| layer < first + visible) else { break };
                let y = body.y + n as u16;
                self.layer_name(buffer, left, y, layer);
                for (head, cell) in cells.iter().enumerate() {
                    let at = x + (head * width) as u16;
                    let shade = cell.map_or(" ", |r| heat::shade(self.theme, self.depth, level(r)));
                    let chosen = self.chosen == Some((layer, head));
                    let style = if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
                    if at < area.right() {
                        buffer.set_stringn(at, y, shade.repeat(width.min(2)), usize::from(area.right() - at), style);
                    }
                }
            }
        }
        self.more_mark(buffer, body, first, visible);
    }
}

/// Rows of the scale.
pub const SCALE_ROWS: u16 = 2;

/// The scale: what which colour or shade means, in percent kept.
pub fn draw_scale(buffer: &mut Buffer, area: Rect, theme: &Theme, depth: Depth) {
    let width = area.width.min(32);
    if area.height == 0 || width < 8 {
        return;
    }
    for column in 0..width {
        let place = f64::from(column) / f64::from(width - 1);
        match heat::colour(theme, depth, place) {
            Some(colour) => buffer.set_string(area.x + column, area.y, " ", Style::new().bg(colour)),
            None => buffer.set_string(area.x + column, area.y, heat::shade(theme, depth, place), Style::new()),
        }
    }
    if area.height < 2 {
        return;
    }
    for (n, quarter) in [0.0, 0.25, 0.5, 0.75, 1.0].into_iter().enumerate() {
        let text = format!("{}{}", percent(retention_at(quarter)), if n == 4 { "%" } else { "" });
        let at = (f64::from(width - 1) * quarter).round() as u16;
        let at = if n == 4 { at + 1 - text.len() as u16 } else { at };
        buffer.set_string(area.x + at, area.y + 1, text, theme.style(Role::Dim));
    }
    let title = " kept";
    if area.width >= width + title.len() as u16 {
        buffer.set_string(area.x + width, area.y + 1, title, theme.style(Role::Dim));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::theme::Themes;
    use super::*;

    fn map(theme: &Theme, depth: Depth, layers: usize, heads: usize) -> Heatmap<'_> {
        let cell = |l: usize, h: usize| Some(((l * heads + h) as f64 + 0.5) / (layers * heads) as f64);
        let retention = (0..layers).map(|l| (0..heads).map(|h| cell(l, h)).collect()).collect();
        Heatmap { theme, depth, retention, chosen: None }
    }

    #[test]
    fn thirty_six_layers_of_eight_heads_fit_a_small_screen() {
        for name in ["dark", "ascii"] {
            let theme = Themes::default().load(name).unwrap();
            for depth in [Depth::Rgb, Depth::Indexed, Depth::Sixteen, Depth::Mono, Depth::Ascii] {
                let map = map(&theme, depth, 36, 8);
                assert!(map.height(38, 19) <= 19, "{depth:?}");
                assert!(map.width(38, 19) <= 38);
                let area = Rect::new(0, 0, 38, 19);
                let mut buffer = Buffer::empty(area);
                map.draw(&mut buffer, area, 0);
                let text: String = buffer.content().iter().map(|c| c.symbol()).collect();
                assert!(!text.contains(" of 36"), "{depth:?} has to scroll");
                assert!(text.contains("L34") || text.contains("L35"));
            }
        }
    }

    #[test]
    fn any_shape_draws_in_any_area() {
        let theme = Themes::default().load("dark").unwrap();
        for depth in [Depth::Rgb, Depth::Mono, Depth::Ascii] {
            for (layers, heads) in [(1usize, 1usize), (8, 2), (8, 4), (36, 8), (80, 64), (0, 0)] {
                for chosen in [None, Some((layers.saturating_sub(1), heads.saturating_sub(1)))] {
                    let map = Heatmap { chosen, ..map(&theme, depth, layers, heads) };
                    for (w, h) in [(0, 0), (1, 1), (5, 3), (20, 10), (38, 30), (200, 60)] {
                        let area = Rect::new(0, 0, w, h);
                        let mut buffer = Buffer::empty(Rect::new(0, 0, w.max(1), h.max(1)));
                        map.draw(&mut buffer, area, 7);
                        map.width(w.into(), h.into());
                        draw_scale(&mut buffer, area, &theme, depth);
                    }
                }
            }
        }
    }

    #[test]
    fn small_models_get_tiles_with_their_percentage() {
        let theme = Themes::default().load("dark").unwrap();
        let map = map(&theme, Depth::Rgb, 8, 2);
        assert_eq!(map.form(38, 30), Form::Tiles { width: 8, height: 2 });
        let area = Rect::new(0, 0, 38, 20);
        let mut buffer = Buffer::empty(area);
        map.draw(&mut buffer, area, 0);
        let row: String = (0..38).map(|x| buffer[(x, 1)].symbol()).collect();
        assert_eq!(row.trim_end(), "L0    3       9");
    }
}
