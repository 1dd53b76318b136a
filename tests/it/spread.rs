//! Spread: how often the variants of a kind are named outside the kind's home. Each variant is a
//! row of a table, and every other place asks the row or iterates over the table, so that a new row
//! touches few files. Budgets only fall.

use super::sources::{Source, sources};

/// A kind of thing that can be added.
struct Kind {
    name: &'static str,
    /// Where its variants are named in code.
    places: fn(&str) -> usize,
    /// Files and folders of `src` that may name them, by the beginning of their path.
    home: &'static [&'static str],
    /// Most places, and most files with one.
    budget: [usize; 2],
    /// Goal of the budget.
    goal: [usize; 2],
}

const KINDS: [Kind; 7] = [
    Kind {
        name: "policy",
        places: |code| variants(code, &["Policy"]),
        home: &["policy"],
        budget: [4, 3],
        goal: [4, 3],
    },
    Kind { name: "codec", places: |code| variants(code, &["Codec"]), home: &["codec"], budget: [5, 2], goal: [12, 4] },
    Kind {
        name: "format of weights",
        places: |code| variants(code, &["Weights"]),
        home: &["quant", "quantize/weights", "protocol/weights"],
        budget: [3, 3],
        goal: [15, 5],
    },
    Kind {
        name: "mixer",
        places: |code| variants(code, &["Mixer"]),
        home: &["checkpoint/spec", "model/spec", "spec"],
        budget: [5, 3],
        goal: [8, 3],
    },
    Kind {
        name: "probe",
        places: |code| variants(code, &["Probe", "ProbeKind", "Finding"]),
        home: &["engine/conversation/probe", "engine/probe", "protocol/probe"],
        budget: [6, 2],
        goal: [6, 2],
    },
    Kind {
        name: "local layers",
        places: |code| words(code, "local_layers") + words(code, "LocalLayers") + fields(code, "local"),
        home: &["policy", "checkpoint/spec"],
        budget: [7, 4],
        goal: [10, 4],
    },
    Kind {
        name: "lanes by hand",
        places: |code| products(code, "n_layers", "n_kv_heads") + products(code, "n_kv_heads", "n_layers"),
        home: &["backend/kv.rs"],
        budget: [0, 0],
        goal: [3, 3],
    },
];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Places where one of these enums is followed by `::` and a name that begins with a capital.
fn variants(code: &str, enums: &[&str]) -> usize {
    let of = |name: &str| {
        let found = code.match_indices(name).filter(|&(at, _)| !code[..at].ends_with(is_word));
        let named = |rest: &str| rest.strip_prefix("::").is_some_and(|rest| rest.starts_with(char::is_uppercase));
        found.filter(|&(at, _)| named(&code[at + name.len()..])).count()
    };
    enums.iter().map(|name| of(name)).sum()
}

/// Places of a whole word. Behind a quote it is a key of a file.
fn words(code: &str, word: &str) -> usize {
    let found = code.match_indices(word).filter(|&(at, _)| !code[..at].ends_with(|c| is_word(c) || c == '"'));
    found.filter(|&(at, _)| !code[at + word.len()..].starts_with(is_word)).count()
}

/// Places where a field of that name is read: behind a name, a call or an index.
fn fields(code: &str, name: &str) -> usize {
    let is_value = |before: &str| before.ends_with(|c| is_word(c) || matches!(c, ')' | ']' | '?'));
    let found = code.match_indices(name).filter(|&(at, _)| code[..at].strip_suffix('.').is_some_and(is_value));
    found.filter(|&(at, _)| !code[at + name.len()..].starts_with(is_word)).count()
}

/// Places where two fields of these names are multiplied, whatever they are fields of.
fn products(code: &str, first: &str, second: &str) -> usize {
    let is_product = |rest: &str| {
        let Some(rest) = rest.trim_start().strip_prefix('*') else { return false };
        let rest = rest.trim_start();
        let path = &rest[..rest.find(|c| !is_word(c) && c != '.').unwrap_or(rest.len())];
        path.contains(second)
    };
    code.match_indices(first).filter(|&(at, _)| is_product(&code[at + first.len()..])).count()
}

/// Places outside the home, by file.
fn spread(kind: &Kind, sources: &[Source]) -> Vec<(String, usize)> {
    let is_home = |path: &str| kind.home.iter().any(|home| path.starts_with(home));
    let count = |source: &Source| {
        let path = source.path.strip_prefix("src/")?;
        let is_test = path.rsplit('/').next().is_some_and(|file| file.contains("test"));
        let places = (kind.places)(source.without_tests());
        (places > 0 && !is_test && !is_home(path)).then(|| (path.to_owned(), places))
    };
    sources.iter().filter_map(count).collect()
}

#[test]
fn kinds_are_named_at_home() {
    let sources = sources("src");
    for kind in &KINDS {
        let found = spread(kind, &sources);
        let is = [found.iter().map(|(_, n)| n).sum::<usize>(), found.len()];
        let list: Vec<String> = found.iter().map(|(path, n)| format!("{path}: {n}")).collect();
        assert!(
            is[0] <= kind.budget[0] && is[1] <= kind.budget[1],
            "{}: named {} times in {} files outside its home, {:?} at most (goal {:?}); ask the row instead:\n{}",
            kind.name,
            is[0],
            is[1],
            kind.budget,
            kind.goal,
            list.join("\n")
        );
    }
}

#[test]
fn places_are_counted_whatever_their_spelling() {
    let code = "Codec::F32 | codec::Codec::Bf16 => Codec::name(), MyCodec::F32, Codec::\n";
    assert_eq!(variants(code, &["Codec"]), 2);
    assert_eq!(words("c.local_layers() + my_local_layers + local_layers2 + \"local_layers\"", "local_layers"), 1);
    assert_eq!(fields("g.local.count() + local.local_window + kind().local + join(\".local\")", "local"), 2);
    assert_eq!(products("g.n_layers * g.n_kv_heads + n_layers\n * self.g.n_kv_heads * 2", "n_layers", "n_kv_heads"), 2);
    let at = |path: &str, text: &str| Source { path: path.into(), text: String::new(), code: text.into() };
    let files = [
        at("src/codec/a.rs", "Codec::F32"),
        at("src/ui.rs", "#[cfg(test)]\nmod tests;\nCodec::F32 Codec::Fp8\n#[cfg(test)]\nmod tests {\nCodec::F32 }"),
        at("src/ui/tests.rs", "Codec::F32"),
    ];
    assert_eq!(spread(&KINDS[1], &files), [("ui.rs".to_owned(), 2)]);
}
