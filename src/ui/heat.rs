//! The heat scale: how a retention between 0 and 1 looks in what the terminal can show, from 24-bit
//! colour down to ASCII. Heat means memory: few tokens kept is quiet, all kept is loud. Knows no
//! layout.

use super::theme::Theme;
use ratatui::style::{Color, Style};

/// What a terminal can show, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    Rgb,
    Indexed,
    Sixteen,
    /// No colour, but Unicode bars.
    Mono,
    Ascii,
}

impl Depth {
    /// Reads NO_COLOR, COLORTERM and TERM through `env`.
    pub fn detect(env: &dyn Fn(&str) -> Option<String>) -> Depth {
        let get = |name: &str| env(name).unwrap_or_default().to_lowercase();
        let (colorterm, term, program) = (get("COLORTERM"), get("TERM"), get("TERM_PROGRAM"));
        if !get("NO_COLOR").is_empty() || term == "dumb" || is_serial(&term) {
            return Depth::Mono;
        }
        if colorterm.contains("truecolor") || colorterm.contains("24bit") || term.contains("direct") {
            return Depth::Rgb;
        }
        // Multiplexers pass on only what they were told; the program behind them is unknown.
        let multiplexed = term.starts_with("screen") || term.starts_with("tmux");
        let able = ["kitty", "ghostty", "wezterm", "alacritty", "foot", "contour", "rio"];
        if !multiplexed
            && (able.iter().any(|t| term.contains(t)) || ["iterm.app", "vscode"].contains(&program.as_str()))
        {
            return Depth::Rgb;
        }
        if term.contains("256") { Depth::Indexed } else { Depth::Sixteen }
    }

    pub fn has_colour(self) -> bool {
        matches!(self, Depth::Rgb | Depth::Indexed | Depth::Sixteen)
    }
}

/// Whether TERM names a terminal of DEC's line (`vt100`, `vt220`), which has neither colours nor
/// Unicode.
pub fn is_serial(term: &str) -> bool {
    term.strip_prefix("vt").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Tenths of a retention, for terminals that draw ASCII only.
const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// Place on the scale of a retention. The square root spreads the low end, where eviction works:
/// an eighth kept stands at a third of the scale.
pub fn level(retention: f64) -> f64 {
    if retention.is_finite() { retention.clamp(0.0, 1.0).sqrt() } else { 0.0 }
}

/// The retention that stands at a place of the scale.
pub fn retention_at(level: f64) -> f64 {
    level * level
}

/// The colour at a place of the scale; `None` where the terminal has none.
pub fn colour(theme: &Theme, depth: Depth, level: f64) -> Option<Color> {
    let (r, g, b) = rgb(&theme.heat_rgb, level);
    match depth {
        Depth::Rgb => Some(Color::Rgb(r, g, b)),
        Depth::Indexed => Some(Color::Indexed(nearest_indexed(r, g, b))),
        Depth::Sixteen => Some(pick(&theme.heat_ansi, level)),
        Depth::Mono | Depth::Ascii => None,
    }
}

/// A bar for a retention, or its first digit (9 is 90 % and more), for terminals without colour.
pub fn shade(theme: &Theme, depth: Depth, retention: f64) -> &'static str {
    match depth {
        Depth::Ascii => pick(&DIGITS, retention),
        _ => pick(theme.glyphs().bars, level(retention)),
    }
}

/// Style of text on a heat colour: black or white, whichever has the higher contrast.
pub fn text_on(theme: &Theme, depth: Depth, level: f64) -> Style {
    let Some(background) = colour(theme, depth, level) else { return Style::new() };
    let behind = match background {
        Color::Rgb(..) => luminance(rgb(&theme.heat_rgb, level)),
        other => luminance(xterm_rgb(other).unwrap_or_default()),
    };
    let light = contrast(behind, 0.0) > contrast(behind, 1.0);
    let foreground = match (depth, light) {
        (Depth::Rgb, true) => Color::Rgb(0, 0, 0),
        (Depth::Rgb, false) => Color::Rgb(255, 255, 255),
        (Depth::Indexed, true) => Color::Indexed(16),
        (Depth::Indexed, false) => Color::Indexed(231),
        (_, true) => Color::Black,
        (_, false) => Color::White,
    };
    Style::new().fg(foreground).bg(background)
}

