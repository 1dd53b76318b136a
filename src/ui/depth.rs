//! Abilities of a terminal: colours, Unicode, or ASCII only.

/// Colours that a terminal can show, best first.
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
        // Multiplexers pass on only what they received; the program behind them is unknown.
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

#[cfg(test)]
mod tests {
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
}
