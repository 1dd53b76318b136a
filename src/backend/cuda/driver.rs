//! A thin layer over the driver: one GPU, its context and stream, modules, launches, allocations,
//! copies. Every call is checked. A failure while the GPU is opened is an error. A later failure (a
//! lost GPU, a broken kernel) unwinds with [`DeviceLost`](super::super::DeviceLost), which the
//! engine catches. Out of memory is typed.
//!
//! Context, stream, events, graphs and page-locked memory are cudarc's safe types. We implement
//! launches (cudarc's allocate and have no programmatic dependent launch), modules (cudarc's have
//! no log of the JIT compiler), device memory (cudarc's pool keeps freed memory, so free memory
//! would not show how much is in use) and the mapped pages of `pool`.

use super::super::{MemoryUse, OutOfMemory};
use super::abi::Arg;
use super::error::{NoCuda, failure, lost, must, ready, words};
use super::kernels::{Kernel, PDL_TARGET, SOURCES, Source, TARGETS, Target};
use super::nvml::Counter;
use super::pinned::Staging;
use super::probe::probe;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaStream};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;

/// Granule of device allocations. An allocation begins new blocks of `BLOCK_BYTES`; up to
/// `SMALL_BYTES` it may share a block that has room. (Measured with driver 580: 300 allocations of
/// 20 KB to 6 MB took 0.4 % more than this computes.)
const GRANULE_BYTES: usize = 512;
const SMALL_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 2 << 20;
/// Bytes from which a copy to the host goes through page-locked memory.
const STAGED_BYTES: usize = 1 << 20;
/// The address that a dry run of allocations returns.
const DRY_RUN: u64 = 0;
const JIT_LOG_BYTES: usize = 8 << 10;
/// CUDA version of the first driver that captures programmatic dependent launches.
const PDL_IN_GRAPHS: i32 = 12040;

/// How a GPU is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Synchronizes after every launch, so that a failure names its kernel, at the cost of speed.
    pub wait_always: bool,
    /// A folder of PTX that replaces the built-in kernels, for kernel development.
    pub kernels: Option<PathBuf>,
    /// Uses the kernels of this one of `TARGETS`, as an older GPU would, for kernel development.
    pub target: Option<String>,
    /// Launches the kernels of every step one by one instead of capturing steps as graphs.
    pub no_graphs: bool,
    /// Candidate files of libcublasLt, which runs the GEMMs of prefill. The first that works is
    /// used.
    pub cublaslt: Vec<PathBuf>,
    /// Whether it is an error if none does.
    pub cublaslt_needed: bool,
}

