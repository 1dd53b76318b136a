//! The checks, timings and scores on the software GPU of `tests/software_gpu`.

use crate::emulator::{Said, run, software_gpu};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn dmslab(gpu: &Path, settings: &[(&str, &str)], args: &[&str]) -> Said {
    run(env!("CARGO_BIN_EXE_dmslab"), gpu, settings, args)
}

/// All kernels against the CPU's ops; the one that is made wrong is the one that is found.
#[test]
fn every_kernel_does_as_the_cpu_and_a_wrong_one_is_found() {
    let Some(gpu) = software_gpu() else { return };
    let run = |part| dmslab(gpu, &[("SOFTWARE_GPU_WRONG", "gemm")], &["check", "--small", "--part", part]);
    // The software GPU runs on one thread.
    let [first, second] = std::thread::scope(|scope| {
        let first = scope.spawn(|| run("1/2"));
        let second = run("2/2");
        [first.join().unwrap(), second]
    });
    let all = [first.stdout, second.stdout].concat();
    let lines = |mark: &str| all.lines().filter(|l| l.starts_with(mark)).collect::<Vec<_>>();
    let (fine, missed) = (lines("ok"), lines("!!"));
    assert!(fine.len() > 200, "{all}{}{}", first.stderr, second.stderr);
    // GEMMs of more than 8 rows: weights that are not bf16, a width that tensor cores do not
    // support, or f32 inputs, as drafts have.
    let fits = |line: &&&str| ["linear", "glu f32", "drafts"].iter().any(|op| line.contains(op));
    let found = missed.iter().filter(fits).count();
    assert!([first.code, second.code] == [1, 1] && found > 50 && found == missed.len(), "{}", missed.join("\n"));
    let recorded = |line: &&&str| line.contains("in one step, 2 recorded") || line.contains("by itself, 2 recorded");
    assert_eq!(fine.iter().filter(recorded).count(), 14, "steps are recorded and replayed");
    let moved = |line: &&&str| line.contains("memory: 30 MiB of pages");
    assert_eq!(fine.iter().filter(moved).count(), 1, "pages move, and memory is given back");
    // The plan counts the allocations themselves in the driver's granules, up to one block that
    // small allocations share. It includes 16 MiB of unpacked weights, which earlier checks have
    // allocated.
    let plan = fine.iter().find(|line| line.contains("MB planned")).expect("a model is planned for");
    let figures: Vec<f64> = plan.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!((figures[0] - figures[1]).abs() < 16.8 + 2.2, "{plan}");
}

/// Models of other families than those above, as transformers wrote them.
#[test]
fn families_score_as_on_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let file = tokens_file(90, 128);
    let window = &["--policy", "window", "--budget", "18"];
    for (name, policy) in [
        ("phi3_longrope", &["--ctx-size", "128"][..]),
        ("smollm3", window),
        ("granite", &[]),
        ("qwen3_moe", &[]),
        ("mistral_sliding", &[]),
        ("mistral_sliding", window),
        ("ministral3", &[]),
        ("ministral3", window),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
        let score = |device| {
            let (model, file) = (folder.to_str().unwrap(), file.path().to_str().unwrap());
            let schedule = "prefill:50,decode:3,prefill:33,decode:4";
            let args = ["score", "--json", "--tokens-file", file, "--schedule", schedule, "--kv", "bf16"];
            dmslab(gpu, &[], &[&args[..], policy, &["--model", model, "--device", device]].concat()).json()
        };
        let (cpu, cuda) = (score("cpu"), score("cuda"));
        assert_eq!(cuda["live"], cpu["live"], "{name} {policy:?}");
        let rows = |score: &Value| score["logprobs"].as_array().unwrap().iter().map(Value::as_f64).collect::<Vec<_>>();
        // Inputs of these bf16 weights are rounded to bf16, and attention is sharp. Older families
        // differ as much.
        let (got, wanted) = (rows(&cuda), rows(&cpu));
        let apart = got.iter().flatten().zip(wanted.iter().flatten()).map(|(a, b)| (a - b).abs());
        let mean = apart.clone().sum::<f64>() / wanted.len() as f64;
        // A router may choose another expert for a rounded input.
        let (most, limit) = (apart.fold(0.0, f64::max), if name == "qwen3_moe" { 2.0 } else { 0.6 });
        assert!(mean < 0.12 && most < limit, "{name} {policy:?}: {mean} on average, {most} at most");
    }
}

