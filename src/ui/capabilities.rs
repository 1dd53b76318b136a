//! Capabilities of the terminal beside colours ([`super::depth::Depth`]): Unicode, links, and on
//! which background. Read from the environment; the background is asked for as well (OSC 11).

use super::colour::{contrast, luminance};
use super::depth::is_serial;
use super::theme::Background;
use crate::system;
use std::io::{self, IsTerminal, Read, Write};
use std::time::{Duration, Instant};

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How long startup waits for the terminal's background. Later replies are recognised by
/// [`super::keyboard`] and are never typed text.
pub const REPLY_LIMIT: Duration = Duration::from_millis(50);
/// A reply that has begun gets this long to be complete.
const REST_OF_REPLY: Duration = Duration::from_millis(200);
/// Longest reply that is taken for one.
pub const LONGEST_REPLY: usize = 48;

/// Whether frames and signs may be Unicode: not where the locale says another character set, and
/// not on terminals that have none. A locale that is not set at all says nothing.
pub fn unicode(env: Env) -> bool {
    let term = env("TERM").unwrap_or_default();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|n| env(n).filter(|v| !v.is_empty()));
    let utf8 = locale.map(|l| l.to_lowercase().replace('-', "").contains("utf8"));
    !is_serial(&term) && utf8.unwrap_or(term != "linux")
}

/// Whether links may be written: consoles without them would show the bytes.
pub fn links(env: Env) -> bool {
    let term = env("TERM").unwrap_or_default();
    !(matches!(term.as_str(), "linux" | "dumb" | "") || is_serial(&term))
}

/// Whether the terminal may be asked for its background: Emacs's shows the question instead.
pub fn answers(env: Env) -> bool {
    links(env) && !env("TERM").unwrap_or_default().starts_with("eterm")
}

/// The background that COLORFGBG names, if it does.
pub fn background(env: Env) -> Option<Background> {
    let colour: u8 = env("COLORFGBG")?.rsplit(';').next()?.parse().ok()?;
    Some(if matches!(colour, 7 | 15) { Background::Light } else { Background::Dark })
}

/// Asks the terminal for its background, in raw mode and before anything else reads from it.
/// Returns the answer, if it came in time, and what was typed meanwhile.
pub fn ask_background(out: &mut impl Write) -> io::Result<(Option<Background>, Vec<u8>)> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Ok((None, Vec::new()));
    }
    let Some(mut tty) = system::open_terminal()? else { return Ok((None, Vec::new())) };
    out.write_all(b"\x1b]11;?\x1b\\")?;
    out.flush()?;
    let mut read = Vec::new();
    let mut until = Instant::now() + REPLY_LIMIT;
    let mut extended = false;
    loop {
        let mut buffer = [0; 256];
        match tty.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => read.extend_from_slice(&buffer[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e),
        }
        if let Some((background, rest)) = split_reply(&read) {
            return Ok((background, rest));
        }
        if !extended && find(&read, OPENING).is_some() {
            (until, extended) = (Instant::now() + REST_OF_REPLY, true);
        }
        if Instant::now() >= until || read.len() > 64 * 1024 {
            break;
        }
    }
    // Half a reply is not typed text.
    read.truncate(find(&read, OPENING).unwrap_or(read.len()));
    Ok((None, read))
}

const OPENING: &[u8] = b"\x1b]11;";

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// The background that a whole reply among `bytes` says, and the bytes around it.
fn split_reply(bytes: &[u8]) -> Option<(Option<Background>, Vec<u8>)> {
    let from = find(bytes, OPENING)?;
    let body = &bytes[from + OPENING.len()..];
    let end = body.iter().position(|b| matches!(b, 0x07 | 0x1b | 0x9c))?;
    let terminator = match body[end] {
        0x1b if body.get(end + 1).is_none() => return None,
        0x1b => 2,
        _ => 1,
    };
    let rest = [&bytes[..from], &body[end + terminator..]].concat();
    Some((std::str::from_utf8(&body[..end]).ok().and_then(background_of), rest))
}

