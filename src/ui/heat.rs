//! The heat scale: how a retention between 0 and 1 looks in what the terminal can show, from 24-bit
//! colour down to ASCII. Heat means memory: few tokens kept is quiet, all kept is loud. Knows no
//! layout.

use super::colour::{contrast, luminance, nearest_indexed, xterm_rgb};
use super::depth::Depth;
use super::theme::{Background, Theme};
use ratatui::style::{Color, Style};

/// Tenths of a retention, for terminals that draw ASCII only.
const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// From few to all, in ASCII.
const SIGNS: [&str; 4] = [".", ":", "+", "#"];

/// Place on the scale of a retention. The square root spreads the low end, where eviction works:
/// an eighth kept is at a third of the scale.
pub fn level(retention: f64) -> f64 {
    if retention.is_finite() { retention.clamp(0.0, 1.0).sqrt() } else { 0.0 }
}

/// The retention at a place of the scale.
pub fn retention_at(level: f64) -> f64 {
    level * level
}

/// The colour at a place of the scale; `None` where the terminal has none.
pub fn colour(theme: &Theme, depth: Depth, level: f64) -> Option<Color> {
    match depth {
        Depth::Sixteen => Some(pick(&theme.heat_ansi, level)),
        _ => shown(rgb(&theme.heat_rgb, level), depth),
    }
}

/// The colour of these values; `None` where the terminal has no colours of its own choice.
fn shown((r, g, b): (u8, u8, u8), depth: Depth) -> Option<Color> {
    match depth {
        Depth::Rgb => Some(Color::Rgb(r, g, b)),
        Depth::Indexed => Some(Color::Indexed(nearest_indexed(r, g, b))),
        Depth::Sixteen | Depth::Mono | Depth::Ascii => None,
    }
}

/// A bar for a retention, or its first digit (9 is 90 % and more), for terminals without colour.
pub fn shade(theme: &Theme, depth: Depth, retention: f64) -> &'static str {
    bar(theme, depth, if depth == Depth::Ascii { retention } else { level(retention) })
}

/// A sign for a retention without a digit, which beside a text reads as a number of it.
pub fn mark(theme: &Theme, depth: Depth, retention: f64) -> &'static str {
    match depth {
        Depth::Ascii => pick(&SIGNS, level(retention)),
        _ => shade(theme, depth, retention),
    }
}

/// A bar for a share, each step as wide as the others, or its first digit.
pub fn bar(theme: &Theme, depth: Depth, share: f64) -> &'static str {
    match depth {
        Depth::Ascii => pick(&DIGITS, share),
        _ => pick(theme.glyphs().bars, share),
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

/// Style of tokens that are kept whatever was decided about them: the text's own colour, with a
/// thin tint if there are enough colours for one.
pub fn undecided(theme: &Theme, depth: Depth) -> Style {
    let tint = match theme.background {
        Background::Dark => (38, 42, 50),
        Background::Light => (226, 230, 232),
    };
    Style { bg: shown(tint, depth), ..Style::new() }
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

#[cfg(test)]
mod tests {
    use super::super::theme::Themes;
    use super::*;

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