/// Runs chunks, decodes and toggles on models with random weights. Log-probabilities are near the
/// CPU's and live slots are equal, with the kernels of all GPUs and with Hopper's.
#[test]
fn scores_are_those_of_the_cpu() {
    let Some(gpu) = software_gpu() else { return };
    let file = tokens_file(120, 256);
    let shapes = [
        (Spec::new(true, Form::Borrowed), "bf16", &[][..]),
        (Spec { bias: true, ..Spec::new(false, Form::Adapter) }, "bf16", &[]),
        (Spec { n_q_heads: 6, ..Spec::new(false, Form::Metadata) }, "fp8", &[]),
        (Spec::new(true, Form::Predictor { linear: true, units: 0 }), "bf16", &[]),
        (Spec { bias: true, ..Spec::new(false, Form::Predictor { linear: true, units: 40 }) }, "fp8", &[]),
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
        // A GPU rounds the inputs of these bf16 weights to bf16. No decision of these models is so
        // near 0 that this evicts another token, and no two pages are so close that a query reads
        // another page.
        let seed = if policy.iter().any(|word| word.ends_with("quest")) { 52 } else { 50 };
        let tiny = Tiny::new(spec, seed);
        let score = |device, capability| {
            let (model, file) = (tiny.folder.path().to_str().unwrap(), file.path().to_str().unwrap());
            let schedule = "prefill:50,decode:3,off,prefill:33,on,decode:2,prefill:32";
            let args = ["score", "--json", "--tokens-file", file, "--schedule", schedule, "--kv", kv];
            let settings = [("SOFTWARE_GPU_CAPABILITY", capability)];
            dmslab(gpu, &settings, &[&args[..], policy, &["--model", model, "--device", device]].concat()).json()
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
            // Inputs of bf16 weights are rounded, and in fp8 a last bit may choose between two
            // codes that are a sixteenth apart.
            for (a, b) in got.iter().flatten().zip(wanted.iter().flatten()) {
                assert!((a - b).abs() < 5e-2 + share * b.abs(), "model {i} on {capability}: {a} instead of {b}");
            }
        }
    }
}

/// Outside the engine's thread too: one line, and no panic.
#[test]
fn a_card_lost_while_scoring_is_an_error() {
    let Some(gpu) = software_gpu() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "1 2 3 4 5 6 7 8").unwrap();
    let args = ["score", "--device", "cuda", "--tokens-file", file.path().to_str().unwrap()];
    let said = dmslab(gpu, &[("SOFTWARE_GPU_LOSE_AFTER", "60")], &args);
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1), "{}", said.stderr);
    assert!(said.stderr.contains("the GPU failed"), "{}", said.stderr);
}

/// At the small shapes of a slow GPU; the table has all its columns.
#[test]
fn every_op_is_timed() {
    let Some(gpu) = software_gpu() else { return };
    let said = dmslab(gpu, &[], &["speed"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let lines: Vec<&str> = said.stdout.lines().filter(|l| l.starts_with('|')).collect();
    let cells = |line: &&str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    for cells in lines[2..].iter().map(cells) {
        assert!(cells.len() == 8 && cells[3].parse::<f64>().unwrap() > 0.0, "{cells:?}");
    }
    for op in ["embed", "qkv", "lm_head", "attention fp8 over 50", "sample greedy"] {
        assert!(lines.iter().any(|l| l.contains(op)), "no {op} in\n{}", said.stdout);
    }
    let small = dmslab(gpu, &[("SOFTWARE_GPU_MEMORY_MIB", "1024")], &["speed"]);
    assert!(small.code == 0 && small.stdout.contains("ops are not timed"), "{}", small.stdout);
}

/// A file of `n` tokens below `vocab`.
fn tokens_file(n: usize, vocab: usize) -> tempfile::NamedTempFile {
    let tokens: Vec<usize> = (0..n).map(|i| i * 7919 % vocab).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), serde_json::to_string(&tokens).unwrap()).unwrap();
    file
}
