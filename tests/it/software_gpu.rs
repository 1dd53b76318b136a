//! The CUDA backend without a GPU: the real binary on the software GPU of `tests/software_gpu`, which runs the kernels'
//! sources. Needs a C++ compiler; without one the tests are skipped with a message, and fail in CI.

use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The folder of `libcuda.so.1`, built once for every state of its sources.
fn software_gpu() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = FOLDER.get_or_init(|| match build() {
        Ok(folder) => Some(folder),
        Err(why) if std::env::var_os("CI").is_some_and(|v| v == "true") => panic!("no software GPU: {why}"),
        Err(why) => {
            eprintln!("skipped: the software GPU cannot be built here: {why}");
            None
        }
    });
    built.as_deref()
}

fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    Command::new(&compiler).arg("--version").output().map_err(|e| format!("{compiler:?}: {e}"))?;
    let folders = ["tests/software_gpu", "kernels", "kernels/ptx"];
    let files = folders.iter().flat_map(|f| fs::read_dir(root.join(f)).unwrap()).map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|p| p.is_file()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    files.iter().for_each(|file| fs::read(file).unwrap().hash(&mut hasher));
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tmp.join(format!("software-gpu-{:016x}", hasher.finish()));
    // One builder at a time, also of several processes.
    let lock = File::create(tmp.join("software-gpu.lock")).unwrap();
    lock.lock().unwrap();
    if !folder.join("libcuda.so.1").exists() {
        let output = Command::new("sh").arg(root.join("tests/software_gpu/build.sh")).arg(&folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(folder)
}

struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Said {
    fn json(&self) -> Value {
        self.json_and_code(0)
    }

    fn json_and_code(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("an object of JSON")
    }
}

/// The binary, which finds the software GPU where it looks for the driver.
fn dmschat(gpu: &Path, settings: &[(&str, &str)], args: &[&str]) -> Said {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dmschat"));
    command.env_clear().env("HOME", home.path()).env("LD_LIBRARY_PATH", gpu).envs(settings.iter().copied());
    command.env("DMSCHAT_CONFIG_DIR", home.path()).env("DMSCHAT_DATA_DIR", home.path());
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Said { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

const EQUATION: &str = "Solve 3x + 4 = 19";

/// All kernels against the CPU's ops; the one that is made wrong is the one that is found.
#[test]
fn every_kernel_does_as_the_cpu_and_a_wrong_one_is_found() {
    let Some(gpu) = software_gpu() else { return };
    let said = dmschat(gpu, &[("SOFTWARE_GPU_WRONG", "gemm_bf16")], &["doctor", "--device", "cuda"]);
    let lines = |mark: &str| said.stdout.lines().filter(|l| l.starts_with(mark)).collect::<Vec<_>>();
    let (fine, missed) = (lines("ok"), lines("!!"));
    assert!(fine.len() > 200, "{}{}", said.stdout, said.stderr);
    // bf16 weights of a width that tensor cores do not support, or f32 inputs, of more than 8 rows.
    let fits = |line: &&&str| line.contains("linear bf16") || line.contains("adapter_decisions");
    assert_eq!((said.code, missed.iter().filter(fits).count(), missed.len()), (1, 13, 13), "{}", missed.join("\n"));
    let recorded = |line: &&&str| line.contains("in one step, 2 recorded") || line.contains("by itself, 2 recorded");
    assert_eq!(fine.iter().filter(recorded).count(), 14, "steps are recorded and replayed");
    let moved = |line: &&&str| line.contains("memory: 30 MiB of pages");
    assert_eq!(fine.iter().filter(moved).count(), 1, "pages move, and memory is given back");
    // The plan is made of the allocations themselves, in the driver's granules: to one block that small ones share. It counts
    // 16 MiB of unpacked weights, which earlier checks have allocated.
    let plan = fine.iter().find(|line| line.contains("MB planned")).expect("a model is planned for");
    let figures: Vec<f64> = plan.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!((figures[0] - figures[1]).abs() < 16.8 + 2.2, "{plan}");
}

#[test]
fn an_answer_is_that_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let with_scores = |policy| ["--policy", policy, "--budget", "24"];
    let (tova, h2o) = (with_scores("tova"), with_scores("h2o"));
    let cases = [("bf16", &[][..]), ("fp8", &[]), ("int8", &[]), ("k8v4", &[]), ("bf16", &tova), ("bf16", &h2o)];
    for (kv, policy) in cases {
        let answer = |device| {
            let args = ["-p", EQUATION, "--temperature", "0", "--max-tokens", "24", "--json", "--kv", kv, "--device"];
            // The model only thinks.
            dmschat(gpu, &[], &[&args[..], &[device], policy].concat()).json_and_code(1)
        };
        let (cuda, cpu) = (answer("cuda"), answer("cpu"));
        assert_eq!((&cuda["device"], &cuda["stop_reason"]), (&"software GPU".into(), &"max_tokens".into()));
        for key in ["answer", "reasoning", "prompt_tokens", "reasoning_tokens"] {
            assert_eq!(cuda[key], cpu[key], "{kv} {policy:?}: {key}");
        }
        for key in ["live", "live_slots", "dense_slots", "live_bytes", "reads", "peak_slots"] {
            assert_eq!(cuda["kv"][key], cpu["kv"][key], "{kv} {policy:?}: {key}");
        }
    }
}

/// Chunks, decodes and toggles on models with random weights: log-probabilities near the CPU's, live slots
/// the same; with the kernels of all GPUs, and with Hopper's.
#[test]
fn scores_are_those_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let tokens: Vec<usize> = (0..120).map(|i| i * 7919 % 256).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), serde_json::to_string(&tokens).unwrap()).unwrap();
    let shapes = [
        (Spec::new(true, Form::Borrowed), "bf16", &[][..]),
        (Spec { bias: true, ..Spec::new(false, Form::Adapter) }, "bf16", &[]),
        (Spec { n_q_heads: 6, ..Spec::new(false, Form::Metadata) }, "fp8", &[]),
        (Spec::new(false, Form::Plain), "int8", &["--policy", "window", "--budget", "24"]),
        (Spec::new(true, Form::Borrowed), "k8v4", &[]),
        (Spec::new(true, Form::Borrowed), "bf16", &["--policy", "tova", "--budget", "24"]),
        (Spec { n_q_heads: 6, ..Spec::new(false, Form::Plain) }, "int8", &["--policy", "h2o", "--budget", "2x"]),
        (Spec { window: 5, ..Spec::new(true, Form::Dmc) }, "bf16", &[]),
        (Spec { n_q_heads: 6, ..Spec::new(true, Form::Borrowed) }, "fp8", &["--policy", "pool", "--budget", "3x"]),
        // Both channels that a DMC model borrows are zero under other policies too.
        (Spec { window: 5, ..Spec::new(true, Form::Dmc) }, "bf16", &["--policy", "dense"]),
        (Spec::new(true, Form::Plain), "bf16", &["--policy", "quest", "--budget", "48"]),
        (Spec::new(true, Form::Borrowed), "bf16", &["--policy", "dms+quest", "--budget", "48"]),
    ];
    for (i, (spec, kv, policy)) in shapes.into_iter().enumerate() {
        // A GPU rounds the inputs of these bf16 weights to bf16: no decision of these models is so near 0 that this evicts
        // another token, and no two pages are so near each other that a query reads another one.
        let seed = if policy.iter().any(|word| word.ends_with("quest")) { 52 } else { 50 };
        let tiny = Tiny::new(spec, seed);
        let score = |device, capability| {
            let (model, file) = (tiny.folder.path().to_str().unwrap(), file.path().to_str().unwrap());
            let schedule = "prefill:50,decode:3,off,prefill:33,on,decode:2,prefill:32";
            let args = ["score", "--json", "--tokens-file", file, "--schedule", schedule, "--kv", kv];
            let settings = [("SOFTWARE_GPU_CAPABILITY", capability)];
            dmschat(gpu, &settings, &[&args[..], policy, &["--model", model, "--device", device]].concat()).json()
        };
        let cpu = score("cpu", "");
        // One code of k8v4's values is a fifteenth of their range.
        let share = if kv == "k8v4" { 5e-2 } else { 1e-2 };
        let rows = |score: &Value| score["logprobs"].as_array().unwrap().iter().map(Value::as_f64).collect::<Vec<_>>();
        for capability in ["80", "90"] {
            let cuda = score("cuda", capability);
            for key in ["live", "reads", "peak"] {
                assert_eq!(cuda[key], cpu[key], "{key} of model {i} on {capability}");
            }
            let (got, wanted) = (rows(&cuda), rows(&cpu));
            assert_eq!(got.len(), wanted.len());
            // Inputs of bf16 weights are rounded, and in fp8 a last bit may decide between two codes a sixteenth apart.
            for (a, b) in got.iter().flatten().zip(wanted.iter().flatten()) {
                assert!((a - b).abs() < 5e-2 + share * b.abs(), "model {i} on {capability}: {a} instead of {b}");
            }
        }
    }
}

