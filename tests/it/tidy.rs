//! The house rules that a machine can check. The table of who may use whom stands in src/lib.rs
//! and is read from there.

use super::sources::{ROOT, Source, brought_in, code, inside_word, sources, used};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 600;
const MAX_COMMENT_COLUMNS: usize = 100;
/// Budgets of [`sizes_stay_within_their_budgets`]. Every instance of a kernel costs users the time
/// to compile it.
const MOST_INSTANCES: usize = 172;

/// The rows of lib.rs's table: module to what it may use; `None` is everything.
fn table() -> BTreeMap<String, Option<BTreeSet<String>>> {
    let lib = std::fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).expect("src/lib.rs");
    let mut out = BTreeMap::new();
    for line in lib.lines().filter_map(|l| l.strip_prefix("//! | ")) {
        let cells: Vec<&str> = line.trim_end_matches(" |").split(" | ").collect();
        let names = cells[0].split(", ").filter_map(|n| n.strip_prefix("[`")?.strip_suffix("`]"));
        for name in names {
            let uses = match cells[2] {
                "everything" => None,
                "nothing of ours" => Some(BTreeSet::new()),
                list => Some(list.split(", ").map(str::to_owned).collect()),
            };
            out.insert(name.to_owned(), uses);
        }
    }
    out
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let table = table();
    let sources = sources("src");
    let declared: BTreeSet<&str> = sources[..]
        .iter()
        .find(|s| s.path == "src/lib.rs")
        .map(|s| s.code.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect())
        .expect("src/lib.rs");
    assert_eq!(table.keys().map(String::as_str).collect::<BTreeSet<_>>(), declared, "the table of src/lib.rs");
    let mut wrong = BTreeSet::new();
    let mut edges = 0;
    for source in &sources {
        let module = source.module();
        let Some(&room) = module.first() else { continue };
        let Some(allowed) = &table[room] else { continue };
        let product = used(&Source { code: source.without_tests().to_owned(), ..source.clone() });
        for path in used(source) {
            let Some(target) = path.first().filter(|t| *t != room && declared.contains(t.as_str())) else { continue };
            edges += 1;
            // The trait is not its backends.
            let word = match (target.as_str(), path.get(1).map(String::as_str)) {
                // A room's own tests may run on the CPU.
                ("backend", Some("cpu")) if !product.contains(&path) => continue,
                ("backend", Some(concrete @ ("cpu" | "cuda"))) => format!("backend::{concrete}"),
                ("backend", _) => "the backend trait".to_owned(),
                (room, _) => room.to_owned(),
            };
            if !allowed.contains(&word) {
                wrong.insert(format!("{} uses crate::{}", source.path, path.join("::")));
            }
        }
    }
    assert!(edges > 40, "only {edges} edges were found: is the search broken?");
    assert!(wrong.is_empty(), "not in the table of src/lib.rs:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn paths_are_found_in_every_spelling() {
    let source = |path: &str, code: &str| Source { path: path.into(), text: String::new(), code: code.into() };
    let found = |path, code| {
        let all = used(&source(path, code));
        all.into_iter().map(|p| p.join("::")).collect::<Vec<_>>().join(" ")
    };
    let code = "use crate::{cache::{A, b::C}, model::D as E,\n    policy,\n};\nfn f() { crate::codec::g(); }";
    assert_eq!(found("src/ui.rs", code), "cache::A cache::b::C codec::g model::D policy");
    assert_eq!(found("src/a/b.rs", "use super::super::tensor::T; use super::c::d;"), "a::c::d tensor::T");
    assert_eq!(found("src/a.rs", "use super::tensor;\n#[cfg(test)]\nmod tests { use super::x; }"), "a::x tensor");
    assert_eq!(found("src/a.rs", "$crate::x!(); mycrate::y; other::crate::z"), "");
}

