//! Python features that minijinja lacks: methods of strings and lists, and `json.dumps`.

use super::guard::is_space;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

/// Deepest nesting of a value that is written as JSON.
const DEEPEST: usize = 100;
/// Longest text that a method may pad to.
const WIDEST: usize = 4096;

/// Methods that Python values have and minijinja values lack.
pub fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let known = match value.as_str() {
        Some(text) => of_text(text, method, args)?,
        None if value.kind() == ValueKind::Seq => of_list(value, method, args)?,
        None if value.kind() == ValueKind::Map && method == "copy" => Some(value.clone()),
        None => None,
    };
    known.map_or_else(|| minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args), Ok)
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (which,): (Option<&str>,) = from_args(args)?;
            stripped(method, text, which).into()
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if method == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            rest.unwrap_or(text).into()
        }
        "split" | "rsplit" => {
            let (sep, most, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = sep.map_or_else(|| options.get("sep"), |sep| Ok(Some(sep)))?;
            let most = most.map_or_else(|| options.get("maxsplit"), |most| Ok(Some(most)))?;
            options.assert_all_used()?;
            let most = most.and_then(|most: i64| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            Value::from_iter(split(text, sep, most, method == "rsplit")?)
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            let first = method == "partition";
            let found = if first { text.split_once(sep) } else { text.rsplit_once(sep) };
            let (before, sep, after) = match found {
                Some((before, after)) => (before, sep, after),
                None if first => (text, "", ""),
                None => ("", "", text),
            };
            Value::from(Tuple::from([before, sep, after].map(Value::from)))
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Value::from_iter(lines(text, keep.unwrap_or(false)))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (part, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            found(text, method, part, from, to)?
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (part, from, to): (Value, Option<i64>, Option<i64>) = from_args(args)?;
            let within = slice(text, from, to).1;
            let fits =
                |part: &str| if method == "startswith" { within.starts_with(part) } else { within.ends_with(part) };
            match part.as_str() {
                Some(part) => fits(part).into(),
                None => part.try_iter()?.any(|part| part.as_str().is_some_and(fits)).into(),
            }
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            padded(text, method, width, fill)?.into()
        }
        "title" => title(text).into(),
        "casefold" => text.to_lowercase().into(),
        "swapcase" => {
            let swapped = text.chars().flat_map(|c| -> Vec<char> {
                if c.is_lowercase() { c.to_uppercase().collect() } else { c.to_lowercase().collect() }
            });
            swapped.collect::<String>().into()
        }
        "expandtabs" => text.replace('\t', "        ").into(),
        _ => return Ok(kind_of(text, method).map(Value::from)),
    }))
}

fn kind_of(text: &str, method: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| Some(!text.is_empty() && text.chars().all(is));
    match method {
        "isdecimal" | "isdigit" => all(|c| c.is_numeric() && !c.is_alphabetic()),
        "isspace" => all(is_space),
        "istitle" => Some(title(text) == text && text.contains(char::is_alphabetic)),
        _ => None,
    }
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            at.map(Value::from).ok_or_else(|| failed("the value is not in the list"))?
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

pub fn failed(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.to_owned())
}

/// Python's `strip`, `lstrip` or `rstrip` of the characters in `which`, or of white space.
pub fn stripped(method: &str, text: &str, which: Option<&str>) -> String {
    let goes = |c: char| which.map_or_else(|| is_space(c), |which| which.contains(c));
    let text = if method == "rstrip" { text } else { text.trim_start_matches(goes) };
    let text = if method == "lstrip" { text } else { text.trim_end_matches(goes) };
    text.to_owned()
}

/// At most `most` splits, from the end if `from_end`; at white space without a separator.
fn split<'a>(text: &'a str, sep: Option<&'a str>, most: usize, from_end: bool) -> Result<Vec<&'a str>, Error> {
    let most = most.saturating_add(1);
    let Some(sep) = sep else { return Ok(words(text, most, from_end)) };
    if sep.is_empty() {
        return Err(failed("empty separator"));
    }
    let mut out: Vec<&str> =
        if from_end { text.rsplitn(most, sep).collect() } else { text.splitn(most, sep).collect() };
    if from_end {
        out.reverse();
    }
    Ok(out)
}

fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    fn next(text: &str, from_end: bool) -> &str {
        if from_end { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
    }
    let (mut out, mut rest) = (Vec::new(), next(text, from_end));
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| out.len() + 1 < most) else {
            // The rest keeps its white space.
            out.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + width..]);
        out.push(if from_end { after } else { before });
        rest = next(if from_end { before } else { after }, from_end);
    }
    if from_end {
        out.reverse();
    }
    out
}

/// Python's `title`: a letter after anything but a letter is a capital.
fn title(text: &str) -> String {
    let mut begins = true;
    let one = |c: char| -> String {
        let begun = std::mem::replace(&mut begins, !c.is_alphabetic());
        if begun { c.to_uppercase().collect() } else { c.to_lowercase().collect() }
    };
    text.chars().map(one).collect()
}

/// Jinja's `default`, with names of its arguments.
pub fn default(value: Value, other: Option<Value>, boolean: Option<bool>, options: Kwargs) -> Result<Value, Error> {
    let other: Option<Value> = other.map_or_else(|| options.get("default_value"), |other| Ok(Some(other)))?;
    let boolean: Option<bool> = boolean.map_or_else(|| options.get("boolean"), |boolean| Ok(Some(boolean)))?;
    options.assert_all_used()?;
    let missing = value.is_undefined() || (boolean == Some(true) && !value.is_true());
    Ok(if missing { other.unwrap_or_else(|| Value::from("")) } else { value })
}

/// Lines as Python's `splitlines` has them.
pub fn lines(text: &str, keep: bool) -> Vec<String> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut out, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[at..].chars().next() {
            Some('\r') if rest[at..].starts_with("\r\n") => 2,
            Some(c) => c.len_utf8(),
            None => 0,
        };
        out.push(rest[..if keep { at + end } else { at }].to_owned());
        rest = &rest[at + end..];
    }
    out
}

/// The part of a text between two character numbers, negative ones from the end, and where it
/// begins.
fn slice(text: &str, from: Option<i64>, to: Option<i64>) -> (usize, &str) {
    let n = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { at + n } else { at }).clamp(0, n) as usize;
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(n)));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    (from, if from < to { &text[byte(from)..byte(to)] } else { "" })
}

fn found(text: &str, method: &str, part: &str, from: Option<i64>, to: Option<i64>) -> Result<Value, Error> {
    let (first, within) = slice(text, from, to);
    if method == "count" {
        let n = if part.is_empty() { within.chars().count() + 1 } else { within.matches(part).count() };
        return Ok(n.into());
    }
    let at = if method.starts_with('r') { within.rfind(part) } else { within.find(part) };
    match at.map(|at| first + within[..at].chars().count()) {
        Some(at) => Ok(at.into()),
        None if method.ends_with("find") => Ok((-1).into()),
        None => Err(failed("substring not found")),
    }
}

