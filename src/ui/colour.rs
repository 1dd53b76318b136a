//! Colours as terminals show them: RGB values, luminance and contrast (WCAG 2), the nearest of 256.

use ratatui::style::Color;

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