/// The files under `src`, by module, and the files that each uses. A name that a door re-exports
/// stands for the file that defines it. A use of what a door (`a.rs` of `a/b.rs`) itself defines,
/// by a file behind it, is an arrow up and counted elsewhere.
fn file_uses(sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let files: BTreeSet<Vec<&str>> = sources.iter().map(Source::module).filter(|m| !m.is_empty()).collect();
    let is_file = |path: &[String]| files.contains(&path.iter().map(String::as_str).collect::<Vec<_>>());
    let brought: BTreeMap<Vec<&str>, BTreeMap<String, Vec<String>>> =
        sources.iter().map(|s| (s.module(), brought_in(s, is_file))).collect();
    let own: BTreeMap<Vec<&str>, BTreeSet<&str>> =
        sources.iter().map(|s| (s.module(), defined(s.without_tests()))).collect();
    let file_of = |path: &[String]| {
        let is_prefix = |file: &&Vec<&str>| file.len() <= path.len() && file.iter().zip(path).all(|(a, b)| a == b);
        files.iter().filter(is_prefix).max_by_key(|file| file.len())
    };
    let home = |path: &[String]| {
        let (mut path, mut file) = (path.to_vec(), file_of(path)?);
        // As far as any name is handed on.
        for _ in 0..6 {
            let Some(name) = path.get(file.len()).filter(|name| !own[file].contains(name.as_str())) else { break };
            let Some(next) = brought[file].get(name).filter(|next| **next != path) else { break };
            path = [&next[..], &path[file.len() + 1..]].concat();
            let Some(further) = file_of(&path) else { break };
            file = further;
        }
        Some(file)
    };
    let mut uses = BTreeMap::new();
    for source in sources.iter().filter(|s| !s.module().is_empty() && !s.path.contains("test")) {
        let (module, code) = (source.module(), source.without_tests());
        let mut named = used(&Source { code: code.to_owned(), ..source.clone() });
        let behind = files.iter().filter(|f| f.len() == module.len() + 1 && f.starts_with(&module));
        let is_named = |child: &str| {
            let mut found = code.match_indices(child).filter(|&(at, _)| !inside_word(code, at));
            found.any(|(at, _)| code[at + child.len()..].starts_with("::"))
        };
        for file in behind.filter(|f| is_named(f[module.len()])) {
            named.insert(file.iter().map(|&part| part.to_owned()).collect());
        }
        let used = named.iter().filter_map(|path| home(path)).filter(|&file| !module.starts_with(file));
        uses.insert(module.join("::"), used.map(|file| file.join("::")).collect());
    }
    uses
}

/// A shortest way from each file back to itself, one for each set of files.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<&str>> {
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    for start in uses.keys() {
        let (mut came_from, mut queue) = (BTreeMap::new(), VecDeque::from([start]));
        while let Some(file) = queue.pop_front() {
            for next in
                uses.get(file).into_iter().flatten().filter(|next| !came_from.contains_key(next)).collect::<Vec<_>>()
            {
                came_from.insert(next, file);
                queue.push_back(next);
            }
        }
        let Some(mut at) = came_from.get(start).copied() else { continue };
        let mut circle = vec![start.as_str()];
        while at != start {
            circle.push(at);
            at = came_from[at];
        }
        circle.reverse();
        if seen.insert(circle.iter().copied().collect::<BTreeSet<_>>()) {
            out.push(circle);
        }
    }
    out
}

#[test]
fn files_do_not_use_each_other_in_circles() {
    for (folder, least) in [("src", 300), ("lab/src", 30)] {
        let uses = file_uses(&sources(folder));
        assert!(uses.values().map(BTreeSet::len).sum::<usize>() > least, "is the search broken?");
        let circles = circles(&uses);
        let wrong: Vec<String> = circles.iter().map(|c| format!("{} -> {}", c.join(" -> "), c[0])).collect();
        assert!(wrong.is_empty(), "files use each other in circles:\n{}", wrong.join("\n"));
    }
}

#[test]
fn circles_are_found() {
    let file = |path: &str, code: &str| Source { path: path.into(), text: String::new(), code: code.into() };
    let found = |files: &[Source]| {
        let uses = file_uses(files);
        circles(&uses).iter().map(|c| c.join(" ")).collect::<Vec<_>>().join(", ")
    };
    let door = || file("src/a.rs", "mod b; mod c;\nfn f() { b::g(); }");
    assert_eq!(found(&[door(), file("src/a/b.rs", "use super::c::X;"), file("src/a/c.rs", "use super::Y;")]), "");
    let both = [door(), file("src/a/b.rs", "use super::{c::X, Y};"), file("src/a/c.rs", "use crate::a::b::Z;")];
    assert_eq!(found(&both), "a::c a::b");
    let handed_on = [
        file("src/a.rs", "mod b; mod c;\npub use b::X;\npub use c::Y;"),
        file("src/a/b.rs", "use super::Y;\npub struct X;"),
        file("src/a/c.rs", "use super::X;\npub struct Y;"),
    ];
    assert_eq!(found(&handed_on), "a::c a::b");
    let rooms =
        [door(), file("src/a/b.rs", "use crate::d::X;"), file("src/a/c.rs", ""), file("src/d.rs", "crate::a::Y")];
    assert_eq!(found(&rooms), "a::b d a");
}

