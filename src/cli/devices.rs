//! The kinds of device that a model runs on. Each kind has one entry here: how it is found, opened
//! and asked for its free memory, and what it supports. No other file of the program names a
//! concrete backend, except those beside it.

pub mod hessians;

use super::library_paths;
use super::machine::{memory, nvidia_release};
use super::output::{notice, wrong_use};
use crate::backend::Measure;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::{self, Cuda, CudaOptions};
use crate::checkpoint::{Checkpoint, DeltaNet, ModelConfig};
use crate::codec::{Codec, FALLBACKS};
use crate::config::{Auto, Device, Gemm, Settings};
use crate::engine::{Estimate, estimate};
use crate::policy::KvHeads;
use crate::quant::{EXACT_FIRST, formats};
use crate::quantize::convert::loaded_bytes;
use crate::tensor::DType;
use crate::ui::text::{bytes, count};
use crate::words::one_of;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Names a folder from which kernels are read instead of from the program, for work on them.
const KERNEL_DIR: &str = "DMSCHAT_KERNEL_DIR";
/// Names the kernels to load, such as `compute_80`, instead of the newest that the GPU runs.
const KERNEL_TARGET: &str = "DMSCHAT_KERNEL_TARGET";

/// The device that a model runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Cpu,
    /// The GPU of that index.
    Cuda(u32),
}

/// How a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Threads of the CPU; 0 is one per core.
    pub threads: usize,
    /// Whether decode steps are captured as CUDA graphs.
    pub graphs: bool,
    /// Library or kernels that compute GEMMs on a GPU.
    pub gemm: Gemm,
}

impl From<&Settings> for DeviceOptions {
    fn from(settings: &Settings) -> Self {
        Self { threads: 0, graphs: settings.graph, gemm: settings.gemm }
    }
}

/// Operations of a kind of device that commands need.
pub trait DeviceKind {
    type Backend: Measure;

    /// Opens the device.
    fn open(&self) -> Result<Self::Backend>;
}

/// Work that runs on any kind of device.
pub trait DeviceJob {
    type Output;

    fn run<D: DeviceKind>(self, device: &D) -> Result<Self::Output>;
}

struct CpuKind {
    threads: usize,
}

impl DeviceKind for CpuKind {
    type Backend = Cpu;

    fn open(&self) -> Result<Cpu> {
        Ok(Cpu::new(self.threads))
    }
}

struct CudaKind {
    index: u32,
    options: CudaOptions,
}

impl DeviceKind for CudaKind {
    type Backend = Cuda;

    fn open(&self) -> Result<Cuda> {
        Ok(Cuda::open(self.index, &self.options)?)
    }
}

impl Target {
    /// The device that the settings ask for, for any model. An error says why it cannot be used.
    pub fn new(settings: &Settings) -> Result<Self> {
        let target = match settings.device {
            Device::Auto if matches!(settings.kv, Auto::Is(codec) if codec.rows().is_none()) => Self::Cpu,
            Device::Cuda(index) => {
                let index = index.unwrap_or(0);
                cuda::usable(index).map_err(|why| wrong_use(format!("--device cuda: {why}; use --device cpu")))?;
                Self::Cuda(index)
            }
            device => Self::guess(device),
        };
        if let Self::Cuda(_) = target {
            target.check_kv(&[settings.kv])?;
            if settings.gemm == Gemm::CublasLt {
                let library = cuda::cublaslt(&library_paths::cublaslt());
                library.map_err(|why| wrong_use(format!("--gemm cublaslt: libcublasLt cannot be used: {why}")))?;
            }
        }
        Ok(target)
    }

    /// The device that `device` means on this machine, without a check that it can be used.
    fn guess(device: Device) -> Self {
        match device {
            Device::Cuda(index) => Self::Cuda(index.unwrap_or(0)),
            Device::Auto if cuda::usable(0).is_ok() => Self::Cuda(0),
            Device::Auto | Device::Cpu => Self::Cpu,
        }
    }

