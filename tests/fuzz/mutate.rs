//! Seeded mutation of an input: bytes, words of a dictionary, numbers, lines, and parts of a JSON
//! value.

use dmschat::random::Random;
use serde_json::{Map, Value, json};

/// The same numbers for the same seed, on every machine.
pub struct Rng(Random);

impl Rng {
    /// The generator of one trial.
    pub fn new(seed: u64, target: &str, index: u64) -> Self {
        let name =
            target.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let mut rng = Self(Random(seed ^ name.rotate_left(17) ^ index.wrapping_mul(0xd134_2543_de82_ef95)));
        rng.next();
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// Below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n.max(1))
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Kinds of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Json,
    /// A JSON value a line.
    JsonLines,
    /// TOML, Jinja.
    Lines,
    /// The beginning of a safetensors file: eight bytes of length, and a JSON header.
    Header,
    /// Numbers in bytes, as in a GGUF file.
    Binary,
    /// A JSON object that keeps its form: only values change.
    Values,
}

/// One example of a valid input.
pub struct Example {
    bytes: Vec<u8>,
    /// Its JSON, by line.
    values: Vec<Value>,
}

impl Example {
    pub fn new(shape: Shape, bytes: Vec<u8>) -> Self {
        let parse = |raw: &[u8]| serde_json::from_slice(raw).expect("the corpus is valid");
        let values = match shape {
            Shape::Json | Shape::Values => vec![parse(&bytes)],
            Shape::Header => vec![parse(&bytes[8..])],
            Shape::JsonLines => bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(parse).collect(),
            Shape::Lines | Shape::Binary => Vec::new(),
        };
        Self { bytes, values }
    }
}

/// An input from the examples. `words` are spellings that mean something to the parser.
pub fn input(rng: &mut Rng, shape: Shape, examples: &[Example], words: &[&str]) -> Vec<u8> {
    let example = rng.pick(examples);
    if shape == Shape::Values {
        let mut value = example.values[0].clone();
        for _ in 0..1 + rng.below(2) {
            value_edit(rng, &mut value, words);
        }
        return value.to_string().into_bytes();
    }
    let other = rng.pick(examples);
    let mut out = if example.values.is_empty() || rng.one_in(3) {
        let mut bytes = example.bytes.clone();
        if shape == Shape::Binary {
            binary_edits(rng, &mut bytes, words);
        }
        if shape != Shape::Binary || rng.one_in(3) {
            bytes_edits(rng, &mut bytes, &other.bytes, words);
        }
        return bytes;
    } else {
        json_edits(rng, shape, example, other, words)
    };
    if rng.one_in(8) {
        bytes_edits(rng, &mut out, &other.bytes, words);
    }
    out
}

/// Changes a value in its place; of a safetensors header mostly one of its metadata.
fn value_edit(rng: &mut Rng, root: &mut Value, words: &[&str]) {
    let mut leaves = Vec::new();
    collect(root, String::new(), &mut leaves);
    let metadata: Vec<&String> = leaves.iter().filter(|leaf| leaf.starts_with("/__metadata__/")).collect();
    let at = match metadata.is_empty() || rng.one_in(4) {
        true => rng.pick(&leaves).clone(),
        false => (*rng.pick(&metadata)).clone(),
    };
    let Some(value) = root.pointer_mut(&at) else { return };
    let number = rng.below(300) as f64 - 40.0;
    *value = match (&*value, rng.below(4)) {
        (Value::Bool(b), 0..3) => json!(!*b),
        (Value::Number(n), 0..2) => json!(n.as_i64().unwrap_or(0).saturating_add(rng.below(5) as i64 - 2)),
        (Value::Number(_), 2) => json!(number),
        (Value::Number(_), _) => {
            let text = NUMBERS[rng.below(NUMBERS.len())];
            serde_json::from_str(text).unwrap_or(json!(1u64 << 40))
        }
        (Value::String(_), 0) => json!(rng.pick(words)),
        (Value::String(_), 1) => json!(number.to_string()),
        (Value::String(_), 2) => json!(rng.pick(&NUMBERS)),
        (Value::String(text), _) => json!(format!("{text}x")),
        (_, 0) => Value::Null,
        _ => json!(number),
    };
}

/// The places of the values that have no parts.
fn collect(value: &Value, at: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, part)| {
            collect(part, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(items) => (0..).zip(items).for_each(|(n, part)| collect(part, format!("{at}/{n}"), out)),
        _ => out.push(at),
    }
}

const NUMBERS: [&str; 40] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "8",
    "16",
    "63",
    "64",
    "65",
    "127",
    "128",
    "255",
    "256",
    "1000",
    "4096",
    "32767",
    "65535",
    "65536",
    "1048576",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
    "0.5",
    "-0.0",
    "1e-400",
    "1e308",
    "1e999",
    "-1e999",
    "1e6",
    "NaN",
    "0x10",
];

