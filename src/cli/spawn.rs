//! Opens a checkpoint and starts an engine on the device that was asked for: the one match on the
//! device in the crate.

use super::download;
use super::libraries;
use super::machine::memory;
use super::output::{as_wrong_use, notice, wrong_use};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::{self, Cuda, CudaOptions};
use crate::checkpoint::hub::HubError;
use crate::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use crate::codec::Codec;
use crate::config::{Adapter, Device, Gemm, Kv, Settings};
use crate::engine::{self, EngineOptions, Runner};
use crate::protocol::EngineHandle;
use anyhow::Result;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where kernels are read from instead of the program itself, for work on them.
const KERNEL_DIR: &str = "DMSCHAT_KERNEL_DIR";
/// Whose kernels are taken, `compute_80` say, instead of the newest that the card runs.
const KERNEL_TARGET: &str = "DMSCHAT_KERNEL_TARGET";

pub(super) const NO_F32: &str = "--kv f32 is not offered on CUDA: use --kv bf16 or fp8, or --device cpu";

fn kernel_folder() -> Option<PathBuf> {
    std::env::var_os(KERNEL_DIR).map(Into::into)
}

fn kernel_target() -> Option<String> {
    std::env::var(KERNEL_TARGET).ok()
}

/// How a card is opened: steps recorded as graphs or not, and what multiplies.
pub(super) fn card_options(graphs: bool, gemm: Gemm) -> CudaOptions {
    let cublaslt = if gemm == Gemm::Own { Vec::new() } else { libraries::cublaslt() };
    let cublaslt_needed = gemm == Gemm::CublasLt;
    let (kernels, target) = (kernel_folder(), kernel_target());
    CudaOptions { kernels, target, no_graphs: !graphs, cublaslt, cublaslt_needed, wait_always: false }
}

/// Where a model runs.
#[derive(Clone, Copy)]
pub enum Place {
    Cpu,
    Card(u32),
}

/// Starts the engine's thread. There the model is downloaded where it is not here, opened, and
/// loaded onto its device; all of it is told by events. `download_failed` is set where a download
/// ended by no fault of the settings.
pub fn engine(settings: &Settings, download_failed: Arc<AtomicBool>) -> Result<EngineHandle> {
    device(settings)?;
    let settings = settings.clone();
    engine::spawn_with(move |loading| {
        download::for_chat(&settings, &loading).inspect_err(|error| {
            download_failed.store(matches!(error.downcast_ref(), Some(HubError::Failed(_))), Ordering::Relaxed);
        })?;
        let (checkpoint, place) = opened(&settings)?;
        let options = EngineOptions { reference: super::reference::of(&settings), ..options(&settings, place) };
        match place {
            Place::Cpu => loading.serve(checkpoint, |_| Ok(Cpu::new(0)), options),
            Place::Card(index) => loading.serve(
                checkpoint,
                |loading| {
                    let card = card_options(settings.graph, settings.gemm);
                    Ok(Cuda::open_reporting(index, &card, &mut loading.on_kernels())?)
                },
                options,
            ),
        }
    })
}

/// Work on a loaded model without the engine's thread, for any backend.
pub trait ModelJob {
    fn run<B: Backend>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8>;
}

/// Loads the model on the device that was asked for and does `job`. Steps take up to `max_step`
/// tokens.
pub fn with_model(settings: &Settings, max_step: usize, job: impl ModelJob) -> Result<u8> {
    check_device(settings)?;
    download::ensure(settings)?;
    let (checkpoint, place) = opened(settings).map_err(as_wrong_use)?;
    checkpoint.notices().for_each(|text| notice(&text));
    let options = EngineOptions { max_step: Some(max_step), ..options(settings, place) };
    match place {
        Place::Cpu => run_job(Cpu::new(0), checkpoint, options, job),
        Place::Card(index) => {
            let card = Cuda::open(index, &card_options(settings.graph, settings.gemm))?;
            run_job(card, checkpoint, options, job)
        }
    }
}

fn run_job<B: Backend>(b: B, mut checkpoint: Checkpoint, mut options: EngineOptions, job: impl ModelJob) -> Result<u8> {
    engine::settle_context(&b, &mut checkpoint, &mut options, |text| notice(&text)).map_err(as_wrong_use)?;
    job.run(&mut Runner::new(b, &checkpoint, &options, |_, _| true)?, &checkpoint)
}

