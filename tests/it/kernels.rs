//! The PTX archive matches the sources, and its index names the kernels that the host launches.
//! Needs no GPU and no compiler: `kernels/compile.py` writes both files, and checks properties that
//! only the PTX shows (registers, spills, waits).

use dmschat::backend::KernelNeeds;
use dmschat::backend::cuda::{ENTRIES, Kernel, SOURCES, TARGETS, check_needs};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Policy, Pool, Quest, Tova};
use dmschat::quant::Weights;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const MOST_ARCHIVE_BYTES: u64 = 11 << 18;

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// Computes `digest` of `kernels/compile.py`: a hash of everything that the PTX of a file depends
/// on, without comments.
fn digest(folder: &Path, name: &str) -> String {
    let (mut inputs, mut unread) = (BTreeSet::new(), vec![format!("{name}.cu")]);
    while let Some(file) = unread.pop() {
        let text = fs::read_to_string(folder.join(&file)).unwrap();
        if inputs.insert(file) {
            let included = |line: &str| line.trim().strip_prefix("#include \"")?.split('"').next().map(str::to_owned);
            unread.extend(text.lines().filter_map(included));
        }
    }
    let mut hasher = Sha256::new();
    for file in inputs.iter().map(String::as_str).chain(["requirements.txt"]) {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let lines = text.split('\n').map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        std::iter::once(file).chain(lines).for_each(|line| hasher.update(format!("{line}\n")));
    }
    format!("{:x}", hasher.finalize())
}

#[test]
fn ptx_is_made_of_the_sources() {
    let files = fs::read_dir(kernels()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter_map(|f| f.strip_suffix(".cu").map(str::to_owned)).collect();
    files.sort();
    assert_eq!(files, SOURCES.iter().map(|source| source.name).collect::<Vec<_>>());
    let stale: Vec<_> = SOURCES.iter().filter(|s| digest(&kernels(), s.name) != s.digest).map(|s| s.name).collect();
    assert!(stale.is_empty(), "run kernels/compile.py: {stale:?} have changed since the archive was made");
    let of_others: Vec<_> = SOURCES
        .iter()
        .filter(|s| format!("{:x}", Sha256::digest(s.packed_bytes())) != s.packed)
        .map(|s| s.name)
        .collect();
    assert!(of_others.is_empty(), "run kernels/compile.py: the archive has other PTX of {of_others:?} than its index");
    let bytes = fs::metadata(kernels().join("ptx.tar")).unwrap().len();
    assert!(bytes <= MOST_ARCHIVE_BYTES, "{bytes} bytes");
}

#[test]
fn the_hash_depends_on_every_input() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    let first = [("a.cu", "#include \"b.cuh\"\n1"), ("b.cuh", "#include \"c.cuh\"\n2"), ("c.cuh", "3"), ("d.cuh", "4")];
    first.into_iter().chain([("requirements.txt", "6")]).for_each(|(file, text)| write(file, text));
    let mut seen = BTreeSet::from([digest(folder.path(), "a")]);
    for file in ["a.cu", "b.cuh", "c.cuh", "requirements.txt"] {
        let before = fs::read_to_string(folder.path().join(file)).unwrap();
        write(file, &(before + "7"));
        assert!(seen.insert(digest(folder.path(), "a")), "{file}");
    }
    write("d.cuh", "8");
    write("c.cuh", "  // A comment.\n\n37");
    assert!(!seen.insert(digest(folder.path(), "a")));
}