/// A GPU that is open.
pub struct Driver {
    /// Modules in the order of `SOURCES`. A file is loaded before a model that needs it, or by the
    /// first use of one of its kernels.
    modules: Vec<OnceCell<sys::CUmodule>>,
    /// Functions of the kernels that have been used.
    functions: RefCell<HashMap<Kernel, sys::CUfunction>>,
    /// Where PTX is read from instead of from the program.
    kernel_folder: Option<PathBuf>,
    pub name: String,
    pub sm_count: usize,
    /// Most shared memory of a block.
    shared_bytes: usize,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Whether kernels are launched with programmatic dependent launch.
    pdl: bool,
    /// The next kernel is launched without it.
    separate: Cell<bool>,
    wait_always: bool,
    staging: RefCell<Staging>,
    /// Launches are being captured and do not run.
    capturing: Cell<bool>,
    /// The first error of the capture in progress.
    broken: Cell<Option<String>>,
    /// Counts allocations and frees.
    generation: Cell<u64>,
    /// A dry run of allocations, in which nothing is allocated and nothing is copied.
    dry_run: RefCell<Option<Blocks>>,
    /// Free bytes when the context was all there was.
    free_at_first: u64,
    /// Bytes that loading modules took.
    module_bytes: Cell<u64>,
    /// Purposes of allocations, live allocations by address, the blocks that hold them, and mapped
    /// pages.
    purpose: Cell<&'static str>,
    allocations: RefCell<HashMap<u64, (&'static str, u64)>>,
    blocks: RefCell<Blocks>,
    mapped_bytes: Cell<u64>,
    /// For the user, said once.
    pub notice: Cell<Option<&'static str>>,
    /// Declared last: fields drop in order, and those above need them.
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

/// Properties of a GPU.
struct Description {
    name: String,
    sm_count: usize,
    shared_bytes: usize,
    /// Compute capability, major and minor.
    capability: (i32, i32),
    /// The driver's CUDA version.
    driver: i32,
}

/// Describes the GPU of that index, without a context; an error says why it cannot be used.
fn describe(index: u32) -> Result<Description, NoCuda> {
    let (driver, count) = probe()?;
    if index >= count {
        return Err(NoCuda::NoSuchDevice { index, count });
    }
    let device = ready(result::device::get(index as i32), "opening it")?;
    // SAFETY: the device is one that the driver named.
    let attribute = |which| ready(unsafe { result::device::get_attribute(device, which) }, "reading its attributes");
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let sm_count = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
    let shared_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
    let name = ready(result::device::get_name(device), "reading its name")?;
    let capability = (major, minor);
    if !TARGETS.iter().any(|t| t.runs_on(capability)) {
        return Err(NoCuda::OldGpu { name, major, minor });
    }
    Ok(Description { name, sm_count, shared_bytes, capability, driver })
}

/// The counter of a GPU's energy, if it has one.
pub fn energy_of(index: u32) -> Option<Counter> {
    let device = result::device::get(index as i32).ok()?;
    // SAFETY: the device is one that the driver named.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.ok();
    let domain = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    Counter::open(domain, bus, attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?)
}

/// The capability of the oldest GPU that a target is for, if this GPU runs the target.
fn as_if(target: &str, capability: (i32, i32)) -> Result<(i32, i32), NoCuda> {
    let all = || TARGETS.iter().filter(|t| t.runs_on(capability));
    all().find(|t| t.name == target).map(|t| t.capability).ok_or_else(|| {
        let names: Vec<&str> = all().map(|t| t.name).collect();
        NoCuda::NoTarget { target: target.to_owned(), names: names.join(", ") }
    })
}

/// Whether the GPU of that index can be used.
pub fn usable(index: u32) -> Result<(), NoCuda> {
    describe(index).map(|_| ())
}

/// Free memory of a GPU before anything is loaded on it.
pub fn free_bytes(index: u32) -> Option<u64> {
    describe(index).ok()?;
    let context = CudaContext::new(index as usize).ok()?;
    let (free, _) = context.mem_get_info().ok()?;
    // Kept alive: the backend uses the same primary context, which takes a while to create.
    std::mem::forget(context);
    Some(free as u64)
}

impl Driver {
    /// Opens a GPU. Loads one small file of kernels to detect a driver that refuses them.
    pub fn open(index: u32, options: &CudaOptions) -> Result<Self, NoCuda> {
        let Description { name, sm_count, shared_bytes, capability, driver: version } = describe(index)?;
        let capability = options.target.as_deref().map_or(Ok(capability), |name| as_if(name, capability))?;
        let context = ready(CudaContext::new(index as usize), "creating a context")?;
        // SAFETY: there is one stream, so nothing has to be ordered across streams.
        unsafe { context.disable_event_tracking() };
        let (free, _) = ready(context.mem_get_info(), "reading its free memory")?;
        let driver = Self {
            modules: SOURCES.iter().map(|_| OnceCell::new()).collect(),
            functions: RefCell::default(),
            kernel_folder: options.kernels.clone(),
            name,
            sm_count,
            shared_bytes,
            capability,
            pdl: TARGETS[PDL_TARGET].runs_on(capability) && version >= PDL_IN_GRAPHS,
            separate: Cell::new(false),
            wait_always: options.wait_always,
            staging: RefCell::new(Staging::new(&context)?),
            capturing: Cell::new(false),
            broken: Cell::default(),
            generation: Cell::new(0),
            dry_run: RefCell::default(),
            free_at_first: free as u64,
            module_bytes: Cell::new(0),
            purpose: Cell::new("other"),
            allocations: RefCell::default(),
            blocks: RefCell::default(),
            mapped_bytes: Cell::new(0),
            notice: Cell::default(),
            stream: ready(context.new_stream(), "creating a stream")?,
            context,
        };
        driver.module(Kernel::MovePages.entry().source)?;
        Ok(driver)
    }

    /// Loads the files of kernels that `needed` names. `on_files` receives the number of files
    /// loaded and their total, before each of them, and returns whether to continue.
    pub fn load_kernels(
        &self,
        needed: impl Fn(&Source, (i32, i32)) -> bool,
        on_files: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<(), NoCuda> {
        let runs = |s: &Source| s.target_for(self.capability).is_some() && needed(s, self.capability);
        let files: Vec<usize> = (0..SOURCES.len()).filter(|&at| runs(&SOURCES[at])).collect();
        for (done, &at) in files.iter().enumerate() {
            if !on_files(done, files.len()) {
                return Err(NoCuda::Stopped);
            }
            self.module(at)?;
        }
        Ok(())
    }

    /// A file of kernels by its place in `SOURCES`. Its first use loads it.
    fn module(&self, at: usize) -> Result<sys::CUmodule, NoCuda> {
        if let Some(module) = self.modules[at].get() {
            return Ok(*module);
        }
        let source = &SOURCES[at];
        let Some(target) = source.target_for(self.capability) else {
            return Err(NoCuda::Driver(format!("this GPU does not run the kernels in {}", source.name)));
        };
        let before = self.memory().0;
        let module = match &self.kernel_folder {
            None => load(source.name, &source.ptx(target))?,
            Some(folder) => load(source.name, &read(folder, source, target)?)?,
        };
        self.module_bytes.set(self.module_bytes.get() + before.saturating_sub(self.memory().0));
        Ok(*self.modules[at].get_or_init(|| module))
    }

    /// Returns the function of a kernel. Its first use makes the driver load its code, outside a
    /// capture, because a step runs once before it is captured. A model therefore costs the memory
    /// of the kernels for its formats only.
    fn function(&self, kernel: Kernel) -> sys::CUfunction {
        if let Some(function) = self.functions.borrow().get(&kernel) {
            return *function;
        }
        let entry = kernel.entry();
        let module = self.module(entry.source).unwrap_or_else(|why| lost(&why));
        let name = CString::new(entry.name).expect("names have no zeros");
        // SAFETY: the module is loaded.
        let function = must(unsafe { result::module::get_function(module, name) }, entry.name);
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = if entry.shared_per_group > 0 { self.shared_bytes } else { entry.shared_bytes(0, 0) };
        // SAFETY: the function is one of a module that is loaded.
        let set = unsafe { sys::cuFuncSetAttribute(function, most, bytes as i32) };
        self.issued(set.result(), entry.name);
        self.functions.borrow_mut().insert(kernel, function);
        function
    }

    /// Whether the GPU runs the kernel and has enough shared memory for a block of `threads`
    /// threads and a weight of `cols` columns.
    pub fn supports_width(&self, kernel: Kernel, threads: usize, cols: usize) -> bool {
        let entry = kernel.entry();
        let runs = SOURCES[entry.source].target_for(self.capability).is_some();
        runs && entry.shared_bytes(threads, cols) <= self.shared_bytes
    }

    /// Like [`Self::supports_width`], for a kernel that needs the same shared memory for all
    /// weights.
    pub fn supports(&self, kernel: Kernel) -> bool {
        self.supports_width(kernel, 0, 0)
    }

    /// Blocks of a kernel that fit on an SM at once, at least one.
    pub fn blocks_per_sm(&self, kernel: Kernel, threads: usize) -> usize {
        let (mut blocks, function) = (0, self.function(kernel));
        // SAFETY: the function is one of a module that is loaded; the pointer is to a live i32.
        let found = unsafe {
            let shared = kernel.entry().shared_bytes(threads, 0);
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, threads as i32, shared)
        };
        must(found.result(), kernel.entry().name);
        blocks.max(1) as usize
    }

    /// Makes the next kernel, and so the ones after it, start only when all work issued before has
    /// ended.
    pub fn separate(&self) {
        self.separate.set(true);
    }

    /// Launches a kernel in stream order, on a grid of blocks of `threads` threads.
    pub fn launch(&self, kernel: Kernel, grid: [usize; 3], threads: usize, args: &[Arg<'_>]) {
        self.launch_of_width(kernel, grid, threads, 0, args);
    }

    /// Like [`Self::launch`], for a kernel whose shared memory depends on the columns of the
    /// weight.
    pub fn launch_of_width(&self, kernel: Kernel, grid: [usize; 3], threads: usize, cols: usize, args: &[Arg<'_>]) {
        let entry = kernel.entry();
        assert!(
            args.len() == entry.params.len() && args.iter().zip(&entry.params).all(|(arg, form)| arg.has_form(form)),
            "kernel {} takes {:?} and was given something else",
            entry.name,
            entry.params
        );
        let mut addresses: Vec<*mut c_void> = args.iter().map(Arg::address).collect();
        // SAFETY: C unions and structs of numbers and pointers, for which all zeros is a value.
        let (mut pdl, mut config) =
            unsafe { (std::mem::zeroed::<sys::CUlaunchAttribute>(), std::mem::zeroed::<sys::CUlaunchConfig>()) };
        pdl.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        pdl.value.programmaticStreamSerializationAllowed = 1;
        [config.gridDimX, config.gridDimY, config.gridDimZ] = grid.map(|n| n as u32);
        [config.blockDimX, config.blockDimY, config.blockDimZ] = [threads as u32, 1, 1];
        config.sharedMemBytes = entry.shared_bytes(threads, cols) as u32;
        let early = self.pdl && !self.separate.take();
        (config.hStream, config.attrs, config.numAttrs) = (self.stream.cu_stream(), &mut pdl, early as u32);
        // SAFETY: number, order and sizes of the arguments are the kernel's (checked above against
        // the PTX's); they outlive the call, which copies them. Pointers among them are to memory
        // that the caller's buffers own, which is freed only after a wait.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&config, self.function(kernel), addresses.as_mut_ptr(), null_mut()) };
        self.issued(launched.result(), entry.name);
        if self.wait_always {
            must(self.stream.synchronize(), entry.name);
        }
    }

    /// Checks work that was issued. During a capture it does not run, and a failure is reported by
    /// the capture.
    fn issued(&self, result: Result<(), DriverError>, doing: &str) {
        if !self.capturing.get() {
            return must(result, doing);
        }
        if let Err(why) = failure(result, doing) {
            self.broken.set(Some(why));
        }
    }

    /// Calls `issue` while the stream is captured.
    pub(super) fn capturing(&self, issue: impl FnOnce()) -> Result<(), String> {
        self.capturing.set(true);
        issue();
        self.capturing.set(false);
        self.broken.take().map_or(Ok(()), Err)
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Changes whenever memory is allocated or freed.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Bytes that left the GPU's free memory since this process created its context.
    pub fn taken_bytes(&self) -> u64 {
        self.free_at_first.saturating_sub(self.memory().0)
    }

    /// Waits until the stream is idle.
    pub fn wait(&self) {
        must(self.stream.synchronize(), "waiting for it");
    }

    /// Waits in a drop: the GPU may be lost.
    pub(super) fn wait_ignoring_errors(&self) {
        let _ = self.stream.synchronize();
    }

    /// Allocates zeroed device memory, at least a byte, and returns its address.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, OutOfMemory> {
        let bytes = bytes.max(1);
        if let Some(dry_run) = &mut *self.dry_run.borrow_mut() {
            dry_run.alloc(bytes);
            return Ok(DRY_RUN);
        }
        self.generation.set(self.generation.get() + 1);
        // SAFETY: the memory is cleared before anybody reads it.
        let at = match unsafe { result::malloc_sync(bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Err(out_of_memory(bytes)),
            at => must(at, "allocating memory"),
        };
        self.clear(at, bytes);
        self.allocations.borrow_mut().insert(at, (self.purpose.get(), bytes as u64));
        self.blocks.borrow_mut().alloc(bytes);
        Ok(at)
    }

    /// Sets device memory that this driver allocated to zero.
    pub(super) fn clear(&self, at: u64, bytes: usize) {
        // SAFETY: callers pass an allocation of at least `bytes`.
        must(unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) }, "clearing memory");
    }

    /// Calls `make`, whose allocations are counted as `purpose`.
    pub(super) fn allocating<T>(&self, purpose: &'static str, make: impl FnOnce() -> T) -> T {
        let before = self.purpose.replace(purpose);
        let made = make();
        self.purpose.set(before);
        made
    }

    /// Counts pages that were mapped or, if negative, unmapped.
    pub(super) fn count_mapped(&self, bytes: i64) {
        self.mapped_bytes.set(self.mapped_bytes.get().wrapping_add_signed(bytes));
    }

    /// Contents of the GPU's memory.
    pub(super) fn memory_use(&self) -> MemoryUse {
        let (free_bytes, total_bytes) = self.memory();
        let mut allocated = BTreeMap::new();
        for &(purpose, bytes) in self.allocations.borrow().values() {
            *allocated.entry(purpose).or_default() += bytes;
        }
        let exact: u64 = allocated.values().sum();
        allocated.insert("rounding to the driver's blocks", self.blocks.borrow().bytes.saturating_sub(exact));
        allocated.insert("cache pages", self.mapped_bytes.get());
        MemoryUse {
            before_bytes: total_bytes - self.free_at_first,
            kernel_bytes: self.module_bytes.get(),
            taken_bytes: total_bytes - free_bytes,
            allocated: allocated.into_iter().collect(),
        }
    }

    /// Bytes that `make` would allocate. Nothing is allocated; what it makes is dropped.
    pub(super) fn dry_run_allocation<T>(&self, make: impl FnOnce() -> T) -> u64 {
        self.dry_run.replace(Some(Blocks::default()));
        drop(make());
        self.dry_run.take().map_or(0, |dry_run| dry_run.bytes)
    }

    /// Frees memory once the stream is idle.
    pub(super) fn free(&self, at: u64) {
        if at == DRY_RUN {
            return;
        }
        self.generation.set(self.generation.get() + 1);
        self.wait_ignoring_errors();
        if let Some((_, bytes)) = self.allocations.borrow_mut().remove(&at) {
            self.blocks.borrow_mut().free(bytes as usize);
        }
        // SAFETY: `at` came from `alloc` and is freed once, by its owner's drop.
        let _ = unsafe { result::free_sync(at) };
    }

    /// Copies to the GPU in stream order, without waiting. The caller guarantees that `to` points
    /// to at least `from.len()` bytes of memory of this GPU.
    pub(super) fn copy_in(&self, to: u64, from: &[u8]) {
        assert!(!self.capturing.get(), "a captured step copies nothing from the host");
        if self.dry_run.borrow().is_none() {
            // SAFETY: the caller's word.
            unsafe { self.staging.borrow_mut().send(&self.stream, to, from) };
        }
    }

    /// Copies to the host and waits. The caller vouches for the range on the GPU.
    pub(super) fn copy_out(&self, to: &mut [u8], from: u64) {
        if to.is_empty() {
            return;
        }
        if to.len() >= STAGED_BYTES {
            // SAFETY: the caller's word.
            return unsafe { self.staging.borrow_mut().fetch(&self.stream, to, from) };
        }
        // SAFETY: the target is a live slice, exclusively borrowed; the wait ends before it is
        // released.
        must(unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }, "copying from the GPU");
        self.wait();
    }

    /// Copies within the GPU, in stream order. The caller vouches for both ranges.
    pub(super) fn copy_within(&self, to: u64, from: u64, bytes: usize) {
        // SAFETY: the caller vouches for both ranges; their owners free them only after a wait.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) };
        self.issued(copied, "copying within the GPU");
    }

    /// Free and total bytes of the GPU's memory.
    pub fn memory(&self) -> (u64, u64) {
        let (free, all) = must(self.context.mem_get_info(), "reading its free memory");
        (free as u64, all as u64)
    }

    /// Milliseconds that `work` takes on the GPU.
    pub fn time_ms(&self, work: impl FnOnce()) -> f32 {
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let begin = must(self.stream.record_event(timed), "recording an event");
        work();
        let end = must(self.stream.record_event(timed), "recording an event");
        must(begin.elapsed_ms(&end), "reading a time")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.wait_ignoring_errors();
        for &module in self.modules.iter().filter_map(OnceCell::get) {
            // SAFETY: nothing runs any more; each module is unloaded once. Errors are ignored: the
            // GPU may be lost.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// How the driver divides memory among allocations.
#[derive(Default)]
struct Blocks {
    bytes: u64,
    /// Free bytes at the end of each block.
    left: Vec<u64>,
}

impl Blocks {
    fn alloc(&mut self, bytes: usize) {
        let taken = bytes.next_multiple_of(GRANULE_BYTES) as u64;
        if bytes <= SMALL_BYTES
            && let Some(left) = self.left.iter_mut().find(|left| **left >= taken)
        {
            *left -= taken;
            return;
        }
        let blocks = bytes.next_multiple_of(BLOCK_BYTES) as u64;
        self.bytes += blocks;
        if blocks > taken {
            self.left.push(blocks - taken);
        }
    }

    /// Counts large allocations only: what shares a block may leave it in use.
    fn free(&mut self, bytes: usize) {
        if bytes > SMALL_BYTES {
            self.bytes = self.bytes.saturating_sub(bytes.next_multiple_of(BLOCK_BYTES) as u64);
        }
    }
}

pub(super) fn out_of_memory(bytes: usize) -> OutOfMemory {
    OutOfMemory { what: "GPU", needed_bytes: bytes as u64 }
}

/// PTX of a folder, with a zero at its end.
fn read(folder: &Path, source: &Source, target: &Target) -> Result<Vec<u8>, NoCuda> {
    let path = folder.join(format!("{}.{}.ptx", source.name, target.name));
    let mut ptx =
        std::fs::read(&path).map_err(|e| NoCuda::Driver(format!("{} cannot be read: {e}", path.display())))?;
    ptx.push(0);
    Ok(ptx)
}

/// Loads PTX that ends in a zero.
fn load(name: &str, ptx: &[u8]) -> Result<sys::CUmodule, NoCuda> {
    assert_eq!(ptx.last(), Some(&0), "PTX ends in a zero");
    let mut log = vec![0u8; JIT_LOG_BYTES];
    use sys::CUjit_option as O;
    let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels as a value in the place of a pointer.
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(JIT_LOG_BYTES)];
    let mut module = null_mut();
    // SAFETY: the image ends in a zero; both arrays have the length given; the log buffer has the
    // size given and outlives the call.
    let loaded = unsafe {
        let image = ptx.as_ptr().cast();
        sys::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    loaded.result().map(|()| module).map_err(|e| {
        let log = CStr::from_bytes_until_nul(&log).map_or("".into(), CStr::to_string_lossy);
        let log: Vec<&str> = log.split_whitespace().collect();
        NoCuda::Driver(format!("the driver refuses the kernels in {name}: {}: {}", words(e), log.join(" ")))
    })
}
