//! The CUDA backend without a GPU: the real binary on the software GPU of `tests/software_gpu`,
//! which runs the kernels' sources. Needs a C++ compiler; without one the tests are skipped with a
//! message, and fail in CI.

use crate::emulator::{Said, run, software_gpu};
use crate::experts::wide_mxfp4;
use crate::families;
use crate::tiny::{Form, Spec, Tiny};
use dmschat::checkpoint::Checkpoint;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn dmschat(gpu: &Path, settings: &[(&str, &str)], args: &[&str]) -> Said {
    run(env!("CARGO_BIN_EXE_dmschat"), gpu, settings, args)
}

const EQUATION: &str = "Solve 3x + 4 = 19";

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

#[test]
fn each_family_answers_as_on_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    // No token of the answers is a near tie, which rounding would decide.
    for name in families::FAMILIES {
        let home = tempfile::tempdir().unwrap();
        let [folder, file] = families::written(name, home.path());
        let answer = |device, model: &Path| {
            let args = ["-p", "hello", "--temperature", "0", "--max-tokens", "12", "--json", "--device", device, "-m"];
            dmschat(gpu, &[], &[&args[..], &[model.to_str().unwrap()]].concat()).json()["answer"].clone()
        };
        let wanted = answer("cpu", &folder);
        // Routers of GGUF files are f32.
        for model in
            [Some(&folder), Some(&file).filter(|_| name.ends_with("_moe") || name == "gpt_oss")].into_iter().flatten()
        {
            assert_eq!(answer("cuda", model), wanted, "{}", model.display());
        }
    }
}

/// Experts in MXFP4 keep their codes on both devices, beside matrices in bf16.
#[test]
fn experts_in_mxfp4_answer_as_on_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let home = tempfile::tempdir().unwrap();
    let [folder, _] = families::written("gpt_oss", home.path());
    for (name, bytes) in wide_mxfp4() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    let answer = |device, weights: &str| {
        let args = ["-p", "hello", "--temperature", "0", "--max-tokens", "12", "--json", "--device", device];
        dmschat(gpu, &[], &[&args[..], &["--weights", weights, "-m", folder.to_str().unwrap()]].concat()).json()
    };
    let (wanted, got, plain) = (answer("cpu", "own"), answer("cuda", "auto"), answer("cuda", "bf16"));
    assert_eq!((&got["device"], &got["answer"]), (&"software GPU".into(), &wanted["answer"]));
    assert_eq!(got["answer"], plain["answer"]);
}

/// Layers with other heads than each other, some of which read K and V of others: eviction in
/// chunks, single tokens and drafts. No token of the answers is a near tie.
#[test]
fn heads_by_layer_evict_and_draft_as_on_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let cases = [
        ("gemma4", "48", "bf16"),
        ("gemma4_wide", "64", "bf16"),
        ("gemma4_wide", "64", "int8"),
        ("gemma4_wide", "64", "k8v4"),
        ("gemma4_experts", "48", "bf16"),
    ];
    for (name, budget, kv) in cases {
        let home = tempfile::tempdir().unwrap();
        let [folder, _] = families::written(name, home.path());
        let question = "a long story, ".repeat(6);
        let answer = |device, draft| {
            let args = ["-p", &question, "--temperature", "0", "--max-tokens", "16", "--json", "--device", device];
            let cache = ["--policy", "window", "--budget", budget, "--kv", kv, "--draft", draft, "-m"];
            dmschat(gpu, &[], &[&args[..], &cache, &[folder.to_str().unwrap()]].concat()).json()
        };
        let (wanted, got, drafted) = (answer("cpu", "off"), answer("cuda", "off"), answer("cuda", "lookup"));
        assert_eq!((&got["device"], &got["answer"]), (&"software GPU".into(), &wanted["answer"]), "{name} {kv}");
        assert_eq!(drafted["answer"], wanted["answer"], "{name} {kv}: drafts");
        for key in ["live", "live_slots", "dense_slots", "live_bytes", "reads", "peak_slots"] {
            assert_eq!(got["kv"][key], wanted["kv"][key], "{name} {kv}: {key}");
        }
    }
}