pub fn padded(text: &str, method: &str, width: usize, fill: Option<char>) -> Result<String, Error> {
    if width > WIDEST {
        return Err(failed("the width is too large"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let signs = |fill: char, n: usize| fill.to_string().repeat(n);
    let fill = fill.unwrap_or(if method == "zfill" { '0' } else { ' ' });
    Ok(match method {
        "ljust" => text.to_owned() + &signs(fill, missing),
        "rjust" => signs(fill, missing) + text,
        "zfill" => {
            let sign = text.len() - text.trim_start_matches(['+', '-']).len();
            let sign = sign.min(1);
            text[..sign].to_owned() + &signs(fill, missing) + &text[sign..]
        }
        _ => {
            // Python puts the odd one to the left if the width is odd.
            let left = missing / 2 + (missing & width & 1);
            signs(fill, left) + text + &signs(fill, missing - left)
        }
    })
}

/// Python's `json.dumps(value, ensure_ascii=False, ...)`, as transformers has it.
pub fn tojson(
    value: Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    separators: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<Value>, name| -> Result<Option<Value>, Error> {
        given.map_or_else(|| options.get(name), |given| Ok(Some(given)))
    };
    let ascii = option(ensure_ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let (indent, separators) = (option(indent, "indent")?, option(separators, "separators")?);
    let sorted = option(None, "sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let indent = match indent.filter(|indent: &Value| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_str(), i64::try_from(indent.clone())) {
            (Some(text), _) => Some(text.chars().take(WIDEST).collect()),
            (None, Ok(n)) => Some(" ".repeat(n.clamp(0, 64) as usize)),
            (None, Err(_)) => return Err(failed("tojson: indent is neither a number nor a text")),
        },
    };
    let between = match separators.filter(|separators: &Value| !separators.is_none()) {
        None => None,
        Some(pair) => {
            let both: Vec<String> = pair.try_iter()?.map(|one| one.to_string()).collect();
            let [item, key] = <[String; 2]>::try_from(both).map_err(|_| failed("tojson: separators are two texts"))?;
            Some((item, key))
        }
    };
    let usual = if indent.is_some() { "," } else { ", " };
    let (item, key) = between.unwrap_or_else(|| (usual.to_owned(), ": ".to_owned()));
    let mut json = Json { out: String::new(), ascii, sorted, indent, item, key };
    json.value(&value, 0)?;
    Ok(json.out)
}

/// JSON as Python writes it.
struct Json {
    out: String,
    ascii: bool,
    sorted: bool,
    /// One level of it. `None`: all in one line.
    indent: Option<String>,
    item: String,
    key: String,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(failed("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out += "null",
            ValueKind::Bool => self.out += if value.is_true() { "true" } else { "false" },
            ValueKind::Number => self.out += &number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.list(['[', ']'], items.len(), depth, |json, at| json.value(&items[at], depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    let name = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                        ValueKind::Number => number(&key),
                        _ => key.to_string(),
                    };
                    pairs.push((name, value.get_item(&key)?));
                }
                if self.sorted {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.list(['{', '}'], pairs.len(), depth, |json, at| {
                    json.text(&pairs[at].0);
                    json.out += &json.key.clone();
                    json.value(&pairs[at].1, depth + 1)
                })?;
            }
            kind => return Err(failed(&format!("tojson: a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn list(
        &mut self,
        brackets: [char; 2],
        n: usize,
        depth: usize,
        each: impl Fn(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        for at in 0..n {
            if at > 0 {
                self.out += &self.item.clone();
            }
            self.line(depth + 1);
            each(self, at)?;
        }
        if n > 0 {
            self.line(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out += &indent.repeat(depth);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    let units = c.encode_utf16(&mut [0; 2]).to_vec();
                    self.out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// What Python's `str` makes of a number with a point, or of a list or map that holds one; `None`
/// for other values, which minijinja writes as Python does.
pub fn written(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number => float(value),
        ValueKind::Seq | ValueKind::Map if holds_float(value, 0) => Some(repr(value)),
        _ => None,
    }
}

fn holds_float(value: &Value, depth: usize) -> bool {
    let items = |value: &Value| value.try_iter().into_iter().flatten().collect::<Vec<Value>>();
    match value.kind() {
        ValueKind::Number => !value.is_integer(),
        ValueKind::Seq if depth < DEEPEST => items(value).iter().any(|item| holds_float(item, depth + 1)),
        ValueKind::Map if depth < DEEPEST => items(value).iter().any(|key| {
            holds_float(key, depth + 1) || value.get_item(key).is_ok_and(|item| holds_float(&item, depth + 1))
        }),
        _ => false,
    }
}

/// Python's `repr` of a value in which [`holds_float`] found one.
fn repr(value: &Value) -> String {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Number => float(value).unwrap_or_else(|| value.to_string()),
        ValueKind::Seq if holds_float(value, 0) => {
            let texts: Vec<String> = items().map(|item| repr(&item)).collect();
            match (value.downcast_object_ref::<Tuple>(), texts.len()) {
                (Some(_), 1) => format!("({},)", texts[0]),
                (Some(_), _) => format!("({})", texts.join(", ")),
                (None, _) => format!("[{}]", texts.join(", ")),
            }
        }
        ValueKind::Map if holds_float(value, 0) => {
            let pair = |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            format!("{{{}}}", items().map(pair).collect::<Vec<_>>().join(", "))
        }
        _ => format!("{value:?}"),
    }
}

/// What Python's `str` makes of a number with a point; `None` for other values.
fn float(value: &Value) -> Option<String> {
    let float = f64::try_from(value.clone()).ok().filter(|_| value.kind() == ValueKind::Number)?;
    match float {
        _ if value.is_integer() => None,
        _ if float.is_finite() => Some(number(value)),
        _ if float.is_nan() => Some("nan".to_owned()),
        _ => Some(if float > 0.0 { "inf" } else { "-inf" }.to_owned()),
    }
}

/// A number as Python's `json.dumps` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if !float.is_finite() {
        return if float.is_nan() {
            "NaN"
        } else if float > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => {
            let plain = float.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}
