//! The heatmap of layers and heads, in the form that fits and reads best: numbered tiles, plain
//! cells or half blocks (two layers a row), folded into blocks of columns where there are more
//! layers than rows. Always with its scale.

use super::prelude::*;
use crate::ui::heat::{self, level, retention_at};
use crate::ui::numbers::percent;
use std::ops::Range;

/// Data to draw: a share of every head, and the chosen cell.
pub struct Heatmap<'a> {
    pub theme: &'a Theme,
    pub depth: Depth,
    /// `[n_layers][n_heads]` from 0 to 1: the retention, or the number of pages divided by the
    /// greatest; `None` before the first token, and where nothing is counted.
    pub shares: Vec<Vec<Option<f64>>>,
    /// What the shares are of.
    pub unit: Unit,
    pub chosen: Option<(usize, usize)>,
    /// Nothing was decided yet: all is kept, and drawn without the scale's colours.
    pub undecided: bool,
}

/// What the cells count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Tokens kept, in percent.
    Kept,
    /// Pages, so many in the greatest cell.
    Pages(u32),
}

impl Unit {
    /// The number of a cell, in at most `columns` columns as far as thousands allow.
    fn number(self, share: f64, columns: usize) -> String {
        match self {
            Unit::Kept => percent(share).to_string(),
            Unit::Pages(most) => {
                let pages = (share * f64::from(most)).round() as u64;
                let text = pages.to_string();
                if text.len() > columns { format!("{}k", pages / 1000) } else { text }
            }
        }
    }

    /// Words for the ends of the scale in so many columns, and for its numbers.
    fn words(self, columns: u16) -> ([&'static str; 2], &'static str) {
        match self {
            Unit::Kept if columns >= WIDE_SCALE => (["forgets most ", " keeps all"], KEPT),
            Unit::Kept => (["few ", " keeps all"], KEPT),
            Unit::Pages(_) if columns >= WIDE_SCALE => (["fetched none ", " most"], " pages"),
            Unit::Pages(_) => (["none ", " fetched"], " pages"),
        }
    }

    /// Places of the scale that have their number below.
    fn labels(self, columns: u16) -> &'static [f64] {
        match self {
            Unit::Kept if columns >= 20 => &[0.0, 0.25, 0.5, 0.75, 1.0],
            Unit::Kept => &[0.0, 0.5, 1.0],
            Unit::Pages(0) => &[0.0],
            Unit::Pages(_) => &[0.0, 1.0],
        }
    }
}

/// Unit of the scale of what is kept.
const KEPT: &str = " % kept";

/// Columns between two blocks of layers.
const GAP: usize = 1;
/// Most blocks of layers side by side.
const MAX_BLOCKS: usize = 8;

/// How many cells there are, and whether they may have a colour: what the form depends on.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub colour: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// With its percentage; the last column is a gap.
    Tile,
    /// A filled or shaded cell.
    Block,
    /// Half a row high: two layers a row.
    Half,
}

/// Layers are rows and heads are columns; layers that do not fit continue in the next block of
/// columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    cell: Cell,
    /// Columns and rows of a cell.
    width: usize,
    height: usize,
    blocks: usize,
}

impl Form {
    fn layers_per_row(self) -> usize {
        if self.cell == Cell::Half { 2 } else { 1 }
    }

    /// Layers of a block, where all of them are in view.
    fn layers_per_block(self, layers: usize) -> usize {
        layers.div_ceil(self.blocks).next_multiple_of(self.layers_per_row())
    }

    /// Rows of `layers` layers below each other.
    fn rows(self, layers: usize) -> usize {
        layers.div_ceil(self.layers_per_row()) * self.height
    }
}

impl Shape {
    /// Columns of the layer's name.
    fn label(self) -> usize {
        2 + self.layers.saturating_sub(1).to_string().len()
    }