/// Gates with one hidden layer and with two, in prompts and in single tokens.
#[test]
fn retention_gates_keep_as_many_tokens_as_on_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let spec = Spec { n_layers: 3, tied: false, speaks: true, ..Spec::new(true, Form::Plain) };
    let tiny = Tiny::new(spec, 11);
    for kind in ["rg", "rg10"] {
        let gates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/trimkv").join(kind);
        let answer = |device| {
            let args = [
                "-p",
                "a long story, and then",
                "--temperature",
                "0",
                "--max-tokens",
                "24",
                "--json",
                "--device",
                device,
            ];
            let folders = ["--adapter", gates.to_str().unwrap(), "-m", tiny.folder.path().to_str().unwrap()];
            dmschat(gpu, &[], &[&args[..], &["--kv", "bf16"], &folders].concat()).json()
        };
        // Which tokens are dropped, `dmslab check` compares: this model's are near ties.
        let (wanted, got) = (answer("cpu"), answer("cuda"));
        assert_eq!((&got["device"], &got["decisions"]["kind"]), (&"software GPU".into(), &"trimkv".into()), "{kind}");
        for key in ["live", "live_slots", "dense_slots", "reads", "peak_slots"] {
            assert_eq!(got["kv"][key], wanted["kv"][key], "{kind}: {key}");
        }
    }
}

#[test]
fn far_pages_of_layers_with_other_heads_are_refused_in_one_line() {
    let Some(gpu) = software_gpu() else { return };
    let home = tempfile::tempdir().unwrap();
    let [folder, _] = families::written("gemma4_wide", home.path());
    let args = ["-p", "hello", "--device", "cuda", "--far", "1GiB", "--policy", "window", "--budget", "64", "-m"];
    let Said { code, stdout, stderr } = dmschat(gpu, &[], &[&args[..], &[folder.to_str().unwrap()]].concat());
    assert!(code != 0 && stdout.is_empty() && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("--far: on a GPU it needs layers with the same heads"), "{stderr}");
}

/// Far pages are chosen in the prompt and in the answer, single tokens and drafts attend to them.
#[test]
fn an_answer_with_far_pages_is_that_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let spec = Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) };
    let tiny = Tiny::new(spec, 703);
    let question = "a long story, ".repeat(16);
    let answer = |device, draft| {
        let args = ["-p", &question, "--temperature", "0", "--max-tokens", "40", "--json", "--device", device];
        let far = ["--far", "1GiB", "--far-pages", "1", "--draft", draft, "--kv", "bf16", "-m"];
        dmschat(gpu, &[], &[&args[..], &far, &[tiny.folder.path().to_str().unwrap()]].concat()).json()
    };
    let (plain, got, drafted) = (answer("cpu", "off"), answer("cuda", "off"), answer("cuda", "lookup"));
    let far = |said: &Value, key: &str| said["kv"]["far"][key].as_u64().unwrap();
    let [rows, near] = ["rows", "near"].map(|key| far(&plain, key));
    for said in [&plain, &got] {
        let by_head = &said["kv"]["far"]["fetched_by_head"];
        let heads = by_head.as_array().unwrap().iter().flat_map(|layer| layer.as_array().unwrap());
        assert_eq!(heads.map(|pages| pages.as_u64().unwrap()).sum::<u64>(), far(said, "fetched"), "{by_head}");
    }
    assert!(near > 0 && 2 * near < rows, "{plain}");
    assert_eq!((&got["device"], &got["answer"]), (&"software GPU".into(), &plain["answer"]));
    // Decisions near their threshold depend on rounding.
    let apart = ["rows", "near"].map(|key| far(&got, key).abs_diff(far(&plain, key)));
    assert!(apart.iter().all(|apart| 50 * apart < near), "{got} instead of {plain}");
    assert!(drafted["draft"]["rounds"].as_u64() > Some(0), "{drafted}");
    assert_eq!((&drafted["answer"], &drafted["kv"]["far"]), (&got["answer"], &got["kv"]["far"]));
    for key in ["live", "live_slots", "dense_slots", "reads"] {
        assert_eq!(drafted["kv"][key], got["kv"][key], "{key}");
    }
}

