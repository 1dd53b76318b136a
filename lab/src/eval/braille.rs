//! Accuracy over cost on a terminal: the step frontiers in braille dots, 2 x 4 to a character, with a letter at each point.

use super::grid::Row;
use super::plot::{LogAxis, short};
use super::report::{Cost, Method, Panel, panels};

/// Characters of the plot.
const COLUMNS: usize = 64;
const LINES: usize = 14;

/// The plots of all tasks, one below the other.
pub fn plots(rows: &[Row], cost: Cost) -> String {
    panels(rows).iter().map(|panel| plot(panel, cost)).collect()
}

fn plot(panel: &Panel<'_>, cost: Cost) -> String {
    let all = panel.methods.iter().flat_map(|m| &m.rows);
    let axis = LogAxis::of(all.map(|row| Method::point(row, cost).0));
    let mut canvas = Canvas::default();
    let x = |cost: f64| (axis.at(cost) * (2 * COLUMNS - 1) as f64).round() as usize;
    let y = |percent: f64| ((1.0 - percent.clamp(0.0, 100.0) / 100.0) * (4 * LINES - 1) as f64).round() as usize;
    for (i, method) in panel.methods.iter().enumerate() {
        let mut last: Option<(usize, usize)> = None;
        for (cost, percent) in method.frontier(cost) {
            let (px, py) = (x(cost), y(percent));
            if let Some((lx, ly)) = last {
                (lx..=px).for_each(|dx| canvas.dot(dx, ly));
                (py..=ly).for_each(|dy| canvas.dot(px, dy));
            }
            canvas.letter(px, py, letter(i));
            last = Some((px, py));
        }
        if let Some((lx, ly)) = last {
            (lx..2 * COLUMNS).for_each(|dx| canvas.dot(dx, ly));
        }
    }
    let mut out = format!("{}: accuracy against {}\n", panel.task, cost.title());
    for (i, line) in canvas.lines().iter().enumerate() {
        let percent = match i {
            0 => "100 %",
            _ if i == LINES / 2 => " 50 %",
            _ if i == LINES - 1 => "  0 %",
            _ => "     ",
        };
        out.push_str(&format!("{percent} │{}\n", line.trim_end()));
    }
    out.push_str(&format!("      └{}\n", "─".repeat(COLUMNS)));
    out.push_str(&format!("       {}\n", ticks(&axis).trim_end()));
    let names: Vec<String> =
        panel.methods.iter().enumerate().map(|(i, m)| format!("{} {}", letter(i), m.policy)).collect();
    out + &format!("       {}\n\n", names.join("   "))
}

fn letter(method: usize) -> char {
    (b'A' + (method % 26) as u8) as char
}

/// The numbers below the axis, as many as have room.
fn ticks(axis: &LogAxis) -> String {
    let mut line = vec![' '; COLUMNS + 8];
    let mut free = 0;
    for tick in axis.ticks() {
        let text = short(tick);
        let at = (axis.at(tick) * (COLUMNS - 1) as f64) as usize;
        if at >= free {
            text.chars().enumerate().for_each(|(i, c)| line[at + i] = c);
            free = at + text.len() + 2;
        }
    }
    line.into_iter().collect()
}

struct Canvas {
    dots: [[u8; COLUMNS]; LINES],
    letters: [[Option<char>; COLUMNS]; LINES],
}

impl Default for Canvas {
    fn default() -> Self {
        Self { dots: [[0; COLUMNS]; LINES], letters: [[None; COLUMNS]; LINES] }
    }
}

impl Canvas {
    fn dot(&mut self, x: usize, y: usize) {
        // Dots 1, 2, 3, 7 are on the left and 4, 5, 6, 8 on the right.
        const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        if let Some(cell) = self.dots.get_mut(y / 4).and_then(|row| row.get_mut(x / 2)) {
            *cell |= BITS[x % 2][y % 4];
        }
    }

    /// Writes a letter over the dots; the first one stays.
    fn letter(&mut self, x: usize, y: usize, c: char) {
        if let Some(cell) = self.letters.get_mut(y / 4).and_then(|row| row.get_mut(x / 2)) {
            cell.get_or_insert(c);
        }
    }

    fn lines(&self) -> Vec<String> {
        let cell = |dots: u8, letter: Option<char>| match (letter, dots) {
            (Some(c), _) => c,
            (None, 0) => ' ',
            (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
        };
        let row = |i: usize| (0..COLUMNS).map(|k| cell(self.dots[i][k], self.letters[i][k])).collect();
        (0..LINES).map(row).collect()
    }
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
        assert_eq!(lines.len(), LINES + 5);
        assert!(lines[1].starts_with("100 % │") && lines[1].contains('B'), "{text}");
        assert!(lines[LINES + 3].contains("A dense   B dms"), "{text}");
        assert!(lines[LINES + 2].contains("1K") && lines[LINES + 2].contains("100"), "{text}");
        let width = |l: &&str| l.chars().count();
        assert!(lines.iter().skip(1).all(|l| width(l) <= COLUMNS + 15), "{text}");
        assert!(text.contains('\u{28c0}') || text.contains('⠤') || text.contains('⠉') || text.contains('⠒'), "{text}");
        assert_eq!(plots(&[], Cost::Peak), "");
    }
}