    /// The form that reads best among those that show every layer: percentages before plain cells,
    /// few blocks before many. Where none does, the densest one, which scrolls.
    fn form(self, columns: usize, rows: usize) -> Form {
        // Narrowest and widest cell of each kind, and in how many blocks it is of use.
        let coloured = [(Cell::Tile, 4, 8, 4), (Cell::Block, 2, 3, MAX_BLOCKS), (Cell::Half, 1, 3, MAX_BLOCKS)];
        let shaded = [(Cell::Tile, 4, 8, 4), (Cell::Block, 2, 3, MAX_BLOCKS), (Cell::Block, 1, 1, MAX_BLOCKS)];
        let layers = self.layers.max(1);
        let kinds = if self.colour { coloured } else { shaded };
        for (cell, least, most, blocks) in kinds {
            for blocks in 1..=blocks.min(layers) {
                let form = Form { cell, width: self.cell_width(columns, blocks).min(most), height: 1, blocks };
                if form.width >= least && form.rows(form.layers_per_block(layers)) <= rows {
                    let tall = cell == Cell::Tile && blocks == 1 && layers <= 12 && rows >= 2 * layers;
                    return Form { height: if tall { 2 } else { 1 }, ..form };
                }
            }
        }
        let cell = if self.colour { Cell::Half } else { Cell::Block };
        let blocks = (1..=MAX_BLOCKS).rev().find(|b| self.cell_width(columns, *b) >= 1).unwrap_or(1);
        Form { cell, width: self.cell_width(columns, blocks).clamp(1, 3), height: 1, blocks }
    }

    /// Widest cell of this many blocks in this many columns.
    fn cell_width(self, columns: usize, blocks: usize) -> usize {
        ((columns + GAP) / blocks).saturating_sub(GAP + self.label()) / self.heads.max(1)
    }

    /// Whether the map says as much in fewer rows: the same cells in as many blocks.
    pub fn says_as_much(self, columns: usize, fewer: usize, rows: usize) -> bool {
        let form = |rows: usize| {
            let form = self.form(columns, rows.saturating_sub(1));
            (form.cell, form.blocks)
        };
        form(fewer) == form(rows)
    }

    fn block_width(self, form: Form) -> usize {
        self.label() + self.heads * form.width
    }

    /// Columns that the map takes of at most `columns`.
    pub fn width(self, columns: usize, rows: usize) -> usize {
        let form = self.form(columns, rows.saturating_sub(1));
        (form.blocks * (self.block_width(form) + GAP) - GAP).min(columns)
    }

    /// Rows that the map wants with this many columns, its head included.
    pub fn height(self, columns: usize, rows: usize) -> usize {
        let form = self.form(columns, rows.saturating_sub(1));
        1 + form.rows(form.layers_per_block(self.layers))
    }
}