    /// Does `job` on this device.
    pub fn run<J: DeviceJob>(self, options: DeviceOptions, job: J) -> Result<J::Output> {
        match self {
            Self::Cpu => job.run(&CpuKind { threads: options.threads }),
            Self::Cuda(index) => job.run(&CudaKind { index, options: cuda_options(options.graphs, options.gemm) }),
        }
    }

    /// Free bytes of the device's memory, where that is known.
    pub fn free_bytes(self) -> Option<u64> {
        match self {
            Self::Cpu => memory("MemAvailable:"),
            Self::Cuda(index) => cuda::free_bytes(index),
        }
    }

    /// Whether weights are copied to the device, so that the host's copy is short-lived.
    pub fn copies_weights(self) -> bool {
        matches!(self, Self::Cuda(_))
    }

    /// Random weights of a known shape for this device. Tensors that are copied to a device may
    /// share their bytes on the host.
    pub fn random_weights(self, shape: &str, config: ModelConfig) -> Result<Checkpoint> {
        match self.copies_weights() {
            true => Checkpoint::random_shared_of(shape, config),
            false => Checkpoint::random_of(shape, config),
        }
    }

    /// The codec that `--kv` selects on this device.
    pub fn codec(self, kv: Auto<Codec>) -> Codec {
        match kv {
            Auto::Is(codec) if self.stores(codec) => codec,
            _ => Codec::ALL.into_iter().find(|codec| self.stores(*codec)).unwrap_or_default(),
        }
    }

    /// Whether the device has kernels for the codec.
    fn stores(self, codec: Codec) -> bool {
        matches!(self, Self::Cpu) || codec.rows().is_some()
    }

    /// The codecs that `--kv auto` falls back to where the context would not fit, in this order.
    pub fn smaller_codecs(self, kv: Auto<Codec>) -> &'static [Codec] {
        let usual = self.codec(Auto::Auto);
        let smaller = FALLBACKS.iter().position(|codec| *codec == usual).map_or(0, |at| at + 1);
        if kv == Auto::Auto { &FALLBACKS[smaller..] } else { &[] }
    }

    /// Refuses formats of K and V that this device cannot store.
    pub fn check_kv(self, formats: &[Auto<Codec>]) -> Result<()> {
        let lacks = |format: &Auto<Codec>| matches!(format, Auto::Is(codec) if !self.stores(*codec));
        let Some(format) = formats.iter().copied().find(lacks) else { return Ok(()) };
        let stored = Codec::ALL.into_iter().filter(|codec| self.stores(*codec)).map(Codec::name);
        let stored = one_of(&stored.collect::<Vec<_>>());
        Err(wrong_use(format!("--kv {format} is not offered on CUDA: use --kv {stored}, or --device cpu")))
    }

    /// Fails with the reason where this device's kernels do not support the model.
    pub fn check_model(self, c: &ModelConfig) -> Result<()> {
        let has = |d: &DeltaNet| cuda::has_delta_net(d.kernel, d.key_dim, d.value_dim);
        if matches!(self, Self::Cuda(_)) && c.spec.delta_net.as_ref().is_some_and(|d| !has(d)) {
            bail!(
                "the CUDA backend computes gated delta nets with heads of up to 128 channels and a convolution of 4 tokens"
            );
        }
        let odd = c.spec.experts.filter(|experts| !cuda::has_experts(c.hidden, experts.width));
        if let (Self::Cuda(_), Some(experts)) = (self, odd) {
            bail!("experts of width {}: the CUDA backend supports multiples of 16", experts.width);
        }
        let group = |heads: KvHeads| c.n_q_heads / heads.count.max(1);
        let fits = |heads: KvHeads| {
            heads.dim <= cuda::MAX_HEAD_DIM && heads.dim.is_multiple_of(8) && group(heads) <= cuda::MAX_GROUP
        };
        let odd = c.lanes().map(|layer| layer.heads).find(|heads| !fits(*heads));
        if let (Self::Cuda(_), Some(heads)) = (self, odd) {
            bail!(
                "head_dim {} and {} query heads per KV head: the CUDA backend supports multiples of 8 up to {}, \
                 and up to {}",
                heads.dim,
                group(heads),
                cuda::MAX_HEAD_DIM,
                cuda::MAX_GROUP
            );
        }
        Ok(())
    }
}

