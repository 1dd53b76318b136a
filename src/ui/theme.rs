//! Themes: TOML files with a palette and named roles, embedded or the user's. Text has the
//! terminal's own sixteen colours, or another colour together with one of the sixteen for terminals
//! that have no more. The colours of the heatmap are in [`crate::ui::heat`].

use super::colour::{ANSI, nearest_indexed};
use super::depth::Depth;
use crate::config::in_words;
use crate::regular_file;
use crate::unicode;
use anyhow::{Context, Result, anyhow, bail};
use ratatui::style::{Color, Modifier, Style};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A theme larger than this is refused.
const MAX_BYTES: u64 = 1 << 20;

/// The theme that follows the terminal's background.
pub const AUTO: &str = "auto";

/// Every embedded theme, by name.
const EMBEDDED: [(&str, &str); 4] = [
    ("dark", include_str!("../../themes/dark.toml")),
    ("light", include_str!("../../themes/light.toml")),
    ("cividis", include_str!("../../themes/cividis.toml")),
    ("ascii", include_str!("../../themes/ascii.toml")),
];

macro_rules! roles {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// Role of a piece of the screen, to which a theme gives a style.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Role { $($variant),* }

        impl Role {
            /// All roles with the names that theme files use.
            pub const ALL: &'static [(Role, &'static str)] = &[$((Role::$variant, $name)),*];
        }
    };
}

roles! {
    Text = "text", Dim = "dim", Border = "border", User = "user", UserText = "user_text", Assistant = "assistant",
    Heading = "heading", Strong = "strong", Emphasis = "emphasis", Strike = "strike", Code = "code", Quote = "quote",
    Link = "link", List = "list", Thought = "thought", Mark = "mark", Note = "note", Warning = "warning",
    Error = "error", Input = "input", Prompt = "prompt", Placeholder = "placeholder", Status = "status",
    StatusValue = "status_value", Badge = "badge", Selected = "selected", Popup = "popup", Title = "title", Key = "key",
    Value = "value", Spark = "spark", SyntaxKeyword = "syntax_keyword", SyntaxString = "syntax_string",
    SyntaxComment = "syntax_comment", SyntaxNumber = "syntax_number", SyntaxFunction = "syntax_function",
    SyntaxType = "syntax_type", CodeBlock = "code_block", CodeLabel = "code_label", DiffAdded = "diff_added",
    DiffRemoved = "diff_removed", DiffHunk = "diff_hunk",
}

/// Background of text: the terminal's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Background {
    #[default]
    Dark,
    Light,
}

impl Background {
    /// The theme made for it.
    pub fn theme(self) -> &'static str {
        match self {
            Background::Dark => "dark",
            Background::Light => "light",
        }
    }

    /// The background whose theme has this name.
    pub fn named(theme: &str) -> Option<Self> {
        [Background::Dark, Background::Light].into_iter().find(|b| b.theme() == theme)
    }
}

/// A theme, resolved: a style for every role.
#[derive(Clone, Debug, PartialEq)]
pub struct Theme {
    pub name: String,
    /// The background that it is made for.
    pub background: Background,
    styles: Vec<Style>,
    /// The same in the sixteen colours.
    sixteen: Vec<Style>,
    /// Stops of the heat scale, lowest retention first.
    pub heat_rgb: Vec<(u8, u8, u8)>,
    /// The heat scale in the sixteen colours.
    pub heat_ansi: Vec<Color>,
    /// Nothing but ASCII in frames, bars and the heatmap.
    pub ascii: bool,
}

impl Theme {
    pub fn style(&self, role: Role) -> Style {
        self.styles.get(role as usize).copied().unwrap_or_default()
    }

    /// The same with the colours that a terminal of this depth has. Without any, weight, underline
    /// and reverse stay, and coloured text on a coloured background is reversed.
    pub fn at_depth(mut self, depth: Depth) -> Self {
        if depth == Depth::Sixteen {
            self.styles = self.sixteen.clone();
        }
        for style in &mut self.styles {
            match depth {
                Depth::Indexed => {
                    style.fg = style.fg.map(indexed);
                    style.bg = style.bg.map(indexed);
                }
                Depth::Mono | Depth::Ascii => {
                    if style.fg.is_some() && style.bg.is_some() {
                        *style = style.add_modifier(Modifier::REVERSED);
                    }
                    (style.fg, style.bg) = (None, None);
                }
                Depth::Rgb | Depth::Sixteen => {}
            }
        }
        self
    }

