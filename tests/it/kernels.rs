//! The checked-in PTX matches the kernel table and the sources, and no kernel spills registers beyond its budget. Needs no
//! GPU. The compiler and ptxas are wheels pinned in `kernels/requirements.txt`; if they cannot be installed the test is
//! skipped with a message, and fails in CI.
//!
//! `UPDATE_PTX=1 cargo test --test it kernels` regenerates the PTX after a change of kernels, `UPDATE_PTX=attend` that of the
//! files whose names begin so. A file that was found right is not compiled again until one of its inputs changes.

use dmschat::backend::KernelNeeds;
use dmschat::backend::cuda::{KERNELS, Kernel, PARAMS, PDL_TARGET, SOURCES, TARGETS};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Policy, Pool, Quest, Tova};
use libloading::{Library, Symbol};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// GPUs that ptxas compiles for, by target.
const GPUS: [&[&str]; TARGETS.len()] = [&["sm_80", "sm_86", "sm_89"], &["sm_90"], &["sm_90a"]];
/// Bytes of spilled registers that a kernel may store; none where it is not named.
const SPILLS: &[(&str, usize)] = &[
    // What a warp keeps beside its fragments of the activations, once for a batch of strips.
    ("packed_resident_q4_16", 64),
    ("packed_resident_q4_16_swiglu", 32),
    ("packed_resident_q4_32", 96),
    ("packed_resident_q4_32_swiglu", 96),
    ("packed_resident_q8_32", 96),
    ("packed_resident_q8_32_swiglu", 96),
    // Leaves room for blocks of attention beside it. ptxas 13 needs none.
    ("packed_gemv_q8_norm", 12),
    // What a thread keeps from before its pages until after them.
    ("attend_128_fp8", 16),
    ("attend_128_int8", 16),
    ("attend_128_k8v4", 16),
    ("attend_pages_128_fp8", 16),
    ("attend_pages_128_int8", 16),
    ("attend_pages_128_k8v4", 16),
    ("attend_scores_128_fp8", 16),
    ("attend_scores_128_int8", 16),
    ("attend_scores_128_k8v4", 16),
    // What a tile keeps beside its fragments, once for 64 keys.
    ("attend_tiles_128_bf16", 256),
    ("attend_tiles_128_fp8", 128),
    ("attend_tiles_128_int8", 128),
    ("attend_tiles_128_k8v4", 128),
];
/// Registers a thread may take where the kernel is not named: more leave an SM with few warps.
const MOST_REGISTERS: usize = 168;
const REGISTERS: &[(&str, usize)] = &[
    // Scores and sums of a tile stay in registers: two blocks of 128 threads on an SM.
    ("attend_tiles_64_bf16", 255),
    ("attend_tiles_64_fp8", 255),
    ("attend_tiles_64_int8", 255),
    ("attend_tiles_64_k8v4", 255),
    ("attend_tiles_128_bf16", 255),
    ("attend_tiles_128_fp8", 255),
    ("attend_tiles_128_int8", 255),
    ("attend_tiles_128_k8v4", 255),
    // The activations: one block of 256 threads on an SM.
    ("packed_resident_q4_32", 255),
    ("packed_resident_q4_32_swiglu", 255),
    ("packed_resident_q8_16", 200),
    ("packed_resident_q8_16_swiglu", 200),
    ("packed_resident_q8_32", 255),
    ("packed_resident_q8_32_swiglu", 255),
    // Sums of four strips: one block of 256 threads on an SM.
    ("packed_gemm_q4_32", 200),
    ("packed_gemm_q4_32_swiglu", 200),
    ("packed_gemm_q8_32", 200),
    ("packed_gemm_q8_32_swiglu", 200),
    // Two blocks of 256 threads on an SM.
    ("attend_128_fp8", 128),
    ("attend_128_int8", 128),
    ("attend_128_k8v4", 128),
    // A page of bf16: one block of 256 threads on an SM.
    ("attend_128_bf16", 176),
    ("attend_pages_128_bf16", 176),
    ("attend_scores_128_bf16", 176),
    // The sums of 64 x 256 to four warps: 9 warps on an SM.
    ("gemm_wgmma_256", 224),
    // The sums of 64 x 64 to a warp, and two rounds of fragments: 8 warps on an SM.
    ("gemm_tiles", 255),
    ("gemm_tiles_swiglu", 255),
    ("gemm_tiles_small", 255),
    ("gemm_tiles_small_swiglu", 255),
];

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