/// Options of the CUDA backend, with the variables for work on its kernels.
pub fn cuda_options(graphs: bool, gemm: Gemm) -> CudaOptions {
    CudaOptions {
        kernels: kernel_folder(),
        target: kernel_target(),
        no_graphs: !graphs,
        cublaslt: if gemm == Gemm::Own { Vec::new() } else { library_paths::cublaslt() },
        cublaslt_needed: gemm == Gemm::CublasLt,
        wait_always: false,
    }
}

fn kernel_folder() -> Option<PathBuf> {
    std::env::var_os(KERNEL_DIR).map(Into::into)
}

fn kernel_target() -> Option<String> {
    std::env::var(KERNEL_TARGET).ok()
}

/// Refuses a device that cannot be used, and reports once what differs from a usual run on it.
pub fn check(settings: &Settings) -> Result<()> {
    if let Target::Cuda(_) = Target::new(settings)? {
        if let Some(folder) = kernel_folder() {
            notice(&format!("{KERNEL_DIR}: kernels are read from {}", folder.display()));
        }
        if let Some(target) = kernel_target() {
            notice(&format!("{KERNEL_TARGET}: kernels for {target}"));
        }
    }
    Ok(())
}

/// Like [`check`], for conversations.
pub fn check_for_chat(settings: &Settings) -> Result<()> {
    let name = settings.policy;
    if name.reads_pages() {
        return Err(wrong_use(format!("--policy {name} is for bench and dmslab: conversations cannot have it")));
    }
    check(settings)
}

/// Free bytes where a model would run.
pub fn free_bytes(device: Device) -> Option<u64> {
    Target::guess(device).free_bytes()
}

/// Memory that the driver takes of a GPU before anything is loaded: 527 MiB were measured.
const DRIVER_BYTES: u64 = 640 << 20;

/// Memory that a model would run in, and the codecs that it would try there.
#[derive(Clone, Debug)]
pub struct Room {
    /// Free bytes, out of `of_bytes`.
    pub bytes: u64,
    pub of_bytes: u64,
    pub name: &'static str,
    target: Target,
}

impl Room {
    /// The memory that is free now where a model would run; `None` where that is not known.
    pub fn here(device: Device) -> Option<Self> {
        let target = Target::guess(device);
        let name = if target == Target::Cpu { "the memory of this machine" } else { "the memory of the GPU" };
        let bytes = target.free_bytes()?;
        Some(Self { bytes, of_bytes: bytes, name, target })
    }

    /// A GPU with this much memory.
    pub fn of_gpu(bytes: u64) -> Self {
        let free = bytes.saturating_sub(DRIVER_BYTES);
        Self { bytes: free, of_bytes: bytes, name: "a GPU", target: Target::Cuda(0) }
    }

    pub fn is_gpu(&self) -> bool {
        self.target != Target::Cpu
    }

    /// What of a model fits, whose files have `file_bytes`.
    pub fn estimate(&self, c: &ModelConfig, file_bytes: u64, stored: Stored) -> Option<Estimate> {
        let packed = |weights| (weights, loaded_bytes(c, weights, DType::Bf16.size_bytes()));
        // A GPU has no kernels for experts in most codes of files.
        let stored = match stored {
            Stored::Codes if self.is_gpu() && c.spec.experts.is_some() => Stored::Others,
            stored => stored,
        };
        let keeping = |bytes| formats().find(|weights| weights.keeps_codes()).map(|weights| (weights, bytes));
        let with_smallest =
            |kept: Option<_>| kept.into_iter().chain(EXACT_FIRST.last().map(|weights| packed(*weights))).collect();
        let formats: Vec<_> = match stored {
            Stored::Codes => with_smallest(keeping(kept_bytes(c, file_bytes))),
            Stored::Mxfp4 => with_smallest(keeping(file_bytes)),
            Stored::Others => EXACT_FIRST.into_iter().filter(|w| !w.is_plain()).map(packed).collect(),
            Stored::Plain => EXACT_FIRST.map(|w| if w.is_plain() { (w, file_bytes) } else { packed(w) }).to_vec(),
        };
        let codecs = [&[self.target.codec(Auto::Auto)], self.target.smaller_codecs(Auto::Auto)].concat();
        estimate(c, &formats, &codecs, self.bytes)
    }
}

