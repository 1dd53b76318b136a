//! A thin layer over the driver: one card, its context and stream, modules, launches, copies. Every call
//! is checked. What fails at load is an error; what fails later (a lost card, a broken kernel) unwinds
//! with [`DeviceLost`], which whoever runs a model catches. Out of memory is typed.

use super::super::{DeviceLost, OutOfMemory};
use super::abi::Arg;
use super::kernels::{EARLY_START, KERNELS, Kernel, SOURCES, Source, TARGETS};
use super::pinned::Staging;
use super::probe::{NoCuda, probe, words};
use cudarc::driver::sys;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// Pieces in which a card's memory is allocated.
const ALLOCATED: usize = 512;
/// The address of what is allocated in a rehearsal.
const REHEARSED: u64 = 0;
const JIT_LOG_BYTES: usize = 8 << 10;

/// How a card is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Waits after every launch, so that a failure names its kernel, at the cost of speed.
    pub wait_always: bool,
    /// A folder of PTX that takes the place of the program's own, for work on kernels.
    pub kernels: Option<PathBuf>,
    /// Kernels of this one of `TARGETS`, as an older card would get them, for work on kernels.
    pub target: Option<String>,
    /// Launches every kernel of every step by itself instead of recording steps as graphs.
    pub no_graphs: bool,
    /// Where a libcublasLt may be, which then multiplies many rows: the first that works is taken.
    pub cublaslt: Vec<PathBuf>,
    /// Whether it is an error if none does.
    pub cublaslt_needed: bool,
}

pub struct Driver {
    device: i32,
    stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    /// Of every kernel; null for those that this card has not.
    functions: Vec<sys::CUfunction>,
    pub name: String,
    pub multiprocessors: usize,
    /// Most shared memory of a block.
    shared_bytes: usize,
    /// The card's compute capability, major and minor.
    capability: (i32, i32),
    /// Whether kernels are started before those in front of them have ended.
    early: bool,
    wait_always: bool,
    staging: RefCell<Option<Staging>>,
    /// Launches are being recorded and do not run.
    recording: Cell<bool>,
    /// What went wrong while recording.
    broken: Cell<Option<String>>,
    /// Counts how often memory was taken or given back.
    generation: Cell<u64>,
    /// Bytes that were asked for in a rehearsal, in which nothing is allocated and nothing is sent.
    rehearsed: Cell<Option<u64>>,
    /// Free bytes when the context was all there was.
    free_at_first: u64,
}

/// Unwinds with the driver's words: `doing` is what was under way. The panic's hook stays out of it.
pub(super) fn must(result: sys::CUresult, doing: &str) {
    if let Err(error) = result.result() {
        std::panic::resume_unwind(Box::new(DeviceLost(format!("the GPU failed: {doing}: {}", words(error)))));
    }
}

pub(super) fn failure(result: sys::CUresult, doing: &str) -> Result<(), String> {
    result.result().map_err(|e| format!("{doing}: {}", words(e)))
}

pub(super) fn ready(result: sys::CUresult, doing: &str) -> Result<(), NoCuda> {
    result.result().map_err(|e| NoCuda::Driver(format!("the GPU cannot be used: {doing}: {}", words(e))))
}

/// CUDA version of the first driver that records early starts in a graph.
const EARLY_START_RECORDED: i32 = 12040;

/// What a card is.
struct Described {
    device: i32,
    name: String,
    multiprocessors: usize,
    shared_bytes: usize,
    /// Its compute capability, major and minor.
    capability: (i32, i32),
    /// The driver's CUDA version.
    driver: i32,
}

/// The card of that index; an error says why it is none.
fn describe(index: u32) -> Result<Described, NoCuda> {
    let (driver, count) = probe()?;
    if index >= count {
        return Err(NoCuda::NoSuchDevice { index, count });
    }
    let mut device = 0;
    // SAFETY: the driver is started, the index is below its count, the pointer is to a live i32.
    ready(unsafe { sys::cuDeviceGet(&mut device, index as i32) }, "opening it")?;
    use sys::CUdevice_attribute as A;
    let major = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
    let shared = attribute(device, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let name = name(device)?;
    let capability = (major, minor);
    if !TARGETS.iter().any(|t| t.runs_on(capability)) {
        return Err(NoCuda::OldCard { name, major, minor });
    }
    Ok(Described { device, name, multiprocessors, shared_bytes: shared as usize, capability, driver })
}

/// The capability of the oldest card that a target is for, where this card runs it.
fn as_if(target: &str, capability: (i32, i32)) -> Result<(i32, i32), NoCuda> {
    let all = || TARGETS.iter().filter(|t| t.runs_on(capability));
    all().find(|t| t.name == target).map(|t| t.capability).ok_or_else(|| {
        let names: Vec<&str> = all().map(|t| t.name).collect();
        NoCuda::NoTarget { target: target.to_owned(), names: names.join(", ") }
    })
}

/// Whether the card of that index can be used.
pub fn usable(index: u32) -> Result<(), NoCuda> {
    describe(index).map(|_| ())
}

/// Free memory of a card before anything is loaded on it.
pub fn free_bytes(index: u32) -> Option<u64> {
    let device = describe(index).ok()?.device;
    retain(device).ok()?;
    let (mut free, mut all) = (0, 0);
    // SAFETY: `retain` has made a context current; both pointers are to live numbers. The context stays:
    // the backend takes up the same one.
    let asked = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut all) };
    (asked == sys::CUresult::CUDA_SUCCESS).then_some(free as u64)
}

