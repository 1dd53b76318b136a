//! Errors of the driver: [`NoCuda`] while the GPU is opened, [`DeviceLost`] by unwinding once a
//! model runs on it.

use super::super::DeviceLost;
use cudarc::driver::result::DriverError;

/// Why CUDA cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// Where it was looked for.
    #[error("no NVIDIA driver found: {0}")]
    NoDriver(String),
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
    OldGpu { name: String, major: i32, minor: i32 },
    #[error("there are no kernels for `{target}`, or this GPU cannot run them (it runs {names})")]
    NoTarget { target: String, names: String },
    #[error("libcublasLt cannot be used: {0}")]
    NoCublasLt(String),
    #[error("loading was stopped")]
    Stopped,
    #[error("{0}")]
    Driver(String),
}

/// Returns the value, or panics with [`DeviceLost`] without running the panic hook. `doing` names
/// the failed operation.
pub(super) fn must<T>(result: Result<T, DriverError>, doing: &str) -> T {
    result.unwrap_or_else(|error| lost(&format!("{doing}: {}", words(error))))
}

/// Panics with [`DeviceLost`] without running the panic hook.
pub(super) fn lost(why: &dyn std::fmt::Display) -> ! {
    std::panic::resume_unwind(Box::new(DeviceLost(format!("the GPU failed: {why}"))))
}

/// The error as text, with the operation that failed.
pub(super) fn failure<T>(result: Result<T, DriverError>, doing: &str) -> Result<T, String> {
    result.map_err(|error| format!("{doing}: {}", words(error)))
}

/// The error of an operation while the GPU is opened.
pub(super) fn ready<T>(result: Result<T, DriverError>, doing: &str) -> Result<T, NoCuda> {
    result.map_err(|error| NoCuda::Driver(format!("the GPU cannot be used: {doing}: {}", words(error))))
}

/// `CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)`
pub(super) fn words(error: DriverError) -> String {
    let text = |t: Result<&std::ffi::CStr, _>| t.map(|s| s.to_string_lossy().into_owned()).ok();
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
        _ => format!("error {}", error.0 as u32),
    }
}