const BYTES: [u8; 24] =
    [0, 1, 9, 10, 13, 27, 32, 34, 39, 44, 45, 48, 57, 58, 91, 92, 93, 123, 125, 127, 128, 0xc3, 0xf0, 255];

/// Puts another number, of one, four or eight bytes, in the place of one near an edge of a word; or
/// swaps words of the same length, which keeps all that follows in its place.
fn binary_edits(rng: &mut Rng, out: &mut [u8], words: &[&str]) {
    for _ in 0..1 + rng.below(3) {
        let (word, with) = (rng.pick(words).as_bytes(), rng.pick(words).as_bytes());
        let found: Vec<usize> =
            out.windows(word.len()).enumerate().filter(|(_, w)| *w == word).map(|(i, _)| i).collect();
        if found.is_empty() {
            continue;
        }
        let at = *rng.pick(&found);
        if word.len() == with.len() && rng.one_in(2) {
            out[at..at + word.len()].copy_from_slice(with);
            continue;
        }
        // Its length is before it; type, count and value are after it.
        let at = if rng.one_in(4) { at.saturating_sub(8) } else { at + word.len() + 4 * rng.below(7) };
        let number = match rng.below(4) {
            0 => rng.next() >> rng.below(64),
            1 => u64::MAX >> rng.below(64),
            2 => 1 << rng.below(64),
            _ => rng.below(70) as u64,
        };
        let size = [1, 4, 8][rng.below(3)];
        let raw = number.to_le_bytes();
        out.iter_mut().skip(at).zip(&raw[..size]).for_each(|(o, b)| *o = *b);
    }
}