/// The checkpoint that the settings name.
pub fn open(settings: &Settings) -> Result<Checkpoint> {
    let adapter = match &settings.adapter {
        Adapter::Auto => AdapterChoice::Auto,
        Adapter::None => AdapterChoice::None,
        Adapter::File(path) => AdapterChoice::File(path.clone()),
    };
    Checkpoint::open(&ModelRef::parse(&settings.model)?, &adapter)
}

/// The checkpoint, and where it runs: `auto` takes the card only for heads that its kernels take.
pub fn opened(settings: &Settings) -> Result<(Checkpoint, Place)> {
    let checkpoint = open(settings)?;
    let place = match (device(settings)?, takes(&checkpoint)) {
        (Place::Card(_), Err(_)) if settings.device == Device::Auto => Place::Cpu,
        (Place::Card(_), Err(why)) => return Err(why),
        (place, _) => place,
    };
    Ok((checkpoint, place))
}

/// Whether the card's kernels take the model's heads.
fn takes(checkpoint: &Checkpoint) -> Result<()> {
    let c = &checkpoint.config;
    let group = c.n_q_heads / c.n_kv_heads.max(1);
    if c.head_dim > cuda::MAX_HEAD_DIM || !c.head_dim.is_multiple_of(8) || group > cuda::MAX_GROUP {
        anyhow::bail!(
            "heads of {} channels, {group} query heads to a KV head: the CUDA backend takes multiples of 8 up to {}, \
             and up to {}; use --device cpu",
            c.head_dim,
            cuda::MAX_HEAD_DIM,
            cuda::MAX_GROUP
        );
    }
    Ok(())
}

fn options(settings: &Settings, place: Place) -> EngineOptions {
    let codec = codec(settings.kv, place);
    let memory_bytes = match place {
        Place::Cpu => memory("MemAvailable:"),
        Place::Card(index) => cuda::free_bytes(index),
    };
    EngineOptions {
        context: settings.ctx_size,
        memory_bytes,
        kv_limit: settings.kv_limit,
        eviction: settings.eviction,
        ..EngineOptions::new(codec)
    }
}

/// The codec of a device for the format that was asked for.
pub fn codec(kv: Kv, place: Place) -> Codec {
    match (kv, place) {
        (Kv::Auto | Kv::F32, Place::Cpu) => Codec::F32,
        (Kv::Auto | Kv::F32, Place::Card(_)) | (Kv::Bf16, _) => Codec::Bf16,
        (Kv::Fp8, _) => Codec::Fp8,
    }
}

/// The device that the settings ask for, whatever the model; what cannot be had is said here.
pub fn device(settings: &Settings) -> Result<Place> {
    Ok(match settings.device {
        Device::Cpu => Place::Cpu,
        Device::Cuda(index) => {
            let index = index.unwrap_or(0);
            cuda::usable(index).map_err(|why| wrong_use(format!("--device cuda: {why}; use --device cpu")))?;
            if settings.kv == Kv::F32 {
                return Err(wrong_use(NO_F32));
            }
            library(settings)?;
            Place::Card(index)
        }
        // f32 K and V are asked of a machine with a card too.
        Device::Auto if settings.kv == Kv::F32 || cuda::usable(0).is_err() => Place::Cpu,
        Device::Auto => {
            library(settings)?;
            Place::Card(0)
        }
    })
}

/// The library that the settings ask for is there.
fn library(settings: &Settings) -> Result<()> {
    match settings.gemm {
        Gemm::CublasLt => cuda::cublaslt(&libraries::cublaslt())
            .map(drop)
            .map_err(|why| wrong_use(format!("--gemm cublaslt: libcublasLt cannot be used: {why}"))),
        Gemm::Auto | Gemm::Own => Ok(()),
    }
}

/// Refuses a device that is not there, and says once what differs from a usual run on it.
pub fn check_device(settings: &Settings) -> Result<()> {
    if let Place::Card(_) = device(settings)? {
        if let Some(folder) = kernel_folder() {
            notice(&format!("{KERNEL_DIR}: kernels are read from {}", folder.display()));
        }
        if let Some(target) = kernel_target() {
            notice(&format!("{KERNEL_TARGET}: kernels for {target}"));
        }
    }
    Ok(())
}
