//! LaTeX formulas as Unicode, where no meaning is lost: a formula with anything else in it stays as
//! written.

use std::iter::Peekable;
use std::str::Chars;

/// Deepest nesting of groups.
const DEEPEST: usize = 24;

/// A formula with its delimiters as it is shown. `None`: as written.
pub fn shown(formula: &str) -> Option<String> {
    let delimiters = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];
    let inner = |(open, close): (&str, &str)| formula.strip_prefix(open)?.strip_suffix(close);
    let written = delimiters.into_iter().find_map(inner).filter(|text| gains(text))?;
    let text = converted(written, 0)?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Whether Unicode makes a formula easier to read: it has a sign with a name, or a power. Without
/// one, its letters and braces are read as they are written, and copied so.
fn gains(text: &str) -> bool {
    const SIZES: [&str; 3] = ["left", "right", "middle"];
    let name = |after: &str| after.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("").to_owned();
    let names = || text.split('\\').skip(1).map(name);
    text.contains('^') || names().any(|name| !name.is_empty() && !SIZES.contains(&name.as_str()))
}

/// What stands beside a piece decides whether it needs parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Space,
    /// A letter, a number, a closed group.
    Operand,
    /// A fraction, or a root: `(1/2)x`.
    Tight,
    /// A script of the piece before it.
    Script,
    /// The name of a function, or a large sign: a blank parts it from letters.
    Name,
    Open,
    Close,
    Other,
}

struct Piece {
    text: String,
    kind: Kind,
}

fn piece(text: impl Into<String>, kind: Kind) -> Piece {
    Piece { text: text.into(), kind }
}

type Input<'a> = Peekable<Chars<'a>>;

fn converted(text: &str, depth: usize) -> Option<String> {
    let mut chars = text.chars().peekable();
    let pieces = pieces(&mut chars, depth, false)?;
    Some(joined(&pieces))
}

/// Reads up to the end, or to the brace that closes this group.
fn pieces(chars: &mut Input, depth: usize, in_group: bool) -> Option<Vec<Piece>> {
    if depth > DEEPEST {
        return None;
    }
    let mut out = Vec::new();
    loop {
        let Some(c) = chars.next() else { return (!in_group).then_some(out) };
        match c {
            '}' => return in_group.then_some(out),
            '{' => out.push(piece(joined(&pieces(chars, depth + 1, true)?), Kind::Operand)),
            '^' | '_' => {
                let argument = argument(chars, depth)?;
                let table = if c == '^' { SUPERSCRIPTS } else { SUBSCRIPTS };
                let script: Option<String> =
                    argument.chars().filter(|c| *c != ' ').map(|c| in_table(table, c)).collect();
                out.push(piece(script.filter(|script| !script.is_empty())?, Kind::Script));
            }
            '\\' => command(chars, depth, &mut out)?,
            c if c.is_whitespace() || c == '~' => out.push(piece(" ", Kind::Space)),
            '(' | '[' => out.push(piece(c, Kind::Open)),
            ')' | ']' => out.push(piece(c, Kind::Close)),
            c if c.is_alphanumeric() => out.push(piece(c, Kind::Operand)),
            '\'' => out.push(piece('′', Kind::Script)),
            '+' | '-' | '=' | '<' | '>' | '|' | ',' | '.' | ':' | ';' | '!' | '/' | '*' | '?' | '"' | '@' => {
                out.push(piece(c, Kind::Other));
            }
            c if !c.is_ascii() => out.push(piece(c, Kind::Other)),
            _ => return None,
        }
    }
}

/// A group, a command or a character, converted.
fn argument(chars: &mut Input, depth: usize) -> Option<String> {
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
    match chars.next()? {
        '{' => Some(joined(&pieces(chars, depth + 1, true)?)),
        '\\' => {
            let mut out = Vec::new();
            command(chars, depth + 1, &mut out)?;
            Some(joined(&out))
        }
        c if c.is_alphanumeric() || "+-*=()'".contains(c) => Some(if c == '\'' { '′' } else { c }.to_string()),
        _ => None,
    }
}

