//! Probes for a driver that this backend can use, without ever panicking: cudarc resolves each
//! symbol at its first call and panics if it is missing, so all of them are looked up first.

use super::error::{NoCuda, words};
use super::library;
use cudarc::driver::{result, sys};
use std::ffi::c_void;

/// CUDA version of the kernels' PTX: drivers from 535 on.
const NEEDED_VERSION: i32 = 12020;

/// Every symbol that this backend calls, by itself or through cudarc: those that
/// `tests/software_gpu` exports, on which the tests run all of it.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuCtxGetCurrent",
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
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
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
    library::load()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A symbol that is called and not listed would panic on a driver without it. The software GPU
    /// exports only the symbols that are called, so a missing symbol panics in its tests.
    #[test]
    fn the_symbols_listed_are_those_of_the_software_gpu() {
        let sources = [
            include_str!("../../../tests/software_gpu/driver.cpp"),
            include_str!("../../../tests/software_gpu/memory.cpp"),
            include_str!("../../../tests/software_gpu/stream.cpp"),
        ];
        let mut exported: Vec<&str> = sources
            .iter()
            .flat_map(|source| source.lines())
            .filter_map(|line| line.strip_prefix("DRIVER ")?.split('(').next())
            .collect();
        let mut listed = SYMBOLS.to_vec();
        exported.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, exported);
    }

    #[test]
    fn the_probe_answers_on_any_machine() {
        match probe() {
            Ok((version, count)) => assert!(version >= NEEDED_VERSION && count > 0),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
    }
}
