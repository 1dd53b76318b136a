//! Plots accuracy over cost on a terminal: step frontiers in Braille dots, with a letter at each
//! point. `lab/plot.py` draws the same results as images.

use super::grid::Row;
use super::report::{Cost, Method, Panel, panels};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{Canvas, Line};

/// Characters of the plot.
const COLUMNS: u16 = 64;
const LINES: u16 = 14;

/// The plots of all tasks, one below the other.
pub fn plots(rows: &[Row], cost: Cost) -> String {
    panels(rows).iter().map(|panel| plot(panel, cost)).collect()
}

/// Costs have a logarithmic axis, on which one below 1 counts as 1.
fn plot(panel: &Panel<'_>, cost: Cost) -> String {
    let costs = || panel.methods.iter().flat_map(|m| &m.rows).map(|row| Method::point(row, cost).0.max(1.0).log10());
    let (low, high) = (costs().fold(f64::INFINITY, f64::min) - 0.05, costs().fold(0.0, f64::max) + 0.05);
    let letter = |i: usize| char::from(b'A' + (i % 26) as u8).to_string();
    let canvas = Canvas::default().marker(Marker::Braille).x_bounds([low, high]).y_bounds([0.0, 100.0]).paint(|ctx| {
        for (i, method) in panel.methods.iter().enumerate() {
            let points: Vec<_> = method.frontier(cost).iter().map(|&(x, y)| (x.max(1.0).log10(), y)).collect();
            for (at, &(x, y)) in points.iter().enumerate() {
                let (next_x, next_y) = points.get(at + 1).copied().unwrap_or((high, y));
                ctx.draw(&Line { x1: x, y1: y, x2: next_x, y2: y, ..Line::default() });
                ctx.draw(&Line { x1: next_x, y1: y, x2: next_x, y2: next_y, ..Line::default() });
                ctx.print(x, y, letter(i));
            }
        }
    });
    let mut drawn = Buffer::empty(Rect::new(0, 0, COLUMNS, LINES));
    canvas.render(drawn.area, &mut drawn);
    let mut out = format!("{}: accuracy against {}\n", panel.task, cost.title());
    for (line, cells) in drawn.content.chunks(usize::from(COLUMNS)).enumerate() {
        let percent = [(0, "100 %"), (LINES / 2, " 50 %"), (LINES - 1, "  0 %")];
        let percent = percent.iter().find(|(at, _)| usize::from(*at) == line).map_or("", |(_, text)| text);
        let dots: String = cells.iter().map(|cell| cell.symbol()).collect();
        out += &format!("{percent:5} │{}\n", dots.trim_end());
    }
    out += &format!("      └{}\n{}\n", "─".repeat(usize::from(COLUMNS)), ticks(low, high));
    let names: Vec<String> =
        panel.methods.iter().enumerate().map(|(i, m)| format!("{} {}", letter(i), m.policy)).collect();
    out + &format!("       {}\n\n", names.join("   "))
}

/// Round numbers below the axis, 1, 2 or 5 times a power of ten, as far as they fit.
fn ticks(low: f64, high: f64) -> String {
    let mut line = " ".repeat(7);
    for tick in (0..16).flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(power))) {
        let at = 7 + ((tick.log10() - low).max(0.0) / (high - low) * f64::from(COLUMNS - 1)) as usize;
        if (low..=high).contains(&tick.log10()) && (line.trim().is_empty() || at >= line.len() + 2) {
            let unit = [(1e9, "G"), (1e6, "M"), (1e3, "K")].into_iter().find(|(size, _)| tick >= *size);
            let (size, unit) = unit.unwrap_or((1.0, ""));
            line = format!("{line:at$}{}{unit}", tick / size);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    #[test]
    fn a_plot_has_its_letters_and_steps() {
        let rows = [
            row("t", "dense", 1000.0, 0.2),
            row("t", "dense", 4000.0, 0.9),
            row("t", "dms", 100.0, 0.3),
            row("t", "dms", 900.0, 1.0),
        ];
        let text = plots(&rows, Cost::Reads);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), usize::from(LINES) + 5);
        assert!(lines[1].starts_with("100 % │") && lines[1].contains('B'), "{text}");
        assert!(lines[17].contains("A dense   B dms"), "{text}");
        assert!(lines[16].contains(" 200 ") && lines[16].contains("1K"), "{text}");
        assert!(text.contains(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{text}");
        assert_eq!(plots(&[], Cost::Peak), "");
    }
}