fn bytes_edits(rng: &mut Rng, out: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    let n = if rng.one_in(16) { 1 + rng.below(48) } else { 1 + rng.below(4) };
    for _ in 0..n {
        let at = rng.below(out.len() + 1).min(out.len().saturating_sub(1));
        let span = |rng: &mut Rng, len: usize| {
            let most = if rng.one_in(4) { len } else { len.min(24) };
            1 + rng.below(most)
        };
        match rng.below(13) {
            0 if !out.is_empty() => out[at] ^= 1 << rng.below(8),
            1 if !out.is_empty() => out[at] = *rng.pick(&BYTES),
            2 => {
                let end = (at + span(rng, out.len())).min(out.len());
                out.drain(at..end);
            }
            3 => {
                let end = (at + span(rng, out.len())).min(out.len());
                let piece = out[at..end].to_vec();
                let times = if rng.one_in(8) { 1 + rng.below(400) } else { 1 + rng.below(3) };
                let most = if rng.one_in(16) { 1 << 18 } else { 1 << 13 };
                out.splice(at..at, piece.repeat(times.min(1 + most / piece.len().max(1))));
            }
            4 | 5 => drop(out.splice(at..at, rng.pick(words).bytes())),
            6 | 7 => number_edit(rng, out, at),
            8 => {
                let from = rng.below(other.len() + 1);
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
            9 => {
                let from = rng.below(other.len() + 1);
                let to = (from + span(rng, other.len())).min(other.len());
                out.splice(at..at, other[from..to].iter().copied());
            }
            10 => {
                let raw: Vec<u8> = (0..1 + rng.below(8)).map(|_| rng.next() as u8).collect();
                out.splice(at..at, raw);
            }
            11 => line_edit(rng, out, words),
            _ if rng.one_in(6) => out.truncate(at),
            _ => {}
        }
    }
    if rng.one_in(200) {
        // Nesting that a recursive parser would not come back from.
        let depth = [100, 127, 129, 1000, 50_000][rng.below(5)];
        let open: &[u8] = if rng.one_in(2) { b"[" } else { b"{\"a\":" };
        let at = rng.below(out.len() + 1);
        out.splice(at..at, open.repeat(depth));
    }
}

/// Puts another number in the place of the next one from `at` on.
fn number_edit(rng: &mut Rng, out: &mut Vec<u8>, at: usize) {
    let Some(start) = out[at..].iter().position(u8::is_ascii_digit).map(|n| n + at) else { return };
    let end = out[start..].iter().position(|b| !b.is_ascii_digit()).map_or(out.len(), |n| n + start);
    let number = match rng.below(4) {
        0 => (rng.next() >> rng.below(64)).to_string(),
        _ => (*rng.pick(&NUMBERS)).to_owned(),
    };
    out.splice(start..end, number.into_bytes());
}

/// Deletes, doubles or swaps lines, or changes the text after a `=`.
fn line_edit(rng: &mut Rng, out: &mut Vec<u8>, words: &[&str]) {
    let mut lines: Vec<Vec<u8>> = out.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    let (a, b) = (rng.below(lines.len()), rng.below(lines.len()));
    match rng.below(4) {
        0 => drop(lines.remove(a)),
        1 => lines.insert(b, lines[a].clone()),
        2 => lines.swap(a, b),
        _ => {
            if let Some(eq) = lines[a].iter().position(|c| *c == b'=') {
                lines[a].truncate(eq + 1);
                let value = match rng.below(5) {
                    0 => (*rng.pick(&NUMBERS)).to_owned(),
                    1 => format!("\"{}\"", rng.pick(words)),
                    2 => format!("[\"{}\", {}]", rng.pick(words), rng.pick(&NUMBERS)),
                    3 => "{ a = 1 }".to_owned(),
                    _ => ["true", "false", "''", "1979-05-27", "inf"][rng.below(5)].to_owned(),
                };
                lines[a].extend(value.bytes());
            }
        }
    }
    *out = lines.join(&b'\n');
}

fn json_edits(rng: &mut Rng, shape: Shape, example: &Example, other: &Example, words: &[&str]) -> Vec<u8> {
    let mut values = example.values.clone();
    let n = if rng.one_in(16) { 1 + rng.below(16) } else { 1 + rng.below(3) };
    for _ in 0..n {
        if shape == Shape::JsonLines && rng.one_in(4) {
            let (a, b) = (rng.below(values.len()), rng.below(values.len()));
            match rng.below(4) {
                0 => values.swap(a, b),
                1 => values.insert(b, values[a].clone()),
                2 if values.len() > 1 => drop(values.remove(a)),
                _ => values.insert(b, rng.pick(&other.values).clone()),
            }
            continue;
        }
        let at = rng.below(values.len());
        json_edit(rng, &mut values[at], other.values.first().unwrap_or(&Value::Null), words);
    }
    let lines: Vec<String> = values.iter().map(Value::to_string).collect();
    match shape {
        Shape::Header => header(rng, lines.concat()),
        Shape::JsonLines => (lines.join("\n") + if rng.one_in(16) { "" } else { "\n" }).into_bytes(),
        _ => lines.concat().into_bytes(),
    }
}

/// The header with its length before it, which is wrong at times.
fn header(rng: &mut Rng, text: String) -> Vec<u8> {
    let mut text = text.into_bytes();
    if !rng.one_in(4) {
        text.resize(text.len().next_multiple_of(8), b' ');
    }
    let length = match rng.below(24) {
        0 => rng.next() >> rng.below(64),
        1 => text.len() as u64 + rng.below(3) as u64,
        2 => (text.len() as u64).saturating_sub(rng.below(9) as u64),
        _ => text.len() as u64,
    };
    let mut out = length.to_le_bytes().to_vec();
    out.extend(text);
    out
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The part that `n` parts come before.
fn part<'a>(value: &'a mut Value, n: &mut usize) -> Option<&'a mut Value> {
    if *n == 0 {
        return Some(value);
    }
    *n -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|v| part(v, n)),
        Value::Object(map) => map.values_mut().find_map(|v| part(v, n)),
        _ => None,
    }
}

