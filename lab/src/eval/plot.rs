//! Accuracy over cost as an SVG picture: a panel for each task, a step frontier for each policy, the cost on a logarithmic axis.

use super::grid::Row;
use super::report::{Cost, Method, Panel, panels};

const WIDTH: f64 = 760.0;
/// Height of a panel, and the part of it that is the plot.
const PANEL: f64 = 330.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 7] = ["#555555", "#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#117a65"];

/// A logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    /// The axis that shows these costs. A cost below 1 counts as 1.
    pub fn of(costs: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for x in costs.map(|x| x.max(1.0).ln()) {
            (low, high) = (low.min(x), high.max(x));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let margin = (0.04 * (high - low)).max(0.1);
        Self { low: low - margin, high: high + margin }
    }

    /// Place of a cost, from 0 to 1.
    pub fn at(&self, cost: f64) -> f64 {
        ((cost.max(1.0).ln() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Round numbers on the axis: 1, 2 or 5 times a power of ten.
    pub fn ticks(&self) -> Vec<f64> {
        let rounds = (0..16).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
        rounds.filter(|x| (self.low..=self.high).contains(&x.ln())).collect()
    }
}

/// The picture of all tasks.
pub fn svg(rows: &[Row], cost: Cost) -> String {
    let panels = panels(rows);
    let height = PANEL * panels.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, panel) in panels.iter().enumerate() {
        out.push_str(&format!("<g transform=\"translate(0 {})\">\n", PANEL * i as f64));
        draw_panel(&mut out, panel, cost);
        out.push_str("</g>\n");
    }
    out + "</svg>\n"
}

fn draw_panel(out: &mut String, panel: &Panel<'_>, cost: Cost) {
    let all = panel.methods.iter().flat_map(|m| &m.rows);
    let axis = LogAxis::of(all.map(|row| Method::point(row, cost).0));
    let x = |cost: f64| LEFT + axis.at(cost) * (WIDTH - LEFT - RIGHT);
    let y = |percent: f64| PANEL - BOTTOM - percent / 100.0 * (PANEL - TOP - BOTTOM);
    let title = format!("{}: accuracy against {}", panel.task, cost.title());
    text(out, ((WIDTH - RIGHT + LEFT) / 2.0, 22.0), ("middle", 12), "#000000", &title);
    for percent in [0.0, 20.0, 40.0, 60.0, 80.0, 100.0] {
        line(out, (LEFT, y(percent)), (WIDTH - RIGHT, y(percent)), "#e5e5e5");
        text(out, (LEFT - 6.0, y(percent) + 4.0), ("end", 11), "#444444", &format!("{percent} %"));
    }
    for tick in axis.ticks() {
        line(out, (x(tick), y(0.0)), (x(tick), y(100.0)), "#e5e5e5");
        text(out, (x(tick), y(0.0) + 16.0), ("middle", 11), "#444444", &short(tick));
    }
    for (i, method) in panel.methods.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let label_y = TOP + 14.0 + 18.0 * i as f64;
        out.push_str(&format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>\n",
            WIDTH - RIGHT + 16.0,
            label_y - 4.0
        ));
        text(out, (WIDTH - RIGHT + 26.0, label_y), ("start", 11), "#000000", method.policy);
        let frontier = method.frontier(cost);
        let mut path = String::new();
        for (k, &(cost, percent)) in frontier.iter().enumerate() {
            let command = if k == 0 {
                format!("M{:.1} {:.1}", x(cost), y(percent))
            } else {
                format!("H{:.1} V{:.1}", x(cost), y(percent))
            };
            path.push_str(&command);
        }
        if !path.is_empty() {
            out.push_str(&format!(
                "<path d=\"{path} H{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n",
                WIDTH - RIGHT
            ));
        }
        for row in &method.rows {
            let (cost, percent) = Method::point(row, cost);
            let (cx, cy) = (x(cost), y(percent));
            out.push_str(&format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2.5\" fill=\"{colour}\"/>\n"));
        }
        for row in method.best(cost) {
            let (cost, percent) = Method::point(row, cost);
            // Labels of neighbouring methods are on different sides of their points.
            let (dx, dy, anchor) = if i % 2 == 0 { (4.0, 11.0, "start") } else { (-4.0, -4.0, "end") };
            if percent > 0.0 {
                text(out, (x(cost) + dx, y(percent) + dy), (anchor, 9), colour, &row.label());
            }
        }
    }
}

/// Writes a text at a place, with an anchor and a size.
fn text(out: &mut String, (x, y): (f64, f64), (anchor, size): (&str, u32), colour: &str, text: &str) {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    out.push_str(&format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{colour}\">{text}</text>\n"
    ));
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    out.push_str(&format!(
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
        from.0, from.1, to.0, to.1
    ));
}

/// A number with few digits: `500`, `20K`, `5M`.
pub fn short(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{}G", n / 1e9),
        n if n >= 1e6 => format!("{}M", n / 1e6),
        n if n >= 1e3 => format!("{}K", n / 1e3),
        n => format!("{n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    #[test]
    fn a_picture_has_a_panel_for_each_task_and_escapes_names() {
        let rows = [row("a<b", "dense", 1000.0, 0.2), row("a<b", "dms", 100.0, 0.3), row("c", "dense", 50.0, 1.0)];
        let picture = svg(&rows, Cost::Reads);
        assert_eq!(picture.matches("<g ").count(), 2);
        assert!(picture.contains("a&lt;b: accuracy") && !picture.contains("a<b"));
        assert_eq!(picture.matches("<path ").count(), 3);
        assert!(picture.contains(">512-2-4<") && picture.contains(">500<") && picture.contains(">1K<"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        assert!(svg(&[], Cost::Peak).ends_with("</svg>\n"));
    }

    #[test]
    fn an_axis_is_logarithmic() {
        let axis = LogAxis::of([10.0, 1000.0].into_iter());
        assert!((axis.at(100.0) - 0.5).abs() < 1e-9 && axis.at(10.0) < 0.05 && axis.at(1000.0) > 0.95);
        assert_eq!(axis.ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert!((LogAxis::of([7.0].into_iter()).at(7.0) - 0.5).abs() < 1e-9);
    }
}