/// The names that a file defines at its top level.
fn defined(code: &str) -> BTreeSet<&str> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "macro_rules!"];
    let mut out = BTreeSet::new();
    for line in code.lines().filter(|line| !line.starts_with(' ')) {
        // Before the word of the kind there may be `pub(in a::b)`, `unsafe` and the `const` of a
        // function.
        let words = || line.split(' ');
        let named = words().zip(words().skip(1)).find(|(kind, name)| KINDS.contains(kind) && !KINDS.contains(name));
        out.extend(named.and_then(|(_, name)| name.split(|c: char| !c.is_alphanumeric() && c != '_').next()));
    }
    out
}

/// Files that use definitions of a door above them: the file, the door and the names, one entry for
/// each file and door.
fn arrows_up(sources: &[Source]) -> BTreeMap<[String; 2], BTreeSet<String>> {
    let defined: BTreeMap<Vec<&str>, BTreeSet<&str>> =
        sources.iter().map(|source| (source.module(), defined(source.without_tests()))).collect();
    let mut out: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for source in sources.iter().filter(|s| !s.path.contains("test")) {
        let module = source.module();
        for path in used(&Source { code: source.without_tests().to_owned(), ..source.clone() }) {
            let prefix = |n: usize| path[..n].iter().map(String::as_str).collect::<Vec<_>>();
            // The file that the path leads into, and what it names there.
            let file = (1..path.len()).rev().map(prefix).find(|file| defined.contains_key(file));
            let Some(door) = file.filter(|f| f.len() < module.len() && module.starts_with(f)) else { continue };
            let name = &path[door.len()];
            if !defined.contains_key(&prefix(door.len() + 1)) && defined[&door].contains(name.as_str()) {
                out.entry([module.join("::"), door.join("::")]).or_default().insert(name.clone());
            }
        }
    }
    out
}

/// A door (`a.rs` beside the folder `a/`) declares the files behind it and may use them. A file
/// behind it uses no function, type, trait, constant or macro that a door above it defines: code
/// that both need belongs in a file below both.
#[test]
fn no_arrow_runs_up_inside_a_room() {
    let arrows = arrows_up(&sources("src"));
    let list: Vec<String> =
        arrows.iter().map(|([file, door], names)| format!("{file} uses {names:?} of {door}")).collect();
    assert!(list.is_empty(), "arrows up: move what is used below both files\n{}", list.join("\n"));
}

#[test]
fn arrows_up_are_found() {
    let file = |path: &str, code: &str| Source { path: path.into(), text: String::new(), code: code.into() };
    let door =
        file("src/a.rs", "mod b;\npub use b::X;\npub(in crate::a) struct Y<T>(T);\npub const fn f() {}\n    fn g() {}");
    let found = |code: &str| {
        let arrows = arrows_up(&[door.clone(), file("src/a/b.rs", code), file("src/a/c.rs", "pub struct Z;")]);
        arrows.into_values().flatten().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found("use super::{X, Y, c::Z};\nfn h() { crate::a::f(); super::g(); }"), "Y f");
    assert_eq!(found("use super::X;\n#[cfg(test)]\nmod tests {\n    use super::super::Y;\n}"), "");
}

/// The modules that lib.rs says may hold it.
fn unsafe_modules() -> Vec<String> {
    let lib = std::fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).expect("src/lib.rs");
    let (_, list) = lib.split_once("\n//! - `unsafe` is in ").expect("the invariant");
    let (list, _) = list.split_once(" only.").expect("the end of the list");
    let mut out = Vec::new();
    for name in list.split('`').skip(1).step_by(2) {
        match name.split_once("::{") {
            Some((base, list)) => out.extend(list.trim_end_matches('}').split(", ").map(|n| format!("{base}::{n}"))),
            None => out.push(name.to_owned()),
        }
    }
    out
}

fn has_word(code: &str, word: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    code.match_indices(word)
        .any(|(at, _)| edge(code[..at].chars().next_back()) && edge(code[at + word.len()..].chars().next()))
}