fn json_edit(rng: &mut Rng, root: &mut Value, other: &Value, words: &[&str]) {
    // Near the root more often than among the leaves of a long list.
    let size = count(root);
    let near = size.min(24);
    let mut n = if rng.one_in(2) { rng.below(near) } else { rng.below(size) };
    let Some(value) = part(root, &mut n) else { return };
    match (rng.below(10), &mut *value) {
        (0..=2, Value::Object(map)) => {
            let key = if rng.one_in(2) { (*rng.pick(words)).to_owned() } else { some_key(rng, map) };
            map.insert(key, any(rng, words, 0));
        }
        (3, Value::Object(map)) => {
            let key = some_key(rng, map);
            map.remove(&key);
        }
        (0 | 1, Value::Array(items)) if !items.is_empty() => drop(items.remove(rng.below(items.len()))),
        (2, Value::Array(items)) if !items.is_empty() => {
            let item = items[rng.below(items.len())].clone();
            let times = if rng.one_in(8) { 1 + rng.below(500) } else { 1 };
            let times = times.min(1 + 2_000 / count(&item));
            items.extend(std::iter::repeat_n(item, times));
        }
        (3, Value::Array(items)) => items.push(any(rng, words, 0)),
        (0..=3, Value::Number(_)) => {
            let raw = serde_json::from_str(NUMBERS[rng.below(NUMBERS.len())]);
            *value = raw.unwrap_or_else(|_| json!(u64::MAX >> rng.below(64)));
        }
        (0..=3, Value::String(text)) => {
            let mut bytes = std::mem::take(text).into_bytes();
            bytes_edits(rng, &mut bytes, b"\\u0000../x\xe2\x80\xae", words);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        (4, _) => {
            let depth = 1 + rng.below(130);
            let mut nested = std::mem::take(value);
            for _ in 0..depth {
                nested = match rng.one_in(2) {
                    true => Value::Array(vec![nested]),
                    false => Value::Object(Map::from_iter([("a".to_owned(), nested)])),
                };
            }
            *value = nested;
        }
        (5, _) => {
            let mut n = rng.below(count(other));
            let mut copy = other.clone();
            if let Some(found) = part(&mut copy, &mut n) {
                *value = found.take();
            }
        }
        _ => *value = any(rng, words, 0),
    }
}

fn some_key(rng: &mut Rng, map: &Map<String, Value>) -> String {
    map.keys().nth(rng.below(map.len())).cloned().unwrap_or_default()
}

/// Any JSON value, with a taste for edges.
fn any(rng: &mut Rng, words: &[&str], depth: usize) -> Value {
    match rng.below(if depth < 3 { 14 } else { 11 }) {
        0 => Value::Null,
        1 => json!(rng.one_in(2)),
        2..=5 => serde_json::from_str(NUMBERS[rng.below(NUMBERS.len())]).unwrap_or(Value::Null),
        6 => json!(rng.next() >> rng.below(64)),
        7..=9 => json!(rng.pick(words)),
        10 if rng.one_in(20) => json!("x".repeat(1 << rng.below(17))),
        10 => json!(["", " ", "\0", "../x", "/etc/passwd", "\u{202e}", "\u{1f680}", "a\nb"][rng.below(8)]),
        11 | 12 => (0..rng.below(5)).map(|_| any(rng, words, depth + 1)).collect(),
        _ => (0..rng.below(5)).map(|_| ((*rng.pick(words)).to_owned(), any(rng, words, depth + 1))).collect(),
    }
}
