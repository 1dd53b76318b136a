//! The sources of both programs, and the paths that they use: for tests of the house rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[derive(Clone)]
pub struct Source {
    /// From the repository's root, with forward slashes.
    pub path: String,
    pub text: String,
    /// Without comments.
    pub code: String,
}

impl Source {
    /// `["backend", "cpu", "kv"]` for src/backend/cpu/kv.rs; empty for the roots. lab/src is
    /// treated in the same way.
    pub fn module(&self) -> Vec<&str> {
        let path = self
            .path
            .strip_prefix("lab/")
            .unwrap_or(&self.path)
            .strip_prefix("src/")
            .and_then(|p| p.strip_suffix(".rs"))
            .unwrap_or("");
        if matches!(path, "" | "lib" | "main") { Vec::new() } else { path.split('/').collect() }
    }

    /// The code up to the file's test module. A test module in a separate file may be declared
    /// before the rest.
    pub fn without_tests(&self) -> &str {
        const TESTS: &str = "\n#[cfg(test)]\nmod ";
        let is_block = |at: &usize| self.code[at + TESTS.len()..].lines().next().is_some_and(|line| line.contains('{'));
        let end = self.code.match_indices(TESTS).map(|(at, _)| at).find(is_block);
        &self.code[..end.unwrap_or(self.code.len())]
    }
}

pub fn sources(folder: &str) -> Vec<Source> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()) {
            if entry.is_dir() {
                walk(&entry, out);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                out.push(entry);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&Path::new(ROOT).join(folder), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        let code = text.lines().map(|l| l.split_once("//").map_or(l, |(code, _)| code)).collect::<Vec<_>>().join("\n");
        let path = path.strip_prefix(ROOT).expect("inside").to_str().expect("UTF-8").replace('\\', "/");
        Source { path, text, code }
    };
    paths.into_iter().map(read).collect()
}

/// The sources of both programs.
pub fn code() -> Vec<Source> {
    [sources("src"), sources("lab/src")].concat()
}

/// The paths that a file uses, from the crate's root: `crate::a::B` and `super::a::B`, groups taken
/// apart.
pub fn used(source: &Source) -> BTreeSet<Vec<String>> {
    let code = &source.code;
    let module: Vec<String> = source.module().into_iter().map(str::to_owned).collect();
    // A module of tests inside the file stands one deeper.
    let inner = source.without_tests().len();
    let mut out = BTreeSet::new();
    for (at, _) in code.match_indices("crate::").filter(|&(at, _)| !inside_word(code, at)) {
        paths(&code[at + "crate::".len()..], Vec::new(), &mut out);
    }
    let climbs = code.match_indices("super::").map(|(at, _)| at);
    for start in climbs.filter(|&at| !code[..at].ends_with("super::") && !inside_word(code, at)) {
        let rest = code[start..].trim_start_matches("super::");
        let climbed = (code.len() - start - rest.len()) / "super::".len();
        let depth = module.len() + usize::from(start > inner);
        if let Some(left) = depth.checked_sub(climbed) {
            paths(rest, module[..left.min(module.len())].to_vec(), &mut out);
        }
    }
    out
}

/// The names that a file's `use` declarations bring in, and the path of each from the crate's root.
/// `is_file` tells whether a path is a file, for declarations that begin with the name of one
/// behind a door.
pub fn brought_in(source: &Source, is_file: impl Fn(&[String]) -> bool) -> BTreeMap<String, Vec<String>> {
    let module: Vec<String> = source.module().into_iter().map(str::to_owned).collect();
    let mut out = BTreeSet::new();
    let code = source.without_tests();
    for (at, _) in code.match_indices("use ").filter(|&(at, _)| !inside_word(code, at)) {
        let line = code[..at].rsplit('\n').next().unwrap_or("");
        if !(line.is_empty() || line.starts_with("pub")) {
            continue;
        }
        let Some((statement, _)) = code[at + "use ".len()..].split_once(';') else { continue };
        let statement = format!("{statement};");
        if let Some(rest) = statement.strip_prefix("crate::") {
            paths(rest, Vec::new(), &mut out);
            continue;
        }
        let rest = statement.trim_start_matches("super::");
        let climbed = (statement.len() - rest.len()) / "super::".len();
        let first = rest.split("::").next().unwrap_or("").to_owned();
        let child = [&module[..], &[first]].concat();
        if climbed > 0 && climbed <= module.len() {
            paths(rest, module[..module.len() - climbed].to_vec(), &mut out);
        } else if is_file(&child) {
            paths(rest, module.clone(), &mut out);
        }
    }
    out.into_iter().filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

pub fn inside_word(code: &str, at: usize) -> bool {
    code[..at].ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c))
}

/// Adds the path that begins here after `base`, or every path of a group.
fn paths(rest: &str, base: Vec<String>, out: &mut BTreeSet<Vec<String>>) {
    let Some(group) = rest.strip_prefix('{') else {
        let word = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
        let path = base.into_iter().chain((!word.is_empty()).then(|| word.to_owned())).collect();
        match rest[word.len()..].strip_prefix("::") {
            Some(rest) if !word.is_empty() => paths(rest, path, out),
            _ => drop(out.insert(path)),
        }
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let item = group[start..at].trim();
                if !item.is_empty() {
                    paths(item, base.clone(), out);
                }
                start = at + 1;
                if c == '}' {
                    return;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}
