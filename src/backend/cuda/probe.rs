//! Is there a driver that this backend can use? Answers without ever panicking: cudarc resolves each
//! symbol at its first call and panics where it is missing, so all of them are looked up first.

use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::OnceLock;

/// Why CUDA cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    #[error("no NVIDIA driver found (libcuda.so.1 could not be loaded)")]
    NoDriver,
    #[error("the NVIDIA driver is too old: it lacks {0}")]
    MissingSymbol(&'static str),
    #[error("the NVIDIA driver supports CUDA {}.{}; 12.2 (driver 535) or newer is needed", .0 / 1000, .0 % 1000 / 10)]
    TooOld(i32),
    #[error("the NVIDIA driver did not start: {0}")]
    Init(String),
    #[error("no NVIDIA GPU is visible")]
    NoDevice,
    #[error("there is no GPU {index}: the driver shows {count}, counted from 0")]
    NoSuchDevice { index: u32, count: u32 },
    #[error("{name} has compute capability {major}.{minor}; 8.0 (Ampere) or newer is needed")]
    OldCard { name: String, major: i32, minor: i32 },
    #[error("there are no kernels for `{target}`, or the card cannot run them: {names}")]
    NoTarget { target: String, names: String },
    #[error("libcublasLt cannot be used: {0}")]
    NoCublasLt(String),
    #[error("nobody waits for it any more")]
    Stopped,
    #[error("{0}")]
    Driver(String),
}

/// CUDA release whose PTX the kernels are: drivers from 535 on.
const NEEDED_VERSION: i32 = 12020;

/// Every symbol that this backend calls.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuLaunchKernelEx",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuTensorMapEncodeTiled",
];

/// The driver's CUDA version (12020 for 12.2) and how many GPUs it shows.
pub fn probe() -> Result<(i32, u32), NoCuda> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    let present_here = || {
        // SAFETY: asks the loader whether the library is there; nothing of it is called.
        let found = unsafe { sys::is_culib_present() };
        if found {
            // Loaded for good before anything of it is called: asking alone loads and unloads it each time.
            // SAFETY: the library is there.
            unsafe { sys::culib() };
        }
        found
    };
    if !PRESENT.get_or_init(present_here) {
        return Err(NoCuda::NoDriver);
    }
    SYMBOLS[..2].iter().try_for_each(|s| present(s))?;
    let mut version = 0;
    // SAFETY: the symbol was found above, and the pointer is to a live i32.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
    if answer != sys::CUresult::CUDA_SUCCESS || version < NEEDED_VERSION {
        return Err(NoCuda::TooOld(version));
    }
    SYMBOLS.iter().try_for_each(|s| present(s))?;
    result::init().map_err(|e| NoCuda::Init(words(e)))?;
    let count = result::device::get_count().map_err(|e| NoCuda::Init(words(e)))?;
    if count <= 0 { Err(NoCuda::NoDevice) } else { Ok((version, count as u32)) }
}

fn present(symbol: &'static str) -> Result<(), NoCuda> {
    // SAFETY: the library is there, so `culib` does not panic; the symbol is looked up, not called.
    let found = unsafe { sys::culib().get::<*const c_void>(symbol.as_bytes()).is_ok() };
    if found { Ok(()) } else { Err(NoCuda::MissingSymbol(symbol)) }
}

/// `CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)`
pub(super) fn words(error: result::DriverError) -> String {
    let text = |t: Result<&std::ffi::CStr, _>| t.map(|s| s.to_string_lossy().into_owned()).ok();
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
        _ => format!("error {}", error.0 as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symbol that is called and not listed would panic on a driver without it.
    #[test]
    fn every_symbol_that_is_called_is_listed() {
        let sources = [
            include_str!("../cuda.rs"),
            include_str!("driver.rs"),
            include_str!("graph.rs"),
            include_str!("kv.rs"),
            include_str!("memory.rs"),
            include_str!("pinned.rs"),
            include_str!("pool.rs"),
            include_str!("probe.rs"),
            include_str!("products.rs"),
            include_str!("tiles.rs"),
        ];
        for source in sources {
            for part in source.split("sys::cu").skip(1).filter(|p| p.starts_with(char::is_uppercase)) {
                let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(SYMBOLS.contains(&format!("cu{name}").as_str()), "cu{name} is called and not probed for");
            }
        }
    }

    #[test]
    fn the_probe_answers_on_any_machine() {
        match probe() {
            Ok((version, count)) => assert!(version >= NEEDED_VERSION && count > 0),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
}