/// Makes the card's context current on this thread.
fn retain(device: i32) -> Result<(), NoCuda> {
    let mut context = null_mut();
    // SAFETY: the device is one the driver named; the pointer is to a live handle.
    ready(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) }, "making a context")?;
    // SAFETY: the context was just retained.
    ready(unsafe { sys::cuCtxSetCurrent(context) }, "taking up its context")
}

impl Driver {
    pub fn open(
        index: u32,
        options: &CudaOptions,
        on_kernels: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Self, NoCuda> {
        let Described { device, name, multiprocessors, shared_bytes, capability, driver: version } = describe(index)?;
        let capability = options.target.as_deref().map_or(Ok(capability), |name| as_if(name, capability))?;
        retain(device)?;
        let mut driver = Self {
            device,
            stream: null_mut(),
            modules: Vec::new(),
            functions: Vec::new(),
            name,
            multiprocessors,
            shared_bytes,
            capability,
            early: TARGETS[EARLY_START].runs_on(capability) && version >= EARLY_START_RECORDED,
            wait_always: options.wait_always,
            staging: RefCell::default(),
            recording: Cell::new(false),
            broken: Cell::default(),
            generation: Cell::new(0),
            rehearsed: Cell::new(None),
            free_at_first: 0,
        };
        driver.free_at_first = driver.memory().0;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; the pointer is to a live handle.
        ready(unsafe { sys::cuStreamCreate(&mut driver.stream, flags) }, "making a stream")?;
        driver.load_kernels(options.kernels.as_deref(), on_kernels)?;
        driver.staging.replace(Some(Staging::new()?));
        Ok(driver)
    }

    fn load_kernels(
        &mut self,
        folder: Option<&Path>,
        on_kernels: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(), NoCuda> {
        let total = SOURCES.iter().filter(|s| s.of_card(self.capability).is_some()).count();
        for source in SOURCES {
            let done = self.modules.iter().filter(|m| !m.is_null()).count();
            if !on_kernels(done, total) {
                return Err(NoCuda::Stopped);
            }
            let module = match (source.of_card(self.capability), folder) {
                (None, _) => null_mut(),
                (Some((_, ptx)), None) => load(source.name, ptx.as_bytes())?,
                (Some((target, _)), Some(folder)) => load(source.name, &read(folder, source, target)?)?,
            };
            self.modules.push(module);
        }
        for entry in KERNELS {
            let at = SOURCES.iter().position(|s| s.name == entry.source).expect("every kernel's file is listed");
            let name = CString::new(entry.name).expect("names have no zeros");
            let mut function = null_mut();
            if self.modules[at].is_null() {
                self.functions.push(function);
                continue;
            }
            // SAFETY: the module is loaded, the name ends in a zero, the pointer is to a live handle.
            let found = unsafe { sys::cuModuleGetFunction(&mut function, self.modules[at], name.as_ptr()) };
            ready(found, entry.name)?;
            self.functions.push(function);
        }
        for (kernel, &function) in Kernel::all().zip(&self.functions).filter(|(k, _)| self.takes(*k)) {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is one of a module that is loaded.
            let set = unsafe { sys::cuFuncSetAttribute(function, most, kernel.shared_bytes() as i32) };
            ready(set, kernel.entry().name)?;
        }
        Ok(())
    }

    /// Whether the card has the kernel, and the shared memory that it wants for a block.
    pub fn takes(&self, kernel: Kernel) -> bool {
        !self.functions[kernel as usize].is_null() && kernel.shared_bytes() <= self.shared_bytes
    }

    /// Blocks of a kernel that a multiprocessor has room for, at least one.
    pub fn resident(&self, kernel: Kernel, block: usize) -> usize {
        let (mut blocks, function) = (0, self.functions[kernel as usize]);
        // SAFETY: the function is one of a module that is loaded; the pointer is to a live i32.
        let found = unsafe {
            let shared = kernel.shared_bytes();
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, block as i32, shared)
        };
        must(found, kernel.entry().name);
        blocks.max(1) as usize
    }

    /// Starts a kernel after all that was started before.
    pub fn launch(&self, kernel: Kernel, grid: [usize; 3], block: usize, args: &[Arg<'_>]) {
        let entry = kernel.entry();
        assert!(
            args.iter().map(Arg::letter).eq(entry.takes.bytes()),
            "kernel {} takes {} and was given something else",
            entry.name,
            entry.takes
        );
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        // SAFETY: C unions and structs of numbers and pointers, for which all zeros is a value.
        let (mut early, mut config) =
            unsafe { (std::mem::zeroed::<sys::CUlaunchAttribute>(), std::mem::zeroed::<sys::CUlaunchConfig>()) };
        early.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        early.value.programmaticStreamSerializationAllowed = 1;
        [config.gridDimX, config.gridDimY, config.gridDimZ] = grid.map(|n| n as u32);
        [config.blockDimX, config.blockDimY, config.blockDimZ] = [block as u32, 1, 1];
        config.sharedMemBytes = kernel.shared_bytes() as u32;
        (config.hStream, config.attrs, config.numAttrs) = (self.stream, &mut early, self.early as u32);
        // SAFETY: number, order and sizes of the arguments are the kernel's (checked above; the table is
        // checked against the PTX); they outlive the call, which copies them. Pointers among them are
        // to memory that the caller's buffers own, which is freed in stream order after a wait.
        let started = unsafe {
            let function = self.functions[kernel as usize];
            sys::cuLaunchKernelEx(&config, function, addresses.as_mut_ptr(), null_mut())
        };
        self.issued(started, entry.name);
        if self.wait_always {
            // SAFETY: the stream is this driver's own.
            must(unsafe { sys::cuStreamSynchronize(self.stream) }, entry.name);
        }
    }

    /// What was issued may fail where it is recorded: then nothing has run, and the recorder is told.
    fn issued(&self, result: sys::CUresult, doing: &str) {
        match failure(result, doing) {
            Err(why) if self.recording.get() => self.broken.set(Some(why)),
            _ => must(result, doing),
        }
    }

    /// Calls `issue` while the stream records.
    pub(super) fn recording(&self, issue: impl FnOnce()) -> Result<(), String> {
        self.recording.set(true);
        issue();
        self.recording.set(false);
        self.broken.take().map_or(Ok(()), Err)
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Bytes that this process has taken since its context began, as the card's free memory tells.
    pub fn taken_bytes(&self) -> u64 {
        self.free_at_first.saturating_sub(self.memory().0)
    }

    /// Waits until everything started has ended.
    pub fn wait(&self) {
        // SAFETY: the stream is this driver's own.
        must(unsafe { sys::cuStreamSynchronize(self.stream) }, "waiting for it");
    }

    /// Zeroed memory, at least a byte.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, OutOfMemory> {
        let bytes = bytes.max(1);
        if let Some(so_far) = self.rehearsed.get() {
            self.rehearsed.set(Some(so_far + bytes.next_multiple_of(ALLOCATED) as u64));
            return Ok(REHEARSED);
        }
        self.generation.set(self.generation.get() + 1);
        let mut at = 0;
        // SAFETY: a context is current; the pointer is to a live address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut at, bytes) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(out_of_memory(bytes));
        }
        must(result, "taking memory");
        // SAFETY: `bytes` at `at` were just allocated.
        must(unsafe { sys::cuMemsetD8Async(at, 0, bytes, self.stream) }, "clearing memory");
        Ok(at)
    }

    /// Bytes that `make` allocates, told without allocating: what it makes is of no use.
    pub(super) fn rehearse<T>(&self, make: impl FnOnce() -> T) -> u64 {
        self.rehearsed.set(Some(0));
        drop(make());
        self.rehearsed.take().unwrap_or(0)
    }

    /// Waits in a drop, where errors are ignored: the card may be gone.
    pub(super) fn quiet(&self) {
        // SAFETY: the stream is this driver's own.
        let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
    }

    /// Gives memory back once nothing runs any more.
    pub(super) fn free(&self, at: u64) {
        if at == REHEARSED {
            return;
        }
        self.generation.set(self.generation.get() + 1);
        self.quiet();
        // SAFETY: `at` came from `alloc` and is freed once, by its owner's drop.
        let _ = unsafe { sys::cuMemFree_v2(at) };
    }

    /// Copies in stream order and waits for nothing. The caller vouches that `to` begins at least
    /// `from.len()` bytes of memory of this card.
    pub(super) fn copy_in(&self, to: u64, from: &[u8]) {
        assert!(!self.recording.get(), "a step writes nothing from the host");
        if self.rehearsed.get().is_some() {
            return;
        }
        let mut staging = self.staging.borrow_mut();
        staging.as_mut().expect("made when the card was opened").send(self.stream, to, from);
    }

    /// The other way, and waits. The caller vouches for the range on the card.
    pub(super) fn copy_out(&self, to: &mut [u8], from: u64) {
        if to.is_empty() {
            return;
        }
        // SAFETY: the target is a live slice, exclusively borrowed; the wait ends before it is released.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.stream) };
        must(copied, "copying from it");
        self.wait();
    }

    /// Within the card, in stream order; both ranges are the caller's word.
    pub(super) fn copy_within(&self, to: u64, from: u64, bytes: usize) {
        // SAFETY: the caller vouches for both ranges; their owners free them only after a wait.
        let copied = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
        self.issued(copied, "copying within it");
    }

    /// Free and all memory of the card, in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let (mut free, mut all) = (0, 0);
        // SAFETY: a context is current; both pointers are to live numbers.
        must(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut all) }, "asking for its memory");
        (free as u64, all as u64)
    }

    pub(super) fn device(&self) -> i32 {
        self.device
    }

    /// Milliseconds that `work` takes on the card.
    pub fn time_ms(&self, work: impl FnOnce()) -> f32 {
        let event = || {
            let mut event = null_mut();
            // SAFETY: a context is current; the pointer is to a live handle.
            must(unsafe { sys::cuEventCreate(&mut event, 0) }, "making an event");
            event
        };
        let (begin, end, mut ms) = (event(), event(), 0.0);
        // SAFETY: both events and the stream are live until the last call.
        unsafe {
            must(sys::cuEventRecord(begin, self.stream), "recording an event");
            work();
            must(sys::cuEventRecord(end, self.stream), "recording an event");
            must(sys::cuEventSynchronize(end), "waiting for an event");
            must(sys::cuEventElapsedTime(&mut ms, begin, end), "reading a time");
            let _ = sys::cuEventDestroy_v2(begin);
            let _ = sys::cuEventDestroy_v2(end);
        }
        ms
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.quiet();
        self.staging.take();
        // SAFETY: all buffers hold this driver, so none is left; each handle is given back once. Errors
        // are ignored: the card may be gone.
        unsafe {
            for &module in self.modules.iter().filter(|m| !m.is_null()) {
                let _ = sys::cuModuleUnload(module);
            }
            if !self.stream.is_null() {
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

pub(super) fn out_of_memory(bytes: usize) -> OutOfMemory {
    OutOfMemory { what: "GPU", needed_bytes: bytes as u64 }
}

fn attribute(device: i32, which: sys::CUdevice_attribute) -> Result<i32, NoCuda> {
    let mut value = 0;
    // SAFETY: the device is one the driver named; the pointer is to a live i32.
    ready(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, "asking what it is")?;
    Ok(value)
}

fn name(device: i32) -> Result<String, NoCuda> {
    let mut text = [0u8; 256];
    // SAFETY: the buffer is as long as is said; the driver ends the name with a zero.
    ready(unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), 255, device) }, "asking its name")?;
    Ok(CStr::from_bytes_until_nul(&text).map_or_else(|_| "GPU".into(), |s| s.to_string_lossy().into_owned()))
}