impl Heatmap<'_> {
    pub fn shape(&self) -> Shape {
        let heads = self.shares.iter().map(Vec::len).max().unwrap_or(0);
        Shape { layers: self.shares.len(), heads, colour: self.depth.has_colour() }
    }

    /// Draws the scale of its colours or shades.
    pub fn draw_scale(&self, buffer: &mut Buffer, area: Rect) {
        scale(buffer, area, (self.theme, self.depth), self.unit, self.unit.words(area.width));
    }

    /// Draws the head and as many layers as fit, from `scroll` on or around the chosen one.
    pub fn draw(&self, buffer: &mut Buffer, area: Rect, scroll: usize) {
        let shape = self.shape();
        if area.height < 2 || shape.layers == 0 {
            return;
        }
        let rows = usize::from(area.height) - 1;
        let form = shape.form(usize::from(area.width), rows);
        let mut per_block = form.layers_per_block(shape.layers);
        let mut first = 0;
        let scrolls = form.rows(per_block) > rows;
        if scrolls {
            per_block = (rows - 1) * form.layers_per_row();
            first = self.first(per_block * form.blocks, scroll, form.layers_per_row());
        }
        for block in 0..form.blocks {
            let layers = first + block * per_block..(first + (block + 1) * per_block).min(shape.layers);
            let x = area.x + (block * (shape.block_width(form) + GAP)) as u16;
            if layers.is_empty() || x >= area.right() {
                break;
            }
            let area = Rect { x, width: area.right() - x, ..area };
            self.block(buffer, area, form, layers);
        }
        if scrolls {
            self.more_mark(buffer, area, first, per_block * form.blocks);
        }
    }

    /// One block: the heads' names, and below them its layers.
    fn block(&self, buffer: &mut Buffer, area: Rect, form: Form, layers: Range<usize>) {
        let x = area.x + self.shape().label() as u16;
        self.head(buffer, Rect { x, width: area.right().saturating_sub(x), ..area }, form.width);
        let last = layers.end;
        for (n, layer) in layers.step_by(form.layers_per_row()).enumerate() {
            let y = area.y + 1 + (n * form.height) as u16;
            let pair = form.cell == Cell::Half && layer + 1 < last;
            let chosen = self.chosen.filter(|(l, _)| *l == layer || (pair && *l == layer + 1));
            let style = self.theme.style(if chosen.is_some() { Role::Key } else { Role::Dim });
            let name = format!("L{}", chosen.map_or(layer, |(l, _)| l));
            buffer.set_stringn(area.x, y, name, usize::from(area.width), style);
            for head in 0..self.shares[layer].len() {
                let at = x + (head * form.width) as u16;
                if at + form.width as u16 > area.right() {
                    break;
                }
                match form.cell {
                    Cell::Tile => self.tile(buffer, at, y, form, (layer, head)),
                    Cell::Block => self.shaded(buffer, at, y, form.width, (layer, head)),
                    Cell::Half => self.halves(buffer, at, y, form.width, (layer, head)),
                }
            }
        }
    }

    fn head(&self, buffer: &mut Buffer, area: Rect, width: usize) {
        for head in 0..self.shape().heads {
            let at = area.x + (head * width) as u16;
            if at + width as u16 > area.right() {
                break;
            }
            let name = if width >= 3 { format!("h{head}") } else { (head % 10).to_string() };
            let name = format!("{name:^w$}", w = if width >= 4 { width - 1 } else { width });
            let chosen = self.chosen.is_some_and(|(_, h)| h == head);
            let style = self.theme.style(if chosen { Role::Key } else { Role::Dim });
            buffer.set_stringn(at, area.y, name, width, style);
        }
    }

    /// The first layer shown, where only `visible` fit.
    fn first(&self, visible: usize, scroll: usize, step: usize) -> usize {
        let last = self.shares.len().saturating_sub(visible);
        let first = match self.chosen {
            Some((layer, _)) => layer.saturating_sub(visible / 2).min(last),
            None => scroll.min(last),
        };
        first / step * step
    }

    /// Says on the last row that there is more above or below.
    fn more_mark(&self, buffer: &mut Buffer, area: Rect, first: usize, visible: usize) {
        let layers = self.shares.len();
        let text = format!("L{first}-L{} of {layers}", (first + visible).min(layers).saturating_sub(1));
        let (y, width) = (area.bottom() - 1, usize::from(area.width));
        buffer.set_stringn(area.x, y, " ".repeat(width), width, Style::new());
        buffer.set_stringn(area.x, y, text, width, self.theme.style(Role::Key));
    }

    fn cell(&self, (layer, head): (usize, usize)) -> Option<f64> {
        self.shares.get(layer)?.get(head).copied()?
    }

    /// The colour of a cell without a number.
    fn colour(&self, retention: f64) -> Option<Color> {
        let undecided = heat::undecided(self.theme, self.depth).bg.filter(|_| self.undecided);
        undecided.or_else(|| heat::colour(self.theme, self.depth, level(retention)))
    }

    fn tile(&self, buffer: &mut Buffer, x: u16, y: u16, form: Form, at: (usize, usize)) {
        let cell = self.cell(at);
        let inner = form.width - 1;
        let chosen = self.chosen == Some(at);
        let style = match cell {
            _ if chosen => self.theme.style(Role::Selected).add_modifier(Modifier::BOLD),
            Some(_) if self.undecided => heat::undecided(self.theme, self.depth),
            Some(r) => heat::text_on(self.theme, self.depth, level(r)),
            None => self.theme.style(Role::Dim),
        };
        let number = cell.map_or("-".to_owned(), |r| self.unit.number(r, inner));
        // Without colour, a bar shows the level.
        let bar = cell.filter(|_| style.bg.is_none() && inner >= 5 && !chosen && self.depth == Depth::Mono);
        let text = match bar {
            Some(r) => {
                format!("{} {number:>w$}", heat::shade(self.theme, self.depth, r), w = inner - 2)
            }
            None => format!("{number:^inner$}"),
        };
        buffer.set_stringn(x, y, &text, inner, style);
        if form.height == 2 && style.bg.is_some() {
            buffer.set_stringn(x, y + 1, " ".repeat(inner), inner, style);
        }
    }

    fn shaded(&self, buffer: &mut Buffer, x: u16, y: u16, width: usize, at: (usize, usize)) {
        let chosen = self.chosen == Some(at);
        let mut style = if chosen { self.theme.style(Role::Selected) } else { Style::new() };
        let cell = self.cell(at);
        let text = match (cell, cell.and_then(|r| self.colour(r))) {
            (Some(_), Some(_)) if chosen => "x".repeat(width),
            (Some(_), Some(colour)) => {
                style = style.bg(colour);
                " ".repeat(width)
            }
            (Some(r), None) if self.depth == Depth::Ascii => heat::shade(self.theme, self.depth, r).to_owned(),
            (Some(r), None) => heat::shade(self.theme, self.depth, r).repeat(width.min(2)),
            (None, _) => "-".to_owned(),
        };
        buffer.set_stringn(x, y, text, width, style);
    }

    /// The layer in the upper half of a row, and the next one in the lower half.
    fn halves(&self, buffer: &mut Buffer, x: u16, y: u16, width: usize, (layer, head): (usize, usize)) {
        let (upper, lower) = (self.cell((layer, head)), self.cell((layer + 1, head)));
        let colour = |cell: Option<f64>| cell.and_then(|r| self.colour(r));
        let mut style = Style::new();
        (style.fg, style.bg) = (colour(upper), colour(lower));
        let mut block = if upper.is_none() && lower.is_none() { "·" } else { "▀" };
        if upper.is_none() && lower.is_some() {
            (style.fg, block) = (style.bg.take(), "▄");
        }
        buffer.set_stringn(x, y, block.repeat(width), width, style);
        // The chosen one has a sign on it, in the half that it is.
        if let Some((chosen, _)) = self.chosen.filter(|c| c.1 == head && (c.0 == layer || c.0 == layer + 1)) {
            let on = level(self.cell((chosen, head)).unwrap_or(0.0));
            let style = heat::text_on(self.theme, self.depth, on).add_modifier(Modifier::BOLD);
            buffer.set_string(x + width as u16 / 2, y, if chosen == layer { "▴" } else { "▾" }, style);
        }
    }
}