/// The text in braces, as written: it has no commands.
fn words(chars: &mut Input) -> Option<String> {
    chars.next_if_eq(&'{')?;
    let mut out = String::new();
    loop {
        match chars.next()? {
            '}' => return Some(out),
            '\\' | '{' | '$' | '^' | '_' | '\n' => return None,
            '~' => out.push(' '),
            c => out.push(c),
        }
    }
}

/// A command behind its backslash.
fn command(chars: &mut Input, depth: usize, out: &mut Vec<Piece>) -> Option<()> {
    if depth > DEEPEST {
        return None;
    }
    let mut name = String::new();
    while let Some(c) = chars.next_if(char::is_ascii_alphabetic) {
        name.push(c);
    }
    if name.is_empty() {
        let (text, kind) = match chars.next()? {
            ',' | ';' | ':' | ' ' => (" ", Kind::Space),
            '!' => ("", Kind::Space),
            '{' => ("{", Kind::Open),
            '}' => ("}", Kind::Close),
            '|' => ("‖", Kind::Other),
            '%' => ("%", Kind::Other),
            '$' => ("$", Kind::Other),
            '&' => ("&", Kind::Other),
            '#' => ("#", Kind::Other),
            _ => return None,
        };
        out.push(piece(text, kind));
        return Some(());
    }
    match name.as_str() {
        "frac" | "dfrac" | "tfrac" => {
            let (over, under) = (argument(chars, depth)?, argument(chars, depth)?);
            // `dy/(dx)`: a product may stand over the line, not under it.
            let over = if over.chars().all(|c| c.is_alphanumeric() || is_script(c)) { over } else { closed(&over) };
            out.push(piece(format!("{over}/{}", closed(&under)), Kind::Tight));
        }
        "sqrt" => {
            let sign = match chars.next_if_eq(&'[') {
                None => "√",
                Some(_) => {
                    let degree = chars.next()?;
                    chars.next_if_eq(&']')?;
                    in_pairs(ROOTS, degree)?
                }
            };
            out.push(piece(sign.to_owned() + &closed(&argument(chars, depth)?), Kind::Tight));
        }
        "text" | "mathrm" | "operatorname" | "textrm" => out.push(piece(words(chars)?, Kind::Name)),
        "mathbb" => {
            let letter = words(chars)?;
            let letter = letter.chars().next().filter(|_| letter.chars().count() == 1)?;
            out.push(piece(in_pairs(DOUBLE_STRUCK, letter)?, Kind::Operand));
        }
        "quad" | "qquad" => out.push(piece("  ", Kind::Space)),
        // Sizes of the parenthesis that follows.
        "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "Bigl" | "Bigr" => {
            if name == "left" || name == "right" {
                // No parenthesis on this side.
                chars.next_if_eq(&'.');
            }
        }
        "displaystyle" | "textstyle" | "limits" | "nolimits" => {}
        _ => return sign(&name, chars, depth, out),
    }
    Some(())
}

