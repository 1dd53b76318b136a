//! The software GPU of `tests/software_gpu`, which runs the kernels' sources: builds it and runs
//! programs on it. Needs a C++ compiler; without one its tests are skipped with a message, and fail
//! in CI.

use serde_json::Value;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The folder of `libcuda.so.1`, built once for every state of its sources.
pub fn software_gpu() -> Option<&'static Path> {
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
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().find(|folder| folder.join("tests/software_gpu").is_dir()).unwrap();
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    Command::new(&compiler).arg("--version").output().map_err(|e| format!("{compiler:?}: {e}"))?;
    let folders = ["tests/software_gpu", "kernels"];
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

pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn json(&self) -> Value {
        self.json_and_code(0)
    }

    pub fn json_and_code(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("an object of JSON")
    }
}

/// Runs the program, which finds the software GPU where it looks for the driver.
pub fn run(program: &str, gpu: &Path, settings: &[(&str, &str)], args: &[&str]) -> Said {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home.path()).env("LD_LIBRARY_PATH", gpu).envs(settings.iter().copied());
    command.env("DMSCHAT_CONFIG_DIR", home.path()).env("DMSCHAT_DATA_DIR", home.path());
    let output = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let code = output.status.code().unwrap_or(-1);
    Said { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
