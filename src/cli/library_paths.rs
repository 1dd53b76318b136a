//! Search paths of NVIDIA's libraries.

use std::path::{Path, PathBuf};

/// Names the libcublasLt to load, instead of a search.
const CUBLASLT: &str = "DMSCHAT_CUBLASLT";
/// Versions that the CUDA backend supports, newest first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// Candidate paths of libcublasLt: the dynamic loader's own, then the paths of CUDA, Ollama and
/// Python packages.
pub fn cublaslt() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(CUBLASLT) {
        return vec![path];
    }
    let mut folders: Vec<PathBuf> = vec!["/usr/local/cuda/lib64".into()];
    for release in ["cuda_v13", "cuda_v12"] {
        folders.extend(["/usr/lib/ollama", "/usr/local/lib/ollama"].map(|f| Path::new(f).join(release)));
    }
    let homes = [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), variable("HOME").map(|h| h.join(".local"))];
    for home in homes.into_iter().flatten().chain(["/usr/local".into(), "/usr".into()]) {
        folders.push(home.join("lib"));
        let within = std::fs::read_dir(home.join("lib")).into_iter().flatten().flatten().map(|e| e.path());
        for python in within.filter(|p| p.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"python3"))) {
            for packages in ["site-packages", "dist-packages"] {
                folders.extend(["nvidia/cu13/lib", "nvidia/cublas/lib"].map(|f| python.join(packages).join(f)));
            }
        }
    }
    let files = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    NAMES.iter().map(PathBuf::from).chain(files.filter(|path| path.exists())).collect()
}