/// Each ends with code 1 and says what went wrong in the last line.
#[test]
fn a_card_that_is_small_or_lost_is_named() {
    let Some(gpu) = software_gpu() else { return };
    let args = ["-p", EQUATION, "--max-tokens", "4", "--device", "cuda"];
    for (setting, value, words) in [
        ("SOFTWARE_GPU_MEMORY_MIB", "72", "the model does not fit: it needs 16 MB of weights and"),
        ("SOFTWARE_GPU_STEPS", "0", "out of GPU memory"),
        ("SOFTWARE_GPU_LOSE_AFTER", "40", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("SOFTWARE_GPU_LOSE_AFTER", "250", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ] {
        let said = dmschat(gpu, &[(setting, value)], &args);
        let last = said.stderr.lines().last().unwrap_or_default();
        assert!((1..=2).contains(&said.code) && last.contains(words), "{setting}={value}: {}", said.stderr);
        assert_eq!(said.stdout, "", "{setting}={value}");
    }
}

/// Outside the engine's thread too: one line, and no panic.
#[test]
fn a_card_lost_while_scoring_is_an_error() {
    let Some(gpu) = software_gpu() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "1 2 3 4 5 6 7 8").unwrap();
    let args = ["score", "--device", "cuda", "--tokens-file", file.path().to_str().unwrap()];
    let said = dmschat(gpu, &[("SOFTWARE_GPU_LOSE_AFTER", "60")], &args);
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1), "{}", said.stderr);
    assert!(said.stderr.contains("the GPU failed"), "{}", said.stderr);
}