/// The background of a colour as terminals spell it: `rgb:ffff/ffff/ffff`, `rgba:..`, `#ffffff`.
pub fn background_of(colour: &str) -> Option<Background> {
    let channel = |text: &str| {
        let (digits, value) = (text.len(), u32::from_str_radix(text, 16).ok()?);
        (1..=4).contains(&digits).then(|| (value * 255 / ((1 << (4 * digits)) - 1)) as u8)
    };
    let parts: Vec<&str> = match colour.strip_prefix('#') {
        Some(hex) if hex.is_ascii() && matches!(hex.len(), 3 | 6 | 12) => {
            let n = hex.len() / 3;
            vec![&hex[..n], &hex[n..2 * n], &hex[2 * n..]]
        }
        Some(_) => return None,
        None => colour.strip_prefix("rgb:").or_else(|| colour.strip_prefix("rgba:"))?.split('/').collect(),
    };
    let [r, g, b, ..] = parts[..] else { return None };
    let light = luminance((channel(r)?, channel(g)?, channel(b)?));
    // Light is what black text reads better on than white text.
    Some(if contrast(light, 0.0) > contrast(light, 1.0) { Background::Light } else { Background::Dark })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(vars: &[(&str, &str)], ask: impl Fn(Env) -> T) -> T {
        let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        ask(&move |name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    fn the_locale_and_the_terminal_decide_what_is_drawn() {
        for (vars, expected) in [
            (&[("TERM", "xterm")][..], true),
            (&[("TERM", "xterm"), ("LANG", "C")], false),
            (&[("TERM", "xterm"), ("LANG", "C.UTF-8")], true),
            (&[("TERM", "xterm"), ("LANG", "de_DE.utf8")], true),
            (&[("TERM", "xterm"), ("LANG", "de_DE.ISO-8859-1")], false),
            (&[("TERM", "xterm"), ("LANG", "en_US.UTF-8"), ("LC_ALL", "POSIX")], false),
            (&[("TERM", "linux")], false),
            (&[("TERM", "linux"), ("LANG", "en_US.UTF-8")], true),
            (&[("TERM", "vt100"), ("LANG", "en_US.UTF-8")], false),
        ] {
            assert_eq!(with(vars, unicode), expected, "{vars:?}");
        }
        assert!(!with(&[("TERM", "linux")], links) && with(&[("TERM", "xterm-256color")], links));
        assert_eq!(with(&[("COLORFGBG", "0;15")], background), Some(Background::Light));
        assert_eq!(with(&[("COLORFGBG", "15;default;0")], background), Some(Background::Dark));
        assert_eq!(with(&[], background), None);
    }

    #[test]
    fn replies_are_told_from_what_was_typed() {
        let reply = |text: &str| split_reply(text.as_bytes());
        let light = Some(Background::Light);
        assert_eq!(reply("ab\x1b]11;rgb:ffff/ffff/ffff\x1b\\c"), Some((light, b"abc".to_vec())));
        assert_eq!(reply("\x1b]11;rgb:fd/f6/e3\x07"), Some((light, Vec::new())));
        assert_eq!(reply("\x1b]11;rgb:0000/2b2b/3636\x07"), Some((Some(Background::Dark), Vec::new())));
        assert_eq!(reply("\x1b]11;#1e1e2e\x07x"), Some((Some(Background::Dark), b"x".to_vec())));
        assert_eq!(reply("\x1b]11;nonsense\x07"), Some((None, Vec::new())));
        for unfinished in ["hello", "\x1b]11;rgb:ff", "\x1b]11;rgb:ff/ff/ff\x1b", "\x1b]1"] {
            assert_eq!(reply(unfinished), None);
        }
        for nonsense in ["", "#", "#ü12", "rgb:", "rgb:1/2", "rgb:fffff/0/0", "rgb:-1/0/0"] {
            assert_eq!(background_of(nonsense), None, "{nonsense}");
        }
    }
}
