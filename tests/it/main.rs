//! The one integration binary: what users and scripts rely on, each room in its file.

mod bounds;
mod checkpoint;
mod cli;
mod conversations;
mod engine;
mod fake_hub;
mod files;
mod folder;
mod gguf;
mod gguf_file;
mod golden;
mod harness;
mod hub;
mod hub_hostile;
mod kept;
mod kernels;
mod limits;
mod pool;
mod pty;
mod quantized;
mod real;
mod recall;
mod reference;
mod rule;
mod session;
#[cfg(all(feature = "gpu-emulator", target_os = "linux", target_arch = "x86_64"))]
mod software_gpu;
mod spy;
mod steering;
mod steps;
mod template;
mod tidy;
mod tiny;
mod turns;
mod twin;
mod weight_files;