/// Rows of the scale.
pub const SCALE_ROWS: u16 = 2;
/// Columns from which on its ends are named in full.
const WIDE_SCALE: u16 = 38;

/// The scale of what is kept, with words for its ends.
pub fn draw_scale_between(buffer: &mut Buffer, area: Rect, theme: &Theme, depth: Depth, ends: [&str; 2]) {
    scale(buffer, area, (theme, depth), Unit::Kept, (ends, KEPT));
}

/// The colour or shade of each share, words for its ends and their numbers.
fn scale(
    buffer: &mut Buffer,
    area: Rect,
    (theme, depth): (&Theme, Depth),
    unit: Unit,
    ([none, full], numbers): ([&str; 2], &str),
) {
    let width = area.width.min(46).saturating_sub((none.len() + full.len()) as u16);
    if area.height == 0 || width < 8 {
        return;
    }
    let dim = theme.style(Role::Dim);
    let x = area.x + none.len() as u16;
    buffer.set_string(area.x, area.y, none, dim);
    buffer.set_string(x + width, area.y, full, dim);
    for column in 0..width {
        let place = f64::from(column) / f64::from(width - 1);
        match heat::colour(theme, depth, place) {
            Some(colour) => buffer.set_string(x + column, area.y, " ", Style::new().bg(colour)),
            None => {
                let shade = heat::shade(theme, depth, retention_at(place));
                buffer.set_string(x + column, area.y, shade, Style::new());
            }
        }
    }
    if area.height < 2 {
        return;
    }
    for &place in unit.labels(width) {
        let text = unit.number(retention_at(place), usize::from(width));
        let at = (f64::from(width - 1) * place).round() as u16;
        let at = if place == 1.0 { at + 1 - text.len() as u16 } else { at };
        buffer.set_string(x + at, area.y + 1, text, dim);
    }
    buffer.set_string(x + width, area.y + 1, numbers, dim);
}