fn headers() -> Vec<String> {
    let files = fs::read_dir(kernels()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut headers: Vec<String> = files.filter(|name| name.ends_with(".cuh")).collect();
    headers.sort();
    headers
}

#[test]
fn the_kernel_table_is_that_of_the_ptx() {
    for (source, ptx) in SOURCES.iter().flat_map(|source| source.ptx.iter().flatten().map(move |ptx| (source, ptx))) {
        let mut listed: Vec<(String, Vec<String>)> = KERNELS
            .iter()
            .filter(|k| k.source == source.name)
            .map(|k| (k.name.to_owned(), k.takes.bytes().map(form).collect()))
            .collect();
        let mut found = entries(ptx);
        listed.sort();
        found.sort();
        assert_eq!(found, listed, "kernels/{}.cu and the table in backend::cuda differ", source.name);
    }
}

/// Compiling a file takes seconds: no policy may leave one of its own to the first answer.
#[test]
fn the_files_of_the_policy_are_loaded_with_the_model() {
    let budget = Budget::Slots(64);
    let of_policy = |policy| {
        let needs = KernelNeeds { head_dim: 128, codec: Codec::Bf16, code: None, policy };
        let names = SOURCES.iter().filter(|s| s.is_needed((9, 0), &needs)).map(|s| s.name);
        let of_decode = |name: &&str| {
            *name != "attend_wgmma" && ["attend", "place_scores", "pages", "merge"].iter().any(|p| name.starts_with(p))
        };
        names.filter(of_decode).collect::<Vec<_>>()
    };
    assert_eq!(of_policy(Policy::Dense), ["attend"]);
    assert_eq!(of_policy(Policy::Pool(Pool { every: 4 })), ["merge", "attend"]);
    assert_eq!(of_policy(Policy::Tova(Tova { budget })), ["attend_scores", "place_scores"]);
    let quest = Policy::Quest(Quest { budget, dms: None });
    assert_eq!(of_policy(quest), ["pages", "attend_pages"]);
}

/// With PDL a kernel that does not wait for the one in front of it would let those behind it run too early.
#[test]
fn every_kernel_that_may_start_early_waits() {
    for source in SOURCES {
        for (i, ptx) in source.ptx.iter().enumerate() {
            for kernel in ptx.iter().flat_map(|ptx| ptx.split(".entry ").skip(1)) {
                let waits =
                    kernel.contains("griddepcontrol.wait;") && kernel.contains("griddepcontrol.launch_dependents;");
                let name = kernel.split('(').next().unwrap_or_default();
                assert_eq!(waits, i >= PDL_TARGET, "{name} for {}", TARGETS[i].name);
            }
        }
    }
}

/// How PTX declares a parameter that the table of kernels gives this letter, but for its name.
fn form(letter: u8) -> String {
    match letter {
        // In PTX an u64 is a pointer or a number.
        b'p' | b'l' => ".u64".to_owned(),
        b'i' => ".u32".to_owned(),
        b'f' => ".f32".to_owned(),
        _ => {
            let param = PARAMS.iter().find(|p| p.letter == letter);
            let param = param.unwrap_or_else(|| panic!("no parameter is called {}", letter as char));
            format!(".align {} .b8 [{}]", param.align, param.bytes)
        }
    }
}

/// Entry points and the forms of their parameters.
fn entries(ptx: &str) -> Vec<(String, Vec<String>)> {
    let form = |parameter: &str| match parameter.split_whitespace().collect::<Vec<_>>()[..] {
        [".param", number, _] => number.to_owned(),
        [".param", ".align", align, ".b8", name] => {
            format!(".align {align} .b8 {}", name.find('[').map_or("", |at| &name[at..]))
        }
        _ => format!("<{parameter}>"),
    };
    let entry = |part: &str| {
        let (name, rest) = part.split_once('(').expect("parameters");
        let (parameters, _) = rest.split_once(')').expect("an end of parameters");
        let forms = parameters.split(',').map(|p| form(p.trim())).collect();
        (name.trim().to_owned(), forms)
    };
    ptx.split(".entry ").skip(1).map(entry).collect()
}

#[test]
fn ptx_is_made_of_the_sources_and_does_not_spill() {
    let tools = match tools() {
        Ok(tools) => tools,
        Err(why) if std::env::var_os("CI").is_some_and(|v| v == "true") => panic!("no kernel compiler: {why}"),
        Err(why) => return eprintln!("skipped: the kernel compiler cannot be had here: {why}"),
    };
    let update = std::env::var("UPDATE_PTX").ok().filter(|v| !v.is_empty());
    let begins = update.as_deref().filter(|v| *v != "1").unwrap_or_default();
    let nvrtc = Nvrtc::load(&tools.join("cuda_nvrtc/lib/libnvrtc.so.12"));
    let memory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptx-found-right");
    fs::create_dir_all(&memory).unwrap();
    let files = SOURCES.iter().flat_map(|s| (0..TARGETS.len()).map(move |i| (s, i)));
    let files: Vec<_> = files.filter(|(s, i)| s.ptx[*i].is_some() && s.name.starts_with(begins)).collect();
    assert!(!files.is_empty(), "no file of kernels begins with {begins}");
    let mut wrong = Vec::new();
    for (source, i) in files {
        let target = TARGETS[i].name;
        let name = format!("{}.{target}", source.name);
        let path = kernels().join(format!("ptx/{name}.ptx"));
        if fs::read_to_string(memory.join(&name)).ok() == Some(digest(&kernels(), source.name, target)) {
            continue;
        }
        let found = wrong.len();
        let ptx = nvrtc.compile(source.name, target).unwrap_or_else(|log| panic!("kernels/{}.cu: {log}", source.name));
        if update.is_some() {
            fs::write(&path, &ptx).unwrap();
        } else if fs::read_to_string(&path).ok().as_deref() != Some(&ptx) {
            wrong.push(format!("{} is not what kernels/{}.cu makes: UPDATE_PTX=1", path.display(), source.name));
        }
        for gpu in GPUS[i] {
            wrong.extend(over_budget(&tools.join("cuda_nvcc/bin/ptxas"), &path, gpu));
        }
        if wrong.len() == found {
            fs::write(memory.join(&name), digest(&kernels(), source.name, target)).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A digest of all that PTX of a file depends on, of the PTX itself and of what it is held to.
fn digest(folder: &Path, name: &str, target: &str) -> String {
    let mut inputs = BTreeSet::new();
    let mut unread = vec![format!("{name}.cu")];
    while let Some(file) = unread.pop() {
        let text = fs::read_to_string(folder.join(&file)).unwrap();
        let included = |line: &str| line.trim().strip_prefix("#include \"")?.split('"').next().map(str::to_owned);
        unread.extend(text.lines().filter_map(included));
        inputs.insert((file, text));
    }
    let ptx = fs::read_to_string(folder.join(format!("ptx/{name}.{target}.ptx"))).unwrap_or_default();
    let compiler = fs::read_to_string(folder.join("requirements.txt")).unwrap();
    let all = format!("{:?}", (inputs, ptx, compiler, target, include_str!("kernels.rs")));
    format!("{:x}", Sha256::digest(all))
}

#[test]
fn a_file_is_compiled_again_when_an_input_changes() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("ptx")).unwrap();
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    let first = [("a.cu", "#include \"b.cuh\"\n1"), ("b.cuh", "#include \"c.cuh\"\n2"), ("c.cuh", "3"), ("d.cuh", "4")];
    first
        .into_iter()
        .chain([("ptx/a.t.ptx", "5"), ("requirements.txt", "6")])
        .for_each(|(file, text)| write(file, text));
    let mut seen = BTreeSet::from([digest(folder.path(), "a", "t")]);
    for file in ["a.cu", "b.cuh", "c.cuh", "ptx/a.t.ptx", "requirements.txt"] {
        let before = fs::read_to_string(folder.path().join(file)).unwrap();
        write(file, &(before + "7"));
        assert!(seen.insert(digest(folder.path(), "a", "t")), "{file}");
    }
    write("d.cuh", "8");
    assert!(!seen.insert(digest(folder.path(), "a", "t")) && seen.insert(digest(folder.path(), "a", "u")));
}

/// Bytes of static shared memory of each kernel of a file, and whether it uses dynamic one. What functions that are not
/// inlined declare counts for every kernel of the file.
fn shared_memory(ptx: &str) -> Vec<(&str, usize, bool)> {
    let declared = |text: &str| -> usize {
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with(".shared "));
        lines.map(|line| declared_bytes(line).unwrap_or_else(|| panic!("{line} is not understood"))).sum()
    };
    let mut parts = ptx.split(".entry ");
    let of_all = declared(parts.next().expect("a head"));
    let dynamic =
        |line: &str| Some(line.strip_prefix(".extern .shared ")?.strip_suffix("[];")?.rsplit(' ').next()?.to_owned());
    let dynamic: Vec<String> = ptx.lines().filter_map(dynamic).collect();
    let uses = |body: &str| dynamic.iter().any(|name| body.contains(name.as_str()));
    parts.map(|body| (body.split('(').next().unwrap_or_default().trim(), of_all + declared(body), uses(body))).collect()
}

/// Bytes of a declaration such as `.shared .align 4 .b8 name[64];` or `.shared .align 4 .u32 name;`.
fn declared_bytes(line: &str) -> Option<usize> {
    let mut words = line.trim_end_matches(';').split_whitespace().skip_while(|word| *word != ".align").skip(2);
    let kind = words.next()?;
    let bits: usize = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    let name = words.next()?;
    let n = name.split_once('[').map_or(Some(1), |(_, n)| n.strip_suffix(']')?.parse().ok())?;
    Some(n * bits / 8)
}

/// The host compares dynamic shared memory alone with what a block may have, and gives some kernels all of it.
#[test]
fn what_shared_memory_kernels_take_is_what_the_host_knows() {
    /// Static shared memory that any block has room for.
    const STATIC: usize = 48 << 10;
    /// All of a block on the GPUs of the target that runs on no others.
    const HOPPER: usize = 227 << 10;
    for source in SOURCES {
        for (ptx, target) in source.ptx.iter().zip(TARGETS).filter_map(|(ptx, target)| Some(((*ptx)?, target))) {
            for (name, fixed, dynamic) in shared_memory(ptx) {
                let kernel = Kernel::all().find(|k| k.entry().name == name).expect("a kernel of the table");
                let given = kernel.shared_bytes() > 0 || kernel.shares_what_it_is_given();
                assert_eq!(
                    dynamic, given,
                    "{name} for {}: dynamic shared memory, in the PTX and on the host",
                    target.name
                );
                let most = match (dynamic, target.exact) {
                    (false, _) => STATIC,
                    (true, true) if !kernel.shares_what_it_is_given() => HOPPER - kernel.shared_bytes(),
                    (true, _) => 0,
                };
                assert!(
                    fixed <= most,
                    "{name} for {}: {fixed} bytes of static shared memory, {most} at most",
                    target.name
                );
            }
        }
    }
}

/// The pinned wheels, in an environment of their own under `target`.
fn tools() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-compiler");
    let requirements = kernels().join("requirements.txt");
    let pinned = fs::read_to_string(&requirements).map_err(|e| e.to_string())?;
    let done = folder.join("installed");
    if fs::read_to_string(&done).ok().as_deref() != Some(&pinned) {
        let _ = fs::remove_dir_all(&folder);
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pip = ["install", "--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check", "-r"];
        run(Command::new(folder.join("bin/pip")).args(pip).arg(&requirements))?;
        fs::write(&done, &pinned).map_err(|e| e.to_string())?;
    }
    let python = fs::read_dir(folder.join("lib")).map_err(|e| e.to_string())?.flatten().next().ok_or("no library")?;
    Ok(python.path().join("site-packages/nvidia"))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(format!("{command:?}: {said}")) }
}

