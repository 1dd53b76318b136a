//! The energy counter of a GPU, by NVIDIA's management library (NVML). It is loaded where it is
//! there; nothing depends on it.

use super::library::candidates;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

/// Name of the library.
const NAME: &str = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };

type Init = unsafe extern "C" fn() -> c_int;
type ByBus = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Energy = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;

/// The counter of one GPU. The library stays loaded.
pub struct Counter {
    device: *mut c_void,
    read: Energy,
}

impl Counter {
    /// The counter of the GPU at this place on the PCI bus. `None` without the library, or if the
    /// GPU has none (before Volta, and parts of a GPU).
    pub fn open(domain: i32, bus: i32, device: i32) -> Option<Self> {
        let place = CString::new(format!("{domain:08x}:{bus:02x}:{device:02x}.0")).ok()?;
        // SAFETY: NVIDIA's library, whose start does no more than register itself.
        let library = candidates(NAME).find_map(|file| unsafe { Library::new(file) }.ok())?;
        let library = ManuallyDrop::new(library);
        // SAFETY: the types above are the ones of `nvml.h`.
        let (init, by_bus, read) = unsafe {
            let init: Init = *library.get(b"nvmlInit_v2").ok()?;
            let by_bus: ByBus = *library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?;
            let read: Energy = *library.get(b"nvmlDeviceGetTotalEnergyConsumption").ok()?;
            (init, by_bus, read)
        };
        let mut handle = null_mut();
        // SAFETY: initialized first; the string ends in 0, and the handle is written before it is
        // used.
        let found = unsafe { init() == 0 && by_bus(place.as_ptr(), &raw mut handle) == 0 };
        let counter = Self { device: handle, read };
        counter.millijoules().filter(|_| found).map(|_| counter)
    }

    /// Millijoules since the driver was loaded.
    pub fn millijoules(&self) -> Option<u64> {
        let mut energy = 0;
        if self.device.is_null() {
            return None;
        }
        // SAFETY: the library gave this handle and is never unloaded.
        (unsafe { (self.read)(self.device, &raw mut energy) } == 0).then_some(energy)
    }
}