#[cfg(test)]
mod tests {
    use super::super::super::theme::Themes;
    use super::*;

    fn map(theme: &Theme, depth: Depth, layers: usize, heads: usize) -> Heatmap<'_> {
        let cell = |l: usize, h: usize| Some(((l * heads + h) as f64 + 0.5) / (layers * heads) as f64);
        let shares = (0..layers).map(|l| (0..heads).map(|h| cell(l, h)).collect()).collect();
        Heatmap { theme, depth, shares, unit: Unit::Kept, chosen: None, undecided: false }
    }

    #[test]
    fn thirty_six_layers_of_eight_heads_fit_a_small_screen() {
        for name in ["dark", "ascii"] {
            let theme = Themes::default().load(name).unwrap();
            for (depth, w, h) in [
                (Depth::Rgb, 26, 13),
                (Depth::Indexed, 26, 13),
                (Depth::Sixteen, 38, 19),
                (Depth::Mono, 38, 19),
                (Depth::Ascii, 26, 19),
            ] {
                let map = map(&theme, depth, 36, 8);
                assert!(map.shape().height(w, h) <= h, "{depth:?}");
                assert!(map.shape().width(w, h) <= w);
                let area = Rect::new(0, 0, w as u16, h as u16);
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
                let last = Some((layers.saturating_sub(1), heads.saturating_sub(1)));
                for (chosen, unit) in [(None, Unit::Kept), (last, Unit::Pages(1234)), (last, Unit::Pages(0))] {
                    let map = Heatmap { chosen, unit, ..map(&theme, depth, layers, heads) };
                    for (w, h) in [(0, 0), (1, 1), (5, 3), (20, 10), (38, 30), (200, 60)] {
                        let area = Rect::new(0, 0, w, h);
                        let mut buffer = Buffer::empty(Rect::new(0, 0, w.max(1), h.max(1)));
                        map.draw(&mut buffer, area, 7);
                        map.shape().width(w.into(), h.into());
                        map.draw_scale(&mut buffer, area);
                    }
                }
            }
        }
    }

    #[test]
    fn small_models_get_tiles_with_their_percentage() {
        let theme = Themes::default().load("dark").unwrap();
        let map = map(&theme, Depth::Rgb, 8, 2);
        assert_eq!(map.shape().form(38, 30), Form { cell: Cell::Tile, width: 8, height: 2, blocks: 1 });
        let area = Rect::new(0, 0, 38, 20);
        let mut buffer = Buffer::empty(area);
        map.draw(&mut buffer, area, 0);
        let row: String = (0..38).map(|x| buffer[(x, 1)].symbol()).collect();
        assert_eq!(row.trim_end(), "L0    3       9");
    }

    #[test]
    fn many_layers_use_the_width_there_is() {
        let shape = Shape { layers: 36, heads: 8, colour: true };
        let form = |columns, rows| shape.form(columns, rows);
        // One block with percentages where the rows are enough, else two, else plain cells, else
        // halves.
        assert_eq!(form(68, 40), Form { cell: Cell::Tile, width: 8, height: 1, blocks: 1 });
        assert_eq!(form(91, 35), Form { cell: Cell::Tile, width: 5, height: 1, blocks: 2 });
        assert_eq!(form(41, 20), Form { cell: Cell::Block, width: 2, height: 1, blocks: 2 });
        assert_eq!(form(26, 12), Form { cell: Cell::Half, width: 1, height: 1, blocks: 2 });
        let theme = Themes::default().load("dark").unwrap();
        let map = map(&theme, Depth::Rgb, 36, 8);
        let area = Rect::new(0, 0, 91, 19);
        let mut buffer = Buffer::empty(area);
        map.draw(&mut buffer, area, 0);
        let row: String = (0..91).map(|x| buffer[(x, 18)].symbol()).collect();
        assert!(row.starts_with("L17 ") && row.contains(" L35 "), "{row}");
        assert!(row.contains("100"), "{row}");
    }
}