/// A cache from a file goes on, through another choice, to the bits of the cache that was written.
#[test]
fn a_saved_cache_has_its_far_rows() {
    let Some(gpu) = software_gpu() else { return };
    let args = ["bench", "--shape", "demo", "--ctx", "320", "--eviction", "on", "--keep", "0.3", "--resume-cache"];
    for kv in ["bf16", "fp8", "int8", "k8v4"] {
        let resumed = |far: &[&str]| {
            let more = ["--kv", kv, "--device", "cuda", "--weights", "bf16", "--json"];
            dmschat(gpu, &[], &[&args[..], &more, far].concat()).json()
        };
        let (gone, far) = (resumed(&[]), resumed(&["--far", "1GiB", "--far-pages", "1"]));
        assert!(gone["equal"] == true && far["equal"] == true, "{kv}: {far}");
        assert!(far["bytes"].as_u64() > gone["bytes"].as_u64().map(|bytes| bytes * 2), "{kv}: {far} beside {gone}");
    }
}

#[test]
fn an_answer_with_a_head_is_that_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let (folder, shape) = (tempfile::tempdir().unwrap(), Checkpoint::shape("demo").unwrap());
    crate::heads::write_random(folder.path(), shape.hidden, shape.vocab, 64);
    let answer = |device, draft| {
        let args =
            ["-p", EQUATION, "--temperature", "0", "--max-tokens", "24", "--json", "--kv", "bf16", "--device", device];
        dmschat(gpu, &[], &[&args[..], &["--draft", draft]].concat()).json_and_code(1)
    };
    let (plain, drafted) = (answer("cpu", "off"), answer("cuda", folder.path().to_str().unwrap()));
    assert_eq!((&drafted["device"], &drafted["reasoning"]), (&"software GPU".into(), &plain["reasoning"]));
    assert!(drafted["draft"]["rounds"].as_u64() > Some(0), "{drafted}");
}

/// The model's own layer for multi-token prediction, which `auto` takes.
#[test]
fn an_answer_with_multi_token_prediction_is_that_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let spec = Spec { hybrid: true, mtp: true, tied: false, speaks: true, ..Spec::new(true, Form::Plain) };
    let tiny = Tiny::new(spec, 11);
    let answer = |device, draft| {
        let args = ["-p", "hi", "--temperature", "0", "--max-tokens", "24", "--json", "--device", device];
        let model = tiny.folder.path().to_str().unwrap();
        dmschat(gpu, &[], &[&args[..], &["--draft", draft, "-m", model]].concat()).json_and_code(0)
    };
    let (plain, drafted) = (answer("cpu", "off"), answer("cuda", "auto"));
    assert_eq!((&drafted["device"], &drafted["answer"]), (&"software GPU".into(), &plain["answer"]));
    assert!(drafted["draft"]["rounds"].as_u64() > Some(0), "{drafted}");
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

#[test]
fn several_sequences_are_measured() {
    let Some(gpu) = software_gpu() else { return };
    let cases = ["--weights", "bf16,own", "--ctx", "0,20", "--gen", "3", "--parallel", "1,2", "--runs", "1"];
    let report = dmschat(gpu, &[], &[&["bench", "--shape", "demo", "--device", "cuda", "--json"], &cases[..]].concat());
    let report = report.json();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    let config = dmschat::checkpoint::Checkpoint::random_shared("demo").unwrap().config;
    for result in results {
        let number = |key: &str| result[key].as_u64().unwrap() as usize;
        let fed = number("parallel") * (number("ctx").max(1) + 3);
        assert_eq!(number("dense_slots"), fed * config.n_layers * config.n_kv_heads);
        assert!(number("device_bytes") > number("kv_bytes"));
        assert!(result["host_us_between_steps"].as_f64().unwrap() > 0.0);
    }
}

/// NVIDIA's library has exit handlers: they run once, on the main thread, when no engine calls the
/// library any more.
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
    // A prompt of more rows than decode takes unpacks 4-bit weights for the library.
    let long = format!("{EQUATION}{}", ", then 5x + 6 = 21".repeat(6));
    let answers = ["cublaslt", "own"].map(|gemm| {
        let args =
            ["-p", &long, "--weights", "int4", "--max-tokens", "2", "--json", "--device", "cuda", "--gemm", gemm];
        dmschat(gpu, &settings, &args).json_and_code(1)["reasoning"].clone()
    });
    assert_eq!(answers[0], answers[1]);
    // An engine that does not end is not waited for, and no exit handler runs beside it.
    let hangs = [settings[0], ("CUBLASLT_HANGS", "1")];
    let started = Instant::now();
    let said = dmschat(gpu, &hangs, &["-p", EQUATION, "--device", "cuda", "--gemm", "cublaslt"]);
    assert_eq!(said.code, 130, "{}", said.stderr);
    assert!(started.elapsed() < Duration::from_secs(50));
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