    /// Frames and signs of this theme.
    pub fn glyphs(&self) -> &'static Glyphs {
        if self.ascii { &ASCII } else { &UNICODE }
    }
}

/// The signs that a screen is made of.
#[derive(Debug)]
pub struct Glyphs {
    pub horizontal: &'static str,
    pub vertical: &'static str,
    pub cross: &'static str,
    pub bullet: &'static str,
    pub folded: &'static str,
    pub open: &'static str,
    pub quote: &'static str,
    pub prompt: &'static str,
    pub more: &'static str,
    pub separator: &'static str,
    /// Eight or fewer steps of a bar, lowest first.
    pub bars: &'static [&'static str],
    pub spinner: &'static [&'static str],
}

static UNICODE: Glyphs = Glyphs {
    horizontal: "─",
    vertical: "│",
    cross: "┼",
    bullet: "•",
    folded: "▸",
    open: "▾",
    quote: "▎",
    prompt: "›",
    more: "↓",
    separator: "·",
    bars: &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    spinner: &["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"],
};

static ASCII: Glyphs = Glyphs {
    horizontal: "-",
    vertical: "|",
    cross: "+",
    bullet: "*",
    folded: "+",
    open: "-",
    quote: ">",
    prompt: ">",
    more: "v",
    separator: "|",
    bars: &["_", ".", ":", "-", "=", "+", "*", "#"],
    spinner: &["|", "/", "-", "\\"],
};