#[test]
fn unsafe_stands_where_lib_rs_says_and_is_explained() {
    let allowed = unsafe_modules();
    assert!(allowed.len() >= 2, "{allowed:?}");
    let mut used = BTreeSet::new();
    for source in code().iter().filter(|s| has_word(&s.code, "unsafe")) {
        let module = source.module().join("::");
        let home = allowed.iter().find(|a| module == **a || module.starts_with(&format!("{a}::")));
        used.insert(home.unwrap_or_else(|| panic!("{} is not named in src/lib.rs", source.path)).clone());
        assert!(source.text.to_lowercase().contains("safety"), "{}: no word on why it is sound", source.path);
    }
    assert_eq!(used, allowed.into_iter().collect(), "named, and not used");
}

#[test]
fn files_are_short_and_begin_with_what_they_own() {
    let mut wrong = Vec::new();
    for source in code().iter().chain(&sources("tests")).chain(&sources("lab/tests")) {
        let lines = source.text.lines().count();
        for (rule, kept) in [
            ("has more than 600 lines: two things live in one room", lines <= MAX_LINES),
            ("is a mod.rs: modules are flat", !source.path.ends_with("/mod.rs")),
            ("does not begin with //!", source.text.starts_with("//! ")),
        ] {
            if !kept {
                wrong.push(format!("{} {rule}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Numbers of the lines whose comment goes beyond [`MAX_COMMENT_COLUMNS`]. Rows of a table and
/// lines of a fenced block, such as a layout or a picture, may be longer.
fn long_comments(text: &str) -> Vec<usize> {
    let (mut out, mut fenced) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!', ' ']));
        fenced = comment.is_some_and(|comment| fenced != comment.starts_with("```"));
        let exempt = fenced || comment.is_some_and(|comment| comment.starts_with('|'));
        let has_comment = comment.is_some() || line.contains(" // ");
        if has_comment && !exempt && line.chars().count() > MAX_COMMENT_COLUMNS {
            out.push(i + 1);
        }
    }
    out
}

/// The sources of the kernels, by name.
fn kernel_sources() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(Path::new(ROOT).join("kernels")).expect("kernels").flatten();
    let paths = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "cu" || e == "cuh"));
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("UTF-8"))
    };
    let all: Vec<_> = paths.map(read).collect();
    assert!(all.len() > 30, "only {} kernel files were found", all.len());
    all
}

