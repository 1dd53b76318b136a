//! Filters, tests and functions of Jinja that minijinja lacks or whose arguments it takes
//! otherwise.

use super::guard::{self, is_space};
use super::python::{self, failed};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};
use minijinja_contrib::filters::{filesizeformat, striptags};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Arguments after the filtered value.
type Args = Rest<ValueOrKwargs>;

/// Longest indentation.
const WIDEST: usize = 4096;

pub fn add_to(env: &mut Environment) {
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("callable", is_callable);
    env.add_filter("trim", |text: String, which: Option<String>| python::stripped("strip", &text, which.as_deref()));
    env.add_filter("tojson", python::tojson);
    env.add_filter("default", python::default);
    env.add_filter("d", python::default);
    env.add_filter("string", |value: Value| if value.as_str().is_some() { value } else { shown(&value).into() });
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("truncate", truncate);
    env.add_filter("wordcount", |value: Value| words(&shown(&value)));
    env.add_filter("center", center);
    env.add_filter("urlencode", urlencode);
    env.add_filter("striptags", |value: Value| striptags(shown(&value)));
    env.add_filter("filesizeformat", file_size);
    env.add_filter("forceescape", filters::escape);
    env.add_filter("sort", |state: &State, value: Value, args: Args| {
        filters::sort(state, value, named(args, &["reverse", "case_sensitive", "attribute"])?)
    });
    env.add_filter("dictsort", dictsort);
    const CASED: [&str; 2] = ["case_sensitive", "attribute"];
    env.add_filter("unique", |state: &State, value: Value, args: Args| {
        filters::unique(state, value, named(args, &CASED)?)
    });
    env.add_filter("min", |state: &State, value: Value, args: Args| filters::min(state, value, named(args, &CASED)?));
    env.add_filter("max", |state: &State, value: Value, args: Args| filters::max(state, value, named(args, &CASED)?));
    env.add_function("dict", dict);
    env.add_function("cycler", cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
}

/// Keys are ordered without the marks that keep them from becoming control tokens.
fn dictsort(value: Value, args: Args) -> Result<Value, Error> {
    let options = named(args, &["case_sensitive", "by", "reverse"])?;
    let is = |name: &str| options.get::<Option<bool>>(name).map(|set| set == Some(true));
    let by_value = options.get::<Option<String>>("by")?.is_some_and(|by| by == "value");
    let (cased, reverse) = (is("case_sensitive")?, is("reverse")?);
    let sorted = filters::dictsort(&value, options)?;
    let mut pairs: Vec<Value> = sorted.try_iter()?.collect();
    let key = |pair: &Value| pair.get_item_by_index(0).ok().filter(|key| key.as_str().is_some());
    let is_marked = |pair: &Value| key(pair).is_some_and(|key| key.as_str().is_some_and(guard::is_marked));
    if by_value || !pairs.iter().any(is_marked) {
        return Ok(sorted);
    }
    pairs.sort_by_cached_key(|pair| {
        let text = guard::without_marks(key(pair).as_ref().and_then(Value::as_str).unwrap_or_default());
        if cased { text } else { text.to_lowercase() }
    });
    if reverse {
        pairs.reverse();
    }
    Ok(pairs.into())
}

/// All arguments by name.
fn named(args: Args, names: &[&str]) -> Result<Kwargs, Error> {
    let mut all: Vec<(String, Value)> = Vec::new();
    for (at, value) in args.0.into_iter().map(ValueOrKwargs::into_value).enumerate() {
        let options = if value.is_undefined() { None } else { Kwargs::try_from(value.clone()).ok() };
        if let Some(options) = options {
            for name in options.args() {
                all.push((name.to_owned(), options.get(name)?));
            }
        } else {
            let name = names.get(at).ok_or_else(|| Error::from(ErrorKind::TooManyArguments))?;
            all.push(((*name).to_owned(), value));
        }
    }
    Ok(all.into_iter().collect())
}

/// What a template writes for a value.
pub fn shown(value: &Value) -> String {
    python::written(value).unwrap_or_else(|| value.to_string())
}

fn is_sequence(value: &Value) -> bool {
    // A missing value has a length and items too.
    let has_items = matches!(value.kind(), ValueKind::String | ValueKind::Map | ValueKind::Undefined);
    has_items || tests::is_sequence(value)
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && tests::is_iterable(value)
}

fn is_callable(value: &Value) -> bool {
    let plain = value.kind() == ValueKind::Plain && value.downcast_object_ref::<Cycler>().is_none();
    plain || value.is_undefined()
}

fn int(state: &State, value: Value, args: Args) -> Result<Value, Error> {
    let options = named(args, &["default", "base"])?;
    let default = options.get::<Option<Value>>("default")?.unwrap_or_else(|| 0.into());
    let base = options.get::<Option<u32>>("base")?;
    options.assert_all_used()?;
    let value = without_space(value);
    let float = value.as_str().and_then(|text| text.parse::<f64>().ok());
    if base.is_none() && float.is_some_and(|number| !number.is_finite()) {
        return Ok(default);
    }
    filters::int(state, &value, Some(default), base, Kwargs::from_iter(NONE))
}

fn float(state: &State, value: Value, args: Args) -> Result<Value, Error> {
    let options = named(args, &["default"])?;
    let default = options.get::<Option<Value>>("default")?.unwrap_or_else(|| 0.0.into());
    options.assert_all_used()?;
    filters::float(state, &without_space(value), Some(default), Kwargs::from_iter(NONE))
}

const NONE: [(&str, Value); 0] = [];

/// Python reads a number with white space around it.
fn without_space(value: Value) -> Value {
    match value.as_str() {
        Some(text) => text.trim_matches(is_space).into(),
        None => value,
    }
}

fn replace(value: Value, args: Args) -> Result<String, Error> {
    let options = named(args, &["old", "new", "count"])?;
    let (old, new): (Value, Value) = (options.get("old")?, options.get("new")?);
    let most: Option<i64> = options.get("count")?;
    options.assert_all_used()?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    Ok(shown(&value).replacen(&shown(&old), &shown(&new), most))
}

fn indent(value: Value, args: Args) -> Result<String, Error> {
    let options = named(args, &["width", "first", "blank"])?;
    let width = options.get::<Option<Value>>("width")?.unwrap_or_else(|| 4.into());
    let flag = |name| options.get::<Option<Value>>(name).map(|flag| flag.is_some_and(|flag| flag.is_true()));
    let (first, blank) = (flag("first")?, flag("blank")?);
    options.assert_all_used()?;
    let prefix = match width.as_str() {
        Some(prefix) => prefix.to_owned(),
        None => {
            let width = i64::try_from(width)?.max(0) as usize;
            if width > WIDEST {
                return Err(failed("indent: the width is too large"));
            }
            " ".repeat(width)
        }
    };
    let mut out = String::new();
    for (at, line) in python::lines(&(shown(&value) + "\n"), false).iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out += &prefix;
        }
        out += line;
    }
    Ok(out)
}

