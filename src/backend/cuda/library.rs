//! Finds the driver's library where the system's loader does not look for it.

use super::error::NoCuda;
use cudarc::driver::sys;
use libloading::Library;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Name of the driver's library.
const NAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Folders that hold the library on some systems although the loader does not search them: WSL2,
/// NVIDIA's containers (two), distributions (three), NixOS.
const FOLDERS: [&str; 7] = [
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "run/opengl-driver/lib",
];

/// Files that a library of the driver may be: where the loader looks, then the folders above.
pub fn candidates(name: &'static str) -> impl Iterator<Item = PathBuf> {
    let folders = if cfg!(target_os = "linux") { &FOLDERS[..] } else { &[] };
    let there = folders.iter().map(move |folder| Path::new("/").join(folder).join(name)).filter(|file| file.exists());
    std::iter::once(PathBuf::from(name)).chain(there)
}

/// Loads the driver's library, once; the error says where it was looked for.
pub fn load() -> Result<(), NoCuda> {
    static LOADED: OnceLock<Result<(), NoCuda>> = OnceLock::new();
    LOADED.get_or_init(|| load_under(Path::new("/"))).clone()
}

fn load_under(root: &Path) -> Result<(), NoCuda> {
    if !present() {
        let folders = if cfg!(target_os = "linux") { &FOLDERS[..] } else { &[] };
        let files = folders.iter().map(|folder| root.join(folder).join(NAME)).filter(|file| file.exists());
        search(files).map_err(|refused| NoCuda::NoDriver(reason(root, folders, &refused)))?;
    }
    // Loaded for good before anything of it is called: `present` alone loads and unloads it each
    // time. SAFETY: the library is there.
    unsafe { sys::culib() };
    Ok(())
}

/// Whether the loader finds the library by its name.
fn present() -> bool {
    // SAFETY: asks the loader whether the library exists; nothing of it is called.
    unsafe { sys::is_culib_present() }
}

/// Loads the first of these files under whose name cudarc then finds it. The error has a line on
/// each.
fn search(files: impl Iterator<Item = PathBuf>) -> Result<(), Vec<String>> {
    let mut refused = Vec::new();
    for file in files {
        // SAFETY: the initializers of the driver's library, which this process would run anyway.
        match unsafe { Library::new(&file) } {
            // The loader answers for a loaded library's own name, so it has to stay loaded.
            Ok(library) => std::mem::forget(library),
            Err(error) => refused.push(why(&file, &error)),
        }
        if present() {
            return Ok(());
        }
    }
    Err(refused)
}

fn why(file: &Path, error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    if cause.contains(NAME) { cause } else { format!("{}: {cause}", file.display()) }
}

/// Where the library was looked for, what was wrong with the files found, and what may help.
fn reason(root: &Path, folders: &[&str], refused: &[String]) -> String {
    let mut said = format!("{NAME} is not where the system's loader looks");
    if !refused.is_empty() {
        said += &format!("; {}", refused.join("; "));
    } else if !folders.is_empty() {
        said += &format!(" (LD_LIBRARY_PATH included), nor in /{}", folders.join(", /"));
    }
    if root.join("proc/driver/nvidia/version").exists() {
        said += "; the kernel has a driver, so this may be a container without it: start it with --gpus all";
    } else if root.join("dev/dxg").exists() {
        said += "; on WSL2 the driver is that of Windows: install or update it there";
    }
    said
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    const CHILD: &str = "backend::cuda::library::tests::the_library_under_the_current_folder_loads";

    #[test]
    fn a_library_in_the_folder_of_wsl_is_found() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/wsl/lib");
        fs::create_dir_all(&folder).unwrap();
        let source = folder.join("driver.c");
        fs::write(&source, "int cuInit(unsigned flags) { return 0; }").unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
            .args([&folder.join(NAME), &source])
            .status();
        assert!(built.unwrap().success());
        // In a process of its own, because the library stays.
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--ignored", "--exact", CHILD]).current_dir(root.path()).output().unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Run by the test above.
    #[test]
    #[ignore = "a part of another test"]
    fn the_library_under_the_current_folder_loads() {
        let here = std::env::current_dir().unwrap();
        load_under(&here).unwrap();
        assert!(present());
    }

    #[test]
    fn a_missing_library_names_the_folders_and_what_may_help() {
        let root = tempfile::tempdir().unwrap();
        let said = reason(root.path(), &FOLDERS, &[]);
        assert!(
            said.contains("LD_LIBRARY_PATH") && said.contains("/usr/lib/wsl/lib, /usr/local/nvidia/lib64"),
            "{said}"
        );
        assert!(!said.contains("--gpus"), "{said}");
        let kernel = root.path().join("proc/driver/nvidia");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("version"), "NVRM").unwrap();
        assert!(reason(root.path(), &FOLDERS, &[]).ends_with("--gpus all"));
        // A file that is not a library.
        let file = root.path().join(NAME);
        fs::write(&file, "no library").unwrap();
        let refused = search([file].into_iter());
        assert!(refused.is_ok() || refused.unwrap_err()[0].contains("libcuda.so.1: "));
    }
}