#[test]
fn comments_fit_in_their_columns() {
    let mut wrong = Vec::new();
    for source in code().iter().chain(&sources("tests")).chain(&sources("lab/tests")) {
        wrong.extend(long_comments(&source.text).into_iter().map(|line| format!("{}:{line}", source.path)));
    }
    for (name, text) in kernel_sources() {
        // A comment behind code is part of what the compiled kernels were made of.
        let whole = |line: &usize| text.lines().nth(line - 1).is_some_and(|l| l.trim_start().starts_with("//"));
        wrong.extend(long_comments(&text).into_iter().filter(whole).map(|line| format!("kernels/{name}:{line}")));
    }
    assert!(wrong.is_empty(), "comments beyond {MAX_COMMENT_COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn long_comments_are_found() {
    let words = "word ".repeat(20);
    let text = [
        format!("// {words}"),
        format!("    /// {words}"),
        format!("let x = 1; // {words}"),
        format!("let x = \"{words}\";"),
        format!("//! | {words} |"),
        "//! ```text".to_owned(),
        format!("//! {words}"),
        "//! ```".to_owned(),
        format!("//! {words}"),
        "// short".to_owned(),
    ];
    assert_eq!(long_comments(&text.join("\n")), [1, 2, 3, 9]);
}

/// The methods that traits of `backend` declare.
fn methods(names: &[&str]) -> usize {
    let sources = sources("src");
    let declared = |name: &&str| {
        let found = sources.iter().find_map(|s| s.code.split_once(&format!("\npub trait {name}"))).expect(name);
        found.1.split("\n}\n").next().map_or(0, |body| body.matches("\n    fn ").count())
    };
    names.iter().map(declared).sum()
}

/// Sizes that once grew unnoticed. Raise a budget only in a separate commit that says what for.
#[test]
fn sizes_stay_within_their_budgets() {
    let index = std::fs::read_to_string(Path::new(ROOT).join("kernels/ptx.txt")).expect("the index of the PTX");
    for (what, size, budget) in [
        ("instances of kernels", index.lines().filter(|line| line.starts_with("kernel ")).count(), MOST_INSTANCES),
        (
            "methods of Device, Ops, Pages, FarPages and Report",
            methods(&["Device", "Ops", "Pages", "FarPages", "Report"]),
            48,
        ),
        ("methods of Measure", methods(&["Measure"]), 8),
    ] {
        assert!(
            size <= budget,
            "{size} {what}, {budget} at most: delete something, or raise the budget in a commit of its own"
        );
    }
}

/// A file that no `mod` names is not compiled.
#[test]
fn every_file_is_a_module() {
    let sources = [code(), sources("tests"), sources("lab/tests")].concat();
    let mut named: BTreeSet<PathBuf> = BTreeSet::new();
    for Source { path, code, .. } in &sources {
        let path = Path::new(path);
        let (folder, stem) =
            (path.parent().expect("a folder"), path.file_stem().expect("a name").to_str().expect("UTF-8"));
        let inside = if matches!(stem, "lib" | "main") { folder.to_owned() } else { folder.join(stem) };
        let words = code.lines().filter_map(|line| line.trim().strip_suffix(';')?.rsplit_once("mod "));
        named.extend(words.map(|(_, name)| inside.join(format!("{name}.rs"))));
    }
    let is_root = |path: &str| path.ends_with("/lib.rs") || path.ends_with("/main.rs");
    let orphans: Vec<&str> = sources
        .iter()
        .map(|s| s.path.as_str())
        .filter(|path| !is_root(path) && !named.contains(Path::new(path)))
        .collect();
    assert!(orphans.is_empty(), "no `mod` names {orphans:?}");
}

/// An intrinsic in a closure that was compiled before it was inlined stays a call without link-time
/// optimisation, as in incremental builds. Then this program has a symbol for it. `array_of` in
/// `backend::cpu::simd` avoids that.
#[test]
#[cfg(all(target_arch = "x86_64", not(debug_assertions)))]
fn intrinsics_are_not_calls() {
    let program = std::fs::read(std::env::current_exe().expect("a path")).expect("this program");
    // Backwards, so that the program has it in its symbols alone.
    let module: Vec<u8> = std::hint::black_box(b"68x3hcra_eroc9").iter().rev().copied().collect();
    let calls = (0..program.len()).filter(|&at| program[at] == module[0] && program[at..].starts_with(&module));
    let names: Vec<String> =
        calls.map(|at| String::from_utf8_lossy(&program[at..program.len().min(at + 60)]).into_owned()).collect();
    assert!(!names.is_empty(), "the program has symbols, and libraries with intrinsics that are calls");
    // Other libraries have no use for these.
    let of_avx512 =
        |name: &&String| name[module.len()..].trim_start_matches(|c: char| c.is_ascii_digit()).starts_with("avx512");
    let ours: Vec<&String> = names.iter().filter(of_avx512).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

#[test]
fn nothing_is_left_unfinished() {
    let words = [concat!("to", "do!"), concat!("unimplement", "ed!"), concat!("db", "g!")];
    for source in code().iter().chain(&sources("tests")).chain(&sources("lab/tests")) {
        for word in words {
            assert!(!source.code.contains(word), "{}: {word}", source.path);
        }
    }
}

/// Settings come from `config`; beside it, the hub's cache is found by its own variables, and the
/// terminal says by them what it is. Nothing that runs a model looks at the environment.
#[test]
fn the_environment_is_read_at_the_edges() {
    let allowed = |module: &[&str]| matches!(module, [] | ["cli" | "config" | "ui", ..] | ["hub", "environment"]);
    let sources = code();
    let readers: Vec<&Source> = sources.iter().filter(|s| s.code.contains("env::var")).collect();
    assert!(!readers.is_empty());
    for source in readers {
        assert!(allowed(&source.module()), "{} reads the environment", source.path);
    }
}

/// Unix-only code is in two rooms, which have equivalents for other systems.
#[test]
fn other_systems_are_the_matter_of_two_rooms() {
    let words = ["cfg(unix)", "cfg(not(unix))", "os::unix", "rustix", "libc::"];
    let mut wrong = Vec::new();
    for source in sources("src").iter().filter(|s| !s.path.contains("test")) {
        let is_room = ["src/system", "src/regular_file"].iter().any(|room| source.path.starts_with(room));
        let code = source.without_tests().split("\n#[cfg(all(test, unix))]\nmod ").next().unwrap_or("");
        let uses = words.into_iter().find(|word| code.match_indices(word).any(|(at, _)| !inside_word(code, at)));
        if let Some(word) = uses.filter(|_| !is_room) {
            wrong.push(format!("{}: {word}", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Connections are opened in three rooms: for a hub id that is not in the cache, for a page that a
/// person has named, and to the server that the settings name. They are accepted in a fourth.
#[test]
fn the_network_is_used_in_four_rooms() {
    let sources = code();
    let users: Vec<&Source> =
        sources.iter().filter(|s| has_word(&s.code, "ureq") || s.code.contains("std::net")).collect();
    assert!(!users.is_empty());
    for source in users {
        let rooms = ["src/hub/", "src/web.rs", "src/web/", "src/remote/", "src/serve.rs", "src/serve/"];
        let room = rooms.iter().any(|room| source.path.starts_with(room));
        assert!(room, "{} opens connections", source.path);
    }
}

/// `regular_file` refuses a named pipe, a device or an endless file. Other code that opens files is
/// listed here with its reason.
#[test]
fn files_from_outside_are_opened_in_one_room() {
    let allowed = [
        ("src/regular_file", "the room itself"),
        ("src/backend/cuda/", "kernels and libraries that the environment names"),
        ("src/system/process.rs", "/dev/null, to count what may be opened"),
        ("src/cli/machine.rs", "/proc"),
        ("lab/src/score.rs", "a text that the user names may be a pipe"),
    ];
    let mut wrong = Vec::new();
    for source in code().iter().filter(|s| !s.path.contains("test")) {
        let code = source.code.split("\nmod tests").next().unwrap_or("");
        let opens = ["fs::read(", "fs::read_to_string(", "File::open("].into_iter().find(|call| {
            // `LineFile::open` is another one.
            code.match_indices(call).any(|(at, _)| !inside_word(code, at))
        });
        if let Some(call) = opens.filter(|_| !allowed.iter().any(|(path, _)| source.path.starts_with(path))) {
            wrong.push(format!("{} calls {call}..)", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Users change keys in `keymap.toml`: a text that writes one by hand is wrong for them.
#[test]
fn texts_of_the_chat_take_their_keys_from_the_keymap() {
    let functions: Vec<String> = (1..=12).map(|n| format!("F{n}")).chain(["Esc".to_owned()]).collect();
    let modified = ["Ctrl+", "Alt+", "Shift+"];
    let named = |line: &str| {
        let word = |w: &String| {
            line.match_indices(w.as_str()).any(|(at, _)| !line[..at].ends_with("::") && is_word(line, at, w))
        };
        modified.iter().any(|m| line.contains(m)) || functions.iter().any(word)
    };
    let mut wrong = Vec::new();
    let tests = |path: &str| path.contains("/tests") || path.ends_with("/testing.rs") || path.ends_with("/keymap.rs");
    for source in sources("src/ui").iter().filter(|s| !tests(&s.path)) {
        let lines = source.without_tests().lines().filter(|line| named(line));
        wrong.extend(lines.map(|line| format!("{}: {}", source.path, line.trim())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Keys of these pages are keys of the built-in keymap.
#[test]
fn the_keys_of_the_docs_exist() {
    let keymap = std::fs::read_to_string(Path::new(ROOT).join("assets/keymap.toml")).expect("the keymap");
    let mut wrong = Vec::new();
    for page in
        ["README.md", "docs/memory.md", "docs/chains.md", "docs/config.md", "docs/models.md", "docs/policies.md"]
    {
        let text = std::fs::read_to_string(Path::new(ROOT).join(page)).expect(page);
        for (at, _) in ["Ctrl+", "Alt+", "Shift+"].iter().flat_map(|m| text.match_indices(m)) {
            let rest = &text[at..];
            let key = rest.find('+').map_or(rest.len(), |plus| plus + 1);
            let end = rest[key..].find(|c: char| !c.is_alphanumeric()).map_or(rest.len(), |n| key + n.max(1));
            // Alt and a number take an example.
            let key = rest[..end].to_lowercase();
            if !keymap.contains(&format!("\"{key}\"")) && !key.ends_with(|c: char| c.is_ascii_digit()) {
                wrong.push(format!("{page}: {key}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the word at `at` is not a part of a longer one.
fn is_word(line: &str, at: usize, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !part(line[..at].chars().next_back()) && !part(line[at + word.len()..].chars().next())
}