/// How files have the weights of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In bf16.
    Plain,
    /// In codes of GGUF files that stay as they are where that is possible.
    Codes,
    /// Experts in MXFP4, which stay so on all devices.
    Mxfp4,
    /// In codes that are converted.
    Others,
}

impl Stored {
    pub fn of(is_gguf: bool) -> Self {
        if is_gguf { Self::Codes } else { Self::Plain }
    }
}

/// Bytes of a GGUF file's weights in memory. Codes of 5 and 6 bits, of which a mix below 8 bits has
/// some, take 8 there: 5.3 GB of the 4.9 GB of Llama 3.1 8B in Q4_K_M.
fn kept_bytes(c: &ModelConfig, file_bytes: u64) -> u64 {
    let of_eight_bits = loaded_bytes(c, EXACT_FIRST[1], DType::Bf16.size_bytes());
    if file_bytes < of_eight_bits / 10 * 9 { file_bytes / 49 * 53 } else { file_bytes }
}

/// One line on whether weights fit where they would run, and how much context beside them; `None`
/// where that is not known. Without a configuration the sizes are estimates.
pub fn fit(config: Option<&ModelConfig>, file_bytes: u64, stored: Stored, device: Device) -> Option<String> {
    let room = Room::here(device)?;
    let found = config.map(|config| room.estimate(config, file_bytes, stored));
    let by_size = || {
        let sizes = EXACT_FIRST.into_iter().map(|weights| (weights, weights.estimated_bytes(file_bytes)));
        sizes.into_iter().find(|(_, bytes)| *bytes < room.bytes)
    };
    let chosen = found.map_or_else(by_size, |found| found.map(|found| (found.weights, found.weight_bytes)));
    let (fit, how) = match chosen {
        None => ("will NOT fit", String::new()),
        Some((weights, _)) if weights.is_plain() || weights.keeps_codes() => ("fit", String::new()),
        Some((weights, size)) => ("fit", format!(" as {} ({})", weights.name(), bytes(size))),
    };
    let context = found.flatten().map_or_else(String::new, |Estimate { context, codec, .. }| {
        format!(", with about {} tokens of context in {} slots", count(context as u64), codec.name())
    });
    let (all, free, name) = (bytes(file_bytes), bytes(room.bytes), room.name);
    Some(format!("its weights ({all}) {fit}{how} into {name} ({free} free){context}"))
}

/// The driver's release, as far as the system tells it, and its version of CUDA.
pub fn driver_version() -> Option<String> {
    let (version, _) = cuda::probe().ok()?;
    let release = nvidia_release().map(|release| format!("{release}, ")).unwrap_or_default();
    Some(format!("driver {release}CUDA {}.{}", version / 1000, version % 1000 / 10))
}

/// One line on the GPUs, the driver and cuBLASLt of this machine.
pub fn cuda_summary() -> String {
    match cuda::probe() {
        Ok((version, count)) => {
            let release = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            let library = cuda::cublaslt(&library_paths::cublaslt())
                .unwrap_or_else(|_| "no libcublasLt, which is not needed".to_owned());
            format!("{count} GPU{}, driver for {release}, {library}", if count == 1 { "" } else { "s" })
        }
        // The driver's search path answers `--device cuda`, but not a question about the machine.
        Err(why) => format!("not used: {}", why.to_string().split(": ").next().unwrap_or_default()),
    }
}