struct Nvrtc(Library);

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

impl Nvrtc {
    fn load(path: &Path) -> Self {
        // SAFETY: NVRTC of a pinned wheel; loading it runs nothing but its own start.
        Self(unsafe { Library::new(path) }.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn function<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the types above are those of the functions in nvrtc.h.
        unsafe { self.0.get(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// PTX of `kernels/{name}.cu`, or the compiler's words.
    fn compile(&self, name: &str, target: &str) -> Result<String, String> {
        let read = |file: &str| CString::new(fs::read(kernels().join(file)).unwrap()).unwrap();
        let (file, source) = (format!("{name}.cu"), read(&format!("{name}.cu")));
        let text = |s: &str| CString::new(s).unwrap();
        let headers = headers();
        let texts: Vec<CString> = headers.iter().map(|h| read(h)).collect();
        let (names, count): (Vec<CString>, _) = (headers.iter().map(|h| text(h)).collect(), headers.len() as c_int);
        let options = [text(&format!("--gpu-architecture={target}")), text("--std=c++17")];
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (texts, names, arguments) = (pointers(&texts), pointers(&names), pointers(&options));
        let file = text(&file);
        let mut program = std::ptr::null_mut();
        // SAFETY: every string ends in a zero and lives to the end of this function; both arrays of
        // headers are as long as is said; buffers are as long as NVRTC asks; the program is destroyed once.
        unsafe {
            let create = self.function::<Create>("nvrtcCreateProgram");
            let made = create(&mut program, source.as_ptr(), file.as_ptr(), count, texts.as_ptr(), names.as_ptr());
            assert_eq!(made, 0, "nvrtcCreateProgram");
            let compiled = self.function::<Compile>("nvrtcCompileProgram")(program, 2, arguments.as_ptr());
            let what = if compiled == 0 { "PTX" } else { "ProgramLog" };
            let mut size = 0;
            self.function::<Size>(&format!("nvrtcGet{what}Size"))(program, &mut size);
            let mut out = vec![0u8; size + 1];
            self.function::<Text>(&format!("nvrtcGet{what}"))(program, out.as_mut_ptr().cast());
            self.function::<Destroy>("nvrtcDestroyProgram")(&mut program);
            let out = CStr::from_bytes_until_nul(&out).unwrap().to_string_lossy().into_owned();
            if compiled == 0 { Ok(out) } else { Err(out) }
        }
    }
}

/// Kernels that take more registers or spill more than they may, as ptxas sees it.
fn over_budget(ptxas: &Path, ptx: &Path, gpu: &str) -> Vec<String> {
    let args = ["-v".to_owned(), format!("-arch={gpu}"), "-o".to_owned(), "/dev/null".to_owned()];
    let said = match run(Command::new(ptxas).args(args).arg(ptx)) {
        Ok(said) => said,
        Err(why) => return vec![why],
    };
    let (mut wrong, mut kernel) = (Vec::new(), String::new());
    for line in said.lines() {
        if let Some(name) = line.split("entry function '").nth(1) {
            kernel = name.split('\'').next().unwrap_or_default().to_owned();
        }
        // Products of Hopper's that wait for each other, for one.
        if line.contains("Potential Performance Loss") {
            wrong.push(format!("{gpu}: {line}"));
        }
        let number = |before: &str| -> Option<usize> {
            line.split(before).next().filter(|_| line.contains(before))?.split_whitespace().last()?.parse().ok()
        };
        let may = SPILLS.iter().find(|s| s.0 == kernel).map_or(0, |s| s.1);
        if let Some(spilled) = number(" bytes spill stores").filter(|&s| s > may) {
            wrong.push(format!("{kernel} on {gpu} spills {spilled} bytes, {may} are allowed"));
        }
        let may = REGISTERS.iter().find(|r| r.0 == kernel).map_or(MOST_REGISTERS, |r| r.1);
        if let Some(registers) = number(" registers").filter(|&r| r > may) {
            wrong.push(format!("{kernel} on {gpu} takes {registers} registers"));
        }
    }
    assert!(!kernel.is_empty(), "ptxas said nothing of kernels: {said}");
    wrong
}