/// A command that is one sign, an accent, or the name of a function.
fn sign(name: &str, chars: &mut Input, depth: usize, out: &mut Vec<Piece>) -> Option<()> {
    if let Some((_, mark)) = ACCENTS.iter().find(|(accent, _)| *accent == name) {
        let letter = argument(chars, depth)?;
        let single = letter.chars().count() == 1 && letter.chars().all(char::is_alphabetic);
        out.push(piece(single.then(|| letter + *mark)?, Kind::Operand));
        return Some(());
    }
    let found = |table: &[(&str, &'static str)]| table.iter().find(|(of, _)| *of == name).map(|(_, sign)| *sign);
    let new = if let Some(letter) = found(LETTERS) {
        piece(letter, Kind::Operand)
    } else if let Some(relation) = found(RELATIONS) {
        // TeX sets these apart, and skips the blanks behind their names.
        while out.last().is_some_and(|last| last.kind == Kind::Space) {
            out.pop();
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        piece(format!(" {relation} "), Kind::Other)
    } else if let Some(open) = found(OPENING) {
        piece(open, Kind::Open)
    } else if let Some(close) = found(CLOSING) {
        piece(close, Kind::Close)
    } else if let Some(sign) = found(SIGNS) {
        piece(sign, Kind::Other)
    } else if FUNCTIONS.contains(&name) {
        piece(name, Kind::Name)
    } else {
        return None;
    };
    out.push(new);
    Some(())
}

fn joined(pieces: &[Piece]) -> String {
    let mut out = String::new();
    for (n, piece) in pieces.iter().enumerate() {
        let before = n.checked_sub(1).map(|n| &pieces[n]);
        let after = pieces.get(n + 1);
        let touches = |beside: Option<&Piece>| {
            beside.is_some_and(|p| !matches!(p.kind, Kind::Space | Kind::Other | Kind::Name) || p.text == "/")
        };
        match piece.kind {
            Kind::Tight => {
                // Beyond blanks, which mean nothing.
                let not_space = |p: &&Piece| p.kind != Kind::Space;
                let (left, right) = (pieces[..n].iter().rev().find(not_space), pieces[n + 1..].iter().find(not_space));
                let open = left.is_some_and(|p| p.kind != Kind::Open) && touches(left);
                let close = right.is_some_and(|p| p.kind != Kind::Close) && touches(right);
                match open || close {
                    true => out.push_str(&format!("({})", piece.text)),
                    false => out.push_str(&piece.text),
                }
            }
            Kind::Name => {
                let word = |c: char| c.is_alphanumeric();
                if out.ends_with(|c: char| word(c) || c == ')') && piece.text.starts_with(word) {
                    out.push(' ');
                }
                let blank = out.ends_with(' ');
                out.push_str(if blank { piece.text.trim_start() } else { &piece.text });
                if piece.text.ends_with(word) && after.is_some_and(|p| matches!(p.kind, Kind::Operand | Kind::Tight)) {
                    out.push(' ');
                }
            }
            Kind::Space if out.ends_with(' ') => {}
            _ => out.push_str(&piece.text),
        }
        // A function with a power: `sin² x`.
        if piece.kind == Kind::Script
            && before.is_some_and(|p| p.kind == Kind::Name)
            && after.is_some_and(|p| p.kind == Kind::Operand)
        {
            out.push(' ');
        }
    }
    out
}

/// A part of a fraction or a root: in parentheses unless it is one number or one letter.
fn closed(text: &str) -> String {
    let text = text.trim();
    let mut chars = text.chars();
    let number = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let letter = chars.next().is_some_and(char::is_alphabetic) && chars.all(is_script);
    if number || letter { text.to_owned() } else { format!("({text})") }
}

fn is_script(c: char) -> bool {
    c == '′' || [SUPERSCRIPTS, SUBSCRIPTS].iter().any(|table| table.1.contains(c)) || matches!(c, '\u{300}'..='\u{36f}')
}

/// The sign of a table in the place of a character.
fn in_table((from, to): (&str, &str), c: char) -> Option<char> {
    let at = from.chars().position(|of| of == c)?;
    to.chars().nth(at)
}

fn in_pairs(pairs: &[(char, &'static str)], c: char) -> Option<&'static str> {
    pairs.iter().find(|(of, _)| *of == c).map(|(_, sign)| *sign)
}

const SUPERSCRIPTS: (&str, &str) = (
    "0123456789+-=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWβγδθ′∘",
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵝᵞᵟᶿ′°",
);
const SUBSCRIPTS: (&str, &str) = ("0123456789+-=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ");
const ROOTS: &[(char, &str)] = &[('2', "√"), ('3', "∛"), ('4', "∜"), ('n', "ⁿ√")];
const DOUBLE_STRUCK: &[(char, &str)] =
    &[('C', "ℂ"), ('H', "ℍ"), ('N', "ℕ"), ('P', "ℙ"), ('Q', "ℚ"), ('R', "ℝ"), ('Z', "ℤ")];
const ACCENTS: &[(&str, &str)] = &[
    ("hat", "\u{302}"),
    ("bar", "\u{304}"),
    ("vec", "\u{20d7}"),
    ("dot", "\u{307}"),
    ("ddot", "\u{308}"),
    ("tilde", "\u{303}"),
];
const FUNCTIONS: &[&str] = &[
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg",
    "exp", "min", "max", "sup", "inf", "lim", "det", "dim", "ker", "gcd", "arg", "deg", "hom", "Pr",
];

#[rustfmt::skip]
const LETTERS: &[(&str, &str)] = &[
    ("alpha", "α"), ("beta", "β"), ("gamma", "γ"), ("delta", "δ"), ("epsilon", "ϵ"), ("varepsilon", "ε"), ("zeta", "ζ"),
    ("eta", "η"), ("theta", "θ"), ("vartheta", "ϑ"), ("iota", "ι"), ("kappa", "κ"), ("lambda", "λ"), ("mu", "μ"),
    ("nu", "ν"), ("xi", "ξ"), ("omicron", "ο"), ("pi", "π"), ("varpi", "ϖ"), ("rho", "ρ"), ("varrho", "ϱ"),
    ("sigma", "σ"), ("varsigma", "ς"), ("tau", "τ"), ("upsilon", "υ"), ("phi", "ϕ"), ("varphi", "φ"), ("chi", "χ"),
    ("psi", "ψ"), ("omega", "ω"), ("Gamma", "Γ"), ("Delta", "Δ"), ("Theta", "Θ"), ("Lambda", "Λ"), ("Xi", "Ξ"),
    ("Pi", "Π"), ("Sigma", "Σ"), ("Upsilon", "Υ"), ("Phi", "Φ"), ("Psi", "Ψ"), ("Omega", "Ω"), ("hbar", "ℏ"),
    ("ell", "ℓ"), ("aleph", "ℵ"), ("infty", "∞"), ("emptyset", "∅"), ("varnothing", "∅"), ("partial", "∂"),
    ("nabla", "∇"), ("Re", "ℜ"), ("Im", "ℑ"), ("top", "⊤"), ("bot", "⊥"),
];

/// Set apart from what is beside them.
#[rustfmt::skip]
const RELATIONS: &[(&str, &str)] = &[
    ("leq", "≤"), ("le", "≤"), ("geq", "≥"), ("ge", "≥"), ("neq", "≠"), ("ne", "≠"), ("approx", "≈"), ("equiv", "≡"),
    ("sim", "∼"), ("simeq", "≃"), ("cong", "≅"), ("propto", "∝"), ("ll", "≪"), ("gg", "≫"), ("in", "∈"),
    ("notin", "∉"), ("ni", "∋"), ("subset", "⊂"), ("subseteq", "⊆"), ("supset", "⊃"), ("supseteq", "⊇"), ("cup", "∪"),
    ("cap", "∩"), ("setminus", "∖"), ("land", "∧"), ("wedge", "∧"), ("lor", "∨"), ("vee", "∨"), ("oplus", "⊕"),
    ("otimes", "⊗"), ("times", "×"), ("div", "÷"), ("cdot", "·"), ("pm", "±"), ("mp", "∓"), ("circ", "∘"),
    ("bullet", "•"), ("star", "⋆"), ("ast", "∗"), ("mid", "∣"), ("parallel", "∥"), ("perp", "⟂"), ("vdash", "⊢"),
    ("models", "⊨"), ("to", "→"), ("rightarrow", "→"), ("longrightarrow", "⟶"), ("leftarrow", "←"), ("gets", "←"),
    ("leftrightarrow", "↔"), ("Rightarrow", "⇒"), ("Leftarrow", "⇐"), ("Leftrightarrow", "⇔"), ("implies", "⟹"),
    ("impliedby", "⟸"), ("iff", "⟺"), ("mapsto", "↦"), ("therefore", "∴"), ("because", "∵"),
];

#[rustfmt::skip]
const SIGNS: &[(&str, &str)] = &[
    ("sum", "∑"), ("prod", "∏"), ("int", "∫"), ("iint", "∬"), ("iiint", "∭"), ("oint", "∮"), ("bigcup", "⋃"),
    ("bigcap", "⋂"), ("forall", "∀"), ("exists", "∃"), ("nexists", "∄"), ("neg", "¬"), ("lnot", "¬"), ("ldots", "…"),
    ("dots", "…"), ("cdots", "⋯"), ("vdots", "⋮"), ("ddots", "⋱"), ("uparrow", "↑"), ("downarrow", "↓"),
    ("prime", "′"), ("angle", "∠"), ("degree", "°"), ("triangle", "△"), ("square", "□"), ("dagger", "†"),
    ("vert", "|"), ("lvert", "|"), ("rvert", "|"), ("Vert", "‖"), ("lVert", "‖"), ("rVert", "‖"), ("colon", ":"),
];
const OPENING: &[(&str, &str)] = &[("langle", "⟨"), ("lfloor", "⌊"), ("lceil", "⌈"), ("lbrace", "{"), ("lbrack", "[")];
const CLOSING: &[(&str, &str)] = &[("rangle", "⟩"), ("rfloor", "⌋"), ("rceil", "⌉"), ("rbrace", "}"), ("rbrack", "]")];

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn formulas_are_unicode_where_nothing_is_lost() {
        for (formula, expected) in [
            (r"$\alpha + \beta$", "α + β"),
            (r"$E = mc^2$", "E = mc²"),
            (r"$x_1^2 + x_{10}^{n+1}$", "x₁² + x₁₀ⁿ⁺¹"),
            (r"\(a\leq b\)", "a ≤ b"),
            (r"$a \times b \to c$", "a × b → c"),
            (r"$\frac{1}{2}$", "1/2"),
            (r"$\frac12$", "1/2"),
            (r"$\frac{a+b}{c}$", "(a+b)/c"),
            (r"$\frac{x}{2y}$", "x/(2y)"),
            (r"$\frac{dy}{dx}$", "dy/(dx)"),
            (r"$\frac{1}{2}x$", "(1/2)x"),
            (r"$2\frac{1}{3}$", "2(1/3)"),
            (r"$\frac{1}{2} x$", "(1/2) x"),
            (r"$\frac{1}{2} + x$", "1/2 + x"),
            (r"$\frac{a}{b}^2$", "(a/b)²"),
            (r"$\left(\frac{a}{b}\right)^2$", "(a/b)²"),
            (r"$\frac{\frac{a}{b}}{c}$", "(a/b)/c"),
            (r"$1/\frac{a}{b}$", "1/(a/b)"),
            (r"$\sqrt{2}$", "√2"),
            (r"$\sqrt{x+1}$", "√(x+1)"),
            (r"$\sqrt[3]{x}$", "∛x"),
            (r"$\sqrt{2}x$", "(√2)x"),
            (r"\[ \sum_{i=1}^{n} i = \frac{n(n+1)}{2} \]", "∑ᵢ₌₁ⁿ i = (n(n+1))/2"),
            (r"$\int_0^1 x\,dx$", "∫₀¹ x dx"),
            (r"$\sin\theta$", "sin θ"),
            (r"$2\sin^2 x$", "2 sin² x"),
            (r"$f: \mathbb{R} \to \mathbb{R}$", "f: ℝ → ℝ"),
            (r"$f'(x) \le \{1, 50\%\}$", "f′(x) ≤ {1, 50%}"),
            ("$$\nx \\ne 5\n$$", "x ≠ 5"),
            (r"$90^\circ$", "90°"),
            (r"$x \text{ if } y$", "x if y"),
            (r"$\vec{v}$", "v\u{20d7}"),
            (r"$\lfloor x \rfloor$", "⌊ x ⌋"),
        ] {
            assert_eq!(shown(formula).as_deref(), Some(expected), "{formula}");
        }
    }

    #[test]
    fn a_formula_with_anything_else_stays_as_written() {
        let deep = format!("${}x{}$", "{".repeat(1000), "}".repeat(1000));
        let roots = format!("${}x$", r"\sqrt".repeat(1000));
        for formula in [
            // Nothing would be easier to read.
            r"$a\;b\,c\!d$",
            r"$P_{i}, Q_1$",
            r"\( \{1,2\} \)",
            r"$$\left\{ x_{1} \right\}$$",
            r"$x_{max}^q$",
            r"$a_b$",
            r"$\boxed{5}$",
            r"$\begin{matrix} 1 \end{matrix}$",
            r"$a \\ b$",
            r"$a & b$",
            r"$\unknown$",
            r"$\frac{1}$",
            r"$x^$",
            r"${x$",
            r"$x}$",
            r"$\text{a $b$}$",
            r"$\lim_{x \to 0} x$",
            r"$\hat{xy}$",
            r"$ $",
            r"\alpha",
            r"$5",
            &deep,
            &roots,
        ] {
            assert_eq!(shown(formula), None, "{formula}");
        }
    }
}
