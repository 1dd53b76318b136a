//! Colours as terminals show them: RGB values, luminance and contrast (WCAG 2), the nearest of 256.

use ratatui::style::Color;

/// The sixteen colours in the order of their numbers, by the names that themes use.
pub const ANSI: [(&str, Color); 16] = [
    ("black", Color::Black),
    ("red", Color::Red),
    ("green", Color::Green),
    ("yellow", Color::Yellow),
    ("blue", Color::Blue),
    ("magenta", Color::Magenta),
    ("cyan", Color::Cyan),
    ("white", Color::Gray),
    ("bright-black", Color::DarkGray),
    ("bright-red", Color::LightRed),
    ("bright-green", Color::LightGreen),
    ("bright-yellow", Color::LightYellow),
    ("bright-blue", Color::LightBlue),
    ("bright-magenta", Color::LightMagenta),
    ("bright-cyan", Color::LightCyan),
    ("bright-white", Color::White),
];

/// RGB values of the sixteen colours in xterm.
const XTERM: [u32; 16] = [
    0x000000, 0xcd0000, 0x00cd00, 0xcdcd00, 0x0000ee, 0xcd00cd, 0x00cdcd, 0xe5e5e5, 0x7f7f7f, 0xff0000, 0x00ff00,
    0xffff00, 0x5c5cff, 0xff00ff, 0x00ffff, 0xffffff,
];

/// The number of one of the sixteen colours.
pub fn ansi_number(colour: Color) -> Option<usize> {
    ANSI.iter().position(|(_, named)| *named == colour)
}

/// The RGB values that xterm gives a colour; `None` for the default colour.
pub fn xterm_rgb(colour: Color) -> Option<(u8, u8, u8)> {
    let number = match colour {
        Color::Rgb(r, g, b) => return Some((r, g, b)),
        Color::Indexed(n @ 16..=231) => {
            let step = |v: u8| CUBE[usize::from(v % 6)] as u8;
            return Some((step((n - 16) / 36), step((n - 16) / 6), step(n - 16)));
        }
        Color::Indexed(n @ 232..) => return Some((8 + 10 * (n - 232), 8 + 10 * (n - 232), 8 + 10 * (n - 232))),
        Color::Indexed(n) => usize::from(n),
        named => ansi_number(named)?,
    };
    let [_, r, g, b] = XTERM[number].to_be_bytes();
    Some((r, g, b))
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