/// Where themes come from.
#[derive(Clone, Debug, Default)]
pub struct Themes {
    /// The user's folder of `NAME.toml` files; they come before the embedded ones.
    pub folder: Option<PathBuf>,
    /// The terminal's background, as far as it is known: what `auto` follows.
    pub background: Background,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTheme {
    inherits: Option<String>,
    background: Option<Background>,
    glyphs: Option<RawGlyphs>,
    #[serde(default)]
    palette: BTreeMap<String, String>,
    #[serde(default)]
    roles: BTreeMap<String, RawStyle>,
    heat: Option<RawHeat>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawGlyphs {
    Unicode,
    Ascii,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeat {
    rgb: Option<Vec<String>>,
    ansi: Option<Vec<String>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawStyle {
    fg: Option<String>,
    bg: Option<String>,
    bold: bool,
    dim: bool,
    italic: bool,
    underline: bool,
    reverse: bool,
    strike: bool,
}

impl Themes {
    /// Names of all themes, the user's own included.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = vec![AUTO.to_owned()];
        names.extend(EMBEDDED.iter().map(|(name, _)| (*name).to_owned()));
        let files = self.folder.iter().filter_map(|f| std::fs::read_dir(f).ok()).flatten().flatten();
        let mut own: Vec<String> = files
            .filter_map(|f| Some(f.file_name().to_str()?.strip_suffix(".toml")?.to_owned()))
            .filter(|n| !names.contains(n))
            .collect();
        own.sort();
        names.append(&mut own);
        names
    }

    /// Loads a theme with everything it inherits; `auto` is the theme for the terminal's
    /// background. The error is one line that names the expected values.
    pub fn load(&self, name: &str) -> Result<Theme> {
        let name = if name == AUTO { self.background.theme() } else { name };
        self.inherited(name).map_err(unicode::one_line_error)
    }

    fn inherited(&self, name: &str) -> Result<Theme> {
        let mut chain = Vec::new();
        let mut next = Some(name.to_owned());
        while let Some(name) = next {
            if chain.len() == 8 {
                bail!("theme {name}: more than 8 themes inherit from each other");
            }
            let raw = self.read(&name)?;
            next = raw.inherits.clone();
            // A user's `dark` may build on the embedded `dark`.
            if next.as_deref() == Some(&name) {
                chain.push((name.clone(), raw));
                chain.push((name.clone(), parse(&name, embedded(&name).ok_or_else(|| self.unknown(&name))?)?));
                break;
            }
            chain.push((name, raw));
        }
        chain.reverse();
        resolve(name, &chain)
    }

    fn read(&self, name: &str) -> Result<RawTheme> {
        parse(name, &self.file(name)?)
    }

    /// The text of a theme's file.
    pub fn file(&self, name: &str) -> Result<String> {
        let plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
        let file = self.folder.as_ref().map(|f| f.join(format!("{name}.toml"))).filter(|f| plain && f.exists());
        match file {
            Some(file) => {
                regular_file::read_text(&file, MAX_BYTES).with_context(|| format!("theme {}", file.display()))
            }
            None => embedded(name).map(str::to_owned).ok_or_else(|| self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> anyhow::Error {
        let names = self.names();
        let near = crate::words::nearest(name, names.iter().map(String::as_str));
        let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        anyhow!("no theme {:?}{hint}; themes: {}", super::text::clean_line(name), names.join(", "))
    }
}

fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

fn parse(name: &str, text: &str) -> Result<RawTheme> {
    let raw: RawTheme = toml::from_str(text).map_err(|e| {
        let line = super::text::line_number(text, e.span().map_or(0, |s| s.start));
        anyhow!("theme {name}, line {line}: {}", in_words(e.message()))
    })?;
    for role in raw.roles.keys() {
        if !Role::ALL.iter().any(|(_, n)| n == role) {
            let names: Vec<&str> = Role::ALL.iter().map(|(_, n)| *n).collect();
            bail!("theme {name}: unknown role {role:?}; roles: {}", names.join(", "));
        }
    }
    Ok(raw)
}

fn resolve(name: &str, chain: &[(String, RawTheme)]) -> Result<Theme> {
    let mut palette = BTreeMap::new();
    let mut roles: BTreeMap<&str, (&str, &RawStyle)> = BTreeMap::new();
    let mut heat_rgb = Vec::new();
    let mut heat_ansi = Vec::new();
    let mut ascii = false;
    let mut background = Background::Dark;
    for (from, raw) in chain {
        palette.extend(raw.palette.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        roles.extend(raw.roles.iter().map(|(k, v)| (k.as_str(), (from.as_str(), v))));
        if let Some(glyphs) = raw.glyphs {
            ascii = matches!(glyphs, RawGlyphs::Ascii);
        }
        background = raw.background.unwrap_or(background);
        if let Some(stops) = raw.heat.as_ref().and_then(|h| h.rgb.as_ref()) {
            heat_rgb = stops.iter().map(|s| hex(from, s)).collect::<Result<_>>()?;
        }
        if let Some(stops) = raw.heat.as_ref().and_then(|h| h.ansi.as_ref()) {
            let ansi = |s: &String| colour(from, &palette, s).map(|(own, instead)| instead.unwrap_or(own));
            heat_ansi = stops.iter().map(ansi).collect::<Result<_>>()?;
        }
    }
    if heat_rgb.len() < 2 || heat_ansi.len() < 2 {
        bail!("theme {name}: [heat] needs two or more colours in `rgb` and in `ansi`");
    }
    let mut styles = vec![Style::new(); Role::ALL.len()];
    let mut sixteen = styles.clone();
    for (role, role_name) in Role::ALL {
        if let Some((from, raw)) = roles.get(role_name) {
            (styles[*role as usize], sixteen[*role as usize]) = style(from, &palette, raw)?;
        }
    }
    Ok(Theme { name: name.to_owned(), background, styles, sixteen, heat_rgb, heat_ansi, ascii })
}

/// A role's style, with all colours and in the sixteen.
fn style(theme: &str, palette: &BTreeMap<&str, &str>, raw: &RawStyle) -> Result<(Style, Style)> {
    let mut style = Style::new();
    let read = |c: &Option<String>| c.as_ref().map(|c| colour(theme, palette, c)).transpose();
    let (fg, bg) = (read(&raw.fg)?, read(&raw.bg)?);
    (style.fg, style.bg) = (fg.map(|c| c.0), bg.map(|c| c.0));
    let modifiers = [
        (raw.bold, Modifier::BOLD),
        (raw.dim, Modifier::DIM),
        (raw.italic, Modifier::ITALIC),
        (raw.underline, Modifier::UNDERLINED),
        (raw.reverse, Modifier::REVERSED),
        (raw.strike, Modifier::CROSSED_OUT),
    ];
    for (on, modifier) in modifiers {
        if on {
            style = style.add_modifier(modifier);
        }
    }
    let sixteen = Style { fg: fg.and_then(|c| c.1), bg: bg.and_then(|c| c.1), ..style };
    Ok((style, sixteen))
}

/// A colour, and its substitute among the sixteen (the default colour where nothing does).
fn colour(theme: &str, palette: &BTreeMap<&str, &str>, name: &str) -> Result<(Color, Option<Color>)> {
    let name = palette.get(name).copied().unwrap_or(name);
    let named = |name: &str| {
        let default = ("default", Color::Reset);
        let known = || std::iter::once(default).chain(ANSI);
        known().find(|(n, _)| *n == name).map(|(_, c)| c).ok_or_else(|| {
            let names: Vec<&str> = known().map(|(n, _)| n).chain(palette.keys().copied()).collect();
            anyhow!("theme {theme}: unknown colour {name:?}; colours: #rrggbb, #rrggbb/NAME, {}", names.join(", "))
        })
    };
    if !name.starts_with('#') {
        return named(name).map(|c| (c, Some(c)));
    }
    let (own, instead) = match name.split_once('/') {
        Some((own, instead)) => (own, Some(named(instead)?)),
        None => (name, None),
    };
    let (r, g, b) = hex(theme, own)?;
    Ok((Color::Rgb(r, g, b), instead))
}

fn indexed(colour: Color) -> Color {
    match colour {
        Color::Rgb(r, g, b) => Color::Indexed(nearest_indexed(r, g, b)),
        other => other,
    }
}

fn hex(theme: &str, text: &str) -> Result<(u8, u8, u8)> {
    let digits = text.strip_prefix('#').filter(|d| d.len() == 6 && d.is_ascii());
    let value = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
    let value = value.ok_or_else(|| anyhow!("theme {theme}: {text:?} is not a colour like #rrggbb"))?;
    Ok(((value >> 16) as u8, (value >> 8) as u8, value as u8))
}

#[cfg(test)]
mod tests {
    use super::super::colour::{contrast, luminance, xterm_rgb};
    use super::*;

    #[test]
    fn embedded_themes_load_and_have_a_look_in_sixteen_colours() {
        let themes = Themes::default();
        assert_eq!(themes.names(), ["auto", "dark", "light", "cividis", "ascii"]);
        for name in themes.names() {
            let theme = themes.load(&name).unwrap().at_depth(Depth::Sixteen);
            assert_eq!(theme.ascii, name == "ascii");
            for style in &theme.styles {
                for colour in [style.fg, style.bg].into_iter().flatten() {
                    assert!(!matches!(colour, Color::Rgb(..) | Color::Indexed(_)), "{name}: {style:?}");
                }
            }
        }
    }

    /// Text of every role reads on the background that its theme is made for: on black or white
    /// with xterm's values of the sixteen colours, and with fixed colours also on softer
    /// backgrounds.
    #[test]
    fn every_role_has_a_contrast_of_at_least_4_5() {
        let themes = Themes::default();
        let in_code = |name: &str| name.starts_with("syntax") || name.starts_with("diff") || name.starts_with("code");
        for name in ["dark", "light", "cividis"] {
            let theme = themes.load(name).unwrap();
            let (grounds, usual) = match theme.background {
                Background::Dark => ([(0, 0, 0), (0x1e, 0x1e, 0x2e)], (229, 229, 229)),
                Background::Light => ([(255, 255, 255), (0xfd, 0xf6, 0xe3)], (0, 0, 0)),
            };
            for depth in [Depth::Rgb, Depth::Indexed, Depth::Sixteen] {
                let theme = theme.clone().at_depth(depth);
                for (role, role_name) in Role::ALL {
                    let style = theme.style(*role);
                    let block = theme.style(Role::CodeBlock).bg.filter(|_| in_code(role_name));
                    let fg = style.fg.unwrap_or(Color::Reset);
                    let fixed = matches!(fg, Color::Rgb(..) | Color::Indexed(_) | Color::Reset);
                    let mut behind: Vec<_> = grounds.into_iter().take(if fixed { 2 } else { 1 }).collect();
                    if let Some(own) = style.bg {
                        behind = xterm_rgb(own).into_iter().collect();
                    }
                    behind.extend(block.and_then(xterm_rgb));
                    for ground in behind {
                        let text = xterm_rgb(fg).unwrap_or(usual);
                        let contrast = contrast(luminance(text), luminance(ground));
                        assert!(
                            contrast >= 4.5,
                            "{name} {role_name} {depth:?}: {contrast:.2} of {text:?} on {ground:?}"
                        );
                    }
                }
            }
            for depth in [Depth::Rgb, Depth::Indexed, Depth::Sixteen] {
                for step in 0..=100 {
                    let cell = super::super::heat::text_on(&theme, depth, f64::from(step) / 100.0);
                    let of = |c: Option<Color>| luminance(c.and_then(xterm_rgb).unwrap());
                    assert!(contrast(of(cell.fg), of(cell.bg)) >= 4.5, "{name} heat {step} {depth:?}");
                }
            }
        }
    }

    #[test]
    fn colours_of_their_own_have_a_stand_in_and_follow_the_background() {
        let folder = tempfile::tempdir().unwrap();
        let text = "inherits = \"light\"\n[roles]\nuser = { fg = \"#102030/red\", bg = \"#ffffff\" }\n";
        std::fs::write(folder.path().join("mine.toml"), text).unwrap();
        let themes = Themes { folder: Some(folder.path().to_owned()), background: Background::Light };
        let mine = themes.load("mine").unwrap();
        let user = |depth| mine.clone().at_depth(depth).style(Role::User);
        assert_eq!(user(Depth::Rgb).fg, Some(Color::Rgb(0x10, 0x20, 0x30)));
        assert_eq!((user(Depth::Sixteen).fg, user(Depth::Sixteen).bg), (Some(Color::Red), None));
        assert_eq!(user(Depth::Mono), Style::new().add_modifier(Modifier::REVERSED));
        assert_eq!((mine.background, themes.load("auto").unwrap().name.as_str()), (Background::Light, "light"));
        assert_eq!(Themes::default().load("auto").unwrap().name, "dark");
    }

    #[test]
    fn faults_are_one_line_that_names_what_was_expected() {
        let folder = tempfile::tempdir().unwrap();
        let themes = Themes { folder: Some(folder.path().to_owned()), ..Themes::default() };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("mine.toml", "inherits = \"dark\"\n[roles]\nuser = { fg = \"pink\" }\n");
        write("typo.toml", "inherits = \"dark\"\n[roles]\nusr = { fg = \"red\" }\n");
        write("key.toml", "inherits = \"dark\"\ncolour = 3\n");
        write("heat.toml", "inherits = \"dark\"\nheat = 5\n");
        write("dark.toml", "inherits = \"dark\"\n[palette]\naccent = \"red\"\n");
        for (name, expected) in [
            ("none", "no theme \"none\"; themes: auto, dark, light, cividis, ascii, heat, key, mine, typo"),
            ("../etc/passwd", "no theme"),
            ("mine", "theme mine: unknown colour \"pink\"; colours: #rrggbb, #rrggbb/NAME, default"),
            ("typo", "theme typo: unknown role \"usr\"; roles: text, dim"),
            ("key", "theme key, line 2: unknown key `colour`"),
            ("heat", "theme heat, line 2: invalid type: integer `5`, expected a table"),
        ] {
            let error = format!("{:#}", themes.load(name).unwrap_err());
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert_eq!(themes.load("dark").unwrap().style(Role::User).fg, Some(Color::Red));
    }
}