/// The RGB values that xterm gives a colour; `None` for the default colour.
pub fn xterm_rgb(colour: Color) -> Option<(u8, u8, u8)> {
    Some(match colour {
        Color::Reset => return None,
        Color::Rgb(r, g, b) => (r, g, b),
        Color::Indexed(n @ 16..=231) => {
            let step = |v: u8| CUBE[usize::from(v % 6)] as u8;
            (step((n - 16) / 36), step((n - 16) / 6), step(n - 16))
        }
        Color::Indexed(n @ 232..) => (8 + 10 * (n - 232), 8 + 10 * (n - 232), 8 + 10 * (n - 232)),
        Color::Black | Color::Indexed(0) => (0, 0, 0),
        Color::Red | Color::Indexed(1) => (205, 0, 0),
        Color::Green | Color::Indexed(2) => (0, 205, 0),
        Color::Yellow | Color::Indexed(3) => (205, 205, 0),
        Color::Blue | Color::Indexed(4) => (0, 0, 238),
        Color::Magenta | Color::Indexed(5) => (205, 0, 205),
        Color::Cyan | Color::Indexed(6) => (0, 205, 205),
        Color::Gray | Color::Indexed(7) => (229, 229, 229),
        Color::DarkGray | Color::Indexed(8) => (127, 127, 127),
        Color::LightRed | Color::Indexed(9) => (255, 0, 0),
        Color::LightGreen | Color::Indexed(10) => (0, 255, 0),
        Color::LightYellow | Color::Indexed(11) => (255, 255, 0),
        Color::LightBlue | Color::Indexed(12) => (92, 92, 255),
        Color::LightMagenta | Color::Indexed(13) => (255, 0, 255),
        Color::LightCyan | Color::Indexed(14) => (0, 255, 255),
        Color::White | Color::Indexed(15) => (255, 255, 255),
    })
}

/// Relative luminance of an sRGB colour, from 0 to 1 (WCAG 2).
pub fn luminance((r, g, b): (u8, u8, u8)) -> f64 {
    let linear = |v: u8| {
        let v = f64::from(v) / 255.0;
        if v <= 0.040_45 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

/// Contrast ratio of two luminances, from 1 to 21 (WCAG 2).
pub fn contrast(a: f64, b: f64) -> f64 {
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn pick<T: Copy>(steps: &[T], level: f64) -> T {
    let at = (level * steps.len() as f64) as usize;
    steps[at.min(steps.len() - 1)]
}

fn rgb(stops: &[(u8, u8, u8)], level: f64) -> (u8, u8, u8) {
    let place = level.clamp(0.0, 1.0) * (stops.len() - 1) as f64;
    let below = (place as usize).min(stops.len() - 2);
    let t = place - below as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * t).round() as u8;
    let (a, b) = (stops[below], stops[below + 1]);
    (mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// Levels of the 216-colour cube.
const CUBE: [i32; 6] = [0, 95, 135, 175, 215, 255];

/// The nearest of the 216 colours and 24 greys of a 256-colour terminal.
pub fn nearest_indexed(r: u8, g: u8, b: u8) -> u8 {
    let target = [r, g, b].map(i32::from);
    let cube = target.map(|v| (0..6).min_by_key(|&i| (CUBE[i] - v).abs()).unwrap_or(0));
    let distance = |c: [i32; 3]| c.iter().zip(target).map(|(a, b)| (a - b).pow(2)).sum::<i32>();
    let grey = ((target.iter().sum::<i32>() / 3 - 8).clamp(0, 230) + 5) / 10;
    let grey = grey.min(23);
    if distance([8 + 10 * grey; 3]) < distance(cube.map(|i| CUBE[i])) {
        (232 + grey) as u8
    } else {
        (16 + 36 * cube[0] + 6 * cube[1] + cube[2]) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::super::theme::Themes;
    use super::*;

    #[test]
    fn the_environment_decides_the_depth() {
        let detect = |vars: &[(&str, &str)]| {
            let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            Depth::detect(&move |name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
        };
        assert_eq!(detect(&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), Depth::Rgb);
        assert_eq!(detect(&[("TERM", "xterm-256color")]), Depth::Indexed);
        assert_eq!(detect(&[("TERM", "linux")]), Depth::Sixteen);
        assert_eq!(detect(&[("TERM", "vt100")]), Depth::Mono);
        assert_eq!(detect(&[("TERM", "vte-256color")]), Depth::Indexed);
        assert_eq!(detect(&[("TERM", "xterm-kitty"), ("NO_COLOR", "1")]), Depth::Mono);
        assert_eq!(detect(&[("TERM", "xterm-kitty"), ("NO_COLOR", "")]), Depth::Rgb);
        assert_eq!(detect(&[]), Depth::Sixteen);
    }

    #[test]
    fn every_level_has_a_look_in_every_depth() {
        for name in Themes::default().names() {
            let theme = Themes::default().load(&name).unwrap();
            for step in 0..=100 {
                let level = level(f64::from(step) / 100.0);
                for depth in [Depth::Rgb, Depth::Indexed, Depth::Sixteen] {
                    assert!(colour(&theme, depth, level).is_some());
                    assert_ne!(text_on(&theme, depth, level).fg, text_on(&theme, depth, level).bg);
                }
                assert!(shade(&theme, Depth::Ascii, level).is_ascii());
            }
        }
        assert_eq!(level(f64::NAN), 0.0);
        assert_eq!(level(2.0), 1.0);
        assert_eq!(nearest_indexed(255, 255, 255), 231);
    }
}