#[test]
fn several_sequences_are_measured() {
    let Some(gpu) = software_gpu() else { return };
    let cases = ["--ctx", "0,20", "--gen", "3", "--parallel", "1,2", "--runs", "1"];
    let report = dmschat(gpu, &[], &[&["bench", "--shape", "demo", "--device", "cuda", "--json"], &cases[..]].concat());
    let report = report.json();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    let config = dmschat::checkpoint::Checkpoint::random_shared("demo").unwrap().config;
    for result in results {
        let number = |key: &str| result[key].as_u64().unwrap() as usize;
        let fed = number("parallel") * (number("ctx").max(1) + 3);
        assert_eq!(number("dense_slots"), fed * config.n_layers * config.n_kv_heads);
        assert!(number("device_bytes") > number("kv_bytes"));
        assert!(result["host_us_between_steps"].as_f64().unwrap() > 0.0);
    }
}

/// NVIDIA's library has exit handlers: they run once, on the main thread, when no engine calls the library any more.
#[test]
fn the_engine_ends_before_exit_handlers_run() {
    let Some(gpu) = software_gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcublasLt.so.13");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/software_gpu/cublaslt.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler).args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.unwrap().success());
    let settings = [("DMSCHAT_CUBLASLT", library.to_str().unwrap())];
    for args in [&["-p", EQUATION, "--max-tokens", "1"][..], &["-p", EQUATION, "--max-tokens", "1", "--json"]] {
        let said = dmschat(gpu, &settings, &[args, &["--device", "cuda", "--gemm", "cublaslt"]].concat());
        // The model only thinks.
        assert_eq!(said.code, 1, "{args:?}: {}", said.stderr);
    }
    // An engine that does not end is not waited for, and no exit handler runs beside it.
    let hangs = [settings[0], ("CUBLASLT_HANGS", "1")];
    let started = Instant::now();
    let said = dmschat(gpu, &hangs, &["-p", EQUATION, "--device", "cuda", "--gemm", "cublaslt"]);
    assert_eq!(said.code, 130, "{}", said.stderr);
    assert!(started.elapsed() < Duration::from_secs(50));
}

/// At the small shapes of a slow GPU; the table has all its columns.
#[test]
fn every_op_is_timed() {
    let Some(gpu) = software_gpu() else { return };
    let said = dmschat(gpu, &[], &["doctor", "--device", "cuda", "--speed"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let lines: Vec<&str> = said.stdout.lines().filter(|l| l.starts_with('|')).collect();
    let cells = |line: &&str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    for cells in lines[2..].iter().map(cells) {
        assert!(cells.len() == 8 && cells[3].parse::<f64>().unwrap() > 0.0, "{cells:?}");
    }
    for op in ["embed", "qkv", "lm_head", "attention fp8 over 50", "sample greedy"] {
        assert!(lines.iter().any(|l| l.contains(op)), "no {op} in\n{}", said.stdout);
    }
    let small = dmschat(gpu, &[("SOFTWARE_GPU_MEMORY_MIB", "1024")], &["doctor", "--device", "cuda", "--speed"]);
    assert!(small.code == 0 && small.stdout.contains("ops are not timed"), "{}", small.stdout);
}

#[test]
fn a_driver_or_card_that_cannot_be_used_is_named() {
    let Some(gpu) = software_gpu() else { return };
    for (setting, value, words) in [
        ("SOFTWARE_GPU_VERSION", "11040", "supports CUDA 11.4; 12.2"),
        ("SOFTWARE_GPU_COUNT", "0", "CUDA_ERROR_NO_DEVICE"),
        ("SOFTWARE_GPU_CAPABILITY", "75", "compute capability 7.5"),
    ] {
        let said = dmschat(gpu, &[(setting, value)], &["-p", "x", "--device", "cuda"]);
        assert_eq!((said.code, said.stderr.lines().count()), (2, 1), "{}", said.stderr);
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
}