fn truncate(value: Value, args: Args) -> Result<String, Error> {
    let options = named(args, &["length", "killwords", "end", "leeway"])?;
    let length = options.get::<Option<usize>>("length")?.unwrap_or(255);
    let cuts = options.get::<Option<Value>>("killwords")?.is_some_and(|cuts| cuts.is_true());
    let end = options.get::<Option<String>>("end")?.unwrap_or_else(|| "...".to_owned());
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(5);
    options.assert_all_used()?;
    let text = shown(&value);
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(failed("truncate: the length is less than that of the end"));
    };
    let begun: String = text.chars().take(kept).collect();
    let whole_words = begun.rsplit_once(' ').map_or(begun.as_str(), |(before, _)| before);
    Ok(if cuts { begun + &end } else { whole_words.to_owned() + &end })
}

fn words(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

fn center(value: Value, args: Args) -> Result<String, Error> {
    let options = named(args, &["width"])?;
    let width = options.get::<Option<usize>>("width")?.unwrap_or(80);
    options.assert_all_used()?;
    python::padded(&shown(&value), "center", width, None)
}

/// A text, or the pairs of a map or a list as a query.
fn urlencode(value: Value) -> Result<String, Error> {
    let pairs: Vec<(Value, Value)> = match value.kind() {
        ValueKind::Map => {
            value.try_iter()?.map(|key| Ok((key.clone(), value.get_item(&key)?))).collect::<Result<_, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => pairs_of(&value)?,
        _ => return Ok(quoted(&shown(&value), "/")),
    };
    let form = |value: &Value| quoted(&shown(value), "").replace("%20", "+");
    Ok(pairs.iter().map(|(key, value)| form(key) + "=" + &form(value)).collect::<Vec<_>>().join("&"))
}

fn quoted(text: &str, safe: &str) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || safe.as_bytes().contains(&byte);
    let one = |byte: u8| if stays(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

fn file_size(value: Value, args: Args) -> Result<String, Error> {
    let options = named(args, &["binary"])?;
    let binary = options.get::<Option<Value>>("binary")?.is_some_and(|binary| binary.is_true());
    options.assert_all_used()?;
    let text = shown(&value);
    let size: f64 = text.trim().parse().map_err(|_| failed("filesizeformat: the value is not a number"))?;
    let base = if binary { 1024.0 } else { 1000.0 };
    Ok(filesizeformat(if size < base && size != 1.0 { size.trunc() } else { size }, Some(binary)))
}

fn dict(value: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    let value = match value {
        Some(list) if matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable) => {
            Some(Value::from_pairs(pairs_of(&list)?))
        }
        value => value,
    };
    functions::dict(value, more)
}

fn pairs_of(list: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let mut out = Vec::new();
    for pair in list.try_iter()?.checked() {
        let both: Vec<Value> = pair?.try_iter()?.checked().collect::<Result<_, _>>()?;
        let [key, value] = <[Value; 2]>::try_from(both).map_err(|_| failed("an item of the list is not a pair"))?;
        out.push((key, value));
    }
    Ok(out)
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(failed("cycler: at least one item has to be given"));
    }
    Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
}