fn read(folder: &Path, source: &Source, target: &str) -> Result<Vec<u8>, NoCuda> {
    let path = folder.join(format!("{}.{target}.ptx", source.name));
    let mut ptx =
        std::fs::read(&path).map_err(|e| NoCuda::Driver(format!("{} cannot be read: {e}", path.display())))?;
    ptx.push(0);
    Ok(ptx)
}

/// `ptx` ends in a zero.
fn load(name: &str, ptx: &[u8]) -> Result<sys::CUmodule, NoCuda> {
    assert_eq!(ptx.last(), Some(&0), "PTX ends in a zero");
    let mut log = vec![0u8; JIT_LOG_BYTES];
    use sys::CUjit_option as O;
    let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels as a value in the place of a pointer.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(JIT_LOG_BYTES)];
    let mut module = null_mut();
    // SAFETY: the image ends in a zero; both arrays have the length that is said; the log buffer has the
    // size that is said and outlives the call.
    let result = unsafe {
        let image = ptx.as_ptr().cast();
        sys::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    result.result().map(|()| module).map_err(|e| {
        let log = CStr::from_bytes_until_nul(&log).map_or("".into(), CStr::to_string_lossy);
        let log: Vec<&str> = log.split_whitespace().collect();
        NoCuda::Driver(format!("the driver refuses the kernels in {name}: {}: {}", words(e), log.join(" ")))
    })
}