/// The host builds the names from parts; the index has the names in the PTX.
#[test]
fn the_kernels_of_the_host_are_those_of_the_archive() {
    let made: Vec<String> = Kernel::all().into_iter().map(Kernel::name).collect();
    let distinct: BTreeSet<&str> = made.iter().map(String::as_str).collect();
    assert_eq!(distinct.len(), made.len(), "two kernels have one name");
    assert_eq!(distinct, ENTRIES.keys().copied().collect());
    for (i, source) in SOURCES.iter().enumerate() {
        for target in &TARGETS {
            // A GPU for which this target is the newest.
            let chosen = source.target_for(target.capability);
            let Some(chosen) = chosen.filter(|chosen| chosen.name == target.name) else { continue };
            let ptx = String::from_utf8(source.ptx(chosen)).unwrap();
            assert!(
                ptx.ends_with('\0') && ptx.contains(&format!(".target {}\n", target.name.replace("compute", "sm")))
            );
            let mut found: Vec<_> = ptx.split(".entry ").skip(1).map(|part| part.split('(').next().unwrap()).collect();
            let mut listed: Vec<_> = ENTRIES.values().filter(|e| e.source == i).map(|e| e.name).collect();
            found.sort_unstable();
            listed.sort_unstable();
            assert_eq!(found, listed, "{} for {}", source.name, target.name);
        }
    }
}

/// What a plain model with heads of 128 needs.
pub fn needs(policy: Policy) -> KernelNeeds {
    KernelNeeds {
        head_dims: [128; 2],
        varies: false,
        codec: Codec::Bf16,
        weights: Weights::Bf16,
        policy,
        far: false,
        delta_net: false,
        experts: false,
        growth: false,
        drafts: false,
        gate_units: 0,
    }
}

/// Compiling a file takes seconds: no policy may leave one of its own to the first answer.
#[test]
fn the_files_of_the_policy_are_loaded_with_the_model() {
    let budget = Budget::Slots(64);
    let of_policy = |policy| {
        let needs = KernelNeeds { drafts: true, ..needs(policy) };
        let names = SOURCES.iter().filter(|s| s.is_needed((9, 0), &needs)).map(|s| s.name);
        let of_decode = |name: &&str| {
            *name != "attend_wgmma" && ["attend", "place_scores", "pages", "merge"].iter().any(|p| name.starts_with(p))
        };
        names.filter(of_decode).collect::<Vec<_>>()
    };
    assert_eq!(of_policy(Policy::Dense), ["attend", "attend_drafts"]);
    assert_eq!(of_policy(Policy::Pool(Pool { every: 4 })), ["attend", "merge"]);
    assert_eq!(of_policy(Policy::Tova(Tova { budget })), ["attend_choice", "place_scores"]);
    let quest = Policy::Quest(Quest { budget, dms: None });
    assert_eq!(of_policy(quest), ["attend_choice", "pages"]);
}

/// Wide heads load their own files instead of the usual ones, and policies without such files are
/// refused.
#[test]
fn wide_heads_have_files_of_their_own() {
    let needs =
        |head_dim, policy| KernelNeeds { head_dims: [head_dim; 2], codec: Codec::Int8, drafts: true, ..needs(policy) };
    let files = |head_dim| {
        let needed = SOURCES.iter().filter(move |s| s.is_needed((9, 0), &needs(head_dim, Policy::Dense)));
        needed.map(|s| s.name).filter(|name| name.starts_with("attend") || name.starts_with("rope"))
    };
    assert_eq!(files(128).collect::<Vec<_>>(), ["attend", "attend_drafts", "attend_wgmma", "rope"]);
    assert_eq!(files(136).collect::<Vec<_>>(), ["attend_256", "attend_tiles_256", "rope"]);
    assert_eq!(files(512).collect::<Vec<_>>(), ["attend_tiles_512", "rope_512"]);
    let tova = Policy::Tova(Tova { budget: Budget::Slots(64) });
    assert!(check_needs(&needs(256, Policy::Dense)).is_ok() && check_needs(&needs(128, tova)).is_ok());
    let varied = KernelNeeds { head_dims: [256, 512], varies: true, ..needs(128, Policy::Dense) };
    let of_both = SOURCES.iter().filter(|s| s.is_needed((9, 0), &varied)).map(|s| s.name);
    let of_both = of_both.filter(|name| name.starts_with("attend") || name.starts_with("rope"));
    assert_eq!(of_both.collect::<Vec<_>>(), ["attend_256", "attend_tiles_256", "attend_tiles_512", "rope", "rope_512"]);
    let refused = check_needs(&needs(256, tova)).unwrap_err().to_string();
    assert!(refused.starts_with("policy tova: ") && refused.contains("this model's have 256"), "{refused}");
}
